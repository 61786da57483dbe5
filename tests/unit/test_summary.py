"""The summary at the end of `hpcncf run`, for a terminal of 80 columns."""

from __future__ import annotations

from typing import Any

import pytest

from hpcncf.cli import run_summary as text_of
from hpcncf.records.schema import Cores, Cpu, Gpu, Io, Memory, NodeRecord, RankRecord
from hpcncf.text import format_duration
from hpcncf_analysis.diagnosis.summary import (
    RequestedRemedy,
    conclude_cores,
    share_cores,
    summarize,
)

TIME = "2026-01-01T00:00:00.000+00:00"


def rank(used: float = 1.0, allocated: float = 5.0, **changes: Any) -> RankRecord:
    plain: dict[str, Any] = {
        "run_id": "abc",
        "attempt": 1,
        "rank": 0,
        "local_rank": 0,
        "world_size": 1,
        "node": "n1",
        "node_index": 0,
        "pid": 7,
        "launched_by": "run",
        "slurm_job_id": None,
        "outcome": "completed",
        "exit_code": 0,
        "error": None,
        "started_at": TIME,
        "ended_at": TIME,
        "elapsed_s": 100.0,
        "run": {"workload": {"command": ["python", "train.py", "--name", "a b"]}},
        "environment": {},
        "cores": Cores(
            allocated=allocated,
            usable=changes.pop("usable", allocated),
            used=used,
            cpus=list(range(int(allocated))),
            affinity_changed=False,
            quota=None,
            threads_per_core=2,
            on_node=64,
        ),
        "cpu": Cpu(
            user_s=used * 99,
            system_s=used,
            efficiency=used / allocated,
            efficiency_peak=changes.pop("peak", used / allocated),
            peak_window_s=10.0,
            context_switches_voluntary=1234567,
            context_switches_involuntary=89,
            threads_peak=12,
            processes_peak=4,
        ),
        "memory": Memory(rss_peak_mib=512.0, anonymous_peak_mib=400.0, limit_mib=1024.0),
        "io": Io(read_mib=1.0, write_mib=None),
        "training": None,
        "warnings": [],
    }
    return RankRecord.model_validate(plain | changes)


def node(busy: list[float], ours: list[float], others: float = 0.0) -> NodeRecord:
    zeros = [0.0]
    return NodeRecord(
        run_id="abc", attempt=1, node="n1", node_index=0, started_at=TIME,
        start_s=zeros, length_s=[100.0], cpus=list(range(len(busy))),
        busy=[[share] for share in busy], ours=[[share] for share in ours],
        steal=zeros, others_cores=[others], tree_cpu_s=zeros, rss_mib=zeros, memory_used_mib=zeros,
        network_mib=zeros, loopback_mib=zeros, disk_mib=zeros,
    )  # fmt: skip


def lines_of(rank: RankRecord, node: NodeRecord, folder: str, *marks: text_of.Marks) -> list[str]:
    return text_of.lines(summarize([rank], [node]), folder, *marks)


def test_traffic_of_the_node_is_shown() -> None:
    busy = node([1.0], [1.0])
    assert not any("traffic" in line for line in lines_of(rank(), busy, "results"))
    busy.disk_mib, busy.loopback_mib = [4000.0], [50.0]
    (line,) = (each for each in lines_of(rank(), busy, "results") if "traffic" in each)
    assert line == "  traffic    network 0.0, loopback 0.5, disks 40.0 MiB/s, by anyone"


def test_it_says_what_seff_says_and_what_it_cannot() -> None:
    text = "\n".join(lines_of(rank(peak=0.2017), node([1.0, 0.0], [1.0, 0.0]), "results/run"))
    for said in (
        "python train.py --name 'a b'",
        "0 after 1:40 min",
        "5 allocated, 5 usable, 1.00 used",
        "20.0% on average, 20.2% at the peak of 10 s",
        "512 MiB resident at the peak, 50.0% of 1,024 MiB",
        "1,234,567 waiting, 89 forced",
        "storage    not measured",
        "GPU        not measured",
        "waited     not measured",
        "One of 5 cores did the work",
        "results/run",
    ):
        assert said in text


def test_it_says_what_threads_waited_for_and_what_gpus_did() -> None:
    one = rank()
    one.cpu.runqueue_s, one.cpu.throttled_s = 12.0, 2.5
    watched = node([1.0], [1.0])
    nothing: list[float | None] = [None]
    watched.gpus = [
        Gpu(
            index=0, uuid="GPU-a", name="H200", memory_total_mib=2000.0, busy=[0.25], ours=nothing,
            memory_mib=[1500.0], ours_memory_mib=nothing, energy_j=nothing, sm_mhz=nothing,
            throttled={},
        )
    ]  # fmt: skip
    text = "\n".join(lines_of(one, watched, "results/run"))
    assert "waited     its threads 12 s in all for a CPU, 2.5 s held back by the quota" in text
    assert "GPU        1, 25% busy, whoever used it, 1,500 MiB at the peak" in text
    watched.gpus = []
    assert "GPU        none used" in "\n".join(lines_of(one, watched, "results/run"))


