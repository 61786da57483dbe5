"""A run that is stopped in mid-epoch goes on to the bits of one never interrupted."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from interrupted import Asked, attempts
from make_runs import planned, trainer

from hpcncf.job.spec import Model
from hpcncf.ncf.checkpoint import TrainingProgress, checkpoint_paths, load_checkpoint
from hpcncf.ncf.engines.native.library import installed_builds
from hpcncf.paths import RunPaths
from hpcncf.worker.signals import Stopped

LOADERS = ["per_sample", "batched", "vectorized"]


@pytest.fixture(scope="module")
def data(folder: Path) -> Path:
    return folder


def assert_same(ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    """But for the times, which no two runs share."""
    assert ours["model_sha256"] == theirs["model_sha256"]
    seen = ("epoch", "steps", "instances", "loss", "hr10", "ndcg10", "mrr", "hr10_unseen")
    assert [{key: epoch[key] for key in seen} for epoch in ours["epochs"]] == [
        {key: epoch[key] for key in seen} for epoch in theirs["epochs"]
    ]
    assert ours["baseline"] == theirs["baseline"]


@pytest.mark.parametrize("stops", [[0], [7, 7, 7], [30], [31], [32, 1], [1, 2, 3, 5, 8, 13]])
def test_wherever_and_however_often_it_is_stopped(
    data: Path, tmp_path: Path, stops: list[int]
) -> None:
    """An epoch has 31 steps, and each looks once."""
    whole = attempts(planned(data), tmp_path / "whole", []).record().model_dump()
    last = attempts(planned(data), tmp_path / "cut", stops)
    assert_same(last.record().model_dump(), whole)
    assert (last.resumed_epoch or 0) * 31 + last.resumed_step + last.clock.steps == 62


@pytest.mark.skipif(not installed_builds(), reason="engine native was not built here")
@pytest.mark.parametrize("optimizer", ["adam", "lazy_adam", "sgd"])
def test_with_the_native_engine(data: Path, tmp_path: Path, optimizer: str) -> None:
    run = planned(data, engine="native", optimizer=optimizer)
    whole = attempts(run, tmp_path / "whole", []).record().model_dump()
    last = attempts(run, tmp_path / "cut", [7, 31, 3])
    assert_same(last.record().model_dump(), whole)
    assert whole["phases"]["fused_s"] > 0
    reference = attempts(planned(data, optimizer="adam"), tmp_path / "ref", []).record()
    if optimizer == "adam":
        assert [each["loss"] for each in whole["epochs"]] == pytest.approx(
            [each.loss for each in reference.epochs], rel=1e-4
        )


@pytest.mark.parametrize(
    "settings", [{"accumulate": 3}, {"compile": "torchscript"}, {"precision": "bfloat16"}]
)
def test_with_a_step_in_parts_or_otherwise_computed(
    data: Path, tmp_path: Path, settings: dict[str, Any]
) -> None:
    run = planned(data, model=Model(dropout=0.3), evaluation="none", **settings)
    whole = attempts(run, tmp_path / "whole", []).record().model_dump()
    last = attempts(run, tmp_path / "cut", [11, 30])
    assert_same(last.record().model_dump(), whole)


@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize(("loader", "workers"), [*((each, 0) for each in LOADERS), ("batched", 1)])
def test_with_every_loader_and_with_dropout(
    data: Path, tmp_path: Path, loader: str, workers: int, dropout: float
) -> None:
    run = planned(data, model=Model(dropout=dropout), loader=loader, num_workers=workers)
    whole = attempts(run, tmp_path / "whole", []).record().model_dump()
    last = attempts(run, tmp_path / "cut", [11, 30])
    assert_same(last.record().model_dump(), whole)


def test_an_attempt_that_is_killed_goes_on_from_the_last_checkpoint_in_mid_epoch(
    data: Path, tmp_path: Path
) -> None:
    often = planned(data, checkpoint_every_min=1e-6)
    killed = trainer(often, tmp_path / "cut")
    killed.stop = killed.agreement.stop = Asked(12)
    with pytest.raises(Stopped):
        killed.train()
    path = RunPaths(tmp_path / "cut").checkpoint
    path.unlink()  # as if the kill had come before the last was written
    last = attempts(often, tmp_path / "cut", [])
    assert 0 < last.resumed_step < killed.partial_epoch.steps
    whole = attempts(often, tmp_path / "whole", []).record().model_dump()
    assert_same(last.record().model_dump(), whole)
    assert whole["checkpoint_s"] == pytest.approx(
        sum(epoch["checkpoint_s"] for epoch in whole["epochs"])
    )


def test_stopped_while_it_evaluates_it_has_only_that_to_repeat(data: Path, tmp_path: Path) -> None:
    whole = attempts(planned(data), tmp_path / "whole", []).record().model_dump()
    cut = trainer(planned(data), tmp_path / "cut")

    def at_evaluation(position: TrainingProgress) -> None:
        if position.phase == "evaluation":
            os.kill(os.getpid(), signal.SIGUSR2)

    cut.report._on_progress = at_evaluation
    before = signal.signal(signal.SIGUSR2, lambda signum, _: bool(cut.stop.note(signum)))
    with pytest.raises(Stopped):
        cut.train()
    signal.signal(signal.SIGUSR2, before)
    last = attempts(planned(data), tmp_path / "cut", [])
    assert (last.resumed_epoch, last.resumed_step) == (0, 31)
    assert_same(last.record().model_dump(), whole)


def test_a_torn_checkpoint_gives_way_to_the_one_before(data: Path, tmp_path: Path) -> None:
    paths = RunPaths(tmp_path)
    whole = attempts(planned(data), tmp_path / "whole", []).record().model_dump()
    attempts(planned(data, epochs=1), tmp_path, [9])
    paths.checkpoint.write_bytes(paths.checkpoint.read_bytes()[:4000])
    last = attempts(planned(data), tmp_path, [])
    assert (last.resumed_epoch, last.resumed_step) == (0, 10)
    (warning,) = last.warnings
    assert warning.startswith(f"{paths.checkpoint}: not used: ")
    assert_same(last.record().model_dump(), whole)


def test_a_torn_checkpoint_never_takes_the_place_of_the_one_before(
    data: Path, tmp_path: Path
) -> None:
    paths = RunPaths(tmp_path)
    attempts(planned(data, epochs=1), tmp_path, [9])
    paths.checkpoint.write_bytes(b"torn")
    first = trainer(planned(data), tmp_path)
    assert first.resumed_step == 10
    assert not paths.checkpoint.exists()
    first._save(0)
    steps = [load_checkpoint(path, planned(data)).step for path in checkpoint_paths(paths)]
    assert steps == [10, 10]


def test_with_both_torn_training_starts_again(data: Path, tmp_path: Path) -> None:
    paths = RunPaths(tmp_path)
    attempts(planned(data, epochs=1), tmp_path, [9])
    for path in checkpoint_paths(paths):
        path.write_bytes(b"torn")
    last = attempts(planned(data), tmp_path, [])
    assert last.resumed_epoch is None
    assert "no checkpoint could be used" in last.warnings[-1]


def test_of_a_disk_that_is_full_a_warning_is_all(data: Path, tmp_path: Path) -> None:
    partial = tmp_path / f".checkpoint.pt.{os.uname().nodename}.{os.getpid()}"
    partial.symlink_to("/dev/full")
    whole = attempts(planned(data, epochs=2), tmp_path, [])
    assert len([warning for warning in whole.warnings if "not written" in warning]) == 1
    assert len(whole.epochs) == 2


def test_no_checkpoint_in_mid_epoch_where_none_is_wanted(data: Path, tmp_path: Path) -> None:
    never = planned(data, checkpoint_every=0, checkpoint_every_min=1e-6)
    assert attempts(never, tmp_path, []).checkpoint_s == 0
    assert not RunPaths(tmp_path).checkpoint.exists()
    stopped = trainer(never, tmp_path)
    stopped.stop = stopped.agreement.stop = Asked(3)
    with pytest.raises(Stopped) as raised:
        stopped.train()
    assert raised.value.signum == signal.SIGUSR2
    assert RunPaths(tmp_path).checkpoint.exists(), "but for the one when a signal stops the run"
