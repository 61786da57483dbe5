"""What verbs print with `--json` is what the published schemas say, and nothing else."""

from __future__ import annotations

import argparse
import copy
import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import jsonschema
import make_results
import pytest
import yaml
from test_apply import SEFF
from test_explain_since import MONTH, prints

from hpcncf import cli
from hpcncf.cli.output import format_json
from hpcncf.paths import ResultPaths

SCHEMAS: Final = Path(cli.__file__).parents[1] / "schemas/output"
# Described in part: records, manifests and tables have a reference of their own.
PARTLY: Final = ("Rank", "Node", "Prepared", "CollectedRun", "Run")
TRAIN: Final = "torch.set_num_threads(64)\nDataLoader(train_set, shuffle=True, num_workers=40)\n"
BATCH: Final = "#!/bin/bash\n#SBATCH -c 5\n#SBATCH --mem=64G\n#SBATCH -t 90\npython train.py\n"

Say = Callable[..., dict[str, Any]]


def read_schema(verb: str) -> dict[str, Any]:
    schema: dict[str, Any] = json.loads((SCHEMAS / f"{verb}.json").read_text())
    return schema


def closed(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema that also refuses keys it does not name, but in what it describes in part."""
    found = copy.deepcopy(schema)
    forms = [each["$ref"].rpartition("/")[2] for each in found.get("anyOf", [])]
    for name, each in found.get("$defs", {}).items():
        if "properties" in each and name not in (*PARTLY, *forms):
            each["additionalProperties"] = False
    found["unevaluatedProperties"] = any(name in PARTLY for name in forms)
    return found


def check(verb: str, text: str) -> dict[str, Any]:
    plain: dict[str, Any] = json.loads(text)
    schema = read_schema(verb)
    jsonschema.Draft202012Validator.check_schema(schema)
    assert plain["schema"] == f"hpcncf.{verb}/1" == schema["title"]
    assert next(iter(plain)) == "schema", "it is read first"
    jsonschema.validate(plain, schema, jsonschema.Draft202012Validator)
    jsonschema.validate(plain, closed(schema), jsonschema.Draft202012Validator)
    return plain


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str]) -> Say:
    """Calls a verb and checks its output against the verb's schema."""

    def called(*words: object, code: int = 0, schema: str = "") -> dict[str, Any]:
        capsys.readouterr()
        assert cli.main([*map(str, words), "--json"]) == code
        return check(schema or str(words[0]), capsys.readouterr().out)

    return called


@pytest.fixture
def paths(tmp_path: Path) -> ResultPaths:
    """A finished study of three repeats."""
    found = make_results.demo(tmp_path, repeats=3)
    make_results.complete(found)
    return found


def test_every_verb_that_takes_json_has_a_schema() -> None:
    top = cli.parser()
    (verbs,) = (each for each in top._actions if isinstance(each, argparse._SubParsersAction))

    def takes_json(parser: argparse.ArgumentParser) -> bool:
        nested = [each for each in parser._actions if isinstance(each, argparse._SubParsersAction)]
        return "--json" in parser._option_string_actions or any(
            takes_json(one) for each in nested for one in each.choices.values()
        )

    taking = {name for name, parser in verbs.choices.items() if takes_json(parser)}
    assert {path.stem for path in SCHEMAS.glob("*.json")} == taking | {"error"}


def test_output_of_a_finished_study(say: Say, paths: ResultPaths, tmp_path: Path) -> None:
    assert say("collect", paths.folder)["complete"]
    (job,) = say("status", paths.folder)["jobs"]
    assert {run["state"] for run in job["runs"]} == {"completed"}
    diagnosed = say("diagnose", paths.folder)["runs"]
    causes = {run["primary"]["cause"] for run in diagnosed if run["primary"]}
    assert "python_input" in causes
    again = make_results.demo(tmp_path / "again", repeats=3)
    make_results.complete(again)
    compared = say("compare", paths.folder, again.folder, "--threshold", "0.05")
    assert compared["configurations"][0]["speed"]["verdict"] == "no significant difference"
    one = diagnosed[0]["run_id"]
    say("logs", one, "--results", paths.folder, code=2, schema="error")
    assert say("cancel", "--all", paths.folder)["cancelled"] == []


def test_output_on_files(say: Say, tmp_path: Path) -> None:
    for name, text in (("seff.txt", SEFF), ("train.py", TRAIN), ("job.sh", BATCH)):
        (tmp_path / name).write_text(text)
    (job,) = say("explain", tmp_path / "seff.txt")["jobs"]
    assert job["fields"]["cores"] == 5
    rules = {each["rule"] for each in say("lint", tmp_path, code=1)["findings"]}
    assert "too-many-workers" in rules
    found = say("apply", tmp_path / "seff.txt", tmp_path / "job.sh")
    assert found["edits"][0]["new"]


def test_output_on_past_jobs(say: Say, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.chdir(tmp_path)
    prints(tmp_path, MONTH)
    assert say("explain", "--since", "7days")["workloads"]


def test_output_on_data(say: Say, job_file: Callable[[str], Path], tmp_path: Path) -> None:
    shape = (
        "--users",
        9,
        "--items",
        40,
        "--rows",
        90,
        "--test-negatives",
        9,
        "-o",
        tmp_path / "data",
    )
    assert say("data", "prepare", "synthetic", *shape)["outcome"] == "made"
    assert say("data", "info", tmp_path / "data")["users"] == 9
    bench = say("data", "bench", job_file(""), "--seconds", "0.05")
    assert [each["loader"] for each in bench["loaders"]] == ["vectorized"]


COMMAND: Final = """\
name: words
workload: {{command: [{python}, -c, "import sys; print(5); sys.exit({{code}})"]}}
resources: {{mem_gb: 1, timeout_min: 2}}
grid: {{code: [0, 1]}}
"""


def test_output_of_submitted_runs(
    say: Say, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One run of the two fails: a group of failures, with its log."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.yaml").write_text(COMMAND.format(python=sys.executable))
    planned = say("plan", "job.yaml")
    assert [len(planned["runs"]), planned["refused"]] == [2, {}]
    sent = say("submit", "job.yaml", "--cluster", "local", "--wait", code=3)
    assert sorted(sent["submitted"]) == sorted(run["id"] for run in planned["runs"])
    results = tmp_path / "results/words"
    (job,) = say("status", results)["jobs"]
    (failure,) = job["failures"]
    assert say("logs", failure["runs"][0])["files"]
    again = say("retry", results, "--wait", code=3)
    assert again["submitted"] == failure["runs"]
    assert say("cancel", "--all", results)["cancelled"] == []


def test_output_on_this_machine(say: Say, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    assert "python" in " ".join(say("doctor", code=0)["checks"]).lower()
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as process:
        try:
            found = say("attach", process.pid, "--seconds", "1")
        finally:
            process.kill()
    assert found["nodes"][0]["processes"][0]["pid"] == process.pid


@pytest.mark.parametrize(
    "words", [("status", "nowhere"), ("diagnose", "no-run"), ("compare", "a/b", "b/c")]
)
def test_an_error_has_a_schema_too(say: Say, words: Sequence[str]) -> None:
    assert say(*words, code=2, schema="error")["exit_code"] == 2


def test_a_number_that_json_lacks_becomes_null() -> None:
    text = format_json("compare", {"loss": float("nan"), "rows": [{"x": float("inf"), "y": 1.5}]})
    assert json.loads(text, parse_constant=pytest.fail)["rows"] == [{"x": None, "y": 1.5}]


def test_the_skill_for_agents_has_front_matter(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--print-skill"]) == 0
    head, start, text = capsys.readouterr().out.split("---\n", 2)
    front = yaml.safe_load(start)
    assert (head, set(front), front["name"]) == ("", {"name", "description"}, "hpcncf")
    assert len(front["description"]) <= 1024, "more is not read"
    for key in ("cause", "places", "remedy_codes", "with", "gain"):
        assert f"`{key}" in text
        assert key in read_schema("run")["$defs"]["Finding"]["required"]


def test_output_of_a_tuning_with_room_for_one_run(
    say: Say, job_file: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    grid = job_file("grid: {training.loader: [per_sample, vectorized]}\n")
    words = ("tune", grid, "--budget", "0.00001", "--cluster", "local", "--wait")
    found = say(*words, code=3)
    assert found["best"]["point"] == "loader=per_sample"
