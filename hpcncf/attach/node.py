"""The part of `hpcncf attach JOBID` that runs on each node of the job, in a step of its own."""

from __future__ import annotations

import base64
import json
import os
import signal
import sys
import zlib
from typing import Any, Final

from hpcncf.attach import find
from hpcncf.attach.observe import Observation
from hpcncf.attach.watch import Watch

# srun writes the lines of several nodes into one stream: whole, if they are short.
WIDTH: Final = 900
PREFIX: Final = "hpcncf-attach"


def main(words: str) -> None:
    """Watch the job that the JSON `words` name, and print what was seen as numbered lines."""
    asked = json.loads(words)
    job = asked["job"]
    for number in (signal.SIGTERM, signal.SIGUSR1):  # whichever way the watch is ended early
        signal.signal(number, signal.default_int_handler)
    node = os.environ.get("SLURMD_NODENAME") or os.uname().nodename
    try:
        watch = Watch(find.roots(find.job_processes(job)), lambda: find.job_processes(job))
        raw = Observation(watch).run(asked["seconds"])
    except find.CannotWatch as error:
        raw = {"error": str(error)}
    sys.stdout.write(pack({**raw, "node": node}, node))
    sys.stdout.flush()


def pack(raw: dict[str, Any], node: str) -> str:
    """Return the figures as lines `hpcncf-attach NODE NUMBER OF TEXT`."""
    text = base64.b64encode(zlib.compress(json.dumps(raw).encode())).decode()
    parts = [text[at : at + WIDTH] for at in range(0, len(text), WIDTH)]
    return "".join(
        f"{PREFIX} {node} {number} {len(parts)} {part}\n" for number, part in enumerate(parts)
    )


def unpack(text: str) -> dict[str, dict[str, Any]]:
    """Map nodes to figures, from lines of several nodes in any order; incomplete ones are omitted.

    Other lines, as of a site's prolog, are skipped.
    """
    parts: dict[str, dict[int, str]] = {}
    whole: dict[str, int] = {}
    for line in text.splitlines():
        words = line.split()
        if len(words) == 5 and words[0] == PREFIX and words[2].isdecimal():
            parts.setdefault(words[1], {})[int(words[2])] = words[4]
            whole[words[1]] = int(words[3])
    texts = {
        node: "".join(found[number] for number in sorted(found))
        for node, found in parts.items()
        if len(found) == whole[node]
    }
    return {
        node: json.loads(zlib.decompress(base64.b64decode(text))) for node, text in texts.items()
    }
