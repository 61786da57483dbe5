"""`hpcncf status`, asked again and again while things break."""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Final

from slurm.chaos import work
from slurm.conftest import User

EVERY_S: Final = 3.0


@dataclass(frozen=True)
class Look:
    """What one call said, or how it failed."""

    runs: list[dict[str, Any]]
    wrong: str


class Watching(AbstractContextManager["Watching"]):
    def __init__(self, user: User) -> None:
        self.seen: list[Look] = []
        self._user = user
        self._enough = threading.Event()
        self._thread = threading.Thread(target=self._look, name="watching")

    def __enter__(self) -> Watching:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._enough.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._enough.wait(EVERY_S):
            done = self._user.attempt("status", "--json")
            if done.returncode != 0 or "Traceback" in done.stderr:
                self.seen.append(Look([], done.stdout + done.stderr))
                continue
            self.seen.append(Look(work.named(done.stdout), ""))
