"""What the benchmark gives RecBole and cornac is hpcncf's data, and what it takes back theirs."""

from __future__ import annotations

import importlib.util
import io
import json
from collections import Counter
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

from hpcncf.job.spec import Model, Training
from hpcncf.ncf import model
from hpcncf.ncf.data.arrays import unpack_context
from hpcncf.ncf.data.prepared import Prepared
from hpcncf.ncf.engines.rowwise import Rowwise
from hpcncf.ncf.evaluate import evaluate
from hpcncf.ncf.step_clock import StepClock
from hpcncf.worker.environment import Place

ROOT = Path(__file__).parents[2]
PEERS = ROOT / "benchmarks/peers"
CPU = torch.device("cpu")


def loaded(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, PEERS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


export, windows = loaded("export"), loaded("windows")


def pairs(users: np.ndarray, items: np.ndarray) -> list[tuple[int, int]]:
    return list(zip(users.tolist(), items.tolist(), strict=True))


def test_plain_data_has_each_training_pair_once_and_no_context(data: Prepared) -> None:
    plain = export.plain(data)
    trained = Counter(pairs(data.train_users, data.train_items))
    assert max(trained.values()) > 1
    assert Counter(pairs(plain.train_users, plain.train_items)) == Counter(set(trained))
    assert (np.diff(plain.train_users) < 0).sum() > len(trained) / 3  # in no order of users
    assert plain.manifest.train_rows == len(plain.train_users) == len(trained)
    assert plain.manifest.context_columns == []
    assert unpack_context(plain.train_rows).shape == (len(trained), 0)
    assert plain.test_context.shape == (data.manifest.test_rows, 0)
    assert plain.test_negatives is data.test_negatives


def test_recbole_reads_all_pairs_and_every_user_and_item(data: Prepared, tmp_path: Path) -> None:
    plain = export.plain(data)
    export.write(tmp_path / "out", plain)
    read = {}
    for part in ("train", "test"):
        header, *lines = (tmp_path / f"out/ncf/ncf.{part}.inter").read_text().splitlines()
        assert header == "user_id:token\titem_id:token"
        rows = [line.split("\t") for line in lines]
        read[part] = [(int(user), int(item)) for user, item in rows]
    assert read["train"] == pairs(plain.train_users, plain.train_items)
    assert read["test"] == pairs(plain.test_users, plain.test_items)
    # Where one were missing, RecBole would have no number for it.
    users, items = zip(*read["train"], *read["test"], strict=True)
    assert set(users) == set(range(data.manifest.users))
    assert set(items) == set(range(data.manifest.items))


def test_candidates_are_the_held_out_item_and_the_stored_negatives(
    data: Prepared, tmp_path: Path
) -> None:
    export.write(tmp_path / "out", export.plain(data))
    candidates = np.load(tmp_path / "out/candidates.npy")
    assert (candidates[:, 0] == data.test_items).all()
    assert (candidates[:, 1:] == data.test_negatives).all()
    assert (np.load(tmp_path / "out/test_users.npy") == data.test_users).all()
    assert np.load(tmp_path / "out/train.npy").shape == (data.manifest.train_pairs, 2)


def test_stored_scores_are_judged_as_the_model_that_gave_them(data: Prepared) -> None:
    plain = export.plain(data)
    start = model.initial_model(plain.manifest, Model(), seed=1)
    candidates = np.column_stack([plain.test_items, plain.test_negatives])
    with torch.no_grad():
        scores = start(
            torch.from_numpy(np.repeat(plain.test_users, candidates.shape[1])).long(),
            torch.from_numpy(candidates.ravel()).long(),
            torch.empty(candidates.size, 0),
        )
    stored = export.Scored(plain, scores.reshape(candidates.shape).numpy())
    engine = Rowwise(start, Training(), CPU, StepClock(1, 1))
    judged = [evaluate(each, plain, Place(), CPU, "sampled") for each in (stored, engine)]
    assert judged[0] == judged[1]
    assert 0 < judged[0].hr10 < 1


def test_a_score_that_ties_or_is_no_number_counts_against_the_peer(data: Prepared) -> None:
    scores = np.zeros((40, 100), dtype=np.float32)
    scores[1, 0] = 1  # the first of one user
    scores[2, 0] = np.nan
    found = evaluate(export.Scored(data, scores), data, Place(), CPU, "sampled")
    assert found.hr10 == 1 / 40


def test_scores_of_another_shape_are_refused(data: Prepared) -> None:
    with pytest.raises(ValueError, match=r"expected scores \(40, 100\), came \(40, 99\)"):
        export.Scored(data, np.zeros((40, 99), dtype=np.float32))


def test_windows_go_on_over_epochs_until_nobody_asks() -> None:
    asked, seen = io.StringIO('{"steps": 3}\n{"steps": 4}\n'), io.StringIO()
    epochs = ([[1, 1], [2]] for _ in range(9))
    taken = list(windows.Windows(asked, seen).batches(epochs, len))
    assert taken == [[1, 1], [2], [1, 1], [2], [1, 1], [2], [1, 1]]
    messages = [json.loads(line) for line in seen.getvalue().splitlines()]
    assert [message["instances"] for message in messages] == [5, 6]
    assert all(message["seconds"] > 0 for message in messages)


@pytest.mark.parametrize("peer", ["recbole", "cornac"])
def test_each_environment_is_pinned_to_the_version_with_hpcncfs_torch(peer: str) -> None:
    lines = (PEERS / f"requirements-{peer}.txt").read_text().splitlines()
    pins = [line.split("==") for line in lines if not line.startswith("#")]
    assert all(len(pin) == 2 for pin in pins)
    constraints = (ROOT / "constraints.txt").read_text().splitlines()
    assert (
        dict(pins)["torch"]
        == dict(line.split("==") for line in constraints if not line.startswith("#"))["torch"]
    )
    assert peer in dict(pins)
