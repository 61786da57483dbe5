"""What `hpcncf lint` finds, and what to do instead."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from hpcncf.errors import plural

DRAW_NEGATIVES: Final = "Draw negatives for a whole batch at once: hpcncf.remedies.NegativeSampler"
# In the order of docs/lint.md.
RULES: Final = {
    "set-difference": "builds a list of all items except the user's to draw a few of them. "
    f"{DRAW_NEGATIVES}",
    "pandas-per-sample": ".{name} goes through pandas for each sample. Convert the columns to "
    "arrays once, in __init__ (`self.users = frame['user'].to_numpy()`)",
    "tensor-per-sample": "creates a tensor for each sample, by {name}(). Index tensors created "
    "once, or add `__getitems__`, which creates a whole batch",
    "no-shuffle": "DataLoader without shuffle=True or a sampler gives the rows in the same order "
    "in every epoch. Set one of the two",
    "no-set-epoch": "every epoch has the order of epoch 0. Call sampler.set_epoch(epoch) before "
    "each epoch",
    "kept-graph": "keeps the graph of every step, and memory grows. Keep `loss.detach()`",
    "synchronised-step": ".item() in every step makes the GPU's launches wait for its results; on "
    "a CPU it costs nothing. Sum `loss.detach()`, and call .item() once in a while",
    "checkpoint-each-step": "writes the whole model in every step. Write it once in an epoch or "
    "every few minutes: `if step % 1000 == 0:`",
    "dense-embedding": "{optimizer} updates all {rows:,} rows in every step, although a batch "
    "reads few of them. hpcncf.remedies.rowwise updates only those, with the result of Adam or "
    "AdamW for all",
    "data-parallel": "drives all GPUs from one process, which copies the model to each of them in "
    "every step; on CPUs it adds nothing. Use DistributedDataParallel with one process per GPU, "
    "started by torchrun",
    "anomaly-detection": "keeps a traceback of each forward operation and checks each gradient for "
    "NaN: small steps take a multiple of their time. Use it to find an error, then train without",
    "layer-size": "{sizes}: tensor cores take float16 and bfloat16 in multiples of {multiple}. Use "
    "{larger}",
    "too-many-workers": "{workers} workers and the rank itself are {processes} processes on "
    "{cores}. Request {processes} cores per task, or set the number to {most}",
    "fixed-port": "every task of the array uses port {port}, so two tasks on one node fail or mix "
    "up their ranks. Derive the port from the job: MASTER_PORT=$((12000 + SLURM_JOB_ID % 20000))",
    "srun-without-cores": "srun of Slurm 22.05 to 23.02 may give each task 1 of its {cores} cores. "
    "Use srun --cpus-per-task=$SLURM_CPUS_PER_TASK",
    "too-many-threads": "{threads} threads oversubscribe the {cores} of each task. Set the number "
    "to SLURM_CPUS_PER_TASK",
    "old-launcher": "torch.distributed.launch is deprecated. Use torchrun with the same options, "
    "and read the local rank from the environment variable LOCAL_RANK instead of --local-rank",
    "ranks-without-launcher": "starts one process, but {tasks} tasks are requested. Start it with "
    "srun or torchrun",
    "one-task-for-nodes": "starts one process on the first of {nodes} nodes. Start it with srun, "
    "or request one node",
}
THREAD_VARIABLES: Final = frozenset({"OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"})


@dataclass(frozen=True, order=True)
class Complaint:
    """A line that costs speed, memory or correctness, and what to do instead."""

    line: int
    """From 1."""
    rule: str
    message: str


def complain(line: int, rule: str, **values: object) -> Complaint:
    """`values`: for the placeholders of the rule's message."""
    return Complaint(line, rule, RULES[rule].format(**values))


def too_many_workers(line: int, workers: int, cores: int | None) -> list[Complaint]:
    """Empty if the workers and their rank have a core each, or the cores are not known."""
    if cores is None or workers + 1 <= cores:
        return []
    return [
        complain(
            line,
            "too-many-workers",
            workers=workers,
            processes=workers + 1,
            cores=plural(cores, "core"),
            most=cores - 1,
        )
    ]


def too_many_threads(line: int, threads: int | None, cores: int | None) -> list[Complaint]:
    """Empty if there are enough cores, or one of the numbers is not known."""
    if not threads or cores is None or threads <= cores:
        return []
    return [complain(line, "too-many-threads", threads=threads, cores=plural(cores, "core"))]
