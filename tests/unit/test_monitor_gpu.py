"""GPUs: what NVML's answers become, and that nothing is reported where nobody answers."""

from __future__ import annotations

import time
from collections import namedtuple
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from test_monitor_windows import window

from hpcncf.monitor.gpu import (
    REASONS,
    Gpus,
    GpusUnavailable,
    GpuWindow,
    Identity,
    Processes,
    allowed,
    gpus_of_node,
    merge,
    open_gpus,
    opened,
    sees_pids,
)
from hpcncf.monitor.monitor_thread import Monitor
from hpcncf.monitor.windows import merge as merge_windows
from hpcncf.records.schema import GpuProcess

pynvml = pytest.importorskip("pynvml")

TWO = [Identity(0, "GPU-aa11", "H200", 140_000.0), Identity(1, "GPU-bb22", "H200", 140_000.0)]
UNKNOWN: Any = {"ours": None, "busy": None, "memory_peak_mib": None}
HALF = GpuWindow(2.0, 1.0, 0.5, 600.0, 3000.0, (1.0, 0.0, 0.0, 0.0), 900.0, 400.0)

Rates = namedtuple("Rates", "gpu")
Memory = namedtuple("Memory", "total used")
Process = namedtuple("Process", "pid usedGpuMemory")
Utilization = namedtuple("Utilization", "pid timeStamp smUtil")


class Nvml:
    """The library's functions, with the answers of one GPU at work for two seconds."""

    NVMLError, NVML_CLOCK_SM = pynvml.NVMLError, pynvml.NVML_CLOCK_SM
    NVML_SUCCESS, NVML_ERROR_NOT_FOUND = pynvml.NVML_SUCCESS, pynvml.NVML_ERROR_NOT_FOUND

    def __init__(self, refused: str = "", error: int = pynvml.NVML_ERROR_NOT_SUPPORTED) -> None:
        self.refused, self.error, self.since = refused, error, list[int]()
        self.millijoules = 1_000_000

    def answer(self, name: str, value: Any) -> Any:
        if name == self.refused:
            raise pynvml.NVMLError(self.error)
        return value

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetUUID(self, _: int) -> str:
        return "GPU-aa11"

    def nvmlDeviceGetName(self, _: int) -> str:
        return "H200"

    def nvmlDeviceGetMemoryInfo(self, _: int) -> Memory:
        return Memory(1000 * 2**20, 300 * 2**20)

    def nvmlDeviceGetUtilizationRates(self, _: int) -> Any:
        return self.answer("utilization", Rates(50))

    def nvmlDeviceGetClockInfo(self, _: int, clock: int) -> int:
        assert clock == pynvml.NVML_CLOCK_SM
        return 1500

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, _: int) -> int:
        return int(pynvml.nvmlClocksThrottleReasonSwPowerCap) | 0x1

    def nvmlDeviceGetTotalEnergyConsumption(self, _: int) -> Any:
        self.millijoules += 700_000
        return self.answer("energy", self.millijoules)

    def nvmlDeviceGetPowerUsage(self, _: int) -> int:
        return 250_000

    def nvmlDeviceGetComputeRunningProcesses_v3(self, _: int) -> Any:
        return self.answer("processes", [Process(7, 100 * 2**20), Process(8, 150 * 2**20)])

    def nvmlDeviceGetProcessUtilization(self, _: int, since: int) -> Any:
        self.since.append(since)
        seen = [Utilization(7, 40, 10), Utilization(7, 50, 30), Utilization(8, 45, 60)]
        return self.answer("process utilization", seen)


def sampled(nvml: Nvml, sees_pids: bool = True) -> tuple[Gpus, GpuWindow]:
    gpus = Gpus(nvml, 1, sees_pids)
    return gpus, gpus.sample({7, 9}, 2.0)[0]


def test_nothing_is_found_where_there_is_no_driver() -> None:
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        assert open_gpus() is None
        with pytest.raises(GpusUnavailable):
            opened()


