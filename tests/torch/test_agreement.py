"""How often ranks ask one another, and what one of them alone is reported."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

from hpcncf.ncf.distributed import Agreement, Decision, steps_until_next
from hpcncf.worker.signals import Request


@pytest.mark.parametrize(
    ("every", "passed_s", "expected"),
    [(1, 0.001, 2), (100, 0.5, 100), (100, 0.4, 125), (100, 2.0, 25), (1, 30.0, 1), (8, 0.0, 16)],
)
def test_the_ranks_ask_about_every_half_second(every: int, passed_s: float, expected: int) -> None:
    assert steps_until_next(every, passed_s) == expected


@given(st.floats(min_value=1e-6, max_value=0.4))
def test_after_some_rounds_of_equal_steps_it_is_half_a_second(step_s: float) -> None:
    every = 1
    for _ in range(30):
        every = steps_until_next(every, every * step_s)
    assert 0.25 < every * step_s <= 0.5 + step_s


def test_a_rank_alone_is_reported_after_the_very_step() -> None:
    stop = Request()
    alone = Agreement(1, torch.device("cpu"), stop, checkpoint_every_min=0)
    assert alone.after_step(last=False) is None
    stop.note(signal.SIGTERM)
    assert alone.after_step(last=False) == Decision(signal.SIGTERM)


def test_a_checkpoint_is_due_again_and_again() -> None:
    alone = Agreement(1, torch.device("cpu"), Request(), checkpoint_every_min=1e-9)
    assert alone.after_step(last=False) == Decision(0)
    later = Agreement(1, torch.device("cpu"), Request(), checkpoint_every_min=60)
    later.checkpoint_saved()
    assert later.after_step(last=False) is None


def test_epochs_of_few_steps_do_not_make_the_ranks_deaf(tmp_path: Path) -> None:
    """The end of an epoch asks, too: what was planned beyond it was not taken."""
    store = dist.FileStore(str(tmp_path / "store"), 1)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        agreement = Agreement(2, torch.device("cpu"), Request(), 0)
        for _ in range(2000):
            agreement.after_step(last=False)
            agreement.after_step(last=True)
    finally:
        dist.destroy_process_group()
    assert agreement._every <= 4
