"""`hpcncf diagnose`: why runs were no faster, what that cost, and what to change."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from hpcncf_analysis.diagnosis import Diagnosis, Finding
    from hpcncf_analysis.diagnosis.predictions import Prediction

HELP = "name why runs were no faster: the cause, its cost, the remedy and what that would bring"
EPILOG = """\
WHAT is a results folder, a run (by its first letters, or its folder), a rank's record, or what
`hpcncf run --json FILE` wrote; exit codes: 0 told; 1 an error; 2 nothing to be found there;
3 no run has left a record yet; the causes and their remedies: docs/diagnosis.md
To try the remedies: --predict NEW.yaml, submit that to the same results, then diagnose again.
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
    told = _told(args.what, args.results)
    if args.json:
        print(json.dumps(_plain(told), indent=1))
    elif told.runs:
        print(_text(told))
    else:
        print("no run has left a record yet")
    return 0 if told.runs else 3


def _told(what: str, results: Path | None) -> Told:
    from hpcncf.cli import finding
    from hpcncf.errors import UsageError
    from hpcncf_analysis.diagnosis import targets

    path = Path(what)
    if _is_results(path):
        return _of_results(path)
    if path.is_dir():
        return Told([("", targets.of_folder(path))])
    if path.is_file():
        return Told([("", targets.of_file(path))])
    if path.suffix or len(path.parts) > 1:
        raise UsageError(
            f"{what}: no such file or folder; expected a results folder, a run (its first letters "
            "or its folder), a rank's record, or what `hpcncf run --json FILE` wrote"
        )
    paths, _, found = finding.run(what, results)
    return Told([("", targets.of_folder(paths.run(found.id).folder))])


def _is_results(path: Path) -> bool:
    return path.is_dir() and (path / "plan.json").exists()


def _of_results(folder: Path) -> Told:
    from hpcncf.collect import collect
    from hpcncf.paths import ResultPaths
    from hpcncf_analysis import diagnosis, labels

    paths = ResultPaths(folder.resolve())
    rows = [row for row in collect(paths).runs if not row["retired"]]
    told = diagnosis.of_results(paths, rows)
    found = [row for row in rows if row["run_id"] in told]
    apart = labels.varying(found) if found else []
    named = [(_name(row, apart), told[row["run_id"]]) for row in found]
    return Told(named, diagnosis.score(paths, rows))


def _name(row: dict[str, Any], apart: list[str]) -> str:
    from hpcncf_analysis import labels

    return " · ".join([labels.shape(row), *labels.settings(row, apart).values()])


def _predict(what: str, path: Path, as_json: bool) -> int:
    """Write the job file and its predictions; the runs' diagnoses are not printed."""
    from hpcncf.errors import UsageError
    from hpcncf.paths import ResultPaths
    from hpcncf_analysis.diagnosis import predictions

    if not _is_results(Path(what)):
        raise UsageError(f"--predict: {what}: expected a results folder, whose job is written anew")
    paths = ResultPaths(Path(what).resolve())
    made = predictions.make(paths, path)
    if as_json:
        print(json.dumps([each.model_dump(mode="json") for each in made], indent=1))
    elif made:
        print(_predicted(what, path, made))
    else:
        print("no remedy that a setting applies and that is not measured yet: nothing was written")
    return 0


def _predicted(what: str, path: Path, made: Sequence[Prediction]) -> str:
    from hpcncf_analysis.diagnosis import telling
    from hpcncf_analysis.diagnosis.finding import Gain

    lines = []
    for each in made:
        expected = telling.gain(Gain(each.factor, each.low, each.high, each.what))
        lines.append(f"{each.cause}: {telling.settings(each.changes)}: {expected}")
    lines.append(f"{path}: measure them: hpcncf submit {path} --results {what} --wait")
    return "\n".join(lines)


def _plain(told: Told) -> dict[str, object]:
    from hpcncf_analysis.diagnosis import telling

    runs = [{"name": name, **telling.plain(each)} for name, each in told.runs]
    return {"runs": runs, "predictions": told.scores}


def _text(told: Told) -> str:
    from hpcncf_analysis.diagnosis import telling
    from hpcncf_analysis.words import THIN

    many = len(told.runs) > IN_FULL
    parts = [_line(*each) for each in told.runs] if many else _in_full(told.runs)
    parts += [telling.scored(row) for row in told.scores]
    return "\n".join(parts).replace(THIN, " ")


def _line(name: str, told: Diagnosis) -> str:
    from hpcncf_analysis.diagnosis import telling

    return f"{telling.counts(told.cores)}: {told.run_id} ({name}): {telling.verdict(told)}"


def _in_full(told: list[tuple[str, Diagnosis]]) -> list[str]:
    return ["\n".join(_block(*each)) + "\n" * (len(told) > 1) for each in told]


def _block(name: str, told: Diagnosis) -> Iterator[str]:
    from hpcncf_analysis.diagnosis import telling

    named = f" ({name})" if name else ""
    yield f"{telling.counts(told.cores)}: run {told.run_id}{named}"
    yield telling.verdict(told)
    if told.primary:
        yield from _finding(told.primary, telling.in_verdict(told.primary))
    for found in told.secondary:
        yield f"also {found.cause}: costs {telling.cost(found)}"
        yield from _finding(found)
    yield from (f"mind: {each}" for each in told.alerts)
    unsaid = told.missing[told.verdict == "unknown" :]  # the first is the verdict's reason
    if unsaid:
        yield f"not known: {'; '.join(unsaid)}"


def _finding(found: Finding, said: int = 0) -> Iterator[str]:
    """Without as much of its evidence as was said already."""
    from hpcncf_analysis.diagnosis import telling

    yield from (f"  {each}" for each in found.evidence[said:])
    yield f"  remedy: {found.remedy}"
    if found.changes:
        yield f"  settings: {telling.settings(found.changes)}"
    if found.gain:
        yield f"  predicted: {telling.gain(found.gain)}"
