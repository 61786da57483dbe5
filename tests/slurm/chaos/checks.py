"""What must hold of a results folder, whatever broke while its runs were at work."""

from __future__ import annotations

import csv
import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from slurm.chaos import work
from slurm.chaos.watching import Look
from slurm.conftest import ENDED, User

# A run of which this was said must not be seen at work later, unless it was submitted again.
GONE: Final = (ENDED | {"node_failed"}) - {"completed"}
AT_WORK: Final = ("pending", "running", "completed")


def nothing_was_misread(seen: Sequence[Look]) -> None:
    """`status` never failed, and called no run ended that was not."""
    assert seen, "status was never asked"
    assert not (wrong := [look.wrong for look in seen if look.wrong]), wrong[0]
    ended: dict[str, dict[str, Any]] = {}
    misread = []
    for run in (run for look in seen for run in look.runs):
        before = ended.get(run["folder"])
        if before and run["state"] in AT_WORK:
            misread.append(f"{run['folder']}: {_short(before)}, and later {_short(run)}")
        if run["state"] in GONE:
            ended.setdefault(run["folder"], run)
        else:
            ended.pop(run["folder"], None)
    assert not misread, "\n".join(misread)


def _short(run: dict[str, Any]) -> str:
    return f"{run['state']} (attempt {run['attempt']}, {run['reason']}, job {run['job_id']})"


def each_run_is_complete_once(user: User) -> None:
    for run in work.runs(user):
        complete = [attempt for attempt in _attempts(user, run["folder"]) if _completed(attempt)]
        assert len(complete) == 1, f"{run['folder']}: complete: {[path.name for path in complete]}"


def parameters_are(user: User, undisturbed: Mapping[tuple[int, int], str]) -> None:
    for record in _complete_records(user):
        key = (record["world_size"], record["run"]["training"]["seed"])
        got = f"run {record['run_id']}, attempt {record['attempt']}"
        assert record["training"]["model_sha256"] == undisturbed[key], got


def what_was_saved_was_used(saved: Mapping[Path, int]) -> None:
    """An attempt that began when there was a checkpoint went on from it, or says why not."""
    for run, last in saved.items():
        for attempt in filter(_completed, run.glob("attempt-*")):
            record = json.loads((attempt / "rank-0.json").read_text())
            went_on = record["training"]["resumed_step"] or record["training"]["resumed_epoch"]
            why_not = [said for said in record["warnings"] if "not used" in said]
            got = f"{attempt}: began anew, though attempt {last} had left a checkpoint"
            assert record["attempt"] <= last or went_on or why_not, got


def nobody_else_was_harmed(user: User, hit: set[str]) -> None:
    """An attempt that is not complete was hit, in a job that a fault was aimed at, or was slow."""
    if "all" in hit:
        return
    for attempt in user.folder.glob("results/*/runs/*/attempt-*"):
        job = json.loads((attempt / "claim.json").read_text())["slurm_job_id"]
        well = _completed(attempt) or _out_of_time(attempt) or job in hit
        assert well, f"{attempt}: job {job} was not hit"


def _out_of_time(attempt: Path) -> bool:
    ends = [json.loads(file.read_text())["reason"] for file in attempt.glob("end.json")]
    ranks = [json.loads(file.read_text()) for file in attempt.glob("rank-*.json")]
    warned = any("SIGUSR2" in rank["error"]["message"] for rank in ranks if rank["error"])
    return warned or "timeout" in ends


def nothing_is_left_over(user: User) -> None:
    """No file that was being written, no checkpoint, no attempt without its claim."""
    runs = [*user.folder.glob("results/*/runs/*/*"), *user.folder.glob("results/*/runs/*/*/*")]
    left = [path for path in runs if path.name.startswith((".", "checkpoint"))]
    left = [path for path in left if path.name != "checkpoints"]
    assert not left, left


def tables_add_up(user: User) -> None:
    for results in sorted(user.folder.glob("results/*")):
        done = user.attempt("collect", results)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "skipped" not in done.stderr, done.stderr
        tried = defaultdict(list)
        for row in _rows(results / "tables/attempts.csv"):
            tried[row["run_id"]].append(row)
        for run in _rows(results / "tables/runs.csv"):
            rows = tried[run["run_id"]]
            assert int(run["attempts"]) == len(rows)
            for total, part in (("elapsed_all_s", "elapsed_s"), ("core_hours_all", "core_hours")):
                added = sum(float(row[part] or 0) for row in rows)
                assert abs(float(run[total]) - added) < 0.01, f"{run['run_id']}: {total}"


def _attempts(user: User, run: str) -> list[Path]:
    return sorted(user.folder.glob(f"{run}/attempt-*"))


def _completed(attempt: Path) -> bool:
    ranks = [json.loads(file.read_text()) for file in attempt.glob("rank-*.json")]
    whole = bool(ranks) and len(ranks) == ranks[0]["world_size"]
    return whole and all(rank["outcome"] == "completed" for rank in ranks)


def _complete_records(user: User) -> list[dict[str, Any]]:
    attempts = filter(_completed, user.folder.glob("results/*/runs/*/attempt-*"))
    records = [json.loads((attempt / "rank-0.json").read_text()) for attempt in attempts]
    return [record for record in records if record["training"]]


def _rows(table: Path) -> list[dict[str, str]]:
    with table.open(newline="") as lines:
        return list(csv.DictReader(lines))
