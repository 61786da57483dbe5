"""Tables and figures become one page that a tired reader understands: report.html, report.md."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any, Final

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from matplotlib.figure import Figure

from hpcncf import records
from hpcncf.collect import Collected
from hpcncf.paths import ResultPaths
from hpcncf.records import NodeRecord, RecordError
from hpcncf_analysis import (
    history,
    spent,
    summary,
    tables,
    words,
)
from hpcncf_analysis.advice import conclude
from hpcncf_analysis.advice.conclude import Conclusion
from hpcncf_analysis.alerts import alerts
from hpcncf_analysis.definitions import DEFINITIONS, OF_TRAINING
from hpcncf_analysis.figures import efficiency, heatmap, plots, style
from hpcncf_analysis.figures.heatmap import Watched
from hpcncf_analysis.summary import Configuration

Row = Mapping[str, Any]

# More than this many bytes of drawing (a page must stay quick on a phone): the PNG stands in.
HEAVY: Final = 600_000


@dataclass(frozen=True)
class Drawn:
    """One figure of the report."""

    name: str
    title: str
    caption: str
    svg: str
    png: bytes


@dataclass(frozen=True)
class Report:
    conclusion: Conclusion
    html: Path
    markdown: Path
    figures: list[Path]


CAPTIONS: Final = {
    "efficiency_speed": (
        "Efficiency against speed",
        "Best is the upper right. Large points are medians (a circle: one rank, a square: "
        "several), small ones single runs. Below, at the same speeds, the price: the band from the "
        "cores used up to the cores allocated is waste, and along a grey line an epoch costs the "
        "same, less than along the one to its left.",
    ),
    "speedup": (
        "Speed-up over cores",
        "Full lines: more cores for each rank. Dashed: more ranks. Dotted: ideal, each core does "
        "as much as the first.",
    ),
    "core_heatmap": (
        "What the cores did",
        "A row for each core, time to the right: the darker, the busier. Wide strip: this run (an "
        "estimate: the kernel tells only where a thread ran last). Narrow strip: all others.",
    ),
    "step_time": (
        "Where a step's time goes",
        "A shorter bar is a faster configuration. input: waiting for the next batch; sync: the "
        "exposed wait for other ranks. Warm-up, evaluation, checkpoints and start-up are not in "
        "it.",
    ),
}


RANKS_NOTE: Final = (
    "Exposed waiting for the other ranks, of a rank's mean step. On one node ranks exchange what "
    "the threads of one rank simply share: one rank with as many threads as cores is to be tried "
    "first."
)


def write(found: Collected, paths: ResultPaths) -> Report:
    """Write the report of what was collected, each file whole."""
    shown = summary.configurations(found.runs)
    conclusion = conclude.conclude(shown, found.counts())
    figures = draw(found, paths, shown)
    page = context(found, shown, conclusion, figures)
    html, markdown = paths.report / "report.html", paths.report / "report.md"
    files = [file for drawn in figures for file in _write_figure(drawn, paths.report / "figures")]
    records.write_text(html, _render("report.html.j2", page))
    records.write_text(markdown, _render("report.md.j2", page))
    return Report(conclusion, html, markdown, files)


def draw(
    found: Collected,
    paths: ResultPaths,
    shown: Sequence[Configuration],
) -> list[Drawn]:
    """The figures that the runs leave something to show in, in reading order."""
    drawn: dict[str, Figure | None] = {
        "efficiency_speed": efficiency.efficiency_against_speed(shown),
        "speedup": plots.speedup(shown),
        "core_heatmap": heatmap.core_heatmap(extremes(found.runs, shown, paths)),
        "step_time": plots.step_time(shown),
    }
    return [_drawn(name, figure) for name, figure in drawn.items() if figure]


def _drawn(name: str, figure: Figure) -> Drawn:
    title, caption = CAPTIONS[name]
    return Drawn(name, title, caption, style.as_svg(figure, name), style.as_png(figure))


def extremes(
    runs: Sequence[Row], shown: Sequence[Configuration], paths: ResultPaths
) -> list[Watched]:
    """The busiest and the idlest completed run by CPU efficiency; one where they are the same."""
    labels = {one.key: one.label for one in shown}
    ordered = sorted(
        (row for row in summary.completed(runs) if row["cpu_efficiency"] is not None),
        key=lambda row: (row["cpu_efficiency"], row["run_id"]),
    )
    named = list(zip(("Busiest", "Idlest"), ordered[:-2:-1] + ordered[:1], strict=False))
    if len(ordered) == 1:
        named = [("The run", ordered[0])]
    return [
        Watched(
            f"{name}: {labels[row['config']]}, "
            f"CPU efficiency {words.percent(row['cpu_efficiency'])}",
            _nodes(paths, row),
        )
        for name, row in named
    ]


def _nodes(paths: ResultPaths, row: Row) -> list[NodeRecord]:
    found = []
    for path in paths.run(row["run_id"]).attempt(row["attempt"]).nodes():
        try:
            found.append(records.read(path, NodeRecord))
        except RecordError:
            continue  # collect has named it among the skipped
    return found


def context(
    found: Collected,
    shown: Sequence[Configuration],
    conclusion: Conclusion,
    figures: Sequence[Drawn],
) -> dict[str, Any]:
    """Everything that the templates show, under the names they use."""
    runs, frame = summary.completed(found.runs), found.frames()["runs"]
    titles = {row["data_title"] for row in found.runs if row["data_title"]}
    return {
        "job": found.job,
        "data": "; ".join(sorted(titles)) or _no_title(found.runs),
        "conclusion": conclusion,
        "alerts": alerts(frame[frame["run_id"].isin([row["run_id"] for row in runs])], shown),
        "counts": found.counts(),
        "complete": found.complete,
        "main": tables.main_table(shown) if shown else None,
        "main_notes": [
            *tables.main_notes(shown),
            *_told(history.accounting(runs, found.unaccounted)),
        ],
        "times": spent.times_table(shown),
        "times_note": spent.times_note(shown),
        "ranks": tables.ranks_table(shown),
        "ranks_note": RANKS_NOTE,
        "quality": tables.quality_table(shown),
        "quality_note": tables.quality_note(runs),
        "epochs": tables.epoch_table(found.epochs, shown),
        "runs": tables.run_table(found.runs),
        "unfinished": tables.run_table(
            [row for row in found.runs if row["state"] != "completed" and not row["retired"]]
        ),
        "attempts": history.attempt_table(found.attempts),
        "attempts_price": history.price(runs),
        "skipped": found.skipped,
        "environment": tables.environment(runs),
        "definitions": _definitions(found.runs),
        "figures": figures,
    }


def _told(text: str | None) -> list[str]:
    return [text] if text else []


def _definitions(runs: Sequence[Row]) -> list[tuple[str, str]]:
    trained = any(row["workload"] == "ncf" for row in runs)
    return [each for each in DEFINITIONS if trained or each[0] not in OF_TRAINING]


def _no_title(runs: Sequence[Row]) -> str:
    if all(row["workload"] == "command" for row in runs):
        return "a command"
    return "the prepared data is not here any more: its title is not known"


def _render(name: str, page: Mapping[str, Any]) -> str:
    environment = Environment(
        loader=PackageLoader("hpcncf_analysis"),
        autoescape=name.endswith(".html.j2"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["inline"] = inline
    environment.filters["cell"] = markdown_cell
    return environment.get_template(name).render(page)


def inline(drawn: Drawn) -> Markup:
    """The figure as part of the page: our own SVG, whose texts matplotlib escaped."""
    from base64 import b64encode

    if len(drawn.svg) > HEAVY:
        data = b64encode(drawn.png).decode()
        return Markup('<img alt="{}" src="data:image/png;base64,{}">').format(drawn.title, data)
    svg = drawn.svg[drawn.svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    # Ids are the page's: those of two figures must not meet.
    svg = re.sub(r'id="([^"]+)"', rf'id="{drawn.name}-\1"', svg)
    svg = re.sub(r"url\(#([^)]+)\)", rf"url(#{drawn.name}-\1)", svg)
    svg = re.sub(r'href="#([^"]+)"', rf'href="#{drawn.name}-\1"', svg)
    return Markup(svg)


def markdown_cell(text: str) -> str:
    """Text as a cell of a Markdown table: no pipes, lines or tags of its own."""
    return re.sub(r"([\\|<>*_`\[\]])", r"\\\1", text).replace("\n", " ")


def _write_figure(drawn: Drawn, folder: Path) -> list[Path]:
    svg, png = folder / f"{drawn.name}.svg", folder / f"{drawn.name}.png"
    records.write_text(svg, drawn.svg)
    with NamedTemporaryFile(dir=folder, prefix=f".{png.name}.", delete=False) as partial:
        partial.write(drawn.png)
    Path(partial.name).chmod(svg.stat().st_mode)
    Path(partial.name).replace(png)
    return [svg, png]
