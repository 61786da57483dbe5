"""The Pareto front as a table."""

from __future__ import annotations

from make_configurations import configuration

from hpcncf_analysis.advice.pareto import Choices, build_choices
from hpcncf_analysis.advice.recommend import MAX_DOMINATED, NOTE, choices_note, choices_table
from hpcncf_analysis.configurations import Configuration


def choices(*configurations: Configuration) -> Choices:
    found = build_choices(configurations)
    assert found is not None
    return found


def test_every_configuration_has_its_place() -> None:
    """Core-seconds: 10 in 10 s, 12 in 6 s, 23 in 5.75 s, and 40 in 40 s."""
    found = choices(
        configuration("one", seconds=10.0),
        configuration("two", seconds=6.0, cores=2),
        configuration("four", seconds=5.75, cores=4),
        configuration("three", seconds=5.9, cores=3),
        configuration("slow", seconds=40.0),
    )
    told = choices_table(found)
    assert told is not None
    assert told.columns == ["configuration", "s/epoch", "core time/epoch", "place"]
    assert [[row[0], row[-1]] for row in told.rows] == [
        ["four", "fastest"],
        ["three", "on the front"],
        ["two", "knee"],
        ["one", "cheapest"],
        ["slow", "beaten by one"],
    ]
    assert told.rows[2][1:3] == ["6", "12\u202fcore-s"]
    assert choices_note(found) == NOTE


def test_what_is_left_out_is_counted() -> None:
    slow = [configuration(f"slow{n}", seconds=20.0 + n) for n in range(MAX_DOMINATED + 3)]
    found = choices(configuration("best"), *slow, configuration("bad", hr10=0.1))
    told = choices_table(found)
    assert told is not None
    assert len(told.rows) == MAX_DOMINATED + 1
    assert choices_note(found).endswith(
        "Left out: 3 more that are beaten, 1 whose quality is worse than chance explains."
    )


def test_places_of_different_machines_are_doubted() -> None:
    found = choices(configuration("one"), configuration("two", seconds=9.0, cpu_model="Old CPU"))
    assert choices_note(found).endswith(
        "They ran on different CPU models (Example CPU; Old CPU): who beats whom may be the "
        "machines' doing."
    )


def test_gpu_time_stands_there_where_any_has_gpus() -> None:
    found = choices(
        configuration("gpu", seconds=1.0, gpus_per_node=2), configuration("cpu", seconds=9.0)
    )
    told = choices_table(found)
    assert told is not None
    assert [row[3] for row in told.rows] == ["2\u202fGPU-s", "–"]


def test_one_alone_needs_no_table() -> None:
    assert choices_table(choices(configuration("one"))) is None
