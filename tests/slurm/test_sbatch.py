"""`hpcncf sbatch` on a real Slurm: the user's own script, and the page of its job."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from slurm.conftest import User, eventually

pytestmark = pytest.mark.slurm

PROGRAM = """\
import sys, time
import torch
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.Adam(model.parameters())
for step in range(int(sys.argv[1])):
    optimizer.zero_grad()
    model(torch.randn(256, 64)).sum().backward()
    optimizer.step()
    time.sleep(0.01)
print("trained", sys.argv[2:])
"""
SCRIPT = f"""\
#!/bin/bash
#SBATCH --partition=cpu --mem=700
#SBATCH --output=%x-%A.log

echo "script $0 got $*" in $(pwd)
{sys.executable} train.py 200 "$@"
echo "code $?"
exit 3
"""


def submits(user: User, *words: str | Path, script: str = SCRIPT) -> str:
    """The job's id, after it has ended."""
    (user.folder / "train.py").write_text(PROGRAM)
    (user.folder / "job.sh").write_text(script)
    printed = user.types("sbatch", *words)
    job = re.search(r"\d+", printed)
    assert job, printed
    user.is_through()
    return job[0]


def log(user: User, name: str) -> str:
    path = user.folder / name
    eventually(path.exists)
    return path.read_text()


def test_page_ends_the_log_and_diagnose_prints_it_again(user: User) -> None:
    job = submits(user, "job.sh", "a b", "c")
    text = log(user, f"job.sh-{job}.log")
    assert f"got a b c in {user.folder}" in text
    assert "trained ['a b', 'c']\ncode 0\n" in text
    page = text.partition("code 0\n")[2]
    assert "exit       3" in page
    assert "cores      1 allocated" in page
    assert page.startswith("\nhpcncf run: job.sh\n")
    assert page.rstrip().splitlines()[-1].startswith("record: ")
    again = user.types("diagnose", job)
    assert "exit       3" in again
    (found,) = json.loads(user.types("diagnose", job, "--json"))["jobs"]
    assert (found["job"], found["state"]) == (job, "failed")
    (profile,) = found["ranks"][0]["program"]
    assert profile["steps"] in (199, 200)
    explained = json.loads(user.types("explain", job, "--json"))["jobs"][0]["fields"]
    assert (explained["id"], explained["state"]) == (job, "FAILED")
    state = user.shell("sacct", "-nXj", job, "-o", "State,ExitCode").stdout.split()
    assert state == ["FAILED", "3:0"]


@pytest.mark.parametrize(
    "words",
    [
        ["--parsable", "--export=NONE", "-J", "named", "job.sh"],
        ["--wrap", f"{sys.executable} train.py 5 x"],
        ["--wait", "--array=1-2", "job.sh"],
    ],
)
def test_options_are_those_of_sbatch(user: User, words: list[str]) -> None:
    fails = words[0] == "--wait"
    (user.folder / "train.py").write_text(PROGRAM)
    (user.folder / "job.sh").write_text(SCRIPT.replace("200", "5"))
    done = user.attempt("sbatch", "-p", "cpu", "--mem=700", *words)
    assert done.returncode == (3 if fails else 0)
    job = re.search(r"\d+", done.stdout)
    assert job
    if words[0] == "--parsable":
        assert done.stdout == f"{job[0]}\n"
    user.is_through()
    name = user.shell("sacct", "-nXPj", job[0], "-o", "JobName").stdout.split()
    assert set(name) == {{"--parsable": "named", "--wrap": "wrap"}.get(words[0], "job.sh")}
    found = json.loads(user.types("diagnose", job[0], "--json"))["jobs"]
    assert len(found) == (2 if fails else 1)


def test_page_ends_the_log_of_a_cancelled_job(user: User) -> None:
    (user.folder / "job.sh").write_text(
        "#!/bin/bash\n#SBATCH -p cpu --mem=300 --output=cancelled.log\necho begun\nsleep 500\n"
    )
    job = re.search(r"\d+", user.types("sbatch", "job.sh"))
    assert job
    path = user.folder / "cancelled.log"
    eventually(lambda: path.exists() and "begun" in path.read_text())
    assert user.attempt("diagnose", job[0]).returncode == 3
    assert "RUNNING" in user.types("explain", job[0])
    user.shell("scancel", job[0])
    user.is_through()
    eventually(lambda: "record: " in path.read_text())
    assert user.shell("sacct", "-nXj", job[0], "-o", "State").stdout.startswith("CANCELLED")
    (found,) = json.loads(user.types("diagnose", job[0], "--json"))["jobs"]
    assert found["state"] in ("stopped", "failed")


def test_script_on_standard_input_and_refusals(user: User) -> None:
    (user.folder / "train.py").write_text(PROGRAM)
    hpcncf = " ".join(map(str, user.hpcncf))
    done = user.shell("bash", "-c", f"printf '#!/bin/sh\\necho in\\n' | {hpcncf} sbatch -p cpu")
    assert re.fullmatch(r"Submitted batch job \d+\n", done.stdout)
    user.is_through()
    (user.folder / "crlf.sh").write_bytes(b"#!/bin/sh\r\necho\r\n")
    plain, ours = (
        user.shell("sbatch", "crlf.sh"),
        user.attempt("sbatch", "crlf.sh"),
    )
    assert (ours.returncode, ours.stderr) == (plain.returncode, plain.stderr)
    assert user.attempt("sbatch", ".").returncode == 2
    assert user.attempt("diagnose", "999999").returncode == 2
