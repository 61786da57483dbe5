"""Engine reference: however a step is cut, spread or compiled, it computes one thing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from make_runs import planned, trainer
from ranks_together import together
from torch import Tensor

from hpcncf.errors import HpcncfError
from hpcncf.job.spec import Model, Training
from hpcncf.ncf.batches import Batch
from hpcncf.ncf.engines import base
from hpcncf.ncf.engines.reference import INDUCTOR_OPTIONS, min_instances, split_batch
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
    "in more parts than the last step has instances": {"accumulate": 4},
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


def test_a_step_in_parts_sends_its_gradients_once(
    two_ranks: list[dict[str, dict[str, Tensor]]],
) -> None:
    parameters = sum(each.numel() for each in NeuMF(50, 90, 3, SIZES).parameters())
    for rank in two_ranks:
        assert (
            int(rank["in three parts"]["sent"])
            == int(rank["as it is"]["sent"])
            == STEPS * 4 * parameters
        )


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


def of(folder: Path, results: Path, **settings: Any) -> Any:
    settings = {"epochs": 1, "evaluation": "none", "checkpoint_every": 0} | settings
    return trainer(planned(folder, model=Model(layers=(8,), dropout=0.5), **settings), results)


@pytest.mark.parametrize(
    ("settings", "ranks", "least"),
    [
        ({}, 1, 1280),
        ({"global_batch_size": 10}, 4, 10),
        ({"global_batch_size": 10, "accumulate": 2}, 1, 25),
        ({"batch_size_per_rank": 3, "accumulate": 2, "negatives": 1}, 4, 6),
    ],
)
def test_the_least_that_a_part_of_a_whole_step_has(
    settings: dict[str, Any], ranks: int, least: int
) -> None:
    assert min_instances(Training(**settings), ranks) == least


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.torch.jit.script_method:DeprecationWarning")  # torch's own
def test_torch_compile_runs_once_before_the_first_step_and_computes_the_same(
    folder: Path, tmp_path: Path
) -> None:
    """Also where the epoch's last step has one positive, and with dropout's masks."""
    from torch._dynamo.utils import counters

    torch._dynamo.reset()
    counters.clear()
    rank = of(folder, tmp_path, compile="inductor")
    assert counters["stats"]["unique_graphs"] == 1
    rank.train()
    assert counters["stats"]["unique_graphs"] == 1
    alone = of(folder, tmp_path / "alone")
    alone.train()
    assert rank.epochs[0].loss == pytest.approx(alone.epochs[0].loss, rel=1e-6)
    assert rank.model.state_dict().keys() == alone.model.state_dict().keys()


@pytest.mark.parametrize(
    ("compiler", "dynamic", "options"),
    [
        ("inductor", True, INDUCTOR_OPTIONS),
        ("reduce-overhead", False, INDUCTOR_OPTIONS | {"triton.cudagraphs": True}),
    ],
)
def test_each_compiler_is_torch_compile_and_gets_steps_of_one_size(
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    compiler: str,
    dynamic: bool,
    options: dict[str, Any],
) -> None:
    """Compiled for one size, reduce-overhead would compile again for any other."""
    given, sizes = list[Any](), set[int]()

    def compile_to_itself(model: Any, **settings: Any) -> Any:
        given.append(settings)

        def run(users: Tensor, *rest: Tensor) -> Any:
            sizes.add(len(users))
            return model(users, *rest)

        return run

    monkeypatch.setattr(torch, "compile", compile_to_itself)
    rank = of(folder, tmp_path, compile=compiler)
    assert len(sizes) == 1, "it is called once before the first step"
    rank.train()
    assert given == [{"dynamic": dynamic, "options": options}]
    assert len(sizes) == 1


@pytest.mark.slow
def test_without_a_compiler_inductor_is_an_error_before_training(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch._inductor.config as inductor

    monkeypatch.setattr(inductor.cpp, "cxx", (None, "no-such-compiler"))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "compiled"))
    torch._dynamo.reset()
    with pytest.raises(HpcncfError, match=r"no-such-compiler.*Load their modules"):
        of(folder, tmp_path, compile="inductor")


def test_settings_that_do_nothing_here_train_the_same_bits_and_are_said(
    folder: Path, tmp_path: Path
) -> None:
    alone = of(folder, tmp_path / "alone")
    alone.train()
    assert alone.warnings == []
    settings = {"parallel": "data_parallel", "cudnn_benchmark": True}
    rank = of(folder, tmp_path, **settings)
    assert torch.backends.cudnn.benchmark
    rank.train()
    assert rank.record().model_sha256 == alone.record().model_sha256
    said = sorted(rank.warnings)
    assert len(said) == 2
    assert "convolutions, and this model has none" in said[0]
    assert "on a CPU torch runs the model itself" in said[1]
    of(folder, tmp_path / "again")
    assert not torch.backends.cudnn.benchmark


def test_a_warm_up_begins_nothing_on_gpus_that_the_run_does_not_use(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_context(_: object) -> None:
        raise AssertionError("a context on a GPU that is not the run's")

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)
    monkeypatch.setattr(torch.cuda, "get_rng_state", no_context)
    of(folder, tmp_path, compile="torchscript")
