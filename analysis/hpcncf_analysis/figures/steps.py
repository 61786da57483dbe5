"""A step as a waterfall, and the ranks' steps beside each other; None where nobody trained."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from hpcncf.tables.trained import PHASES_TRAINED
from hpcncf_analysis import words
from hpcncf_analysis.figures import style
from hpcncf_analysis.figures.style import FAINT, GREY
from hpcncf_analysis.summary import Configuration

Row = Mapping[str, Any]

# A figure has room for so many ranks.
RANKS: Final = 32
# What a rank does of its own, told from its waiting.
PARTS: Final = {"input": "input", "computing": "forward", "waiting for ranks": "sync"}


def trained(ranks: Iterable[Row], one: Configuration) -> list[Row]:
    """The ranks' rows of a configuration's first run that counted steps."""
    run = one.rows[0]["run_id"]
    return [row for row in ranks if row["run_id"] == run and row.get("counted_steps")]


def step_ms(ranks: Sequence[Row]) -> dict[str, float]:
    """Phase -> its milliseconds of a rank's mean step; those of no time are left out."""
    steps = sum(row["counted_steps"] for row in ranks)
    told = {phase: 1000 * sum(row[f"{phase}_s"] for row in ranks) / steps for phase in PHASES_TRAINED}
    return {phase: each for phase, each in told.items() if each > 0}


def waterfall(shown: Sequence[Configuration], ranks: Sequence[Row]) -> Figure | None:
    """A panel for each configuration: phase below phase, each from where the one above ended."""
    told = [(one, step_ms(rows)) for one in shown if (rows := trained(ranks, one))]
    if not told:
        return None
    heights = [0.3 * len(phases) for _, phases in told]
    titles, lines_in = style.headings(
        f"{one.label}: {words.number(sum(phases.values()))} ms" for one, phases in told
    )
    with style.styled():
        figure = style.blank(sum(heights) + lines_in + 0.55 * len(told) + 0.4)
        panels = figure.subplots(len(told), 1, squeeze=False, sharex=True, height_ratios=heights)[
            :, 0
        ]
        for axes, title, (_, phases) in zip(panels, titles, told, strict=True):
            _falling(axes, phases)
            axes.set_title(title)
        panels[-1].set_xlim(0, 1.14 * max(sum(phases.values()) for _, phases in told))
        panels[-1].set_xlabel("milliseconds of a step, mean over steps and ranks")
    return figure


def _falling(axes: Axes, phases: Mapping[str, float]) -> None:
    begun, whole = 0.0, sum(phases.values())
    for row, (phase, each) in enumerate(phases.items()):
        axes.barh(row, each, 0.7, begun, color=style.PHASES_STYLE[phase])
        begun += each
        axes.plot([begun, begun], [row, min(row + 1, len(phases) - 1)], color=GREY, lw=0.8)
        axes.annotate(
            words.percent(each / whole),
            (begun, row),
            xytext=(5, 0),
            textcoords="offset points",
            va="center",
            size=9,
        )
    axes.set_yticks(range(len(phases)), list(phases))
    axes.set_ylim(len(phases) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=True, axis="x", color=FAINT, lw=0.6)
    axes.set_axisbelow(True)


def ranks_beside(ranks: Sequence[Row], title: str) -> Figure | None:
    """A bar for each rank of one run: input, computing, and waiting for the others."""
    shown = ranks[:RANKS]
    if len(shown) < 2:
        return None
    with style.styled():
        figure = style.blank(1.5 + 0.3 * len(shown))
        axes = figure.subplots()
        for place, row in enumerate(shown):
            begun = 0.0
            for part, seconds in _parts(row).items():
                axes.barh(place, seconds, 0.7, begun, color=style.PHASES_STYLE[PARTS[part]])
                begun += seconds
        axes.set_yticks(range(len(shown)), [_rank(row, shown) for row in shown])
        axes.set_ylim(len(shown) - 0.5, -0.5)
        axes.tick_params(axis="y", length=0)
        axes.set_xlabel("seconds of the counted steps")
        axes.set_title(title)
        handles = [Patch(color=style.PHASES_STYLE[phase], label=part) for part, phase in PARTS.items()]
        figure.legend(
            handles=handles, loc="outside upper left", ncols=3, frameon=False, handlelength=1.0
        )
    return figure


def _rank(row: Row, shown: Sequence[Row]) -> str:
    several = len({each["node"] for each in shown}) > 1
    return f"rank {row['rank']}{' ' + row['node'] if several else ''}"


def _parts(row: Row) -> dict[str, float]:
    """Seconds; what is neither input nor waiting is computing."""
    computing = max(row["counted_s"] - row["input_s"] - row["sync_s"], 0.0)
    return {"input": row["input_s"], "computing": computing, "waiting for ranks": row["sync_s"]}
