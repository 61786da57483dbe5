"""Ranks that wait for one another: for the exchange itself, or for one of them."""

from __future__ import annotations

from typing import Any

import pytest
from make_evidence import command, evidence, two_ranks

from hpcncf_analysis.diagnosis.evidence import RankTimes
from hpcncf_analysis.diagnosis.rules_ranks import balance, load_imbalance, straggler, sync_bound


def rank(number: int, sync_s: float, instances: int = 1000, cpu_s: float = 95.0) -> RankTimes:
    return RankTimes(number, f"node{number + 1}", 95.0, sync_s, instances, cpu_s)


def test_ranks_that_arrive_together_and_wait_are_bound_by_their_exchange() -> None:
    told = two_ranks(rank(0, 38.0), rank(1, 38.0), sync_bytes_per_step=2.0 * 2**20)
    found = sync_bound(told)
    assert found is not None
    assert found.share == pytest.approx(0.4 * 0.95)
    assert "2 MiB" in found.evidence[1]
    assert found.changes == {"training.engine": "rowwise", "training.sync": "rows"}
    assert found.gain is not None
    # 1,500 rows to catch up for 1,000 instances: one pass more.
    assert found.gain.factor == pytest.approx(1 / (0.04 + 5.005 * 0.3))


def test_an_older_record_that_tells_nothing_of_its_exchange_is_taken_at_its_settings() -> None:
    told = two_ranks(rank(0, 38.0), rank(1, 38.0), sync_how=None)
    found = sync_bound(told)
    assert found is not None
    assert found.changes["training.sync"] == "rows"
    assert "training.sync rows" in found.remedy


def test_a_dense_all_reduce_of_sparse_gradients_is_said_apart() -> None:
    told = two_ranks(rank(0, 38.0), rank(1, 38.0), rows_per_step=700, table_rows=300_000)
    found = sync_bound(told)
    assert found is not None
    assert any("dense all-reduce of sparse gradients" in each for each in found.evidence)
    assert "rows that a step read" in found.remedy


@pytest.mark.parametrize("setting", [{"sparse": True}, {"weight_decay": 0.1}])
def test_sparse_gradients_and_weight_decay_are_not_told_to_send_rows(
    setting: dict[str, Any],
) -> None:
    known: dict[str, Any] = {"rows_per_step": 700, "table_rows": 300_000}
    told = two_ranks(rank(0, 38.0), rank(1, 38.0), training={"sync": "dense"} | setting, **known)
    found = sync_bound(told)
    assert found is not None
    dense = any("dense all-reduce of sparse" in each for each in found.evidence)
    assert (dense, found.changes == {}) == (not setting.get("sparse"), "weight_decay" in setting)


def test_a_slow_rank_is_named_and_the_exchange_is_not_blamed() -> None:
    told = two_ranks(rank(0, 60.0), rank(1, 2.0))
    assert sync_bound(told) is None
    assert load_imbalance(told) is None
    found = straggler(told)
    assert found is not None
    # Useful 35 and 93 s: as fast as rank 0, rank 1 would save 58 of 95 s, which rank 0 waits.
    assert found.share == pytest.approx(58 / 95 * 0.95)
    assert "for 61\u202f% of a step" in found.evidence[1]
    assert found.evidence[0].startswith("rank 1 on node node2 needs 1.45 times")


def test_a_rank_with_more_instances_is_not_slow() -> None:
    told = two_ranks(rank(0, 60.0, instances=1000), rank(1, 2.0, instances=3000))
    assert straggler(told) is None
    found = load_imbalance(told)
    assert found is not None
    assert found.evidence[0] == "rank 1 has 3,000 instances, the mean is 2,000"


def test_ranks_that_differ_a_little_are_alike() -> None:
    told = two_ranks(rank(0, 8.0), rank(1, 2.0))
    assert straggler(told) is None
    assert load_imbalance(told) is None


def test_without_phases_unequal_cpu_time_is_an_imbalance() -> None:
    both = (RankTimes(0, "node1", cpu_s=30.0), RankTimes(1, "node1", cpu_s=96.0))
    found = load_imbalance(command(ranks=both, world_size=2))
    assert found is not None
    assert found.share == pytest.approx(1 - 63 / 96)
    assert found.of == "cores"


def test_one_rank_waits_for_nobody() -> None:
    assert balance(evidence().ranks) is None
    assert sync_bound(evidence()) is None


def test_a_rank_whose_record_is_missing_leaves_the_others_unjudged() -> None:
    assert balance((rank(0, 60.0), RankTimes(1, "node2"))) is None
