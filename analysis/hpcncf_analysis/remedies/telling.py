"""The table of remedies, and one sentence on each. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from hpcncf_analysis import words
from hpcncf_analysis.labels import counted
from hpcncf_analysis.remedies.effect import ERRORS, MIB, Effect, Verdict
from hpcncf_analysis.table import Table

SENTENCES: Final[dict[Verdict, str]] = {
    "gains": "gains {gain}",
    "loses": "loses: {gain} of the speed",
    "nothing": "does nothing here",
    "open": "not settled: repeats of the same settings differ by as much",
    "worse model": "the model is worse, whatever the speed",
}
COLUMNS: Final = [
    "remedy",
    "on top of",
    "gain",
    "range",
    "against the baseline",
    "memory, MiB more",
    "HR@10",
    "what it does",
]


def table(effects: Sequence[Effect]) -> Table | None:
    if not effects:
        return None
    return Table(COLUMNS, [_row(each) for each in effects], frozenset({"on top of", COLUMNS[-1]}))


def _row(effect: Effect) -> list[str]:
    return [
        named(effect.changed),
        named(effect.before) or "the baseline",
        words.times(effect.gain.value),
        words.interval(effect.gain.low, effect.gain.high, words.times),
        words.times(effect.overall.value),
        words.number(effect.memory_mib),
        words.score(effect.one.median("hr10")),
        sentence(effect),
    ]


def named(changed: Mapping[str, Any]) -> str:
    """`loader: batched, num_workers: 2`."""
    return ", ".join(f"{key.split('.')[-1]}: {_plain(value)}" for key, value in changed.items())


def _plain(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def sentence(effect: Effect) -> str:
    """What it does, what it costs in cores and memory, and whether once was enough to tell."""
    told = [_did(effect)]
    cores = effect.one.cores - effect.on.cores
    if cores > 0:
        told.append(f"for {counted(cores, 'core')} more")
    if effect.memory_mib is not None and abs(effect.memory_mib) >= MIB:
        sign = "more" if effect.memory_mib > 0 else "less"
        told.append(f"with {words.mebibytes(abs(effect.memory_mib))} {sign}")
    if effect.gain.low is None:
        told.append("measured once")
    return ", ".join(told)


def _did(effect: Effect) -> str:
    """To the speed, and where the model is another, to that."""
    speed = SENTENCES[effect.verdict].format(gain=words.times(effect.gain.value))
    if effect.verdict != "worse model" and not effect.better:
        return speed
    before, after = (words.score(one.median("hr10")) for one in (effect.on, effect.one))
    scores = f"HR@10 {before} to {after}"
    if effect.verdict == "worse model":
        return f"{speed} ({scores})"
    told = "does nothing for the speed here" if effect.verdict == "nothing" else speed
    return f"a better model ({scores}); {told}"


def note(effects: Sequence[Effect]) -> str:
    base = next(each.on for each in effects if each.on.rows[0].get("baseline"))
    return (
        f"Baseline: {base.label}. A remedy is compared with the configuration that has all of its "
        "changes but the last; the range is from the slowest to the fastest repeats. It gains or "
        f"loses where those lie apart and it is more than {ERRORS} standard errors from 1, by the "
        "scatter of its repeats or what is usual in the job, if that is more."
    )
