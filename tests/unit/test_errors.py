"""Exit codes in words."""

from __future__ import annotations

import signal

import pytest

from hpcncf.errors import describe_exit


@pytest.mark.parametrize(
    ("code", "phrase"),
    [
        (3, "rank 1 exited with code 3"),
        (-signal.SIGKILL, "rank 1 was killed by signal 9 (SIGKILL)"),
        (-63, "rank 1 was killed by signal 63"),
    ],
)
def test_an_exit_code_in_words(code: int, phrase: str) -> None:
    assert describe_exit(1, code) == phrase
