"""`hpcncf doctor`: check this machine and installation."""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from hpcncf.errors import UsageError, signal_name

EPILOG = """\
--bundle prints the list of what it writes. It holds no secrets and no data: of the environment only
variables that decide speed, of failed runs only the type of the error and its line."""

NEEDED: Final = ("torch", "numpy", "submitit", "pandas", "psutil", "pydantic", "matplotlib")
SLURM: Final = ("sbatch", "srun", "squeue", "sacct", "scancel", "sinfo", "seff")
# DataLoader workers hand batches over through it.
SMALL_SHM_GIB: Final = 0.25
# A cluster that is down would keep who asks waiting for minutes.
ANSWER_S: Final = 10
# Of Slurm's configuration: their values stay here.
SECRET: Final = re.compile(r"pass|secret|token|key|auth|user\b", re.IGNORECASE)
MOST_ERRORS: Final = 50
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

DoctorSection = dict[str, str]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="as JSON")
    parser.add_argument(
        "--bundle",
        type=Path,
        metavar="FILE.zip",
        help="write one file for a support ticket",
    )
    parser.add_argument(
        "--results", type=Path, default=Path("results"), metavar="DIR",
        help="whose errors a bundle lists (default: results)",
    )  # fmt: skip


def run(args: argparse.Namespace) -> int:
    started = start_torch()
    sections: dict[str, DoctorSection] = {
        "hpcncf": software(),
        "torch": {},
        "cores": cores(),
        "memory": memory(),
        "Slurm": slurm(),
        "ranks": ranks(),
        "data": data(),
        "settings": settings(),
    }
    sections["torch"], torch_problem = about_torch(started)
    problems = [*missing(), *([torch_problem] if torch_problem else []), *trapped()]
    if args.bundle:
        write_bundle(args.bundle, sections | {"problems": problems}, args.results)
    elif args.json:
        print(json.dumps(sections | {"problems": problems, "advice": advice()}, indent=1))
    else:
        print("\n".join(lines(sections, problems, advice())))
    return 1 if problems else 0


def write_bundle(file: Path, found: dict[str, Any], results: Path) -> None:
    """Write a zip file for a support ticket, and print what each part of it contains.

    Raises UsageError if the file exists or cannot be written.
    """
    parts = {
        "doctor.json": ("the checks of hpcncf doctor", json.dumps(found, indent=1)),
        "packages.txt": ("installed Python packages", "\n".join(_packages())),
        "limits.txt": ("limits of this process (ulimit)", "\n".join(_limits())),
        "slurm.txt": ("Slurm's configuration, without secrets", _slurm_configuration()),
        "errors.txt": (f"errors of runs below {results}", "\n".join(_errors(results))),
    }
    for name, (what, text) in parts.items():
        print(f"{name:<14} {what}: {len(text.splitlines())} lines")
    try:
        with zipfile.ZipFile(file, "x", zipfile.ZIP_DEFLATED) as archive:
            for name, (_, text) in parts.items():
                archive.writestr(name, f"{text}\n")
    except OSError as error:
        raise UsageError(f"--bundle {file}: {error.strerror}; name another file") from None
    print(f"written: {file}. Look at it before you send it.")


def _packages() -> list[str]:
    from importlib.metadata import distributions

    return sorted({f"{each.name} {each.version}" for each in distributions()})


def _limits() -> Iterator[str]:
    for name in sorted(vars(resource)):
        if name.startswith("RLIMIT_"):
            soft, hard = resource.getrlimit(getattr(resource, name))
            yield f"{name.removeprefix('RLIMIT_').lower()} {soft} {hard}"


def _slurm_configuration() -> str:
    if not shutil.which("scontrol"):
        return "no scontrol here"
    shown = _command_output("scontrol", "show", "config").splitlines()
    kept = [
        f"{line.partition('=')[0].rstrip()} = (left out)" if SECRET.search(line) else line
        for line in shown
    ]
    return "\n".join([*kept, "", _command_output("sinfo", "--long")])


def _errors(results: Path) -> Iterator[str]:
    """Yield a line for each failed rank: file, outcome, type and place of the error.

    Messages are left out, because they may hold data.
    """
    from hpcncf.records.schema import RankRecord, RecordError, read_record

    records = sorted(
        results.glob("**/attempt-*/rank-*.json"), key=lambda path: path.stat().st_mtime
    )
    for path in records[-MOST_ERRORS:]:
        try:
            record = read_record(path, RankRecord)
        except RecordError as error:
            yield f"{path}: {type(error).__name__}"
            continue
        if record.error is not None:
            places = re.findall(r'File "[^"]*", line \d+', record.error["traceback"])
            where = places[-1] if places else f"exit code {record.exit_code}"
            yield f"{path}: {record.outcome}: {record.error['type']}: {where}"


