"""Shells complete verbs, options and paths."""

from __future__ import annotations

import os
import pty
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hpcncf import cli, removed


@pytest.mark.parametrize("shell", ["bash", "zsh", "tcsh"])
def test_a_script_for_each_shell_knows_every_verb(
    shell: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["--print-completion", shell]) == 0
    script = capsys.readouterr().out
    assert all(verb in script for verb in cli.VERBS)


def test_bash_takes_the_script(capsys: pytest.CaptureFixture[str]) -> None:
    cli.main(["--print-completion", "bash"])
    script = capsys.readouterr().out
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)


def typed(folder: Path, keys: str) -> str:
    """What a line becomes in an interactive bash when these keys are pressed there."""
    ours, theirs = pty.openpty()
    shell = subprocess.Popen(
        ["bash", "--norc", "--noprofile", "-i"],
        stdin=theirs, stdout=theirs, stderr=theirs, cwd=folder, start_new_session=True,
        env={"PATH": os.environ["PATH"], "PS1": "READY>", "TERM": "dumb", "INPUTRC": os.devnull},
    )  # fmt: skip
    os.close(theirs)
    read_until(ours, "READY>")
    os.write(ours, b"source ./script\r")
    read_until(ours, "READY>")
    # Ctrl-A: to the line's beginning, where it becomes what is printed.
    os.write(ours, keys.encode() + b"\x01printf '<%s>' \r")
    seen = read_until(ours, ">READY>")  # the prompt alone is drawn again, too
    os.close(ours)
    shell.kill()
    shell.wait()
    words = seen.rpartition("\n")[2].removesuffix("READY>")
    return words.strip("<>").replace("><", " ")


def read_until(terminal: int, mark: str) -> str:
    text = ""
    while not text.endswith(mark):
        text += os.read(terminal, 1024).decode()
    return text


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
@pytest.mark.parametrize(
    ("line", "completed"),
    [
        ("hpcncf subm\t jo\t", "hpcncf submit job.yaml"),
        ("hpcncf submit job.yaml --results res\t", "hpcncf submit job.yaml --results results/"),
        ("hpcncf report results/d\t", "hpcncf report results/demo/"),
        ("hpcncf cancel --all results/d\t", "hpcncf cancel --all results/demo/"),
        (
            "hpcncf data prepare csv --source da\t -o ou\t",
            "hpcncf data prepare csv --source data.csv -o out/",
        ),
        ("hpcncf run -- python tr\t", "hpcncf run -- python train.py"),
    ],
)
def test_bash_completes_paths(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], line: str, completed: str
) -> None:
    cli.main(["--print-completion", "bash"])
    (tmp_path / "script").write_text(capsys.readouterr().out)
    (tmp_path / "results/demo").mkdir(parents=True)
    (tmp_path / "out").mkdir()
    for name in ("job.yaml", "data.csv", "train.py", "result.txt"):
        (tmp_path / name).touch()
    assert typed(tmp_path, line) == completed


@pytest.mark.parametrize("verb", removed.VERBS)
def test_removed_command_names_its_replacement(
    verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([verb, "anything"]) == 2
    said = capsys.readouterr().err
    assert said == f"hpcncf: hpcncf {verb} is gone since 0.2.0: {removed.VERBS[verb]}.\n"


@pytest.mark.parametrize(("verb", "option"), removed.OPTIONS)
def test_removed_option_names_its_replacement(
    verb: str, option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for words in ([verb, "x", option, "5"], [verb, f"{option}=5", "x"]):
        assert cli.main(words) == 2
        said = capsys.readouterr().err
        assert said.count("\n") == 1
        assert removed.OPTIONS[verb, option] in said


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["rnu"], "rnu: no such command. Did you mean 'run'?"),
        (["run", "--wiht", "threads=1", "--", "true"], "Did you mean '--with'?"),
        (["status", "--watsh=3"], "Did you mean '--watch'?"),
        (["data", "info", "there", "--jsn"], "Did you mean '--json'?"),
        (["--versoin"], "Did you mean '--version'?"),
        (["report", "there", "more"], "unknown arguments: more. `hpcncf report --help`"),
    ],
)
def test_a_mistyped_word_gets_the_closest(
    words: list[str], meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(words) == 2
    assert meant in capsys.readouterr().err


def test_help_lists_each_command_in_its_group_by_at_most_eight_words(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        cli.main(["--help"])
    lines = capsys.readouterr().out.splitlines()
    for group, verbs in cli.GROUPS.items():
        start = lines.index(f"{group}:") + 1
        assert [line.split()[0] for line in lines[start : start + len(verbs)]] == list(verbs)
        assert all(len(line.split()) <= 9 for line in lines[start : start + len(verbs)])


@pytest.mark.parametrize(("words", "imported"), [(["--help"], []), (["run", "-h"], ["run"])])
def test_a_command_is_imported_only_when_it_is_the_one(
    words: list[str], imported: list[str]
) -> None:
    code = f"""if True:
        import contextlib, sys
        from hpcncf import cli
        with contextlib.suppress(SystemExit):
            cli.main({words})
        verbs = [name for name in cli.VERBS if f"hpcncf.cli.{{name}}" in sys.modules]
        sys.exit(verbs != {imported})"""
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)


@pytest.mark.parametrize("verb", ["submit", "retry"])
@pytest.mark.parametrize("words", [["--cluster", "debug"], ["--cluster=debug"]])
def test_removed_cluster_names_its_replacement(
    verb: str, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([verb, "x", *words]) == 2
    assert "--cluster debug is gone since 0.2.0: use --cluster local" in capsys.readouterr().err
