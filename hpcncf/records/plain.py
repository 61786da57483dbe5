"""Read and write records as plain JSON, for processes that start before any schema is loaded.

A schema of pydantic takes a tenth of a second to load. `hpcncf run` of a short command and the
claim of a run do without: what they write here is what `schema` reads.
"""

from __future__ import annotations

import errno
import json
import os
import stat
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

from hpcncf.errors import HpcncfError
from hpcncf.files import write_text

SCHEMA_VERSION: Final = 1
# A full disk, or a file server that is away or read-only for a moment: worth waiting for if a run
# would fail without the record.
TRANSIENT_ERRORS: Final = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.ESTALE, errno.EIO)
RETRY_S: Final = 180.0
RETRY_EVERY_S: Final = 1.0

# A node record of 1,024 CPUs and 600 windows has 25 MB.
LARGEST_BYTES: Final = 64 * 1024**2
MOST_REPORTED: Final = 100
LONGEST_REPORTED: Final = 200
# As large as float32, for losses.
LARGEST_METRIC: Final = 1e39
# A shorter run's CPU efficiency says nothing: start-up is most of it, CPU time ticks every 10 ms.
TOO_SHORT_S: Final = 5.0
GROWTH_HINT: Final = (
    "unless data is still being read, each step keeps something: most often a list or a sum of "
    "losses, which keeps the graph of every step; keep loss.item() or loss.detach() instead"
)
"""What makes memory grow as long as a program runs."""

Reported = dict[str, bool | int | float | str]


class RecordError(HpcncfError):
    """A file that is not the expected record. Readers of many files report, skip and count it."""


def utc_now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def plain_record(kind: str, run_id: str, attempt: int, **fields: Any) -> dict[str, Any]:
    """Build the record of one attempt at a run, with the fields of `schema.AttemptRecord`."""
    first = {"schema_version": SCHEMA_VERSION, "kind": kind, "run_id": run_id, "attempt": attempt}
    return first | fields


def write_plain(path: Path, record: Mapping[str, Any]) -> None:
    """Write a record as JSON. Raises ValueError for NaN and infinity, which are our bug."""
    write_text(path, json.dumps(record, allow_nan=False) + "\n")


def write_plain_with_retries(path: Path, record: Mapping[str, Any]) -> None:
    """Write a record, waiting up to RETRY_S for a full disk or a lost file server."""
    until = time.monotonic() + RETRY_S
    while True:
        try:
            return write_plain(path, record)
        except OSError as error:
            if error.errno not in TRANSIENT_ERRORS or time.monotonic() > until:
                raise
        time.sleep(RETRY_EVERY_S)


def as_attributes(record: Mapping[str, Any], *parts: str) -> Any:
    """Return a view of a record whose fields, and those of the named parts, are attributes."""
    return SimpleNamespace(
        **dict(record) | {part: SimpleNamespace(**record[part]) for part in parts}
    )


def read_regular(path: Path, most_bytes: int = LARGEST_BYTES) -> bytes:
    """Return the content of a regular file.

    Raises RecordError if it is a pipe or a device or larger than `most_bytes`, and OSError if it
    cannot be read.
    """
    # A pipe without a writer is not waited for. A file object takes twice as long for small files.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise RecordError(f"{path}: expected a regular file, came a pipe or a device")
        if found.st_size > most_bytes:
            raise RecordError(f"{path}: larger than {most_bytes:,} bytes: not read")
        content = os.read(descriptor, found.st_size)
        # A file server may give less at once.
        while len(content) < found.st_size and (
            more := os.read(descriptor, found.st_size - len(content))
        ):
            content += more
        return content
    finally:
        os.close(descriptor)
