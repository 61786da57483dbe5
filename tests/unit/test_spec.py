"""The settings of a job file, and the words of a user's own program."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from hpcncf.errors import UsageError
from hpcncf.job.expand import expand_job
from hpcncf.job.identity import configuration_id
from hpcncf.job.load import build_plan, load_job
from hpcncf.job.plan import Plan, Run, TypedCommand
from hpcncf.job.spec import (
    JobSpec,
    Program,
    Remedies,
    Training,
    build_command,
    fill_placeholders,
    placeholder_names,
    placeholder_values,
)
from hpcncf.worker.record_command import planned

DATA = {"path": "data/frappe"}
PLAIN = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))
NASTY = ["a b", "it's", '"', "$(touch /tmp/never)", "`id`", "a;b", "new\nline", "-n", "", "*", "\\"]


@pytest.mark.parametrize(
    ("section", "key", "value"),
    [
        *((None, "name", name) for name in ("", "../up", "a b", "a/b", ".hidden", "x" * 65)),
        ("resources", "cpus_per_task", 0),
        ("resources", "cpus_per_task", 1.5),
        ("resources", "cpus_per_task", "2"),
        ("resources", "cpus_per_task", True),
        ("resources", "cpu_per_task", 1),
        ("resources", "mem_gb", -1),
        ("training", "lr", 0),
        ("training", "lr", float("nan")),
        ("training", "seed", -1),
        ("training", "threads", "many"),
        ("training", "loader", "fast"),
        ("model", "layers", []),
        ("model", "layers", [8, 0]),
        ("model", "dropout", 1.0),
    ],
)
def test_a_value_that_makes_no_sense_is_refused(section: Any, key: str, value: object) -> None:
    settings: dict[str, Any] = {section: {key: value}} if section else {key: value}
    with pytest.raises(ValidationError):
        JobSpec.model_validate({"name": "a", "data": DATA} | settings)


def test_either_batch_size_gives_the_batch_of_a_step_over_all_ranks() -> None:
    job = JobSpec.model_validate({"name": "a", "data": DATA})
    assert (job.training.batch_over_ranks(1), job.resources.cores) == (256, 1)
    with pytest.raises(ValidationError, match="exactly one"):
        Training(global_batch_size=256, batch_size_per_rank=256)
    assert Training(global_batch_size=1024, accumulate=4).batch_over_ranks(4) == 1024
    assert Training(batch_size_per_rank=256).batch_over_ranks(4) == 1024
    assert Training(batch_size_per_rank=128, accumulate=4).batch_over_ranks(2) == 1024


def job(**settings: Any) -> JobSpec:
    command = {"command": ["python", "train.py", "--lr", "{lr}"]}
    return JobSpec.model_validate({"name": "a", "workload": command} | settings)


def only(**settings: Any) -> Run:
    (run,) = expand_job(job(**({"parameters": {"lr": 0.1}} | settings))).runs
    return run


def load(folder: Path, text: str, *overrides: str) -> Plan:
    path = folder / "job.yaml"
    path.write_text(text)
    return build_plan(load_job(path, overrides), path)


@given(PLAIN, PLAIN)
def test_braces_are_doubled_and_values_are_never_read_for_placeholders(
    text: str, value: str
) -> None:
    doubled = text.replace("{", "{{").replace("}", "}}")
    assert placeholder_names(doubled) == []
    assert fill_placeholders(doubled + "{lr}", {"lr": value}) == text + value


@pytest.mark.parametrize("text", ["{", "}", "{lr", "a}b", "{a{b}", "}}}"])
def test_a_brace_alone_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="brace"):
        placeholder_names(text)


def test_values_reach_the_program_as_they_are() -> None:
    """Directly, and in a shell's line, which they cannot end."""
    names = [f"v{number}" for number in range(len(NASTY))]
    values = placeholder_values(dict(zip(names, NASTY, strict=True)), {"nodes": 3}, 0)
    braced = [f"{{{name}}}" for name in names]
    words = build_command(Program(command=["printf", r"%s\0", *braced]), values)
    assert subprocess.check_output(words).decode().split("\0") == [*NASTY, ""]
    line = f"printf '%s\\0' {' '.join(braced)} {{resources.nodes}} $((1 + 1)) # {braced[0]}"
    words = build_command(Program(shell=line), values)
    assert subprocess.check_output(words).decode().split("\0") == [*NASTY, "3", "2", ""]


