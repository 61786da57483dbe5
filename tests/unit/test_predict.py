"""Predictions from generated steps of known cost: made where the runs determine them, else not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from make_results import complete, demo

from hpcncf import cli
from hpcncf.collect.collect import collect
from hpcncf.paths import ResultPaths
from hpcncf_analysis.predict import (
    HeldOut,
    Measured,
    Point,
    Prediction,
    Refusal,
    Step,
    describe,
    figures_of_run,
    find_refusal,
    fit_terms,
    interval,
    measured_points,
    predict,
    predict_held_out,
    predict_step,
)
from hpcncf_analysis.usl import fit_non_negative

ROWS = 10_000


def point(threads: int = 1, ranks: int = 1, batch: int = 256, **changes: Any) -> Point:
    plain = {"sync": (("sync", repr("dense")),), "input": (("loader", "'vectorized'"),)}
    return Point(
        label=f"{ranks} x {threads}, {batch}",
        cores=float(threads * ranks),
        threads=threads,
        ranks=ranks,
        ranks_per_node=ranks,
        batch=batch,
        negatives=4,
        **({"compute": (("engine", repr("reference")),)} | plain | changes),
    )


def made(asked: Point, noise: float = 1.0) -> Measured:
    """1 ms a step and 2 µs a positive, 1.5 of them shared by the threads; input 1 µs a positive;
    an exchange of 1 MB with 0.1 ms latency and 1 GB/s."""
    share = asked.share
    compute = noise * (1e-3 + share * (0.5e-6 + 1.5e-6 / asked.threads))
    sync = 2 * (asked.ranks - 1) * (1e-4 + 1e6 / asked.ranks / 1e9)
    step = compute + share * 1e-6 + sync
    steps = -(-ROWS // asked.batch)
    return Measured(
        point=asked,
        step_s=step,
        costs={
            "compute": compute,
            "input": share * 1e-6,
            "sync": sync,
            "bytes": 1e6 if asked.ranks > 1 else 0.0,
        },
        instances_per_epoch=5.0 * ROWS,
        seconds_per_epoch=1.1 * steps * step,
        low=1.1 * steps * step,
        high=1.1 * steps * step,
        runs=1,
    )


def runs_of(*sizes: tuple[int, int, int]) -> list[Measured]:
    return [made(point(*size)) for size in sizes]


@given(st.lists(st.lists(st.integers(0, 9), min_size=3, max_size=3), min_size=3, max_size=6))
def test_non_negative_least_squares_beats_every_neighbour(rows: list[list[int]]) -> None:
    matrix = np.array(rows, dtype=float)
    wanted = np.arange(1.0, len(rows) + 1) * [1, -1][len(rows) % 2]
    found = fit_non_negative(matrix, wanted[None])[0]
    assert (found >= 0).all()
    error = np.linalg.norm(matrix @ found - wanted)
    for at in range(3):
        for change in (-0.01, 0.01):
            other = found.copy()
            other[at] = max(0.0, other[at] + change)
            assert error <= np.linalg.norm(matrix @ other - wanted) + 1e-9


@pytest.mark.parametrize(
    ("features", "costs", "wanted", "value"),
    [
        ([[1, 0], [1, 1], [1, 2]], [3, 2, 1], [1, 9], 2),  # no rising line is nearer than the mean
        ([[1, 1, 0], [1, 2, 0]], [1, 2], [1, 5, 0], 5),
        ([[1, 1, 0], [1, 2, 0]], [1, 2], [1, 5, 1], None),  # nothing is known of the third term
    ],
)
def test_a_fit_is_not_negative_and_knows_only_what_its_points_span(
    features: list[list[float]], costs: list[float], wanted: list[float], value: float | None
) -> None:
    found = fit_terms(features, costs, [1] * len(costs), wanted)
    assert (found and found[1]) == (None if value is None else pytest.approx(value))


def test_batches_between_two_are_on_the_line_through_them() -> None:
    """By hand: 1 ms + 512 x 2 µs of compute and 512 x 1 µs of input."""
    found = predict_step(point(1, 1, 512), runs_of((1, 1, 256), (1, 1, 1024)))
    assert isinstance(found, Step)
    assert found.phases == pytest.approx({"compute": 2.024e-3, "input": 0.512e-3})


THREADS = [(threads, 1, batch) for threads in (1, 2, 4) for batch in (256, 1024)]


@pytest.mark.parametrize(
    ("asked", "sizes"),
    [
        ((4, 1, 1024), THREADS[:-1]),  # threads that ran with another batch
        ((1, 8, 2048), [(1, ranks, 256 * ranks) for ranks in (1, 2, 3, 4, 6)]),  # four more ranks
    ],
)
def test_a_step_is_predicted_from_its_parts(
    asked: tuple[int, int, int], sizes: list[tuple[int, int, int]]
) -> None:
    found, truth = predict_step(point(*asked), runs_of(*sizes)), made(point(*asked))
    assert isinstance(found, Step)
    assert found.seconds == pytest.approx(truth.step_s, rel=0.02)
    assert found.phases.get("sync", 0.0) == pytest.approx(truth.costs["sync"])


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        (point(3), "threads 3: run were 1, 2; a value beyond them needs 4"),
        (point(9), "nothing is predicted beyond 4 times"),
        (point(1, 2), "ranks on a node 2: run were 1; a value beyond them needs 4"),
        (point(1, 1, 1024), "positives of a rank's step 1024: run were 256"),
        (point(compute=(("engine", repr("native")),)), "no run shows the compute of engine native"),
        (point(input=(("loader", "'batched'"),)), "no run shows the input of loader batched"),
    ],
)
def test_what_the_runs_do_not_support_is_refused(asked: Point, reason: str) -> None:
    known = [made(point(1)), made(point(2))]
    found = predict_step(asked, known)
    assert isinstance(found, Refusal)
    assert reason in found.reason


def test_ranks_that_never_exchanged_anything_are_refused() -> None:
    one_rank_a_node = [made(point(1, 1, 256)), made(point(1, 1, 512))]
    asked = replace(point(1, 2, 512), ranks_per_node=1)
    found = predict_step(asked, one_rank_a_node)
    assert isinstance(found, Refusal)
    assert "no run of several ranks with engine reference" in found.reason


def test_numbers_that_always_changed_together_give_no_interval() -> None:
    """Without any of the runs nothing is known of its threads: no error says how sure it is."""
    known = runs_of((1, 1, 256), (2, 1, 1024), (4, 1, 4096))
    errors, refused = predict_held_out(known)
    assert not errors
    assert len(refused) == 3
    assert interval(point(1, 1, 1024), known, errors) is None


def test_the_interval_holds_the_truth_and_grows_with_the_noise() -> None:
    sizes = [(threads, batch) for threads in (1, 2, 4) for batch in (128, 256, 512, 1024)]
    asked = point(2, 1, 768)
    widths = []
    for size in (0.01, 0.1):
        noises = [1 + size * (-1) ** at for at in range(len(sizes))]
        known = [
            made(point(threads, 1, batch), noise)
            for (threads, batch), noise in zip(sizes, noises, strict=True)
        ]
        errors, refused = predict_held_out(known)
        assert not refused
        ends = interval(asked, known, errors)
        assert ends[0] < made(asked).step_s < ends[1]
        widths.append(ends[1] / ends[0])
    assert widths[1] > 2 * (widths[0] - 1) + 1


def test_two_held_out_make_no_interval() -> None:
    known = runs_of((1, 1, 256), (1, 1, 512), (1, 1, 1024))
    errors, _ = predict_held_out(known)
    assert interval(point(1, 1, 768), known, errors[:2]) is None


@pytest.mark.parametrize(("number", "widest"), [(19, 1.18), (4, 1.04)])
def test_of_many_bounds_the_outermost_at_each_end_is_left_out(number: int, widest: float) -> None:
    """Errors of 1, 2, 3, ... per cent around a prediction that they do not change."""
    known, asked = runs_of((1, 1, 256), (1, 1, 1024)), point(1, 1, 512)
    errors = [
        HeldOut(made(asked), made(asked).step_s * (1 + n / 100)) for n in range(1, number + 1)
    ]
    ends = interval(asked, known, errors)
    assert ends == pytest.approx((made(asked).step_s / widest, made(asked).step_s * widest))


@pytest.mark.parametrize(
    ("part", "asked", "settings"),
    [
        ("bytes", point(1, 1, 1024), ("training.global_batch_size=1024",)),
        (
            "bytes",
            replace(point(1, 4, 4096), batch_per_rank=128),
            ("training.batch_size_per_rank=128",),
        ),
        ("sync", point(1, 2), ("resources.tasks_per_node=2",)),
        (
            "sync",
            replace(point(1, 8), ranks_per_node=2),
            ("resources.nodes=4", "resources.tasks_per_node=2"),
        ),
        ("compute", point(2), ("resources.cpus_per_task=2",)),
        ("compute", replace(point(2), cores=4.0), ("training.threads=2",)),
    ],
)
def test_a_refusal_names_the_settings_to_run_as_the_job_file_spells_them(
    part: str, asked: Point, settings: tuple[str, ...]
) -> None:
    refused = find_refusal(part, asked, [point(1)])
    assert refused
    assert refused.run == settings


def test_a_setting_that_the_command_has_is_not_added_twice() -> None:
    refused = Refusal("a", "none", ("resources.nodes=1", "resources.tasks_per_node=2"))
    command = "hpcncf submit a.yaml -s resources.nodes="
    ranks = "-s resources.tasks_per_node=2"
    assert describe(refused, f"{command}16").endswith(f"=16 -s resources.nodes=1 {ranks}")
    assert describe(refused, f"{command}1").endswith(f"a.yaml -s resources.nodes=1 {ranks}")


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo's records, and a job file beside them."""
    folder = tmp_path_factory.mktemp("predict")
    complete(demo(folder))
    job = "name: demo\ndata: {path: data}\ngrid: {resources.cpus_per_task: [1, 2]}\n"
    (folder / "demo.yaml").write_text(job)
    return folder


