"""The forum user's model, data set and loop: `python train_forum.py CODE DATA WAY STEPS EPOCHS
SEED`, run by benchmarks/rowwise.py.

CODE holds his repository, DATA his input and the test candidates. WAY: `stock`, his program;
`rowwise`, one line more; `changed`, three lines; `batches` and `batches-rowwise`, the same without
a loader. Prints the CPU milliseconds of a step, and HR@10.
"""

from __future__ import annotations

import random
import sys
import time
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader

from hpcncf.remedies import BatchLoader, NegativeSampler, rowwise

BATCH, NEGATIVES, WARMUP_STEPS = 264, 4, 3
PARTS = ("user", "item", "rating", "context")


def loader_of(way: str, data: Any, items: int) -> Any:
    from src.data.cncf_collate_fn import cncf_negative_sampling  # type: ignore[import-not-found]

    if way != "changed":
        return DataLoader(data, BATCH, collate_fn=cncf_negative_sampling)
    table = torch.from_numpy(data.data.to_numpy(np.float32))
    users, wanted = table[:, 0].long(), table[:, 1].long()
    sampler = NegativeSampler(users, wanted, items)

    def labelled(user: torch.Tensor, item: torch.Tensor, context: torch.Tensor) -> Any:
        found = sampler.labelled(user, item, NEGATIVES)
        more = context.repeat_interleave(NEGATIVES, 0)
        everything = (found[0], found[1], found[2], torch.cat([context, more]))
        return dict(zip(PARTS, everything, strict=True))

    return BatchLoader(users, wanted, table[:, 3:], batch_size=BATCH, transform=labelled)


def made_batches(users: int, items: int, context: int, number: int) -> list[dict[str, Any]]:
    draw, each = torch.Generator().manual_seed(1), 1 + NEGATIVES
    return [
        {
            "user": torch.randint(users, (BATCH,), generator=draw).repeat_interleave(each),
            "item": torch.randint(items, (BATCH * each,), generator=draw),
            "rating": (torch.arange(BATCH * each) % each == 0).float(),
            "context": torch.rand(BATCH * each, context, generator=draw),
        }
        for _ in range(number)
    ]


def hit_rate(model: nn.Module, test: Any) -> float:
    users, context = torch.from_numpy(test["users"]), torch.from_numpy(test["context"])
    hits = []
    with torch.no_grad():
        for at, candidates in enumerate(torch.from_numpy(test["candidates"])):
            count = len(candidates)
            scores = model(users[at].expand(count), candidates, context[at].expand(count, -1))
            hits.append(float((scores[1:] >= scores[0]).sum() < 10))
    return float(np.mean(hits))


def main() -> None:
    code, folder, way = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
    steps, epochs, seed = (int(each) for each in sys.argv[4:7])
    sys.path.insert(0, code)
    from src.data.cncf_interaction_dataset import CNCFDataset  # type: ignore[import-not-found]
    from src.models.CNCF.cncf import (  # type: ignore[import-not-found]
        ContextualNeuralCollavorativeFiltering,
    )

    torch.set_num_threads(1)
    torch.manual_seed(seed)
    random.seed(seed)
    test = np.load(folder / "test.npz")
    users, items, width = (int(each) for each in test["sizes"])
    if way.startswith("batches"):
        loader: Any = made_batches(users, items, width, steps)
    else:
        loader = loader_of(way, CNCFDataset(str(folder), "train", n_items=items), items)
    model = ContextualNeuralCollavorativeFiltering(
        users, items, width, mf_dim=8, layers=[64 + width, 32, 16, 8]
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=0.001)
    if way in ("rowwise", "changed", "batches-rowwise"):
        rowwise(model, optimizer, strict=False)
    loss_of, began, taken = nn.BCELoss(), 0.0, 0
    for _ in range(epochs):
        for batch in islice(loader, steps):
            if taken == WARMUP_STEPS:
                began = time.process_time()
            output = model(batch["user"], batch["item"], batch["context"].float())
            loss = loss_of(output, batch["rating"].float().view(-1, 1))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            loss.item()
            taken += 1
    step_ms = 1e3 * (time.process_time() - began) / (taken - WARMUP_STEPS)
    print(f"measured: {step_ms} {hit_rate(model, test)} {loss.item()}")


if __name__ == "__main__":
    main()
