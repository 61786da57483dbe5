"""The test cluster itself: what it promises to the tests that stand on it."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from slurm import parts
from slurm.conftest import CLUSTER, Cluster, eventually, started

pytestmark = pytest.mark.slurm


def test_every_node_answers_and_one_has_a_gpu(cluster: Cluster) -> None:
    said = cluster.run("sinfo", "--noheader", "--Node", "--format=%N %c %G", "--partition=cpu")
    nodes = [f"node{number} 2 (null)" for number in (1, 2, 3)]
    assert said.split("\n") == [*nodes, "node4 2 gpu:1", ""]


def test_two_nodes_are_two_machines(cluster: Cluster) -> None:
    said = cluster.run("srun", "-N2", "-n4", "bash", "-c", "echo $SLURM_PROCID $(hostname) $$")
    rows = [line.split() for line in sorted(said.splitlines())]
    assert [(rank, node) for rank, node, _ in rows] == [
        ("0", "node1"),
        ("1", "node1"),
        ("2", "node2"),
        ("3", "node2"),
    ]
    assert all(int(pid) < 1000 for *_, pid in rows), "each node counts its processes from 1"


def test_a_gpu_is_given_as_slurm_gives_it(cluster: Cluster) -> None:
    asked = ["srun", "--partition=gpu", "--gpus-per-node=1"]
    assert (
        cluster.run(*asked, "bash", "-c", "echo $CUDA_VISIBLE_DEVICES $(hostname)") == "0 node4\n"
    )


def test_a_job_of_one_core_is_held_to_it(cluster: Cluster) -> None:
    assert cluster.run("srun", "-n1", "nproc") == "1\n"


def test_a_job_that_takes_more_memory_than_asked_is_killed(cluster: Cluster) -> None:
    if not json.loads((cluster.folder / "cluster.json").read_text())["cgroups"]:
        pytest.skip("this machine has no cgroup v1 to limit memory with")
    done = cluster.attempt("srun", "--mem=100", sys.executable, "-c", "bytearray(300 << 20)")
    assert done.returncode != 0
    assert "Out Of Memory" in done.stderr


def test_accounting_knows_what_ran(cluster: Cluster) -> None:
    said = cluster.run("sbatch", "--parsable", "--output=/dev/null", "--wrap=srun hostname")
    job = said.strip()
    asked = ["sacct", "-n", "-P", "-j", job, "--format=JobID,State,AllocCPUS"]
    wanted = {f"{job}|COMPLETED|1", f"{job}.0|COMPLETED|1"}
    eventually(20, lambda: wanted <= set(cluster.run(*asked).splitlines()))


def test_a_second_cluster_without_accounting_stands_beside_and_leaves_nothing(
    cluster: Cluster,
) -> None:
    before = traces()
    with started("--no-accounting") as second:
        assert len(second.run("srun", "-N2", "hostname").split()) == 2
        assert "disabled" in second.attempt("sacct").stderr
        assert len(cluster.run("srun", "-N2", "hostname").split()) == 2
        assert traces() > before
    assert traces() == before
    assert not second.folder.exists()


@pytest.mark.usefixtures("cluster")
def test_a_start_that_is_interrupted_leaves_nothing() -> None:
    before = traces()
    folder = Path(tempfile.mkdtemp(prefix="hpcncf-test-", dir="/tmp"))
    command = [sys.executable, CLUSTER, "start", "--no-accounting", "--dir", folder]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as starting:
        eventually(10, lambda: any(part.name == "node2" for part in parts.running(folder)))
        starting.terminate()
        starting.wait(timeout=30)
    assert starting.returncode == 128 + signal.SIGTERM
    assert traces() == before
    assert not folder.exists()


def traces() -> set[str]:
    """What clusters leave on a machine."""
    mounts = Path("/proc/mounts").read_text().splitlines()
    return {
        *(name for _, name in socket.if_nameindex() if name.startswith("hpc")),
        *map(str, Path("/sys/fs/cgroup").glob("*/hpcncf-*")),
        *(mount for mount in mounts if "hpcncf" in mount),
        *map(str, parts.running()),
    }
