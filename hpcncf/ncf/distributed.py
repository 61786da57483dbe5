"""Join the process group, agree on when to stop, set threads, bind to cores."""

from __future__ import annotations

import os
import socket
import sys
import time
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from hpcncf.data import random_words
from hpcncf.errors import HpcncfError
from hpcncf.job.spec import Resources, Training
from hpcncf.launcher.environment import Place, master
from hpcncf.launcher.pinning import bind, refuse_other_binding, shares
from hpcncf.launcher.rendezvous import (
    Meeting,
    choose_interface,
    found_store,
    host_others,
    listening,
    meeting_of_run,
    own_address,
    resolved,
)
from hpcncf.launcher.signals import StopRequest
from hpcncf.monitor import topology
from hpcncf.monitor.cgroup import cpu_list, quota, usable_cpus

AGREE_EVERY_S = 0.5


@dataclass(frozen=True)
class StepDecision:
    """Decision of all ranks after a step: end the training, or save, and stop after a signal."""

    signum: int
    """The signal that stops the run; 0: continue after the checkpoint."""
    is_over: bool = False
    """Whether the training has had its time."""


class Agreement:
    """Agrees on the step after which all ranks save or stop.

    A rank that stopped by itself would leave the others waiting in their next step. So the ranks
    exchange their signals from time to time, and a signal that any rank received holds for all
    ranks."""

    def __init__(
        self, world_size: int, device: torch.device, stop: StopRequest, checkpoint_every_min: float
    ) -> None:
        """Prepare the agreement of all ranks on stops and checkpoints.

        `checkpoint_every_min` is the time in minutes after which the next checkpoint is due;
        with 0 none is ever due.
        """
        self._alone, self._device, self.stop = world_size == 1, device, stop
        self._checkpoint_every_s = checkpoint_every_min * 60
        self._saved_s = self._asked_s = time.perf_counter()
        self._every = self._left = 1

    def checkpoint_saved(self) -> None:
        """Restart the time to the next checkpoint; all ranks call it after the same step."""
        self._saved_s = time.perf_counter()

    def after_step(self, last: bool, is_over: bool = False) -> StepDecision | None:
        """Agree with the other ranks whether to end, save or stop after this step; None: neither.

        All ranks call it after the same steps. `last` tells that the step is the last of an
        epoch, `is_over` that this rank's training has had its time. The ranks exchange their
        signals about every half second, and after the last step.
        """
        if self._alone:
            signum, due = self.stop.signum or 0, self._due()
            return StepDecision(signum, is_over) if signum or due or is_over else None
        self._left -= 1
        if self._left > 0 and not last:
            return None
        passed_s = time.perf_counter() - self._asked_s
        # The maximum of each is bitwise the same on all ranks; a sum need not be.
        mine = [float(self.stop.signum or 0), float(self._due()), float(is_over), passed_s]
        values = torch.tensor(mine, dtype=torch.float64, device=self._device)
        dist.all_reduce(values, op=dist.ReduceOp.MAX)
        signum, due, over, passed_s = values.tolist()
        taken = self._every - self._left  # fewer than planned at an epoch's end
        self._every = self._left = steps_until_next(taken, passed_s)
        self._asked_s = time.perf_counter()
        return StepDecision(int(signum), bool(over)) if signum or due or over else None

    def _due(self) -> bool:
        every_s = self._checkpoint_every_s
        return every_s > 0 and time.perf_counter() - self._saved_s >= every_s


def steps_until_next(taken: int, passed_s: float) -> int:
    """Number of steps until the next exchange of signals, about half a second apart.

    It is judged by the last `taken` steps, which took `passed_s` seconds.

    At most twice as many as before: after a burst of fast steps the ranks must still react soon.
    """
    fitting = int(taken * AGREE_EVERY_S / max(passed_s, 1e-9))
    return max(1, min(2 * taken, fitting))


