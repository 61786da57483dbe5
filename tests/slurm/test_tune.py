"""`hpcncf tune -- python train.py` with trials as job arrays of a real Slurm."""

from __future__ import annotations

import json
import sys

import pytest

from slurm.conftest import User

pytestmark = pytest.mark.slurm

PROGRAM = """\
import time, torch
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.Adam(model.parameters())
for step in range(10**6):
    loss = model(torch.randn(16, 8)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    time.sleep(0.002)
"""


def test_a_program_is_tuned_by_jobs_with_the_cores_of_each_trial(user: User) -> None:
    (user.folder / "train.py").write_text(PROGRAM)
    asked = ("--site", "site.yaml", "--cores", "1", "--mem-gb", "1", "--budget", "0.1", "--json")
    found = json.loads(
        user.types("tune", "--cluster", "slurm", *asked, "--", sys.executable, "train.py")
    )
    assert {each["with"] for each in found["trials"]} >= {"", "fused"}
    assert all(each["left_out"] is None for each in found["trials"])
    assert all(0.002 < each["step_s"] < 0.5 for each in found["trials"])
    assert found["best"]["cores"] == 1
    assert {record["launched_by"] for record in user.records("rank-0.json")} == {"slurm"}


def test_a_job_step_tunes_itself_for_a_share_of_its_time_limit(user: User) -> None:
    (user.folder / "train.py").write_text(PROGRAM.replace("10**6", "900") + "print('trained')\n")
    step = ("srun", "--partition=cpu", "--ntasks=1", "--mem=900", "--time=20")
    run = (*user.hpcncf, "run", "--auto", "--json", "auto.json", "--", sys.executable, "train.py")
    done = user.shell(*step, *run)
    assert (done.returncode, done.stdout) == (0, "trained\n"), done.stderr
    assert "trials for at most 36 s (3 % of the time limit of 20:00 min)" in done.stderr
    found = json.loads((user.folder / "auto.json").read_text())["auto"]
    assert found["trials"] >= 1, found
    assert found["with"] in ("", "fused"), found
    assert found["tried"], found
    assert found["seconds"] < 45
