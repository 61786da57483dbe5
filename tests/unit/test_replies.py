"""What squeue and sacct print, in texts that a real Slurm 22.05 printed."""

from __future__ import annotations

import pytest

from hpcncf.slurm.query import merged, read_sacct, read_squeue
from hpcncf.slurm.states import STATES, JobState, state_of


@pytest.mark.parametrize(
    ("word", "state"),
    [
        ("COMPLETED", "completed"),
        ("CANCELLED by 1000", "cancelled"),
        ("CANCELLED+", "cancelled"),
        ("OUT_OF_ME+", "unknown"),
        ("TIMEOUT", "timeout"),
        ("NODE_FAIL", "node_failed"),
        ("PREEMPTED", "stopped"),
        ("SOMETHING_NEW", "unknown"),
        ("", "unknown"),
    ],
)
def test_slurms_words_are_ours(word: str, state: str) -> None:
    assert state_of(word, "1").state == state


def test_an_unknown_word_is_said() -> None:
    assert "SOMETHING_NEW" in state_of("SOMETHING_NEW", "7").reason


def test_a_waiting_job_says_why() -> None:
    found = read_squeue("8_0|RUNNING|None\n8_1|PENDING|Resources\n\nnonsense\n")
    assert {job: (one.state, one.reason) for job, one in found.items()} == {
        "8_0": ("running", ""),
        "8_1": ("pending", "waiting for free nodes, cores or memory (Resources)"),
    }


def test_the_steps_say_what_the_job_does_not() -> None:
    """Rows as sacct of Slurm 22.05 prints them: a job row FAILED, its step OUT_OF_MEMORY."""
    found = read_sacct(
        "66_0|COMPLETED|0:0\n66_0.batch|COMPLETED|0:0\n66_0.0|COMPLETED|0:0\n"
        "66_1|FAILED|1:0\n66_1.batch|FAILED|1:0\n66_1.0|OUT_OF_MEMORY|0:125\n"
        "66_2|FAILED|11:0\n66_2.0|CANCELLED|0:11\n"
        "66_3|CANCELLED by 0|0:0\n66_[4-5%2]|PENDING|0:0\n"
    )
    assert {job: one.state for job, one in found.items()} == {
        "66_0": "completed",
        "66_1": "out_of_memory",
        "66_2": "failed",
        "66_3": "cancelled",
        "66_4": "pending",
        "66_5": "pending",
    }
    assert found["66_2"].reason == "Slurm job 66_2: FAILED (exit code 11)"


def test_every_state_that_slurm_documents_has_a_word_of_ours() -> None:
    assert len(STATES) >= 24
    assert "unknown" not in STATES.values()


QUEUE = """\
1_2|PENDING|JobArrayTaskLimit|N/A|N/A|0:00||0|0|
7|PENDING|Priority|2026-11-21T17:09:00|2026-11-21T17:19:00|0:00||0|0|
1_0|RUNNING|None|2026-11-21T16:49:16|2026-11-21T16:54:16|0:03|node[1-2]|0|0|
26|PENDING|BeginTime|2026-11-21T16:50:34|2026-11-21T17:00:34|0:00||0|1|
25_1|COMPLETED|None|2026-11-21T16:50:22|2026-11-21T16:50:24|0:02|node2|0|0|
24|FAILED|NonZeroExitCode|2026-11-21T16:50:22|2026-11-21T16:50:22|0:00|node1|1792|0|
27|FAILED|NonZeroExitCode|2026-11-21T16:50:22|2026-11-21T16:50:22|0:00|node3|35584|0|
3|CANCELLED|PartitionTimeLimit|2026-11-21T16:50:19|2026-11-21T16:50:19|0:00||0|0|
"""
ACCOUNT = """\
24|FAILED|7:0|00:00:00|2026-11-21T16:50:22|node1
24.batch|FAILED|7:0|00:00:00|2026-11-21T16:50:22|node1
26|REQUEUED|0:0|00:00:01|2026-11-21T16:50:23|node2
3|CANCELLED by 0|0:0|00:00:00|2026-11-21T16:50:19|None assigned
29_0|RUNNING|0:0|00:00:03|Unknown|node1
29_[1-2,4%1]|CANCELLED by 0|0:0|00:00:00|2026-11-21T16:52:01|None assigned
66|COMPLETED|0:0|00:00:00|2026-11-21T16:50:22|node1
"""


def test_squeue_says_where_it_runs_since_when_and_when_it_starts() -> None:
    found = read_squeue(QUEUE)
    assert found["1_0"] == JobState("running", "RUNNING", "", "node[1-2]", elapsed_s=3.0)
    assert (found["7"].state, found["7"].starts) == ("pending", "2026-11-21T17:09:00")
    assert found["7"].reason == "waiting for higher-priority jobs (Priority)"
    assert (found["1_2"].starts, found["1_2"].ended) == ("", "")
    assert (found["26"].restarts, found["26"].ended) == (1, "")


def test_squeue_says_how_an_ended_job_ended() -> None:
    found = read_squeue(QUEUE)
    assert found["25_1"].state == "completed"
    assert found["25_1"].ended == "2026-11-21T16:50:24"
    assert found["24"].reason == "Slurm job 24: FAILED (exit code 7)"
    assert found["27"].reason == "Slurm job 27: FAILED (exit code 139, as by signal 11)"


def test_elements_that_never_started_share_a_row() -> None:
    found = read_sacct(ACCOUNT)
    cancelled = {job for job, state in found.items() if state.state == "cancelled"}
    assert cancelled == {"3", "29_1", "29_2", "29_4"}
    assert "CANCELLED by 0" in found["29_2"].reason


def test_squeue_knows_best_what_is_under_way_and_sacct_how_it_ended() -> None:
    both = merged(read_squeue(QUEUE), read_sacct(ACCOUNT))
    assert (both["26"].state, both["26"].restarts) == ("pending", 1)
    assert "CANCELLED by 0" in both["3"].reason
    assert both["25_1"].state == "completed"


def test_what_sacct_alone_takes_for_running_is_unknown() -> None:
    both = merged({}, read_sacct(ACCOUNT))
    assert both["29_0"].state == "unknown"
    assert "sacct last knew Slurm job 29_0 as RUNNING" in both["29_0"].reason


def test_a_late_sacct_does_not_undo_an_end_that_squeue_says() -> None:
    late = read_sacct("24|RUNNING|0:0|00:00:01|Unknown|node1\n")
    assert merged(read_squeue(QUEUE), late)["24"].state == "failed"


def test_a_bare_number_is_not_its_elements() -> None:
    """Seen for some seconds after an array's end, before its elements have rows."""
    assert "66_0" not in merged({}, read_sacct(ACCOUNT))


def test_a_torn_or_odd_row_is_passed_over() -> None:
    assert read_squeue("slurm_load_jobs error: Unable to contact\n|RUNNING|\n8\n") == {}
    assert read_sacct("8_1|COMPL") == {"8_1": state_of("COMPL", "8_1")}
