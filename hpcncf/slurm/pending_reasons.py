"""Explain in words why Slurm lets a job wait."""

from __future__ import annotations

import re
from functools import cache
from typing import Final

# The reasons of Slurm 22.05 to 25.05 (slurm.schedmd.com/job_reason_codes.html). Any other is shown
# as Slurm spells it.
NEVER: Final = "will never start"


WORDS: Final[dict[str, str]] = {
    "AccountNotAllowed": f"its account may not use the partition: {NEVER}",
    "AccountingPolicy": "a limit of your account",
    "BadConstraints": f"no node has what it requests: {NEVER}",
    "BeginTime": "its earliest start time has not come",
    "BurstBufferOperation": "the burst buffer failed",
    "BurstBufferResources": "waiting for space in the burst buffer",
    "BurstBufferStageIn": "its data is being copied to the burst buffer",
    "Cleaning": "its previous start is being cleaned up",
    "Constraints": "waiting for nodes with the requested features",
    "DeadLine": f"cannot end before its deadline: {NEVER}",
    "Deadline": f"cannot end before its deadline: {NEVER}",
    "Dependency": "waiting for another job",
    "DependencyNeverSatisfied": f"the job it depends on did not end as required: {NEVER}",
    "FedJobLock": "waiting for the clusters of the federation to agree",
    "InactiveLimit": "reached the limit of inactivity",
    "InvalidAccount": f"its account is no longer valid: {NEVER}",
    "InvalidQOS": f"its QOS is no longer valid: {NEVER}",
    "JobArrayTaskLimit": "at the limit of running tasks of its array",
    "JobHeldAdmin": "held by an administrator, who alone can release it",
    "JobHeldUser": "held by its user; scontrol release releases it",
    "JobHoldMaxRequeue": "held: requeued as often as the site allows",
    "JobLaunchFailure": "could not be launched",
    "Licenses": "waiting for a licence",
    "MaxMemPerLimit": f"requests more memory per core or node than allowed: {NEVER}",
    "MaxRequeue": "held: requeued as often as the site allows",
    "NodeDown": "a node that it needs is down",
    "NonZeroExitCode": "it ended with an error",
    "None": "not scheduled yet",
    "OutOfMemory": "out of memory",
    "PartitionConfig": (
        f"requests more nodes, cores or memory than its partition has or allows: {NEVER}"
    ),
    "PartitionDown": "its partition is down",
    "PartitionInactive": "its partition is inactive",
    "PartitionNodeLimit": (
        f"requests a number of nodes that its partition does not allow: {NEVER}"
    ),
    "PartitionTimeLimit": f"requests more time than its partition allows: {NEVER}",
    "Priority": "waiting for higher-priority jobs",
    "Prolog": "its node is being prepared",
    "QOSJobLimit": "at the QOS's limit of jobs",
    "QOSNotAllowed": f"its QOS may not be used there: {NEVER}",
    "QOSResourceLimit": "at a limit of the QOS",
    "QOSTimeLimit": "at the QOS's limit of time",
    "QOSUsageThreshold": "your usage is above the QOS's threshold",
    "ReqNodeNotAvail": "a node that it needs is down, drained or reserved",
    "Reservation": "waiting for its reservation",
    "ReservationDeleted": f"its reservation was deleted: {NEVER}",
    "Resources": "waiting for free nodes, cores or memory",
    "SchedDefer": "scheduling is deferred",
    "SystemFailure": "Slurm or a node failed",
    "TimeLimit": "reached its time limit",
    "launch failed requeued held": "held: its launch failed; scontrol release tries again",
    "launch failure limit exceeded requeued held": (
        "held: its launch failed too often; scontrol release tries again"
    ),
    "job requeued in held state": "held after it was requeued; scontrol release releases it",
}


# Limits are named <whose><what><per what>; later rows are more general.
LIMITS: Final[list[tuple[str, str]]] = [
    (r"AssocMax(.*)PerJob", f"requests more {{}} than your account allows one job: {NEVER}"),
    (r"AssocMax(.*)PerNode", f"requests more {{}} on a node than your account allows: {NEVER}"),
    (r"AssocMax(.*)", "you are at your account's limit of {}"),
    (r"AssocGrp(.*)", "all users of your account together are at its limit of {}"),
    (r"QOSMax(.*)PerJob", f"requests more {{}} than the QOS allows one job: {NEVER}"),
    (r"QOSMax(.*)PerNode", f"requests more {{}} on a node than the QOS allows: {NEVER}"),
    (r"QOSMax(.*)PerUser", "you are at the QOS's limit of {}"),
    (r"QOSMax(.*)", "at the QOS's limit of {}"),
    (r"QOSGrp(.*)", "all users of the QOS together are at its limit of {}"),
    (r"QOSMin(.*)", f"requests less than the QOS's minimum of {{}}: {NEVER}"),
    (r"Max(.*)PerAccount", "your account is at the QOS's limit of {}"),
]


MEASURES: Final[dict[str, str]] = {
    "bb": "burst buffer",
    "billing": "billing units",
    "cpu": "cores",
    "energy": "energy",
    "gres": "GPUs",
    "job": "running jobs",
    "jobs": "running jobs",
    "license": "licences",
    "mem": "memory",
    "memory": "memory",
    "node": "nodes",
    "submit": "queued jobs",
    "submitjob": "queued jobs",
    "submitjobs": "queued jobs",
    "unknown": "some resource",
    "wall": "time",
    "wallduration": "time",
}


@cache  # thousands of elements wait for one reason
def describe_reason(reason: str) -> str:
    """Describe Slurm's reason for a pending job; unknown reasons are returned unchanged.

    For example `waiting for higher-priority jobs (Priority)`.
    """
    # "ReqNodeNotAvail, UnavailableNodes:node3" and "...,_UnavailableNodes:node3" name the nodes.
    plain, _, details = reason.partition(",")
    words = WORDS.get(reason) or WORDS.get(plain) or _describe_limit(plain)
    nodes = details.partition("UnavailableNodes:")[2]
    slurms_words = f"{plain}: {nodes}" if nodes else plain
    return f"{words} ({slurms_words})" if words else reason


def _describe_limit(reason: str) -> str | None:
    for pattern, words in LIMITS:
        limit = re.fullmatch(pattern, reason.removesuffix("Limit").removesuffix("NotSatisfied"))
        if limit:
            # `CPURunMinutes`: minutes of cores that run.
            measure = re.fullmatch(r"(.*?)(Run)?(Minutes)?", limit[1])
            assert measure
            amount = MEASURES.get(measure[1].lower(), measure[1] or "jobs")
            amount = f"minutes of {amount}" if measure[3] else amount
            return words.format(f"{amount} that run" if measure[2] else amount)
    return None
