"""The file in the user's cache that names the local queue running on this machine."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

from hpcncf.records.claims import is_same_process
from hpcncf.records.schema import Number, ProcessId, Record, read_optional


class ActiveQueue(Record):
    """The local queue that runs on this machine now, so that other queues wait for it."""

    kind: Literal["turn"] = "turn"
    results: str
    submission: str
    pid: ProcessId
    process_started: Number


def active_queue_file() -> Path:
    """Path of the active queue's file: one per user and machine, as machines may share a home."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "hpcncf" / f"queue-{os.uname().nodename}.json"


def read_active_queue() -> ActiveQueue | None:
    """Return the queue that runs on this machine now; None if there is none."""
    found = read_optional(active_queue_file(), ActiveQueue)
    return found if found and is_same_process(found.pid, found.process_started) else None
