"""One table of judged configurations, from which every recommendation and its words derive."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import median
from typing import Any, Final, Literal, TypeVar, get_args

from hpcncf.collect.resource_columns import PARAMETER
from hpcncf.records.schema import TOO_SHORT_S
from hpcncf.text import pluralize
from hpcncf_analysis.advice.request import seconds_of_whole_run
from hpcncf_analysis.configurations import (
    Configuration,
    is_disturbed,
    settings_without_effect,
)
from hpcncf_analysis.diagnosis.evidence import Diagnosis, Finding
from hpcncf_analysis.formatting import format_ratio
from hpcncf_analysis.quality import is_mostly_warmup, worse_models
from hpcncf_analysis.scaling import distinct
from hpcncf_analysis.significance import Verdict, compare_times

Choice = Literal["recommended", "cheapest", "fastest"]
CHOICES: Final[tuple[Choice, ...]] = get_args(Choice)
Diagnoses = Mapping[str, Diagnosis]
"""Run id -> its diagnosis."""
Standing = Literal["judged", "too short", "worse model", "no effect"]

# More cores are worth their cost while a unit of work costs at most 1 / MIN_CORE_YIELD of the
# cheapest.
MIN_CORE_YIELD: Final = 0.7
# A row that beats another by less than this share of its time is no reason to reject the other.
NEAR_TIME: Final = 0.1
MILLION: Final = 1e6

T = TypeVar("T")


def mostly_disturbed(compared: Sequence[Configuration]) -> bool:
    rows = [row for one in compared for row in one.rows]
    return sum(map(is_disturbed, rows)) > len(rows) / 2


def within_price_limit(
    candidates: Sequence[T],
    price: Callable[[T], float],
    kind: Callable[[T], Hashable] = lambda _: None,
) -> list[T]:
    """Select candidates whose price is near the cheapest of their kind, in the given order.

    The limit is 1 / MIN_CORE_YIELD of the cheapest price. Prices of different kinds are not
    compared.
    """
    least: dict[Hashable, float] = {}
    for one in candidates:
        least[kind(one)] = min(price(one), least.get(kind(one), price(one)))
    return [one for one in candidates if price(one) * MIN_CORE_YIELD <= least[kind(one)]]


@dataclass(frozen=True)
class MeasuredRemedy:
    """Measured effect of a remedy, from a study that ran with and without it."""

    label: str
    """Of the configuration with the remedy."""
    factor: float
    """After over before, of the figure that the remedy's gain is about."""


Outcomes = Mapping[tuple[str, str], MeasuredRemedy]
"""(configuration key, cause) -> what the cause's remedy did."""


@dataclass(frozen=True)
class Judged:
    """One judged configuration, with what the user's own job would take with it."""

    one: Configuration
    times: tuple[float, ...]
    """Seconds of the job, by each repeat."""
    standing: Standing
    reason: str = ""
    """Why it is not judged: a sentence part."""
    cause: Finding | None = None
    """An open cause: it costs a fifth or more, and its remedy was not run."""
    beaten_by: str | None = None
    """The label of a judged row that takes no longer, costs no more, and is better in one."""

    @property
    def key(self) -> str:
        """Key of the configuration; unlike labels, keys are unique."""
        return self.one.key

    @property
    def label(self) -> str:
        return self.one.label

    @cached_property
    def seconds(self) -> float:
        return median(self.times)

    @property
    def core_h(self) -> float:
        """Core-hours allocated: cores times the median time."""
        return self.one.cores * self.seconds / 3600

    @property
    def gpu_h(self) -> float:
        return allocated_gpus(self.one) * self.seconds / 3600

    @property
    def on_gpus(self) -> bool:
        return self.gpu_h > 0

    @cached_property
    def cost(self) -> tuple[float, float]:
        """(GPU-hours, core-hours) of a row; compared in this order, because GPUs are scarcer."""
        return self.gpu_h, self.core_h

    @property
    def price(self) -> float:
        """GPU-hours of a row with GPUs, otherwise core-hours; the two are not comparable."""
        return self.gpu_h if self.on_gpus else self.core_h

    def allocated(self, of_gpus: bool) -> float:
        """Number of allocated GPUs if `of_gpus`, otherwise of allocated cores."""
        return allocated_gpus(self.one) if of_gpus else self.one.cores

    @property
    def efficiency(self) -> float | None:
        """CPU time divided by elapsed time and allocated cores, as `seff` shows it; may be None."""
        return self.one.median("cpu_efficiency")

    def beats(self, other: Judged) -> bool:
        no_worse = self.seconds <= other.seconds and self.cost <= other.cost
        return no_worse and (self.seconds < other.seconds or self.cost < other.cost)


