"""One of two ranks, in a process of its own: `python train_two_ranks.py DATA OUT`."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from make_runs import planned, trainer

from hpcncf.ncf import distributed
from hpcncf.rank import launcher

if __name__ == "__main__":
    data, out, place = Path(sys.argv[1]), Path(sys.argv[2]), launcher.place()
    run = planned(data, ranks=2, evaluation="full")
    assert run.training is not None
    distributed.join(place, run.resources, run.training)
    rank = trainer(run, out / "run", place)
    rank.train()
    told = {"model": rank.model.state_dict(), "record": rank.record().model_dump(mode="json")}
    torch.save(told, out / f"rank-{place.rank}.pt")
    distributed.leave()
