"""Watch a running Slurm job: a step of its own on each of its nodes, by `srun --overlap`.

The nodes need Python 3.11 and nothing of hpcncf: srun passes the modules on as its input.
"""

from __future__ import annotations

import io
import json
import os
import pkgutil
import re
import shutil
import signal
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from hpcncf.attach import inside
from hpcncf.attach.node import unpack
from hpcncf.errors import HpcncfError, UsageError
from hpcncf.launcher.environment import hosts
from hpcncf.monitor.cgroup import parse_cpu_list
from hpcncf.slurm.query import job_states, run_query

# Beyond the watch itself: the step has to start, on a busy controller.
PATIENCE_S: Final = 90.0
MODULES: Final = (
    "__init__.py",
    "errors.py",
    *(f"attach/{name}.py" for name in ("__init__", "find", "inside", "node", "observe", "py_spy")),
    *("attach/open_files.py", "attach/watch.py"),
    *(f"monitor/{name}.py" for name in ("__init__", "cgroup", "gpu", "process_tree")),
    *(
        f"monitor/{name}.py"
        for name in ("node_cores", "node_traffic", "procfs", "thread_waits", "topology", "windows")
    ),
    *(f"{inside.INSIDE}/{name}.py" for name in inside.MODULES),
)
"""All that runs on the nodes."""
# Reads the modules, as an archive in memory, from standard input. `-I`: no user's PYTHONPATH.
BOOT: Final = """\
import os, sys
if sys.version_info < (3, 11):
    sys.exit("hpcncf-python: %s %d.%d" % (sys.executable, *sys.version_info[:2]))
file = os.memfd_create("hpcncf")
with open(file, "wb", closefd=False) as archive:
    archive.write(sys.stdin.buffer.read())
sys.path.insert(0, "/proc/self/fd/%d" % file)
from hpcncf.attach.node import main
main(sys.argv[1])
"""
# The Python that runs this command, where the nodes have it, too; else the first one on PATH.
SHELL: Final = '[ -x "$1" ] || set -- "$(command -v python3)" "$2" "$3"; exec "$1" -I -c "$2" "$3"'


@dataclass(frozen=True)
class RunningJob:
    """A Slurm job that runs, as `scontrol show job --details` describes it."""

    shown: str
    """The id that its user gave: `12_3`."""
    slurm_id: str
    """Slurm's own number of it, which an array's task and a component have, too."""
    name: str
    nodes: dict[str, int]
    """Node -> CPUs that the job has there."""


def find_job(given: str) -> RunningJob | None:
    """Return the running job of this id; None if Slurm does not know it.

    Raises UsageError if it cannot be watched, with what is possible, or if Slurm cannot be asked.
    """
    problems: list[str] = []
    command = ["scontrol", "show", "job", "--details", "--oneliner", given]
    text = run_query(command, problems)
    records = [_fields(line) for line in text.splitlines() if line.startswith("JobId=")]
    if not records:
        unknown = not problems or "Invalid job id" in problems[0]
        if unknown:
            return None
        raise UsageError(f"job {given}: Slurm cannot be asked: {problems[0]}")
    if len(records) > 1:
        records = [_chosen(given, records)]
    return _running(given, records[0])


def _fields(line: str) -> dict[str, str]:
    """Parse the line of one job; of keys that come twice (of its nodes) the first one counts."""
    found: dict[str, str] = {}
    for key, value in re.findall(r"(?:^|\s)([A-Za-z/_:]+)=(\S*)", line):
        found.setdefault(key, value)
    found["line"] = line
    return found


def _id(record: Mapping[str, str]) -> str:
    """The id that a user would give for one record: `12_3`, `12+1` or `12`."""
    if record.get("ArrayTaskId", "").isdecimal():
        return f"{record['ArrayJobId']}_{record['ArrayTaskId']}"
    if "HetJobOffset" in record:
        return f"{record['HetJobId']}+{record['HetJobOffset']}"
    return record["JobId"]


def _chosen(given: str, records: list[dict[str, str]]) -> dict[str, str]:
    """Return the record of several that is meant. Raises UsageError if one has to be chosen."""
    exact = [record for record in records if _id(record) == given]
    if exact:
        return exact[0]
    running = [_id(record) for record in records if record.get("JobState") == "RUNNING"]
    kind = "a heterogeneous job" if "HetJobOffset" in records[0] else "an array"
    if not running:
        raise UsageError(f"attach: job {given} is {kind}, and none of its parts runs now")
    shown = ", ".join(running[:6]) + (", ..." if len(running) > 6 else "")
    raise UsageError(
        f"attach: job {given} is {kind}; name the part to watch, of those that run: {shown}"
    )


