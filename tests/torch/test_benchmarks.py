"""What the benchmarks work out from what they measure, and how it comes into docs/results.md."""

from __future__ import annotations

import importlib
import importlib.util
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from hpcncf.data.prepared import load_prepared
from hpcncf.job.spec import Model, Resources, Training
from hpcncf.job.validate import find_conflicts
from hpcncf.launcher.environment import Place
from hpcncf.ncf.engines.rowwise import RowwiseEngine
from hpcncf.ncf.evaluate import evaluate
from hpcncf.ncf.model import initial_model
from hpcncf.ncf.step_clock import StepClock

ROOT = Path(__file__).parents[2]


def benchmark(name: str) -> Any:
    return importlib.import_module(f"benchmarks.{name}")


@pytest.mark.skipif(torch.cuda.is_available(), reason="here is a GPU")
def test_without_a_gpu_its_benchmark_says_so_in_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert benchmark("gpu").main() == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    assert "no CUDA device" in said.err


@pytest.mark.parametrize(
    ("theirs", "verdict"),
    [
        ([0.5, 0.6, 0.7], "not distinguishable"),
        ([0.3, 0.4, 0.51], "higher"),
        ([0.7, 0.8, 0.91], "lower"),
    ],
)
def test_runs_are_compared_seed_by_seed_by_students_interval(
    theirs: list[float], verdict: str
) -> None:
    difference = benchmark("quality").difference
    assert difference([0.5, 0.6, 0.7], theirs).verdict == verdict
    # Differences 1, 2, 3: mean 2, standard error 1 / sqrt(3), t of 2 degrees 4.303.
    found = difference([2.0, 4.0, 6.0], [1.0, 2.0, 3.0])
    assert (found.mean, found.within) == pytest.approx((2.0, 4.303 / 3**0.5))


PAGE = """# Results

<!-- sitting -->
<!-- /sitting -->

<!-- bench: a -->
old
<!-- /bench -->

<!-- bench: b, 60 s, CPU, commit 1 -->
*Of another sitting: CPU, commit 1.*

| 1 |
<!-- /bench -->
prose
"""


def test_a_benchmarks_section_is_replaced_and_nothing_else() -> None:
    results = benchmark("results")
    assert results.place(PAGE, results.BenchmarkOutput("a", "new\n"), "A") == PAGE.replace(
        "old", "new"
    )
    page = results.place(PAGE, results.BenchmarkOutput("a", r"\1", 5, "CPU, commit 2"), "A")
    assert results.place(page, results.BenchmarkOutput("a", "old"), "A") == PAGE


def test_a_new_benchmark_gets_a_section_at_the_end() -> None:
    results = benchmark("results")
    page = results.place(PAGE, results.BenchmarkOutput("c", "| 1 |"), "Of c")
    assert page == PAGE + "\n## Of c\n\n<!-- bench: c -->\n| 1 |\n<!-- /bench -->\n"
    assert results.place(page, results.BenchmarkOutput("c", "| 1 |"), "Of c") == page


def test_a_section_without_an_end_is_refused() -> None:
    with pytest.raises(ValueError, match="has no"):
        benchmark("results").blocks("<!-- bench: c -->\n" + PAGE)


def test_the_page_names_its_sitting_once_and_what_is_of_another() -> None:
    results = benchmark("results")
    block = results.BenchmarkOutput("a", "| 2 |", 90, "CPU, commit 2")
    page = results.begin_sitting(results.place(PAGE, block, "A"), "CPU, commit 2")
    assert page.count("commit 2") == 3  # two markers and the line that is read
    assert "\n*CPU, commit 2, `python -m benchmarks --write`, 2 min.*\n" in page
    assert "\n*Of another sitting: CPU, commit 1.*\n\n| 1 |" in page
    assert results.sitting(page) == "CPU, commit 2"
    again = results.place(page, results.BenchmarkOutput("b", "| 3 |", 30, "CPU, commit 2"), "B")
    again = results.begin_sitting(again, results.sitting(again))
    assert "Of another sitting" not in again
    assert results.begin_sitting(again, "CPU, commit 2") == again


