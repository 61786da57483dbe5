"""The strategies of docs/engines.md's table, as settings that can be run; its words stand there."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

Settings = dict[str, Any]

FUSED: Final[Settings] = {"adam": "fused"}
SPARSE: Final[Settings] = {"sparse": True, "optimizer": "lazy_adam"}
ROWWISE: Final[Settings] = {"engine": "rowwise"}
NATIVE: Final[Settings] = {"engine": "native"}
LOCAL: Final[Settings] = {"sync": "local_sgd"}
ROWS: Final[Settings] = {"sync": "rows"}
LARGE: Final[Settings] = {"global_batch_size": 4096}


@dataclass(frozen=True)
class Strategy:
    name: str
    """The table's first column: as a job file says it."""
    against: str
    """The row it is compared to, whose settings it changes; "" for the first."""
    steps: int
    """Of a window at full size, which takes seconds; 0: it takes a GPU, or how a rank is started,
    and the table's figures stay empty."""
    training: Settings = field(default_factory=dict)
    """All that is not at its default."""
    ranks: int = 1
    cores: int = 1
    """Of each rank."""
    gpus: int = 0


NAIVE: Final = "`loader: per_sample`"
WORKER: Final = "`num_workers: 1`"
PLAIN: Final = "`loader: vectorized`"
LESS: Final = "`adam: fused`"
THREADS: Final = "`threads: 2`"
LAZY: Final = "`sparse: true`, `optimizer: lazy_adam`"
TWO: Final = "2 ranks, `adam: fused`"
BY_ROWS: Final = "`engine: rowwise`"
COMPILED: Final = "`engine: native`"
APART: Final = "2 ranks, `native`, `sync: local_sgd`"

SAMPLES: Final[Settings] = {"loader": "per_sample"}
WORKERS: Final[Settings] = SAMPLES | {"num_workers": 1}

