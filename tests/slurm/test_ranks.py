"""Ranks over nodes on a real Slurm: how they meet, on what, and which cores they have."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from slurm.conftest import User, eventually

pytestmark = pytest.mark.slurm

JOB = """\
name: tiny
data: {{path: {data}}}
site: site.yaml
resources: {{mem_gb: 1, timeout_min: 10}}
training: {{epochs: {epochs}, global_batch_size: 64}}
"""


def completed(user: User, data: Path, *settings: str) -> list[dict[str, Any]]:
    """The records of the only run's ranks."""
    user.submits(JOB.format(data=data, epochs=1), *settings)
    runs = user.ends()
    assert [run["state"] for run in runs] == ["completed"], runs
    return user.records("rank-*.json")


def shape(records: list[dict[str, Any]]) -> list[tuple[int, int, int]]:
    return [(each["rank"], each["node_index"], each["local_rank"]) for each in records]


def test_torchruns_ranks_leave_the_records_that_sruns_leave(user: User, tiny_data: Path) -> None:
    grid = "grid: {resources.launcher: [srun, torchrun]}\n"
    user.submits(JOB.format(data=tiny_data, epochs=1) + grid,
                 "resources.nodes=2", "resources.tasks_per_node=2")  # fmt: skip
    assert [run["state"] for run in user.ends()] == ["completed"] * 2
    ranks = user.records("rank-*.json")
    one, other = ranks[:4], ranks[4:]
    assert {each["run"]["resources"].get("launcher", "srun") for each in (one[0], other[0])} == {
        "srun", "torchrun"
    }  # fmt: skip
    assert shape(one) == shape(other) == [(0, 0, 0), (1, 0, 1), (2, 1, 0), (3, 1, 1)]
    for first, second in zip(one, other, strict=True):
        for key in ("launched_by", "outcome", "world_size"):
            assert first[key] == second[key]
        for key in ("allocated", "usable", "cpus"):
            assert first["cores"][key] == second["cores"][key]
        assert first["training"]["model_sha256"] == second["training"]["model_sha256"]
        assert first["training"]["threads"] == second["training"]["threads"] == 1
    assert len({rank["node"] for rank in one}) == 2
    assert len({rank["training"]["model_sha256"] for rank in ranks}) == 1
    assert {rank["cores"]["allocated"] for rank in ranks} == {1}


def test_torchruns_ranks_hear_slurms_warning(user: User, tiny_data: Path) -> None:
    user.submits(JOB.format(data=tiny_data, epochs=100_000), "resources.tasks_per_node=2",
                 "resources.launcher=torchrun", "resources.requeues=0")  # fmt: skip
    eventually(lambda: any(p["phase"] != "startup" for p in user.records("progress.json")))
    user.cluster.run("scancel", "--signal=USR2", user.runs()[0]["job_id"])
    [run] = user.ends()
    assert run["state"] == "stopped"
    assert [rank["outcome"] for rank in user.records("rank-*.json")] == ["stopped"] * 2


def test_a_step_that_is_bound_to_fewer_cores_says_so_everywhere(
    user: User, tiny_data: Path
) -> None:
    site = "partition: cpu\nsrun_args: ['--cpu-bind=mask_cpu:0x1']\n"
    (user.folder / "site.yaml").write_text(site)
    [rank] = completed(user, tiny_data, "resources.cpus_per_task=2")
    assert (rank["cores"]["allocated"], rank["cores"]["usable"]) == (2, 1)
    assert rank["training"]["threads"] == 1
    seen = "only 1 of 2 allocated cores could be used"
    assert any(seen in warning and "--cpu-bind" in warning for warning in rank["warnings"])
    logs = [log.read_text() for log in user.folder.glob("results/*/slurm-*/*.err")]
    assert any(f"WARNING: rank 0: {seen}" in log for log in logs)
    assert "only 1 of 2 allocated cores" in user.types("status", "results/tiny")
    user.types("collect", "results/tiny")
    with (user.folder / "results/tiny/tables/runs.csv").open(newline="") as lines:
        [row] = csv.DictReader(lines)
    assert (row["cores_allocated"], row["cores_usable"]) == ("2.0", "1.0")