@dataclass(frozen=True)
class Judgement:
    """The judged configurations, and the three of them that are worth a choice.

    A choice for which no row could be judged is None.
    """

    unit: Literal["run", "million instances"]
    work: str
    """What the times are for, in words."""
    rows: tuple[Judged, ...]
    """Every configuration with a time, the quickest first."""
    min_efficiency: float
    """CPU efficiency that a recommendation must reach; not asked of runs with GPUs."""

    @cached_property
    def judged(self) -> list[Judged]:
        return [row for row in self.rows if row.standing == "judged"]

    @property
    def cheapest(self) -> Judged | None:
        return min(self.judged, key=lambda row: (row.cost, row.seconds), default=None)

    @property
    def fastest(self) -> Judged | None:
        return next(iter(self.judged), None)

    @cached_property
    def worth(self) -> list[Judged]:
        """Judged rows whose speed is worth their price, the fastest first."""
        return within_price_limit(self.judged, lambda row: row.price, lambda row: row.on_gpus)

    @cached_property
    def recommended(self) -> Judged | None:
        """Fastest row that is worth its price, efficient and without an open cause; or None.

        A row is skipped if another is clearly faster and costs no more.
        """
        for row in self.worth:
            clearly_beaten = any(
                other.seconds <= (1 - NEAR_TIME) * row.seconds and other.cost <= row.cost
                for other in self.judged
            )
            if row.cause is None and self.is_efficient(row) and not clearly_beaten:
                return row
        return None

    @property
    def candidate(self) -> Judged | None:
        """The recommended row, or else the fastest that is worth its price; None without any."""
        return self.recommended or next(iter(self.worth), None)

    @cached_property
    def to_repeat(self) -> list[Judged]:
        """Rows that ran too briefly to judge but may be better than the others.

        Left out are those that, as far as measured, another row does in half the time or less
        for no more cost.
        """
        rivals = [row for row in self.rows if row.standing in ("judged", "too short")]
        return [
            row
            for row in self.rows
            if row.standing == "too short"
            and not any(2 * o.seconds <= row.seconds and o.cost <= row.cost for o in rivals)
        ]

    def chosen(self, choice: Choice) -> Judged | None:
        chosen: Judged | None = getattr(self, choice)
        return chosen

    def is_efficient(self, row: Judged) -> bool:
        enough = row.efficiency is not None and row.efficiency >= self.min_efficiency
        return row.on_gpus or self.min_efficiency <= 0 or enough


def allocated_gpus(one: Configuration) -> float:
    """Number of GPUs of a run over all nodes; a fraction if runs share a GPU."""
    row = one.rows[0]
    shared = row.get("runs_per_gpu") or 1
    return float(row["nodes"] * row["gpus_per_node"] / shared)


