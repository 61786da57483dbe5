"""Where the compiled engine takes a row that no batch has: as Adam's own recurrence would."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from hpcncf.job.spec import Model, Training
from hpcncf.ncf.data import synthetic
from hpcncf.ncf.data.prepared import Prepared, load_prepared
from hpcncf.ncf.engines.native.engine import Kernel
from hpcncf.ncf.engines.native.library import Span, cpu_flags, installed_builds, select_build

LR, ROWS, WIDTH = 1e-3, 200, 40
GRADIENTS = 10.0 ** np.linspace(-10, -2, WIDTH)
# The step that touched the row, and by how much docs/engines.md lets it be off afterwards.
BOUNDS = {1: 1e-3, 2: 1e-3, 9: 3.1e-3, 10: 3.1e-3, 30: 4e-4, 100: 2e-5, 5000: 2e-6}
IDLE = [*range(1, 300), *range(300, 5001, 47)]
BUILDS = [
    name
    for name in installed_builds()
    if select_build({name: installed_builds()[name]}, cpu_flags())
]

pytestmark = pytest.mark.skipif(not BUILDS, reason="engine native was not built here")

Values = NDArray[Any]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    folder = tmp_path_factory.mktemp("idle") / "made"
    synthetic.prepare_synthetic(folder, users=20, items=30, train_rows=ROWS, test_negatives=5)
    return load_prepared(folder)


def kernel(data: Prepared, doubles: bool, build: str | None = None) -> Kernel:
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


@pytest.mark.parametrize("build", BUILDS)
@pytest.mark.parametrize("doubles", [False, True])
@pytest.mark.parametrize(("touched", "bound"), BOUNDS.items())
def test_an_idle_row_is_within_the_stated_bound_of_the_true_recurrence(
    data: Prepared, touched: int, bound: float, doubles: bool, build: str
) -> None:
    of = kernel(data, doubles, build)
    for idle in IDLE:
        touch_once(of, touched)
        of.steps = touched + idle
        of.settle()
        values, first, second = parts(of)
        np.testing.assert_allclose(values, recurrence(touched)[idle], rtol=bound)
        np.testing.assert_allclose(first, 0.1 * GRADIENTS * 0.9**idle, rtol=1e-4, atol=1e-37)
        np.testing.assert_allclose(second, 0.001 * GRADIENTS**2 * 0.999**idle, rtol=1e-4)


@pytest.mark.parametrize("doubles", [False, True])
@pytest.mark.parametrize("touched", BOUNDS)
def test_a_row_read_by_a_step_has_been_caught_up_alike(
    data: Prepared, touched: int, doubles: bool
) -> None:
    """A step whose loss counts nothing moves the rows that it reads by what Adam remembers."""
    of = kernel(data, doubles)
    for idle in (0, 1, 7, 60, 255, 256, 257, 1000, 4999):
        touch_once(of, touched)
        of.steps = touched + idle
        of.step(Span(0, 0, ROWS), scale=0.0)
        np.testing.assert_allclose(
            parts(of)[0], recurrence(touched)[idle + 1], rtol=BOUNDS[touched]
        )


@given(
    touched=st.sampled_from(sorted(BOUNDS)),
    pieces=st.lists(st.integers(0, 1200), min_size=1, max_size=6).filter(
        lambda each: sum(each) < 5000
    ),
    doubles=st.booleans(),
)
def test_a_row_caught_up_in_pieces_is_where_one_caught_up_at_once_is(
    data: Prepared, touched: int, pieces: list[int], doubles: bool
) -> None:
    of = kernel(data, doubles)
    touch_once(of, touched)
    of.steps = touched
    for piece in pieces:
        of.steps += piece
        of.settle()
    bound = BOUNDS[touched] + 1e-6  # and what being rounded after each piece adds
    np.testing.assert_allclose(parts(of)[0], recurrence(touched)[sum(pieces)], rtol=bound)
