"""Select the configuration to request, and compare its cost with the others'."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, get_args

from hpcncf_analysis.advice.pareto import Choice, Choices, PricedConfiguration, build_choices
from hpcncf_analysis.alerts import is_disturbed
from hpcncf_analysis.configurations import Configuration, Table
from hpcncf_analysis.formatting import (
    NONE,
    format_core_time,
    format_duration,
    format_number,
    format_percent,
)
from hpcncf_analysis.scaling import comparison_cautions


@dataclass(frozen=True)
class Ratio:
    """How many times as much one does as another; from its repeats' extremes, low to high."""

    value: float
    low: float | None
    high: float | None

    def times(self, more: float) -> Ratio:
        low, high = (None if end is None else end * more for end in (self.low, self.high))
        return Ratio(self.value * more, low, high)

    @property
    def overlaps(self) -> bool:
        """Whether the repeats leave open which of the two does more."""
        return self.low is not None and self.high is not None and self.low <= 1 <= self.high


def speed_ratio(one: Configuration, other: Configuration) -> Ratio:
    assert one.speed
    assert other.speed
    low, high = speed_range(one)
    other_low, other_high = speed_range(other)
    if len(one.rows) < 2 and len(other.rows) < 2:
        return Ratio(one.speed / other.speed, None, None)
    return Ratio(one.speed / other.speed, low / other_high, high / other_low)


def core_speed_ratio(one: Configuration, other: Configuration) -> Ratio:
    """The same of what each core does."""
    return speed_ratio(one, other).times(other.cores / one.cores)


def speed_range(one: Configuration) -> tuple[float, float]:
    """The slowest and the fastest repeat."""
    name = "elapsed_s" if one.by_time else "instances_per_s"
    ends = [one.figures.get(f"{name}_{end}", one.median(name)) for end in ("low", "high")]
    low, high = sorted(3600 / end if one.by_time else end for end in ends if end)
    return low, high


def speed_per_core(one: Configuration) -> float:
    return (one.speed or 0.0) / one.cores


def cost_function(among: Sequence[Configuration]) -> Callable[[Configuration], float]:
    """What one costs: core-seconds for an epoch where all know it, else for an instance."""
    if all(one.median("core_s_per_epoch") for one in among):
        return lambda one: one.median("core_s_per_epoch") or 0.0
    return lambda one: 1 / speed_per_core(one)


def select_recommended(configurations: Sequence[Configuration]) -> Configuration | None:
    """The knee: the fastest of those whose quality holds and whose cores each do enough."""
    found = build_choices(configurations)
    return found.knee.one if found else None


def mostly_disturbed(compared: Sequence[Configuration]) -> bool:
    rows = [row for one in compared for row in one.rows]
    return sum(map(is_disturbed, rows)) > len(rows) / 2


def distinct_cpu_models(compared: Sequence[Configuration]) -> list[str]:
    """Speeds on different ones do not compare."""
    return sorted({row["cpu_model"] for one in compared for row in one.rows if row["cpu_model"]})


@dataclass(frozen=True)
class Saving:
    """What the choice saves against another for a unit of work; negative where it costs more."""

    against: PricedConfiguration
    """What was asked for, or the dearest."""
    was_asked: bool
    core_h: float
    gpu_h: float
    seconds: float
    cautions: tuple[str, ...] = ()
    """What makes the comparison worth less."""


def compute_saving(
    chosen: PricedConfiguration, choices: Choices, base: str | None
) -> Saving | None:
    """`base`: the configuration asked for; the dearest stands for it where that is not measured or
    is the choice. None where there is no other."""
    others = [each for each in choices.standings if each.key != chosen.key]
    asked = next((each for each in others if each.key == base), None)
    against = asked or max(others, key=lambda each: each.cost, default=None)
    if against is None:
        return None
    return Saving(
        against=against,
        was_asked=asked is not None,
        core_h=against.core_h - chosen.core_h,
        gpu_h=against.gpu_h - chosen.gpu_h,
        seconds=against.seconds - chosen.seconds,
        cautions=tuple(comparison_cautions(chosen.one, against.one)),
    )


def describe_price(each: PricedConfiguration, unit: str) -> str:
    """`12.4 s and 24.8 core-s for an epoch`."""
    parts = [format_duration(each.seconds), format_core_time(each.core_h)]
    parts += [format_gpu_time(each.gpu_h)] if each.on_gpus else []
    return f"{', '.join(parts[:-1])} and {parts[-1]} {format_unit(unit)}"


