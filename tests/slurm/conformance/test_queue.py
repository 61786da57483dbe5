"""Arrays, dependencies, requeues, and what a job's processes are told."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from slurm.conformance.conftest import Slurm, wait

ME = os.getuid()
PRINT = "env | grep ^SLURM_ | sort > {name}~; mv {name}~ {name}"


def test_a_throttled_array_runs_some_and_says_why_the_rest_waits(slurm: Slurm) -> None:
    job = slurm.submit("until [ -e go ]; do sleep 0.1; done", "--array=0-3%2", "--output=/dev/null")
    (slurm.folder / "go").unlink(missing_ok=True)
    waits = "JobArrayTaskLimit"
    lines = {f"{job}_0|RUNNING|None", f"{job}_1|RUNNING|None"}
    lines |= {f"{job}_2|PENDING|{waits}", f"{job}_3|PENDING|{waits}"}
    wait(lambda: set(slurm.queued(job)) == lines, lambda: slurm.queued(job))
    collapsed = slurm.run("squeue", "--noheader", "--format=%i|%t", "-j", job).splitlines()
    assert f"{job}_[2-3%2]|PD" in collapsed
    slurm.run("scancel", f"{job}_3")
    (slurm.folder / "go").touch()
    ended = {f"{job}_{element}|COMPLETED" for element in range(3)}
    wait(lambda: set(slurm.queued(job, "%i|%T")) == ended, lambda: slurm.queued(job))
    accounted = {f"{job}_{element}|COMPLETED|0:0" for element in range(3)}
    wait(lambda: accounted <= set(slurm.accounted(job, "-X")), lambda: slurm.accounted(job))


def test_a_whole_array_that_is_cancelled_before_it_starts_keeps_its_elements(slurm: Slurm) -> None:
    job = slurm.submit("true", "--array=0-3%2", "--hold")
    slurm.run("scancel", job)
    assert slurm.queued(job, "%i|%T") == [f"{job}_{element}|CANCELLED" for element in range(4)]
    rows = [f"{job}_[0-3%2]|CANCELLED by {ME}|0:0"]
    wait(lambda: slurm.accounted(job) == rows, lambda: slurm.accounted(job))


def test_elements_that_are_cancelled_before_they_start_lose_their_names(slurm: Slurm) -> None:
    job = slurm.submit("true", "--array=0-3", "--hold")
    slurm.run("scancel", f"{job}_2")
    assert slurm.queued(job, "%i|%T") == [f"{job}_{element}|PENDING" for element in (0, 1, 3)]
    slurm.run("scancel", f"{job}_[0-1,3]")
    assert slurm.queued(job, "%i|%T") == [f"{job}|CANCELLED"]
    names = (job, f"{job}_[0-1,3]")  # the second since 23.11
    rows = [[f"{name}|CANCELLED by {ME}|0:0"] for name in names]
    wait(lambda: slurm.accounted(job) in rows, lambda: slurm.accounted(job))


def test_jobs_are_found_by_their_name(slurm: Slurm) -> None:
    one, other = (slurm.submit("true", "--hold", f"--job-name={name}") for name in ("one", "other"))
    asked = ["squeue", "--noheader", "--format=%i"]
    assert slurm.run(*asked, "--name=other").split() == [other]
    assert set(slurm.run(*asked, "--name=one,other").split()) == {one, other}
    assert {one, other} <= set(slurm.run(*asked).split())
    slurm.run("scancel", one, other)


def test_an_elements_own_number_is_its_jobs_id_and_the_last_has_the_arrays(slurm: Slurm) -> None:
    said = "echo $SLURM_ARRAY_JOB_ID $SLURM_ARRAY_TASK_ID $SLURM_JOB_ID"
    job = slurm.submit(said, "--array=1-2", "--output=%A-%a.out")
    first, last = (words_of(slurm.folder / f"{job}-{element}.out") for element in (1, 2))
    assert last == [job, "2", job]
    assert first[:2] == [job, "1"]
    assert first[2] != job
    raw = [f"{job}_1|{first[2]}", f"{job}_2|{job}"]
    fields = "JobID,JobIDRaw"
    wait(lambda: sorted(slurm.accounted(job, "-X", fields=fields)) == raw)


def words_of(file: Path) -> list[str]:
    """What a batch script printed, once it has: either element may be the first to run."""
    wait(lambda: file.exists() and file.read_text() != "")
    return file.read_text().split()


@pytest.mark.parametrize(
    ("kind", "script", "state", "reason"),
    [
        ("afterany", "exit 1", "COMPLETED", "None"),
        ("afterok", "true", "COMPLETED", "None"),
        ("afterok", "exit 1", "PENDING", "DependencyNeverSatisfied"),
    ],
)
def test_a_job_waits_for_another(
    slurm: Slurm, kind: str, script: str, state: str, reason: str
) -> None:
    first = slurm.submit(script, "--hold")
    second = slurm.submit("true", f"--dependency={kind}:{first}")
    slurm.soon(second, "PENDING|Dependency", form="%T|%r")
    slurm.run("scontrol", "release", first)
    slurm.soon(second, f"{state}|{reason}", form="%T|%r")
    slurm.run("scancel", second)


def test_a_requeued_job_waits_a_moment_and_knows_that_it_was_restarted(slurm: Slurm) -> None:
    script = "echo ${SLURM_RESTART_COUNT-first}; [ $SLURM_RESTART_COUNT ] || sleep 60"
    job = slurm.submit(script)
    wait(lambda: slurm.said(job) == ["first"])
    slurm.run("scontrol", "requeue", job)
    slurm.soon(job, "PENDING|BeginTime", form="%T|%r")
    shown = slurm.run("scontrol", "show", "job", job)
    assert "Requeue=1 Restarts=1 " in shown
    assert "JobState=PENDING Reason=BeginTime " in shown
    refused = f"Job is pending execution for job {job}\n"
    assert slurm.refusal("scontrol", "requeue", job) == refused
    wait(lambda: slurm.said(job) == ["first", "1"], lambda: slurm.said(job))
    slurm.soon(job, "COMPLETED")
    both = [f"{job}|REQUEUED|0:0", f"{job}|COMPLETED|0:0"]
    wait(lambda: slurm.accounted(job, "-X", "-D") == both, lambda: slurm.accounted(job, "-D"))
    assert slurm.accounted(job, "-X") == both[1:], "earlier starts are told with -D alone"


def test_a_batch_script_is_told_where_it_is(slurm: Slurm) -> None:
    shape = ["--nodes=2", "--ntasks-per-node=2", "--array=3-5:2", "--job-name=a b", "--mem=100M"]
    job = slurm.submit(PRINT.format(name="script-$SLURM_ARRAY_TASK_ID"), *shape)
    told = variables(slurm, "script-5")
    wanted = {
        "SLURM_ARRAY_JOB_ID": job,
        "SLURM_ARRAY_TASK_COUNT": "2",
        "SLURM_ARRAY_TASK_MAX": "5",
        "SLURM_ARRAY_TASK_MIN": "3",
        "SLURM_ARRAY_TASK_STEP": "2",
        "SLURM_CPUS_ON_NODE": "2",
        "SLURM_JOB_CPUS_PER_NODE": "2(x2)",
        "SLURM_JOB_NAME": "a b",
        "SLURM_JOB_NUM_NODES": "2",
        "SLURM_JOB_PARTITION": "cpu",
        "SLURM_LOCALID": "0",
        "SLURM_MEM_PER_NODE": "100",
        "SLURM_NNODES": "2",
        "SLURM_NODEID": "0",
        "SLURM_NTASKS": "4",
        "SLURM_NTASKS_PER_NODE": "2",
        "SLURM_PROCID": "0",
        "SLURM_SUBMIT_DIR": str(slurm.folder),
        "SLURM_TASKS_PER_NODE": "2(x2)",
    }
    assert {name: told.get(name) for name in wanted} == wanted
    assert told.get("SLURM_STEP_ID", "-5") == "-5"  # there since 23.11
    assert told.get("SLURM_CPUS_PER_TASK", "1") == "1"  # there without -c since 23.11
    assert told.get("SLURM_RESTART_COUNT", "0") == "0"  # there from the first start since 23.11


def test_each_task_of_a_step_is_told_who_it_is(slurm: Slurm) -> None:
    step = PRINT.format(name="rank-$SLURM_PROCID")
    slurm.submit(f"srun --cpus-per-task=1 sh -c '{step}'", "--nodes=2", "--ntasks-per-node=2")
    told = [variables(slurm, f"rank-{rank}") for rank in range(4)]
    assert [one["SLURM_NODEID"] for one in told] == ["0", "0", "1", "1"]
    assert [one["SLURM_LOCALID"] for one in told] == ["0", "1", "0", "1"]
    assert [one["SLURM_GTIDS"] for one in told] == ["0,1", "0,1", "2,3", "2,3"]
    wanted = {
        "SLURM_CPUS_PER_TASK": "1",
        "SLURM_NTASKS": "4",
        "SLURM_STEP_ID": "0",
        "SLURM_STEP_NUM_NODES": "2",
        "SLURM_STEP_NUM_TASKS": "4",
        "SLURM_STEP_TASKS_PER_NODE": "2(x2)",
    }
    for one in told:
        assert {name: one.get(name) for name in wanted} == wanted
        assert one["SLURM_STEP_NODELIST"] == one["SLURM_JOB_NODELIST"]


def variables(slurm: Slurm, name: str) -> dict[str, str]:
    file = slurm.folder / name
    wait(file.exists)
    return dict(line.partition("=")[::2] for line in file.read_text().splitlines())


def test_what_scontrol_shows_of_a_job(slurm: Slurm) -> None:
    job = slurm.submit("true", "--hold", "--ntasks=2", "--time=90", "--no-requeue")
    words = slurm.run("scontrol", "--oneliner", "show", "job", job).split()
    shown = dict(word.split("=", 1) for word in words if "=" in word)
    wanted = {
        "JobId": job,
        "JobName": "wrap",
        "JobState": "PENDING",
        "Reason": "JobHeldUser",
        "Dependency": "(null)",
        "Requeue": "0",
        "Restarts": "0",
        "ExitCode": "0:0",
        "TimeLimit": "01:30:00",
        "Partition": "cpu",
        "NumTasks": "2",
        "WorkDir": str(slurm.folder),
    }
    assert {name: shown.get(name) for name in wanted} == wanted
    slurm.run("scancel", job)


def test_partitions_and_nodes_are_told_alike(slurm: Slurm) -> None:
    asked = ["sinfo", "--noheader", "--format=%R|%l|%c|%m|%a"]
    said = slurm.run(*asked).splitlines()
    assert said == ["cpu|1:00:00|2|4000|up", "short|5:00|2|4000|up", "gpu|1:00:00|2|4000|up"]
    partition = slurm.run("scontrol", "--oneliner", "show", "partition", "short")
    for word in ("PartitionName=short", "MaxTime=00:05:00", "State=UP", "Nodes=node[1-4]"):
        assert word in partition.split()
    node = slurm.run("scontrol", "--oneliner", "show", "node", "node4")
    for word in ("NodeName=node4", "CPUTot=2", "RealMemory=4000", "Gres=gpu:1"):
        assert word in node.split()
