"""Asking Slurm over and over without being a burden to it: its last answer stands for a while."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from hpcncf.slurm import commands
from hpcncf.slurm.states import JobState

EVERY_S: Final = 15.0


class Gently:
    """Answers as `commands.job_states`, from memory where Slurm was asked lately."""

    def __init__(self, every_s: float = EVERY_S) -> None:
        self._every_s = every_s
        self._asked_at: float | None = None
        self._answers: dict[str, JobState] = {}
        self._asked: set[str] = set()
        self._problems: list[str] = []

    def __call__(self, ids: Sequence[str], problems: list[str]) -> dict[str, JobState]:
        now = time.monotonic()
        lately = self._asked_at is not None and now - self._asked_at < self._every_s
        if lately and set(ids) <= self._asked:
            problems += self._problems
            return {
                job_id: replace(commands.dated(state), remembered=True)
                for job_id, state in self._answers.items()
            }
        self._problems = []
        self._answers = commands.job_states(ids, self._problems)
        self._asked, self._asked_at = set(ids), now
        problems += self._problems
        return self._answers
