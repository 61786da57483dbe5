"""What surely does not fit is refused with numbers, and what may fit is not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from make_results import manifest
from make_runs import planned

from hpcncf import cli
from hpcncf.errors import HpcncfError
from hpcncf.job.spec import Model, Resources, Training
from hpcncf.job.validate import memory_conflicts, instances_at_once, model_bytes, step_bytes
from hpcncf.ncf.device_data import check_model_memory

SMALL = Model(gmf_width=1, mlp_width=2, layers=(3,))


def told(
    model: Model | None = None, mem_gb: float = 4, ranks: int = 1, **training: Any
) -> list[str]:
    resources = Resources(tasks_per_node=ranks, mem_gb=mem_gb)
    return memory_conflicts(resources, Training(**training), model or Model())


def test_a_steps_bytes_are_those_of_its_instances() -> None:
    """6 positives with 4 negatives are 30 instances; rowwise 16 indices + 12 row + 12 outputs."""
    training, resources = Training(global_batch_size=6, engine="rowwise"), Resources()
    assert instances_at_once(resources, training) == 30
    assert step_bytes(resources, training, SMALL) == 30 * 40
    plain = training.model_copy(update={"engine": "reference"})
    # 20 indices + two rows of 12 + the MLP's input of 16 + 12 outputs.
    assert step_bytes(resources, plain, SMALL) == 30 * 72


def test_ranks_and_parts_share_a_step() -> None:
    training = Training(global_batch_size=12, accumulate=3)
    assert instances_at_once(Resources(tasks_per_node=2), training) == 2 * 5


def test_a_models_bytes_are_its_parameters_and_what_adam_keeps_of_each() -> None:
    """(2 + 3) rows of 3; (2 x 2 + 1 context + 1) x 3 + 1 + 3 + 1 in the layers: 38 parameters."""
    adam, sgd = Training(), Training(optimizer="sgd")
    assert model_bytes(adam, SMALL, users=2, items=3, context=1) == 38 * 4 * 4
    assert model_bytes(sgd, SMALL, users=2, items=3, context=1) == 38 * 4


def test_the_count_is_the_models_own() -> None:
    data = manifest()
    sizes = (data.users, data.items, len(data.context_columns))
    assert model_bytes(Training(optimizer="sgd"), Model(), *sizes) == 4 * data.parameters


def test_far_too_many_negatives_are_refused_with_numbers() -> None:
    """256 x 100,001 instances x 400 bytes are 9.5 GiB."""
    (reason,) = told(engine="rowwise", negatives=100_000)
    assert "25,600,256 instances take at least 9.5 GiB" in reason
    assert "resources.mem_gb is 4" in reason
    assert not told(engine="rowwise", negatives=100_000, mem_gb=10)
    assert told(engine="rowwise", negatives=100_000, mem_gb=10, ranks=2, batch_size_per_rank=256)


def test_an_absurd_width_is_refused_before_torch_is_asked() -> None:
    (reason,) = told(Model(gmf_width=10**9), global_batch_size=1, negatives=1, engine="native")
    assert reason.startswith("model: its parameters")
    assert "GiB" in reason


@pytest.mark.parametrize("settings", [{}, {"global_batch_size": 100_000}, {"negatives": 999}])
def test_usual_settings_are_not_refused(settings: dict[str, Any]) -> None:
    assert not told(**settings)


def test_a_gpus_memory_is_not_the_requests() -> None:
    resources = Resources(gpus_per_node=1)
    assert not memory_conflicts(resources, Training(negatives=100_000), Model())


def test_plan_refuses_what_cannot_fit(job_file: Any, capsys: pytest.CaptureFixture[str]) -> None:
    path = job_file()
    for setting in ("model.gmf_width=1000000000", "training.negatives=10000000"):
        assert cli.main(["plan", str(path), "-s", setting]) == 2
        assert (
            "GiB on each of 1 rank of a node, and resources.mem_gb is 1" in capsys.readouterr().err
        )


def test_a_model_larger_than_the_node_is_refused_by_its_rank(tiny_data: Path) -> None:
    run = planned(tiny_data)
    assert run.model is not None
    wide = run.model_copy(update={"model": Model(gmf_width=10**9)})
    data = manifest()
    check_model_memory(run, data, ranks=1)
    with pytest.raises(HpcncfError, match=r"654 users and 1,127 items.* GiB on each of 2 ranks"):
        check_model_memory(wide, data, ranks=2)
