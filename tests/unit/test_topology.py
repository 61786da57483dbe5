"""Hardware threads of one core go to one run, where there are cores enough."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcncf.monitor.node import CPU, spread


@pytest.mark.parametrize(
    ("number", "chosen"),
    [(8, [0, 4, 1, 5, 2, 6, 3, 7]), (4, [0, 1, 2, 3]), (6, [0, 4, 1, 5, 2, 3]), (2, [0, 1])],
)
def test_so_many_cpus_on_as_many_cores_as_there_are(
    tmp_path: Path, number: int, chosen: list[int]
) -> None:
    for cpu in range(8):
        seen = tmp_path / CPU.format(cpu, "thread_siblings_list")
        seen.parent.mkdir(parents=True)
        seen.write_text(f"{cpu % 4},{cpu % 4 + 4}\n")
    assert spread(range(8), number, tmp_path) == chosen


def test_where_the_kernel_says_no_siblings_every_cpu_is_a_core(tmp_path: Path) -> None:
    assert spread([5, 3, 4], 2, tmp_path) == [3, 4]
