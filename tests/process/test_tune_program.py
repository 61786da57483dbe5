"""`hpcncf tune -- python train.py` on this machine, from the first trial to the advice."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from test_json_output import check

from hpcncf import cli
from hpcncf.monitor.cgroup import usable
from hpcncf.probe.launch import observed
from hpcncf.records.schema import read_record, write_record
from hpcncf.tune.program import build_tuning
from hpcncf.tune.tuning import Saved, changed_files

PROGRAM = """
import time, torch
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.Adam(model.parameters())
for step in range(10**6):
    loss = model(torch.randn(16, 8)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    time.sleep(0.01 if optimizer.defaults["fused"] else 0.02)
print("never printed")
"""


@pytest.mark.slow
def test_a_program_is_tuned_within_its_budget(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    words = [sys.executable, "-m", "hpcncf", "tune", "--cluster", "local", "--budget", "0.1"]
    command = ["--", sys.executable, "train.py"]
    done = subprocess.run(
        [*words, "--cores", "1", "--json", *command], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    found = check("tune", done.stdout)
    setups = [each["with"] for each in found["trials"]]
    assert set(setups) >= {"", "fused"}
    # Seeded by the trial, the program has the same losses in all; fused ones round differently.
    assert all(each["left_out"] is None for each in found["trials"])
    assert all(0.002 < each["step_s"] < 0.1 for each in found["trials"])
    step_s = {each["with"]: each["step_s"] for each in found["trials"]}
    assert step_s["fused"] < step_s[""]
    assert found["best"]["cores"] == 1
    assert found["spent_core_hours"] <= 0.1
    # No loss is in a record, and no trial ran to the program's end.
    folder = tmp_path / "results/train-tune"
    trials = [json.loads(each.read_text()) for each in folder.glob("runs/*/attempt-*/trial.json")]
    assert len(trials) == len(setups)
    assert all(len(each["losses"]) == 10 for each in trials)
    for record in folder.glob("runs/*/attempt-*/rank-0.json"):
        assert "losses" not in record.read_text()
    assert "never printed" not in done.stderr
    # The trials are there: nothing is run again, and the advice is the same.
    again = subprocess.run(
        [*words, "--cores", "1", *command], cwd=tmp_path, capture_output=True, text=True
    )
    assert again.returncode == 0
    assert "#SBATCH --cpus-per-task=1" in again.stdout
    assert again.stderr == ""


def test_a_trial_of_a_program_with_workers_ends_well(tmp_path: Path) -> None:
    """Their end is no error of the program's, whose own handler of SIGCHLD is torch's."""
    (tmp_path / "train.py").write_text(
        """
import time, torch
from torch.utils.data import DataLoader
if __name__ == "__main__":
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    rows = torch.utils.data.TensorDataset(torch.ones(10**6, 8))
    for (x,) in DataLoader(rows, 64, num_workers=2):
        model(x).square().mean().backward()
        optimizer.step()
        time.sleep(0.02)
"""
    )
    environment = observed(dict(os.environ), tmp_path, trial=tmp_path / "trial.json")
    done = subprocess.run(
        [sys.executable, "train.py"], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads((tmp_path / "trial.json").read_text())["step_s"] > 0


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["jobs/a.yaml"], "--budget"),
        (["--cluster", "local", "--cores", "9999", "--", "python", "a.py"], "--cores 9999"),
        (["-s", "a=b", "--cluster", "local", "--", "python", "a.py"], "job file"),
        (["--cluster", "local", "--", sys.executable, "nix.py"], "nix.py: no such file here"),
    ],
)
def test_a_tuning_that_cannot_be_is_refused(
    words: list[str], part: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["tune", *words]) == 2
    assert part in capsys.readouterr().err


def test_a_program_that_failed_is_tried_again_once_it_is_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    script = Path("train.py")
    script.write_text("raise SystemExit(3)")
    words = ["tune", "--cluster", "local", "--", sys.executable, "train.py"]
    assert cli.main(words) == 1
    out = capsys.readouterr().out
    assert "exit code: 3" in out
    assert "hpcncf retry results/train-tune --wait" in out
    tuning = build_tuning(words[4:], None, int(usable()), 0.5, "knee", "local", None, 8.0)
    assert changed_files(tuning) == []
    # A tuning of an earlier version, or of a script that was not there.
    saved = read_record(tuning.paths.tuning, Saved)
    write_record(tuning.paths.tuning, saved.model_copy(update={"files": {}}))
    assert changed_files(tuning) == ["train.py"]
    script.write_text("raise SystemExit(4)")
    assert cli.main(words) == 1
    assert "exit code: 4" in capsys.readouterr().out
