"""Style of all figures (Okabe, Ito 2008), and labels that do not overlap."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from io import BytesIO
from textwrap import fill
from typing import Any, Final

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.patches import Patch

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
# Between two panels, for a title and the names of ticks.
GAP_IN: Final = 0.7
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

Position = tuple[float, float]

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
    "pdf.fonttype": 42,
    "figure.dpi": 100,
}


def report_style() -> AbstractContextManager[None]:
    return mpl.rc_context(SETTINGS)


def new_figure(height_in: float) -> Figure:
    figure = Figure(figsize=(WIDTH_IN, height_in), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def fix_layout(figure: Figure) -> None:
    """Compute the figure's layout once instead of once for each file format."""
    if isinstance(figure.get_layout_engine(), ConstrainedLayoutEngine):
        figure.draw_without_rendering()
        figure.set_layout_engine("none")


def stack_panels(heights: Mapping[str, Sequence[float]], sharex: bool) -> list[list[Axes]]:
    """Create axes one below the other, a panel per title; heights are in inches."""
    titles = [fill(title, LINE, break_on_hyphens=False) for title in heights]
    lines_in = LINE_IN * sum(title.count("\n") for title in titles)
    every = [height for panel in heights.values() for height in panel]
    figure = new_figure(sum(every) + lines_in + GAP_IN * len(heights) + 0.4)
    axes = iter(
        figure.subplots(len(every), 1, squeeze=False, sharex=sharex, height_ratios=every)[:, 0]
    )
    panels = [[next(axes) for _ in panel] for panel in heights.values()]
    for panel, title in zip(panels, titles, strict=True):
        panel[0].set_title(title)
    return panels


def name_rows(axes: Axes, names: Sequence[str]) -> None:
    """Label horizontal rows of bars, the first on top."""
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(max(len(names), 1) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0)


def annotate(
    axes: Axes, text: str, at: Position, offset: Position = (5, 0), **settings: Any
) -> None:
    """Place a text beside a point in data coordinates, offset in points."""
    plain: dict[str, Any] = {"va": "center", "size": 9, "color": INK}
    axes.annotate(text, at, xytext=offset, textcoords="offset points", **(plain | settings))


def series_colours(series: Iterable[str]) -> dict[str, str]:
    """Map each series to a colour by its place in alphabetical order."""
    names = sorted(set(series))
    return {name: SERIES[number % len(SERIES)] for number, name in enumerate(names)}


def rank_marker(ranks: int) -> str:
    """Marker of a run in figures: a circle for one rank, a square for several."""
    return "o" if ranks == 1 else "s"


def quiet_grid(axes: Axes) -> None:
    axes.grid(visible=True, color=FAINT, lw=0.6)
    axes.set_axisbelow(True)


def format_thousands(value: float, _position: object = None) -> str:
    """Format a tick of instances per second: `500`, `2k`, `1.5M`."""
    for size, letter in ((1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:g}{letter}"
    return f"{value:g}"


def legend_above(figure: Figure, colours: Mapping[str, str]) -> None:
    """Draw a legend of the colours above the axes."""
    figure.legend(
        handles=[Patch(color=colour, label=name) for name, colour in colours.items()],
        loc="outside upper left",
        ncols=3,
        frameon=False,
        columnspacing=1.2,
        handlelength=1.0,
    )


# Format -> what it saves with: the same figure gives the same bytes, and its texts stay texts.
FORMATS: Final[dict[str, Any]] = {
    "svg": {"metadata": {"Date": None, "Creator": None}},
    "png": {"metadata": {"Software": None}, "dpi": 160},
    "pdf": {"metadata": {"CreationDate": None, "Producer": None}},
}


def save_figure(figure: Figure, name: str, file_format: str) -> bytes:
    """Render the figure as the bytes of a file; its element ids are salted with `name`."""
    content = BytesIO()
    with mpl.rc_context(SETTINGS | {"svg.hashsalt": name}):
        figure.savefig(content, format=file_format, **FORMATS[file_format])
    return content.getvalue()


# What a label leaves free around its own kind of point and around a single run's, in points.
MARKER: Final = 5.0
DOT: Final = 2.5
# And around itself, in pixels.
PADDING: Final = 3.0
# Where a label's line begins, 0 at its left end and 1 at its right.
NEAR_END: Final = {"left": 0.0, "center": 0.5, "right": 1.0}
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

# [box, (x0, y0, x1, y1)] in pixels.
Boxes = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True)
class PointLabel:
    """Text that belongs to a point (x, y) in data coordinates."""

    x: float
    y: float
    text: str
    colour: str


