"""What distinguishes two configurations stands in their labels."""

from __future__ import annotations

from typing import Any

import pytest

from hpcncf.job.spec import Model, Training
from hpcncf_analysis.configurations import (
    LABEL_ORDER,
    Row,
    commonest_values,
    label_settings,
    unsaid_values,
    varying_settings,
)

# Reported in other words: a rank's threads, and the batch over all ranks.
OTHERWISE = {"threads", "global_batch_size", "batch_size_per_rank"}
NEVER_APART = {"checkpoint_every_min", "log_every", "seed"}


def row(**settings: Any) -> Row:
    return {"by_hand": False, "batch": 256} | Training().model_dump() | settings


def label(rows: list[Row]) -> list[str]:
    seen = varying_settings(rows)
    return [" · ".join(label_settings(each, seen).values()) for each in rows]


def test_every_setting_of_a_training_has_its_place_in_a_label() -> None:
    settings = {*Training.model_fields, *Model.model_fields}
    assert settings - OTHERWISE - NEVER_APART <= set(LABEL_ORDER)


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"compile": "torchscript"}, "compile torchscript"),
        ({"precision": "bfloat16"}, "precision bfloat16"),
        ({"accumulate": 3}, "accumulate 3"),
        ({"bucket_mb": 64.0}, "bucket mb 64"),
        ({"lr_scale": "sqrt"}, "lr scale sqrt"),
    ],
)
def test_runs_that_differ_by_one_setting_have_labels_that_do(settings: Any, word: str) -> None:
    usual, other = label([row(), row(**settings)])
    assert usual != other
    assert other.endswith(word)


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"collate": "fast"}, "collate fast"),
        ({"pin_memory": True}, "pin memory true"),
        ({"num_workers": 2, "workers": "thread"}, "2 workers · workers thread"),
    ],
)
def test_the_input_path_has_its_place_in_a_label(settings: Any, word: str) -> None:
    _, other = label([row(loader="per_sample"), row(loader="per_sample", **settings)])
    assert other.endswith(word)


def test_of_many_settings_a_label_names_those_of_its_own() -> None:
    changes: list[dict[str, Any]] = [
        {"adam": "fused"},
        {"compile": "inductor"},
        {"precision": "bfloat16"},
        {"accumulate": 4},
        {"sparse": True},
        {"engine": "native"},
    ]
    rows = [row(), *(row(**each) for each in changes)]
    seen = varying_settings(rows)
    unsaid = commonest_values(rows, seen)
    words = [" · ".join(label_settings(each, seen, unsaid).values()) for each in rows]
    assert words[:2] == ["vectorized", "vectorized · adam fused"]
    assert len(set(words)) == len(rows)
    assert commonest_values(rows[:3], varying_settings(rows[:3])) == {}


def test_a_label_leaves_the_baselines_values_unsaid() -> None:
    rows = [row(baseline=True), row(pin_memory=True), row(adam="fused"), row(adam="fused")]
    seen = varying_settings(rows)
    words = [label_settings(each, seen, unsaid_values(rows, seen)) for each in rows]
    assert [" · ".join(each.values()) for each in words[:2]] == [
        "vectorized",
        "vectorized · pin memory true",
    ]


def test_how_often_ranks_meet_is_reported_of_those_that_step_apart() -> None:
    apart = {"sync": "local_sgd", "sync_every": 4}
    assert label([row(sync="rows"), row(**apart)]) == [
        "vectorized · sync rows",
        "vectorized · sync local_sgd · sync every 4",
    ]
