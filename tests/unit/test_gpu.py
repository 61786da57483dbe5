"""GPUs: what NVML's answers become, and that nothing is reported where nobody answers."""

from __future__ import annotations

import time
from collections import namedtuple
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from test_windows import window

from hpcncf.monitor.gpu import (
    REASONS,
    Device,
    GpusUnavailable,
    Identity,
    Processes,
    allowed,
    gpus_of_run,
    open_gpus,
    opened,
    sees_pids,
)
from hpcncf.monitor.monitor_thread import Monitor
from hpcncf.monitor.windows import GpuWindow
from hpcncf.records.schema import GpuProcess

pynvml = pytest.importorskip("pynvml")

Rates = namedtuple("Rates", "gpu")
Memory = namedtuple("Memory", "total used")
Process = namedtuple("Process", "pid usedGpuMemory")
Utilization = namedtuple("Utilization", "pid timeStamp smUtil")
# Of one GPU at work for two seconds.
ANSWERS = {
    "UUID": "GPU-aa11",
    "Name": "H200",
    "MemoryInfo": Memory(1000 * 2**20, 300 * 2**20),
    "UtilizationRates": Rates(50),
    "ClockInfo": 1500,
    "CurrentClocksThrottleReasons": int(pynvml.nvmlClocksThrottleReasonSwPowerCap) | 0x1,
    "PowerUsage": 250_000,
    "ComputeRunningProcesses_v3": [Process(7, 100 * 2**20), Process(8, 150 * 2**20)],
    "ProcessUtilization": [Utilization(7, 40, 10), Utilization(7, 50, 30), Utilization(8, 45, 60)],
}


class Nvml:
    """The library pynvml, whose functions give these answers; `refused` raises the error."""

    def __init__(self, refused: str = "", error: int = pynvml.NVML_ERROR_NOT_SUPPORTED) -> None:
        self.refused, self.error, self.since = refused, error, list[int]()
        self.millijoules = 1_000_000

    def __getattr__(self, name: str) -> Any:
        if name.startswith("nvmlDeviceGet"):
            return partial(self._answer, name.removeprefix("nvmlDeviceGet"))
        return getattr(pynvml, name)  # a constant

    def _answer(self, name: str, *arguments: Any) -> Any:
        if name == self.refused:
            raise pynvml.NVMLError(self.error)
        if name == "TotalEnergyConsumption":
            self.millijoules += 700_000
            return self.millijoules
        if name == "HandleByIndex":
            return arguments[0]
        if name == "ProcessUtilization":
            self.since.append(arguments[1])
        return ANSWERS[name]


def sampled(*refused: Any, sees_pids: bool = True) -> tuple[Device, GpuWindow]:
    device = Device(Nvml(*refused), 0, sees_pids)
    return device, device.sample({7, 9}, 2.0)


def test_nothing_is_found_where_there_is_no_driver() -> None:
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        assert open_gpus() == []
        with pytest.raises(GpusUnavailable):
            opened()


def test_a_sample_is_what_nvml_reported_over_its_time() -> None:
    """7 is the run's and had 10 % and 30 %, 8 is somebody's and had 60 %."""
    nvml = Nvml()
    device = Device(nvml, 0, sees_pids=True)
    assert device.sample({7, 9}, 2.0) == GpuWindow(
        length_s=2.0,
        busy_s=1.0,
        ours_s=0.4,
        energy_j=700.0,
        mhz_s=3000.0,
        throttled_s=(2.0, 0.0, 0.0, 0.0),
        memory_mib=300.0,
        ours_memory_mib=100.0,
    )
    assert device.used
    device.sample({7}, 4.0)
    assert nvml.since == [0, 50], "each sample of NVML's is counted once"
    assert device.processes.summary() == [
        GpuProcess(pid=8, ours=False, busy=0.6, memory_peak_mib=150.0),
        GpuProcess(pid=7, ours=True, busy=0.2, memory_peak_mib=100.0),
    ]


def test_a_process_that_came_later_has_its_share_of_all_the_time() -> None:
    seen = Processes(sees_pids=True)
    seen.add({}, {}, {5}, 3.0)
    seen.add({5: 0.8}, {5: None}, {5}, 1.0)
    seen.add({}, {5: 20.0}, set(), 0.0)
    assert seen.summary() == [GpuProcess(pid=5, ours=True, busy=0.2, memory_peak_mib=20.0)]


