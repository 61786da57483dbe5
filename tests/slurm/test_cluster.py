"""The test cluster itself: what it promises to the tests that stand on it."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
from ipaddress import IPv4Network
from pathlib import Path

import pytest

from hpcncf.explain.conclude import FIELDS
from hpcncf.explain.read import read_text
from slurm import parts
from slurm.conftest import CLUSTER, PATIENCE_S, Cluster, User, eventually, started
from slurm.people import GROUP

pytestmark = pytest.mark.slurm


def test_every_node_answers_and_one_has_a_gpu(cluster: Cluster) -> None:
    said = cluster.run("sinfo", "--noheader", "--Node", "--format=%N %c %G", "--partition=cpu")
    nodes = [f"node{number} 2 (null)" for number in (1, 2, 3)]
    assert said.split("\n") == [*nodes, "node4 2 gpu:1", ""]


def test_two_nodes_are_two_machines(cluster: Cluster) -> None:
    spaces = "echo $SLURM_PROCID $(hostname) $(readlink /proc/self/ns/pid)"
    said = cluster.run("srun", "-N2", "-n4", "bash", "-c", spaces)
    rows = [line.split() for line in sorted(said.splitlines())]
    assert [rank for rank, *_ in rows] == ["0", "1", "2", "3"]
    machines = [(node, space) for _, node, space in rows]
    assert machines == [machines[0]] * 2 + [machines[2]] * 2
    assert len({node for node, _ in machines}) == 2
    assert len({space for _, space in machines}) == 2, "each node counts its own processes"


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
    eventually(lambda: wanted <= set(cluster.run(*asked).splitlines()))
    for form in ([], ["--long"], ["--long", "--parsable"], [f"--format={FIELDS}", "-P"]):
        (seen,) = read_text(cluster.run("sacct", "-j", job, *form))
        assert (seen.id, seen.state, seen.cores) == (job, "COMPLETED", 1), form
        assert (seen.elapsed_s is not None) == bool(form)


def test_a_node_that_crashed_boots_and_works_again(breakable: Cluster) -> None:
    breakable.crash("node1")
    assert not [part for part in parts.running(breakable.folder) if part.name == "node1"]
    breakable.boot("node1")
    assert breakable.run("srun", "-w", "node1", "hostname") == "node1\n"


def test_a_job_outlives_its_nodes_slurmd(breakable: Cluster, tmp_path: Path) -> None:
    script = "touch began; until [ -e go ]; do sleep 0.1; done; touch done"
    asked = ["sbatch", "--parsable", "-w", "node2", "--output=/dev/null", f"--wrap={script}"]
    job = breakable.run(*asked, cwd=tmp_path).strip()
    eventually((tmp_path / "began").exists)
    breakable.kill_slurmd("node2")
    (tmp_path / "go").touch()
    eventually((tmp_path / "done").exists)
    breakable.start_slurmd("node2")
    eventually(lambda: not breakable.run("squeue", "--noheader", "-j", job))


def test_an_unplugged_node_is_not_reached_until_it_is_plugged_in(breakable: Cluster) -> None:
    subnet = json.loads((breakable.folder / "cluster.json").read_text())["subnet"]
    slurmd = (str(IPv4Network(subnet)[12]), 6818)

    def reached() -> bool:
        with socket.socket() as asking:
            asking.settimeout(1)
            return asking.connect_ex(slurmd) == 0

    breakable.net_down("node3")
    assert not reached()
    breakable.net_up("node3")
    eventually(reached)


def test_jobs_go_on_while_the_controller_is_away_and_the_accounting_learns_it_later(
    breakable: Cluster, tmp_path: Path
) -> None:
    line = f"--wrap=touch {tmp_path}/began; sleep 3"
    job = breakable.run("sbatch", "--parsable", "--output=/dev/null", line).strip()
    eventually((tmp_path / "began").exists)
    breakable.dbd("stop")
    breakable.slurmctld("restart")
    eventually(lambda: not breakable.run("squeue", "--noheader"))
    assert breakable.attempt("sacct").returncode != 0
    breakable.dbd("start")
    asked = ["sacct", "-n", "-X", "-j", job, "--format=State"]
    eventually(lambda: "COMPLETED" in breakable.run(*asked))


def test_two_people_share_a_folder_and_cannot_end_each_others_jobs(people: list[User]) -> None:
    ada, ben = people
    assert ada.shell("id", "-un").stdout == "ada\n"
    job = ["sbatch", "--parsable", "--output=from-%u", "--wrap=id -un; sleep 600"]
    said = ada.shell(*job).stdout.strip()
    eventually(lambda: (ada.folder / "from-ada").exists())
    assert "denied" in ben.shell("scancel", said).stderr
    assert ben.shell("cp", "from-ada", "from-ben").returncode == 0
    assert (ben.folder / "from-ben").stat().st_gid == ada.folder.stat().st_gid == GROUP[1]
    assert ada.attempt("--version").stdout.startswith("hpcncf")


def test_a_quality_of_service_takes_few_jobs(cluster: Cluster) -> None:
    job = ["sbatch", "--qos=few", "--output=/dev/null", "--array=0-4", "--wrap=true"]
    assert "QOSMaxSubmitJobPerUserLimit" in cluster.attempt(*job).stderr


def test_a_second_cluster_without_accounting_stands_beside_and_leaves_nothing(
    cluster: Cluster,
) -> None:
    with started("--no-accounting", "--cpus", "4", "--max-array-size", "5") as second:
        tag = tag_of(second.folder)
        assert len(second.run("srun", "-N2", "hostname").split()) == 2
        assert "disabled" in second.attempt("sacct").stderr
        assert len(second.run("srun", "-N1", "-n4", "hostname").split()) == 4
        assert "Invalid job array" in second.attempt("sbatch", "-a5", "--wrap=true").stderr
        assert len(cluster.run("srun", "-N2", "hostname").split()) == 2
        assert traces(second.folder, tag)
    assert not traces(second.folder, tag)
    assert not second.folder.exists()


@pytest.mark.usefixtures("cluster")
def test_a_start_that_is_interrupted_leaves_nothing(tmp_path: Path) -> None:
    mute = tmp_path / "sinfo"  # so that no machine is fast enough to end the start before
    mute.write_text("#!/bin/sh\nexit 1\n")
    mute.chmod(0o755)
    folder = Path(tempfile.mkdtemp(prefix="hpcncf-test-", dir="/tmp"))
    command = [sys.executable, CLUSTER, "start", "--no-accounting", "--dir", folder]
    environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, env=environment) as starting:
        eventually(lambda: any(part.name == "node1" for part in parts.running(folder)))
        tag = tag_of(folder)
        starting.terminate()
        starting.wait(timeout=PATIENCE_S)
    assert starting.returncode == 128 + signal.SIGTERM
    assert not traces(folder, tag)
    assert not folder.exists()


# A process of one thread, as cluster.py is: only there does nobody else take the signal.
INTERRUPTED = """
import os, signal, sys, time
from pathlib import Path

