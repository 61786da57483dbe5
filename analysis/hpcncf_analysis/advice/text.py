"""The conclusion of a report: one sentence, and the facts behind it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from hpcncf_analysis import commands
from hpcncf_analysis.advice.pareto import build_choices
from hpcncf_analysis.advice.recommend import (
    Ratio,
    core_speed_ratio,
    cost_function,
    distinct_cpu_models,
    mostly_disturbed,
    select_recommended,
    speed_per_core,
    speed_ratio,
)
from hpcncf_analysis.advice.remedy import (
    CauseSentence,
    Diagnoses,
    agreed_diagnosis,
    describe_main_cause,
    describe_remaining_costs,
    fewer_cores,
    hides_need,
)
from hpcncf_analysis.advice.request import describe_memory, describe_settings
from hpcncf_analysis.configurations import Configuration, group_by_series, pluralize
from hpcncf_analysis.diagnosis.evidence import Cause
from hpcncf_analysis.formatting import (
    format_cores,
    format_metric,
    format_number,
    format_percent,
    format_ratio,
    format_score,
)
from hpcncf_analysis.packing import TITLE, curves
from hpcncf_analysis.quality import (
    QUALITY_SLACK,
    best_quality,
    evaluation_task,
    is_worse,
    quality_gap,
)
from hpcncf_analysis.scaling import comparison_cautions

# More configurations than that are told by their number.
MAX_NAMED_WORSE: Final = 3


def describe_idle_cores(one: Configuration) -> list[str]:
    """What to measure next where much of a single run's cores went unused."""
    fewer = fewer_cores(one)
    if fewer is None:
        return []
    used = one.median("cores_used") or 0.0
    return [
        f"About {format_cores(round(one.cores - used, 1))} of {pluralize(one.cores, 'core')} went "
        f"unused: measure the same with {pluralize(fewer * one.ranks, 'core')}."
    ]


def describe_speedups(best: Configuration, configurations: Sequence[Configuration]) -> list[str]:
    series = group_by_series(configurations).get(best.series, [])
    if len(series) < 2:
        return ["It has no other size of its series beside it, so no speed-up is known."]
    gains = [
        f"{one.shape} is {format_ratio(one.median('speedup'))} as fast "
        f"({format_percent(one.median('parallel_efficiency'))} parallel efficiency"
        f"{_caution(one, series[0])})"
        for one in series[1:]
    ]
    return [f"Against {series[0].label}: {', '.join(gains)}."]


def _caution(one: Configuration, base: Configuration) -> str:
    told = comparison_cautions(one, base)
    return f"; mind: {'; '.join(told)}" if told else ""


def describe_cheapest_epoch(configurations: Sequence[Configuration]) -> list[str]:
    priced = [one for one in configurations if one.median("core_s_per_epoch") is not None]
    if not priced:
        return []
    cheapest = min(priced, key=lambda one: one.median("core_s_per_epoch") or 0.0)
    dearest = max(priced, key=lambda one: one.median("core_s_per_epoch") or 0.0)
    return [
        f"Cheapest epoch: {cheapest.label}, {format_number(cheapest.median('core_s_per_epoch'))} "
        f"core-seconds; dearest: {dearest.label}, "
        f"{format_number(dearest.median('core_s_per_epoch'))}."
    ]


def packing_hint(configurations: Sequence[Configuration]) -> list[str]:
    """Where packs were measured, that the comparison of single runs does not choose among them."""
    if not curves(row for one in configurations for row in one.rows):
        return []
    return [
        "This is about what a single run takes and costs; how many together do most is another "
        f"question: see “{TITLE}”."
    ]


def describe_lower_quality(configurations: Sequence[Configuration]) -> list[str]:
    """Those below the best of their task by more than the slack: whether chance explains it."""
    tasks = dict.fromkeys(map(evaluation_task, configurations))
    return [
        fact
        for each in tasks
        for fact in _lower_of_task([one for one in configurations if evaluation_task(one) == each])
    ]


def _lower_of_task(configurations: Sequence[Configuration]) -> list[str]:
    best = best_quality(configurations)
    if best is None:
        return []
    lower = [one for one in configurations if (quality_gap(one, best) or 0.0) > QUALITY_SLACK]
    worse = [one for one in lower if is_worse(one, best)]
    if len(worse) <= MAX_NAMED_WORSE:
        return [_lower(one, best) for one in lower]
    told = [_lower(one, best) for one in lower if one not in worse]
    return [_many_worse(worse, best), *told]


def _many_worse(worse: Sequence[Configuration], best: Configuration) -> str:
    scores = [one.median("hr10") or 0.0 for one in worse]
    return (
        f"Not recommended, however fast: {len(worse)} configurations reach only HR@10 "
        f"{format_score(min(scores))} to {format_score(max(scores))} against "
        f"{format_score(best.median('hr10'))} of {best.label}; see the table."
    )


