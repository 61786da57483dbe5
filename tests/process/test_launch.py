"""Submitting: what is written, what is refused, and what Slurm is given."""

from __future__ import annotations

import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import make_results
import pytest
from conftest import FakeSlurm

from hpcncf.cli import main
from hpcncf.cli.failures import page
from hpcncf.cli.progress import table_progress
from hpcncf.errors import HpcncfError, UsageError
from hpcncf.job import load
from hpcncf.job.plan import Plan, Run
from hpcncf.job.spec import JobSpec, Resources
from hpcncf.launch.job_arrays import Quota, query_quota, queued
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
from hpcncf.ncf.data import synthetic
from hpcncf.paths import ResultPaths
from hpcncf.records.claims import claim_attempt
from hpcncf.records.plan_file import leave_plan, read_plan
from hpcncf.records.schema import End, read_record, utc_now, write_record
from hpcncf.records.submissions import Submission, begin, read_submissions, user
from hpcncf.slurm.site import anchored
from hpcncf.state import status

JobFile = Callable[[str], Path]
SWEEP = """\
grid:
  resources.cpus_per_task: [1, 2]
  training.seed: [1, 2, 3]
"""


def prepared(path: Path) -> tuple[ResultPaths, JobSpec, Plan]:
    job = load.load_job(path)
    paths = ResultPaths(path.parent / "results" / job.name)
    return paths, job, leave_plan(paths, job, load.build_plan(job, path))


def test_a_results_folder_holds_the_job_and_the_plan(job_file: JobFile) -> None:
    paths, job, plan = prepared(job_file(SWEEP))
    assert load.load_job(paths.job) == job
    assert read_plan(paths) == plan


def test_text_that_looks_like_a_number_stays_text_in_job_yaml(job_file: JobFile) -> None:
    path = job_file("")
    job = load.load_job(path, ["name='1e3'"])
    paths = ResultPaths(path.parent / "results")
    leave_plan(paths, job, load.build_plan(job, path))
    assert load.load_job(paths.job).name == "1e3"


def test_a_folder_of_another_job_is_refused_and_left_alone(job_file: JobFile) -> None:
    path = job_file("")
    paths, job, _ = prepared(path)
    before = paths.plan.read_text(), paths.job.read_text()
    other = job.model_copy(update={"name": "other"})
    with pytest.raises(UsageError, match=r"job 'tiny', this job is 'other'.*--results"):
        leave_plan(paths, other, load.build_plan(other, path))
    assert (paths.plan.read_text(), paths.job.read_text()) == before


def test_points_no_longer_asked_for_are_retired_and_come_back(job_file: JobFile) -> None:
    _, _, whole = prepared(job_file(SWEEP))
    _, _, less = prepared(job_file(SWEEP.replace("[1, 2, 3]", "[1]")))
    assert len(less.active()) == 2
    assert {run.id for run in less.runs} == {run.id for run in whole.runs}
    _, _, again = prepared(job_file(SWEEP))
    assert len(again.active()) == 6


def test_an_unwritable_folder_is_one_message(job_file: JobFile) -> None:
    path = job_file("")
    (path.parent / "results").write_text("a file, not a folder")
    with pytest.raises(HpcncfError, match="cannot be written: Not a directory"):
        prepared(path)


def test_data_that_is_not_prepared_is_reported_with_the_command(job_file: JobFile) -> None:
    path = job_file("")
    job = load.load_job(path, ["data.path=elsewhere", "data.dataset=frappe"])
    plan = load.build_plan(job, path)
    command = rf"`hpcncf data prepare frappe -o {path.parent}/elsewhere`"
    with pytest.raises(UsageError, match=command):
        check(plan.active(), "local")
    assert sorted(path.parent.iterdir()) == [path]


def test_data_prepared_anew_since_the_plan_is_reported_with_what_to_do(
    job_file: JobFile, tmp_path: Path
) -> None:
    data = tmp_path / "other"
    synthetic.prepare_synthetic(data, users=8, items=60, train_rows=90, test_negatives=9)
    path = job_file("")
    job = load.load_job(path, [f"data.path={data}"])
    plan = load.build_plan(job, path)
    check(plan.active(), "local")
    synthetic.prepare_synthetic(
        data, users=8, items=60, train_rows=90, test_negatives=9, seed=2, force=True
    )
    remedy = "Submit the job file again to plan its runs anew"
    with pytest.raises(UsageError, match=f"^data.path: {data} holds other data .* {remedy}"):
        check(plan.active(), "local")
    check(load.build_plan(job, path).active(), "local")


