"""What Slurm really does with the mistakes that `hpcncf lint` finds in batch scripts."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from hpcncf.lint.batch_script import check_batch_script
from slurm.conftest import User, eventually

pytestmark = pytest.mark.slurm
BASE = "#SBATCH --partition=cpu\n#SBATCH --time=2\n"
HEAD = f"#!/bin/bash\n{BASE}"
PYTHON = "python train.py\n"


def submit(user: User, text: str, *options: str) -> subprocess.CompletedProcess[str]:
    script = user.folder / "job.sh"
    script.write_bytes(text.encode())
    return user.shell("sbatch", "--parsable", *options, script)


def rules(text: str) -> set[str]:
    return {each.rule for each in check_batch_script(text)}


@pytest.mark.parametrize(
    ("rule", "text", "said"),
    [
        ("dos-line-ends", (HEAD + PYTHON).replace("\n", "\r\n"), "DOS line breaks"),
        ("byte-order-mark", f"\ufeff{HEAD}{PYTHON}", "does not look like a batch script"),
        ("no-shebang", f"\n{HEAD}{PYTHON}", "does not look like a batch script"),
        ("null-character", f"{HEAD}{PYTHON}\0", "NULL character"),
        ("stray-word", f"{HEAD}#SBATCH --job-name=Big model\n", "Invalid directive found"),
        ("stray-word", f"{HEAD}#SBATCH --array=0-3 %2\n", "Invalid directive found"),
        ("wrong-dash", f"{HEAD}#SBATCH –-cpus-per-task=2\n", "Invalid directive found"),
        ("single-dash", f"{HEAD}#SBATCH -mem=64M\n", "Invalid --distribution"),
        ("equals-sign", f"{HEAD}#SBATCH -c=2\n", 'Invalid numeric value "=2"'),
        ("equals-sign", f"{HEAD}#SBATCH --mem = 64M\n", "Invalid --mem"),
        ("unknown-option", f"{HEAD}#SBATCH --cpu-per-task=2\n", "unrecognized option"),
        ("unknown-option", f"{HEAD}#SBATCH --walltime=1:00:00\n", "unrecognized option"),
        ("open-quote", f'{HEAD}#SBATCH --job-name="model\n', "Unmatched"),
        ("variable-in-directive", f"{HEAD}#SBATCH -c $N\n", 'Invalid numeric value "$N"'),
        ("time-format", "#!/bin/sh\n#SBATCH -p cpu --time=24h\n", "Invalid --time"),
        ("memory-format", f"{HEAD}#SBATCH --mem=1.5G\n", "Invalid --mem"),
        ("array-syntax", f"{HEAD}#SBATCH --array=0..3\n", "Invalid job array"),
        ("array-too-large", f"{HEAD}#SBATCH --array=1-1001\n", "Invalid job array"),
        ("exclusive-options", f"{HEAD}#SBATCH --mem=9M --mem-per-cpu=9M\n", "mutually exclusive"),
        (
            "exclusive-options",
            f"{HEAD}#SBATCH --gpus=1 --cpus-per-gpu=1 -c 1\n",
            "mutually exclusive",
        ),
    ],
)
def test_sbatch_refuses(rule: str, text: str, said: str, user: User) -> None:
    done = submit(user, text, "--hold")
    assert done.returncode != 0
    assert said in done.stderr
    assert rule in rules(text)


def test_deprecated_tasks_per_node_is_taken(user: User) -> None:
    text = f"{HEAD}#SBATCH --nodes=1 --tasks-per-node=2\nsrun hostname\n"
    assert submit(user, text, "--hold").returncode == 0
    assert rules(text) == set()


@pytest.mark.parametrize(
    ("rule", "text", "shown"),
    [
        ("after-command", f"{HEAD}date\n#SBATCH --cpus-per-task=2\n", "CPUs/Task=1"),
        (
            "commented-directive",
            f"{HEAD}##SBATCH --cpus-per-task=2\necho $SLURM_CPUS_PER_TASK\n",
            "CPUs/Task=1",
        ),
        ("directive-spelling", f"{HEAD}#sbatch --cpus-per-task=2\n", "CPUs/Task=1"),
        ("directive-spelling", f"{HEAD}  #SBATCH --cpus-per-task=2\n", "CPUs/Task=1"),
        (
            "continued-directive",
            f"{HEAD}#SBATCH --mem=64M \\\n --cpus-per-task=2\n",
            "CPUs/Task=1",
        ),
        ("memory-unit", f"{HEAD}#SBATCH --mem=16\n", "MinMemoryNode=16M"),
        ("option-twice", f"{HEAD}#SBATCH -t 3\n", "TimeLimit=00:03:00"),
        ("whole-node", f"{HEAD}#SBATCH -n 1 --mem=0\n{PYTHON}", "mem=4000M"),
        ("variable-in-directive", f"{HEAD}#SBATCH -o $HOME/x.log\n", "/$HOME/x.log"),
        ("variable-in-directive", f"{HEAD}#SBATCH -o fold-${{1}}.log\n", "/fold-${1}.log"),
        ("time-unit", "#!/bin/sh\n#SBATCH -p cpu --time=3:00  # 3 hours\n", "TimeLimit=00:03:00"),
        ("time-unit", "#!/bin/sh\n#SBATCH -p cpu --time=3  # hours\n", "TimeLimit=00:03:00"),
        ("tasks-contradict", f"{HEAD}#SBATCH -n 1 -N 1 --ntasks-per-node=2\n", "NumTasks=1"),
    ],
)
def test_scheduler_takes_something_else(rule: str, text: str, shown: str, user: User) -> None:
    done = submit(user, text, "--hold")
    assert done.returncode == 0, done.stderr
    assert shown in user.shell("scontrol", "show", "job", done.stdout.strip()).stdout
    assert rule in rules(text)


RUNS = [
    (
        "rank-expanded-early",
        "-N 2 --ntasks-per-node=1",
        "srun bash -c 'echo early '$SLURM_NODEID",
        "early 0\nearly 0\n",
    ),
    (
        "srun-in-loop",
        "-n 2 -N 1",
        "for i in 1; do srun echo copy & done; wait",
        "copy\ncopy\n",
    ),
    ("step-too-large", "-n 1", "srun -n 4 python x.py 2>&1", "More processors requested"),
    ("unset-variable", "-n 1", "date --date=@0$SLURM_CPUS_PER_TASK +%s", "0\n"),
    ("export-none", "-n 1 --export=NONE", "srun bash -c 'echo hi' 2>&1", "execve(): bash: No such"),
    ("conda-not-initialised", "-n 1", "conda activate ncf 2>&1; echo on", "command not found"),
    ("threads-of-node", "-n 2 -N 1", "export OMP_NUM_THREADS=$(nproc)\n"
     "srun bash -c 'echo $OMP_NUM_THREADS; python x.py' 2>/dev/null", "2\n2\n"),
    (
        "tasks-for-threads",
        "-n 2 -N 1",
        "python -c 'print(1)'; srun echo copy\npython train.py",
        "copy\ncopy\n",
    ),
]  # fmt: skip


def run(user: User, text: str) -> str:
    """What the job's log says at its end."""
    done = submit(user, text, "--wait")
    assert re.fullmatch(r"\d+\n", done.stdout), done.stderr
    (log,) = user.folder.glob("slurm-*.out")
    return log.read_text()


