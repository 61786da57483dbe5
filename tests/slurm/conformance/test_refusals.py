"""What sbatch and the others do not take, and in which words."""

from __future__ import annotations

import pytest

from slurm.conformance.conftest import Slurm

FAILED = "sbatch: error: Batch job submission failed: "
POLICY = "Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)"
UNAVAILABLE = "Requested node configuration is not available"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            ["--partition=none"],
            f"sbatch: error: invalid partition specified: none\n"
            f"{FAILED}Invalid partition name specified\n",
        ),
        (
            ["--account=none"],
            f"{FAILED}Invalid account or account/partition combination specified\n",
        ),
        (["--qos=none"], f"{FAILED}Invalid qos specification\n"),
        (["--constraint=none"], f"{FAILED}Invalid feature specification\n"),
        (
            ["--mem=99G"],
            f"sbatch: error: Memory specification can not be satisfied\n{FAILED}{UNAVAILABLE}\n",
        ),
        (["--gpus-per-node=9"], f"{FAILED}{UNAVAILABLE}\n"),
        (["--array=0-1001"], f"{FAILED}Invalid job array specification\n"),
        (["--array=1001"], f"{FAILED}Invalid job array specification\n"),
        (
            ["--qos=few", "--array=0-4"],
            f"sbatch: error: QOSMaxSubmitJobPerUserLimit\n{FAILED}{POLICY}\n",
        ),
    ],
)
def test_sbatch_refuses(slurm: Slurm, options: list[str], said: str) -> None:
    assert slurm.refusal("sbatch", *options, "--wrap=true") == said


def test_the_highest_index_of_an_array_is_below_the_limit(slurm: Slurm) -> None:
    assert "MaxArraySize            = 1001\n" in slurm.run("scontrol", "show", "config")
    job = slurm.submit("true", "--hold", "--array=0,1000")
    assert slurm.queued(job, "%i") == [f"{job}_0", f"{job}_1000"]
    slurm.run("scancel", job)


def test_a_script_without_its_first_line_is_none(slurm: Slurm) -> None:
    (slurm.folder / "none.sh").write_text("true\n")
    assert "does not look like a batch script" in slurm.refusal("sbatch", "none.sh")
    assert slurm.refusal("sbatch", "absent") == "sbatch: error: Unable to open file absent\n"


def test_a_job_that_is_not_there(slurm: Slurm) -> None:
    unknown = "slurm_load_jobs error: Invalid job id specified\n"
    assert slurm.refusal("squeue", "--noheader", "-j", "99999") == unknown
    assert slurm.refusal("scontrol", "show", "job", "99999") == unknown
    asked = ["scontrol", "requeue", "99999"]
    assert slurm.refusal(*asked) == "Invalid job id specified for job 99999\n"
    assert slurm.run("scancel", "99999") == "", "scancel has nothing to say of it"
    assert slurm.accounted("99999") == []


def test_more_than_there_is_waits_for_ever(slurm: Slurm) -> None:
    asked = {"--nodes=9": "PartitionConfig", "--cpus-per-task=9": "PartitionConfig"}
    asked["--time=2:00:00"] = "PartitionTimeLimit"
    for option, reason in asked.items():
        job = slurm.submit("true", option)
        slurm.soon(job, reason, form="%r")
        slurm.run("scancel", job)
