"""What a program reports is found in its output, wherever that is cut."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcncf.records.schema import MOST_REPORTED
from hpcncf.worker.child_process import LONGEST_LINE, ReportedValues


def report(*chunks: bytes) -> ReportedValues:
    found = ReportedValues()
    for chunk in chunks:
        found.read(chunk)
    found.end()
    return found


@pytest.mark.parametrize(
    ("output", "values"),
    [
        (b"hpcncf: loss=0.5\n", {"loss": 0.5}),
        (b"hpcncf: epoch=3 loss=1e-3 name=adam\n", {"epoch": 3, "loss": 0.001, "name": "adam"}),
        (b"hpcncf: a=1\nhpcncf: a=2", {"a": 2}),
        (b"bar 10%\rhpcncf: a=1\r\nmore", {"a": 1}),
        (b" hpcncf: a=1\nxhpcncf: b=1\nhpcncf:c=1\n", {}),
        (b"hpcncf: a=nan b=inf c= d=a=b\n", {"a": "nan", "b": "inf", "c": "", "d": "a=b"}),
        (b"hpcncf: a=12345678901234567890\n", {"a": 1.2345678901234567e19}),
        (b"hpcncf: a=\xff\n", {"a": "\ufffd"}),
    ],
)
def test_the_last_value_of_each_key_counts(output: bytes, values: dict[str, Any]) -> None:
    assert report(output).values == values


@given(st.binary(max_size=300), st.lists(st.integers(0, 400), max_size=6))
def test_it_does_not_matter_where_the_output_is_cut(noise: bytes, cuts: list[int]) -> None:
    output = noise + b"\nhpcncf: a=1 b=x\n" + noise + b"\rhpcncf: a=2"
    ends = sorted({0, *cuts, len(output)})
    chunks = [output[at:to] for at, to in itertools.pairwise(ends)]
    assert report(*chunks).values == report(output).values


def test_a_line_without_end_is_not_kept_and_hides_nothing_after_it() -> None:
    found = ReportedValues()
    for _ in range(100):
        found.read(b"x" * LONGEST_LINE)
    assert len(found._rest) <= LONGEST_LINE
    found.read(b"hpcncf: a=1\nhpcncf: b=2\n")
    assert found.values == {"b": 2}


def test_too_much_is_left_out_and_said() -> None:
    found = report(*(f"hpcncf: k{number}=1\n".encode() for number in range(MOST_REPORTED + 9)))
    assert len(found.values) == MOST_REPORTED
    assert len(found.problems) == 5
    assert "more than 100 keys" in found.problems[0]


def test_a_word_that_is_no_pair_is_said() -> None:
    found = report(b"hpcncf: loss = 3\nhpcncf: a b=1\n")
    assert found.values == {"b": 1}
    assert any("expected key=value" in problem for problem in found.problems)


def test_the_files_values_have_the_last_word(tmp_path: Path) -> None:
    found, path = report(b"hpcncf: a=1 b=1\n"), tmp_path / "metrics.json"
    path.write_text(json.dumps({"a": 2, "c": True, "d": None, "e": [1], "f": "x"}))
    found.read_file(path)
    assert found.values == {"a": 2, "b": 1, "c": True, "f": "x"}
    assert len(found.problems) == 1
    assert "e: expected a number" in found.problems[0]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, None),
        ("{", "not readable as JSON"),
        ("[1]", "expected a mapping"),
        ('"' + "x" * 70_000 + '"', "larger than"),
        ("[" * 60_000, "not readable as JSON"),
    ],
)
def test_a_file_that_is_none_is_said_and_harms_nothing(
    tmp_path: Path, text: str | None, words: str | None
) -> None:
    if text is not None:
        (tmp_path / "metrics.json").write_text(text)
    found = ReportedValues()
    found.read_file(tmp_path / "metrics.json")
    assert found.values == {}
    assert len(found.problems) == (words is not None)
    assert words is None or words in found.problems[0]
