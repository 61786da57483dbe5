"""Before it queues, on a real Slurm: what waits for ever, what nodes do not see, what changed."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from slurm.conftest import User, eventually

pytestmark = pytest.mark.slurm

JOB = """\
name: tiny
data: {{path: {data}}}
site: site.yaml
resources: {{mem_gb: 1, timeout_min: 5}}
training: {{epochs: 1, global_batch_size: 64}}
"""


def submitted(user: User, data: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """`hpcncf submit`, whatever comes of it."""
    (user.folder / "job.yaml").write_text(JOB.format(data=data))
    return user.attempt("submit", "job.yaml", "--cluster", "slurm", *words)


@pytest.mark.parametrize(
    ("site", "setting", "seen"),
    [
        ("partition: short", "resources.timeout_min=60", "partition short allows 5 min"),
        ("partition: cpu", "resources.nodes=9", "requests 9 nodes"),
        ("partition: gpu", "resources.gpus_per_node=4", "requests 4 GPUs on each node"),
        ("constraint: nope", "training.epochs=1", "the feature nope; partition cpu has 0 such"),
    ],
)
def test_what_would_wait_for_ever_is_refused_and_nothing_is_written(
    user: User, tiny_data: Path, site: str, setting: str, seen: str
) -> None:
    (user.folder / "site.yaml").write_text(f"{site}\n")
    done = submitted(user, tiny_data, "-s", setting)
    assert (done.returncode, done.stdout) == (2, "")
    assert seen in done.stderr
    assert not (user.folder / "results").exists()
    assert user.cluster.run("squeue", "--noheader") == ""


@pytest.mark.parametrize("key", ["qos", "account", "reservation"])
def test_names_that_slurm_does_not_know_are_refused_by_sbatch(
    user: User, tiny_data: Path, key: str
) -> None:
    (user.folder / "site.yaml").write_text(f"{key}: nope\n")
    done = submitted(user, tiny_data)
    assert (done.returncode, done.stdout) == (1, "")
    assert f"nvalid {key}" in done.stderr or f"{key} is invalid" in done.stderr
    assert [run["state"] for run in user.runs()] == ["failed"]


def test_slurm_itself_takes_what_can_never_start(user: User, tiny_data: Path) -> None:
    (user.folder / "site.yaml").write_text("partition: short\n")
    words = ["--no-preflight", "-s", "resources.timeout_min=60"]
    assert submitted(user, tiny_data, *words).returncode == 0
    reasons = lambda: user.cluster.run("squeue", "--noheader", "--format=%r")  # noqa: E731
    eventually(lambda: "PartitionTimeLimit" in reasons())


def test_shapes_that_fit_are_submitted_and_the_others_named(user: User, tiny_data: Path) -> None:
    (user.folder / "grid.yaml").write_text(
        JOB.format(data=tiny_data) + "grid: {resources.cpus_per_task: [1, 9]}\n"
    )
    done = user.attempt("submit", "grid.yaml", "--cluster", "slurm")
    assert "1 run submitted to Slurm" in done.stdout
    assert "left out: run " in done.stderr
    assert "requests 9 cores on each node" in done.stderr


def held(user: User) -> None:
    (user.folder / "site.yaml").write_text("additional_parameters: {hold: true}\n")


def release(user: User) -> None:
    (run,) = user.runs()
    user.cluster.run("scontrol", "release", run["job_id"].split("_")[0])


def test_a_job_whose_folder_was_exchanged_while_it_waited_does_not_start(
    user: User, tiny_data: Path
) -> None:
    held(user)
    assert submitted(user, tiny_data).returncode == 0
    (folder,) = user.folder.glob("results/tiny/slurm-*")
    folder.rename(folder.with_name("moved"))
    folder.symlink_to("moved")
    release(user)
    (run,) = user.ends()
    assert run["state"] == "failed"
    said = "".join(log.read_text() for log in folder.glob("*_log.err"))
    assert "is not this user's own folder any more: not started" in said
    assert user.records("claim.json") == []


def test_an_edit_between_submission_and_start_is_in_the_record(user: User) -> None:
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@example.org"]
    (user.folder / "train.py").write_text("print('hello')\n")
    (user.folder / ".gitignore").write_text("results\n")
    for words in (["init", "-q"], ["add", "train.py"], ["commit", "-qm", "first"]):
        subprocess.run([*git, *words], cwd=user.folder, check=True)
    held(user)
    user.submits(
        "name: mine\nsite: site.yaml\nworkload: {command: [python3, train.py]}\n"
        "resources: {mem_gb: 1, timeout_min: 10}\n"
    )
    (user.folder / "train.py").write_text("print('edited')\n")
    release(user)
    assert [run["state"] for run in user.ends()] == ["completed"]
    (rank,) = user.records("rank-*.json")
    (seen,) = [text for text in rank["warnings"] if "changed after this run was submitted" in text]
    assert f"the checkout ({user.folder}" in seen
