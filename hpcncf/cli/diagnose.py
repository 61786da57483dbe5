"""`hpcncf diagnose`: name the cause of wasted time or cores."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from hpcncf.errors import UsageError, printable

if TYPE_CHECKING:
    from hpcncf_analysis.diagnosis.evidence import Diagnosis

EPILOG = """\
WHAT is a Slurm job id (123, 123_4), a results folder, a run id, a run's folder, a record, or the
output of `hpcncf run --json`. Of a job it prints the page that `hpcncf run` left in its log.
The causes and their remedies: docs/diagnosis.md. Exit code 3: no record yet.
example: hpcncf diagnose results/demo
"""
# More runs than that get a line each.
IN_FULL: Final = 8

Named = list[tuple[str, "Diagnosis"]]
"""Each run's name beside its diagnosis."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "what", metavar="WHAT", help="a job id, a results folder, a run, or a record"
    )
    parser.add_argument(
        "--results", type=Path, metavar="DIR", help="the run's results folder; default: ./results/*"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")


def run(args: argparse.Namespace) -> int:
    from hpcncf.cli import job_id
    from hpcncf.cli.output import print_json
    from hpcncf.collect.unfinished import is_of_probe
    from hpcncf_analysis.diagnosis import format
    from hpcncf_analysis.formatting import THIN

    if job_id.is_job_id(args.what) and not Path(args.what).exists():
        found = job_id.find_attempts(args.what, args.results)
        if found:
            return job_id.show(found, args.json)
        if probed := job_id.find_probe_folders(args.what, args.results):
            return job_id.show_probed(probed, args.json)
        if args.what.count("_") or not job_id.is_run_id(args.what, args.results):
            raise UsageError(job_id.describe_unknown(args.what, args.results))
    if Path(args.what).is_dir() and is_of_probe(Path(args.what)):
        return job_id.show_probed([Path(args.what)], args.json)
    diagnoses = _diagnose(args.what, args.results)
    if args.json:
        runs = [{"name": name, **format.plain(each)} for name, each in diagnoses]
        print_json("diagnose", {"runs": runs})
    elif diagnoses:
        lines = [line for each in diagnoses for line in _describe(*each, len(diagnoses))]
        print(printable("\n".join(lines).replace(THIN, " ")))
    else:
        print("no run has left a record yet")
    return 0 if diagnoses else 3


def _diagnose(what: str, results: Path | None) -> Named:
    from hpcncf.cli import lookup
    from hpcncf_analysis.diagnosis.diagnose import diagnose_file, diagnose_folder

    path = Path(what)
    if (path / "plan.json").exists():
        return _diagnose_results(path)
    if path.is_dir():
        return [("", diagnose_folder(path))]
    if path.is_file():
        return [("", diagnose_file(path))]
    if path.suffix or len(path.parts) > 1:
        raise UsageError(
            f"{what}: no such file or folder; expected a results folder, a run (its first letters "
            "or its folder), a rank's record, or what `hpcncf run --json FILE` wrote"
        )
    paths, _, found = lookup.run(what, results)
    return [("", diagnose_folder(paths.run(found.id).folder))]


def _diagnose_results(folder: Path) -> Named:
    from hpcncf.collect.collect import collect
    from hpcncf.paths import ResultPaths
    from hpcncf_analysis.configurations import format_shape, label_settings, varying_settings
    from hpcncf_analysis.diagnosis.diagnose import diagnose_results

    paths = ResultPaths(folder.resolve())
    rows = [row for row in collect(paths).runs if not row["retired"]]
    diagnoses = diagnose_results(paths, rows)
    found = [row for row in rows if row["run_id"] in diagnoses]
    varying = varying_settings(found) if found else []
    names = [" · ".join([format_shape(r), *label_settings(r, varying).values()]) for r in found]
    return [(name, diagnoses[r["run_id"]]) for name, r in zip(names, found, strict=True)]


def _describe(name: str, diagnosis: Diagnosis, number: int) -> Iterator[str]:
    """Yield the lines of one run's diagnosis: in full, or one line if there are many runs.

    `number` is the number of diagnosed runs.
    """
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
