"""Which rank this is, from whatever started it."""

from __future__ import annotations

import pytest

from hpcncf.errors import UsageError
from hpcncf.rank import launcher
from hpcncf.rank.launcher import Place

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
    assert launcher.place(STEP | TORCHRUN) == Place(5, 1, 8, 4, 1)


def test_our_local_launcher_gives_torchs_variables_without_a_group() -> None:
    env = {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    assert launcher.place(env) == Place(1, 1, 2, 2, 0)


def test_a_step_of_slurm_is_known_by_its_tasks() -> None:
    assert launcher.place(STEP) == Place(3, 1, 4, 2, 1)


def test_a_batch_script_outside_of_srun_is_one_rank() -> None:
    batch = {"SLURM_JOB_ID": "4711", "SLURM_PROCID": "0", "SLURM_NTASKS": "4"}
    assert launcher.place(batch) == Place()
    assert launcher.place({}) == Place()


def test_a_variable_that_is_no_number_is_named() -> None:
    with pytest.raises(UsageError, match="WORLD_SIZE: expected a number, came 'two'"):
        launcher.place({"RANK": "0", "WORLD_SIZE": "two"})


def test_under_slurm_the_first_host_is_the_meeting_point() -> None:
    found = launcher.rendezvous(STEP)
    assert found == {
        "RANK": "3",
        "WORLD_SIZE": "4",
        "MASTER_ADDR": "cpu03",
        "MASTER_PORT": str(20000 + 4711),
    }


def test_a_meeting_point_that_is_given_stays() -> None:
    assert launcher.rendezvous(TORCHRUN) == {"RANK": "5", "WORLD_SIZE": "8"}


@pytest.mark.parametrize(
    ("nodelist", "first"),
    [
        ("node7", "node7"),
        ("cpu[03-05,9],gpu1", "cpu03"),
        ("cpu[9,11]", "cpu9"),
        ("a,b", "a"),
        ("r1n[2-3]-ib", "r1n2-ib"),
    ],
)
def test_the_first_host_of_a_compressed_list(nodelist: str, first: str) -> None:
    assert launcher.first_host(nodelist) == first


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
    assert launcher.launched_by(env) == expected


def test_an_unknown_launcher_is_refused() -> None:
    with pytest.raises(UsageError, match="expected one of local, slurm"):
        launcher.launched_by({"HPCNCF_LAUNCHED_BY": "cron"})


def test_a_slurm_array_task_has_both_numbers() -> None:
    env = {"SLURM_JOB_ID": "9", "SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "2"}
    assert launcher.slurm_job_id(env) == "7_2"
    assert launcher.slurm_job_id({"SLURM_JOB_ID": "9"}) == "9"
    assert launcher.slurm_job_id({}) is None


def test_a_requeued_job_knows_its_own_earlier_claims() -> None:
    env = {"SLURM_JOB_ID": "9", "SLURM_RESTART_COUNT": "1"}
    assert launcher.requeued("9", env)
    assert not launcher.requeued("8", env)
    assert not launcher.requeued("9", {"SLURM_JOB_ID": "9"}), "a second srun of the first start"
    assert not launcher.requeued(None, {"SLURM_RESTART_COUNT": "1"})
