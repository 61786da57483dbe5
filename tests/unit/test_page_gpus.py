"""What a report's page says of GPUs: hours and joules of an epoch among it."""

from __future__ import annotations

from pathlib import Path

import make_results
import pytest
from test_collect_columns import gpu

from hpcncf.collect.collect import collect
from hpcncf.records.schema import write_record
from hpcncf_analysis.report import build
from hpcncf_analysis.report.section import Paragraph, ReportData, TableBlock
from hpcncf_analysis.report.sections.gpus import NO_NVML_NOTE, gpu_parts
from hpcncf_analysis.report.sections.speed import scaling_parts

POINTS = [{"training.loader": "vectorized", "resources.cpus_per_task": 1}]


def gathered(folder: Path, gpus: int, reported: bool) -> ReportData:
    """One run; its GPU at 300 W, half of its time busy, its clocks held down by power."""
    paths = make_results.demo(
        folder, repeats=1, points=POINTS, resources={"gpus_per_node": gpus} if gpus else {}
    )
    (run,) = make_results.plan_of(paths).runs
    make_results.complete(paths)
    if reported:
        node = make_results.node_record(run, windows=60)
        node.gpus = [gpu(0, [0.5] * 60, [300 * length for length in node.length_s])]
        write_record(paths.run(run.id).attempt(1).node(0), node)
    return build.gather_data(collect(paths), paths, {})


def test_hours_and_joules_of_an_epoch_stand_in_the_report(tmp_path: Path) -> None:
    data = gathered(tmp_path, 1, reported=True)
    table = gpu_parts(data)[0]
    assert isinstance(table, TableBlock)
    of = dict(zip(table.table.columns, *table.table.rows, strict=True))
    assert of["GPUs"] == "1 H200"
    assert of["busy"].startswith("50")
    assert of["W of each"] == "300"
    assert of["clocks held down"].endswith("(power)")
    seconds = pytest.approx(data.found.runs[0]["seconds_per_epoch"], rel=0.005)
    assert float(of["an epoch: J"].replace(",", "")) / 300 == seconds
    assert float(of["an epoch: GPU-s"]) == seconds
    costs = [each for each in scaling_parts(data) if isinstance(each, TableBlock)]
    assert any("an epoch: GPU" in name for each in costs for name in each.table.columns)


def test_where_nvml_was_not_there_the_report_says_so(tmp_path: Path) -> None:
    _, note = gpu_parts(gathered(tmp_path, 1, reported=False))
    assert note == Paragraph(NO_NVML_NOTE, note=True)


def test_without_gpus_the_report_has_no_section_of_them(tmp_path: Path) -> None:
    assert gpu_parts(gathered(tmp_path, 0, reported=False)) == []
