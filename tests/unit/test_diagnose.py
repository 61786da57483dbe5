"""`hpcncf diagnose`: three core counts first, then the cause; remedies become a job file."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path

import make_results
import pytest

from hpcncf import cli
from hpcncf.job.spec import JobSpec
from hpcncf.paths import ResultPaths
from hpcncf.records.plan_file import record_plan

NAIVE = [{"training.loader": "per_sample"}]


@pytest.fixture
def paths(tmp_path: Path) -> ResultPaths:
    """A job of one naive point, complete, with its job file."""
    found = make_results.demo(tmp_path, repeats=1, points=NAIVE)
    data = {"path": str(tmp_path / "data")}
    job = JobSpec.model_validate({"name": "demo", "data": data, "points": NAIVE})
    record_plan(found, job, make_results.plan_of(found))
    make_results.complete(found)
    return found


def said(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str]:
    code = cli.main(["diagnose", *map(str, words)])
    return code, capsys.readouterr().out


def test_three_core_counts_stand_on_the_first_line(
    paths: ResultPaths, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_results.plan_of(paths).runs[0]
    attempt = paths.run(run.id).attempt(1)
    shown = set()
    for what in (paths.folder, paths.run(run.id).folder, attempt.folder, attempt.rank(0)):
        code, text = said(capsys, what)
        assert code == 0
        assert text.startswith("1 core allocated, 1 usable, 0.98 used: run")
        assert "python_input: costs" in text.splitlines()[1]
        shown.add(text.partition("\n")[2])
    assert len(shown) == 1
    code, text = said(capsys, run.id[:6], "--results", paths.folder, "--json")
    [seen] = json.loads(text)["runs"]
    assert code == 0
    assert seen["cores"] == {"allocated": 1.0, "usable": 1.0, "used": pytest.approx(0.98, rel=0.01)}
    assert seen["primary"]["cause"] == "python_input"
    assert seen["primary"]["changes"] == {"training.loader": "vectorized"}


def test_what_is_not_known_is_said_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = make_results.command_plan(tmp_path)
    run = make_results.plan_of(paths).runs[0]
    idle = make_results.rank_record(run, 0).cpu.model_copy(update={"user_s": 1.0, "system_s": 0.0})
    make_results.leave(paths, run, cpu=idle)
    _, text = said(capsys, paths.folder)
    assert "unknown: the records do not show why 100 % of the usable cores' time" in text
    assert text.count("usable cores' time") == 1
    assert "not known: phases of a step" in text
    _, plain = said(capsys, paths.folder, "--json")
    assert json.loads(plain)["runs"][0]["missing"][0].startswith("why 100 % of the")


def test_a_run_too_short_to_judge_is_reported_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = make_results.command_plan(tmp_path)
    soon = (make_results.START + timedelta(seconds=1.5)).isoformat(timespec="milliseconds")
    make_results.leave(paths, make_results.plan_of(paths).runs[0], ended_at=soon, elapsed_s=1.5)
    _, text = said(capsys, paths.folder)
    assert "too_short_to_judge: 1.5 s were measured" in text
    assert text.count("were measured") == 1


def test_where_nothing_has_run_there_is_nothing_to_say(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = make_results.demo(tmp_path, repeats=1)
    assert said(capsys, found.folder)[0] == 3


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["nosuch"], "nosuch"),
        (["."], "no record of a rank here"),
        (["job.yaml"], "job.yaml"),
        (
            [".", "--predict", "x.yaml"],
            "diagnose --predict is gone since 0.2.0: `hpcncf report` writes",
        ),
        (["nosuch.json"], "nosuch.json: no such file or folder; expected a results folder"),
        (["results/nosuch"], "results/nosuch: no such file or folder"),
    ],
)
def test_what_is_no_run_is_refused(
    words: list[str],
    problem: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.yaml").write_text("name: x\n")
    assert cli.main(["diagnose", *words]) in (1, 2)
    assert problem in capsys.readouterr().err


def test_what_run_wrote_as_json_is_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = make_results.command_plan(tmp_path)
    run = make_results.plan_of(found).runs[0]
    rank, node = make_results.rank_record(run, 0), make_results.node_record(run)
    file = tmp_path / "summary.json"
    plain = {"rank": rank.model_dump(mode="json"), "node": node.model_dump(mode="json")}
    file.write_text(json.dumps({"folder": "x", "conclusion": "y", **plain}))
    code, text = said(capsys, file)
    assert code == 0
    assert text.startswith("5 cores allocated, 5 usable, 1 used: run")
