"""How sure a recommendation is, judged against its runner-up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import comb
from typing import Final, Literal

from hpcncf_analysis.advice.pareto import (
    Choice,
    Choices,
    PricedConfiguration,
    allocated_gpus,
    worth_their_cost,
)
from hpcncf_analysis.advice.recommend import (
    Ratio,
    core_speed_ratio,
    distinct_cpu_models,
    mostly_disturbed,
    speed_ratio,
)
from hpcncf_analysis.configurations import Configuration, pluralize
from hpcncf_analysis.formatting import format_ratio, format_score
from hpcncf_analysis.quality import QUALITY_SLACK, chance_margin, evaluation_task, quality_gap

ConfidenceLevel = Literal["settled", "likely", "open", "unproven", "alone"]
# As seldom as this may chance alone put all repeats of one above all of the other.
MAX_CHANCE: Final = 1 / 20
OPENING: Final[dict[ConfidenceLevel, str]] = {
    "settled": "Settled",
    "likely": "Likely, not settled",
    "open": "Open",
    "unproven": "Unproven",
    "alone": "Nothing to compare with",
}


@dataclass(frozen=True)
class Confidence:
    sure: ConfidenceLevel
    text: str


def assess_confidence(choice: Choice, choices: Choices) -> Confidence:
    """Against the one that would be chosen in its stead."""
    chosen, rival = choices.chosen(choice), runner_up(choice, choices)
    if rival is None:
        sure: ConfidenceLevel = "alone"
        reason = _alone(chosen, choices)
    else:
        sure, reason = _against(chosen, rival, _by_speed(choice, choices, rival))
        less = _is_extrapolated(chosen.one) or _elsewhere(chosen, choices)
        sure = "likely" if sure == "settled" and less else sure
    told = f"{OPENING[sure]}: {reason}."
    besides = _further_caveats(chosen.one, rival.one if rival else None)
    return Confidence(sure, " ".join([told, *besides, *_elsewhere(chosen, choices)]))


def _alone(chosen: PricedConfiguration, choices: Choices) -> str:
    which = "whose quality holds" if choices.unsound else "measured"
    disturbed = "; neighbours disturbed it" if mostly_disturbed([chosen.one]) else ""
    return f"it is the only one {which}, and another may be better{disturbed}"


def _by_speed(choice: Choice, choices: Choices, rival: PricedConfiguration) -> bool:
    """Whether the two are rivals in speed; else in cost."""
    return choice == "fastest" or (
        choice == "knee"
        and any(each.key == rival.key for each in worth_their_cost(choices.standings))
    )


def unproven_confidence() -> Confidence:
    """Of what no run has shown."""
    text = "Unproven: no run has shown it; compare it with `hpcncf compare` afterwards."
    return Confidence("unproven", text)


def runner_up(choice: Choice, choices: Choices) -> PricedConfiguration | None:
    """The next fastest, or the next cheapest; of the knee, the next fastest that is worth its cost,
    or where none is, the cheapest of the others."""
    key = choices.chosen(choice).key
    others = [each for each in choices.standings if each.key != key]
    quick = {"knee": worth_their_cost(choices.standings), "fastest": others, "cheapest": []}[choice]
    quickest = next((each for each in quick if each.key != key), None)
    return quickest or min(others, key=lambda each: each.cost, default=None)


def _against(
    chosen: PricedConfiguration, rival: PricedConfiguration, by_speed: bool
) -> tuple[ConfidenceLevel, str]:
    both, named = [chosen.one, rival.one], f"the runner-up, {rival.label}"
    if len(distinct_cpu_models(both)) > 1:
        return "open", f"it and {named}, ran on different CPU models ({_models(both)})"
    if mostly_disturbed(both):
        return "open", f"neighbours disturbed most runs of it and of {named}"
    if min(len(one.rows) for one in both) < 2:
        told = f"{_once(both, named)}, so its scatter is unknown; {suggest_repeats(1)}"
        return "unproven", told
    ratio = speed_ratio(*both) if by_speed else _cost_ratio(chosen, rival)
    what = "speed" if by_speed else "cost"
    return _by_repeats(ratio, what, named, [len(one.rows) for one in both])


def _cost_ratio(chosen: PricedConfiguration, rival: PricedConfiguration) -> Ratio:
    """What the rival costs over what the choice does, by their GPUs where both have some."""
    if not (chosen.on_gpus and rival.on_gpus):
        return core_speed_ratio(chosen.one, rival.one)
    return speed_ratio(chosen.one, rival.one).times(
        allocated_gpus(rival.one) / allocated_gpus(chosen.one)
    )


def _once(both: Sequence[Configuration], named: str) -> str:
    single = [len(one.rows) == 1 for one in both]
    if all(single):
        return f"it and {named}, ran once each"
    return "it ran once" if single[0] else f"{named}, ran once"


def _by_repeats(
    ratio: Ratio, what: str, named: str, repeats: Sequence[int]
) -> tuple[ConfidenceLevel, str]:
    if ratio.overlaps:
        return (
            "open",
            f"its repeats and those of {named}, overlap in {what}; {suggest_repeats(min(repeats))}",
        )
    odds = separation_by_chance(*repeats)
    apart = (
        f"all its repeats lie apart from those of {named}, in {what} "
        f"({format_ratio(ratio.low)} to {format_ratio(ratio.high)}); of {repeats[0]} and "
        f"{repeats[1]} repeats chance alone does that once in {round(1 / odds)} times"
    )
    return (
        ("settled", apart)
        if odds <= MAX_CHANCE
        else ("likely", f"{apart}; {suggest_repeats(min(repeats))}")
    )


def suggest_repeats(repeats: int) -> str:
    """Three each is the fewest that can settle anything; where they did not, twice as many."""
    return f"repeats: {3 if repeats < 3 else 2 * repeats} in the job file would show it"


def separation_by_chance(repeats: int, others: int) -> float:
    """The chance that all of one lie above all of the other, were both alike: of the equally likely
    orders of the repeats just one, 1 / C(n + m, n) (the exact one-sided rank-sum test)."""
    return 1 / comb(repeats + others, repeats)


def _models(compared: Sequence[Configuration]) -> str:
    return "; ".join(distinct_cpu_models(compared))


def _further_caveats(chosen: Configuration, rival: Configuration | None) -> list[str]:
    told = [_extrapolated(chosen), _quality(chosen, rival), _describe_machine(chosen)]
    return [sentence for sentence in told if sentence]


def _is_extrapolated(chosen: Configuration) -> bool:
    return any(row.get("epoch_extrapolated") for row in chosen.rows)


def _elsewhere(chosen: PricedConfiguration, choices: Choices) -> list[str]:
    """That some, not the runner-up alone, were measured on another machine."""
    own = distinct_cpu_models([chosen.one])
    others = [
        each.one for each in choices.standings if distinct_cpu_models([each.one]) not in ([], own)
    ]
    if not own or not others:
        return []
    models = sorted({*distinct_cpu_models(others)} - {*own})
    which = f" ({'; '.join(models)})" if models else ""
    return [
        f"{pluralize(len(others), 'configuration')} ran on other CPU models{which}, and may do "
        "better on this one."
    ]


def _extrapolated(chosen: Configuration) -> str:
    if not _is_extrapolated(chosen):
        return ""
    return (
        "Its epochs were cut short (max_steps): an epoch's time is extrapolated from its steps, "
        "and quality after so few steps says little about whole epochs."
    )


def _quality(chosen: Configuration, rival: Configuration | None) -> str:
    if chosen.is_command:
        return ""
    if chosen.median("hr10") is None:
        return "Its quality was not evaluated."
    if (
        rival is None
        or rival.median("hr10") is None
        or evaluation_task(chosen) != evaluation_task(rival)
    ):
        return ""
    gap, explained = quality_gap(rival, chosen) or 0.0, chance_margin(chosen, rival)
    if abs(gap) <= QUALITY_SLACK or explained is None or abs(gap) > explained:
        return ""
    rows = pluralize(chosen.rows[0]["test_rows"], "test row")
    return f"Its HR@10 differs by {format_score(abs(gap))}, within chance on {rows}."


def _describe_machine(chosen: Configuration) -> str:
    models = distinct_cpu_models([chosen])
    return f"Measured on {' and '.join(models)}." if models else ""
