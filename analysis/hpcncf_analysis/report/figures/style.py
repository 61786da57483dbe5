"""Style of all figures (Okabe, Ito 2008), and labels that do not overlap."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO, StringIO
from textwrap import fill
from typing import Any, Final

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.transforms import Bbox

BLUE, VERMILION, GREEN, PURPLE = "#0072B2", "#D55E00", "#007A5A", "#AA4A84"
SERIES: Final = [VERMILION, BLUE, GREEN, PURPLE, "#8A6100", "#2A7FA8", "#333333"]
PHASES_STYLE: Final = {
    "input": "#D55E00",
    "forward": "#0072B2",
    "backward": "#56B4E9",
    "sync": "#CC79A7",
    "optimizer": "#009E73",
    "other": "#B5B5B5",
    "fused": "#8A6100",
}
INK, GREY, FAINT, GROUND = "#222222", "#6B6B6B", "#D9D9D9", "#F0F0F0"
WIDTH_IN: Final = 6.4
# Letters of a panel's title above an axes, and how high a line of it is.
LINE: Final = 64
LINE_IN: Final = 0.2
# What a page calls these colours, to have lighter ones on a dark ground.
VARIABLES: Final = {
    INK: "ink",
    GREY: "soft",
    FAINT: "line",
    GROUND: "idle",
    "#FFFFFF": "figure",
    BLUE: "blue",
    VERMILION: "vermilion",
    GREEN: "green",
    PURPLE: "purple",
    "#8A6100": "ochre",
    "#2A7FA8": "steel",
    "#333333": "dark",
    "#56B4E9": "sky",
}

SETTINGS: Final[Any] = {  # matplotlib's stubs know its keys as literals only
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans", "Arial", "sans-serif"],
    "font.size": 11,
    "axes.titlesize": 12,
    "axes.titlelocation": "left",
    "axes.edgecolor": GREY,
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "text.color": INK,
    "xtick.color": GREY,
    "ytick.color": GREY,
    "svg.fonttype": "none",
    "figure.dpi": 100,
}


@contextmanager
def report_style() -> Iterator[None]:
    with mpl.rc_context(SETTINGS):
        yield


def new_figure(height_in: float) -> Figure:
    figure = Figure(figsize=(WIDTH_IN, height_in), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def wrap_titles(titles: Iterable[str]) -> tuple[list[str], float]:
    """Panels' titles in lines that a figure has room for, and how high the lines beyond the first
    are together, in inches."""
    wrapped = [fill(title, LINE, break_on_hyphens=False) for title in titles]
    return wrapped, LINE_IN * sum(title.count("\n") for title in wrapped)


def series_colours(series: Iterable[str]) -> dict[str, str]:
    """Each series its own colour, the same in every figure of a report."""
    names = sorted(set(series))
    return {name: SERIES[number % len(SERIES)] for number, name in enumerate(names)}


def rank_marker(ranks: int) -> str:
    """A circle for one rank, a square for several."""
    return "o" if ranks == 1 else "s"


def quiet_grid(axes: Axes) -> None:
    axes.grid(visible=True, color=FAINT, lw=0.6)
    axes.set_axisbelow(True)


def format_thousands(value: float, _position: object = None) -> str:
    """`500`, `2k`, `1.5M`: what stands at a tick of instances per second."""
    for size, letter in ((1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:g}{letter}"
    return f"{value:g}"


def as_svg(figure: Figure, name: str) -> str:
    """The same figure gives the same text: no date, ids salted with the figure's name."""
    text = StringIO()
    with mpl.rc_context(SETTINGS | {"svg.hashsalt": name}):
        figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    return text.getvalue()


def as_pdf(figure: Figure) -> bytes:
    """For a paper: the same figure gives the same bytes, its texts stay texts."""
    page = BytesIO()
    with mpl.rc_context(SETTINGS | {"pdf.fonttype": 42}):
        figure.savefig(page, format="pdf", metadata={"CreationDate": None, "Producer": None})
    return page.getvalue()


def as_png(figure: Figure) -> bytes:
    image = BytesIO()
    with mpl.rc_context(SETTINGS):
        figure.savefig(image, format="png", dpi=160, metadata={"Software": None})
    return image.getvalue()


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


def place_labels(
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
