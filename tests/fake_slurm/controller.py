"""The controller: answers the commands, and looks after the jobs in between."""

from __future__ import annotations

import array
import json
import os
import selectors
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from fake_slurm import others, request, sacct, scontrol, settings, squeue
from fake_slurm.cluster import Cluster
from fake_slurm.request import Refused
from fake_slurm.scheduler import Queue

SOCKET: Final = "controller.socket"
MUTE: Final = "error: Unable to contact slurm controller (connect failure)"
LONGEST: Final = 1 << 24


@dataclass
class Controller:
    cluster: Cluster
    folder: Path
    listening: socket.socket
    read_at: int = 0
    open: bool = True

    def serve(self) -> None:
        """Until it is told to end, or its owner or folder is gone."""
        with selectors.DefaultSelector() as ready:
            ready.register(self.listening, selectors.EVENT_READ)
            while self.open and self._wanted():
                if ready.select(0.02 if self.cluster.busy else 0.1):
                    self.answer(self.listening.accept()[0])
                self._read_settings()
                self.cluster.tick()
        self.cluster.close()

    def _wanted(self) -> bool:
        owner = self.cluster.queue.settings.owner
        return self.folder.exists() and (owner is None or Path(f"/proc/{owner}").exists())

    def _read_settings(self) -> None:
        file = self.folder / settings.FILE
        at = file.stat().st_mtime_ns if file.exists() else 0
        if at != self.read_at:
            self.read_at = at
            self.cluster.queue.settings = settings.read(self.folder)
            self.cluster.changed = True

    def answer(self, asking: socket.socket) -> None:
        words, files = _received(asking)
        try:
            if words:
                self._answer(_Reply(asking), words, files)
        finally:
            for opened in files:
                os.close(opened)

    def _answer(self, reply: _Reply, words: dict[str, Any], files: list[int]) -> None:
        self._read_settings()
        name, variables = words["name"], words["variables"]
        try:
            if name == "srun":
                told = (words["words"], variables, words["folder"], files, reply.ends)
                self.cluster.step(*told)
                return
            reply.says(self._said(name, words), 0)
        except Refused as refused:
            reply.fails(str(refused), refused.code)
        except SystemExit:  # argparse does not know an option
            reply.fails(f"{name}: error: an option that the pretended one does not know\n", 1)

    def _said(self, name: str, words: dict[str, Any]) -> str:
        if not self.cluster.queue.settings.controller and name in OF_CONTROLLER:
            raise Refused(f"{name}: {MUTE}\n")
        return COMMANDS[name](self, words)


OF_CONTROLLER: Final = ("sbatch", "squeue", "scontrol", "scancel", "sinfo")


@dataclass(frozen=True)
class _Reply:
    to: socket.socket

    def says(self, out: str, code: int) -> None:
        self._send({"out": out, "err": "", "code": code})

    def fails(self, err: str, code: int) -> None:
        self._send({"out": "", "err": err, "code": code})

    def ends(self, code: int) -> None:
        self.says("", code)

    def _send(self, reply: dict[str, object]) -> None:
        with self.to:
            try:
                self.to.sendall(json.dumps(reply).encode())
            except BrokenPipeError:  # whoever asked was killed
                return


def _received(asking: socket.socket) -> tuple[dict[str, Any] | None, list[int]]:
    """The request, and the files that came with it; no request where who asked was killed."""
    descriptors = array.array("i")
    room = socket.CMSG_SPACE(3 * descriptors.itemsize)
    data, extra, _, _ = asking.recvmsg(LONGEST, room)
    for _, _, sent in extra:
        descriptors.frombytes(sent[: len(sent) - len(sent) % descriptors.itemsize])
    length, _, rest = data.partition(b"\n")
    while length and len(rest) < int(length):
        more = asking.recv(LONGEST)
        if not more:
            return None, list(descriptors)
        rest += more
    return (json.loads(rest) if rest else None), list(descriptors)


def _sbatch(controller: Controller, words: dict[str, Any]) -> str:
    arguments = words["words"]
    refuse = controller.folder / "refuse"
    if refuse.exists():
        raise Refused(refuse.read_text())
    asked = request.read(arguments, words["variables"], words["folder"], words["stdin"])
    number = controller.cluster.queue.submit(asked, words["user"])
    controller.cluster.changed = True
    return f"{number}\n" if asked.asked.parsable else f"Submitted batch job {number}\n"


def _fault(controller: Controller, words: dict[str, Any]) -> str:
    """What only a test asks for."""
    what, *rest = words["words"]
    cluster = controller.cluster
    if what == "end":
        controller.open = False
    elif what == "fail-node":
        cluster.fail_node(rest[0])
    elif what == "mend-node":
        cluster.queue.down.discard(rest[0])
    else:
        (job,) = cluster.queue.find(rest[0])
        if what == "preempt":
            cluster.preempt(job)
        else:
            cluster.starve(job, int(rest[1]))
    cluster.changed = True
    return ""


COMMANDS: Final[dict[str, Callable[[Controller, dict[str, Any]], str]]] = {
    "sbatch": _sbatch,
    "squeue": lambda self, asked: squeue.answer(self.cluster, asked["words"]),
    "sacct": lambda self, asked: sacct.answer(self.cluster, asked["words"], asked["variables"]),
    "scontrol": lambda self, asked: scontrol.answer(self.cluster, asked["words"]),
    "scancel": lambda self, asked: others.scancel(self.cluster, asked["words"], asked["user"]),
    "sinfo": lambda self, asked: others.sinfo(self.cluster, asked["words"]),
    "sacctmgr": lambda self, asked: others.sacctmgr(self.cluster, asked["words"]),
    "fault": _fault,
}


def main(folder: Path) -> None:
    os.chdir(folder)  # a socket's path may be short only
    listening = socket.socket(socket.AF_UNIX)
    try:
        listening.bind(SOCKET)
    except OSError:  # two commands started one each: the other's serves
        return
    listening.listen(64)
    known = settings.read(folder)
    Controller(Cluster(Queue(folder, known)), folder, listening).serve()
    Path(SOCKET).unlink(missing_ok=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
