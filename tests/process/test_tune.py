"""Tuning on generated speeds finds what the whole grid would, at a quarter of its core-hours."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import make_results
import pytest
from conftest import FakeSlurm
from made_grid import Grid, decided, tuned

from hpcncf import cli
from hpcncf.errors import UsageError
from hpcncf.job.load import load_job, read_data_keys
from hpcncf.job.plan import Plan
from hpcncf.monitor.cgroup import usable_cpus
from hpcncf.paths import ResultPaths
from hpcncf.records.plan_file import read_plan, record_plan
from hpcncf.records.schema import read_record, write_record
from hpcncf.tune import outcome
from hpcncf.tune.job_file import JobFile, build_grid, enough, job_of, with_one_price
from hpcncf.tune.search import Step, finalists
from hpcncf.tune.trials import (
    OBJECTIVES,
    Ask,
    Figure,
    Known,
    Objective,
    Point,
    Rules,
    Trial,
    best_first,
    open_ones,
)
from hpcncf.tune.tuning import Grid as JobGrid
from hpcncf.tune.tuning import Now, Saved, read_saved, read_state


def tuning_of(grid: JobGrid, paths: ResultPaths) -> JobFile:
    return JobFile(paths, grid, "fastest", 9.0, "local", None)


def figure(index: int, cores: int, epoch_s: float, trained_s: float = 10.0) -> Figure:
    point = Point(index, str(index), cores, 0, 256, 1000, "one model")
    return Figure(point, (epoch_s,), trained_s, False)


def best_of_all(made: Grid, objective: Objective) -> int:
    """By the true speeds, without the class whose quality does not hold."""
    sound = [point for point in made.points if made.hr10[point.batch] > 0.7]
    true = [
        Figure(point, (seconds,), 1.0, True)
        for point, seconds in ((point, made.epoch_s[point.index]) for point in sound)
    ]
    return best_first(true, objective)[0].point.index


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_the_best_of_the_grid_is_found_with_a_quarter_of_its_core_hours(
    objective: Objective,
) -> None:
    for seed in range(5):
        made = Grid(seed=seed, noise=0.01)
        step, runs = tuned(made, made.all_core_hours() / 4, objective)
        assert step.chosen == best_of_all(made, objective)
        assert step.verified
        assert sum(run.core_hours for run in runs) <= made.all_core_hours() / 4


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_where_noise_decides_the_choice_is_hardly_slower(objective: Objective) -> None:
    for seed in range(5):
        made = Grid(seed=seed, noise=0.03)
        step, _ = tuned(made, made.all_core_hours() / 4, objective)
        assert step.chosen is not None
        best = best_of_all(made, objective)
        assert made.epoch_s[step.chosen] <= 1.1 * made.epoch_s[best]


def test_a_fast_class_whose_quality_does_not_hold_is_not_chosen() -> None:
    made = Grid(noise=0.0)
    step, runs = tuned(made, made.all_core_hours())
    assert step.chosen is not None
    assert made.points[step.chosen].batch != 4096
    assert min(made.epoch_s) == made.epoch_s[made.points[step.chosen].index + 1], "it was faster"
    assert any(run.whole and made.points[run.ask.point].batch == 4096 for run in runs)


def test_without_evaluation_speed_alone_decides_and_only_the_best_runs_whole() -> None:
    made = Grid(noise=0.0, epochs=200)
    runs: list[Trial] = []
    while (
        step := decided(made.points, runs, Rules("fastest", 100.0, judges=False))
    ).kind == "send":
        runs += [made.run(ask) for ask in step.asks]
    assert step.chosen is not None
    assert made.epoch_s[step.chosen] == min(made.epoch_s)
    assert {run.ask.point for run in runs if run.whole} == {step.chosen}


def test_killed_at_any_moment_it_ends_with_the_same_runs() -> None:
    """Nothing but the trials is remembered."""
    made = Grid(noise=0.02)
    hours = made.all_core_hours() / 4
    step, runs = tuned(made, hours)
    for kept in (1, 7, len(runs) - 2):
        again, more = tuned(made, hours, trials=runs[:kept])
        assert again.chosen == step.chosen
        assert sum(run.core_hours for run in more) <= hours


@pytest.mark.parametrize("share", [0.01, 0.05, 0.1, 0.15])
def test_a_small_budget_is_kept_and_what_is_missing_is_reported(share: float) -> None:
    made = Grid(noise=0.02)
    hours = share * made.all_core_hours()
    step, runs = tuned(made, hours)
    assert sum(run.core_hours for run in runs[:-1]) <= hours, "over by no more than a run"
    assert step.verified or "the budget has no room" in step.why


def test_a_budget_that_was_too_small_is_reported_one_that_would_do() -> None:
    made = Grid(noise=0.0)
    _, runs = tuned(made, 0.05 * made.all_core_hours())
    got = enough(Known(made.points, runs, Rules("knee", 0.05 * made.all_core_hours())))
    assert got is not None
    step, _ = tuned(made, 1.05 * got, trials=runs)
    assert step.verified
    assert enough(Known(made.points, [], Rules("knee", 1.0))) is None


def test_a_best_that_ran_whole_is_chosen_before_a_better_one_that_could_not() -> None:
    """The budget is spent: nothing vouches for the quality of the fastest, 1024 a step."""
    made = Grid(noise=0.0)
    fastest = best_of_all(made, "fastest")
    runs = [made.run(Ask(point.index, 10, 0)) for point in made.points]
    rules = Rules("fastest", sum(run.core_hours for run in runs), unsound=frozenset([4096]))
    step = decided(made.points, runs, rules)
    assert (step.kind, step.chosen, step.verified) == ("done", fastest, False)
    step = decided(made.points, [*runs, made.run(Ask(fastest - 1, None, 0))], rules)
    assert (step.kind, step.chosen, step.verified) == ("done", fastest - 1, True)
    assert "no room for the whole run of fast easy 2 1024" in step.why


def test_runs_under_way_are_waited_for_and_open_ones_sent_again() -> None:
    made = Grid()
    rules = Rules("knee", 1.0)
    done = made.run(Ask(0, 79, 0))
    under_way = replace(done, ask=Ask(1, 20, 0), fate="under way")
    assert decided(made.points, [done, under_way], rules).kind == "wait"
    step = decided(made.points, [done, replace(under_way, fate="open")], rules)
    assert (step.kind, step.asks) == ("send", ())
    spent = [replace(done, core_hours=1.0), replace(under_way, fate="open")]
    assert decided(made.points, spent, rules).kind == "done"


def test_the_first_round_is_one_run_and_the_next_no_more_than_the_budget_surely_holds() -> None:
    made = Grid()
    first = decided(made.points, [], Rules("knee", 1.0))
    assert len(first.asks) == 1
    done = [made.run(ask) for ask in first.asks]
    assert len(decided(made.points, done, Rules("knee", 9.0)).asks) == 35
    assert len(decided(made.points, done, Rules("knee", 0.1)).asks) == 1


def test_a_budget_too_small_for_all_points_sees_some_of_every_setting() -> None:
    made = Grid(noise=0.0)
    step, runs = tuned(made, 0.08 * made.all_core_hours(), "fastest")
    seen = [made.points[run.ask.point].values for run in runs]
    assert frozenset.union(*seen) == frozenset.union(*(one.values for one in made.points))
    assert len({run.ask.point for run in runs}) < len(made.points)
    assert step.chosen is not None
    assert "fast" in made.points[step.chosen].values
    assert "no room to evaluate another model" in step.why


def test_a_point_that_fails_is_left_out() -> None:
    made = Grid(noise=0.0)
    best = best_of_all(made, "fastest")
    failed = Trial(Ask(best, 79, 0), "failed", 0.001, reason="failed")
    step, runs = tuned(made, 1.0, "fastest", [made.run(Ask(0, 79, 0)), failed])
    assert step.chosen not in (None, best)
    assert sum(run.ask.point == best for run in runs) == 1


def test_the_knee_is_the_fastest_that_costs_at_most_1_4_times_the_cheapest() -> None:
    """By hand: 10, 13 and 16 core-seconds an epoch; 13 / 10 < 1 / 0.7 < 16 / 10."""
    found = [figure(0, 1, 10.0), figure(1, 2, 6.5), figure(2, 4, 4.0)]
    best = {one: best_first(found, one)[0].point.index for one in OBJECTIVES}
    assert best == {"knee": 1, "fastest": 2, "cheapest": 0}


def test_short_whole_runs_that_are_near_are_repeated() -> None:
    """Two points of one model within 3 % of each other, each once whole; the budget has room."""
    points = [Point(at, str(at), 1, 0, 256, 300, "one model") for at in range(3)]
    runs = [
        Trial(Ask(at, None, 0), "completed", 0.001, epoch_s, 1.0, 4.0, 0.2, 300, 0.8)
        for at, epoch_s in ((0, 1.0), (1, 1.03), (2, 1.5))
    ]
    step = decided(points, runs, Rules("fastest", 1.0))
    assert (step.kind, step.asks) == ("send", (Ask(0, None, 1), Ask(1, None, 1)))


def test_a_third_goes_on_and_the_cheapest_with_it() -> None:
    """By hand: of nine, three; the ninth is cheapest, on one core, and slowest."""
    several = [figure(at, 4, 1.0 + 0.01 * at, trained_s=0.1) for at in range(8)]
    cheapest = figure(8, 1, 2.0, trained_s=0.1)
    left, short = finalists([*several, cheapest], "knee", first_s=3.0)
    assert [one.point.index for one in left] == [8, 0, 1]
    assert [seconds for _, seconds in short] == [3.0, 3.0, 3.0]
    left, _ = finalists([*several, cheapest], "fastest", first_s=3.0)
    assert [one.point.index for one in left] == [0, 1, 2]


def test_overlapping_repeats_are_repeated_up_to_three_times() -> None:
    one = replace(figure(0, 1, 1.0), times=(0.95, 1.05))
    near = replace(figure(1, 1, 1.04), times=(1.02, 1.04, 1.06))
    far = replace(figure(2, 1, 1.2), times=(1.1, 1.3))
    assert [each.point.index for each in open_ones([one, near, far], "fastest")] == [0]
    assert open_ones([one, far], "fastest") == []
    single = [figure(0, 1, 1.0), figure(1, 1, 1.09), figure(2, 1, 1.2)]
    assert [each.point.index for each in open_ones(single, "fastest")] == [0, 1]


def test_grids_that_mix_gpus_and_cores_are_refused(job_file: Callable[[str], Path]) -> None:
    job = load_job(job_file("grid: {resources.gpus_per_node: [0, 1, 2]}\n"))
    keys = read_data_keys(job)
    mixed = build_grid(job, keys, dict.fromkeys(keys, 2000))
    with pytest.raises(UsageError, match="gpus_per_node=1 has GPUs and gpus_per_node=0 has none"):
        with_one_price(mixed)
    alone = with_one_price(mixed.without({0: "no CPUs left"}))
    assert [point.price for point in alone.points] == [1.0, 2.0], "an hour of its GPUs"


def test_a_retired_option_names_what_to_use_instead(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["tune", "job.yaml", "--gpu-hour", "8"]) == 2
    assert "--gpu-hour: no longer an option. Points with" in capsys.readouterr().err


def test_a_class_of_worse_quality_is_out_with_its_score_and_size(made: JobGrid) -> None:
    (bad, *_) = [point for point in made.points if "lr=0.01" in point.label]
    runs = [Trial(Ask(bad.index, None, 0), "completed", epoch_s=1.0, steps=60, hr10=0.61)]
    runs.append(Trial(Ask(0, 7, 0), "failed", reason="exit code: 1"))
    known = Known(made.points, runs, Rules("fastest", 9.0, unsound=frozenset([bad.quality])))
    tuning = tuning_of(made.without({7: "needs 2 cores"}), ResultPaths(Path()))
    skipped, failed, worse = outcome.left_out(Now(tuning, None, known, {}, Step("done", "")))
    assert skipped.endswith(": needs 2 cores")
    assert failed == f"{made.points[0].label}: exit code: 1"
    assert worse == (
        f"{bad.label}, and 2 more that train the same model: its quality is worse (HR@10 0.610)"
    )


GRID = """\
training: {epochs: 3, global_batch_size: 100}
grid:
  training.engine: [reference, rowwise]
  resources.cpus_per_task: [1, 2]
  training.lr: [0.001, 0.01]
