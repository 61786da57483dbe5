"""What the report says of a run's time beside its training."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import make_results
import pytest

from hpcncf.collect.collect import collect
from hpcncf_analysis.configurations import Configuration, group_configurations
from hpcncf_analysis.report.sections.step import evaluation_note, pauses_table, times_table


@pytest.fixture
def shown(tmp_path: Path) -> list[Configuration]:
    paths = make_results.demo(tmp_path, repeats=1)
    make_results.complete(paths)
    return group_configurations(collect(paths).runs)


def evaluated(one: Configuration, seconds: float) -> Configuration:
    return replace(one, figures={**one.figures, "evaluation_s": seconds})


def test_evaluation_has_its_seconds_and_its_speed_beside_training(
    shown: list[Configuration],
) -> None:
    table = times_table(shown)
    for row in table.rows:
        seen = dict(zip(table.columns, row, strict=True))
        assert seen["seconds: evaluation"] == "1.2"  # three epochs of 0.4
        assert (seen["evaluation: s/epoch"], seen["evaluation: pairs/s"]) == ("0.4", "164,000")


def an_epoch(run_id: str, number: int, first_batch_s: float) -> dict[str, Any]:
    return {
        "run_id": run_id,
        "epoch": number,
        "first_batch_s": first_batch_s,
        "training_s": 10.0,
    }


def test_pauses_and_pace_have_a_line_for_each_configuration(
    shown: list[Configuration],
) -> None:
    one = shown[0]
    run = one.rows[0]["run_id"]
    epochs = [an_epoch(run, 0, 3.0), an_epoch(run, 1, 0.5), an_epoch(run, 2, 1.0)]
    kept = replace(one, figures={**one.figures, "pause_share": 0.06, "step_drift": -0.002})
    table = pauses_table([*epochs, an_epoch("another", 0, 9.0)], [kept])
    assert table.rows == [[one.label, "3", "0.75", "15\u202f%", "6\u202f%", "0\u202f%"]]
    unknown = replace(one, figures={**one.figures, "pause_share": None, "step_drift": None})
    table = pauses_table(epochs[:1], [unknown])
    assert table.rows == [[one.label, "3", "–", "30\u202f%", "–", "–"]]
    assert pauses_table([], shown) is None


def test_nothing_is_said_where_evaluation_is_less_than_training(
    shown: list[Configuration],
) -> None:
    assert evaluation_note(shown) is None


def test_evaluation_that_takes_longer_than_training_is_named_with_what_helps(
    shown: list[Configuration],
) -> None:
    slow = evaluated(shown[0], 1e6)
    seen = evaluation_note([slow, *shown[1:]])
    assert seen is not None
    assert slow.label in seen
    assert "engine native" in seen
    seen = evaluation_note([evaluated(one, 1e6) for one in shown])
    assert seen is not None
    assert f"{len(shown)} of {len(shown)}" in seen
