"""The commands of docs/job-id.md print what the page shows, on a real Slurm."""

from __future__ import annotations

import re

import pytest

from docs import run_job_id
from docs.run_tutorial import BLOCK
from slurm.conftest import User

pytestmark = [pytest.mark.slurm, pytest.mark.slow]


def outputs(page: str) -> list[tuple[str, str]]:
    return [(found["command"], found["output"]) for found in BLOCK.finditer(page)]


def efficiency(mail: str) -> int:
    found = re.search(r"It had (\d+) cores, and its CPU efficiency was (\d+) %", mail)
    assert found, mail
    return int(found[2])


def test_the_outputs_of_the_page_are_printed_again(user: User) -> None:
    page = run_job_id.PAGE.read_text()
    variables = {"SLURM_CONF": str(user.cluster.folder / "etc/slurm.conf")}
    shown = outputs(page)
    printed = outputs(run_job_id.regenerated(page, user.folder, variables))
    compare(shown, printed)


def compare(shown: list[tuple[str, str]], printed: list[tuple[str, str]]) -> None:
    """Hold what was printed against the page, as far as a busy machine may differ."""
    assert [command for command, _ in printed] == [command for command, _ in shown]
    assert [printed[at] for at in (0, 1, 4, 7)] == [shown[at] for at in (0, 1, 4, 7)]
    for ran in (shown, printed):
        _, _, mail, explain, _, log, apply, _, last = (output for _, output in ran)
        assert efficiency(mail) <= 60  # one thread on two cores
        assert "job 123456, COMPLETED\n  what follows\n    On average 0." in explain
        text = " ".join(log.split())
        assert "cores 2 allocated, 2 usable" in text
        assert "train.py:35 __getitem__" in text
        assert "Cause 1 input is made on the CPU, one sample at a time" in text
        if ran is printed and "other processes took" in log:  # so it says that it may be wrong
            assert "left as it is: cores: other processes took" in apply
        else:
            assert "-#SBATCH --cpus-per-task=2\n+#SBATCH --cpus-per-task=1\n" in apply
            assert "It had 1 cores" in last
            assert efficiency(last) > efficiency(mail)
