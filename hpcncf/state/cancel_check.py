"""Check whether a run was cancelled, from inside the process that runs it."""

from __future__ import annotations

import time
from typing import Final

from hpcncf.paths import ResultPaths
from hpcncf.records.submissions import Submission, Submitted, read_submissions

# The modification time of the folder is read this often, its files only if it has changed.
EVERY_S: Final = 5.0


class CancelCheck:
    """Reads the cancellations of a results folder, for a rank of a task or for a local queue."""

    def __init__(
        self, paths: ResultPaths, every_s: float = EVERY_S, job_id: str | None = None
    ) -> None:
        self._paths, self._every_s, self._job_id = paths, every_s, job_id
        self._looked_at, self._changed_ns = 0.0, -1
        self._submitted = Submitted([], [])
        self._own: Submission | None = None

    def is_cancelled(self, run_id: str, since: str | None = None) -> bool:
        """Return whether the run was cancelled in its last submission.

        `since` selects another submission by its time; within a Slurm job, the default is the
        job's submission.
        """
        self._refresh()
        last = self._own or self._submitted.last(run_id)
        since = since or (last.submitted_at if last else None)
        return since is not None and self._submitted.cancelled(run_id, since) is not None

    def _refresh(self) -> None:
        now = time.monotonic()
        if self._looked_at and now - self._looked_at < self._every_s:
            return
        self._looked_at = now
        try:
            changed_ns = self._paths.submissions.stat().st_mtime_ns
        except OSError:  # no submission, or a file server that does not answer
            return
        # Two changes within one tick of the file system's clock look like one: read once more.
        recent = time.time_ns() - changed_ns < 2e9 * max(self._every_s, 1.0)
        if changed_ns != self._changed_ns or recent:
            self._changed_ns, self._submitted = changed_ns, read_submissions(self._paths)
            self._own = self._submitted.holding(self._job_id)
