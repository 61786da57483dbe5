"""Processes that a launcher started for a command count among its cores, time and memory."""

from __future__ import annotations

from typing import Any

import pytest

from hpcncf.launcher.launched import add_launched
from hpcncf.probe.launch import EXPORTED, observed
from hpcncf.probe.read import ProcessUse

JOB = {"SLURM_JOB_NODELIST": "n[1-2]", "SLURM_JOB_CPUS_PER_NODE": "4(x2)"}


def measured() -> dict[str, Any]:
    return {
        "elapsed_s": 10.0,
        "cores": {"allocated": 4.0, "usable": 4.0, "used": 0.1},
        "cpu": {
            "user_s": 1.0,
            "system_s": 0.0,
            "efficiency": 0.025,
            "efficiency_peak": None,
            "main_s": 0.5,
            "children_s": 0.5,
            "processes_peak": 2,
        },
        "memory": {"rss_peak_mib": 10.0},
    }


def process(node: str, step: str | None, cpu_s: float, mib: float = 100.0) -> ProcessUse:
    place = JOB | ({} if step is None else {"SLURM_STEP_ID": step})
    return ProcessUse(node, place, "train.py", 0.0, 10.0, cpu_s, 0.0, mib, 4)


def test_tasks_of_two_nodes_are_counted_on_the_cores_of_both() -> None:
    tasks = [process("n1.site", "0", 20.0), process("n2", "0", 19.0), process("n1", None, 9.0)]
    figures, used = add_launched(measured(), tasks, JOB, "n1")
    assert figures["cores"] == {"allocated": 8.0, "usable": 8.0, "used": pytest.approx(4.0)}
    assert figures["cpu"]["efficiency"] == pytest.approx(0.5)
    assert [(each["node"], each["allocated"], each["cpu_s"]) for each in used] == [
        ("n1.site", 4.0, 20.0),
        ("n2", 4.0, 19.0),
    ]
    assert figures["memory"]["rss_peak_mib"] == pytest.approx(110.0), "n1: the script and its task"


def test_the_scripts_own_processes_are_counted_once() -> None:
    figures, used = add_launched(measured(), [process("n1", None, 9.0)], JOB, "n1")
    assert (figures, used) == (measured(), [])


@pytest.mark.parametrize(
    ("exported", "expected"),
    [
        (None, None),
        ("ALL", "ALL"),
        ("NONE", "PYTHONPATH,HPCNCF_PROBE"),
        ("A,B", "A,B,PYTHONPATH,HPCNCF_PROBE"),
        ("ALL,A=1", "ALL,A=1"),
    ],
)
def test_srun_passes_the_probe_on_whatever_it_was_told_to(
    exported: str | None, expected: str | None, tmp_path: Any
) -> None:
    given = {} if exported is None else {EXPORTED: exported}
    assert observed(given, tmp_path).get(EXPORTED) == expected