def seed_dropout(seed: int, epoch: int, rank: int) -> None:
    high, low, *_ = random_words.philox_block(seed, random_words.DROPOUT, epoch, rank, 0)
    torch.manual_seed(high << 32 | low)


def rng_state(device: torch.device) -> Tensor:
    """State of the device's random number generator, for `restore_rng`."""
    if device.type == "cuda":
        return torch.cuda.get_rng_state(device)
    return torch.get_rng_state()


def restore_rng(device: torch.device, state: Tensor) -> None:
    if device.type == "cuda":
        torch.cuda.set_rng_state(state, device)
    else:
        torch.set_rng_state(state)


# Longer than any rank works alone (an evaluation, a checkpoint).
TIMEOUT = timedelta(minutes=10)


def join_group(place: Place, resources: Resources, training: Training, run_id: str = "") -> None:
    """Join the run's process group; a run of one rank needs none.

    Raises HpcncfError if the other ranks do not join, or if torch sees no GPU for a run that needs
    one.
    """
    if place.world_size == 1 or dist.is_initialized():
        return
    nccl = training.backend_for(resources) == "nccl"
    bound = select_device(training, resources, place) if nccl else None
    # For its log, torch looks up the name of each rank's address; a name service that cannot be
    # reached delayed every rank by ten seconds. glibc reads this variable.
    os.environ.setdefault("RES_OPTIONS", "timeout:1 attempts:1")
    try:
        store = None
        if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
            choose_interface(resolved(master()))  # torchrun's store listens on all addresses
        else:
            store = _store(place, meeting_of_run(run_id))
        dist.init_process_group(
            training.backend_for(resources),
            timeout=TIMEOUT,
            store=store,
            # With a store torch does not read the environment; without one it reads nothing else.
            rank=place.rank if store else -1,
            world_size=place.world_size if store else -1,
            # nccl then connects here, where an error is reported, and no barrier guesses a GPU.
            device_id=bound,
        )
    except dist.DistError as error:
        raise HpcncfError(
            f"rank {place.rank} of {place.world_size}: cannot join the process group: {error}"
        ) from error


def _store(place: Place, at: Meeting) -> TCPStore:
    """Connect to the key-value store of rank 0, which rank 0 itself creates.

    It listens only on the address that leads to the other ranks.
    """
    if place.rank != 0:
        address = resolved(at.host)
        choose_interface(address)
        port = found_store(at, address, TIMEOUT.total_seconds())
        return _tcp_store(address, port, place)
    address = own_address(at.host)
    choose_interface(address)
    desk, ours = listening(address, at.ports), listening(address, [0])
    port = ours.getsockname()[1]
    store = _tcp_store(address, port, place, ours.detach())
    host_others(at, desk, port, place.world_size - 1)
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


def leave_group() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


def wait_for_ranks(place: Place) -> float:
    """Wait until all ranks arrive here; returns the seconds waited."""
    began = time.perf_counter()
    if place.world_size > 1:
        dist.barrier()
    return time.perf_counter() - began


def gather_objects(value: Any, place: Place) -> list[Any]:
    """Collect a value from every rank; returns them in the order of the ranks."""
    if place.world_size == 1:
        return [value]
    values: list[Any] = [None] * place.world_size
    dist.all_gather_object(values, value)
    return values


def usable_cores(mine: list[int], node: list[list[int]], quota: float | None) -> float:
    """Number of cores that a rank can use, a fraction if ranks share CPUs.

    The rank's CPUs `mine` are divided by the number of ranks in `node` (itself included) whose
    CPUs overlap with them. `quota` is the node's limit in cores, shared by all of its ranks.
    """
    sharing = sum(1 for cpus in node if set(cpus) & set(mine))
    share = len(mine) / sharing
    return share if quota is None else min(share, quota / len(node))


