"""Which CPUs are hardware threads of one core, so that runs side by side get whole cores."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from hpcncf.monitor.cores import ROOT, contents, parse_cpu_list

SIBLINGS: Final = "sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"


def spread(cpus: Sequence[int], number: int, root: Path = ROOT) -> list[int]:
    """So many of the CPUs, on as many cores as there are; those of a core stand in a row.

    Cut into slices, none shares a core with another that need not. All of them where there are no
    more; a CPU whose siblings the kernel does not tell is a core.
    """
    cores: dict[int, list[int]] = defaultdict(list)
    for cpu in sorted(cpus):
        siblings = parse_cpu_list(contents(root / SIBLINGS.format(cpu)))
        cores[min(siblings, default=cpu)].append(cpu)
    turns = {cpu: turn for each in cores.values() for turn, cpu in enumerate(each)}
    chosen = set(sorted(turns, key=lambda cpu: (turns[cpu], cpu))[:number])
    return [cpu for first in sorted(cores) for cpu in cores[first] if cpu in chosen]
