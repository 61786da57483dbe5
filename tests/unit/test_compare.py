"""Two runs or studies: matched by settings, separated from chance, and a check's exit code."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import make_results
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcncf import cli
from hpcncf.collect.collect import collect
from hpcncf.job.plan import configuration_id, expand_job
from hpcncf.job.spec import JobSpec
from hpcncf.paths import ResultPaths
from hpcncf_analysis.compare import (
    Comparison,
    below,
    changed_environment,
    compare,
    moved,
    rows,
    side_from_record,
    side_from_results,
)
from hpcncf_analysis.configurations import group_configurations
from hpcncf_analysis.significance import compare_all, compare_repeats, least_p

SMALL: dict[str, Any] = {
    "points": [
        {"resources.cpus_per_task": cpus, "training.loader": "vectorized"} for cpus in (1, 2)
    ]
}
SPEEDS = st.lists(st.floats(0.01, 1e6), min_size=1, max_size=6)


def study(folder: Path, repeats: int = 3, factor: float = 1.0, **settings: Any) -> ResultPaths:
    """A finished study, `factor` times as fast as another of the same settings."""
    paths = make_results.demo(folder, repeats, **{**SMALL, **settings})
    make_results.complete(paths)
    if factor != 1:
        edit(
            paths,
            lambda seen: seen["training"].update(counted_s=seen["training"]["counted_s"] / factor),
        )
    return paths


def edit(paths: ResultPaths, change: Callable[[dict[str, Any]], object]) -> None:
    for path in paths.folder.glob("runs/*/attempt-1/rank-*.json"):
        seen = json.loads(path.read_text())
        change(seen)
        path.write_text(json.dumps(seen))


def compared(a: ResultPaths, b: ResultPaths) -> Comparison:
    return compare(side_from_results("a", a), side_from_results("b", b))


def test_three_repeats_that_do_not_overlap_are_distinguished() -> None:
    """Medians 2 and 5; the ratio is 4/3 to 6/1; 2 of 20 dealings are as far apart."""
    found = compare_repeats([1, 2, 3], [4, 5, 6])
    assert (found.value, found.low, found.high) == pytest.approx((2.5, 4 / 3, 6))
    assert found.p == pytest.approx(0.1)
    assert found.verdict == "faster"
    assert compare_repeats([4, 5, 6], [1, 2, 3]).verdict == "slower"


def test_repeats_that_overlap_are_not_distinguished() -> None:
    found = compare_repeats([1.0, 1.1, 1.3], [1.05, 1.2, 1.25])
    assert found.verdict == "no significant difference"


@pytest.mark.parametrize(("a", "b"), [([1], [2]), ([1], [2, 3, 4]), ([1, 2], [8, 9])])
def test_too_few_repeats_say_nothing_however_far_apart(a: list[float], b: list[float]) -> None:
    assert compare_repeats(a, b).verdict == "too few repeats"


def test_the_least_p_is_two_dealings_of_all() -> None:
    assert least_p([([1] * 3, [1] * 3)]) == pytest.approx(2 / 20)
    assert least_p([([1] * 2, [1] * 2), ([1] * 2, [1] * 2)]) == pytest.approx(2 / 36)
    assert least_p([([1], [1])]) == 1


def test_all_together_are_the_geometric_mean_and_say_more_than_each() -> None:
    """Twice and half as fast is no change; twice and eight times is four times."""
    slow, fast = [1.0, 1.01, 1.02], [2.0, 2.02, 2.04]
    assert compare_all([(slow, fast), (fast, slow)]).value == pytest.approx(1)
    found = compare_all([(slow, fast), (slow, [4 * each for each in fast])])
    assert found.value == pytest.approx(4)
    assert found.verdict == "faster"
    assert found.p is not None
    assert found.p < 0.03


def test_two_pairs_of_two_repeats_can_say_together() -> None:
    """Each alone has 6 dealings, both have 36."""
    pairs = [([1.0, 1.01], [0.5, 0.51]), ([1.0, 1.01], [0.5, 0.51])]
    assert compare_repeats(*pairs[0]).verdict == "too few repeats"
    assert compare_all(pairs).verdict == "slower"


def test_equal_speeds_are_called_slower_no_more_often_than_said() -> None:
    """5 of 100 is the most that three repeats may; 200 pairs of one distribution."""
    rng = np.random.default_rng(1)
    drawn = rng.lognormal(sigma=0.1, size=(200, 2, 3))
    verdicts = [compare_repeats(list(a), list(b)).verdict for a, b in drawn]
    assert 0 < verdicts.count("slower") <= 20


@given(SPEEDS, SPEEDS)
def test_the_ratio_lies_in_its_interval_and_turns_over_with_the_sides(
    a: list[float], b: list[float]
) -> None:
    found = compare_repeats(a, b)
    if found.low is not None and found.high is not None:
        assert found.low <= found.value * (1 + 1e-9)
        assert found.value <= found.high * (1 + 1e-9)
    assert compare_repeats(b, a).value == pytest.approx(1 / found.value)


def test_a_study_against_itself_changed_nothing(tmp_path: Path) -> None:
    paths = study(tmp_path)
    found = compared(paths, paths)
    assert (found.settings, found.environment, found.only_a) == ([], [], [])
    assert [pair.ratio.value for pair in found.pairs] == [1, 1]
    assert not found.failures(0.05)


def test_a_slower_study_is_called_so_and_nothing_else_changed(tmp_path: Path) -> None:
    found = compared(study(tmp_path / "a"), study(tmp_path / "b", factor=0.8))
    assert [pair.ratio.verdict for pair in found.pairs] == ["slower", "slower"]
    assert found.overall.value == pytest.approx(0.8)
    assert len(found.failures(0.05)) == 3
    assert not found.failures(0.25)
    assert [pair.label for pair in found.pairs] == ["1 core · vectorized", "2 cores · vectorized"]


def test_what_says_the_sides_apart_is_the_change_and_the_rest_matches(tmp_path: Path) -> None:
    slow = study(tmp_path / "a", training={"epochs": 2})
    found = compared(slow, study(tmp_path / "b", training={"epochs": 2, "engine": "rowwise"}))
    assert list(map(str, found.settings)) == ["engine: reference → rowwise"]
    assert len(found.pairs) == 2


def test_the_phase_that_made_the_difference_is_named(tmp_path: Path) -> None:
    """Vectorised: forward takes 0.29 of 1/96,000 s, and twice as much once all takes 1.29."""
    other = study(tmp_path / "b", points=SMALL["points"][:1])

    def slower(seen: dict[str, Any]) -> None:
        part = seen["training"]
        extra = part["phases"]["forward_s"]
        part["phases"]["forward_s"] += extra
        part["counted_s"] += extra

    edit(other, slower)
    found = compared(study(tmp_path / "a", points=SMALL["points"][:1]), other)
    (pair,) = found.pairs
    assert pair.moved.phase == "forward"
    assert pair.moved.a_us == pytest.approx(0.29 / 96_000 * 1e6)
    assert pair.moved.b_us == pytest.approx(2 * pair.moved.a_us)
    assert any("slower most of all in forward, 3.02 → 6.04" in line for line in below(found))


def test_a_program_has_the_phases_that_the_probe_saw() -> None:
    class Seen:
        def __init__(self, **figures: float) -> None:
            self.median = figures.get

    before = Seen(instances_per_s=1000.0, input_share=0.8, forward_share=0.2)
    after = Seen(instances_per_s=2000.0, input_share=0.6, forward_share=0.4)
    found = moved(before, after)  # type: ignore[arg-type]
    assert (found.phase, found.a_us, found.b_us) == ("input", 800.0, pytest.approx(300.0))


def test_configurations_of_one_side_alone_are_reported(tmp_path: Path) -> None:
    less = {"points": SMALL["points"][:1]}
    found = compared(study(tmp_path / "a"), study(tmp_path / "b", **less))
    assert [pair.label for pair in found.pairs] == ["1 core · vectorized"]
    assert found.only_a == ["2 cores · vectorized"]
    assert any("only in A: 2 cores" in line for line in below(found))


def test_another_machine_and_other_software_are_reported_and_the_processor_warned_of(
    tmp_path: Path,
) -> None:
    other = study(tmp_path / "b")
    new = {"cpu_model": "Other CPU", "torch": "9.9", "commit": "fff0000", "dirty": True}
    edit(other, lambda seen: seen["environment"].update(new))
    edit(other, lambda seen: seen.update(node="node9"))
    found = compared(study(tmp_path / "a"), other)
    assert list(map(str, found.environment)) == [
        "torch: none → 9.9",
        "cpu_model: Example CPU 2.0 GHz → Other CPU",
        "commit: abc1234 → fff0000 and changes",
        "nodes: node1 → node9",
    ]
    assert "different CPU models" in found.cautions[0]
    assert "no commit holds" in found.cautions[1]


def test_a_faster_processor_is_weighed_against_its_price(tmp_path: Path) -> None:
    """An epoch of 4.36 and 3.88 s; the other CPU takes half of it for three times the price."""
    site = tmp_path / "site.yaml"
    site.write_text("prices: {Example CPU: 1, Other CPU: 3}\ncurrency: EUR\n")
    sides = [study(tmp_path / "a"), study(tmp_path / "b", factor=2.0)]
    edit(sides[1], lambda seen: seen["environment"].update(cpu_model="Other CPU"))
    for paths in sides:
        data = str(tmp_path)
        paths.job.write_text(json.dumps({"name": "a", "site": str(site), "data": {"path": data}}))
    (sentence,) = [line for line in below(compared(*sides)) if "worth its price" in line]
    assert "Other CPU is worth its price only if" in sentence
    assert "2.00× the speed, 1.50× the cost" in sentence


def test_what_names_a_place_is_no_change() -> None:
    """Ports and job numbers differ between any two runs."""
    a = {"variables": {"MASTER_PORT": "1", "SLURM_JOB_ID": "7", "OMP_NUM_THREADS": "1"}}
    b = {"variables": {"MASTER_PORT": "2", "SLURM_JOB_ID": "8", "OMP_NUM_THREADS": "4"}}
    assert list(map(str, changed_environment([a], [b]))) == ["OMP_NUM_THREADS: 1 → 4"]


def test_a_worse_model_fails_the_check_however_fast(tmp_path: Path) -> None:
    worse = study(tmp_path / "b", factor=2)
    edit(worse, lambda seen: [epoch.update(hr10=0.4) for epoch in seen["training"]["epochs"]])
    found = compared(study(tmp_path / "a"), worse)
    assert [pair.quality for pair in found.pairs] == ["worse", "worse"]
    assert all("HR@10 is worse" in text for text in found.failures(0.05))


def test_qualities_of_other_candidates_are_not_compared(tmp_path: Path) -> None:
    full = study(tmp_path / "b", training={"evaluation": "full"})
    found = compared(study(tmp_path / "a"), full)
    assert [pair.quality for pair in found.pairs] == ["not compared", "not compared"]


@pytest.mark.parametrize(
    ("repeats", "factor", "code"),
    [(3, 1.0, 0), (3, 0.8, 4), (3, 0.97, 0), (1, 0.8, 3), (1, 1.2, 0)],
)
def test_the_exit_code_is_a_checks(
    repeats: int, factor: float, code: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two configurations of one repeat each cannot say: open."""
    a, b = study(tmp_path / "a", repeats), study(tmp_path / "b", repeats, factor)
    words = ["compare", str(a.folder), str(b.folder)]
    assert cli.main([*words, "--threshold", "0.05"]) == code
    assert ("FAILED" in (out := capsys.readouterr().out)) == (code == 4)
    assert ("OPEN" in out) == (code == 3)
    assert cli.main(words) == 0


