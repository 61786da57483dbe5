"""What runs in a peer's process: its own training loop, fed a window of steps at a time.

The loops of RecBole and cornac have no hook between two steps, but both ask an iterator for their
next batch: there a window ends, and the loop waits until the benchmark asks for another. Messages
are lines of JSON. Imports nothing of hpcncf, which is not installed here.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice
from typing import Any, TextIO, TypeVar

Batch = TypeVar("Batch")


class Windows:
    def __init__(self, questions: TextIO, answers: TextIO) -> None:
        self._questions, self._answers = questions, answers

    def send(self, message: dict[str, Any]) -> None:
        print(json.dumps(message), file=self._answers, flush=True)

    def batches(
        self, epochs: Iterable[Iterable[Batch]], instances: Callable[[Batch], int]
    ) -> Iterator[Batch]:
        """The epochs' batches one after another, as if of one epoch, which ends with the windows.

        A window's seconds go from the request for its first batch to that for the next window's.
        """
        batches = chain.from_iterable(epochs)
        for line in self._questions:
            done, began = 0, time.perf_counter()
            for batch in islice(batches, json.loads(line)["steps"]):
                done += instances(batch)
                yield batch
            self.send({"instances": done, "seconds": time.perf_counter() - began})


def opened() -> Windows:
    """Over standard input and output; what a peer prints goes to standard error instead."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return Windows(sys.stdin, answers)