def format_gpu_time(gpu_h: float | None) -> str:
    """In GPU-seconds below a tenth of a GPU-hour."""
    return format_core_time(gpu_h).replace("core", "GPU")


def format_unit(unit: str) -> str:
    return f"for {'an' if unit == 'epoch' else 'a'} {unit}"


def describe_savings(saves: Saving, unit: str) -> str:
    """`Against what was asked for, 2 cores: saves 1.2 core-h (40 %) and 3 s for an epoch.`"""
    dearer = saves.core_h > 0 or saves.gpu_h > 0
    which = "what was asked for, " if saves.was_asked else "the dearest, " if dearer else ""
    before = saves.against
    mind = f" Mind: {'; '.join(saves.cautions)}." if saves.cautions else ""
    parts = [_change(saves.core_h, before.core_h, format_core_time, ("saves", "costs"))]
    if before.on_gpus or saves.gpu_h:
        parts += [_change(saves.gpu_h, before.gpu_h, format_gpu_time, ("saves", "costs"))]
    parts += [_change(saves.seconds, before.seconds, format_duration, ("takes", "takes"))]
    return f"Against {which}{before.label}, it {', '.join(parts)}, {format_unit(unit)}.{mind}"


def describe_predicted_cost(
    before: PricedConfiguration, costs: tuple[float, float, float], unit: str
) -> str:
    """`Predicted: 5.9 core-s (4.7 core-s to 8.8 core-s) for an epoch instead of 20 core-s.`"""
    value, low, high = (format_core_time(before.core_h * each) for each in costs)
    was = format_core_time(before.core_h)
    return f"Predicted: {value} ({low} to {high}) {format_unit(unit)} instead of {was}."


def _change(
    less: float, before: float, show: Callable[[float | None], str], verbs: tuple[str, str]
) -> str:
    verb, more = verbs[less < 0], " more" if less < 0 else " less" if verbs[0] == "takes" else ""
    share = f" ({format_percent(abs(less) / before)})" if before else ""
    return f"{verb} {show(abs(less))}{more}{share}"


# More of those that are beaten nobody reads; the front is told whole.
MAX_DOMINATED: Final = 20
PLACE: Final = "place"
NOTE: Final = (
    "On the Pareto front whoever is quicker costs more; any other is beaten: one takes no longer "
    "and costs no more."
)


def choices_table(choices: Choices) -> Table | None:
    """The quickest first; None where there is nothing to compare."""
    if len(choices.standings) < 2:
        return None
    beaten = {each.key for each in choices.dominated[:MAX_DOMINATED]}
    shown = [each for each in choices.standings if not each.beaten_by or each.key in beaten]
    on_gpus = any(each.on_gpus for each in shown)
    unit = choices.unit
    columns = ["configuration", f"s/{unit}", f"core time/{unit}"]
    columns += [f"GPU time/{unit}"] if on_gpus else []
    rows = [[*_row_cells(each, on_gpus), _describe_place(each, choices)] for each in shown]
    return Table([*columns, PLACE], rows, frozenset({PLACE}))


def choices_note(choices: Choices) -> str:
    """What the table means, and what it leaves out."""
    left = [
        (len(choices.dominated) - MAX_DOMINATED, "more that are beaten"),
        (len(choices.unsound), "whose quality is worse than chance explains"),
    ]
    told = [f"{number} {which}" for number, which in left if number > 0]
    out = [f"Left out: {', '.join(told)}."] if told else []
    return " ".join([NOTE, *out, *_cpu_model_note(choices)])


def _cpu_model_note(choices: Choices) -> list[str]:
    models = distinct_cpu_models([each.one for each in choices.standings])
    if len(models) < 2:
        return []
    return [
        f"They ran on different CPU models ({'; '.join(models)}): who beats whom may be the "
        "machines' doing."
    ]


def _row_cells(each: PricedConfiguration, on_gpus: bool) -> list[str]:
    gpus = [format_gpu_time(each.gpu_h) if each.on_gpus else NONE] if on_gpus else []
    return [each.label, format_number(each.seconds), format_core_time(each.core_h), *gpus]


def _describe_place(each: PricedConfiguration, choices: Choices) -> str:
    named: list[str] = [
        choice for choice in get_args(Choice) if choices.chosen(choice).key == each.key
    ]
    if each.beaten_by:
        return "; ".join([*named, f"beaten by {each.beaten_by}"])
    return "; ".join(named) or "on the front"