"""


@pytest.fixture
def made(job_file: Callable[[str], Path]) -> JobGrid:
    path = job_file("")
    text = "\n".join(path.read_text().splitlines()[:3])
    path.write_text(f"{text}\n{GRID}")
    job = load_job(path)
    keys = read_data_keys(job)
    return build_grid(job, keys, dict.fromkeys(keys, 2000))


def test_a_cut_run_is_another_run_than_the_whole_one_and_not_evaluated(made: JobGrid) -> None:
    whole, cut = made.run(Ask(0, None, 0)), made.run(Ask(0, 7, 0))
    assert whole.id != cut.id
    assert (whole.training.max_steps, whole.training.evaluation) == (None, "sampled")
    assert (cut.training.max_steps, cut.training.evaluation) == (7, "none")
    assert made.run(Ask(0, 7, 1)).repeat == 1
    assert made.points[0].whole_steps == 60


def test_engines_and_cores_are_of_one_class_and_learning_rates_are_not(made: JobGrid) -> None:
    classes = {point.quality for point in made.points}
    assert len(made.points) == 8
    assert len(classes) == 2


def test_one_point_and_a_command_are_refused(job_file: Callable[[str], Path]) -> None:
    job = load_job(job_file(""))
    with pytest.raises(UsageError, match="this job has one"):
        build_grid(job, {}, {job.data.path if job.data else "": 2000})


def test_states_become_fates_and_what_was_cut_off_thrice_is_given_up(made: JobGrid) -> None:
    ask, tuning = Ask(0, 7, 0), tuning_of(made, ResultPaths(Path()))
    run_id = made.run(ask).id
    row = {"state": "lost", "reason": "", "attempts": 1, "core_hours_all": 0.5}
    (once,) = tuning.read_trials([ask], {run_id: row})
    assert (once.fate, once.core_hours) == ("open", 0.5)
    (thrice,) = tuning.read_trials([ask], {run_id: row | {"attempts": 3}})
    assert thrice.fate == "failed"
    (unknown,) = tuning.read_trials([ask], {})
    assert unknown.fate == "open"
    columns = ("elapsed_s", "others_cores", "cores_allocated", "cores_used", "memory_peak_mib")
    silent = {"state": "completed", "seconds_per_epoch": None, "training_s": None}
    silent |= dict.fromkeys(columns)
    (mute,) = tuning.read_trials([ask], {run_id: row | silent})
    assert mute.fate == "failed"


def test_another_grid_in_the_same_folder_is_refused(made: JobGrid, tmp_path: Path) -> None:
    paths = ResultPaths(tmp_path / "results")
    asked = read_saved(paths, made.job).then(Step("send", "first", (Ask(0, 7, 0),)))
    write_record(paths.tuning, asked)
    assert read_saved(paths, made.job).asks() == [Ask(0, 7, 0)]
    other = made.job.model_copy(update={"repeats": 2})
    with pytest.raises(UsageError, match=r"other settings \(repeats\)"):
        read_saved(paths, other)


def test_without_wait_a_call_submits_and_says_how_to_go_on(
    job_file: Callable[[str], Path],
    fake_slurm: FakeSlurm,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = job_file("grid: {training.engine: [reference, rowwise]}\n")
    monkeypatch.chdir(path.parent)
    command = ["tune", "job.yaml", "--budget", "0.5"]
    assert cli.main(command) == 3
    out = capsys.readouterr().out
    assert len(fake_slurm.submitted) == 1
    assert "a first run, to see what one costs: 1 run (0 of 0.5 spent)" in out
    assert "go on: hpcncf tune job.yaml --budget 0.5" in out
    assert cli.main(command) == 3, "it is queued: nothing more is sent"
    assert "runs are under way: 1 run" in capsys.readouterr().out
    plan = read_plan(ResultPaths(path.parent / "results/tiny-tune"))
    assert isinstance(plan, Plan)
    assert len(plan.runs) == 1
    kept = read_record(ResultPaths(path.parent / "results/tiny-tune").tuning, Saved)
    assert len(kept.rounds) == 1


@pytest.fixture
def demo_job(tmp_path: Path) -> Path:
    """On the demo's data, of which there is no more than what it says of itself."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data/manifest.json").write_text(make_results.manifest().model_dump_json())
    path = tmp_path / "job.yaml"
    path.write_text(
        "name: recorded\ndata: {path: data}\ngrid:\n"
        "  training.loader: [per_sample, vectorized]\n  resources.cpus_per_task: [1, 2]\n"
    )
    return path


