"""How wrong `hpcncf predict` is: every configuration in turn is predicted from all the others."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from benchmarks.speed import DATA, hpcncf
from hpcncf.collect import collect
from hpcncf.paths import ResultPaths
from hpcncf_analysis.configurations import completed_runs
from hpcncf_analysis.predict import predict
from hpcncf_analysis.predict.model import Measured, measured
from hpcncf_analysis.predict.predict import HeldOut, score

JOB: Final = Path(__file__).parent / "predict.yaml"

Ends = tuple[float, float] | None


def interval(one: HeldOut, known: Sequence[Measured]) -> Ends:
    """As a user would get it who had not run this one: from the others' errors alone."""
    others = [other for other in known if other is not one.one]
    errors, _ = predict.predict_held_out(others)
    return predict.interval(one.one.point, others, errors)


def row(one: HeldOut, ends: Ends) -> str:
    told = f"{1000 * ends[0]:.2f} to {1000 * ends[1]:.2f}" if ends else "none"
    holds = "" if ends is None else "yes" if ends[0] <= one.one.step_s <= ends[1] else "no"
    cells = [one.one.point.label, f"{1000 * one.one.step_s:.2f}", f"{1000 * one.step_s:.2f}"]
    return f"| {' | '.join([*cells, f'{one.error:+.0%}', told, holds])} |"


def main() -> int:
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "bench-predict"
        hpcncf("data", "prepare", "frappe", "--or-synthetic", "-o", str(DATA))
        hpcncf("submit", str(JOB), "--cluster", "local", "--wait", "--results", str(folder))
        known = measured(completed_runs(collect.collect(ResultPaths(folder)).runs))
    told, refused = predict.predict_held_out(known)
    ends = [interval(one, known) for one in told]
    if not told:
        return 1
    print(f"{score(told).capitalize()}; {len(refused)} refused.\n")
    print("| held out | measured, ms a step | predicted | error | interval | holds it |")
    print("|---|---:|---:|---:|---:|---|")
    print("\n".join(row(one, each) for one, each in zip(told, ends, strict=True)))
    for one in refused:
        print(f"\n{one.label}: refused: {one.reason}.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
