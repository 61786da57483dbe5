"""`hpcncf doctor`: check this machine and installation."""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any, Final

from hpcncf.cli.output import format_json
from hpcncf.errors import UsageError, signal_name

EPILOG = """\
--bundle writes what doctor prints, as text and as JSON: no secrets and no data. Of the environment
there are only variables that decide speed."""

NEEDED: Final = ("torch", "numpy", "submitit", "pandas", "psutil", "pydantic", "matplotlib")
SLURM: Final = ("sbatch", "srun", "squeue", "sacct", "scancel", "sinfo", "seff")
# DataLoader workers hand batches over through it.
SMALL_SHM_GIB: Final = 0.25
# A cluster that is down would keep who asks waiting for minutes.
ANSWER_S: Final = 10
# The first import of torch from a slow file system is slow.
TORCH_S: Final = 180
QUESTIONS: Final = """
import json, torch, torch.distributed as distributed
have = distributed.is_available()
print(json.dumps({
    "version": str(torch.__version__),
    "threads": [torch.get_num_threads(), torch.get_num_interop_threads()],
    "backends": {
        "gloo": have and distributed.is_gloo_available(),
        "nccl": have and distributed.is_nccl_available(),
        "mpi": have and distributed.is_mpi_available(),
    },
    "gpus": [torch.cuda.get_device_name(gpu) for gpu in range(torch.cuda.device_count())],
    "built_for": torch.version.cuda or torch.version.hip,
}))
"""


