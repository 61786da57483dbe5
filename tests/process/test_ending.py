"""How a rank's process ends."""

from __future__ import annotations

import subprocess
import sys

import pytest

REGISTERED = """
import atexit, sys
from hpcncf.worker import recorder as ending
atexit.register(print, "registered", end=".")

class Late:
    def __del__(self):
        print("cleared up")

late = Late()
"""


def ended(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", REGISTERED + code], capture_output=True, text=True)


@pytest.mark.parametrize(
    ("code", "exit_code"),
    [
        ("ending.at_once(3)", 3),
        ("ending.in_the_end(0)", 0),
        ("ending.in_the_end(143); sys.exit(143)", 143),
        ("ending.in_the_end(0); raise OSError('the result cannot be written')", 1),
    ],
)
def test_what_was_registered_runs_and_python_does_not_clear_up(code: str, exit_code: int) -> None:
    over = ended(code)
    assert (over.stdout, over.returncode) == ("registered.", exit_code)
    assert ("the result cannot be written" in over.stderr) == (exit_code == 1)


def test_a_closed_stdout_does_not_change_the_exit_code() -> None:
    assert ended("sys.stdout.close(); ending.at_once(4)").returncode == 4
