"""What `hpcncf diagnose --predict` expects of each remedy, and what the A/B run then measures.

Every study is one job on one data shape: it is run three times and diagnosed, the remedies' job
file and the predictions are written, and the remedies are run three times. A prediction counts as
right where it is off by a quarter of the measured factor at most. On two quiet cores.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml

from benchmarks.verbs import VerbFailed, Verbs, end_in_order

LIMIT_S: Final = 600.0
REPEATS: Final = 3
"""Before and after: a single run's phases would make a single run's prediction."""

DATA: Final[Mapping[str, str]] = {
    "Frappe's": "--like frappe",
    "MovieLens 100K's": "--users 943 --items 1682 --rows 99057",
    "wide": "--users 150000 --items 60000 --rows 150000 --test-negatives 1",
    "half as wide": "--users 75000 --items 30000 --rows 100000 --test-negatives 1",
    "catalogue": "--users 3000 --items 40000 --rows 60000",
    "few rows": "--users 6000 --items 1000 --rows 12000",
    "fewer rows": "--users 2000 --items 2000 --rows 8000",
    "small catalogue": "--users 6000 --items 12000 --rows 60000",
}
"""Shape of the made data -> how it is prepared."""


@dataclass(frozen=True)
class Study:
    """A job whose remedy is tried."""

    question: str
    shape: str
    settings: Mapping[str, Any]
    """Dotted, as in `-s`."""

    @property
    def job(self) -> dict[str, Any]:
        job: dict[str, Any] = {"name": "study", "resources": {"mem_gb": 4, "timeout_min": 4}}
        for dotted, value in self.settings.items():
            section, key = dotted.split(".")
            job.setdefault(section, {})[key] = value
        return job


@dataclass(frozen=True)
class Outcome:
    """What came of a study: a row for each remedy of the score, or why there is none."""

    study: Study
    rows: Sequence[Mapping[str, Any]] = field(default_factory=tuple)
    problem: str | None = None


ROWWISE: Final = {"training.engine": "rowwise"}
NATIVE: Final = {"training.engine": "native"}
FUSED: Final = {"training.adam": "fused"}
UNSAVED: Final = {"training.checkpoint_every": 0}
UNTESTED: Final = {"training.evaluation": "none"}
BARE: Final = UNSAVED | UNTESTED
ONE_BY_ONE: Final = UNSAVED | {"training.loader": "per_sample"}
IDLE: Final = UNSAVED | {"resources.cpus_per_task": 2, "training.threads": 1}
WORKED: Final = (
    IDLE
    | ROWWISE
    | UNTESTED
    | {
        "training.loader": "batched",
        "training.persistent_workers": False,
        "training.global_batch_size": 4096,
        "training.epochs": 60,
    }
)
RANKS: Final = UNSAVED | {"resources.tasks_per_node": 2, "training.epochs": 1}
FULL: Final = UNSAVED | {"training.evaluation": "full"}
SAVED: Final = UNTESTED | NATIVE

STUDIES: Final = [
    Study("loader", "Frappe's", ONE_BY_ONE | {"training.epochs": 2}),
    Study("loader", "MovieLens 100K's", ONE_BY_ONE | ROWWISE | {"training.epochs": 2}),
    Study("dense Adam", "wide", BARE | {"training.max_steps": 150}),
    Study("dense Adam", "half as wide", BARE | {"training.max_steps": 240}),
    Study("fused Adam", "wide", BARE | FUSED | {"training.max_steps": 400}),
    Study("fused Adam", "half as wide", BARE | FUSED | {"training.max_steps": 700}),
    Study("idle core", "Frappe's", IDLE | NATIVE | {"training.epochs": 60}),
    Study("idle core", "MovieLens 100K's", IDLE | ROWWISE | {"training.epochs": 6}),
    Study("workers", "few rows", WORKED | {"training.num_workers": 1}),
    Study("workers", "fewer rows", WORKED | {"training.num_workers": 2}),
    Study("sync", "Frappe's", RANKS | {"training.global_batch_size": 256, "training.epochs": 2}),
    Study("sync", "MovieLens 100K's", RANKS | {"training.global_batch_size": 128}),
    Study("evaluation", "catalogue", FULL | NATIVE | {"training.epochs": 3}),
    Study("evaluation", "small catalogue", FULL | ROWWISE | {"training.epochs": 1}),
    Study("checkpoints", "wide", SAVED | {"training.epochs": 8}),
    Study("checkpoints", "half as wide", SAVED | {"training.epochs": 16}),
]


def outcome(study: Study, folder: Path) -> Outcome:
    """Run it, predict, run what was predicted. A failing study is told and stops nothing."""
    verbs = Verbs(folder, LIMIT_S)
    data = folder / "data" / study.shape.replace(" ", "-").replace("'", "")
    results = Path(tempfile.mkdtemp(dir=folder, prefix="study-"))
    before, after = results.with_suffix(".yaml"), results.with_suffix(".after.yaml")
    try:
        if not (data / "manifest.json").exists():
            verbs("data", "prepare", "synthetic", *DATA[study.shape].split(), "-o", str(data))
        whole = study.job | {"data": {"path": str(data)}, "repeats": REPEATS}
        before.write_text(yaml.safe_dump(whole))
        verbs.submit(before, results)
        verbs("diagnose", str(results), "--predict", str(after))
        if not after.exists():
            return Outcome(study, problem=f"no remedy: {diagnosis(verbs, results)}")
        problem = failure(verbs, after, results)
        told = json.loads(verbs("diagnose", str(results), "--json"))
    except (VerbFailed, ValueError, OSError) as error:
        return Outcome(study, problem=str(error))
    return Outcome(study, told["predictions"], problem)


def failure(verbs: Verbs, job: Path, results: Path) -> str | None:
    """Why not all of the runs are complete; those that are can be compared."""
    try:
        verbs.submit(job, results)
    except VerbFailed as problem:
        return str(problem)
    return None


def diagnosis(verbs: Verbs, results: Path) -> str:
    """The first run's, in a word."""
    first = json.loads(verbs("diagnose", str(results), "--json"))["runs"][0]
    return str(first["primary"]["cause"] if first["primary"] else first["verdict"])


