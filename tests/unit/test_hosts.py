"""Slurm's compressed lists of hosts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcncf.worker import environment


@pytest.mark.parametrize(
    ("nodelist", "expected"),
    [
        ("node7", ["node7"]),
        ("n-1", ["n-1"]),
        ("a,b", ["a", "b"]),
        ("cpu[03-05,9],gpu1", ["cpu03", "cpu04", "cpu05", "cpu9", "gpu1"]),
        ("cpu[9-11]", ["cpu9", "cpu10", "cpu11"]),
        ("r1n[2-3]-ib", ["r1n2-ib", "r1n3-ib"]),
        ("a[01-03,7],b", ["a01", "a02", "a03", "a7", "b"]),
        ("rack[1-2]node[1-2]", ["rack1node1", "rack1node2", "rack2node1", "rack2node2"]),
        ("n1.x.org,n2.x.org", ["n1.x.org", "n2.x.org"]),
        ("", []),
    ],
)
def test_a_list_is_written_out(nodelist: str, expected: list[str]) -> None:
    assert environment.hosts(nodelist) == expected


numbers = st.integers(0, 200)
spans = st.tuples(numbers, st.integers(0, 5), st.integers(1, 4))
texts = st.from_regex(r"[a-z][a-z0-9.-]{0,6}[a-z]", fullmatch=True)


@given(texts, st.lists(spans, min_size=1, max_size=4), texts | st.just(""))
def test_any_numbers_in_brackets_are_counted_with_their_zeros(
    before: str, ranges: list[tuple[int, int, int]], after: str
) -> None:
    written, expected = [], []
    for first, more, width in ranges:
        names = [str(number).zfill(width) for number in range(first, first + more + 1)]
        written.append(names[0] if more == 0 else f"{names[0]}-{names[-1]}")
        expected += [before + name + after for name in names]
    assert environment.hosts(f"{before}[{','.join(written)}]{after}") == expected
    assert environment.first_host(f"{before}[{','.join(written)}]{after},z[1-2]") == expected[0]


@pytest.mark.parametrize(
    ("compressed", "expected"),
    [("2", [2]), ("2(x3),1", [2, 2, 2, 1]), ("1,2", [1, 2]), ("", []), ("two", [])],
)
def test_numbers_per_node_are_written_out(compressed: str, expected: list[int]) -> None:
    assert environment.per_node(compressed) == expected