ONE_RANK: Final = (
    Strategy(NAIVE, "", 20, SAMPLES),
    Strategy(WORKER, NAIVE, 20, WORKERS, cores=2),
    Strategy("`prefetch_factor: 8`", WORKER, 20, WORKERS | {"prefetch_factor": 8}, cores=2),
    Strategy(
        "`persistent_workers: false`",
        *(WORKER, 20, WORKERS | {"persistent_workers": False}),
        cores=2,
    ),
    Strategy("`workers: thread`", WORKER, 20, WORKERS | {"workers": "thread"}, cores=2),
    Strategy("`collate: fast`", NAIVE, 20, SAMPLES | {"collate": "fast"}),
    Strategy("`loader: batched`", NAIVE, 20, {"loader": "batched"}),
    Strategy(PLAIN, NAIVE, 20),
    Strategy("`loader: device`", PLAIN, 20, {"loader": "device"}),
    Strategy("`pin_memory: true`", PLAIN, 20, {"pin_memory": True}),
    Strategy("`non_blocking: false`", PLAIN, 20, {"non_blocking": False}),
    Strategy("`prefetch_to_device: true`", PLAIN, 20, {"prefetch_to_device": True}),
    Strategy("`pin: cores`", PLAIN, 0, {"pin": "cores"}),
    Strategy("`pin: numa`", PLAIN, 0, {"pin": "numa"}),
    Strategy("`adam: foreach`", PLAIN, 20, {"adam": "foreach"}),
    Strategy(LESS, PLAIN, 60, FUSED),
    Strategy("`optimizer: sgd`", PLAIN, 60, {"optimizer": "sgd"}),
    Strategy(LAZY, PLAIN, 300, SPARSE),
    Strategy(THREADS, LESS, 60, FUSED | {"threads": 2}, cores=2),
    Strategy(
        "`interop_threads: 2`",
        *(THREADS, 60, FUSED | {"threads": 2, "interop_threads": 2}),
        cores=2,
    ),
    *(
        Strategy(
            f"`omp_wait_policy: {policy}`",
            *(THREADS, 0, FUSED | {"threads": 2, "omp_wait_policy": policy}),
            cores=2,
        )
        for policy in ("active", "passive")
    ),
    Strategy("`compile: torchscript`", LESS, 60, FUSED | {"compile": "torchscript"}),
    Strategy("`compile: inductor`", LESS, 60, FUSED | {"compile": "inductor"}),
    Strategy("`precision: bfloat16`", LESS, 60, FUSED | {"precision": "bfloat16"}),
    Strategy("`precision: float16`", LESS, 20, FUSED | {"precision": "float16"}),
    Strategy("`tf32: true`", LESS, 60, FUSED | {"tf32": True}),
    Strategy("`cudnn_benchmark: true`", LESS, 60, FUSED | {"cudnn_benchmark": True}),
    Strategy("`parallel: data_parallel`", LESS, 60, FUSED | {"parallel": "data_parallel"}),
    Strategy("`accumulate: 4`", LESS, 60, FUSED | {"accumulate": 4}),
    Strategy("batch 4096, `lr_scale: sqrt`", LESS, 20, FUSED | LARGE | {"lr_scale": "sqrt"}),
    Strategy("batch 4096, `lr_scale: linear`", LESS, 20, FUSED | LARGE | {"lr_scale": "linear"}),
)
SEVERAL_RANKS: Final = (
    Strategy(TWO, LESS, 20, FUSED, ranks=2),
    Strategy("2 ranks, `bucket_mb: 64`", TWO, 20, FUSED | {"bucket_mb": 64.0}, ranks=2),
    Strategy(
        "2 ranks, `gradient_as_bucket_view: true`",
        *(TWO, 20, FUSED | {"gradient_as_bucket_view": True}),
        ranks=2,
    ),
    Strategy("2 ranks, `static_graph: true`", TWO, 20, FUSED | {"static_graph": True}, ranks=2),
    Strategy(
        "2 ranks, `accumulate: 8`",
        *(TWO, 10, FUSED | {"batch_size_per_rank": 128, "accumulate": 8}),
        ranks=2,
    ),
    Strategy("2 ranks, `sync: local_sgd`", LESS, 40, FUSED | LOCAL, ranks=2),
    Strategy("2 ranks, `sparse: true`", LAZY, 60, SPARSE, ranks=2),
)
ENGINES: Final = (
    Strategy(BY_ROWS, PLAIN, 400, ROWWISE),
    Strategy("`rowwise`, `lazy_adam`", BY_ROWS, 400, ROWWISE | {"optimizer": "lazy_adam"}),
    Strategy("`rowwise`, `threads: 2`", BY_ROWS, 400, ROWWISE | {"threads": 2}, cores=2),
    Strategy("`rowwise`, `compile: inductor`", BY_ROWS, 400, ROWWISE | {"compile": "inductor"}),
    Strategy(
        "`rowwise`, `cuda_graph: true`",
        *(BY_ROWS, 0, ROWWISE | {"loader": "device", "cuda_graph": True}),
        gpus=1,
    ),
    Strategy("2 ranks, `rowwise`, `sync: rows`", BY_ROWS, 300, ROWWISE | ROWS, ranks=2),
    Strategy("2 ranks, `rowwise`, `sync: local_sgd`", BY_ROWS, 400, ROWWISE | LOCAL, ranks=2),
    Strategy(COMPILED, PLAIN, 3000, NATIVE),
    Strategy("`native`, `lazy_adam`", COMPILED, 3000, NATIVE | {"optimizer": "lazy_adam"}),
    Strategy("`native`, `threads: 2`", COMPILED, 5000, NATIVE | {"threads": 2}, cores=2),
    Strategy("2 ranks, `native`, `sync: rows`", COMPILED, 3000, NATIVE | ROWS, ranks=2),
    Strategy(APART, COMPILED, 4000, NATIVE | LOCAL, ranks=2),
    Strategy(
        "2 ranks, `native`, `sync_every: 128`",
        *(APART, 4000, NATIVE | LOCAL | {"sync_every": 128}),
        ranks=2,
    ),
)
STRATEGIES: Final = ONE_RANK + SEVERAL_RANKS + ENGINES
