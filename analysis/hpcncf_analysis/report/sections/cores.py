"""What the cores did: a heat map of each core over time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, to_rgba
from matplotlib.figure import Figure

from hpcncf.records.schema import NodeRecord, RecordError, read_record
from hpcncf_analysis.formatting import format_percent
from hpcncf_analysis.report.figure_style import GROUND, legend_above, stack_panels
from hpcncf_analysis.report.section import Drawing, ReportData, Section

# Of middle brightness: they stand on a light page's ground and on a dark one's.
IDLE, OURS, OTHERS = GROUND, "#2F87CC", "#E0742C"
ROW_IN: Final = 0.34
# Of a core's row the run's strip takes this much, others' the rest but for a gap.
STRIPS: Final = (0.62, 0.92)
MOST_TICKS: Final = 16
CAPTION: Final = (
    "A row for each core, time to the right: the fuller its colour, the busier. Wide strip: this "
    "run (an estimate: the kernel shows only where a thread ran last). Narrow strip: all others."
)

Shares = np.ndarray[Any, np.dtype[np.float64]]


def build(data: ReportData) -> Section:
    drawing = Drawing(
        "core_heatmap",
        "Each core over time",
        CAPTION,
        lambda: core_heatmap(busiest_and_idlest(data)),
    )
    return Section("cores", "What the cores did", data.draw(drawing))


def busiest_and_idlest(data: ReportData) -> dict[str, list[NodeRecord]]:
    """Node records of the completed runs with the highest and the lowest CPU efficiency."""
    if data.paths is None:
        return {}
    labels = {one.key: one.label for one in data.shown}
    ordered = sorted(
        (row for row in data.runs if row["cpu_efficiency"] is not None),
        key=lambda row: (row["cpu_efficiency"], row["run_id"]),
    )
    named = list(zip(("Busiest", "Idlest"), ordered[:-2:-1] + ordered[:1], strict=False))
    if len(ordered) == 1:
        named = [("The run", ordered[0])]
    found = {}
    for name, row in named:
        nodes: list[NodeRecord] = []
        for path in data.paths.run(row["run_id"]).attempt(row["attempt"]).node_records():
            with suppress(RecordError):  # collect has listed it as skipped
                nodes.append(read_record(path, NodeRecord))
        efficiency = format_percent(row["cpu_efficiency"])
        found[f"{name}: {labels[row['config']]}, CPU efficiency {efficiency}"] = nodes
    return found


def core_heatmap(runs: Mapping[str, Sequence[NodeRecord]]) -> Figure | None:
    """Figure of core use on a run's nodes as a heat map: a row per core, time to the right.

    The upper strip of a row is the share of the time that was this run's (an estimate), the
    narrow one below it that of all others: the fuller its colour, the more; idle is the ground.
    """
    shown = {
        title: nodes
        for title, nodes in runs.items()
        if any(node.cpus and node.start_s for node in nodes)
    }
    if not shown:
        return None
    rows = {title: sum(len(node.cpus) for node in nodes) for title, nodes in shown.items()}
    heights = {title: [min(max(ROW_IN * each, 0.6), 4.0)] for title, each in rows.items()}
    for (axes,), nodes in zip(stack_panels(heights, sharex=False), shown.values(), strict=True):
        _draw_panel(axes, nodes)
    axes.set_xlabel("seconds since the run's start")
    figure = axes.get_figure(root=True)
    assert figure is not None
    legend_above(figure, {"this run": OURS, "others (narrow strip)": OTHERS, "idle": IDLE})
    return figure


def _draw_panel(axes: Axes, nodes: Sequence[NodeRecord]) -> None:
    top, names = 0, []
    for node in nodes:
        if node.start_s and node.cpus:
            edges = [*node.start_s, node.start_s[-1] + node.length_s[-1]]
            ours, others = shares(node)
            _draw_strips(axes, edges, top, ours, OURS, (0.0, STRIPS[0]))
            _draw_strips(axes, edges, top, others, OTHERS, STRIPS)
        prefix = f"{node.node} " if len(nodes) > 1 else ""
        names += [f"{prefix}CPU {cpu}" for cpu in node.cpus]
        top += len(node.cpus)
    axes.set_ylim(top, 0)
    every = -(-len(names) // MOST_TICKS)
    axes.set_yticks([row + STRIPS[1] / 2 for row in range(0, top, every)], names[::every])
    axes.tick_params(axis="y", length=0)


def shares(node: NodeRecord) -> tuple[Shares, Shares]:
    """Shares of each core used by this run and by all others, each [cpu, window]."""
    busy = np.clip(np.array(node.busy, dtype=float), 0, 1)
    ours = np.minimum(np.clip(np.array(node.ours, dtype=float), 0, 1), busy)
    return ours, busy - ours


def _draw_strips(
    axes: Axes,
    edges: Sequence[float],
    top: int,
    values: Shares,
    colour: str,
    within: tuple[float, float],
) -> None:
    """Draw a strip of values in each core's row, within a part of the row's height.

    The part is from `within[0]` to `within[1]`.
    """
    scale = LinearSegmentedColormap.from_list(colour, [to_rgba(colour, 0), to_rgba(colour, 1)])
    rows, height = np.arange(top, top + len(values)), within[1] - within[0]
    axes.barh(rows + within[0], edges[-1] - edges[0], height, edges[0], align="edge", color=IDLE)
    for row, series in enumerate(values, start=top):
        axes.pcolormesh(
            edges,
            [row + within[0], row + within[1]],
            series[np.newaxis, :],
            cmap=scale,
            vmin=0,
            vmax=1,
            rasterized=True,
            linewidth=0,
        )