def _running(given: str, record: Mapping[str, str]) -> RunningJob:
    state = record.get("JobState", "unknown")
    if state == "PENDING":
        reason = record.get("Reason", "None")
        raise UsageError(
            f"attach: job {given} is pending ({reason}): it can be watched once it runs"
        )
    if state == "SUSPENDED":
        raise UsageError(
            f"attach: job {given} is suspended: it computes nothing until `scontrol resume {given}`"
        )
    if state == "COMPLETING":
        raise UsageError(f"attach: job {given} is just ending: there is nothing left to watch")
    if state != "RUNNING":
        raise UsageError(ended(given, state))
    owner = re.fullmatch(r"(.*)\((\d+)\)", record.get("UserId", ""))
    if owner and int(owner[2]) != os.geteuid():
        raise UsageError(
            f"attach: job {given} belongs to {owner[1]}; Slurm lets only its owner start a step "
            "in it"
        )
    nodes: dict[str, int] = {}
    for names, cpus in re.findall(r"\sNodes=(\S+) CPU_IDs=(\S+)", record["line"]):
        for node in hosts(names):
            nodes[node] = nodes.get(node, 0) + len(parse_cpu_list(cpus))
    if not nodes:  # without select/cons_tres
        nodes = dict.fromkeys(hosts(record.get("NodeList", "")), 0)
    return RunningJob(given, record["JobId"], record.get("JobName", ""), nodes)


def ended(given: str, state: str) -> str:
    return (
        f"attach: job {given} has ended ({state}); `hpcncf explain {given}` reads Slurm's figures "
        f"of it, `hpcncf diagnose {given}` the record of one that `hpcncf sbatch` submitted"
    )


def describe_unknown(given: str) -> str:
    """Explain why there is no such running job: it has ended, or nobody knows it."""
    if shutil.which("scontrol") is None:
        return f"attach: job {given}: no Slurm on this machine (scontrol is not on PATH)"
    state = job_states([given], []).get(given)
    if state is not None and state.state not in ("pending", "running", "unknown"):
        return ended(given, state.word or state.state)
    return f"attach: job {given}: Slurm knows no such job; `squeue --me` lists yours"


def archive() -> bytes:
    """Return the modules that run on the nodes as a zip archive."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as whole:
        for name in MODULES:
            content = pkgutil.get_data("hpcncf", name)
            assert content is not None
            whole.writestr(f"hpcncf/{name}", content)
    return buffer.getvalue()


def command(job: RunningJob, seconds: float) -> list[str]:
    """Build the srun command that watches the job on all of its nodes."""
    number = str(len(job.nodes))
    return [
        *("srun", f"--jobid={job.slurm_id}", "--overlap", "--mem=0", "--mpi=none", "--quiet"),
        *(f"--nodes={number}", f"--ntasks={number}", "--ntasks-per-node=1", "--cpus-per-task=1"),
        *("--cpu-bind=none", "--chdir=/", "--disable-status", "--kill-on-bad-exit=0"),
        *("--job-name=hpcncf-attach", "--input=all"),
        *("/bin/sh", "-c", SHELL, "sh", sys.executable, BOOT),
        json.dumps({"job": job.slurm_id, "seconds": seconds}),
    ]


def watch(job: RunningJob, seconds: float) -> tuple[list[dict[str, Any]], list[str]]:
    """Watch the job; return the figures of each node, and a sentence for each that has none.

    Raises HpcncfError if no node has any.
    """
    # Of a job in which this command may have been typed; SLURM_CONF says where Slurm is.
    plain = {
        name: value
        for name, value in os.environ.items()
        if name == "SLURM_CONF" or not name.startswith(("SLURM", "SRUN_", "PMI"))
    }
    process = subprocess.Popen(
        command(job, seconds),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=plain,
        start_new_session=True,  # Ctrl-C ends the watch, not srun
    )
    out, errors = _communicate(process, seconds + PATIENCE_S)
    seen = unpack(out.decode(errors="replace"))
    said = errors.decode(errors="replace")
    missing = [
        f"node {node}: {seen[node]['error'] if node in seen else 'it did not answer'}"
        for node in job.nodes
        if node not in seen or "error" in seen[node]
    ]
    found = [seen[node] for node in job.nodes if node in seen and "error" not in seen[node]]
    if not found:
        raise HpcncfError(f"attach: job {job.shown}: {_explain(said, missing, process.returncode)}")
    return found, missing


def _communicate(process: subprocess.Popen[bytes], patience_s: float) -> tuple[bytes, bytes]:
    """Feed srun and read what it prints; Ctrl-C is passed on, and ends the watch early."""
    modules = archive()
    try:
        return process.communicate(modules, timeout=patience_s)
    except KeyboardInterrupt:
        process.send_signal(signal.SIGINT)
        try:
            return process.communicate(timeout=PATIENCE_S)
        except (KeyboardInterrupt, subprocess.TimeoutExpired):
            pass
    except subprocess.TimeoutExpired:
        pass
    process.terminate()  # srun ends its step
    out, errors = process.communicate()
    return out, errors + f"\nsrun: no answer within {patience_s:.0f} s".encode()


def _explain(said: str, missing: list[str], code: int) -> str:
    """Return the reason for which no node was watched."""
    old = re.search(r"hpcncf-python: (\S+) (\S+)", said)
    if old:
        return (
            f"its nodes have only Python {old[2]} ({old[1]}); expected 3.11 or later, or this "
            f"command's own Python, {sys.executable}, on a file system that they share"
        )
    lines = [re.sub(r"^srun: (error: )?", "", line).strip() for line in said.splitlines()]
    lines = [line for line in lines if line]
    if any("unrecognized option" in line and "overlap" in line for line in lines):
        return "this Slurm's srun has no --overlap (Slurm 20.11 and later have it)"
    if lines:
        return f"srun could not start a step in it: {lines[-1]}"
    return "; ".join(missing) or f"srun ended with exit code {code}"
