"""What follows from a scheduler's summary: each text, its layouts, one pattern after the other."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from hpcncf import cli
from hpcncf.explain.conclude import NextRequest, common_step, conclude
from hpcncf.explain.dialects import _inferred
from hpcncf.explain.fields import LABELS, JobFields
from hpcncf.explain.groups import group_jobs
from hpcncf.explain.moments import elapsed_between
from hpcncf.explain.read import _may_tell, read_text, read_with_problems, told_of_job
from hpcncf.explain.units import duration, mebibytes, plain_numbers

DATA = Path(__file__).parents[1] / "data/explain"
TEXTS = {path.stem: path.read_text() for path in sorted(DATA.glob("*.txt"))}
EXPECTED: dict[str, list[dict[str, Any]]] = yaml.safe_load((DATA / "expectations.yaml").read_text())
NAMES = {
    "used": "cores_used",
    "elapsed": "elapsed_s",
    "limit": "limit_s",
    "memory": "memory_mib",
    "asked": "memory_asked_mib",
    "memory_share": "memory_efficiency",
    "time_share": "time_efficiency",
    "peak": "peak_efficiency",
    "gpu": "gpu_efficiency",
}


def test_every_text_has_its_truth() -> None:
    assert set(EXPECTED) == set(TEXTS)


def check(text: str, truth: list[dict[str, Any]]) -> None:
    jobs = read_text(text)
    assert len(jobs) == len(truth), [job.id for job in jobs]
    for job, expected in zip(jobs, truth, strict=True):
        seen = conclude(job)
        for name, value in expected.items():
            if name == "says":
                assert set(value) <= set(seen.codes), (job.id, seen.codes)
            elif name == "silent":
                assert not set(value) & set(seen.codes), (job.id, seen.codes)
            elif name != "request":
                found = getattr(job, NAMES.get(name, name))
                exact = value is None or isinstance(value, str) or found is None
                same = (
                    found == value if exact else found == pytest.approx(value, rel=0.01, abs=5e-4)
                )
                assert same, f"{job.id}: {name} is {value}, read as {found}"
        assert seen.request == NextRequest(**expected.get("request", {})), job.id


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_text_gives_its_fields_and_conclusions(name: str) -> None:
    check(TEXTS[name], EXPECTED[name])


PREFIXED = ("seff", "case_jobstats_two_nodes", "lsf_report", "pbs", "case_pbs_epilogue_2026")


@pytest.mark.parametrize("prefix", ["# ", "> ", ">> ", "* ", "    * ", "\t", "| ", "// "])
@pytest.mark.parametrize("name", PREFIXED)
def test_prefixed_lines_read_the_same(name: str, prefix: str) -> None:
    check("\n".join(prefix + line for line in TEXTS[name].splitlines()), EXPECTED[name])


@pytest.mark.parametrize(
    "name", ["sacct_format", "reportseff", "case_reportseff_gpu_nodes", "case_sacct_tres_gpu"]
)
@pytest.mark.parametrize("prefix", ["> ", "  ", "# "])
def test_prefixed_tables_read_the_same(name: str, prefix: str) -> None:
    check("\n".join(prefix + line for line in TEXTS[name].splitlines()), EXPECTED[name])


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_line_ends_colours_and_entities_change_nothing(name: str) -> None:
    text = TEXTS[name]
    check(text.replace("\n", "\r\n"), EXPECTED[name])
    check("\x1b[1m" + text.replace("\n", "\x1b[0m\n\x1b[32m"), EXPECTED[name])
    check(text.replace("<", "&lt;").replace(">", "&gt;"), EXPECTED[name])


@pytest.mark.parametrize("name", ["seff", "seff_array", "case_seff_array", "lsf_forum"])
def test_decimal_commas_and_case_change_nothing(name: str) -> None:
    import re

    text = re.sub(r"(\d)\.(\d\d)(?= ?[%KMGT])", r"\1,\2", TEXTS[name])
    assert "," in text
    check(text, EXPECTED[name])
    check(text.replace("Utilized", "UTILISED").replace("Efficiency", "EFFICIENCY"), EXPECTED[name])


def test_columns_in_any_order_read_the_same() -> None:
    lines = [line for line in TEXTS["case_sacct_tres_gpu"].splitlines() if "|" in line]
    turned = ["|".join(reversed(line.removesuffix("|").split("|"))) for line in lines]
    check("\n".join(turned), EXPECTED["case_sacct_tres_gpu"])


def test_texts_of_several_jobs_give_them_all() -> None:
    text = "\n\n".join(TEXTS[name] for name in ("seff", "seff_array", "case_sacct_tres_gpu"))
    check(text, [*EXPECTED["seff"], *EXPECTED["seff_array"], *EXPECTED["case_sacct_tres_gpu"]])


@pytest.mark.parametrize(
    ("name", "note"),
    [
        ("seff_array", "an estimate"),
        ("sacct_parsable", "-X"),
        ("sacct_long", "AveCPU"),
        ("lsf_bjobs", "asked for no memory"),
        ("pbs_torque", "further nodes"),
        ("sacct_format", "upper bound"),
    ],
)
def test_doubtful_figures_have_a_note(name: str, note: str) -> None:
    assert any(note in said for job in read_text(TEXTS[name]) for said in job.notes)


def test_lsf_peak_gives_cores_unless_not_yet_measured() -> None:
    """5.89 cores are 98.15 %: of 6."""
    text = "CPU PEAK: 5.89 ;\nCPU AVERAGE EFFICIENCY: 42.81% ;  CPU PEAK EFFICIENCY: 98.15%"
    (job,) = read_text(text)
    assert (job.cores, bool(job.notes)) == (6, True)
    text = "MAX MEM: 5 Mbytes\nCPU PEAK DURATION: 0 second(s)\n CPU AVERAGE EFFICIENCY: 0.00%"
    (job,) = read_text(text)
    assert (job.efficiency, bool(job.notes)) == (None, True)


@pytest.mark.parametrize(
    ("text", "share", "cores"),
    [
        ("CPU efficiency 20 %", 0.2, None),
        ("Job 7 ran for two hours with a CPU efficiency of 20 %.", 0.2, None),
        ("CPU Efficiency: 20.00% of 10:00:00 core-walltime", 0.2, None),
        ("your mean CPU efficiency is only 20%:", 0.2, None),
        ("CPU efficiency for job 7 (5 cores): 20%", 0.2, 5),
        ("CPU: 20% of 5 cores", 0.2, 5),
        ("CPU: 1.0 / 5 cores", 0.2, 5),
        ("your mean CPU\nefficiency is only 20%", 0.2, None),
        ("CPU-Util 20%", 0.2, None),
        ("CPU Utilisation was just 20 percent", 0.2, None),
        ("Your job had 20% CPU efficiency on 5 cores.", 0.2, 5),
        ("it used only 20 % of its cores", 0.2, None),
        ("Your job used 1.0 of the 5 allocated cores", 0.2, 5),
        ("A good target value for CPU utilization is 90% and above.", None, None),
        ("A good target value for\nCPU utilization is 90% and above.", None, None),
        ("Jobs should have a CPU efficiency of 80 %.", None, None),
    ],
)
def test_sentence_gives_the_share_of_cores(
    text: str, share: float | None, cores: int | None
) -> None:
    jobs = read_text(text)
    if share is None:
        assert not jobs
    else:
        assert [(job.efficiency, job.cores) for job in jobs] == [(pytest.approx(share), cores)]


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
def test_three_figures_give_the_cores(
    cpu_s: float, elapsed_s: float, efficiency: float, cores: int | None
) -> None:
    job = JobFields("LSF", cpu_s=cpu_s, elapsed_s=elapsed_s, printed_efficiency=efficiency)
    assert _inferred(replace(job)).cores == cores
    assert _inferred(replace(job, cores=7)).cores == 7


@pytest.mark.parametrize(
    "text",
    [
        "CPU time : 8566 sec.\nRun time : 8570 sec.\n" + TEXTS["lsf_forum"],
        "CPU time: 8,566 s\nRun time: 8,570 s\nCPU efficiency: 20.00 %\n",
        "Resource usage summary:\nCPU time : 8566.00 sec.\nRun time : 8570 sec.\n"
        "CPU Efficiency 20.00%",
    ],
)
def test_forum_lines_with_times_need_no_cores(text: str) -> None:
    (job,) = read_text(text)
    seen = conclude(job)
    assert job.cores == 5
    assert "one_core" in seen.codes
    assert job.core_hours_idle == pytest.approx(0.8 * 5 * 8570 / 3600, rel=0.01)
    assert not any("--cores" in text for text in seen.open_questions)


@pytest.mark.parametrize(("peak", "open_question"), [(None, True), (0.6, True), (0.2, False)])
def test_average_of_one_core_may_be_several(peak: float | None, open_question: bool) -> None:
    job = JobFields("LSF", cores=5, printed_efficiency=0.2, peak_efficiency=peak)
    assert (
        any("several for a part" in text for text in conclude(job).open_questions) is open_question
    )


@pytest.mark.parametrize(
    ("cpu_s", "cores", "code", "question"),
    [
        (0.0, 4, "almost_idle", "waited for"),
        (100.0, 4, "one_core", "held to fewer cores"),
        (110.0, 4, "one_core", "held to fewer cores"),
        (100.0, 1, "cores_busy", "a second core"),
        (60.0, 1, "some_idle", "waited for"),
        (200.0, 4, "half_of_cores", "some ranks or threads work"),
        (270.0, 4, "some_idle", "some ranks or threads work"),
        (390.0, 4, "cores_busy", "useful work"),
        (500.0, 4, "cpu_impossible", None),
    ],
)
def test_cores_used_have_a_pattern_and_a_question(
    cpu_s: float, cores: int, code: str, question: str | None
) -> None:
    job = JobFields("sacct", "1", "COMPLETED", cores=cores, cpu_s=cpu_s, elapsed_s=100.0)
    seen = conclude(job)
    assert seen.codes[0] == code
    if question is None:
        assert not seen.open_questions
    else:
        assert any(question in text for text in seen.open_questions)


@pytest.mark.parametrize(
    ("change", "codes", "request_mib"),
    [
        ({}, {"memory_oversized"}, 3072),
        ({"memory_mib": 0.0}, {"memory_not_counted"}, None),
        ({"memory_mib": 49.0}, {"memory_not_counted"}, None),
        ({"memory_mib": 16 * 8192.0}, {"memory_impossible"}, None),
        ({"memory_mib": 16370.0}, {"memory_at_limit"}, None),
        ({"memory_mib": 400.0}, {"memory_oversized"}, 1024),
        ({"state": "TIMEOUT"}, {"memory_low", "time_limit_reached"}, None),
        ({"state": "FAILED", "exit_code": 1}, {"memory_low", "exit_code"}, None),
        ({"state": "CANCELLED"}, {"memory_low", "cancelled"}, None),
        ({"state": "RUNNING"}, {"memory", "running"}, None),
        ({"state": "OUT_OF_MEMORY"}, {"out_of_memory"}, 24576),
        ({"nodes": 2}, {"memory_low"}, None),
        ({"memory_counted": "LSF"}, {"memory_low"}, None),
        ({"jobs": 33}, {"memory_low"}, None),
        ({"elapsed_s": 40.0, "cpu_s": 20.0}, {"too_short"}, None),
        ({"memory_asked_mib": None}, {"memory"}, None),
    ],
)
def test_memory_is_sized_only_from_a_counted_peak(
    change: dict[str, Any], codes: set[str], request_mib: float | None
) -> None:
    job = JobFields(
        "sacct",
        "1",
        "COMPLETED",
        cores=4,
        elapsed_s=7200.0,
        cpu_s=28000.0,
        memory_mib=2048.0,
        memory_asked_mib=16384.0,
    )
    seen = conclude(replace(job, **change))
    assert codes <= set(seen.codes)
    assert seen.request.memory_mib == request_mib
    assert (
        not any("would have been enough" in said.text for said in seen.conclusions) or request_mib
    )


@pytest.mark.parametrize(
    ("change", "limit_s"),
    [
        ({}, 14400),
        ({"cpu_s": 10.0}, None),  # it hung: more time would not end it
        ({"gpus": 1, "gpu_efficiency": 0.0}, None),
        ({"cpu_s": None}, None),
    ],
)
def test_time_is_doubled_only_for_a_job_that_worked(
    change: dict[str, Any], limit_s: float | None
) -> None:
    job = JobFields(
        "sacct", "1", "TIMEOUT", cores=4, elapsed_s=7200.0, limit_s=7200.0, cpu_s=28000.0
    )
    assert conclude(replace(job, **change)).request.limit_s == limit_s


@pytest.mark.parametrize(
    ("gpus", "share", "unused", "cpu_s", "code"),
    [
        (1, 0.0, None, 100.0, "gpu_idle"),
        (4, 0.0, 4, 100.0, "gpu_idle"),
        (4, 0.22, 3, 100.0, "some_gpus_idle"),
        (1, 0.31, None, 94.0, "gpu_fed_by_one_core"),
        (1, 0.31, None, 600.0, "gpu_waits"),
        (4, 0.68, 0, 470.0, "gpu_busy"),
        (2, None, None, 100.0, "gpu_unknown"),
        (None, None, 3, None, "some_gpus_idle"),
    ],
)
def test_gpus_have_a_conclusion(
    gpus: int | None, share: float | None, unused: int | None, cpu_s: float | None, code: str
) -> None:
    job = JobFields("jobstats", "1", "COMPLETED", cores=48, elapsed_s=100.0, cpu_s=cpu_s)
    seen = conclude(replace(job, gpus=gpus, gpu_efficiency=share, gpus_unused=unused))
    assert code in seen.codes
    assert seen.request == NextRequest()


def test_missing_figures_are_asked_of_sacct_in_one_command() -> None:
    seen = [conclude(job) for name in ("sacct", "reportseff") for job in read_text(TEXTS[name])]
    command, _ = common_step(seen)
    assert command.startswith("sacct -j 2,24418960 --parsable2 --format=JobID,State,")
    assert command.endswith("| hpcncf explain")


def test_running_jobs_ended_steps_are_not_all_of_it() -> None:
    _, seff = read_text(TEXTS["seff_array"])
    text = "JobID|State|AllocCPUS|Elapsed|TotalCPU\n7|RUNNING|5|01:00:00|00:00:00\n"
    (sacct,) = read_text(text + "7.batch|RUNNING|5|01:00:00|00:00:01\n")
    for job in (seff, sacct):
        seen = conclude(job)
        assert job.efficiency is None
        assert any("ended steps" in note or "have ended" in note for note in job.notes)
        assert job.memory_mib is None
        assert seen.next_step.startswith(f"sacct -j {job.id} ")
        assert "once it has ended" in seen.why


def test_requeue_costs_are_those_of_lost_attempts() -> None:
    text = (
        "JobID|State|AllocCPUS|Elapsed|TotalCPU|ExitCode\n"
        "9|NODE_FAIL|4|02:00:00|00:00:00|1:0\n9.batch|CANCELLED|4|02:00:00|00:00:00|\n"
        "9|COMPLETED|4|01:00:00|03:58:00|0:0\n9.batch|COMPLETED|4|01:00:00|03:58:00|0:0\n"
    )
    (job,) = read_text(text)
    assert (job.state, job.attempts, job.lost_core_hours) == ("COMPLETED", 2, 8.0)
    assert job.cores_used == pytest.approx(3.97, abs=0.01)
    assert "requeued" in conclude(job).codes


@pytest.mark.parametrize(
    "text",
    [
        "#SBATCH --nodes=1\n#SBATCH --cpus-per-task=8\n#SBATCH --time=02:00:00\n#SBATCH --mem=16G",
        "#PBS -l select=1:ncpus=4:mem=16gb\n#PBS -l walltime=02:00:00\npython train.py",
        "Epoch 1/10 loss 0.69 time 00:02:10\nTotal time: 1:23:45\n",
        "%Cpu(s):  3.1 us,  0.2 sy, 96.6 id\nMiB Mem : 257000.0 total, 200000.0 free",
        "Jobs must have a CPU efficiency of at least 80 %. Each node has 96 cores and 8 GPUs.",
        "Jobs with GPU utilization below 15% will be cancelled. Memory per node: 512 GB.",
        "PARTITION AVAIL  TIMELIMIT  NODES  STATE NODELIST\ncpu* up 2-00:00:00 12 idle n[1-12]",
        "epoch,loss,time,memory\n1,0.5,00:01:00,3G\n2,0.4,00:01:00,3G",
        "",
    ],
)
def test_text_without_a_job_has_none(text: str) -> None:
    assert read_text(text) == []


def test_requests_of_a_script_are_not_what_was_used() -> None:
    text = (
        f"{TEXTS['seff']}\n#SBATCH --mem=64G\n#SBATCH --time=10:00:00\n#SBATCH --cpus-per-task=9\n"
    )
    check(text, EXPECTED["seff"])


def test_line_below_a_table_is_no_job() -> None:
    text = "JobID State Elapsed CPUEff MemEff\n12 COMPLETED 00:10:00 50.0% 3.0%\n"
    assert [job.id for job in read_text(f"{text}that is all for today\n")] == ["12"]


def test_rows_without_header_are_read_by_their_command_or_refused() -> None:
    rows = "70|COMPLETED|5|00:10:00\n70.batch|COMPLETED|5|00:10:00\n"
    jobs, problems = read_with_problems(rows)
    assert not jobs
    assert "header" in problems[0]
    command = "$ sacct -n -P -o jobid,state,alloccpus,elapsed -j 70\n"
    jobs, problems = read_with_problems(command + rows)
    assert [(job.id, job.cores, job.elapsed_s) for job in jobs] == [("70", 5, 600)]
    assert not problems
    # A name with the delimiter in it costs its row alone.
    jobs = read_text(
        "JobID|JobName|State|Elapsed\n1|a|b|COMPLETED|00:10:00\n2|c|COMPLETED|00:10:00\n"
    )
    assert [job.id for job in jobs] == ["2"]


def test_admin_comment_is_unpacked() -> None:
    import base64
    import gzip

    summary = {
        "nodes": {
            "n1": {
                "total_time": 3600.0,
                "cpus": 8,
                "used_memory": 2**31,
                "total_memory": 2**34,
                "gpu_utilization": {"0": 12.0},
            }
        },
        "total_time": 3600,
        "gpus": 1,
    }
    packed = base64.b64encode(gzip.compress(json.dumps(summary).encode())).decode()
    text = f"JobID|State|AdminComment|Elapsed\n5|COMPLETED|JS1:{packed}|01:00:00\n"
    for form in (text, f"$ jobstats 5 -j\n{json.dumps(summary, indent=4)}\n"):
        (job,) = read_text(form)
        assert (job.id, job.cores, job.cores_used, job.gpu_efficiency) == ("5", 8, 1.0, 0.12)
        assert "gpu_fed_by_one_core" in conclude(job).codes
    bomb = base64.b64encode(gzip.compress(b" " * 50_000_000)).decode()
    assert [job.id for job in read_text(text.replace(packed, bomb))] == ["5"]


def test_folder_of_logs_gives_jobs_by_name_and_how_slurm_ended_them(
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
    jobs = json.loads(capsys.readouterr().out)["jobs"]
    found = {job["fields"]["id"]: job["fields"]["state"] for job in jobs}
    ends = {"12": "OUT_OF_MEMORY", "13_4": "TIMEOUT", "14_0": "", "15": ""}
    assert found == {"3431290": "COMPLETED", **ends}
    assert cli.main(["explain", str(tmp_path / "slurm-12.out")]) == 0
    assert "killed for its memory" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "mib"),
    [
        ("153364K", 149.7695),
        ("4.00 GB", 4096),
        ("4 GiB", 4096),
        ("982 Mbytes", 982),
        ("16777216kb", 16384),
        ("1048576", 1),
        ("0b", 0),
        ("1.5T", 1572864),
        ("-5K", None),
        ("", None),
    ],
)
def test_memory_is_read_in_each_unit(text: str, mib: float | None) -> None:
    assert mebibytes(text) == (None if mib is None else pytest.approx(mib, rel=1e-4))


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1-02:03:04", 93784),
        ("02:57.38", 177.38),
        ("10:00.00", 600),
        ("0+00:03:05", 185),
        ("2 days, 3:04:05", 183845),
        ("1 00:00:10", 86410),
        ("1h 30m", 5400),
        ("5 hours and 3 minutes", 18180),
        ("8340.00 sec.", 8340),
        ("120.0 min", 7200),
        ("451-06:00:24", 38988024),
        ("1-12", 129600),
        ("UNLIMITED", None),
        ("17", None),
    ],
)
def test_times_are_read_in_each_form(text: str, seconds: float | None) -> None:
    assert duration(text) == seconds


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("20,00 %", "20.00 %"),
        ("1.228,85% of 409,6MB", "1228.85% of 409.6MB"),
        ("8,566 s", "8566 s"),
        ("1,234,567.8 sec", "1234567.8 sec"),
        ("cpu=8,mem=30G", "cpu=8,mem=30G"),
        ("7,mk,32,1,00:50:00,64G", "7,mk,32,1,00:50:00,64G"),
        ("1 234,5 GB", "1234.5 GB"),
    ],
)
def test_numbers_of_other_locales_become_plain(text: str, plain: str) -> None:
    assert plain_numbers(text) == plain


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        (
            "Mon Oct  8 17:08:44: Dispatched 16 Task(s) on Host(s) <16*n1>;\n"
            "Mon Oct  8 19:08:44: Completed <done>.",
            7200,
        ),
        (  # requeued: the last start counts
            "Mon Oct  8 10:00:00: Dispatched to <n1>;\nMon Oct  8 17:00:00: Dispatched to <n2>;\n"
            "Mon Oct  8 17:30:00: Completed <exit>.",
            1800,
        ),
        ("Start Time = 11/14/2026 08:07:02\nEnd Time = 11/14/2026 09:07:07", 3605),
        ("Start Time = 11/30/2026 23:00:00\nEnd Time = 12/01/2026 01:00:00", 7200),
        ("Start Time = 03/04/2026 08:00:00\nEnd Time = 04/04/2026 08:00:00", None),
        ("Start: 2026-08-18T11:02:17\nEnd: 2026-08-18T11:26:12", 1435),
        ("Start: 2026-08-18T11:02:17\nEnd: Unknown", None),
        ("End: 2026-08-18T11:02:17\nStart: 2026-08-18T11:26:12", None),
        ("Start: 2026-99-18T11:02:17\nEnd: 2026-99-18T11:26:12", None),
        (
            "001 (17.000.000) 12/10 19:00:00 Job executing\n005 (17.000.000) 12/10 19:31:53 Job",
            1913,
        ),
    ],
)
def test_start_and_end_give_the_run_time(text: str, seconds: float | None) -> None:
    assert elapsed_between(text) == seconds


@pytest.mark.parametrize(
    ("hosts", "cores", "nodes"),
    [
        ("n1/0-15+n2/0-15", 32, 2),
        ("n1/0*28", 28, 1),
        ("n1/0+n1/1+n2/0", 3, 2),
        ("n1/0,2,4-7", 6, 1),
        ("n1+n2", None, 2),
    ],
)
def test_hosts_give_cores_and_nodes(hosts: str, cores: int | None, nodes: int) -> None:
    (job,) = read_text(f"PBS Job Id: 7.s\nExec host: {hosts}\nresources_used.walltime=01:00:00\n")
    assert (job.cores, job.nodes) == (cores, nodes)


@pytest.mark.parametrize(
    ("line", "used", "asked"),
    [
        ("Memory per node: 4 GB", None, 8192),
        ("Max memory usage per node: 3 GB", 3072, None),
        ("Requested memory per core: 1 GB", None, 16384),
        ("Total memory reserved: 8G", None, 8192),
        ('#BSUB -R "rusage[mem=60G]"', None, None),
        ("Max memory per core: 1 GB", None, None),
    ],
)
def test_memory_per_node_or_core_becomes_that_of_the_job(
    line: str, used: float | None, asked: float | None
) -> None:
    (job,) = read_text(f"Job ID: 7\nNodes: 2\nCores: 16\nElapsed: 01:00:00\n{line}\n")
    assert (job.memory_mib, job.memory_asked_mib) == (used, asked)


def test_slurm_job_is_next_submitted_as_it_is() -> None:
    """Where nothing is known of the inside, the script needs no change to learn it."""
    job = JobFields("seff", "7", "COMPLETED", cores=4, cpu_s=3600.0, elapsed_s=3600.0)
    assert conclude(job).next_step == "hpcncf sbatch job.sh"
    assert conclude(replace(job, source="LSF")).next_step == "hpcncf run -- COMMAND"


ARRAY = (
    "JobID|State|AllocCPUS|Elapsed|TotalCPU|ReqMem|MaxRSS\n"
    "7_1|COMPLETED|4|01:00:00|01:00:00|8G|\n7_1.batch|COMPLETED|4|01:00:00|01:00:00||1G\n"
    "7_2|{state}|4|03:00:00|06:00:00|8G|\n7_2.batch|{state}|4|03:00:00|06:00:00||2G\n"
    "7_[3-9]|PENDING|4|00:00:00|00:00:00|8G|\n"
)


@pytest.mark.parametrize(("state", "request_mib"), [("COMPLETED", 3072), ("TIMEOUT", None)])
def test_array_is_explained_by_mean_and_largest_peak(state: str, request_mib: float | None) -> None:
    """7 core-hours of CPU in 16 reserved; the peak of a mean would be too small a request."""
    (group,) = group_jobs(read_text(ARRAY.format(state=state)))
    assert (group.kind, group.id, [job.id for job in group.members]) == (
        "array",
        "7",
        ["7_1", "7_2"],
    )
    whole = group.whole
    assert (whole.jobs, whole.cores, whole.elapsed_s, whole.memory_mib) == (2, 4, 7200, 2048)
    assert whole.efficiency == pytest.approx(7 / 16)
    seen = conclude(whole)
    assert seen.request == NextRequest(memory_mib=request_mib)
    assert seen.confidence == "medium"


def test_array_of_running_tasks_counts_those_that_ended() -> None:
    text = ARRAY.format(state="RUNNING")
    (group,) = group_jobs(read_text(text))
    assert (group.whole.jobs, group.whole.elapsed_s, len(group.members)) == (1, 3600, 2)


@pytest.mark.parametrize(
    "ids", [("7[1].s", "7[2].s"), ("7.1", "7.2"), ("7_1", "7_2"), ("7+0", "7+1")]
)
def test_tasks_are_grouped_by_each_scheduler_s_ids(ids: tuple[str, str]) -> None:
    jobs = [
        JobFields("sacct", name, "COMPLETED", cores=2, cpu_s=60.0, elapsed_s=60.0) for name in ids
    ]
    (group,) = group_jobs([*jobs, JobFields("sacct", "71", "COMPLETED")])
    assert [job.id for job in group.members] == list(ids)
    if group.kind == "het":
        assert (group.whole.cores, group.whole.cpu_s, group.whole.elapsed_s) == (4, 120, 60)
        assert group.whole.memory_mib is None
    else:
        assert (group.whole.cores, group.whole.cpu_s) == (2, 60)


def test_tasks_of_different_size_have_a_weighted_mean() -> None:
    own = [
        JobFields("sacct", f"7_{cores}", "COMPLETED", cores=cores, cpu_s=3600.0, elapsed_s=3600.0)
        for cores in (1, 3)
    ]
    (group,) = group_jobs(own)
    assert group.whole.cores is None
    assert group.whole.efficiency == pytest.approx(2 / 4)


def test_verb_shows_an_array_as_table_and_mean(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "array.txt"
    path.write_text(ARRAY.format(state="COMPLETED"))
    assert cli.main(["explain", str(path)]) == 0
    out = capsys.readouterr().out
    assert "2 tasks of array 7: 2 COMPLETED" in out
    assert [line.split()[0] for line in out.splitlines() if line.startswith(("7", "mean"))] == [
        "7_1",
        "7_2",
        "mean",
    ]
    assert "of the largest of 2: 2" in out
    assert cli.main(["explain", str(path), "--json"]) == 0
    plain = json.loads(capsys.readouterr().out)
    assert [group["members"] for group in plain["groups"]] == [["7_1", "7_2"]]
    assert plain["groups"][0]["request"]["memory_mib"] == 3072
    assert "--mem" not in plain["next_step"]


@pytest.mark.parametrize(
    ("job_id", "step"),
    [("7", "sbatch --mem=2G"), ("7_1", "sacct -j 7 "), ("7+1", "hpcncf sbatch job.sh")],
)
def test_request_of_one_task_or_part_is_not_that_of_all(job_id: str, step: str) -> None:
    job = JobFields("sacct", job_id, "COMPLETED", cores=4, cpu_s=14000.0, elapsed_s=3600.0)
    job = replace(job, memory_mib=1024.0, memory_asked_mib=8192.0)
    assert conclude(job).next_step.startswith(step)


def _slurm_json(**job: object) -> str:
    unset = {"set": False, "number": 0}
    whole = {
        "job_id": 9,
        "state": {"current": ["COMPLETED"]},
        "array": {"job_id": 0, "task_id": unset},
        "time": {"elapsed": 3600, "limit": {"set": True, "number": 120}},
        "required": {"memory_per_node": unset, "memory_per_cpu": {"set": True, "number": 2000}},
        "tres": {"allocated": [{"type": "cpu", "name": "", "count": 8}]},
        "allocation_nodes": 1,
        "steps": [
            {
                "step": {"id": "9.batch"},
                "state": ["COMPLETED"],
                "tasks": {"count": 1},
                "time": {"elapsed": 3600, "total": {"seconds": 3600, "microseconds": 0}},
                "tres": {"requested": {"max": [{"type": "mem", "count": 2**31}]}},
            }
        ],
    }
    return json.dumps({"jobs": [whole | job], "meta": {}}, indent=1)


def test_json_of_sacct_is_read_with_its_steps() -> None:
    (job,) = read_text(f"$ sacct --json -j 9\n{_slurm_json()}\n")
    assert (job.id, job.state, job.cores, job.nodes, job.cpu_s) == ("9", "COMPLETED", 8, 1, 3600)
    assert (job.elapsed_s, job.limit_s, job.memory_mib, job.memory_asked_mib) == (
        3600,
        7200,
        2048,
        16000,
    )
    task = {"job_id": 8, "task_id": {"set": True, "number": 4}}
    assert [job.id for job in read_text(_slurm_json(array=task))] == ["8_4"]


@pytest.mark.parametrize("release", ["24.11", "26.05"])
def test_json_that_slurm_printed_is_read(release: str) -> None:
    folder = DATA.parent / f"slurm-{release}"
    jobs = {job.id: job for job in read_text((folder / "sacct.json").read_text())}
    assert (jobs["1"].state, jobs["1"].exit_code, jobs["2"].signal) == ("FAILED", 7, 11)
    assert (jobs["3"].state, jobs["3"].cores, jobs["3"].limit_s) == ("COMPLETED", 1, 600)
    assert any("_" in job_id for job_id in jobs)
    queued = read_text((folder / "squeue.json").read_text())
    assert {job.state for job in queued} <= {"RUNNING", "PENDING", "COMPLETED", "FAILED"}


@pytest.mark.parametrize(
    ("value", "job_id"),
    [
        ([{"ClusterId": 7, "ProcId": 1, "RequestCpus": 4, "RemoteWallClockTime": 100.0}], "7.1"),
        ({"RECORDS": [{"JOBID": "7", "SLOTS": "4", "RUN_TIME": "100 second(s)"}]}, "7"),
        ({"Jobs": {"7.s": {"resources_used": {"walltime": "00:01:40", "ncpus": 4}}}}, "7.s"),
    ],
)
def test_json_of_other_schedulers_is_read_as_their_text(value: object, job_id: str) -> None:
    (job,) = read_text(json.dumps(value))
    assert (job.id, job.cores, job.elapsed_s) == (job_id, 4, 100)


@pytest.mark.parametrize(
    "text",
    [
        '{"jobs": [{"job_id": 1, "time": 3, "state": [], "steps": [4], "tres": [], "array": "x"}]}',
        '{"jobs": [1, null, {"job_id": {"set": true}}]}',
        '{"Jobs": {"1": [], "2": {"a": {"b": [1]}}}}',
        '[{"ClusterId": null}, 3]',
        '{"RECORDS": [[], {"JOBID": {}}, {"JOBID": "1|2", "a\\nb": true}]}',
        '{"jobs": ' * 3000,
    ],
)
def test_json_of_another_form_breaks_nothing(text: str) -> None:
    for job in read_text(text):
        json.dumps(conclude(job).plain(), allow_nan=False)


def test_each_label_is_in_a_line_that_is_read() -> None:
    forms = [words.replace("h rt", "h_rt").replace("s rt", "s_rt") for words in LABELS]
    assert [form for form in forms if not _may_tell(f"{form}: 1")] == []


def test_summary_behind_a_long_log_is_read() -> None:
    log = "".join(f"step {step} time 0.{step} s\n" for step in range(20_000))
    (job,) = read_text(log + TEXTS["seff"])
    assert (job.id, job.cores) == ("3431290", 5)


LINES = sorted({line for text in TEXTS.values() for line in text.splitlines()})
CELLS = st.one_of(st.text(max_size=12), st.sampled_from(["|", "---", "%", "1e9", "٣", "9" * 400]))


@given(st.lists(st.one_of(st.sampled_from(LINES), st.text(max_size=60)), max_size=25), CELLS)
@example(["   Cpus  :  0  1  1", "Exited with exit code 0", "0 of 0 cores"], "9" * 400)
def test_no_text_crashes_it_and_json_comes_out(lines: list[str], cell: str) -> None:
    text = "\n".join(lines)
    for seen in (text, text.replace("0", cell), text[::-1]):
        for job in read_text(seen):
            json.dumps(conclude(job).plain(), allow_nan=False)


@given(st.integers(1, 512), st.integers(1, 10**6), st.integers(0, 10**8))
def test_seff_figures_are_read_back(cores: int, elapsed_s: int, cpu_s: int) -> None:
    """Written as seff writes them; the efficiency to two digits."""
    text = (
        f"Job ID: 1\nState: COMPLETED (exit code 0)\nNodes: 1\nCores per node: {cores}\n"
        f"CPU Utilized: {_slurm(cpu_s)}\n"
        f"CPU Efficiency: {cpu_s / (elapsed_s * cores) * 100:.2f}% of "
        f"{_slurm(elapsed_s * cores)} core-walltime\nJob Wall-clock time: {_slurm(elapsed_s)}\n"
    )
    (job,) = read_text(text)
    assert (job.cores, job.elapsed_s, job.cpu_s) == (cores, elapsed_s, cpu_s)


def _slurm(seconds: int) -> str:
    days, rest = divmod(seconds, 86400)
    clock = f"{rest // 3600:02}:{rest // 60 % 60:02}:{rest % 60:02}"
    return f"{days}-{clock}" if days else clock


HOSTILE = {
    "one_line": "CPU Efficiency: " * 660_000,
    "digits": "9" * 10_000_000,
    "bars": "|" * 10_000_000,
    "blanks": " " * 10_000_000,
    "lines": "Job ID: 1\n" * 1_000_000,
    "jobs": "".join(f"Job ID: {number}\nState: COMPLETED\nCores: 4\n" for number in range(260_000)),
    "braces": '{"total_time": ' * 660_000,
    "dashes": "- " * 5_000_000,
    "columns": "JobID State Elapsed CPUEff\n" * 370_000,
    "quotes": "> " * 5_000_000,
    "brackets": "Job <" * 2_000_000,
    "header": "JobID|State|Elapsed|" * 500_000,
    "colons": "1:" * 5_000_000,
    "newlines": "\n" * 10_000_000,
    "rows": "JobID|State|Elapsed\n" + "1|COMPLETED|00:10:00\n" * 470_000,
    "tags": "<td>" * 2_500_000,
    "entities": "&#60;" * 2_000_000,
    "frames": "│ Job ID │ 1 │\n" * 600_000,
    "moments": "Mon Oct  8 17:08:44: Dispatched 1 Task(s)\nCPU time used 1 s\n" * 160_000,
    "hosts": ("Exec host: " + "b/0-9+" * 600 + "\n") * 2700,
    "tasks": "".join(f"jobnumber 1\ntaskid {number}\ncpu 3\n" for number in range(330_000)),
    "cards": "Hostname        GPU Id      Mean (%)\n" + "n1  0  22.7\n" * 800_000,
    "json": '{"jobs": [\n' * 330_000,
    "json_lines": '{"jobs": [{"job_id": 1}]}\n' * 150_000,
    "array": "JobID|State|Elapsed|TotalCPU\n" + "1_2|FAILED|01:00:00|01:00:00\n" * 120_000,
}


@pytest.mark.parametrize("name", sorted(HOSTILE))
def test_ten_megabytes_of_anything_take_two_seconds(name: str) -> None:
    started = time.process_time()
    jobs = read_text(HOSTILE[name])
    for job in [*jobs[:1000], *(group.whole for group in group_jobs(jobs))]:
        conclude(job)
    assert time.process_time() - started < 2.0


def test_explaining_loads_the_standard_library_alone_and_starts_quickly() -> None:
    code = (
        "import sys, time\nstart = time.process_time()\nfrom hpcncf.cli import main\n"
        f"main(['explain', {str(DATA / 'seff.txt')!r}])\n"
        "print('TOOK', time.process_time() - start)\n"
        "print('LOADED', *{name.split('.')[0] for name in sys.modules})"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(out.stdout.rpartition("LOADED")[2].split())
    assert loaded - set(sys.stdlib_module_names) <= {"hpcncf", "__main__"} | {
        name for name in loaded if name.startswith("__editable__") or "distutils" in name
    }
    assert float(out.stdout.partition("TOOK ")[2].split()[0]) < 0.4  # 0.1 on a quiet machine


def test_the_verb_prints_json_with_fields(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["explain", str(DATA / "lsf_forum.txt"), "--cores", "5", "--json"]) == 0
    plain = json.loads(capsys.readouterr().out)
    assert plain["jobs"][0]["fields"]["cores_used"] == pytest.approx(1.0)
    assert plain["next_step"] == "hpcncf run -- COMMAND"


def test_the_text_itself_may_be_the_argument(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["explain", TEXTS["lsf_report"]]) == 0
    assert "1.00 of 8 cores were busy" in capsys.readouterr().out


def test_many_jobs_are_a_table_and_the_one_that_idled_most(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [f"{job}|COMPLETED|4|01:00:00|0{job % 4}:00:00|" for job in range(10, 20)]
    path = tmp_path / "all.txt"
    path.write_text("\n".join(["JobID|State|AllocCPUS|Elapsed|TotalCPU|", *rows]))
    # TotalCPU of 0 without steps is sacct -X: jobs 12 and 16 are not known.
    assert cli.main(["explain", str(path)]) == 0
    out = capsys.readouterr().out
    # 13 and 17 leave 3 core-hours each, 10, 14 and 18 two, 11, 15 and 19 one.
    assert "15 core-hours reserved and not used, all together" in out
    assert "sacct, job 13" in out


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["nowhere.txt"], "no such file"),
        (["no where.txt"], "no such file"),
        (["long" * 100], "no such file"),
        (["hello world"], "no figures of a job; understood are"),
        (["two\nlines"], "no figures"),
        (["empty.txt"], "no figures of a job in it; understood are"),
        (["results"], "Read it with `hpcncf diagnose results`"),
        (["results/rank-0.json"], "`hpcncf diagnose results/rank-0.json`"),
        (["bytes.txt"], "no figures"),
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
    (tmp_path / "bytes.txt").write_bytes(b"\xff\xfe\x00 20,00%")
    assert cli.main(["explain", *argv]) in (1, 2)
    assert said in capsys.readouterr().err


def test_report_without_cores_says_how_many_were_used() -> None:
    """By hand: 8,340 s of CPU in 8,370 s."""
    text = "Resource usage summary:\n CPU time : 8340.00 sec.\n Run time : 8370 sec.\n"
    (job,) = read_text(text)
    seen = conclude(job)
    assert "cores_unknown" in seen.codes
    assert job.cores_used == pytest.approx(8340 / 8370)
    assert seen.open_questions[0] == "how many cores it had: give it with --cores N"


@pytest.mark.parametrize(
    ("text", "code", "signal"),
    [
        ("Exited with exit code 130.\nResource usage summary:\nCPU time : 1 sec.\n", 130, 2),
        ("Exited with exit code 1.\nResource usage summary:\nCPU time : 1 sec.\n", 1, None),
        (
            "resources_used.ncpus = 5\n resources_used.cput = 00:10:00\nExit_status = 271\n",
            None,
            15,
        ),
        ("JobID|State|ExitCode|Elapsed\n7|FAILED|0:9|01:00:00\n", None, 9),
        (
            "Job ID: 7\nState: FAILED (exit code 3)\nNodes: 1\nJob Wall-clock time: 01:00:00\n",
            3,
            None,
        ),
        ("(0) Abnormal termination (signal 11)\nUsr 0 00:10:00, Sys 0 00:00:00\n", None, 11),
    ],
)
def test_exit_code_and_signal_are_told_apart(
    text: str, code: int | None, signal: int | None
) -> None:
    (job,) = read_text(text)
    assert (job.exit_code, job.signal) == (code, signal)
    assert ("signal" in conclude(job).codes) == (signal is not None)


def test_memory_of_steps_side_by_side_is_added_up() -> None:
    head = "JobID|State|AllocCPUS|Elapsed|TotalCPU|NTasks|MaxRSS|ReqMem\n"
    head += "9|COMPLETED|8|01:00:00|08:00:00|||64G\n"
    step = "9.{}|COMPLETED|4|{}|01:00:00|1|{}|\n"
    batch = "9.batch|COMPLETED|8|01:00:00|00:01:00|1|100M|\n"
    together = [step.format(number, "00:50:00", "6G") for number in (0, 1)]
    after_another = [step.format(number, "00:29:00", "6G") for number in (0, 1)]
    (job,) = read_text("".join([head, batch, *together]))
    assert (job.memory_mib, job.memory_counted) == (12 * 1024 + 100, "steps together")
    assert any("side by side" in note for note in job.notes)
    (job,) = read_text("".join([head, batch, *after_another]))
    assert (job.memory_mib, job.memory_counted) == (6 * 1024, "")


@pytest.mark.parametrize(
    ("name", "part", "without"),
    [
        ("sixth_seff_hung_to_its_limit", "more time helps is not known", "it needs more"),
        ("sixth_condor_normal_end", "how long it ran is not known", "did not run to its end"),
        ("sixth_bhist_peak_duration", "over 52", "about 60"),
        ("sixth_seff_nothing_counted", "hardly any was counted", "would have been enough"),
        ("sixth_sacct_nodes_without_ntasks", "was at least that", "at most"),
    ],
)
def test_conclusion_claims_no_more_than_the_figures(name: str, part: str, without: str) -> None:
    (job,) = read_text(TEXTS[name])
    said = " ".join(each.text for each in conclude(job).conclusions)
    assert part in said
    assert without not in said


def test_exabytes_are_named_as_an_overflow() -> None:
    (job,) = read_text(TEXTS["sixth_seff_exabytes"])
    assert any("overflowed" in note for note in job.notes)


@pytest.mark.parametrize(
    ("before", "line", "told"),
    [
        ("", "It used 20 % of 8 cores. The goal is 80 %.", "It used 20 % of 8 cores."),
        ("", "The goal is 80 %. It used 20 % of 8 cores.", ""),
        ("", "Jobs with 30 % CPU use waste cores. Ideally use 90 %.", ""),
        ("", "It used 20 % of 8 cores.", "It used 20 % of 8 cores."),
        ("A good target for", "CPU use is 90 %. It used 20 %.", ""),
        ("", "It used 0.5 cores, jobs should use 4. Thanks.", ""),
    ],
)
def test_sentences_before_a_rule_are_about_the_job(before: str, line: str, told: str) -> None:
    assert told_of_job(before, line) == told


@pytest.mark.parametrize(
    "text",
    [
        "Jobs on this cluster were cancelled for maintenance.",
        "The cluster was busy over the last 12 hours.",
        "Please run sstat -j 4711 --format=AveCPU,MaxRSS while it runs.",
        "Jobs must run at 75% efficiency at least.",
    ],
)
def test_sentence_about_the_site_is_no_job(text: str) -> None:
    assert not read_text(text)


def test_node_rows_of_tracejob_add_up_where_the_total_is_missing() -> None:
    text = TEXTS["sixth_tracejob_row_per_node"]
    rows = [line for line in text.splitlines() if "cput=" not in line or "/2024" in line]
    total = "resources_used.cput=00:30:03 "
    assert total in text
    (job,) = read_text("\n".join(rows).replace(total, ""))
    assert (job.cpu_s, job.nodes, job.state) == (1803, 3, "FINISHED")


def test_group_of_largest_tasks_gets_no_memory_request() -> None:
    """Two tasks of an array on different numbers of nodes, each with one rank's peak."""
    head = "JobID|State|Elapsed|NCPUS|NNodes|TotalCPU|MaxRSS|ReqMem\n"
    rows = [
        f"7_{task}|COMPLETED|01:00:00|8|{nodes}|08:00:00||64000Mn\n"
        f"7_{task}.0|COMPLETED|01:00:00|8|{nodes}|08:00:00|1000M|64000Mn\n"
        for task, nodes in ((1, 2), (2, 3))
    ]
    (group,) = group_jobs(read_text(head + "".join(rows)))
    assert group.whole.memory_counted == "one task"
    assert conclude(group.whole).request == NextRequest()


@pytest.mark.parametrize(
    ("step", "cpu", "counted"),
    [("0", "08:00:00", "one task"), ("0", "01:00:00", ""), ("bat+", "08:00:00", "")],
)
def test_step_without_tasks_is_believed_as_one_only_with_one_busy_core(
    step: str, cpu: str, counted: str
) -> None:
    text = (
        "JobID|State|Elapsed|NCPUS|NNodes|TotalCPU|MaxRSS|ReqMem\n"
        f"7|COMPLETED|01:00:00|8|1|{cpu}||64000M\n7.{step}|COMPLETED|01:00:00|8|1|{cpu}|1000M|\n"
    )
    (job,) = read_text(text)
    assert job.memory_counted == counted
    assert (conclude(job).request.memory_mib is None) == bool(counted)
