"""A whole batch's step as one function of memory that stays: what a graph of it will replay."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from interrupted import attempts
from make_runs import planned, trainer

from hpcncf.job.spec import Model, Training
from hpcncf.ncf import model
from hpcncf.ncf.batches import BatchRows, BatchWindow, Schedule
from hpcncf.ncf.data.prepared import Prepared
from hpcncf.ncf.engines.cuda_graph import CapturedStep
from hpcncf.ncf.engines.rowwise import Rowwise
from hpcncf.ncf.loaders import Loader
from hpcncf.ncf.step_clock import StepClock

STEPS, SCHEDULE = 31, Schedule(1501, 50)
RULES = ["adam", "lazy_adam", "sgd"]
GRAPH: dict[str, Any] = {"engine": "rowwise", "loader": "device", "cuda_graph": True}
gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def begun(data: Prepared, device: str = "cpu", **changes: Any) -> tuple[Rowwise, Loader]:
    torch.set_num_threads(1)
    settings = {"engine": "rowwise", "loader": "device", "global_batch_size": 50}
    training, place = Training(**(settings | changes)), torch.device(device)
    start = model.initial_model(data.manifest, Model(), 1).to(place)
    engine = Rowwise(start, training, place, StepClock(2 * STEPS, STEPS))
    return engine, Loader(data, training, SCHEDULE, place)


def epochs(engine: Rowwise, loader: Loader, number: int = 2) -> Rowwise:
    """Each ends with a step of one positive, which the host counts."""
    for epoch in range(number):
        batches = engine.batches(loader, epoch, range(STEPS))
        for step in range(STEPS):
            engine.step(batches, 5 * SCHEDULE.positives(step))
    engine.settle()
    return engine


@pytest.mark.parametrize("optimizer", RULES)
def test_a_step_that_counts_on_the_device_has_the_bits_of_one_that_the_host_counts(
    data: Prepared, optimizer: str
) -> None:
    ours = epochs(*begun(data, cuda_graph=True, optimizer=optimizer))
    theirs = epochs(*begun(data, optimizer=optimizer))
    assert torch.equal(ours.loss, theirs.loss)
    assert model.model_sha256(ours.model) == model.model_sha256(theirs.model)
    assert ours.state()["rows"].get("step") == theirs.state()["rows"].get("step")


def test_a_run_that_resumes_in_mid_epoch_has_the_same_bits(folder: Path, tmp_path: Path) -> None:
    """It finds its place in the window, and the device learns how far the training is."""
    run = planned(folder, **GRAPH, evaluation="none")
    whole = trainer(run, tmp_path / "whole")
    whole.train()
    cut = attempts(run, tmp_path / "cut", [4, 20, 30, 9])
    assert cut.record().model_sha256 == whole.record().model_sha256


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_no_step_of_a_whole_batch_needs_a_value_on_the_host(data: Prepared, optimizer: str) -> None:
    """Tensors of device meta have none: a capture may not ask for one."""
    engine, loader = begun(data, "meta", cuda_graph=True, optimizer=optimizer)
    assert epochs(engine, loader, 1).loss.is_meta


def test_what_a_step_reads_and_writes_stays_where_it_is(data: Prepared) -> None:
    """Memory that moved between two calls would not be what a replay works on."""
    engine, loader = begun(data, cuda_graph=True)
    kept = [engine.loss, *engine.model.parameters()]
    batches = engine.batches(loader, 0, range(STEPS))
    places = []
    for step in range(14):
        engine.step(batches, 5 * SCHEDULE.positives(step))
        places.append([each.data_ptr() for each in kept])
    assert places[0] == places[-1]
    assert [each.data_ptr() for each in (engine.loss, *engine.model.parameters())] == places[0]


def drawn(lengths: list[list[int]]) -> Iterator[tuple[list[int], BatchRows]]:
    first = 0
    for each in lengths:
        ids = torch.arange(first, first + sum(each))
        first += sum(each)
        yield each, (ids, ids[:, None] * 10, ids[:, None].float())


def test_a_window_gives_the_batches_in_order_and_the_smaller_one_apart() -> None:
    window = BatchWindow(3, 6, torch.device("cpu"))
    users = []
    for rows in window.steps(drawn([[3, 3], [3, 1]])):
        found = rows or window.next_batch()
        assert found[1].reshape(-1).tolist() == (found[0] * 10).tolist()
        users.append((rows is None, found[0].tolist()))
    assert users == [(True, [0, 1, 2]), (True, [3, 4, 5]), (True, [6, 7, 8]), (False, [9])]


def test_on_a_cpu_a_captured_function_is_called_each_time() -> None:
    calls: list[int] = []
    step = CapturedStep(lambda: calls.append(1), torch.device("cpu"))
    for _ in range(6):
        step()
    assert len(calls) == 6


def test_a_compiled_step_is_one_graph_and_computes_the_same(
    data: Prepared, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Up to what inductor would make kernels of: tests/torch/test_forward.py has it make some."""
    from torch._dynamo.utils import counters

    def traced(step: Any, options: Any, **settings: Any) -> Any:
        del options  # inductor's
        return compiled(step, backend="aot_eager", **settings)

    compiled = torch.compile
    monkeypatch.setattr(torch, "compile", traced)
    torch._dynamo.reset()
    counters.clear()
    ours = epochs(*begun(data, compile="inductor"))
    assert counters["stats"]["unique_graphs"] == 1
    assert not counters["graph_break"]
    theirs = epochs(*begun(data))
    assert float(ours.loss) == pytest.approx(float(theirs.loss), rel=1e-6)
    for one, other in zip(ours.model.parameters(), theirs.model.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.gpu
@gpu
@pytest.mark.parametrize("compile_", ["none", "inductor"])
@pytest.mark.parametrize("optimizer", RULES)
def test_replays_train_what_the_cpu_trains(data: Prepared, optimizer: str, compile_: str) -> None:
    settings = {"cuda_graph": True, "optimizer": optimizer, "compile": compile_}
    ours = epochs(*begun(data, "cuda", **settings))
    theirs = epochs(*begun(data, optimizer=optimizer))
    assert float(ours.loss) == pytest.approx(float(theirs.loss), rel=1e-4)
    for one, other in zip(ours.model.parameters(), theirs.model.parameters(), strict=True):
        assert torch.allclose(one.cpu(), other, atol=1e-3)


@pytest.mark.gpu
@gpu
def test_no_replay_makes_the_host_wait(data: Prepared) -> None:
    engine, loader = begun(data, "cuda", cuda_graph=True)
    epochs(engine, loader, 1)
    torch.cuda.set_sync_debug_mode("error")
    try:
        epochs(engine, loader, 1)
    finally:
        torch.cuda.set_sync_debug_mode("default")
