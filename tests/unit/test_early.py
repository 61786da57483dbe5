"""The early verdict: when it comes, what it says, and where the time limit will cut."""

from __future__ import annotations

import time
from typing import Any

import hostile
import make_results
import pytest

from hpcncf import cli
from hpcncf.cli.early import ends_in_s, watcher
from hpcncf.records.schema import ProgramProfile, RankRecord
from hpcncf.worker.record_command import planned
from hpcncf_analysis.diagnosis.early import early_lines, forecast_end, has_enough_steps
from hpcncf_analysis.diagnosis.summary import summarize

PLAIN_RUN = planned(["python", "train.py"], 2.0, None)


def program(epochs: int = 1, batches: int = 200, length: int | None = 1000) -> ProgramProfile:
    """Of 0.4 s a step, with one loader."""
    seen = hostile.program()
    changes = {"workers": 0, "epochs": epochs, "batches": batches, "length": length}
    loader = seen.loaders[0].model_copy(update=changes)
    return seen.model_copy(update={"loaders": [loader]})


def rank(*programs: ProgramProfile, **changes: Any) -> RankRecord:
    record = make_results.rank_record(PLAIN_RUN, 0)
    return record.model_copy(update={"program": list(programs), **changes})


@pytest.mark.parametrize(
    ("seen", "in_s", "said"),
    [
        (program(), 1_000.0, "comes at 70% of epoch 3 (now at 20% of epoch 1)"),
        (program(epochs=3, batches=250), 100.0, "comes at 50% of epoch 5 (now at 0% of epoch 3)"),
        (program(length=None), 40.0, "in 40 s, comes at step 300 (now 200)"),
        (program(), None, ""),
    ],
)
def test_the_projected_end_is_where_the_time_limit_cuts(
    seen: ProgramProfile, in_s: float | None, said: str
) -> None:
    worker = seen.model_copy(update={"is_worker": True, "steps": 9_999})
    assert forecast_end([worker, seen], in_s).endswith(said)
    assert bool(forecast_end([seen], in_s)) is bool(said)


def test_a_verdict_has_at_most_six_lines_that_name_cause_line_and_end() -> None:
    summary = summarize([rank(program())], [make_results.node_record(PLAIN_RUN)])
    lines = early_lines(summary, 1_000.0, "hpcncf diagnose 7")
    assert 3 <= len(lines) <= 6
    assert all(len(line) <= 100 for line in lines)
    assert "allocated cores used" in lines[0]
    assert lines[1].startswith("cause: ")
    assert lines[2].startswith("line: ")
    assert lines[2].endswith("__getitem__")
    assert "of epoch 3" in lines[-2]
    assert lines[-1] == "more: hpcncf diagnose 7"


def test_steps_are_waited_for_if_there_are_any() -> None:
    few = hostile.program().model_copy(update={"steps": 99})
    assert has_enough_steps(rank(few)) is False
    assert has_enough_steps(rank(program())) is True
    assert has_enough_steps(rank()) is None


def test_only_batch_jobs_get_a_verdict_unasked() -> None:
    job = {"SLURM_JOB_ID": "7"}
    assert watcher(None, True, {}) is None
    assert watcher(None, False, job) is None
    assert watcher(None, True, job) is not None
    assert watcher(3.0, True, {}) is not None


@pytest.mark.parametrize("verb", ["run", "sbatch"])
@pytest.mark.parametrize("given", ["-1", "soon", "nan"])
def test_a_moment_that_cannot_be_is_refused_before_anything_starts(
    verb: str, given: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as refused:
        cli.main([verb, f"--early={given}", "job.sh"])
    assert refused.value.code == 2
    assert f"expected seconds above 0, came {given}" in capsys.readouterr().err


def test_the_time_limit_is_read_from_the_jobs_environment() -> None:
    end = {"SLURM_JOB_END_TIME": f"{time.time() + 60:.0f}"}
    assert 50 < (ends_in_s("7", end) or 0) <= 61
    assert ends_in_s(None, {}) is None
