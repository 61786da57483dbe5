"""Training that is asked to stop at given steps, until it is done; by hand, one of two ranks:
`python interrupted.py DATA OUT LOADER DROPOUT STEP ...`."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from make_runs import planned, trainer

from hpcncf.job.plan import Run
from hpcncf.job.spec import Model
from hpcncf.ncf.distributed import join_group, leave_group
from hpcncf.worker import environment
from hpcncf.worker.environment import Place
from hpcncf.worker.recorder import at_once
from hpcncf.worker.signals import Request, Stopped


class Asked(Request):
    """A request to stop that comes when it has been looked for so often."""

    def __init__(self, looks: float) -> None:
        self._left = looks
        super().__init__()

    @property
    def signum(self) -> int | None:
        self._left -= 1
        return signal.SIGUSR2 if self._left < 0 else None

    @signum.setter
    def signum(self, _: int | None) -> None:
        pass


def attempts(run: Run, results: Path, stops: Iterable[int], place: Place | None = None) -> Any:
    """One attempt after another, each stopped after so many looks; returns the last."""
    for looks in stops:
        rank = trainer(run, results, place)
        rank.stop = rank.agreement.stop = Asked(looks)
        try:
            rank.train()
        except Stopped:
            continue
        return rank
    last = trainer(run, results, place)
    last.train()
    return last


def main(data: Path, out: Path, loader: str, dropout: float, stops: list[int]) -> None:
    place = environment.place()
    run = planned(data, ranks=2, model=Model(dropout=dropout), loader=loader)
    assert run.training is not None
    join_group(place, run.resources, run.training)
    mine = stops if place.rank == 1 else [10**9] * len(stops)  # one alone is told
    rank = attempts(run, out / "run", mine, place)
    torch.save(rank.record().model_dump(mode="json"), out / f"rank-{place.rank}.pt")
    leave_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], float(sys.argv[4]),
         [int(word) for word in sys.argv[5:]])  # fmt: skip
    at_once(0)
