"""Windows widen by merging, and lose nothing."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcncf.monitor.windows import Window, Windows, merge


def window(start_s: float, length_s: float = 1.0, busy_s: float = 0.5) -> Window:
    return Window(
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


def added(windows: Windows, count: int) -> Windows:
    for number in range(count):
        windows.add(window(float(number)))
    return windows


def test_up_to_the_limit_every_sample_is_a_window_of_its_own() -> None:
    kept = added(Windows(1.0, most=8), 7)
    assert [each.start_s for each in kept.all()] == [0, 1, 2, 3, 4, 5, 6]
    assert kept.width_s == 1.0


def test_at_the_limit_neighbours_merge_and_the_width_doubles() -> None:
    kept = added(Windows(1.0, most=8), 8)
    assert [(each.start_s, each.length_s) for each in kept.all()] == [
        (0, 2),
        (2, 2),
        (4, 2),
        (6, 2),
    ]
    assert kept.width_s == 2.0


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


def test_a_merged_window_ends_as_the_second_did() -> None:
    both = merge(window(0.0), window(1.0))
    assert (both.start_s, both.length_s) == (0.0, 2.0)
    assert both.busy_s == (1.0, 0.0)
    assert (both.rss_mib, both.memory_used_mib) == (1.0, 2.0)


def test_others_are_what_is_busy_and_not_ours_and_never_below_zero() -> None:
    assert window(0.0, busy_s=0.5).others_s == pytest.approx(0.25)
    assert window(0.0, busy_s=-0.5).others_s == 0.0
