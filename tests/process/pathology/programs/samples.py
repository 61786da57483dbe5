"""The rows that `train.py` reads, as Datasets whose samples cost this or that."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor
from torch.utils.data import Dataset

ROWS, ITEMS, BLOCK = 20_000, 5_000, 65_536


class Positives(Dataset[tuple[int, int]]):
    """User and item of each row; `kind` says what a sample costs."""

    def __init__(self, kind: str, file: Path | None) -> None:
        self.kind = kind
        self.file = os.open(file, os.O_RDONLY) if file else -1

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, row: int) -> tuple[int, int]:
        if self.kind == "remote":
            time.sleep(0.002)  # a file server's answer
        elif self.kind == "file":
            self._read()
        return row % ITEMS, row * 7 % ITEMS

    def _read(self) -> None:
        """A block from somewhere in the file; the kernel may not keep it, as it cannot keep a
        data set larger than memory."""
        size = os.fstat(self.file).st_size
        at = random.randrange(size // BLOCK) * BLOCK
        os.pread(self.file, BLOCK, at)
        os.posix_fadvise(self.file, at, BLOCK, os.POSIX_FADV_DONTNEED)


class Tensors:
    """The same rows as whole batches of tensors: what a good loader costs."""

    def __init__(self, batch: int) -> None:
        self.batch = batch

    def __iter__(self) -> Iterator[list[Tensor]]:
        for rows in torch.randperm(ROWS).split(self.batch):
            yield [rows % ITEMS, rows * 7 % ITEMS]
