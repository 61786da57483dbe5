"""Labels, medians, speed-up and alerts of configurations, against numbers worked by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import make_configurations
import pytest

from hpcncf.job.spec import Training
from hpcncf.table import Table
from hpcncf_analysis.configurations import (
    MAX_DRAWN,
    Configuration,
    commonest_values,
    figure_key,
    group_by_series,
    group_configurations,
    label_settings,
    number_rows,
    summarize_repeats,
    unsaid_values,
    varying_settings,
)
from hpcncf_analysis.formatting import (
    format_core_time,
    format_duration,
    format_number,
    format_percent,
    select_time_unit,
)
from hpcncf_analysis.quality import chance_margin
from hpcncf_analysis.report.alerts import find_alerts
from hpcncf_analysis.report.sections.compared import main_notes, main_table
from hpcncf_analysis.report.sections.efficiency import efficiency_against_speed
from hpcncf_analysis.report.sections.model_quality import quality_note
from hpcncf_analysis.report.sections.speed_up import speedup_figure


def row(loader: str = "vectorized", ranks: int = 1, cores: int = 1, **changes: Any) -> Any:
    """A completed run of `ranks` with `cores` each, 100 instances/s and 90 % efficiency."""
    rate = changes.get("instances_per_s", 100.0)
    seconds = 1000 / rate if rate else None
    plain = {
        "config": f"{loader}-{ranks}-{cores}-{changes.get('num_workers', 0)}",
        "state": "completed",
        "retired": False,
        "stale": None,
        "tasks_per_node": ranks,
        "cpus_per_task": cores,
        "world_size": ranks,
        "threads": cores,
        "loader": loader,
        "num_workers": 0,
        "batch": 256,
        "batch_size_per_rank": None,
        "cores_usable": float(ranks * cores),
        "commit": "abc",
        "slurm_differs": None,
        "elapsed_s": 100.0,
        "startup_s": 1.0,
        "instances_per_s": rate,
        "seconds_per_epoch": seconds,
        "core_s_per_epoch": seconds and ranks * cores * seconds,
        "hr10": 0.87,
        "unseen_test_rows": 150,
        "baseline_hr10": 0.9,
        "mem_gb": 2.0,
        "memory_efficiency": 400 / 2048,
        "memory_growth_mib": None,
    }
    return make_configurations.row(cores=ranks * cores) | plain | changes


def by_label(*rows: Any) -> dict[str, Configuration]:
    return {one.label: one for one in group_configurations(rows)}


def spread_of(values: Sequence[float | None]) -> tuple[float | None, ...]:
    """Median, low and high of one configuration's repeats."""
    known = summarize_repeats([{"loss": value} for value in values])
    return known.get("loss"), known.get("loss_low"), known.get("loss_high")


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([3.0, 1.0, 2.0], (2.0, 1.0, 3.0)),
        ([4.0, 1.0], (2.5, 1.0, 4.0)),
        ([7.0], (7.0, None, None)),  # one repeat has no interval
        ([None], (None, None, None)),  # a figure that a repeat lacks has no median
        ([None, 1.0, 2.0], (None, None, None)),
    ],
)
def test_repeats_have_a_median_and_an_interval(
    values: list[float | None], expected: tuple[float | None, ...]
) -> None:
    assert spread_of(values) == expected


def test_the_base_is_the_fewest_cores_of_the_same_series() -> None:
    shown = group_configurations(
        [
            row(cores=4, instances_per_s=320.0),
            row(cores=2, instances_per_s=200.0),
            row("per_sample", cores=1, instances_per_s=10.0),
            row("per_sample", ranks=2, instances_per_s=18.0),
        ]
    )
    found = {one.label: one for one in shown}
    assert found["4 cores · vectorized"].median("speedup") == 1.6
    assert found["4 cores · vectorized"].median("parallel_efficiency") == 0.8
    assert found["2 cores · vectorized"].median("speedup") == 1
    two_ranks = found["2 ranks × 1 core · per_sample"]
    assert two_ranks.median("parallel_efficiency") == pytest.approx(0.9)
    assert group_by_series(shown)["per_sample"][0].label == "1 core · per_sample"


