"""Steps and rates counted on the device are those that the host counts."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from hpcncf.ncf.engines.row_optimizers import StepCounter
from hpcncf.remedies.idle_rows import STEADY_FROM_STEP, IdleAdam, bias_corrections

LR = 0.003


@pytest.fixture(scope="module", params=[torch.float32, torch.float64], ids=str)
def pace(request: pytest.FixtureRequest) -> StepCounter:
    return StepCounter(LR, torch.zeros(1, dtype=request.param))


def on_device(pace: StepCounter, taken: int) -> tuple[Tensor, Tensor, Tensor]:
    """Steps, size and eps while the step after so many is taken."""
    pace.resume_after(taken)
    pace.advance_device()
    with pace.counted_on_device():
        pace.advance()
        size, eps = pace.bias_corrections()
        now = pace.current
    assert isinstance(now, Tensor)
    return now.clone(), torch.as_tensor(size), torch.as_tensor(eps)


@pytest.mark.parametrize("taken", [10, 11, 500, STEADY_FROM_STEP - 1, STEADY_FROM_STEP, 40_000])
def test_the_devices_count_and_rates_are_the_hosts(pace: StepCounter, taken: int) -> None:
    now, size, eps = on_device(pace, taken)
    expected, correction = bias_corrections(taken + 1)
    assert now.tolist() == [taken + 1] == [pace.step]
    wrong = 1e-8 if taken + 1 > STEADY_FROM_STEP else 0.0
    assert size.item() == pytest.approx(float(size.new_tensor(LR * expected)), rel=wrong, abs=0)
    assert eps.item() == pytest.approx(float(eps.new_tensor(correction)), rel=wrong, abs=0)


def test_a_step_that_the_host_took_in_between_is_asked_to_the_device(pace: StepCounter) -> None:
    on_device(pace, 20)
    pace.advance()  # an epoch's smaller last step
    now, _, _ = on_device(pace, pace.step)
    assert now.tolist() == [23]


@pytest.mark.parametrize("now", [77, 400, STEADY_FROM_STEP + 5])
def test_rows_are_caught_up_to_a_step_that_only_the_device_knows(now: int) -> None:
    last = torch.tensor([10, 40, 76, 77])
    parts = [torch.rand(3, 4, 2, generator=torch.Generator().manual_seed(1)) for _ in range(2)]
    for rows, step in zip(parts, (now, torch.tensor([now])), strict=True):
        IdleAdam(torch.device("cpu")).catch_up(rows, last, step, LR)
    assert torch.equal(*parts)
