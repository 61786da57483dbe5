"""What follows from a scheduler's summary: each format, one pattern after the other, any text."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcncf import cli
from hpcncf_analysis.explain.explain import (
    command_for,
    explain,
    infer_cores,
    read_text,
)
from hpcncf_analysis.explain.parsers import Job, mebibytes

DATA = Path(__file__).parents[1] / "data/explain"
TEXTS = {path.stem: path.read_text() for path in sorted(DATA.glob("*.txt"))}


def jobs(name: str) -> list[Job]:
    return list(read_text(TEXTS[name]).jobs)


def figures(job: Job) -> tuple[Any, ...]:
    used = job.cores_used
    return job.id, job.state, job.cores, used and round(used, 2), job.elapsed_s


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("seff", [("3431290", "COMPLETED", 5, 1.0, 7200)]),
        (
            "seff_array",
            [("500_12", "OUT_OF_MEMORY", 32, 30.4, 3600), ("513", "RUNNING", 1, None, 600)],
        ),
        ("reportseff_0", [("24371789", "COMPLETED", None, None, 11283)]),
        ("seff_pending", [("514", "PENDING", 4, None, None)]),
        ("sacct", [("2", "COMPLETED", 5, None, None), ("3_[1-4]", "PENDING", 5, None, None)]),
        # 600 s of CPU in 600 s; the steps' 02.00 and 09:58 stand in the job's row already.
        (
            "sacct_format",
            [("70_1", "COMPLETED", 5, 1.0, 600), ("71", "OUT_OF_MEMORY", 4, 3.02, 20)],
        ),
        # 10 s x 1 task + 600 s x 5 tasks, in 3000 s.
        ("sacct_long", [("88", "COMPLETED", 5, 1.0, 3000)]),
        ("sacct_parsable", [("90", "COMPLETED", 8, None, 3600)]),
        ("lsf_forum", [("", "", None, None, None)]),
        ("lsf_bjobs", [("78856", "RUN", 5, 1.0, None)]),
        ("lsf_report", [("6559253", "TERM_MEMLIMIT", 8, 1.0, 3600)]),
        ("pbs", [("1871052.server", "F", 4, 2.0, 1800)]),
        ("pbs_torque", [("55.server", "R", 20, 10.0, 36000)]),
    ],
)
def test_each_format_gives_the_jobs_figures(name: str, expected: list[Any]) -> None:
    assert [figures(job) for job in jobs(name)] == expected


def test_reportseff_says_shares_and_what_it_does_not_know_is_none() -> None:
    first, second, running = jobs("reportseff")
    assert (first.efficiency, first.memory_efficiency) == pytest.approx((0.2, 0.334))
    assert first.time_efficiency == pytest.approx(0.179)
    assert second.elapsed_s == 86400
    assert (running.state, running.efficiency, running.memory_efficiency) == ("RUNNING", None, None)


@pytest.mark.parametrize(
    ("name", "figure", "expected"),
    [
        # sacct's memory is the largest task's: twice 1 GiB; 4 GiB a node on two.
        ("sacct_format", "memory_mib", [2048, 8192]),
        ("sacct_format", "memory_asked_mib", [8192, 8192]),
        ("seff", "memory_efficiency", [0.1875]),
        ("pbs", "memory_efficiency", [0.25]),
        ("lsf_bjobs", "memory_mib", [982]),
        ("lsf_bjobs", "limit_s", [7200]),
        ("lsf_report", "limit_s", [7200]),
        ("pbs", "limit_s", [3600]),
        ("sacct_format", "limit_s", [3600, 86400]),
    ],
)
def test_memory_and_limits_are_of_the_whole_job(
    name: str, figure: str, expected: list[float]
) -> None:
    assert [getattr(job, figure) for job in jobs(name)] == pytest.approx(expected)


@pytest.mark.parametrize(
    ("name", "note"),
    [
        ("seff_array", "an estimate"),
        ("sacct_parsable", "-X"),
        ("sacct_long", "AveCPU"),
        ("lsf_bjobs", "asked for no memory"),
        ("pbs_torque", "further nodes"),
    ],
)
def test_what_makes_a_figure_worth_less_is_said(name: str, note: str) -> None:
    assert any(note in said for job in jobs(name) for said in job.notes)


def test_lsfs_peak_gives_the_cores_unless_it_has_not_looked_yet() -> None:
    """5.89 cores are 98.15 %: of 6."""
    text = "CPU PEAK: 5.89 ;\nCPU AVERAGE EFFICIENCY: 42.81% ;  CPU PEAK EFFICIENCY: 98.15%"
    (job,) = read_text(text).jobs
    assert (job.cores, bool(job.notes)) == (6, True)
    text = "CPU PEAK DURATION: 0 second(s)\n CPU AVERAGE EFFICIENCY: 0.00%"
    (job,) = read_text(text).jobs
    assert (job.efficiency, bool(job.notes)) == (None, True)


def test_the_forums_two_lines_are_one_core_busy() -> None:
    seen = explain(replace(jobs("lsf_forum")[0], cores=5))
    assert seen.follows[0].startswith("1.00 of 5 cores used")
    assert "exactly one core busy, 1/5" in seen.follows[0]
    assert "never a second core" in seen.follows[1]
    assert any("held to fewer cores" in text and "one thread" in text for text in seen.unknown)
    assert seen.command == "hpcncf run -- COMMAND"
    seen = explain(jobs("lsf_forum")[0])
    assert "with 5 cores this is one core busy" in seen.follows[0]
    assert any("--cores N" in text for text in seen.unknown)


@pytest.mark.parametrize(("peak", "open_question"), [(None, True), (0.6, True), (0.2, False)])
def test_an_average_of_one_core_may_be_of_several(peak: float | None, open_question: bool) -> None:
    job = Job("LSF", cores=5, printed_efficiency=0.2, peak_efficiency=peak)
    for seen in (explain(job), explain(replace(job, cores=None))):
        assert ("as much as one core" in seen.follows[0]) is open_question
    assert any("several for a part" in text for text in explain(job).unknown) is open_question


@pytest.mark.parametrize(
    "text",
    [
        "CPU efficiency 20 %",
        "Job 7 ran for two hours with a CPU efficiency of 20 %. GPU efficiency was 70 %.",
        "CPU Efficiency: 20.00% of 10:00:00 core-walltime",
    ],
)
def test_a_sentence_gives_the_share_of_cores_used(text: str) -> None:
    (job,) = read_text(text).jobs
    assert (job.efficiency, replace(job, cores=5).cores_used) == pytest.approx((0.2, 1.0))
    assert [job.source for job in read_text(f"{TEXTS['seff']}\n{text}").jobs] == ["seff"]


@pytest.mark.parametrize(
    ("cpu_s", "elapsed_s", "efficiency", "cores"),
    [
        (8566, 8570, 0.2, 5),
        (100_000, 10_000, 0.0781, 128),
        (8566, 8570, 0.3, None),  # 3.33 cores: the three figures do not belong together
        (30, 30, 0.0010, None),  # 950 to 1,050 cores by the printed digits
        (0, 30, 0.2, None),
    ],
)
def test_three_figures_give_the_fourth(
    cpu_s: float, elapsed_s: float, efficiency: float, cores: int | None
) -> None:
    job = Job("LSF", cpu_s=cpu_s, elapsed_s=elapsed_s, printed_efficiency=efficiency)
    assert infer_cores(job).cores == cores
    assert infer_cores(replace(job, cores=7)).cores == 7


@pytest.mark.parametrize(
    "text",
    [
        "CPU time : 8566 sec.\nRun time : 8570 sec.\n" + TEXTS["lsf_forum"],
        "CPU time: 8,566 s\nRun time: 8,570 s\nCPU efficiency: 20.00 %\n",
        "Resource usage summary:\nCPU time : 8566.00 sec.\nRun time : 8570 sec.\n"
        "CPU Efficiency 20.00%",
    ],
)
def test_the_forums_lines_with_their_times_need_no_question(text: str) -> None:
    seen = explain(read_text(text).jobs[0])
    assert seen.job.cores == 5
    average_alone = seen.job.peak_efficiency is None
    busy = "as much as one core busy all the time" if average_alone else "one core busy"
    assert f"exactly {busy}, 1/5" in seen.follows[0]
    assert seen.job.core_hours_idle == pytest.approx(0.8 * 5 * 8570 / 3600)
    assert not any("--cores" in text for text in seen.unknown)


@pytest.mark.parametrize(
    ("cpu_s", "cores", "follows", "unknown"),
    [
        (0.0, 4, "almost no CPU used", "waited for"),
        (100.0, 4, "exactly as much as one core busy all the time, 1/4", "held to fewer cores"),
        (110.0, 4, "about as much as one core busy all the time, of 4", "held to fewer cores"),
        (100.0, 1, "the cores were busy", "a second core"),
        (60.0, 1, "some of them idle", "waited for"),
        (200.0, 4, "hardware threads", "some ranks or threads work"),
        (270.0, 4, "some of them idle", "some ranks or threads work"),
        (390.0, 4, "the cores were busy", "useful work"),
        (500.0, 4, "more than it was given", "useful work"),
    ],
)
def test_a_number_of_cores_used_has_its_pattern_and_its_question(
    cpu_s: float, cores: int, follows: str, unknown: str
) -> None:
    job = Job("sacct", id="1", cores=cores, cpu_s=cpu_s, elapsed_s=100.0)
    seen = explain(job)
    assert follows in seen.follows[0]
    assert unknown in seen.unknown[0]
    several = explain(replace(job, nodes=2)).unknown
    assert several == (*seen.unknown, "which node or rank waited for which")


def test_what_is_missing_is_asked_of_sacct_in_one_command() -> None:
    seen = [explain(job) for job in (*jobs("sacct"), *jobs("reportseff"))]
    command, _ = command_for(seen)
    assert command.startswith("sacct -j 2,24418960 --parsable2 --format=JobID,State,")
    assert command.endswith("| hpcncf explain -")


def test_a_job_that_waits_leaves_nothing_to_find_out() -> None:
    seen = explain(jobs("seff_pending")[0])
    assert (seen.unknown, seen.command) == ((), "")
    assert "has not started" in seen.follows[-1]


def test_a_killed_job_is_not_asked_to_ask_for_less_memory() -> None:
    job = Job("sacct", state="OUT_OF_MEMORY", memory_mib=100, memory_asked_mib=1000)
    said = explain(job).follows
    assert not any("would do" in text for text in said)
    assert any("killed for its memory" in text for text in said)


def test_a_running_jobs_ended_steps_are_not_taken_for_all_of_it() -> None:
    _, seff = jobs("seff_array")
    text = "JobID|State|AllocCPUS|Elapsed|TotalCPU\n7|RUNNING|5|01:00:00|00:00:00\n"
    (sacct,) = read_text(text + "7.batch|RUNNING|5|01:00:00|00:00:01\n").jobs
    for job in (seff, sacct):
        seen = explain(job)
        assert job.efficiency is None
        assert any("ended steps" in note or "have ended" in note for note in job.notes)
        assert job.memory_mib is None
        assert seen.command.startswith(f"sacct -j {job.id} ")
        assert seen.why.endswith("once it has ended")


def test_a_line_below_reportseffs_table_is_no_job() -> None:
    text = "JobID State Elapsed CPUEff MemEff\n12 COMPLETED 00:10:00 50.0% 3.0%\n"
    assert [job.id for job in read_text(f"{text}that is all for today\n").jobs] == ["12"]


def test_what_is_not_understood_is_reported() -> None:
    found = read_text(TEXTS["seff"].replace("20.00%", "20,00%"))
    assert found.jobs[0].printed_efficiency is None
    assert "decimal comma" in found.problems[0]
    found = read_text("70|COMPLETED|5|00:10:00\n70.batch|COMPLETED|5|00:10:00\n")
    assert not found.jobs
    assert "header" in found.problems[0]
    # A name with the delimiter in it costs its row alone.
    found = read_text("JobID|JobName|State\n1|a|b|COMPLETED\n2|c|COMPLETED\n")
    assert [job.id for job in found.jobs] == ["2"]


def test_a_folder_of_logs_gives_the_jobs_of_its_names_and_how_slurm_ended_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {
        "slurm-12.out": "epoch 1\nslurmstepd: error: Detected 1 oom-kill event(s) in StepId=12.0\n",
        "slurm-13_4.out": "*** JOB 17 ON n1 CANCELLED AT 2026-01-01T00:00:00 DUE TO TIME LIMIT ***",
        "14_0_log.out": "fine",
        "notes.txt": "nothing",
        "15.out": TEXTS["seff"],
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    assert cli.main(["explain", str(tmp_path), "--json"]) == 0
    found = {job["id"]: job["state"] for job in json.loads(capsys.readouterr().out)["jobs"]}
    ends = {"12": "OUT_OF_MEMORY", "13_4": "TIMEOUT", "14_0": "", "15": ""}
    assert found == {"3431290": "COMPLETED", **ends}
    assert cli.main(["explain", str(tmp_path / "slurm-12.out")]) == 0
    assert "killed for its memory" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "mib"),
    [
        ("153364K", 149.7695),
        ("4.00 GB", 4096),
        ("982 Mbytes", 982),
        ("16777216kb", 16384),
        ("1048576", 1),
        ("0b", 0),
        ("-5K", None),
        ("4,00 GB", None),
        ("", None),
    ],
)
def test_memory_is_read_in_each_schedulers_units(text: str, mib: float | None) -> None:
    assert mebibytes(text) == (None if mib is None else pytest.approx(mib, rel=1e-4))


LINES = sorted({line for text in TEXTS.values() for line in text.splitlines()})
CELLS = st.one_of(st.text(max_size=12), st.sampled_from(["|", "---", "%", "1e9", "٣", "9" * 400]))


@given(st.lists(st.one_of(st.sampled_from(LINES), st.text(max_size=60)), max_size=25), CELLS)
def test_no_text_crashes_it_and_what_comes_out_is_json(lines: list[str], cell: str) -> None:
    text = "\n".join(lines)
    for seen in (text, text.replace("0", cell), text[::-1]):
        for job in read_text(seen).jobs:
            json.dumps(explain(job).plain(), allow_nan=False)


@given(st.integers(1, 512), st.integers(1, 10**6), st.integers(0, 10**8))
def test_seffs_own_figures_are_read_back(cores: int, elapsed_s: int, cpu_s: int) -> None:
    """Written as seff writes them; the efficiency to two digits."""
    text = (
        f"Job ID: 1\nState: COMPLETED (exit code 0)\nNodes: 1\nCores per node: {cores}\n"
        f"CPU Utilized: {_slurm(cpu_s)}\n"
        f"CPU Efficiency: {cpu_s / (elapsed_s * cores) * 100:.2f}% of "
        f"{_slurm(elapsed_s * cores)} core-walltime\nJob Wall-clock time: {_slurm(elapsed_s)}\n"
    )
    (job,) = read_text(text).jobs
    assert (job.cores, job.elapsed_s, job.cpu_s) == (cores, elapsed_s, cpu_s)
    assert job.efficiency == pytest.approx(cpu_s / (elapsed_s * cores), abs=5.1e-5)


def _slurm(seconds: int) -> str:
    days, rest = divmod(seconds, 86400)
    clock = f"{rest // 3600:02}:{rest // 60 % 60:02}:{rest % 60:02}"
    return f"{days}-{clock}" if days else clock


def test_the_verb_prints_the_same_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["explain", str(DATA / "lsf_forum.txt"), "--cores", "5", "--json"]) == 0
    plain = json.loads(capsys.readouterr().out)
    assert plain["jobs"][0]["cores_used"] == pytest.approx(1.0)
    assert plain["command"] == "hpcncf run -- COMMAND"


def test_the_text_itself_may_be_the_argument(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["explain", TEXTS["lsf_report"]]) == 0
    assert "1.00 of 8 cores used" in capsys.readouterr().out


def test_very_many_jobs_are_a_table_and_the_one_that_idled_most(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [f"{job}|COMPLETED|4|01:00:00|0{job % 4}:00:00|" for job in range(10, 20)]
    path = tmp_path / "all.txt"
    path.write_text("\n".join(["JobID|State|AllocCPUS|Elapsed|TotalCPU|", *rows]))
    # TotalCPU of 0 without steps is sacct -X: jobs 12 and 16 are not known.
    assert cli.main(["explain", str(path)]) == 0
    out = capsys.readouterr().out
    # 13 and 17 leave 3 core-hours each, 10, 14 and 18 two, 11, 15 and 19 one.
    assert "15\u202fcore-h reserved and not used, all together" in out
    assert "sacct, job 13" in out


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["nowhere.txt"], "no such file"),
        (["no where.txt"], "no such file"),
        (["long" * 100], "no such file"),
        (["hello world"], "no summary of a job; understood are seff"),
        (["CPU efficiency 20,5%"], "decimal comma"),
        (["two\nlines"], "no summary"),
        (["empty.txt"], "no summary of a job in it; understood are seff"),
        (["results"], "Read it with `hpcncf diagnose results`"),
        (["results/rank-0.json"], "`hpcncf diagnose results/rank-0.json`"),
        (["comma.txt"], "no summary"),
        (["empty.txt", "--cores", "0"], "expected 1 or more"),
    ],
)
def test_what_is_no_summary_is_refused_with_what_would_be(
    argv: list[str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "results").mkdir()
    for name in ("plan.json", "rank-0.json"):
        (tmp_path / "results" / name).write_text("{}")
    (tmp_path / "comma.txt").write_bytes(b"\xff\xfe\x00 20,00%")
    assert cli.main(["explain", *argv]) in (1, 2)
    assert said in capsys.readouterr().err


def test_a_report_without_its_cores_still_says_how_many_were_used() -> None:
    """By hand: 8,340 s of CPU in 8,370 s."""
    text = "Resource usage summary:\n CPU time : 8340.00 sec.\n Run time : 8370 sec.\n"
    (job,) = read_text(text).jobs
    seen = explain(job)
    assert seen.follows[0] == "1.00 cores used on average; of how many, the text does not say"
    assert seen.unknown[0] == "how many cores it had: give it with --cores N"


@pytest.mark.parametrize(
    ("text", "end"),
    [
        ("Exited with exit code 130.\nResource usage summary:\n", "130, signal 2: SIGINT ended it"),
        ("Exited with exit code 1.\nResource usage summary:\n", "1"),
        ("resources_used.ncpus = 5\n Exit_status = 271\n", "271, signal 15: SIGTERM ended it"),
        ("JobID|State|ExitCode\n7|FAILED|0:9\n", "137, signal 9: SIGKILL ended it"),
        (
            "Job ID: 7\nState: FAILED (exit code 3)\nNodes: 1\nJob Wall-clock time: 01:00:00\n",
            "3",
        ),
    ],
)
def test_how_a_job_ended_is_reported(text: str, end: str) -> None:
    (job,) = read_text(text).jobs
    assert explain(job).follows[-1] == f"it ended with exit code {end}"
