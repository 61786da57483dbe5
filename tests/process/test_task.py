"""A Slurm task: several runs one after another or side by side, and torchrun on a node."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from conftest import within
from make_runs import tiny

from hpcncf.job.load import build_plan, load_job
from hpcncf.job.plan import Run
from hpcncf.job.spec import Resources
from hpcncf.launcher.environment import Place
from hpcncf.launcher.rendezvous import listening, meeting_of_run
from hpcncf.monitor.cgroup import usable_cpus
from hpcncf.paths import ResultPaths
from hpcncf.records.plan_file import record_plan
from hpcncf.records.schema import End, RankRecord, read_record
from hpcncf.records.submissions import begin, cancel
from hpcncf.worker import task

# What waits ends when it is asked to, and at once when its job is started again.
PROGRAM = """\
import os, pathlib, signal, sys, time
for number in (signal.SIGUSR2, signal.SIGTERM):
    signal.signal(number, lambda *_: sys.exit(0))
kind = sys.argv[1]
print("I am one that", kind)
pathlib.Path(os.environ["HPCNCF_OUTPUT"], "begun").touch()
if kind == "fails":
    sys.exit(3)
while kind != "ends" and "SLURM_RESTART_COUNT" not in os.environ:
    time.sleep(0.05)
"""
COMMANDS = """\
name: several
workload: {{command: [{python}, program.py, "{{kind}}"]}}
parameters: {{kind: ends}}
resources: {{{resources}}}
grid: {{parameters.kind: [{kinds}]}}
"""
TRAINING = "name: several\ndata: {{path: {data}}}\ntraining: {{threads: 1, epochs: 1}}\n"
WORK = """\
import json, sys
from hpcncf.worker import task
task.work(sys.argv[1], json.loads(sys.argv[2]), False, {})
"""
ONE_AFTER_ANOTHER = "runs_per_task: 3"
SIDE_BY_SIDE = pytest.param(
    "runs_per_node: 2",
    marks=pytest.mark.skipif(len(usable_cpus()) < 2, reason="two runs want a core each"),
)
ways = pytest.mark.parametrize("resources", [ONE_AFTER_ANOTHER, SIDE_BY_SIDE])


class Task:
    """The runs of a job as one task of a Slurm step, with a scontrol that notes its calls."""

    def __init__(self, folder: Path, job: str) -> None:
        self.folder, self.paths = folder, ResultPaths(folder / "results")
        (folder / "program.py").write_text(PROGRAM)
        (folder / "several.yaml").write_text(job)
        loaded = load_job(folder / "several.yaml")
        self.runs = build_plan(loaded, folder / "several.yaml").runs
        record_plan(self.paths, loaded, build_plan(loaded, folder / "several.yaml"))

    def start(self, restart: int = 0, code: str = WORK) -> subprocess.Popen[bytes]:
        scontrol = self.folder / "bin/scontrol"
        scontrol.parent.mkdir(exist_ok=True)
        scontrol.write_text(f'#!/bin/sh\necho "$*" >> {self.folder}/calls\n')
        scontrol.chmod(0o755)
        known = {"SLURM_JOB_ID": "9", "SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0"}
        known |= {"SLURM_LOCALID": "0", "SLURM_STEP_ID": "0", "HPCNCF_LAUNCHED_BY": "slurm"}
        known |= {"SLURM_CPUS_PER_TASK": "2", "SLURM_JOB_CPUS_PER_NODE": str(len(usable_cpus()))}
        known |= {"SLURM_RESTART_COUNT": str(restart)} if restart else {}
        known["PATH"] = f"{scontrol.parent}:{os.environ['PATH']}"
        ids = json.dumps([run.id for run in self.runs])
        words = [sys.executable, "-c", code, str(self.paths.folder), ids]
        return subprocess.Popen(words, env=os.environ | known)

    def begun(self, *runs: Run) -> bool:
        """Whether the program of each of these runs is at work."""
        return all((self.paths.run(run.id).attempt(1).output / "begun").exists() for run in runs)

    def left(self, run: Run) -> list[RankRecord]:
        """The records of its attempts."""
        return [
            read_record(path, RankRecord)
            for attempt in self.paths.run(run.id).attempts()
            for path in attempt.rank_records()
        ]


def commands(folder: Path, resources: str, *kinds: str) -> Task:
    """A task of commands, which need no torch, in this order."""
    job = COMMANDS.format(python=sys.executable, resources=resources, kinds=", ".join(kinds))
    made = Task(folder, job)
    made.runs.sort(key=lambda run: kinds.index(run.varied["parameters.kind"]))
    return made


@ways
def test_one_that_fails_or_is_cancelled_ends_no_other(tmp_path: Path, resources: str) -> None:
    made = commands(tmp_path, resources, "fails", "waits", "ends")
    begin(made.paths, "slurm", [run.id for run in made.runs], again=False)
    process = made.start()
    waiting = made.runs[1]
    assert within(120, lambda: made.begun(waiting))
    cancel(made.paths, [waiting.id])
    assert process.wait(timeout=120) == 3
    (failed,), (cancelled,), (done,) = (made.left(run) for run in made.runs)
    assert (failed.outcome, done.outcome) == ("failed", "completed")
    assert len({failed.pid, cancelled.pid, done.pid, process.pid}) == 4
    attempt = made.paths.run(waiting.id).attempt(1)
    assert read_record(attempt.end, End).reason == "cancelled"
    assert (done.launched_by, done.slurm_job_id) == ("slurm", "9")
    if resources == ONE_AFTER_ANOTHER:
        return
    assert [len(each.cores.cpus) for each in (failed, cancelled)] == [1, 1]
    assert failed.cores.cpus != cancelled.cores.cpus
    assert failed.cores.allocated == 1
    assert sorted(failed.packed.runs) == sorted(run.id for run in made.runs[:2])
    assert attempt.log(0).read_text().startswith("I am one that waits\n")
    assert read_record(made.paths.run(failed.run_id).attempt(1).end, End).exit_codes == [3]


@ways
def test_warned_they_stop_the_job_is_put_back_once_and_they_go_on(
    tmp_path: Path, resources: str
) -> None:
    made = commands(tmp_path, resources, "waits", "rests")
    at_work = made.runs[:1] if resources == ONE_AFTER_ANOTHER else made.runs
    first = made.start()
    assert within(120, lambda: made.begun(*at_work))
    first.send_signal(signal.SIGUSR2)
    assert first.wait(timeout=120) == 128 + signal.SIGUSR2
    left = [made.left(run) for run in made.runs]
    assert [len(each) for each in left] == [run in at_work for run in made.runs]
    assert left[0][0].error["message"].endswith("; put back into the queue, time 1 of 3")
    assert (tmp_path / "calls").read_text() == "requeue 9\n"
    assert made.start(restart=1).wait(timeout=120) == 0
    for run in made.runs:
        outcomes = ["stopped", "completed"][run not in at_work :]
        assert [record.outcome for record in made.left(run)] == outcomes


# The signal comes behind the last run.
WARNED_LATE = """\
import json, os, signal, sys
from hpcncf.worker import task
run_it = task._OneAfterAnother._run
def warned(*given):
    code = run_it(*given)
    os.kill(os.getpid(), signal.SIGUSR2)
    return code
task._OneAfterAnother._run = warned
task.work(sys.argv[1], json.loads(sys.argv[2]) * 2, False, {})
"""


def test_a_task_with_nothing_left_to_do_is_not_put_back(tmp_path: Path) -> None:
    assert commands(tmp_path, ONE_AFTER_ANOTHER, "ends").start(code=WARNED_LATE).wait(120) == 0
    assert not (tmp_path / "calls").exists()


BY_HAND = "import sys\nfrom hpcncf.worker.__main__ import main\nmain([sys.argv[1]])\n"


def test_a_warning_that_comes_when_all_is_done_makes_no_failure_of_it(tmp_path: Path) -> None:
    """While Python ends, a signal that it handled would kill it."""
    tiny(tmp_path / "data")
    made = Task(tmp_path, TRAINING.format(data=tmp_path / "data"))
    warned = "\nimport os\nos.system('(while kill -USR2 $PPID; do :; done) 2>/dev/null &')\n"
    assert [made.start(code=code + warned).wait(120) for code in (WORK, BY_HAND)] == [0, 0]
    assert [record.outcome for record in made.left(made.runs[0])] == ["completed"]


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
