"""Strong and weak scaling, quality and cost as the report says them, worked by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_configurations import row

from hpcncf.table import Table
from hpcncf_analysis.configurations import group_configurations, karp_flatt
from hpcncf_analysis.quality import describe_time_to_quality, time_to_target, times_to_quality
from hpcncf_analysis.report.sections.model_quality import time_to_quality_table
from hpcncf_analysis.report.sections.speed_up import (
    cost_table,
    speedup_figure,
    strong_table,
    weak_table,
)
from hpcncf_analysis.scaling import (
    comparison_cautions,
    comparison_doubts,
    describe_peaks,
    law_note,
    law_table,
    lines_to_fit,
    scaling_lines,
    weak_scaling,
)
from hpcncf_analysis.usl import Law, relative_speed


def cells(table: Table | None, label: str) -> dict[str, str]:
    """A row of the table, by its columns."""
    (found,) = [each for each in table.rows if each[0] == label]
    return dict(zip(table.columns, found, strict=True))


def ranked(ranks: int, rate: float, **changes: Any) -> dict[str, Any]:
    """So many ranks of one core."""
    return row(ranks=ranks, instances_per_s=rate, **changes)  # type: ignore[no-any-return]


def generated(sigma: float, kappa: float, sizes: Sequence[int] = (1, 2, 4, 8)) -> list[Any]:
    """Runs made from a known law: nobody measured them. Repeats 1 % apart."""
    return [
        ranked(size, 1000 * relative_speed(size, sigma, kappa) * factor, config=f"{size}")
        for size in sizes
        for factor in (0.99, 1.0, 1.01)
    ]


@pytest.mark.parametrize(
    ("speedup", "more", "share"),
    [(3.0, 4.0, 1 / 9), (4.0, 4.0, 0.0), (1.0, 4.0, 1.0), (5.0, 4.0, -1 / 15), (1.0, 1.0, None)],
)
def test_karp_flatts_serial_share_by_hand(speedup: float, more: float, share: float | None) -> None:
    """3 times as fast on 4 cores: (1/3 - 1/4) / (1 - 1/4) = 1/9."""
    assert karp_flatt(speedup, more) == pytest.approx(share)


@given(st.floats(0, 1), st.integers(2, 64))
def test_karp_flatt_finds_amdahls_serial_share(serial: float, cores: int) -> None:
    assert karp_flatt(relative_speed(cores, serial, 0.0), cores) == pytest.approx(serial, abs=1e-9)


def test_strong_scaling_names_its_base_and_has_an_interval() -> None:
    """Two ranks 150 of 100: 75 %; repeats 90 to 110 and 150 to 160 leave 1.36 to 1.78 times."""
    rows = [ranked(1, rate, config="a") for rate in (90.0, 100.0, 110.0)]
    rows += [ranked(2, rate, config="b") for rate in (150.0, 150.0, 160.0)]
    seen = cells(strong_table(group_configurations(rows)), "2 ranks × 1 core · vectorized")
    assert seen["against"] == "1 core · vectorized"
    assert seen["speed-up"] == "1.50×\n[1.36×–1.78×]"
    assert seen["parallel efficiency"] == "75\u202f%\n[68\u202f%–89\u202f%]"
    assert seen["serial share (Karp-Flatt)"] == "33\u202f%\n[12\u202f%–47\u202f%]"
    assert seen["caution"] == ""


def test_a_series_of_one_size_does_not_scale() -> None:
    alone = group_configurations([row(), row("batched")])
    assert strong_table(alone) is None
    assert weak_table(alone) is None
    assert law_table(alone) is None
    assert law_note(alone) is None


@pytest.mark.parametrize(
    ("changes", "caution"),
    [
        ({"cpu_model": "Other CPU"}, "different CPU models (Other CPU against Example CPU)"),
        ({"hr10": 0.6}, "unequal quality (HR@10 0.600 against 0.870)"),
        ({"hr10": None}, "the quality of one of them was not evaluated"),
        ({"cpu_model": None}, ""),
        ({"gpu_model": "H200"}, ""),
        ({"hr10": 0.86}, ""),
    ],
)
def test_what_does_not_compare_is_never_compared_without_a_word(
    changes: dict[str, Any], caution: str
) -> None:
    shown = group_configurations([row(), ranked(2, 150.0, **changes)])
    seen = cells(strong_table(shown), "2 ranks × 1 core · vectorized")
    assert seen["caution"] == caution


def test_gpus_of_two_models_and_repeats_on_two_cpus_are_cautions_too() -> None:
    base, one = group_configurations([row(gpu_model="H200"), ranked(2, 150.0, gpu_model="A100")])
    assert comparison_cautions(one, base) == ["different GPU models (A100 against H200)"]
    (one,) = group_configurations([row(), row(cpu_model="Other CPU")])
    assert "Example CPU and Other CPU" in " ".join(comparison_cautions(one, one))


def test_doubts_stand_above_the_figures() -> None:
    rows = [row(), ranked(2, 150.0, hr10=0.5)]
    (quality,) = comparison_doubts(group_configurations(rows))
    assert quality.startswith("1 speed-up compare models of unequal quality, as 2 ranks")
    assert comparison_doubts(group_configurations([row(), ranked(2, 150.0)])) == []


def test_data_that_grows_with_the_cores_is_weak_scaling() -> None:
    """Twice the epoch on 2 cores in 12.5 s instead of 10: 80 %, and 1.6 times the work a second."""
    rows = [
        row(config="a", data_key="1" * 64, instances_per_epoch=1000, seconds_per_epoch=10.0),
        ranked(2, 160.0, config="b", data_key="2" * 64, instances_per_epoch=2000),
    ]
    (found,) = weak_scaling(group_configurations(rows))
    assert found.work == "epoch"
    assert (found.work_ratio, found.time_ratio) == (2, 1.25)
    assert found.efficiency == pytest.approx(0.8)
    seen = cells(
        weak_table(group_configurations(rows)),
        "2 ranks × 1 core · vectorized · data 22222222",
    )
    assert seen["work that grows"] == "an epoch's, with the data"
    assert seen["weak efficiency"] == "80\u202f%"


def test_a_batch_that_grows_with_the_ranks_is_weak_scaling_of_a_step() -> None:
    """An epoch's work stays: that is strong scaling still, and said beside it."""
    rows = [
        ranked(ranks, rate, batch=256 * ranks, batch_size_per_rank=256, instances_per_epoch=1000)
        for ranks, rate in ((1, 100.0), (2, 150.0), (4, 200.0))
    ]
    shown = group_configurations(rows)
    two, four = weak_scaling(shown)
    assert [each.work for each in (two, four)] == ["step", "step"]
    assert four.base.label == "1 core · vectorized · batch 256"
    assert (four.work_ratio, four.time_ratio, four.speedup) == (4, 2, 2)
    assert (two.efficiency, four.efficiency) == (0.75, 0.5)
    assert strong_table(shown) is not None


