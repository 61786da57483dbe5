"""What breaks under a run, on a real Slurm: nodes, slurmd, the disk, a rank that stands still."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm.conftest import Cluster, User, eventually, user_of
from slurm.test_survive import (
    TWO_NODES,
    ends,
    ranks_of,
    records,
    resumed,
    same_bits,
    saves,
    submits,
    trains,
)

pytestmark = pytest.mark.slurm

OFTEN = "training.checkpoint_every_min=0.05"
# Still at work when it is hit on a quick machine, and done in time on a busy one.
LONG = "training.epochs=6"
LONG_ALONE = "training.epochs=25"


def other_node(user: User) -> str:
    """The node without the first rank."""
    (claim,) = records(user, "claim.json")
    listed = user.cluster.run("squeue", "-hj", claim["slurm_job_id"], "-o%N").strip()
    (other,) = {*user.cluster.run("scontrol", "show", "hostnames", listed).split()} - {
        claim["node"]
    }
    return other


@pytest.mark.slow
def test_a_run_over_two_nodes_outlives_one_of_them(
    user: User, breakable: Cluster, tiny_data: Path
) -> None:
    submits(user, tiny_data, TWO_NODES, OFTEN, LONG)
    saves(user)
    (claim,) = records(user, "claim.json")
    second = other_node(user)
    breakable.crash(second)
    (user.folder / "site.yaml").write_text(f"additional_parameters: {{exclude: {second}}}\n")
    submits(user, tiny_data, TWO_NODES, OFTEN, LONG, name="whole")
    run = ends(user)
    assert run["attempt"] == 2
    assert second not in {rank["node"] for rank in records(user, "rank-*.json")}
    assert records(user, "rank-0.json")[-1]["slurm_job_id"] == claim["slurm_job_id"]
    assert resumed(user)
    same_bits(user, killed=True)


@pytest.mark.slow
def test_where_slurmd_is_killed_nothing_is_taken_for_done(
    user: User, breakable: Cluster, tiny_data: Path
) -> None:
    """Its rank runs on; Slurm takes the node for dead, and srun says 0 after `Node failure`."""
    submits(user, tiny_data, TWO_NODES, OFTEN, "training.epochs=100000")
    trains(user)
    node = other_node(user)
    breakable.kill_slurmd(node)
    eventually(lambda: "down" in breakable.run("sinfo", "-hNo%T", f"--nodes={node}"))
    trains(user, attempt=2)
    seen = {each["attempt"]: each["outcome"] for each in records(user, "rank-*.json")}
    assert seen.get(1) != "completed"
    user.types("cancel", "--all", "results/tiny")


@pytest.fixture
def cramped(cluster: Cluster) -> Iterator[User]:
    """Someone whose folder can be full."""
    folder = cluster.small / "cramped"
    folder.mkdir()
    user = user_of(cluster, folder)
    yield user
    cluster.disk("free")
    user.leaves()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.slow
def test_on_a_disk_that_is_full_for_a_while_runs_end_as_if_it_were_not(
    cramped: User, tiny_data: Path
) -> None:
    submits(cramped, tiny_data, OFTEN, LONG_ALONE)
    trains(cramped)
    (rank,) = ranks_of(cramped)
    rank.suspend()  # so that it is at work until the disk is full, and need not train for long
    cramped.cluster.disk("fill")
    refused = cramped.attempt("submit", "job.yaml", "--cluster", "slurm", "-s", "name=other")
    assert refused.returncode == 1
    assert "No space left" in refused.stderr
    assert "Traceback" not in refused.stderr
    held = cramped.cluster.run("squeue", "--me", "--noheader", "--format=%i").split()
    assert len(held) == 1, "and nothing of it is in Slurm"
    rank.resume()
    eventually(lambda: _waits_for_room(cramped))
    assert [run["state"] for run in cramped.runs()] == ["running"]
    cramped.cluster.disk("free")
    submits(cramped, tiny_data, OFTEN, LONG_ALONE, name="whole")
    assert ends(cramped)["attempt"] == 1
    same_bits(cramped)
    assert not list(cramped.folder.glob("results/*/runs/**/.*"))


def _waits_for_room(user: User) -> bool:
    """Its training is over: only the monitor and the writer of the record wake up."""
    user.cluster.disk("fill")  # again: a checkpoint cut short by the first gave back its pages
    (rank,) = ranks_of(user)
    before = rank.cpu_times().user
    return rank.cpu_percent(1.0) < 20 and rank.cpu_times().user - before < 0.3


@pytest.mark.slow
def test_of_a_rank_that_stands_still_the_others_say_when_warned(
    user: User, tiny_data: Path
) -> None:
    two = ("resources.tasks_per_node=2", "training.epochs=4", OFTEN)
    submits(user, tiny_data, *two)
    trains(user)
    ranks = {rank.environ().get("SLURM_PROCID"): rank for rank in ranks_of(user)}
    ranks["1"].suspend()
    user.cluster.run("scancel", "--signal=USR2", user.runs()[0]["job_id"])
    submits(user, tiny_data, *two, name="whole")
    assert ends(user)["attempt"] == 2
    (left, *_) = records(user, "rank-0.json")
    assert left["outcome"] == "stopped"
    assert "put back into the queue" in left["error"]["message"]
    same_bits(user, killed=True)