def test_runs_refused_for_one_reason_are_reported_in_one_line() -> None:
    assert describe_refusals({"a1": "too large", "b2": "no GPU", "c3": "too large"}) == [
        "run a1 and 1 more: too large",
        "run b2: no GPU",
    ]


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ({"nodes": 2}, "needs 2 nodes, and this machine is one"),
        ({"cpus_per_task": 4096}, r"needs 4096 cores, and this machine lets you use [\d.]+\. Use "
                                  r"-s resources.cpus_per_task=\d+, or --cluster slurm"),
        ({"tasks_per_node": 4096}, r"needs 4096 cores.*use [\d.]+\. Use --cluster slurm"),
        ({"gpus_per_node": 99}, r"needs 99 GPUs, and this machine lets you use \d+"),
    ],
)  # fmt: skip
def test_what_this_machine_cannot_do_is_refused_with_counts(
    job_file: JobFile, asked: dict[str, int], why: str
) -> None:
    path = job_file("")
    job = load.load_job(path, [f"resources.{key}={value}" for key, value in asked.items()])
    if "tasks_per_node" in asked:
        job = load.load_job(
            path,
            [
                "resources.tasks_per_node=4096",
                "training.batch_size_per_rank=1",
                "training.global_batch_size=null",
            ],
        )
    with pytest.raises(UsageError, match=why):
        check(load.build_plan(job, path).active(), "local")


def test_what_fits_is_what_this_machine_lets_us_use() -> None:
    run = launch_run(Resources(cpus_per_task=max(int(usable()), 1)))
    assert machine.refusal(run) is None


def test_more_memory_than_there_is_is_reported_where_the_run_stays_here(
    job_file: JobFile, tmp_path: Path
) -> None:
    there = machine.memory_gb()
    job = load.load_job(job_file(""), [f"resources.mem_gb={there + 900:.0f}"])
    runs = load.build_plan(job, tmp_path / "job.yaml").active()
    (seen,) = find_warnings(runs, "local")
    assert seen.startswith(
        f"run {runs[0].id}: requests {there + 900:.0f} GB, and this machine lets you use "
        f"{there:.3g}. "
    )
    assert "-s resources.mem_gb=N if it needs less, or --cluster slurm" in seen
    assert find_refusals(runs, "local") == {}, "nothing here holds a run to it"
    assert find_warnings(runs, "slurm") == []


def test_memory_is_that_of_all_runs_side_by_side_and_as_much_as_there_is_is_no_doubt() -> None:
    there = machine.memory_gb()
    half = Resources(mem_gb=there / 2, runs_per_node=3)
    assert "GB for 3 runs side by side, and this machine" in str(
        machine.find_warning(launch_run(half))
    )
    assert machine.find_warning(launch_run(Resources(mem_gb=there))) is None


def test_plan_and_submit_say_of_memory_that_is_not_there(
    job_file: JobFile,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))  # no sbatch
    monkeypatch.chdir(tmp_path)
    words = [str(job_file("")), "-s", "resources.mem_gb=900000"]
    assert main(["plan", *words]) == 0
    assert "requests 900000 GB, and this machine lets you" in capsys.readouterr().err
    assert main(["submit", *words, "--cluster", "debug"]) == 0
    assert "requests 900000 GB, and this machine lets you" in capsys.readouterr().err


