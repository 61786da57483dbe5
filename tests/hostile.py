"""Results folders with hostile values in their records, and every verb that reads them.

`python -m tests.hostile 10000` runs all verbs on so many records and prints what went wrong.
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import random
import re
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from hpcncf import cli
from hpcncf.paths import ResultPaths
from hpcncf.records.schema import (
    Claim,
    End,
    Gpu,
    GpuProcess,
    NodeRecord,
    Packed,
    ProgramLoader,
    ProgramPhase,
    ProgramProfile,
    ProgramTable,
    ProgramThread,
    Progress,
    RankRecord,
    RecordPart,
    SourceLine,
    utc_now,
    write_record,
)
from hpcncf.records.submissions import Submission, SubmittedJob
from tests import make_results
from tests.make_results import START

ESCAPE = "\x1b[31m\x1b]0;title\x07\x9b2J"
VALUES: tuple[Any, ...] = (
    *(0, -1, 1, 0.5, 1e12, 10**12, 1e15, 1e308, -1e308, 10**400, 2**63),
    *("NaN", "Infinity", "1e308", "", "x" * 50_000, "wide " * 10_000, "\n" * 1000),
    *(
        ESCAPE,
        "<script>alert(1)</script>",
        "=HYPERLINK(1)",
        "-1+cmd|x",
        "/dev/zero",
        "../../../etc",
    ),
    *("{resources.nodes}", "| a | b |\n|---|---|", "[x](javascript:alert(1))", "\ud800", "\0"),
    *(None, True, [], {}, [0], [[1e12] * 3] * 3, {"a": {"b": 1}}, [None], ["=1", ESCAPE]),
    {f"k{number}": number for number in range(2000)},
    *("0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00", "2026-01-05T12:00:00+00:00"),
)
MISSING = object()
# So many records to a folder, in the long run.
RUNS = 600
KINDS: dict[str, type[RecordPart]] = {
    "rank": RankRecord,
    "node": NodeRecord,
    "progress": Progress,
    "claim": Claim,
    "end": End,
    "submission": Submission,
}
CONTROL = r"[\x00-\x08\x0b-\x1f\x7f-\x9f]"
FORMULA = r"[=@\t]|[+-](?!\d*\.?\d+([eE][+-]?\d+)?$)"


@dataclass(frozen=True)
class Change:
    """One value of one file of a run."""

    file: str
    place: tuple[str | int, ...]
    value: Any

    def apply(self, plain: Any) -> Any:
        *above, last = self.place
        plain = at = copy(plain)
        for part in above:
            at[part] = copy(at[part])
            at = at[part]
        if self.value is MISSING:
            del at[last]
        else:
            at[last] = self.value
        return plain

    def __str__(self) -> str:
        what = "missing" if self.value is MISSING else f"{self.value!r:.60}"
        return f"{self.file}: {'.'.join(map(str, self.place))} = {what}"


def changes(files: dict[str, Any]) -> list[Change]:
    """Every value of every field of every file."""
    return [
        Change(name, place, value)
        for name, plain in files.items()
        for place in places(plain)
        for value in (*VALUES, MISSING)
    ]


def is_read(change: Change, files: dict[str, Any]) -> bool:
    """Whether the changed record is read; a refused one reaches no other code."""
    try:
        KINDS[change.file].model_validate_json(json.dumps(change.apply(files[change.file])))
    except ValidationError:
        return False
    return True


def places(plain: Any) -> Iterator[tuple[str | int, ...]]:
    """Of each field, and of the first element of each list."""
    parts: Sequence[tuple[str | int, Any]] = ()
    if isinstance(plain, dict):
        parts = [*plain.items()]
    elif isinstance(plain, list):
        parts = [(0, plain[0])] if plain else []
    for key, value in parts:
        yield (key,)
        yield from ((key, *rest) for rest in places(value))


def program() -> ProgramProfile:
    """What the probe sees of a program that waits for its input."""
    phases = {
        name: ProgramPhase(seconds=seconds, waiting=0.4, entered=200)
        for name, seconds in (("input", 40.0), ("forward", 10.0), ("backward", 20.0), ("loop", 5.0))
    }
    line = SourceLine(
        phase="input",
        file=__file__,
        line=10,
        function="__getitem__",
        share=0.9,
        own_share=0.8,
        depth=1,
    )
    return ProgramProfile(
        program="train.py",
        pid=7,
        rank=0,
        ranks=1,
        is_worker=False,
        python="3.11.2",
        torch="2.13.0",
        elapsed_s=90.0,
        startup_s=9.0,
        imports_s=5.0,
        seconds=80.0,
        cpu_s=60.0,
        steps=200,
        batches=200,
        samples=51_200,
        phases=phases,
        lines=[line],
        startup_lines=[line],
        loaders=[
            ProgramLoader(
                workers=2,
                persistent=False,
                dataset="Rows",
                batch_size=256,
                epochs=3,
                batches=200,
                evaluates=False,
            )
        ],
        tables=[ProgramTable(rows=200_000, width=32, touched=256, sparse=False)],
        parameters=6_400_000,
        optimizer="Adam",
        torch_threads=2,
        cpus=2,
        main_cpu_s=55.0,
        runqueue_s=1.0,
        threads=[ProgramThread(function="feed", file=__file__, line=1, cpu_s=3.0, seen_s=4.0)],
        worker_busy=None,
        gpu_busy=0.3,
        samples_taken=8000,
        sampler_cpu_s=0.3,
        complete=True,
        problems=["a warning"],
    )


def gpu(windows: int) -> Gpu:
    flat: list[float | None] = [0.5] * windows
    return Gpu(
        index=0,
        uuid="GPU-1",
        name="Example GPU",
        memory_total_mib=80_000.0,
        busy=flat,
        ours=flat,
        memory_mib=flat,
        ours_memory_mib=flat,
        energy_j=flat,
        sm_mhz=flat,
        throttled={"power": flat},
        processes=[GpuProcess(pid=7, ours=True, busy=0.4, memory_peak_mib=1000.0)],
    )


@dataclass
class Study:
    """A folder of runs, each as its kind leaves it, and the files that may be changed."""

    paths: ResultPaths
    files: list[dict[str, Path]] = field(default_factory=list)
    """By run: the kind of each file -> its path."""


def study(folder: Path, repeats: int) -> Study:
    """A demo of completed, failed and killed runs, with all that a record can hold."""
    paths = make_results.demo(folder, repeats=repeats)
    found = Study(paths)
    plan = make_results.plan_of(paths)
    for number, run in enumerate(plan.runs):
        make_results.leave(paths, run, windows=8)
        attempt = paths.run(run.id).attempt(1)
        rank = make_results.rank_record(run, 0)
        assert rank.training is not None
        full = rank.training.model_copy(
            update={"resumed_epoch": 0, "resumed_step": 3, "rows_per_step": 500.0, "lr": 0.001}
            | {"table_rows": 1781, "waiting_s": 0.2, "skipped_steps": 0}
        )
        rank = rank.model_copy(
            update={
                "training": full,
                "program": [program()],
                "reported": {"accuracy": 0.5, "instances_per_s": 1000.0, "note": "fine"},
                "packed": Packed(runs=[run.id], runs_per_gpu=1, mps=False),
                "warnings": ["a warning"],
            }
        )
        if number % 3 == 1:  # failed
            error = {"type": "ValueError", "message": "no", "traceback": "  File a\nValueError: no"}
            rank = rank.model_copy(update={"outcome": "failed", "exit_code": 1, "error": error})
        write_record(attempt.rank(0), rank)
        node = make_results.node_record(run, 8)
        write_record(attempt.node(0), node.model_copy(update={"gpus": [gpu(8)]}))
        write_record(attempt.progress, progress(run.id))
        codes: list[int | None] = [number % 3 % 2] * run.resources.world_size
        end = End(run_id=run.id, attempt=1, reason="exited", exit_codes=codes, ended_at=utc_now())
        write_record(attempt.end, end)
        if number % 3 == 2:  # killed: progress is all that says
            attempt.rank(0).unlink()
            attempt.end.unlink()
        submission = Submission(
            cluster="local",
            user="ann",
            host="login",
            submitted_at=(START + timedelta(seconds=number)).isoformat(),
            submitter_pid=1,
            submitter_started=1.0,
            runs=[run.id],
            jobs=[SubmittedJob(id="7", runs=[run.id], process_started=1.0)],
        )
        path = paths.submissions / f"{number:04}.json"
        write_record(path, submission)
        kinds = {"claim": attempt.claim, "progress": attempt.progress, "node": attempt.node(0)}
        kinds |= {"rank": attempt.rank(0), "end": attempt.end, "submission": path}
        found.files.append({kind: path for kind, path in kinds.items() if path.exists()})
    return found


def progress(run_id: str) -> Progress:
    return Progress(
        run_id=run_id,
        attempt=1,
        updated_at=utc_now(),
        elapsed_s=50.0,
        phase="training",
        epoch=1,
        epochs=3,
        step=100,
        evaluated=None,
        steps_per_epoch=328,
        reported={"accuracy": 0.4},
        instances_per_s=50_000.0,
        cpu_efficiency=0.9,
        cores_usable=1.0,
        cores_allocated=2.0,
        cpu_s=45.0,
        phases={"input": 0.6, "forward": 0.2},
    )


def damage(of: Study, wanted: Sequence[Change]) -> list[Change]:
    """Apply a change to each run, as far as they go; the changes that found their file."""
    done, left = [], list(wanted)
    for files in of.files:
        fitting = next((each for each in left if each.file in files), None)
        if fitting is None:
            continue
        left.remove(fitting)
        path = files[fitting.file]
        try:
            plain = fitting.apply(json.loads(path.read_text()))
        except (KeyError, IndexError, TypeError):
            continue  # this run's file lacks the place
        path.write_text(json.dumps(plain))
        done.append(fitting)
    return done


@dataclass(frozen=True)
class Outcome:
    """How one verb went."""

    arguments: list[str]
    code: int
    output: str
    seconds: float
    """Of CPU time."""
    error: str = ""
    """A traceback."""

    def problems(self) -> list[str]:
        verb = " ".join(self.arguments[:1] + [word for word in self.arguments if word[:2] == "--"])
        found = []
        if self.error:
            found.append(f"{verb}: {self.error}")
        elif self.code not in (0, 1, 2, 3, 4):
            found.append(f"{verb}: exit code {self.code}")
        if re.search(CONTROL, self.output):
            found.append(f"{verb}: control characters in its output")
        if len(self.output) > 20_000_000:
            found.append(f"{verb}: printed {len(self.output):,} characters")
        if self.seconds > 60:
            found.append(f"{verb}: took {self.seconds:.0f} s")
        return found


def call(*arguments: str) -> Outcome:
    """One verb in this process."""
    out, beside, error = io.StringIO(), io.StringIO(), ""
    began, code = time.process_time(), 1
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(beside):
        try:
            code = cli.main(arguments)
        except SystemExit as ended:
            code = int(ended.code or 0)
        except BaseException:
            error = traceback.format_exc()
    if "--json" in arguments and not error:
        json.loads(out.getvalue())
    output = out.getvalue() + beside.getvalue()
    return Outcome(list(arguments), code, output, time.process_time() - began, error)


def read_everything(paths: ResultPaths, run_id: str, other: ResultPaths) -> list[str]:
    """What every verb that reads does wrong with the folder."""
    folder = str(paths.folder)
    calls = [
        ("status", folder, "--all"),
        ("status", folder, "--json"),
        ("status", folder, "--failures"),
        ("logs", run_id, "--results", folder),
        ("collect", folder),
        ("collect", folder, "--json"),
        ("diagnose", folder),
        ("diagnose", folder, "--json"),
        ("diagnose", run_id, "--results", folder),
        ("compare", str(other.folder), folder),
        ("report", folder),
    ]
    problems = []
    for arguments in calls:
        problems += call(*arguments).problems()
    return problems + files_problems(paths)


def files_problems(paths: ResultPaths) -> list[str]:
    """Control characters, formulas and tags in what `collect` and `report` wrote."""
    found = []
    for path in [*paths.tables.glob("*.csv"), *paths.report.glob("report.*")]:
        text = path.read_text()
        if re.search(CONTROL, text):
            found.append(f"{path.name}: control characters")
        if "<script>alert" in text and path.suffix == ".html":
            found.append(f"{path.name}: a tag of a record")
        if len(text) > 30_000_000:
            found.append(f"{path.name}: {len(text):,} characters")
    csv.field_size_limit(10**9)
    for path in paths.tables.glob("*.csv"):
        with path.open(newline="") as table:
            cells = {cell for row in csv.reader(table) for cell in row}
        formulas = [cell for cell in cells if re.match(FORMULA, cell)]
        found += [f"{path.name}: a formula: {cell:.60}" for cell in formulas]
    return found


def attack(
    wanted: Sequence[Change], folder: Path, runs: int, watch: bool = False
) -> Iterator[tuple[list[Change], str]]:
    """The changes in studies of so many runs each; which changes stood in a study that failed."""
    left, read = list(wanted), 0
    intact = study(folder / "intact", 1)
    while left:
        now = study(folder / f"study-{len(left)}", runs // len(make_results.POINTS))
        done = damage(now, left[:runs])
        ids = [run.id for run in make_results.plan_of(now.paths).runs]
        for problem in read_everything(now.paths, ids[0], intact.paths):
            yield done, problem
        left, read = left[runs:], read + len(done)
        if watch:
            print(f"{read:,} changed records, {len(left):,} left", flush=True)


def main(number: int, seed: int) -> None:
    """So many changed records, those first that are read."""
    with tempfile.TemporaryDirectory() as made:
        files = files_of(study(Path(made) / "template", 1))
        every = changes(files)
        random.Random(seed).shuffle(every)
        read = {number for number, change in enumerate(every) if is_read(change, files)}
        print(f"{len(every):,} changes, {len(read):,} are read", flush=True)
        refused = [change for number, change in enumerate(every) if number not in read]
        wanted = ([every[number] for number in sorted(read)] + refused)[:number]
        began, seen = time.monotonic(), dict[str, int]()
        for done, problem in attack(wanted, Path(made), RUNS, watch=True):
            key = problem.splitlines()[-1][:200] if "Traceback" in problem else problem[:120]
            seen[key] = seen.get(key, 0) + 1
            if seen[key] == 1:
                print(problem[-3000:], *map(str, done[:60]), sep="\n  ", flush=True)
        print(f"{time.monotonic() - began:.0f} s, problems: {seen}")


def files_of(of: Study) -> dict[str, Any]:
    """A template of each kind of file."""
    found: dict[str, Any] = {}
    for files in of.files:
        for kind, path in files.items():
            found.setdefault(kind, json.loads(path.read_text()))
    return found


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0)
