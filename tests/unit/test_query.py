"""The output of squeue and sacct, as real Slurms of four releases printed it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hpcncf.slurm import preflight, query
from hpcncf.slurm.pending_reasons import NEVER, WORDS, describe_reason
from hpcncf.slurm.query import (
    array_ids,
    expand_elements,
    merge_states,
    parse_config,
    read_sacct,
    read_squeue,
)
from hpcncf.slurm.states import STATES, JobState, state_of

RECORDED = sorted((Path(__file__).parents[1] / "data").glob("slurm-*"))
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
def test_each_word_of_slurm_has_a_state(word: str, state: str) -> None:
    found = state_of(word, "7")
    assert found.state == state
    assert word.rstrip("+") in found.reason
    assert "unknown" not in STATES.values()


def test_squeue_shows_nodes_starts_and_ends() -> None:
    found = read_squeue(QUEUE)
    assert found["1_0"] == JobState("running", "RUNNING", "", "node[1-2]", elapsed_s=3.0)
    assert (found["7"].state, found["7"].starts) == ("pending", "2026-11-21T17:09:00")
    assert found["7"].reason == "waiting for higher-priority jobs (Priority)"
    assert (found["1_2"].starts, found["1_2"].ended) == ("", "")
    assert (found["26"].restarts, found["26"].ended) == (1, "")
    assert (found["25_1"].state, found["25_1"].ended) == ("completed", "2026-11-21T16:50:24")
    assert found["24"].reason == "Slurm job 24: FAILED (exit code 7)"
    assert found["27"].reason == "Slurm job 27: FAILED (exit code 139, as by signal 11)"


def test_a_step_may_show_what_its_job_does_not() -> None:
    """Rows of Slurm 22.05: a job row FAILED, its step OUT_OF_MEMORY."""
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


def test_squeue_knows_jobs_under_way_and_sacct_their_ends() -> None:
    account = read_sacct(ACCOUNT)
    cancelled = {job for job, state in account.items() if state.state == "cancelled"}
    assert cancelled == {"3", "29_1", "29_2", "29_4"}, "elements that never started share a row"
    both = merge_states(read_squeue(QUEUE), account)
    assert (both["26"].state, both["26"].restarts) == ("pending", 1)
    assert "CANCELLED by 0" in both["3"].reason
    assert both["25_1"].state == "completed"
    # sacct alone takes it for running.
    assert both["29_0"].state == "unknown"
    assert "sacct last knew Slurm job 29_0 as RUNNING" in both["29_0"].reason
    # Seen for some seconds after an array's end, before its elements have rows.
    assert "66_0" not in both
    late = read_sacct("24|RUNNING|0:0|00:00:01|Unknown|node1\n")
    assert merge_states(read_squeue(QUEUE), late)["24"].state == "failed"


def test_torn_and_odd_rows_are_skipped() -> None:
    assert read_squeue("slurm_load_jobs error: Unable to contact\n|RUNNING|\n8\n\nnonsense") == {}
    assert read_sacct("8_1|COMPL") == {"8_1": state_of("COMPL", "8_1")}


@pytest.fixture(params=RECORDED, ids=lambda folder: folder.name)
def recorded(request: pytest.FixtureRequest) -> Path:
    """Outputs of one release for the same seven submissions."""
    folder: Path = request.param
    return folder


def test_the_states_and_ends_of_jobs_are_read(recorded: Path) -> None:
    queue = read_squeue((recorded / "squeue.txt").read_text())
    found = merge_states(queue, read_sacct((recorded / "sacct.txt").read_text()))
    assert {job: found[job].state for job in ("1", "2", "3", "5_0", "6")} == {
        "1": "failed",
        "2": "failed",
        "3": "completed",
        "5_0": "running",
        "6": "pending",
    }
    for states in (queue, found):
        assert states["1"].reason == "Slurm job 1: FAILED (exit code 7)"
        assert states["2"].reason == "Slurm job 2: FAILED (signal 11)"
    assert found["5_0"].node.startswith("node")


def test_nodes_and_partitions_are_read(recorded: Path) -> None:
    nodes = preflight.parse_nodes((recorded / "scontrol_nodes.txt").read_text())
    partitions = preflight.parse_partitions((recorded / "scontrol_partitions.txt").read_text())
    assert len(nodes) == 4
    assert {node.cpus for node in nodes} == {2}
    assert {each.name for each in partitions} == {"cpu", "short", "gpu"}


def rows(recorded: Path, command: str, key: str) -> list[dict[str, Any]]:
    """The output of the command with --json."""
    found: list[dict[str, Any]] = json.loads((recorded / f"{command}.json").read_text())[key]
    return found


@pytest.mark.parametrize(
    "recorded",
    [folder for folder in RECORDED if (folder / "squeue.json").exists()],
    ids=lambda folder: folder.name,
)
def test_states_nodes_and_partitions_are_those_of_slurms_own_json(recorded: Path) -> None:
    seen = {}
    for job in rows(recorded, "squeue", "jobs"):
        array, task = job["array_job_id"]["number"], job["array_task_id"]
        element = task["number"] if task["set"] else f"[{job['array_task_string']}]"
        for name in expand_elements(f"{array}_{element}" if array else str(job["job_id"])):
            seen[name] = job["job_state"][0]
    ended = {}
    for job in rows(recorded, "sacct", "jobs"):
        if not job["array"]["job_id"] and str(job["job_id"]) not in seen:
            ended[str(job["job_id"])] = job["state"]["current"][0]
    queue = read_squeue((recorded / "squeue.txt").read_text())
    assert {job: queue[job].word for job in queue} == seen | ended
    account = read_sacct((recorded / "sacct.txt").read_text())
    assert {job: account[job].word for job in ended} == ended

    nodes = preflight.parse_nodes((recorded / "scontrol_nodes.txt").read_text())
    assert [(each.name, each.cpus, each.mem_mib, each.partitions) for each in nodes] == [
        (each["name"], each["effective_cpus"], each["real_memory"], {*each["partitions"]})
        for each in rows(recorded, "scontrol_nodes", "nodes")
    ]
    partitions = preflight.parse_partitions((recorded / "scontrol_partitions.txt").read_text())
    assert {each.name: each.max_minutes for each in partitions} == {
        each["name"]: each["maximums"]["time"]["number"]
        for each in rows(recorded, "scontrol_partitions", "partitions")
    }


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("0:03", 3),
        ("1:02:03", 3723),
        ("2-00:00:01", 172801),
        ("00:19.144", 19.144),
        ("UNLIMITED", None),
        ("INVALID", None),
        ("", None),
    ],
)
def test_durations_are_read(text: str, number: float | None) -> None:
    assert query.parse_duration(text) == number


def test_times_ids_and_configuration_are_read() -> None:
    moment = query.parse_time("2026-01-31T14:05:00")
    assert (moment.hour, moment.tzinfo is None) == (14, False)
    assert query.parse_time("Unknown") is None
    assert array_ids(["12_0", "12_1", "9"]) == ["12", "9"]
    assert expand_elements("66_[2-4,7%2]") == ["66_2", "66_3", "66_4", "66_7"]
    assert expand_elements("66_2") == ["66_2"]
    text = "Configuration data as of 2026-01-01\nMaxArraySize            = 1001\nPlugin = a=b\n"
    assert parse_config(text) == {"MaxArraySize": "1001", "Plugin": "a=b"}


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("Priority", "waiting for higher-priority jobs (Priority)"),
        ("QOSMaxCpuPerUserLimit", "you are at the QOS's limit of cores (QOSMaxCpuPerUserLimit)"),
        ("AssocGrpGRES", "all users of your account together are at its limit of GPUs (Assoc"),
        ("MaxJobsPerAccount", "your account is at the QOS's limit of running jobs"),
        ("AssocGrpCPURunMinutesLimit", "limit of minutes of cores that run"),
        ("ReqNodeNotAvail, UnavailableNodes:node[3-4]", "(ReqNodeNotAvail: node[3-4])"),
        ("ReqNodeNotAvail,_UnavailableNodes:node3", "(ReqNodeNotAvail: node3)"),
        ("launch failed requeued held", "scontrol release tries again"),
        ("ReasonOfALaterSlurm", "ReasonOfALaterSlurm"),
    ],
)
def test_a_reason_is_explained(reason: str, words: str) -> None:
    assert words in describe_reason(reason)
    assert "" not in WORDS.values()


@pytest.mark.parametrize(
    ("reason", "never"),
    [
        *(("PartitionConfig", True), ("PartitionTimeLimit", True), ("BadConstraints", True)),
        ("AssocMaxWallDurationPerJobLimit", True),
        ("QOSMaxNodePerJobLimit", True),
        ("QOSMinCpuNotSatisfied", True),
        ("DependencyNeverSatisfied", True),
        *(("Resources", False), ("Priority", False), ("BeginTime", False)),
        ("JobArrayTaskLimit", False),
        ("QOSMaxJobsPerUserLimit", False),
    ],
)
def test_jobs_that_will_never_start_are_distinguished_from_those_that_wait(
    reason: str, never: bool
) -> None:
    assert (NEVER in describe_reason(reason)) is never
