"""How many threads a rank may use, and what it is refused."""

from __future__ import annotations

import pytest
import torch

from hpcncf.errors import HpcncfError
from hpcncf.job.spec import Resources, Training
from hpcncf.ncf.distributed import (
    choose_threads,
    describe_shared_cpus,
    gather_objects,
    select_device,
    set_threads,
    usable_cores,
)
from hpcncf.worker.environment import Place


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