@pytest.mark.parametrize("binding", ["--exact", "--cpu-bind=cores"])
def test_an_srun_without_its_cores_is_reported_by_the_rank(
    user: User, tiny_data: Path, binding: str
) -> None:
    """As someone writes it by hand; Slurm 22.05 and 23.02 walk into the trap."""
    (user.folder / "site.yaml").write_text("additional_parameters: {hold: true}\n")
    user.submits(JOB.format(data=tiny_data, epochs=1), "resources.cpus_per_task=2")
    user.cluster.run("scancel", "--me")
    python = sys.executable
    [run] = user.runs()
    worker = f"{python} -m hpcncf.worker results/tiny --run-id {run['id']} --again"
    job = ["sbatch", "--partition=cpu", "--ntasks=1", "--cpus-per-task=2"]
    user.cluster.run(*job, f"--output={user.folder}/log", f"--wrap=srun {binding} {worker}",
                     cwd=user.folder)  # fmt: skip
    user.ends()
    (rank,) = user.records("rank-*.json")
    assert (rank["outcome"], rank["cores"]["allocated"]) == ("completed", 2)
    version = user.cluster.run("srun", "--version").split()[1].rpartition(".")[0]
    trapped = version in ("22.05", "23.02")
    assert ("WARNING: rank 0: only 1 of 2" in (user.folder / "log").read_text()) == trapped


@contextmanager
def in_nodes(user: User, script: str, undo: str) -> Iterator[None]:
    """A shell line in the namespaces of each node, as its root; `$NODE` is its name."""
    try:
        _each_node(user, script)
        yield
    finally:
        _each_node(user, undo)


def _each_node(user: User, script: str) -> None:
    folder = str(user.cluster.folder)
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        if len(words) > 3 and words[1].endswith("node.py") and words[2] == folder:
            enter = ["nsenter", "--target", str(process.pid), "--mount", "--net", "--uts"]
            files = {"SCRATCH": f"{folder}/{words[3]}.hosts", "HOSTS": f"{folder}/etc/hosts"}
            environment = os.environ | files | {"NODE": words[3]}
            subprocess.run([*enter, "sh", "-ec", script], check=True, env=environment)


# Debian calls a host 127.0.1.1 in its own list; and a second interface that leads nowhere.
ODD = """
sed "s/^[0-9.]* $NODE$/127.0.1.1 $NODE/" /etc/hosts > $SCRATCH
mount --bind $SCRATCH /etc/hosts
ip link add aside type veth peer name beside
ip addr add 10.127.77.7/24 dev aside
ip link set aside up
"""
EVEN = "cat $HOSTS > $SCRATCH; ip link delete aside"


def test_a_host_that_is_127_0_1_1_to_itself_and_a_second_network_do_not_matter(
    user: User, tiny_data: Path
) -> None:
    with in_nodes(user, ODD, EVEN):
        assert len(completed(user, tiny_data, "resources.nodes=2")) == 2


def listening(user: User) -> set[str]:
    """The addresses, in hexadecimal, that Python on the cluster's nodes listens on."""
    found: set[str] = set()
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        ours = words and "python" in words[0]  # srun has all of these words, too
        if ours and "submitit.core._submit" in words and str(user.folder) in " ".join(words):
            found |= _listening(process.pid)
    return found


def _listening(pid: int) -> set[str]:
    proc = Path(f"/proc/{pid}")
    sockets = set()
    for each in (proc / "fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            sockets.add(str(each.readlink()))
    rows = [
        line.split()
        for name in ("tcp", "tcp6")
        for line in (proc / "net" / name).read_text().splitlines()[1:]
    ]
    return {row[1].split(":")[0] for row in rows if row[3] == "0A" and
            f"socket:[{row[9]}]" in sockets}  # fmt: skip


def test_ranks_over_nodes_listen_on_the_jobs_interface_alone(user: User, tiny_data: Path) -> None:
    user.submits(JOB.format(data=tiny_data, epochs=100_000), "resources.nodes=2")
    eventually(lambda: any(p["phase"] != "startup" for p in user.records("progress.json")))
    nodes = dict(
        line.split()[::-1] for line in (user.cluster.folder / "etc/hosts").read_text().splitlines()
    )
    jobs_own = {
        bytes(int(part) for part in reversed(nodes[name].split("."))).hex().upper()
        for name in ("node1", "node2", "node3", "node4")
    }
    heard = listening(user)
    assert len(heard) == 2
    assert heard <= jobs_own


def test_two_runs_on_the_same_nodes_at_once_meet_their_own_ranks(
    user: User, tiny_data: Path
) -> None:
    grid = "grid: {training.seed: [1, 2]}\n"
    (user.folder / "site.yaml").write_text(
        "partition: cpu\nadditional_parameters: {nodelist: 'node[1-2]'}\n"
    )
    user.submits(JOB.format(data=tiny_data, epochs=3) + grid, "resources.nodes=2")
    assert [run["state"] for run in user.ends()] == ["completed"] * 2
    ranks = user.records("rank-*.json")
    digests = [rank["training"]["model_sha256"] for rank in ranks]
    assert digests[0] == digests[1] != digests[2] == digests[3]
