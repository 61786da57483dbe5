"""Sites and plain scripts on a real Slurm: what is asked for, what is sent, what stays a value."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from slurm.conftest import Cluster, User, eventually, user_of

pytestmark = pytest.mark.slurm

JOB = """\
name: tiny
data: {{path: {data}}}
site: ./site.yaml
resources: {{mem_gb: 1, timeout_min: 15}}
training: {{device: cpu, epochs: 1, global_batch_size: 64, max_steps: 5, evaluation: none}}
"""
GREETING = 'it\'s $(touch pwned) `touch pwned`\n#SBATCH --hold\n"two" words \\ # no comment'
# The container is a shell that notes what the rank is given, then becomes its Python.
NOTING = """sh -c 'env -0 > "of the rank"; exec "$@"' sh"""


def runs(user: User) -> dict[str, list[dict[str, Any]]]:
    """Folder of results -> its runs."""
    jobs = json.loads(user.types("status", "--json"))["jobs"]
    return {Path(job["results"]).name: job["runs"] for job in jobs}


def ranks(results: Path) -> list[dict[str, Any]]:
    found = sorted(results.glob("runs/*/attempt-*/rank-*.json"))
    return [json.loads(path.read_text()) for path in found]


def test_a_hostile_site_folder_and_shell_leave_the_job_as_it_was_asked_for(
    cluster: Cluster, tmp_path: Path, tiny_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "it's $(touch pwned) here; #no"
    folder.mkdir()
    user = user_of(cluster, folder)
    site = {
        "partition": "cpu",
        "memory": "mem_per_cpu",
        "venv": sys.prefix,
        "container": NOTING,
        "setup": ["touch 'set up'"],
        "teardown": ["touch 'torn down'"],
        "environment": {"GREETING": GREETING},
        "srun_args": ["--cpu-bind=cores"],
        "additional_parameters": {"comment": 'it\'s $(touch pwned) "x" #c', "no-requeue": True},
        "mail_user": "nobody; touch pwned",
        "mail_type": ["END"],
    }
    (folder / "site.yaml").write_text(json.dumps(site))  # JSON is YAML
    (folder / "job.yaml").write_text(JOB.format(data=tiny_data))
    printed = user.types("plan", "job.yaml", "--sbatch")
    leaked = {"RANK": "3", "WORLD_SIZE": "4", "MASTER_ADDR": "nowhere", "SLURM_CPU_BIND": "none"}
    leaked |= {"SRUN_CPUS_PER_TASK": "7", "HPCNCF_ATTEMPT": "9", "SLURM_MEM_PER_NODE": "1"}
    for name, value in leaked.items():
        monkeypatch.setenv(name, value)
    user.types("submit", "job.yaml", "--cluster", "slurm")
    (run,) = user.ends()
    assert run["state"] == "completed", run
    (script,) = folder.glob("results/tiny/slurm-*/*_submission.sh")
    assert script.read_text() == printed
    given = dict(
        each.split("=", 1) for each in (folder / "of the rank").read_text().split("\0") if each
    )
    assert given["GREETING"] == GREETING
    assert {name for name in leaked if given.get(name) == leaked[name]} == set()
    shown = cluster.run("scontrol", "show", "job", run["job_id"])
    assert f"Comment={site['additional_parameters']['comment']}" in shown  # type: ignore[index]
    assert "MinMemoryCPU=1G" in shown
    eventually(lambda: (folder / "torn down").exists())
    assert (folder / "set up").exists()
    assert list(tmp_path.rglob("pwned")) == []


def test_a_submission_from_inside_of_another_job_is_no_part_of_it(
    user: User, tiny_data: Path
) -> None:
    """Its shell has that job's memory, binding and steps; sbatch hands all of it on."""
    (user.folder / "site.yaml").write_text("partition: cpu\nmemory: none\n")
    (user.folder / "job.yaml").write_text(JOB.format(data=tiny_data))
    submit = [*user.hpcncf, "submit", "job.yaml", "--cluster", "slurm"]
    submit += ["-s", "resources.tasks_per_node=2", "-s", "grid={}"]
    outer = ["srun", "--ntasks=1", "--mem=400M", "--cpu-bind=cores", "--exact", "--time=10"]
    user.cluster.run(*outer, *submit, cwd=user.folder)
    (run,) = user.ends()
    assert run["state"] == "completed", run
    ranks = user.records("rank-*.json")
    assert [(rank["rank"], rank["cores"]["usable"]) for rank in ranks] == [(0, 1), (1, 1)]


BY_HAND: dict[str, list[str]] = {
    "one_run": [],
    "array": ["repeats=2"],
    "ranks_srun": ["resources.nodes=2", "resources.tasks_per_node=2"],
    "ranks_torchrun": [
        *("resources.nodes=2", "resources.tasks_per_node=2"),
        "resources.launcher=torchrun",
    ],
    "gpus": ["site=./gpu.yaml", "resources.gpus_per_node=1", "resources.cpus_per_task=2"],
}


@pytest.mark.slow
def test_plain_scripts_leave_the_records_that_submitted_jobs_leave(
    cluster: Cluster, tmp_path: Path, tiny_data: Path
) -> None:
    folder = tmp_path / "it's $(touch pwned) by hand"
    folder.mkdir()
    user = user_of(cluster, folder)
    (folder / "gpu.yaml").write_text("partition: gpu\nmemory: mem_per_gpu\n")
    (folder / "my job.yaml").write_text(JOB.format(data=tiny_data))
    for name, settings in BY_HAND.items():
        given = [word for setting in settings for word in ("-s", setting)]
        asked = ["--results", f"results/{name}", *given, "--by-hand"]
        (folder / f"{name}.sbatch").write_text(user.types("plan", "my job.yaml", *asked))
        cluster.run("sbatch", f"{name}.sbatch", cwd=folder)
    ours = ["squeue", "--me", "--noheader", "--name=tiny"]
    eventually(lambda: not cluster.run(*ours))
    logs = "".join(log.read_text() for log in sorted(folder.glob("*.out")))
    found = runs(user)
    for name in BY_HAND:
        states = {run["state"] for run in found[name]}
        assert states == {"completed"}, f"{name}: {found[name]}\n{logs}"
        user.types("collect", f"results/{name}")
    of = {name: ranks(folder / f"results/{name}") for name in BY_HAND}
    assert [len(of[name]) for name in BY_HAND] == [1, 2, 4, 4, 1]
    by = {name: {record["launched_by"] for record in of[name]} for name in BY_HAND}
    assert by.pop("ranks_torchrun") == {"torchrun"}
    assert set.union(*by.values()) == {"slurm"}
    assert of["gpus"][0]["cores"]["usable"] == 2
    assert list(tmp_path.rglob("pwned")) == []
