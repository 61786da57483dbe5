"""How exactly products are computed, and what a float16 that overflows does to a step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from interrupted import attempts
from make_runs import planned, tiny, trainer
from torch import nn

from hpcncf.job.spec import Model, Training
from hpcncf.ncf.batches import Schedule
from hpcncf.ncf.data.prepared import Prepared
from hpcncf.ncf.engines.precision import (
    OptimizerSteps,
    Products,
    build_optimizer,
    tf32_allowed,
)
from hpcncf.ncf.engines.rowwise import Rowwise
from hpcncf.ncf.loaders import Loader
from hpcncf.ncf.model import NeuMF, initial_model
from hpcncf.ncf.step_clock import StepClock

CPU = torch.device("cpu")
gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.mark.parametrize("half", ["bfloat16", "float16"])
def test_factors_are_rounded_and_sums_are_not(half: str) -> None:
    """4,097 ones: float16 counts by twos from 2,048 on, bfloat16 from 256 on."""
    ones, products = torch.ones(1, 4097), Products(half)
    assert products.multiply(ones, ones.T).item() == 4097
    third = torch.full((1, 1), 1 / 3)
    rounded = third.to(getattr(torch, half)).float()
    assert products.multiply(third, torch.ones(1, 1)).item() == rounded.item() != third.item()
    total = torch.ones(1, 1)
    products.accumulate(total, ones, ones.T)
    assert total.item() == products.multiply_add(torch.ones(1), ones, ones.T).item() == 4098


def rowwise(data: Prepared, half: str, batch: int, device: str = "cpu") -> Rowwise:
    """After an epoch."""
    training = Training(engine="rowwise", precision=half, global_batch_size=batch)
    schedule, place = Schedule(1501, batch), torch.device(device)
    start = initial_model(data.manifest, Model(), 1).to(place)
    engine = Rowwise(start, training, place, StepClock(1, schedule.steps))
    batches = engine.batches(Loader(data, training, schedule), 0, range(schedule.steps))
    for step in range(schedule.steps):
        engine.step(batches, 5 * schedule.positives(step))
    engine.settle()
    return engine


@pytest.mark.parametrize("half", ["bfloat16", "float16"])
@pytest.mark.parametrize("batch", [50, 1501])
def test_a_rowwise_step_in_halves_is_near_that_in_float32_and_is_not_it(
    data: Prepared, half: str, batch: int
) -> None:
    """Also of 7,505 instances at once, each of which counts for so little that float16 would lose
    it, were it not divided behind the products."""
    torch.set_num_threads(1)
    ours, theirs = rowwise(data, half, batch), rowwise(data, "float32", batch)
    assert float(ours.loss) == pytest.approx(float(theirs.loss), rel=2e-3)
    assert not torch.equal(ours.model.predict_layer.weight, theirs.model.predict_layer.weight)
    for one, other in zip(ours.model.parameters(), theirs.model.parameters(), strict=True):
        assert one.dtype == torch.float32
        assert (one - other).square().mean().sqrt() < 2e-3


def steps(**settings: Any) -> tuple[OptimizerSteps, nn.Parameter]:
    torch.manual_seed(1)
    model = NeuMF(3, 4, 1, Model(layers=(2,)))
    optimizer = build_optimizer(model, Training(**settings))
    taken = OptimizerSteps(optimizer, Training(**settings), "cpu")
    return taken, model.predict_layer.weight


def test_a_step_whose_gradient_is_not_finite_is_skipped_counted_and_the_next_scaled_less() -> None:
    taken, weight = steps(precision="float16")
    before = weight.detach().clone()
    first = float(taken.scale(torch.ones(())))
    for factor in (float("inf"), 1.0):
        taken.scale((weight * factor).sum()).backward()  # type: ignore[no-untyped-call]
        taken.step()
        assert torch.equal(weight, before) == (factor != 1.0)
        assert taken.skipped == 1
    assert float(taken.scale(torch.ones(()))) == first / 2


def test_where_nothing_is_scaled_no_step_can_be_skipped() -> None:
    taken, _ = steps()
    assert taken.skipped is None
    loss = torch.ones(())
    assert taken.scale(loss) is loss


def test_a_run_in_float16_resumes_to_the_same_bits_and_says_what_it_skipped(
    tmp_path: Path,
) -> None:
    tiny(tmp_path / "tiny")
    run = planned(tmp_path / "tiny", precision="float16", evaluation="none")
    whole = trainer(run, tmp_path / "whole")
    whole.train()
    cut = attempts(run, tmp_path / "cut", [4, 30])
    assert cut.record().model_sha256 == whole.record().model_sha256
    assert whole.record().skipped_steps == 0


def test_tf32_on_a_cpu_changes_nothing() -> None:
    asked = Training(tf32=True)
    before = torch.get_float32_matmul_precision()
    with tf32_allowed(asked, CPU):
        assert torch.get_float32_matmul_precision() == before


def test_tf32_is_allowed_on_a_gpu_only_while_it_trains() -> None:
    before = torch.get_float32_matmul_precision()
    with tf32_allowed(Training(tf32=True), torch.device("cuda")):
        assert torch.get_float32_matmul_precision() == "high"
    assert torch.get_float32_matmul_precision() == before


@pytest.mark.gpu
@gpu
@pytest.mark.parametrize("half", ["bfloat16", "float16"])
def test_a_gpus_halves_are_as_near(data: Prepared, half: str) -> None:
    ours, theirs = rowwise(data, half, 50, "cuda"), rowwise(data, "float32", 50)
    assert float(ours.loss) == pytest.approx(float(theirs.loss), rel=2e-3)
