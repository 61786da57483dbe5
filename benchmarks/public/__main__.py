"""Is the cause named for programs that nobody here wrote?

Clones those of `programs.yaml` from GitHub (or takes them from the folder HPCNCF_PROGRAMS, as
owner+name), installs the packages that they need into an environment of their own, which has no
hpcncf, and compares the cause that a profiler showed, if it is known, with the one that hpcncf
names.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import yaml

from benchmarks.programs import NOT_ESTABLISHED, Row, diagnosis_of, failed, judge, show

HERE: Final = Path(__file__).parent
ENVIRONMENT: Final = HERE / ".venv"
TORCH: Final = "torch==2.13.0"


def made(packages: Sequence[str]) -> Path:
    """The interpreter of an environment with torch and these packages."""
    python = ENVIRONMENT / "bin/python"
    if not python.exists():
        print(f"making {ENVIRONMENT}", file=sys.stderr, flush=True)
        venv.create(ENVIRONMENT, with_pip=True)
        pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, TORCH, *packages], check=True, stdout=sys.stderr)
    return python


def cloned(source: str, files: Sequence[str], into: Path) -> Path:
    """A fresh copy of `owner/name@commit`, of these files alone if there are any."""
    repository, _, commit = source.partition("@")
    stored = os.environ.get("HPCNCF_PROGRAMS")
    kept = Path(stored) / repository.replace("/", "+") if stored else None
    if kept and (kept / "repo").is_dir():
        kept /= "repo"
    address = str(kept) if kept else f"https://github.com/{repository}"
    subprocess.run(["git", "clone", "--quiet", "--no-checkout", address, str(into)], check=True)
    only = ["--", *files] if files else []
    subprocess.run(["git", "checkout", "--quiet", commit, *only], cwd=into, check=True)
    return into


def prepared(program: Mapping[str, Any], python: Path, work: Path) -> tuple[list[str], Path]:
    """The command, and the folder in which it starts."""
    words = [*program["command"]]
    variables = [f"{name}={value}" for name, value in program.get("variables", {}).items()]
    start = ["env", *variables, str(python)] if variables else [str(python)]
    if "source" not in program:
        return [*start, str(HERE / words[0]), *words[1:]], work
    folder = cloned(program["source"], program.get("files", ()), work / "source") / program.get(
        "folder", "."
    )
    if "prepare" in program:
        subprocess.run([str(python), str(HERE / program["prepare"])], cwd=folder, check=True)
    return [*start, *words], folder


def measure(names: Sequence[str]) -> Iterator[Row]:
    programs = yaml.safe_load((HERE / "programs.yaml").read_text())
    python = made(sorted({each for one in programs.values() for each in one.get("packages", [])}))
    for name in names or list(programs):
        program = programs[name]
        began = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            try:
                command, start = prepared(program, python, Path(folder))
                if "stop_s" in program:
                    command = ["timeout", "--signal=INT", str(program["stop_s"]), *command]
                diagnosis = diagnosis_of(command, Path(folder) / "results", start)
            except (subprocess.SubprocessError, LookupError) as error:
                diagnosis = failed(error)
        row = judge(name, {"cause": [], **program}, diagnosis, time.monotonic() - began)
        yield row if "cause" in program else replace(row, expected=(NOT_ESTABLISHED,))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.public", description=__doc__)
    parser.add_argument("program", nargs="*", help="only these; default: all")
    show(measure(parser.parse_args(arguments).program))
    return 0


if __name__ == "__main__":
    sys.exit(main())
