"""What Slurm stops, and what is killed, on a real Slurm: nothing is lost that need not be."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest

from slurm.conftest import User, eventually
from slurm.test_watch import job as sleeping

pytestmark = pytest.mark.slurm

JOB = """\
name: {name}
data: {{path: {data}}}
site: site.yaml
resources: {{mem_gb: 1, timeout_min: 15}}
training: {{epochs: 8, global_batch_size: 8, threads: 1}}
"""
TWO_NODES = "resources.nodes=2"


def submits(user: User, data: Path, *settings: str, name: str = "tiny") -> None:
    user.submits(JOB.format(name=name, data=data), *settings)


def records(user: User, pattern: str, name: str = "tiny") -> list[dict[str, Any]]:
    files = sorted(user.folder.glob(f"results/{name}/runs/*/attempt-*/{pattern}"))
    return [json.loads(file.read_text()) for file in files]


def of_first(user: User) -> list[dict[str, Any]]:
    """What the first attempt's ranks left."""
    return [each for each in records(user, "rank-*.json") if each["attempt"] == 1]


def trains(user: User, attempt: int = 1) -> None:
    """Wait until it has trained a while: that it is in mid-epoch is likely, and not needed."""

    def seen() -> bool:
        got = records(user, "progress.json")
        return any(each["attempt"] == attempt and each["step"] > 0 for each in got)

    eventually(seen)


def saves(user: User) -> None:
    """Wait until there is a checkpoint to go on from."""
    eventually(lambda: any(user.folder.glob("results/tiny/runs/*/checkpoint.pt")))


def resumed(user: User) -> bool:
    """Whether its last attempt went on from a checkpoint."""
    training = records(user, "rank-0.json")[-1]["training"]
    return any(training[key] for key in ("resumed_epoch", "resumed_step"))


def runs_of(user: User, name: str) -> list[dict[str, Any]]:
    jobs = json.loads(user.types("status", f"results/{name}", "--json"))["jobs"]
    runs: list[dict[str, Any]] = jobs[0]["runs"]
    return runs


def ends(user: User, name: str = "tiny", state: str = "completed") -> dict[str, Any]:
    """The only run of a job, once nothing is queued and `status` shows the state."""
    user.is_through()
    run: dict[str, Any] = {}

    def seen() -> bool:
        run.update(runs_of(user, name)[0])
        return bool(run["state"] == state)

    eventually(seen, run)
    return run


def same_bits(user: User, killed: bool = False) -> None:
    """As the run `whole`, that nobody interrupted, in a job of its own. One that was killed does
    again what it did after its last checkpoint."""
    ends(user, "whole")
    whole, cut = records(user, "rank-0.json", "whole"), records(user, "rank-0.json")
    got = ("epoch", "steps", "instances", "loss", "hr10", "ndcg10")
    for key in ("model_sha256", "baseline"):
        assert cut[-1]["training"][key] == whole[0]["training"][key]
    theirs, ours = (
        [{key: epoch[key] for key in got} for epoch in each["training"]["epochs"]]
        for each in (whole[0], cut[-1])
    )
    assert ours == theirs
    steps = [record["training"]["steps"] for record in cut if record["training"]]
    assert killed or sum(steps) == whole[0]["training"]["steps"], "none is done twice"


@pytest.mark.slow
def test_a_warned_run_is_requeued_and_goes_on_to_the_same_bits(user: User, tiny_data: Path) -> None:
    two = (TWO_NODES, "training.epochs=4")
    submits(user, tiny_data, *two)
    trains(user)
    (job,) = {each["slurm_job_id"] for each in records(user, "claim.json")}
    for _ in range(2):  # the second does no harm
        user.cluster.run("scancel", "--signal=USR2", job)
    eventually(lambda: len(of_first(user)) == 2)
    first = of_first(user)
    assert [each["outcome"] for each in first] == ["stopped", "stopped"]
    assert "put back into the queue, time 1 of 3" in first[0]["error"]["message"]
    submits(user, tiny_data, *two, name="whole")
    # On a busy machine the second may come so late that it is the next attempt which it stops.
    assert ends(user)["attempt"] in (2, 3)
    assert resumed(user)
    same_bits(user)


