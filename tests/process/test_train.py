"""Training gives the same model for the same seed, whole or resumed, on one rank or on two."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import free_port
from interrupted import attempts
from make_runs import planned, trainer
from train_two_ranks import SLOW_S

from hpcncf.errors import HpcncfError
from hpcncf.job.spec import Model
from hpcncf.ncf.data import synthetic
from hpcncf.ncf.data.readers import Columns, prepare_table


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


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_all_loaders_train_the_same_bits(data: Path, tmp_path: Path, dropout: float) -> None:
    model = Model(dropout=dropout)
    digests = {
        trained(data, tmp_path / loader, model=model, loader=loader, epochs=1).record().model_sha256
        for loader in ("per_sample", "batched", "vectorized", "device")
    }
    assert len(digests) == 1


def test_a_caution_about_the_data_is_the_only_warning_of_a_first_attempt(tmp_path: Path) -> None:
    synthetic.prepare_synthetic(
        tmp_path / "few", users=40, items=150, train_rows=500, test_negatives=5
    )
    first = trainer(planned(tmp_path / "few"), tmp_path / "results")
    assert first.warnings == [first.data.manifest.ranking_warning]


def test_the_model_learns(data: Path, tmp_path: Path) -> None:
    record = trained(data, tmp_path, epochs=8, lr=0.01, checkpoint_every=0).record()
    losses = [epoch.loss for epoch in record.epochs]
    assert losses[-1] < losses[0] < 0.8
    assert record.epochs[-1].hr10 > 0.2  # a tenth by chance


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


@pytest.mark.parametrize(
    ("dropout", "loader", "workers"),
    [(0.0, "vectorized", 0), (0.3, "vectorized", 0), (0.3, "batched", 1)],
)
def test_a_resumed_run_has_the_bits_of_one_never_interrupted(
    data: Path, tmp_path: Path, dropout: float, loader: str, workers: int
) -> None:
    settings = {"model": Model(dropout=dropout), "loader": loader, "num_workers": workers}
    whole = trained(data, tmp_path / "whole", epochs=3, **settings).record()
    trained(data, tmp_path / "cut", epochs=1, **settings)
    resumed = trained(data, tmp_path / "cut", epochs=3, **settings).record()
    assert resumed.model_sha256 == whole.model_sha256
    assert resumed.resumed_epoch == 1
    assert [epoch.epoch for epoch in resumed.epochs] == [0, 1, 2]
    assert [epoch.loss for epoch in resumed.epochs] == [epoch.loss for epoch in whole.epochs]
    assert resumed.steps == 2 * 31
    assert whole.resumed_epoch is None


def test_a_torn_checkpoint_is_said_and_training_starts_again(data: Path, tmp_path: Path) -> None:
    whole = trained(data, tmp_path, epochs=1).record()
    checkpoint = tmp_path / "checkpoint.pt"
    checkpoint.write_bytes(checkpoint.read_bytes()[:5000])
    again = trained(data, tmp_path, epochs=1)
    assert again.record().model_sha256 == whole.model_sha256
    assert again.record().resumed_epoch is None
    assert [warning for warning in again.warnings if "no checkpoint could be used" in warning]


def test_max_steps_end_a_run_within_an_epoch(data: Path, tmp_path: Path) -> None:
    record = trained(data, tmp_path, epochs=3, max_steps=40).record()
    assert record.steps == 40
    assert [epoch.steps for epoch in record.epochs] == [31, 9]
    assert [epoch.instances for epoch in record.epochs] == [1501 * 5, 9 * 250]
    assert record.epochs[1].hr10 is not None


def test_the_record_adds_up(data: Path, tmp_path: Path) -> None:
    record = trained(data, tmp_path, epochs=2).record()
    assert (record.steps, record.instances) == (62, 2 * 1501 * 5)
    assert (record.warmup_steps, record.counted_steps) == (6, 56)
    assert record.counted_instances == record.instances - 6 * 250
    assert sum(record.phases.model_dump().values()) == pytest.approx(record.counted_s)
    assert record.training_s == pytest.approx(sum(epoch.training_s for epoch in record.epochs))
    assert record.parameters == 40 * (40 + 150) + 3433 - 32 * 12  # 9 context columns, not 21
    assert record.phases.sync_s == 0.0
    assert record.baseline is not None
    assert record.checkpoint_s > 0


def test_without_evaluation_there_are_no_metrics(data: Path, tmp_path: Path) -> None:
    record = trained(data, tmp_path, epochs=1, evaluation="none").record()
    assert record.epochs[0].hr10 is record.epochs[0].evaluation_pairs is None
    assert (record.evaluation_s, record.baseline) == (0.0, None)


@pytest.mark.parametrize(("evaluation", "warned"), [("sampled", True), ("full", False)])
def test_a_hit_rate_that_is_always_one_is_warned_of_in_the_record(
    evaluation: str, warned: bool, tmp_path: Path
) -> None:
    synthetic.prepare_synthetic(
        tmp_path / "data", users=9, items=40, train_rows=70, test_negatives=9
    )
    settings: dict[str, Any] = {"epochs": 1, "max_steps": 1, "evaluation": evaluation}
    rank = trained(tmp_path / "data", tmp_path / "results", **settings)
    assert any("always 1" in warning for warning in rank.warnings) == warned
    if warned:
        assert rank.record().epochs[0].hr10 == 1


def test_a_table_of_counts_among_sampled_negatives_stands_beside_no_full_ranking(
    data: Path, tmp_path: Path
) -> None:
    record = trained(data, tmp_path, epochs=1, max_steps=1, evaluation="full").record()
    assert record.epochs[0].evaluation_pairs == 40 * 150
    assert record.epochs[0].hr10 is not None
    assert record.baseline is None


def test_a_diverging_loss_is_an_error_and_not_a_number_in_a_record(
    data: Path, tmp_path: Path
) -> None:
    with pytest.raises(
        HpcncfError, match=r"the loss became nan\. .*training.lr smaller than 1e\+30"
    ):
        trained(data, tmp_path, lr=1e30)


@pytest.fixture(scope="module")
def two_ranks(data: Path, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each of two gloo ranks has after two epochs of 31 steps, the last with one row."""
    out = tmp_path_factory.mktemp("two")
    port = str(free_port())
    script = str(Path(__file__).parents[1].joinpath("train_two_ranks.py"))
    processes = []
    for rank in ("0", "1"):
        env = os.environ | {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": "2"}
        env |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": "1"}
        command = [sys.executable, script, str(data), str(out)]
        processes.append(subprocess.Popen(command, env=env))
    try:
        assert [process.wait(timeout=120) for process in processes] == [0, 0]
    finally:
        for process in processes:
            process.kill()
    return [torch.load(out / f"rank-{rank}.pt", weights_only=True) for rank in (0, 1)]


def test_two_ranks_end_with_one_model(two_ranks: list[dict[str, Any]]) -> None:
    first, second = two_ranks
    assert first["record"]["model_sha256"] == second["record"]["model_sha256"]


def test_two_ranks_compute_what_one_computes(
    data: Path, tmp_path: Path, two_ranks: list[dict[str, Any]]
) -> None:
    one = trained(data, tmp_path, evaluation="full")
    for name, values in one.model.state_dict().items():
        # Sums in another order differ in the last bits, which Adam's first steps blow up.
        torch.testing.assert_close(two_ranks[0]["model"][name], values, rtol=1e-3, atol=1e-4)
    theirs, ours = two_ranks[0]["record"]["epochs"], one.record().epochs
    for epoch, expected in zip(theirs, ours, strict=True):
        assert epoch["loss"] == pytest.approx(expected.loss, rel=1e-5)
        assert epoch["instances"] == expected.instances
        assert epoch["mrr"] == pytest.approx(expected.mrr, rel=0.02)


def test_two_ranks_share_the_work_and_wait_for_each_other(two_ranks: list[dict[str, Any]]) -> None:
    records = [seen["record"] for seen in two_ranks]
    assert [record["instances"] for record in records] == [2 * 750 * 5, 2 * 751 * 5]
    assert all(record["phases"]["sync_s"] > 0 for record in records)
    assert all(math.isfinite(record["counted_s"]) for record in records)
    assert [epoch["checkpoint_s"] > 0 for epoch in records[0]["epochs"]] == [True, True]
    assert [epoch["checkpoint_s"] for epoch in records[1]["epochs"]] == [0.0, 0.0]


def test_a_rank_that_waits_for_the_others_checkpoint_is_not_training(
    two_ranks: list[dict[str, Any]],
) -> None:
    """The ranks take every step together, so their times differ by that wait or by very little."""
    first, second = (seen["record"]["epochs"][1]["training_s"] for seen in two_ranks)
    assert abs(second - first) < SLOW_S / 2


def test_data_without_test_rows_is_refused_before_an_epoch_is_spent(tmp_path: Path) -> None:
    source = tmp_path / "rows.csv"
    source.write_text("user,item\n" + "".join(f"{user},{user % 7}\n" for user in range(30)))
    folder = tmp_path / "data"
    prepare_table(folder, source, "csv", Columns("user", "item"))
    with pytest.raises(HpcncfError, match=r"no test row.*Use evaluation: none"):
        trainer(planned(folder), tmp_path)
    assert trained(folder, tmp_path, evaluation="none", epochs=1).record().steps == 1


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


def test_native_stopped_in_mid_epoch_goes_on_to_the_same_bits(data: Path, tmp_path: Path) -> None:
    run = planned(data, engine="native", epochs=2)
    whole = trained(data, tmp_path / "whole", engine="native", epochs=2).record()
    last = attempts(run, tmp_path / "stopped", [2, 1])
    assert last.resumed_step
    assert last.record().model_sha256 == whole.model_sha256
    assert [each.loss for each in last.record().epochs] == [each.loss for each in whole.epochs]