def test_the_time_that_benchmarks_will_take_is_that_of_their_last_runs() -> None:
    main = benchmark("__main__")
    page = "<!-- bench: demo, 83 s, CPU -->\n| 1 |\n<!-- /bench -->\n"
    expected = main.expected_seconds(["demo", "gpu"], page)
    assert expected == {"demo": 83, "gpu": main.ALL["gpu"].seconds}
    assert main.describe_time({"demo": 83, "gpu": 600}) == "2 benchmarks, about 12 min"


def test_bench_takes_as_long_as_make_says() -> None:
    main = benchmark("__main__")
    ours, others = (
        sum(each.seconds for each in group.values())
        for group in (main.BENCHMARKS, main.OTHER_PROGRAMS)
    )
    assert ours <= 45 * 60
    assert ours + others <= 77 * 60


@pytest.fixture
def a_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., int]:
    """`python -m benchmarks --write` of these programs, on a page of their own."""
    main, results = benchmark("__main__"), benchmark("results")
    page, package = tmp_path / "results.md", tmp_path / "benchmarks"
    page.write_text(PAGE)
    package.mkdir()
    (package / "__init__.py").touch()
    monkeypatch.setattr(results, "PAGE", page)
    monkeypatch.setattr(results, "ROOT", tmp_path)
    monkeypatch.setattr(main, "ENDS_S", 0.1)

    def run(programs: dict[str, str], *words: str, limit_s: float = 60.0) -> int:
        for name, program in programs.items():
            (package / f"{name}.py").write_text(program)
        made = {name: main.Benchmark(f"Of {name}", limit_s / 2 - 30) for name in programs}
        for group in ("BENCHMARKS", "ALL"):
            monkeypatch.setattr(main, group, made)
        monkeypatch.setattr(main, "OTHER_PROGRAMS", {})
        monkeypatch.setattr(sys, "argv", ["benchmarks", "--write", *words])
        return int(main.main())

    return run


