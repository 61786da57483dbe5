"""What a GPU did in a stretch of time, and how stretches become the series of a node's record."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from hpcncf.records import Gpu, GpuProcess

# Bits of nvmlClocksEventReasons (nvml.h). Left out: an idle GPU (0x1), clocks that somebody set
# (0x2), a display (0x100).
REASONS: Final = {
    "power": 0x4,
    "thermal": 0x20 | 0x40,
    "hardware": 0x8 | 0x80,
    "other": 0x10 | 0x200 | 0x400,
}


@dataclass(frozen=True)
class Identity:
    """A GPU as NVML names it."""

    index: int
    uuid: str
    name: str
    memory_total_mib: float


@dataclass(frozen=True)
class GpuWindow:
    """What adds up over a stretch of time, and two last states; None where NVML did not tell."""

    length_s: float
    busy_s: float | None
    ours_s: float | None
    energy_j: float | None
    mhz_s: float | None
    """Clock x time."""
    throttled_s: tuple[float | None, ...]
    """By reason, in the order of `REASONS`."""
    memory_mib: float | None
    ours_memory_mib: float | None


def merge(first: GpuWindow, second: GpuWindow) -> GpuWindow:
    """Two neighbours as one: a sum is known where both parts are."""
    pairs = zip(first.throttled_s, second.throttled_s, strict=True)
    return GpuWindow(
        length_s=first.length_s + second.length_s,
        busy_s=_sum(first.busy_s, second.busy_s),
        ours_s=_sum(first.ours_s, second.ours_s),
        energy_j=_sum(first.energy_j, second.energy_j),
        mhz_s=_sum(first.mhz_s, second.mhz_s),
        throttled_s=tuple(_sum(a, b) for a, b in pairs),
        memory_mib=second.memory_mib,
        ours_memory_mib=second.ours_memory_mib,
    )


def _sum(a: float | None, b: float | None) -> float | None:
    return None if a is None or b is None else a + b


def of_node(
    identities: Sequence[Identity],
    chosen: Collection[int],
    windows: Sequence[Sequence[GpuWindow]],
    processes: Mapping[int, list[GpuProcess]],
) -> list[Gpu]:
    """The chosen GPUs' series; `windows` are [window][GPU], in the order of `identities`;
    `processes` by index."""
    return [
        _of_gpu(identity, [each[at] for each in windows], processes.get(identity.index, []))
        for at, identity in enumerate(identities)
        if identity.index in chosen
    ]


def _of_gpu(identity: Identity, windows: Sequence[GpuWindow], processes: list[GpuProcess]) -> Gpu:
    def over_time(told: Callable[[GpuWindow], float | None], digits: int) -> list[float | None]:
        return [_rounded(told(w), digits, w.length_s) for w in windows]

    def plain(told: Callable[[GpuWindow], float | None]) -> list[float | None]:
        return [_rounded(told(w), 1) for w in windows]

    return Gpu(
        index=identity.index,
        uuid=identity.uuid,
        name=identity.name,
        memory_total_mib=round(identity.memory_total_mib, 1),
        busy=over_time(lambda w: w.busy_s, 3),
        ours=over_time(lambda w: w.ours_s, 3),
        memory_mib=plain(lambda w: w.memory_mib),
        ours_memory_mib=plain(lambda w: w.ours_memory_mib),
        energy_j=plain(lambda w: w.energy_j),
        sm_mhz=over_time(lambda w: w.mhz_s, 0),
        throttled={
            reason: [_rounded(w.throttled_s[at], 3, w.length_s) for w in windows]
            for at, reason in enumerate(REASONS)
        },
        processes=processes,
    )


def _rounded(value: float | None, digits: int, over: float = 1.0) -> float | None:
    return round(value / over, digits) if value is not None and over > 0 else None
