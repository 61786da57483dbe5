"""Hooks of `make docs`: pages of the site that are made from files outside docs/."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
REPORT = Path(os.environ.get("EXAMPLE_REPORT", ROOT / "results/demo/report/report.html"))
# A page for each folder of examples: title, and the files that it shows.
FOLDERS = {"jobs": ("Example job files", "*.yaml"), "slurm_templates": ("Example site files", "*")}
PAGES = {"peers.md": "benchmarks/peers/README.md", "changes.md": "CHANGELOG.md"}
EXAMPLE = """\
# A report

`make demo` trained and wrote [this report](example-report/report.html).

<iframe src="example-report/report.html" title="Report" style="width: 100%; height: 80vh"></iframe>
"""


def on_files(files: Files, config: Any) -> Files:
    """Add the pages. Raises FileNotFoundError without a report of the demo."""

    def add(name: str, content: str | bytes) -> None:
        files.append(File.generated(config, name, content=content))

    for folder, (title, pattern) in FOLDERS.items():
        shown = [f"# {title}\n"]
        for path in sorted((ROOT / folder).glob(pattern)):
            language = "yaml" if path.suffix == ".yaml" else "sh"
            shown.append(f"## {path.name}\n\n```{language}\n{path.read_text()}```\n")
        add(f"{folder}.md", "\n".join(shown))
    for name, source in PAGES.items():
        add(name, (ROOT / source).read_text())
    add("example-report/report.html", REPORT.read_bytes())
    add("example-report.md", EXAMPLE)
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Lead links to files outside docs/ to the pages that show them."""
    markdown = markdown.replace("](docs/", "](")  # from the changelog, which is beside docs/
    for name, source in PAGES.items():
        markdown = markdown.replace(f"](../{source})", f"]({name})")
    for folder in FOLDERS:
        markdown = markdown.replace(f"](../{folder})", f"]({folder}.md)")
        markdown = re.sub(
            rf"\]\(\.\./{folder}/([^)]+)\)",
            lambda found, page=folder: f"]({page}.md#{_slug(found[1])})",
            markdown,
        )
    return markdown


def _slug(name: str) -> str:
    """The anchor that the extension `toc` gives to a heading."""
    return re.sub(r"[^\w\s-]", "", name).lower()