def test_rows_of_the_table_become_points_and_what_was_run_is_shown_as_measured(
    results: Path,
) -> None:
    """By hand: repeats at 98, 100 and 102 % of 96,000 instances a second."""
    rows = collect(ResultPaths(results / "results")).runs
    known = measured_points(rows)
    assert len(known) == 6, "repeats are one point"
    first = next(one for one in known if one.point.label == "1 core · per_sample")
    step = 256 * 5 / 21_000
    assert first.step_s == pytest.approx(step)
    assert (first.costs["input"], first.costs["compute"]) == pytest.approx(
        (0.71 * step, 0.29 * step)
    )
    assert first.epoch_factor == pytest.approx(1.0, abs=0.01)

    asked = next(row for row in rows if row["loader"] == "vectorized" and row["world_size"] == 1)
    (found,) = predict(rows, [asked])
    assert isinstance(found, Prediction)
    epoch_s = 5 * 83_731 / 96_000
    assert (found.seconds_per_epoch, found.runs) == (pytest.approx(epoch_s), 3)
    assert (found.low, found.high) == pytest.approx((epoch_s / 1.02, epoch_s / 0.98))
    shown = describe(found, "hpcncf submit job.yaml")
    assert "it was run: 4.36 s/epoch [4.28–4.45] over 3 runs" in shown
    alone = made(point(2))
    assert "(one run: no interval)" in describe(figures_of_run(alone, [alone]), "")


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (["-s", "resources.tasks_per_node=2", "-s", "resources.cpus_per_task=2"], 0, "predicted: "),
        (["-s", "resources.cpus_per_task=16"], 3, "to know, run it: hpcncf submit"),
        (["--held-out"], 0, "held out are predicted within"),
        (["--held-out", "--json"], 0, '"predicted_step_s"'),
        (["--json"], 0, '"measured": true'),
    ],
)
def test_the_command_predicts_or_names_the_run_that_would(
    results: Path, capsys: pytest.CaptureFixture[str], words: list[str], code: int, text: str
) -> None:
    where = ["--results", str(results / "results")]
    assert cli.main(["predict", str(results / "demo.yaml"), *where, *words]) == code
    assert text in capsys.readouterr().out
