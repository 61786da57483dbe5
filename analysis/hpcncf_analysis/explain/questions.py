"""What a job's figures leave open, whoever reads them. Pure."""

from __future__ import annotations

from typing import Final

from hpcncf_analysis.explain.job import Job

# From here to here one core was busy, start-up and pauses included.
ONE: Final = (0.85, 1.15)
BUSY: Final = 0.9
HARDLY: Final = 0.5

NO_CPU: Final = "how many of its cores it used: the text does not tell CPU time and elapsed time"
NO_CORES: Final = "how many cores it had: --cores N tells"
WAITED: Final = (
    "what it waited for (files, the network, a GPU, other processes), or where its work was counted"
)
BUSY_WITH: Final = (
    "whether the busy cores did useful work: threads that wait for one another spin, and the "
    "kernel counts that as work",
    "how fast it was, and whether fewer cores would be as fast",
)
ONE_BUSY: Final = (
    "whether the job was held to fewer cores (affinity, cgroup, srun without --cpus-per-task) or "
    "its work is done by one thread",
    "if it was not held: whether input, the training step, evaluation or waiting takes the time",
)
SOME_BUSY: Final = (
    "whether some ranks or threads work while others wait, or all pause together",
    "where the time goes: input, the training step, synchronisation, evaluation",
)
NEIGHBOURS: Final = "whether others were busy on the same cores"
NODES: Final = "which node or rank waited for which"


def left_open(job: Job) -> list[str]:
    if job.is_waiting:
        return []
    if job.efficiency is None:
        return _without_cores(job)
    asked = [NO_CORES] if job.cores is None else []
    several = [NODES] if job.nodes and job.nodes > 1 else []
    return [*asked, *_of_cores(job, job.efficiency), *several]


def _without_cores(job: Job) -> list[str]:
    used = job.cores_used
    if used is None or job.cores is not None:
        return [NO_CPU]
    return [NO_CORES, *(ONE_BUSY if ONE[0] <= used <= ONE[1] else ()), NEIGHBOURS]


def _of_cores(job: Job, efficiency: float) -> list[str]:
    used = job.cores_used
    if efficiency >= BUSY:
        alone = job.cores == 1
        return ["whether a second core would make it faster"] if alone else list(BUSY_WITH)
    if (used is not None and used < HARDLY) or job.cores == 1:
        return [WAITED, NEIGHBOURS]
    one = used is None or used <= ONE[1]
    return [*(ONE_BUSY if one else SOME_BUSY), NEIGHBOURS]
