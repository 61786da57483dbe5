"""DistributedDataParallel for tables that are updated by rows: ranks exchange rows, not tables."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

from hpcncf.errors import UsageError


def expect_rows(model: DistributedDataParallel) -> None:
    """Let a wrapper that was built for dense gradients expect those of embeddings as rows.

    nccl sums no sparse tensors, so there ranks gather one another's rows.
    """
    by_hook = dist.get_backend(model.process_group) != "gloo"
    if by_hook and model._comm_hooks:
        raise UsageError(
            "rowwise needs DistributedDataParallel's communication hook to exchange rows over "
            f"{dist.get_backend(model.process_group)}, and another hook is registered"
        )
    parameters, sparse = model._build_params_for_reducer()  # type: ignore[no-untyped-call]
    names = model._build_debug_param_to_name_mapping(parameters)  # type: ignore[no-untyped-call]
    model._ddp_init_helper(parameters, sparse, names, model.static_graph)  # type: ignore[no-untyped-call]
    if by_hook:
        # torch reads a hook's annotations, and knows no others than its own.
        model.register_comm_hook(
            model.process_group, lambda state, bucket: mean_over_ranks(state, bucket)
        )


def mean_over_ranks(group: dist.ProcessGroup, bucket: Any) -> torch.futures.Future[Tensor]:
    """A communication hook: the mean of a bucket's gradient, by rows if it is sparse."""
    gradient = bucket.buffer()
    if not gradient.is_sparse:
        return allreduce_hook(group, bucket)
    devices = [gradient.device] if gradient.is_cuda else []
    done: torch.futures.Future[Tensor] = torch.futures.Future(devices=devices)
    done.set_result(mean_of_rows(group, gradient.coalesce()))
    return done


def mean_of_rows(group: dist.ProcessGroup, gradient: Tensor) -> Tensor:
    """The mean of all ranks' sparse gradients, in rank order, so that all get the same bits."""
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
    """All ranks' tensors of one shape."""
    found = [torch.empty_like(mine) for _ in range(dist.get_world_size(group))]
    dist.all_gather(found, mine, group=group)
    return found
