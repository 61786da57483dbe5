"""Shells complete verbs and options."""

from __future__ import annotations

import subprocess

import pytest

from hpcncf import cli


@pytest.mark.parametrize("shell", ["bash", "zsh", "tcsh"])
def test_a_script_for_each_shell_knows_every_verb(
    shell: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert all(verb in script for verb in cli.VERBS)


def test_bash_takes_the_script(capsys: pytest.CaptureFixture[str]) -> None:
    cli.main(["completion", "bash"])
    script = capsys.readouterr().out
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)
