"""Causes that lie in optimiser, evaluation, start, checkpoints, memory, or too little time."""

from __future__ import annotations

from typing import Final

from pathology.case import Beside, Case, Job, Need, Run

NO_EVALUATION: Final = {"training.evaluation": "none", "training.checkpoint_every": 0}

DENSE: Final = [
    Case(
        "dense_optimizer",
        "adam",
        Job(NO_EVALUATION | {"training.max_steps": 120}, data="wide"),
        "Adam walks 210,000 rows in each step, of which the batch touched a thousand",
        18,
    ),
]

EVALUATION: Final = [
    Case(
        "evaluation_bound",
        "full",
        Job(
            {
                "training.engine": "native",
                "training.evaluation": "full",
                "training.epochs": 4,
                "training.checkpoint_every": 0,
            },
            data="catalogue",
        ),
        "each epoch ranks 40,000 items for each of 4,000 users; its training is a fraction of that",
        20,
    ),
]

STARTUP: Final = [
    Case(
        "startup_bound",
        "compiling",
        Job(
            NO_EVALUATION | {"training.compile": "inductor", "training.epochs": 7},
            data="small",
        ),
        "torch.compile takes longer than the steps that it makes faster",
        30,
        env={
            "TORCHINDUCTOR_CACHE_DIR": "{folder}/inductor",
            "TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1",
        },
        needs=frozenset({"compiler"}),
    ),
]

CHECKPOINT: Final = [
    Case(
        "checkpoint_bound",
        "native",
        Job(
            {
                "training.engine": "native",
                "training.evaluation": "none",
                "training.negatives": 1,
                "training.global_batch_size": 4096,
                "training.epochs": 14,
            },
            data="wide",
        ),
        "an epoch takes a fraction of a second, and 100 MB are written after each",
        18,
    ),
]

LIMITED: Final = Beside(memory_mib=256)
LIMITS: Final[frozenset[Need]] = frozenset({"memory cgroup"})

MEMORY: Final = [
    Case(
        "memory_pressure",
        "table",
        Run("mapped.py {file} --seconds 14"),
        "a mapped table of 280 MiB under a memory limit of 256: pages go, and are wanted again",
        15,
        beside=LIMITED,
        needs=LIMITS,
    ),
    Case(
        "memory_pressure",
        "kept",
        Run("mapped.py {file} --seconds 14 --table 120 --kept 110"),
        "what the program keeps leaves no room for a table that alone would fit",
        15,
        beside=LIMITED,
        needs=LIMITS,
    ),
]

SHORT: Final = [
    Case(
        "too_short_to_judge",
        "command",
        Run("burn.py --seconds 0.3"),
        "a third of a second says nothing of cores",
        1,
        short=True,
    ),
    Case(
        "too_short_to_judge",
        "products",
        Run("products.py --seconds 0.5"),
        "half a second of work after torch's import",
        4,
    ),
]

CASES: Final = [*DENSE, *EVALUATION, *STARTUP, *CHECKPOINT, *MEMORY, *SHORT]