@pytest.mark.slow
def test_a_preempted_run_goes_on_to_the_same_bits(user: User, tiny_data: Path) -> None:
    (user.folder / "site.yaml").write_text("partition: short\n")
    submits(user, tiny_data, "resources.timeout_min=5")
    trains(user)
    every = ["--nodes=4", "--exclusive", "--time=1", "--partition=cpu", "--wrap=sleep 2"]
    user.cluster.run("sbatch", *every, "--output=/dev/null")
    eventually(lambda: len(of_first(user)) == 1)
    submits(user, tiny_data, "resources.timeout_min=5", name="whole")
    assert ends(user)["attempt"] == 2
    assert [each["outcome"] for each in records(user, "rank-0.json")] == ["stopped", "completed"]
    same_bits(user)


def test_the_bound_of_requeues_is_kept_and_said(user: User, tiny_data: Path) -> None:
    submits(user, tiny_data, "training.epochs=1000", "resources.requeues=0")
    trains(user)
    user.cluster.run("scancel", "--signal=USR2", user.runs()[0]["job_id"])
    (run,) = user.ends()
    assert run["state"] == "stopped"
    assert "not put back into the queue: resources.requeues 0" in run["reason"]


def ranks_of(user: User) -> list[psutil.Process]:
    """Slurm's tasks of this user's runs; srun's own command line holds the same words."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        if "submitit.core._submit" in words and "python" in words[0]:
            found += [process] if str(user.folder) in words[-1] else []
    return found


def test_of_a_killed_rank_the_others_say_at_once(user: User, tiny_data: Path) -> None:
    submits(user, tiny_data, "training.epochs=1000", "resources.tasks_per_node=2")
    trains(user)
    ranks = {rank.environ().get("SLURM_PROCID"): rank for rank in ranks_of(user)}
    os.kill(ranks["1"].pid, signal.SIGKILL)
    (run,) = user.ends()
    assert run["state"] == "failed"
    (left,) = records(user, "rank-*.json")
    assert (left["rank"], left["outcome"]) == (0, "failed")
    assert left["error"]["message"].startswith("another rank ended while this one waited for it")


def test_a_killed_batch_script_is_a_failure_and_retry_resumes(user: User, tiny_data: Path) -> None:
    # So many that it still trains when its first checkpoint has been seen, on a fast CPU, too.
    submits(user, tiny_data, "training.checkpoint_every_min=0.01", "training.epochs=48")
    saves(user)
    user.cluster.run("scancel", "--batch", "--signal=KILL", user.runs()[0]["job_id"])
    (run,) = user.ends()
    assert run["state"] in ("failed", "cancelled", "stopped")
    user.types("retry", "results/tiny", "--cluster", "slurm")
    assert ends(user)["attempt"] == 2
    assert resumed(user)


@pytest.mark.slow
def test_several_runs_in_one_task_go_on_where_they_were_stopped(
    user: User, tiny_data: Path
) -> None:
    grid = "grid: {training.lr: [0.001, 0.002, 0.003]}\n"
    several = ("resources.runs_per_task=3", "training.epochs=4")
    user.submits(JOB.format(name="tiny", data=tiny_data) + grid, *several)
    eventually(lambda: len(records(user, "claim.json")) >= 2)  # the second has begun
    trains(user)
    (job,) = {each["slurm_job_id"] for each in records(user, "claim.json")}
    user.cluster.run("scancel", "--signal=USR2", job)
    assert {run["state"] for run in user.ends()} == {"completed"}
    got = sorted((each["run_id"], each["attempt"]) for each in records(user, "rank-0.json"))
    assert len(got) in (4, 5), "one was stopped, in its start or later"
    assert len({run for run, _ in got}) == 3
    assert {each["slurm_job_id"] for each in records(user, "rank-0.json")} == {job}


@pytest.mark.slow
def test_at_its_own_limit_a_run_gives_way_and_at_the_tasks_limit_it_is_requeued(
    user: User,
) -> None:
    """By Slurm's own clock: two minutes for two runs, and its warning in the last half of one, when
    the second run has long begun."""
    (user.folder / "site.yaml").write_text("partition: cpu\nsignal_delay_s: 1\n")
    user.submits(sleeping(2), "resources.timeout_min=1", "resources.runs_per_task=2")
    eventually(lambda: len(records(user, "end.json")) == 1)
    (end,) = records(user, "end.json")
    assert end["reason"] == "timeout"
    eventually(lambda: len(records(user, "rank-0.json")) == 2)
    (second,) = [each for each in records(user, "rank-0.json") if each["run_id"] != end["run_id"]]
    assert "put back into the queue, time 1 of 3" in second["error"]["message"]
    eventually(lambda: 1 in [claim["slurm_restart"] for claim in records(user, "claim.json")])
