"""A step's laps add up; what is not counted is not; pauses are found."""

from __future__ import annotations

from unittest import mock

import pytest

from hpcncf.ncf.step_clock import PHASE_NAMES, StepClock, count_warmup_steps


def clock_of(seconds: list[float], steps_per_epoch: int = 1000, first: int = 0) -> StepClock:
    """A clock after steps that took so long, one instance each."""
    clock = StepClock(len(seconds), steps_per_epoch, first)
    at = 100.0
    with mock.patch("time.perf_counter", return_value=at):
        clock.start()
    for each in seconds:
        at += each
        clock.lap("forward", until=at)
        clock.end_step(1)
    return clock


@pytest.mark.parametrize(("steps", "expected"), [(0, 0), (9, 0), (43, 4), (200, 20), (9999, 20)])
def test_a_tenth_of_the_steps_is_warm_up_and_twenty_at_most(steps: int, expected: int) -> None:
    assert count_warmup_steps(steps) == expected


def test_only_steps_after_the_warm_up_count() -> None:
    clock = clock_of([5.0] * 10 + [1.0] * 90)
    assert (clock.warmup_steps, clock.counted_steps, clock.steps) == (10, 90, 100)
    assert clock.counted_s == pytest.approx(90.0)
    assert clock.counted_instances == 90
    assert clock.training_s == pytest.approx(140.0)


def test_the_phases_add_up_to_the_counted_time() -> None:
    clock = StepClock(3, 3)
    at = 100.0
    with mock.patch("time.perf_counter", return_value=at):
        clock.start()
    for _ in range(3):
        for number, phase in enumerate(PHASE_NAMES):
            at += 0.1 * (number + 1)
            clock.lap(phase, until=at)
        clock.end_step(10)
    phases = clock.phases().model_dump()
    assert sum(phases.values()) == pytest.approx(clock.counted_s)
    assert phases["sync_s"] == pytest.approx(3 * 0.4)
    assert phases["other_s"] == pytest.approx(3 * 0.6)


@pytest.mark.parametrize(
    ("steps", "every", "entries"), [(1, 1, 1), (600, 1, 600), (601, 2, 300), (5248, 9, 583)]
)
def test_a_run_has_600_entries_at_most(steps: int, every: int, entries: int) -> None:
    batches = clock_of([0.01] * steps).batches()
    assert (batches.every, len(batches.seconds)) == (every, entries)
    assert batches.seconds[-1] == pytest.approx(0.01 * every)


def test_a_pause_is_found_with_its_epoch_and_step() -> None:
    seconds = [0.01] * 100
    seconds[30], seconds[77] = 0.2, 0.09
    pauses = clock_of(seconds, steps_per_epoch=40, first=80).batches().pauses
    assert [(pause["epoch"], pause["step"]) for pause in pauses] == [(2, 30)]
    assert pauses[0]["seconds"] == pytest.approx(0.2)


def test_short_and_warm_up_steps_are_no_pauses() -> None:
    seconds = [0.0001] * 100
    seconds[3], seconds[60] = 1.0, 0.04  # the second: 400 times the median, but under 50 ms
    assert clock_of(seconds).batches().pauses == []


def test_no_step_at_all_is_reported_as_nothing() -> None:
    clock = StepClock(0, 10)
    assert clock.batches().seconds == []
    assert clock.batches().pauses == []
    assert clock.counted_s == 0.0
