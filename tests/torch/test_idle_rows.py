"""A row that no batch has is where Adam's own recurrence would have taken it, by every engine."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from hpcncf.data import synthetic
from hpcncf.data.prepared import PreparedData, load_prepared
from hpcncf.job.spec import Model, Training
from hpcncf.native.builds import Span, cpu_flags, installed_builds, select_build
from hpcncf.ncf.engines.native import Kernel
from hpcncf.ncf.engines.row_optimizers import AdamRows, StepCounter
from hpcncf.remedies.idle_rows import MAX_SINGLE_STEP, IdleAdam, bias_corrections

LR, ROWS, WIDTH = 1e-3, 200, 40
GRADIENTS = 10.0 ** np.linspace(-10, -2, WIDTH)
# The step that touched the row, and by how much docs/engines.md lets it be off afterwards.
BOUNDS = {1: 1e-3, 2: 1e-3, 9: 3.1e-3, 10: 3.1e-3, 30: 4e-4, 100: 2e-5, 5000: 2e-6}
ROWWISE_BOUNDS = {1: 0.01, 10: 0.0031, 100: 2e-5, 5000: 2e-6}
IDLE = [*range(1, 25), 40, 75, 100, 180, 255, 256, 257, 300, 501, 999, 1000, 1001, 1500, 3001, 5000]
BUILDS = [
    name
    for name in installed_builds()
    if select_build({name: installed_builds()[name]}, cpu_flags())
]
NATIVE = pytest.mark.skipif(not BUILDS, reason="engine native was not built here")

Values = NDArray[Any]


@cache
def recurrence(touched: int) -> Values:
    """Where such a row is [idle steps, gradient] by torch's Adam, step by step in float64."""
    moved, m, v = [np.zeros(WIDTH)], 0.1 * GRADIENTS, 0.001 * GRADIENTS**2
    for step in range(touched + 1, touched + IDLE[-1] + 2):
        m, v = 0.9 * m, 0.999 * v
        root = np.sqrt(v / (1 - 0.999**step))
        moved.append(moved[-1] - LR * m / (1 - 0.9**step) / (root + 1e-8))
    return np.array(moved)


def test_the_recurrence_is_torchs_own() -> None:
    row = torch.nn.Parameter(torch.zeros(WIDTH, dtype=torch.float64))
    adam = torch.optim.Adam([row], lr=LR)
    for step in range(1, 110):
        row.grad = torch.from_numpy(GRADIENTS if step == 9 else np.zeros(WIDTH))
        adam.step()
        if step == 9:
            touched = row.detach().clone()
    moved = (row.detach() - touched).numpy()
    np.testing.assert_allclose(moved, recurrence(9)[100], rtol=1e-9)


def touched_once(touched: int, dtype: torch.dtype) -> tuple[AdamRows, StepCounter]:
    """Row 0 stood at 0 and got GRADIENTS in step `touched`; row 1 is of the steps that follow."""
    counter = StepCounter(LR)
    rows = AdamRows(torch.zeros(2, WIDTH, dtype=dtype), counter)
    moments = torch.zeros(2, 2, WIDTH, dtype=torch.float64)
    moments[0] = torch.from_numpy(np.stack([0.1 * GRADIENTS, 0.001 * GRADIENTS**2]))
    last = torch.tensor([touched, touched])
    rows.load({"step": touched, "moments": moments.to(dtype), "last": last})
    return rows, counter


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("touched", "bound"), ROWWISE_BOUNDS.items())
def test_rowwise_is_within_the_stated_bound_of_the_true_recurrence(
    touched: int, bound: float, dtype: torch.dtype
) -> None:
    """Checked where the bound is met: right after the steps that nobody took."""
    noise = 0.0 if dtype == torch.float64 else 2e-7
    for idle in IDLE:
        rows, counter = touched_once(touched, dtype)
        for _ in range(min(idle, max(0, MAX_SINGLE_STEP - touched))):  # single steps of the other
            rows.read(torch.tensor([1]))
            counter.advance()
            rows.update(torch.ones(1, WIDTH, dtype=dtype))
        rows.load(rows.state() | {"step": touched + idle})  # as if the others had gone on
        moved = rows.read(torch.tensor([0]))[0].double().numpy()
        expected = recurrence(touched)[idle]
        np.testing.assert_allclose(moved, expected, rtol=bound + noise, err_msg=str(idle))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("touched", [10, 100, 5000])
@pytest.mark.parametrize("pieces", [[1] * 40, [3, 1, 300, 2, 1000], [1500, 1500, 1500]])
def test_rowwise_in_pieces_is_where_one_settled_at_once_is(
    touched: int, pieces: list[int], dtype: torch.dtype
) -> None:
    rows, _ = touched_once(touched, dtype)
    step = touched
    for piece in pieces:
        step += piece
        rows.load(rows.state() | {"step": step})
        rows.settle()
    moved, expected = rows.values[0].double().numpy(), recurrence(touched)[sum(pieces)]
    np.testing.assert_allclose(moved, expected, rtol=0.0031 + 1e-6 * len(pieces))