@pytest.mark.parametrize(
    "changes",
    [
        {"batch": 256},
        {"batch": 600},
        {"loader": "batched"},
        {"data_key": "2" * 64},
        {"instances_per_s": None},
    ],
)
def test_other_work_is_no_weak_scaling(changes: dict[str, Any]) -> None:
    first = row(config="a", data_key="1" * 64, batch=256, instances_per_epoch=1000)
    plain = {"data_key": "1" * 64, "batch": 512, "instances_per_epoch": 1000}
    rows = [first, row(ranks=2, config="b", **(plain | changes))]
    assert weak_scaling(group_configurations(rows)) == []


def test_a_line_grows_in_one_way_and_holds_each_size_once() -> None:
    rows = [
        row(),
        row(cores=2, config="two cores"),
        row(ranks=2, config="two ranks"),
        row(ranks=2, cores=2, config="both"),
        row(cores=2, threads=1, config="two cores, a thread"),
        row(ranks=2, nodes=2, tasks_per_node=1, config="two nodes"),
    ]
    found = {line.name: line for line in scaling_lines(group_configurations(rows))}
    assert set(found) == {
        "1 to 2 ranks × 1 core · vectorized",
        "1 to 2 ranks × 2 cores · vectorized",
        "1 to 2 cores · vectorized",
        "2 ranks × 1 to 2 cores · vectorized",
    }
    ranks = found["1 to 2 ranks × 1 core · vectorized"]
    assert [one.key for one in ranks.points] == ["vectorized-1-1-0", "two ranks"]
    assert [one.key for one in ranks.left_out] == ["two nodes"]
    assert [one.key for one in found["1 to 2 cores · vectorized"].points][1] == "two cores"


