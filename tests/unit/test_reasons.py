"""Slurm's reasons for letting a job wait, in words."""

from __future__ import annotations

import pytest

from hpcncf.slurm.states import FOR_EVER, WORDS, in_words


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("Priority", "others are before it (Priority)"),
        ("QOSMaxCpuPerUserLimit", "you are at the QOS's limit of cores (QOSMaxCpuPerUserLimit)"),
        ("AssocGrpGRES", "your account as a whole is at its limit of GPUs (AssocGrpGRES)"),
        ("MaxJobsPerAccount", "your account is at the QOS's limit of running jobs"),
        ("AssocGrpCPURunMinutesLimit", "limit of minutes of cores that run"),
        ("ReqNodeNotAvail, UnavailableNodes:node[3-4]", "(ReqNodeNotAvail: node[3-4])"),
        ("ReqNodeNotAvail,_UnavailableNodes:node3", "(ReqNodeNotAvail: node3)"),
        ("launch failed requeued held", "scontrol release tries again"),
        ("ReasonOfALaterSlurm", "ReasonOfALaterSlurm"),
    ],
)
def test_a_reason_is_told_in_words(reason: str, words: str) -> None:
    assert words in in_words(reason)


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
def test_what_will_never_start_is_said_to_pend_for_ever(reason: str) -> None:
    assert FOR_EVER in in_words(reason)


def test_what_only_waits_is_not() -> None:
    waiting = ["Resources", "Priority", "BeginTime", "JobArrayTaskLimit", "QOSMaxJobsPerUserLimit"]
    assert not any(FOR_EVER in in_words(reason) for reason in waiting)
    assert "" not in WORDS.values()
