"""scontrol: shows jobs, nodes, partitions, the configuration; requeues, holds, updates."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Final

from fake_slurm.cluster import Cluster
from fake_slurm.jobs import Job, folded
from fake_slurm.nodes import unfolded
from fake_slurm.request import Refused
from fake_slurm.settings import Partition, Settings
from fake_slurm.times import full, stamp

OPTIONS: Final = {"--all", "-a", "--oneliner", "-o", "--quiet", "-Q", "-d", "--details"}


def answer(cluster: Cluster, words: list[str]) -> str:
    """Raises Refused as scontrol does."""
    options = {word for word in words if word in OPTIONS}
    verb, *rest = [word for word in words if word not in OPTIONS] or ["help"]
    if verb not in VERBS:
        raise Refused(f"invalid keyword: {verb}\n")
    said = VERBS[verb](cluster, rest)
    if options & {"--oneliner", "-o"}:
        records = [" ".join(record.split()) for record in said.split("\n\n")]
        return "".join(f"{record}\n" for record in records if record)
    return said


def _show(cluster: Cluster, words: list[str]) -> str:
    what, *names = words
    settings = cluster.queue.settings
    if what.startswith("job"):
        return _jobs(cluster, names)
    if what.startswith("host"):
        return "".join(f"{node}\n" for node in sorted(unfolded(",".join(names))))
    if what.startswith("conf"):
        return config(settings)
    if what.startswith("part"):
        return "\n".join(_partition(one, settings) for one in _chosen(settings, names))
    if what.startswith("node"):
        wanted = names or settings.nodes
        return "\n".join(_node(node, cluster) for node in wanted)
    if what.startswith("res"):
        return "No reservations in the system\n"
    raise Refused(f"invalid entity:{what} for keyword:show \n")


def _chosen(settings: Settings, names: list[str]) -> list[Partition]:
    for name in names:
        if name not in settings.partitions:
            raise Refused(f"slurm_load_partitions error: Invalid partition name specified\n{name}")
    return [one for one in settings.partitions.values() if not names or one.name in names]


def config(settings: Settings) -> str:
    told = {
        "AccountingStorageEnforce": "associations,limits,qos" if settings.accounting else "none",
        "AccountingStorageType": "accounting_storage/"
        + ("slurmdbd" if settings.accounting else "none"),
        "ClusterName": "fake",
        "EnforcePartLimits": "NO",
        "KillWait": f"{settings.kill_wait_s:g} sec",
        "MaxArraySize": str(settings.max_array_size),
        "MaxJobCount": "10000",
        "MinJobAge": "300 sec",
        "SLURM_VERSION": "22.05.8",
        "TaskPlugin": "task/none",
    }
    lines = [f"{name.ljust(23)} = {value}\n" for name, value in told.items()]
    return "Configuration data as of 2022-05-08T22:05:08\n" + "".join(lines) + "\n"


def _partition(one: Partition, settings: Settings) -> str:
    longest = "UNLIMITED" if one.max_min is None else full(one.max_min * 60)
    count = len(one.nodes)
    return (
        f"PartitionName={one.name}\n"
        "   AllowGroups=ALL AllowAccounts=ALL AllowQos=ALL\n"
        f"   AllocNodes=ALL Default={'YES' if one.name == 'cpu' else 'NO'} QoS=N/A\n"
        "   DefaultTime=00:10:00 DisableRootJobs=NO ExclusiveUser=NO GraceTime=0 Hidden=NO\n"
        f"   MaxNodes=UNLIMITED MaxTime={longest} MinNodes=0 LLN=NO MaxCPUsPerNode=UNLIMITED\n"
        f"   Nodes={folded(list(one.nodes))}\n"
        f"   PriorityJobFactor=1 PriorityTier={one.tier} RootOnly=NO ReqResv=NO\n"
        f"   State=UP TotalCPUs={count * settings.cpus} TotalNodes={count}\n"
        "   DefMemPerCPU=500 MaxMemPerNode=UNLIMITED\n"
    )


def _node(node: str, cluster: Cluster) -> str:
    settings = cluster.queue.settings
    taken = [job for job in cluster.queue.running() if node in job.nodes]
    used = sum(job.request.cpus_per_node for job in taken)
    member = [one.name for one in settings.partitions.values() if node in one.nodes]
    gpus = settings.gpus_of(node)
    return (
        f"NodeName={node} Arch=x86_64 CoresPerSocket={settings.cpus} \n"
        f"   CPUAlloc={used} CPUEfctv={settings.cpus} CPUTot={settings.cpus} CPULoad=0.00\n"
        "   AvailableFeatures=(null)\n"
        "   ActiveFeatures=(null)\n"
        f"   Gres={f'gpu:{gpus}' if gpus else '(null)'}\n"
        f"   NodeAddr=127.0.0.1 NodeHostName={node} Version=22.05.8\n"
        f"   RealMemory={settings.mem_mib} AllocMem=0 Sockets=1 Boards=1\n"
        f"   State={state_of(node, cluster).upper()} ThreadsPerCore=1 TmpDisk=0 Weight=1\n"
        f"   Partitions={','.join(member)} \n"
    )


def state_of(node: str, cluster: Cluster) -> str:
    if node in cluster.queue.down:
        return "down"
    here = [job for job in cluster.queue.running() if node in job.nodes]
    used = sum(job.request.cpus_per_node for job in here)
    if not used:
        return "idle"
    return "allocated" if used >= cluster.queue.settings.cpus else "mixed"


def _jobs(cluster: Cluster, names: list[str]) -> str:
    found = [job for name in names for job in cluster.queue.find(name)]
    if names and not found:
        raise Refused("slurm_load_jobs error: Invalid job id specified\n")
    return "".join(f"{_job(job)}\n" for job in found or cluster.queue.jobs)


def _job(job: Job) -> str:
    asked, request = job.request.asked, job.request
    element = ""
    if job.array is not None:
        throttle = f"ArrayTaskThrottle={request.throttle} " if request.throttle else ""
        element = f"ArrayJobId={job.array} ArrayTaskId={job.element} {throttle}"
    code, number = job.exit_code
    began = job.began or (job.eligible if job.reason == "BeginTime" else 0)
    start = stamp(began) if began else "Unknown"
    end = stamp(job.ended or began + job.limit_min * 60) if began else "Unknown"
    user = f"root({job.user})"
    host = f"   BatchHost={job.nodes[0]}\n" if job.nodes else ""
    return (
        f"JobId={job.number} {element}JobName={job.title}\n"
        f"   UserId={user} GroupId=root({os.getgid()}) MCS_label=N/A\n"
        f"   Priority=1 Nice=0 Account={asked.account or 'root'} QOS={asked.qos or 'normal'}\n"
        f"   JobState={job.shown} Reason={job.reason} Dependency={asked.dependency or '(null)'}\n"
        f"   Requeue={int(job.requeues)} Restarts={job.restarts} BatchFlag=1 Reboot=0"
        f" ExitCode={code}:{number}\n"
        f"   RunTime={full(job.elapsed())} TimeLimit={full(job.limit_min * 60)} TimeMin=N/A\n"
        f"   SubmitTime={stamp(job.submitted)} EligibleTime={stamp(job.submitted)}\n"
        f"   StartTime={start} EndTime={end} Deadline=N/A\n"
        f"   Partition={job.partition} AllocNode:Sid=localhost:1\n"
        "   ReqNodeList=(null) ExcNodeList=(null)\n"
        f"   NodeList={folded(job.nodes)}\n{host}"
        f"   NumNodes={asked.nodes} NumCPUs={job.cpus} NumTasks={request.tasks}"
        f" CPUs/Task={asked.cpus_per_task or 1}\n"
        f"   TRES=cpu={job.cpus},mem={request.mem_mib * asked.nodes}M,node={asked.nodes}\n"
        f"   Command={request.command or '(null)'}\n"
        f"   WorkDir={request.folder}\n"
    )


def _requeue(cluster: Cluster, words: list[str]) -> str:
    for word in ",".join(words).split(","):
        for job in _known(cluster, word):
            cluster.requeue(job)
    return ""


def _known(cluster: Cluster, word: str) -> list[Job]:
    found = cluster.queue.find(word)
    if not found:
        raise Refused(f"Invalid job id specified for job {word}\n")
    return found


def _held(held: bool) -> Callable[[Cluster, list[str]], str]:
    def change(cluster: Cluster, words: list[str]) -> str:
        for word in words:
            for job in _known(cluster, word):
                job.held, cluster.changed = held, True
        return ""

    return change


def _update(cluster: Cluster, words: list[str]) -> str:
    """`jobid=12 timelimit=5`, `jobid=12 starttime=now`, `nodename=node1 state=down reason=x`."""
    told = {key.lower(): value for key, _, value in (word.partition("=") for word in words)}
    for node in unfolded(told.get("nodename", "")):
        if told["state"].lower() == "down":
            cluster.fail_node(node)
        else:
            cluster.queue.down.discard(node)
    for job in _known(cluster, told["jobid"]) if "jobid" in told else []:
        job.limit_min = float(told.get("timelimit", job.limit_min))
        job.eligible = 0.0 if "starttime" in told else job.eligible
    cluster.changed = True
    return ""


def _ping(cluster: Cluster, _: list[str]) -> str:
    del cluster
    return f"Slurmctld(primary) at {os.uname().nodename} is UP\n"


VERBS: Final[dict[str, Callable[[Cluster, list[str]], str]]] = {
    "show": _show,
    "requeue": _requeue,
    "hold": _held(True),
    "release": _held(False),
    "update": _update,
    "ping": _ping,
}