def place_labels(
    axes: Axes,
    labels: Sequence[PointLabel],
    points: Sequence[Position],
    medians: Sequence[Position] = (),
) -> None:
    """Draw each label where it covers least, with a line to its point if that is far.

    What a label covers counts in square pixels, ten times if it is outside the axes or another's
    median: over that it would name the wrong one. Of free places the nearest. `medians` are those
    without a label of their own. From the right to the left: those at the edge have the fewest
    places to go.
    """
    figure = axes.get_figure(root=True)
    assert figure is not None
    fix_layout(figure)  # what is placed now must not move when the figure is saved
    markers = _squares(axes, [*((label.x, label.y) for label in labels), *medians], MARKER)
    taken = np.vstack([markers, _squares(axes, points, DOT)])
    frame = np.array([axes.get_window_extent().extents])
    distances = np.array([(abs(dx) + abs(dy)) / 10 for dx, dy, _ in OFFSETS])
    for label in sorted(labels, key=lambda label: label.x, reverse=True):
        boxes = _boxes(axes, label)
        outside = _areas(boxes) - _overlap(boxes, frame)
        costs = _overlap(boxes, taken) + 10 * (outside + _overlap(boxes, markers)) + distances
        best = int(costs.argmin())
        taken = np.vstack([taken, boxes[best]])
        dx, dy, side = OFFSETS[best]
        line = {"arrowstyle": "-", "color": label.colour, "lw": 0.8}
        axes.annotate(
            label.text,
            (label.x, label.y),
            xytext=(dx, dy),
            textcoords="offset points",
            ha=side,
            va="center",
            color=label.colour,
            arrowprops=line | {"relpos": (NEAR_END[side], 0.5)} if abs(dx) + abs(dy) > 20 else None,
            bbox={"facecolor": "w", "alpha": 0.85, "edgecolor": "none", "pad": 0.3},
        )


def _squares(axes: Axes, places: Sequence[Position], radius: float) -> Boxes:
    """Square boxes, in pixels, around points in data coordinates; the radius is in points."""
    at = axes.transData.transform(np.array(places, dtype=float).reshape(-1, 2))
    half = radius * axes.figure.dpi / 72
    return np.hstack([at - half, at + half])


def _boxes(axes: Axes, label: PointLabel) -> Boxes:
    """Possible boxes of a label in pixels, one for each of OFFSETS.

    The text is measured once: its layout takes longer than everything else here.
    """
    text = axes.text(label.x, label.y, label.text)
    width, height = text.get_window_extent().size
    text.remove()
    x, y = axes.transData.transform((label.x, label.y))
    pixels = axes.figure.dpi / 72
    left = np.array([x + dx * pixels - NEAR_END[side] * width for dx, _, side in OFFSETS])
    low = np.array([y + dy * pixels - height / 2 for _, dy, _ in OFFSETS])
    sides = (left - PADDING, low - PADDING, left + width + PADDING, low + height + PADDING)
    return np.column_stack(sides)


def _areas(boxes: Boxes) -> Boxes:
    sides: Boxes = np.clip(boxes[..., 2:] - boxes[..., :2], 0, None)
    return sides[..., 0] * sides[..., 1]


def _overlap(boxes: Boxes, others: Boxes) -> Boxes:
    """Total area of each box covered by `others`, in square pixels."""
    lower = np.maximum(boxes[:, None, :2], others[None, :, :2])
    upper = np.minimum(boxes[:, None, 2:], others[None, :, 2:])
    covered: Boxes = _areas(np.concatenate([lower, upper], axis=-1)).sum(axis=1)
    return covered
