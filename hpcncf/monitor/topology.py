"""Which CPUs are hardware threads of one core, so that runs side by side get whole cores."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hpcncf.monitor import numa
from hpcncf.monitor.cores import ROOT


def spread(cpus: Sequence[int], number: int, root: Path = ROOT) -> list[int]:
    """So many of the CPUs, on as many cores as there are; those of a core stand in a row, and cores
    of one NUMA node side by side.

    Cut into slices, none shares a core with another that need not. All of them where there are no
    more; a CPU whose siblings the kernel does not tell is a core.
    """
    found = [core.cpus for core in numa.cores(cpus, root)]
    turns = {cpu: turn for core in found for turn, cpu in enumerate(core)}
    chosen = set(sorted(turns, key=lambda cpu: (turns[cpu], cpu))[:number])
    return [cpu for core in found for cpu in core if cpu in chosen]
