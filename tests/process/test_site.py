"""The documentation's site: built strictly, readable on a phone and in the dark."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import chromium
import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    report = folder / "report.html"
    report.write_text("<!doctype html><title>A report</title><h1>A report</h1>")
    variables = {"EXAMPLE_REPORT": str(report), "NO_MKDOCS_2_WARNING": "1"}
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(folder / "site")],
        cwd=ROOT,
        env=os.environ | variables,
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stdout + built.stderr
    return folder / "site"


def test_every_page_of_docs_is_in_the_site(site: Path) -> None:
    pages = {path.stem for path in (ROOT / "docs").glob("*.md")} - {"README"}
    assert pages <= {path.stem for path in site.glob("*.html")}
    assert (site / "example-report/report.html").read_text().count("A report") == 2
    assert "any_program.yaml" in (site / "jobs.html").read_text()


@pytest.mark.skipif(chromium.found() is None, reason="no Chromium on PATH")
@pytest.mark.parametrize("width", [390, 1400])
@pytest.mark.parametrize("name", ["index.html", "any-program.html", "commands.html"])
def test_a_page_is_as_wide_as_the_window(site: Path, name: str, width: int) -> None:
    with chromium.page() as page:
        page.show(width, dark=True)
        page.open(site / name)
        assert page.value("document.documentElement.scrollWidth") <= width
        assert page.value("document.body.getAttribute('data-md-color-scheme')") == "slate"
