"""The packing curve: which packs count, how many runs are recommended, and what is said of it."""

from __future__ import annotations

from typing import Any

import pytest
from test_configurations import row
from test_report_sections import material

from hpcncf.table import Table
from hpcncf_analysis.advice.judge import judge
from hpcncf_analysis.advice.text import conclude
from hpcncf_analysis.configurations import group_configurations
from hpcncf_analysis.packing import TITLE, curves, left_out, sentences
from hpcncf_analysis.report.section import BulletList, FigureRow
from hpcncf_analysis.report.sections import side_by_side
from hpcncf_analysis.report.sections.side_by_side import packing_figure


def pack(size: int, rate: float, mark: str = "", **changes: Any) -> list[dict[str, Any]]:
    """Runs that were begun side by side, each so fast; they work from second 0 to 10."""
    ids = [f"{size}{mark}{number}" for number in range(size)]
    plain: dict[str, Any] = {
        "runs_per_node": size,
        "runs_per_gpu": 1,
        "config": f"{size}{mark}",
        "pack": " ".join(ids) if size > 1 else None,
        "pack_runs": size,
        "memory_peak_mib": 100.0,
        "worked_from": 0.0,
        "worked_to": 10.0,
    } | changes
    return [row(run_id=each, instances_per_s=rate, **plain) for each in ids]


FALLS = [*pack(1, 100.0), *pack(2, 90.0), *pack(3, 61.0), *pack(4, 30.0)]


def test_the_fewest_runs_within_five_per_cent_of_the_greatest_total_are_recommended() -> None:
    (found,) = curves(FALLS)
    assert [(size.runs, size.total) for size in found.sizes] == [
        (1, 100),
        (2, 180),
        (3, 183),
        (4, 120),
    ]
    assert (found.recommended.runs, found.best.runs) == (2, 3)
    assert found.falls_at.runs == 4
    assert found.sizes[1].memory_mib == 200
    (said,) = sentences(found)
    assert "2 runs on a node: 180 instances/s together, 1.80× those of one" in said
    assert said.endswith("with 4 the total falls to 120.")


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([*pack(1, 100.0), *pack(2, 45.0)], "one run on a node is best; 2 runs bring 0.90×"),
        ([*pack(1, 100.0), *pack(2, 95.0)], "was still growing, so more may be better"),
        (
            [*pack(1, 100.0), *pack(2, 95.0, cores_on_node=2)],
            "they fill the node's cores",
        ),
        (pack(2, 50.0), "only 2 side by side were measured"),
        ([*pack(1, 100.0), *pack(2, 80.0), *pack(3, 54.0)], "; more bring nothing."),
    ],
)
def test_what_the_curve_says(rows: list[dict[str, Any]], said: str) -> None:
    (found,) = curves(rows)
    assert said in next(sentences(found))


def test_one_run_on_as_many_cores_stands_beside_it() -> None:
    wide = [each | {"cpus_per_task": 2, "threads": 2} for each in pack(1, 130.0, "w")]
    (found,) = curves([*pack(1, 100.0), *pack(2, 90.0), *wide])
    assert [size.instead for size in found.sizes] == [None, 130]
    assert "one run on as many cores makes 130" in next(sentences(found))


def test_packs_that_were_short_or_mixed_count_for_nothing_and_are_reported() -> None:
    short = [each | {"runs_per_node": 3} for each in pack(2, 90.0, "s")]
    mixed = pack(2, 90.0, "m")
    mixed[1] |= {"negatives": 8}
    rows = [*FALLS, *short, *mixed]
    assert [len(found.sizes) for found in curves(rows)] == [4]
    assert left_out(rows) == 4


def test_runs_that_differ_in_their_learning_rate_share_a_curve_and_engines_do_not() -> None:
    rates = pack(2, 90.0)
    rates[1] |= {"lr": 0.1}
    assert len(curves([*pack(1, 100.0), *rates])) == 1
    other = [
        each | {"engine": "native", "pack": f"native {each['pack'] or each['run_id']}"}
        for each in FALLS
    ]
    assert len(curves([*FALLS, *other])) == 2


def test_on_gpus_a_curve_is_of_one_gpu_and_mps_is_beside_it_from_the_same_run_alone() -> None:
    gpu: dict[str, Any] = {"gpus_per_node": 1, "gpu_memory_peak_mib": 900.0}
    alone = pack(1, 100.0, **gpu)
    shared = pack(4, 40.0, **gpu | {"runs_per_gpu": 2, "pack_mps": False})
    served = pack(2, 80.0, "m", **gpu | {"runs_per_gpu": 2, "pack_mps": True, "mps": True})
    plain, mps = curves([*alone, *shared, *served])
    assert [(size.runs, size.total) for size in plain.sizes] == [(1, 100), (2, 80)]
    assert [(size.runs, size.total) for size in mps.sizes] == [(1, 100), (2, 160)]
    assert mps.label.endswith(" · MPS")
    assert "2 runs on a GPU" in next(sentences(mps))


def test_runs_that_were_hardly_at_work_together_are_reported() -> None:
    apart = pack(2, 90.0)
    apart[0] |= {"worked_to": 5.0}
    (found,) = curves([*pack(1, 100.0), *apart])
    assert found.sizes[1].overlap == pytest.approx(5 / 7.5)
    assert "67\u202f% of their time" in list(sentences(found))[1]


def test_the_page_shows_sentences_and_the_table_and_nothing_without_packs() -> None:
    assert side_by_side.build(material(pack(1, 100.0))).parts == []
    points, figures, grid, _ = side_by_side.build(material(FALLS)).parts
    assert isinstance(points, BulletList)
    assert isinstance(figures, FigureRow)
    assert isinstance(grid, Table)
    assert grid.rows[1][1:] == ["2", "180", "1.80×", "90", "90\u202f%", "200", "1"]


def test_the_conclusion_points_to_packs_if_some_were_measured() -> None:
    def facts(rows: list[Any]) -> str:
        shown = group_configurations(rows)
        return " ".join(conclude(shown, {"completed": len(rows)}, judge(shown)).facts)

    assert TITLE in facts(FALLS)
    wide = pack(1, 130.0, "w", cpus_per_task=2)
    assert TITLE not in facts([*pack(1, 100.0), *wide])


def test_the_figure_is_there_where_there_is_a_curve() -> None:
    assert packing_figure(curves(pack(2, 50.0))) is None
    figure = packing_figure(curves(FALLS))
    assert figure.axes[0].get_ylim()[1] > 183
    names = [text.get_text() for text in figure.legends[0].get_texts()]
    assert names == [curve.label for curve in curves(FALLS)]
