"""`hpcncf attach JOBID` with commands of Slurm that a test made; tests/slurm has the real ones."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpcncf.attach import inside
from hpcncf.attach.job import RunningJob, archive, command
from hpcncf.attach.node import pack, unpack
from hpcncf.cli import main

pytestmark = pytest.mark.alone

ROOT = Path(__file__).parents[2]
SPIN = "while True: sum(range(1000))"
OWNER = f"me({os.geteuid()})"
RUNNING = (
    "JobId={id} JobName=train {more} UserId={owner} JobState={state} Reason=None "
    "NodeList=n[1-2] NumNodes=2 JOB_GRES=(null) Nodes=n[1-2] CPU_IDs=0-1 Mem=300 GRES= Command=a\n"
)
# Starts the step's command once for each node, as srun does, but here.
SRUN = """\
#!/bin/sh
while [ "$1" != /bin/sh ]; do echo "$1" >> {folder}/options; shift; done
cat > {folder}/modules
for node in n1 n2; do
    SLURM_JOB_ID=7 SLURM_STEP_ID=3 SLURMD_NODENAME=$node "$@" < {folder}/modules || exit
done
"""


def record(**changes: str) -> str:
    given = {"id": "7", "more": "", "owner": OWNER, "state": "RUNNING"} | changes
    return RUNNING.format(**given)


def answers(folder: Path, name: str, script: str) -> None:
    (folder / name).write_text(script)
    (folder / name).chmod(0o755)


def knows(folder: Path, text: str, error: str = "") -> None:
    """Have scontrol print the text, or say the error."""
    (folder / "scontrol.says").write_text(text)
    said = f'echo "{error}" >&2; exit 1' if error else f"cat {folder}/scontrol.says"
    answers(folder, "scontrol", f"#!/bin/sh\n{said}\n")


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    for name in ("squeue", "sacct"):
        answers(tmp_path, name, "#!/bin/sh\n")
    knows(tmp_path, record())
    return tmp_path


@pytest.fixture
def job() -> Iterator[subprocess.Popen[bytes]]:
    """A process whose environment says that it is of job 7."""
    variables = {**os.environ, "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0"}
    with subprocess.Popen([sys.executable, "-c", SPIN], env=variables) as process:
        yield process
        process.kill()


def test_job_is_watched_on_each_of_its_nodes(
    slurm: Path, job: subprocess.Popen[bytes], capsys: pytest.CaptureFixture[str]
) -> None:
    answers(slurm, "srun", SRUN.format(folder=slurm))
    assert main(["attach", "--job", "7", "--seconds", "1", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [node["node"] for node in found["nodes"]] == ["n1", "n2"]
    for node in found["nodes"]:
        assert [each["pid"] for each in node["processes"]] == [job.pid]
        assert node["rank"]["cores"]["allocated"] == 2
        assert node["rank"]["slurm_job_id"] == "7"
    options = (slurm / "options").read_text().split()
    assert {"--jobid=7", "--overlap", "--nodes=2", "--ntasks-per-node=1"} <= set(options)
    assert job.poll() is None


def test_node_without_a_process_of_the_job_is_named(
    slurm: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    answers(slurm, "srun", SRUN.format(folder=slurm))
    assert main(["attach", "--job", "7", "--seconds", "1"]) == 1
    said = capsys.readouterr().err
    assert said.startswith("hpcncf: attach: job 7: node n1: no process to watch on ")


def test_what_runs_on_the_nodes_needs_nothing_of_hpcncf(tmp_path: Path) -> None:
    words = command(RunningJob("7", "7", "train", {"n1": 2}), 1.0)
    inside = words[words.index("/bin/sh") :]
    inside[inside.index(sys.executable)] = "/nowhere/python3"  # so that it takes PATH's
    (tmp_path / "python3").write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    (tmp_path / "python3").chmod(0o755)
    done = subprocess.run(
        inside,
        input=archive(),
        capture_output=True,
        cwd="/",
        env={"PATH": f"{tmp_path}:/usr/bin:/bin", "SLURMD_NODENAME": "n1"},
        check=True,
    )
    assert "no process to watch" in unpack(done.stdout.decode())["n1"]["error"]


def test_all_modules_of_the_probe_are_passed_on() -> None:
    there = (ROOT / "hpcncf" / inside.INSIDE).glob("*.py")
    assert sorted(inside.MODULES) == sorted(path.stem for path in there)


def test_figures_of_several_nodes_are_told_apart_whatever_the_order() -> None:
    raws = {f"n{number}": {"text": "é" * 3000 + str(number)} for number in range(3)}
    lines = "".join(pack(raw, node) for node, raw in raws.items()).splitlines()
    assert unpack("\n".join([*reversed(lines), "a site's prolog"])) == raws
    assert unpack("\n".join(lines[1:])).keys() == {"n1", "n2"}


ARRAY = "".join(
    record(id=str(8 + n), more=f"ArrayJobId=7 ArrayTaskId={n}", state=state)
    for n, state in ((1, "RUNNING"), (2, "RUNNING"), (3, "PENDING"))
)
HETERO = "".join(record(id=str(7 + n), more=f"HetJobId=7 HetJobOffset={n}") for n in (0, 1))


@pytest.mark.parametrize(
    ("given", "text", "said"),
    [
        ("7", record(state="PENDING"), "job 7 is pending (None): it can be watched once it runs"),
        ("7", record(state="COMPLETED"), "job 7 has ended (COMPLETED); `hpcncf explain 7` reads"),
        ("7", record(state="SUSPENDED"), "job 7 is suspended"),
        ("7", record(owner="ada(4242)"), "job 7 belongs to ada; Slurm lets only its owner"),
        ("7", ARRAY, "job 7 is an array; name the part to watch, of those that run: 7_1, 7_2"),
        ("7_3", ARRAY, "job 7_3 is pending"),
        ("7", HETERO, "7 is a heterogeneous job; name the part to watch, of those that run: 7+0"),
    ],
)
def test_job_that_cannot_be_watched_is_one_sentence(
    given: str, text: str, said: str, slurm: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    knows(slurm, text)
    assert main(["attach", "--job", given]) == 2
    captured = capsys.readouterr()
    assert said in captured.err
    assert captured.out == ""
    assert captured.err.count("\n") == 1


def test_unknown_id_is_neither_job_nor_process(
    slurm: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    knows(slurm, "", "slurm_load_jobs error: Invalid job id specified")
    assert main(["attach", "4194303"]) == 2
    said = "Slurm knows no such job; `squeue --me` lists yours; nor is there a process 4194303 here"
    assert said in capsys.readouterr().err
    assert main(["attach", "4194303_1"]) == 2
    assert "job 4194303_1: Slurm knows no such job" in capsys.readouterr().err


def test_number_of_both_a_job_and_a_process_has_to_be_told_apart(
    slurm: Path, job: subprocess.Popen[bytes], capsys: pytest.CaptureFixture[str]
) -> None:
    knows(slurm, record(id=str(job.pid)))
    assert main(["attach", str(job.pid)]) == 2
    assert f"--job {job.pid}, or --pid {job.pid}" in capsys.readouterr().err
    assert main(["attach", str(job.pid), "--pid", "--seconds", "1"]) == 0
    assert capsys.readouterr().out.startswith(f"hpcncf attach: process {job.pid}")


def test_silent_controller_is_named(slurm: Path, capsys: pytest.CaptureFixture[str]) -> None:
    knows(slurm, "", "slurm_load_jobs error: Unable to contact slurm controller")
    assert main(["attach", "7_1"]) == 2
    assert (
        "Slurm cannot be asked: scontrol: slurm_load_jobs error: Unable" in capsys.readouterr().err
    )


def test_without_slurm_it_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["attach", "7_1"]) == 2
    assert "job 7_1: no Slurm on this machine" in capsys.readouterr().err
    assert main(["attach", "4194303"]) == 2
    assert "no Slurm here either" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ("srun: unrecognized option '--overlap'", "this Slurm's srun has no --overlap"),
        (
            "srun: error: Unable to create step for job 7: Job/step already completing",
            "srun could not start a step in it: Unable to create step for job 7",
        ),
        ("hpcncf-python: /usr/bin/python3 3.6", "its nodes have only Python 3.6"),
    ],
)
def test_reason_of_srun_is_passed_on(
    said: str, reason: str, slurm: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    answers(slurm, "srun", f'#!/bin/sh\ncat > /dev/null\necho "{said}" >&2\nexit 1\n')
    assert main(["attach", "--job", "7", "--seconds", "1"]) == 1
    assert reason in capsys.readouterr().err
