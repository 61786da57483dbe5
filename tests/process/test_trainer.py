"""Training gives the same model for the same seed, whole, stopped or killed, by every engine."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from interrupted import Asked, attempts
from make_runs import planned, trainer

from hpcncf.data import synthetic
from hpcncf.data.prepared import load_prepared
from hpcncf.data.readers import Columns, prepare_table
from hpcncf.errors import HpcncfError
from hpcncf.job.spec import Model, Training
from hpcncf.launcher.signals import Stopped
from hpcncf.native.builds import installed_builds
from hpcncf.ncf.batches import Schedule
from hpcncf.ncf.checkpoint import checkpoint_paths, load_checkpoint
from hpcncf.ncf.loaders import RankLoader
from hpcncf.ncf.progress import TrainingProgress
from hpcncf.ncf.trainer import _sampled_steps, mean_rows_per_step
from hpcncf.paths import RunPaths

NATIVE = pytest.mark.skipif(not installed_builds(), reason="engine native was not built here")
DROPOUT = Model(dropout=0.3)


@pytest.fixture(scope="module")
def data(folder: Path) -> Path:
    return folder


def trained(data: Path, results: Path, **training: Any) -> Any:
    rank = trainer(planned(data, **training), results)
    rank.train()
    return rank


def test_the_same_seed_gives_the_same_bits_and_another_does_not(data: Path, tmp_path: Path) -> None:
    digests = [
        trained(data, tmp_path / str(number), seed=seed, epochs=1).record().model_sha256
        for number, seed in enumerate([3, 3, 4])
    ]
    assert digests[0] == digests[1] != digests[2]


@pytest.mark.parametrize("engine", ["reference", "rowwise"])
def test_all_loaders_train_the_same_bits(data: Path, tmp_path: Path, engine: str) -> None:
    settings: dict[str, Any] = {"model": DROPOUT, "engine": engine, "epochs": 1}
    loaders = ("per_sample", "batched", "vectorized", "device")
    runs = [trained(data, tmp_path / each, loader=each, **settings) for each in loaders]
    assert len({run.record().model_sha256 for run in runs}) == 1


def test_all_engines_learn_alike(data: Path, tmp_path: Path) -> None:
    """On the same instances: what differs is rounding, and with it a rank here and there."""
    engines = ["reference", "rowwise", *(["native"] if installed_builds() else [])]
    settings: dict[str, Any] = {"lr": 0.01, "epochs": 3, "checkpoint_every": 0}
    records = [trained(data, tmp_path / each, engine=each, **settings).record() for each in engines]
    first = records[0].epochs
    assert first[-1].loss < first[0].loss < 0.8
    assert first[-1].hr10 > 0.2  # a tenth by chance
    one_rank_of_forty = 1 / 40 + 1e-9
    for record in records:
        assert (record.parameters, record.instances) == (
            records[0].parameters,
            records[0].instances,
        )
        assert sum(record.phases.model_dump().values()) == pytest.approx(record.counted_s)
        assert record.epochs[0].loss == pytest.approx(first[0].loss, rel=1e-3)
        assert record.epochs[-1].hr10 == pytest.approx(first[-1].hr10, abs=one_rank_of_forty)
        assert record.epochs[-1].ndcg10 == pytest.approx(first[-1].ndcg10, abs=one_rank_of_forty)


def test_the_first_loss_is_the_mean_over_all_instances(data: Path, tmp_path: Path) -> None:
    """With a learning rate that changes nothing, every step has the model of the start."""
    rank = trainer(planned(data, epochs=1, lr=1e-30, evaluation="none"), tmp_path)
    losses = []
    for batch in rank.loader.epoch(0, range(rank.schedule.steps)):
        logits = rank.model(batch.users, batch.items, batch.context).detach()
        losses.append(
            torch.nn.functional.binary_cross_entropy_with_logits(
                logits, batch.labels, reduction="none"
            )
        )
    rank.train()
    assert rank.epochs[0].loss == pytest.approx(float(torch.cat(losses).mean()), rel=1e-5)


def test_the_record_adds_up_where_max_steps_end_a_run_within_an_epoch(
    data: Path, tmp_path: Path
) -> None:
    record = trained(data, tmp_path, epochs=3, max_steps=40).record()
    assert (record.steps, record.instances) == (40, 1501 * 5 + 9 * 250)
    assert [epoch.steps for epoch in record.epochs] == [31, 9]
    assert [epoch.instances for epoch in record.epochs] == [1501 * 5, 9 * 250]
    assert record.epochs[1].hr10 is not None
    assert (record.warmup_steps, record.counted_steps) == (4, 36)
    assert record.counted_instances == record.instances - 4 * 250
    assert sum(record.phases.model_dump().values()) == pytest.approx(record.counted_s)
    assert record.training_s == pytest.approx(sum(epoch.training_s for epoch in record.epochs))
    assert record.parameters == 40 * (40 + 150) + 3433 - 32 * 12  # 9 context columns, not 21
    assert record.phases.sync_s == 0.0
    assert record.baseline is not None
    assert record.checkpoint_s > 0


@pytest.mark.parametrize("engine", ["reference", *(["native"] if installed_builds() else [])])
def test_max_s_ends_training_within_an_epoch_that_is_not_evaluated(
    data: Path, tmp_path: Path, engine: str
) -> None:
    settings: dict[str, Any] = {"engine": engine, "epochs": 10**6, "checkpoint_every": 0}
    record = trained(data, tmp_path, max_s=0.3, **settings).record()
    assert 0.3 <= record.training_s < 3
    assert record.steps == sum(epoch.steps for epoch in record.epochs)
    assert [epoch.steps for epoch in record.epochs[:-1]] == [31] * (len(record.epochs) - 1)
    assert (record.epochs[-1].hr10 is None) == (record.epochs[-1].steps < 31)
    assert record.training_s == pytest.approx(sum(epoch.training_s for epoch in record.epochs))


@pytest.mark.parametrize(
    ("evaluation", "pairs"), [("none", None), ("sampled", 9 * 10), ("full", 9 * 40)]
)
def test_what_is_evaluated_decides_metrics_baseline_and_warnings(
    evaluation: str, pairs: int | None, tmp_path: Path
) -> None:
    """Of nine negatives every item is among the first ten."""
    synthetic.prepare_synthetic(
        tmp_path / "data", users=9, items=40, train_rows=70, test_negatives=9
    )
    settings: dict[str, Any] = {"epochs": 1, "max_steps": 1, "evaluation": evaluation}
    rank = trained(tmp_path / "data", tmp_path / "results", **settings)
    record = rank.record()
    assert record.epochs[0].evaluation_pairs == pairs
    assert (record.epochs[0].hr10 is None) == (pairs is None)
    assert (record.evaluation_s > 0) == (pairs is not None)
    assert (record.baseline is not None) == (evaluation == "sampled")
    cautions = [rank.data.manifest.ranking_warning] if evaluation == "sampled" else []
    assert rank.warnings == cautions
    if cautions:
        assert record.epochs[0].hr10 == 1


def test_a_diverging_loss_is_an_error_and_not_a_number_in_a_record(
    data: Path, tmp_path: Path
) -> None:
    with pytest.raises(
        HpcncfError, match=r"the loss became nan\. .*training.lr smaller than 1e\+30"
    ):
        trained(data, tmp_path, lr=1e30)


def test_data_without_test_rows_is_refused_before_an_epoch_is_spent(tmp_path: Path) -> None:
    source = tmp_path / "rows.csv"
    source.write_text("user,item\n" + "".join(f"{user},{user % 7}\n" for user in range(30)))
    folder = tmp_path / "data"
    prepare_table(folder, source, "csv", Columns("user", "item"))
    with pytest.raises(HpcncfError, match=r"no test row.*Use evaluation: none"):
        trainer(planned(folder), tmp_path)
    assert trained(folder, tmp_path, evaluation="none", epochs=1).record().steps == 1


@NATIVE
def test_native_takes_several_steps_in_a_call_to_the_bits_of_one_by_one(
    data: Path, tmp_path: Path
) -> None:
    """The epoch's last step, of one positive, is none of them; a profile has all one by one."""
    digests, calls = set(), []
    for profile in ("none", "torch"):
        run = planned(data, engine="native", epochs=2, profile=profile)
        rank = trainer(run, tmp_path / profile)
        rank.after_step = lambda: calls.append(profile)  # noqa: B023  called in this round
        rank.train()
        record, steps = rank.record(), 2 * rank.schedule.steps
        assert record.steps == steps
        assert record.instances == 2 * 5 * rank.schedule.rows
        assert [epoch.steps for epoch in record.epochs] == [rank.schedule.steps] * 2
        digests.add((record.model_sha256, *(epoch.loss for epoch in record.epochs)))
    assert len(digests) == 1
    assert calls.count("torch") == steps > calls.count("none")


