"""The report: one file that needs nothing, whatever the runs are, and says what they show."""

from __future__ import annotations

import os
import re
from base64 import b64encode
from contextlib import redirect_stdout
from dataclasses import dataclass
from hashlib import sha256
from html import unescape
from io import StringIO
from pathlib import Path

import make_results
import pytest

from hpcncf.cli import main
from hpcncf.paths import ResultPaths

GOLDEN = Path(__file__).parents[1] / "data/report.md"
EVIL = "<script>alert('x')</script> | a\n```\n<script>b"


def reported(paths: ResultPaths, code: int = 0) -> tuple[str, str]:
    """report.html and report.md, made by the command."""
    assert main(["report", str(paths.folder)]) == code
    html = (paths.report / "report.html").read_text()
    return html, (paths.report / "report.md").read_text()


@dataclass(frozen=True)
class Written:
    paths: ResultPaths
    html: str
    markdown: str
    out: str


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Written:
    """The demo, complete, reported once: to draw takes its seconds."""
    paths = make_results.demo(tmp_path_factory.mktemp("whole"))
    make_results.complete(paths)
    out = StringIO()
    with redirect_stdout(out):
        html, markdown = reported(paths)
    return Written(paths, html, markdown, out.getvalue())


def test_a_whole_job_is_reported(whole: Written) -> None:
    """Its words are the golden report's; here are its files, and what the terminal shows."""
    html, markdown, out, paths = whole.html, whole.markdown, whole.out, whole.paths
    for text in (html, out):
        assert "Ask for tasks_per_node: 2, cpus_per_task: 1, loader: vectorized." in text
    assert "report.html" in out
    assert f"next: hpcncf submit {paths.report / 'next.yaml'} (or sbatch " in out
    names = ("efficiency_speed", "speedup", "core_heatmap", "step_time")
    for name in (*names, "waterfall", "timeline", "ranks", "quality"):
        assert f"](figures/{name}.svg)" in markdown
        file = paths.report / "figures" / name
        assert file.with_suffix(".svg").read_text().startswith("<?xml")
        assert file.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
        assert file.with_suffix(".pdf").read_bytes().startswith(b"%PDF")
    assert html.index('class="sentence"') < html.index("<table") < html.index("<svg")


def test_the_words_are_those_of_the_golden_report(whole: Written) -> None:
    """After a change of words: UPDATE_GOLDEN=1 pytest tests/unit/test_report.py -k golden, then
    read the difference."""
    text = whole.markdown.replace(str(whole.paths.folder.parent), "DEMO")
    text = re.sub(r"now [0-9a-f]{7}\b", "now HEAD", text)
    if os.environ.get("UPDATE_GOLDEN"):
        GOLDEN.write_text(text)
    assert text == GOLDEN.read_text()


def test_the_page_needs_no_network_and_runs_its_own_script_only(whole: Written) -> None:
    html = whole.html
    (script,) = re.findall(r"<script>(.*?)</script>", html, re.DOTALL)
    digest = b64encode(sha256(script.encode()).digest()).decode()
    assert "default-src 'none'; style-src 'unsafe-inline'; img-src data:; " in unescape(html)
    assert f"script-src 'sha256-{digest}'" in unescape(html)
    assert not re.search(r"(src|href)\s*=\s*[\"']?\s*(https?:)?//", html)
    assert not re.search(r"@import|url\(\s*[\"']?(https?:)?//", html)
    targets = set(re.findall(r"href=\"#([^\"]+)\"", html)) | set(
        re.findall(r"url\(#([^)]+)\)", html)
    )
    ids = re.findall(r"\bid=\"([^\"]+)\"", html)
    assert targets <= set(ids)
    assert len(ids) == len(set(ids))


def test_no_complete_run_is_said_and_is_no_error(tmp_path: Path) -> None:
    paths = make_results.demo(tmp_path)
    html, markdown = reported(paths, code=3)
    assert "No run is complete yet (18 planned of 18 runs)" in html
    assert html.count("<svg") == 0
    for run in make_results.plan_of(paths).runs:
        assert run.id in html
        assert run.id in markdown


def test_a_partial_job_shows_what_is_there_and_what_is_not(tmp_path: Path) -> None:
    """And why a run failed, as text, never as markup; and cores that a run could not use."""
    paths = make_results.demo(tmp_path, repeats=1)
    failed, confined, *others = make_results.plan_of(paths).runs
    error = {"type": "ValueError", "message": EVIL, "traceback": ""}
    make_results.leave(paths, failed, outcome="failed", exit_code=1, error=error)
    cores = make_results.rank_record(confined, 0).cores.model_copy(update={"cpus": [0]})
    make_results.leave(paths, confined, cores=cores)
    html, markdown = reported(paths, code=3)
    assert "1 completed, 1 failed, 4 planned" in html
    assert "Not all runs are complete" in html
    assert all(run.id in html for run in (failed, confined, *others))
    assert html.count("<script") == 1
    assert "&lt;script&gt;" in html
    section = markdown.partition("## Runs that are not complete")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    assert failed.id in section
    assert len({len(re.findall(r"(?<!\\)\|", line)) for line in lines}) == 1
    for page in (html, markdown):
        assert page.index("was allocated 2 and could use 1") < page.index("Speed, cores")


def test_a_command_is_reported_without_training_and_its_words_are_no_markup(
    tmp_path: Path,
) -> None:
    """And equal results give equal reports."""
    paths = make_results.command_plan(tmp_path, ["echo", EVIL])
    make_results.complete(paths)
    html, markdown = reported(paths)
    assert "5 cores allocated, 5 usable, 1 used" in html
    assert "Not run yet: resources.cpus_per_task 5 → 1" in html
    assert "instances/s</th>" not in html
    assert html.count("<svg") == 1, "what its cores did"
    assert html.count("<script") == 1
    assert "&lt;script&gt;" in html
    outside = re.sub(r"^```.*?^```$", "", markdown, flags=re.MULTILINE | re.DOTALL)
    assert "<script" not in outside.replace("\\<script", "")
    assert "## What to ask for next" in outside
    figures = {file: file.read_bytes() for file in (paths.report / "figures").iterdir()}
    assert reported(paths) == (html, markdown)
    assert {file: file.read_bytes() for file in figures} == figures


@pytest.mark.parametrize("verb", ["collect", "report"])
def test_a_folder_that_is_not_there_is_a_usage_error(
    tmp_path: Path, verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([verb, str(tmp_path / "nowhere")]) == 2
    assert "nowhere" in capsys.readouterr().err


def test_a_report_that_cannot_be_written_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = make_results.demo(tmp_path, repeats=1)
    paths.report.write_text("in the way")
    assert main(["report", str(paths.folder)]) == 1
    assert "cannot be written" in capsys.readouterr().err