def test_a_sample_is_what_nvml_reported_over_its_time() -> None:
    nvml = Nvml()
    gpus, seen = sampled(nvml)
    assert seen == GpuWindow(
        length_s=2.0,
        busy_s=1.0,
        ours_s=0.4,  # process 7 had 10 % and 30 %: 20 % of two seconds
        energy_j=700.0,
        mhz_s=3000.0,
        throttled_s=(2.0, 0.0, 0.0, 0.0),
        memory_mib=300.0,
        ours_memory_mib=100.0,
    )
    assert gpus.used == {0}
    gpus.sample({7}, 1.0)
    assert nvml.since == [0, 50], "each sample of NVML's is counted once"


def test_processes_are_distinguished_over_all_of_the_time() -> None:
    """7 is the run's and had 20 %, 8 is somebody's and had 60 %, in each of two samples."""
    gpus, _ = sampled(Nvml())
    gpus.sample({7}, 4.0)
    assert gpus.processes[0] == [
        GpuProcess(pid=8, ours=False, busy=0.6, memory_peak_mib=150.0),
        GpuProcess(pid=7, ours=True, busy=0.2, memory_peak_mib=100.0),
    ]


def test_a_process_that_came_later_has_its_share_of_all_the_time() -> None:
    seen = Processes(sees_pids=True)
    seen.add({}, {}, {5}, 3.0)
    seen.add({5: 0.8}, {5: None}, {5}, 1.0)
    seen.add({}, {5: 20.0}, set(), 0.0)
    assert seen.summary() == [GpuProcess(pid=5, ours=True, busy=0.2, memory_peak_mib=20.0)]


def test_in_a_container_processes_are_reported_but_not_whose_they_are() -> None:
    gpus, _ = sampled(Nvml(), sees_pids=False)
    assert [(each.pid, each.ours) for each in gpus.processes[0]] == [(8, None), (7, None)]


def test_what_nvml_does_not_say_of_processes_is_none() -> None:
    (first, second) = sampled(Nvml("process utilization"))[0].processes[0]
    assert (first.busy, second.busy, first.memory_peak_mib) == (None, None, 100.0)
    assert [each.memory_peak_mib for each in sampled(Nvml("processes"))[0].processes[0]] == [
        None,
        None,
    ]


def test_without_an_energy_counter_it_is_power_by_time() -> None:
    assert sampled(Nvml("energy"))[1].energy_j == 500.0


def test_what_a_gpu_refuses_is_none_and_the_rest_is_reported() -> None:
    seen = sampled(Nvml("utilization"))[1]
    assert (seen.busy_s, seen.energy_j) == (None, 700.0)
    assert sampled(Nvml("processes"))[1].ours_memory_mib is None
    assert sampled(Nvml("process utilization"))[1].ours_s is None


@pytest.mark.parametrize("error", [pynvml.NVML_SUCCESS, pynvml.NVML_ERROR_NOT_FOUND])
def test_no_sample_of_any_process_means_that_none_was_there(error: int) -> None:
    assert sampled(Nvml("process utilization", error))[1].ours_s == 0.0


def test_in_a_container_whose_numbers_are_others_ours_is_unknown() -> None:
    gpus, seen = sampled(Nvml(), sees_pids=False)
    assert (seen.ours_s, seen.ours_memory_mib, gpus.used) == (None, None, set())
    assert seen.busy_s == 1.0


def test_neighbours_add_up_and_what_one_of_them_misses_is_unknown() -> None:
    other = GpuWindow(1.0, None, 0.25, 100.0, 1000.0, (0.0, 1.0, 0.0, None), 800.0, None)
    assert merge(HALF, other) == GpuWindow(
        3.0, None, 0.75, 700.0, 4000.0, (1.0, 1.0, 0.0, None), 800.0, None
    )


