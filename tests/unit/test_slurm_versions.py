"""Outputs that real Slurms of three releases gave for the same seven submissions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hpcncf.slurm import preflight
from hpcncf.slurm.query import elements, merged, read_sacct, read_squeue

RECORDED = sorted((Path(__file__).parents[1] / "data").glob("slurm-*"))


with_json = pytest.mark.parametrize(
    "recorded",
    [folder for folder in RECORDED if (folder / "squeue.json").exists()],
    ids=lambda folder: folder.name,
)


@pytest.fixture(params=RECORDED, ids=lambda folder: folder.name)
def recorded(request: pytest.FixtureRequest) -> Path:
    folder: Path = request.param
    return folder


def test_the_states_and_ends_of_jobs_are_read(recorded: Path) -> None:
    found = merged(
        read_squeue((recorded / "squeue.txt").read_text()),
        read_sacct((recorded / "sacct.txt").read_text()),
    )
    assert {job: found[job].state for job in ("1", "2", "3", "5_0", "6")} == {
        "1": "failed",
        "2": "failed",
        "3": "completed",
        "5_0": "running",
        "6": "pending",
    }
    assert found["1"].reason == "Slurm job 1: FAILED (exit code 7)"
    assert found["2"].reason == "Slurm job 2: FAILED (signal 11)"
    assert found["5_0"].node.startswith("node")


def test_squeue_alone_knows_how_jobs_ended(recorded: Path) -> None:
    found = read_squeue((recorded / "squeue.txt").read_text())
    assert found["1"].reason == "Slurm job 1: FAILED (exit code 7)"
    assert found["2"].reason == "Slurm job 2: FAILED (signal 11)"


def rows(recorded: Path, command: str, key: str) -> list[dict[str, Any]]:
    """What the command says with --json."""
    found: list[dict[str, Any]] = json.loads((recorded / f"{command}.json").read_text())[key]
    return found


@with_json
def test_the_states_are_those_of_slurms_own_json(recorded: Path) -> None:
    seen = {}
    for job in rows(recorded, "squeue", "jobs"):
        array, task = job["array_job_id"]["number"], job["array_task_id"]
        element = task["number"] if task["set"] else f"[{job['array_task_string']}]"
        for name in elements(f"{array}_{element}" if array else str(job["job_id"])):
            seen[name] = job["job_state"][0]
    ended = {}
    for job in rows(recorded, "sacct", "jobs"):
        if not job["array"]["job_id"] and str(job["job_id"]) not in seen:
            ended[str(job["job_id"])] = job["state"]["current"][0]
    queue = read_squeue((recorded / "squeue.txt").read_text())
    assert {job: queue[job].word for job in queue} == seen | ended
    account = read_sacct((recorded / "sacct.txt").read_text())
    assert {job: account[job].word for job in ended} == ended


@with_json
def test_nodes_and_partitions_are_those_of_slurms_own_json(recorded: Path) -> None:
    nodes = preflight.parse_nodes((recorded / "scontrol_nodes.txt").read_text())
    seen = rows(recorded, "scontrol_nodes", "nodes")
    assert sorted(
        (each.name, each.cpus, each.mem_mib, sorted(each.partitions)) for each in nodes
    ) == [
        (each["name"], each["effective_cpus"], each["real_memory"], sorted(each["partitions"]))
        for each in seen
    ]
    partitions = preflight.parse_partitions((recorded / "scontrol_partitions.txt").read_text())
    assert {each.name: each.max_minutes for each in partitions} == {
        each["name"]: each["maximums"]["time"]["number"]
        for each in rows(recorded, "scontrol_partitions", "partitions")
    }


def test_nodes_and_partitions_are_read(recorded: Path) -> None:
    nodes = preflight.parse_nodes((recorded / "scontrol_nodes.txt").read_text())
    partitions = preflight.parse_partitions((recorded / "scontrol_partitions.txt").read_text())
    assert len(nodes) == 4
    assert {node.cpus for node in nodes} == {2}
    assert {each.name for each in partitions} == {"cpu", "short", "gpu"}
