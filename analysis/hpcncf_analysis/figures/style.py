"""How every figure looks: colour-blind-safe (Okabe, Ito 2008), large type, text kept as text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from io import BytesIO, StringIO
from textwrap import fill
from typing import Any, Final

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

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
def styled() -> Iterator[None]:
    with mpl.rc_context(SETTINGS):
        yield


def blank(height_in: float) -> Figure:
    figure = Figure(figsize=(WIDTH_IN, height_in), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def headings(titles: Iterable[str]) -> tuple[list[str], float]:
    """Panels' titles in lines that a figure has room for, and how high the lines beyond the first
    are together, in inches."""
    wrapped = [fill(title, LINE, break_on_hyphens=False) for title in titles]
    return wrapped, LINE_IN * sum(title.count("\n") for title in wrapped)


def colours(series: Iterable[str]) -> dict[str, str]:
    """Each series its own colour, the same in every figure of a report."""
    names = sorted(set(series))
    return {name: SERIES[number % len(SERIES)] for number, name in enumerate(names)}


def marker(ranks: int) -> str:
    """A circle for one rank, a square for several."""
    return "o" if ranks == 1 else "s"


def quiet_grid(axes: Axes) -> None:
    axes.grid(visible=True, color=FAINT, lw=0.6)
    axes.set_axisbelow(True)


def thousands(value: float, _position: object = None) -> str:
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
