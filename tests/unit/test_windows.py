"""Windows widen by merging, and lose nothing; what a record concludes from them."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcncf.monitor.monitor_thread import Peak, node_record, warnings
from hpcncf.monitor.windows import GpuWindow, Window, Windows, merge
from hpcncf.records.schema import Cores, Memory


def window(
    start_s: float = 0.0, length_s: float = 1.0, busy_s: float = 0.5, **changes: Any
) -> Window:
    made = Window(
        start_s=start_s,
        length_s=length_s,
        busy_s=(busy_s, 0.0),
        ours_s=(busy_s / 2, 0.0),
        steal_s=0.1,
        tree_cpu_s=busy_s / 2,
        network_mib=1.0,
        loopback_mib=2.0,
        disk_mib=3.0,
        rss_mib=start_s,
        memory_used_mib=start_s + 1,
    )
    return replace(made, **changes)


def added(windows: Windows, count: int) -> Windows:
    for number in range(count):
        windows.add(window(float(number)))
    return windows


def test_at_the_limit_neighbours_merge_and_the_width_doubles() -> None:
    few, many = added(Windows(1.0, most=8), 7), added(Windows(1.0, most=8), 8)
    assert [(each.start_s, each.length_s) for each in few.all()] == [(n, 1) for n in range(7)]
    assert [(each.start_s, each.length_s) for each in many.all()] == [
        (0, 2),
        (2, 2),
        (4, 2),
        (6, 2),
    ]
    assert (few.width_s, many.width_s) == (1.0, 2.0)


@given(count=st.integers(1, 300), most=st.integers(2, 20))
def test_windows_stay_few_adjoin_and_lose_nothing(count: int, most: int) -> None:
    kept = added(Windows(1.0, most=most), count).all()
    assert len(kept) <= most
    assert kept[0].start_s == 0
    for before, after in itertools.pairwise(kept):
        assert before.start_s + before.length_s == after.start_s
    assert sum(each.length_s for each in kept) == count
    assert sum(each.busy_s[0] for each in kept) == pytest.approx(0.5 * count)
    assert sum(each.disk_mib for each in kept) == pytest.approx(3.0 * count)
    assert kept[-1].rss_mib == count - 1


@given(lengths=st.lists(st.floats(0.01, 1.2), min_size=1, max_size=50))
def test_short_first_samples_become_windows_of_about_the_width(lengths: list[float]) -> None:
    windows = Windows(1.0)
    for length in lengths:
        windows.add(window(0.0, length))
    *done, _ = windows.all()
    assert all(each.length_s >= 0.5 for each in done)


def test_neighbours_add_up_and_what_one_of_them_misses_is_unknown() -> None:
    gpu = GpuWindow(2.0, 1.0, 0.5, 600.0, 3000.0, (1.0, 0.0, 0.0, 0.0), 900.0, 400.0)
    other = GpuWindow(1.0, None, 0.25, 100.0, 1000.0, (0.0, 1.0, 0.0, None), 800.0, None)
    both = merge(window(0.0, gpus=(gpu, gpu)), window(1.0, gpus=(other, gpu)))
    assert (both.start_s, both.length_s, both.busy_s) == (0.0, 2.0, (1.0, 0.0))
    assert (both.rss_mib, both.memory_used_mib) == (1.0, 2.0), "as the second ended"
    sums = GpuWindow(3.0, None, 0.75, 700.0, 4000.0, (1.0, 1.0, 0.0, None), 800.0, None)
    assert both.gpus == (sums, merge(gpu, gpu))


def test_others_are_what_is_busy_and_not_ours_and_never_below_zero() -> None:
    assert window(busy_s=0.5).others_s == pytest.approx(0.25)
    assert window(busy_s=-0.5).others_s == 0.0


def peak_of(rates: list[float]) -> float | None:
    peak, spent_s = Peak(10.0), 0.0
    peak.add(0.0, 0.0)
    for second, rate in enumerate(rates, 1):
        spent_s += rate
        peak.add(float(second), spent_s)
    return peak.cores


def test_the_peak_is_the_busiest_window_and_a_shorter_run_has_none() -> None:
    assert peak_of([1.0] * 20 + [3.0] * 10 + [1.0] * 30) == pytest.approx(3.0)
    assert peak_of([1.0] * 9) is None


@given(rates=st.lists(st.floats(0, 4), min_size=12, max_size=60))
def test_the_peak_lies_between_the_average_and_the_fastest_second(rates: list[float]) -> None:
    peak = peak_of(rates)
    assert peak is not None
    assert peak <= max(rates) + 1e-9
    # Windows of ten seconds tile the run but for a rest of less than ten.
    assert peak >= (sum(rates) - sum(sorted(rates)[-9:])) / len(rates) - 1e-9


CORES: dict[str, Any] = {
    "allocated": 2.0, "usable": 2.0, "used": 1.0, "cpus": [0, 1], "affinity_changed": False,
    "quota": None, "threads_per_core": 1, "on_node": 8,
}  # fmt: skip


def measured(busy_s: float, tree_cpu_s: float, **changes: Any) -> Window:
    known = {"length_s": 10.0, "busy_s": busy_s, "tree_cpu_s": tree_cpu_s, "steal_s": 0.0}
    return window(**known | changes)


KEEPS = [
    measured(1.0, 1.0, start_s=10.0 * number, anonymous_mib=300.0 + 20 * number)
    for number in range(20)
]


@pytest.mark.parametrize(
    ("cores", "memory_mib", "elapsed_s", "windows", "expected"),
    [
        ({}, (850.0, 1000.0), 20.0, [measured(9.0, 9.0)], None),
        ({}, (10.0, None), 60.0, [replace(each, anonymous_mib=9.0) for each in KEEPS], None),
        ({"allocated": 4.0, "usable": 1.0}, (10.0, None), 60.0, [], "only 1 of 4 allocated cores"),
        ({"affinity_changed": True}, (10.0, None), 60.0, [], "affinity mask was 0-1"),
        ({}, (10.0, None), 2.0, [], "too short to judge"),
        ({}, (950.0, 1000.0), 60.0, [], "95% of its limit"),
        ({}, (10.0, None), 60.0, KEEPS, "memory grew steadily"),
        ({}, (10.0, None), 60.0, [measured(10.0, 2.0)], "a neighbour used 0.8 of your 2 cores"),
        ({}, (10.0, None), 60.0, [measured(8.0, 8.0, steal_s=2.0)], "hypervisor took 10%"),
    ],
)
def test_what_makes_a_record_worth_less_is_a_warning(
    cores: dict[str, Any],
    memory_mib: tuple[float, float | None],
    elapsed_s: float,
    windows: list[Window],
    expected: str | None,
) -> None:
    peak, limit = memory_mib
    memory = Memory(rss_peak_mib=peak, anonymous_peak_mib=None, limit_mib=limit)
    found = warnings(Cores(**CORES | cores), memory, elapsed_s, windows, [0, 1])
    assert len(found) == (expected is not None)
    assert expected is None or expected in found[0]


def test_a_node_record_has_shares_per_cpu_and_window() -> None:
    about = {"run_id": "r", "attempt": 1, "node": "n", "node_index": 0}
    windows = [measured(5.0, 4.0), measured(10.1, 0.0)]
    record = node_record(windows, [0, 1], started_at="2026-01-01T00:00:00.000+00:00", **about)
    assert record.busy == [[0.5, 1.0], [0.0, 0.0]]
    assert record.others_cores == [0.1, 1.01]
    assert record.tree_cpu_s == [4.0, 0.0]
