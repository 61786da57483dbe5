"""`hpcncf diagnose`: why runs were no faster, what that cost, and what to change."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from hpcncf_analysis.diagnosis import Diagnosis, Finding

HELP = "name why runs were no faster: the cause, its cost, the remedy and what that would bring"
EPILOG = """\
WHAT is a results folder, a run (by its first letters, or its folder), a rank's record, or what
`hpcncf run --json FILE` wrote; exit codes: 0 told; 1 an error; 2 nothing to be found there;
3 no run has left a record yet; the causes and their remedies: docs/diagnosis.md
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


def run(args: argparse.Namespace) -> int:
    told = _diagnoses(args.what, args.results)
    if args.json:
        print(json.dumps(_plain(told), indent=1))
    elif told:
        print(_text(told))
    else:
        print("no run has left a record yet")
    return 0 if told else 3


def _diagnoses(what: str, results: Path | None) -> list[tuple[str, Diagnosis]]:
    """Each run's name beside its diagnosis."""
    from hpcncf.cli import finding
    from hpcncf_analysis.diagnosis import targets

    path = Path(what)
    if path.is_dir() and (path / "plan.json").exists():
        return _of_results(path)
    if path.is_dir():
        return _named(targets.of_folder(path))
    if path.is_file():
        return _named(targets.of_file(path))
    paths, _, found = finding.run(what, results)
    return _named(targets.of_folder(paths.run(found.id).folder))


def _named(told: Diagnosis) -> list[tuple[str, Diagnosis]]:
    return [("", told)]


def _of_results(folder: Path) -> list[tuple[str, Diagnosis]]:
    from hpcncf.collect import collect
    from hpcncf.paths import ResultPaths
    from hpcncf_analysis import diagnosis, labels

    paths = ResultPaths(folder.resolve())
    rows = [row for row in collect(paths).runs if not row["retired"]]
    told = diagnosis.of_results(paths, rows)
    found = [row for row in rows if row["run_id"] in told]
    apart = labels.varying(found) if found else []
    return [(_name(row, apart), told[row["run_id"]]) for row in found]


def _name(row: dict[str, Any], apart: list[str]) -> str:
    from hpcncf_analysis import labels

    return " · ".join([labels.shape(row), *labels.settings(row, apart).values()])


def _plain(told: list[tuple[str, Diagnosis]]) -> dict[str, object]:
    from hpcncf_analysis.diagnosis import telling

    return {"diagnoses": [{"name": name, **telling.plain(each)} for name, each in told]}


def _text(told: list[tuple[str, Diagnosis]]) -> str:
    from hpcncf_analysis.words import THIN

    parts = [_line(*each) for each in told] if len(told) > IN_FULL else _in_full(told)
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
        yield from _finding(told.primary)
    for found in told.secondary:
        yield f"also {found.cause}: costs {telling.cost(found)}"
        yield from _finding(found)
    if told.missing:
        yield f"not known: {'; '.join(told.missing)}"


def _finding(found: Finding) -> Iterator[str]:
    from hpcncf_analysis.diagnosis import telling

    yield from (f"  {each}" for each in found.evidence)
    yield f"  remedy: {found.remedy}"
    if found.changes:
        yield f"  settings: {telling.settings(found.changes)}"
    if found.gain:
        yield f"  predicted: {telling.gain(found.gain)}"
