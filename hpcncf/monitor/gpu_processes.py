"""Who was on a GPU, process by process. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from hpcncf.records import GpuProcess


@dataclass
class Seen:
    """One process, over all the time that its GPU was watched."""

    ours: bool | None
    busy_s: float = 0.0
    memory_mib: float | None = None


class Processes:
    """All that were seen on one GPU so far."""

    def __init__(self, sees_pids: bool) -> None:
        """`sees_pids`: whether NVML's numbers of processes are ours, too."""
        self._sees_pids = sees_pids
        self._seen: dict[int, Seen] = {}
        self._watched_s: float | None = 0.0

    def add(
        self,
        shares: Mapping[int, float] | None,
        memory_mib: Mapping[int, float | None] | None,
        pids: Collection[int],
        length_s: float,
    ) -> None:
        """What each did in the last `length_s` seconds; None where NVML does not tell. `pids` are
        the run's."""
        for pid, mib in (memory_mib or {}).items():
            one = self._one(pid, pids)
            one.memory_mib = one.memory_mib if mib is None else max(mib, one.memory_mib or 0.0)
        for pid, share in (shares or {}).items():
            self._one(pid, pids).busy_s += share * length_s
        known = shares is not None and self._watched_s is not None
        self._watched_s = (self._watched_s or 0.0) + length_s if known else None

    def _one(self, pid: int, pids: Collection[int]) -> Seen:
        ours = pid in pids if self._sees_pids else None
        one = self._seen.setdefault(pid, Seen(ours))
        one.ours = ours or one.ours  # it may end before its number is asked for
        return one

    def told(self) -> list[GpuProcess]:
        """The busiest first."""
        watched_s = self._watched_s
        found = sorted(self._seen.items(), key=lambda each: (-each[1].busy_s, each[0]))
        return [
            GpuProcess(
                pid=pid,
                ours=one.ours,
                busy=round(one.busy_s / watched_s, 3) if watched_s else None,
                memory_peak_mib=None if one.memory_mib is None else round(one.memory_mib, 1),
            )
            for pid, one in found
        ]