def test_plan_shows_and_submit_refuses_batches_that_shared_memory_cannot_hold(
    job_file: JobFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setenv("PATH", str(tmp_path))  # no sbatch
    monkeypatch.chdir(tmp_path)
    workers = {"loader": "batched", "num_workers": 1, "prefetch_factor": 10_000_000}
    settings = [f"training.{key}={value}" for key, value in workers.items()]
    words = [str(job_file("")), *(word for each in settings for word in ("-s", each))]
    assert main(["plan", *words]) == 0
    assert "MiB in /dev/shm for the batches of DataLoader workers" in capsys.readouterr().err
    assert main(["submit", *words, "--cluster", "local"]) == 2
    assert "MiB in /dev/shm for the batches of DataLoader workers" in capsys.readouterr().err
    assert not (tmp_path / "results").exists()


def launch_run(resources: Resources) -> Run:
    from hpcncf.job.plan import expand_job
    from hpcncf.job.spec import Data

    return expand_job(JobSpec(name="a", data=Data(path="/d"), resources=resources)).runs[0]


def test_the_debug_cluster_runs_one_rank_only(job_file: JobFile) -> None:
    path = job_file("")
    plan = load.build_plan(load.load_job(path, ["resources.tasks_per_node=2"]), path)
    with pytest.raises(UsageError, match="has 2 ranks, and --cluster debug runs one"):
        check(plan.active(), "debug")


def test_a_sweep_over_cores_becomes_one_array_per_size(
    job_file: JobFile, fake_slurm: FakeSlurm
) -> None:
    paths, job, plan = prepared(job_file(SWEEP))
    launched = submit(paths, job, plan, "slurm")
    assert [run.id for run in launched.runs] == [run.id for run in plan.runs]
    arrays = [
        line for text in fake_slurm.submitted for line in text.splitlines() if "array" in line
    ]
    assert arrays == ["#SBATCH --array=0-2%3", "#SBATCH --array=0-2%3"]
    (submission,) = read_submissions(paths).submissions
    assert sorted(one.id for one in submission.jobs) == [
        f"{j}_{t}" for j in (100, 101) for t in range(3)
    ]
    assert {run for one in submission.jobs for run in one.runs} == {run.id for run in plan.runs}


def test_the_whole_script_that_sbatch_gets(job_file: JobFile, fake_slurm: FakeSlurm) -> None:
    site = Path(job_file("site: lab.yaml\n").parent / "lab.yaml")
    site.write_text("partition: short\naccount: lab\nsetup: [module load python]\n")
    path = job_file("site: lab.yaml\nexclusive: true\nrepeats: 2\n")
    job = anchored(load.load_job(path, ["resources.cpus_per_task=3"]), path.parent)
    paths = ResultPaths(path.parent / "results")
    plan = leave_plan(paths, job, load.build_plan(job, path))
    submit(paths, job, plan, "slurm")
    (script,) = fake_slurm.submitted
    logs = paths.submitit(user())
    shown = script.replace(str(logs), "LOGS").replace(sys.executable, "PYTHON")
    assert shown == (Path(__file__).parents[1] / "data/sbatch.sh").read_text()
    assert logs.stat().st_mode & 0o777 == 0o700


def test_what_sbatch_says_reaches_the_user_and_the_submission(
    job_file: JobFile, fake_slurm: FakeSlurm
) -> None:
    fake_slurm.refuse("sbatch: error: Invalid account\n")
    paths, job, plan = prepared(job_file("repeats: 2\n"))
    with pytest.raises(HpcncfError, match="Invalid account"):
        submit(paths, job, plan, "slurm")
    states = status.states(paths, plan)
    assert [state.state for state in states] == ["failed", "failed"]
    assert "Invalid account" not in table_progress(states)
    seen = "2 runs failed: not submitted: Slurm refused the job: sbatch: error: Invalid"
    assert page(paths, states).startswith(seen)
    fake_slurm.refuse("")
    assert len(submit(paths, job, plan, "slurm").runs) == 2


def test_where_a_slurm_job_began_a_run_compute_nodes_see_the_folder(tmp_path: Path) -> None:
    paths = make_results.demo(tmp_path, repeats=1)
    plan = make_results.plan_of(paths)
    assert not seen_by_slurm(paths, plan)
    taken = make_results.claim(plan.runs[0]).model_copy(update={"slurm_job_id": "8_0"})
    write_record(paths.run(plan.runs[0].id).attempt(1).claim, taken)
    assert seen_by_slurm(paths, plan)


def test_a_run_left_out_says_why_until_it_is_sent(tmp_path: Path) -> None:
    paths = make_results.demo(tmp_path, repeats=1)
    run = make_results.plan_of(paths).runs[-1].id
    begin(paths, "slurm", [], False, refused={run: "needs 512 cores"})
    assert read_submissions(paths).refused == {run: "needs 512 cores"}
    begin(paths, "slurm", [run], False)
    assert read_submissions(paths).refused == {}


@pytest.mark.parametrize(
    ("said", "seen"),
    [
        (
            "sbatch: error: Unknown host\nsbatch: error: no config\nsbatch: fatal: no source\n",
            "sbatch: fatal: no source",
        ),
        (
            "sbatch: error: name a project\nsbatch: error: submission failed\n",
            "sbatch: error: name a project\nsbatch: error: submission failed",
        ),
        (
            "sbatch: error: x\nsbatch: fatal: Could not establish a configuration source\n",
            "sbatch: fatal: Could not establish a configuration source",
        ),
    ],
)
def test_a_refusal_of_slurm_is_reported_once_and_short_with_the_way_out(
    job_file: JobFile,
    fake_slurm: FakeSlurm,
    capsys: pytest.CaptureFixture[str],
    said: str,
    seen: str,
) -> None:
    fake_slurm.refuse(said)
    paths, job, plan = prepared(job_file(""))
    with pytest.raises(HpcncfError) as refused:
        submit(paths, job, plan, "slurm")
    silent = "configuration source" in said
    problem = "no Slurm cluster answers its commands" if silent else "Slurm refused the job"
    assert str(refused.value) == (
        f"{problem}: {seen}; solve that, or run on this machine with --cluster local "
        '(cluster="local" in Python)'
    )
    assert capsys.readouterr().err == ""


def test_runs_that_slurm_has_are_not_submitted_again(
    job_file: JobFile, fake_slurm: FakeSlurm
) -> None:
    paths, job, plan = prepared(job_file("repeats: 2\n"))
    submit(paths, job, plan, "slurm")
    fake_slurm.answer("squeue", "100_0|RUNNING|None\n")
    fake_slurm.answer("sacct", "100_1|TIMEOUT|0:0\n")
    launched = submit(paths, job, plan, "slurm")
    assert [run.id for run in launched.runs] == [plan.runs[1].id], "only the one that timed out"
    assert [each.reason for each in launched.left_out("active")] == ["running"]


def test_a_submission_says_which_attempts_were_over(
    job_file: JobFile, fake_slurm: FakeSlurm
) -> None:
    paths, job, plan = prepared(job_file("repeats: 2\n"))
    attempt = claim_attempt(paths.run(plan.runs[0].id), "slurm", "7")
    write_record(
        attempt.end,
        End(
            run_id=plan.runs[0].id,
            attempt=1,
            reason="exited",
            exit_codes=[1],
            ended_at=utc_now(),
        ),
    )
    submit(paths, job, plan, "slurm")
    assert len(fake_slurm.submitted) == 1
    (written,) = read_submissions(paths).submissions
    assert written.over == {plan.runs[0].id: 1}


def test_a_broken_submission_leaves_a_file_that_says_what_was_meant(job_file: JobFile) -> None:
    paths, _, plan = prepared(job_file(""))
    file = begin(paths, "slurm", [plan.runs[0].id], again=False)
    written = read_record(file, Submission)
    assert (written.runs, written.jobs) == ([plan.runs[0].id], [])


def test_slurm_where_there_is_none_is_a_wrong_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(UsageError, match="no sbatch on this machine"):
        choose_cluster("slurm")
    assert choose_cluster("auto") == "local"


def test_plans_that_are_joined_at_the_same_moment_lose_no_run(job_file: JobFile) -> None:
    path = job_file("")
    paths = ResultPaths(path.parent / "results")

    def join(seed: int) -> None:
        job = load.load_job(path, [f"training.seed={seed}"])
        leave_plan(paths, job, load.build_plan(job, path))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(join, range(12)))
    assert len(read_plan(paths).runs) == 12


