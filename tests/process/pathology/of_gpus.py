"""GPUs that wait; only where there is one."""

from __future__ import annotations

from typing import Any, Final

from pathology.case import Case, Job

ON_ONE: Final[dict[str, Any]] = {
    "resources.gpus_per_node": 1,
    "training.device": "cuda",
    "training.checkpoint_every": 0,
}

CASES: Final = [
    Case(
        "gpu_underused",
        "small-steps",
        Job(ON_ONE | {"training.global_batch_size": 64, "training.epochs": 8}, data="small"),
        "a step of 64 positives is many small kernels: launching them takes longer than they do",
        25,
        needs=frozenset({"gpu"}),
    ),
    Case(
        "gpu_underused",
        "python",
        Job(ON_ONE | {"training.loader": "per_sample", "training.epochs": 4}, data="small"),
        "the GPU waits for samples that are made one by one in Python",
        25,
        needs=frozenset({"gpu"}),
    ),
]
