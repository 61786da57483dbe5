"""A run's attempts: each one's figures, and what all of them took."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import make_results
import pytest
from make_results import START

from hpcncf.collect.collect import collect
from hpcncf.job.plan import Run
from hpcncf.paths import ResultPaths
from hpcncf.records.schema import Progress, write_record


@pytest.fixture
def paths(tmp_path: Path) -> ResultPaths:
    return make_results.demo(tmp_path, repeats=1)


def first_run(paths: ResultPaths) -> Run:
    return make_results.plan_of(paths).runs[0]


def leave_attempt(paths: ResultPaths, run: Run, number: int, outcome: str) -> None:
    attempt = paths.run(run.id).attempt(number)
    later = (START + timedelta(hours=number - 1)).isoformat()
    claim = make_results.claim(run).model_copy(update={"attempt": number, "claimed_at": later})
    write_record(attempt.claim, claim)
    if outcome == "killed":
        write_record(attempt.progress, progress(run, number))
        return
    for rank in range(run.resources.world_size):
        record = make_results.rank_record(run, rank)
        error = (
            None if outcome == "completed" else {"type": "Stopped", "message": "stopped by USR2"}
        )
        write_record(
            attempt.rank(rank),
            record.model_copy(update={"attempt": number, "outcome": outcome, "error": error}),
        )


def progress(run: Run, number: int) -> Progress:
    return Progress(
        run_id=run.id,
        attempt=number,
        updated_at=(START + timedelta(seconds=50)).isoformat(),
        elapsed_s=50.0,
        phase="training",
        epoch=0,
        epochs=3,
        step=10,
        steps_per_epoch=328,
        instances_per_s=1000.0,
        cpu_efficiency=0.5,
    )


def test_what_all_attempts_took_is_their_sum(paths: ResultPaths) -> None:
    run = first_run(paths)
    leave_attempt(paths, run, 1, "stopped")
    leave_attempt(paths, run, 2, "completed")
    found = collect(paths)
    (row,) = [row for row in found.runs if row["run_id"] == run.id]
    first, second = found.attempts
    assert [first["outcome"], second["outcome"]] == ["stopped", "completed"]
    assert first["error"] == "Stopped: stopped by USR2"
    assert row["attempts"] == 2
    assert row["elapsed_all_s"] == pytest.approx(2 * row["elapsed_s"])
    assert row["core_hours_all"] == pytest.approx(2 * row["core_hours"])
    assert row["cpu_efficiency_all"] == pytest.approx(row["cpu_efficiency"])


def test_a_killed_attempt_is_accounted_from_its_last_sign_of_life(paths: ResultPaths) -> None:
    run = first_run(paths)
    leave_attempt(paths, run, 1, "killed")
    leave_attempt(paths, run, 2, "completed")
    found = collect(paths)
    killed, _ = found.attempts
    assert (killed["outcome"], killed["figures_from"]) == ("lost", "progress")
    assert (killed["elapsed_s"], killed["cpu_efficiency"]) == (50.0, 0.5)
    (row,) = [row for row in found.runs if row["run_id"] == run.id]
    assert row["elapsed_all_s"] == pytest.approx(row["elapsed_s"] + 50)
    assert row["warnings"] == []


def test_of_a_killed_attempt_the_nodes_saw_every_rank(paths: ResultPaths) -> None:
    run = next(run for run in make_results.plan_of(paths).runs if run.resources.world_size > 1)
    leave_attempt(paths, run, 1, "killed")
    attempt = paths.run(run.id).attempt(1)
    known = progress(run, 1).model_copy(update={"cpu_s": 7.0})
    write_record(attempt.progress, known)
    leave_attempt(paths, run, 2, "completed")
    ranks = run.resources.world_size
    assert collect(paths).attempts[0]["cpu_s"] == pytest.approx(7.0 * ranks)
    node = make_results.node_record(run)
    write_record(attempt.node(0), node)
    assert collect(paths).attempts[0]["cpu_s"] == pytest.approx(sum(node.tree_cpu_s))


def test_an_attempt_that_left_nothing_is_said_to_be_missing_from_the_sum(
    paths: ResultPaths,
) -> None:
    run = first_run(paths)
    leave_attempt(paths, run, 1, "killed")
    paths.run(run.id).attempt(1).progress.unlink()
    leave_attempt(paths, run, 2, "completed")
    found = collect(paths)
    (row,) = [row for row in found.runs if row["run_id"] == run.id]
    assert row["elapsed_all_s"] == pytest.approx(row["elapsed_s"])
    assert any("attempt 1 left no figures" in warning for warning in row["warnings"])


def test_a_run_never_tried_has_no_sums(paths: ResultPaths) -> None:
    row = collect(paths).runs[0]
    assert (row["attempts"], row["elapsed_all_s"], row["core_hours_all"]) == (0, None, None)
