"""Which rank this is, from whatever started it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcncf.errors import UsageError
from hpcncf.worker.environment import (
    Place,
    candidates,
    launched_by,
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
    assert not requeued("9", {"SLURM_JOB_ID": "9", "SLURM_RESTART_COUNT": "0"}), "since 23.11"
    assert not requeued(None, {"SLURM_RESTART_COUNT": "1"})
