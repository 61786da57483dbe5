"""Causes of a user's own program, from what the probe inside it saw."""

from __future__ import annotations

from typing import Any

from make_evidence import command

from hpcncf.records.schema import ProgramPhase, ProgramProfile
from hpcncf_analysis.diagnosis.rules_program import find


def profile(seconds: dict[str, float], **changes: Any) -> ProgramProfile:
    """One rank, the seconds of whose phases are given; the rest is well."""
    whole = sum(seconds.values())
    plain: dict[str, Any] = {
        "program": "train.py",
        "pid": 100,
        "rank": 0,
        "ranks": 1,
        "is_worker": False,
        "python": "3.11.7",
        "torch": "2.13.0",
        "elapsed_s": whole + 2.0,
        "startup_s": 2.0,
        "imports_s": 1.5,
        "seconds": whole,
        "cpu_s": whole,
        "steps": 1000,
        "batches": 1000,
        "samples": 256_000,
        "phases": {
            name: ProgramPhase(seconds=value, waiting=0.0, entered=1000)
            for name, value in seconds.items()
        },
        "lines": [],
        "startup_lines": [],
        "loaders": [],
        "tables": [],
        "parameters": 10_000,
        "optimizer": "Adam",
        "torch_threads": 1,
        "cpus": 1,
        "main_cpu_s": whole,
        "runqueue_s": 0.0,
        "threads": [],
        "worker_busy": None,
        "gpu_busy": None,
        "samples_taken": 1000,
        "sampler_cpu_s": 0.1,
        "complete": True,
        "problems": [],
    }
    return ProgramProfile(**(plain | changes))


def test_ranks_that_the_probe_saw_only_start_have_no_cause() -> None:
    ranks = [profile({}, rank=rank, ranks=2, steps=0, elapsed_s=3.0) for rank in range(2)]
    assert find(command(program=ranks)) == []


def test_a_rank_that_is_late_is_the_straggler() -> None:
    late = profile({"forward": 90.0, "sync": 10.0}, rank=0, ranks=2)
    waits = profile({"forward": 40.0, "sync": 60.0}, rank=1, ranks=2)
    assert [found.cause for found in find(command(program=[late, waits]))] == ["straggler"]
