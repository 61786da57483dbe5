"""The peers' environments: one for each, since RecBole needs an older numpy than cornac takes.

`python -m benchmarks.peers.environments` makes them, and so does the first run of the benchmark.
"""

from __future__ import annotations

import subprocess
import sys
import venv
from pathlib import Path

HERE = Path(__file__).parent
PEERS = ("recbole", "cornac")


def python_of(peer: str) -> Path:
    """Its interpreter."""
    return made(HERE / ".venv" / peer, HERE / f"requirements-{peer}.txt")


def made(folder: Path, wanted: Path) -> Path:
    """An environment's interpreter; it is made anew when its requirements have changed."""
    python, made_from = folder / "bin/python", folder / wanted.name
    if not made_from.exists() or made_from.read_text() != wanted.read_text():
        print(f"making {folder}", file=sys.stderr, flush=True)
        venv.create(folder, clear=True, with_pip=True)
        # The file lists everything: what a package asks for besides is not wanted.
        pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, "--no-deps", "-r", str(wanted)], check=True, stdout=sys.stderr)
        made_from.write_text(wanted.read_text())
    return python


def main() -> int:
    for peer in PEERS:
        print(python_of(peer))
    return 0


if __name__ == "__main__":
    sys.exit(main())
