"""`hpcncf apply JOBID`: what sacct says of a job, against the script that it ran."""

from __future__ import annotations

import pytest

from slurm.conftest import User, eventually

pytestmark = pytest.mark.slurm
SCRIPT = "#!/bin/bash\n#SBATCH --partition=cpu --time=2 --mem=100M\nsleep 2\n"


def test_short_job_sizes_nothing(user: User) -> None:
    (user.folder / "job.sh").write_text(SCRIPT)
    job = user.shell("sbatch", "--parsable", "--wait", "job.sh").stdout.strip()
    # sacct's row is whole some seconds after the end.
    eventually(lambda: user.attempt("apply", job, "job.sh").returncode == 3)
    done = user.attempt("apply", job, "job.sh", "--write")
    assert (done.returncode, done.stdout) == (3, "")
    assert f"job {job}: there is nothing to judge yet" in done.stderr
    assert (user.folder / "job.sh").read_text() == SCRIPT


def test_unknown_job_is_refused(user: User) -> None:
    (user.folder / "job.sh").write_text(SCRIPT)
    done = user.attempt("apply", "99999999", "job.sh", "--write")
    assert (done.returncode, done.stdout) == (2, "")
    assert "sacct knows no such job of yours" in done.stderr
