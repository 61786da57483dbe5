"""The report's parts on plain values: the answer, the ranks, memory, runs, predictions, steps."""

from __future__ import annotations

from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
import yaml
from test_configurations import row

from hpcncf.collect.collect import Collected
from hpcncf_analysis.advice.text import Conclusion
from hpcncf_analysis.configurations import Table, group_configurations
from hpcncf_analysis.diagnosis.evidence import CoreCounts, Diagnosis, Finding
from hpcncf_analysis.formatting import NONE
from hpcncf_analysis.report.html import inline_figure, render_markdown
from hpcncf_analysis.report.section import RenderedFigure, ReportData, Section, TableBlock
from hpcncf_analysis.report.sections import causes, model_quality
from hpcncf_analysis.report.sections.causes import MAX_REMEDY_ROWS, prediction_parts
from hpcncf_analysis.report.sections.compared import main_table
from hpcncf_analysis.report.sections.memory import memory_parts, traffic_parts
from hpcncf_analysis.report.sections.ranks import rank_parts, ranks_figure, slowest_rank_row
from hpcncf_analysis.report.sections.runs import every_run_table, warnings_table
from hpcncf_analysis.report.sections.step import phase_ms_per_step, waterfall_figure

CORES = CoreCounts(2.0, 2.0, 1.0)
FINDING = Finding("python_input", 0.5, "time", ("71 of 100", "no workers"), "Make batches.")


def run(name: str, **changes: Any) -> Any:
    plain = {"run_id": name, "core_hours": 2.0, "warnings": [], "config": name}
    return row(**{**plain, **changes})


def material(
    runs: list[Any], diagnoses: dict[str, Diagnosis] | None = None, of_ranks: Any = ()
) -> ReportData:
    found = Collected("job", runs, [], list(of_ranks), [], [], [], [])
    return ReportData(
        found=found,
        shown=group_configurations(runs),
        conclusion=Conclusion(""),
        alerts=[],
        diagnoses=diagnoses or {},
    )


def seen(name: str, *findings: Finding, verdict: Any = "cause") -> Diagnosis:
    primary = findings[0] if findings else None
    return Diagnosis(name, verdict if primary else "healthy", primary, findings[1:], CORES)


def rank(number: int, **changes: Any) -> dict[str, Any]:
    plain = {
        "run_id": "a",
        "rank": number,
        "node": "node1",
        "counted_s": 10.0,
        "counted_steps": 100,
        "counted_instances": 1000,
        "input_s": 1.0,
        "forward_s": 2.0,
        "backward_s": 3.0,
        "sync_s": 2.0,
        "optimizer_s": 2.0,
        "other_s": 0.0,
        "fused_s": 0.0,
        "cores_allocated": 1.0,
        "cores_used": 0.9,
        "cpu_efficiency": 0.9,
        "memory_rss_peak_mib": 300.0,
    }
    return plain | changes


def grids(parts: Any) -> list[Table]:
    return [part.table for part in parts if isinstance(part, TableBlock)]


def test_columns_that_say_nothing_of_any_row_are_left_out() -> None:
    table = Table(["run", "limit", "peak", "said"], [["a", NONE, "1", ""], ["b", NONE, NONE, ""]])
    assert (table.without_empty_columns.columns, table.without_empty_columns.rows) == (
        ["run", "peak"],
        [["a", "1"], ["b", NONE]],
    )


def test_each_cause_of_a_configuration_is_a_row_its_primary_one_first() -> None:
    sync = Finding("sync_bound", 0.2, "time", ("waits",), "Exchange less.")
    (table,) = grids(causes.cause_parts(material([run("a")], {"a": seen("a", FINDING, sync)})))
    assert [cells[1] for cells in table.rows] == ["python_input", "sync_bound"]
    assert table.rows[1][0] == ""
    short = Finding("too_short_to_judge", 0.4, "time", ("3 s",), "Let it run.")
    (table,) = grids(causes.cause_parts(material([run("a")], {"a": seen("a", short)})))
    assert table.rows[0][2] == NONE  # its share is the start-up's: nobody's fault