def test_no_line_is_wider_than_a_terminal() -> None:
    warned = rank(warnings=["a warning of many words " * 20])
    warned.run["workload"]["command"] += ["word"] * 50
    lines = lines_of(warned, node([0.5] * 64, [0.25] * 64), "results/run", text_of.BLOCKS)
    assert max(map(len, lines)) <= 80
    assert not any("\x1b" in line for line in lines)


def test_a_bar_shows_ours_others_and_idle() -> None:
    line, *_ = text_of.cpu_lines(share_cores(node([0.75], [0.5])), text_of.PLAIN)
    assert "##########+++++....." in line
    assert "75% busy: 50% ours, 25% others" in line


def test_of_many_cpus_the_busiest_are_shown() -> None:
    busy = [0.1] * 40
    busy[33] = 1.0
    lines = text_of.cpu_lines(share_cores(node(busy, busy)), text_of.PLAIN)
    assert len(lines) == text_of.MOST_CPUS + 2
    assert any("CPU 33" in line for line in lines)
    assert "and 24 more, 10% busy on average" in lines[-2]


@pytest.mark.parametrize(
    ("record", "said"),
    [
        (rank(1.0, 5.0), "One of 5 cores did the work: ask for 1 core"),
        (rank(2.1, 5.0), "2 of 5 cores did the work: ask for 2 cores"),
        (rank(1.0, 5.0, peak=0.8), "(at its peak 4.0)"),
        (rank(4.9, 5.0), "All 5 cores were at work"),
        (rank(0.99, 1.0), "Its one core was at work"),
        (rank(0.5, 1.0), "It used 0.5 of 1 cores: it waits part of the time"),
        (rank(0.1, 5.0), "It mostly waited: 0.10 of 5 cores"),
        (rank(1.0, 5.0, usable=1.0), "1 usable of 5 allocated cores did all the work"),
        (rank(1.0, 5.0, elapsed_s=4.9), "Too short to say"),
    ],
)
def test_the_conclusion_fits_the_figures(record: RankRecord, said: str) -> None:
    assert said in conclude_cores(record, node([0.5], [0.5], others=0.4))


@pytest.mark.parametrize(
    ("job_id", "advice"),
    [(None, "Measure again when they rest."), ("7", "on a node of its own (--exclusive).")],
)
def test_beside_neighbours_no_request_is_advised(job_id: str | None, advice: str) -> None:
    said = conclude_cores(rank(0.9, 2.0, slurm_job_id=job_id), node([1.0], [0.5], others=1.3))
    assert "unknown: other processes held 1.3 of its 2 cores" in said
    assert advice in said
    assert "ask for" not in said


def test_what_was_too_short_is_not_blamed_on_neighbours() -> None:
    short = rank(0.9, 2.0, elapsed_s=2.0)
    assert "Too short" in conclude_cores(short, node([1.0], [0.5], others=1.3))


def test_the_text_and_the_json_show_the_same_conclusion() -> None:
    built = summarize([rank(2.1, 5.0)], [node([0.5], [0.5])])
    assert built.plain() == {"conclusion": built.conclusion, "diagnosis": None}
    assert built.conclusion in " ".join(text_of.lines(built, "results"))


def test_a_run_without_a_whole_window_says_so() -> None:
    short = rank()
    short.cpu.efficiency_peak = None
    text = "\n".join(lines_of(short, node([1.0], [1.0]), "r"))
    assert "no peak: shorter than its 10 s window" in text


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0.042, "42 ms"),
        (0.123, "0.123 s"),
        (73.14, "73.1 s"),
        (600, "10:00 min"),
        (3599.6, "1 h 0 min"),
        (8340, "2 h 19 min"),
    ],
)
def test_durations_read_as_a_person_says_them(seconds: float, said: str) -> None:
    assert format_duration(seconds) == said


def test_tables_that_differ_in_numbers_only_are_named_once() -> None:
    tables = {
        f"Adam at a.py:6: {at}.weight: with 320,{at:03} values, too small": 1 for at in range(30)
    }
    asked = RequestedRemedy("rowwise", False, {**tables, "Adam at a.py:9: it has no step": 2})
    text = " ".join(" ".join(text_of.remedy_lines([asked])).split())
    assert text == (
        "with rowwise: NOT applied: Adam at a.py:6: 0.weight: with 320,000 values, too small, and "
        "29 more like it; Adam at a.py:9: it has no step (2 times)"
    )
