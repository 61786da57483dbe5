"""The threads and the device of a rank, and how often ranks ask one another."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

from hpcncf.errors import HpcncfError
from hpcncf.job.spec import Resources, Training
from hpcncf.launcher.environment import Place
from hpcncf.launcher.signals import StopRequest
from hpcncf.ncf.distributed import (
    Agreement,
    StepDecision,
    choose_threads,
    describe_shared_cpus,
    gather_objects,
    select_device,
    set_threads,
    steps_until_next,
    usable_cores,
)


@pytest.mark.parametrize(
    ("mine", "node", "quota", "expected"),
    [
        ([0, 1], [[0, 1]], None, 2.0),
        ([0], [[0], [1]], None, 1.0),
        ([0, 1], [[0, 1], [0, 1]], None, 1.0),  # torchrun binds nobody: both see both
        ([0, 1, 2, 3], [[0, 1, 2, 3]], 1.5, 1.5),
        ([0, 1, 2, 3], [[0, 1, 2, 3]] * 2, 3.0, 1.5),
        ([0], [[0]] * 4, None, 0.25),
    ],
)
def test_cores_are_shared_with_ranks_on_the_same_cpus_and_under_one_quota(
    mine: list[int], node: list[list[int]], quota: float | None, expected: float
) -> None:
    assert usable_cores(mine, node, quota) == expected


@pytest.mark.parametrize(
    ("mine", "node", "wanted", "seen"),
    [
        ([0], [[0], [1]], 1, False),
        ([0, 1], [[0, 1], [0, 1]], 1, False),
        ([0], [[0]] * 4, 1, True),  # --overcommit
        ([0, 1], [[0, 1], [0, 1]], 2, True),
        ([0], [[0], [1]], 2, False),  # too few of its own: the record says why
    ],
)
def test_ranks_that_take_turns_are_reported(
    mine: list[int], node: list[list[int]], wanted: int, seen: bool
) -> None:
    assert (describe_shared_cpus(mine, node, wanted) is not None) == seen


@pytest.mark.parametrize(
    ("asked", "cpus_per_task", "usable", "expected"),
    [
        ("auto", 4, 4.0, 4),
        ("auto", 4, 1.0, 1),
        ("auto", 4, 2.9, 2),
        ("auto", 1, 64.0, 1),
        ("auto", 4, 0.5, 1),
        (2, 4, 2.0, 2),
        (1, 1, 0.5, 1),
    ],
)
def test_threads_are_never_more_than_the_cores(
    asked: int | str, cpus_per_task: int, usable: float, expected: int
) -> None:
    assert choose_threads(asked, cpus_per_task, usable) == expected


@pytest.mark.parametrize(("asked", "usable"), [(2, 1.0), (3, 2.5), (2, 0.5)])
def test_more_threads_than_cores_are_refused_with_the_reason(asked: int, usable: float) -> None:
    with pytest.raises(
        HpcncfError, match=f"threads {asked}: this rank can use only {usable:g} cores"
    ):
        choose_threads(asked, 8, usable)


def test_torch_gets_the_threads() -> None:
    assert set_threads(Training(threads=1), Resources(), Place()) == 1
    assert torch.get_num_threads() == 1


@pytest.mark.skipif(torch.cuda.is_available(), reason="here is a GPU")
def test_a_gpu_that_is_not_there_is_said() -> None:
    with pytest.raises(HpcncfError, match="torch sees no GPU"):
        select_device(Training(device="cuda"), Resources(gpus_per_node=1), Place())


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_each_local_rank_takes_a_gpu_of_its_own() -> None:
    place = Place(rank=0, local_rank=0)
    assert select_device(Training(), Resources(gpus_per_node=1), place).type == "cuda"


def test_a_lone_rank_gathers_its_own_value() -> None:
    assert gather_objects("x", Place()) == ["x"]


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
    stop = StopRequest()
    alone = Agreement(1, torch.device("cpu"), stop, checkpoint_every_min=0)
    assert alone.after_step(last=False) is None
    stop.note(signal.SIGTERM)
    assert alone.after_step(last=False) == StepDecision(signal.SIGTERM)


def test_a_checkpoint_is_due_again_and_again() -> None:
    alone = Agreement(1, torch.device("cpu"), StopRequest(), checkpoint_every_min=1e-9)
    assert alone.after_step(last=False) == StepDecision(0)
    later = Agreement(1, torch.device("cpu"), StopRequest(), checkpoint_every_min=60)
    later.checkpoint_saved()
    assert later.after_step(last=False) is None


def test_epochs_of_few_steps_do_not_make_the_ranks_deaf(tmp_path: Path) -> None:
    """The end of an epoch asks, too: what was planned beyond it was not taken."""
    store = dist.FileStore(str(tmp_path / "store"), 1)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        agreement = Agreement(2, torch.device("cpu"), StopRequest(), 0)
        for _ in range(2000):
            agreement.after_step(last=False)
            agreement.after_step(last=True)
    finally:
        dist.destroy_process_group()
    assert agreement._every <= 4
