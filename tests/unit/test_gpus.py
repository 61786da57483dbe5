"""GPU-hours, shares and joules of a run from its nodes' series, by hand."""

from __future__ import annotations

from pathlib import Path

import make_results
import pytest

from hpcncf.collect.resource_columns import GPUS, columns_gpus
from hpcncf.job.plan import Run
from hpcncf.records.schema import Gpu, NodeRecord

BEGAN = make_results.START.timestamp()


def gpu(index: int, busy: list[float | None], joules: list[float | None]) -> Gpu:
    nothing: list[float | None] = [None] * len(busy)
    return Gpu(
        index=index,
        uuid=f"GPU-{index}",
        name="H200",
        memory_total_mib=1000.0,
        busy=busy,
        ours=nothing,
        memory_mib=[100.0 * (index + 1)] * len(busy),
        ours_memory_mib=nothing,
        energy_j=joules,
        sm_mhz=[1000.0 * (index + 1)] * len(busy),
        throttled={"power": [0.5] * len(busy), "thermal": nothing},
    )


@pytest.fixture
def run(tmp_path: Path) -> Run:
    paths = make_results.demo(tmp_path, repeats=1)
    plain = make_results.plan_of(paths).runs[0]
    resources = plain.resources.model_copy(update={"gpus_per_node": 2})
    return plain.model_copy(update={"resources": resources})


def node(run: Run, *told: Gpu) -> NodeRecord:
    """Windows of 1 s, 1 s and 2 s."""
    record = make_results.node_record(run, windows=3)
    record.started_at = make_results.START.isoformat()
    record.start_s, record.length_s = [0.0, 1.0, 2.0], [1.0, 1.0, 2.0]
    record.gpus = list(told)
    return record


def test_a_runs_gpus_add_up(run: Run) -> None:
    """Training is from second 1 to second 4: 500 J and 40 J in 3 s, an epoch takes 6 s."""
    first = gpu(0, [0.0, 1.0, 1.0], [60.0, 100.0, 400.0])
    second = gpu(1, [0.0, 0.0, 0.5], [10.0, 10.0, 30.0])
    row = columns_gpus(run, [node(run, first, second)], 1800.0, 6.0, (BEGAN + 1, BEGAN + 4))
    assert (row["gpus"], row["gpu_hours"], row["gpu_model"]) == (2, 1.0, "H200")
    assert row["gpu_busy"] == (1 + 2 + 1) / 8
    assert row["gpu_ours"] is None
    assert row["gpu_energy_j"] == 610.0
    assert row["gpu_j_per_epoch"] == pytest.approx((500 + 40) / 3 * 6)
    assert (row["gpu_throttled"], row["gpu_throttled_by"]) == (0.5, "power")
    assert (row["gpu_power_w"], row["gpu_sm_mhz"]) == (610 / 8, 1500.0)
    assert row["gpu_memory_peak_mib"] == 200.0


def test_runs_that_share_a_gpu_share_its_joules(run: Run) -> None:
    """As they do its hours: 100 W, an epoch of 6 s, three runs side by side."""
    resources = run.resources.model_copy(update={"gpus_per_node": 1, "runs_per_gpu": 3})
    shared = run.model_copy(update={"resources": resources})
    told = node(shared, gpu(0, [1.0] * 3, [100.0, 100.0, 200.0]))
    row = columns_gpus(shared, [told], 1800.0, 6.0, (BEGAN, BEGAN + 9))
    assert (row["gpu_j_per_epoch"], row["gpu_energy_j"]) == (200.0, 400.0)


def test_clocks_that_nothing_held_down_have_no_reason(run: Run) -> None:
    free = gpu(0, [1.0], [1.0])
    free.throttled = {"power": [0.0], "thermal": [0.0]}
    told = node(run, free)
    told.start_s, told.length_s = [0.0], [1.0]
    row = columns_gpus(run, [told], 10.0, 6.0, (BEGAN, BEGAN + 9))
    assert (row["gpu_throttled"], row["gpu_throttled_by"]) == (0.0, None)


def test_energy_that_is_not_known_throughout_is_not_known(run: Run) -> None:
    told = node(run, gpu(0, [0.5, None, 0.5], [1.0, None, 1.0]))
    row = columns_gpus(run, [told], 10.0, 6.0, (BEGAN, BEGAN + 9))
    assert (row["gpu_energy_j"], row["gpu_j_per_epoch"]) == (None, None)
    assert row["gpu_busy"] == 0.5


def test_without_nvml_only_the_hours_are_known(run: Run) -> None:
    plain = make_results.node_record(run, windows=3)
    row = columns_gpus(run, [plain], 1800.0, 6.0, (BEGAN, BEGAN + 9))
    hours = {"gpus": 2, "gpu_hours": 1.0}
    assert row == dict.fromkeys(GPUS) | hours


def test_a_run_without_gpus_tells_nothing_of_them(tmp_path: Path) -> None:
    run = make_results.plan_of(make_results.demo(tmp_path, repeats=1)).runs[0]
    told = node(run, gpu(0, [0.5, 0.5, 0.5], [1.0, 1.0, 1.0]))
    assert columns_gpus(run, [told], 10.0, None, (0.0, 0.0)) == dict.fromkeys(GPUS)
