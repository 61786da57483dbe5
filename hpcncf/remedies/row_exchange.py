"""DistributedDataParallel for tables that are updated by rows: ranks exchange rows, not tables."""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

EXPECTED: WeakKeyDictionary[DistributedDataParallel, list[bool]] = WeakKeyDictionary()
"""Of each wrapper's parameters, whether their gradients come as rows."""


def exchange_rows(model: DistributedDataParallel) -> None:
    """Let DDP exchange the gradients of embedding tables by rows.

    A communication hook gathers the rows of all ranks: nccl sums no sparse tensors, and gloo
    corrupts memory when it sums two of them at a time (torch 2.13).
    """
    parameters, _ = model._build_params_for_reducer()  # type: ignore[no-untyped-call]
    rows = [hasattr(each, "_table") for each in parameters]
    if EXPECTED.get(model, [False] * len(rows)) == rows:
        return
    EXPECTED[model] = rows
    names = model._build_debug_param_to_name_mapping(parameters)  # type: ignore[no-untyped-call]
    model._ddp_init_helper(parameters, rows, names, model.static_graph)  # type: ignore[no-untyped-call]
    if model.static_graph:
        model.reducer._set_static_graph()
    model.reducer.prepare_for_forward()
    group = model.process_group
    own: Any
    state: Any
    own, state = model._comm_hooks[0] if model._comm_hooks else (allreduce_hook, group)

    def hook(_, bucket):  # type: ignore[no-untyped-def]
        """DDP's communication hook: average sparse gradients by rows, others as before.

        It has no annotations, because torch inspects them and rejects strings.
        """
        return mean_over_ranks(group, bucket) if bucket.buffer().is_sparse else own(state, bucket)

    dist._register_comm_hook(model.reducer, None, hook)  # type: ignore[attr-defined]


def mean_over_ranks(group: dist.ProcessGroup, bucket: Any) -> torch.futures.Future[Tensor]:
    """Average a bucket's sparse gradient over all ranks, for DDP's communication hook."""
    gradient = bucket.buffer()
    devices = [gradient.device] if gradient.is_cuda else []
    done: torch.futures.Future[Tensor] = torch.futures.Future(devices=devices)
    done.set_result(mean_of_rows(group, gradient.coalesce()))
    return done


def mean_of_rows(group: dist.ProcessGroup, gradient: Tensor) -> Tensor:
    """Average the sparse gradients of all ranks, in rank order so that all get equal bits."""
    ids, values = gradient.indices()[0], gradient.values()
    ranks = dist.get_world_size(group)
    counts = gathered(group, ids.new_tensor([len(ids)]))
    sizes = [int(count) for count in counts]
    found = []
    for mine in (ids, values / ranks):
        padded = mine.new_zeros(max(sizes), *mine.shape[1:])
        padded[: len(mine)] = mine
        parts = zip(gathered(group, padded), sizes, strict=True)
        found.append(torch.cat([part[:size] for part, size in parts]))
    rows = torch.sparse_coo_tensor(found[0][None], found[1], gradient.shape, check_invariants=False)
    return rows.coalesce()


def gathered(group: dist.ProcessGroup, mine: Tensor) -> list[Tensor]:
    """Gather tensors of the same shape from all ranks, in rank order."""
    found = [torch.empty_like(mine) for _ in range(dist.get_world_size(group))]
    dist.all_gather(found, mine, group=group)
    return found
