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
import torch.distributed as dist
from fake_gpu import DEVICE, FakeGpu, HostWaits, fake_gpu
from make_runs import planned, trainer
from torch.testing._internal.distributed.fake_pg import FakeStore

from hpcncf.data.prepared import Prepared
from hpcncf.job.load import build_plan, load_job
from hpcncf.job.spec import Model, Training
from hpcncf.ncf import model
from hpcncf.ncf.batches import Schedule
from hpcncf.ncf.engines.rowwise import Rowwise
from hpcncf.ncf.evaluate import Candidates, rank_test_rows
from hpcncf.ncf.loaders import Loader
from hpcncf.ncf.step_clock import StepClock
from hpcncf.ncf.sync import DeviceTransport

BATCH, STEPS = 120, 13  # the last step is smaller
SCHEDULE = Schedule(1501, BATCH)
RULES = ["adam", "lazy_adam", "sgd"]
WAYS = [*((rule, "float32") for rule in RULES), ("adam", "float16")]
JOB = Path(__file__).parents[2] / "jobs" / "remedies_gpu.yaml"


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeGpu]:
    with fake_gpu(monkeypatch) as fake:
        yield fake


def begun(
    data: Prepared,
    schedule: Schedule = SCHEDULE,
    ranks: DeviceTransport | None = None,
    **changes: Any,
) -> tuple[Rowwise, Loader]:
    settings = {"engine": "rowwise", "loader": "device", "global_batch_size": schedule.batch}
    training = Training(**(settings | changes))
    sizes = Model(dropout=0.0 if training.cuda_graph else 0.1)
    start = model.initial_model(data.manifest, sizes, 1).to(DEVICE)
    engine = Rowwise(start, training, DEVICE, StepClock(2 * STEPS, STEPS), ranks)
    return engine, Loader(data, training, schedule, DEVICE)


def epochs(engine: Rowwise, loader: Loader, number: int = 1) -> None:
    for epoch in range(number):
        batches = engine.batches(loader, epoch, range(STEPS))
        for step in range(STEPS):
            engine.step(batches, 5 * SCHEDULE.positives(step))
    engine.settle()


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
def test_the_fake_gpu_knows_what_makes_a_host_wait(gpu: FakeGpu, asks: Any) -> None:
    with gpu.queued(), pytest.raises(HostWaits):
        asks(torch.zeros(3, device=DEVICE))


def test_the_fake_gpu_refuses_tensors_of_two_devices(gpu: FakeGpu) -> None:
    there, here = torch.zeros(3, device=DEVICE), torch.zeros(3)
    with pytest.raises(RuntimeError, match="two devices"):
        there + here
    with pytest.raises(RuntimeError, match="two devices"):
        there.index_select(0, torch.tensor([0]))
    assert there.add(2.0).cpu().tolist() == [1.0, 1.0, 1.0]
    assert not gpu.captures


@pytest.mark.parametrize(("optimizer", "precision"), WAYS)
def test_no_host_waits_and_whole_batches_are_captured_once_and_replayed(
    gpu: FakeGpu, data: Prepared, optimizer: str, precision: str
) -> None:
    """Of 12 whole batches an epoch, ten steps are the first ones and three warm up."""
    engine, loader = begun(data, optimizer=optimizer, precision=precision)
    with gpu.queued():
        epochs(engine, loader)
    assert engine.loss.device == DEVICE
    engine, loader = begun(data, optimizer=optimizer, precision=precision, cuda_graph=True)
    with gpu.queued():
        epochs(engine, loader, 2)
    assert (gpu.captures, gpu.replays) == (1, 24 - 10 - 3)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.torch.jit.script_method:DeprecationWarning")  # torch's own
