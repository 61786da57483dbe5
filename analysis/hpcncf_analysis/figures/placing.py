"""Labels beside their points, moved until they cover neither points nor each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.transforms import Bbox

# What a label leaves free around its own kind of point and around a single run's, in points.
MARKER: Final = 5.0
DOT: Final = 2.5
# Points to the right, left, above and below, then further and further out: (x, y, alignment).
OFFSETS: Final = [
    (dx * far, dy * far, side)
    for far in (1.0, 1.4, 1.8, 2.3, 3.0, 3.7, 4.5, 6.0)
    for dx, dy, side in (
        (9, 0, "left"),
        (-9, 0, "right"),
        (7, 9, "left"),
        (7, -9, "left"),
        (-7, 9, "right"),
        (-7, -9, "right"),
        (0, 12, "center"),
        (0, -12, "center"),
    )
]


# Where a label's line begins, 0 at its left end and 1 at its right.
NEAR_END: Final = {"left": 0.0, "center": 0.5, "right": 1.0}

# [box, (x0, y0, x1, y1)] in pixels.
Boxes = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True)
class Label:
    """A text for the point (x, y), in data coordinates."""

    x: float
    y: float
    text: str
    colour: str


def place(
    axes: Axes,
    labels: Sequence[Label],
    points: Sequence[tuple[float, float]],
    medians: Sequence[tuple[float, float]] = (),
) -> None:
    """Draw every label where it covers least; far ones get a line to their point.

    A label over another's median would name the wrong one: that weighs most. `medians` are those
    without a label of their own. From the right to the left: those at the edge have the fewest
    places to go.
    """
    figure = axes.get_figure(root=True)
    assert figure is not None
    figure.draw_without_rendering()
    figure.set_layout_engine("none")  # what is placed now must not move when the figure is saved
    places = [*((label.x, label.y) for label in labels), *medians]
    markers = np.array([_around(axes, *place, MARKER).extents for place in places]).reshape(-1, 4)
    dots = [_around(axes, x, y, DOT).extents for x, y in points]
    taken = np.array([*markers, *dots]).reshape(-1, 4)
    for label in sorted(labels, key=lambda label: label.x, reverse=True):
        boxes = _boxes(axes, label)
        costs = [
            _cost(axes, box, at, taken, markers) for box, at in zip(boxes, OFFSETS, strict=True)
        ]
        best = costs.index(min(costs))
        _draw(axes, label, OFFSETS[best])
        taken = np.vstack([taken, boxes[best].extents])


def _around(axes: Axes, x: float, y: float, radius: float) -> Bbox:
    at = axes.transData.transform((x, y))
    half = radius * axes.figure.dpi / 72
    return Bbox.from_extents(at[0] - half, at[1] - half, at[0] + half, at[1] + half)


def _boxes(axes: Axes, label: Label) -> list[Bbox]:
    """Where the label would stand for each of OFFSETS, in pixels. Its size is measured once: to lay
    out a text takes longer than all else."""
    text = axes.text(label.x, label.y, label.text)
    width, height = text.get_window_extent().size
    text.remove()
    x, y = axes.transData.transform((label.x, label.y))
    pixels = axes.figure.dpi / 72
    corners = [
        (x + dx * pixels - NEAR_END[side] * width, y + dy * pixels - height / 2)
        for dx, dy, side in OFFSETS
    ]
    return [Bbox.from_bounds(left, low, width, height).padded(3) for left, low in corners]


def _cost(
    axes: Axes, box: Bbox, at: tuple[float, float, str], taken: Boxes, markers: Boxes
) -> float:
    """Square pixels covered, those outside the axes and of medians ten times.

    Nearer wins where all are free.
    """
    frame = np.array([axes.get_window_extent().extents])
    outside = box.width * box.height - _overlap(box, frame)
    covered = _overlap(box, taken)
    return covered + 10 * (outside + _overlap(box, markers)) + (abs(at[0]) + abs(at[1])) / 10


def _overlap(box: Bbox, others: Boxes) -> float:
    """Square pixels of the box under each of the others, summed."""
    wide = np.minimum(box.x1, others[:, 2]) - np.maximum(box.x0, others[:, 0])
    high = np.minimum(box.y1, others[:, 3]) - np.maximum(box.y0, others[:, 1])
    return float((np.clip(wide, 0, None) * np.clip(high, 0, None)).sum())


def _draw(axes: Axes, label: Label, at: tuple[float, float, str]) -> None:
    dx, dy, side = at
    far = abs(dx) + abs(dy) > 20
    line = {"arrowstyle": "-", "color": label.colour, "lw": 0.8, "relpos": (NEAR_END[side], 0.5)}
    axes.annotate(
        label.text,
        (label.x, label.y),
        xytext=(dx, dy),
        textcoords="offset points",
        ha=side,
        va="center",
        color=label.colour,
        arrowprops=line if far else None,
        bbox={"facecolor": "w", "alpha": 0.85, "edgecolor": "none", "pad": 0.3},
    )
