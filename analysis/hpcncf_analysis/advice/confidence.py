"""How sure a recommendation is, judged against its runner-up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import comb
from typing import Final, Literal

from hpcncf_analysis.advice.pareto import Choice, Front, Standing, gpus, worth
from hpcncf_analysis.advice.recommend import (
    Ratio,
    core_speed_ratio,
    cpu_models,
    mostly_disturbed,
    speed_ratio,
)
from hpcncf_analysis.configurations import Configuration, counted
from hpcncf_analysis.formatting import score, times
from hpcncf_analysis.quality import QUALITY_SLACK, chance, quality_gap, task

Sure = Literal["settled", "likely", "open", "unproven", "alone"]
# As seldom as this may chance alone put all repeats of one above all of the other.
SELDOM: Final = 1 / 20
OPENING: Final[dict[Sure, str]] = {
    "settled": "Settled",
    "likely": "Likely, not settled",
    "open": "Open",
    "unproven": "Unproven",
    "alone": "Nothing to compare with",
}


@dataclass(frozen=True)
class Sureness:
    sure: Sure
    text: str


def sureness(choice: Choice, choices: Front) -> Sureness:
    """Against the one that would be chosen in its stead."""
    chosen, rival = choices.chosen(choice), runner_up(choice, choices)
    if rival is None:
        sure: Sure = "alone"
        reason = _alone(chosen, choices)
    else:
        sure, reason = _against(chosen, rival, _by_speed(choice, choices, rival))
        less = _is_cut(chosen.one) or _elsewhere(chosen, choices)
        sure = "likely" if sure == "settled" and less else sure
    told = f"{OPENING[sure]}: {reason}."
    besides = _besides(chosen.one, rival.one if rival else None)
    return Sureness(sure, " ".join([told, *besides, *_elsewhere(chosen, choices)]))


def _alone(chosen: Standing, choices: Front) -> str:
    which = "whose quality holds" if choices.unsound else "measured"
    disturbed = "; neighbours disturbed it" if mostly_disturbed([chosen.one]) else ""
    return f"it is the only one {which}, and another may be better{disturbed}"


def _by_speed(choice: Choice, choices: Front, rival: Standing) -> bool:
    """Whether the two are rivals in speed; else in cost."""
    return choice == "fastest" or (
        choice == "knee" and any(each.key == rival.key for each in worth(choices.standings))
    )


def untried() -> Sureness:
    """Of what no run has shown."""
    text = "Unproven: no run has shown it; compare it with `hpcncf compare` afterwards."
    return Sureness("unproven", text)


def runner_up(choice: Choice, choices: Front) -> Standing | None:
    """The next fastest, or the next cheapest; of the knee, the next fastest that is worth its cost,
    or where none is, the cheapest of the others."""
    key = choices.chosen(choice).key
    others = [each for each in choices.standings if each.key != key]
    quick = {"knee": worth(choices.standings), "fastest": others, "cheapest": []}[choice]
    quickest = next((each for each in quick if each.key != key), None)
    return quickest or min(others, key=lambda each: each.cost, default=None)


def _against(chosen: Standing, rival: Standing, by_speed: bool) -> tuple[Sure, str]:
    both, named = [chosen.one, rival.one], f"the runner-up, {rival.label}"
    if len(cpu_models(both)) > 1:
        return "open", f"it and {named}, ran on different CPU models ({_models(both)})"
    if mostly_disturbed(both):
        return "open", f"neighbours disturbed most runs of it and of {named}"
    if min(len(one.rows) for one in both) < 2:
        told = f"{_once(both, named)}, so its scatter is unknown; {more(1)}"
        return "unproven", told
    ratio = speed_ratio(*both) if by_speed else _cost_ratio(chosen, rival)
    what = "speed" if by_speed else "cost"
    return _by_repeats(ratio, what, named, [len(one.rows) for one in both])


def _cost_ratio(chosen: Standing, rival: Standing) -> Ratio:
    """What the rival costs over what the choice does, by their GPUs where both have some."""
    if not (chosen.on_gpus and rival.on_gpus):
        return core_speed_ratio(chosen.one, rival.one)
    return speed_ratio(chosen.one, rival.one).times(gpus(rival.one) / gpus(chosen.one))


def _once(both: Sequence[Configuration], named: str) -> str:
    single = [len(one.rows) == 1 for one in both]
    if all(single):
        return f"it and {named}, ran once each"
    return "it ran once" if single[0] else f"{named}, ran once"


def _by_repeats(ratio: Ratio, what: str, named: str, repeats: Sequence[int]) -> tuple[Sure, str]:
    if ratio.overlaps:
        return "open", f"its repeats and those of {named}, overlap in {what}; {more(min(repeats))}"
    odds = by_chance(*repeats)
    apart = (
        f"all its repeats lie apart from those of {named}, in {what} "
        f"({times(ratio.low)} to {times(ratio.high)}); of {repeats[0]} and "
        f"{repeats[1]} repeats chance alone does that once in {round(1 / odds)} times"
    )
    return ("settled", apart) if odds <= SELDOM else ("likely", f"{apart}; {more(min(repeats))}")


def more(repeats: int) -> str:
    """Three each is the fewest that can settle anything; where they did not, twice as many."""
    return f"repeats: {3 if repeats < 3 else 2 * repeats} in the job file would show it"


def by_chance(repeats: int, others: int) -> float:
    """The chance that all of one lie above all of the other, were both alike: of the equally likely
    orders of the repeats just one, 1 / C(n + m, n) (the exact one-sided rank-sum test)."""
    return 1 / comb(repeats + others, repeats)


def _models(compared: Sequence[Configuration]) -> str:
    return "; ".join(cpu_models(compared))


def _besides(chosen: Configuration, rival: Configuration | None) -> list[str]:
    told = [_extrapolated(chosen), _quality(chosen, rival), _where(chosen)]
    return [sentence for sentence in told if sentence]


def _is_cut(chosen: Configuration) -> bool:
    return any(row.get("epoch_extrapolated") for row in chosen.rows)


def _elsewhere(chosen: Standing, choices: Front) -> list[str]:
    """That some, not the runner-up alone, were measured on another machine."""
    own = cpu_models([chosen.one])
    others = [each.one for each in choices.standings if cpu_models([each.one]) not in ([], own)]
    if not own or not others:
        return []
    models = sorted({*cpu_models(others)} - {*own})
    which = f" ({'; '.join(models)})" if models else ""
    return [
        f"{counted(len(others), 'configuration')} ran on other CPU models{which}, and may do "
        "better on this one."
    ]


def _extrapolated(chosen: Configuration) -> str:
    if not _is_cut(chosen):
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
    if rival is None or rival.median("hr10") is None or task(chosen) != task(rival):
        return ""
    gap, explained = quality_gap(rival, chosen) or 0.0, chance(chosen, rival)
    if abs(gap) <= QUALITY_SLACK or explained is None or abs(gap) > explained:
        return ""
    rows = counted(chosen.rows[0]["test_rows"], "test row")
    return f"Its HR@10 differs by {score(abs(gap))}, within chance on {rows}."


def _where(chosen: Configuration) -> str:
    models = cpu_models([chosen])
    return f"Measured on {' and '.join(models)}." if models else ""