def test_a_whole_batchs_step_is_one_graph_to_compile_and_to_capture(
    gpu: FakeGpu, data: Prepared, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Up to what inductor would make kernels of, which takes a GPU that computes."""
    asked, compiled = list[Any](), torch.compile

    def traced(step: Any, options: Any, **settings: Any) -> Any:
        asked.append(options)
        return compiled(step, backend="aot_eager", fullgraph=True, **settings)

    torch._dynamo.reset()
    monkeypatch.setattr(torch, "compile", traced)
    engine, loader = begun(data, cuda_graph=True, compile="inductor", precision="float16")
    epochs(engine, loader, 2)
    assert len(asked) == 1
    assert (gpu.captures, gpu.replays) == (1, 24 - 10 - 3)


@pytest.mark.parametrize(
    ("optimizer", "cuda_graph"), [("adam", True), ("adam", False), ("lazy_adam", True)]
)
def test_a_checkpoint_read_into_the_hosts_memory_goes_back_to_the_gpu(
    gpu: FakeGpu, data: Prepared, optimizer: str, cuda_graph: bool
) -> None:
    here = torch.device("cpu")
    settings = Training(engine="rowwise", optimizer=optimizer, global_batch_size=BATCH)
    start = model.initial_model(data.manifest, Model(dropout=0.0 if cuda_graph else 0.1), 1)
    engine, loader = begun(data, optimizer=optimizer, cuda_graph=cuda_graph)
    saved = Rowwise(start, settings, here, StepClock(STEPS, STEPS))
    engine.model.load_state_dict(saved.model.state_dict())
    engine.load(saved.state())
    epochs(engine, loader, 2)
    assert {each.device for each in engine.model.parameters()} == {DEVICE}
    assert gpu.captures == cuda_graph


@pytest.mark.parametrize("optimizer", ["adam", "lazy_adam"])
def test_ranks_exchange_rows_without_their_hosts(
    gpu: FakeGpu, data: Prepared, optimizer: str
) -> None:
    dist.init_process_group("fake", store=FakeStore(), rank=1, world_size=3)
    try:
        schedule, sent = Schedule(1501, BATCH, 1, 3), list[int]()
        engine, loader = begun(data, schedule, DeviceTransport(sent.append), optimizer=optimizer)
        with gpu.queued():
            batches = engine.batches(loader, 0, range(STEPS))
            for step in range(STEPS):
                engine.step(batches, 5 * schedule.positives(step))
            engine.settle()
    finally:
        dist.destroy_process_group()
    assert len(set(sent)) == 1, "as long as it could be at most"


@pytest.mark.parametrize("candidates", ["sampled", "full"])
def test_test_rows_are_ranked_where_the_model_lies(
    gpu: FakeGpu, data: Prepared, candidates: Candidates
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
    steps = 17 if settings.get("cuda_graph") else 3  # a graph is captured behind ten and three
    few = {"device": "cuda", "epochs": 2, "max_steps": steps, "checkpoint_every": 0}
    batch = {"global_batch_size": BATCH} if settings.get("global_batch_size", 256) == 256 else {}
    there = trainer(planned(folder, **(settings | few | batch | {"num_workers": 0})), tmp_path)
    there.train()
    seen = there.record()
    assert seen.device == "cuda:0"
    assert seen.epochs[-1].hr10 == 1.0, "what comes from this GPU are ones"
    assert bool(gpu.captures) == (settings.get("cuda_graph", False) and bool(batch))
    assert there.warnings == [w for w in there.warnings if "cudnn_benchmark" in w]


@pytest.mark.slow
def test_the_benchmark_for_gpus_runs(
    gpu: FakeGpu,
    data: Prepared,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """On few rows, in two of its ways, without torch's profiler, which finds no kernels here."""
    module = importlib.import_module("benchmarks.gpu")
    ways = {name: module.WAYS[name] for name in ("eager", "`cuda_graph`")}
    small = {"BATCHES": (120,), "WARM_UP": 14, "ROUNDS": 1, "MOST_STEPS": 1, "TINY": 2}
    unseen = nullcontext(SimpleNamespace(events=list))
    others = {"WAYS": ways, "EPOCHS": 1, "COPIED_MIB": 1, "profile": lambda **_: unseen}
    for name, value in (small | others).items():
        monkeypatch.setattr(module, name, value)
    steps, epochs = module.show_steps(data, DEVICE), module.show_epochs(data, DEVICE)
    settings: dict[str, Any] = {"device": "cuda", "global_batch_size": 120, "max_steps": 3}
    assert module.hr10(data, folder, 0, **settings) == 1.0
    assert set(steps) == {(120, way) for way in ways} == set(epochs)
    assert gpu.captures
    table = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| ")]
    assert len(table) == len(steps) + len(epochs) + 2