def test_a_cache_that_cannot_be_written_is_reported_where_the_queue_would_fail_unheard(
    job_file: JobFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cache").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = job_file("")
    job = load.load_job(path)
    plan, paths = load.build_plan(job, path), ResultPaths(tmp_path / "results")
    leave_plan(paths, job, plan)
    with pytest.raises(HpcncfError, match=r"cannot be written: .*set XDG_CACHE_HOME"):
        submit(paths, job, plan, "local")


def test_what_slurm_has_room_for_is_submitted_and_the_rest_next_time(
    job_file: JobFile, fake_slurm: FakeSlurm
) -> None:
    fake_slurm.set(max_submit=4)
    paths, job, plan = prepared(job_file("repeats: 7\n"))
    first = submit(paths, job, plan, "slurm")
    assert (len(first.runs), len(first.delivery.unsent)) == (4, 3)
    limit = "you are at your account's limit of queued jobs (AssocMaxSubmitJobLimit)"
    assert first.left_out("no_room")[0].reason == limit
    states = status.states(paths, plan)
    assert [state.state for state in states] == ["pending"] * 4 + ["planned"] * 3
    assert {state.reason for state in states[4:]} == {
        "not submitted: Slurm had no room for more then: submit again when jobs have ended"
    }
    fake_slurm.set(max_submit=7)
    second = submit(paths, job, plan, "slurm")
    assert [run.id for run in second.runs] == [run.id for run in first.delivery.unsent]


def test_complete_runs_asked_for_again_that_did_not_fit_go_with_the_next_plain_submission(
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


def test_the_room_is_found_and_nothing_stays_of_what_was_refused(
    job_file: JobFile, fake_slurm: FakeSlurm
) -> None:
    fake_slurm.set(max_submit=3)
    paths, job, plan = prepared(job_file("repeats: 20\n"))
    launched = submit(paths, job, plan, "slurm")
    assert (len(launched.runs), len(launched.delivery.unsent)) == (3, 17)
    left_over = [path.name for path in paths.submitit(user()).glob("*.pkl")]
    assert len(left_over) == 3, "of refused arrays nothing stays"


def test_arrays_are_no_larger_than_slurm_takes(job_file: JobFile, fake_slurm: FakeSlurm) -> None:
    fake_slurm.set(max_array_size=3)
    paths, job, plan = prepared(job_file("repeats: 7\n"))
    submit(paths, job, plan, "slurm")
    arrays = [
        line for text in fake_slurm.submitted for line in text.splitlines() if "--array" in line
    ]
    assert arrays == ["#SBATCH --array=0-2%3", "#SBATCH --array=0-2%3"]  # one element is no array
    (submission,) = read_submissions(paths).submissions
    assert [one.runs for one in submission.jobs] == [[run.id] for run in plan.runs]


@pytest.mark.parametrize(("most", "array"), [(7, 7), (0, 1)])  # 0 forbids arrays, but not jobs
def test_the_largest_array_is_asked_for(fake_slurm: FakeSlurm, most: int, array: int) -> None:
    fake_slurm.set(max_array_size=most)
    assert query_quota() == Quota(array)


def test_a_slurm_that_does_not_answer_sets_no_limit(fake_slurm: FakeSlurm) -> None:
    fake_slurm.set(controller=False)
    assert query_quota() == Quota()
    assert queued(["1_0"]) is None


@pytest.mark.usefixtures("fake_slurm")
def test_several_runs_share_a_task(job_file: JobFile) -> None:
    path = job_file("repeats: 5\n")
    path.write_text(path.read_text().replace("mem_gb: 1,", "mem_gb: 1, runs_per_task: 2,"))
    paths, job, plan = prepared(path)
    submit(paths, job, plan, "slurm")
    (submission,) = read_submissions(paths).submissions
    assert [len(one.runs) for one in submission.jobs] == [2, 2, 1]


def test_a_report_waits_for_every_array(job_file: JobFile, fake_slurm: FakeSlurm) -> None:
    paths, job, plan = prepared(job_file(SWEEP))
    submit(paths, job, plan, "slurm", report=True)
    (submission,) = read_submissions(paths).submissions
    arrays = dict.fromkeys(one.id.split("_")[0] for one in submission.jobs)
    assert submission.report_job is not None
    assert f"#SBATCH --dependency=afterany:{':'.join(arrays)}" in fake_slurm.submitted[-1]


def test_mail_belongs_to_the_report_where_there_is_one(
    job_file: JobFile, fake_slurm: FakeSlurm
) -> None:
    Path(job_file("").parent / "lab.yaml").write_text("mail_user: me@lab\nmail_type: [END]\n")
    path = job_file("site: lab.yaml\n")
    job = anchored(load.load_job(path), path.parent)
    paths = ResultPaths(path.parent / "results")
    plan = leave_plan(paths, job, load.build_plan(job, path))
    submit(paths, job, plan, "slurm", report=True)
    assert ["--mail-user=me@lab" in script for script in fake_slurm.submitted] == [False, True]


def test_runs_that_slurm_cannot_say_of_are_held_back_unless_forced(
    job_file: JobFile, fake_slurm: FakeSlurm
) -> None:
    paths, job, plan = prepared(job_file("repeats: 2\n"))
    submit(paths, job, plan, "slurm")
    fake_slurm.set(controller=False, accounting=False)
    unknown = submit(paths, job, plan, "slurm").left_out("unknown")
    assert [each.run.id for each in unknown] == [run.id for run in plan.runs]
    assert submit(paths, job, plan, "debug", force=True).left_out("unknown") == []


def test_many_runs_take_a_call_for_each_array(job_file: JobFile, fake_slurm: FakeSlurm) -> None:
    fake_slurm.set(max_array_size=101)
    paths, job, plan = prepared(job_file("repeats: 500\n"))
    launched = submit(paths, job, plan, "slurm")
    assert (len(launched.runs), len(fake_slurm.submitted)) == (500, 5)
    again = submit(paths, job, plan, "slurm")
    assert (again.runs, len(again.left_out("active"))) == ([], 500)