@pytest.mark.parametrize(
    "line", ['echo "{lr}"', "echo '{lr}'", 'echo "$(cat {lr})"', "a '\\'\"{lr}\""]
)
def test_a_placeholder_inside_a_shells_quotes_is_refused(line: str) -> None:
    with pytest.raises(ValidationError, match="inside quotes"):
        Program(shell=line)
    assert Program(shell="echo 'it''s' \"\\\"\" {lr} \\' {lr}").shell


@pytest.mark.parametrize(
    ("value", "text"), [(True, "true"), (0.001, "0.001"), (3, "3"), ("True", "True")]
)
def test_values_are_written_as_yaml_has_them(value: Any, text: str) -> None:
    assert only(parameters={"lr": value}).words[-1] == text


def test_commands_are_distinguished_by_their_words() -> None:
    plan = expand_job(job(grid={"parameters.lr": [0.1, 0.2]}, repeats=2))
    assert len({run.id for run in plan.runs}) == 4
    assert len({configuration_id(run) for run in plan.runs}) == 2
    words = ["sleep", "1"]
    before, again, after, plain, spelled = (
        configuration_id(planned(words, 1, name))
        for name in ("before", "before", "after", None, "sleep 1")
    )
    assert before == again
    assert plain == spelled, "a name that is the command itself"
    assert len({before, after, plain}) == 3, "two names are two things to compare"


def test_a_program_with_remedies_is_another_configuration() -> None:
    plan = expand_job(job(parameters={"lr": 0.1}, grid={"remedies.rowwise": [False, True]}))
    ids = {run.remedies.rowwise: configuration_id(run) for run in plan.runs}
    assert ids[False] == configuration_id(only()) != ids[True]
    by_hand = [Remedies(), Remedies(threads=1), Remedies(rowwise=True)]
    started = [planned(["sleep", "1"], 1, "a", remedies=each) for each in by_hand]
    assert len(set(map(configuration_id, started))) == 3


@pytest.mark.parametrize(
    ("settings", "same"),
    [
        ({"resources": {"mem_gb": 64, "timeout_min": 600, "runs_per_task": 3}}, True),
        ({"site": "gpu"}, True),
        ({"workload": {"command": ["python", "train.py", "--lr", "{lr}"], "folder": "/b"}}, True),
        ({"workload": {"command": ["python", "train.py", "--lr", "{parameters.lr}"]}}, True),
        ({"resources": {"nodes": 2}}, False),
        ({"parameters": {"lr": 0.2}}, False),
    ],
)
def test_only_settings_in_the_words_change_the_id(settings: Any, same: bool) -> None:
    assert only().id == "c2635275eb1d", "it never changes: results on disk are found by it"
    assert (only(**settings).id == only().id) is same


def test_memory_in_the_words_is_no_part_of_the_id() -> None:
    """A retry with more memory is the same run."""
    words = {"command": ["a", "{lr}", "{resources.mem_gb}"]}
    small, large = (only(workload=words, resources={"mem_gb": size}) for size in (1, 2))
    assert small.id == large.id
    assert (small.words[-1], large.words[-1]) == ("1.0", "2.0")


def test_a_bare_name_in_the_grid_is_a_parameter(tmp_path: Path) -> None:
    text = 'name: a\nworkload: {command: [a, "{points}"]}\ngrid: {points: [1, 2]}\n'
    assert {run.varied["parameters.points"] for run in load(tmp_path, text).runs} == {1, 2}
    (run,) = load(tmp_path, text, "grid.points=[7]").runs
    assert run.words == ["a", "7"]
    (run,) = load(tmp_path, text.replace("points", "lr"), "lr=8").runs
    assert run.words == ["a", "8"]


