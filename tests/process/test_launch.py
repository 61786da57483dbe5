"""Submissions: files that are written, runs that are refused, and scripts that Slurm gets."""

from __future__ import annotations

import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import make_results
import pytest
from conftest import FakeSlurm

from hpcncf.cli import main
from hpcncf.cli.failures import failures_page
from hpcncf.cli.progress import table_progress
from hpcncf.data import synthetic
from hpcncf.errors import HpcncfError, UsageError
from hpcncf.job import load
from hpcncf.job.expand import expand_job
from hpcncf.job.plan import Plan, Run
from hpcncf.job.spec import Data, JobSpec, Resources, Training
from hpcncf.launch.job_arrays import Quota, query_queued, query_quota
from hpcncf.launch.submit import (
    check,
    choose_cluster,
    describe_refusals,
    find_refusals,
    find_warnings,
    seen_by_slurm,
    submit,
)
from hpcncf.local import machine
from hpcncf.monitor.cgroup import usable
from hpcncf.paths import ResultPaths
from hpcncf.records.claims import claim_attempt
from hpcncf.records.plan_file import read_plan, record_plan
from hpcncf.records.schema import End, utc_now, write_record
from hpcncf.records.submissions import begin, read_submissions, user
from hpcncf.state import status

JobFile = Callable[[str], Path]
SWEEP = """\
grid:
  resources.cpus_per_task: [1, 2]
  training.seed: [1, 2, 3]
"""


def prepared(path: Path, *overrides: str) -> tuple[ResultPaths, JobSpec, Plan]:
    job = load.load_job(path, overrides)
    paths = ResultPaths(path.parent / "results" / job.name)
    return paths, job, record_plan(paths, job, load.build_plan(job, path, overrides))


def run_of(**resources: Any) -> Run:
    asked, training = Resources.model_validate(resources), Training(batch_size_per_rank=1)
    job = JobSpec(name="a", data=Data(path="/d"), resources=asked, training=training)
    return expand_job(job).runs[0]


def directives(fake_slurm: FakeSlurm, key: str) -> list[str]:
    """The #SBATCH lines of this key in all submitted scripts."""
    lines = [line for text in fake_slurm.submitted for line in text.splitlines()]
    return [line for line in lines if line.startswith(f"#SBATCH --{key}")]


def test_a_results_folder_holds_the_job_and_the_plan(job_file: JobFile) -> None:
    """A name that looks like a number stays text in job.yaml."""
    paths, job, plan = prepared(job_file(SWEEP), "name='1e3'")
    assert load.load_job(paths.job) == job
    assert read_plan(paths) == plan


def test_a_folder_of_another_job_is_refused_and_left_alone(job_file: JobFile) -> None:
    path = job_file("")
    paths, job, _ = prepared(path)
    before = paths.plan.read_text(), paths.job.read_text()
    other = job.model_copy(update={"name": "other"})
    with pytest.raises(UsageError, match=r"job 'tiny', this job is 'other'.*--results"):
        record_plan(paths, other, load.build_plan(other, path))
    assert (paths.plan.read_text(), paths.job.read_text()) == before


def test_an_unwritable_folder_is_one_message(job_file: JobFile) -> None:
    path = job_file("")
    (path.parent / "results").write_text("a file, not a folder")
    with pytest.raises(HpcncfError, match="cannot be written: Not a directory"):
        prepared(path)


def test_plans_that_are_joined_at_the_same_moment_lose_no_run(job_file: JobFile) -> None:
    path = job_file("")
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda seed: prepared(path, f"training.seed={seed}"), range(12)))
    assert len(read_plan(found[0][0]).runs) == 12


def test_data_that_is_missing_or_replaced_is_named_with_the_remedy(
    job_file: JobFile, tmp_path: Path
) -> None:
    path, data = job_file(""), tmp_path / "other"
    overrides = [f"data.path={data}", "data.dataset=synthetic"]
    job = load.load_job(path, overrides)
    command = rf"`hpcncf data prepare synthetic .*-o {data}`"
    with pytest.raises(UsageError, match=command):
        check(load.build_plan(job, path).active(), "local")
    small = {"users": 8, "items": 60, "train_rows": 90, "test_negatives": 9}
    synthetic.prepare_synthetic(data, **small)
    plan = load.build_plan(job, path)
    check(plan.active(), "local")
    synthetic.prepare_synthetic(data, **small, seed=2, force=True)
    remedy = "Submit the job file again to plan its runs anew"
    with pytest.raises(UsageError, match=f"^data.path: {data} holds other data .* {remedy}"):
        check(plan.active(), "local")
    check(load.build_plan(job, path).active(), "local")


