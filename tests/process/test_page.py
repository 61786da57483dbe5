"""The report in a browser: quiet, asking for nothing, readable on a phone, in the dark, printed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import chromium
import make_results
import pytest

from hpcncf.cli import main

pytestmark = pytest.mark.skipif(chromium.found() is None, reason="no Chromium on PATH")


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    paths = make_results.demo(tmp_path_factory.mktemp("page"))
    make_results.complete(paths)
    assert main(["report", str(paths.folder)]) == 0
    return paths.report / "report.html"


@pytest.fixture(scope="module")
def page(file: Path) -> Iterator[chromium.Page]:
    with chromium.page() as opened:
        opened.open(file)
        yield opened


def order(page: chromium.Page) -> list[str]:
    rows = "document.querySelector('#runs tbody').rows"
    return [str(name) for name in page.value(f"[...{rows}].map(row => row.cells[0].textContent)")]


def test_nothing_is_complained_of_and_nothing_leaves_the_file(page: chromium.Page) -> None:
    assert page.complaints() == []
    assert {url.split(":")[0] for url in page.requests()} <= {"file", "data"}
    assert sum(url.startswith("file:") for url in page.requests()) == 1


@pytest.mark.parametrize(
    ("width", "medium", "smallest"), [(400, "screen", 14), (1200, "screen", 14), (700, "print", 9)]
)
def test_the_page_is_as_wide_as_what_shows_it_and_its_text_is_no_smaller_than_reported(
    page: chromium.Page, width: int, medium: str, smallest: float
) -> None:
    page.show(width, medium=medium)
    assert page.value("document.documentElement.scrollWidth") == width
    seen = page.value(
        "Math.min(...[...document.querySelectorAll('p, li, dd, figcaption')]"
        ".map(each => parseFloat(getComputedStyle(each).fontSize)))"
    )
    assert seen >= smallest


def brightness(page: chromium.Page, of: str) -> float:
    colour = page.value(f"{of}.match(/[0-9.]+/g).slice(0, 3).map(Number)")
    return sum(colour) / (3 * 255)


@pytest.mark.parametrize(("dark", "medium"), [(True, "screen"), (False, "screen"), (True, "print")])
def test_text_stands_out_in_the_light_in_the_dark_and_on_paper(
    page: chromium.Page, dark: bool, medium: str
) -> None:
    page.show(1200, dark=dark, medium=medium)
    text = "getComputedStyle(document.querySelector('figure svg text')).fill"
    ground = brightness(
        page, "getComputedStyle(document.querySelector('figure svg')).backgroundColor"
    )
    assert abs(brightness(page, text) - ground) > 0.4
    assert (ground < 0.5) == (dark and medium == "screen")


def test_a_heading_sorts_the_runs_by_their_figures(page: chromium.Page) -> None:
    heads = "[...document.querySelectorAll('#runs thead th')]"
    keys = (
        "[...document.querySelector('#runs tbody').rows]"
        ".map(row => Number(row.cells[column].dataset.key))"
    )
    page.value(f"var column = {heads}.findIndex(each => each.textContent == 'elapsed')")
    before = order(page)
    for direction in (1, -1):
        page.value(f"{heads}[column].querySelector('button').click()")
        shown = page.value(keys)
        assert shown == sorted(shown, reverse=direction < 0)
        assert len(set(shown)) > 1
    assert sorted(order(page)) == sorted(before)


def test_a_printed_report_has_the_parts_that_are_closed_on_the_screen(
    page: chromium.Page, tmp_path: Path
) -> None:
    page.show(1200)
    assert page.value("document.querySelectorAll('details:not([open])').length") > 0
    page.value("dispatchEvent(new Event('beforeprint'))")
    assert page.value("document.querySelectorAll('details:not([open])').length") == 0
    page.value("dispatchEvent(new Event('afterprint'))")
    assert page.value("document.querySelectorAll('details:not([open])').length") > 0
    page.printed(tmp_path / "report.pdf")
    assert (tmp_path / "report.pdf").read_bytes().startswith(b"%PDF")


def test_without_scripts_every_run_is_there_and_nothing_pretends_to_sort(file: Path) -> None:
    with chromium.page() as opened:
        opened.ask("Emulation.setScriptExecutionDisabled", value=True)
        opened.open(file)
        assert opened.value("document.querySelectorAll('#runs tbody tr').length") == 18
        assert opened.value("document.querySelectorAll('th button').length") == 0
        assert opened.complaints() == []
