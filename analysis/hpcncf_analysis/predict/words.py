"""Predictions, refusals, errors and simulations, as text for a terminal. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from hpcncf_analysis import words
from hpcncf_analysis.predict.answer import Prediction, Ran, Refusal
from hpcncf_analysis.predict.held_out import FEWEST, HeldOut
from hpcncf_analysis.predict.simulate import Simulated, Simulation


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
    told = words.interval(one.low, one.high, words.number)
    interval = told or f"(no interval: fewer than {FEWEST} configurations to hold out)"
    return "\n".join(
        [
            one.label,
            f"  predicted: {words.number(one.seconds_per_epoch)} s/epoch {interval}, {_speed(one)}",
            *_beside(one),
            f"  fitted: {one.basis}",
        ]
    )


def _speed(one: Prediction | Ran) -> str:
    return (
        f"{words.number(one.instances_per_s)} instances/s, "
        f"{words.number(one.core_s_per_epoch)} core-s/epoch"
    )


def _beside(one: Prediction | Ran) -> list[str]:
    efficiency = "no efficiency: nothing of its settings was run"
    if one.base == one.label:
        efficiency = "the base: nothing of its settings has fewer cores"
    elif one.base:
        efficiency = f"parallel efficiency {words.percent(one.efficiency)} against {one.base}"
    parts = ", ".join(f"{name} {_milliseconds(part)}" for name, part in one.phases.items())
    return [f"  {efficiency}", f"  a step: {parts}"]


def _ran_words(one: Ran) -> str:
    spread = words.interval(one.low, one.high, words.number)
    told = f"{spread} over {one.runs} runs" if spread else "(one run: no interval)"
    without = one.without_it
    if isinstance(without, Refusal):
        said = f"the other runs alone would not tell: {without.reason}"
    else:
        error = without.seconds_per_epoch / one.seconds_per_epoch - 1
        said = (
            f"the other runs alone would predict {words.number(without.seconds_per_epoch)} s/epoch "
            f"({error:+.0%})"
        )
    return "\n".join(
        [
            one.label,
            f"  it was run: {words.number(one.seconds_per_epoch)} s/epoch {told}, {_speed(one)}",
            *_beside(one),
            f"  {said}",
        ]
    )


def _milliseconds(seconds: float) -> str:
    return f"{words.number(1000 * seconds)} ms"


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
    return "\n".join(lines) or "no completed run tells a speed"


def score(told: Sequence[HeldOut]) -> str:
    wrong = [abs(each.error) for each in told]
    return (
        f"half of the {len(told)} held out are predicted within {words.percent(median(wrong))}, "
        f"the worst within {words.percent(max(wrong))}"
    )


def simulated(one: Simulation | Refusal, command: str) -> str:
    if isinstance(one, Refusal):
        more = f"\n  to know, run it: {_with(command, one.run)}" if one.run else ""
        return f"{one.label}\n  no simulation: {one.reason}{more}"
    lines = ["A SIMULATION, not a prediction. It assumes:"]
    lines += [f"  - {text}" for text in one.assumptions]
    lines += [one.label, f"{'ranks':>7} {'s/epoch':>9} {'speed-up':>9} {'efficiency':>10}  a step"]
    return "\n".join([*lines, *map(_size, one.sizes)])


def _size(one: Simulated) -> str:
    parts = ", ".join(f"{name} {_milliseconds(part)}" for name, part in one.phases.items())
    figures = f"{words.number(one.seconds_per_epoch):>9} {one.speedup:>8.2f}× "
    return f"{one.ranks:>7} {figures}{words.percent(one.efficiency):>10}  {parts}"