def test_what_a_table_leaves_open_stands_under_it() -> None:
    quick = row("batched", cpu_efficiency_peak=None, peak_window_s=10.0)
    notes = " ".join(main_notes(group_configurations([row(cpu_efficiency_peak=1.0), quick])))
    assert "One run each" in notes
    assert "No peak where a run was shorter than its window, 10" in notes
    several = group_configurations([row(cpu_efficiency_peak=1.0), row(cpu_efficiency_peak=0.9)])
    notes = " ".join(main_notes(several))
    assert "Medians over 2 repeats" in notes
    assert "peak" not in notes
    several = group_configurations([row(), row(), row("batched")])
    assert main_notes(several)[0].startswith("Medians over up to 2 repeats")
    many = group_configurations([row(cores=cores) for cores in range(1, 31)])
    assert "numbers stand for the rows. The figures show the 24 fastest only." in " ".join(
        main_notes(many)
    )


def test_columns_of_a_group_stand_under_its_name() -> None:
    table = Table(["configuration", "cores: allocated", "cores: used", "loss"], [])
    assert table.groups == [("", 1), ("cores", 2), ("", 1)]
    assert table.names == ["configuration", "allocated", "used", "loss"]


def test_a_size_alone_in_its_series_has_no_speedup() -> None:
    alone = main_table(group_configurations([row(), row("batched")]))
    assert "speed-up" not in alone.columns
    pair = [row(), row(cores=2, instances_per_s=150.0), row("batched")]
    table = main_table(group_configurations(pair))
    gains = {cells[0]: cells[table.columns.index("speed-up")] for cells in table.rows}
    assert gains == {
        "1 core · batched": "–",
        "1 core · vectorized": "1.00×",
        "2 cores · vectorized": "1.50×",
    }


def test_hours_below_each_other_have_the_unit_in_which_the_least_can_be_read() -> None:
    assert select_time_unit([2.0, 0.0008, None, 0.0]) == ("s", 3600)
    assert select_time_unit([2.0, 0.1, 0.0, None]) == ("h", 1)


@pytest.mark.parametrize(
    ("show", "value", "text"),
    [
        (format_core_time, 4.39e-5, "0.158 core-s"),
        (format_core_time, 2.5, "2.5 core-h"),
        (format_core_time, 0.0, "0 core-s"),
        (format_core_time, None, "–"),
        (format_duration, None, "–"),
        (format_duration, 0.0, "0 s"),
        (format_duration, 0.0172, "17.2 ms"),
        (format_duration, 0.1, "0.1 s"),
        (format_duration, 12.34, "12.3 s"),
        (format_duration, 61.0, "61 s"),
        (format_duration, 130.0, "2:10 min"),
        (format_duration, 3700.0, "1 h 2 min"),
        (format_number, None, "–"),
        (format_number, 0.0, "0"),
        (format_number, 4.39e-5, "0.0000439"),
        (format_number, 0.0314, "0.0314"),
        (format_number, 12.36, "12.4"),
        (format_number, 123.4, "123"),
        (format_number, 96_123.4, "96,100"),
        (format_percent, -0.002, "0 %"),
        (format_percent, -0.02, "-2 %"),
    ],
)
def test_figures_are_readable(
    show: Callable[[float | None], str], value: float | None, text: str
) -> None:
    assert show(value).replace("\u202f", " ") == text


def test_repeats_become_one_configuration_with_the_median() -> None:
    (one,) = group_configurations([row(instances_per_s=rate) for rate in (90.0, 100.0, 140.0)])
    assert one.median("instances_per_s") == 100
    assert one.figures["instances_per_s_high"] == 140
    assert main_table([one]).rows[0][1] == "100\n[90–140]"


@pytest.mark.parametrize("changes", [{"state": "failed"}, {"state": "running"}, {"retired": True}])
def test_only_completed_runs_that_are_still_asked_for_count(changes: dict[str, Any]) -> None:
    assert group_configurations([row(**changes)]) == []


