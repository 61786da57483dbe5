"""Two runs or studies: matched by settings, separated from chance, and a check's exit code."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import make_results
import pytest
from hypothesis import strategies as st

from hpcncf import cli
from hpcncf.job.expand import expand_job
from hpcncf.job.identity import configuration_id
from hpcncf.job.spec import JobSpec
from hpcncf.paths import ResultPaths
from hpcncf_analysis.compare import (
    Comparison,
    Side,
    below,
    changed_environment,
    compare,
    find_moved_phase,
    pairs_table,
    side_from_results,
)

VECTORIZED: list[dict[str, Any]] = [
    {"resources.cpus_per_task": cpus, "training.loader": "vectorized"} for cpus in (1, 2)
]
SPEEDS = st.lists(st.floats(0.01, 1e6), min_size=1, max_size=6)
Edit = Callable[[dict[str, Any]], object]


def study(folder: Path, repeats: int = 3, change: Edit | None = None, **more: Any) -> ResultPaths:
    """A finished study; `change` is made to each of its records."""
    paths = make_results.demo(folder, repeats, **{"points": VECTORIZED, **more})
    make_results.complete(paths)
    if change:
        edit(paths, change)
    return paths


def faster(factor: float) -> Edit:
    return lambda record: record["training"].update(
        counted_s=record["training"]["counted_s"] / factor
    )


def edit(paths: ResultPaths, change: Edit) -> None:
    for path in paths.folder.glob("runs/*/attempt-1/rank-*.json"):
        record = json.loads(path.read_text())
        change(record)
        path.write_text(json.dumps(record))


def compared(a: ResultPaths, b: ResultPaths) -> Comparison:
    return compare(side_from_results("a", a), side_from_results("b", b))


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> ResultPaths:
    """Two configurations, three repeats each."""
    return study(tmp_path_factory.mktemp("before"))


@pytest.fixture(scope="module")
def slower(tmp_path_factory: pytest.TempPathFactory) -> ResultPaths:
    """The same at 0.8 of the speed."""
    return study(tmp_path_factory.mktemp("slower"), change=faster(0.8))


def test_a_study_against_itself_changed_nothing(before: ResultPaths) -> None:
    found = compared(before, before)
    assert (found.settings, found.environment, found.only_a) == ([], [], [])
    assert [pair.ratio.value for pair in found.pairs] == [1, 1]
    assert not found.failures(0.05)


def test_a_slower_study_is_called_so_and_nothing_else_changed(
    before: ResultPaths, slower: ResultPaths
) -> None:
    found = compared(before, slower)
    assert [pair.ratio.verdict for pair in found.pairs] == ["slower", "slower"]
    assert found.overall
    assert found.overall.value == pytest.approx(0.8)
    assert (len(found.failures(0.05)), found.failures(0.25)) == (3, [])
    assert [pair.label for pair in found.pairs] == ["1 core · vectorized", "2 cores · vectorized"]


def test_settings_that_differ_are_the_change_and_the_rest_matches(
    before: ResultPaths, tmp_path: Path
) -> None:
    found = compared(before, study(tmp_path, training={"engine": "rowwise"}))
    assert list(map(str, found.settings)) == ["engine: reference → rowwise"]
    assert len(found.pairs) == 2


def test_the_phase_that_made_the_difference_is_named_and_what_one_side_lacks(
    before: ResultPaths, tmp_path: Path
) -> None:
    """Vectorised: forward takes 0.29 of 1/96,000 s, and twice as much once all takes 1.29."""

    def slow_forward(record: dict[str, Any]) -> None:
        part = record["training"]
        part["counted_s"] += part["phases"]["forward_s"]
        part["phases"]["forward_s"] *= 2

    found = compared(before, study(tmp_path, change=slow_forward, points=VECTORIZED[:1]))
    (pair,) = found.pairs
    assert pair.moved
    assert pair.moved.phase == "forward"
    assert pair.moved.a_us == pytest.approx(0.29 / 96_000 * 1e6)
    assert pair.moved.b_us == pytest.approx(2 * pair.moved.a_us)
    text = "\n".join(below(found))
    assert "slower most of all in forward, 3.02 → 6.04" in text
    assert "only in A: 2 cores · vectorized" in text


def test_a_program_has_the_phases_that_the_probe_saw() -> None:
    class Seen:
        def __init__(self, **figures: float) -> None:
            self.median = figures.get

    first = Seen(instances_per_s=1000.0, input_share=0.8, forward_share=0.2)
    second = Seen(instances_per_s=2000.0, input_share=0.6, forward_share=0.4)
    found = find_moved_phase(first, second)  # type: ignore[arg-type]
    assert found
    assert (found.phase, found.a_us, found.b_us) == ("input", 800.0, pytest.approx(300.0))


def test_another_machine_and_other_software_are_listed_and_the_processor_warned_of(
    before: ResultPaths, tmp_path: Path
) -> None:
    new = {"cpu_model": "Other CPU", "torch": "9.9", "commit": "fff0000", "dirty": True}

    def elsewhere(record: dict[str, Any]) -> None:
        record["environment"].update(new)
        record["node"] = "node9"

    found = compared(before, study(tmp_path, change=elsewhere))
    assert list(map(str, found.environment)) == [
        "torch: none → 9.9",
        "cpu_model: Example CPU 2.0 GHz → Other CPU",
        "commit: abc1234 → fff0000 and changes",
        "nodes: node1 → node9",
    ]
    assert "different CPU models" in found.cautions[0]
    assert "no commit holds" in found.cautions[1]


def test_variables_of_a_runs_place_are_no_change() -> None:
    """Ports and job numbers differ between any two runs."""
    a = {"variables": {"MASTER_PORT": "1", "SLURM_JOB_ID": "7", "OMP_NUM_THREADS": "1"}}
    b = {"variables": {"MASTER_PORT": "2", "SLURM_JOB_ID": "8", "OMP_NUM_THREADS": "4"}}
    sides = [Side("", [], [each], 0) for each in (a, b)]
    assert list(map(str, changed_environment(*sides))) == ["OMP_NUM_THREADS: 1 → 4"]


def test_a_worse_model_fails_the_check_however_fast(before: ResultPaths, tmp_path: Path) -> None:
    def worse(record: dict[str, Any]) -> None:
        faster(2.0)(record)
        for epoch in record["training"]["epochs"]:
            epoch["hr10"] = 0.4

    found = compared(before, study(tmp_path, change=worse))
    assert [pair.quality for pair in found.pairs] == ["worse", "worse"]
    assert found.failures(0.05) == [f"{pair.label}: HR@10 is worse" for pair in found.pairs]
    assert pairs_table(found).rows[0][-1] == "0.802 → 0.400, worse"


def test_qualities_of_other_candidates_are_not_compared(
    before: ResultPaths, tmp_path: Path
) -> None:
    found = compared(before, study(tmp_path, training={"evaluation": "full"}))
    assert [pair.quality for pair in found.pairs] == ["not compared", "not compared"]


PINNED = (
    "training.pin_memory has no effect: it is for copies to a GPU, and this run trains on a CPU"
)


def test_a_setting_that_cannot_act_is_not_compared(before: ResultPaths, tmp_path: Path) -> None:
    def pinned(record: dict[str, Any]) -> None:
        faster(1.25)(record)
        record["warnings"].append(PINNED)

    other = study(tmp_path, change=pinned, training={"pin_memory": True})
    found = compared(before, other)
    assert [change.name for change in found.settings] == ["pin_memory"]
    assert {pair.ratio.verdict for pair in found.pairs} == {"no effect"}
    assert PINNED in found.cautions
    assert compared(other, before).failures(0.05) == []


def test_seeds_are_repeats(tmp_path: Path) -> None:
    sides = [
        study(tmp_path / name, 1, points=[{"training.seed": seed} for seed in seeds])
        for name, seeds in {"a": (1, 2, 3), "b": (4, 5, 6)}.items()
    ]
    found = compared(*sides)
    assert [(len(pair.a.rows), pair.label) for pair in found.pairs] == [(3, "1 core · vectorized")]
    assert found.pairs[0].ratio.verdict == "no significant difference"


def test_a_commands_seed_is_a_repeat_and_its_other_parameters_are_not() -> None:
    workload = {"command": ["train", "{lr}", "{seed}"]}
    grid = {"parameters.lr": [1, 2], "parameters.seed": [1, 2, 3]}
    job = JobSpec.model_validate({"name": "a", "workload": workload, "grid": grid})
    runs = expand_job(job).runs
    assert (len(runs), len({configuration_id(run) for run in runs})) == (6, 2)


def command(folder: Path, elapsed_s: float, **reported: Any) -> ResultPaths:
    paths = make_results.command_plan(folder)
    (run,) = make_results.plan_of(paths).runs
    make_results.leave(paths, run, training=None)
    end = (make_results.START + timedelta(seconds=elapsed_s)).isoformat()
    edit(paths, lambda record: record.update(ended_at=end, reported=reported))
    return paths


def test_commands_are_compared_by_their_time_and_their_metrics_shown(tmp_path: Path) -> None:
    a = command(tmp_path / "a", 100.0, accuracy=0.91, stage="one")
    found = compared(a, command(tmp_path / "b", 50.0, accuracy=0.5, stage="two"))
    assert found.speed_of == "runs_per_hour"
    assert found.pairs[0].ratio.value == pytest.approx(2)
    assert pairs_table(found).rows[0][1:3] == ["1:40\u202fmin", "50\u202fs"]
    assert found.pairs[0].metrics == [("accuracy", 0.91, 0.5)]
    assert any("reported accuracy 0.91 → 0.5" in line for line in below(found))
    assert not found.failures(0.05)


def test_remedies_are_a_setting_and_a_run_ended_early_is_compared_by_its_steps(
    tmp_path: Path,
) -> None:
    whole = side_from_results("a", command(tmp_path, 60.0))
    a = {**whole.rows[0], "steps_per_s": 10.0}
    b = {**a, "remedies": "rowwise", "steps_per_s": 30.0, "elapsed_s": None, "state": "cancelled"}
    found = compare(replace(whole, rows=[a]), replace(whole, rows=[b]))
    assert [str(each) for each in found.settings] == ["remedies: none → rowwise"]
    assert found.pairs[0].ratio.value == pytest.approx(3)
    assert pairs_table(found).rows[0][1:3] == ["10 steps/s", "30 steps/s"]


@pytest.mark.parametrize(
    ("repeats", "factor", "code", "word"),
    [(3, 0.8, 4, "FAILED"), (3, 0.97, 0, "held"), (1, 0.8, 3, "OPEN"), (1, 1.2, 0, "held")],
)
def test_the_exit_code_is_a_checks(
    repeats: int,
    factor: float,
    code: int,
    word: str,
    before: ResultPaths,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Two configurations of one repeat each are not enough: open."""
    words = ["compare", str(before.folder), str(study(tmp_path, repeats, faster(factor)).folder)]
    assert cli.main([*words, "--threshold", "0.05"]) == code
    assert word in capsys.readouterr().out
    assert cli.main(words) == 0


