"""One of two ranks, in a process of its own: `python train_two_ranks.py DATA OUT`."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import torch
from make_runs import planned, trainer

from hpcncf.ncf.distributed import join_group, leave_group
from hpcncf.worker import environment
from hpcncf.worker.recorder import at_once

SLOW_S = 4.0


def slow_disk(position: Any) -> None:
    """The first epoch's checkpoint, which the first rank alone writes, takes some seconds more."""
    if (position.phase, position.epoch) == ("checkpoint", 0):
        time.sleep(SLOW_S)


if __name__ == "__main__":
    data, out, place = Path(sys.argv[1]), Path(sys.argv[2]), environment.place()
    run = planned(data, ranks=2, evaluation="full")
    assert run.training is not None
    join_group(place, run.resources, run.training)
    rank = trainer(run, out / "run", place)
    rank.report._on_progress = slow_disk
    rank.train()
    seen = {"model": rank.model.state_dict(), "record": rank.record().model_dump(mode="json")}
    torch.save(seen, out / f"rank-{place.rank}.pt")
    leave_group()
    at_once(0)
