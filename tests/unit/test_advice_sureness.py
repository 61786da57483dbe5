"""Words of certainty, and what earns them."""

from __future__ import annotations

from typing import Any

import pytest
from make_configurations import configuration, repeated, row

from hpcncf_analysis.advice.confidence import (
    Confidence,
    assess_confidence,
    runner_up,
    separation_by_chance,
)
from hpcncf_analysis.advice.pareto import build_choices
from hpcncf_analysis.configurations import Configuration


def sure(*configurations: Configuration) -> Confidence:
    found = build_choices(configurations)
    assert found is not None
    return assess_confidence("knee", found)


@pytest.mark.parametrize(("one", "other", "odds"), [(1, 1, 2), (2, 2, 6), (3, 3, 20), (3, 5, 56)])
def test_chance_separates_so_many_repeats_so_seldom(one: int, other: int, odds: int) -> None:
    """3 and 3 repeats stand in 6! / (3! 3!) = 20 orders, of which one has all of one above."""
    assert separation_by_chance(one, other) == pytest.approx(1 / odds)


FAST, SLOW = [10.0, 10.5, 11.0], [20.0, 20.5, 21.0]


@pytest.mark.parametrize(
    ("quick", "slow", "level", "words_in_it"),
    [
        (FAST, SLOW, "settled", "once in 20 times"),
        (FAST[:2], SLOW[:2], "likely", "once in 6 times; repeats: 3 in the job file"),
        (FAST[:1], SLOW, "unproven", "it ran once, so its scatter is unknown"),
        (FAST, SLOW[:1], "unproven", "the runner-up, slow, ran once"),
        (FAST[:1], SLOW[:1], "unproven", "it and the runner-up, slow, ran once each"),
        ([10.0, 11.0, 25.0], SLOW, "open", "overlap in cost; repeats: 6"),
    ],
)
def test_repeats_earn_the_word(
    quick: list[float], slow: list[float], level: str, words_in_it: str
) -> None:
    told = sure(repeated("quick", quick), repeated("slow", slow))
    assert told.sure == level
    assert words_in_it in told.text


@pytest.mark.parametrize(
    ("changes", "words_in_it"),
    [
        ({"others_cores": 0.5}, "neighbours disturbed most runs"),
        ({"cpu_model": "Other CPU"}, "different CPU models (Example CPU; Other CPU)"),
    ],
)
def test_what_compares_badly_stays_open(changes: dict[str, Any], words_in_it: str) -> None:
    both = changes if "others_cores" in changes else {}
    told = sure(repeated("quick", FAST, **changes), repeated("slow", SLOW, **both))
    assert told.sure == "open"
    assert words_in_it in told.text


def test_nothing_is_settled_while_others_ran_on_another_machine() -> None:
    """The runner-up ran on the same; a third, slower there, may be faster here."""
    third = repeated("third", [x + 30.0 for x in SLOW], cpu_model="Old CPU")
    found = build_choices([repeated("quick", FAST), repeated("slow", SLOW), third])
    assert found is not None
    told = assess_confidence("cheapest", found)
    assert told.sure == "likely"
    assert "1 configuration ran on other CPU models (Old CPU), and may do better" in told.text


def test_one_alone_is_compared_with_nothing() -> None:
    assert sure(repeated("quick", FAST)).sure == "alone"
    assert "neighbours disturbed it" in sure(repeated("quick", FAST, others_cores=0.5)).text


@pytest.mark.parametrize(
    ("changes", "words_in_it"),
    [
        ({"epoch_extrapolated": True}, "extrapolated from its steps"),
        ({"hr10": None}, "Its quality was not evaluated."),
        ({"hr10": 0.83}, "differs by 0.030, within chance on 654 test rows"),
    ],
)
def test_what_else_is_not_certain_is_said(changes: dict[str, Any], words_in_it: str) -> None:
    quick = configuration("quick", [row(seconds, **changes) for seconds in FAST])
    told = sure(quick, repeated("slow", SLOW))
    assert words_in_it in told.text
    assert told.sure == ("likely" if "epoch_extrapolated" in changes else "settled")


def test_costs_of_gpus_are_compared_by_gpus() -> None:
    """1 GPU for 10 s against 4 for 4 s: 1.6 times the GPU time, on as many cores."""
    one = repeated("one", [10.0, 10.0, 10.0], cores=8, gpus_per_node=1)
    four = repeated("four", [4.0, 4.0, 4.0], cores=8, gpus_per_node=4)
    told = sure(one, four)
    assert told.sure == "settled"
    assert "in cost (1.60× to 1.60×)" in told.text


def test_one_whose_rivals_learned_too_little_is_said_to_be() -> None:
    told = sure(repeated("good", FAST), repeated("bad", FAST, hr10=0.1))
    assert "the only one whose quality holds" in told.text


def test_the_runner_up_is_whoever_would_be_chosen_in_its_stead() -> None:
    """Core-seconds: 10, 13 and 24 in 10, 6.5 and 6 s: the knee is the second."""
    one, two, four = (
        configuration("one", seconds=10.0),
        configuration("two", seconds=6.5, cores=2),
        configuration("four", seconds=6.0, cores=4),
    )
    found = build_choices([one, two, four])
    assert found is not None
    assert found.knee.label == "two"
    rivals = {choice: runner_up(choice, found) for choice in ("knee", "fastest", "cheapest")}
    named = {choice: rival.label for choice, rival in rivals.items() if rival}
    assert named == {"knee": "one", "fastest": "two", "cheapest": "two"}