def judge(
    configurations: Sequence[Configuration],
    diagnoses: Diagnoses | None = None,
    outcomes: Outcomes | None = None,
    min_efficiency: float = 0.0,
    epochs: int | None = None,
) -> Judgement | None:
    """Judge all configurations that have a speed; None if none has.

    Without `diagnoses` every run counts as long enough and without a cause. `epochs`: of the user's
    job, if the configurations differ in it.
    """
    measured = [one for one in configurations if one.speed]
    if not measured:
        return None
    unit, work, seconds = _unit(measured, epochs)
    worse = worse_models(measured)
    rows = []
    for one in measured:
        times = tuple(value for row in one.rows if (value := seconds(row)) is not None)
        standing, reason = _standing(one, measured, worse, diagnoses)
        found = agreed_diagnosis(one, diagnoses or {}) if standing == "judged" else None
        cause = found.primary if found else None
        if cause and (one.key, cause.cause) in (outcomes or {}):
            cause = None
        rows.append(Judged(one, times, standing, reason, cause))
    return Judgement(unit, work, mark_pareto_front(rows), min_efficiency)


def mark_pareto_front(rows: Sequence[Judged]) -> tuple[Judged, ...]:
    """Sort rows by time and mark each with the judged row that beats it, if any.

    Rows that no other beats form the Pareto front.

    A row is beaten by one that takes no longer, costs no more, and is better in one of the two.
    """
    # With the quickest first, only the cheapest judged row so far has to be looked at: whichever
    # row beats another, that one does as well.
    marked = list[Judged]()
    cheapest: Judged | None = None
    for row in sorted(rows, key=lambda row: (row.seconds, row.cost, row.label)):
        beaten = cheapest is not None and cheapest.beats(row)
        marked.append(replace(row, beaten_by=cheapest.label if cheapest and beaten else None))
        if row.standing == "judged" and (cheapest is None or row.cost < cheapest.cost):
            cheapest = row
    return tuple(marked)


def _unit(
    measured: Sequence[Configuration], epochs: int | None
) -> tuple[Literal["run", "million instances"], str, Callable[[Mapping[str, Any]], float | None]]:
    """Choose the unit of times: a whole run if all do the same work, or a million instances.

    Returns the unit, its description, and a function row -> seconds (None if unknown).
    """
    rows = [row for one in measured for row in one.rows]
    commands = {one.is_command for one in measured}
    names = {name for row in rows for name in row if name.startswith(PARAMETER)}
    equal = all(len({repr(row.get(name)) for row in rows}) == 1 for name in names)
    if commands == {True} and (measured[0].by_time or equal):
        return "run", "one run", lambda row: row["elapsed_s"] or None
    if commands == {False} and len({row.get("data_key") for row in rows}) == 1:
        epochs = epochs or max(row.get("epochs") or 0 for row in rows)
        if epochs and all(seconds_of_whole_run(row, epochs) for row in rows):
            work = f"one run of {pluralize(epochs, 'epoch')}, start-up and evaluation included"
            return "run", work, lambda row: seconds_of_whole_run(row, epochs)
    return (
        "million instances",
        "a million instances",
        lambda row: MILLION / row["instances_per_s"] if row["instances_per_s"] else None,
    )


def _standing(
    one: Configuration,
    measured: Sequence[Configuration],
    worse: set[str],
    diagnoses: Diagnoses | None,
) -> tuple[Standing, str]:
    if one.key in worse:
        return "worse model", "its quality is worse than chance explains"
    inert = settings_without_effect(one)
    if inert and any(_differs_only_in(one, other, inert) for other in measured):
        return "no effect", next(iter(inert.values()))
    if diagnoses is None:
        return "judged", ""
    for row in one.rows:
        found = diagnoses.get(row["run_id"])
        if found and found.primary and found.primary.cause == "too_short_to_judge":
            return "too short", "; ".join(found.primary.evidence)
        if one.is_command and not found and (row["elapsed_s"] or 0.0) < TOO_SHORT_S:
            return "too short", "it ended too soon"
        if is_mostly_warmup(row):
            return "too short", "most of its training was warm-up"
    return "judged", ""


def _differs_only_in(one: Configuration, other: Configuration, inert: Mapping[str, str]) -> bool:
    ours, theirs = (each.rows[0].get("varied") or {} for each in (one, other))
    changed = {key for key in {*ours, *theirs} if ours.get(key) != theirs.get(key)}
    return other is not one and bool(changed) and changed <= set(inert)


