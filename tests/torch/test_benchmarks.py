"""What the benchmarks work out from what they measure, and how it comes into docs/results.md."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest
import torch

from hpcncf.job.load import validate_settings
from hpcncf.job.plan import expand_job
from hpcncf.job.spec import JobSpec, Model, Resources, Training
from hpcncf.job.validate import training_conflicts
from hpcncf.ncf.data.prepared import load_prepared
from hpcncf.records.schema import Epoch

ROOT = Path(__file__).parents[2]


def benchmark(name: str) -> Any:
    return importlib.import_module(f"benchmarks.{name}")


TINY = Model(gmf_width=2, mlp_width=3, layers=(4, 2))


def test_the_products_of_a_step_are_those_worked_out_by_hand() -> None:
    """Two positives with one negative each, one context column."""
    shapes = [
        (each.rows, each.inner, each.columns)
        for each in benchmark("roofline").products(TINY, 1, positives=2, negatives=1)
    ]
    forward = [(2, 4, 4), (4, 3, 4), (4, 4, 2), (4, 4, 1)]
    to_weights = [(4, 2, 4), (3, 4, 4), (4, 4, 2), (4, 4, 1)]
    to_inputs = [(2, 4, 3), (4, 4, 3), (4, 2, 4), (4, 1, 4)]
    assert shapes == forward + to_weights + to_inputs


def test_an_instances_arithmetic_is_that_worked_out_by_hand() -> None:
    """Of 4 instances: forward 32 + 48 + 32 + 16 pairs, the weights' gradients as many, the inputs'
    24 + 48 + 32 + 16; two operations each."""
    assert benchmark("roofline").flop_per_instance(TINY, 1, 1) == 2 * (128 + 128 + 120) / 4


def test_the_models_own_arithmetic_is_the_one_measured_against() -> None:
    assert benchmark("roofline").flop_per_instance(Model(), 21, 4) == pytest.approx(
        11_800, rel=0.01
    )


def test_a_step_on_a_gpu_moves_at_least_its_rows_and_its_batch() -> None:
    """Three rows of 5 numbers with two moments each, both ways; two positives of user, item, one
    negative and one column."""
    moved = benchmark("gpu").moved_bytes(3, TINY, positives=2, negatives=1, context=1)
    assert moved == 2 * 3 * 3 * 4 * 5 + 2 * (3 * 8 + 4)


def test_a_gpus_floor_is_by_its_bytes_and_by_its_launches() -> None:
    module = benchmark("gpu")
    floor = module.Floor(moved_bytes=2e6, bytes_per_s=1e12, launches=50, launch_s=1e-6)
    line = module.row(256, "eager", 1e-4, 5, floor)
    assert line == "| 256 | eager | 100.0 | 12,800,000 | 50 | 2.0 | 50.0 |"


def test_a_gpus_goals_are_told_with_what_was_found() -> None:
    goals, eager, graph = benchmark("gpu").goals, "eager", "`cuda_graph`"
    steps = {(256, eager): 9e-4, (256, graph): 9e-5, (65_536, eager): 3e-3, (65_536, graph): 4e-3}
    epochs = {(256, eager): 12.8, (256, graph): 1.6, (65_536, graph): 0.2}
    alike = {eager: "not distinguishable", graph: "not distinguishable"}
    found = goals(steps, epochs, alike)
    assert [each.endswith(" Met.") for each in found] == [True, False, True, True]
    assert "90.0 µs, `cuda_graph`" in found[0]
    assert "1.60 s" in found[1]
    assert "109.2 M, eager" in found[2]
    assert goals(steps, epochs, alike | {graph: "lower"})[3].endswith("differ. Not met.")
    assert goals(steps, epochs, {})[3].endswith("not measured. Not met.")


@pytest.mark.skipif(torch.cuda.is_available(), reason="here is a GPU")
def test_without_a_gpu_its_benchmark_says_so_in_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert benchmark("gpu").main() == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    assert "no CUDA device" in said.err


def test_a_paired_difference_has_students_interval() -> None:
    """Differences 1, 2, 3: mean 2, standard error 1 / sqrt(3), t of 2 degrees 4.303."""
    found = benchmark("quality").difference([2.0, 4.0, 6.0], [1.0, 2.0, 3.0])
    assert found.mean == pytest.approx(2.0)
    assert found.within == pytest.approx(4.303 / 3**0.5)
    assert found.verdict == "not distinguishable"


@pytest.mark.parametrize(
    ("theirs", "verdict"),
    [
        ([0.5, 0.6, 0.7], "not distinguishable"),
        ([0.3, 0.4, 0.51], "higher"),
        ([0.7, 0.8, 0.91], "lower"),
    ],
)
def test_runs_are_compared_seed_by_seed(theirs: list[float], verdict: str) -> None:
    assert benchmark("quality").difference([0.5, 0.6, 0.7], theirs).verdict == verdict


def test_a_way_to_the_target_counts_training_and_evaluation() -> None:
    epochs = [
        Epoch(
            epoch=number,
            training_s=2.0,
            evaluation_s=0.5,
            checkpoint_s=9.0,
            first_batch_s=9.0,
            steps=1,
            instances=1,
            loss=1.0,
            hr10=hr10,
        )
        for number, hr10 in enumerate([0.3, 0.5])
    ]
    assert benchmark("time_to_quality").seconds(epochs) == 5.0


PAGE = "# Results\n\n<!-- bench: a -->\nold\n<!-- /bench -->\nprose\n"


def test_a_benchmarks_section_is_replaced_and_nothing_else() -> None:
    placed = benchmark("results").placed
    assert placed(PAGE, "a", "A", "new\n") == PAGE.replace("old", "new")
    assert placed(placed(PAGE, "a", "A", r"\1"), "a", "A", "old") == PAGE


def test_a_new_benchmark_gets_a_section_at_the_end() -> None:
    placed = benchmark("results").placed
    page = placed(PAGE, "b", "Of b", "| 1 |")
    assert page == PAGE + "\n## Of b\n\n<!-- bench: b -->\n| 1 |\n<!-- /bench -->\n"
    assert placed(page, "b", "Of b", "| 1 |") == page


def test_a_section_without_an_end_is_refused() -> None:
    with pytest.raises(ValueError, match="bench: b --> has no"):
        benchmark("results").placed("<!-- bench: b -->\n" + PAGE, "b", "B", "new")


def test_the_time_that_benchmarks_will_take_is_that_of_their_last_runs() -> None:
    results = benchmark("results")
    about = dict.fromkeys(("cpu_model", "python", "torch", "numpy", "commit"), "x") | {"dirty": 0}
    page = "<!-- bench: a -->\n{}\n\n| 1 |\n<!-- /bench -->\n<!-- bench: b -->\nNot yet.\n"
    page = page.format(results.origin(about, "a", 83.4))
    assert results.seconds_taken(page, "a") == 83
    assert results.seconds_taken(page, "b") is results.seconds_taken(page, "c") is None
    plan = benchmark("__main__").describe_time({"a": 83, "b": None, "c": 600})
    assert plan == "3 benchmarks: about 12 min, and 1 never timed on this page (b)"


def test_every_benchmark_named_can_be_run() -> None:
    for name in benchmark("__main__").BENCHMARKS:
        assert callable(benchmark(name).main), name


def test_every_section_of_the_results_is_a_benchmarks() -> None:
    page = (ROOT / "docs/results.md").read_text()
    sections = {line.split()[2] for line in page.splitlines() if line.startswith("<!-- bench:")}
    assert sections <= set(benchmark("__main__").TITLES)


def test_what_the_benchmarks_train_is_what_a_job_file_may_say() -> None:
    rungs = {rung.name: rung.settings for rung in benchmark("engines").LADDER}
    for name, settings in {**rungs, **benchmark("training").ENGINES}.items():
        training = Training.model_validate({"threads": 1} | settings)
        assert training_conflicts(Resources(cpus_per_task=2), training) == [], name


def test_the_ladder_is_drawn_with_each_rungs_speed_and_quality() -> None:
    ladder = benchmark("ladder")
    figure = ladder.drawn(
        [ladder.Step("naive", 1e4, 1e5, 0.76), ladder.Step("ours", 2e6, 3e6, 0.77)]
    )
    told = {each.get_text().strip() for each in figure.axes[0].texts}
    assert {"10k · 1.0×", "2M · 200×", "0.760", "0.770"} <= told
    assert len(figure.axes[0].patches) == 2


def test_the_first_table_of_a_page_is_found() -> None:
    first_table = benchmark("results").first_table
    assert first_table("# a\n\n| x |\n|---|\n| 1 |\n\n| y |\n") == "| x |\n|---|\n| 1 |\n"
    assert first_table("none") == ""


def test_studies_of_the_predictions_are_jobs_a_user_may_write_on_two_shapes_each() -> None:
    shapes: dict[str, set[str]] = {}
    for study in benchmark("predictions").STUDIES:
        job = validate_settings(JobSpec, study.job | {"data": {"path": "/data"}}, study.question)
        assert len(expand_job(job).runs) == 1
        shapes.setdefault(study.question, set()).add(study.shape)
    assert all(len(each) > 1 for each in shapes.values()), shapes
    assert set().union(*shapes.values()) == set(benchmark("predictions").DATA)


def test_the_score_of_predictions_counts_what_was_measured() -> None:
    """Two measured, one of them within; one not measured; one study that failed."""
    predictions = benchmark("predictions")
    row = {
        "cause": "python_input",
        "changes": {"training.loader": "vectorized"},
        "what": "instances_per_s",
        **dict.fromkeys(("low", "high", "measured_low", "measured_high")),
    }
    rows = [
        row | {"predicted": 2.0, "measured": 2.2, "within": True},
        row | {"predicted": 2.0, "measured": 4.0, "within": False},
        row | {"predicted": 2.0, "measured": None, "within": None},
    ]
    study = predictions.Study("loader", "wide", {})
    failed = predictions.Outcome(study, problem="hpcncf submit: exit code 3")
    page = list(predictions.page([predictions.Outcome(study, rows), failed]))
    assert page[0] == "Within 25 %: 1 of 2 remedies (50%)."
    assert "| 2.00× | 2.20× | yes |" in page[4]
    assert page[6].endswith("| not measured |")
    assert "exit code 3" in page[7]


def test_what_a_law_is_said_to_be_names_its_parameters_or_its_refusal() -> None:
    """sigma 0.19, kappa 0.01: N* = sqrt(0.81 / 0.01) = 9."""
    scaling = benchmark("scaling")
    law = scaling.fit_law([1, 2, 4, 8], [[100.0], [200 / 1.21], [400 / 1.69], [800 / 2.89]])
    assert scaling.said(law) == "USL: σ = 0.190, κ = 0.0100, N* = 9.0; up to 0% from the medians."
    assert scaling.by(law, 8) == "277 [277–277]"
    refused = scaling.fit_law([1, 2], [[1.0], [2.0]])
    assert scaling.said(refused).startswith("No law: a law needs 4 sizes or more")
    assert scaling.by(refused, 2) == "–"


def test_a_table_is_prepared_by_the_command_and_its_peak_is_of_that_process(tmp_path: Path) -> None:
    module = benchmark("prepare")
    source = tmp_path / "made.csv"
    rows = module.written(source, 1_000_000)
    assert source.stat().st_size > 1_000_000
    found = module.prepared(source, rows)
    manifest = load_prepared(Path(f"{source}.prepared")).manifest
    assert manifest.train_rows + manifest.test_rows == found.rows == rows
    assert len(manifest.context_columns) == 21
    assert 50e6 < found.peak_bytes < module.MOST_BYTES
