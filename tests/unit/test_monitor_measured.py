"""The peak over a window, and the warnings that make a record worth less."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcncf.monitor.monitor_thread import Peak, node_record, warnings
from hpcncf.monitor.windows import Window
from hpcncf.records.schema import Cores, Memory


def cores(**changes: Any) -> Cores:
    return Cores(
        **(
            {
                "allocated": 2.0,
                "usable": 2.0,
                "used": 1.0,
                "cpus": [0, 1],
                "affinity_changed": False,
                "quota": None,
                "threads_per_core": 1,
                "on_node": 8,
            }
            | changes
        )
    )


def memory(peak: float = 10.0, limit: float | None = None) -> Memory:
    return Memory(rss_peak_mib=peak, anonymous_peak_mib=None, limit_mib=limit)


def window(busy_s: float, tree_cpu_s: float, steal_s: float = 0.0) -> Window:
    return Window(
        0.0, 10.0, (busy_s, 0.0), (0.0, 0.0), steal_s, tree_cpu_s, 0.0, 0.0, 0.0, 0.0, 0.0
    )


def warned(
    granted: Cores | None = None,
    used: Memory | None = None,
    elapsed_s: float = 60.0,
    windows: list[Window] | None = None,
) -> str:
    return "\n".join(
        warnings(granted or cores(), used or memory(), elapsed_s, windows or [], [0, 1])
    )


def test_a_run_shorter_than_the_window_has_no_peak() -> None:
    peak = Peak(10.0)
    for second in range(10):
        peak.add(float(second), float(second))
    assert peak.cores is None


def test_the_peak_is_the_busiest_window() -> None:
    peak = Peak(10.0)
    spent_s = 0.0
    for second in range(61):
        peak.add(float(second), spent_s)
        spent_s += 3.0 if 20 <= second < 30 else 1.0
    assert peak.cores == pytest.approx(3.0)


@given(rates=st.lists(st.floats(0, 4), min_size=12, max_size=60))
def test_the_peak_lies_between_the_average_and_the_fastest_second(rates: list[float]) -> None:
    peak = Peak(10.0)
    spent_s = 0.0
    peak.add(0.0, 0.0)
    for second, rate in enumerate(rates, 1):
        spent_s += rate
        peak.add(float(second), spent_s)
    assert peak.cores is not None
    assert peak.cores <= max(rates) + 1e-9
    # Windows of ten seconds tile the run but for a rest of less than ten.
    assert peak.cores >= (spent_s - sum(sorted(rates)[-9:])) / len(rates) - 1e-9


def test_a_good_record_has_no_warning() -> None:
    assert warned(windows=[window(9.0, 9.0)]) == ""


def test_cores_out_of_reach_say_what_to_do() -> None:
    text = warned(cores(allocated=4.0, usable=1.0, cpus=[3]))
    assert "only 1 of 4 allocated cores" in text
    assert "affinity mask is 3" in text
    assert "--cpus-per-task=4" in text


def test_a_quota_is_named_where_it_is_the_limit() -> None:
    assert "quota is 0.5 cores" in warned(cores(usable=0.5, quota=0.5))


def test_a_changed_mask_is_reported() -> None:
    assert "affinity mask was 0-1" in warned(cores(affinity_changed=True))


def test_a_short_run_is_too_short_to_judge() -> None:
    assert "too short to judge" in warned(elapsed_s=2.0)
    assert "too short" not in warned(elapsed_s=20.0)


def test_memory_near_its_limit_is_reported() -> None:
    assert "95% of its limit" in warned(used=memory(950.0, 1000.0))
    assert warned(used=memory(850.0, 1000.0)) == ""


def test_memory_that_grows_in_every_window_is_reported() -> None:
    kept = [
        replace(window(1.0, 1.0), start_s=10.0 * number, anonymous_mib=300.0 + 20 * number)
        for number in range(20)
    ]
    assert "memory grew steadily" in warned(windows=kept)
    assert "memory grew" not in warned(windows=[replace(each, anonymous_mib=9.0) for each in kept])


def test_a_neighbour_on_our_cores_is_reported() -> None:
    assert "a neighbour used 0.8 of your 2 cores" in warned(windows=[window(10.0, 2.0)])


def test_stolen_time_is_reported() -> None:
    assert "hypervisor took 10%" in warned(windows=[window(8.0, 8.0, steal_s=2.0)])


def test_a_node_record_has_shares_per_cpu_and_window() -> None:
    record = node_record(
        "r", 1, "n", 0, "2026-01-01T00:00:00.000+00:00", [0, 1], [window(5.0, 4.0), window(10.1, 0)]
    )
    assert record.busy == [[0.5, 1.0], [0.0, 0.0]]
    assert record.others_cores == [0.1, 1.01]
    assert record.tree_cpu_s == [4.0, 0.0]