def test_a_run_is_named_by_id_or_folder_and_brings_its_repeats_if_asked(
    before: ResultPaths, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two configurations of one study: the second core brings 1/8."""
    plan = make_results.plan_of(before).runs
    one, two = (next(run.id for run in plan if run.resources.cores == n) for n in (1, 2))
    words = ["compare", str(before.run(one).folder), two[:8], "--results", str(before.folder)]
    assert cli.main(words) == 0
    assert "too few repeats" in capsys.readouterr().out
    assert cli.main([*words, "--repeats"]) == 0
    out = capsys.readouterr().out
    for text in ("cpus_per_task: 1 → 2", "3 runs", "faster"):
        assert text in out


def test_markdown_is_one_table_and_json_the_same_figures(
    before: ResultPaths, slower: ResultPaths, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["compare", str(before.folder), str(slower.folder), "--threshold", "0.1"]
    assert cli.main([*words, "--markdown"]) == 4
    text = capsys.readouterr().out
    assert text.startswith("**FAILED: 1 core · vectorized is slower: 0.800x**")
    table = [line for line in text.splitlines() if line.startswith("|")]
    assert [line.count("|") for line in table] == [7] * (2 + 3)
    assert cli.main([*words, "--json"]) == 4
    plain = json.loads(capsys.readouterr().out)
    assert plain["configurations"][0]["speed"]["value"] == pytest.approx(0.8)
    assert len(plain["failures"]) == 3


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nowhere/a", "nowhere/b"], "expected a results folder"),
        (["no-run", "{before}"], "expected a results folder"),
        (["{before}", "{before}", "--threshold", "1.5"], "expected a share"),
        (["{empty}", "{empty}"], "expected a results folder"),
        (["{record}", "{record}"], "expected a results folder"),
        (["{planned}", "{planned}"], "no complete run to compare (planned)"),
        (["{before}", "{other}"], "only in A: 1 core · vectorized"),
    ],
)
def test_a_comparison_that_is_not_possible_is_refused(
    words: list[str],
    message: str,
    before: ResultPaths,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    other = [{**point, "resources.cpus_per_task": 4} for point in VECTORIZED[:1]]
    places = {
        "before": before.folder,
        "empty": tmp_path,
        "record": next(before.folder.glob("runs/*/attempt-1/rank-0.json")),
        "planned": make_results.demo(tmp_path / "planned", 1).folder,
        "other": study(tmp_path / "other", 1, points=other).folder,
    }
    assert cli.main(["compare", *(word.format(**places) for word in words)]) == 2
    assert message in capsys.readouterr().err
