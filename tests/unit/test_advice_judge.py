"""The table of judged configurations, against figures worked by hand."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from make_configurations import configuration, diagnosis, repeated, row

from hpcncf_analysis.advice.judge import (
    MIN_CORE_YIELD,
    Choice,
    Confidence,
    Judgement,
    MeasuredRemedy,
    agreed_diagnosis,
    assess_confidence,
    judge,
)
from hpcncf_analysis.configurations import Configuration
from hpcncf_analysis.diagnosis.evidence import Cause
from hpcncf_analysis.quality import at_equal_epochs

COMMAND = {"workload": "command", "seconds_per_epoch": None}


def table(*configurations: Configuration, **settings: Any) -> Judgement:
    found = judge(configurations, **settings)
    assert found is not None
    return found


def timed(label: str, seconds: float, cores: int = 1, **changes: Any) -> Configuration:
    """Its job takes exactly so many seconds."""
    plain = {"elapsed_s": seconds, "epochs": 1, "seconds_per_epoch": seconds / 2}
    return configuration(
        label, seconds=seconds, cores=cores, **(plain | {"training_s": seconds / 2} | changes)
    )


def names(found: Judgement) -> tuple[str | None, ...]:
    chosen = (found.cheapest, found.recommended, found.fastest)
    return tuple(each.label if each else None for each in chosen)


def test_choices_and_front_by_hand() -> None:
    """Core-seconds: 10 on one core, 12 on two, 32 on four; the slow one takes 20."""
    found = table(
        timed("one", 10.0), timed("two", 6.0, 2), timed("four", 8.0, 4), timed("slow", 20.0)
    )
    assert names(found) == ("one", "two", "two")
    assert {each.label: each.beaten_by for each in found.rows} == {
        "two": None,
        "four": "two",
        "one": None,
        "slow": "one",
    }
    assert found.fastest
    assert found.fastest.core_h == pytest.approx(12 / 3600)


@pytest.mark.parametrize(("seconds", "recommended"), [(7.1, "two"), (7.2, "one")])
def test_more_cores_are_worth_at_most_a_share_more(seconds: float, recommended: str) -> None:
    """10 core-seconds at least: 14.2 of them are within 10 / 0.7 = 14.29, and 14.4 are not."""
    found = table(timed("one", 10.0), timed("two", seconds, 2))
    assert names(found) == ("one", recommended, "two")


def test_gpus_and_cores_have_no_common_price() -> None:
    found = table(
        timed("gpu", 1.0, 8, gpus_per_node=1),
        timed("cpu", 100.0, 2),
        timed("gpus", 0.9, 8, gpus_per_node=4),
    )
    assert {each.beaten_by for each in found.rows} == {None}
    assert names(found) == ("cpu", "gpu", "gpus"), "4 GPUs for a tenth less time are not worth it"


def test_a_whole_job_has_the_epochs_of_the_job_file() -> None:
    """7 s of start-up, then 3 epochs of 10 s with 1 s of evaluation: 20 of them take 227 s."""
    found = table(configuration("a"), epochs=20)
    assert (found.unit, found.rows[0].seconds) == ("run", 227.0)
    assert "20 epochs" in found.work


@pytest.mark.parametrize(
    ("changes", "unit", "seconds"),
    [
        ({"seconds_per_epoch": None}, "million instances", 10_000.0),
        ({"data_key": "other"}, "million instances", 10_000.0),
        ({**COMMAND, "instances_per_s": None, "elapsed_s": 40.0}, "run", 40.0),
        ({**COMMAND, "elapsed_s": 40.0, "parameter_size": 1}, "run", 40.0),
    ],
)
def test_different_work_is_compared_by_instances(
    changes: dict[str, Any], unit: str, seconds: float
) -> None:
    same = {} if "data_key" in changes else changes
    found = table(configuration("a", **changes), configuration("b", **same))
    assert found.unit == unit
    assert found.rows[0].seconds == pytest.approx(seconds)
    other = configuration("b", **(changes | {"parameter_size": 2}))
    if "parameter_size" in changes:
        assert table(configuration("a", **changes), other).unit == "million instances"


def test_no_time_gives_no_table() -> None:
    assert judge([configuration("a", instances_per_s=None, seconds_per_epoch=None)]) is None


CUT = {"max_steps": 10, "batch": 256, "instances_per_epoch": 100_000.0}
LOSS = {**COMMAND, "elapsed_s": 40.0, "hr10": None}


@pytest.mark.parametrize(
    ("good", "other", "standing"),
    [
        (timed("good", 10.0), timed("other", 1.0, hr10=0.5), "worse model"),
        # It has seen fewer instances: nothing to compare.
        (
            timed("good", 10.0, **CUT | {"max_steps": None}),
            timed("other", 1.0, hr10=0.5, **CUT),
            "judged",
        ),
        (
            configuration("good", **LOSS, loss=10.0, quality="loss:lower"),
            configuration("other", **LOSS, loss=100.0, quality="loss:lower"),
            "worse model",
        ),
        (
            configuration("good", **LOSS, loss=100.0, quality="loss:higher"),
            configuration("other", **LOSS, loss=10.0, quality="loss:higher"),
            "worse model",
        ),
    ],
)
def test_a_worse_model_is_not_chosen(
    good: Configuration, other: Configuration, standing: str
) -> None:
    standings = {each.label: each.standing for each in table(good, other).rows}
    assert standings == {"good": "judged", "other": standing}


@pytest.mark.parametrize(("then", "judged"), [(0.79, "judged"), (0.5, "worse model")])
def test_models_are_compared_after_as_many_epochs(then: float, judged: str) -> None:
    """Both had the data three times; what twenty epochs came to is said, and decides nothing."""
    short = row(run_id="a", instances_per_epoch=1000.0, hr10=0.8)
    long = row(run_id="b", instances_per_epoch=1000.0, hr10=0.9, epochs=20)
    courses = [
        {"run_id": run_id, "epoch": number, "hr10": hr10, "loss": 0.1}
        for run_id, number, hr10 in [("a", 2, 0.8), ("b", 2, then), ("b", 19, 0.9)]
    ]
    a, b = at_equal_epochs([short, long], courses)
    assert (b["hr10"], b["hr10_at_end"], b["scored_epochs"]) == (then, 0.9, 3)
    found = table(configuration("a", [a]), configuration("b", [b]))
    assert {each.label: each.standing for each in found.rows} == {"a": "judged", "b": judged}


def test_scores_stay_where_epochs_are_the_same_or_were_not_evaluated() -> None:
    runs = [row(run_id=name, instances_per_epoch=1000.0) for name in "ab"]
    assert at_equal_epochs(runs, []) == runs
    longer = [runs[0], {**runs[1], "epochs": 20}]
    assert at_equal_epochs(longer, [{"run_id": "a", "epoch": 2, "hr10": 0.8}]) == longer


def test_a_setting_without_effect_is_not_compared() -> None:
    text = "training.pin_memory has no effect: it is for copies to a GPU"
    pinned = {"varied": {"training.pin_memory": True}, "warnings": [text]}
    found = table(timed("plain", 10.0, varied={}), timed("pinned", 9.0, **pinned))
    assert names(found) == ("plain", "plain", "plain")
    assert [(each.label, each.reason) for each in found.rows if each.reason] == [("pinned", text)]


def test_what_was_too_short_is_repeated_and_never_chosen() -> None:
    quick, slow = timed("quick", 1.0, run_id="q"), timed("slow", 20.0, run_id="s")
    short = {"q": diagnosis("too_short_to_judge"), "s": diagnosis()}
    found = table(quick, slow, diagnoses=short)
    assert names(found) == ("slow", "slow", "slow")
    assert [each.label for each in found.to_repeat] == ["quick"]
    hopeless = table(timed("s", 50.0, run_id="q"), slow, diagnoses=short)
    assert hopeless.to_repeat == [], "it is slower in any case"


def test_a_run_that_is_mostly_warm_up_is_too_short() -> None:
    """5.24 s of training, 1.5 s of them counted steps."""
    warm = {"instances_per_epoch": 1000.0, "epochs": 1, "training_s": 5.24}
    one = configuration("a", seconds=1.5, **warm)
    assert table(one, diagnoses={}).rows[0].standing == "too short"
    assert table(one).rows[0].standing == "judged", "without diagnoses nothing is too short"


def test_a_recommendation_has_no_open_cause() -> None:
    quick, slow = timed("quick", 9.0, run_id="q"), timed("slow", 9.5, run_id="s")
    causes = {"q": diagnosis("python_input"), "s": diagnosis()}
    assert names(table(quick, slow, diagnoses=causes)) == ("quick", "slow", "quick")
    tried = {("quick", "python_input"): MeasuredRemedy("slow", 0.9)}
    assert names(table(quick, slow, diagnoses=causes, outcomes=tried))[1] == "quick"
    far = timed("slow", 20.0, run_id="s")
    assert names(table(quick, far, diagnoses=causes))[1] is None, "half the time for no more"


def test_a_recommendation_is_efficient_enough() -> None:
    lazy, busy = timed("lazy", 6.0, 2, cpu_efficiency=0.57), timed("busy", 10.0)
    assert names(table(lazy, busy, min_efficiency=0.7)) == ("busy", "busy", "lazy")
    assert names(table(lazy, busy, min_efficiency=0.5)) == ("busy", "lazy", "lazy")
    assert names(table(lazy, min_efficiency=0.7)) == ("lazy", None, "lazy")
    gpu = timed("gpu", 6.0, 2, cpu_efficiency=0.2, gpus_per_node=1)
    assert names(table(gpu, min_efficiency=0.7))[1] == "gpu"


@pytest.mark.parametrize(
    ("known", "agree"), [("aab", True), ("ab", False), ("a", False), ("", False)]
)
def test_most_repeats_have_to_agree_on_a_cause(known: str, agree: bool) -> None:
    causes: dict[str, Cause] = {"a": "python_input", "b": "sync_bound"}
    one = configuration("one", [row(run_id=f"run{number}") for number in range(3)])
    if known == "ab":
        one = configuration("one", one.rows[:2])
    found = {f"run{n}": diagnosis(causes[each]) for n, each in enumerate(known)}
    assert (agreed_diagnosis(one, found) is not None) == agree


FAST, SLOW = [10.0, 10.5, 11.0], [20.0, 20.5, 21.0]


def confidence(
    *configurations: Configuration, choice: Choice = "recommended", **settings: Any
) -> Confidence:
    found = table(*configurations, **settings)
    chosen = found.chosen(choice)
    assert chosen
    return assess_confidence(chosen, choice, found)


@pytest.mark.parametrize(
    ("quick", "slow", "level"),
    [
        (FAST, SLOW, "settled"),
        (FAST[:2], SLOW[:2], "too few repeats"),
        (FAST[:1], SLOW, "too few repeats"),
        (FAST, SLOW[:1], "too few repeats"),
        ([10.0, 11.0, 25.0], SLOW, "not settled"),
    ],
)
def test_repeats_that_do_not_overlap_make_sure(
    quick: list[float], slow: list[float], level: str
) -> None:
    """3 and 3 repeats stand in 6! / (3! 3!) = 20 orders, of which two keep the sides apart."""
    found = confidence(repeated("quick", quick), repeated("slow", slow))
    assert found.level == level
    assert ("once in 10 comparisons" in found.text) == (level == "settled")


@pytest.mark.parametrize(
    ("quick", "slow", "level"),
    [
        ({"cpu_model": "Other"}, {}, "not settled"),
        ({"others_cores": 0.5}, {"others_cores": 0.5}, "not settled"),
        ({}, {"others_cores": 0.5}, "likely"),
        ({"epoch_extrapolated": True}, {}, "likely"),
    ],
)
def test_runs_that_compare_badly_are_less_sure(
    quick: dict[str, Any], slow: dict[str, Any], level: str
) -> None:
    found = confidence(repeated("quick", FAST, **quick), repeated("slow", SLOW, **slow))
    assert found.level == level
    assert confidence(repeated("quick", FAST, **quick)).level == "alone"


def test_costs_of_gpus_are_compared_by_gpus() -> None:
    """1 GPU for 10 s against 4 for 4 s: 1.6 times the GPU time, on as many cores."""
    one = configuration("one", [timed("", 10.0, 8, gpus_per_node=1).rows[0]] * 3)
    four = configuration("four", [timed("", 4.0, 8, gpus_per_node=4).rows[0]] * 3)
    found = confidence(one, four, choice="cheapest")
    assert found.level == "settled"
    assert "1.60×" in found.text


sizes = st.lists(st.tuples(st.sampled_from([1.0, 2.0, 3.0, 5.0]), st.integers(1, 4)), min_size=1)


@given(sizes)
def test_the_front_is_what_no_other_beats(sizes: list[tuple[float, int]]) -> None:
    found = table(
        *(timed(str(number), seconds, cores) for number, (seconds, cores) in enumerate(sizes))
    )
    by_label = {each.label: each for each in found.rows}
    for each in found.rows:
        assert (each.beaten_by is None) == (not any(o.beats(each) for o in found.rows))
        assert each.beaten_by is None or by_label[each.beaten_by].beats(each)
    assert found.recommended
    assert found.cheapest
    assert MIN_CORE_YIELD * found.recommended.core_h <= found.cheapest.core_h
