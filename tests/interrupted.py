"""Training that is asked to stop at given steps, until it is done."""

from __future__ import annotations

import signal
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from make_runs import trainer

from hpcncf.job.plan import Run
from hpcncf.launcher.environment import Place
from hpcncf.launcher.signals import Stopped, StopRequest


class Asked(StopRequest):
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