def test_moments_fade_as_adam_fades_them_to_zero() -> None:
    parts = torch.ones(3, 1, 1, dtype=torch.float64)
    IdleAdam().catch_up(parts, torch.tensor([50]), 250, LR)
    assert float(parts[1]) == pytest.approx(0.9**200, rel=1e-12)
    assert float(parts[2]) == pytest.approx(0.999**200, rel=1e-12)
    for dtype in (torch.float32, torch.float64):
        parts = torch.full((3, 1, 1), 1e-6, dtype=dtype)
        IdleAdam().catch_up(parts, torch.tensor([1000]), 10_000_000, LR)
        assert parts[1:].count_nonzero() == 0
        assert math.isfinite(float(parts[0]))


def test_a_row_that_is_not_idle_or_was_never_touched_does_not_move() -> None:
    parts = torch.rand(3, 4, 2)
    before = parts.clone()
    IdleAdam().catch_up(parts, torch.full((4,), 77), 77, LR)
    assert torch.equal(parts, before)
    parts = torch.zeros(3, 4, 2)
    IdleAdam().catch_up(parts, torch.full((4,), MAX_SINGLE_STEP), 5000, LR)
    assert parts.count_nonzero() == 0


@pytest.mark.parametrize("step", [1, 2, 10, 1000, 50_000])
def test_the_rates_are_those_of_bias_corrected_adam(step: int) -> None:
    size, eps = bias_corrections(step)
    m, v = 3e-9, 4e-17
    expected = m / (1 - 0.9**step) / (math.sqrt(v / (1 - 0.999**step)) + 1e-8)
    assert size * m / (math.sqrt(v) + eps) == pytest.approx(expected, rel=1e-12)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> PreparedData:
    folder = tmp_path_factory.mktemp("idle") / "made"
    synthetic.prepare_synthetic(folder, users=20, items=30, train_rows=ROWS, test_negatives=5)
    return load_prepared(folder)


def kernel(data: PreparedData, doubles: bool, build: str | None = None) -> Kernel:
    return Kernel(data, Model(), Training(lr=LR), 1, ROWS, doubles, build)


def touch_once(of: Kernel, touched: int) -> None:
    """Make user 0's row one that stood at 0, got GRADIENTS in step `touched`, and none before."""
    row, bits = of.users[0], np.array([touched]).view(of.users.dtype)
    row[:WIDTH], row[WIDTH : 2 * WIDTH] = 0.0, 0.1 * GRADIENTS
    row[2 * WIDTH : 3 * WIDTH] = 0.001 * GRADIENTS**2
    row[3 * WIDTH : 3 * WIDTH + len(bits)] = bits


def parts(of: Kernel) -> tuple[Values, Values, Values]:
    """User 0's values, first and second moments."""
    row = of.users[0].astype(np.float64)
    return row[:WIDTH], row[WIDTH : 2 * WIDTH], row[2 * WIDTH : 3 * WIDTH]


@NATIVE
@pytest.mark.parametrize("build", BUILDS)
@pytest.mark.parametrize("doubles", [False, True])
@pytest.mark.parametrize(("touched", "bound"), BOUNDS.items())
def test_native_is_within_the_stated_bound_of_the_true_recurrence(
    small: PreparedData, touched: int, bound: float, doubles: bool, build: str
) -> None:
    """Settled, or read by a step whose loss counts nothing: it moves the row by what Adam
    remembers."""
    of = kernel(small, doubles, build)
    for idle in IDLE:
        touch_once(of, touched)
        of.steps = touched + idle
        of.settle()
        values, first, second = parts(of)
        np.testing.assert_allclose(values, recurrence(touched)[idle], rtol=bound)
        np.testing.assert_allclose(first, 0.1 * GRADIENTS * 0.9**idle, rtol=1e-4, atol=1e-37)
        np.testing.assert_allclose(second, 0.001 * GRADIENTS**2 * 0.999**idle, rtol=1e-4)
    for idle in (0, 1, 7, 60, 255, 256, 257, 1000, 4999):
        touch_once(of, touched)
        of.steps = touched + idle
        of.step(Span(0, 0, ROWS), scale=0.0)
        np.testing.assert_allclose(parts(of)[0], recurrence(touched)[idle + 1], rtol=bound)


@NATIVE
@given(
    touched=st.sampled_from(sorted(BOUNDS)),
    pieces=st.lists(st.integers(0, 800), min_size=1, max_size=6),
    doubles=st.booleans(),
)
def test_native_in_pieces_is_where_one_caught_up_at_once_is(
    small: PreparedData, touched: int, pieces: list[int], doubles: bool
) -> None:
    of = kernel(small, doubles)
    touch_once(of, touched)
    of.steps = touched
    for piece in pieces:
        of.steps += piece
        of.settle()
    bound = BOUNDS[touched] + 1e-6  # and what being rounded after each piece adds
    np.testing.assert_allclose(parts(of)[0], recurrence(touched)[sum(pieces)], rtol=bound)