def test_a_job_file_in_its_results_reads_as_itself(tmp_path: Path) -> None:
    first = load(tmp_path, 'name: a\nworkload: {command: [a, "{lr}"]}\ngrid: {lr: [1]}\n')
    spelled = load_job(tmp_path / "job.yaml").model_dump_json()  # JSON is YAML
    (tmp_path / "below").mkdir()
    again = load(tmp_path / "below", spelled)
    assert again == first
    assert isinstance(first.runs[0].workload, Program)
    assert first.runs[0].workload.folder == str(tmp_path)


@pytest.mark.parametrize(
    ("workload", "more", "words"),
    [
        ("nfc", "", ["workload: expected ncf, or {command:", "came 'nfc'"]),
        ("{comand: [a]}", "", ["unknown key 'comand'", "Did you mean 'command'?"]),
        ("{command: a b}", "", ["workload.command: expected a list of words", "{shell:"]),
        ("{command: [a, {lr}]}", "", ["workload.command.1", 'quote a word with braces: "{lr}"']),
        ("{command: []}", "", ["workload.command: expected the program"]),
        ("{command: [a], shell: b}", "", ["either command"]),
        ('{command: [a, "{l"]}', "", ["workload: unmatched brace"]),
        ('{command: [a, "{lrr}"]}', "grid: {lr: [1]}", ["{lrr}. Did you mean 'lr'?"]),
        ("{command: [a]}", "parameters: {lr: 1}", ["parameters.lr: ", "Write {lr}"]),
        ('{command: [a, "{lr}"]}', "grid: {lr: [[1]]}", ["parameters.lr: expected a number"]),
        ("{command: [a]}", "parameters: {run_id: 1}", ["is reserved"]),
        ("{command: [a]}", "parameters: {a-b: 1}", ["expected a name of letters"]),
        ("{command: [a]}", "data: {path: d}", ["data: belongs to workload ncf"]),
        ("{command: [a]}", "training: {epochs: 9}", ["training: belongs to workload ncf"]),
        ("{command: [a]}", "grid: {training.lr: [1]}", ["training: belongs to workload ncf"]),
        ("ncf", "data: {path: d}\nparameters: {lr: 1}", ["parameters: fill placeholders"]),
        ("{shell: |-\n  a\n  b\n }", "", ["not readable"]),
    ],
)
def test_a_wrong_workload_is_refused_with_the_choices(
    tmp_path: Path, workload: str, more: str, words: list[str]
) -> None:
    with pytest.raises(UsageError) as refused:
        load(tmp_path, f"name: a\nworkload: {workload}\n{more}\n")
    for word in words:
        assert word in str(refused.value)


def test_a_run_of_an_earlier_plan_was_started_by_hand() -> None:
    plain = only().model_dump(mode="json")
    plain["workload"] = {"command": ["echo", "{"]}
    del plain["by_hand"]
    (run,) = Plan.model_validate({"job": "run", "runs": [plain]}).runs
    assert isinstance(run, TypedCommand)
    assert run.words == ["echo", "{"]


def test_a_plan_knows_typed_commands_from_a_jobs_runs() -> None:
    plan = Plan(job="a", runs=[only(), planned(["echo"], 1, None)])
    again = Plan.model_validate_json(plan.model_dump_json())
    assert [type(run) for run in again.runs] == [Run, TypedCommand]
    assert again == plan
    with pytest.raises(ValidationError, match="of a typed command"):
        Run.model_validate(only().model_dump() | {"by_hand": True})


def test_a_typed_command_requests_nothing_and_can_become_a_job() -> None:
    typed, jobs = planned(["echo", "{", "a b"], 3, None), only(grid={"parameters.lr": [0.2]})
    assert (typed.requested, jobs.requested) == (None, jobs.resources)
    assert (typed.typed_name, jobs.typed_name) == ("echo '{' 'a b'", None)
    assert (typed.point, jobs.point) == ({"resources.cpus_per_task": 3}, {"parameters.lr": 0.2})
    assert jobs.template == jobs.workload
    again = only(workload=typed.template.model_dump(), parameters={})
    assert again.words == typed.words
