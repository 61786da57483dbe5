"""Rank and world size, from the launcher's environment."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, get_args

from hpcncf.errors import UsageError

if TYPE_CHECKING:
    from hpcncf.job.spec import Training
    from hpcncf.records.schema import Epoch

# A host name's parts: plain text, or numbers in brackets.
PART = re.compile(r"\[([^\]]*)\]|([^\[\],]+)")


def hosts(nodelist: str) -> list[str]:
    """Expand Slurm's node list to host names: `r[1-2]n[03-04],x` to r1n03, ..., r2n04, x."""
    found = list[str]()
    for name in re.findall(r"(?:\[[^\]]*\]|[^\[\],])+", nodelist):  # cut at commas outside brackets
        parts = [[text] if text else _numbers(ranges) for ranges, text in PART.findall(name)]
        found += map("".join, itertools.product(*parts))
    return found


def _numbers(ranges: str) -> Iterator[str]:
    """Expand number ranges: `01-03,7` to 01, 02, 03, 7, as wide as each range's first number."""
    for part in ranges.split(","):
        first, _, last = part.partition("-")
        for number in range(int(first), int(last or first) + 1):
            yield str(number).zfill(len(first))


def per_node(compressed: str) -> list[int]:
    """Expand Slurm's compressed list: `2(x3),1` to [2, 2, 2, 1]; [] if it is malformed."""
    found: list[int] = []
    for part in compressed.split(","):
        number = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part)
        if number is None:
            return []
        found += [int(number[1])] * int(number[2] or 1)
    return found


LaunchedBy = Literal["local", "slurm", "torchrun", "run", "train"]

FIRST_PORT: Final = 12000
PORTS: Final = 20000


class Place(NamedTuple):
    """A rank's place among the ranks of its run; the default is the only one."""

    rank: int = 0
    local_rank: int = 0
    world_size: int = 1
    local_world_size: int = 1
    node_index: int = 0

    @property
    def prefix(self) -> str:
        """Prefix of this rank's messages, such as `rank 3: `; empty if the run has one rank."""
        return f"rank {self.rank}: " if self.world_size > 1 else ""


# rank, ranks, rank on its node, ranks on the node; mpirun of Open MPI, of MPICH and Intel MPI
MPI_VARIABLES: Final = (
    (
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
    ),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
)


