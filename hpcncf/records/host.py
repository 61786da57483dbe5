"""Describe the software and hardware of the host, for a record."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any, Final

from hpcncf.records.git import checkout

PACKAGES: Final = (
    *("hpcncf", "torch", "numpy", "submitit", "pandas", "psutil", "pydantic", "matplotlib"),
    "pyarrow",
)
# Variables that decide speed, or the place of a run. Never the whole environment: it holds tokens.
VARIABLES: Final = (
    *("HPCNCF_ATTEMPT", "HPCNCF_LAUNCHED_BY", "HPCNCF_NODE_CPUS", "RANK", "WORLD_SIZE"),
    *("LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID"),
    *("OMP_DYNAMIC", "OMP_NUM_THREADS", "OMP_PLACES", "OMP_PROC_BIND", "OMP_WAIT_POLICY"),
    *("GOMP_CPU_AFFINITY", "GOMP_SPINCOUNT", "KMP_AFFINITY", "KMP_BLOCKTIME", "KMP_HW_SUBSET"),
    *("KMP_SETTINGS", "MKL_DYNAMIC", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS"),
    *("OPENBLAS_NUM_THREADS", "LD_PRELOAD", "MALLOC_ARENA_MAX", "MALLOC_CONF", "PYTHONHASHSEED"),
    *("CUDA_DEVICE_ORDER", "CUDA_MPS_PIPE_DIRECTORY", "CUDA_VISIBLE_DEVICES", "PYTORCH_ALLOC_CONF"),
    *("PYTORCH_CUDA_ALLOC_CONF", "TORCHINDUCTOR_CACHE_DIR", "GLOO_SOCKET_IFNAME", "NCCL_DEBUG"),
    *("NCCL_IB_DISABLE", "NCCL_P2P_DISABLE", "NCCL_SOCKET_IFNAME", "SLURM_ARRAY_JOB_ID"),
    *("SLURM_ARRAY_TASK_ID", "SLURM_CLUSTER_NAME", "SLURM_CPUS_ON_NODE", "SLURM_CPUS_PER_TASK"),
    *("SLURM_CPU_BIND", "SLURM_DISTRIBUTION", "SLURM_GPUS_ON_NODE", "SLURM_JOB_CPUS_PER_NODE"),
    *("SLURM_JOB_ID", "SLURM_JOB_NAME", "SLURM_JOB_NODELIST", "SLURM_JOB_NUM_NODES"),
    *("SLURM_JOB_PARTITION", "SLURM_LOCALID", "SLURM_MEM_PER_CPU", "SLURM_MEM_PER_NODE"),
    *("SLURM_NODEID", "SLURM_NTASKS", "SLURM_NTASKS_PER_NODE", "SLURM_PROCID"),
    *("SLURM_RESTART_COUNT", "SLURM_STEP_ID", "FLUX_JOB_ID", "LSB_DJOB_NUMPROC", "LSB_JOBID"),
    *("LSB_MCPU_HOSTS", "NCPUS", "NSLOTS", "OAR_JOB_ID", "PBS_JOBID", "PBS_NCPUS", "PBS_NUM_PPN"),
)


def describe_host(here: Path | str | None = None) -> dict[str, Any]:
    """Describe this host as plain data: package versions, machine, code and environment variables.

    `commit` and `dirty` belong to the running code, `folder_commit` and `folder_dirty` to the
    folder `here`, by default the current one; null without a git checkout. Imports no torch.
    """
    code, folder = checkout(Path(__file__).parent), checkout(Path(here or Path.cwd()))
    return {
        **package_versions(),
        "python": sys.version.split()[0],
        "executable": sys.executable,
        "platform": _platform(),
        "cpu_model": cpu_model(),
        "commit": code.commit,
        "dirty": code.dirty,
        "folder_commit": folder.commit,
        "folder_dirty": folder.dirty,
        "variables": {name: os.environ[name] for name in VARIABLES if name in os.environ},
    }


def package_versions() -> dict[str, str | None]:
    """Map hpcncf and its dependencies to their installed versions, None for a missing one."""
    found = _installed()
    return {name: found.get(name) for name in PACKAGES}


def package_version(package: str) -> str | None:
    return _installed().get(package)


def _installed() -> dict[str, str]:
    """Map installed packages to their versions, by the names of the folders that pip left.

    `importlib.metadata` takes 20 ms for the same.
    """
    found: dict[str, str] = {}
    for folder in sys.path:
        try:
            names = os.listdir(folder or ".")  # noqa: PTH208
        except OSError:  # an archive, or a folder that is not there
            continue
        for name in names:
            if name.endswith((".dist-info", ".egg-info")):
                package, _, version = name.rpartition(".")[0].partition("-")
                package = package.lower().replace("_", "-")
                found.setdefault(package, version.partition("-py")[0])
    return found


def _platform() -> str:
    """Return what `platform.platform()` does, which starts a process to find it."""
    here, libc = os.uname(), ""
    if "CS_GNU_LIBC_VERSION" in os.confstr_names:
        libc = (os.confstr("CS_GNU_LIBC_VERSION") or "").replace(" ", "")
    return "-".join(filter(None, (here.sysname, here.release, here.machine, libc and "with", libc)))


def cpu_model(root: Path = Path("/")) -> str:
    """Return the CPU's model name in /proc/cpuinfo; other than on x86, the closest field."""
    try:
        lines = (root / "proc/cpuinfo").read_text(errors="replace").splitlines()
    except OSError:
        lines = []
    fields = {
        key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)
    }
    for key in ("model name", "Model", "cpu", "uarch"):
        if fields.get(key):
            return fields[key]
    return os.uname().machine
