"""Runs of ranks that exchange gradients or rows: they learn together, stop together, go on."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from interrupted import attempts
from make_runs import planned, trainer
from ranks_together import together

from hpcncf.job.spec import Model
from hpcncf.launcher.environment import Place
from hpcncf.launcher.signals import StopRequest
from hpcncf.native.builds import cpu_flags, installed_builds, select_build
from hpcncf.worker.lost_ranks import is_peer_loss

RANKS, SLOW_S = 2, 3.0
WAYS: dict[str, dict[str, Any]] = {
    "dense": {"loader": "batched", "model": Model(dropout=0.3)},
    "rows": {"engine": "rowwise", "sync": "rows"},
}
if select_build(installed_builds(), cpu_flags()):
    WAYS["rows, native"] = {"engine": "native", "sync": "rows"}


class Killed(StopRequest):
    """Its rank is killed in mid-epoch, in the second one."""

    def __init__(self, mine: Any, at: Path) -> None:
        self._mine, self._at = mine, at
        super().__init__()

    @property
    def signum(self) -> int | None:
        if len(self._mine.epochs) == 1 and self._mine.partial_epoch.steps > 2:
            self._at.write_text(str(time.monotonic()))
            os.kill(os.getpid(), signal.SIGKILL)
        return None

    @signum.setter
    def signum(self, _: int | None) -> None:
        pass


def attempt(rank: int, way: str, folder: Path, out: Path, killed: int | None) -> dict[str, Any]:
    """One attempt of the ranks: its record, or whether it lost another rank, and how soon."""
    run, died = planned(folder, ranks=RANKS, **WAYS[way]), out / "died"
    mine = trainer(run, out, Place(rank, rank, RANKS, RANKS))
    if rank == killed:
        mine.agreement.stop = Killed(mine, died)
    try:
        mine.train()
    except RuntimeError as error:
        return {"lost": is_peer_loss(error), "s": time.monotonic() - float(died.read_text())}
    record: dict[str, Any] = mine.record().model_dump(mode="json")
    return record


def slow_disk(position: Any) -> None:
    """The first epoch's checkpoint, which the first rank alone writes, takes some seconds more."""
    if (position.phase, position.epoch) == ("checkpoint", 0):
        time.sleep(SLOW_S)


def work(rank: int, folder: Path, out: Path) -> dict[str, Any]:
    """Each way's record, of a run that nobody stopped and of the last part of one that the second
    rank alone was asked to stop, twice."""
    place = Place(rank, rank, RANKS, RANKS)
    found = {}
    for way, settings in WAYS.items():
        run = planned(folder, ranks=RANKS, **settings)
        stops = [1, 3] if rank == 1 else [10**9] * 2
        whole = trainer(run, out / way / "whole", place)
        if way == "dense":
            whole.report._on_progress = slow_disk
        whole.train()
        cut = attempts(run, out / way / "cut", stops, place)
        found[way] = [each.record().model_dump(mode="json") for each in (whole, cut)]
    timed = planned(folder, ranks=RANKS, epochs=10**6, max_s=0.3, checkpoint_every=0)
    ended = trainer(timed, out / "timed", place)
    ended.train()
    found["timed"] = [ended.record().model_dump(mode="json")]
    return found


@pytest.fixture(scope="module")
def data(folder: Path) -> Path:
    return folder


@pytest.fixture(scope="module")
def records(data: Path, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return together(RANKS, work, data, tmp_path_factory.mktemp("runs"))


def test_ranks_end_after_the_same_step_once_one_has_had_its_time(
    records: list[dict[str, Any]],
) -> None:
    first, second = (by_rank["timed"][0] for by_rank in records)
    assert first["steps"] == second["steps"] > 0
    assert first["model_sha256"] == second["model_sha256"]
    assert max(first["training_s"], second["training_s"]) >= 0.3


@pytest.mark.parametrize("way", WAYS)
def test_a_run_that_stopped_twice_has_the_bits_of_one_that_did_not(
    records: list[dict[str, Any]], way: str
) -> None:
    seen = [each for by_rank in records for each in by_rank[way]]
    assert len({each["model_sha256"] for each in seen}) == 1
    quality = ("loss", "hr10", "ndcg10", "mrr", "instances")
    kept = [[[epoch[name] for name in quality] for epoch in each["epochs"]] for each in seen]
    assert kept == [kept[0]] * 4
    whole, cut = records[0][way]
    assert cut["steps"] < whole["steps"]
    assert cut["resumed_epoch"] is not None


@pytest.mark.parametrize("way", WAYS)
def test_every_positive_is_seen_once_an_epoch_and_teaches(
    records: list[dict[str, Any]], way: str
) -> None:
    wholes = [by_rank[way][0] for by_rank in records]
    assert [epoch["instances"] for epoch in wholes[0]["epochs"]] == [1501 * 5] * 2
    assert sum(whole["instances"] for whole in wholes) == 2 * 1501 * 5
    assert wholes[0]["epochs"][1]["loss"] < wholes[0]["epochs"][0]["loss"]


@pytest.mark.parametrize("way", WAYS)
def test_a_record_says_what_synchronising_took(records: list[dict[str, Any]], way: str) -> None:
    whole = records[1][way][0]
    sync, steps = whole["sync"], whole["counted_steps"]
    assert sync["how"] == WAYS[way].get("sync", "dense")
    assert sync["over"] == "gloo"
    assert sync["seconds"] == whole["phases"]["sync_s"] > 0
    values = 4 * whole["parameters"]  # float32
    if way == "dense":
        assert sync["bytes"] == steps * values
    else:
        assert 0 < sync["bytes"] < steps * values
    if sync["how"] == "rows":
        assert sync["exchanges"] == steps


def test_a_rank_that_waits_for_the_others_checkpoint_is_not_training(
    records: list[dict[str, Any]],
) -> None:
    """The ranks take every step together, so their times differ by that wait or by very little."""
    first, second = (each["dense"][0]["epochs"] for each in records)
    assert abs(second[1]["training_s"] - first[1]["training_s"]) < SLOW_S / 2
    assert first[0]["checkpoint_s"] > second[0]["checkpoint_s"] == 0.0


def test_what_two_ranks_say_is_of_their_own_messages(records: list[dict[str, Any]]) -> None:
    dense, rows = ([each[way][0]["sync"] for each in records] for way in ("dense", "rows"))
    assert dense[0]["bytes"] == dense[1]["bytes"]
    assert rows[0]["bytes"] != rows[1]["bytes"]


@pytest.mark.parametrize("way", WAYS)
def test_a_rank_that_is_killed_takes_the_other_down_and_the_run_goes_on_to_the_same_bits(
    data: Path, records: list[dict[str, Any]], tmp_path: Path, way: str
) -> None:
    """Within seconds: gloo would wait for it for ten minutes."""
    (left,) = together(RANKS, attempt, way, data, tmp_path, 1, killed=1)
    assert left["lost"]
    assert left["s"] < 10
    after = together(RANKS, attempt, way, data, tmp_path, None)
    assert [each["resumed_epoch"] for each in after] == [1] * RANKS
    assert {each["model_sha256"] for each in after} == {records[0][way][0]["model_sha256"]}