def test_a_run_a_runs_folder_and_a_record_file_are_one_run(tmp_path: Path) -> None:
    paths = study(tmp_path, points=[{"resources.tasks_per_node": 2}], repeats=1)
    run_id = make_results.plan_of(paths).runs[0].id
    record = paths.run(run_id).attempt(1).rank(1)
    of_file, of_run = side_from_record("r", record), side_from_results("r", paths, run_id)
    assert [row["run_id"] for row in of_run.rows] == [run_id]
    assert of_file.rows[0]["instances_per_s"] == of_run.rows[0]["instances_per_s"]
    argv = ["compare", str(paths.run(run_id).folder), str(record), "--results", str(paths.folder)]
    assert cli.main(argv) == 0
    assert cli.main(["compare", run_id[:6], run_id[:8], "--results", str(paths.folder)]) == 0


def test_a_named_run_brings_its_repeats_where_they_are_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two configurations of one study: the second core brings 1/8."""
    paths = study(tmp_path)
    one, two = (
        next(run.id for run in make_results.plan_of(paths).runs if run.resources.cores == cores)
        for cores in (1, 2)
    )
    words = ["compare", one, two, "--results", str(paths.folder)]
    assert cli.main(words) == 0
    assert "too few repeats" in capsys.readouterr().out
    assert cli.main([*words, "--repeats"]) == 0
    out = capsys.readouterr().out
    assert "cpus_per_task: 1 → 2" in out
    assert "3 runs" in out
    assert "faster" in out


def test_a_record_without_its_other_ranks_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = study(tmp_path, points=[{"resources.tasks_per_node": 2}], repeats=1)
    attempt = paths.run(make_results.plan_of(paths).runs[0].id).attempt(1)
    attempt.rank(1).unlink()
    assert cli.main(["compare", str(attempt.rank(0)), str(attempt.rank(0))]) == 2
    assert "rank 0 of 2" in capsys.readouterr().err
    attempt.rank(0).write_text('{"kind": "rank"')
    assert cli.main(["compare", str(attempt.rank(0)), str(attempt.rank(0))]) == 1
    assert "not JSON" in capsys.readouterr().err


def test_commands_are_compared_by_their_time(tmp_path: Path) -> None:
    found = compared(command(tmp_path / "a", 100.0), command(tmp_path / "b", 50.0))
    assert found.speed_of == "runs_per_hour"
    assert found.pairs[0].ratio.value == pytest.approx(2)
    assert rows(found)[0][1:3] == ["1:40 min", "50\u202fs"]


def test_remedies_are_a_setting_and_a_run_ended_early_is_compared_by_its_steps(
    tmp_path: Path,
) -> None:
    whole = side_from_results("a", command(tmp_path, 60.0))
    a = {**whole.rows[0], "steps_per_s": 10.0}
    b = {**a, "remedies": "rowwise", "steps_per_s": 30.0, "elapsed_s": None, "state": "cancelled"}
    found = compare(replace(whole, rows=[a]), replace(whole, rows=[b]))
    assert [str(each) for each in found.settings] == ["remedies: none → rowwise"]
    assert found.pairs[0].ratio.value == pytest.approx(3)
    assert rows(found)[0][1:3] == ["10 steps/s", "30 steps/s"]


def command(folder: Path, elapsed_s: float) -> ResultPaths:
    paths = make_results.command_plan(folder)
    (run,) = make_results.plan_of(paths).runs
    make_results.leave(paths, run, training=None)
    end = (make_results.START + timedelta(seconds=elapsed_s)).isoformat()

    edit(paths, lambda seen: seen.update(ended_at=end))
    return paths


def test_what_commands_report_is_reported_and_not_judged(tmp_path: Path) -> None:
    a, b = command(tmp_path / "a", 100.0), command(tmp_path / "b", 100.0)
    edit(a, lambda seen: seen.update(reported={"accuracy": 0.91, "stage": "one"}))
    edit(b, lambda seen: seen.update(reported={"accuracy": 0.5, "stage": "two"}))
    found = compared(a, b)
    assert found.pairs[0].metrics == [("accuracy", 0.91, 0.5)]
    assert any("reported accuracy 0.91 → 0.5" in line for line in below(found))
    assert not found.failures(0.05)


def test_markdown_is_one_table_and_json_the_same_figures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [
        "compare",
        str(study(tmp_path / "a").folder),
        str(study(tmp_path / "b", 3, 0.8).folder),
    ]
    assert cli.main([*words, "--markdown", "--threshold", "0.1"]) == 4
    text = capsys.readouterr().out
    assert text.startswith("**FAILED: 1 core · vectorized is slower: 0.800x**")
    table = [line for line in text.splitlines() if line.startswith("|")]
    assert {line.count("|") for line in table} == {7}
    assert len(table) == 2 + 3
    assert cli.main([*words, "--json", "--threshold", "0.1"]) == 4
    plain = json.loads(capsys.readouterr().out)
    assert plain["configurations"][0]["speed"]["value"] == pytest.approx(0.8)
    assert len(plain["failures"]) == 3


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["nowhere/a", "nowhere/b"], "expected a results folder"),
        (["plan", "nothing", "--threshold", "1.5"], "expected a share"),
        (["empty", "empty"], "expected a results folder"),
    ],
)
def test_what_cannot_be_compared_is_refused(
    argv: list[str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    assert cli.main(["compare", *argv]) == 2
    assert said in capsys.readouterr().err


def test_studies_with_nothing_in_common_are_refused_with_what_each_has(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = [{"resources.cpus_per_task": cpus, "training.loader": "vectorized"} for cpus in (3, 4)]
    a, b = study(tmp_path / "a", 1), study(tmp_path / "b", 1, points=other)
    assert cli.main(["compare", str(a.folder), str(b.folder)]) == 2
    assert "only in A: 1 core · vectorized" in capsys.readouterr().err


def test_a_study_without_a_complete_run_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = make_results.demo(tmp_path, 1, **SMALL)
    assert cli.main(["compare", str(paths.folder), str(paths.folder)]) == 2
    assert "no complete run to compare (planned)" in capsys.readouterr().err


PINNED = (
    "training.pin_memory has no effect: it is for copies to a GPU, and this run trains on a CPU"
)


def test_a_setting_that_cannot_act_is_not_compared(tmp_path: Path) -> None:
    plain = study(tmp_path / "a")
    pinned = study(tmp_path / "b", factor=1.25, training={"pin_memory": True})
    edit(pinned, lambda seen: seen["warnings"].append(PINNED))
    found = compared(plain, pinned)
    assert [change.name for change in found.settings] == ["pin_memory"]
    assert {pair.ratio.verdict for pair in found.pairs} == {"no effect"}
    assert PINNED in found.cautions
    assert compared(pinned, plain).failures(0.05) == []


def test_seeds_are_repeats(tmp_path: Path) -> None:
    seeds = {"points": [{"training.seed": seed} for seed in (1, 2, 3)], "repeats": 1}
    (a,) = group_configurations(collect(study(tmp_path / "a", **seeds)).runs)
    assert len(a.rows) == 3
    assert "seed" not in a.label
    other = {"points": [{"training.seed": seed} for seed in (4, 5, 6)], "repeats": 1}
    found = compared(ResultPaths(tmp_path / "a/results"), study(tmp_path / "b", **other))
    assert [len(pair.a.rows) for pair in found.pairs] == [3]
    assert found.pairs[0].ratio.verdict == "no significant difference"


def test_a_commands_seed_is_a_repeat_and_its_other_parameters_are_not() -> None:
    workload = {"command": ["train", "{lr}", "{seed}"]}
    grid = {"parameters.lr": [1, 2], "parameters.seed": [1, 2, 3]}
    job = JobSpec.model_validate({"name": "a", "workload": workload, "grid": grid})
    runs = expand_job(job).runs
    assert (len(runs), len({configuration_id(run) for run in runs})) == (6, 2)
