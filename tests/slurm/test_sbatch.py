"""`hpcncf sbatch` on a real Slurm: the user's own script, and the page of its job."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

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


SPIN = "import time\nwhile time.process_time() < 3: pass"


def submitted(user: User, *words: str | Path, script: str, name: str) -> str:
    """Submit this script by `hpcncf sbatch`; return the job's id."""
    (user.folder / name).write_text(script)
    job = re.search(r"\d+", user.types("sbatch", *words, name))
    assert job
    return job[0]


def diagnosed(user: User, job: str) -> list[dict[str, Any]]:
    jobs: list[dict[str, Any]] = json.loads(user.attempt("diagnose", job, "--json").stdout)["jobs"]
    return jobs


def test_python_under_srun_is_seen_on_every_node(user: User) -> None:
    (user.folder / "train.py").write_text(PROGRAM)
    header = "#!/bin/bash\n#SBATCH -p cpu -N2 --ntasks-per-node=1 --mem=900 --output=%x.log\n"
    step = f"srun {sys.executable} train.py 120\n"
    # Where no variable reaches the tasks, these two do; and hpcncf itself need not run there.
    script = f"{header}#SBATCH --export=NONE\n{step.replace('120', '500')}"
    bare = submitted(user, "--early=5", script=script, name="bare.sh")
    lines = user.types("sbatch", "--print-env")
    (user.folder / "own.sh").write_text(f"{header}{lines}{step}")
    own = re.search(r"\d+", user.shell("sbatch", "own.sh").stdout)
    assert own
    user.is_through()
    page = log(user, "bare.sh.log")
    assert "steps of" in page, page
    early = [line for line in page.splitlines() if line.startswith("hpcncf: ")]
    assert 3 <= len(early) <= 6, page
    assert "of 2 allocated cores used" in early[0]
    assert re.search(r"at this pace its time limit, in 9:\d\d min, comes at step", page)
    ((rank,),) = [each["ranks"] for each in diagnosed(user, bare)]
    assert len({each["node"] for each in rank["by_launcher"]}) == 2
    assert rank["cores"]["allocated"] == 2
    assert sum(each["cpu_s"] for each in rank["by_launcher"]) > 1
    assert rank["cpu"]["user_s"] + rank["cpu"]["system_s"] > 1
    ranks = diagnosed(user, own[0])[0]["ranks"]
    assert len({each["node"] for each in ranks}) == 2
    assert sum(len(each["program"]) for each in ranks) == 2
    assert "steps of" in user.types("diagnose", own[0])
    assert re.search("cores +2 allocated, 2 usable", user.types("diagnose", own[0]))


def test_jobs_of_every_kind_run_as_without_hpcncf(user: User) -> None:
    cpu = "#!/bin/bash\n#SBATCH -p cpu --mem=100 --output=%x.log\n"
    jobs = {
        "array": submitted(user, "--array=1-20", script=f"{cpu}exit 0\n", name="array.sh"),
        "het": submitted(
            user,
            script=f"{cpu}#SBATCH hetjob\n#SBATCH -p cpu --mem=100\n"
            'srun --het-group=0,1 sh -c "echo part"\n',
            name="het.sh",
        ),
        "deaf": submitted(
            user, script=f"{cpu}srun {sys.executable} -I -c '{SPIN}'\n", name="deaf.sh"
        ),
        "short": submitted(user, script=f"{cpu}sleep 2; echo slept\n", name="short.sh"),
        "again": submitted(
            user,
            "--requeue",
            script=f"{cpu}echo start $SLURM_RESTART_COUNT\n"
            "[ ${SLURM_RESTART_COUNT:-0} != 0 ] || sleep 300\n",
            name="again.sh",
        ),
        "modules": submitted(
            user,
            script=f"{cpu}module() {{ echo module $*; }}\nmodule purge\nmodule load python\n"
            "conda() { echo conda $*; }\nconda activate torch\nunset PYTHONPATH\n"
            f"{sys.executable} -c 'print(6 * 7)'\n",
            name="modules.sh",
        ),
    }
    folder = user.folder / "elsewhere"
    held = submitted(
        user, "--results", folder, "--hold", script=f"{cpu}echo ran; exit 4\n", name="held.sh"
    )
    folder.rename(user.folder / "away")
    folder.write_text("no folder: nothing can be written there")
    user.shell("scontrol", "release", held)
    begun = user.folder / "again.sh.log"
    eventually(lambda: begun.exists() and "start" in begun.read_text())
    eventually(lambda: "is running" in user.attempt("diagnose", jobs["again"]).stdout)
    user.shell("scontrol", "requeue", jobs["again"])
    user.is_through()
    found = {name: diagnosed(user, job) for name, job in jobs.items()}
    tasks = [f"{jobs['array']}_{task}" for task in range(1, 21)]
    assert [each["job"] for each in found["array"]] == tasks
    assert {each["state"] for each in found["array"]} == {"completed"}
    assert len(diagnosed(user, tasks[6])) == 1
    (het,) = found["het"]
    assert (het["job"], het["state"]) == (jobs["het"], "completed")
    assert log(user, "het.sh.log").count("part\n") == 2
    assert found["deaf"][0]["ranks"][0]["cores"]["used"] is None
    assert "hpcncf explain" in log(user, "deaf.sh.log")
    assert 2 <= found["short"][0]["ranks"][0]["elapsed_s"] < 20
    assert [each["state"] for each in found["again"]][-1] == "completed"
    assert len(found["again"]) == 2
    modules = log(user, "modules.sh.log")
    assert modules.startswith("module purge\nmodule load python\nconda activate torch\n42\n")
    states = user.shell("sacct", "-nXPj", held, "-o", "State,ExitCode").stdout.split()
    assert states == ["FAILED|4:0"]
    assert "ran\n" in log(user, "held.sh.log")
    assert "the command runs, and its record goes to" in log(user, "held.sh.log")


@pytest.mark.slow
def test_page_of_jobs_that_slurm_ends(user: User) -> None:
    """By its time limit; and where memory is limited, by its memory."""
    cpu = "#!/bin/bash\n#SBATCH -p cpu --mem=120 --output=%x.log\n"
    greedy = f'{sys.executable} -c "x = bytearray(900 << 20); import time; time.sleep(300)"\n'
    late = submitted(user, "--time=1", script=f"{cpu}sleep 300\n", name="late.sh")
    large = submitted(user, "--time=2", script=f"{cpu}{greedy}", name="large.sh")
    user.is_through()
    eventually(lambda: "record: " in log(user, "late.sh.log"))
    (found,) = diagnosed(user, late)
    assert found["state"] in ("stopped", "failed")
    assert user.shell("sacct", "-nXPj", late, "-o", "State").stdout.strip() == "TIMEOUT"
    state = user.shell("sacct", "-nXPj", large, "-o", "State").stdout.strip()
    assert state in ("OUT_OF_MEMORY", "TIMEOUT", "FAILED")
    assert len(diagnosed(user, large)) == 1
