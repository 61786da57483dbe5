"""What each command is: it hands its words to the controller and prints the answer.

Started a thousand times in the tests, so it imports little.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

FOLDER = os.environ.get("FAKE_SLURM", "")
PLAIN = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8"}
VERSION = "slurm-wlm 22.05.8"


def main(name: str, words: list[str]) -> int:
    if not FOLDER:
        sys.stderr.write(f"{name}: FAKE_SLURM names no folder\n")
        return 1
    if words in (["--version"], ["-V"]):
        print(VERSION)
        return 0
    if name != "sbatch":
        with Path(FOLDER, "calls").open("a") as calls:
            calls.write(" ".join([name, *words]) + "\n")
    canned = Path(FOLDER, f"{name}.says")
    if canned.exists():
        sys.stdout.write(canned.read_text())
        return 0
    return ask(name, words)


def ask(name: str, words: list[str]) -> int:
    stdin = sys.stdin.read() if name == "sbatch" and not words else ""
    request = {
        "name": name,
        "words": words,
        "variables": dict(os.environ),
        "folder": str(Path.cwd()),
        "user": os.getuid(),
        "stdin": stdin,
    }
    body = json.dumps(request).encode()
    os.chdir(FOLDER)  # a socket's path may be short only
    with connected() as controller:
        socket.send_fds(controller, [b"%d\n" % len(body)], [0, 1, 2])
        controller.sendall(body)
        answer = json.loads(b"".join(iter(lambda: controller.recv(1 << 20), b"")))
    sys.stdout.write(answer["out"])
    sys.stderr.write(answer["err"])
    return int(answer["code"])


def connected() -> socket.socket:
    """Starts a controller where none answers."""
    for attempt in range(6000):
        controller = socket.socket(socket.AF_UNIX)
        try:
            controller.connect("controller.socket")
        except OSError:
            controller.close()
            if attempt == 0:
                start()
            time.sleep(0.01)
        else:
            return controller
    sys.exit("the pretended controller does not start: see controller.log")


def start() -> None:
    here = str(Path(__file__).resolve().parents[1])
    with Path("controller.log").open("ab") as log:
        subprocess.Popen(
            [sys.executable, "-m", "fake_slurm.controller", FOLDER],
            env={**PLAIN, "PYTHONPATH": here},
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
