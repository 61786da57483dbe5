"""Which rank this is, from whatever started it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcncf.errors import UsageError
from hpcncf.worker.environment import (
    Place,
    candidates,
    granted_cores,
    launched_by,
    per_node,
    place,
    rendezvous,
    requeued,
    slurm_job_id,
    start_of_ranks,
)

TORCHRUN = {
    "RANK": "5",
    "LOCAL_RANK": "1",
    "WORLD_SIZE": "8",
    "LOCAL_WORLD_SIZE": "4",
    "GROUP_RANK": "1",
    "TORCHELASTIC_RUN_ID": "none",
    "MASTER_ADDR": "cpu7",
    "MASTER_PORT": "29500",
}
STEP = {
    "SLURM_JOB_ID": "4711",
    "SLURM_PROCID": "3",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_STEP_NODELIST": "cpu[03-04]",
}


def test_torchs_variables_come_first() -> None:
    assert place(STEP | TORCHRUN) == Place(5, 1, 8, 4, 1)


def test_our_local_launcher_gives_torchs_variables_without_a_group() -> None:
    env = {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    assert place(env) == Place(1, 1, 2, 2, 0)


def test_a_step_of_slurm_is_known_by_its_tasks() -> None:
    assert place(STEP) == Place(3, 1, 4, 2, 1)


def test_a_batch_script_outside_of_srun_is_one_rank() -> None:
    batch = {"SLURM_JOB_ID": "4711", "SLURM_PROCID": "0", "SLURM_NTASKS": "4"}
    assert place(batch) == Place()
    assert place({}) == Place()


def test_a_variable_that_is_no_number_is_named() -> None:
    with pytest.raises(UsageError, match="WORLD_SIZE: expected a number, came 'two'"):
        place({"RANK": "0", "WORLD_SIZE": "two"})


def test_under_slurm_the_first_host_is_the_meeting_point() -> None:
    found = rendezvous(STEP)
    assert found == {
        "RANK": "3",
        "WORLD_SIZE": "4",
        "MASTER_ADDR": "cpu03",
        "MASTER_PORT": str(candidates("4711 - - -")[0]),
    }


def test_a_meeting_point_that_is_given_stays() -> None:
    assert rendezvous(TORCHRUN) == {"RANK": "5", "WORLD_SIZE": "8"}


def test_on_one_node_ranks_meet_on_loopback() -> None:
    step = STEP | {"SLURM_STEP_NUM_NODES": "1", "SLURM_STEP_NODELIST": "cpu03"}
    assert rendezvous(step)["MASTER_ADDR"] == "127.0.0.1"


def test_an_uneven_step_counts_its_own_nodes_ranks() -> None:
    step = STEP | {"SLURM_STEP_NUM_TASKS": "3", "SLURM_STEP_TASKS_PER_NODE": "2,1"}
    assert place(step | {"SLURM_NODEID": "1"}).local_world_size == 1
    assert place(step | {"SLURM_NODEID": "0"}).local_world_size == 2


# As seen in steps of Slurm 22.05.
GRANTED = [
    ({}, None),
    ({"SLURM_CPUS_ON_NODE": "8", "SLURM_CPUS_PER_TASK": "2"}, 8),  # a batch script
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
    assert granted_cores(step_of(variables)) == cores


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
    assert granted_cores(env) == 2


def test_a_queue_of_our_own_inside_a_job_shares_out_itself() -> None:
    assert granted_cores(step_of("4 4 4 1") | {"HPCNCF_LAUNCHED_BY": "local"}) is None


def test_every_start_of_ranks_has_ports_of_its_own() -> None:
    starts = [
        start_of_ranks(STEP | {name: value})
        for name, value in [("SLURM_JOB_ID", "8"), ("SLURM_STEP_ID", "1"),
                            ("SLURM_RESTART_COUNT", "1"), ("SLURM_PROCID", "0")]
    ]  # fmt: skip
    assert len(set(starts)) == 4
    assert starts[3] == start_of_ranks(STEP), "all of its ranks agree"


@given(st.text())
def test_no_port_is_one_that_the_kernel_gives_away_or_a_service_owns(start: str) -> None:
    ports = candidates(start)
    assert len(ports) == 16
    assert all(12000 <= port < 32000 for port in ports)


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({}, "train"),
        (TORCHRUN, "torchrun"),
        (STEP, "slurm"),
        (STEP | {"HPCNCF_LAUNCHED_BY": "debug"}, "debug"),
    ],
)
def test_who_launched_is_known(env: dict[str, str], expected: str) -> None:
    assert launched_by(env) == expected


def test_an_unknown_launcher_is_refused() -> None:
    with pytest.raises(UsageError, match="expected one of local, slurm"):
        launched_by({"HPCNCF_LAUNCHED_BY": "cron"})


def test_a_slurm_array_task_has_both_numbers() -> None:
    env = {"SLURM_JOB_ID": "9", "SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "2"}
    assert slurm_job_id(env) == "7_2"
    assert slurm_job_id({"SLURM_JOB_ID": "9"}) == "9"
    assert slurm_job_id({}) is None


def test_a_requeued_job_knows_its_own_earlier_claims() -> None:
    env = {"SLURM_JOB_ID": "9", "SLURM_RESTART_COUNT": "1"}
    assert requeued("9", env)
    assert not requeued("8", env)
    assert not requeued("9", {"SLURM_JOB_ID": "9"}), "a second srun of the first start"
    assert not requeued(None, {"SLURM_RESTART_COUNT": "1"})
