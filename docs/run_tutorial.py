"""`python -m docs.run_tutorial`: write what the commands of one-core-of-five.md print.

Each block ```console of the page holds one command behind `$ `; the lines below it are replaced.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Final

ROOT: Final = Path(__file__).parents[1]
PAGE: Final = ROOT / "docs/one-core-of-five.md"
BLOCK: Final = re.compile(r"(?<=```console\n)\$ (?P<command>[^\n]+)\n(?P<output>.*?)(?=```)", re.S)
SEFF: Final = ROOT / "tests/data/explain/seff.txt"
SECONDS: Final = 900


def commands(text: str) -> list[str]:
    return [found["command"] for found in BLOCK.finditer(text)]


def prepare(folder: Path) -> None:
    """Lay the files of the page into an empty folder."""
    for program in (ROOT / "docs/one-core-of-five").glob("*.py"):
        shutil.copy(program, folder)
    lines = SEFF.read_text().splitlines(keepends=True)
    (folder / "seff.txt").write_text("".join(line for line in lines if not line.startswith("#")))


def run(command: str, folder: Path, variables: Mapping[str, str] = MappingProxyType({})) -> str:
    """Standard output and error of the command, as a terminal shows them."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(
        ["bash", "-c", f"{command} 2>&1"],
        cwd=folder,
        env={**os.environ, "PATH": path, "COLUMNS": "80", **variables},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    return done.stdout.strip("\n") + "\n"


def regenerated(text: str, folder: Path) -> str:
    """The page with what its commands print now, run one after another in the folder."""
    prepare(folder)
    for command in commands(text):
        print(f"$ {command}", flush=True)
        output = run(command, folder).replace(str(folder), "~/ncf")
        text = BLOCK.sub(
            lambda found, command=command, output=output: (
                f"$ {command}\n{output}" if found["command"] == command else found[0]
            ),
            text,
        )
    return text


def main(arguments: Sequence[str] | None = None) -> int:
    argparse.ArgumentParser(prog="python -m docs.run_tutorial").parse_args(arguments)
    with tempfile.TemporaryDirectory() as name:
        PAGE.write_text(regenerated(PAGE.read_text(), Path(name)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
