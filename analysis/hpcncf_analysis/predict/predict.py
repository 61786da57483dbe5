"""Predict a configuration from the runs of others, with a jackknife+ interval."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import exp, log
from statistics import median
from typing import Any, Final

from hpcncf_analysis.configurations import completed_runs, varying_settings
from hpcncf_analysis.formatting import format_interval, format_number, format_percent
from hpcncf_analysis.predict.step_time import (
    Measured,
    Point,
    Prediction,
    Ran,
    Refusal,
    Step,
    label_point,
    measured_points,
    point_from_row,
    step,
    steps_of,
)

# The interval is jackknife+ (Barber, Candès, Ramdas and Tibshirani 2021) on the logarithm: each
# configuration in turn is left out, the rest predict both it and what is asked, and its error is
# put upon that. A tenth of such bounds may lie outside at either end; of fewer than 19, none does.

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
    predicted: list[HeldOut] = []
    refused: list[Refusal] = []
    for one in known:
        found = step(one.point, _without(known, one))
        if isinstance(found, Refusal):
            refused.append(found)
        else:
            predicted.append(HeldOut(one, found.seconds))
    return predicted, refused


def _without(known: Sequence[Measured], one: Measured) -> list[Measured]:
    return [other for other in known if other is not one]


def interval(
    asked: Point, known: Sequence[Measured], errors: Sequence[HeldOut]
) -> tuple[float, float] | None:
    """Seconds of a step; None if fewer than three configurations could be held out."""
    lows, highs = list[float](), list[float]()
    for each in errors:
        found = step(asked, _without(known, each.one))
        if isinstance(found, Refusal):
            found = step(asked, known)
        assert isinstance(found, Step)
        error = abs(log(each.step_s / each.one.step_s))
        lows.append(log(found.seconds) - error)
        highs.append(log(found.seconds) + error)
    if len(lows) < FEWEST:
        return None
    outside = max((len(lows) + 1) // ONE_IN - 1, 0)  # so many bounds at either end are left out
    return exp(sorted(lows)[outside]), exp(sorted(highs, reverse=True)[outside])


Row = Mapping[str, Any]


def predict(runs: Sequence[Row], asked: Sequence[Row]) -> list[Prediction | Ran | Refusal]:
    """`runs`: the table of runs; `asked`: settings of planned runs, as `collect.settings` has them,
    with `data_key`. Answers in the order asked; equal ones once."""
    known = measured_points(completed_runs(runs))
    errors, _ = predict_held_out(known)
    measured = {one.point.key: one for one in known}
    found: list[Prediction | Ran | Refusal] = []
    for point in asked_points(runs, asked):
        answer, one = predict_point(point, known, errors), measured.get(point.key)
        found.append(_ran(one, known, answer) if one else answer)
    return found


def asked_points(runs: Sequence[Row], asked: Sequence[Row]) -> list[Point]:
    """The points of planned runs, each once, labelled against the runs that were made."""
    trained = [row for row in completed_runs(runs) if row["workload"] == "ncf"]
    varying = varying_settings([*asked, *trained])
    points = [point_from_row(row, label_point(row, varying)) for row in asked]
    return list({point.key: point for point in points}.values())


def predict_point(
    point: Point, known: Sequence[Measured], errors: Sequence[HeldOut]
) -> Prediction | Refusal:
    """By the other configurations, whether it was run or not."""
    if not known:
        return Refusal(point.label, "no completed run of these results has a speed")
    others = [one for one in known if one.point.key != point.key]
    found = step(point, others)
    if isinstance(found, Refusal):
        return found
    ends = interval(point, others, [each for each in errors if each.one.point.key != point.key])
    return _prediction(point, found, ends, known)


def _prediction(
    point: Point, step: Step, ends: tuple[float, float] | None, known: Sequence[Measured]
) -> Prediction:
    # Instances of an epoch, and what it takes beside its steps, from runs on the same data.
    same = [one for one in known if one.point.compute == point.compute]
    instances = median(one.instances_per_epoch for one in same)
    epoch_s = steps_of(instances, point) * median(one.epoch_factor for one in same)
    speed = point.batch * (1 + point.negatives) / step.seconds
    base = _base(point, known)
    parts = {"compute": step.compute, "input": step.input, "sync": step.sync}
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
        basis="; ".join(f"{name}: {part.fit.law}" for name, part in parts.items() if part),
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


def describe(one: Prediction | Ran | Refusal, command: str) -> str:
    """An answer in words. `command` submits its configuration; settings may be added to it."""
    if isinstance(one, Refusal):
        more = [f"-s {each}" for each in one.run if each not in command.split()]
        run = " ".join([command, *more])
        return f"{one.label}\n  no prediction: {one.reason}\n  to know, run it: {run}"
    ends = format_interval(one.low, one.high, format_number)
    if isinstance(one, Prediction):
        figure, last = "predicted", f"fitted: {one.basis}"
        ends = ends or f"(no interval: fewer than {FEWEST} configurations to hold out)"
    else:
        figure, last = "it was run", _describe_others(one)
        ends = f"{ends} over {one.runs} runs" if ends else "(one run: no interval)"
    efficiency = "no efficiency: nothing of its settings was run"
    if one.base == one.label:
        efficiency = "the base: nothing of its settings has fewer cores"
    elif one.base:
        efficiency = f"parallel efficiency {format_percent(one.efficiency)} against {one.base}"
    parts = ", ".join(f"{name} {_milliseconds(part)}" for name, part in one.phases.items())
    speed = f"{format_number(one.instances_per_s)} instances/s"
    cost = f"{format_number(one.core_s_per_epoch)} core-s/epoch"
    return "\n".join(
        [
            one.label,
            f"  {figure}: {format_number(one.seconds_per_epoch)} s/epoch {ends}, {speed}, {cost}",
            f"  {efficiency}",
            f"  a step: {parts}",
            f"  {last}",
        ]
    )


def _describe_others(one: Ran) -> str:
    """What the other runs alone would have predicted of it."""
    if isinstance(one.without_it, Refusal):
        return f"the other runs alone do not support a prediction: {one.without_it.reason}"
    seconds = one.without_it.seconds_per_epoch
    return (
        f"the other runs alone would predict {format_number(seconds)} s/epoch "
        f"({seconds / one.seconds_per_epoch - 1:+.0%})"
    )


def _milliseconds(seconds: float) -> str:
    return f"{format_number(1000 * seconds)} ms"


def describe_errors(predicted: Sequence[HeldOut], refused: Sequence[Refusal]) -> str:
    """Each configuration predicted from all others: how wrong."""
    lines = [
        f"{each.error:+6.0%}  {_milliseconds(each.step_s)} a step predicted, "
        f"{_milliseconds(each.one.step_s)} measured: {each.one.point.label}"
        for each in predicted
    ]
    if predicted:
        errors = [abs(each.error) for each in predicted]
        lines.append(
            f"half of the {len(errors)} held out are predicted within "
            f"{format_percent(median(errors))}, the worst within {format_percent(max(errors))}"
        )
    lines += [f"refused  {one.label}: {one.reason}" for one in refused]
    return "\n".join(lines) or "no completed run has a speed"