def describe_losses(configurations: Sequence[Configuration]) -> list[str]:
    """Of a program of the user's, whose quality we do not know: only that speed is not all."""
    known = [(one.median("loss"), one.label) for one in configurations if one.is_command]
    told = sorted((loss, label) for loss, label in known if loss is not None)
    if not told or told[0][0] == told[-1][0]:
        return []
    least, most = (f"{format_metric(loss)} ({label})" for loss, label in (told[0], told[-1]))
    return [f"Speed alone is compared here; the loss goes from {least} to {most}."]


def _lower(one: Configuration, best: Configuration) -> str:
    reached, rows = format_score(one.median("hr10")), one.rows[0]["test_rows"]
    against = f"HR@10 {reached} against {format_score(best.median('hr10'))} of {best.label}"
    if is_worse(one, best):
        return f"Not recommended, however fast: {one.label} reaches only {against}."
    return f"{one.label} reaches {against}: within chance on {pluralize(rows, 'test row')}."


def no_conclusion(counts: Mapping[str, int]) -> str:
    total = sum(counts.values())
    states = ", ".join(f"{number} {state}" for state, number in sorted(counts.items()))
    return (
        f"No run is complete yet ({states} of {pluralize(total, 'run')}): nothing to conclude "
        "from. "
        "See `hpcncf status`."
    )


@dataclass(frozen=True)
class Comparison:
    """The best, and what it is held against."""

    best: Configuration
    dearest: Configuration
    quickest: Configuration
    doubt: str
    """Why the ratio may be another the next time; empty where it is settled."""

    @property
    def is_fastest(self) -> bool:
        return self.best is self.quickest


def compare_best(
    best: Configuration, others: Sequence[Configuration], all_of_them: Sequence[Configuration]
) -> Comparison:
    """The best against the worst waste, and against the fastest."""
    dearest, choices = max(others, key=cost_function(others)), build_choices(all_of_them)
    quickest = choices.fastest.one if choices else best
    return Comparison(best, dearest, quickest, _doubt(best, dearest, quickest))


def _doubt(best: Configuration, dearest: Configuration, quickest: Configuration) -> str:
    gain = (speed_ratio if best is quickest else core_speed_ratio)(best, dearest)
    compared = [best, dearest, *([quickest] if quickest not in (best, dearest) else [])]
    if len(distinct_cpu_models(compared)) > 1:
        return "these runs had different CPU models"
    if mostly_disturbed(compared):
        return "neighbours disturbed most of these runs"
    return "the repeats' speeds overlap" if gain.overlaps else ""


def describe_request(compared: Comparison, among: Sequence[Configuration]) -> str:
    """What to ask for, and what that gains."""
    best, dearest, doubt = compared.best, compared.dearest, compared.doubt
    told = f"{best.label} {_gain(compared)} {_other(compared)}{_quality(best, dearest)}"
    settings = describe_settings(best, among)
    if doubt:
        return f"Not settled: {doubt}; {told}: repeat before you ask for {settings}."
    unless = "" if compared.is_fastest else ", unless you need the time"
    return f"Ask for {settings}{unless}: {told}."


def _other(compared: Comparison) -> str:
    """The dearest of the others, which may cost less than the best all the same."""
    cost = cost_function([compared.best, compared.dearest])
    dearer = cost(compared.dearest) > cost(compared.best)
    return f"{'the dearest, ' if dearer else ''}{compared.dearest.label}"


def _gain(compared: Comparison) -> str:
    best, dearest, doubt = compared.best, compared.dearest, compared.doubt
    if not compared.is_fastest:
        return f"gives {_times(core_speed_ratio(best, dearest), doubt)} as much per core as"
    verb = "runs" if best.is_command else "trains"
    return f"{verb} {_times(speed_ratio(best, dearest), doubt)} as fast as"


def describe_rivals(compared: Comparison) -> list[str]:
    """How busy the two keep their cores, and what the fastest would cost."""
    best, dearest = compared.best, compared.dearest
    return [
        f"{best.label} keeps {_busy(best)} busy, {dearest.label} {_busy(dearest)}.",
        f"It is the fastest ({_speed(best)})." if compared.is_fastest else _faster(compared),
    ]


def _faster(compared: Comparison) -> str:
    best, quickest = compared.best, compared.quickest
    faster = speed_ratio(quickest, best)
    times = _times(faster, compared.doubt or faster.overlaps)
    return (
        f"The fastest is {quickest.label} ({_speed(quickest)}, {times} as fast), which gives "
        f"{format_percent(speed_per_core(quickest) / speed_per_core(best))} as much per core."
    )


def _times(ratio: Ratio, doubt: str | bool) -> str:
    if not doubt or ratio.low is None or ratio.high is None:
        return format_ratio(ratio.value)
    return f"{format_ratio(ratio.low)} to {format_ratio(ratio.high)}"


