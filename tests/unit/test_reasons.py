"""Slurm's reasons for letting a job wait, in words."""

from __future__ import annotations

import pytest

from hpcncf.slurm.states import NEVER, WORDS, describe_reason


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("Priority", "waiting for higher-priority jobs (Priority)"),
        ("QOSMaxCpuPerUserLimit", "you are at the QOS's limit of cores (QOSMaxCpuPerUserLimit)"),
        (
            "AssocGrpGRES",
            "all users of your account together are at its limit of GPUs (AssocGrpGRES)",
        ),
        ("MaxJobsPerAccount", "your account is at the QOS's limit of running jobs"),
        ("AssocGrpCPURunMinutesLimit", "limit of minutes of cores that run"),
        ("ReqNodeNotAvail, UnavailableNodes:node[3-4]", "(ReqNodeNotAvail: node[3-4])"),
        ("ReqNodeNotAvail,_UnavailableNodes:node3", "(ReqNodeNotAvail: node3)"),
        ("launch failed requeued held", "scontrol release tries again"),
        ("ReasonOfALaterSlurm", "ReasonOfALaterSlurm"),
    ],
)
def test_a_reason_is_reported_in_words(reason: str, words: str) -> None:
    assert words in describe_reason(reason)


@pytest.mark.parametrize(
    "reason",
    [
        "PartitionConfig",
        "PartitionTimeLimit",
        "BadConstraints",
        "AssocMaxWallDurationPerJobLimit",
        "QOSMaxNodePerJobLimit",
        "QOSMinCpuNotSatisfied",
        "DependencyNeverSatisfied",
    ],
)
def test_a_job_that_will_never_start_is_described_so(reason: str) -> None:
    assert NEVER in describe_reason(reason)


def test_what_only_waits_is_not() -> None:
    waiting = ["Resources", "Priority", "BeginTime", "JobArrayTaskLimit", "QOSMaxJobsPerUserLimit"]
    assert not any(NEVER in describe_reason(reason) for reason in waiting)
    assert "" not in WORDS.values()
