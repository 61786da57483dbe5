"""What every core did over time: one picture of the busiest run and one of the idlest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from hpcncf.records import NodeRecord
from hpcncf_analysis import style

IDLE, OURS, OTHERS = "#ECECEC", style.BLUE, "#E69F00"
ROW_IN: Final = 0.3
MOST_TICKS: Final = 16


@dataclass(frozen=True)
class Watched:
    """One run to show: a title and its nodes' records."""

    title: str
    nodes: Sequence[NodeRecord]


def core_heatmap(runs: Sequence[Watched]) -> Figure | None:
    """A row for each core, time to the right.

    A cell mixes grey, blue and orange in the shares of its time that were idle, ours (an
    estimate) and others'.
    """
    shown = [run for run in runs if any(node.cpus and node.start_s for node in run.nodes)]
    if not shown:
        return None
    rows = [sum(len(node.cpus) for node in run.nodes) for run in shown]
    heights = [min(max(ROW_IN * each, 0.6), 4.0) for each in rows]
    with style.styled():
        figure = style.blank(sum(heights) + 0.85 * len(shown) + 0.5)
        panels = figure.subplots(len(shown), 1, squeeze=False, height_ratios=heights)[:, 0]
        for axes, run in zip(panels, shown, strict=True):
            _panel(axes, run)
        panels[-1].set_xlabel("seconds since the run's start")
        _key(figure)
    return figure


def _panel(axes: Axes, run: Watched) -> None:
    top, names = 0, []
    for node in run.nodes:
        count = len(node.cpus)
        edges = [*node.start_s, node.start_s[-1] + node.length_s[-1]] if node.start_s else []
        if edges and count:
            rows = np.arange(top, top + count + 1)
            axes.pcolormesh(edges, rows, colours(node), rasterized=True, linewidth=0)
        prefix = f"{node.node} " if len(run.nodes) > 1 else ""
        names += [f"{prefix}CPU {cpu}" for cpu in node.cpus]
        top += count
    axes.set_ylim(top, 0)
    every = -(-len(names) // MOST_TICKS)
    axes.set_yticks([row + 0.5 for row in range(0, top, every)], names[::every])
    axes.tick_params(axis="y", length=0)
    axes.set_title(run.title)


def colours(node: NodeRecord) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    """[cpu, window, 3]: the shares' mixture of the three colours."""
    busy = np.clip(np.array(node.busy, dtype=float), 0, 1)
    ours = np.minimum(np.clip(np.array(node.ours, dtype=float), 0, 1), busy)
    shares = np.stack([1 - busy, ours, busy - ours], axis=-1)
    return np.asarray(shares @ np.array([to_rgb(IDLE), to_rgb(OURS), to_rgb(OTHERS)]))


def _key(figure: Figure) -> None:
    patches = [
        Patch(color=colour, label=name)
        for colour, name in ((OURS, "this run"), (OTHERS, "others"), (IDLE, "idle"))
    ]
    figure.legend(
        handles=patches, loc="outside upper left", ncols=3, frameon=False, handlelength=1.0
    )
