"""torchrun as the task of a node: what starts it, and how its ranks share the task's cores."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from hpcncf.job.plan import Run
from hpcncf.job.spec import Resources
from hpcncf.worker import task
from hpcncf.worker.environment import Place
from hpcncf.worker.rendezvous import listening, meeting_of_run

STEP = {
    "SLURM_JOB_ID": "7",
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "0",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "0",
    "SLURM_STEP_NUM_TASKS": "1",
    "SLURM_STEP_NUM_NODES": "1",
}


def a_run(resources: Resources) -> Run:
    return Run(
        id="abc",
        repeat=0,
        varied={},
        workload="ncf",
        resources=resources,
        data=None,
        data_key=None,
        model=None,
        training=None,
    )


def option(command: list[str], name: str) -> str:
    return command[command.index(name) + 1]


def test_one_node_needs_nobody_to_agree_with() -> None:
    run = a_run(Resources(tasks_per_node=2, launcher="torchrun"))
    command = task.command(run, ["hpcncf.worker", "results", "--run-id", "abc"], STEP)
    assert option(command, "--nnodes") == "1"
    assert option(command, "--nproc-per-node") == "2"
    assert option(command, "--node-rank") == "0"
    assert option(command, "--master-addr") == "127.0.0.1"
    assert command[-5:] == ["-m", "hpcncf.worker", "results", "--run-id", "abc"]


def test_the_nodes_agree_on_a_port_that_is_free() -> None:
    """Two nodes of a cluster where every node is this machine."""
    two = STEP | {"SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_NUM_NODES": "2"}
    two |= {"SLURM_STEP_NODELIST": "localhost,127.0.0.1", "SLURM_STEP_TASKS_PER_NODE": "1(x2)"}
    run = a_run(Resources(nodes=2, tasks_per_node=2, launcher="torchrun"))
    ports = meeting_of_run("abc torchrun", two).ports
    with listening("", [ports[8]]):  # somebody else's
        commands: list[list[str]] = []

        def start(node: str) -> None:
            env = two | {"SLURM_PROCID": node, "SLURM_NODEID": node}
            commands.append(task.command(run, ["hpcncf.worker"], env))

        threads = [threading.Thread(target=start, args=(node,)) for node in "10"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    assert sorted(option(command, "--node-rank") for command in commands) == ["0", "1"]
    assert {option(command, "--master-port") for command in commands} == {str(ports[9])}


@pytest.mark.parametrize(
    ("usable", "shares"),
    [
        ([0, 1, 2, 3], [[0, 1], [2, 3]]),
        ([4, 9, 11], [[4], [9]]),
        ([5], [[5], [5]]),  # the srun trap: they share what there is
    ],
)
def test_ranks_share_their_tasks_cpus_evenly(usable: list[int], shares: list[list[int]]) -> None:
    ranks = [Place(rank, rank, 2, 2) for rank in (0, 1)]
    assert [task.own_cpus(usable, rank) for rank in ranks] == shares


def test_only_torchruns_ranks_in_a_step_bind_themselves() -> None:
    before = os.sched_getaffinity(0)
    task.bind({"SLURM_STEP_ID": "0"})
    task.bind({"TORCHELASTIC_RUN_ID": "x"})
    assert os.sched_getaffinity(0) == before


CHILD = "import time; open('{file}', 'w').close(); time.sleep(600)"
AGENT = """
import signal, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", {child!r}], preexec_fn=lambda:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGUSR2]))
print(child.wait(), flush=True)
"""


def test_a_warning_reaches_the_ranks_and_leaves_torchrun_alone(tmp_path: Path) -> None:
    child = CHILD.format(file=tmp_path / "started")
    agent = subprocess.Popen(
        [sys.executable, "-c", AGENT.format(child=child)],
        stdout=subprocess.PIPE,
        preexec_fn=task.prepare,
    )
    while not (tmp_path / "started").exists():
        assert agent.poll() is None
    os.kill(agent.pid, signal.SIGUSR2)  # as Slurm may
    task.pass_on(agent, signal.SIGUSR2)
    said, _ = agent.communicate(timeout=120)
    assert (agent.returncode, said.strip()) == (0, str(-signal.SIGUSR2).encode())