@pytest.mark.parametrize(
    ("changes", "label"),
    [
        ({}, "1 core · vectorized"),
        ({"cpus_per_task": 4, "threads": 4}, "4 cores · vectorized"),
        ({"cpus_per_task": 4, "threads": 1}, "4 cores · 1 thread · vectorized"),
        ({"tasks_per_node": 2, "world_size": 2}, "2 ranks × 1 core · vectorized"),
        (
            {"nodes": 2, "tasks_per_node": 2, "world_size": 4},
            "2 nodes × 2 ranks × 1 core · vectorized",
        ),
        ({"gpus_per_node": 1}, "1 core + 1 GPU · vectorized"),
        ({"loader": "batched", "num_workers": 2}, "1 core · batched · 2 workers"),
    ],
)
def test_a_label_names_cores_ranks_threads_loader_and_workers(
    changes: dict[str, Any], label: str
) -> None:
    assert list(by_label(row(**changes))) == [label]


@pytest.mark.parametrize(
    ("name", "values", "words"),
    [
        ("batch", (256, 1024), {"batch 256", "batch 1024"}),
        ("launcher", ("srun", "torchrun"), {"launcher srun", "launcher torchrun"}),
    ],
)
def test_a_label_names_what_else_varies(
    name: str, values: tuple[Any, Any], words: set[str]
) -> None:
    found = by_label(*(row(config=str(value), **{name: value}) for value in values))
    assert set(found) == {f"1 core · vectorized · {word}" for word in words}


def test_other_data_is_another_series_and_a_batch_that_follows_the_ranks_is_not() -> None:
    data = [
        row(config=str(cores), cores=cores, data_key=f"{cores}" * 64, data_title=None)
        for cores in (1, 2)
    ]
    series = [one.series for one in group_configurations(data)]
    assert series == ["vectorized · data 11111111", "vectorized · data 22222222"]
    batches = [row(ranks=n, batch=256 * n, batch_size_per_rank=256) for n in (1, 2)]
    assert {one.series for one in group_configurations(batches)} == {"vectorized"}


def test_many_configurations_are_named_by_number() -> None:
    few = group_configurations([row(cores=cores) for cores in range(1, 13)])
    many = group_configurations([row(cores=cores) for cores in range(1, 15)])
    assert list(figure_key(few).values()) == [one.label for one in few]
    assert list(number_rows(few).values()) == list(figure_key(few))
    assert figure_key(many) == {}
    assert list(number_rows(many).values()) == list(range(1, 15))
    crowd = group_configurations(
        [row(cores=cores, instances_per_s=100.0 + cores) for cores in range(1, 41)]
    )
    assert len(number_rows(crowd)) == MAX_DRAWN
    assert 40 in number_rows(crowd).values(), "the fastest"
    table = main_table(many)
    assert table.rows[9][0] == "10: 10 cores · vectorized"


def test_two_standard_errors_by_hand() -> None:
    """Both 0.5 of 200: sqrt(0.00125 + 0.00125) = 0.05, twice that is 0.1."""
    one, other = group_configurations(
        [row(hr10=0.5, test_rows=200), row("batched", hr10=0.5, test_rows=200)]
    )
    assert chance_margin(one, other) == pytest.approx(0.1)
    unknown = group_configurations([row(test_rows=None)])[0]
    assert chance_margin(one, unknown) is None


def command(text: str, cores: int = 2, name: str | None = None, **changes: Any) -> Any:
    """A recorded command of 100 s that used 1 core; by default it bears no name but its own."""
    plain = {
        "workload": "command",
        "by_hand": True,
        "command": text,
        "varied": {"run.command": name or text},
        "config": f"{text}-{cores}",
        "loader": None,
        "num_workers": None,
        "instances_per_s": None,
        "hr10": None,
        "cores_used": 1.0,
        "cpu_efficiency": 1 / cores,
    }
    return row(cores=cores, **(plain | changes))


def test_commands_that_begin_alike_are_no_series() -> None:
    long = "python train.py --with-a-very-long-list-of-options "
    shown = group_configurations([command(long + "1"), command(long + "2", cores=4)])
    assert len({one.series for one in shown}) == 2
    assert speedup_figure(shown) is None
    assert efficiency_against_speed(shown) is None


