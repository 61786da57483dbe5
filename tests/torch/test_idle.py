"""A row that no batch has is where Adam's own recurrence would have taken it."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import Tensor

from hpcncf.ncf.engines.row_optimizers import AdamRows, StepCounter
from hpcncf.remedies.idle_rows import MAX_SINGLE_STEP, IdleAdam, bias_corrections

LR = 1e-3
GRADIENTS = 10.0 ** torch.arange(-10, -1.5, 0.5, dtype=torch.float64)
IDLE = [*range(1, 25), 40, 75, 100, 180, 300, 501, 999, 1000, 1001, 1500, 2000, 3001, 5000]


def recurrence(touched: int, steps: int) -> list[Tensor]:
    """By how far a row at 0 has moved after each idle step; float64, one row per gradient."""
    moved, m, v = torch.zeros_like(GRADIENTS), 0.1 * GRADIENTS, 0.001 * GRADIENTS**2
    found = [moved]
    for step in range(touched + 1, touched + steps + 1):
        m, v = 0.9 * m, 0.999 * v
        rate = LR / (1 - 0.9**step)
        moved = moved - rate * m / ((v / (1 - 0.999**step)).sqrt() + 1e-8)
        found.append(moved)
    return found


def touched_once(touched: int, dtype: torch.dtype) -> AdamRows:
    """Row i got gradient i in step `touched`; another row was in the steps before, or the last."""
    pace = StepCounter(LR)
    rows = AdamRows(torch.zeros(len(GRADIENTS) + 1, 1, dtype=dtype), pace)
    always = len(GRADIENTS)
    skipped = touched - 1 if touched > 100 else 0
    rows.load(rows.state() | {"step": skipped, "last": torch.full((always + 1,), skipped)})
    for step in range(skipped + 1, touched + 1):
        ids = torch.arange(always + 1) if step == touched else torch.tensor([always])
        rows.read(ids)
        gradient = GRADIENTS if step == touched else GRADIENTS[:0]
        pace.advance()
        rows.update(torch.cat([gradient, torch.ones(1)]).to(dtype)[:, None])
    return rows


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("touched", "bound"), [(1, 0.01), (10, 0.0031), (100, 2e-5), (5000, 2e-6)])
def test_an_idle_row_is_within_the_stated_bound_of_the_true_recurrence(
    touched: int, bound: float, dtype: torch.dtype
) -> None:
    """Checked where the bound is met: right after the steps that nobody took."""
    expected = recurrence(touched, max(IDLE))
    start = touched_once(touched, dtype)
    at, state = start.values[:-1, 0].double().clone(), start.state()
    state = copy.deepcopy(state)
    for steps in IDLE:
        pace = StepCounter(LR)
        rows = AdamRows(start.values.clone(), pace)
        rows.load(state)
        for _ in range(min(steps, max(0, MAX_SINGLE_STEP - touched))):
            other(rows, pace)
        rows.load(rows.state() | {"step": touched + steps})  # as if the others had gone on
        moved = rows.read(torch.arange(len(GRADIENTS)))[:, 0].double() - at
        noise = 0.0 if dtype == torch.float64 else 2e-7 * at.abs()
        wrong = (moved - expected[steps]).abs() - noise
        assert float((wrong / expected[steps].abs()).max()) <= bound, steps


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("touched", [10, 100, 5000])
@pytest.mark.parametrize("pieces", [[1] * 40, [3, 1, 300, 2, 1000], [1500, 1500, 1500]])
def test_a_row_settled_in_pieces_is_where_one_settled_at_once_is(
    touched: int, pieces: list[int], dtype: torch.dtype
) -> None:
    rows = touched_once(touched, dtype)
    at, step = rows.values[:-1, 0].double().clone(), touched
    for piece in pieces:
        step += piece
        rows.load(rows.state() | {"step": step})
        rows.settle()
    moved, expected = rows.values[:-1, 0].double() - at, recurrence(touched, sum(pieces))[-1]
    noise = 0.0 if dtype == torch.float64 else 2e-7 * len(pieces) * at.abs()
    assert bool(((moved - expected).abs() - noise <= 0.0031 * expected.abs()).all())


def other(rows: AdamRows, pace: StepCounter) -> None:
    """A step of the row behind those under test."""
    rows.read(torch.tensor([len(GRADIENTS)]))
    pace.advance()
    rows.update(torch.ones(1, 1, dtype=rows.values.dtype))


def test_moments_fade_as_adam_fades_them() -> None:
    parts = torch.ones(3, 1, 1, dtype=torch.float64)
    IdleAdam(torch.device("cpu")).catch_up(parts, torch.tensor([50]), 250, LR)
    assert float(parts[1]) == pytest.approx(0.9**200, rel=1e-12)
    assert float(parts[2]) == pytest.approx(0.999**200, rel=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_row_idle_for_ever_fades_to_zero_and_stays_finite(dtype: torch.dtype) -> None:
    parts = torch.full((3, 1, 1), 1e-6, dtype=dtype)
    IdleAdam(torch.device("cpu")).catch_up(parts, torch.tensor([1000]), 10_000_000, LR)
    assert parts[1:].count_nonzero() == 0
    assert math.isfinite(float(parts[0]))


def test_a_row_that_is_not_idle_does_not_move() -> None:
    parts = torch.rand(3, 4, 2)
    before = parts.clone()
    IdleAdam(torch.device("cpu")).catch_up(parts, torch.full((4,), 77), 77, LR)
    assert torch.equal(parts, before)


def test_a_row_never_touched_does_not_move() -> None:
    parts = torch.zeros(3, 4, 2)
    IdleAdam(torch.device("cpu")).catch_up(parts, torch.full((4,), MAX_SINGLE_STEP), 5000, LR)
    assert parts.count_nonzero() == 0


@pytest.mark.parametrize("step", [1, 2, 10, 1000, 50_000])
def test_the_rates_are_those_of_bias_corrected_adam(step: int) -> None:
    size, eps = bias_corrections(step)
    m, v = 3e-9, 4e-17
    expected = m / (1 - 0.9**step) / (math.sqrt(v / (1 - 0.999**step)) + 1e-8)
    assert size * m / (math.sqrt(v) + eps) == pytest.approx(expected, rel=1e-12)