class Broken(Exception):
    """A check that found a problem without which runs would fail: (text in the table, problem)."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="as JSON")
    parser.add_argument(
        "--bundle", type=Path, metavar="FILE.zip", help="also write what it prints to one file"
    )


def run(args: argparse.Namespace) -> int:
    start_torch()  # it takes longest, and goes on beside the other checks
    found, problems = run_checks()
    text = "\n".join(format_lines(found, problems))
    plain = format_json("doctor", {"checks": found, "problems": problems})
    print(plain if args.json else text)
    if args.bundle:
        write_bundle(args.bundle, {"doctor.txt": text, "doctor.json": plain})
    return 1 if problems else 0


def run_checks() -> tuple[dict[str, str], list[str]]:
    """Run all checks: label -> what was found, and the problems, each once."""
    found, problems = dict[str, str](), list[str]()
    for label, check in CHECKS:
        try:
            found[label] = check()
        except Broken as broken:
            found[label], problem = broken.args
            problems.append(problem)
    return found, list(dict.fromkeys(problems))


def format_lines(found: dict[str, str], problems: list[str]) -> list[str]:
    """Lines of the page: the table, then what is broken."""
    width = max(map(len, found), default=0)
    lines = [f"{label:<{width}}  {text}" for label, text in found.items()]
    lines += ["", *(f"BROKEN: {text}" for text in problems)]
    return [*lines, "nothing essential is broken" if not problems else "see BROKEN above"]


def write_bundle(file: Path, parts: dict[str, str]) -> None:
    """Write a zip file for a support ticket. Raises UsageError if that fails."""
    try:
        with zipfile.ZipFile(file, "x", zipfile.ZIP_DEFLATED) as archive:
            for name, text in parts.items():
                archive.writestr(name, f"{text}\n")
    except OSError as error:
        raise UsageError(f"--bundle {file}: {error.strerror}; name another file") from None
    print(f"written: {file}", file=sys.stderr)


@cache
def describe_host() -> dict[str, Any]:
    from hpcncf.records import host

    return host.describe_host()


def host_text(name: str) -> str:
    return str(describe_host()[name])


def check_code() -> str:
    about = describe_host()
    code = about["commit"] or "no git checkout"
    return f"{code}{', with changes' if about['dirty'] else ''}"


def check_packages() -> str:
    from hpcncf.records.host import PACKAGES, package_version

    text = ", ".join(
        f"{name} {describe_host()[name] or 'missing'}" for name in PACKAGES if name != "hpcncf"
    )
    missing = [name for name in NEEDED if package_version(name) is None]
    if missing:
        names = " ".join(missing)
        raise Broken(text, f"{', '.join(missing)} not installed: pip install {names}")
    return text


def check_gpus() -> str:
    from hpcncf.monitor.gpu import GpusUnavailable, opened

    try:
        return f"yes, by NVML: {', '.join(one.identity.name for one in opened())}"
    except GpusUnavailable as reason:
        return f"no: {reason}"


def check_native() -> str:
    from hpcncf.native.builds import (
        NotBuilt,
        cpu_flags,
        installed_builds,
        load_library,
        select_build,
    )

    try:
        load_library()
    except NotBuilt as missing:
        return f"no: {missing.reason}"
    return f"yes, its {select_build(installed_builds(), cpu_flags())} build"


@cache
def start_torch() -> subprocess.Popen[str]:
    """Start a process that imports torch and prints its build and settings.

    It is a process of its own because the import takes seconds and a broken torch may crash.
    """
    return subprocess.Popen(
        [sys.executable, "-P", "-c", QUESTIONS],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


@cache
def read_torch() -> dict[str, str]:
    """Read torch's build and settings from its process. Raises Broken if it does not import."""
    process = start_torch()
    try:
        out, error = process.communicate(timeout=TORCH_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        problem = f"no answer within {TORCH_S} s"
        raise Broken(f"no: {problem}", f"torch does not import: {problem}") from None
    if process.returncode:
        last = (error.strip().splitlines() or ["no message"])[-1]
        if process.returncode < 0:
            last = f"killed by signal {signal_name(-process.returncode)}"
        problem = last.partition(": ")[2] or last
        raise Broken(f"no: {last}", f"torch does not import: {problem}")
    found = json.loads(out.splitlines()[-1])
    gpus, built_for = ", ".join(found["gpus"]) or "none", found["built_for"]
    backends = found["backends"].items()
    return {
        "version": found["version"],
        "threads": "{} intra-op, {} inter-op".format(*found["threads"]),
        "backends": ", ".join(f"{name} {'yes' if have else 'no'}" for name, have in backends),
        "CUDA": f"{built_for}, GPUs: {gpus}" if built_for else "not built in (a CPU-only torch)",
    }


def torch_text(name: str) -> str:
    try:
        return read_torch()[name]
    except Broken as broken:  # said once, with the version
        if name == "version":
            raise
        return str(broken.args[0])


def check_node_cores() -> str:
    from hpcncf.monitor import cgroup

    threads = cgroup.threads_per_core()
    return f"{cgroup.on_node()} CPUs, {threads or '?'} hardware thread(s) per core"


def check_allocated_cores() -> str:
    from hpcncf.launcher.allocation import allocated_by, allocated_cores

    cores, by = allocated_cores(), allocated_by()
    return "not in a job" if cores is None else f"{cores:g} by {by}"


def check_usable_cores() -> str:
    """Describe the usable cores. Raises Broken if Slurm granted more."""
    from hpcncf.launcher.allocation import allocated_cores
    from hpcncf.monitor import cgroup

    cpus, quota, granted = cgroup.usable_cpus(), cgroup.quota(), allocated_cores()
    text = f"{cgroup.usable():g} ({_reason(len(cpus), quota)})"
    shortage = granted and cgroup.describe_shortage(granted, cgroup.usable(), cpus, quota)
    if shortage:
        raise Broken(text, shortage)
    return text


def _reason(cpus: int, quota: float | None) -> str:
    if quota is not None and quota < cpus:
        return "the cgroup's quota limits it"
    whole = cpus >= (os.cpu_count() or 1)
    return "nothing limits it" if whole else "the affinity mask or cpuset limits it"


def check_affinity() -> str:
    from hpcncf.monitor import cgroup

    return cgroup.cpu_list(cgroup.usable_cpus())


def check_cgroup() -> str:
    from hpcncf.monitor import cgroup

    cpuset, limit = cgroup.cpuset(), cgroup.cpu_limit()
    cpus = cgroup.cpu_list(cpuset) if cpuset else "none"
    quota = f"{limit.value:g} cores ({limit.file})" if limit else "none"
    return f"{cgroup.cgroup_version() or 'none'}; cpuset: {cpus}; quota: {quota}"


def check_memory() -> str:
    import psutil

    from hpcncf.monitor.cgroup import memory_limit

    node, limit = psutil.virtual_memory(), memory_limit()
    cgroup = f"{limit.value / 1024:.1f} GiB ({limit.file})" if limit else "none"
    available = f"{node.available / 2**30:.1f} available"
    return f"{node.total / 2**30:.1f} GiB, {available}; cgroup limit: {cgroup}"


def check_shared_memory() -> str:
    shm = Path("/dev/shm")
    text = check_disk(shm)
    if shm.is_dir() and shutil.disk_usage(shm).free >= SMALL_SHM_GIB * 2**30:
        return text
    return (
        f"{text}: DataLoader workers may die with 'bus error'; use num_workers 0, or ask for a "
        "larger one (containers: --shm-size)"
    )


def check_disk(path: Path) -> str:
    if not path.is_dir():
        return "none"
    usage = shutil.disk_usage(path)
    return f"{usage.total / 2**30:.1f} GiB, {usage.free / 2**30:.1f} free"


def check_limits() -> str:
    """Describe the limits of this process that stop jobs (ulimit)."""
    names = {"open files": "NOFILE", "processes": "NPROC", "locked memory": "MEMLOCK"}
    limits = {what: resource.getrlimit(getattr(resource, f"RLIMIT_{name}"))[0]
              for what, name in names.items()}  # fmt: skip
    return ", ".join(
        f"{what} {'unlimited' if limit == resource.RLIM_INFINITY else limit}"
        for what, limit in limits.items()
    )


def check_slurm_commands() -> str:
    lacking = [name for name in SLURM if not shutil.which(name)]
    have = [name for name in SLURM if name not in lacking]
    missing = f"; missing: {', '.join(lacking)}" if have and lacking else ""
    return (", ".join(have) or "none") + missing


def check_slurm_version() -> str:
    return _command_output("sinfo", "--version") if shutil.which("sinfo") else "no sinfo"


def check_cluster() -> str:
    if not shutil.which("sinfo"):
        return "none here: use --cluster local"
    answer = _command_output("sinfo", "--noheader", "--format=%R")
    if "failed: " in answer:
        return f"commands are installed, but no cluster answers: use --cluster local ({answer})"
    return f"answers; partitions: {', '.join(answer.split()) or 'none'}"


def _command_output(*command: str) -> str:
    """Run a command and return its output, or a line that tells why it failed."""
    line = " ".join(command)
    try:
        done = subprocess.run(
            command,
            capture_output=True, text=True, timeout=ANSWER_S, check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{line} failed: {error}"
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        return f"{line} failed: {lines[-1]}"
    return done.stdout.strip()


def check_meeting() -> str:
    """Describe the rank of this process, and where and how it would meet the others."""
    from hpcncf.errors import HpcncfError
    from hpcncf.launcher import environment
    from hpcncf.launcher.rendezvous import choose_interface, own_address, resolved

    try:
        place, host = environment.place(), environment.master()
        address = own_address(host) if place.rank == 0 else resolved(host)
        chosen: dict[str, str] = {}
        choose_interface(address, chosen)
    except HpcncfError as error:
        return f"not possible: {error}"
    named = os.environ.get("GLOO_SOCKET_IFNAME")
    automatic = chosen.get("GLOO_SOCKET_IFNAME", "none that holds the address: gloo chooses")
    interface = f"{named} (GLOO_SOCKET_IFNAME)" if named else automatic
    which = f"rank {place.rank} of {place.world_size}"
    return f"{which}, at {host} ({address}), interface {interface}"


def check_prepared_data() -> str:
    """Describe the prepared folders below ./data; unusable ones are listed with the reason."""
    from hpcncf.data.manifest import DataError, content_key

    prepared, useless = list[str](), list[str]()
    for folder in sorted(Path("data").iterdir()) if Path("data").is_dir() else []:
        try:
            if content_key(folder) is not None:
                prepared.append(str(folder))
        except DataError as error:
            useless.append(f"; of no use: {error}")
    return (", ".join(prepared) or "none in data/ here") + "".join(useless)


def check_downloads() -> str:
    """Describe the folder where published data is looked for."""
    source = os.environ.get("HPCNCF_DATA")
    if not source:
        return "not set"
    folder = Path(source)
    if not folder.is_dir():
        return f"{folder}: no such folder"
    names = sorted(path.name for path in folder.iterdir())
    return f"{folder}: {', '.join(names[:8]) or 'empty'}{', ...' if len(names) > 8 else ''}"


def check_variables() -> str:
    """List environment variables that decide speed and are set here."""
    found = describe_host()["variables"].items()
    return ", ".join(f"{name}={value}" for name, value in found) or "none that decides speed"


CHECKS: Final[tuple[tuple[str, Callable[[], str]], ...]] = (
    ("hpcncf", partial(host_text, "hpcncf")),
    ("code", check_code),
    ("Python", lambda: f"{host_text('python')} ({host_text('executable')})"),
    ("host", lambda: os.uname().nodename),
    ("platform", partial(host_text, "platform")),
    ("CPU", partial(host_text, "cpu_model")),
    ("packages", check_packages),
    ("engine native", check_native),
    ("GPUs watched", check_gpus),
    ("torch", partial(torch_text, "version")),
    ("torch threads", partial(torch_text, "threads")),
    ("torch backends", partial(torch_text, "backends")),
    ("torch CUDA", partial(torch_text, "CUDA")),
    ("cores of the node", check_node_cores),
    ("cores allocated", check_allocated_cores),
    ("cores usable", check_usable_cores),
    ("affinity mask", check_affinity),
    ("cgroup", check_cgroup),
    ("memory", check_memory),
    ("/dev/shm", check_shared_memory),
    ("this folder", lambda: check_disk(Path.cwd())),
    ("limits", check_limits),
    ("Slurm commands", check_slurm_commands),
    ("Slurm version", check_slurm_version),
    ("Slurm cluster", check_cluster),
    ("Slurm job", lambda: os.environ.get("SLURM_JOB_ID", "not in one")),
    ("ranks meet", check_meeting),
    ("prepared data", check_prepared_data),
    ("HPCNCF_DATA", check_downloads),
    ("variables", check_variables),
)
"""Label and check of each row of the table, in order."""
