"""Style of all figures (Okabe, Ito 2008), and numbers at their points."""

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
from matplotlib.lines import Line2D
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
# Letters of a name in a key of two columns.
KEY_LETTERS: Final = 38
# Points from a marker's middle to that of its number.
NUMBER_OFFSET: Final = 13.0
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


@dataclass(frozen=True)
class NumberedPoint:
    """A point (x, y) in data coordinates, with its number in the report's tables."""

    x: float
    y: float
    number: int
    colour: str
    marker: str


def number_points(axes: Axes, points: Sequence[NumberedPoint], names: Mapping[int, str]) -> None:
    """Write each point's number beside it, and a key with `names`, if any, below the axes.

    A number stands on the side away from the nearest other point.
    """
    places = axes.transData.transform([(point.x, point.y) for point in points])
    for at, point in enumerate(points):
        away = places[at] - np.delete(places, at, axis=0)
        far = np.hypot(*away.T)
        nearest = int(far.argmin()) if len(far) else 0
        dx, dy = away[nearest] / far[nearest] if len(far) and far[nearest] else (0.0, 1.0)
        offset = (NUMBER_OFFSET * dx, NUMBER_OFFSET * dy)
        number, place = str(point.number), (point.x, point.y)
        annotate(axes, number, place, offset, ha="center", size=10, color=point.colour)
    if not names:
        return
    key = {
        point.number: Line2D([], [], ls="", marker=point.marker, color=point.colour)
        for point in sorted(points, key=lambda point: point.number)
    }
    columns = 2 if max(map(len, names.values())) <= KEY_LETTERS else 1
    figure = axes.get_figure(root=True)
    assert figure is not None
    figure.set_figheight(figure.get_figheight() + LINE_IN * -(-len(key) // columns))
    figure.legend(
        list(key.values()),
        [f"{number}  {names[number]}" for number in key],
        loc="outside lower left",
        ncols=columns,
        frameon=False,
        fontsize=10,
        handletextpad=0.2,
        labelspacing=0.3,
    )
