"""How far the measured values of a number carry, and which runs would carry further. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from hpcncf_analysis.predict.answer import Refusal
from hpcncf_analysis.predict.points import Point

# As a fit of speed-up: never beyond four times what was measured.
FARTHEST: Final = 4


@dataclass(frozen=True)
class Axis:
    """A number of a point, and how many of its values must have been run for one that was not."""

    name: str
    value: Callable[[Point], float]
    between: int
    beyond: int


THREADS = Axis("threads", lambda point: point.threads, 3, 4)
ON_NODE = Axis("ranks on a node", lambda point: point.ranks_per_node, 3, 4)
RANKS = Axis("ranks", lambda point: point.ranks, 3, 4)
# A step's cost is a straight line in its positives: two points make one, a third tells if it is.
SHARE = Axis("positives of a rank's step", lambda point: point.share, 2, 3)
AXES: Final[dict[str, tuple[Axis, ...]]] = {
    "compute": (THREADS, ON_NODE, SHARE),
    "input": (ON_NODE, SHARE),
    "sync": (RANKS,),
    "bytes": (SHARE,),
}


def refusal(part: str, asked: Point, known: Sequence[Point]) -> Refusal | None:
    """Why this part of the asked one's step cannot be told from the known ones; None: it can."""
    if not known:
        return _nothing(part, asked)
    for axis in AXES[part]:
        reason = _beyond(axis, axis.value(asked), sorted({axis.value(one) for one in known}))
        if reason:
            return Refusal(asked.label, reason, _runs(axis, asked))
    return None


def _nothing(part: str, asked: Point) -> Refusal:
    """The settings themselves were not run."""
    if part in ("sync", "bytes"):
        settings = dict(asked.compute)
        what = f"several ranks with engine {_plain(settings, 'engine')}"
        return Refusal(asked.label, f"no run of {what} and these settings tells what they exchange")
    settings = dict(asked.input if part == "input" else asked.compute)
    names = ("loader", "num_workers") if part == "input" else ("engine", "optimizer")
    what = ", ".join(f"{name} {_plain(settings, name)}" for name in names if name in settings)
    return Refusal(asked.label, f"no run tells the {part} of {what} with otherwise these settings")


def _plain(settings: dict[str, str], name: str) -> str:
    return settings.get(name, "?").strip("'")


def _beyond(axis: Axis, value: float, values: Sequence[float]) -> str | None:
    if value in values:
        return None
    told = f"{axis.name} {value:g}: run were {_listed(values)}"
    low, high = values[0], values[-1]
    if not low / FARTHEST <= value <= FARTHEST * high:
        return f"{told}; nothing is told beyond {FARTHEST} times what was run"
    within = low < value < high
    needed = axis.between if within else axis.beyond
    if len(values) >= needed:
        return None
    where = "between them" if within else "beyond them"
    return f"{told}; a value {where} needs {needed} that were run"


def _listed(values: Iterable[float]) -> str:
    return ", ".join(f"{value:g}" for value in values)


def _runs(axis: Axis, asked: Point) -> tuple[str, ...]:
    """The settings of the job file that make this number."""
    if axis is SHARE:
        return batch(asked, asked.batch)
    if axis is THREADS:
        cores = asked.cores / asked.ranks
        key = "resources.cpus_per_task" if cores == asked.threads else "training.threads"
        return (f"{key}={asked.threads}",)
    nodes = asked.ranks // asked.ranks_per_node
    several = (f"resources.nodes={nodes}",) if nodes > 1 else ()
    return (*several, f"resources.tasks_per_node={asked.ranks_per_node}")


def batch(asked: Point, positives: int) -> tuple[str, ...]:
    """The setting for so many positives of a step over all ranks, as its job file spells it."""
    if asked.batch_per_rank is None:
        return (f"training.global_batch_size={positives}",)
    parts = asked.batch // (asked.batch_per_rank * asked.ranks)  # `accumulate`
    return (f"training.batch_size_per_rank={max(positives // (asked.ranks * parts), 1)}",)