@pytest.mark.skipif(len(usable_cpus()) < 2, reason="a point asks for two cores")
def test_recorded_rounds_end_with_a_verified_job_file(
    demo_job: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every round's runs leave the records of the demo's speeds."""
    monkeypatch.chdir(demo_job.parent)
    monkeypatch.setenv("COLUMNS", "100")
    job = job_of(demo_job, [])
    found = build_grid(job, read_data_keys(job), {job.data.path: 83_731} if job.data else {})
    paths = ResultPaths(demo_job.parent / "results/recorded-tune")
    tuning = tuning_of(found, paths)
    while (now := read_state(tuning)).step.kind == "send":
        asked = now.saved.then(now.step)
        write_record(paths.tuning, asked)
        plan = record_plan(paths, found.job, found.plan(asked.asks()))
        make_results.complete(paths, [run for run in plan.runs if run.id not in now.rows])
    words = ["tune", "job.yaml", "--budget", "9", "--cluster", "local", "--objective", "fastest"]
    assert cli.main(words) == 0
    out = capsys.readouterr().out
    assert "fastest: loader=vectorized cpus_per_task=2" in out
    assert "verified: it ran as the job file has it" in out
    assert "go on with: hpcncf submit results/recorded-tune/best.yaml" in out
    assert "vectorized cpus_per_task=2  " in out, "a row of the table"
    points = [replace(found.points[0], index=at, label=str(at)) for at in (0, 1, 2)]
    short = [
        Trial(Ask(at, steps, 0), "completed", epoch_s=0.5, training_s=trained_s, steps=9)
        for at, steps, trained_s in ((0, None, 1.5), (1, None, 1.5), (2, 9, 1.5))
    ]
    known = Known(points, short, Rules("fastest", 1.0))
    near = outcome.left_open(known, known.figures[0])
    assert near == ("1",), "whole, though in 1.5 s; cut, that is too short"
    rows = {at: row | {"cpu_model": f"CPU {at[0]}"} for at, row in now.rows.items()}
    models = outcome.find_outcome(replace(now, rows=rows)).models
    assert set(models) == {f"CPU {at[0]}" for at in rows}
    best = load_job(paths.best)
    assert (best.training.loader, best.resources.cpus_per_task) == ("vectorized", 2)
    assert (best.training.max_steps, best.training.evaluation) == (None, "sampled")
    assert best.name == "recorded-fastest"
    assert cli.main([*words, "--json"]) == 0
    plain = json.loads(capsys.readouterr().out)
    assert plain["best"]["verified"]
    assert plain["best"]["job_file"] == str(paths.best)
    assert {"run_id", "point", "epoch_s", "cores_used", "left_out"} <= plain["trials"][0].keys()
