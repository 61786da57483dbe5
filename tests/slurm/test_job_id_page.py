"""The commands of docs/job-id.md print what the page shows, on a real Slurm."""

from __future__ import annotations

import re

import pytest

from docs import run_job_id
from docs.run_tutorial import BLOCK
from slurm.conftest import User

pytestmark = [pytest.mark.slurm, pytest.mark.slow]


def outputs(page: str) -> dict[str, str]:
    return {found["command"]: found["output"] for found in BLOCK.finditer(page)}


def words(output: str) -> str:
    """The output without its figures and line ends."""
    return " ".join(re.sub(r"[\d.,:]+", "#", output).split())


def efficiency(mail: str) -> int:
    found = re.search(r"It had (\d+) cores, and its CPU efficiency was (\d+) %", mail)
    assert found, mail
    return int(found[2])


def test_the_outputs_of_the_page_are_printed_again(user: User) -> None:
    page = run_job_id.PAGE.read_text()
    variables = {"SLURM_CONF": str(user.cluster.folder / "etc/slurm.conf")}
    shown = outputs(page)
    printed = outputs(run_job_id.regenerated(page, user.folder, variables))
    assert list(printed) == list(shown)
    script, *jobs = shown
    assert printed[script] == shown[script]
    submit, mail, explain, observe, log, apply, _, last = jobs
    assert printed[submit] == shown[submit]
    assert printed[observe] == shown[observe]
    # What the page says in words, and how far its figures may differ on a busy machine.
    assert words(printed[explain]).startswith("sacct, job # COMPLETED what follows On average")
    for printed_or_shown in (printed, shown):
        assert efficiency(printed_or_shown[mail]) <= 60  # one thread on two cores
        text = " ".join(printed_or_shown[log].split())
        assert "cores 2 allocated, 2 usable" in text
        assert "train.py:35 __getitem__" in text
        assert "Cause 1 input is made on the CPU, one sample at a time" in text
    assert "-#SBATCH --cpus-per-task=2\n+#SBATCH --cpus-per-task=1\n" in shown[apply]
    assert efficiency(shown[last]) > 60
    if "other processes took" in printed[log]:  # by them the page says that it may be wrong
        assert "left as it is: cores: other processes took" in " ".join(printed[apply].split())
    else:
        assert "-#SBATCH --cpus-per-task=2\n+#SBATCH --cpus-per-task=1\n" in printed[apply]
        assert "It had 1 cores" in printed[last]
        assert efficiency(printed[last]) > efficiency(printed[mail])