def page(outcomes: Sequence[Outcome]) -> Iterator[str]:
    rows = [row for each in outcomes for row in each.rows if row["within"] is not None]
    right = sum(row["within"] for row in rows)
    if rows:
        yield f"Within 25 %: {right} of {len(rows)} remedies ({right / len(rows):.0%})."
        yield ""
    yield "| study | data | cause | settings | of | predicted | measured | within 25 % |"
    yield "|---|---|---|---|---|---:|---:|---|"
    for each in outcomes:
        yield from _rows(each)


def _rows(outcome: Outcome) -> Iterator[str]:
    named = f"| {outcome.study.question} | {outcome.study.shape}"
    if outcome.problem:
        yield f"{named} | | {outcome.problem.replace('|', '/')} | | | | |"
    for row in outcome.rows:
        changes = ", ".join(f"{key.split('.')[1]} {value}" for key, value in row["changes"].items())
        predicted = factors(row["predicted"], row["low"], row["high"])
        measured = factors(row["measured"], row["measured_low"], row["measured_high"])
        within = {True: "yes", False: "**no**", None: "not measured"}[row["within"]]
        cells = (row["cause"], changes, row["what"], predicted, measured, within)
        yield f"{named} | {' | '.join(cells)} |"


def factors(middle: float | None, low: float | None, high: float | None) -> str:
    """`2.40× [2.10–2.70]`."""
    if middle is None:
        return ""
    return f"{middle:.2f}×" + ("" if low is None or high is None else f" [{low:.2f}–{high:.2f}]")


def arguments() -> argparse.Namespace:
    asking = argparse.ArgumentParser(prog="python -m benchmarks.predictions", description=__doc__)
    asking.add_argument("--keep", type=Path, metavar="FOLDER", help="for data and results")
    asking.add_argument("questions", nargs="*", help="default: all studies")
    return asking.parse_args()


def main() -> int:
    """Print the table; how far it is goes to standard error."""
    asked = arguments()
    end_in_order()
    wanted = [each for each in STUDIES if not asked.questions or each.question in asked.questions]
    outcomes = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = (asked.keep or Path(temporary)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        for study in wanted:
            began = time.monotonic()
            outcomes.append(outcome(study, folder))
            took = time.monotonic() - began
            told = outcomes[-1].problem or f"{len(outcomes[-1].rows)} remedies"
            named = f"{study.question}, {study.shape}"
            print(f"{named}: {told}, {took:.0f} s", file=sys.stderr, flush=True)
    print(*page(outcomes), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
