"""What a user does on a login node, on a real Slurm."""

from __future__ import annotations

import csv
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from hpcncf.job.spec import Resources
from hpcncf.slurm.site import Site
from hpcncf.slurm.submitit_parameters import parameters
from slurm.conftest import Cluster, User, eventually, started, user_of

pytestmark = pytest.mark.slurm

JOB = """\
name: tiny
data: {{path: {data}}}
site: site.yaml
resources: {{mem_gb: 1, timeout_min: 10}}
training: {{epochs: 1, global_batch_size: 64}}
"""


def states(runs: list[dict[str, Any]]) -> list[str]:
    """Each with its reason, where it needs one."""
    return [": ".join(filter(None, [run["state"], run["reason"]])) for run in runs]


def table(user: User, name: str) -> list[dict[str, str]]:
    with (user.folder / f"results/tiny/tables/{name}.csv").open(newline="") as lines:
        return list(csv.DictReader(lines))


def test_each_shape_of_resources_becomes_an_array_whose_cores_can_be_used(
    user: User, tiny_data: Path
) -> None:
    job = JOB.format(data=tiny_data)
    job += "grid: {resources.cpus_per_task: [1, 2], training.lr: [0.001, 0.002]}\n"
    user.submits(job)
    assert states(user.ends()) == ["completed"] * 4
    user.types("collect", "results/tiny")
    rows = table(user, "runs")
    assert {(row["state"], row["attempt"]) for row in rows} == {("completed", "1")}
    assert sorted(float(row["cores_usable"]) for row in rows) == [1, 1, 2, 2]
    arrays = {claim["slurm_job_id"].split("_")[0] for claim in user.records("claim.json")}
    assert len(arrays) == 2
    ranks = user.records("rank-*.json")
    assert {rank["launched_by"] for rank in ranks} == {"slurm"}
    for rank in ranks:
        cores = rank["cores"]
        assert cores["allocated"] == cores["usable"] == rank["training"]["threads"]
    assert "4 completed already" in user.submits(job)


def test_a_run_is_cancelled_and_its_core_free_again(user: User, tiny_data: Path) -> None:
    user.submits(JOB.format(data=tiny_data), "training.epochs=100000")
    (run,) = user.begins()
    user.types("cancel", run["id"])
    (run,) = user.ends()
    assert run["state"] == "cancelled"
    eventually(lambda: not user.cluster.run("squeue", "--noheader", "--me"))
    assert user.attempt("collect", "results/tiny").returncode == 3


def test_a_run_whose_data_the_node_does_not_see_fails_and_says_why(
    user: User, tiny_data: Path, tmp_path: Path
) -> None:
    data = shutil.copytree(tiny_data, tmp_path / "data")
    (tmp_path / "site.yaml").write_text(f"setup: ['mv {data} {data}.elsewhere']\n")
    user.submits(JOB.format(data=data))
    (run,) = user.ends()
    assert run["state"] == "failed"
    assert str(data) in run["reason"]
    assert str(data) in user.types("logs", run["id"])
    asked = ["sacct", "-n", "-X", "-j", run["job_id"], "--format=State"]
    eventually(lambda: "FAILED" in user.cluster.run(*asked))
    assert user.attempt("collect", "results/tiny").returncode == 3
    Path(f"{data}.elsewhere").rename(data)
    (user.folder / "site.yaml").write_text("partition: cpu\n")
    user.types("retry", "results/tiny", "--cluster", "slurm", "--wait")
    assert [(run["state"], run["attempt"]) for run in user.runs()] == [("completed", 2)]


def test_a_job_that_ends_before_its_ranks_start_is_a_failure(user: User, tiny_data: Path) -> None:
    (user.folder / "site.yaml").write_text("setup: ['exit 7']\n")
    user.submits(JOB.format(data=tiny_data))
    (run,) = user.ends()
    assert run["state"] == "failed"
    assert "7" in run["reason"]


