"""How wrong `hpcncf predict` is: it sees the runs of `predict.yaml` and is asked for those of
`predict_unseen.yaml`, which no law was ever fitted or tried on. Refusals and misses are counted."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any, Final, TypeGuard

from benchmarks import results
from benchmarks.verbs import FRAPPE_FOLDER, hpcncf
from hpcncf.collect.collect import collect
from hpcncf.paths import ResultPaths
from hpcncf_analysis.configurations import completed_runs
from hpcncf_analysis.formatting import format_interval, format_number, format_percent
from hpcncf_analysis.predict import (
    Measured,
    Prediction,
    Refusal,
    asked_points,
    measured_points,
    predict,
)

HERE: Final = Path(__file__).parent
LARGER: Final = FRAPPE_FOLDER.parent / "larger-tables"
"""As many rows and columns as Frappe, with tables four times as large."""
SHAPE: Final = ("--users", "2600", "--items", "4500", "--rows", "83731", "--context", "21")


def runs_of(job: str, folder: Path) -> list[Mapping[str, Any]]:
    """The completed runs of a job of this folder."""
    results = folder / job
    path = str(HERE / f"{job}.yaml")
    hpcncf("submit", path, "--cluster", "local", "--wait", "--results", str(results))
    return completed_runs(collect(ResultPaths(results)).runs)


def was_predicted(answer: Prediction | Refusal) -> TypeGuard[Prediction]:
    return isinstance(answer, Prediction) and not answer.runs


def row(answer: Prediction | Refusal, truth: Measured) -> list[str]:
    cells = [answer.label, format_number(truth.seconds_per_epoch)]
    if was_predicted(answer):
        error = answer.seconds_per_epoch / truth.seconds_per_epoch - 1
        ends = format_interval(answer.low, answer.high, format_number) or "none"
        cells += [format_number(answer.seconds_per_epoch), f"{error:+.0%}", ends]
        cells.append({True: "yes", False: "no", None: ""}[holds(answer, truth)])
    else:
        cells += [answer.reason if isinstance(answer, Refusal) else "it was run", "", "", ""]
    return cells


def holds(answer: Prediction, truth: Measured) -> bool | None:
    """Whether the interval holds what was measured; None without an interval."""
    if answer.low is None or answer.high is None:
        return None
    return answer.low <= truth.seconds_per_epoch <= answer.high


def main() -> int:
    hpcncf("data", "prepare", "frappe", "--or-synthetic", "-o", str(FRAPPE_FOLDER))
    hpcncf("data", "prepare", "synthetic", *SHAPE, "-o", str(LARGER))
    with tempfile.TemporaryDirectory() as temporary:
        seen = runs_of("predict", Path(temporary))
        unseen = runs_of("predict_unseen", Path(temporary))
    truths = {one.point.key: one for one in measured_points(unseen)}
    answers = predict(seen, unseen)
    keys = [point.key for point in asked_points(seen, unseen)]
    pairs = [(answer, truths[key]) for answer, key in zip(answers, keys, strict=True)]
    made = [(answer, truth) for answer, truth in pairs if was_predicted(answer)]
    if not made:
        return 1
    errors = [abs(a.seconds_per_epoch / truth.seconds_per_epoch - 1) for a, truth in made]
    held = [held for pair in made if (held := holds(*pair)) is not None]
    print(
        f"Of {len(pairs)} configurations that no law has seen, {len(made)} were predicted and "
        f"{len(pairs) - len(made)} refused. Median error {format_percent(median(errors))}, largest "
        f"{format_percent(max(errors))}; {sum(held)} of {len(held)} intervals hold what was "
        "measured.\n"
    )
    columns = ["configuration", "measured, s an epoch:", "predicted:", "error:", "interval:"]
    print(*results.table([*columns, "holds it"], (row(*pair) for pair in pairs)), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