def test_a_nodes_windows_merge_their_gpus() -> None:
    first, second = (replace(window(start), gpus=(HALF, HALF)) for start in (0.0, 1.0))
    assert merge_windows(first, second).gpus == (merge(HALF, HALF),) * 2


def test_a_series_says_shares_of_the_gpus_that_are_the_runs() -> None:
    windows, process = [(HALF, HALF), (HALF, merge(HALF, HALF))], GpuProcess(pid=7, **UNKNOWN)
    (seen,) = gpus_of_node(TWO, {1}, windows, {1: [process]})
    assert seen.processes == [process]
    assert (seen.index, seen.uuid) == (1, "GPU-bb22")
    assert seen.busy == [0.5, 0.5]
    assert seen.ours == [0.25, 0.25]
    assert seen.energy_j == [600.0, 1200.0]
    assert seen.sm_mhz == [1500.0, 1500.0]
    assert seen.throttled["power"] == [0.5, 0.5]
    assert seen.throttled["thermal"] == [0.0, 0.0]


@pytest.mark.parametrize(
    ("env", "chosen"),
    [
        ({}, [0, 1]),
        ({"SLURM_JOB_ID": "5"}, []),
        ({"CUDA_VISIBLE_DEVICES": ""}, []),
        ({"CUDA_VISIBLE_DEVICES": "1"}, [1]),
        ({"CUDA_VISIBLE_DEVICES": "1, 0", "SLURM_JOB_ID": "5"}, [1, 0]),
        ({"CUDA_VISIBLE_DEVICES": "GPU-bb"}, [1]),
        ({"CUDA_VISIBLE_DEVICES": "GPU-"}, []),
        ({"CUDA_VISIBLE_DEVICES": "0,-1,1"}, [0]),
        ({"CUDA_VISIBLE_DEVICES": "0,7,1"}, [0]),
        ({"CUDA_VISIBLE_DEVICES": "MIG-aa11"}, []),
    ],
)
def test_the_runs_gpus_are_those_that_cuda_would_show(
    env: dict[str, str], chosen: list[int]
) -> None:
    assert allowed(TWO, env) == chosen


@pytest.mark.parametrize(
    ("env", "chosen"),
    [
        ({"CUDA_VISIBLE_DEVICES": "1"}, []),
        ({"CUDA_VISIBLE_DEVICES": "1", "CUDA_DEVICE_ORDER": "FASTEST_FIRST"}, []),
        ({"CUDA_VISIBLE_DEVICES": "1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, [1]),
        ({"CUDA_VISIBLE_DEVICES": "GPU-bb22"}, [1]),
        ({}, [0, 1]),
    ],
)
def test_of_unlike_gpus_a_number_is_nvmls_only_where_cuda_counts_by_the_bus(
    env: dict[str, str], chosen: list[int]
) -> None:
    assert allowed([TWO[0], replace(TWO[1], name="T400")], env) == chosen


@pytest.mark.gpu
@pytest.mark.skipif(open_gpus() is None, reason="needs a GPU, its driver and nvidia-ml-py")
def test_a_real_gpu_says_what_this_process_did_on_it(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    monitor = Monitor("run", 1, node_file=tmp_path / "node-0.json", interval_s=0.5)
    monitor.start()
    matrix, end = torch.rand(4096, 4096, device="cuda"), time.monotonic() + 5
    while time.monotonic() < end:
        matrix = (matrix @ matrix).clamp(0, 1)
        torch.cuda.synchronize()
    monitor.stop()
    seen = monitor.node_record().gpus
    assert seen
    (busy, energy_j) = (max(each or 0.0 for each in s) for s in (seen[0].busy, seen[0].energy_j))
    assert busy > 0.5
    assert energy_j > 1
    assert seen[0].throttled.keys() == REASONS.keys()
    if sees_pids():
        assert max(each or 0.0 for each in seen[0].ours_memory_mib) > 64
