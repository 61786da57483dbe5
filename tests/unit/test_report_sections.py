"""The report's sections on plain values: what each shows, and what it leaves out."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import make_results
import pytest
import yaml
from test_collect_columns import gpu
from test_configurations import row
from test_scaling import epochs, generated, ranked

from hpcncf.cli import report as verb
from hpcncf.collect.collect import Collected, collect
from hpcncf.records.schema import write_record
from hpcncf.table import Table
from hpcncf_analysis.advice.text import StudyConclusion
from hpcncf_analysis.configurations import Configuration, group_configurations
from hpcncf_analysis.diagnosis.evidence import CoreCounts, Diagnosis, Finding
from hpcncf_analysis.formatting import NONE
from hpcncf_analysis.report import build
from hpcncf_analysis.report.render import MAX_SVG_BYTES, inline_figure, render_markdown
from hpcncf_analysis.report.section import (
    Paragraph,
    RenderedFigure,
    ReportData,
    Section,
    SectionPart,
)
from hpcncf_analysis.report.sections import causes, model_quality, ranks, resources
from hpcncf_analysis.report.sections.causes import MAX_REMEDY_ROWS
from hpcncf_analysis.report.sections.compared import main_table
from hpcncf_analysis.report.sections.model_quality import time_to_quality_parts
from hpcncf_analysis.report.sections.runs import every_run_table, warnings_table
from hpcncf_analysis.report.sections.speed_up import scaling_parts
from hpcncf_analysis.report.sections.step import evaluation_note, first_batch_table, times_table

COST = "What an epoch costs"
CORES = CoreCounts(2.0, 2.0, 1.0)
FINDING = Finding("python_input", 0.5, "time", ("71 of 100", "no workers"), "Make batches.")


def run(name: str, **changes: Any) -> Any:
    plain = {"run_id": name, "core_hours": 2.0, "warnings": [], "config": name}
    return row(**{**plain, **changes})


def material(
    runs: Sequence[Any],
    diagnoses: dict[str, Diagnosis] | None = None,
    ranks: Sequence[Any] = (),
    epochs: Sequence[Any] = (),
    quality: float | None = None,
) -> ReportData:
    return ReportData(
        found=Collected("job", list(runs), [], list(ranks), [], list(epochs), [], []),
        shown=group_configurations(runs),
        conclusion=StudyConclusion(""),
        alerts=[],
        diagnoses=diagnoses or {},
        quality=quality,
    )


def rank(number: int, **changes: Any) -> dict[str, Any]:
    plain = {
        "run_id": "a",
        "rank": number,
        "node": "node1",
        "counted_s": 10.0,
        "counted_steps": 100,
        "counted_instances": 1000,
        "input_s": 1.0,
        "sync_s": 2.0,
        "cores_allocated": 1.0,
        "cores_used": 0.9,
        "cpu_efficiency": 0.9,
        "memory_rss_peak_mib": 300.0,
    }
    return plain | changes


def grids(parts: Sequence[SectionPart]) -> list[Table]:
    return [part for part in parts if isinstance(part, Table)]


def titles(parts: Sequence[SectionPart]) -> list[str]:
    return [part.title for part in parts if isinstance(part, Table)]


def texts(parts: Sequence[SectionPart]) -> str:
    return " ".join(part.text for part in parts if isinstance(part, Paragraph))


def test_columns_that_say_nothing_of_any_row_are_left_out() -> None:
    table = Table(
        ["run", "limit", "peak", "said"],
        [["a", NONE, "1", ""], ["b", NONE, NONE, ""]],
        frozenset({"said"}),
        [[None, 1, 2, None]] * 2,
    ).without_empty_columns
    assert (table.columns, table.rows) == (["run", "peak"], [["a", "1"], ["b", NONE]])
    assert table.key(1, 1) == 2


def test_each_cause_of_a_configuration_is_a_row_its_primary_one_first() -> None:
    def rows(*found: Finding) -> list[list[str]]:
        diagnosis = Diagnosis("a", "cause", found[0], found[1:], CORES)
        (table,) = grids(causes.build(material([run("a")], {"a": diagnosis})).parts)
        return table.rows

    first, second = rows(FINDING, Finding("sync_bound", 0.2, "time", ("waits",), "Exchange less."))
    assert (first[1], second[:2]) == ("python_input", ["", "sync_bound"])
    (short,) = rows(Finding("too_short_to_judge", 0.4, "time", ("3 s",), "Let it run."))
    assert short[2] == NONE  # its share is the start-up's: nobody's fault


def test_the_rank_that_computes_longer_is_named_and_even_ones_are_not() -> None:
    uneven = [rank(0), rank(1, sync_s=0.5)]  # busy: 8 s and 9.5 s
    table, _ = grids(ranks.build(material([run("a", ranks=2)], ranks=uneven)).parts)
    assert [cells[0] for cells in table.rows] == ["0", "1 (slowest)"]
    assert table.rows[0][5] == "7"  # computing: 10 - 2 sync - 1 input
    assert ranks.slowest_rank_row([rank(0), rank(1, sync_s=1.99)]) is None


def test_a_shortage_of_memory_has_a_column_where_a_rank_says_one() -> None:
    lacking = rank(0, memory_swap_peak_mib=12.0, memory_limit_mib=500.0)
    (table,) = grids(resources.build_memory(material([run("a")], ranks=[lacking])).parts)
    assert (table.columns[-1], table.rows[0][-1]) == ("swapped MiB", "12")
    (plain,) = grids(resources.build_memory(material([run("a")], ranks=[rank(0)])).parts)
    assert "swapped MiB" not in plain.columns


def test_traffic_is_shown_if_it_is_more_than_a_system_has() -> None:
    moved = {"network_mib_s": 0.2, "loopback_mib_s": 0.0, "disk_mib_s": 40.0}
    (table,) = grids(resources.traffic_parts(material([run("a", **moved)])))
    assert table.rows[0][1:] == ["0.2", "0", "40"]
    assert not resources.traffic_parts(material([run("a", **moved | {"disk_mib_s": 0.9})]))
    assert not resources.traffic_parts(material([run("a")]))


def test_tables_are_sorted_by_figures_not_by_their_texts() -> None:
    done = {"varied": {}, "repeat": 0, "reason": "", "progress": None, "time_efficiency": None}
    table = every_run_table([run("a", **done), run("b", **done | {"elapsed_s": None})])
    column = table.columns.index("elapsed")
    assert [table.key(number, column) for number in (0, 1)] == [100.0, None]
    assert table.key(0, 0) is None
    rows = [run("a"), run("b", cores=2, instances_per_s=1500.0)]
    table = main_table(group_configurations(rows))
    keys = dict(zip(table.columns, table.keys[1], strict=True))
    assert (keys["instances/s"], keys["cores: allocated"]) == (1500.0, 2.0)
    assert keys["core-s/epoch"] == pytest.approx(2 * 1000 / 1500)
    command = {"workload": "command", "by_hand": True, "command": "x"}
    (one,) = main_table(group_configurations([run("a", **command)])).keys
    assert one[1] == 100.0


def test_a_warning_stands_once_with_the_runs_that_gave_it() -> None:
    runs = [run(name, warnings=["hot"]) for name in "abcd"] + [run("e", warnings=["cold"])]
    table = warnings_table(runs)
    assert table.rows == [["4 runs, as a", "hot"], ["e", "cold"]]
    assert warnings_table([run("a")]) is None


def test_quality_is_reported_at_the_end_of_each_evaluation() -> None:
    epoch = {"training_s": 5.0, "evaluation_s": 1.0, "checkpoint_s": 0.0, "hr10": 0.5}
    course = model_quality.quality_over_time([epoch, epoch | {"hr10": None}, epoch | {"hr10": 0.7}])
    assert course == [(6.0, 0.5), (18.0, 0.7)]


def test_a_drawing_takes_the_pages_colours_and_keeps_its_texts() -> None:
    svg = b'<svg><text x="1.23456" style="fill: #222222">0.123456</text></svg>'
    assert inline_figure(RenderedFigure("a", "T", "", {"svg": svg})) == (
        '<svg role="img" aria-label="T"><text x="1.23" style="fill: var(--ink)">0.123456</text>'
        "</svg>"
    )


def test_a_heat_map_too_heavy_for_a_page_is_a_picture() -> None:
    heavy = b"<svg>" + b"x" * MAX_SVG_BYTES + b"</svg>"
    drawn = RenderedFigure("a", "A <b>", "", {"svg": heavy, "png": b"png"})
    assert inline_figure(drawn).startswith('<img alt="A &lt;b&gt;" src="data:image/png;base64,')


@pytest.mark.parametrize(("rows", "left_out"), [(20, 30), (MAX_REMEDY_ROWS, 0)])
def test_a_pull_request_gets_the_first_rows_of_a_long_table_and_every_remedy(
    rows: int, left_out: int
) -> None:
    job = yaml.safe_load((Path(__file__).parents[2] / "jobs/remedies.yaml").read_text())
    assert len(job["points"]) < MAX_REMEDY_ROWS
    table = Table(["run"], [[f"run-{number}"] for number in range(50)])
    section = Section("runs", "Runs", [replace(table, max_markdown_rows=rows)])
    page = {
        "job": "j",
        "data": "d",
        "counts": "",
        "conclusion": StudyConclusion("S.", []),
        "alerts": [],
    }
    seen = render_markdown({**page, "sections": [section]})
    assert seen.count("| run-") == 50 - left_out
    assert ("30 more rows stand in report.html" in seen) == bool(left_out)


def gathered(folder: Path, gpus: int, reported: bool) -> ReportData:
    """One run; its GPU at 300 W, half of its time busy, its clocks held down by power."""
    points = [{"training.loader": "vectorized", "resources.cpus_per_task": 1}]
    asked = {"gpus_per_node": gpus} if gpus else {}
    paths = make_results.demo(folder, repeats=1, points=points, resources=asked)
    (one,) = make_results.plan_of(paths).runs
    make_results.complete(paths)
    if reported:
        node = make_results.node_record(one, windows=60)
        node.gpus = [gpu(0, [0.5] * 60, [300 * length for length in node.length_s])]
        write_record(paths.run(one.id).attempt(1).node(0), node)
    return build.gather_data(collect(paths), paths, {})


def test_hours_and_joules_of_an_epoch_stand_in_the_report(tmp_path: Path) -> None:
    data = gathered(tmp_path, 1, reported=True)
    (table,) = grids(resources.build_gpus(data).parts)
    of = dict(zip(table.columns, *table.rows, strict=True))
    assert (of["GPUs"], of["W of each"]) == ("1 (H200)", "300")
    assert of["busy"].startswith("50")
    assert of["clocks held down"].endswith("(power)")
    seconds = pytest.approx(data.found.runs[0]["seconds_per_epoch"], rel=0.005)
    assert float(of["an epoch: J"].replace(",", "")) / 300 == seconds
    assert float(of["an epoch: GPU-s"]) == seconds


def test_gpus_that_nvml_did_not_see_are_said_to_be_unknown(tmp_path: Path) -> None:
    assert (
        texts(resources.build_gpus(gathered(tmp_path, 1, reported=False)).parts)
        == resources.NO_NVML_NOTE
    )
    assert resources.build_gpus(material([run("a")])).parts == []


@pytest.mark.parametrize(
    ("runs", "tables", "said", "in_terminal"),
    [
        (
            generated(0.1, 0.01),
            ["Strong: the same work on more cores", "Laws of the speed, fitted", COST],
            "fastest at 9.49",
            "fastest at 9.49",
        ),
        (
            [row(), ranked(2, 150.0)],
            ["Strong: the same work on more cores", COST],
            "one needs 4 sizes or more",
            "",
        ),
        ([row()], [COST], "", ""),
        ([], [], "", ""),
    ],
)
def test_scaling_is_shown_as_far_as_sizes_were_measured(
    runs: list[Any], tables: list[str], said: str, in_terminal: str
) -> None:
    parts = scaling_parts(material(runs))
    assert titles(parts) == tables
    assert said in texts(parts)
    assert bool(texts(parts)) == bool(said)
    assert in_terminal in " ".join(build.terminal_sentences(material(runs)))


def test_ranks_efficiencies_come_with_their_definition() -> None:
    data = material([row(), ranked(2, 150.0, run_id="a")], ranks=[rank(0), rank(1)])
    parts = ranks.build(data).parts
    label = "2 ranks × 1 core · vectorized"
    assert titles(parts) == [f"{label}, run a", "Where the ranks' efficiency goes"]
    assert "load balance × communication × input" in texts(parts)
    assert ranks.build(material([])).parts == []


def asked(*words: str) -> float | None:
    parser = argparse.ArgumentParser()
    verb.add_arguments(parser)
    quality: float | None = parser.parse_args(["results", *words]).quality
    return quality


def test_a_quality_to_reach_is_a_share(capsys: pytest.CaptureFixture[str]) -> None:
    assert (asked(), asked("--quality", "0.85")) == (None, 0.85)
    for text in ("85", "0", "-0.1", "nan", "much"):
        with pytest.raises(SystemExit):
            asked(f"--quality={text}")
        assert f"expected an HR@10 above 0, up to 1, came {text}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("target", "hr10", "title", "said"),
    [
        (None, 0.9, [], ""),
        (0.85, 0.9, ["Time until HR@10 reaches 0.85"], "gets there first, after 10.5"),
        (0.95, 0.9, ["Time until HR@10 reaches 0.95"], "0 of 1 run reached it"),
        (0.85, None, [], "No run evaluated HR@10"),
    ],
)
def test_time_to_quality_is_reported_where_a_target_was_given(
    target: float | None, hr10: float | None, title: list[str], said: str
) -> None:
    data = material([row(run_id="a")], epochs=epochs("a", hr10), quality=target)
    parts = time_to_quality_parts(data)
    assert titles(parts) == title
    assert said in texts(parts)
    assert bool(build.terminal_sentences(data)) is (target is not None)


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> list[Configuration]:
    paths = make_results.demo(tmp_path_factory.mktemp("demo"), repeats=1)
    make_results.complete(paths)
    return group_configurations(collect(paths).runs)


def test_evaluation_has_its_seconds_and_its_speed_beside_training(
    shown: list[Configuration],
) -> None:
    table = times_table(shown)
    for cells in table.rows:
        seen = dict(zip(table.columns, cells, strict=True))
        assert seen["seconds: evaluation"] == "1.2"  # three epochs of 0.4
        assert (seen["evaluation: s/epoch"], seen["evaluation: pairs/s"]) == ("0.4", "164,000")


def with_figures(one: Configuration, **changes: Any) -> Configuration:
    return replace(one, figures={**one.figures, **changes})


def test_waits_for_a_first_batch_have_a_line_for_each_configuration(
    shown: list[Configuration],
) -> None:
    one, name = shown[0], shown[0].rows[0]["run_id"]
    first = [
        {"run_id": run_id, "epoch": at, "first_batch_s": seconds, "training_s": 10.0}
        for run_id, at, seconds in ((name, 0, 3.0), (name, 1, 0.5), (name, 2, 1.0), ("x", 0, 9.0))
    ]
    table = first_batch_table(first, [one])
    assert table.rows == [[one.label, "3", "0.75", "15\u202f%"]]
    table = first_batch_table(first[:1], [one])
    assert table.rows == [[one.label, "3", "–", "30\u202f%"]]
    assert first_batch_table([], shown) is None


def test_evaluation_that_takes_longer_than_training_is_named_with_what_helps(
    shown: list[Configuration],
) -> None:
    assert evaluation_note(shown) is None
    slow = [with_figures(one, evaluation_s=1e6) for one in shown]
    seen = evaluation_note([slow[0], *shown[1:]])
    assert seen is not None
    assert slow[0].label in seen
    assert "engine native" in seen
    seen = evaluation_note(slow)
    assert seen is not None
    assert f"{len(shown)} of {len(shown)}" in seen
