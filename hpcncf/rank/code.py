"""Whether a rank runs the code that its run was submitted with."""

from __future__ import annotations

from hpcncf import snapshot, submissions
from hpcncf.paths import AttemptPaths, ResultPaths
from hpcncf.plan import Run


def changes(run: Run, attempt: AttemptPaths) -> list[str]:
    """What was edited between the run's last submission and now; nothing for one never submitted.

    The checkout that its user was in is the code of a command; our own workload runs none of it.
    """
    results = ResultPaths(attempt.folder.parents[2])
    submission = submissions.read_submissions(results).last(run.id)
    if submission is None:
        return []
    return snapshot.changed(submission.code, checkouts=run.workload != "ncf")