def lines(sections: dict[str, DoctorSection], problems: list[str], advised: list[str]) -> list[str]:
    """Lines of the page: sections of `key  value`, then advice, then problems."""
    found = []
    for title, section in sections.items():
        found += [title, *(f"  {key:<18} {value}" for key, value in section.items()), ""]
    found += [f"advice: {text}" for text in advised]
    found += [f"BROKEN: {text}" for text in problems]
    return [*found, "nothing essential is broken" if not problems else "see BROKEN above"]


def software() -> DoctorSection:
    from hpcncf.records.host import PACKAGES, describe_host

    about = describe_host()
    code = about["commit"] or "no git checkout"
    return {
        "version": f"{about['hpcncf'] or 'not installed'}",
        "code": f"{code}{', with changes' if about['dirty'] else ''}",
        "Python": f"{about['python']} ({about['executable']})",
        "host": os.uname().nodename,
        "platform": about["platform"],
        "CPU": about["cpu_model"],
        "packages": ", ".join(
            f"{name} {about[name] or 'missing'}"
            for name in PACKAGES
            if name not in ("hpcncf", "torch")
        ),
        "engine native": _native(),
        "GPUs watched": _gpus(),
    }


def _gpus() -> str:
    from hpcncf.monitor.gpu import GpusUnavailable, opened

    try:
        return f"yes, by NVML: {', '.join(one.identity.name for one in opened())}"
    except GpusUnavailable as reason:
        return f"no: {reason}"


def _native() -> str:
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


def missing() -> list[str]:
    from hpcncf.records.host import package_version

    return [
        f"{name} is not installed: pip install {name}"
        for name in NEEDED
        if package_version(name) is None
    ]


