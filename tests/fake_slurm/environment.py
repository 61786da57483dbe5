"""The variables that Slurm 22.05 gives to a batch script and to each task of a step."""

from __future__ import annotations

import os

from fake_slurm.jobs import Job, Step, folded

CLUSTER = "fake"


def batch(job: Job) -> dict[str, str]:
    request, asked = job.request, job.request.asked
    count, per_node = len(job.nodes), request.tasks_per_node
    told = {
        "SLURMD_NODENAME": job.nodes[0],
        "SLURM_CLUSTER_NAME": CLUSTER,
        "SLURM_CPUS_ON_NODE": request.cpus_per_node,
        "SLURM_GTIDS": 0,
        "SLURM_JOBID": job.number,
        "SLURM_JOB_ACCOUNT": asked.account or "root",
        "SLURM_JOB_CPUS_PER_NODE": _times(request.cpus_per_node, count),
        "SLURM_JOB_GID": os.getgid(),
        "SLURM_JOB_ID": job.number,
        "SLURM_JOB_NAME": job.title,
        "SLURM_JOB_NODELIST": folded(job.nodes),
        "SLURM_JOB_NUM_NODES": count,
        "SLURM_JOB_PARTITION": job.partition,
        "SLURM_JOB_QOS": asked.qos or "normal",
        "SLURM_JOB_UID": job.user,
        "SLURM_LOCALID": 0,
        "SLURM_NNODES": count,
        "SLURM_NODEID": 0,
        "SLURM_NODELIST": folded(job.nodes),
        "SLURM_PROCID": 0,
        "SLURM_SUBMIT_DIR": request.folder,
        "SLURM_SUBMIT_HOST": os.uname().nodename,
        "SLURM_TASKS_PER_NODE": _times(per_node, count),
    }
    return {name: str(value) for name, value in (told | _asked(job) | _array(job)).items()}


def _asked(job: Job) -> dict[str, object]:
    """What is told only where it was asked for."""
    asked, request = job.request.asked, job.request
    told: dict[str, object] = {}
    if asked.cpus_per_task:
        told["SLURM_CPUS_PER_TASK"] = asked.cpus_per_task
    if asked.ntasks or asked.ntasks_per_node:
        told |= {"SLURM_NTASKS": request.tasks, "SLURM_NPROCS": request.tasks}
    if asked.ntasks_per_node:
        told["SLURM_NTASKS_PER_NODE"] = asked.ntasks_per_node
    if asked.mem:
        told["SLURM_MEM_PER_NODE"] = request.mem_mib
    if request.gpus:
        told |= {"SLURM_GPUS_ON_NODE": request.gpus, "CUDA_VISIBLE_DEVICES": _devices(request.gpus)}
    if job.restarts:
        told["SLURM_RESTART_COUNT"] = job.restarts
    return told


def _devices(count: int) -> str:
    return ",".join(str(number) for number in range(count))


def _array(job: Job) -> dict[str, object]:
    if job.array is None:
        return {}
    elements = [element for element in job.request.elements if element is not None]
    step = elements[1] - elements[0] if len(elements) > 1 else 1
    return {
        "SLURM_ARRAY_JOB_ID": job.array,
        "SLURM_ARRAY_TASK_ID": job.element,
        "SLURM_ARRAY_TASK_COUNT": len(elements),
        "SLURM_ARRAY_TASK_MIN": elements[0],
        "SLURM_ARRAY_TASK_MAX": elements[-1],
        "SLURM_ARRAY_TASK_STEP": step,
    }


def task(step: Step, rank: int) -> dict[str, str]:
    """Block distribution: ranks fill a node before they go to the next."""
    per_node = -(-step.tasks // len(step.nodes))
    node = rank // per_node
    here = [str(each) for each in range(step.tasks) if each // per_node == node]
    told = {
        "SLURMD_NODENAME": step.nodes[node],
        "SLURM_CPUS_PER_TASK": step.cpus // step.tasks,
        "SLURM_DISTRIBUTION": "block",
        "SLURM_GTIDS": ",".join(here),
        "SLURM_LAUNCH_NODE_IPADDR": "127.0.0.1",
        "SLURM_LOCALID": rank % per_node,
        "SLURM_NODEID": node,
        "SLURM_NPROCS": step.tasks,
        "SLURM_NTASKS": step.tasks,
        "SLURM_PROCID": rank,
        "SLURM_SRUN_COMM_HOST": "127.0.0.1",
        "SLURM_STEPID": step.name,
        "SLURM_STEP_ID": step.name,
        "SLURM_STEP_NODELIST": folded(step.nodes),
        "SLURM_STEP_NUM_NODES": len(step.nodes),
        "SLURM_STEP_NUM_TASKS": step.tasks,
        "SLURM_STEP_TASKS_PER_NODE": _times(per_node, len(step.nodes)),
    }
    return {name: str(value) for name, value in told.items()}


def _times(number: int, nodes: int) -> str:
    return f"{number}(x{nodes})" if nodes > 1 else str(number)
