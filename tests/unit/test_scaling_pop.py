"""POP's factors, against ranks worked by hand."""

from __future__ import annotations

from pathlib import Path

import make_results
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcncf.collect.collect import rank_row
from hpcncf_analysis.pop import Pop, RankTime, computation_scaling, pop_from_rows, pop_from_times


def rank(
    number: int,
    sync_s: float,
    input_s: float = 0.0,
    counted_s: float = 10.0,
    cores: float = 1.0,
    instances: int = 1000,
) -> RankTime:
    return RankTime(number, f"node{number}", cores, counted_s, input_s, sync_s, instances)


def of(*ranks: RankTime) -> Pop:
    found = pop_from_times(ranks)
    assert found is not None
    return found


def test_two_uneven_ranks_by_hand() -> None:
    """Busy 6 and 9 of 10 s: balance 7.5 / 9, communication 9 / 10, together 7.5 / 10."""
    found = of(rank(0, sync_s=4.0), rank(1, sync_s=1.0))
    assert found.load_balance == pytest.approx(7.5 / 9)
    assert found.communication == pytest.approx(0.9)
    assert found.input == 1
    assert found.parallel == pytest.approx(0.75)
    assert (found.slowest_rank, found.slowest_node) == (1, "node1")
    assert found.slowest_by == pytest.approx(0.5)


def test_waiting_for_input_is_a_factor_of_its_own() -> None:
    """Busy 8 s each, 2 of them for input: 6 / 8 is useful, and no communication is blamed."""
    found = of(rank(0, sync_s=2.0, input_s=2.0), rank(1, sync_s=2.0, input_s=2.0))
    assert found.input == pytest.approx(0.75)
    assert found.communication == pytest.approx(0.8)
    assert found.load_balance == 1
    assert found.parallel == pytest.approx(0.6)


def test_equal_ranks_name_the_first_and_say_by_how_little() -> None:
    found = of(rank(0, 1.0), rank(1, 1.0), rank(2, 1.0))
    assert (found.slowest_rank, found.slowest_by) == (0, 0)


def test_a_rank_that_ended_early_waits_for_the_rest() -> None:
    """The elapsed time is the longest rank's."""
    found = of(rank(0, 0.0, counted_s=5.0), rank(1, 0.0, counted_s=10.0))
    assert found.parallel == pytest.approx(0.75)


@pytest.mark.parametrize("ranks", [[], [rank(0, 0.0, counted_s=0.0)], [rank(0, 0.0, instances=0)]])
def test_nothing_counted_has_no_efficiency(ranks: list[RankTime]) -> None:
    assert pop_from_times(ranks) is None


def test_computation_scaling_by_hand() -> None:
    """8 useful core-seconds for 1,000 instances against 2 x 9 for 2,000: 8 / 9."""
    base = of(rank(0, 0.0, input_s=2.0))
    this = of(rank(0, 1.0), rank(1, 1.0))
    assert computation_scaling(base, this) == pytest.approx(8 / 9)


RANKS = st.lists(
    st.builds(
        rank,
        st.integers(0, 7),
        sync_s=st.floats(0, 4),
        input_s=st.floats(0, 4),
        counted_s=st.floats(9, 10),
        cores=st.just(2.0),
    ),
    min_size=1,
    max_size=5,
)


@given(RANKS)
def test_the_factors_multiply_to_the_parallel_efficiency(ranks: list[RankTime]) -> None:
    found = of(*ranks)
    product = found.load_balance * found.communication * found.input
    assert found.parallel == pytest.approx(product)
    assert 0 < found.parallel <= 1 + 1e-9


@given(RANKS, RANKS)
def test_global_efficiency_over_the_bases_is_that_of_the_speeds(
    few: list[RankTime], many: list[RankTime]
) -> None:
    """POP across runs and the ratio of speeds say the same, whatever the ranks did."""
    base, this = of(*few), of(*many)
    scaled = computation_scaling(base, this)
    assert scaled is not None
    per_core = [
        sum(one.instances for one in ranks)
        / max(one.counted_s for one in ranks)
        / sum(one.cores for one in ranks)
        for ranks in (few, many)
    ]
    assert this.parallel * scaled / base.parallel == pytest.approx(per_core[1] / per_core[0])


def test_the_table_of_ranks_says_what_the_records_do(tmp_path: Path) -> None:
    paths = make_results.demo(tmp_path, repeats=1)
    (run,) = [
        run
        for run in make_results.plan_of(paths).runs
        if run.resources.world_size == 2 and run.training and run.training.loader == "per_sample"
    ]
    records = [make_results.rank_record(run, rank) for rank in range(2)]
    found = pop_from_rows(rank_row(record) for record in records)
    waited = [record.training.phases.sync_s for record in records if record.training]
    counted = [record.training.counted_s for record in records if record.training]
    assert found.communication == pytest.approx(1 - min(waited) / max(counted))


def test_a_command_has_no_factors(tmp_path: Path) -> None:
    (run,) = make_results.plan_of(make_results.command_plan(tmp_path)).runs
    record = make_results.rank_record(run, 0)
    assert pop_from_rows([rank_row(record)]) is None