def test_runs_refused_for_one_reason_share_a_line() -> None:
    assert describe_refusals({"a1": "too large", "b2": "no GPU", "c3": "too large"}) == [
        "run a1 and 1 more: too large",
        "run b2: no GPU",
    ]


@pytest.mark.parametrize(
    ("cluster", "asked", "why"),
    [
        ("local", {"nodes": 2}, "needs 2 nodes, and this machine is one"),
        ("local", {"cpus_per_task": 4096},
         r"needs 4096 cores, and this machine lets you use [\d.]+\. Use "
         r"-s resources.cpus_per_task=\d+, or --cluster slurm"),
        ("local", {"tasks_per_node": 4096},
         r"needs 4096 cores.*use [\d.]+\. Use --cluster slurm"),
        ("local", {"gpus_per_node": 99}, r"needs 99 GPUs, and this machine lets you use \d+"),
    ],
)  # fmt: skip
def test_runs_that_this_machine_cannot_take_are_refused(
    cluster: Any, asked: dict[str, int], why: str
) -> None:
    with pytest.raises(UsageError, match=why):
        check([run_of(**asked)], cluster)
    assert machine.refusal(run_of(cpus_per_task=max(int(usable()), 1))) is None


def test_more_memory_than_there_is_gives_a_warning_on_this_machine(
    job_file: JobFile, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", "")  # no sbatch
    there = machine.memory_gb()
    path, setting = job_file(""), f"resources.mem_gb={there + 900:.0f}"
    paths, job, plan = prepared(path, setting)
    (seen,) = find_warnings(plan.runs, "local")
    assert seen.startswith(
        f"run {plan.runs[0].id}: requests {there + 900:.0f} GB, and this machine lets you use "
        f"{there:.3g}. "
    )
    assert "-s resources.mem_gb=N if it needs less, or --cluster slurm" in seen
    assert find_refusals(plan.runs, "local") == {}
    assert find_warnings(plan.runs, "slurm") == []
    monkeypatch.setattr(machine, "start", lambda *_: None)
    assert submit(paths, job, plan, "local").notes == [seen]
    assert main(["plan", str(path), "-s", setting]) == 0
    assert seen in capsys.readouterr().err
    side_by_side = run_of(mem_gb=there / 2, runs_per_node=3)
    assert "GB for 3 runs side by side, and this machine" in str(machine.find_warning(side_by_side))
    assert machine.find_warning(run_of(mem_gb=there)) is None


def test_plan_shows_and_submit_refuses_batches_that_shared_memory_cannot_hold(
    job_file: JobFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setenv("PATH", str(tmp_path))  # no sbatch
    monkeypatch.chdir(tmp_path)
    workers = {"loader": "batched", "num_workers": 1, "prefetch_factor": 10_000_000}
    settings = [f"training.{key}={value}" for key, value in workers.items()]
    words = [str(job_file("")), *(word for each in settings for word in ("-s", each))]
    for verb, code in (["plan"], 0), (["submit", "--cluster", "local"], 2):
        assert main([*verb, *words]) == code
        assert "MiB in /dev/shm for the batches of DataLoader workers" in capsys.readouterr().err
    assert not (tmp_path / "results").exists()


def test_a_sweep_over_cores_becomes_one_array_per_size(
    job_file: JobFile, fake_slurm: FakeSlurm
) -> None:
    """With `report`, a last job waits for both arrays."""
    paths, job, plan = prepared(job_file(SWEEP))
    launched = submit(paths, job, plan, "slurm", report=True)
    assert [run.id for run in launched.runs] == [run.id for run in plan.runs]
    assert directives(fake_slurm, "array") == ["#SBATCH --array=0-2%3"] * 2
    (submission,) = read_submissions(paths).submissions
    ids = [f"{array}_{task}" for array in (100, 101) for task in range(3)]
    assert sorted(one.id for one in submission.jobs) == ids
    assert {run for one in submission.jobs for run in one.runs} == {run.id for run in plan.runs}
    assert submission.report_job == "102"
    assert directives(fake_slurm, "dependency") == ["#SBATCH --dependency=afterany:100:101"]


def test_the_whole_script_that_sbatch_gets(job_file: JobFile, fake_slurm: FakeSlurm) -> None:
    path = job_file("site: lab.yaml\nexclusive: true\nrepeats: 2\n")
    site = "partition: short\naccount: lab\nsetup: [module load python]\n"
    (path.parent / "lab.yaml").write_text(site)
    paths, job, plan = prepared(path, "resources.cpus_per_task=3")
    submit(paths, job, plan, "slurm")
    (script,) = fake_slurm.submitted
    logs = paths.submitit(user())
    shown = script.replace(str(logs), "LOGS").replace(sys.executable, "PYTHON")
    assert shown == (Path(__file__).parents[1] / "data/sbatch.sh").read_text()
    assert logs.stat().st_mode & 0o777 == 0o700


def test_mail_belongs_to_the_report_if_there_is_one(
    job_file: JobFile, fake_slurm: FakeSlurm
) -> None:
    path = job_file("site: lab.yaml\n")
    (path.parent / "lab.yaml").write_text("mail_user: me@lab\nmail_type: [END]\n")
    paths, job, plan = prepared(path)
    submit(paths, job, plan, "slurm", report=True)
    assert ["--mail-user=me@lab" in script for script in fake_slurm.submitted] == [False, True]


@pytest.mark.parametrize(
    ("said", "problem"),
    [
        (
            "sbatch: error: Unknown host\nsbatch: error: no config\nsbatch: fatal: no source\n",
            "Slurm refused the job: sbatch: fatal: no source",
        ),
        (
            "sbatch: error: name a project\nsbatch: error: submission failed\n",
            "Slurm refused the job: sbatch: error: name a project\nsbatch: error: submission fail",
        ),
        (
            "sbatch: error: x\nsbatch: fatal: Could not establish a configuration source\n",
            "no Slurm cluster answers its commands: sbatch: fatal: Could not establish a config",
        ),
    ],
)
def test_a_refusal_of_sbatch_reaches_the_user_and_the_submission(
    job_file: JobFile,
    fake_slurm: FakeSlurm,
    capsys: pytest.CaptureFixture[str],
    said: str,
    problem: str,
) -> None:
    fake_slurm.refuse(said)
    paths, job, plan = prepared(job_file("repeats: 2\n"))
    with pytest.raises(HpcncfError) as refused:
        submit(paths, job, plan, "slurm")
    assert str(refused.value).startswith(problem)
    assert str(refused.value).endswith(
        '; solve that, or run on this machine with --cluster local (cluster="local" in Python)'
    )
    assert capsys.readouterr().err == ""
    states = status.states(paths, plan)
    assert [state.state for state in states] == ["failed", "failed"]
    first = problem.splitlines()[0]
    assert first not in table_progress(states)
    assert failures_page(paths, states).startswith(f"2 runs failed: not submitted: {first}"[:70])
    fake_slurm.refuse("")
    assert len(submit(paths, job, plan, "slurm").runs) == 2


def test_a_folder_is_seen_by_nodes_once_a_slurm_job_began_a_run(tmp_path: Path) -> None:
    paths = make_results.demo(tmp_path, repeats=1)
    plan = make_results.plan_of(paths)
    assert not seen_by_slurm(paths, plan)
    taken = make_results.claim(plan.runs[0]).model_copy(update={"slurm_job_id": "8_0"})
    write_record(paths.run(plan.runs[0].id).attempt(1).claim, taken)
    assert seen_by_slurm(paths, plan)


def test_a_refusal_is_remembered_until_the_run_is_submitted(tmp_path: Path) -> None:
    paths = make_results.demo(tmp_path, repeats=1)
    run = make_results.plan_of(paths).runs[-1].id
    begin(paths, "slurm", [], False, refused={run: "needs 512 cores"})
    assert read_submissions(paths).refused == {run: "needs 512 cores"}
    begin(paths, "slurm", [run], False)
    assert read_submissions(paths).refused == {}


def test_runs_that_slurm_has_are_not_submitted_again(
    job_file: JobFile, fake_slurm: FakeSlurm
) -> None:
    """The next submission records the attempts that had ended before it."""
    paths, job, plan = prepared(job_file("repeats: 2\n"))
    submit(paths, job, plan, "slurm")
    ended = plan.runs[1].id
    attempt = claim_attempt(paths.run(ended), "slurm", "100_1")
    end = End(run_id=ended, attempt=1, reason="exited", exit_codes=[1], ended_at=utc_now())
    write_record(attempt.end, end)
    fake_slurm.answer("squeue", "100_0|RUNNING|None\n")
    fake_slurm.answer("sacct", "100_1|TIMEOUT|0:0\n")
    launched = submit(paths, job, plan, "slurm")
    assert [run.id for run in launched.runs] == [ended]
    assert [each.reason for each in launched.left_out("active")] == ["running"]
    assert [each.over for each in read_submissions(paths).submissions] == [{}, {ended: 1}]


def test_runs_of_unknown_state_are_submitted_only_if_forced(
    job_file: JobFile, fake_slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "start", lambda *_: None)
    paths, job, plan = prepared(job_file("repeats: 2\n"))
    submit(paths, job, plan, "slurm")
    fake_slurm.set(controller=False, accounting=False)
    unknown = submit(paths, job, plan, "slurm").left_out("unknown")
    assert [each.run.id for each in unknown] == [run.id for run in plan.runs]
    assert submit(paths, job, plan, "local", force=True).left_out("unknown") == []


def test_slurm_must_be_installed_if_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(UsageError, match="no sbatch on this machine"):
        choose_cluster("slurm")
    assert choose_cluster("auto") == "local"
    unknown: Any = "cloud"
    with pytest.raises(UsageError, match="cluster: expected auto, local or slurm, came 'cloud'"):
        choose_cluster(unknown)


def test_a_cache_that_cannot_be_written_is_reported_before_the_queue_starts(
    job_file: JobFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cache").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with pytest.raises(HpcncfError, match=r"cannot be written: .*set XDG_CACHE_HOME"):
        submit(*prepared(job_file("")), "local")


def test_as_many_runs_as_fit_are_submitted_and_the_rest_next_time(
    job_file: JobFile, fake_slurm: FakeSlurm
) -> None:
    fake_slurm.set(max_submit=3)
    paths, job, plan = prepared(job_file("repeats: 10\n"))
    first = submit(paths, job, plan, "slurm")
    assert (len(first.runs), len(first.delivery.unsent)) == (3, 7)
    limit = "you are at your account's limit of queued jobs (AssocMaxSubmitJobLimit)"
    assert first.left_out("no_room")[0].reason == limit
    assert len(list(paths.submitit(user()).glob("*.pkl"))) == 3, "none of refused arrays"
    states = status.states(paths, plan)
    assert [state.state for state in states] == ["pending"] * 3 + ["planned"] * 7
    assert {state.reason for state in states[3:]} == {
        "not submitted: Slurm had no room for more then: submit again when jobs have ended"
    }
    fake_slurm.set(max_submit=10)
    second = submit(paths, job, plan, "slurm")
    assert [run.id for run in second.runs] == [run.id for run in first.delivery.unsent]


def test_complete_runs_that_had_no_room_go_with_the_next_plain_submission(
    job_file: JobFile, fake_slurm: FakeSlurm
) -> None:
    fake_slurm.set(max_submit=2)
    paths, job, plan = prepared(job_file("repeats: 5\n"))
    make_results.complete(paths, plan.runs)
    assert submit(paths, job, plan, "slurm").runs == []
    asked = submit(paths, job, plan, "slurm", again=True)
    assert (len(asked.runs), len(asked.delivery.unsent)) == (2, 3)
    fake_slurm.set(max_submit=9)
    later = submit(paths, job, plan, "slurm")
    assert [run.id for run in later.runs] == [run.id for run in asked.delivery.unsent]
    assert submit(paths, job, plan, "slurm").runs == []


def test_arrays_are_no_larger_than_slurm_takes(job_file: JobFile, fake_slurm: FakeSlurm) -> None:
    """And hold several runs in a task if the job file says so."""
    fake_slurm.set(max_array_size=3)
    paths, job, plan = prepared(job_file("repeats: 13\n"), "resources.runs_per_task=2")
    submit(paths, job, plan, "slurm")
    # One element is no array.
    assert directives(fake_slurm, "array") == ["#SBATCH --array=0-2%3"] * 2
    assert len(fake_slurm.submitted) == 3
    (submission,) = read_submissions(paths).submissions
    assert [len(one.runs) for one in submission.jobs] == [2] * 6 + [1]
    assert [run for one in submission.jobs for run in one.runs] == [run.id for run in plan.runs]
    again = submit(paths, job, plan, "slurm")
    assert (again.runs, len(again.left_out("active"))) == ([], 13)


@pytest.mark.parametrize(
    ("known", "array"),
    [({"max_array_size": 7}, 7), ({"max_array_size": 0}, 1), ({"controller": False}, 1001)],
)
def test_slurm_is_asked_for_its_largest_array(
    fake_slurm: FakeSlurm, known: dict[str, Any], array: int
) -> None:
    """0 forbids arrays, but not jobs; without an answer nothing is limited."""
    fake_slurm.set(**known)
    assert query_quota() == Quota(array)
    assert query_queued(["1_0"]) == (None if "controller" in known else set())
