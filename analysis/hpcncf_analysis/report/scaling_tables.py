"""Tables of scaling and of time to quality."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from hpcncf_analysis.advice.judge import Ratio, core_speed_ratio, speed_ratio
from hpcncf_analysis.configurations import Configuration, Table, group_by_series, karp_flatt
from hpcncf_analysis.formatting import (
    NONE,
    format_core_time,
    format_duration,
    format_number,
    format_percent,
    format_ratio,
    select_time_unit,
)
from hpcncf_analysis.quality import TimeToQuality
from hpcncf_analysis.scaling import (
    Show,
    WeakComparison,
    comparison_cautions,
    format_with_interval,
    known_interval,
    weak_scaling,
)

WORK: Final = {"epoch": "an epoch's, with the data", "step": "a step's, with the batch"}


def strong_table(shown: Sequence[Configuration]) -> Table | None:
    """Each configuration against the fewest cores of its series; None where no series has two."""
    series = [members for members in group_by_series(shown).values() if len(members) > 1]
    rows = [_strong(one, members[0]) for members in series for one in members[1:]]
    columns = ["configuration", "against", "speed-up", "parallel efficiency"]
    columns += ["serial share (Karp-Flatt)", "caution"]
    return Table(columns, rows, frozenset({"against", "caution"})) if rows else None


def _strong(one: Configuration, base: Configuration) -> list[str]:
    gain = speed_ratio(one, base)
    return [
        one.label,
        base.label,
        _ratio(gain, format_ratio),
        _ratio(core_speed_ratio(one, base), format_percent),
        _serial(gain, one.cores / base.cores),
        "; ".join(comparison_cautions(one, base)),
    ]


def _ratio(ratio: Ratio, show: Show) -> str:
    return format_with_interval(ratio.value, known_interval(ratio.low, ratio.high), show)


def _serial(gain: Ratio, times_the_cores: float) -> str:
    """A share, or what stands for it: slower than on fewer cores, faster than all cores explain.

    The faster, the less is serial: the interval's ends change places.
    """
    share = karp_flatt(gain.value, times_the_cores)
    if share is None or gain.value < 1:
        return NONE if share is None else "slower on more cores"
    if share < 0:
        return "superlinear"
    ends = [
        None if end is None else karp_flatt(end, times_the_cores) for end in (gain.high, gain.low)
    ]
    low, high = (None if end is None else min(max(end, 0.0), 1.0) for end in ends)
    return format_with_interval(share, known_interval(low, high), format_percent)


def weak_table(shown: Sequence[Configuration]) -> Table | None:
    """Where the work grows with the cores; None where it nowhere does."""
    rows = [_weak(each) for each in weak_scaling(shown)]
    columns = ["configuration", "against", "work that grows", "work", "time for it"]
    columns += ["scaled speed-up", "weak efficiency", "caution"]
    texts = frozenset({"against", "work that grows", "caution"})
    return Table(columns, rows, texts) if rows else None


def _weak(each: WeakComparison) -> list[str]:
    of_each = core_speed_ratio(each.one, each.base)
    return [
        each.one.label,
        each.base.label,
        WORK[each.work],
        format_ratio(each.work_ratio),
        format_ratio(each.time_ratio),
        format_ratio(each.speedup),
        format_with_interval(
            each.efficiency, known_interval(of_each.low, of_each.high), format_percent
        ),
        "; ".join(comparison_cautions(each.one, each.base)),
    ]


def time_to_quality_table(found: Sequence[TimeToQuality]) -> Table | None:
    """Time to the target; None where nothing was evaluated."""
    rows = [
        [
            each.configuration.label,
            _time(each),
            format_number(each.epochs),
            format_core_time(each.core_hours),
            f"{each.reached} of {each.runs}",
        ]
        for each in found
    ]
    columns = ["configuration", "time to quality", "epochs", "core time", "runs that reached it"]
    return Table(columns, rows) if rows else None


def _time(each: TimeToQuality) -> str:
    if each.seconds is None:
        return "never" if each.reached == 0 else "most never"
    high = format_duration(each.high) if each.high is not None else "never"
    interval = "" if each.low is None else f"\n[{format_duration(each.low)}–{high}]"
    return format_duration(each.seconds) + interval


def cost_table(shown: Sequence[Configuration]) -> Table | None:
    """What an epoch costs in time, cores and GPUs; None where nothing was trained."""
    told = [one for one in shown if one.median("seconds_per_epoch") is not None]
    gpus = any(one.median("gpu_hours") for one in told)
    hours = {"an epoch: core": "core_h_per_epoch", "the run: core": "core_hours"}
    hours |= {"an epoch: GPU": "gpu_h_per_epoch", "the run: GPU": "gpu_hours"} if gpus else {}
    units = {name: select_time_unit(one.median(name) for one in told) for name in hours.values()}
    columns = ["configuration", "instances/s", "an epoch: s"]
    columns += [f"{what}-{units[name][0]}" for what, name in hours.items()]
    plain = ("instances_per_s", "seconds_per_epoch")
    rows = [
        [
            one.label,
            *(_median(one, name) for name in plain),
            *(_median(one, name, of_an_hour) for name, (_, of_an_hour) in units.items()),
        ]
        for one in told
    ]
    return Table(columns, rows) if rows else None


def _median(one: Configuration, name: str, factor: float = 1.0) -> str:
    known = (one.figures.get(f"{name}{end}") for end in ("", "_low", "_high"))
    value, low, high = (None if each is None else factor * each for each in known)
    return format_with_interval(value, known_interval(low, high), format_number)
