"""Cores allocated by Slurm and by other batch systems."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from hpcncf.launcher.allocation import (
    BATCH_SYSTEMS,
    allocated_by,
    allocated_cores,
    batch_system,
    flux_cores,
)
from hpcncf.launcher.environment import per_node

HOST = os.uname().nodename
OTHER = f"not-{HOST}"

# As seen in steps of Slurm 22.05.
GRANTED = [
    ({}, None),
    ({"SLURM_CPUS_ON_NODE": "8", "SLURM_CPUS_PER_TASK": "2"}, 8),  # a batch script
    # The same in 26.05.
    ({"SLURM_STEP_ID": "-5", "SLURM_CPUS_ON_NODE": "8", "SLURM_CPUS_PER_TASK": "2"}, 8),
    ({"SLURM_CPUS_ON_NODE": ""}, None),
    ("2 2 2 1", 2),
    ("2 1 2 1", 2),  # srun --exact without -c: the job asked for two
    ("- 1 2 1", 2),  # a whole node, and srun without -c
    ("- 2 2 2", 1),
    ("1 1 1 4", 0.25),  # srun --overcommit
    ("8 8 8(x2) 1(x2)", 8),
    ("1 2 2,1 2,1", 1),
    ("- 8 - -", 8),
]


@pytest.mark.parametrize(("variables", "cores"), GRANTED)
def test_what_slurm_granted_a_rank(variables: str | dict[str, str], cores: float | None) -> None:
    assert allocated_cores(step_of(variables)) == cores


def step_of(variables: str | dict[str, str]) -> dict[str, str]:
    """CPUS_PER_TASK, CPUS_ON_NODE, JOB_CPUS_PER_NODE, STEP_TASKS_PER_NODE, `-` where not set."""
    if isinstance(variables, dict):
        return variables
    names = ("CPUS_PER_TASK", "CPUS_ON_NODE", "JOB_CPUS_PER_NODE", "STEP_TASKS_PER_NODE")
    given = zip(names, variables.split(), strict=True)
    found = {f"SLURM_{name}": value for name, value in given if value != "-"}
    nodes = len(per_node(found.get("SLURM_STEP_TASKS_PER_NODE", "1")))
    return found | {"SLURM_STEP_ID": "0", "SLURM_STEP_NUM_NODES": str(nodes)}


def test_torchruns_ranks_share_their_tasks_grant() -> None:
    env = step_of("4 4 4 1") | {"TORCHELASTIC_RUN_ID": "x", "LOCAL_WORLD_SIZE": "2"}
    assert allocated_cores(env) == 2


def test_a_queue_of_our_own_inside_a_job_shares_out_itself() -> None:
    assert allocated_cores(step_of("4 4 4 1") | {"HPCNCF_LAUNCHED_BY": "local"}) is None


# Variables, files that they name, and the cores of this host. `$NAME` is a file's path.
JOBS = {
    "LSF, slots": ({"LSB_JOBID": "7", "LSB_MCPU_HOSTS": f"{HOST} 4"}, "", 4),
    "LSF, one host of two": (
        {"LSB_JOBID": "7", "LSB_MCPU_HOSTS": f"{OTHER} 3 {HOST}.site.edu 2"},
        "",
        2,
    ),
    "LSF, no hosts": ({"LSB_JOBID": "7", "LSB_DJOB_NUMPROC": "4"}, "", 4),
    "LSF, CPUs of two tasks by affinity": (
        {"LSB_JOBID": "7", "LSB_AFFINITY_HOSTFILE": "$FILE", "LSB_DJOB_NUMPROC": "3"},
        f"{HOST} 0,1 0 1\n{HOST} 2,3 0 1\n{OTHER} 0,1 0 1\n",
        4,
    ),
    "LSF, an empty affinity file": (
        {"LSB_JOBID": "7", "LSB_AFFINITY_HOSTFILE": "$FILE", "LSB_DJOB_NUMPROC": "3"},
        "",
        3,
    ),
    "LSF, several hosts and none is this": (
        {"LSB_JOBID": "7", "LSB_DJOB_NUMPROC": "5", "LSB_MCPU_HOSTS": "a 3 b 2"},
        "",
        None,
    ),
    "PBS, one chunk": ({"PBS_JOBID": "7", "PBS_NODEFILE": "$FILE", "NCPUS": "8"}, HOST, 8),
    "PBS, MPI processes": (
        {"PBS_JOBID": "7", "PBS_NODEFILE": "$FILE", "NCPUS": "1"},
        f"{HOST}.site.edu\n{HOST}.site.edu\n{OTHER}\n",
        2,
    ),
    "Torque": (
        {"PBS_JOBID": "7", "PBS_NODEFILE": "$FILE", "PBS_NUM_PPN": "3"},
        f"{HOST}\n" * 3 + f"{OTHER}\n" * 3,
        3,
    ),
    "PBS, a site's count on one node": (
        {"PBS_JOBID": "7", "PBS_NODEFILE": "$FILE", "PBS_NCPUS": "16"},
        HOST,
        16,
    ),
    "PBS, a site's count of two nodes": (
        {"PBS_JOBID": "7", "PBS_NODEFILE": "$FILE", "PBS_NCPUS": "16", "NCPUS": "8"},
        f"{HOST}\n{OTHER}",
        8,
    ),
    "Grid Engine, serial": ({"NSLOTS": "1"}, "", 1),
    "Grid Engine, one host": (
        {"NSLOTS": "4", "PE_HOSTFILE": "$FILE"},
        f"{HOST} 4 all.q@{HOST} UNDEFINED\n",
        4,
    ),
    "Grid Engine, one host of two": (
        {"NSLOTS": "6", "PE_HOSTFILE": "$FILE"},
        f"{OTHER} 4 all.q@{OTHER} UNDEFINED\n{HOST} 2 all.q@{HOST} UNDEFINED\n",
        2,
    ),
    "OAR": (
        {"OAR_JOB_ID": "7", "OAR_NODEFILE": "$FILE"},
        f"{HOST}\n{HOST}\n{HOST}\n{OTHER}\n",
        3,
    ),
    "OAR, its other name": ({"OAR_JOB_ID": "7", "OAR_NODE_FILE": "$FILE"}, f"{HOST}\n", 1),
    "HTCondor": (
        {"_CONDOR_MACHINE_AD": "$FILE"},
        'TotalCpus = 64.0\nCpus = 4\nName = "slot1_1@node"\n',
        4,
    ),
    "HTCondor, no file": ({"_CONDOR_MACHINE_AD": "/absent"}, "", None),
}  # fmt: skip


@pytest.mark.parametrize("name", JOBS)
def test_cores_of_a_batch_system_are_known(name: str, tmp_path: Path) -> None:
    variables, text, cores = JOBS[name]
    (tmp_path / "file").write_text(text)
    env = {key: value.replace("$FILE", str(tmp_path / "file")) for key, value in variables.items()}
    assert allocated_cores(env) == cores
    by = allocated_by(env)
    assert by is not None
    assert name.startswith(by) or (by, name) == ("PBS", "Torque")


def test_ranks_of_a_node_share_its_cores() -> None:
    job = {"NSLOTS": "4"}
    names = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")
    mpi = {f"OMPI_COMM_WORLD_{name}": value for name, value in zip(names, "1212", strict=True)}
    torchrun = {"TORCHELASTIC_RUN_ID": "x", "RANK": "1", "WORLD_SIZE": "4", "LOCAL_RANK": "1"}
    assert allocated_cores(job | mpi) == 2
    assert allocated_cores(job | torchrun | {"LOCAL_WORLD_SIZE": "4"}) == 1


@pytest.mark.parametrize(
    ("nodelist", "cores"), [([HOST, OTHER], 4), ([f"{OTHER},{HOST}"], 2), ([OTHER], None)]
)
def test_cores_of_a_flux_job_are_in_its_resource_set(
    nodelist: list[str], cores: float | None
) -> None:
    execution = {
        "R_lite": [
            {"rank": "4", "children": {"core": "0-3", "gpu": "0"}},
            {"rank": "9", "children": {"core": "1,3"}},
        ],
        "nodelist": nodelist,
    }
    assert flux_cores(json.dumps({"version": 1, "execution": execution}), HOST) == cores


@pytest.mark.parametrize("text", ["", "[]", '{"execution": {}}', '{"execution": 3}'])
def test_no_resource_set_is_no_allocation(text: str) -> None:
    assert flux_cores(text, HOST) is None


def test_slurm_and_a_plain_shell_are_no_other_batch_system() -> None:
    assert batch_system({}) is None
    assert allocated_by({}) is None
    assert allocated_by({"SLURM_JOB_ID": "7"}) == "Slurm"


def test_every_variable_is_in_the_documents_table() -> None:
    page = (Path(__file__).parents[2] / "docs" / "program-in-a-job.md").read_text()
    for system in BATCH_SYSTEMS:
        (row,) = (line for line in page.splitlines() if line.startswith(f"| {system.name} |"))
        for name in system.variables:
            assert f"`{name}`" in row, name
