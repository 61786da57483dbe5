"""The local queue that runs on this machine now: a file in the user's cache."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

from hpcncf.records.claims import is_same_process
from hpcncf.records.schema import Number, ProcessId, Record, read_optional


class ActiveQueue(Record):
    """The local queue that runs on this machine now, for others that wait."""

    kind: Literal["turn"] = "turn"
    results: str
    submission: str
    pid: ProcessId
    process_started: Number


def active_queue_file() -> Path:
    """One per user and machine; the home folder may be shared by many machines."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "hpcncf" / f"queue-{os.uname().nodename}.json"


def read_active_queue() -> ActiveQueue | None:
    """The queue that runs on this machine now; None if there is none."""
    found = read_optional(active_queue_file(), ActiveQueue)
    return found if found and is_same_process(found.pid, found.process_started) else None