def test_a_command_with_remedies_is_a_series_of_its_own() -> None:
    """And its label has all of them, as --with has them."""
    long = "rowwise,workers=4,persistent_workers"
    asked = [None, f"{long},fused", f"{long},foreach"]
    shown = group_configurations(
        command("python train.py", cores, remedies=each, config=f"{each}-{cores}")
        for each in asked
        for cores in (1, 2)
    )
    assert len({one.series for one in shown}) == 3
    assert {one.label for one in shown if one.cores == 2} == {
        "2 cores · python train.py",
        *(f"2 cores · {each} · python train.py" for each in asked[1:]),
    }


def warned(*rows: Any) -> str:
    return "\n".join(find_alerts(rows, group_configurations(rows)))


@pytest.mark.parametrize(
    ("rows", "words_in_it"),
    [
        ([row(cores=5, cores_usable=1.0)], "allocated 5 and could use 1"),
        ([row(cpu_efficiency=1.3)], "130"),
        ([row(), row(cpu_model="Other CPU")], "different CPU models"),
        ([row(), row(commit="def")], "different code"),
        ([row(stale="made by other code")], "made by other code"),
        (
            [row(memory_peak_mib=324.0, mem_gb=0.05, memory_efficiency=6.33)],
            "mem_gb: 0.05, run 0123456789ab): nothing held it to that here",
        ),
        ([row(startup_s=50.0)], "Start-up takes up to 50"),
        ([row(cores=2, others_cores=1.5)], "1.5 of 2 cores"),
        ([row()], "ran once"),
    ],
)
def test_what_makes_figures_worth_less_is_said(rows: list[Any], words_in_it: str) -> None:
    assert words_in_it in warned(*rows)


def test_quiet_repeated_runs_raise_no_alert() -> None:
    assert warned(row(), row(), row()) == ""


def test_the_data_sets_weakness_is_said_only_where_it_shows() -> None:
    note = quality_note([row()])
    assert note is not None
    assert "77" in note
    assert "already does better" in note
    assert quality_note([row(unseen_test_rows=600)]) is None
    assert quality_note([row(unseen_test_rows=None)]) is None
    better = quality_note([row(baseline_hr10=0.5)])
    assert better is not None
    assert "already does better" not in better


def settings(**changes: Any) -> dict[str, Any]:
    return {"by_hand": False, "batch": 256} | Training().model_dump() | changes


def words(rows: Sequence[dict[str, Any]], unsaid: Any = None) -> list[str]:
    varying = varying_settings(rows)
    said = unsaid(rows, varying) if unsaid else None
    return [" · ".join(label_settings(each, varying, said).values()) for each in rows]


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"compile": "torchscript"}, "compile torchscript"),
        ({"precision": "bfloat16"}, "precision bfloat16"),
        ({"accumulate": 3}, "accumulate 3"),
        ({"pin_memory": True}, "pin memory true"),
        ({"sync": "local_sgd", "sync_every": 4}, "sync local_sgd · sync every 4"),  # gone
    ],
)
def test_a_setting_that_differs_and_acts_has_its_place_in_a_label(changes: Any, word: str) -> None:
    _, other = words([settings(), settings(**changes)])
    assert other.endswith(word)


def test_long_lists_that_begin_alike_have_labels_of_their_own() -> None:
    long = [1024, 1000, 512, 512, 256, 128, 64, 32]
    rows = [settings(layers=[*long, last]) for last in (16, 8)]
    assert words(rows)[0] == "vectorized · layers 1024-1000-512-512-256-128-64-32-16"
    assert len(set(words(rows))) == 2


def test_of_many_settings_a_label_names_those_of_its_own() -> None:
    changes: list[dict[str, Any]] = [
        {"adam": "fused"},
        {"compile": "inductor"},
        {"precision": "bfloat16"},
        {"accumulate": 4},
        {"sparse": True},
        {"engine": "native"},
    ]
    rows = [settings(), *(settings(**each) for each in changes)]
    labels = words(rows, commonest_values)
    assert labels[:2] == ["vectorized", "vectorized · adam fused"]
    assert len(set(labels)) == len(rows)
    assert commonest_values(rows[:3], varying_settings(rows[:3])) == {}


def test_a_label_leaves_the_baselines_values_unsaid() -> None:
    usual = settings(adam="fused")
    rows = [settings(baseline=True), settings(pin_memory=True), usual, usual]
    assert words(rows, unsaid_values)[:2] == ["vectorized", "vectorized · pin memory true"]
