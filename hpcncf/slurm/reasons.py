"""Why Slurm lets a job wait, in words.

The reasons are those of Slurm 22.05 to 25.05 (slurm.schedmd.com/job_reason_codes.html). One that is
not here is shown as Slurm spells it.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Final

FOR_EVER: Final = "pends for ever"

WORDS: Final[dict[str, str]] = {
    "AccountNotAllowed": f"its account may not use the partition: {FOR_EVER}",
    "AccountingPolicy": "a limit of your account",
    "BadConstraints": f"no node has what it asks for: {FOR_EVER}",
    "BeginTime": "its earliest start has not come",
    "BurstBufferOperation": "the burst buffer failed",
    "BurstBufferResources": "waits for room in the burst buffer",
    "BurstBufferStageIn": "its data is copied to the burst buffer",
    "Cleaning": "what its last start left is cleaned up",
    "Constraints": "waits for nodes with the features asked for",
    "DeadLine": f"cannot end before its deadline: {FOR_EVER}",
    "Deadline": f"cannot end before its deadline: {FOR_EVER}",
    "Dependency": "waits for another job",
    "DependencyNeverSatisfied": f"the job it waits for did not end as it should: {FOR_EVER}",
    "FedJobLock": "waits for the clusters of the federation to agree",
    "InactiveLimit": "reached the limit of inactivity",
    "InvalidAccount": f"its account is not valid (any more): {FOR_EVER}",
    "InvalidQOS": f"its QOS is not valid (any more): {FOR_EVER}",
    "JobArrayTaskLimit": "as many of its array run as may at a time",
    "JobHeldAdmin": "held by an administrator, who alone can release it",
    "JobHeldUser": "held by its user; scontrol release lets it go",
    "JobHoldMaxRequeue": "held: it was requeued as often as the site allows",
    "JobLaunchFailure": "could not be launched",
    "Licenses": "waits for a licence",
    "MaxMemPerLimit": f"asks for more memory per core or node than allowed: {FOR_EVER}",
    "MaxRequeue": "held: it was requeued as often as the site allows",
    "NodeDown": "a node that it needs is down",
    "NonZeroExitCode": "it ended with an error",
    "None": "Slurm has not looked at it yet",
    "OutOfMemory": "out of memory",
    "PartitionConfig": (
        f"asks for more nodes, cores or memory than its partition has or allows: {FOR_EVER}"
    ),
    "PartitionDown": "its partition takes no jobs to run now",
    "PartitionInactive": "its partition is switched off now",
    "PartitionNodeLimit": (
        f"asks for a number of nodes that its partition does not allow: {FOR_EVER}"
    ),
    "PartitionTimeLimit": f"asks for more time than its partition allows: {FOR_EVER}",
    "Priority": "others are before it",
    "Prolog": "its node is being prepared",
    "QOSJobLimit": "at the QOS's limit of jobs",
    "QOSNotAllowed": f"its QOS may not be used there: {FOR_EVER}",
    "QOSResourceLimit": "at a limit of the QOS",
    "QOSTimeLimit": "at the QOS's limit of time",
    "QOSUsageThreshold": "your usage is above the QOS's threshold",
    "ReqNodeNotAvail": "a node that it needs is down, drained or reserved",
    "Reservation": "waits for its reservation",
    "ReservationDeleted": f"its reservation is gone: {FOR_EVER}",
    "Resources": "waits for free nodes, cores or memory",
    "SchedDefer": "Slurm looks at it later",
    "SystemFailure": "Slurm or a node failed",
    "TimeLimit": "reached its time limit",
    "launch failed requeued held": "held: launching it failed; scontrol release tries again",
    "launch failure limit exceeded requeued held": (
        "held: launching it failed too often; scontrol release tries again"
    ),
    "job requeued in held state": "held after it was requeued; scontrol release lets it go",
}

# Limits are named <whose><what><per what>; later rows are more general.
LIMITS: Final[list[tuple[str, str]]] = [
    (r"AssocMax(.*)PerJob", f"asks for more {{}} than your account allows one job: {FOR_EVER}"),
    (r"AssocMax(.*)PerNode", f"asks for more {{}} on a node than your account allows: {FOR_EVER}"),
    (r"AssocMax(.*)", "you are at your account's limit of {}"),
    (r"AssocGrp(.*)", "your account as a whole is at its limit of {}"),
    (r"QOSMax(.*)PerJob", f"asks for more {{}} than the QOS allows one job: {FOR_EVER}"),
    (r"QOSMax(.*)PerNode", f"asks for more {{}} on a node than the QOS allows: {FOR_EVER}"),
    (r"QOSMax(.*)PerUser", "you are at the QOS's limit of {}"),
    (r"QOSMax(.*)", "at the QOS's limit of {}"),
    (r"QOSGrp(.*)", "the users of the QOS together are at its limit of {}"),
    (r"QOSMin(.*)", f"asks for less than the QOS's least of {{}}: {FOR_EVER}"),
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
    "submit": "jobs in the queue",
    "submitjob": "jobs in the queue",
    "submitjobs": "jobs in the queue",
    "unknown": "some resource",
    "wall": "time",
    "wallduration": "time",
}


@cache  # thousands of elements wait for one reason
def in_words(reason: str) -> str:
    """`others are before it (Priority)`; Slurm's own word where none is known."""
    # "ReqNodeNotAvail, UnavailableNodes:node3" and "...,_UnavailableNodes:node3" name the nodes.
    plain, _, more = reason.partition(",")
    words = WORDS.get(reason) or WORDS.get(plain) or _limit(plain)
    nodes = more.partition("UnavailableNodes:")[2]
    told = f"{plain}: {nodes}" if nodes else plain
    return f"{words} ({told})" if words else reason


def _limit(reason: str) -> str | None:
    for pattern, words in LIMITS:
        found = re.fullmatch(pattern, reason.removesuffix("Limit").removesuffix("NotSatisfied"))
        if found:
            return words.format(_measure(found.group(1)))
    return None


def _measure(name: str) -> str:
    """`CPURunMinutes` -> `core minutes of what runs`."""
    found = re.fullmatch(r"(.*?)(Run)?(Minutes)?", name)
    assert found
    what = MEASURES.get(found.group(1).lower(), found.group(1) or "jobs")
    minutes = f"minutes of {what}" if found.group(3) else what
    return f"{minutes} that run" if found.group(2) else minutes
