"""The limit of a job's time; the last module, so that the others' cases run while it passes."""

from __future__ import annotations

from slurm.conformance.conftest import Slurm, wait


def test_the_time_limit_warns_and_then_ends_the_job(slurm: Slurm, limited: str) -> None:
    """Slurm looks at the time every 30 s: it warns early, and ends the job a little late."""
    wait(lambda: "USR2" in slurm.said(limited), lambda: slurm.said(limited))
    rows = [f"{limited}|TIMEOUT|0:0", f"{limited}.batch|CANCELLED|0:15"]
    wait(lambda: slurm.accounted(limited)[:2] == rows, lambda: slurm.accounted(limited))
    # First it is completing, and some minutes after its end forgotten.
    wait(lambda: slurm.queued(limited, "%T") in (["TIMEOUT"], []), lambda: slurm.queued(limited))
    assert slurm.said(limited)[:2] == ["began", "USR2"]
    assert "after" not in slurm.said(limited)