def choose_threads(asked: int | str, cpus_per_task: int, usable: float) -> int:
    """Choose a rank's number of intra-op threads.

    Raises HpcncfError if the settings ask for more threads than the rank has cores.
    """
    if asked == "auto":
        return max(1, min(cpus_per_task, int(usable)))
    if int(asked) > max(1.0, usable):
        raise HpcncfError(
            f"training.threads {asked}: this rank can use only {usable:g} cores (CPU affinity, "
            "cgroup quota, and other ranks on the same CPUs counted), and oversubscribed threads "
            "slow each other down. Use auto, or start it with more cores."
        )
    return int(asked)


def set_threads(training: Training, resources: Resources, place: Place) -> int:
    """Set torch's number of threads to the cores of this rank, and return it."""
    node = (socket.gethostname(), usable_cpus(), quota())
    others = [cpus for name, cpus, _ in gather_objects(node, place) if name == node[0]]
    usable = usable_cores(node[1], others, node[2])
    if sharing := describe_shared_cpus(node[1], others, resources.cpus_per_task):
        sys.stderr.write(f"hpcncf: WARNING: rank {place.rank}: {sharing}\n")
    number = choose_threads(training.threads, resources.cpus_per_task, usable)
    torch.set_num_threads(number)
    # A process may set it only once. Operations of this model wait for each other.
    if torch.get_num_interop_threads() != 1:
        torch.set_num_interop_threads(1)
    return number


def describe_shared_cpus(mine: list[int], node: list[list[int]], wanted: int) -> str | None:
    """Warn if the ranks of a node have too few CPUs for `wanted` each; else None.

    `mine` are the CPUs of this rank, `node` those of all ranks of the node, itself included.
    """
    every = {cpu for cpus in node for cpu in cpus}
    if len(mine) < wanted or len(every) >= wanted * len(node):
        return None
    return (
        f"{len(node)} ranks share the CPUs {cpu_list(sorted(every))} of this node: each should "
        f"have {wanted} of its own, so they are oversubscribed. Give each rank its CPUs "
        f"(srun --cpus-per-task={wanted}, no --overcommit, no --overlap)"
    )


def synchronize(device: torch.device) -> None:
    """Wait for all kernels queued on a GPU, so that timings include them."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def select_device(training: Training, resources: Resources, place: Place) -> torch.device:
    """Select the device of this rank. Raises HpcncfError if it needs a GPU and there is none."""
    if training.device_for(resources) == "cpu":
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise HpcncfError(
            "training.device cuda: torch sees no GPU here (`hpcncf doctor` shows what it sees). "
            "Use device cpu, or ask for gpus_per_node."
        )
    chosen = torch.device("cuda", place.local_rank % torch.cuda.device_count())
    torch.cuda.set_device(chosen)
    return chosen


def pin_rank(each: int, place: Place) -> None:
    """Bind this rank to `each` cores of its node.

    Memory needs no policy: the kernel puts a page on the NUMA node of the CPU that writes it
    first.

    Raises HpcncfError if there are too few cores, or no way to bind to them.
    """
    if sys.platform != "linux":
        raise HpcncfError("training.pin cores: only Linux binds processes. Use pin none.")
    refuse_other_binding()
    if os.environ.get("HPCNCF_NODE_CPUS") == "":
        raise HpcncfError(
            "training.pin cores: the co-located runs of this job are not confined to cores of "
            "their own, so all would bind to the same ones. Use pin none."
        )
    mine = (socket.gethostname(), usable_cpus())
    every = gather_objects(mine, place)
    here = [rank for rank, (name, _) in enumerate(every) if name == mine[0]]
    masks = [every[rank][1] for rank in here]
    found = topology.cores(cpu for mask in masks for cpu in mask)
    own = shares(masks, each, found)[here.index(place.rank)]
    bind(own)
    if set(own) != os.sched_getaffinity(0):
        raise HpcncfError(f"training.pin cores: the kernel did not bind this rank to {own}")
