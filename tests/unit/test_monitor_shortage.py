"""Why cores cannot be used."""

from __future__ import annotations

import pytest

from hpcncf.monitor.cgroup import describe_shortage

STEP = {"SLURM_STEP_ID": "0", "SLURM_CPUS_ON_NODE": "4", "SLURM_JOB_CPUS_PER_NODE": "4(x2)"}


def test_with_every_core_there_is_nothing_to_say() -> None:
    assert describe_shortage(2, 2, [0, 1], None, STEP) is None
    assert describe_shortage(1, 2, [0, 1], None, STEP) is None


@pytest.mark.parametrize(
    ("env", "cause"),
    [
        ({}, "start it with srun --cpus-per-task"),
        (STEP, "srun bound each rank to fewer CPUs than its own: give srun --cpus-per-task=4"),
        (STEP | {"SLURM_CPUS_ON_NODE": "1"}, "The job has more CPUs than srun gave to the ranks"),
        (STEP | {"OMP_PROC_BIND": "true"}, "OMP_PROC_BIND or its kin bound it"),
    ],
)
def test_the_cause_is_reported_as_far_as_it_shows(env: dict[str, str], cause: str) -> None:
    said = describe_shortage(4, 1, [3], None, env)
    assert said.startswith("only 1 of 4 allocated cores could be used: its affinity mask is 3. ")
    assert cause in said


def test_a_quota_is_reported_as_one() -> None:
    assert "the cgroup's quota is 1.5 cores" in str(
        describe_shortage(4, 1.5, [0, 1, 2, 3], 1.5, {})
    )
