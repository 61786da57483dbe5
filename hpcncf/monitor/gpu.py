"""GPUs by NVML: a series per GPU, and the processes on it."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from hpcncf.errors import HpcncfError
from hpcncf.monitor.windows import GpuWindow, Window

if TYPE_CHECKING:
    from hpcncf.records.schema import Gpu, GpuProcess


@dataclass
class GpuUse:
    """Figures of one process over all the time that its GPU was watched."""

    ours: bool | None
    busy_s: float = 0.0
    memory_mib: float | None = None


class Processes:
    """Every process seen on one GPU so far."""

    def __init__(self, sees_pids: bool) -> None:
        """Begin without processes. `sees_pids`: whether NVML's process ids are valid here."""
        self._sees_pids = sees_pids
        self._seen: dict[int, GpuUse] = {}
        self._watched_s: float | None = 0.0

    def add(
        self,
        shares: Mapping[int, float] | None,
        memory_mib: Mapping[int, float | None] | None,
        pids: Collection[int],
        length_s: float,
    ) -> None:
        """Add the use of the GPU in the last `length_s` seconds; `pids` are the run's processes.

        `shares` or `memory_mib` is None if NVML does not report it.
        """
        for pid, mib in (memory_mib or {}).items():
            one = self._one(pid, pids)
            one.memory_mib = one.memory_mib if mib is None else max(mib, one.memory_mib or 0.0)
        for pid, share in (shares or {}).items():
            self._one(pid, pids).busy_s += share * length_s
        known = shares is not None and self._watched_s is not None
        self._watched_s = (self._watched_s or 0.0) + length_s if known else None

    def _one(self, pid: int, pids: Collection[int]) -> GpuUse:
        ours = pid in pids if self._sees_pids else None
        one = self._seen.setdefault(pid, GpuUse(ours))
        one.ours = ours or one.ours  # it may end before its number is asked for
        return one

    def summary(self) -> list[GpuProcess]:
        """Return records of the processes that were seen on the GPU, the busiest first."""
        from hpcncf.records.schema import GpuProcess  # pydantic, which `attach` does without

        watched_s = self._watched_s
        found = sorted(self._seen.items(), key=lambda each: (-each[1].busy_s, each[0]))
        return [
            GpuProcess(
                pid=pid,
                ours=one.ours,
                busy=round(one.busy_s / watched_s, 3) if watched_s else None,
                memory_peak_mib=None if one.memory_mib is None else round(one.memory_mib, 1),
            )
            for pid, one in found
        ]


# Bits of nvmlClocksEventReasons (nvml.h). Left out: an idle GPU (0x1), clocks that somebody set
# (0x2), a display (0x100).
REASONS: Final = {
    "power": 0x4,
    "thermal": 0x20 | 0x40,
    "hardware": 0x8 | 0x80,
    "other": 0x10 | 0x200 | 0x400,
}


@dataclass(frozen=True)
class Identity:
    """A GPU as NVML names it."""

    index: int
    uuid: str
    name: str
    memory_total_mib: float


def gpus_of_run(devices: Sequence[Device], windows: Sequence[Window]) -> list[Gpu] | None:
    """Return records of the GPUs that the run may use or has used; None without any GPU."""
    if not devices:
        return None
    chosen = allowed([device.identity for device in devices], os.environ)
    return [
        device.record([window.gpus[at] for window in windows])
        for at, device in enumerate(devices)
        if device.used or device.identity.index in chosen
    ]


# nvidia-ml-py is the optional extra `gpu`. Each GPU, driver and right leaves some questions open:
# the answer is None then, and the run goes on.

# The inode of the machine's own process namespace (PROC_PID_INIT_INO in the kernel's proc_ns.h):
# in a container NVML has other numbers for our processes than we do.
HOSTS_NAMESPACE: Final = 0xEFFFFFFC
MIB: Final = 2**20
# Linux, and Linux within Windows.
# At the first name of another kind CUDA stops reading.
GPU_NAME: Final = re.compile(r"\d+|(GPU|MIG)-\S+")
DRIVERS: Final = (Path("/dev/nvidiactl"), Path("/dev/dxg"))


class GpusUnavailable(HpcncfError):
    """No GPU can be watched here; the message says why."""


def open_gpus() -> list[Device]:
    """Return all GPUs that can be watched here; an empty list if there are none."""
    try:
        return opened()
    except GpusUnavailable:
        return []


