"""POP's factors, against ranks worked by hand."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_configurations import row

from hpcncf_analysis.configurations import group_configurations
from hpcncf_analysis.pop import Pop, computation_scaling, pop_from_rows, pop_table

Row = dict[str, Any]


def rank(number: int, sync_s: float, input_s: float = 0.0, **changes: Any) -> Row:
    """Of 10 s and 1,000 instances on one core."""
    plain = {"run_id": "two", "rank": number, "node": f"node{number}", "cores_allocated": 1.0}
    times = {"counted_s": 10.0, "input_s": input_s, "sync_s": sync_s, "counted_instances": 1000}
    return plain | times | changes


def factors(*ranks: Row) -> Pop:
    found = pop_from_rows(ranks)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("ranks", "balance", "communication", "input_share", "slowest"),
    [
        ([rank(0, 4.0), rank(1, 1.0)], 7.5 / 9, 0.9, 1.0, (1, "node1", 0.5)),  # busy 6 and 9 s
        ([rank(0, 2.0, 2.0), rank(1, 2.0, 2.0)], 1.0, 0.8, 0.75, (0, "node0", 0.0)),
        ([rank(1, 1.0), rank(0, 1.0), rank(2, 1.0)], 1.0, 0.9, 1.0, (0, "node0", 0.0)),
        ([rank(0, 0.0, counted_s=5.0), rank(1, 0.0)], 0.75, 1.0, 1.0, (1, "node1", 1.0)),
    ],
    ids=["uneven", "input", "equal", "one ended early"],
)
def test_factors_by_hand(
    ranks: list[Row],
    balance: float,
    communication: float,
    input_share: float,
    slowest: tuple[int, str, float],
) -> None:
    found = factors(*ranks)
    assert (found.load_balance, found.communication) == pytest.approx((balance, communication))
    assert found.input == pytest.approx(input_share)
    assert found.parallel == pytest.approx(balance * communication * input_share)
    assert (found.slowest_rank, found.slowest_node) == slowest[:2]
    assert found.slowest_by == pytest.approx(slowest[2])


@pytest.mark.parametrize(
    "ranks",
    [
        [],
        [rank(0, 0.0, counted_s=0.0)],
        [rank(0, 0.0, counted_instances=0)],
        [rank(0, 0.0, counted_s=None)],
    ],
)
def test_nothing_counted_has_no_factors(ranks: list[Row]) -> None:
    assert pop_from_rows(ranks) is None


RANKS = st.lists(
    st.builds(
        rank,
        st.integers(0, 7),
        sync_s=st.floats(0, 4),
        input_s=st.floats(0, 4),
        counted_s=st.floats(9, 10),
        cores_allocated=st.just(2.0),
    ),
    min_size=1,
    max_size=5,
)


@given(RANKS, RANKS)
def test_the_factors_multiply_and_compare_as_the_speeds_do(few: list[Row], many: list[Row]) -> None:
    """POP across runs and the ratio of speeds agree, whatever the ranks did."""
    base, this = factors(*few), factors(*many)
    assert this.parallel == pytest.approx(this.load_balance * this.communication * this.input)
    assert 0 < this.parallel <= 1 + 1e-9
    per_core = [
        sum(one["counted_instances"] for one in ranks)
        / max(one["counted_s"] for one in ranks)
        / sum(one["cores_allocated"] for one in ranks)
        for ranks in (few, many)
    ]
    scaled = computation_scaling(base, this)
    assert scaled is not None
    assert this.parallel * scaled / base.parallel == pytest.approx(per_core[1] / per_core[0])


def test_the_table_names_the_factors_and_the_slowest_rank() -> None:
    """Useful 5 and 9 of 10 s: 14 core-seconds for 2,000 instances, 10 for 1,000 on one rank."""
    shown = group_configurations([row(run_id="one"), row(ranks=2, run_id="two")])
    alone = rank(0, 0.0, run_id="one")
    table = pop_table(shown, [alone, rank(0, 5.0), rank(1, 1.0)])
    assert table
    name = "2 ranks × 1 core · vectorized"
    shares = [f"{share}\u202f%" for share in (78, 90, 100, 70, 143)]
    assert table.rows == [[name, *shares, "rank 1 on node1, 80\u202f% longer", ""]]
    even = pop_table(shown, [alone, rank(0, 1.0), rank(1, 1.0)])
    assert even
    assert even.rows[0][-2] == "none: within 2\u202f%"
    assert pop_table(shown, [rank(0, 5.0, counted_s=None)]) is None
