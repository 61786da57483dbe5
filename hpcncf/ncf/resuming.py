"""Which checkpoint an attempt resumes from: one that all of its ranks can read."""

from __future__ import annotations

import contextlib

from hpcncf.ncf import checkpoint, distributed
from hpcncf.ncf.checkpoint import Checkpoint
from hpcncf.paths import RunPaths
from hpcncf.plan import Run
from hpcncf.rank.launcher import Place


def newest(paths: RunPaths, run: Run, place: Place) -> tuple[Checkpoint | None, list[str]]:
    """The newest that all ranks can resume from, and warnings: why a newer one is not used."""
    warnings = list[str]()
    for path in checkpoint.candidates(paths):
        there, found, problem = path.exists(), None, "not all ranks can read the same"
        try:
            found = checkpoint.load(path, run) if there else None
        except checkpoint.Unusable as error:
            problem = str(error)
        steps = distributed.gathered(found.step if found else None, place)
        if found and steps == [found.step] * len(steps):
            return found, warnings
        if there:
            warnings.append(f"{path}: not used: {problem}")
            if found is None and place.rank == 0:  # every rank has looked at it
                with contextlib.suppress(OSError):
                    checkpoint.put_aside(path)
    if warnings:
        warnings.append("no checkpoint could be used: training started again")
    return None, warnings
