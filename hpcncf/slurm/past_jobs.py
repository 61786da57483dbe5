"""Past jobs of Slurm's accounting, one after another as sacct prints them."""

from __future__ import annotations

import fnmatch
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from hpcncf.errors import HpcncfError, UsageError, printable
from hpcncf.explain.conclude import FIELDS
from hpcncf.explain.read import RowReader
from hpcncf.explain.workloads import PastJob

# The name comes last, because it may contain the separator.
COLUMNS: Final = (*FIELDS.split(","), "JobName")
_SPAN: Final = re.compile(r"(\d{1,5})\s?(hours?|h|days?|d|weeks?|w)")
_HOURS: Final = {"h": 1, "d": 24, "w": 168}
EVERYBODY: Final = "all"


@dataclass(frozen=True)
class PastJobsQuery:
    """Selection of past jobs to ask sacct for, by time, user, account and name."""

    since: datetime
    user: str = ""
    """Empty: the one who asks, or everybody of an account; `all`: everybody."""
    account: str = ""
    name: str = ""
    """A job's name; with `*` and `?` a pattern."""

    @property
    def command(self) -> list[str]:
        """The sacct command; earlier starts of requeued jobs are not included."""
        words = ["sacct", "--parsable2", "--noheader", f"--format={','.join(COLUMNS)}"]
        words.append(f"--starttime={self.since:%Y-%m-%dT%H:%M:%S}")
        words.append("--endtime=now")
        if self.account:
            words.append(f"--accounts={self.account}")
        if self.user == EVERYBODY or (self.account and not self.user):
            words.append("--allusers")
        elif self.user:
            words.append(f"--user={self.user}")
        if self.name and not self._is_pattern:
            words.append(f"--name={self.name}")
        return words

    @property
    def _is_pattern(self) -> bool:
        return any(mark in self.name for mark in "*?[")

    def wants(self, name: str) -> bool:
        return not self._is_pattern or fnmatch.fnmatchcase(name, self.name)


def parse_since(text: str, now: datetime) -> datetime:
    """Parse `7days`, `12h`, `2weeks`, `2026-11-01` or `2026-11-01T08:00`; raises UsageError."""
    span = _SPAN.fullmatch(text.strip().lower())
    since: datetime | None = None
    try:
        if span:
            since = now - timedelta(hours=int(span[1]) * _HOURS[span[2][0]])
        elif re.match(r"\d{4}-", text):
            since = datetime.fromisoformat(text).replace(tzinfo=None)
    except (ValueError, OverflowError):
        since = None
    if since is None or since.year < 1970:
        raise UsageError(
            f"--since {text[:40]}: expected a span such as 7days, 12hours or 2weeks, or a date "
            "such as 2026-11-01"
        )
    if since > now:
        raise UsageError(f"--since {text}: lies in the future; it is {now:%Y-%m-%d %H:%M}")
    return since


def read_past_jobs(query: PastJobsQuery) -> Iterator[PastJob]:
    """Yield the jobs in sacct's order, each as soon as its rows are through.

    Raises UsageError where there is no accounting, HpcncfError if sacct fails.
    """
    if shutil.which("sacct") is None:
        raise UsageError(
            "--since: there is no sacct here; run it where Slurm's commands are, or give one job's "
            "summary as a file"
        )
    reader = RowReader(COLUMNS[:-1])
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            query.command,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            errors="replace",
            env=_plain_environment(),
        )
        assert process.stdout is not None
        try:
            for name, rows in _jobs(process.stdout):
                if query.wants(name) and (parts := reader.read(rows)):
                    yield PastJob(name, tuple(parts))
            code = process.wait()
        finally:
            process.kill()
            process.stdout.close()
            process.wait()
        if code:
            errors.seek(0)
            _refuse(query, errors.read().strip().splitlines(), code)


def _plain_environment() -> dict[str, str]:
    # The user's own formats and filters would change the output.
    kept = {k: v for k, v in os.environ.items() if not k.startswith("SACCT_")}
    return kept | {"SLURM_TIME_FORMAT": "standard", "SLURM_BITSTR_LEN": "0"}


def _refuse(query: PastJobsQuery, lines: list[str], code: int) -> None:
    said = re.sub(r"^sacct: (error|fatal): ", "", lines[-1] if lines else f"exit code {code}")
    if "accounting storage is disabled" in said:
        raise UsageError(f"--since: this cluster keeps no accounting (sacct: {printable(said)})")
    if said.startswith("Invalid user"):
        raise UsageError(f"--user {query.user}: Slurm knows no such user on this machine")
    raise HpcncfError(f"sacct: {printable(said)}")


def _jobs(lines: Iterator[str]) -> Iterator[tuple[str, list[list[str]]]]:
    """Gather the rows of a job, its steps' and those of further parts: its name, the rows."""
    last, name = "", ""
    rows: list[list[str]] = []
    for line in lines:
        cells = line.rstrip("\n").split("|", len(COLUMNS) - 1)
        if len(cells) != len(COLUMNS):
            continue
        job = re.split(r"[.+]", cells[0], maxsplit=1)[0]
        if job != last and rows:
            yield name, rows
            rows = []
        if job != last:
            last, name = job, cells[-1]
        rows.append(cells[:-1])
    if rows:
        yield name, rows
