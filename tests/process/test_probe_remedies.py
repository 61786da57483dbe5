"""Remedies that the probe applies to a program, and what it notes of each."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from hpcncf.job.spec import Remedies
from hpcncf.probe.launch import observed
from hpcncf.probe.read import read_profiles

PROGRAM = """
import json, torch
torch.manual_seed(0)
torch.set_num_threads(2)
class Own(torch.optim.SGD):
    pass
class Stream(torch.utils.data.IterableDataset):
    def __iter__(self):
        return iter(range(4))
data = torch.utils.data.TensorDataset(torch.arange(60), torch.randn(60))
model = torch.nn.Sequential(torch.nn.Embedding(50, 4), torch.nn.Linear(4, 1))
sparse = torch.nn.Embedding(50, 4, sparse=True)
adam = torch.optim.Adam(model.parameters(), lr=0.1)
own = Own(sparse.parameters(), lr=0.1)
sgd = torch.optim.SGD(sparse.parameters(), lr=0.1)
chosen = torch.optim.Adagrad(model.parameters(), foreach=False)
loader = torch.utils.data.DataLoader(data, 10, shuffle=True)
stream = list(torch.utils.data.DataLoader(Stream(), batch_size=None))
losses = []
for epoch in range(3):
    for x, y in loader:
        loss = (model(x % 50).squeeze(1) - y).square().mean() + sparse(x % 50).sum()
        for each in (adam, sgd):
            each.zero_grad()
        loss.backward()
        for each in (adam, sgd):
            each.step()
        losses.append(loss.item())
print(json.dumps({
    "losses": losses, "threads": torch.get_num_threads(), "workers": loader.num_workers,
    "stream": len(stream),
    "fused": [each.param_groups[0].get("fused") for each in (adam, own, sgd)],
}))
"""


def test_remedies_are_applied_where_they_can_be_and_the_losses_stay(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    outputs = []
    for text in ("", "threads=1,workers=2,persistent_workers,pin_memory,fused,omp=passive"):
        folder = tmp_path / f"seen{len(text)}"
        folder.mkdir()
        done = subprocess.run(
            [sys.executable, "train.py"],
            cwd=tmp_path,
            env=observed(os.environ, folder, Remedies.parse(text)),
            capture_output=True,
            text=True,
        )
        assert (done.returncode, done.stderr) == (0, "")
        outputs.append(json.loads(done.stdout))
    bare, changed = outputs
    assert (bare["threads"], bare["workers"], bare["stream"]) == (2, 0, 4)
    assert (changed["threads"], changed["workers"], changed["stream"]) == (1, 2, 4)
    assert changed["fused"] == [True, None, None]
    # The order of an epoch with workers that stay is the one that it would have been.
    for one, other in zip(bare["losses"], changed["losses"], strict=True):
        assert abs(one - other) < 1e-4
    (seen,), problems = read_profiles(folder)
    assert (problems, seen.problems) == ([], [])
    applied = {each.remedy: each.to for each in seen.remedies if each.applied}
    refused = {each.remedy: each.to for each in seen.remedies if not each.applied}
    assert set(applied) >= {"omp=passive", "threads=1", "fused", "workers=2", "persistent_workers"}
    assert applied["workers=2"] == "DataLoader of TensorDataset, batch 10 at train.py:17"
    assert "IterableDataset" in refused["workers=2"]
    assert "pin_memory" in refused
    of_fused = {each.to.split()[0].rstrip(":") for each in seen.remedies if each.remedy == "fused"}
    assert of_fused == {"Adam", "SGD", "Adagrad"}
    bare_record, _ = read_profiles(tmp_path / "seen0")
    assert all(each.remedies == [] for each in bare_record)
    assert (seen.fused, any(each.fused for each in bare_record)) == (True, False)


def test_the_summary_and_the_record_have_what_was_not_applied(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "hpcncf", "run", "--results", str(tmp_path / "r")]
    done = subprocess.run(
        [*words, "--with", "threads=1,fused", "--", sys.executable, "-c", "1"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0
    assert "fused: NOT applied: no stock optimizer was made" in done.stderr
    (record,) = (tmp_path / "r").glob("runs/*/attempt-1/rank-0.json")
    rank = json.loads(record.read_text())
    assert rank["run"]["remedies"]["threads"] == 1
    assert rank["run"]["varied"]["remedies.fused"] is True