@pytest.mark.parametrize(("rule", "options", "command", "said"), RUNS, ids=[row[0] for row in RUNS])
def test_job_does_something_else(
    rule: str, options: str, command: str, said: str, user: User
) -> None:
    text = f"{HEAD}#SBATCH {options}\n{command}\n"
    assert said in run(user, text)
    if rule != "tasks-for-threads":  # srun beside it would be a launcher
        assert rule in rules(text.replace("echo copy", "python train.py"))


def test_background_process_ends_with_its_script(user: User) -> None:
    text = f"{HEAD}(sleep 3; touch done) &\n"
    run(user, text)
    assert not (user.folder / "done").exists()
    assert "no-wait" in rules(f"{HEAD}python train.py &\n")


def steps(options: str, srun: str) -> str:
    command = "bash -c 'date +%s; sleep 4'"
    return f"{HEAD}#SBATCH -n 2 -N 1 {options}\nfor i in 1 2; do {srun} {command} & done\nwait\n"


@pytest.mark.parametrize(
    ("options", "srun", "together"),
    [
        ("--mem-per-cpu=50M", "srun -n 1", False),
        ("--mem=100M", "srun -n 1 --exact", False),
        ("--mem-per-cpu=50M", "srun -n 1 --exact", True),
        ("--mem=100M", "srun -n 1 --exact --mem=50M", True),
    ],
)
def test_steps_wait_for_each_other(options: str, srun: str, together: bool, user: User) -> None:
    text = steps(options, srun)
    times = [int(line) for line in run(user, text).splitlines() if line.isdigit()]
    assert len(times) == 2
    assert (abs(times[0] - times[1]) < 3) == together
    assert ("steps-wait" in rules(text)) != together


def test_job_without_its_log_folder_fails(user: User) -> None:
    text = f"{HEAD}#SBATCH -o logs/x.log\nmkdir -p logs\ntouch reached\n"
    job = submit(user, text).stdout.strip()
    asked = ("sacct", "-X", "-n", "-P", "-j", job, "-o", "state,exitcode")
    eventually(lambda: "FAILED|0:53" in user.shell(*asked).stdout)
    assert not (user.folder / "reached").exists()
    assert "log-folder-too-late" in rules(text)


def test_array_writes_one_log(user: User) -> None:
    text = f"{HEAD}#SBATCH --array=0-2 -o one.log\necho $SLURM_ARRAY_TASK_ID\n"
    assert submit(user, text, "--wait").returncode == 0
    assert [path.name for path in user.folder.glob("*.log")] == ["one.log"]
    assert "array-one-log" in rules(text)


def test_only_task_of_a_node_has_all_cores_under_plain_srun(user: User) -> None:
    text = f"{HEAD}#SBATCH -n 1 -c 2\nsrun nproc\nsrun --cpu-bind=cores nproc\n"
    assert run(user, text).split() == ["2", "1"]
    assert rules(text.replace("nproc", "python train.py")) >= {"srun-without-cores"}
    plain = f"{HEAD}#SBATCH -n 1 -c 2\nsrun python train.py\n"
    assert "srun-without-cores" not in rules(plain)


def test_module_in_sh(user: User) -> None:
    if "dash" not in str(Path("/bin/sh").resolve()):
        pytest.skip("/bin/sh is not dash here")
    text = f"#!/bin/sh\n{BASE}module load x 2>&1\n"
    assert "not found" in run(user, text)
    assert "module-in-sh" in rules(text)
