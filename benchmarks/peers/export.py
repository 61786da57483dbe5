"""Prepared data as the peers read it, and their scores as hpcncf's evaluation reads them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hpcncf.ncf.data.arrays import pack_rows
from hpcncf.ncf.data.prepared import Prepared
from hpcncf.ncf.evaluate import Candidates

ROWS_AT_ONCE = 1 << 18


def plain(data: Prepared) -> Prepared:
    """The same without what the peers cannot take: no context, and each training pair once.

    cornac drops repeated pairs; test rows and their negatives stay as they are.
    """
    manifest, pairs = data.manifest, data.manifest.train_pairs
    changes = {"train_rows": pairs, "rows": pairs + manifest.test_rows}
    nothing = {"context_columns": [], "small_columns": 0}
    owners = np.repeat(np.arange(manifest.users), np.diff(data.positives_indptr))
    anywhere = np.random.default_rng(0).permutation(pairs)  # neighbours may share a block
    return replace(
        data,
        manifest=manifest.model_copy(update=changes | nothing),
        train_rows=pack_rows(owners[anywhere], data.positives[anywhere], np.empty((pairs, 0)), 0),
        test_context=np.empty((manifest.test_rows, 0), dtype=np.float32),
    )


def write(folder: Path, data: Prepared) -> None:
    """RecBole's atomic files in `ncf/`, and arrays: `train` [pairs, 2], `test_users` [test rows]
    and `candidates` [test rows, 1 + negatives], the held-out item first."""
    (folder / "ncf").mkdir(parents=True)
    train = np.column_stack([data.train_users, data.train_items])
    test = np.column_stack([data.test_users, data.test_items])
    # RecBole insists on validation data and does nothing with it here.
    for name, pairs in (("train", train), ("valid", test), ("test", test)):
        _write_atomic(folder / f"ncf/ncf.{name}.inter", pairs)
    np.save(folder / "train.npy", train)
    np.save(folder / "test_users.npy", data.test_users)
    candidates = np.column_stack([data.test_items, data.test_negatives])
    np.save(folder / "candidates.npy", candidates)


def _write_atomic(path: Path, pairs: NDArray[np.int32]) -> None:
    with path.open("w") as file:
        file.write("user_id:token\titem_id:token\n")
        for start in range(0, len(pairs), ROWS_AT_ONCE):
            rows = pairs[start : start + ROWS_AT_ONCE].tolist()
            file.writelines(f"{user}\t{item}\n" for user, item in rows)


class Scored:
    """A peer's scores of the exported candidates, for hpcncf's evaluation to judge."""

    def __init__(self, data: Prepared, scores: NDArray[np.float32]) -> None:
        """`scores`: [test rows, 1 + negatives], the held-out item's first. Raises ValueError where
        their shape is another."""
        expected = (data.manifest.test_rows, 1 + data.manifest.test_negatives)
        if scores.shape != expected:
            raise ValueError(f"expected scores {expected}, came {scores.shape}")
        self._scores = torch.from_numpy(scores)

    def ranks(
        self, data: Prepared, first: int, last: int, candidates: Candidates
    ) -> Iterator[Tensor]:
        """As of any of hpcncf's engines."""
        assert candidates == "sampled"
        assert len(self._scores) == data.manifest.test_rows
        scores = self._scores[first:last]
        yield (~(scores[:, 1:] < scores[:, :1])).sum(dim=1)
