"""Predict a configuration from the runs of others, with a jackknife+ interval."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import exp, log
from statistics import median
from typing import Any, Final

from hpcncf_analysis.configurations import completed_runs, varying_settings
from hpcncf_analysis.formatting import format_interval, format_number, format_percent
from hpcncf_analysis.predict import model
from hpcncf_analysis.predict.model import (
    Measured,
    Point,
    Prediction,
    Ran,
    Refusal,
    Step,
    called,
    measured,
    point_from_row,
    step,
    steps_of,
)

# The interval is jackknife+ (Barber, Candès, Ramdas and Tibshirani 2021) on the logarithm: each
# configuration in turn is left out, the rest predict both it and what is asked, and its error
# is put
# upon that. A tenth of such bounds may lie outside at either end; of fewer than 19, none does.

# Errors of fewer held-out configurations make no interval.
FEWEST: Final = 3
# Of the bounds at either end lies outside.
ONE_IN: Final = 10


@dataclass(frozen=True)
class HeldOut:
    """One configuration, predicted from all others."""

    one: Measured
    step_s: float

    @property
    def error(self) -> float:
        """Predicted over measured, less 1."""
        return self.step_s / self.one.step_s - 1


def predict_held_out(known: Sequence[Measured]) -> tuple[list[HeldOut], list[Refusal]]:
    """Every configuration without itself: those predicted, and those refused."""
    told: list[HeldOut] = []
    refused: list[Refusal] = []
    for one in known:
        said = step(one.point, _without(known, one))
        if isinstance(said, Refusal):
            refused.append(said)
        else:
            told.append(HeldOut(one, said.seconds))
    return told, refused


def _without(known: Sequence[Measured], one: Measured) -> list[Measured]:
    return [other for other in known if other is not one]


def interval(
    asked: Point, known: Sequence[Measured], errors: Sequence[HeldOut]
) -> tuple[float, float] | None:
    """Seconds of a step; None where fewer than three configurations could be held out."""
    lows, highs = list[float](), list[float]()
    for each in errors:
        said = step(asked, _without(known, each.one))
        if isinstance(said, Refusal):
            said = step(asked, known)
        assert isinstance(said, Step)
        wrong = abs(log(each.step_s / each.one.step_s))
        lows.append(log(said.seconds) - wrong)
        highs.append(log(said.seconds) + wrong)
    if len(lows) < FEWEST:
        return None
    low, high = _ends(len(lows))
    return exp(sorted(lows)[low]), exp(sorted(highs)[high])


def _ends(number: int) -> tuple[int, int]:
    """Which of the sorted lower and upper bounds are the interval's ends."""
    outside = max((number + 1) // ONE_IN - 1, 0)
    return outside, number - 1 - outside


Row = Mapping[str, Any]


def predict(runs: Sequence[Row], asked: Sequence[Row]) -> list[Prediction | Ran | Refusal]:
    """`runs`: the table of runs; `asked`: settings of planned runs, as `tables.rows.settings` has
    them, with `data_key`. Answers in the order asked; equal ones once."""
    known = measured(completed_runs(runs))
    errors, _ = predict_held_out(known)
    itself = {one.point.key: one for one in known}
    found: list[Prediction | Ran | Refusal] = []
    for point in asked_points(runs, asked):
        told, one = answered(point, known, errors), itself.get(point.key)
        found.append(_ran(one, known, told) if one else told)
    return found


def asked_points(runs: Sequence[Row], asked: Sequence[Row]) -> list[Point]:
    told = varying_settings(
        [*asked, *(row for row in completed_runs(runs) if row["workload"] == "ncf")]
    )
    found = [point_from_row(row, called(row, told)) for row in asked]
    return list({point.key: point for point in found}.values())


def answered(
    point: Point, known: Sequence[Measured], errors: Sequence[HeldOut]
) -> Prediction | Refusal:
    """By the other configurations, whether it was run or not."""
    if not known:
        return Refusal(point.label, "no completed run of these results has a speed")
    others = [one for one in known if one.point.key != point.key]
    step = model.step(point, others)
    if isinstance(step, Refusal):
        return step
    ends = interval(point, others, [each for each in errors if each.one.point.key != point.key])
    return _prediction(point, step, ends, known)


def _prediction(
    point: Point, step: model.Step, ends: tuple[float, float] | None, known: Sequence[Measured]
) -> Prediction:
    instances, factor = _epoch(point, known)
    epoch_s = steps_of(instances, point) * factor
    speed = point.batch * (1 + point.negatives) / step.seconds
    base = _base(point, known)
    return Prediction(
        label=point.label,
        seconds_per_epoch=step.seconds * epoch_s,
        low=ends[0] * epoch_s if ends else None,
        high=ends[1] * epoch_s if ends else None,
        instances_per_s=speed,
        core_s_per_epoch=step.seconds * epoch_s * point.cores,
        efficiency=_efficiency(point, speed, base) if base else None,
        base=base.point.label if base else None,
        phases=step.phases,
        basis=_basis(step),
    )


def _ran(one: Measured, known: Sequence[Measured], without_it: Prediction | Refusal) -> Ran:
    base = _base(one.point, known)
    return Ran(
        label=one.point.label,
        seconds_per_epoch=one.seconds_per_epoch,
        low=one.low if one.runs > 1 else None,
        high=one.high if one.runs > 1 else None,
        runs=one.runs,
        instances_per_s=one.instances_per_s,
        core_s_per_epoch=one.seconds_per_epoch * one.point.cores,
        efficiency=_efficiency(one.point, one.instances_per_s, base) if base else None,
        base=base.point.label if base else None,
        phases=one.phases,
        without_it=without_it,
    )


def _epoch(point: Point, known: Sequence[Measured]) -> tuple[float, float]:
    """Instances of an epoch, and what it takes beside its steps, from runs on the same data."""
    same = [one for one in known if one.point.compute == point.compute]
    return median(one.instances_per_epoch for one in same), median(one.epoch_factor for one in same)


def _base(point: Point, known: Sequence[Measured]) -> Measured | None:
    """The smallest run with the same settings, of the same batch where there is one."""
    same = [one for one in known if one.point.settings[:2] == point.settings[:2]]
    return min(
        same,
        key=lambda one: (one.point.batch != point.batch, one.point.cores, one.point.label),
        default=None,
    )


def _efficiency(point: Point, speed: float, base: Measured) -> float:
    return speed / base.instances_per_s / (point.cores / base.point.cores)


def _basis(step: model.Step) -> str:
    told = {"compute": step.compute, "input": step.input, "sync": step.sync}
    return "; ".join(f"{name}: {part.fit.law}" for name, part in told.items() if part)


def answer(one: Prediction | Ran | Refusal, command: str) -> str:
    """`command` submits what is asked; settings may be added to it."""
    if isinstance(one, Ran):
        return _ran_words(one)
    return _refusal(one, command) if isinstance(one, Refusal) else _prediction_words(one)


def _refusal(one: Refusal, command: str) -> str:
    return (
        f"{one.label}\n  no prediction: {one.reason}\n  to know, run it: {_with(command, one.run)}"
    )


def _with(command: str, settings: Sequence[str]) -> str:
    """The command with those settings that it has not yet."""
    known = command.split()
    return " ".join([command, *(f"-s {each}" for each in settings if each not in known)])


def _prediction_words(one: Prediction) -> str:
    told = format_interval(one.low, one.high, format_number)
    interval = told or f"(no interval: fewer than {FEWEST} configurations to hold out)"
    return "\n".join(
        [
            one.label,
            f"  predicted: {format_number(one.seconds_per_epoch)} s/epoch {interval}, "
            f"{_speed(one)}",
            *_beside(one),
            f"  fitted: {one.basis}",
        ]
    )


def _speed(one: Prediction | Ran) -> str:
    return (
        f"{format_number(one.instances_per_s)} instances/s, "
        f"{format_number(one.core_s_per_epoch)} core-s/epoch"
    )


def _beside(one: Prediction | Ran) -> list[str]:
    efficiency = "no efficiency: nothing of its settings was run"
    if one.base == one.label:
        efficiency = "the base: nothing of its settings has fewer cores"
    elif one.base:
        efficiency = f"parallel efficiency {format_percent(one.efficiency)} against {one.base}"
    parts = ", ".join(f"{name} {_milliseconds(part)}" for name, part in one.phases.items())
    return [f"  {efficiency}", f"  a step: {parts}"]


def _ran_words(one: Ran) -> str:
    spread = format_interval(one.low, one.high, format_number)
    told = f"{spread} over {one.runs} runs" if spread else "(one run: no interval)"
    without = one.without_it
    if isinstance(without, Refusal):
        said = f"the other runs alone do not support a prediction: {without.reason}"
    else:
        error = without.seconds_per_epoch / one.seconds_per_epoch - 1
        said = (
            f"the other runs alone would predict "
            f"{format_number(without.seconds_per_epoch)} s/epoch "
            f"({error:+.0%})"
        )
    return "\n".join(
        [
            one.label,
            f"  it was run: {format_number(one.seconds_per_epoch)} s/epoch {told}, {_speed(one)}",
            *_beside(one),
            f"  {said}",
        ]
    )


def _milliseconds(seconds: float) -> str:
    return f"{format_number(1000 * seconds)} ms"


def errors(told: Sequence[HeldOut], refused: Sequence[Refusal]) -> str:
    """Each configuration predicted from all others: how wrong."""
    lines = [
        f"{each.error:+6.0%}  {_milliseconds(each.step_s)} a step predicted, "
        f"{_milliseconds(each.one.step_s)} measured: {each.one.point.label}"
        for each in told
    ]
    if told:
        lines.append(score(told))
    lines += [f"refused  {one.label}: {one.reason}" for one in refused]
    return "\n".join(lines) or "no completed run has a speed"


def score(told: Sequence[HeldOut]) -> str:
    wrong = [abs(each.error) for each in told]
    return (
        f"half of the {len(told)} held out are predicted within {format_percent(median(wrong))}, "
        f"the worst within {format_percent(max(wrong))}"
    )
