"""The loader alone: what is timed, and what is reported of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from hpcncf.cli import main
from hpcncf.data.prepared import load_prepared
from hpcncf.job.spec import Training
from hpcncf.ncf.batches import Schedule
from hpcncf.ncf.loaders import measure_loader

GRID = "grid: {training.loader: [per_sample, vectorized], training.epochs: [1, 2]}\n"


def test_each_way_to_load_is_timed_once(
    job_file: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["data", "bench", str(job_file(GRID)), "--seconds", "0.05"]
    assert main([*command, "--json"]) == 0
    seen = json.loads(capsys.readouterr().out)["loaders"]
    assert [each["loader"] for each in seen] == ["per_sample", "vectorized"]
    for each in seen:
        assert each["positives"] == 100
        assert each["instances"] == pytest.approx(500 * each["batches"], rel=0.2)
        assert each["seconds"] >= 0.05
        assert each["first_batch_s"] > 0
        assert each["next_epoch_s"] > 0
    assert main(command) == 0
    assert capsys.readouterr().out.splitlines()[1].startswith("per_sample")


def test_ways_that_differ_in_one_setting_of_the_workers_are_distinguished(
    job_file: Callable[[str], Path],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    job = str(job_file("grid: {training.persistent_workers: [true, false]}\n"))
    asked = ["data", "bench", job, "--seconds", "0.05", "-s", "training.num_workers=1"]
    given = ["-s", "training.loader=batched", "-s", "training.prefetch_factor=3"]
    assert main([*asked, *given]) == 0
    seen = [line.partition("  ")[0] for line in capsys.readouterr().out.splitlines()[1:]]
    assert seen == [
        "batched, 1 worker, persistent_workers false, prefetch_factor 3",
        "batched, 1 worker, prefetch_factor 3",
    ]


def test_an_epoch_of_one_batch_is_gone_through_again(tiny_data: Path) -> None:
    data = load_prepared(tiny_data)
    seen = measure_loader(data, Training(), Schedule(data.manifest.train_rows, 10**6), 0.05)
    assert seen.instances == seen.batches * data.manifest.train_rows * 5


def test_where_nothing_loads_batches_it_is_said(
    job_file: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["data", "bench", str(job_file("")), "-s", "training.engine=native"]
    assert main(asked) == 2
    assert "draws its instances itself" in capsys.readouterr().err
