"""Outputs that real Slurms of three releases gave for the same seven submissions."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcncf.slurm import preflight
from hpcncf.slurm.query import merged, read_sacct, read_squeue

RECORDED = sorted((Path(__file__).parents[1] / "data").glob("slurm-*"))


@pytest.fixture(params=RECORDED, ids=lambda folder: folder.name)
def recorded(request: pytest.FixtureRequest) -> Path:
    folder: Path = request.param
    return folder


def test_the_states_and_ends_of_jobs_are_read(recorded: Path) -> None:
    found = merged(
        read_squeue((recorded / "squeue.txt").read_text()),
        read_sacct((recorded / "sacct.txt").read_text()),
    )
    assert {job: found[job].state for job in ("1", "2", "3", "5_0", "6", "7")} == {
        "1": "failed",
        "2": "failed",
        "3": "completed",
        "5_0": "running",
        "6": "pending",
        "7": "pending",
    }
    assert found["1"].reason == "Slurm job 1: FAILED (exit code 7)"
    assert found["2"].reason == "Slurm job 2: FAILED (signal 11)"
    assert found["5_0"].node.startswith("node")


def test_squeue_alone_knows_how_jobs_ended(recorded: Path) -> None:
    found = read_squeue((recorded / "squeue.txt").read_text())
    assert found["1"].reason == "Slurm job 1: FAILED (exit code 7)"
    assert found["2"].reason == "Slurm job 2: FAILED (signal 11)"


def test_nodes_and_partitions_are_read(recorded: Path) -> None:
    nodes = preflight.parse_nodes((recorded / "scontrol_nodes.txt").read_text())
    partitions = preflight.parse_partitions((recorded / "scontrol_partitions.txt").read_text())
    assert len(nodes) == 4
    assert {node.cpus for node in nodes} == {2}
    assert {each.name for each in partitions} == {"cpu", "short", "gpu"}
