"""What the ranks waited for, added up over a run by hand."""

from __future__ import annotations

from pathlib import Path

import make_results
import pytest

from hpcncf.collect.resource_columns import WAITS, columns_waits
from hpcncf.records.schema import RankRecord


@pytest.fixture
def ranks(tmp_path: Path) -> list[RankRecord]:
    """Two ranks on the first node, one on the second."""
    paths = make_results.demo(tmp_path, points=[{"resources.tasks_per_node": 3}], repeats=1)
    run = make_results.plan_of(paths).runs[0]
    found = [make_results.rank_record(run, rank) for rank in range(3)]
    for record, node, throttled_s in zip(found, (0, 0, 1), (4.0, 5.0, 2.0), strict=True):
        record.node_index = node
        record.cpu.throttled_s = throttled_s
        record.cpu.runnable_mean, record.cpu.runqueue_s = 1.5, 3.0
        record.memory.major_faults, record.io.pressure_s = 7, throttled_s / 2
    return found


def test_threads_add_up_and_what_the_ranks_of_a_node_share_counts_once(
    ranks: list[RankRecord],
) -> None:
    row = columns_waits(ranks)
    assert (row["runnable_mean"], row["runqueue_s"], row["major_faults"]) == (4.5, 9.0, 21)
    assert row["throttled_s"] == 5.0 + 2.0
    assert row["io_pressure_s"] == 2.5


def test_what_one_rank_does_not_tell_is_not_known_of_the_run(ranks: list[RankRecord]) -> None:
    ranks[1].cpu.throttled_s = ranks[1].cpu.runqueue_s = None
    row = columns_waits(ranks)
    assert (row["throttled_s"], row["runqueue_s"], row["runnable_mean"]) == (None, None, 4.5)


def test_records_of_an_older_version_tell_nothing(tmp_path: Path) -> None:
    run = make_results.plan_of(make_results.demo(tmp_path, repeats=1)).runs[0]
    assert columns_waits([make_results.rank_record(run, 0)]) == dict.fromkeys(WAITS)
