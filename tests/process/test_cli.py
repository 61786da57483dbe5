"""Verbs as a user types them: what they print, what they touch, and their exit codes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import make_results
import pytest
from conftest import FakeSlurm
from make_results import plan_of

from hpcncf import cli
from hpcncf.cli.output import ID, table_layout
from hpcncf.errors import HpcncfError
from hpcncf.files import write_text
from hpcncf.job import load
from hpcncf.local import machine
from hpcncf.paths import ResultPaths
from hpcncf.records.claims import claim_attempt
from hpcncf.records.plan_file import record_plan
from hpcncf.records.schema import read_record, write_record
from hpcncf.records.submissions import Submission, SubmittedJob, begin, cancel, read_submissions
from tests import hostile

JobFile = Callable[[str], Path]
ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "90")
    return tmp_path


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Exit code, stdout and stderr of a command."""

    def run(*argv: str) -> tuple[int, str, str]:
        code = cli.main(list(argv))
        out = capsys.readouterr()
        return code, out.out, out.err

    return run


Said = Callable[..., tuple[int, str, str]]


def demo(here: Path) -> ResultPaths:
    """Results in ./results/demo, two of six runs complete."""
    made = make_results.demo(here / "made", repeats=1)
    make_results.complete(made, plan_of(made).runs[:2])
    (here / "results").mkdir()
    made.folder.rename(here / "results/demo")
    return ResultPaths(here / "results/demo")


def files(folder: Path) -> set[Path]:
    return set(folder.rglob("*"))


