"""Slurm's job states and pending reasons, explained."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import Final

from hpcncf.records.submissions import State

# The states and flags of slurm.schedmd.com/job_state_codes.html (Slurm 22.05 to 25.05) and of the
# manuals of squeue and sacct before it. One that is not here is `unknown`.
STATES: Final[dict[str, State]] = {
    "BOOT_FAIL": "node_failed",
    "CANCELLED": "cancelled",
    "COMPLETED": "completed",
    "COMPLETING": "running",
    "CONFIGURING": "pending",
    "DEADLINE": "timeout",
    "EXPEDITING": "pending",
    "FAILED": "failed",
    "LAUNCH_FAILED": "failed",
    "NODE_FAIL": "node_failed",
    "OUT_OF_MEMORY": "out_of_memory",
    "PENDING": "pending",
    "POWER_UP_NODE": "pending",
    "PREEMPTED": "stopped",
    "RECONFIG_FAIL": "failed",
    "REQUEUED": "pending",
    "REQUEUE_FED": "pending",
    "REQUEUE_HOLD": "pending",
    "RESIZING": "running",
    "RESV_DEL_HOLD": "pending",
    "REVOKED": "failed",
    "RUNNING": "running",
    "SIGNALING": "running",
    "SPECIAL_EXIT": "pending",
    "STAGE_OUT": "running",
    "STOPPED": "running",
    "SUSPENDED": "running",
    "TIMEOUT": "timeout",
    "UPDATE_DB": "running",
}

# Those in which the job is still Slurm's, or will be again.
NOT_OVER: Final = ("pending", "running")


@dataclass(frozen=True)
class JobState:
    """What Slurm says of one job or array element."""

    state: State
    word: str
    """Slurm's own word; empty where Slurm did not answer."""
    reason: str
    """Why it waits, or how it ended, in words."""
    node: str = ""
    """Slurm's list of its nodes: `cpu[03-05,9]`."""
    starts: str = ""
    """When Slurm expects a pending job to start, this machine's time: `2026-01-31T14:05:00`."""
    ended: str = ""
    """When it ended, likewise."""
    ended_ago_s: float | None = None
    """How long ago that was, when Slurm was asked."""
    elapsed_s: float | None = None
    restarts: int = 0
    """How often Slurm put it back into its queue."""
    remembered: bool = False
    """Whether this is what Slurm said some seconds ago."""


def state_of(word: str, job_id: str, detail: str = "") -> JobState:
    """Our word for Slurm's; sacct writes "CANCELLED by 1000" and "CANCELLED+" too."""
    plain = word.split()[0].rstrip("+") if word.split() else "nothing"
    state: State = STATES.get(plain, "unknown")
    if state == "pending" and plain == "PENDING":
        return JobState(state, plain, detail)
    said = f"Slurm job {job_id}: {word.rstrip('+') or plain}" + (f" ({detail})" if detail else "")
    return JobState(state, plain, "" if plain == "RUNNING" else said)


# The reasons are those of Slurm 22.05 to 25.05 (slurm.schedmd.com/job_reason_codes.html). One
# that is
# not here is shown as Slurm spells it.

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
