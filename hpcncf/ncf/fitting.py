"""Whether the model fits into this node's memory: said before torch fails to get it."""

from __future__ import annotations

import os

from hpcncf import footprint
from hpcncf.errors import HpcncfError
from hpcncf.monitor.cores import memory_limit
from hpcncf.ncf.data.manifest import Manifest
from hpcncf.plan import Run


def check_fitting(run: Run, manifest: Manifest, ranks: int) -> None:
    """`ranks` of them on this node. Raises HpcncfError with the numbers."""
    assert run.training is not None
    assert run.model is not None
    if run.training.device_for(run.resources) == "cuda":
        return
    sizes = (manifest.users, manifest.items, len(manifest.context_columns))
    needed = footprint.of_model(run.training, run.model, *sizes)
    there, whose = available()
    if needed * ranks > there:
        raise HpcncfError(
            f"model: the parameters for {manifest.users:,} users and {manifest.items:,} items, "
            "with what the optimiser keeps of each, take at least "
            f"{needed / footprint.GIB:.1f} GiB on each of {ranks} "
            f"{'ranks' if ranks > 1 else 'rank'} of this node, and {whose} is "
            f"{there / footprint.GIB:.1f} GiB: use narrower widths in model, or more memory"
        )


def available() -> tuple[float, str]:
    """Bytes that this process may use at most, and whose limit that is."""
    node = float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    limit = memory_limit()
    if limit is not None and limit.value * 2**20 < node:
        return limit.value * 2**20, "its cgroup's limit"
    return node, "the node's memory"
