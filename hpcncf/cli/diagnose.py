"""`hpcncf diagnose`: name the cause of wasted time or cores."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from hpcncf_analysis.diagnosis.evidence import Diagnosis, Finding
    from hpcncf_analysis.diagnosis.predictions import Prediction

HELP = "Name the cause of wasted time or cores."
EPILOG = """\
WHAT is a results folder, a run id, a run's folder, a record, or the output of `hpcncf run --json`.
The causes and their remedies: docs/diagnosis.md. Exit code 3: no record yet.
To try the remedies: --predict NEW.yaml, submit it to the same results, diagnose again.
example: hpcncf diagnose results/demo
"""
# More runs than that get a line each.
IN_FULL: Final = 8


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


@dataclass(frozen=True)
class Told:
    """What was asked for."""

    runs: list[tuple[str, Diagnosis]]
    """Each run's name beside its diagnosis."""
    scores: list[dict[str, Any]] = field(default_factory=list)
    """Of the predictions that the results folder keeps."""


def run(args: argparse.Namespace) -> int:
    if args.predict is not None:
        return _predict(args.what, args.predict, args.json)
    told = _diagnose(args.what, args.results)
    if args.json:
        print(json.dumps(_plain(told), indent=1))
    elif told.runs:
        print(_text(told))
    else:
        print("no run has left a record yet")
    return 0 if told.runs else 3


def _diagnose(what: str, results: Path | None) -> Told:
    from hpcncf.cli import lookup
    from hpcncf.errors import UsageError
    from hpcncf_analysis.diagnosis.predictions import diagnose_file, diagnose_folder

    path = Path(what)
    if _is_results(path):
        return _diagnose_results(path)
    if path.is_dir():
        return Told([("", diagnose_folder(path))])
    if path.is_file():
        return Told([("", diagnose_file(path))])
    if path.suffix or len(path.parts) > 1:
        raise UsageError(
            f"{what}: no such file or folder; expected a results folder, a run (its first letters "
            "or its folder), a rank's record, or what `hpcncf run --json FILE` wrote"
        )
    paths, _, found = lookup.run(what, results)
    return Told([("", diagnose_folder(paths.run(found.id).folder))])


def _is_results(path: Path) -> bool:
    return path.is_dir() and (path / "plan.json").exists()


def _diagnose_results(folder: Path) -> Told:
    from hpcncf.collect.collect import collect
    from hpcncf.paths import ResultPaths
    from hpcncf_analysis.configurations import varying_settings
    from hpcncf_analysis.diagnosis.diagnose import diagnose_results
    from hpcncf_analysis.diagnosis.predictions import score

    paths = ResultPaths(folder.resolve())
    rows = [row for row in collect(paths).runs if not row["retired"]]
    told = diagnose_results(paths, rows)
    found = [row for row in rows if row["run_id"] in told]
    apart = varying_settings(found) if found else []
    named = [(_name(row, apart), told[row["run_id"]]) for row in found]
    return Told(named, score(paths, rows))


def _name(row: dict[str, Any], apart: list[str]) -> str:
    from hpcncf_analysis.configurations import format_shape, label_settings

    return " · ".join([format_shape(row), *label_settings(row, apart).values()])


def _predict(what: str, path: Path, as_json: bool) -> int:
    """Write the job file and its predictions; the runs' diagnoses are not printed."""
    from hpcncf.errors import UsageError
    from hpcncf.paths import ResultPaths
    from hpcncf_analysis.diagnosis.predictions import predict_remedies

    if not _is_results(Path(what)):
        raise UsageError(f"--predict: {what}: expected a results folder, whose job is written anew")
    paths = ResultPaths(Path(what).resolve())
    made = predict_remedies(paths, path)
    if as_json:
        print(json.dumps([each.model_dump(mode="json") for each in made], indent=1))
    elif made:
        print(_predicted(what, path, made))
    else:
        print("no remedy that a setting applies and that is not measured yet: nothing was written")
    return 0


def _predicted(what: str, path: Path, made: Sequence[Prediction]) -> str:
    from hpcncf_analysis.diagnosis import format
    from hpcncf_analysis.diagnosis.evidence import Gain

    lines = []
    for each in made:
        expected = format.gain(Gain(each.factor, each.low, each.high, each.what))
        lines.append(f"{each.cause}: {format.settings(each.changes)}: {expected}")
    lines.append(f"{path}: measure them: hpcncf submit {path} --results {what} --wait")
    return "\n".join(lines)


def _plain(told: Told) -> dict[str, object]:
    from hpcncf_analysis.diagnosis.format import plain

    runs = [{"name": name, **plain(each)} for name, each in told.runs]
    return {"runs": runs, "predictions": told.scores}


def _text(told: Told) -> str:
    from hpcncf_analysis.diagnosis.format import scored
    from hpcncf_analysis.formatting import THIN

    many = len(told.runs) > IN_FULL
    parts = [_line(*each) for each in told.runs] if many else _in_full(told.runs)
    parts += [scored(row) for row in told.scores]
    return "\n".join(parts).replace(THIN, " ")


def _line(name: str, told: Diagnosis) -> str:
    from hpcncf_analysis.diagnosis.format import counts, verdict

    return f"{counts(told.cores)}: {told.run_id} ({name}): {verdict(told)}"


def _in_full(told: list[tuple[str, Diagnosis]]) -> list[str]:
    return ["\n".join(_block(*each)) + "\n" * (len(told) > 1) for each in told]


def _block(name: str, told: Diagnosis) -> Iterator[str]:
    from hpcncf_analysis.diagnosis.format import cost, counts, in_verdict, verdict

    named = f" ({name})" if name else ""
    yield f"{counts(told.cores)}: run {told.run_id}{named}"
    yield verdict(told)
    if told.primary:
        yield from _finding(told.primary, in_verdict(told.primary))
    for found in told.secondary:
        yield f"also {found.cause}: costs {cost(found)}"
        yield from _finding(found)
    yield from (f"mind: {each}" for each in told.alerts)
    unsaid = told.missing[told.verdict == "unknown" :]  # the first is the verdict's reason
    if unsaid:
        yield f"not known: {'; '.join(unsaid)}"


def _finding(found: Finding, said: int = 0) -> Iterator[str]:
    """Without as much of its evidence as was said already."""
    from hpcncf_analysis.diagnosis import format

    yield from (f"  {each}" for each in found.evidence[said:])
    for place in found.places:
        source = f"   {place.source}" if place.source else ""
        yield f"  {place.share:4.0%}  {place.file}:{place.line} {place.function}{source}"
        if place.advice:
            yield f"        {place.advice}"
    yield f"  remedy: {found.remedy}"
    if found.changes:
        yield f"  settings: {format.settings(found.changes)}"
    if found.gain:
        yield f"  predicted: {format.gain(found.gain)}"
