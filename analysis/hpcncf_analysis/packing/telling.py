"""The packing curve as a table and in sentences: how many runs side by side, and why. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from hpcncf_analysis import words
from hpcncf_analysis.labels import counted
from hpcncf_analysis.packing.curve import Curve, Size
from hpcncf_analysis.table import Table

# With less, part of the time the pack was smaller than it is called.
TOGETHER: Final = 0.8
# Of the page's section.
TITLE: Final = "Runs side by side"
COLUMNS: Final = [
    "configuration",
    "runs side by side",
    "all: instances/s",
    "all: range",
    "all: against one",
    "each: instances/s",
    "each: of its speed alone",
    "one run on as many cores",
    "MiB, all runs",
    "MiB of the GPU",
    "packs",
]


def table(curves: Sequence[Curve]) -> Table:
    rows = [_row(curve, size) for curve in curves for size in curve.sizes]
    return Table(COLUMNS, rows).told


def named(curve: Curve) -> str:
    return curve.label + (" · MPS" if curve.mps else "")


def _row(curve: Curve, size: Size) -> list[str]:
    one = _alone_telling(curve)
    several = size.packs > 1
    return [
        named(curve),
        str(size.runs),
        words.number(size.total),
        words.interval(size.low, size.high, words.number) if several else "",
        words.times(size.total / one.total) if one else words.NONE,
        words.number(size.each),
        words.percent(size.each / one.total) if one else words.NONE,
        words.number(size.instead),
        words.number(size.memory_mib),
        words.number(size.gpu_memory_mib),
        str(size.packs),
    ]


def _alone_telling(curve: Curve) -> Size | None:
    return next((size for size in curve.sizes if size.runs == 1), None)


def sentences(curve: Curve) -> Iterator[str]:
    """What is recommended, where the total falls, and what makes it worth less."""
    where = f"{named(curve)}: "
    if len(curve.sizes) == 1:
        runs = curve.sizes[0].runs
        yield f"{where}only {runs} side by side were measured: others are needed to compare with."
    else:
        yield where + _advice(curve)
    apart = min(curve.sizes, key=lambda size: size.overlap)
    if apart.overlap < TOGETHER:
        yield (
            f"Of the {apart.runs} side by side all were at work for only "
            f"{words.percent(apart.overlap)} of their time, so that the true total is less: "
            "longer runs tell more."
        )


def _advice(curve: Curve) -> str:
    best, one = curve.recommended, _alone_telling(curve)
    shared = "a GPU" if curve.on_gpu else "a node"
    if best.runs == 1:
        return f"one run on {shared} is best; {_loss(curve)}"
    told = f"{best.runs} runs on {shared}: {words.number(best.total)} instances/s together"
    if one:
        told += f", {words.times(best.total / one.total)} those of one"
        told += f", each at {words.percent(best.each / one.total)} of its speed alone"
    if best.instead:
        told += f"; one run on as many cores makes {words.number(best.instead)}"
    return f"{told}; {_beyond(curve)}"


def _loss(curve: Curve) -> str:
    most = curve.sizes[-1]
    change = most.total / curve.sizes[0].total
    return f"{counted(most.runs, 'run')} bring {words.times(change)} as much together."


def _beyond(curve: Curve) -> str:
    falls, largest = curve.falls_at, curve.sizes[-1]
    if falls:
        return f"with {falls.runs} the total falls to {words.number(falls.total)}."
    if curve.recommended is largest:
        return "the total had not stopped growing: more may be better."
    return "more bring nothing."
