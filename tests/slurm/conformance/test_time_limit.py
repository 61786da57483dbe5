"""The limit of a job's time."""

from __future__ import annotations

from slurm.conformance.conftest import Slurm, wait


def test_the_time_limit_warns_and_then_ends_the_job(slurm: Slurm) -> None:
    """Slurm looks at the time every 30 s: it warns up to 30 s early, and ends the job a little
    late. Asked to warn 10 s before, it does not before the task has had 20 s to listen."""
    task = "trap 'echo USR2' USR2; echo began; while :; do sleep 0.1; done"
    script = f'srun sh -c "{task}"; sleep 5; echo after'
    job = slurm.submit(script, "--time=1", "--signal=USR2@10")
    wait(lambda: "USR2" in slurm.said(job), lambda: slurm.said(job))
    rows = [f"{job}|TIMEOUT|0:0", f"{job}.batch|CANCELLED|0:15"]
    wait(lambda: slurm.accounted(job)[:2] == rows, lambda: slurm.accounted(job))
    # First it is completing, and some minutes after its end forgotten.
    wait(lambda: slurm.queued(job, "%T") in (["TIMEOUT"], []), lambda: slurm.queued(job))
    assert slurm.said(job)[:2] == ["began", "USR2"]
    assert "after" not in slurm.said(job)