def test_without_a_verb_the_help_is_printed(said: Said, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = said()
    assert (code, err) == (0, "")
    with pytest.raises(SystemExit, match="0"):
        cli.main(["--help"])
    assert out == capsys.readouterr().out
    assert all(f"\n  {verb}" in out for verb in cli.VERBS)


def test_packages_of_another_python_are_left_to_the_users_program(here: Path) -> None:
    """As a module of a cluster puts them on PYTHONPATH."""
    for name in ("numpy", "pydantic", "psutil"):
        (here / f"theirs/{name}").mkdir(parents=True)
        (here / f"theirs/{name}/__init__.py").write_text("raise ImportError('another Python')")
    (here / "theirs/only_theirs.py").touch()
    done = subprocess.run(
        [sys.executable, "-P", "-m", "hpcncf", "run", "--", "python3", "-c", "import only_theirs"],
        env={**os.environ, "PYTHONPATH": str(here / "theirs")},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "cores" in done.stderr + done.stdout


def test_plan_touches_nothing(here: Path, job_file: JobFile, said: Said) -> None:
    job_file("grid: {resources.cpus_per_task: [1, 2]}\nrepeats: 3\n")
    before = files(here)
    code, out, _ = said("plan", "job.yaml")
    assert code == 0
    assert files(here) == before
    assert "6 runs, at most 0.30 core-hours" in out
    assert "cpus_per_task=2 repeat=1" in out
    assert out.count("3 tasks, submitit parameters") == 2
    assert out.count("  launcher: srun starts each rank\n") == 2
    assert "--cpus-per-task=2" in out
    assert max(len(line) for line in out.splitlines() if "slurm_" not in line) <= 90


def test_plan_prints_the_scripts_that_submit_sends(
    here: Path, job_file: JobFile, said: Said, fake_slurm: FakeSlurm
) -> None:
    fake_slurm.set(max_array_size=2)
    job_file("grid: {resources.cpus_per_task: [1, 2], training.seed: [1, 2, 3, 4, 5]}\n")
    job = ("job.yaml", "-s", "resources.runs_per_task=2")
    code, out, _ = said("plan", *job, "--sbatch")
    printed = [said("plan", *job, "--sbatch", str(number))[1] for number in range(1, 5)]
    assert code == 0
    assert not (here / "results").exists()
    assert all(script in out for script in printed)
    assert said("submit", *job, "--cluster", "slurm")[0] == 0
    assert fake_slurm.submitted == printed
    assert said("plan", *job, "--sbatch", "5")[0] == 2


def test_plan_and_submit_say_that_ranks_on_one_gpu_exchange_over_gloo(
    job_file: JobFile, said: Said, fake_slurm: FakeSlurm
) -> None:
    job_file("")
    sharing = (
        "-s",
        "resources.tasks_per_node=2",
        "-s",
        "resources.gpus_per_node=1",
        "-s",
        "site=gpu",
    )
    seen = "2 ranks share 1 GPU on each node, and nccl refuses two ranks on one GPU"
    for verb in ("plan", "submit"):
        code, _, err = said(verb, "job.yaml", *sharing)
        assert code == 0
        assert seen in err
    assert "nccl" not in said("plan", "job.yaml", *sharing[2:])[2]
    assert len(fake_slurm.submitted) == 1


def test_plan_says_which_variables_go_before_the_script(
    job_file: JobFile, said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_file("")
    monkeypatch.setenv("SBATCH_PARTITION", "other")
    code, out, err = said("plan", "job.yaml", "--sbatch")
    assert (code, out[:11]) == (0, "#!/bin/bash")
    assert "before #SBATCH lines: SBATCH_PARTITION" in err


def test_plan_prints_plain_scripts_of_what_is_left(
    here: Path, job_file: JobFile, said: Said
) -> None:
    job_file("repeats: 3\n")
    job = load.load_job(here / "job.yaml")
    paths = ResultPaths(here / "elsewhere")
    plan = record_plan(paths, job, load.build_plan(job, here / "job.yaml"))
    make_results.complete(paths, plan.runs[:1])
    code, out, _ = said("plan", "job.yaml", "-s", "site=gpu", "--results", "elsewhere", "--by-hand")
    assert code == 0
    assert "#SBATCH --array=0-1%2" in out
    assert plan.runs[0].id not in out
    assert all(run.id in out for run in plan.runs[1:])
    assert f"hpcncf.worker {here}/job.yaml" in out
    assert f'--run-id "$run" --results {here}/elsewhere' in out
    assert "-s site=gpu" in out


def test_plain_scripts_of_several_arrays_are_printed_one_by_one(
    job_file: JobFile, said: Said
) -> None:
    job_file("grid: {resources.cpus_per_task: [1, 2]}\n")
    code, out, err = said("plan", "job.yaml", "--by-hand")
    assert (code, out) == (2, "")
    assert "2 arrays need a script each" in err
    assert err.endswith("--by-hand 1 to --by-hand 2\n")
    for number in ("1", "2"):
        code, out, _ = said("plan", "job.yaml", "--by-hand", number)
        assert (code, out.partition("\n")[0]) == (0, "#!/bin/bash")


def test_runs_side_by_side_have_no_plain_script_and_are_reported_what_to_do_instead(
    here: Path, job_file: JobFile, said: Said
) -> None:
    job_file("repeats: 2\n")
    packed = ["-s", "resources.runs_per_node=2"]
    code, out, err = said("plan", "job.yaml", *packed, "--by-hand")
    assert (code, out) == (2, "")
    assert "in a batch script for one task with 2 cores:" in err
    call = f"hpcncf submit {here}/job.yaml -s resources.runs_per_node=2 --cluster local --wait"
    assert f"    {call}\n" in err
    cli.parser().parse_args(call.split()[1:])
    *_, alone = err.rstrip().partition("each run alone: ")
    assert said("plan", "job.yaml", *packed, *alone.split(), "--by-hand")[0] == 0


@pytest.mark.parametrize("option", ["--sbatch", "--by-hand"])
def test_plan_says_when_no_script_is_left(
    here: Path, job_file: JobFile, said: Said, option: str
) -> None:
    job_file("")
    job = load.load_job(here / "job.yaml")
    paths = ResultPaths(here / "elsewhere")
    plan = record_plan(paths, job, load.build_plan(job, here / "job.yaml"))
    make_results.complete(paths, plan.runs)
    code, out, err = said("plan", "job.yaml", "--results", "elsewhere", option)
    assert (code, out) == (0, "")
    assert "nothing to submit" in err


def test_plan_as_json_holds_runs_arrays_and_cost(job_file: JobFile, said: Said) -> None:
    job_file("grid: {resources.cpus_per_task: [1, 2]}\n")
    seen = json.loads(said("plan", "job.yaml", "-s", "repeats=2", "--json")[1])
    assert len(seen["runs"]) == 4
    assert [array["tasks"] for array in seen["arrays"]] == [2, 2]
    assert seen["core_hours_at_most"] == pytest.approx(2 * (1 + 2) * 2 / 60)
    assert seen["data_missing"] == []


@pytest.mark.usefixtures("fake_slurm")
def test_plan_says_what_slurm_would_refuse_and_prints_no_script_for_it(
    job_file: JobFile, said: Said
) -> None:
    job_file("grid: {resources.cpus_per_task: [1, 99]}\n")
    seen = json.loads(said("plan", "job.yaml", "--json")[1])
    (large,) = [run["id"] for run in seen["runs"] if run["resources"]["cpus_per_task"] == 99]
    assert list(seen["refused"]) == [large]
    why = f"left out: run {large}: requests 99 cores on each node; partition "
    assert why in " ".join(said("plan", "job.yaml")[1].split())
    _, script, err = said("plan", "job.yaml", "--sbatch")
    assert "\n#SBATCH --cpus-per-task=1\n" in script
    assert "cpus-per-task=99" not in script
    assert why in err
    code, script, err = said("plan", "job.yaml", "-s", "resources.nodes=99", "--sbatch")
    assert (code, script) == (0, "")
    assert err.endswith("nothing to submit: no run fits\n")


def test_plan_says_what_is_excluded_in_vain(job_file: JobFile, said: Said) -> None:
    job_file("grid: {training.seed: [1, 2]}\nexclude: [{training.seed: 3}]\n")
    code, _, err = said("plan", "job.yaml")
    assert (code, err.strip()) == (
        0,
        "hpcncf: exclude: training.seed=3 matches nothing; the grid has 1, 2",
    )


def test_plan_counts_tasks_of_several_runs(job_file: JobFile, said: Said) -> None:
    job_file("")
    packed = ["-s", "repeats=5", "-s", "resources.runs_per_task=2"]
    (array,) = json.loads(said("plan", "job.yaml", *packed, "--json")[1])["arrays"]
    assert (array["tasks"], len(array["runs"])) == (3, 5)
    assert "array 1: 3 tasks of 5 runs, " in said("plan", "job.yaml", *packed)[1]


def test_plan_says_what_is_complete_and_what_is_left(
    here: Path, job_file: JobFile, said: Said
) -> None:
    job_file("repeats: 3\n")
    paths = ResultPaths(here / "results/tiny")
    job = load.load_job(here / "job.yaml")
    plan = record_plan(paths, job, load.build_plan(job, here / "job.yaml"))
    make_results.complete(paths, plan.runs[:2])
    out = said("plan", "job.yaml")[1]
    assert "job tiny: 3 runs, at most 0.10 core-hours\n" in out
    hours = [make_results.elapsed_s(run) / 3600 for run in plan.runs[:2]]
    expected = sum(hours) / 2
    assert f"left: about {expected:.2g} core-hours by their times, at most 0.03\n" in out
    seen = json.loads(said("plan", "job.yaml", "--json")[1])
    assert seen["complete"] == [run.id for run in plan.runs[:2]]
    assert seen["core_hours_left"] == pytest.approx(expected, rel=1e-3)


def test_plan_says_which_grid_values_are_listed_twice(job_file: JobFile, said: Said) -> None:
    job_file("grid: {training.loader: [per_sample, vectorized, per_sample]}\n")
    code, out, err = said("plan", "job.yaml")
    assert code == 0
    assert "2 runs" in out
    assert "hpcncf: grid.training.loader: per_sample is listed 2 times" in err


@pytest.mark.parametrize(
    ("command", "missing"),
    [
        (["python", "train.py"], "train.py: no such file here"),
        (["python", "-u", "train.py"], "train.py: no such file here"),
        (["python", "-m", "train.py"], ""),
        (["python", "there.py"], ""),
        (["./own"], "own: no such program here"),
        (["no-such-program-anywhere"], "no-such-program-anywhere: no such program here"),
    ],
)
def test_plan_says_which_program_is_missing(
    here: Path, said: Said, command: list[str], missing: str
) -> None:
    (here / "there.py").touch()
    (here / "job.yaml").write_text(f"name: own\nworkload: {{command: {json.dumps(command)}}}\n")
    code, _, err = said("plan", "job.yaml")
    assert code == 0
    assert (missing in err) if missing else (not err)


def test_retry_says_of_what_it_waits_for_and_not_of_what_was_complete(
    here: Path, job_file: JobFile, said: Said
) -> None:
    job_file("repeats: 2\n")
    paths = ResultPaths(here / "results/tiny")
    job = load.load_job(here / "job.yaml")
    plan = record_plan(paths, job, load.build_plan(job, here / "job.yaml"))
    done, missing = (run.id[:ID] for run in plan.runs)
    make_results.complete(paths, plan.runs[:1])
    code, out, _ = said("retry", "results/tiny", "--wait", "--cluster", "local")
    assert code == 0
    assert "1 completed already" in out
    assert missing in out
    assert done not in out


def test_plan_says_when_data_is_missing_and_how_to_make_it(job_file: JobFile, said: Said) -> None:
    job_file("")
    code, out, _ = said("plan", "job.yaml", "-s", "data.path=nowhere", "-s", "data.dataset=ncf")
    assert code == 0
    assert "ids are provisional: hpcncf data prepare ncf --source FOLDER -o" in out


def test_submit_without_data_is_refused_before_anything_is_written(
    here: Path, job_file: JobFile, said: Said
) -> None:
    job_file("")
    before = files(here)
    code, _, err = said("submit", "job.yaml", "-s", "data.path=nowhere", "--cluster", "local")
    assert code == 2
    assert "holds no prepared data: make it with `hpcncf data prepare" in err
    assert files(here) == before


def test_submit_of_more_than_fits_is_refused_before_anything_is_written(
    here: Path, job_file: JobFile, said: Said
) -> None:
    job_file("")
    before = files(here)
    code, _, err = said(
        "submit", "job.yaml", "-s", "resources.cpus_per_task=512", "--cluster", "local"
    )
    assert code == 2
    assert "needs 512 cores, and this machine lets you use" in err
    assert files(here) == before


def test_submit_of_some_that_do_not_fit_leaves_them_out_and_is_3(
    job_file: JobFile, said: Said
) -> None:
    job_file("")
    sizes = ["-s", "grid.resources.cpus_per_task=[1, 512]", "--cluster", "local"]
    code, out, err = said("submit", "job.yaml", *sizes)
    assert code == 3
    assert "1 run submitted" in out
    assert "left out: run" in err
    assert "1 run (" in (seen := " ".join(said("status")[1].split()))
    assert ") not submitted: needs 512 cores, and this machine lets you use" in seen


@pytest.mark.usefixtures("fake_slurm")
def test_submit_goes_to_slurm_where_there_is_sbatch(job_file: JobFile, said: Said) -> None:
    job_file("repeats: 2\n")
    seen = json.loads(said("submit", "job.yaml", "--json")[1])
    assert seen["cluster"] == "slurm"
    assert [run["job_id"] for run in seen["runs"]] == ["100_0", "100_1"]
    assert set(seen["submitted"]) == {run["id"] for run in seen["runs"]}


def test_status_finds_the_results_here(here: Path, said: Said) -> None:
    demo(here)
    code, out, _ = said("status")
    assert code == 0
    assert "demo (results/demo)" in out
    assert "6 runs: 2 completed, 4 planned" in out
    assert "38,220 instances/s, CPU 96 %" in out
    assert "state      try  details" in out
    assert max(map(len, out.splitlines())) <= 90


def test_status_without_results_says_how_to_get_some(said: Said) -> None:
    code, out, _ = said("status")
    assert code == 0
    assert "no results in ./results" in out
    assert json.loads(said("status", "--json")[1])["jobs"] == []


def test_status_as_json_says_each_run(here: Path, said: Said) -> None:
    paths = demo(here)
    (job,) = json.loads(said("status", "results/demo", "--json")[1])["jobs"]
    assert [run["id"] for run in job["runs"]] == [run.id for run in plan_of(paths).runs]
    first, *_, last = job["runs"]
    assert (first["state"], first["attempt"]) == ("completed", 1)
    assert first["instances_per_s"] > 0
    assert (last["state"], last["reason"], last["progress"]) == ("planned", "not submitted", None)


def test_status_of_a_folder_without_a_plan_is_a_wrong_request(here: Path, said: Said) -> None:
    code, _, err = said("status", str(here))
    assert code == 2
    assert "no results here" in err


def test_a_jobs_name_in_place_of_its_folder_gets_the_folder(here: Path, said: Said) -> None:
    demo(here)
    code, _, err = said("status", "demo")
    assert code == 2
    assert "Did you mean results/demo?" in err


def test_status_names_a_corrupt_file_and_goes_on(here: Path, said: Said) -> None:
    paths = demo(here)
    broken = paths.run(plan_of(paths).runs[0].id).attempt(1).rank(0)
    broken.write_text("torn")
    code, out, _ = said("status")
    assert code == 0
    assert "rank-0.json: not JSON" in out
    assert "1 completed" in out


def test_logs_prints_what_a_rank_printed(here: Path, said: Said) -> None:
    paths = demo(here)
    run = plan_of(paths).runs[0]
    paths.run(run.id).attempt(1).log(0).write_text("hello\n")
    assert said("logs", run.id[:6]) == (0, "hello\n", "")
    assert said("logs", run.id[:6], "--results", "results/demo", "--attempt", "1")[1] == "hello\n"


@pytest.mark.parametrize(
    ("more", "complaint"),
    [
        (["--rank", "7"], "no log of rank 7; there are: rank-0"),
        (["--attempt", "3"], "no attempt 3; there are: 1"),
    ],
)
def test_logs_that_are_not_there_name_those_that_are(
    here: Path, said: Said, more: list[str], complaint: str
) -> None:
    paths = demo(here)
    run = plan_of(paths).runs[0]
    paths.run(run.id).attempt(1).log(0).touch()
    code, _, err = said("logs", run.id, *more)
    assert code == 2
    assert complaint in err


def test_logs_of_a_slurm_task_are_submitits(here: Path, said: Said) -> None:
    paths = demo(here)
    run = plan_of(paths).runs[0]
    claim = make_results.claim(run).model_copy(update={"slurm_job_id": "8_0"})
    write_record(paths.run(run.id).attempt(1).claim, claim)
    for ending, text in (("out", "said\n"), ("err", "warned\n")):
        write_text(paths.submitit("ann") / f"8_0_0_log.{ending}", text)
    assert said("logs", run.id)[1] == "said\nwarned\n", "a traceback is what comes last"


def test_a_log_without_a_line_says_so(here: Path, said: Said) -> None:
    paths = demo(here)
    run = plan_of(paths).runs[0]
    paths.run(run.id).attempt(1).log(0).touch()
    assert said("logs", run.id) == (0, "", "hpcncf: rank 0 printed nothing\n")


def submitted_to_slurm(paths: ResultPaths, run_id: str, job_id: str) -> None:
    file = begin(paths, "slurm", [run_id], again=False)
    jobs = [SubmittedJob(id=job_id, runs=[run_id])]
    sent = read_record(file, Submission).model_copy(update={"jobs": jobs})
    write_record(file, sent)
    write_text(paths.submitit("ann") / f"{job_id}_0_log.err", f"of job {job_id}\n")


def test_logs_of_a_job_that_took_no_attempt_are_submitits(here: Path, said: Said) -> None:
    paths = demo(here)
    complete, *_, never_begun = plan_of(paths).runs
    assert "has not started" in said("logs", never_begun.id)[2]
    submitted_to_slurm(paths, never_begun.id, "9_0")
    assert said("logs", never_begun.id)[1] == "of job 9_0\n"
    assert json.loads(said("logs", never_begun.id, "--json")[1])["attempt"] is None
    submitted_to_slurm(paths, complete.id, "10_0")
    paths.run(complete.id).attempt(1).log(0).write_text("of attempt 1\n")
    assert said("logs", complete.id)[1] == "of job 10_0\n", "it came after the attempt"
    assert said("logs", complete.id, "--attempt", "1")[1] == "of attempt 1\n"


def test_an_unknown_run_is_a_wrong_request(here: Path, said: Said) -> None:
    demo(here)
    code, _, err = said("logs", "zzz")
    assert code == 2
    assert "not in results/demo; `hpcncf status` lists the runs" in err


def test_letters_that_begin_several_runs_are_not_enough(here: Path, said: Said) -> None:
    demo(here)
    code, _, err = said("cancel", "")
    assert code == 2
    assert "several begin so" in err
    assert "more letters" in err


def test_the_same_run_in_two_folders_wants_the_folder(here: Path, said: Said) -> None:
    first = plan_of(demo(here)).runs[0].id
    shutil.copytree(here / "results/demo", here / "results/copy")
    code, _, err = said("logs", first)
    assert code == 2
    assert err.endswith("in demo; --results DIR\n")


def test_logs_of_a_folder_say_where_its_runs_are_listed(here: Path, said: Said) -> None:
    demo(here)
    code, _, err = said("logs", "results/demo")
    assert code == 2
    assert "is a results folder, not a run: `hpcncf status results/demo` lists its runs" in err


def test_cancel_in_slurm_is_one_scancel(here: Path, said: Said, fake_slurm: FakeSlurm) -> None:
    paths = demo(here)
    runs = [run.id for run in plan_of(paths).runs]
    file = begin(paths, "slurm", runs, again=False)
    jobs = [SubmittedJob(id=f"8_{task}", runs=[run]) for task, run in enumerate(runs)]
    sent = read_record(file, Submission).model_copy(update={"jobs": jobs})
    write_record(file, sent)
    fake_slurm.answer("squeue", "8_2|RUNNING|None\n8_3|PENDING|Priority\n")
    fake_slurm.answer("sacct", "8_4|TIMEOUT|0:0\n8_5|FAILED|1:0\n")
    seen = json.loads(said("cancel", "--all", "results/demo", "--json")[1])["cancelled"]
    assert [(one["id"], one["was"]) for one in seen] == [(runs[2], "running"), (runs[3], "pending")]
    assert "scancel 8_[2,3]" in fake_slurm.calls
    (job,) = json.loads(said("status", "--json")[1])["jobs"]
    assert [run["state"] for run in job["runs"]][2:4] == ["cancelled", "cancelled"]


@pytest.mark.parametrize("there", ["results/demo", "results/typo"])
def test_cancel_of_a_folder_needs_all(here: Path, said: Said, there: str) -> None:
    demo(here)
    code, _, err = said("cancel", there)
    assert code == 2
    assert f"a folder needs --all: hpcncf cancel --all {there}" in err


def test_cancel_of_nothing_says_so(here: Path, said: Said) -> None:
    demo(here)
    code, out, _ = said("cancel", "--all", "results/demo")
    assert code == 0
    assert "nothing to cancel" in out


def test_retry_needs_results_of_submit(here: Path, said: Said) -> None:
    demo(here)
    code, _, err = said("retry", "results/demo", "--cluster", "local")
    assert code == 2
    assert "has no job.yaml" in err
    code, _, err = said("retry", "results/nowhere", "--cluster", "local")
    assert code == 2
    assert "no results here (no plan.json)" in err


@pytest.mark.parametrize("cluster", ["local", "slurm"])
def test_retry_goes_where_it_was_submitted_last(
    here: Path,
    job_file: JobFile,
    said: Said,
    fake_slurm: FakeSlurm,
    monkeypatch: pytest.MonkeyPatch,
    cluster: str,
) -> None:
    monkeypatch.setattr(machine, "start", Mock(side_effect=HpcncfError("no queue")))
    job_file("")
    fake_slurm.refuse("sbatch: error: no\n")
    for where in ("slurm", cluster):
        said("submit", "job.yaml", "--cluster", where)
    said("retry", "results/tiny")
    submissions = read_submissions(ResultPaths(here / "results/tiny")).submissions
    assert [each.cluster for each in submissions] == ["slurm", cluster, cluster]


def test_retry_leaves_out_what_was_cancelled_on_purpose(
    here: Path, job_file: JobFile, said: Said, fake_slurm: FakeSlurm
) -> None:
    job_file("repeats: 2\n")
    fake_slurm.refuse("sbatch: error: no\n")
    said("submit", "job.yaml", "--cluster", "slurm")
    paths = ResultPaths(here / "results/tiny")
    first, second = plan_of(paths).runs
    cancel(paths, [first.id])
    fake_slurm.refuse("")
    code, _, err = said("retry", "results/tiny", "--cluster", "slurm")
    assert code == 0
    assert "1 cancelled run not submitted: `hpcncf submit results/tiny/job.yaml`" in err
    assert read_submissions(paths).submissions[-1].runs == [second.id]


def test_an_error_under_json_is_json(said: Said) -> None:
    code, out, err = said("status", "nowhere", "--json")
    error = err.removeprefix("hpcncf: ").strip()
    assert json.loads(out) == {"schema": "hpcncf.error/1", "error": error, "exit_code": code}
    assert code == 2


def test_tables_and_report_can_be_written_elsewhere(here: Path, said: Said) -> None:
    paths = demo(here)
    before = files(paths.folder)
    assert said("collect", "results/demo", "-o", "out")[0] == 3
    assert {path.name for path in (here / "out").iterdir()} >= {"runs.csv", "ranks.csv"}
    assert said("report", "results/demo", "-o", "page")[0] == 3
    assert (here / "page/report.html").exists()
    assert files(paths.folder) == before


def test_status_of_a_run_at_work_shows_cores_and_memory(here: Path, said: Said) -> None:
    paths = make_results.command_plan(here)
    run = plan_of(paths).runs[0]
    attempt = claim_attempt(paths.run(run.id), "run")
    progress = hostile.progress(run.id).model_copy(
        update={"phase": "command", "cores_allocated": 4.0, "cpu_efficiency": 0.5, "rss_mib": 812.0}
    )
    write_record(attempt.progress, progress)
    out = said("status", str(paths.folder))[1]
    words = " ".join(out.split())
    assert "2.0 of 4 cores (CPU 50 %), 812 MiB" in words
    assert "input 60 %, forward 20 %" in words


def test_a_table_passes_no_escape_sequence_to_the_terminal() -> None:
    assert table_layout(["run"], [["\x1b[31mred\x07\x00"]]).splitlines()[1] == "?[31mred??"


def test_a_table_wraps_its_last_column_into_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    text = table_layout(["a", "why"], [["x" * 20, "word " * 20], ["y", ""]])
    assert max(map(len, text.splitlines())) <= 60
    assert text.count("word") == 20


@pytest.mark.parametrize("path", sorted((ROOT / "jobs").glob("*.yaml")), ids=lambda path: path.name)
def test_every_job_of_ours_plans(path: Path, tmp_path: Path, said: Said) -> None:
    """Away from the data that lies beside it, if `make demo` ran here."""
    shutil.copytree(path.parent, tmp_path / "jobs")
    code, out, err = said("plan", str(tmp_path / "jobs" / path.name))
    assert code == 0, err
    assert "core-hours" in out


@pytest.mark.parametrize(
    "words", [("status", "--nonsense", "--json"), ("lint", "gone.py", "--json")], ids=" ".join
)
def test_an_error_under_json_is_one_json_object(here: Path, words: tuple[str, ...]) -> None:
    command = [sys.executable, "-m", "hpcncf", *words]
    done = subprocess.run(command, cwd=here, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert json.loads(done.stdout)["exit_code"] == 2
    assert json.loads(done.stdout)["error"].rpartition(": ")[2] in done.stderr
