"""Time and memory to ask for, against figures worked by hand."""

from __future__ import annotations

from typing import Any

import pytest
from make_configurations import configuration, repeated, row

from hpcncf.job.spec import Resources
from hpcncf_analysis.advice.request import (
    build_request,
    expected_seconds,
    time_limit_min,
)


@pytest.mark.parametrize(
    ("changes", "seconds"),
    [
        ({}, 40.0),  # 7 s of start-up, 3 epochs of 10 s, 3 evaluations of 1 s
        ({"max_steps": 5, "elapsed_s": 11.0, "training_s": 2.0, "evaluation_s": 1.0}, 8 + 33.0),
        ({"elapsed_s": 60.0, "training_s": 60.0, "evaluation_s": 0.0}, 60.0),
        ({"seconds_per_epoch": None}, None),
        ({"workload": "command", "elapsed_s": 95.0}, 95.0),
    ],
    ids=["whole", "cut short", "slower than its epochs show", "no epoch known", "command"],
)
def test_a_runs_time_is_put_together_from_its_parts(
    changes: dict[str, Any], seconds: float | None
) -> None:
    assert expected_seconds(configuration("a", **changes)) == seconds


def test_the_slowest_repeat_counts() -> None:
    assert expected_seconds(repeated("a", [10.0, 20.0, 12.0])) == 70.0


@pytest.mark.parametrize(("seconds", "minutes"), [(60.0, 3), (240.0, 6), (241.0, 7), (3600.0, 90)])
def test_the_limit_is_half_as_much_again_and_two_minutes_at_least(
    seconds: float, minutes: int
) -> None:
    assert time_limit_min(seconds) == minutes


def test_a_request_names_the_sources_of_its_figures() -> None:
    """400 MiB and a quarter are 0.49 GB; 40 s and two minutes are 2.7 min. Beside each rank of a
    command 64 MiB are counted for hpcncf: 0.64 GB."""
    wanted = build_request(configuration("a", [row(), row(memory_peak_mib=300.0)]), Resources())
    assert (wanted.resources.mem_gb, wanted.resources.timeout_min) == (0.5, 3)
    assert "400\u202fMiB" in wanted.memory
    assert "40\u202fs" in wanted.time
    assert wanted.core_hours == pytest.approx(40 / 3600)
    command = configuration("a", workload="command", tasks_per_node=2)
    wanted = build_request(command, Resources(tasks_per_node=2))
    assert wanted.resources.mem_gb == 0.7
    assert "128\u202fMiB for hpcncf" in wanted.memory


def test_figures_that_were_not_measured_stay_as_they_were() -> None:
    asked = Resources(nodes=2, mem_gb=7.0, timeout_min=45, runs_per_task=3)
    wanted = build_request(configuration("a", memory_peak_mib=None, seconds_per_epoch=None), asked)
    assert wanted.resources == asked.model_copy(update={"runs_per_task": 1})
    assert (wanted.expected_s, wanted.core_hours) == (None, None)


@pytest.mark.parametrize(
    ("asked", "wanted"),
    [
        ({"runs_per_node": 4}, {}),
        ({"gpus_per_node": 1, "mps": True}, {"gpus_per_node": 1}),
        ({"gpus_per_node": 1, "runs_per_node": 2, "mps": True}, {"gpus_per_node": 1}),
        (
            {"gpus_per_node": 1, "runs_per_node": 4, "runs_per_gpu": 2},
            {"gpus_per_node": 1, "runs_per_gpu": 2},
        ),
        ({"gpus_per_node": 1, "tasks_per_node": 2, "ranks_per_gpu": 2, "mps": True}, None),
    ],
    ids=["a node", "MPS for nobody", "a GPU each", "two on each of two", "ranks share"],
)
def test_only_those_that_share_its_gpu_are_asked_for_beside_it(
    asked: dict[str, Any], wanted: dict[str, Any] | None
) -> None:
    found = build_request(configuration("a"), Resources(**asked)).resources
    sized = {"mem_gb": found.mem_gb, "timeout_min": found.timeout_min}
    assert found == Resources(**(asked if wanted is None else wanted), **sized)
