"""What a job file may say."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from hpcncf.job.spec import JobSpec, Resources, Training

DATA = {"path": "data/frappe"}


def test_the_forums_job_needs_only_a_name_and_its_data() -> None:
    job = JobSpec.model_validate({"name": "a", "data": DATA})
    assert job.training.batch_over_ranks(1) == 256
    assert job.resources.cores == 1


@pytest.mark.parametrize("name", ["", "../up", "a b", "a/b", ".hidden", "x" * 65])
def test_a_name_that_could_not_name_a_folder_is_refused(name: str) -> None:
    with pytest.raises(ValidationError):
        JobSpec.model_validate({"name": name, "data": DATA})


@pytest.mark.parametrize(
    ("section", "key", "value"),
    [
        ("resources", "cpus_per_task", 0),
        ("resources", "cpus_per_task", 1.5),
        ("resources", "cpus_per_task", "2"),
        ("resources", "cpus_per_task", True),
        ("resources", "cpu_per_task", 1),
        ("resources", "mem_gb", -1),
        ("training", "lr", 0),
        ("training", "lr", float("nan")),
        ("training", "seed", -1),
        ("training", "threads", "many"),
        ("training", "loader", "fast"),
        ("model", "layers", []),
        ("model", "layers", [8, 0]),
        ("model", "dropout", 1.0),
    ],
)
def test_a_value_that_makes_no_sense_is_refused(section: str, key: str, value: object) -> None:
    with pytest.raises(ValidationError):
        JobSpec.model_validate({"name": "a", "data": DATA, section: {key: value}})


def test_both_batch_sizes_are_refused_and_either_gives_the_batch_over_all_ranks() -> None:
    with pytest.raises(ValidationError, match="exactly one"):
        Training(global_batch_size=256, batch_size_per_rank=256)
    assert Training(global_batch_size=1024).batch_over_ranks(4) == 1024
    assert Training(batch_size_per_rank=256).batch_over_ranks(4) == 1024


def test_a_ranks_batch_is_what_it_takes_at_once_and_the_batch_over_all_is_a_steps() -> None:
    assert Training(batch_size_per_rank=128, accumulate=4).batch_over_ranks(2) == 1024
    assert Training(global_batch_size=1024, accumulate=4).batch_over_ranks(2) == 1024


@pytest.mark.parametrize(("rule", "expected"), [("none", 0.01), ("linear", 0.16), ("sqrt", 0.04)])
def test_a_larger_batch_scales_the_learning_rate_by_the_rule_that_is_named(
    rule: Any, expected: float
) -> None:
    training = Training(batch_size_per_rank=512, accumulate=2, lr=0.01, lr_scale=rule)
    assert training.scaled(4).lr == pytest.approx(expected)


def test_auto_means_the_gpu_and_nccl_only_when_a_gpu_is_asked_for() -> None:
    training = Training()
    cpu, gpu = Resources(), Resources(gpus_per_node=1)
    assert (training.device_for(cpu), training.backend_for(cpu)) == ("cpu", "gloo")
    assert (training.device_for(gpu), training.backend_for(gpu)) == ("cuda", "nccl")
