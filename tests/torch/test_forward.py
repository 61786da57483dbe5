"""A compiled forward pass computes what the model's own does, from the first step on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from make_runs import planned, trainer

from hpcncf.errors import HpcncfError
from hpcncf.job.spec import Model, Training
from hpcncf.ncf.engines.reference import min_instances


@pytest.fixture(scope="module")
def data(folder: Path) -> Path:
    return folder


def of(data: Path, results: Path, **settings: Any) -> Any:
    settings = {"epochs": 1, "evaluation": "none", "checkpoint_every": 0} | settings
    return trainer(planned(data, model=Model(layers=(8,), dropout=0.5), **settings), results)


@pytest.mark.parametrize(
    ("settings", "ranks", "least"),
    [
        ({}, 1, 1280),
        ({"global_batch_size": 10}, 4, 10),
        ({"global_batch_size": 10, "accumulate": 2}, 1, 25),
        ({"batch_size_per_rank": 3, "accumulate": 2, "negatives": 1}, 4, 6),
    ],
)
def test_the_least_that_a_part_of_a_whole_step_has(
    settings: dict[str, Any], ranks: int, least: int
) -> None:
    assert min_instances(Training(**settings), ranks) == least


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.torch.jit.script_method:DeprecationWarning")  # torch's own
def test_inductor_compiles_once_before_the_first_step_and_computes_the_same(
    data: Path, tmp_path: Path
) -> None:
    """Also where the epoch's last step has one positive, and with dropout's masks."""
    from torch._dynamo.utils import counters

    torch._dynamo.reset()
    counters.clear()
    rank = of(data, tmp_path, compile="inductor")
    assert counters["stats"]["unique_graphs"] == 1
    rank.train()
    assert counters["stats"]["unique_graphs"] == 1
    alone = of(data, tmp_path / "alone")
    alone.train()
    assert rank.epochs[0].loss == pytest.approx(alone.epochs[0].loss, rel=1e-6)
    assert rank.model.state_dict().keys() == alone.model.state_dict().keys()


@pytest.mark.slow
def test_without_a_compiler_inductor_is_an_error_before_training(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch._inductor.config as inductor

    monkeypatch.setattr(inductor.cpp, "cxx", (None, "no-such-compiler"))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "compiled"))
    torch._dynamo.reset()
    with pytest.raises(HpcncfError, match=r"no-such-compiler.*Load their modules"):
        of(data, tmp_path, compile="inductor")


def test_dataparallel_on_a_cpu_trains_the_same_bits_and_says_that_it_does_nothing(
    data: Path, tmp_path: Path
) -> None:
    rank, alone = of(data, tmp_path, parallel="data_parallel"), of(data, tmp_path / "alone")
    rank.train()
    alone.train()
    assert rank.record().model_sha256 == alone.record().model_sha256
    said = [each for each in rank.warnings if each not in alone.warnings]
    assert len(said) == 1
    assert "on a CPU torch runs the model itself" in said[0]


def test_cudnns_benchmark_is_said_to_have_no_convolutions_to_choose_for(
    data: Path, tmp_path: Path
) -> None:
    [said] = of(data, tmp_path, cudnn_benchmark=True).warnings
    assert "convolutions, and this model has none" in said
    assert torch.backends.cudnn.benchmark
    assert of(data, tmp_path / "alone").warnings == []
    assert not torch.backends.cudnn.benchmark


def test_the_record_says_the_learning_rate_that_a_batch_has(data: Path, tmp_path: Path) -> None:
    rank = of(data, tmp_path, global_batch_size=64, lr_scale="sqrt", optimizer="sgd", lr=0.1)
    assert rank.record().lr == pytest.approx(0.05)
    rank.train()
    same = of(data, tmp_path / "same", global_batch_size=64, optimizer="sgd", lr=0.05)
    same.train()
    assert rank.epochs[0].loss == same.epochs[0].loss


def test_a_warm_up_begins_nothing_on_gpus_that_the_run_does_not_use(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_context(_: object) -> None:
        raise AssertionError("a context on a GPU that is not the run's")

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)
    monkeypatch.setattr(torch.cuda, "get_rng_state", no_context)
    of(data, tmp_path, compile="torchscript")
