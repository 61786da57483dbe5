"""What a remedy did, against the point that lacks it, and what is said of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import make_results
import pytest

from hpcncf.collect.collect import collect
from hpcncf.errors import UsageError
from hpcncf.job.expand import expand_job
from hpcncf.job.load import build_plan, load_job
from hpcncf.job.spec import JobSpec
from hpcncf_analysis.configurations import Configuration, group_configurations
from hpcncf_analysis.formatting import NONE
from hpcncf_analysis.remedy_effects import (
    Effect,
    describe_baseline,
    describe_effect,
    format_changes,
    measure_effects,
    remedies_table,
)
from hpcncf_analysis.report.build import gather_data
from hpcncf_analysis.report.section import Paragraph
from hpcncf_analysis.report.sections.causes import UNMEASURED, build_remedies
from hpcncf_analysis.significance import Verdict

NAIVE = {"training.loader": "per_sample"}
BASE: dict[str, Any] = {
    "training.loader": "per_sample",
    "resources.cpus_per_task": 1,
    "resources.tasks_per_node": 1,
}


OPEN = "not settled: repeats of the same settings differ by as much"
WORSE = "the model is worse, whatever the speed (HR@10 0.800 to 0.700)"
BETTER = "a better model (HR@10 0.330 to 0.746)"


def effects(folder: Path, **settings: Any) -> list[Effect]:
    """Of the demo's generated results."""
    paths = make_results.demo(folder, **settings)
    make_results.complete(paths)
    return measure_effects(group_configurations(collect(paths).runs))


