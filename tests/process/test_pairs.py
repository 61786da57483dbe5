"""No program can tell that hpcncf is there: those of tests/pairs.py and tests/sessions.py."""

from __future__ import annotations

import os
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests import pairs, sessions

IN_SHORT = [each for each in pairs.PROGRAMS if each.name in pairs.QUICK]


def test_a_short_list_names_programs_that_there_are() -> None:
    assert len({each.name for each in pairs.PROGRAMS}) == len(pairs.PROGRAMS)
    assert [each.name for each in IN_SHORT if each.name in pairs.QUICK] != []
    assert len(IN_SHORT) == len(pairs.QUICK)


@pytest.mark.parametrize("way", pairs.WAYS)
def test_a_program_cannot_tell_that_it_is_measured(way: pairs.Way) -> None:
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda each: pairs.differences(each, sys.executable, way), IN_SHORT))
    assert {each.name: what for each, what in zip(IN_SHORT, found, strict=True) if what} == {}


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
@pytest.mark.parametrize("name", ["ctrl-c in a loop", "input, own group", "ctrl-z and fg"])
def test_keys_at_a_terminal_reach_the_program(name: str) -> None:
    steps = sessions.SESSIONS[name]
    assert sessions.transcript(steps, True) == sessions.transcript(steps, False)


@pytest.mark.skipif(os.environ.get("HPCNCF_TEST_PAIRS") != "1", reason="takes half an hour")
def test_no_program_of_any_python_can_tell() -> None:
    assert (pairs.main([]), sessions.main()) == (0, 0)
