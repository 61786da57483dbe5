"""Jobs with nothing to say against: their cores work, and on what they should."""

from __future__ import annotations

from typing import Final

from pathology.case import Case, Job, Run

CASES: Final = [
    Case(
        "healthy",
        "native",
        Job(
            {
                "training.engine": "native",
                "training.epochs": 110,
                "training.checkpoint_every": 50,
            },
            data="small",
        ),
        "the fastest engine on one core",
        17,
    ),
    Case(
        "healthy",
        "native-two-cores",
        Job(
            {
                "training.engine": "native",
                "training.epochs": 300,
                "training.checkpoint_every": 50,
                "training.global_batch_size": 4096,
                "resources.cpus_per_task": 2,
            },
            data="small",
        ),
        "its two threads on two cores, with batches large enough for both",
        17,
        cores=2,
    ),
    Case(
        "healthy",
        "rowwise",
        Job({"training.engine": "rowwise", "training.epochs": 16}, data="small"),
        "torch's products on one core, and only the rows of the batch",
        17,
    ),
    Case(
        "healthy",
        "command",
        Run("burn.py --seconds 5.5"),
        "one busy process on one core",
        7,
        short=True,
    ),
    Case(
        "healthy",
        "products",
        Run("products.py --seconds 8 --threads 2 --width 1024"),
        "two threads of torch share large products on two cores",
        11,
        cores=2,
    ),
    Case(
        "healthy",
        "ranks",
        Job({"resources.tasks_per_node": 2}, program="burn.py --seconds 8"),
        "two ranks that need nothing of each other, each busy on its core",
        13,
        cores=2,
    ),
]