def opened() -> list[Device]:
    """Return all GPUs that NVML shows to this process.

    Raises GpusUnavailable without a driver, a GPU, or nvidia-ml-py.
    """
    if not any(device.exists() for device in DRIVERS):  # its import takes a while
        raise GpusUnavailable("no NVIDIA driver is loaded")
    try:
        import pynvml
    except ImportError:
        raise GpusUnavailable("nvidia-ml-py is not installed: pip install 'hpcncf[gpu]'") from None
    try:
        pynvml.nvmlInit()
        count, sees = pynvml.nvmlDeviceGetCount(), sees_pids()
        devices = [Device(pynvml, index, sees) for index in range(count)]
    except pynvml.NVMLError as error:
        raise GpusUnavailable(f"no driver answers: {error}") from None
    if not devices:
        raise GpusUnavailable("no GPU")
    return devices


def sees_pids(namespace: Path = Path("/proc/self/ns/pid")) -> bool:
    """Return whether process ids in this namespace are those of the machine.

    In a container they may differ.
    """
    try:
        return namespace.stat().st_ino == HOSTS_NAMESPACE
    except OSError:
        return False


class Device:
    """One GPU, sampled repeatedly through NVML."""

    def __init__(self, nvml: Any, index: int, sees_pids: bool) -> None:
        """Open the GPU with this index. `nvml` is the initialised module pynvml.

        Raises its NVMLError.
        """
        self._nvml, self._sees_pids = nvml, sees_pids
        self._handle = nvml.nvmlDeviceGetHandleByIndex(index)
        self.used = False
        """Whether a process of the run was seen on it."""
        self._energy_j = self._counted_j()
        self._newest_us = 0
        self.processes = Processes(sees_pids)
        memory = self._asked("nvmlDeviceGetMemoryInfo")
        self.identity = Identity(
            index,
            self._asked("nvmlDeviceGetUUID") or "",
            self._asked("nvmlDeviceGetName") or "",
            memory.total / MIB if memory else 0.0,
        )

    def sample(self, pids: Collection[int], length_s: float) -> GpuWindow:
        """Read the GPU's figures of the last `length_s` seconds; `pids` are the run's processes."""
        rates = self._asked("nvmlDeviceGetUtilizationRates")
        memory = self._asked("nvmlDeviceGetMemoryInfo")
        mhz = self._asked("nvmlDeviceGetClockInfo", self._nvml.NVML_CLOCK_SM)
        reasons = self._asked("nvmlDeviceGetCurrentClocksThrottleReasons")
        shares, held_mib = self._shares(), self._held_mib()
        self.processes.add(shares, held_mib, pids, length_s)
        ours_s = ours_mib = None
        if self._sees_pids and shares is not None:
            ours = sum(share for pid, share in shares.items() if pid in pids)
            ours_s = min(1.0, ours) * length_s
        if self._sees_pids and held_mib is not None:
            held = [mib for pid, mib in held_mib.items() if pid in pids]
            self.used = self.used or bool(held)
            known = [mib for mib in held if mib is not None]
            ours_mib = sum(known) if len(known) == len(held) else None
        return GpuWindow(
            length_s=length_s,
            busy_s=rates.gpu / 100 * length_s if rates else None,
            ours_s=ours_s,
            energy_j=self._spent_j(length_s),
            mhz_s=None if mhz is None else mhz * length_s,
            throttled_s=tuple(
                None if reasons is None else length_s * bool(reasons & bits)
                for bits in REASONS.values()
            ),
            memory_mib=memory.used / MIB if memory else None,
            ours_memory_mib=ours_mib,
        )

    def record(self, windows: Sequence[GpuWindow]) -> Gpu:
        """Build the GPU's record from its windows, with the processes seen on it so far."""
        from hpcncf.records.schema import Gpu

        lengths_s = [window.length_s for window in windows]

        def rounded(
            values: Iterable[float | None], digits: int = 1, over: Iterable[float] = repeat(1.0)
        ) -> list[float | None]:
            return [
                round(value / each, digits) if value is not None and each > 0 else None
                for value, each in zip(values, over, strict=False)
            ]

        return Gpu(
            index=self.identity.index,
            uuid=self.identity.uuid,
            name=self.identity.name,
            memory_total_mib=round(self.identity.memory_total_mib, 1),
            busy=rounded((w.busy_s for w in windows), 3, lengths_s),
            ours=rounded((w.ours_s for w in windows), 3, lengths_s),
            memory_mib=rounded(w.memory_mib for w in windows),
            ours_memory_mib=rounded(w.ours_memory_mib for w in windows),
            energy_j=rounded(w.energy_j for w in windows),
            sm_mhz=rounded((w.mhz_s for w in windows), 0, lengths_s),
            throttled={
                reason: rounded((w.throttled_s[at] for w in windows), 3, lengths_s)
                for at, reason in enumerate(REASONS)
            },
            processes=self.processes.summary(),
        )

    def _asked(self, function: str, *arguments: Any) -> Any:
        try:
            return getattr(self._nvml, function)(self._handle, *arguments)
        except self._nvml.NVMLError:
            return None

    def _counted_j(self) -> float | None:
        millijoules = self._asked("nvmlDeviceGetTotalEnergyConsumption")  # from Volta on
        return None if millijoules is None else millijoules / 1000

    def _spent_j(self, length_s: float) -> float | None:
        last, self._energy_j = self._energy_j, self._counted_j()
        if last is not None and self._energy_j is not None:
            return self._energy_j - last
        milliwatts = self._asked("nvmlDeviceGetPowerUsage")
        return None if milliwatts is None else milliwatts / 1000 * length_s

    def _held_mib(self) -> dict[int, float | None] | None:
        """Return the GPU memory that each process holds: pid -> MiB; None if unknown to NVML.

        The MiB of a process may be None as well.
        """
        # By its version: the name without one raises something else where the driver is older.
        running = self._asked("nvmlDeviceGetComputeRunningProcesses_v3")
        if running is None:
            return None
        held = {process.pid: process.usedGpuMemory for process in running}
        return {pid: None if used is None else used / MIB for pid, used in held.items()}

    def _shares(self) -> dict[int, float] | None:
        """Return each process's share of the GPU's time since the last call: pid -> share.

        None if NVML does not report it. NVML keeps several samples of each process.
        """
        nvml = self._nvml
        try:
            samples = list(nvml.nvmlDeviceGetProcessUtilization(self._handle, self._newest_us))
        except nvml.NVMLError as error:
            # Both mean that no process was on the GPU; pynvml raises the first one too.
            nobody = error.value in (nvml.NVML_SUCCESS, nvml.NVML_ERROR_NOT_FOUND)
            return {} if nobody else None
        self._newest_us = max((one.timeStamp for one in samples), default=self._newest_us)
        shares: dict[int, list[float]] = {}
        for one in samples:
            shares.setdefault(one.pid, []).append(one.smUtil / 100)
        return {pid: sum(each) / len(each) for pid, each in shares.items()}