def test_a_rank_that_is_killed_is_reported_at_once_and_submitted_again_to_another_node(
    user: User, tiny_data: Path
) -> None:
    """Its last words are fresh for two minutes; Slurm knows better."""
    user.submits(JOB.format(data=tiny_data), "training.epochs=100000")
    user.begins()
    (first,) = user.records("claim.json")
    ranks = rf"^[^ ]*python[^ ]* -P -u -m submitit.core._submit {user.folder}"
    subprocess.run(["pkill", "-KILL", "--full", ranks], check=True)
    (run,) = user.ends()
    assert (run["state"], user.records("rank-*.json")) == ("failed", [])
    assert "Slurm job" in run["reason"]
    elsewhere = {"node1": "node2"}.get(first["node"], "node1")
    (user.folder / "site.yaml").write_text(f"additional_parameters: {{nodelist: {elsewhere}}}\n")
    user.submits(JOB.format(data=tiny_data), "training.epochs=100000")
    assert user.runs()[0]["state"] in ("pending", "unknown", "running")
    eventually(lambda: len(user.records("claim.json")) == 2)
    user.waits(lambda states: states == ["running"])
    assert [claim["node"] for claim in user.records("claim.json")] == [first["node"], elsewhere]


def at_work(user: User) -> list[dict[str, Any]]:
    """The attempts' progress, once they train."""
    return [now for now in user.records("progress.json") if now["phase"] != "startup"]


@pytest.mark.slow
def test_a_requeued_run_goes_on_where_its_checkpoint_was(user: User, tiny_data: Path) -> None:
    user.submits(JOB.format(data=tiny_data), "training.epochs=100000")
    eventually(lambda: any(now["epoch"] >= 5 for now in at_work(user)))
    (run,) = user.runs()
    user.cluster.run("scontrol", "requeuehold", run["job_id"])
    held = ["squeue", "--noheader", "--format=%t", "-j", run["job_id"]]
    eventually(lambda: user.cluster.run(*held) == "PD\n")
    user.waits(lambda states: states == ["pending"])
    user.cluster.run("scontrol", "release", run["job_id"])
    # Slurm starts it again after some nine seconds, when the old step is surely gone.
    eventually(lambda: any(now["attempt"] == 2 for now in at_work(user)))
    assert user.records("progress.json")[1]["epoch"] >= 5
    first, second = user.records("claim.json")
    assert first["slurm_job_id"] == second["slurm_job_id"] == run["job_id"]


@pytest.mark.usefixtures("cluster")
def test_without_accounting_records_say_and_squeue_how_a_job_ended(
    tiny_data: Path, tmp_path: Path
) -> None:
    with started("--no-accounting") as cluster:
        user = user_of(cluster, tmp_path)
        user.submits(JOB.format(data=tiny_data))
        assert states(user.ends()) == ["completed"]
        user.types("collect", "results/tiny")
        (tmp_path / "site.yaml").write_text("setup: ['exit 7']\n")
        user.submits(JOB.format(data=tiny_data), "training.seed=2")
        eventually(lambda: not cluster.run("squeue", "--noheader"))
        (run,) = [run for run in user.runs() if not run["retired"]]
    assert run["state"] == "failed"  # squeue knows an ended job for five minutes
    assert "exit code 7" in run["reason"]


@pytest.mark.parametrize("binding", ["--cpu-bind=cores", "--exact"])
def test_the_srun_trap_takes_a_core_without_our_parameters(
    cluster: Cluster, tmp_path: Path, binding: str
) -> None:
    ours = parameters(Resources(cpus_per_task=2), Site(srun_args=[binding]), "trap")
    steps = [["srun", binding, "nproc"], ["srun", *ours["slurm_srun_args"], "nproc"]]
    script = "; ".join(shlex.join(step) for step in steps)
    job = ["sbatch", "--wait", "--nodes=1", "--ntasks=1", "--cpus-per-task=2"]
    cluster.run(*job, f"--output={tmp_path}/cores", f"--wrap={script}")
    version = cluster.run("srun", "--version").split()[1].rpartition(".")[0]
    trapped = version in ("22.05", "23.02")  # later ones learn it from sbatch's environment
    assert (tmp_path / "cores").read_text().split() == ["1" if trapped else "2", "2"]
