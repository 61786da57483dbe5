"""`hpcncf diagnose`: name the cause of wasted time or cores."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from hpcncf.errors import UsageError, printable

if TYPE_CHECKING:
    from hpcncf_analysis.diagnosis.evidence import Diagnosis

EPILOG = """\
WHAT is a results folder, a run id, a run's folder, a record, or the output of `hpcncf run --json`.
The causes and their remedies: docs/diagnosis.md. Exit code 3: no record yet.
To try the remedies: --predict NEW.yaml, submit it to the same results, diagnose again.
example: hpcncf diagnose results/demo
"""
# More runs than that get a line each.
IN_FULL: Final = 8

Named = list[tuple[str, "Diagnosis"]]
"""Each run's name beside its diagnosis."""
Scores = list[dict[str, Any]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("what", metavar="WHAT", help="a results folder, a run, or a record")
    parser.add_argument(
        "--results", type=Path, metavar="DIR", help="the run's results folder; default: ./results/*"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")
    parser.add_argument(
        "--predict",
        type=Path,
        metavar="JOB.yaml",
        help="write the job with a point for every remedy that a setting applies, and keep what is "
        "expected of each in RESULTS/predictions",
    )


def run(args: argparse.Namespace) -> int:
    from hpcncf_analysis.diagnosis import format
    from hpcncf_analysis.formatting import THIN

    if args.predict is not None:
        return _predict(args.what, args.predict, args.json)
    diagnoses, scores = _diagnose(args.what, args.results)
    if args.json:
        runs = [{"name": name, **format.plain(each)} for name, each in diagnoses]
        print(json.dumps({"runs": runs, "predictions": scores}, indent=1))
    elif diagnoses:
        lines = [line for each in diagnoses for line in _describe(*each, len(diagnoses))]
        print(printable("\n".join([*lines, *map(format.score, scores)]).replace(THIN, " ")))
    else:
        print("no run has left a record yet")
    return 0 if diagnoses else 3


def _predict(what: str, path: Path, as_json: bool) -> int:
    """Write the job file and its predictions; the runs' diagnoses are not printed."""
    from hpcncf.paths import ResultPaths
    from hpcncf_analysis.diagnosis import format
    from hpcncf_analysis.diagnosis.evidence import Gain
    from hpcncf_analysis.diagnosis.predictions import predict_remedies

    if not (Path(what) / "plan.json").exists():
        raise UsageError(f"--predict: {what}: expected a results folder")
    made = predict_remedies(ResultPaths(Path(what).resolve()), path)
    if as_json:
        print(json.dumps([each.model_dump(mode="json") for each in made], indent=1))
    elif made:
        for each in made:
            expected = format.gain(Gain(each.factor, each.low, each.high, each.what))
            print(f"{each.cause}: {format.settings(each.changes)}: {expected}")
        print(f"{path}: measure them: hpcncf submit {path} --results {what} --wait")
    else:
        print("no remedy that a setting applies and that is not measured yet: nothing was written")
    return 0


def _diagnose(what: str, results: Path | None) -> tuple[Named, Scores]:
    """The diagnoses, and the scores of the predictions that a results folder keeps."""
    from hpcncf.cli import lookup
    from hpcncf_analysis.diagnosis.diagnose import diagnose_file, diagnose_folder

    path = Path(what)
    if (path / "plan.json").exists():
        return _diagnose_results(path)
    if path.is_dir():
        return [("", diagnose_folder(path))], []
    if path.is_file():
        return [("", diagnose_file(path))], []
    if path.suffix or len(path.parts) > 1:
        raise UsageError(
            f"{what}: no such file or folder; expected a results folder, a run (its first letters "
            "or its folder), a rank's record, or what `hpcncf run --json FILE` wrote"
        )
    paths, _, found = lookup.run(what, results)
    return [("", diagnose_folder(paths.run(found.id).folder))], []


def _diagnose_results(folder: Path) -> tuple[Named, Scores]:
    from hpcncf.collect.collect import collect
    from hpcncf.paths import ResultPaths
    from hpcncf_analysis.configurations import format_shape, label_settings, varying_settings
    from hpcncf_analysis.diagnosis.diagnose import diagnose_results
    from hpcncf_analysis.diagnosis.predictions import read_predictions, score

    paths = ResultPaths(folder.resolve())
    rows = [row for row in collect(paths).runs if not row["retired"]]
    diagnoses = diagnose_results(paths, rows)
    found = [row for row in rows if row["run_id"] in diagnoses]
    varying = varying_settings(found) if found else []
    names = [" · ".join([format_shape(r), *label_settings(r, varying).values()]) for r in found]
    pairs = [(name, diagnoses[r["run_id"]]) for name, r in zip(names, found, strict=True)]
    return pairs, score(read_predictions(paths), rows)


def _describe(name: str, diagnosis: Diagnosis, number: int) -> Iterator[str]:
    """The lines of one of so many runs."""
    from hpcncf_analysis.diagnosis.format import counts, describe, disturbance, headline, verdict

    named = f" ({name})" if name else ""
    if number > IN_FULL:
        line = f"{counts(diagnosis.cores)}: {diagnosis.run_id}{named}: {verdict(diagnosis)}"
        yield line
        return
    yield f"{counts(diagnosis.cores)}: run {diagnosis.run_id}{named}"
    if disturbed := disturbance(diagnosis):
        yield f"disturbed: {disturbed}"
    yield verdict(diagnosis)
    if diagnosis.primary:
        yield from (f"  {line}" for line in describe(diagnosis.primary))
    for finding in diagnosis.secondary:
        yield f"also {headline(finding)}"
        yield from (f"  {line}" for line in describe(finding))
    yield from (f"warning: {each}" for each in diagnosis.alerts)
    unknown = diagnosis.missing[diagnosis.verdict == "unknown" :]  # the verdict has the first
    if unknown:
        yield f"not known: {'; '.join(unknown)}"
    if number > 1:
        yield ""