def test_generated_runs_of_a_known_law_show_its_parameters() -> None:
    """sigma 0.1, kappa 0.01: N* = sqrt(0.9 / 0.01) = 9.49."""
    shown = group_configurations(generated(0.1, 0.01))
    seen = cells(law_table(shown), "1 to 8 ranks × 1 core · vectorized")
    assert seen["serial share σ"].startswith("10\u202f%\n[")
    assert seen["crosstalk κ"].startswith("0.01\n[")
    assert seen["fastest size N*"].startswith("9.49\n[")
    assert seen["used up to"] == "32 ranks"
    (peak,) = describe_peaks(shown)
    assert peak.startswith("1 to 8 ranks × 1 core · vectorized: fastest at 9.49 [")
    assert peak.endswith("] ranks by the USL, beyond the 8 measured; more makes it slower.")
    assert seen["caution"] == ""
    usl = scaling_lines(shown)[0].fit()
    assert isinstance(usl, Law)
    assert usl.interval(16) is not None


@pytest.mark.parametrize(("sizes", "bands"), [((1, 2, 4, 8), 1), ((1, 2, 4), 0)])
def test_a_law_is_drawn_only_where_it_was_fitted(sizes: Sequence[int], bands: int) -> None:
    drawn = speedup_figure(group_configurations(generated(0.1, 0.01, sizes)))
    (axes,) = drawn.axes
    assert len(axes.collections) == bands


def test_a_law_over_two_cpu_models_says_so() -> None:
    runs = [each | {"cpu_model": "Other"} for each in generated(0.1, 0.01, sizes=(8,))]
    shown = group_configurations([*generated(0.1, 0.01, sizes=(1, 2, 4)), *runs])
    seen = cells(law_table(shown), "1 to 8 ranks × 1 core · vectorized")
    assert seen["caution"] == "different CPU models (Other against Example CPU)"


def test_no_fastest_size_is_reported_where_speed_still_grows() -> None:
    shown = group_configurations(generated(0.1, 0.0))
    seen = cells(law_table(shown), "1 to 8 ranks × 1 core · vectorized")
    assert seen["fastest size N*"] == "none up to 32"
    assert describe_peaks(shown) == []
    assert seen["serial share σ"].startswith("10\u202f%")


def test_a_peak_that_some_resamples_do_not_have_is_open() -> None:
    """N* = sqrt(0.9 / 0.001) = 30, just within the 32 that the law is used up to."""
    (peak,) = describe_peaks(group_configurations(generated(0.1, 0.001)))
    assert "open whether speed peaks: at 30 [" in peak
    assert "–beyond 32] ranks by the USL" in peak
    assert "more makes it slower" not in peak


def test_too_few_sizes_are_refused_with_the_reason() -> None:
    shown = group_configurations(generated(0.1, 0.0, sizes=(1, 2)))
    assert law_table(shown) is None
    assert law_note(shown) == (
        "No law is fitted: one needs 4 sizes or more along one line (more ranks, or more cores for "
        "each), and 2 were measured at most."
    )
    longer = [*generated(0.1, 0.0), *(row("batched", cores=cores) for cores in (1, 2))]
    assert law_note(group_configurations(longer)) == ("No law is fitted to 1 further line.")


def test_speeds_of_no_law_are_refused_by_name() -> None:
    wild = [ranked(size, rate) for size, rate in ((1, 1.0), (2, 4.0), (4, 1.0), (8, 4.0))]
    note = law_note(group_configurations(wild))
    assert note.startswith("No law of 1 to 8 ranks × 1 core · vectorized: the measurements do not")
    assert law_table(group_configurations(wild)) is None