def allowed(identities: Collection[Identity], env: Mapping[str, str]) -> list[int]:
    """Return the indices of the GPUs that CUDA_VISIBLE_DEVICES allows.

    It lists indices or beginnings of UUIDs, and counts up to the first entry that is neither
    (CUDA C++ Programming Guide). Without it, all GPUs are allowed, except in a Slurm job, which
    then has not requested any.
    """
    named = env.get("CUDA_VISIBLE_DEVICES")
    if named is None:
        return [] if "SLURM_JOB_ID" in env else [one.index for one in identities]
    # NVML counts by the PCI bus, CUDA the fastest first where nobody says otherwise.
    alike = len({one.name for one in identities}) <= 1
    by_number = alike or env.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"
    chosen: list[int] = []
    for name in map(str.strip, named.split(",")):
        match = [
            one.index
            for one in identities
            if (by_number and name == str(one.index))
            or (name.startswith("GPU-") and one.uuid.startswith(name))
        ]
        if len(match) != 1:
            break
        chosen += match
    return chosen


def visible_gpus(devices: Path = Path("/dev")) -> list[str]:
    """Return the NVIDIA GPUs that this process may use, as CUDA_VISIBLE_DEVICES names them.

    They are numbers, or UUIDs if the variable has them.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        names = (name.strip() for name in visible.split(","))
        return list(itertools.takewhile(GPU_NAME.fullmatch, names))
    # CUDA numbers the present ones: a container may have a single one, as nvidia5.
    here = [path for path in devices.glob("nvidia*") if re.fullmatch(r"nvidia\d+", path.name)]
    return [str(number) for number in range(len(here))]
