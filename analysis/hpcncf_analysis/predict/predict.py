"""A question for a configuration that was not run, answered from the table of runs. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from hpcncf_analysis import labels
from hpcncf_analysis.predict import held_out, model, points
from hpcncf_analysis.predict.answer import Prediction, Ran, Refusal
from hpcncf_analysis.predict.held_out import HeldOut
from hpcncf_analysis.predict.points import Measured, Point
from hpcncf_analysis.summary import completed

Row = Mapping[str, Any]


def predict(runs: Sequence[Row], asked: Sequence[Row]) -> list[Prediction | Ran | Refusal]:
    """`runs`: the table of runs; `asked`: settings of planned runs, as `tables.rows.settings` has
    them, with `data_key`. Answers in the order asked; equal ones once."""
    known = points.measured(completed(runs))
    errors, _ = held_out.held_out_held_out(known)
    itself = {one.point.key: one for one in known}
    found: list[Prediction | Ran | Refusal] = []
    for point in asked_points(runs, asked):
        told, one = answered(point, known, errors), itself.get(point.key)
        found.append(_ran(one, known, told) if one else told)
    return found


def asked_points(runs: Sequence[Row], asked: Sequence[Row]) -> list[Point]:
    told = labels.varying([*asked, *(row for row in completed(runs) if row["workload"] == "ncf")])
    found = [points.of_row(row, points.called(row, told)) for row in asked]
    return list({point.key: point for point in found}.values())


def answered(
    point: Point, known: Sequence[Measured], errors: Sequence[HeldOut]
) -> Prediction | Refusal:
    """By the other configurations, whether it was run or not."""
    if not known:
        return Refusal(point.label, "no completed run of these results tells a speed")
    others = [one for one in known if one.point.key != point.key]
    step = model.step(point, others)
    if isinstance(step, Refusal):
        return step
    ends = held_out.interval(
        point, others, [each for each in errors if each.one.point.key != point.key]
    )
    return _prediction(point, step, ends, known)


def _prediction(
    point: Point, step: model.Step, ends: tuple[float, float] | None, known: Sequence[Measured]
) -> Prediction:
    instances, factor = _epoch(point, known)
    epoch_s = points.steps_of(instances, point) * factor
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