import parts


def interrupt():
    os.kill(os.getppid(), signal.SIGTERM)
    time.sleep(0.5)  # the part is still what it was forked from


folder = Path(sys.argv[1])
signal.signal(signal.SIGTERM, signal.default_int_handler)
try:
    parts.start(folder, "sleeper", ["sleep", "600"], before=interrupt)
except KeyboardInterrupt:
    print("interrupted:", *{part.name for part in parts.running(folder)})
"""


@pytest.mark.usefixtures("cluster")
def test_a_part_is_found_however_early_its_start_is_interrupted(tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    try:
        done = subprocess.run(
            [sys.executable, "-c", INTERRUPTED, tmp_path],
            cwd=CLUSTER.parent, capture_output=True, text=True, check=False,
        )  # fmt: skip
    finally:
        parts.kill(tmp_path)
    assert done.stdout == "interrupted: sleeper\n", done.stderr


def tag_of(folder: Path) -> str:
    """What its bridge and its groups are named after."""
    text = (folder / "etc/slurm.conf").read_text()
    (tag,) = re.findall("^ClusterName=hpc(.+)$", text, re.M)
    return str(tag)


def traces(folder: Path, tag: str) -> set[str]:
    """What a cluster leaves on a machine, on which another worker's may start and end as well."""
    mounts = Path("/proc/mounts").read_text().splitlines()
    return {
        *(name for _, name in socket.if_nameindex() if name.startswith(f"hpc{tag}")),
        *map(str, Path("/sys/fs/cgroup").glob(f"*/hpcncf-{tag}")),
        *(mount for mount in mounts if str(folder) in mount),
        *map(str, parts.running(folder)),
    }
