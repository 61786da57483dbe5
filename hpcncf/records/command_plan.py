"""Add commands to a results folder's plan, without loading the plan of a thousand others."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from hpcncf.errors import HpcncfError
from hpcncf.files import make_folder, open_lock, write_bytes
from hpcncf.paths import ResultPaths
from hpcncf.records.plain import SCHEMA_VERSION, RecordError, read_regular

# How a plan with runs ends, as `json.dumps(plan, indent=1)` writes it: the next goes in between.
LAST_RUN: Final = b"\n  }"
END: Final = b"\n ]\n}\n"
# What each run of such a plan has once, and what each that a command typed has.
EACH: Final = b'\n   "id": "'
BY_HAND: Final = b'\n   "by_hand": true'


def append_command(paths: ResultPaths, run: Mapping[str, Any]) -> bool:
    """Add a command's run, as plain data, to the plan; return whether that could be done.

    It cannot if the folder holds the results of a job, or a plan that somebody else wrote.
    """
    with writing(paths.folder), locked(paths):
        text = json.dumps(run, indent=1).replace("\n", "\n  ").encode()
        try:
            there = read_regular(paths.plan)
        except FileNotFoundError:
            name = json.dumps(paths.folder.resolve().name)
            first = f'{{\n "schema_version": {SCHEMA_VERSION},\n "kind": "plan",\n "job": {name},\n'
            write_bytes(paths.plan, f'{first} "runs": [\n  '.encode() + text + END)
            return True
        except RecordError:
            return False
        known = there.endswith(LAST_RUN + END)
        if not known or there.count(EACH) != there.count(BY_HAND):
            return False
        write_bytes(paths.plan, there[: -len(END)] + b",\n  " + text + END)
        return True


@contextlib.contextmanager
def writing(folder: Path, remedy: str = "") -> Iterator[None]:
    """Turn an OSError in the block, such as a full disk, into an HpcncfError for the user."""
    try:
        yield
    except OSError as error:
        where = error.filename or folder
        raise HpcncfError(f"{where}: cannot be written: {error.strerror}{remedy}") from None


@contextlib.contextmanager
def locked(paths: ResultPaths) -> Iterator[None]:
    """Hold the lock of a results folder, which one process at a time may change."""
    make_folder(paths.folder)
    lock = open_lock(paths.lock)
    try:
        with contextlib.suppress(OSError):  # a file system without locks; claims still hold
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)
