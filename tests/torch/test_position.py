"""What the first rank says of its position, and how often."""

from __future__ import annotations

import time

import pytest

from hpcncf.ncf.checkpoint import REPORT_EVERY_S, ProgressReporter, TrainingPhase, TrainingProgress
from hpcncf.ncf.step_clock import StepClock
from hpcncf.worker.environment import Place

EPOCH: tuple[TrainingPhase, ...] = ("training", "evaluation", "checkpoint")


class Watch:
    """A clock that goes on when it is asked to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def got(
    monkeypatch: pytest.MonkeyPatch, seconds: dict[TrainingPhase, float], epochs: int
) -> list[str]:
    """Which phases' beginnings are reported, where each step of one takes a hundredth of it."""
    watch, seen = Watch(), list[TrainingProgress]()
    monkeypatch.setattr(time, "perf_counter", watch)
    place = Place(rank=0, local_rank=0, world_size=1, local_world_size=1, node_index=0)
    say = ProgressReporter(seen.append, place, StepClock(10, 10, 0), 100)
    for epoch in range(epochs):
        for phase in EPOCH:
            for step in range(100):
                say(phase, epoch, step)
                watch.now += seconds[phase] / 100
    return [f"{each.phase} {each.epoch}" for each in seen]


def test_every_phase_is_reported_when_it_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    quick = dict.fromkeys(EPOCH, REPORT_EVERY_S / 100)
    assert got(monkeypatch, quick, 1) == ["training 0", "evaluation 0", "checkpoint 0"]


def test_phases_that_take_no_time_are_reported_every_two_seconds_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    quick: dict[TrainingPhase, float] = dict(
        zip(EPOCH, (REPORT_EVERY_S / 10, REPORT_EVERY_S / 50, REPORT_EVERY_S / 50), strict=True)
    )
    seen = got(monkeypatch, quick, 100)
    assert len(seen) == pytest.approx(100 * sum(quick.values()) / REPORT_EVERY_S, abs=4)
    assert seen.count("training 99") + seen.count("training 98") <= 1
    assert any(each.startswith("training") for each in seen[3:])


def test_a_phase_that_took_long_is_reported_when_it_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    slow: dict[TrainingPhase, float] = dict(zip(EPOCH, (0.1, 0.1, 3 * REPORT_EVERY_S), strict=True))
    seen = got(monkeypatch, slow, 3)
    assert [seen.count(f"checkpoint {epoch}") for epoch in range(3)] == [3, 3, 3]