@pytest.mark.parametrize(("rank", "world_size"), [(0, 1), (1, 2)])
def test_rows_per_step_are_counted_over_the_loaders_own_batches(
    data: Path, rank: int, world_size: int
) -> None:
    prepared, training = load_prepared(data), Training(negatives=3)
    rows = prepared.manifest.train_rows
    schedule = Schedule(rows, rows // 2, rank, world_size)  # so that both whole steps are seen
    steps = [
        next(RankLoader(prepared, training, schedule).epoch(0, range(s, s + 1))) for s in (0, 1)
    ]
    counts = [len(set(b.users.tolist())) + len(set(b.items.tolist())) for b in steps]
    assert mean_rows_per_step(prepared, training, schedule) == sum(counts) / 2
    assert mean_rows_per_step(prepared, training, Schedule(1, 1, rank=0, world_size=2)) is None


@pytest.mark.parametrize(
    ("rows", "batch", "steps"),
    [(10, 100, 1), (64, 4, 8), (1_000_000, 256, 8), (1_000_000, 1_024, 4), (10**6, 65_536, 1)],
)
def test_rows_are_counted_in_few_steps_of_large_batches(rows: int, batch: int, steps: int) -> None:
    chosen = _sampled_steps(Schedule(rows, batch))
    assert len(chosen) == steps
    assert (chosen[-1] + 1) * batch <= max(rows, batch)


def assert_same(ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    """But for the times, which no two runs share."""
    assert ours["model_sha256"] == theirs["model_sha256"]
    seen = ("epoch", "steps", "instances", "loss", "hr10", "ndcg10", "mrr", "hr10_unseen")
    assert [{key: epoch[key] for key in seen} for epoch in ours["epochs"]] == [
        {key: epoch[key] for key in seen} for epoch in theirs["epochs"]
    ]
    assert ours["baseline"] == theirs["baseline"]


ROWWISE: dict[str, Any] = {"engine": "rowwise"}
# An epoch has 31 steps, and each looks once for a request to stop.
STOPPED: list[Any] = [
    ({}, [0]),
    ({}, [30]),
    ({}, [31]),
    ({}, [1, 2, 3, 5, 8, 13]),
    ({"model": DROPOUT, "loader": "per_sample"}, [11, 30]),
    ({"model": DROPOUT, "loader": "batched", "num_workers": 1}, [31, 11]),
    ({"model": DROPOUT, "accumulate": 3}, [11, 30]),
    ({"model": DROPOUT, "compile": "torchscript"}, [11, 30]),
    ({"model": DROPOUT, "precision": "bfloat16"}, [11, 30]),
    ({"precision": "float16"}, [4, 30]),
    ({"adam": "fused"}, [4, 30]),
    ({"optimizer": "lazy_adam", "sparse": True}, [4, 30]),
    # In the steps taken one by one, in mid-epoch, at an epoch's end.
    (ROWWISE, [4, 20, 30, 9]),
    (ROWWISE | {"model": DROPOUT}, [4, 30]),
    (ROWWISE | {"optimizer": "lazy_adam"}, [4, 30]),
    (ROWWISE | {"optimizer": "sgd"}, [4, 30]),
    *(
        pytest.param({"engine": "native", "optimizer": each}, [2, 7, 3], marks=NATIVE)
        for each in ("adam", "lazy_adam", "sgd")
    ),
]


@pytest.mark.parametrize(("settings", "stops"), STOPPED, ids=str)
def test_a_run_that_is_stopped_has_the_bits_of_one_that_is_not(
    data: Path, tmp_path: Path, settings: dict[str, Any], stops: list[int]
) -> None:
    run = planned(data, **settings)
    whole = trained(data, tmp_path / "whole", **settings)
    last = attempts(run, tmp_path / "cut", stops)
    assert_same(last.record().model_dump(), whole.record().model_dump())
    assert (last.resumed_epoch or 0) * 31 + last.resumed_step + last.clock.steps == 62
    assert whole.resumed_epoch is None
    if "precision" in settings:
        skipped = 0 if settings["precision"] == "float16" else None
        assert whole.record().skipped_steps == skipped


def test_a_torn_checkpoint_gives_way_to_the_one_before(data: Path, tmp_path: Path) -> None:
    paths = RunPaths(tmp_path)
    whole = trained(data, tmp_path / "whole").record().model_dump()
    attempts(planned(data, epochs=1), tmp_path, [9])
    paths.checkpoint.write_bytes(paths.checkpoint.read_bytes()[:4000])
    first = trainer(planned(data), tmp_path)
    assert (first.resumed_epoch, first.resumed_step) == (0, 10)
    (warning,) = first.warnings
    assert warning.startswith(f"{paths.checkpoint}: not used: ")
    assert not paths.checkpoint.exists(), "it never takes the place of the one before"
    first._save(0)
    steps = [load_checkpoint(path, planned(data)).step for path in checkpoint_paths(paths)]
    assert steps == [10, 10]
    first.train()
    assert_same(first.record().model_dump(), whole)
    for path in checkpoint_paths(paths):
        path.write_bytes(b"torn")
    last = attempts(planned(data), tmp_path, [])
    assert last.resumed_epoch is None
    assert "no checkpoint could be used" in last.warnings[-1]
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
    whole = trained(data, tmp_path / "whole").record().model_dump()
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
