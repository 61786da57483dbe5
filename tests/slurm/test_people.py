"""Two people and one results folder, on a real Slurm: nothing corrupt, nothing twice."""

from __future__ import annotations

import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from slurm.conftest import User
from slurm.test_submit import JOB

pytestmark = pytest.mark.slurm

GRID = "grid: {training.lr: [0.001, 0.002]}\n"


def at_once(people: list[User], *words: str) -> list[str]:
    """What each is reported."""

    def types(one: User) -> subprocess.CompletedProcess[str]:
        return one.attempt(*words)

    with ThreadPoolExecutor(len(people)) as pool:
        done = list(pool.map(types, people))
    assert [each.returncode for each in done] == [0, 0], done
    return [each.stdout for each in done]


def test_two_people_submit_and_collect_at_once(people: list[User], tiny_data: Path) -> None:
    ada, ben = people
    data = shutil.copytree(tiny_data, ada.folder / "data")
    for path in (data, *data.rglob("*")):
        path.chmod(path.stat().st_mode | (0o055 if path.is_dir() else 0o044))
    (ada.folder / "job.yaml").write_text(JOB.format(data=data) + GRID)
    said = "".join(at_once(people, "submit", "job.yaml", "--cluster", "slurm", "--wait"))
    assert "2 runs submitted" in said
    assert "0 runs submitted" in said, "they were the other one's already"
    assert [(run["state"], run["attempt"]) for run in ben.runs()] == [("completed", 1)] * 2
    assert len({run["job_id"].split("_")[0] for run in ada.runs()}) == 1
    at_once(people, "collect", "results/tiny")
    table = ada.folder / "results/tiny/tables/runs.csv"
    assert len(table.read_text().splitlines()) == 3
