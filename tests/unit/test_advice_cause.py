"""Which cause a conclusion opens with."""

from __future__ import annotations

from typing import Any

import pytest
from make_configurations import configuration, row

from hpcncf_analysis.advice import remedy, text
from hpcncf_analysis.configurations import Configuration
from hpcncf_analysis.diagnosis.evidence import Cause, CoreCounts, Diagnosis, Finding, Gain


def finding(name: Cause = "python_input", share: float = 0.58, **more: Any) -> Finding:
    return Finding(name, share, "time", ("evidence",), "Make whole batches.", **more)


def diagnosis(*findings: Finding) -> Diagnosis:
    first, *rest = findings or (None,)
    verdict = "cause" if first else "healthy"
    return Diagnosis("", verdict, first, tuple(rest), CoreCounts(1, 1, 1))  # type: ignore[arg-type]


def named(label: str, **changes: Any) -> Configuration:
    return configuration(label, run_id=label, **changes)


def opening(*asked: Any) -> str | None:
    found = remedy.describe_main_cause(*asked)
    return found.sentence if found else None


QUICK, SLOW = named("quick"), named("slow", core_hours=3.0)
LOST = "loses 58\u202f% of its time: its samples are made in Python, while training waits"


def test_the_cause_its_cost_and_the_one_that_is_free_of_it() -> None:
    found = {"slow": diagnosis(finding()), "quick": diagnosis()}
    told = opening([QUICK, SLOW], QUICK, found)
    assert told == f"slow {LOST} (python_input); quick does not."
    assert remedy.describe_remaining_costs([QUICK, SLOW], QUICK, found) == []


def test_one_that_was_too_short_to_judge_is_not_called_free_of_it() -> None:
    short = diagnosis(finding("too_short_to_judge", 1.0))
    told = opening([QUICK, SLOW], QUICK, {"slow": diagnosis(finding()), "quick": short})
    assert told is not None
    assert "does not" not in told


def test_where_none_is_free_of_it_the_remedy_is_told_with_what_it_should_bring() -> None:
    gain = Gain(2.5, 2.0, 3.0)
    known = finding(changes={"training.loader": "vectorized"}, gain=gain)
    told = opening([SLOW], SLOW, {"slow": diagnosis(known)})
    assert told == (
        f"This run {LOST} (python_input). Make whole batches (-s training.loader=vectorized; "
        "predicted: 2.50× the instances per second (2.00× to 3.00×))."
    )


def test_the_cause_that_wastes_most_core_hours_comes_first() -> None:
    """58 % of 3 core-hours are more than 90 % of one; what is too short to judge is no waste."""
    found = {"slow": diagnosis(finding()), "quick": diagnosis(finding("sync_bound", 0.9))}
    told = opening([QUICK, SLOW], QUICK, found)
    assert told is not None
    assert told.startswith("slow ")
    (left,) = remedy.describe_remaining_costs([QUICK, SLOW], QUICK, found)
    assert left.startswith("quick still loses 90\u202f% of its time: its ranks wait")
    short = {"slow": diagnosis(finding("too_short_to_judge", 1.0)), "quick": found["quick"]}
    told = opening([QUICK, SLOW], QUICK, short)
    assert told is not None
    assert told.startswith("quick ")


def test_a_conclusion_carries_the_cause_that_it_names_and_the_remedy_that_it_tells() -> None:
    found = {"slow": diagnosis(finding(changes={"training.loader": "vectorized"}))}
    alone = text.conclude([SLOW], {}, found)
    assert alone.cause == "python_input"
    assert alone.remedy == "Make whole batches (-s training.loader=vectorized)."
    assert alone.remedy in alone.sentence
    free = text.conclude([QUICK, SLOW], {}, found | {"quick": diagnosis()})
    assert (free.cause, free.remedy) == ("python_input", "")
    unknown = text.conclude([QUICK, SLOW], {})
    assert (unknown.cause, unknown.remedy) == (None, "")


@pytest.mark.parametrize(
    ("known", "agree"), [("aab", True), ("ab", False), ("a", False), ("", False)]
)
def test_most_repeats_have_to_agree_on_a_cause(known: str, agree: bool) -> None:
    causes: dict[str, Cause] = {"a": "python_input", "b": "sync_bound"}
    one = configuration("one", [row(run_id=f"run{number}") for number in range(3)])
    if known == "ab":
        one = configuration("one", one.rows[:2])
    found = {f"run{n}": diagnosis(finding(causes[each])) for n, each in enumerate(known)}
    told = remedy.agreed_diagnosis(one, found)
    assert (told is not None) == agree
    assert told is None or (told.primary and told.primary.cause == "python_input")


def test_without_a_diagnosis_nothing_is_said() -> None:
    assert remedy.describe_main_cause([QUICK], QUICK, {}) is None
    assert remedy.describe_remaining_costs([QUICK], QUICK, {}) == []
    assert remedy.describe_main_cause([QUICK], QUICK, {"quick": diagnosis()}) is None