def test_of_a_large_grid_the_longest_lines_have_laws() -> None:
    grid = [
        row(ranks=ranks, cores=cores, instances_per_s=100.0 * ranks * cores)
        for ranks in (1, 2, 3, 4, 5)
        for cores in range(1, 10)
    ]
    found = scaling_lines(group_configurations(grid))
    kept = lines_to_fit(found)
    assert (len(found), len(kept)) == (14, 12)
    assert [len(line.points) for line in kept] == [9] * 5 + [5] * 7


def epochs(run_id: str, *hr10: float | None) -> list[dict[str, Any]]:
    """Epochs of 10 s and half a second of evaluation."""
    times = {"training_s": 10.0, "evaluation_s": 0.5, "checkpoint_s": 0.0}
    return [{"run_id": run_id, "hr10": each, **times} for each in hr10]


def test_time_to_quality_counts_epochs_and_their_evaluation() -> None:
    assert time_to_target(epochs("a", 0.7, None, 0.86, 0.9), 0.85) == (31.5, 3)
    assert time_to_target(epochs("a", 0.7, 0.84), 0.85) is None
    assert time_to_target([], 0.85) is None


def test_a_run_that_never_reaches_the_target_counts_as_longer_than_any() -> None:
    rows = [row(run_id=name) for name in "abc"]
    seen = epochs("a", 0.86) + epochs("b", 0.7, 0.86) + epochs("c", 0.7, 0.7)
    (found,) = times_to_quality(group_configurations(rows), seen, 0.85)
    assert (found.seconds, found.low, found.high) == (21.0, 10.5, None)
    assert (found.reached, found.runs, found.epochs) == (2, 3, 2)
    assert found.core_hours == pytest.approx(21 / 3600)
    seen = cells(time_to_quality_table([found]), "1 core · vectorized")
    assert seen["time to quality"] == "21\u202fs\n[10.5\u202fs–never]"
    assert seen["runs that reached it"] == "2 of 3"
    assert describe_time_to_quality([found], 0.85) == (
        "HR@10 0.85: 1 core · vectorized gets there first, after 21\u202fs of training and "
        "evaluation; 1 of 3 runs never."
    )


def test_most_runs_that_never_arrive_have_no_time() -> None:
    rows = [row(run_id=name) for name in "abc"]
    seen = epochs("a", 0.86) + epochs("b", 0.7) + epochs("c", 0.7)
    (found,) = times_to_quality(group_configurations(rows), seen, 0.85)
    assert found.seconds is None
    assert cells(time_to_quality_table([found]), "1 core · vectorized")["time to quality"] == (
        "most never"
    )
    assert (
        describe_time_to_quality([found], 0.85) == "HR@10 0.85: 1 of 3 runs reached it; no median."
    )
    assert times_to_quality(group_configurations(rows), epochs("a", None), 0.85) == []
    assert describe_time_to_quality([], 0.85).startswith("No run evaluated HR@10")


def test_an_epochs_cost_in_core_hours_and_gpu_hours() -> None:
    plain = row(core_h_per_epoch=0.5, core_hours=2.0, gpu_hours=0.0, gpu_h_per_epoch=0.0)
    table = cost_table(group_configurations([plain]))
    assert cells(table, "1 core · vectorized")["an epoch: core-h"] == "0.5"
    assert "the run: GPU-h" not in (table.columns if table else [])
    short = row(core_h_per_epoch=0.0008, core_hours=0.15, core_h_per_epoch_low=0.0007)
    seen = cells(cost_table(group_configurations([short])), "1 core · vectorized")
    assert (seen["an epoch: core-s"], seen["the run: core-h"]) == ("2.88", "0.15")
    with_gpu = row(gpu_hours=1.5, gpu_h_per_epoch=0.25)
    seen = cells(cost_table(group_configurations([with_gpu])), "1 core · vectorized")
    assert seen["the run: GPU-h"] == "1.5"
    assert cost_table(group_configurations([row(seconds_per_epoch=None)])) is None