def test_the_rank_that_computes_longer_is_named_and_even_ones_are_not() -> None:
    # busy: 8 s and 9.5 s
    uneven = [rank(0), rank(1, sync_s=0.5)]
    slowest = slowest_rank_row(uneven)
    assert slowest["rank"] == 1
    assert slowest_rank_row([rank(0), rank(1, sync_s=1.99)]) is None
    (table,) = grids(rank_parts(material([run("a", ranks=2)], of_ranks=uneven)))
    assert [cells[0] for cells in table.rows] == ["0", "1 (slowest)"]
    assert table.rows[0][5] == "7"  # computing: 10 - 2 sync - 1 input


def test_a_shortage_of_memory_has_a_column_where_a_rank_says_one() -> None:
    lacking = rank(0, memory_swap_peak_mib=12.0, memory_limit_mib=500.0)
    (table,) = grids(memory_parts(material([run("a")], of_ranks=[lacking])))
    assert table.columns[-1] == "swapped MiB"
    assert table.rows[0][-1] == "12"
    (plain,) = grids(memory_parts(material([run("a")], of_ranks=[rank(0)])))
    assert "swapped MiB" not in plain.columns


def test_traffic_is_shown_if_it_is_more_than_a_system_has() -> None:
    moved = {"network_mib_s": 0.2, "loopback_mib_s": 0.0, "disk_mib_s": 40.0}
    (table,) = grids(traffic_parts(material([run("a", **moved)])))
    assert table.rows[0][1:] == ["0.2", "0", "40"]
    assert not traffic_parts(material([run("a", **moved | {"disk_mib_s": 0.9})]))
    assert not traffic_parts(material([run("a")]))


def test_runs_are_sorted_by_figures_not_by_their_texts() -> None:
    done = {"varied": {}, "repeat": 0, "reason": "", "progress": None, "time_efficiency": None}
    table = every_run_table([run("a", **done), run("b", **done | {"elapsed_s": None})])
    column = table.columns.index("elapsed")
    assert [table.key(number, column) for number in (0, 1)] == [100.0, None]
    assert table.key(0, 0) is None


def test_the_main_tables_keys_are_the_figures_of_its_columns() -> None:
    rows = [run("a"), run("b", cores=2, instances_per_s=1500.0)]
    table = main_table(group_configurations(rows))
    assert [table.key(number, table.columns.index("instances/s")) for number in (0, 1)] == [
        100.0,
        1500.0,
    ]
    assert table.key(1, table.columns.index("cores: allocated")) == 2.0
    assert table.key(1, table.columns.index("core-s/epoch")) == pytest.approx(2 * 1000 / 1500)
    command = {"workload": "command", "by_hand": True, "command": "x"}
    (one,) = main_table(group_configurations([run("a", **command)])).keys
    assert one[1] == 100.0


def test_a_warning_stands_once_with_the_runs_that_gave_it() -> None:
    runs = [run(name, warnings=["hot"]) for name in "abcd"] + [run("e", warnings=["cold"])]
    table = warnings_table(runs)
    assert table.rows == [["4 runs, as a", "hot"], ["e", "cold"]]
    assert warnings_table([run("a")]) is None


def test_predictions_are_counted_only_where_they_were_measured() -> None:
    plain = {"base": "a", "cause": "python_input", "changes": {}, "what": "instances_per_s"}
    figures = {"predicted": 2.0, "low": 1.5, "high": 2.5, "measured_low": None}
    right = plain | figures | {"measured": 2.1, "measured_high": None, "within": True}
    open_ = plain | figures | {"measured": None, "measured_high": None, "within": None}
    summary_, grid, _ = prediction_parts([right, open_], MappingProxyType({"a": "1 core"}))
    assert "1 of 1 measured" in summary_.text  # type: ignore[union-attr]
    assert isinstance(grid, TableBlock)
    assert [cells[-1] for cells in grid.table.rows] == ["yes", "not measured yet"]
    assert grid.table.rows[0][4] == "2.00×\n[1.50×–2.50×]"
    assert prediction_parts([], {}) == []