def test_in_a_container_with_other_process_numbers_ours_is_unknown() -> None:
    device, seen = sampled(sees_pids=False)
    assert (seen.busy_s, seen.ours_s, seen.ours_memory_mib) == (1.0, None, None)
    assert not device.used
    assert [(each.pid, each.ours) for each in device.processes.summary()] == [(8, None), (7, None)]


def test_what_a_gpu_refuses_is_none_and_the_rest_is_reported() -> None:
    seen = sampled("UtilizationRates")[1]
    assert (seen.busy_s, seen.energy_j) == (None, 700.0)
    assert sampled("TotalEnergyConsumption")[1].energy_j == 500.0, "power by time"
    device, seen = sampled("ComputeRunningProcesses_v3")
    assert seen.ours_memory_mib is None
    assert [each.memory_peak_mib for each in device.processes.summary()] == [None, None]
    device, seen = sampled("ProcessUtilization")
    first = device.processes.summary()[0]
    assert (seen.ours_s, first.busy, first.memory_peak_mib) == (None, None, 100.0)


@pytest.mark.parametrize("error", [pynvml.NVML_SUCCESS, pynvml.NVML_ERROR_NOT_FOUND])
def test_no_sample_of_any_process_means_that_none_was_there(error: int) -> None:
    assert sampled("ProcessUtilization", error)[1].ours_s == 0.0


TWO = [Identity(0, "GPU-aa11", "H200", 140_000.0), Identity(1, "GPU-bb22", "H200", 140_000.0)]


def test_a_series_has_shares_of_the_gpus_that_are_the_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    half = GpuWindow(2.0, 1.0, 0.5, 600.0, 3000.0, (1.0, 0.0, 0.0, None), 900.0, 400.0)
    gpus = [(half, half), (half, replace(half, length_s=4.0, busy_s=None))]
    devices = [Device(Nvml(), index, sees_pids=True) for index in (0, 1)]
    (seen,) = gpus_of_run(devices, [window(gpus=each) for each in gpus])
    assert (seen.index, seen.uuid, seen.processes) == (1, "GPU-aa11", [])
    assert (seen.busy, seen.ours) == ([0.5, None], [0.25, 0.125])
    assert (seen.energy_j, seen.sm_mhz) == ([600.0, 600.0], [1500.0, 750.0])
    assert (seen.memory_mib, seen.ours_memory_mib) == ([900.0] * 2, [400.0] * 2)
    assert seen.throttled == {
        "power": [0.5, 0.25],
        "thermal": [0.0, 0.0],
        "hardware": [0.0, 0.0],
        "other": [None, None],
    }
    devices[0].sample({7}, 2.0)  # a process of the run: its GPU counts, whatever is visible
    assert [each.index for each in gpus_of_run(devices, [])] == [0, 1]
    assert gpus_of_run([], []) is None


@pytest.mark.parametrize(
    ("env", "chosen", "of_unlike_gpus"),
    [
        ({}, [0, 1], [0, 1]),
        ({"SLURM_JOB_ID": "5"}, [], []),
        ({"CUDA_VISIBLE_DEVICES": ""}, [], []),
        ({"CUDA_VISIBLE_DEVICES": "1"}, [1], []),
        ({"CUDA_VISIBLE_DEVICES": "1", "CUDA_DEVICE_ORDER": "FASTEST_FIRST"}, [1], []),
        ({"CUDA_VISIBLE_DEVICES": "1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, [1], [1]),
        ({"CUDA_VISIBLE_DEVICES": "1, 0", "SLURM_JOB_ID": "5"}, [1, 0], []),
        ({"CUDA_VISIBLE_DEVICES": "GPU-bb"}, [1], [1]),
        ({"CUDA_VISIBLE_DEVICES": "GPU-"}, [], []),
        ({"CUDA_VISIBLE_DEVICES": "0,-1,1"}, [0], []),
        ({"CUDA_VISIBLE_DEVICES": "0,7,1"}, [0], []),
        ({"CUDA_VISIBLE_DEVICES": "MIG-aa11"}, [], []),
    ],
)
def test_the_runs_gpus_are_those_that_cuda_would_show(
    env: dict[str, str], chosen: list[int], of_unlike_gpus: list[int]
) -> None:
    """Of unlike GPUs a number is NVML's only if CUDA counts by the bus."""
    assert allowed(TWO, env) == chosen
    assert allowed([TWO[0], replace(TWO[1], name="T400")], env) == of_unlike_gpus


@pytest.mark.gpu
@pytest.mark.skipif(not open_gpus(), reason="needs a GPU, its driver and nvidia-ml-py")
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