def test_a_failed_benchmark_stops_no_other_and_its_old_figures_leave(
    a_run: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    slow = "import signal, time\nsignal.signal(15, 1 and signal.SIG_IGN)\ntime.sleep(60)"
    programs = {"b": "print('| 9 |'); raise SystemExit(4)", "slow": slow, "a": "print('| 8 |')"}
    assert a_run(programs, limit_s=1.5) == 1
    results = benchmark("results")
    page = results.PAGE.read_text()
    found = {name: block.body.strip() for name, block in results.blocks(page).items()}
    assert found == {
        "a": "| 8 |",
        "b": "**Failed: exit code 4.**\n\n| 9 |",
        "slow": "**Failed: not over in 2 s.**",
    }
    assert "Of another sitting" not in page
    said = capsys.readouterr().err
    assert "[1/3] b" in said
    assert said.endswith("failed: b (exit code 4), slow (not over in 2 s)\n")


def test_what_does_not_fit_into_the_time_keeps_its_old_figures_marked(
    a_run: Callable[..., int],
) -> None:
    assert a_run({"b": "", "a": "print('| 8 |')"}, "--minutes", "0.5", limit_s=70) == 1
    page = benchmark("results").PAGE.read_text()
    assert "*Of another sitting: CPU, commit 1.*\n\n| 1 |" in page
    assert "| 8 |" in page


def test_every_benchmark_is_a_module_and_every_section_is_a_benchmarks() -> None:
    main, results = benchmark("__main__"), benchmark("results")
    for name in main.ALL:
        assert importlib.util.find_spec(f"benchmarks.{name}"), name
    assert set(results.blocks((ROOT / "docs/results.md").read_text())) == set(main.ALL)


def test_what_the_benchmarks_train_is_what_a_job_file_may_say() -> None:
    rungs = {rung.name: rung.settings for rung in benchmark("engines").LADDER}
    ways = {way.name: way.settings for group in benchmark("ranks").WAYS for way in group}
    for name, settings in {**rungs, **ways, **benchmark("quality").VARIANTS}.items():
        training = Training.model_validate({"threads": 1} | settings)
        assert find_conflicts(Resources(cpus_per_task=2), training) == [], name


WHAT_IS_TRAINED = {
    *("epochs", "max_steps", "max_s", "negatives", "lr", "weight_decay", "seed"),
    *("checkpoint_every", "checkpoint_every_min", "log_every", "device", "backend"),
    *("profile_steps", "profile_ranks", "profile_rate", "profile_native", "profile_subprocesses"),
    "batch_size_per_rank",
}


def test_every_way_to_train_that_a_job_file_can_name_is_a_remedy_with_its_words() -> None:
    page = (ROOT / "docs/remedies.md").read_text()
    missing = {
        name
        for name in set(Training.model_fields) - WHAT_IS_TRAINED
        if not re.search(rf"`[^`]*\b{name}\b[^`]*`", page)
    }
    assert not missing


def test_the_demos_rows_are_points_of_its_job_file() -> None:
    module = benchmark("demo")
    points = yaml.safe_load(module.JOB.read_text())["points"]
    for name, place in module.SHOWN.items():
        point = module.USUAL | points[place]
        cores, ranks = point["resources.cpus_per_task"], point["resources.tasks_per_node"]
        assert name.startswith(f"{ranks} ranks × " if ranks > 1 else f"{cores} core")
        assert ("native" in name) == (point["training.engine"] == "native")
        assert ("naive" in name) == (point.get("training.loader") == "per_sample")


def slowdowns(noise: str, turns: int, random: np.random.Generator) -> Any:
    """Of the logarithm of each turn's speed: neighbours that come and go slow a third of them."""
    if noise == "heavy tails":
        return 0.03 * random.standard_t(2, turns)
    found, beside = random.normal(0, 0.03, turns), False
    if noise == "neighbours":
        for turn in range(turns):
            beside = random.random() < (0.67 if beside else 0.15)
            found[turn] -= beside * random.uniform(0.1, 0.7)
    return found


@pytest.mark.parametrize("noise", ["even", "heavy tails", "neighbours"])
def test_a_remedys_interval_holds_its_gain_though_rows_end_when_it_is_narrow(noise: str) -> None:
    """95 % of intervals hold the gain, less what 400 rows may miss by chance; they settle."""
    module, random, held, settled, gain = benchmark("remedies"), np.random.default_rng(1), 0, 0, 0.3
    for _ in range(400):
        row, turns = module.RemedyPair(None, None, {}, {}), slowdowns(noise, 120, random)
        while len(row.logs) < 60 and not row.is_over(float("inf")):
            first, second = turns[2 * len(row.logs) :][:2]
            row.logs.append(gain + (first - second) * (-1) ** len(row.logs))
        low, _, high = module.interval(row.logs)
        held += low <= gain <= high
        settled += row.width <= module.SETTLED
    assert held / 400 >= 0.92
    assert settled / 400 >= 0.9


def test_two_rounds_go_through_the_cases_there_and_back() -> None:
    in_turn = benchmark("training").in_turn
    assert list(in_turn(0, "ab")) == [(0, "a"), (1, "b")]
    assert list(in_turn(1, "ab")) == [(1, "b"), (0, "a")]


def test_a_stepper_takes_the_steps_of_a_window(tiny_data: Path) -> None:
    module = benchmark("training")
    data = load_prepared(tiny_data)
    stepper = module.Stepper(data, {"engine": "rowwise", "global_batch_size": 8})
    before = stepper.clock.steps
    assert stepper.window(7) > 0
    assert stepper.clock.steps == before + 7
    assert stepper.instances(7) == 7 * 8 * 5


def test_misses_stand_before_all_programs_and_a_failed_one_is_one() -> None:
    programs = benchmark("programs")
    place = {"line": 3, "source": "draw(`x` | y)"}
    seen = {"primary": {"cause": "python_input", "places": [place]}, "verdict": "ill"}
    expected = {"cause": ["python_input"], "line": "draw("}
    right = programs.judge("right.py", expected, seen, 9.0)
    wrong = programs.judge("wrong.py", {"cause": []}, programs.failed(ValueError("why")), 2.0)
    alarm = programs.judge("alarm.py", {"cause": []}, seen, 9.0)
    page = list(programs.page([right, wrong, alarm]))
    assert page[0] == (
        "Causes right: 1 of 3. Lines right: 1 of 1. False alarms: 1 of 2 healthy programs, "
        "without a verdict 1.\n"
    )
    fold = next(at for at, line in enumerate(page) if line.startswith("<details"))
    assert [line for line in page[:fold] if "wrong.py" in line] == [
        "| wrong.py | healthy | **failed** |  |  | 2 |"
    ]
    assert not any("right.py" in line for line in page[:fold])
    row = "| right.py | python_input | python_input | right | `3: draw('x' \\| y)` | 9 |"
    assert row in page[fold:]


@pytest.fixture
def peers() -> Any:
    return benchmark("peers.__main__")


def test_peers_get_each_training_pair_once_all_ids_and_the_same_candidates(
    peers: Any, tiny_data: Path, tmp_path: Path
) -> None:
    data = load_prepared(tiny_data)
    plain = peers.plain(data)
    trained = list(zip(data.train_users.tolist(), data.train_items.tolist(), strict=True))
    assert len(set(trained)) < len(trained)
    assert (np.diff(plain.train_users) < 0).sum() > len(set(trained)) / 3  # in no order of users
    assert plain.manifest.train_rows == len(set(trained))
    assert plain.manifest.context_columns == []
    assert plain.test_context.shape == (data.manifest.test_rows, 0)
    peers.write_data(tmp_path, plain, scored=True)
    read = {}
    for part in ("train", "test"):
        header, *lines = (tmp_path / f"data/data.{part}.inter").read_text().splitlines()
        assert header == "user_id:token\titem_id:token"
        read[part] = [tuple(map(int, line.split("\t"))) for line in lines]
    assert sorted(read["train"]) == sorted(set(trained))
    # Where one were missing, RecBole would have no number for it.
    users, items = zip(*read["train"], *read["test"], strict=True)
    assert set(users) == set(range(data.manifest.users))
    assert set(items) == set(range(data.manifest.items))
    candidates = np.load(tmp_path / "candidates.npy")
    assert (candidates[:, 0] == data.test_items).all()
    assert (candidates[:, 1:] == data.test_negatives).all()


def test_peers_scores_are_ranked_as_hpcncf_ranks_its_own(peers: Any, tiny_data: Path) -> None:
    plain = peers.plain(load_prepared(tiny_data))
    start = initial_model(plain.manifest, Model(), seed=1)
    candidates = np.column_stack([plain.test_items, plain.test_negatives])
    users = torch.from_numpy(np.repeat(plain.test_users, candidates.shape[1])).long()
    with torch.no_grad():
        scores = start(
            users, torch.from_numpy(candidates.ravel()).long(), torch.empty(len(users), 0)
        )
    engine = RowwiseEngine(start, Training(), StepClock(1, 1))
    judged = evaluate(engine, plain, Place(), torch.device("cpu"), "sampled")
    found = peers.quality(scores.reshape(candidates.shape).numpy())
    assert found == pytest.approx((judged.hr10, judged.ndcg10))
    assert 0 < judged.hr10 < 1
    ties = np.zeros((3, 12), dtype=np.float32)
    ties[1, 0], ties[2, 0] = 1, np.nan
    assert peers.quality(ties) == pytest.approx((1 / 3, 1 / 3))


@pytest.mark.parametrize("peer", ["recbole", "cornac"])
def test_a_peers_environment_is_pinned_to_the_version_with_hpcncfs_torch(
    peers: Any, peer: str
) -> None:
    pins, constraints = (
        dict(line.split("==") for line in path.read_text().splitlines() if not line.startswith("#"))
        for path in (peers.HERE / f"requirements-{peer}.txt", ROOT / "constraints.txt")
    )
    assert pins["torch"] == constraints["torch"]
    assert peer in pins