def test_a_step_falls_from_phase_to_phase() -> None:
    seen_ms = phase_ms_per_step([rank(0), rank(1, input_s=3.0)])
    # (1 + 3) s over 200 steps
    assert seen_ms["input"] == pytest.approx(20.0)
    assert "other" not in seen_ms
    figure = waterfall_figure(group_configurations([run("a")]), [rank(0)])
    bars = [(bar.get_x(), bar.get_width()) for bar in figure.axes[0].patches]
    assert [each[0] for each in bars] == pytest.approx([0, 10, 30, 60, 80])
    assert [each[1] for each in bars] == pytest.approx([10, 20, 30, 20, 20])


def test_one_rank_stands_beside_no_other() -> None:
    assert ranks_figure([rank(0)], "") is None
    figure = ranks_figure([rank(0), rank(1)], "two")
    widths = [bar.get_width() for bar in figure.axes[0].patches[:3]]
    assert widths == pytest.approx([1, 7, 2])  # input, computing, waiting: all of 10 s


def test_quality_is_reported_at_the_end_of_each_evaluation() -> None:
    epoch = {"training_s": 5.0, "evaluation_s": 1.0, "checkpoint_s": 0.0, "hr10": 0.5}
    course = model_quality.quality_over_time([epoch, epoch | {"hr10": None}, epoch | {"hr10": 0.7}])
    assert course == [(6.0, 0.5), (18.0, 0.7)]


def test_a_drawing_takes_the_pages_colours_and_keeps_its_texts() -> None:
    svg = '<svg><text x="1.23456" style="fill: #222222">0.123456</text></svg>'
    assert inline_figure(RenderedFigure("a", "T", "", svg, b"", b"")) == (
        '<svg role="img" aria-label="T"><text x="1.23" style="fill: var(--ink)">0.123456</text>'
        "</svg>"
    )


def test_a_column_of_text_that_says_nothing_is_left_out() -> None:
    table = Table(
        ["a", "caution", "b"],
        [["x", "", "1"], ["y", "", "2"]],
        frozenset({"caution"}),
        [[1, 2, 3]] * 2,
    )
    assert table.without_empty_columns.columns == ["a", "b"]
    assert table.without_empty_columns.rows == [["x", "1"], ["y", "2"]]
    assert table.without_empty_columns.key(1, 1) == 3


def test_a_pull_request_gets_the_first_rows_of_a_long_table() -> None:
    table = Table(["run"], [[f"run-{number}"] for number in range(50)])
    page = {"job": "j", "data": "d", "counts": "", "conclusion": Conclusion("S.", []), "answer": []}
    section = Section("runs", "Runs", [TableBlock(table)])
    seen = render_markdown({**page, "alerts": [], "sections": [section]})
    assert "run-19" in seen
    assert "run-20" not in seen
    assert "30 more rows stand in report.html" in seen


def test_a_pull_request_gets_every_remedy_of_the_job_that_tries_them() -> None:
    job = yaml.safe_load((Path(__file__).parents[2] / "jobs/remedies.yaml").read_text())
    assert len(job["points"]) < MAX_REMEDY_ROWS
    table = Table(["run"], [[f"run-{number}"] for number in range(50)])
    page = {"job": "j", "data": "d", "counts": "", "conclusion": Conclusion("S.", []), "answer": []}
    section = Section("remedies", "Remedies", [TableBlock(table, in_markdown=MAX_REMEDY_ROWS)])
    seen = render_markdown({**page, "alerts": [], "sections": [section]})
    assert "run-49" in seen
    assert "more rows" not in seen
