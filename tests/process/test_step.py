"""The reference engine: however a step is cut, spread or compiled, it computes one thing."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from ranks_together import together
from torch import Tensor

from hpcncf.job.spec import Model, Training
from hpcncf.ncf.batches import Batch
from hpcncf.ncf.engines import base
from hpcncf.ncf.engines.reference import split_batch
from hpcncf.ncf.model import NeuMF
from hpcncf.ncf.step_clock import StepClock

STEPS = 8
SIZES = Model(layers=(8, 4))
# Uneven shards; the last step has one instance, so that the second rank has none.
FIRST = 13
WAYS: dict[str, dict[str, Any]] = {
    "as it is": {},
    "sparse, lazy Adam": {"sparse": True, "optimizer": "lazy_adam"},
    "sparse, descent": {"sparse": True, "optimizer": "sgd"},
    "in three parts": {"accumulate": 3},
    "in more parts than the last step has instances": {"accumulate": 4, "bucket_mb": 0.001},
    "small buckets": {"bucket_mb": 0.001},
    "gradients in buckets": {"gradient_as_bucket_view": True, "accumulate": 2},
    "static graph": {"static_graph": True},
    "scripted": {"compile": "torchscript"},
}


def batches() -> list[Batch]:
    drawn = torch.Generator().manual_seed(1)
    sizes = [20] * (STEPS - 1) + [1]
    return [
        Batch(
            torch.randint(50, (size,), generator=drawn),
            torch.randint(90, (size,), generator=drawn),
            torch.rand(size, 3, generator=drawn),
            torch.randint(2, (size,), generator=drawn).float(),
        )
        for size in sizes
    ]


def trained(
    settings: dict[str, Any], world_size: int = 1, part: slice = slice(None), dropout: float = 0.0
) -> dict[str, Tensor]:
    """A model after eight steps, of whose instances this rank has a part; the loss; bytes sent."""
    torch.manual_seed(1)
    training = Training(lr=0.01, global_batch_size=4, **settings)
    start = NeuMF(50, 90, 3, SIZES.model_copy(update={"dropout": dropout}))
    clock = StepClock(STEPS, STEPS)
    made = base.build_engine(start, training, world_size, torch.device("cpu"), clock)
    torch.manual_seed(2)
    clock.start()
    for batch in batches():
        mine = Batch(*(each[part] for each in batch))
        made.step(iter([mine]), len(batch.labels))
        clock.end_step(0)
    found = {name: each.detach().clone() for name, each in made.model.named_parameters()}
    return found | {"loss": made.loss.clone(), "sent": torch.tensor(clock.counted_bytes)}


def of_rank(rank: int) -> dict[str, dict[str, Tensor]]:
    part = (slice(0, FIRST), slice(FIRST, None))[rank]
    return {name: trained(settings, 2, part) for name, settings in WAYS.items()}


@pytest.fixture(scope="module")
def two_ranks() -> list[dict[str, dict[str, Tensor]]]:
    return together(2, of_rank)


def close(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    for name in expected.keys() - {"sent"}:
        torch.testing.assert_close(found[name], expected[name], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("way", WAYS)
def test_two_ranks_with_uneven_shards_compute_what_one_computes(
    two_ranks: list[dict[str, dict[str, Tensor]]], way: str
) -> None:
    optimizer = {key: WAYS[way][key] for key in ("sparse", "optimizer") if key in WAYS[way]}
    first, second = (each[way] for each in two_ranks)
    close(first | {"loss": first["loss"] + second["loss"]}, trained(optimizer))
    for name in first.keys() - {"loss", "sent"}:
        assert torch.equal(first[name], second[name])


@pytest.mark.parametrize("way", ["in three parts", "gradients in buckets"])
def test_a_step_in_parts_sends_its_gradients_once(
    two_ranks: list[dict[str, dict[str, Tensor]]], way: str
) -> None:
    parameters = sum(each.numel() for each in NeuMF(50, 90, 3, SIZES).parameters())
    for rank in two_ranks:
        assert int(rank[way]["sent"]) == int(rank["as it is"]["sent"]) == STEPS * 4 * parameters


@pytest.mark.parametrize(
    "settings",
    [
        {"accumulate": 2},
        {"accumulate": 4},
        {"compile": "torchscript"},
        {"parallel": "data_parallel"},
    ],
)
def test_a_step_in_parts_or_otherwise_computed_is_the_same_step(settings: dict[str, Any]) -> None:
    close(trained(settings), trained({}))


def test_a_scripted_step_draws_the_masks_that_torch_draws() -> None:
    close(trained({"compile": "torchscript"}, dropout=0.5), trained({}, dropout=0.5))
    assert not torch.equal(trained({}, dropout=0.5)["loss"], trained({})["loss"])


def test_bfloat16_is_near_float32_and_is_not_it() -> None:
    found, expected = trained({"precision": "bfloat16"}), trained({})
    assert all(each.dtype == expected[name].dtype for name, each in found.items())
    assert float(found["loss"]) == pytest.approx(float(expected["loss"]), rel=0.01)
    assert not torch.equal(found["loss"], expected["loss"])


@pytest.mark.parametrize(("instances", "parts"), [(20, 3), (2, 4), (0, 2), (7, 1)])
def test_parts_of_a_batch_have_each_instance_once(instances: int, parts: int) -> None:
    numbers = torch.arange(instances)
    batch = Batch(numbers, numbers, numbers[:, None].float(), numbers.float())
    found = split_batch(batch, parts)
    assert len(found) == parts
    assert torch.cat([part.users for part in found]).tolist() == numbers.tolist()
    sizes = [len(part.labels) for part in found]
    assert max(sizes) - min(sizes) <= 1
