"""Joining the group of ranks, how many threads a rank may use, and what gloo's errors mean."""

from __future__ import annotations

import os
import socket
import sys
import time
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from hpcncf.errors import HpcncfError
from hpcncf.monitor import cores
from hpcncf.rank import launcher, meeting
from hpcncf.rank.launcher import Place
from hpcncf.rank.meeting import Meeting
from hpcncf.spec import Resources, Training

# Longer than any rank works alone (an evaluation, a checkpoint), shorter than a night of waiting.
TIMEOUT = timedelta(minutes=10)


def join(place: Place, resources: Resources, training: Training, run_id: str = "") -> None:
    """Join the run's group; a run of one rank needs none.

    Raises HpcncfError where the others do not come, or a GPU is asked for and torch sees none.
    """
    if place.world_size == 1 or dist.is_initialized():
        return
    nccl = training.backend_for(resources) == "nccl"
    bound = device(training, resources, place) if nccl else None
    # For a line of its log, torch asks the name service whose address that of each other rank is:
    # one that cannot be reached held every rank up for ten seconds. glibc reads this.
    os.environ.setdefault("RES_OPTIONS", "timeout:1 attempts:1")
    try:
        store = None if _agents_store() else _store(place, meeting.of_run(run_id))
        dist.init_process_group(
            training.backend_for(resources),
            timeout=TIMEOUT,
            store=store,
            # With a store torch reads no environment; without one, nothing else.
            rank=place.rank if store else -1,
            world_size=place.world_size if store else -1,
            # nccl then connects here, where a failure is told, and no barrier guesses a GPU.
            device_id=bound,
        )
    except dist.DistError as error:
        raise HpcncfError(
            f"rank {place.rank} of {place.world_size}: no group of ranks: {error}"
        ) from error


def _agents_store() -> bool:
    """torchrun's own, which its ranks are to use; it listens on all of the host's addresses."""
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return False
    meeting.choose_interface(meeting.resolved(launcher.master()))
    return True


def _store(place: Place, at: Meeting) -> TCPStore:
    """Rank 0's, which listens on the one address that leads to the other ranks."""
    if place.rank != 0:
        address = meeting.resolved(at.host)
        meeting.choose_interface(address)
        port = meeting.found_store(at, address, TIMEOUT.total_seconds())
        return _tcp_store(address, port, place)
    address = meeting.own_address(at.host)
    meeting.choose_interface(address)
    desk, ours = meeting.listening(address, at.ports), meeting.listening(address, [0])
    port = ours.getsockname()[1]
    store = _tcp_store(address, port, place, ours.detach())
    meeting.host_others(at, desk, port, place.world_size - 1)
    return store


def _tcp_store(address: str, port: int, place: Place, socket: int | None = None) -> TCPStore:
    return TCPStore(
        address,
        port,
        place.world_size,
        is_master=place.rank == 0,
        timeout=TIMEOUT,
        wait_for_workers=False,
        master_listen_fd=socket,
    )


def leave() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


def wait_for_all(place: Place) -> float:
    """Returns the seconds waited."""
    began = time.perf_counter()
    if place.world_size > 1:
        dist.barrier()
    return time.perf_counter() - began


def gathered(value: Any, place: Place) -> list[Any]:
    """Every rank's value, by rank."""
    if place.world_size == 1:
        return [value]
    values: list[Any] = [None] * place.world_size
    dist.all_gather_object(values, value)
    return values


def cores_of(mine: list[int], node: list[list[int]], quota: float | None) -> float:
    """Cores a rank may really use: its CPUs shared among the ranks of its node whose CPUs overlap,
    its own among them in `node`; a quota is shared by all of the node's ranks."""
    sharing = sum(1 for cpus in node if set(cpus) & set(mine))
    share = len(mine) / sharing
    return share if quota is None else min(share, quota / len(node))


def threads(asked: int | str, cpus_per_task: int, usable: float) -> int:
    """Intra-op threads of a rank. Raises HpcncfError where more are asked for than it has cores."""
    if asked == "auto":
        return max(1, min(cpus_per_task, int(usable)))
    if int(asked) > max(1.0, usable):
        raise HpcncfError(
            f"training.threads {asked}: this rank may use {usable:g} cores (CPU affinity, cgroup "
            "quota, and other ranks on the same CPUs counted); threads without a core of their own "
            "take turns and slow each other down: use auto, or start it with more cores"
        )
    return int(asked)


def set_threads(training: Training, resources: Resources, place: Place) -> int:
    """Give torch as many threads as this rank has cores for; returns their number."""
    node = (socket.gethostname(), cores.usable_cpus(), cores.quota())
    others = [cpus for name, cpus, _ in gathered(node, place) if name == node[0]]
    usable = cores_of(node[1], others, node[2])
    if sharing := shared(node[1], others, resources.cpus_per_task):
        sys.stderr.write(f"hpcncf: WARNING: rank {place.rank}: {sharing}\n")
    number = threads(training.threads, resources.cpus_per_task, usable)
    torch.set_num_threads(number)
    if torch.get_num_interop_threads() != training.interop_threads:  # a process may set it once
        torch.set_num_interop_threads(training.interop_threads)
    return number


def warnings_distributed(training: Training) -> list[str]:
    """Settings of torch's threads, which do nothing where torch computes no step."""
    if training.engine != "native":
        return []
    idle = {
        "interop_threads": training.interop_threads > 1,
        "omp_wait_policy": training.omp_wait_policy != "default",
    }
    return [
        f"training.{name} has no effect: it is about torch's threads, and engine native has its own"
        for name, given in idle.items()
        if given
    ]


def shared(mine: list[int], node: list[list[int]], wanted: int) -> str | None:
    """What to know where ranks of a node take turns on too few CPUs; `mine` is in `node`."""
    every = {cpu for cpus in node for cpu in cpus}
    if len(mine) < wanted or len(every) >= wanted * len(node):
        return None
    return (
        f"{len(node)} ranks share the CPUs {cores.cpu_list(sorted(every))} of this node, where "
        f"each was to have {wanted} of its own: they take turns. Give each rank its CPUs "
        f"(srun --cpus-per-task={wanted}, no --overcommit, no --overlap)"
    )


def finished(device: torch.device) -> None:
    """Wait for what was queued on a GPU: an epoch's last steps are in its time."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def device(training: Training, resources: Resources, place: Place) -> torch.device:
    """Raises HpcncfError where a GPU is asked for and torch sees none."""
    if training.device_for(resources) == "cpu":
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise HpcncfError(
            "training.device cuda: torch sees no GPU here (`hpcncf doctor` tells what it sees); "
            "use device cpu, or ask for gpus_per_node"
        )
    chosen = torch.device("cuda", place.local_rank % torch.cuda.device_count())
    torch.cuda.set_device(chosen)
    return chosen
