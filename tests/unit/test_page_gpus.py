"""What a report's page says of GPUs: hours and joules of an epoch among it."""

from __future__ import annotations

from pathlib import Path

import make_results
import pytest
from test_collect_columns import gpu

from hpcncf.collect.collect import collect
from hpcncf.paths import ResultPaths
from hpcncf.records.schema import write_record
from hpcncf_analysis.report import build
from hpcncf_analysis.report.sections.gpus import NO_NVML_NOTE


def written(paths: ResultPaths) -> str:
    build.write_report(collect(paths), paths)
    return (paths.report / "report.md").read_text()


def of_gpus(folder: Path) -> ResultPaths:
    """One run on a GPU at 300 W, half of its time busy, its clocks held down by power."""
    paths = make_results.demo(folder, repeats=1, points=POINTS, resources={"gpus_per_node": 1})
    (run,) = make_results.plan_of(paths).runs
    make_results.complete(paths)
    node = make_results.node_record(run, windows=60)
    joules = [300 * length for length in node.length_s]
    node.gpus = [gpu(0, [0.5] * 60, [*joules])]
    write_record(paths.run(run.id).attempt(1).node(0), node)
    return paths


POINTS = [{"training.loader": "vectorized", "resources.cpus_per_task": 1}]


def test_hours_and_joules_of_an_epoch_stand_in_the_report(tmp_path: Path) -> None:
    paths = of_gpus(tmp_path)
    (row,) = collect(paths).runs
    seen = written(paths)
    section = seen.partition("## What the GPUs did")[2].partition("\n## ")[0]
    heads, _, cells = (line.split(" | ") for line in section.splitlines() if line.startswith("|"))
    of = dict(zip(heads, cells, strict=True))
    assert of["GPUs"] == "1 H200"
    assert of["busy"].startswith("50")
    assert of["W of each"] == "300"
    assert of["clocks held down"].endswith("(power)")
    seconds = pytest.approx(row["seconds_per_epoch"], rel=0.005)
    assert float(of["an epoch: J"].replace(",", "")) / 300 == seconds
    assert float(of["an epoch: GPU-s"]) == seconds
    assert "an epoch: GPU" in seen.partition("What an epoch costs")[2]


def test_where_nvml_was_not_there_the_report_says_so(tmp_path: Path) -> None:
    paths = make_results.demo(tmp_path, repeats=1, points=POINTS, resources={"gpus_per_node": 1})
    make_results.complete(paths)
    assert NO_NVML_NOTE.partition(" (")[0] in written(paths)


def test_without_gpus_the_report_has_no_section_of_them(tmp_path: Path) -> None:
    paths = make_results.demo(tmp_path, repeats=1, points=POINTS)
    make_results.complete(paths)
    assert "What the GPUs did" not in written(paths)
