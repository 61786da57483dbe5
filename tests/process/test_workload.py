"""A command's words: what may stand in them, and what comes of a run's values."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from hpcncf.errors import UsageError
from hpcncf.job.load import build_plan, load_job
from hpcncf.job.plan import Plan, Run, configuration_id, expand_job
from hpcncf.job.spec import (
    JobSpec,
    Program,
    build_command,
    fill_placeholders,
    placeholder_names,
    placeholder_values,
)
from hpcncf.worker.record_command import planned

PLAIN = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))
NASTY = ["a b", "it's", '"', "$(touch /tmp/never)", "`id`", "a;b", "new\nline", "-n", "", "*", "\\"]


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


@given(PLAIN)
def test_a_text_with_its_braces_doubled_is_itself(text: str) -> None:
    doubled = text.replace("{", "{{").replace("}", "}}")
    assert placeholder_names(doubled) == []
    assert fill_placeholders(doubled, {}) == text


@given(PLAIN, PLAIN)
def test_a_value_is_never_read_for_placeholders(before: str, value: str) -> None:
    safe = before.replace("{", "").replace("}", "")
    assert fill_placeholders(safe + "{lr}", {"lr": value}) == safe + value


@pytest.mark.parametrize("text", ["{", "}", "{lr", "a}b", "{a{b}", "}}}"])
def test_a_brace_alone_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="brace"):
        placeholder_names(text)


@pytest.mark.parametrize("value", NASTY)
def test_a_value_reaches_the_program_as_it_is(value: str) -> None:
    printf = Program(command=["printf", "%s|%s", "{lr}", "x"])
    words = build_command(printf, placeholder_values({"lr": value}, {}, 0))
    assert subprocess.check_output(words) == f"{value}|x".encode()


@pytest.mark.parametrize("value", NASTY)
def test_a_value_cannot_break_out_of_a_shells_line(value: str) -> None:
    line = Program(shell="printf '%s|' {lr} {resources.nodes}; printf %s $((1 + 1)) # {lr}")
    words = build_command(line, placeholder_values({"lr": value}, {"nodes": 3}, 0))
    assert subprocess.check_output(words) == f"{value}|3|2".encode()


@pytest.mark.parametrize(
    "line", ['echo "{lr}"', "echo '{lr}'", 'echo "$(cat {lr})"', "a '\\'\"{lr}\""]
)
def test_a_placeholder_inside_a_shells_quotes_is_refused(line: str) -> None:
    with pytest.raises(ValidationError, match="inside quotes"):
        Program(shell=line)


def test_outside_of_quotes_a_placeholder_may_stand_anywhere() -> None:
    assert Program(shell="echo 'it''s' \"\\\"\" {lr} \\' {lr}").shell


@pytest.mark.parametrize(
    ("value", "text"), [(True, "true"), (0.001, "0.001"), (3, "3"), ("True", "True")]
)
def test_values_are_written_as_yaml_has_them(value: Any, text: str) -> None:
    assert only(parameters={"lr": value}).words[-1] == text


def test_runs_are_reported_apart_by_their_words() -> None:
    plan = expand_job(job(grid={"parameters.lr": [0.1, 0.2]}, repeats=2))
    assert len({run.id for run in plan.runs}) == 4
    assert len({configuration_id(run) for run in plan.runs}) == 2
    assert Plan.model_validate_json(plan.model_dump_json()) == plan


def test_two_names_for_one_command_are_two_things_to_compare() -> None:
    """Without a name, and with one that is the command itself, it is the command."""
    words = ["sleep", "1"]
    before, again, after, plain, spelled = (
        configuration_id(planned(words, 1, name))
        for name in ("before", "before", "after", None, "sleep 1")
    )
    assert before == again
    assert plain == spelled
    assert len({before, after, plain}) == 3


@pytest.mark.parametrize(
    "settings",
    [
        {"resources": {"mem_gb": 64, "timeout_min": 600, "runs_per_task": 3}},
        {"site": "gpu"},
        {"workload": {"command": ["python", "train.py", "--lr", "{lr}"], "folder": "/elsewhere"}},
        {"workload": {"command": ["python", "train.py", "--lr", "{parameters.lr}"]}},
    ],
)
def test_settings_without_effect_on_the_words_keep_the_id(settings: Any) -> None:
    assert only(**settings).id == only().id


def test_an_id_of_a_command_never_changes_between_versions() -> None:
    """Results on disk are found by it."""
    assert only().id == "c2635275eb1d"


def test_memory_in_the_words_is_no_part_of_the_id() -> None:
    """A retry with more memory is the same run."""
    words = {"command": ["a", "{lr}", "{resources.mem_gb}"]}
    small, large = (only(workload=words, resources={"mem_gb": size}) for size in (1, 2))
    assert small.id == large.id
    assert (small.words[-1], large.words[-1]) == ("1.0", "2.0")


@pytest.mark.parametrize("changed", [{"resources": {"nodes": 2}}, {"parameters": {"lr": 0.2}}])
def test_settings_in_the_words_change_the_id(changed: Any) -> None:
    assert only(**changed).id != only().id


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
    run = Run.model_validate(plain)
    assert run.by_hand
    assert run.words == ["echo", "{"]