def _speed(one: Configuration) -> str:
    return f"{format_number(one.speed)} {'runs an hour' if one.by_time else 'instances/s'}"


def _busy(one: Configuration) -> str:
    return f"{format_percent(one.median('cpu_efficiency'))} of {format_allocated_cores(one)}"


def format_allocated_cores(one: Configuration) -> str:
    return pluralize(one.cores, "core")


def _quality(best: Configuration, other: Configuration) -> str:
    ours, theirs = best.median("hr10"), other.median("hr10")
    if ours is None or theirs is None:
        if best.is_command:
            return ""
        return ", quality not evaluated"
    if evaluation_task(best) != evaluation_task(other):
        return ", quality not comparable: evaluated on other candidates or data"
    return f", {_equally_good(best, other)} (HR@10 {format_score(ours)} and {format_score(theirs)})"


def _equally_good(one: Configuration, other: Configuration) -> str:
    if abs(quality_gap(one, other) or 0.0) <= QUALITY_SLACK:
        return "at equal quality"
    apart = is_worse(one, other) or is_worse(other, one)
    return "at UNEQUAL quality" if apart else "at a quality within chance"


def describe_single(one: Configuration) -> str:
    does = "does" if one.by_time else "trains"
    efficiency = format_percent(one.median("cpu_efficiency"))
    return (
        f"{one.label} {does} {_speed(one)} and keeps {efficiency} of its "
        f"{format_allocated_cores(one)} "
        f"busy{_use(one)}; nothing stands beside it to compare."
    )


def _use(one: Configuration) -> str:
    used, usable = (format_cores(one.median(f"cores_{which}")) for which in ("used", "usable"))
    return f" ({used} used, {usable} usable)"


@dataclass(frozen=True)
class Conclusion:
    sentence: str
    """Where a cause was found, a first sentence with it and what it costs."""
    facts: list[str]
    cause: Cause | None = None
    """That the sentence names."""
    remedy: str = ""
    """As the sentence tells it; empty where it tells none."""


def conclude(
    configurations: Sequence[Configuration],
    counts: Mapping[str, int],
    diagnoses: Diagnoses | None = None,
) -> Conclusion:
    """`counts`: state -> runs."""
    if not configurations:
        return Conclusion(no_conclusion(counts), [])
    found = diagnoses or {}
    if len(configurations) == 1 and not configurations[0].is_command:
        return _conclude_single(configurations[0], found)
    if all(one.is_command for one in configurations):
        return _conclude_commands(configurations, found)
    return _conclude_comparable(configurations, found)


def _conclude_commands(configurations: Sequence[Configuration], found: Diagnoses) -> Conclusion:
    """Compared where all are the same command at different sizes."""
    judged = [one for one in configurations if not commands.is_short(one)]
    if len(judged) > 1 and len(commands.group_by_command(configurations)) == 1:
        return _conclude_comparable(judged, found)
    sentence, told = (
        commands.describe_commands(configurations),
        commands.list_command_facts(configurations),
    )
    if len(configurations) == len(judged) == 1:
        first = describe_main_cause(judged, judged[0], found)
        return _conclusion_with_cause(first, sentence, [*told, *_idle_cores(judged[0], found)])
    return Conclusion(sentence, told)


def _conclude_comparable(configurations: Sequence[Configuration], found: Diagnoses) -> Conclusion:
    best = select_recommended(configurations)
    others = [one for one in configurations if one is not best and one.speed]
    if best is None:
        return Conclusion("The completed runs measured no speed: nothing can be compared.", [])
    if not others:
        return _conclude_single(best, found)
    compared = compare_best(best, others, configurations)
    return _conclusion_with_cause(
        describe_main_cause(configurations, best, found),
        describe_request(compared, configurations),
        [
            *describe_rivals(compared),
            *describe_speedups(best, configurations),
            *describe_cheapest_epoch(configurations),
            *packing_hint(configurations),
            *describe_lower_quality(configurations),
            *describe_losses(configurations),
            *describe_memory(best),
            *describe_remaining_costs(configurations, best, found),
        ],
    )


def _conclude_single(one: Configuration, found: Diagnoses) -> Conclusion:
    told = [*_idle_cores(one, found), *describe_memory(one)]
    return _conclusion_with_cause(
        describe_main_cause([one], one, found), describe_single(one), told
    )


def _idle_cores(one: Configuration, found: Diagnoses) -> list[str]:
    return [] if hides_need(agreed_diagnosis(one, found)) else describe_idle_cores(one)


def _conclusion_with_cause(
    first: CauseSentence | None, sentence: str, told: list[str]
) -> Conclusion:
    if first is None:
        return Conclusion(sentence, told)
    return Conclusion(f"{first.sentence} {sentence}", told, first.cause, first.remedy)
