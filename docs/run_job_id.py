"""`python -m docs.run_job_id`: write what the commands of job-id.md print, on a real Slurm.

Needs root: it starts the test cluster of tests/slurm. Takes about five minutes.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from docs.run_tutorial import BLOCK, ROOT, run

PAGE: Final = ROOT / "docs/job-id.md"
FILES: Final = (
    ROOT / "docs/job-id/job.sh",
    ROOT / "docs/job-id/cpu-mail",
    ROOT / "docs/one-core-of-five/train.py",
)
CLUSTER: Final = ROOT / "tests/slurm/cluster.py"
SUBMITTED: Final = re.compile(r"Submitted batch job (\d+)")
PATIENCE_S: Final = 120


def prepare(folder: Path) -> None:
    """Lay the files of the page into an empty folder."""
    for file in FILES:
        shutil.copy(file, folder)


def regenerated(page: str, folder: Path, variables: Mapping[str, str]) -> str:
    """The page with what its commands print now; its job ids stay those that it has.

    variables: what Slurm's commands need to talk to the cluster.
    """
    prepare(folder)
    shown = SUBMITTED.findall(page)
    real: list[str] = []
    pieces: list[str] = []
    end = 0
    for found in BLOCK.finditer(page):
        command = found["command"]
        print(f"$ {command}", flush=True)
        output = run(_renamed(command, shown, real), folder, variables)
        for job in SUBMITTED.findall(output):
            real.append(job)
            _await_accounting(job, folder, variables)
        output = _renamed(output, real, shown).replace(str(folder), "~/ncf")
        pieces += [page[end : found.start()], f"$ {command}\n{output}"]
        end = found.end()
    return "".join([*pieces, page[end:]])


def _renamed(text: str, old: Sequence[str], new: Sequence[str]) -> str:
    names = dict(zip(old, new, strict=False))
    return re.sub(r"\b\d{6,}\b", lambda found: names.get(found[0], found[0]), text)


def _await_accounting(job: str, folder: Path, variables: Mapping[str, str]) -> None:
    """Wait until sacct has the end of a job: it lags by seconds."""
    ask = f"sacct --noheader --parsable2 --jobs {job} --format State,End,TotalCPU"
    deadline = time.monotonic() + PATIENCE_S
    while True:
        rows = run(ask, folder, variables).split()
        if rows and not any("Unknown" in row or "RUNNING" in row for row in rows):
            return
        assert time.monotonic() < deadline, f"no end of job {job} in the accounting: {rows}"
        time.sleep(1)


def main(arguments: Sequence[str] | None = None) -> int:
    argparse.ArgumentParser(prog="python -m docs.run_job_id").parse_args(arguments)
    with tempfile.TemporaryDirectory() as name:
        cluster, folder = Path(name) / "slurm", Path(name) / "ncf"
        Path(name).chmod(0o755)  # munged asks for it
        folder.mkdir()
        command = [sys.executable, CLUSTER]
        subprocess.run([*command, "start", "--dir", cluster], check=True)
        try:
            variables = {"SLURM_CONF": str(cluster / "etc/slurm.conf")}
            PAGE.write_text(regenerated(PAGE.read_text(), folder, variables))
        finally:
            subprocess.run([*command, "stop", "--dir", cluster], check=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
