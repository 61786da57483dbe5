"""A program of one's own on a real Slurm: ranks over nodes, values kept, failure, the end."""

from __future__ import annotations

import csv
import json
import sys

import pytest

from slurm.conftest import User, eventually

pytestmark = pytest.mark.slurm

PROGRAM = """\
import json, os, sys, time
from pathlib import Path
mode, value = sys.argv[1:]
name = Path(os.environ["HPCNCF_OUTPUT"], "rank-" + os.environ["RANK"])
name.write_text(json.dumps([value, os.environ["MASTER_ADDR"], os.uname().nodename]))
print("hpcncf: length=%d" % len(value))
if mode == "fail" and os.environ["RANK"] == "3":
    sys.exit("on purpose")
if mode != "well":
    time.sleep(900)
"""
VALUE = "a 'b' \"c\" $(touch broken-out) `id`; {x}\\\\"
JOB = """\
name: own
site: site.yaml
workload: {{command: [python3, own.py, "{{mode}}", "{{value}}"]}}
parameters: {{value: {value}}}
grid: {{mode: [well, fail, wait]}}
resources: {{mem_gb: 0.2, timeout_min: 10, nodes: 2, tasks_per_node: 2}}
"""


def test_a_grid_of_a_users_own_program_over_two_nodes(user: User) -> None:
    (user.folder / "own.py").write_text(PROGRAM)
    user.submits(JOB.format(value=json.dumps(VALUE)))
    queued = ["squeue", "--me", "--noheader", "--format=%i"]
    eventually(lambda: len(user.cluster.run(*queued).split()) == 1)
    runs = user.waits(lambda states: sorted(states) == ["completed", "failed", "running"])
    by_mode = {run["varied"]["parameters.mode"]: run for run in runs}
    assert "rank 3: exit code: 1" in by_mode["fail"]["reason"]
    assert "on purpose" in user.types("logs", by_mode["fail"]["id"], "--rank", "3")
    user.types("cancel", by_mode["wait"]["id"])
    states = {run["varied"]["parameters.mode"]: run["state"] for run in user.ends()}
    assert states == {"well": "completed", "fail": "failed", "wait": "cancelled"}

    attempt = user.folder / "results/own/runs" / by_mode["well"]["id"] / "attempt-1"
    seen = [json.loads((attempt / f"output/rank-{rank}").read_text()) for rank in range(4)]
    assert [value for value, _, _ in seen] == [VALUE] * 4
    assert len({master for _, master, _ in seen}) == 1
    assert len({node for _, _, node in seen}) == 2
    assert not list(user.folder.rglob("broken-out"))
    assert user.attempt("report", "results/own").returncode in (0, 3)
    with (user.folder / "results/own/tables/runs.csv").open(newline="") as lines:
        lengths = {row["run_id"]: row["metric_length"] for row in csv.DictReader(lines)}
    assert lengths[by_mode["well"]["id"]] == str(len(VALUE))


FUNCTION = """\
import hpcncf

def add(a):
    return a + 1

limits = {"timeout_min": 5, "mem_gb": 0.5}
(future,) = hpcncf.submit(add, {"a": [1]}, limits, cluster="slurm", site="site.yaml")
print(future.result(timeout=600))
"""


def test_a_function_returns_its_result(user: User) -> None:
    (user.folder / "mine.py").write_text(FUNCTION)
    assert user.shell(sys.executable, "mine.py").stdout == "2\n"
