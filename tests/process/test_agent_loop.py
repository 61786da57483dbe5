"""A coding agent's loop on a slow program, by JSON and exit codes alone: see docs/for-agents.md."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest
from test_json_output import check

# Each sample sorts all items, for nothing.
SLOW: Final = """\
import json, os, pathlib
import torch

USERS, ITEMS = 2000, 8000
torch.manual_seed(0)


class Pairs(torch.utils.data.Dataset):
    def __init__(self):
        self.users = torch.randint(USERS, (4000,))
        self.items = torch.randint(ITEMS, (4000,))

    def __len__(self):
        return len(self.users)

    def __getitem__(self, row):
        known = sorted(set(range(ITEMS)))
        return self.users[row], self.items[row]


users, items = torch.nn.Embedding(USERS, 8), torch.nn.Embedding(ITEMS, 8)
optimizer = torch.optim.SGD([*users.parameters(), *items.parameters()], lr=0.1)
loader = torch.utils.data.DataLoader(Pairs(), batch_size=32)
for epoch in range(3):
    for user, item in loader:
        loss = ((users(user) * items(item)).sum(1) - 1).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
metrics = pathlib.Path(os.environ["HPCNCF_OUTPUT"], "metrics.json")
metrics.write_text(json.dumps({"loss": loss.item()}))
"""
REPEATS: Final = 3


def hpcncf(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "hpcncf", *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def measure(folder: Path, side: str) -> list[dict[str, Any]]:
    found = []
    for _ in range(REPEATS):
        words = ["run", "--quiet", "--results", f"results/{side}", "--json", f"{side}.json"]
        done = hpcncf(folder, *words, "--", sys.executable, "train.py")
        assert done.returncode == 0, done.stderr
        found.append(check("run", (folder / f"{side}.json").read_text()))
    return found


def compare(folder: Path, before: str, after: str, code: int) -> dict[str, Any]:
    words = ["compare", f"results/{before}", f"results/{after}", "--threshold", "0.05", "--json"]
    done = hpcncf(folder, *words)
    assert done.returncode == code, done.stdout
    return check("compare", done.stdout)


@pytest.mark.slow
@pytest.mark.alone
def test_a_slow_line_is_found_removed_and_proved_faster(tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text(SLOW)
    diagnosis = measure(tmp_path, "before")[0]["diagnosis"]
    assert diagnosis["verdict"] == "cause"
    causes = [diagnosis["primary"], *diagnosis["secondary"]]
    (cause,) = [each for each in causes if each["cause"] == "python_input"]
    assert "edit_line" in cause["remedy_codes"]
    assert cause["gain"]["factor"] > 1.2
    place = cause["places"][0]
    lines = Path(place["file"]).read_text().splitlines(keepends=True)
    assert lines[place["line"] - 1].strip() == place["source"]
    assert "sorted" in lines[place["line"] - 1]
    del lines[place["line"] - 1]
    Path(place["file"]).write_text("".join(lines))

    measure(tmp_path, "after")
    found = compare(tmp_path, "before", "after", 0)
    (pair,) = found["configurations"]
    assert (found["speed_of"], pair["speed"]["verdict"]) == ("instances_per_s", "faster")
    assert pair["speed"]["low"] > 1
    assert pair["a"]["loss"] == pytest.approx(pair["b"]["loss"], rel=1e-4)
    assert len(pair["a"]["runs"]) == len(pair["b"]["runs"]) == REPEATS
    back = compare(tmp_path, "after", "before", 4)
    assert back["failures"]
    (diagnosed, *_) = check(
        "diagnose", hpcncf(tmp_path, "diagnose", "results/before", "--json").stdout
    )["runs"]
    assert diagnosed["primary"] is not None
