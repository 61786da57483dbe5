"""Debian's packages that the cluster is made of."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from parts import PREFIX, ClusterError

SLURM: Final = ["slurmctld", "slurmd", "slurm-client", "slurm-wlm-basic-plugins"]
ACCOUNTING: Final = ["slurmdbd", "slurm-wlm-mysql-plugin"]
POLICY: Final = Path("/usr/sbin/policy-rc.d")
LOCK: Final = Path("/run/lock/hpcncf-packages")


def install(accounting: bool) -> list[str]:
    """Install what is missing; returns that. Raises ClusterError with apt-get's last words."""
    wanted = ["munge", "iproute2", *(["mariadb-server"] if accounting else [])]
    if not PREFIX:
        wanted += [*SLURM, *(ACCOUNTING if accounting else [])]
    with LOCK.open("w") as lock:  # two clusters may start at once
        fcntl.flock(lock, fcntl.LOCK_EX)
        missing = [package for package in wanted if not _installed(package)]
        if missing:
            if not shutil.which("apt-get"):
                raise ClusterError(f"no apt-get here to install {' '.join(missing)} with")
            _without_services(missing)
    return missing


def _installed(package: str) -> bool:
    asked = ["dpkg-query", "--show", "--showformat=${db:Status-Status}", package]
    if not shutil.which(asked[0]):
        return False
    done = subprocess.run(asked, capture_output=True, text=True, check=False)
    return done.stdout == "installed"


def _without_services(missing: Sequence[str]) -> None:
    """Debian starts what it installs unless this file forbids it."""
    made = not POLICY.exists()
    if made:
        POLICY.write_text("#!/bin/sh\nexit 101\n")
        POLICY.chmod(0o755)
    try:
        _apt_get(missing)
    finally:
        if made:
            POLICY.unlink()


def _apt_get(missing: Sequence[str]) -> None:
    command = ["apt-get", "-q", "-y", "-o", "DPkg::Lock::Timeout=300"]
    install = [*command, "install", "--no-install-recommends", *missing]
    # Package lists may be absent or too old to fetch by: then they are fetched, and it tried again.
    for tried in (install, [*command, "update"], install):
        done = subprocess.run(
            tried,
            env=os.environ | {"DEBIAN_FRONTEND": "noninteractive"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        if tried is install and done.returncode == 0:
            return
    last = (done.stdout + done.stderr).strip().splitlines()[-10:]
    raise ClusterError(f"apt-get could not install {' '.join(missing)}:\n" + "\n".join(last))


if __name__ == "__main__":
    install(accounting=True)
