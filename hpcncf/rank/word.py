"""Whether somebody has left word that a run shall not run, asked beside a run being measured."""

from __future__ import annotations

import time
from typing import Final

from hpcncf import submissions
from hpcncf.paths import ResultPaths
from hpcncf.submissions import Submission

# A shared file system is asked for the folder's time this often, and read when it has changed.
EVERY_S: Final = 5.0


class Word:
    """The cancellations of a results folder, as a rank of a task or a local queue hears of them."""

    def __init__(
        self, paths: ResultPaths, every_s: float = EVERY_S, job_id: str | None = None
    ) -> None:
        self._paths, self._every_s, self._job_id = paths, every_s, job_id
        self._looked_at, self._changed_ns = 0.0, -1
        self._submitted = submissions.Submitted([], [])
        self._own: Submission | None = None

    def against(self, run_id: str, since: str | None = None) -> bool:
        """Whether the run was cancelled of the submission of then, or this job's, or its last."""
        self._look()
        last = self._own or self._submitted.last(run_id)
        since = since or (last.submitted_at if last else None)
        return since is not None and self._submitted.cancelled(run_id, since) is not None

    def _look(self) -> None:
        now = time.monotonic()
        if self._looked_at and now - self._looked_at < self._every_s:
            return
        self._looked_at = now
        try:
            changed_ns = self._paths.submissions.stat().st_mtime_ns
        except OSError:  # no submission, or a file server that is away: none is known of
            return
        # Two changes within one tick of the file system's clock look like one: look once more.
        lately = time.time_ns() - changed_ns < 2e9 * max(self._every_s, 1.0)
        if changed_ns != self._changed_ns or lately:
            self._changed_ns, self._submitted = changed_ns, submissions.read_submissions(self._paths)
            self._own = self._submitted.holding(self._job_id)
