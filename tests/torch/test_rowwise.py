"""Engine rowwise: torch's rules on the rows of a step, also if the device alone counts them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from trained import POSITIVES, furthest, trained

from hpcncf.data import synthetic
from hpcncf.data.prepared import Prepared, load_prepared
from hpcncf.job.spec import Model, Training
from hpcncf.ncf import model
from hpcncf.ncf.batches import BatchRows, BatchWindow, Schedule
from hpcncf.ncf.engines.cuda_graph import CapturedStep
from hpcncf.ncf.engines.row_optimizers import StepCounter
from hpcncf.ncf.engines.rowwise import Rowwise
from hpcncf.ncf.loaders import Loader
from hpcncf.ncf.step_clock import StepClock
from hpcncf.ncf.sync import unique_ids, unique_ids_padded
from hpcncf.remedies.idle_rows import STEADY_FROM_STEP, IdleAdam, bias_corrections

STEPS, SCHEDULE, LR = 31, Schedule(1501, 50), 0.003
CPU = torch.device("cpu")
RULES = ["adam", "lazy_adam", "sgd"]
gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.fixture(scope="module")
def sparse_rows(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    """Data of which a step of eight positives has few rows, so that the others idle for long."""
    folder = tmp_path_factory.mktemp("data") / "wide"
    shape = {"users": 300, "items": 2000, "train_rows": POSITIVES * 250, "context": 5}
    synthetic.prepare_synthetic(folder, **shape)
    return load_prepared(folder)


@pytest.mark.parametrize("optimizer", ["lazy_adam", "sgd"])
def test_rules_that_leave_idle_rows_alone_are_torchs_own(
    sparse_rows: Prepared, optimizer: str
) -> None:
    settings = {"optimizer": optimizer, "lr": 0.01}
    ours = trained(sparse_rows, 100, torch.float64, engine="rowwise", **settings)
    theirs = trained(sparse_rows, 100, torch.float64, sparse=True, **settings)
    assert furthest(ours, theirs) < 1e-12


@pytest.mark.parametrize(
    ("sizes", "negatives"),
    [
        (Model(layers=(5,), gmf_width=3, mlp_width=7), 1),
        (Model(layers=(24, 12, 6, 3), gmf_width=1, mlp_width=2), 6),
        (Model(dropout=0.4), 4),
    ],
)
def test_any_widths_any_negatives_and_dropout_give_the_same_model(
    sparse_rows: Prepared, sizes: Model, negatives: int
) -> None:
    """Dropout too: both draw the same masks, because hidden values stand in the same order."""
    each = {"sizes": sizes, "negatives": negatives}
    ours = trained(sparse_rows, 40, torch.float64, engine="rowwise", **each)
    assert furthest(ours, trained(sparse_rows, 40, torch.float64, **each)) < 1e-5


def begun(
    data: Prepared, device: str = "cpu", padded: bool | None = None, **changes: Any
) -> tuple[Rowwise, Loader]:
    torch.set_num_threads(1)
    settings = {"engine": "rowwise", "loader": "device", "global_batch_size": 50}
    training, place = Training(**(settings | changes)), torch.device(device)
    start = model.initial_model(data.manifest, Model(), 1).to(place)
    engine = Rowwise(start, training, place, StepClock(2 * STEPS, STEPS), padded=padded)
    return engine, Loader(data, training, SCHEDULE, place)


def epochs(engine: Rowwise, loader: Loader, number: int = 2) -> Rowwise:
    """Each ends with a step of one positive, which the host counts."""
    for epoch in range(number):
        batches = engine.batches(loader, epoch, range(STEPS))
        for step in range(STEPS):
            engine.step(batches, 5 * SCHEDULE.positives(step))
    engine.settle()
    return engine


def tensors(state: Any) -> list[Tensor]:
    return [each for part in state.values() for each in part.values() if isinstance(each, Tensor)]


@pytest.mark.parametrize("optimizer", RULES)
def test_what_only_the_device_counts_has_the_bits_of_what_the_host_counts(
    data: Prepared, optimizer: str
) -> None:
    """The rows of a step, padded to their maximum; and the steps themselves."""
    theirs = epochs(*begun(data, padded=False, optimizer=optimizer))
    padded = epochs(*begun(data, padded=True, optimizer=optimizer))
    captured = epochs(*begun(data, cuda_graph=True, optimizer=optimizer))
    for ours in (padded, captured):
        assert torch.equal(ours.loss, theirs.loss)
        assert model.model_sha256(ours.model) == model.model_sha256(theirs.model)
        assert ours.state()["rows"].get("step") == theirs.state()["rows"].get("step")
        for one, other in zip(tensors(ours.state()), tensors(theirs.state()), strict=True):
            assert torch.equal(one, other)


@pytest.mark.parametrize("cuda_graph", [False, True])
@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_no_step_asks_for_a_value_on_the_host(
    data: Prepared, optimizer: str, cuda_graph: bool
) -> None:
    """Tensors of device meta have none: what would make a GPU wait fails there. Also where all rows
    are caught up: at the tenth step, and where it settles."""
    engine, loader = begun(data, "meta", True, cuda_graph=cuda_graph, optimizer=optimizer)
    assert epochs(engine, loader, 1).loss.is_meta
    with pytest.raises(NotImplementedError, match="unique"):
        epochs(*begun(data, "meta", False, optimizer=optimizer), 1)


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


def test_a_compiled_step_is_one_graph_and_computes_the_same(
    data: Prepared, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Up to what inductor would make kernels of: test_reference.py has it make some."""
    from torch._dynamo.utils import counters

    def traced(step: Any, options: Any, **settings: Any) -> Any:
        del options  # inductor's
        return compiled(step, backend="aot_eager", **settings)

    compiled = torch.compile
    monkeypatch.setattr(torch, "compile", traced)
    torch._dynamo.reset()
    counters.clear()
    ours = epochs(*begun(data, compile="inductor"), 1)
    assert counters["stats"]["unique_graphs"] == 1
    assert not counters["graph_break"]
    theirs = epochs(*begun(data), 1)
    assert float(ours.loss) == pytest.approx(float(theirs.loss), rel=1e-6)
    for one, other in zip(ours.model.parameters(), theirs.model.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@given(st.lists(st.integers(0, 12), max_size=20))
def test_padded_ids_are_the_same_with_padding_behind(ids: list[int]) -> None:
    values = torch.tensor(ids, dtype=torch.int64)
    found, where = unique_ids(values)
    ours, ours_where = unique_ids_padded(values, 99)
    assert ours.tolist() == found.tolist() + [99] * (len(ids) - len(found))
    assert ours_where.tolist() == where.tolist()


def drawn(lengths: list[list[int]]) -> Iterator[tuple[list[int], BatchRows]]:
    first = 0
    for each in lengths:
        ids = torch.arange(first, first + sum(each))
        first += sum(each)
        yield each, (ids, ids[:, None] * 10, ids[:, None].float())


def test_a_window_gives_the_batches_in_order_and_the_smaller_one_apart() -> None:
    window = BatchWindow(3, 6, CPU)
    users = []
    for rows in window.steps(drawn([[3, 3], [3, 1]])):
        found = rows or window.next_batch()
        assert found[1].reshape(-1).tolist() == (found[0] * 10).tolist()
        users.append((rows is None, found[0].tolist()))
    assert users == [(True, [0, 1, 2]), (True, [3, 4, 5]), (True, [6, 7, 8]), (False, [9])]


def test_on_a_cpu_a_captured_function_is_called_each_time() -> None:
    calls: list[int] = []
    step = CapturedStep(lambda: calls.append(1), CPU)
    for _ in range(6):
        step()
    assert len(calls) == 6


@pytest.fixture(params=[torch.float32, torch.float64], ids=str)
def counter(request: pytest.FixtureRequest) -> StepCounter:
    return StepCounter(LR, torch.zeros(1, dtype=request.param))


def on_device(counter: StepCounter, taken: int) -> tuple[Tensor, Tensor, Tensor]:
    """Steps, size and eps while the step after so many is taken."""
    counter.resume_after(taken)
    counter.advance_device()
    with counter.counted_on_device():
        counter.advance()
        size, eps = counter.bias_corrections()
        now = counter.current
    assert isinstance(now, Tensor)
    return now.clone(), torch.as_tensor(size), torch.as_tensor(eps)


@pytest.mark.parametrize("taken", [10, 500, STEADY_FROM_STEP - 1, STEADY_FROM_STEP, 40_000])
def test_the_devices_count_and_rates_are_the_hosts(counter: StepCounter, taken: int) -> None:
    now, size, eps = on_device(counter, taken)
    expected, correction = bias_corrections(taken + 1)
    assert now.tolist() == [taken + 1] == [counter.step]
    wrong = 1e-8 if taken + 1 > STEADY_FROM_STEP else 0.0
    assert size.item() == pytest.approx(float(size.new_tensor(LR * expected)), rel=wrong, abs=0)
    assert eps.item() == pytest.approx(float(eps.new_tensor(correction)), rel=wrong, abs=0)
    counter.advance()  # by the host: an epoch's smaller last step
    assert on_device(counter, counter.step)[0].tolist() == [taken + 3]


@pytest.mark.parametrize("now", [77, 400, STEADY_FROM_STEP + 5])
def test_rows_are_caught_up_to_a_step_that_only_the_device_knows(now: int) -> None:
    last = torch.tensor([10, 40, 76, 77])
    parts = [torch.rand(3, 4, 2, generator=torch.Generator().manual_seed(1)) for _ in range(2)]
    for rows, step in zip(parts, (now, torch.tensor([now])), strict=True):
        IdleAdam(CPU).catch_up(rows, last, step, LR)
    assert torch.equal(*parts)


@pytest.mark.gpu
@gpu
@pytest.mark.parametrize(
    "settings",
    [{}, {"cuda_graph": True}, {"cuda_graph": True, "compile": "inductor"}],
    ids=str,
)
@pytest.mark.parametrize("optimizer", RULES)
def test_a_gpu_is_not_waited_for_and_trains_what_the_cpu_trains(
    data: Prepared, optimizer: str, settings: dict[str, Any]
) -> None:
    engine, loader = begun(data, "cuda", optimizer=optimizer, **settings)
    epochs(engine, loader, 1)
    torch.cuda.set_sync_debug_mode("error")
    try:
        ours = epochs(engine, loader, 1)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    theirs = epochs(*begun(data, optimizer=optimizer), 1)
    theirs = epochs(theirs, Loader(data, Training(loader="device"), SCHEDULE), 1)
    for one, other in zip(ours.model.parameters(), theirs.model.parameters(), strict=True):
        assert torch.allclose(one.cpu(), other, atol=1e-3)
