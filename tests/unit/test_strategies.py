"""The table of strategies: each row can be run, and stands in docs/engines.md with its words."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from hpcncf.job.spec import Resources, Training
from hpcncf.job.validate import training_conflicts

ROOT = Path(__file__).parents[2]


def benchmark(name: str) -> Any:
    return importlib.import_module(f"benchmarks.{name}")


STRATEGIES = benchmark("strategy").STRATEGIES


def rows() -> dict[str, list[str]]:
    found: dict[str, list[str]] = benchmark("strategies").words(
        (ROOT / "docs/engines.md").read_text()
    )
    return found


def test_every_strategy_is_explained_and_every_explained_one_can_be_run() -> None:
    _, _, *explained = rows()
    assert explained == [each.name for each in STRATEGIES]


WHAT_IS_TRAINED = {
    *("epochs", "max_steps", "negatives", "lr", "lr_base_batch", "weight_decay", "seed"),
    *("evaluation", "checkpoint_every", "checkpoint_every_min", "log_every"),
    *("profile", "profile_steps", "profile_ranks", "profile_rate"),
    *("profile_native", "profile_subprocesses"),
}
WHERE = {"device", "backend"}


def test_every_way_to_train_that_a_job_file_can_name_is_a_strategy() -> None:
    """Each setting that changes how fast a training is, and each value it has words for."""
    named = [pair for each in STRATEGIES for pair in each.training.items()]
    settings = set(Training.model_fields) - WHAT_IS_TRAINED - WHERE
    assert {name for name, _ in named} == settings
    for name in settings:
        field = Training.model_fields[name]
        words = get_args(field.annotation) if get_origin(field.annotation) is Literal else ()
        missing = set(words) - {field.default} - {value for each, value in named if each == name}
        assert not missing, (name, missing)


def test_each_is_compared_to_one_that_stands_above_it() -> None:
    above = [""]
    for each in STRATEGIES:
        assert each.against in above
        assert rows()[each.name][4] == (each.against or "–")
        above.append(each.name)


def test_no_strategys_settings_contradict_each_other() -> None:
    for each in STRATEGIES:
        resources = Resources(
            tasks_per_node=each.ranks, cpus_per_task=each.cores, gpus_per_node=each.gpus
        )
        assert training_conflicts(resources, Training.model_validate(each.training)) == []


def test_what_is_measured_stands_behind_the_words_and_replaces_what_stood_there() -> None:
    module = benchmark("strategies")
    first, second, third, *_ = STRATEGIES
    slow, fast = module.Told(1000.0, 1.0, 0.5), module.Told(2500.0, 2.0, None)
    full = {first.name: slow, second.name: fast}
    lines = module.table(rows(), STRATEGIES[:3], full, full)
    assert lines[2].endswith("| – | 1,000 | – | 1,000 | – | 1.0 | 0.5000 |")
    assert lines[3].endswith(f"| {first.name} | 2,500 | 2.50 | 2,500 | 2.50 | 2.0 | – |")
    assert lines[4].endswith(f"| {third.against} | – | – | – | – | – | – |")
    section = "<!-- bench: strategies -->\nWhere from.\n\n" + "\n".join(lines) + "\n<!-- /bench -->"
    again = module.words(section)
    assert again[second.name] == rows()[second.name]
    assert module.table(again, STRATEGIES[:3], full, full) == lines
