"""One torchrun per node as the task of a Slurm step: how it is started, and told of signals.

Its ranks are those of srun in all but their parent: same place, same share of the cores, same
records.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Final

import psutil

from hpcncf.local.processes import end_with_parent
from hpcncf.monitor import numa
from hpcncf.plan import Run
from hpcncf.rank import launcher, meeting
from hpcncf.rank.launcher import Place

# Longer than any of the tasks takes to start on a busy machine, shorter than a night.
TIMEOUT_S: Final = 600.0


def command(run: Run, worker: Sequence[str], env: Mapping[str, str] = os.environ) -> list[str]:
    """What each node's task starts; the tasks agree on a port first. `worker`: behind `-m`."""
    address, port = _agreed(run.id, launcher.place(env), env)
    return [
        *(sys.executable, "-P", "-u", "-m", "torch.distributed.run"),
        *("--nnodes", str(run.resources.nodes), "--node-rank", env.get("SLURM_NODEID", "0")),
        *("--nproc-per-node", str(run.resources.tasks_per_node), "--max-restarts", "0"),
        *("--master-addr", address, "--master-port", str(port)),
        *("--no-python", sys.executable, "-P", "-u", "-m", *worker),
    ]


def _agreed(run_id: str, task: Place, env: Mapping[str, str]) -> tuple[str, int]:
    """Address and port of torchrun's own store, which the first node's torchrun makes anew."""
    at = meeting.of_run(f"{run_id} torchrun", env)
    if task.rank != 0:
        address = meeting.resolved(at.host)
        return address, meeting.found_store(at, address, TIMEOUT_S)
    address = meeting.own_address(at.host, env)
    with meeting.listening("", at.ports[8:]) as probe:  # it listens on all addresses
        port = probe.getsockname()[1]
    if task.world_size > 1:
        desk = meeting.listening(address, at.ports[:8])
        meeting.host_others(at, desk, port, task.world_size - 1)
    return address, port


def prepare() -> None:
    """In torchrun's process, before it is one.

    Slurm may send its warning to every process of the step, and torchrun would end by it. Blocked,
    it waits; torchrun's ranks inherit that, and open up for it when they can handle it.
    """
    end_with_parent()
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2])


def pass_on(agent: subprocess.Popen[bytes], signum: int) -> None:
    """To the ranks alone: torchrun, told to end, gives them half a minute and fails."""
    try:
        ranks = psutil.Process(agent.pid).children()
    except psutil.NoSuchProcess:
        return
    for rank in ranks:
        try:
            rank.send_signal(signum)
        except psutil.NoSuchProcess:
            continue
    if not ranks:  # it is still starting
        agent.terminate()


def own_cpus(usable: Sequence[int], place: Place) -> list[int]:
    """A rank's even share of its task's CPUs, in their order; all of them where they are fewer."""
    share = len(usable) // place.local_world_size
    return list(usable[place.local_rank * share : (place.local_rank + 1) * share] or usable)


def bind(env: Mapping[str, str] = os.environ) -> None:
    """On CPUs of its own a rank is as one of srun's, which binds them so."""
    if "TORCHELASTIC_RUN_ID" in env and "SLURM_STEP_ID" in env and sys.platform == "linux":
        place = launcher.place(env)
        # By core: two ranks on the hardware threads of one would slow each other down.
        usable = [cpu for core in numa.cores(os.sched_getaffinity(0)) for cpu in core.cpus]
        os.sched_setaffinity(0, own_cpus(usable, place))
