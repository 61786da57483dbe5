"""Is the cause named for programs that nobody here wrote?

Clones those of `programs.yaml` from GitHub (or takes them from the folder HPCNCF_PROGRAMS, as
owner+name), installs the packages that they need into an environment of their own, which has no
hpcncf, and compares the cause that a profiler showed, if it is known, with the one that hpcncf
names.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import yaml

from benchmarks.programs import NOT_ESTABLISHED, CorpusResult, diagnosis_of, failed, judge, show
from benchmarks.verbs import cloned, environment

HERE: Final = Path(__file__).parent
TORCH: Final = "torch==2.13.0"


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


def measure(names: Sequence[str]) -> Iterator[CorpusResult]:
    programs = yaml.safe_load((HERE / "programs.yaml").read_text())
    packages = {each for one in programs.values() for each in one.get("packages", [])}
    python = environment(HERE / ".venv", [TORCH, *sorted(packages)])
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