def start_torch() -> subprocess.Popen[str]:
    """Start a process that imports torch and prints its build and settings.

    It is a process of its own because the import takes seconds and a broken torch may crash.
    """
    return subprocess.Popen(
        [sys.executable, "-P", "-c", QUESTIONS],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def about_torch(process: subprocess.Popen[str]) -> tuple[DoctorSection, str | None]:
    """Read torch's build and settings from its process; also the problem, or None."""
    try:
        out, error = process.communicate(timeout=TORCH_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        problem = f"no answer within {TORCH_S} s"
        return {"usable": f"no: {problem}"}, f"torch does not import: {problem}"
    if process.returncode:
        last = (error.strip().splitlines() or ["no message"])[-1]
        if process.returncode < 0:
            last = f"killed by signal {signal_name(-process.returncode)}"
        problem = last.partition(": ")[2] or last
        return {"usable": f"no: {last}"}, f"torch does not import: {problem}"
    found = json.loads(out.splitlines()[-1])
    gpus = ", ".join(found["gpus"]) or "none"
    return {
        "version": found["version"],
        "threads": "{} intra-op, {} inter-op".format(*found["threads"]),
        "backends": ", ".join(f"{name} {_yes(have)}" for name, have in found["backends"].items()),
        "CUDA": f"{found['built_for']}, GPUs: {gpus}"
        if found["built_for"]
        else "not built in (a CPU-only torch)",
    }, None


def _yes(have: bool) -> str:
    return "yes" if have else "no"


def cores() -> DoctorSection:
    from hpcncf.monitor import cgroup as kernel

    cpus, limit, threads = kernel.usable_cpus(), kernel.cpu_limit(), kernel.threads_per_core()
    quota = "none" if limit is None else f"{limit.value:g} cores ({limit.file})"
    cpuset = kernel.cpuset()
    return {
        "on the node": f"{kernel.on_node()} CPUs, {threads or '?'} hardware thread(s) per core",
        "allocated": _allocated(),
        "usable": f"{kernel.usable():g} ({_reason(len(cpus), limit.value if limit else None)})",
        "affinity mask": kernel.cpu_list(cpus),
        "cgroup": kernel.cgroup_version() or "none",
        "cgroup cpuset": kernel.cpu_list(cpuset) if cpuset else "none",
        "cgroup quota": quota,
    }


def _allocated() -> str:
    from hpcncf.launcher.allocation import allocated_by, allocated_cores

    cores, by = allocated_cores(), allocated_by()
    return "not in a job" if cores is None else f"{cores:g} by {by}"


def trapped() -> list[str]:
    """Report that Slurm granted more cores than are usable here; empty if all are usable."""
    from hpcncf.launcher.allocation import allocated_cores
    from hpcncf.monitor import cgroup
    from hpcncf.monitor.cgroup import quota, usable, usable_cpus

    granted = allocated_cores()
    if granted is None:
        return []
    shortage = cgroup.describe_shortage(granted, usable(), usable_cpus(), quota())
    return [shortage] if shortage else []


def ranks() -> DoctorSection:
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
        return {"meet": f"not possible: {error}"}
    by_hand = os.environ.get("GLOO_SOCKET_IFNAME")
    return {
        "this one": f"rank {place.rank} of {place.world_size}",
        "meet at": f"{host} ({address})",
        "interface": f"{by_hand} (GLOO_SOCKET_IFNAME)"
        if by_hand
        else chosen.get("GLOO_SOCKET_IFNAME", "none holds the address: gloo chooses"),
    }


def _reason(cpus: int, quota: float | None) -> str:
    if quota is not None and quota < cpus:
        return "the cgroup's quota limits it"
    whole = cpus >= (os.cpu_count() or 1)
    return "nothing limits it" if whole else "the affinity mask or cpuset limits it"


def memory() -> DoctorSection:
    import psutil

    from hpcncf.monitor.cgroup import memory_limit

    node, limit = psutil.virtual_memory(), memory_limit()
    shm, here = _disk(Path("/dev/shm")), _disk(Path.cwd())
    return {
        "on the node": f"{node.total / 2**30:.1f} GiB, {node.available / 2**30:.1f} available",
        "cgroup limit": f"{limit.value / 1024:.1f} GiB ({limit.file})" if limit else "none",
        "/dev/shm": shm or "none",
        "this folder": here or "unknown",
    }


def _disk(path: Path) -> str | None:
    if not path.is_dir():
        return None
    usage = shutil.disk_usage(path)
    return f"{usage.total / 2**30:.1f} GiB, {usage.free / 2**30:.1f} free"


def slurm() -> DoctorSection:
    found = {name: shutil.which(name) for name in SLURM}
    have = [name for name, path in found.items() if path]
    lack = [name for name, path in found.items() if not path]
    return {
        "found": ", ".join(have) or "no command",
        "not found": ", ".join(lack) or "none",
        "version": _command_output("sinfo", "--version") if found["sinfo"] else "no sinfo",
        "cluster": _cluster() if found["sinfo"] else "none here: use --cluster local",
        "job": os.environ.get("SLURM_JOB_ID", "not in one"),
    }


def _cluster() -> str:
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


def data() -> DoctorSection:
    """Describe the prepared folders below ./data, and where downloads are looked for.

    Unusable folders are listed with the reason.
    """
    from hpcncf.data.manifest import DataError, content_key

    prepared, useless = list[str](), list[str]()
    for folder in sorted(Path("data").iterdir()) if Path("data").is_dir() else []:
        try:
            if content_key(folder) is not None:
                prepared.append(str(folder))
        except DataError as error:
            useless.append(str(error))
    source = os.environ.get("HPCNCF_DATA")
    return {
        "prepared": ", ".join(prepared) or "none in data/ here",
        **({"of no use": "; ".join(useless)} if useless else {}),
        "HPCNCF_DATA": _source(Path(source)) if source else "not set",
    }


def _source(folder: Path) -> str:
    if not folder.is_dir():
        return f"{folder}: no such folder"
    names = sorted(path.name for path in folder.iterdir())
    return f"{folder}: {', '.join(names[:8]) or 'empty'}{', ...' if len(names) > 8 else ''}"


def settings() -> DoctorSection:
    """Environment variables that decide speed and are set here."""
    from hpcncf.records.host import describe_host

    found: DoctorSection = describe_host()["variables"]
    return found or {"none set": "of those that decide speed (OMP_NUM_THREADS, ...)"}


def advice() -> list[str]:
    """List advice on settings that work but could reduce speed."""
    shm = Path("/dev/shm")
    found = []
    if sys.platform == "linux" and (
        not shm.is_dir() or shutil.disk_usage(shm).free < SMALL_SHM_GIB * 2**30
    ):
        found.append(
            "/dev/shm is small: DataLoader workers may die with 'bus error'; use num_workers 0, "
            "or ask for a larger one (containers: --shm-size)"
        )
    return found