def one(rates: list[float], hr10: float = 0.8, **varied: Any) -> Configuration:
    """A configuration of repeats at these rates."""
    row = {"varied": {"loader": "a", **varied}, "test_rows": 10_000, "world_size": 1}
    row |= {"baseline": not varied, "workload": "ncf", "evaluation": "sampled", "data_key": "k"}
    figures = {"instances_per_s": sorted(rates)[len(rates) // 2], "hr10": hr10}
    figures |= {"cores_allocated": 1.0, "memory_peak_mib": 100.0}
    if len(rates) > 1:
        figures |= {"instances_per_s_low": min(rates), "instances_per_s_high": max(rates)}
    label = ", ".join(varied) or "base"
    rows = [{**row, "instances_per_s": each} for each in rates]
    return Configuration(label, "1 core", label, label, rows, figures)


def test_a_remedy_alone_is_compared_with_the_baseline(tmp_path: Path) -> None:
    found = effects(tmp_path, baseline=BASE)
    assert [each.on.rows[0]["varied"] == BASE for each in found] == [True] * 3 + [False] * 2
    [alone] = [each for each in found if format_changes(each.changed) == "loader: vectorized"]
    assert alone.gain.value == pytest.approx(96_000 / 21_000, rel=0.05)
    assert alone.gain.verdict is Verdict.FASTER


def test_a_second_remedy_is_compared_with_the_best_that_lacks_it() -> None:
    base, first = one([100, 101, 102]), one([200, 202, 204], fused=True)
    other, both = one([150, 151, 152], batch=2), one([240, 242, 244], fused=True, batch=2)
    seen = measure_effects([both, base, other, first])
    assert [each.one.label for each in seen] == ["fused", "batch", "fused, batch"]
    assert seen[-1].on is first
    assert seen[-1].changed == {"batch": 2}
    assert seen[-1].gain.value == pytest.approx(242 / 202)
    assert seen[-1].gain.low == pytest.approx(240 / 204)
    assert seen[-1].overall.value == pytest.approx(242 / 101)


@pytest.mark.parametrize(
    ("before", "rates", "hr10", "said"),
    [
        (0.8, [150, 151, 152], 0.8, "gains 1.50×"),
        (0.8, [60, 61, 62], 0.8, "loses: 0.60× of the speed"),
        (0.8, [104, 105, 106], 0.8, "changes little here: 1.04×"),
        (0.8, [100, 101.5, 103], 0.8, "does nothing here"),
        (0.8, [90, 130, 150], 0.8, OPEN),
        # No gain to be seen, and none to be ruled out; repeats apart by chance: 106 above 102.
        (0.8, [80, 104, 130], 0.8, OPEN),
        (
            0.8,
            [500, 501, 502],
            0.7,
            WORSE,
        ),
        (0.33, [100, 101, 102], 0.746, f"{BETTER}; does nothing here"),
        (0.33, [150, 151, 152], 0.746, f"{BETTER}; gains 1.50×"),
        (0.33, [60, 61, 62], 0.746, f"{BETTER}; loses: 0.60× of the speed"),
    ],
)
def test_an_effect_is_described(before: float, rates: list[float], hr10: float, said: str) -> None:
    [seen] = measure_effects([one([100, 101, 102], before), one(rates, hr10, fused=True)])
    assert describe_effect(seen) == said


def test_many_remedies_that_do_nothing_are_noted_to_differ_by_chance() -> None:
    remedies = [one([100.0 + at, 101.0, 102.0], number=at) for at in range(5)]
    seen = measure_effects([one([100, 101, 102]), *remedies])
    assert "Of 5 comparisons 0.5 would differ by chance alone." in describe_baseline(seen)


def test_the_table_names_the_remedy_and_what_it_stands_on(tmp_path: Path) -> None:
    seen = measure_effects([one([100, 101, 102]), one([150, 151, 152], sparse=True)])
    assert remedies_table(seen).rows[0][:3] == ["sparse: true", "the baseline", "1.50×"]
    assert describe_baseline(seen).startswith("Baseline: base.")
    [once] = measure_effects([one([100]), one([300], fused=True)])
    assert describe_effect(once) == "3.00×, but too few repeats to be sure"
    assert effects(tmp_path) == []
    assert remedies_table([]) is None


def test_a_baseline_that_was_not_run_is_refused() -> None:
    job = JobSpec.model_validate(
        {"name": "a", "data": {"path": "x"}, "grid": {"training.loader": ["batched"]}}
        | {"baseline": NAIVE}
    )
    with pytest.raises(UsageError, match=r"baseline: .*per_sample.* is no point"):
        expand_job(job)


def test_a_programs_parameters_may_be_its_baseline(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(
        "name: a\nworkload: {command: [echo, '{throws}']}\n"
        "grid: {throws: [1, 2]}\nbaseline: {throws: 2}\n"
    )
    runs = build_plan(load_job(path), path).runs
    assert [run.parameters["throws"] for run in runs if run.baseline] == [2]


def test_the_baselines_repeats_are_marked() -> None:
    job = JobSpec.model_validate(
        {"name": "a", "data": {"path": "x"}, "points": [{}, NAIVE], "baseline": {}, "repeats": 2}
    )
    marked = [run.varied["training.loader"] for run in expand_job(job).runs if run.baseline]
    assert marked == ["vectorized"] * 2


def test_a_baseline_without_a_complete_run_is_reported(tmp_path: Path) -> None:
    paths = make_results.demo(tmp_path, baseline=BASE)
    others = [run for run in make_results.plan_of(paths).runs if not run.baseline]
    make_results.complete(paths, others)
    section = build_remedies(gather_data(collect(paths), paths, {}))
    assert UNMEASURED in [each.text for each in section.parts if isinstance(each, Paragraph)]


def test_a_setting_without_effect_is_not_compared() -> None:
    """The record's own sentence stands in place of a gain of 1.25."""
    text = "training.pin_memory has no effect: it is for copies to a GPU"
    base, pinned = one([100, 101, 102]), one([125, 126, 127], **{"training.pin_memory": True})
    rows = [{**row, "warnings": [text]} for row in pinned.rows]
    pinned = replace(pinned, rows=rows)
    (effect,) = measure_effects([base, pinned])
    assert (effect.gain.verdict, describe_effect(effect)) == ("no effect", text)
    table = remedies_table([effect])
    assert table
    assert set(table.rows[0][2:-1]) == {NONE}


@pytest.mark.parametrize(
    ("rates", "words"),
    [([200, 201, 202], "pays after 24,"), ([104, 105, 106], "pays after"), ([50, 51], "never")],
)
def test_compilation_shows_its_start_up_and_the_steps_after_which_it_pays(
    rates: list[float], words: str
) -> None:
    """30.5 s more; a step of 256 instances takes 2.53 s, and 1.27 s compiled: 24 steps."""
    base, compiled = one([100, 101, 102]), one(rates, **{"training.compile": "inductor"})
    timed = [
        replace(
            each,
            rows=[{**row, "batch": 256, "negatives": 0} for row in each.rows],
            figures={**each.figures, "startup_s": startup_s},
        )
        for each, startup_s in ((base, 4.5), (compiled, 35.0))
    ]
    (effect,) = measure_effects(timed)
    assert words.rstrip(",") in describe_effect(effect)
