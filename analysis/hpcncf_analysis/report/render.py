"""Render sections as HTML and Markdown."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Mapping
from functools import cache
from hashlib import sha256
from importlib.resources import files
from typing import Any, Final

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from hpcncf.errors import printable
from hpcncf.table import escape_markdown
from hpcncf_analysis.report.figure_style import VARIABLES
from hpcncf_analysis.report.section import RenderedFigure

# More than this many bytes of drawing (a page must stay quick on a phone): the PNG stands in.
MAX_SVG_BYTES: Final = 600_000
# A table of more rows than this scrolls in a frame of its own.
MAX_OPEN_TABLE_ROWS: Final = 40
COORDINATES: Final = re.compile(r' (?:d|x|y|transform)="[^"]*"')
EXCESS_DIGITS: Final = re.compile(r"(\.\d\d)\d+")


def render_html(page: Mapping[str, Any]) -> str:
    script = (files("hpcncf_analysis.report") / "templates/report.js").read_text("utf-8").strip()
    policy = content_security_policy(script)
    more = {"most": MAX_OPEN_TABLE_ROWS, "script": script, "policy": policy}
    return _render("report.html.j2", {**page, **more})


def render_markdown(page: Mapping[str, Any]) -> str:
    return _render("report.md.j2", page)


def content_security_policy(script: str) -> str:
    """Policy for browsers: run exactly this script, show inline images, load nothing else."""
    digest = b64encode(sha256(script.encode()).digest()).decode()
    return (
        "default-src 'none'; style-src 'unsafe-inline'; img-src data:; "
        f"script-src 'sha256-{digest}'"
    )


def _render(name: str, page: Mapping[str, Any]) -> str:
    return printable(_environment(name.endswith(".html.j2")).get_template(name).render(page))


@cache
def _environment(escape: bool) -> Environment:
    environment = Environment(
        loader=PackageLoader("hpcncf_analysis.report"),
        autoescape=escape,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["inline"] = inline_figure
    environment.filters["cell"] = escape_markdown
    environment.filters["code"] = mark_commands
    environment.filters["trusted"] = Markup  # our own script and policy
    return environment


def inline_figure(drawn: RenderedFigure) -> Markup:
    """Embed a figure in the page as SVG, or as PNG if its SVG is too large.

    The SVG is our own, and matplotlib has escaped its texts.

    Its greys and the palette become the page's variables, so that it is readable in the dark.
    """
    if len(drawn.files["svg"]) > MAX_SVG_BYTES:
        data = b64encode(drawn.files["png"]).decode()
        return Markup('<img alt="{}" src="data:image/png;base64,{}">').format(drawn.title, data)
    svg = drawn.files["svg"].decode()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    for colour, variable in VARIABLES.items():
        svg = re.sub(rf"(fill|stroke): {colour}", rf"\1: var(--{variable})", svg, flags=re.I)
    # Ids are the page's: those of two figures must not meet.
    svg = re.sub(r'id="([^"]+)"', rf'id="{drawn.name}-\1"', svg)
    svg = re.sub(r"url\(#([^)]+)\)", rf"url(#{drawn.name}-\1)", svg)
    svg = re.sub(r'href="#([^"]+)"', rf'href="#{drawn.name}-\1"', svg)
    # Places in hundredths of a point, the drawing's texts as they are.
    svg = COORDINATES.sub(lambda found: EXCESS_DIGITS.sub(r"\1", found.group()), svg)
    title = Markup('<svg role="img" aria-label="{}"').format(drawn.title)
    return title + Markup(svg[len("<svg") :])


def mark_commands(text: str) -> Markup:
    """Convert a text to HTML, with words in backticks as code."""
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text))))
