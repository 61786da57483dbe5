"""Jobs of a killed submission that Slurm had accepted are neither lost nor sent twice."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from conftest import FakeSlurm

from hpcncf.errors import HpcncfError
from hpcncf.job import load
from hpcncf.job.plan import Plan
from hpcncf.job.spec import JobSpec
from hpcncf.launch.submit import submit
from hpcncf.paths import ResultPaths
from hpcncf.records.plan_file import read_plan, record_plan
from hpcncf.records.schema import read_record, write_record
from hpcncf.records.submissions import Submission, files, read_submissions, user

JobFile = Callable[[str], Path]
SWEEP = "grid: {resources.cpus_per_task: [1, 2], training.seed: [1, 2, 3]}\n"


@pytest.fixture
def killed(job_file: JobFile, fake_slurm: FakeSlurm) -> tuple[ResultPaths, JobSpec, Plan]:
    """A submission of two arrays of three, as killed between Slurm's second answer and its note."""
    path = job_file(SWEEP)
    job = load.load_job(path)
    paths = ResultPaths(path.parent / "results/tiny")
    plan = record_plan(paths, job, load.build_plan(job, path))
    submit(paths, job, plan, "slurm")
    (file,) = files(paths)
    whole = read_record(file, Submission)
    sending = [one.runs for one in whole.jobs[3:]]
    gone = {"submitter_pid": 2**22 - 1, "jobs": whole.jobs[:3], "sending": sending}
    write_record(file, whole.model_copy(update=gone))
    assert len(fake_slurm.submitted) == 2
    return paths, job, plan


def noted(paths: ResultPaths) -> list[int]:
    return [len(one.jobs) for one in read_submissions(paths).submissions]


def test_an_array_whose_tasks_could_not_start_is_cancelled_and_its_runs_sent_again(
    killed: tuple[ResultPaths, JobSpec, Plan], fake_slurm: FakeSlurm
) -> None:
    paths, job, plan = killed
    (submission,) = read_submissions(paths).submissions
    known = submission.jobs[0].id.split("_")[0]
    for pickle in paths.submitit(user()).glob("*_2_submitted.pkl"):
        if not pickle.name.startswith(f"{known}_"):
            pickle.unlink()
    launched = submit(paths, job, plan, "slurm")
    assert {run.id for run in launched.runs} == {run for runs in submission.sending for run in runs}
    assert len(fake_slurm.submitted) == 3
    assert any(call.startswith("scancel") for call in fake_slurm.calls)


def test_the_next_submission_records_the_jobs_of_a_killed_one_once_slurm_answers(
    killed: tuple[ResultPaths, JobSpec, Plan], fake_slurm: FakeSlurm
) -> None:
    paths, job, plan = killed
    assert noted(paths) == [3]
    fake_slurm.set(controller=False)
    with pytest.raises(HpcncfError, match="Submit again when Slurm answers"):
        submit(paths, job, plan, "slurm")
    fake_slurm.set(controller=True)
    launched = submit(paths, job, plan, "slurm")
    assert (len(launched.runs), len(fake_slurm.submitted), noted(paths)) == (0, 2, [6])


# Slurm takes the second array, and then the results' disk is full.
FILLING = """\
#!/bin/sh
{sbatch} "$@" || exit
echo >> {folder}/asked
[ $(wc -l < {folder}/asked) -ne 2 ] || dd if=/dev/zero of={disk}/hog bs=4k 2> /dev/null
exit 0
"""


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A small one of its own."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=24m", "small", str(folder)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("needs to mount a file system")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_what_slurm_had_when_the_disk_became_full_is_known_to_the_next_submission(
    job_file: JobFile, fake_slurm: FakeSlurm, disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = job_file(SWEEP)
    commands = disk.parent / "bin"
    commands.mkdir()
    of_it = {"sbatch": fake_slurm.bin / "sbatch", "folder": commands, "disk": disk}
    (commands / "sbatch").write_text(FILLING.format(**of_it))
    (commands / "sbatch").chmod(0o755)
    monkeypatch.setenv("PATH", f"{commands}{os.pathsep}{os.environ['PATH']}")
    submit = [sys.executable, "-m", "hpcncf", "submit", path.name, "--results", "disk/tiny"]

    full = subprocess.run(submit, cwd=path.parent, capture_output=True, text=True, check=False)
    assert (full.returncode, "No space left on device" in full.stderr) == (1, True), full.stderr
    assert "Traceback" not in full.stderr
    paths = ResultPaths(disk / "tiny")
    assert noted(paths) == [3]
    (disk / "hog").unlink()
    again = subprocess.run(submit, cwd=path.parent, capture_output=True, text=True, check=False)
    assert again.returncode == 0, again.stderr
    (first, *later) = read_submissions(paths).submissions
    sent = [run for one in (first, *later) for job in one.jobs for run in job.runs]
    assert sorted(sent) == sorted(run.id for run in read_plan(paths).runs)
    cancelled = sum(call.startswith("scancel") for call in fake_slurm.calls)
    assert len(fake_slurm.submitted) == 2 + cancelled, "nothing is sent twice"
