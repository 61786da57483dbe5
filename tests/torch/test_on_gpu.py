"""What trains on a GPU, on one that computes nothing: no tensor lies on the wrong device, and no
host waits where none is to."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from fake_gpu import DEVICE, FakeGpu, HostWaits, fake_gpu
from make_runs import planned, trainer

from hpcncf.data.prepared import PreparedData
from hpcncf.job.load import build_plan, load_job
from hpcncf.job.spec import Model, Training
from hpcncf.ncf import model
from hpcncf.ncf.batches import Resident, Schedule
from hpcncf.ncf.engines.reference import ReferenceEngine
from hpcncf.ncf.evaluate import Candidates, rank_test_rows
from hpcncf.ncf.loaders import RankLoader
from hpcncf.ncf.step_clock import StepClock

BATCH, STEPS = 120, 13  # the last step is smaller
SCHEDULE = Schedule(1501, BATCH)
JOB = Path(__file__).parents[2] / "jobs" / "remedies_gpu.yaml"


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeGpu]:
    with fake_gpu(monkeypatch) as fake:
        yield fake


def begun(data: PreparedData, **changes: Any) -> tuple[ReferenceEngine, RankLoader]:
    training = Training(**({"loader": "device", "global_batch_size": BATCH} | changes))
    start = model.initial_model(data.manifest, Model(), 1).to(DEVICE)
    engine = ReferenceEngine(start, training, 1, DEVICE, StepClock(2 * STEPS, STEPS))
    return engine, RankLoader(data, training, SCHEDULE, DEVICE)


def train_epoch(engine: ReferenceEngine, loader: RankLoader) -> None:
    batches = engine.batches(loader, 0, range(STEPS))
    for step in range(STEPS):
        engine.step(batches, 5 * SCHEDULE.positives(step))


@pytest.mark.parametrize(
    "asks",
    [
        lambda there: there[0].item(),
        lambda there: bool(there.any()),
        lambda there: there.cpu(),
        lambda there: there.nonzero(),
        lambda there: there[there > 0],
        lambda there: torch.unique(there),
        lambda there: torch.tensor([1.0, 2.0], device=there.device),
        lambda there: there[torch.tensor([0, 1])],
        lambda there: there.copy_(torch.zeros(3)),
        lambda there: torch.zeros(3).copy_(there),
    ],
)
def test_fake_gpu_knows_what_makes_a_host_wait(gpu: FakeGpu, asks: Any) -> None:
    with gpu.queued(), pytest.raises(HostWaits):
        asks(torch.zeros(3, device=DEVICE))


def test_fake_gpu_refuses_tensors_of_two_devices(gpu: FakeGpu) -> None:
    there, here = torch.zeros(3, device=DEVICE), torch.zeros(3)
    with pytest.raises(RuntimeError, match="two devices"):
        there + here
    with pytest.raises(RuntimeError, match="two devices"):
        there.index_select(0, torch.tensor([0]))
    assert there.add(2.0).cpu().tolist() == [1.0, 1.0, 1.0]
    assert not gpu.captures


def test_device_loader_draws_batches_without_a_wait(gpu: FakeGpu, data: PreparedData) -> None:
    resident = Resident(data, Training(loader="device"), SCHEDULE, DEVICE)
    with gpu.queued():
        batches = list(resident.rows(0, range(STEPS)))
    assert [len(users) for users, _, _ in batches] == [BATCH] * (STEPS - 1) + [1501 % BATCH]
    assert {part.device for part in batches[-1]} == {DEVICE}


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_cuda_graph_captures_once_and_replays_whole_batches(
    gpu: FakeGpu, data: PreparedData, precision: str
) -> None:
    engine, loader = begun(data, cuda_graph=True, precision=precision)
    train_epoch(engine, loader)
    assert (gpu.captures, gpu.replays) == (1, STEPS - 1)
    assert engine.loss.device == DEVICE
    assert all(each.grad is None for each in engine.model.parameters()), "the step resets them"


def test_cuda_graph_of_accumulated_parts_replays_those_of_its_size(
    gpu: FakeGpu, data: PreparedData
) -> None:
    """Of 600 instances in 7 parts, five have 86 and two have 85, the smallest size."""
    engine, loader = begun(data, cuda_graph=True, accumulate=7)
    train_epoch(engine, loader)
    assert (gpu.captures, gpu.replays) == (1, 2 * (STEPS - 1))


@pytest.mark.parametrize("candidates", ["sampled", "full"])
def test_evaluation_ranks_where_the_model_lies(
    gpu: FakeGpu, data: PreparedData, candidates: Candidates
) -> None:
    net = model.initial_model(data.manifest, Model(), 1).to(DEVICE)
    found = list(rank_test_rows(net, data, 0, 40, candidates))
    assert sum(map(len, found)) == 40
    assert {each.device.type for each in found} == {"cpu"}
    assert net.predict_layer.weight.device == DEVICE
    assert not gpu.captures


def remedies() -> list[dict[str, Any]]:
    """What each point of the job file for GPUs changes. Compilers need a GPU that computes, and
    worker processes are asked for in other tests."""
    runs = build_plan(load_job(JOB), JOB).active()
    found = [run.training.model_dump(exclude_defaults=True) for run in runs if run.training]
    different = {str(each): each for each in found if "compile" not in each}
    return list(different.values())


@pytest.mark.parametrize("settings", remedies(), ids=str)
def test_every_remedy_for_a_gpu_trains_and_evaluates(
    gpu: FakeGpu, folder: Path, tmp_path: Path, settings: dict[str, Any]
) -> None:
    few = {"device": "cuda", "epochs": 2, "max_steps": 3, "checkpoint_every": 0}
    batch = {"global_batch_size": BATCH} if settings.get("global_batch_size", 256) == 256 else {}
    there = trainer(planned(folder, **(settings | few | batch | {"num_workers": 0})), tmp_path)
    there.train()
    seen = there.record()
    assert seen.device == "cuda:0"
    assert seen.epochs[-1].hr10 == 1.0, "what comes from this GPU are ones"
    assert bool(gpu.captures) == settings.get("cuda_graph", False)
    assert there.warnings == [w for w in there.warnings if "cudnn_benchmark" in w]


@pytest.mark.slow
def test_benchmark_for_gpus_runs(
    gpu: FakeGpu,
    data: PreparedData,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """On few rows, in two of its ways, without torch's profiler, which finds no kernels here."""
    module = importlib.import_module("benchmarks.gpu")
    ways = {name: module.WAYS[name] for name in ("as it is", "`cuda_graph`")}
    small = {"BATCHES": (120,), "WARM_UP": 14, "ROUNDS": 1, "MOST_STEPS": 1}
    unseen = nullcontext(SimpleNamespace(events=list))
    others = {"WAYS": ways, "EPOCHS": 1, "profile": lambda **_: unseen}
    for name, value in (small | others).items():
        monkeypatch.setattr(module, name, value)
    module.show_steps(data, DEVICE)
    settings: dict[str, Any] = {"device": "cuda", "global_batch_size": 120, "max_steps": 3}
    assert module.hr10(data, folder, 0, **settings) == 1.0
    assert gpu.captures
    table = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| ")]
    assert len(table) == len(ways) + 1