def place_of_command(env: Mapping[str, str] = os.environ) -> Place:
    """Return the rank of a command that torchrun, mpirun or `srun` started, else rank 0 of 1.

    RANK alone may have been set by hand, for the program only. mpirun's variables come before
    Slurm's: its daemons are a step of their own.
    """
    if "TORCHELASTIC_RUN_ID" in env:
        return place(env)
    for names in MPI_VARIABLES:
        if all(env.get(name, "").isdecimal() for name in names):
            rank, world, local_rank, local = (int(env[name]) for name in names)
            # All ranks must know what start they are of: see `start_of_ranks`.
            if local == world or "SLURM_JOB_ID" in env or "PMIX_NAMESPACE" in env:
                return Place(rank, local_rank, world, local, rank // max(local, 1))
    if "SLURM_STEP_NUM_TASKS" not in env:
        return Place()
    # Scripts often set RANK and WORLD_SIZE from Slurm's, without LOCAL_WORLD_SIZE.
    return place(env) if env["SLURM_STEP_NUM_TASKS"] == "1" else _place_from_slurm(env)


def place(env: Mapping[str, str] = os.environ) -> Place:
    """Return this process's rank and world size from torch's variables, or a Slurm step's.

    Without either, it is rank 0 of 1. torchrun and hpcncf's own local launcher set torch's
    variables.
    """
    if "RANK" in env and "WORLD_SIZE" in env:
        return _place_from_torch(env)
    # A batch script outside of srun has SLURM_PROCID too; only a step has its number of tasks.
    if "SLURM_PROCID" in env and "SLURM_STEP_NUM_TASKS" in env:
        return _place_from_slurm(env)
    return Place()


def _place_from_torch(env: Mapping[str, str]) -> Place:
    world, local = _number(env, "WORLD_SIZE"), _number(env, "LOCAL_WORLD_SIZE", "WORLD_SIZE")
    rank = _number(env, "RANK")
    return Place(
        rank=rank,
        local_rank=_number(env, "LOCAL_RANK", "RANK"),
        world_size=world,
        local_world_size=local,
        node_index=int(env.get("GROUP_RANK", rank // max(local, 1))),
    )


def _place_from_slurm(env: Mapping[str, str]) -> Place:
    world = _number(env, "SLURM_STEP_NUM_TASKS")
    nodes = int(env.get("SLURM_STEP_NUM_NODES", "1"))
    tasks = on_this_node(env, "SLURM_STEP_TASKS_PER_NODE")
    return Place(
        rank=_number(env, "SLURM_PROCID"),
        local_rank=_number(env, "SLURM_LOCALID"),
        world_size=world,
        local_world_size=tasks[0] if tasks else -(-world // nodes),
        node_index=int(env.get("SLURM_NODEID", "0")),
    )


def _number(env: Mapping[str, str], *names: str) -> int:
    """Return the value of the first of these variables that is set.

    Raises UsageError if none is set, or if the value is not a whole number.
    """
    for name in names:
        if name in env:
            if not env[name].isdecimal():
                raise UsageError(f"environment: {name}: expected a number, came {env[name]!r}")
            return int(env[name])
    raise UsageError(f"environment: {names[0]} is not set, while other ranks' variables are")


def rendezvous(env: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the environment variables that torch's `env://` rendezvous reads.

    Address and port are derived from Slurm's variables where no launcher has set them.

    For programs that are not ours: our own ranks meet by `rank.meeting`.
    """
    here = place(env)
    known = {"RANK": str(here.rank), "WORLD_SIZE": str(here.world_size)}
    if "RANK" in env and "MASTER_ADDR" in env:  # the latter alone leaks from login shells
        return known
    port = candidates(start_of_ranks(env))[0]
    return known | {"MASTER_ADDR": master(env), "MASTER_PORT": str(port)}


def master(env: Mapping[str, str] = os.environ) -> str:
    """Return the address of the host of rank 0; 127.0.0.1 if the ranks are on one node."""
    if "RANK" in env and "MASTER_ADDR" in env:
        return env["MASTER_ADDR"]
    if env.get("SLURM_STEP_NUM_NODES", "1") == "1":
        return "127.0.0.1"
    return hosts(env["SLURM_STEP_NODELIST"])[0]


def start_of_ranks(env: Mapping[str, str] = os.environ) -> str:
    """Return a text that is the same for all ranks that start together, and only for them.

    A requeued job has another text at each start.
    """
    names = ("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT", "MASTER_PORT")
    start = [env.get(name, "-") for name in names]
    if "PMIX_NAMESPACE" in env:
        start.append(env["PMIX_NAMESPACE"])
    elif "MPI_LOCALNRANKS" in env:
        # MPICH's mpirun gives its start no name; its ranks of a node have one parent.
        start.append(str(os.getppid()))
    return " ".join(start)


def candidates(start: str) -> list[int]:
    """Return the ports at which rank 0 of this start may listen, in the order to try them.

    Below the range from which Linux and macOS give ports away by themselves.
    """
    import hashlib

    words = hashlib.sha256(start.encode()).digest()
    drawn = (int.from_bytes(words[at : at + 2], "big") for at in range(0, len(words), 2))
    return [FIRST_PORT + number % PORTS for number in drawn]


def on_this_node(env: Mapping[str, str], name: str) -> list[int]:
    """Return this node's entry of a Slurm variable with one number per node, as a list.

    The list is empty if this node's position is unknown.
    """
    every = per_node(env.get(name, ""))
    if len(set(every)) == 1:
        return every[:1]
    at = int(env.get("SLURM_NODEID", "0"))
    return every[at : at + 1] if str(len(every)) == env.get("SLURM_STEP_NUM_NODES") else []


def launched_by(env: Mapping[str, str] = os.environ) -> LaunchedBy:
    named = env.get("HPCNCF_LAUNCHED_BY")
    if named is not None:
        for known in get_args(LaunchedBy):
            if named == known:
                return known  # type: ignore[no-any-return]
        raise UsageError(
            f"environment: HPCNCF_LAUNCHED_BY: expected one of "
            f"{', '.join(get_args(LaunchedBy))}; came {named!r}"
        )
    if "TORCHELASTIC_RUN_ID" in env:
        return "torchrun"
    return "slurm" if "SLURM_STEP_NUM_TASKS" in env else "train"


def requeued(job_id: str | None, env: Mapping[str, str] = os.environ) -> bool:
    """Return whether this process runs in a later start of the Slurm job `job_id`.

    If so, Slurm has ended the earlier start.
    """
    restarts = env.get("SLURM_RESTART_COUNT", "0")  # there from the first start since 23.11
    return restarts != "0" and job_id is not None and job_id == slurm_job_id(env)


def slurm_job_id(env: Mapping[str, str] = os.environ) -> str | None:
    """Return Slurm's job id: `123_4` in an array, `123` otherwise; None outside of Slurm."""
    if "SLURM_ARRAY_JOB_ID" in env and "SLURM_ARRAY_TASK_ID" in env:
        return f"{env['SLURM_ARRAY_JOB_ID']}_{env['SLURM_ARRAY_TASK_ID']}"
    return env.get("SLURM_JOB_ID")


def set_openmp(training: Training) -> list[str]:
    """Set OMP_WAIT_POLICY for the run; return a warning if torch was loaded before.

    OpenMP reads the variable only when it is loaded, as part of torch.
    """
    if training.omp_wait_policy == "default":
        return []
    os.environ["OMP_WAIT_POLICY"] = training.omp_wait_policy
    if "torch" not in sys.modules:
        return []
    return ["training.omp_wait_policy has no effect: torch was loaded before the run was known"]


def epoch_line(epoch: Epoch, epochs: int) -> str:
    """Format the log line of an epoch: its loss, quality, speed and seconds.

    For example `epoch 1/3: loss 0.4213, HR@10 0.312, NDCG@10 0.190, 152,331 instances/s, 2.4 s,
    0.1 s of them evaluation`.
    """
    parts = [f"loss {epoch.loss:.4f}"]
    if epoch.hr10 is not None and epoch.ndcg10 is not None:
        parts.append(f"HR@10 {epoch.hr10:.3f}, NDCG@10 {epoch.ndcg10:.3f}")
    if epoch.training_s > 0:
        parts.append(f"{epoch.instances / epoch.training_s:,.0f} instances/s")
    parts.append(f"{epoch.training_s + epoch.evaluation_s + epoch.checkpoint_s:.1f} s")
    if epoch.hr10 is not None:
        parts.append(f"{epoch.evaluation_s:.1f} s of them evaluation")
    return f"epoch {epoch.epoch + 1}/{epochs}: {', '.join(parts)}"


def end_line(record: Path) -> str:
    return f"completed; record: {record}"


def print_line(line: str) -> None:
    """Print a line and flush it at once; errors such as a full disk are ignored."""
    with contextlib.suppress(OSError):
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()