def agreed_diagnosis(one: Configuration, diagnoses: Diagnoses) -> Diagnosis | None:
    """First diagnosis with the outcome that most repeats share; None without a majority."""

    def outcome(diagnosis: Diagnosis) -> str:
        return diagnosis.primary.cause if diagnosis.primary else diagnosis.verdict

    known = [diagnoses[row["run_id"]] for row in one.rows if row["run_id"] in diagnoses]
    if not known:
        return None
    commonest, count = Counter(map(outcome, known)).most_common(1)[0]
    if 2 * count <= len(one.rows):
        return None
    return next(diagnosis for diagnosis in known if outcome(diagnosis) == commonest)


ConfidenceLevel = Literal["settled", "likely", "not settled", "too few repeats", "alone", "not run"]


@dataclass(frozen=True)
class Confidence:
    """Degree to which a choice can be trusted, and the reason."""

    level: ConfidenceLevel
    text: str
    verdict: Verdict | None = None
    """Of the choice against the row that would be chosen instead; None if there is none."""


NOT_RUN: Final = Confidence("not run", "Not run yet: compare it with `hpcncf compare` afterwards.")


def assess_confidence(row: Judged, choice: Choice, table: Judgement) -> Confidence:
    """Assess how sure a choice is, compared with the row that would be chosen instead."""
    others = [other for other in table.judged if other.key != row.key]
    by_speed = choice == "fastest"
    rival = min(others, key=lambda other: (other.cost, other.seconds), default=None)
    if by_speed:
        rival = others[0] if others else None
    elif choice == "recommended" and (quick := [o for o in table.worth if o.key != row.key]):
        rival, by_speed = quick[0], True
    if rival is None:
        return Confidence("alone", "Nothing to compare with: another may be better.")
    ratio, what = compare_times(rival.times, row.times), "time"
    if not by_speed:
        what, gpus = "cost", row.on_gpus and rival.on_gpus
        theirs, ours = (
            [second * each.allocated(gpus) for second in each.times] for each in (rival, row)
        )
        ratio = compare_times(theirs, ours)
    verdict, rows = ratio.verdict, [*row.one.rows, *rival.one.rows]
    models = distinct(rows, "cpu_model")
    if len(models) > 1:
        text = f"it and {rival.label} ran on different CPU models ({'; '.join(models)})"
        return Confidence("not settled", f"Not settled: {text}.", verdict)
    if mostly_disturbed([row.one, rival.one]):
        text = f"other processes disturbed most runs of it and of {rival.label}"
        return Confidence("not settled", f"Not settled: {text}.", verdict)
    fewest = min(len(row.times), len(rival.times))
    if verdict is Verdict.TOO_FEW:
        text = (
            f"{len(row.times)} of it and {len(rival.times)} of {rival.label}; it takes three of "
            "each (repeats: 3 in the job file)"
        )
        return Confidence("too few repeats", f"Too few repeats: {text}.", verdict)
    interval = f"{format_ratio(ratio.low)} to {format_ratio(ratio.high)}"
    if verdict is Verdict.ALIKE:
        text = f"no significant difference from {rival.label} in {what} ({interval})"
        again = f"repeats: {2 * fewest} may settle it"
        return Confidence("not settled", f"Not settled: {text}; {again}.", verdict)
    text = (
        f"its {what} and that of {rival.label} differ ({interval}); chance alone makes such a "
        f"difference once in {1 / (ratio.p or 1):.0f} comparisons"
    )
    extrapolated = any(r.get("max_steps") or r.get("epoch_extrapolated") for r in row.one.rows)
    disturbed = sum(map(is_disturbed, rows))
    if extrapolated:
        text += "; its epochs were cut short, so the time is extrapolated"
    if disturbed:
        text += f"; other processes were busy on the cores of {disturbed} of these runs"
    level: ConfidenceLevel = "likely" if extrapolated or disturbed else "settled"
    return Confidence(level, f"{level.capitalize()}: {text}.", verdict)
