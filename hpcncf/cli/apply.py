"""`hpcncf apply`: write what a job needs into the lines of its batch script."""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Final

from hpcncf.errors import HpcncfError, UsageError, printable

if TYPE_CHECKING:
    from hpcncf.batch.script import BatchScript
    from hpcncf.explain.fields import JobFields
    from hpcncf_analysis.advice.target import TargetEvidence

EPILOG = """\
EVIDENCE is a results folder or a run of `hpcncf run`, the id of a job of Slurm (its records, if
`hpcncf sbatch` submitted it from this folder; else sacct), or a file with what seff, sacct or a
mail says of the job. Prints a unified diff, each change with its
evidence above it; what is not known well enough is left and said on standard error.
Exit code 0: changes, or none needed; 3: not enough evidence; 2: a wrong request.
example: hpcncf apply results/run job.sh
"""
LARGEST_BYTES: Final = 4_000_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("evidence", metavar="EVIDENCE", help="a run, a job id, or a file")
    parser.add_argument("script", metavar="SCRIPT", type=Path, help="the batch script")
    parser.add_argument(
        "--write", action="store_true", help="write the changes; the script as it was is kept"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of a diff")


def run(args: argparse.Namespace) -> int:
    from hpcncf.batch.edits import apply_edits, unified_diff
    from hpcncf.batch.resize import resize
    from hpcncf.batch.script import read_batch_script

    text = _read_script(args.script)
    script = read_batch_script(text)
    if script.scheduler is None:
        raise UsageError(
            f"{args.script}: no directives of Slurm, LSF, PBS or Grid Engine: not a batch script"
        )
    evidence = _evidence(args.evidence, script)
    resized = resize(script, evidence.target)
    left = [*evidence.missing, *resized.left]
    written = ""
    if args.write and resized.edits:
        written = str(_write(args.script, apply_edits(text, resized.edits)))
    if args.json:
        from hpcncf.cli.output import print_json

        edits = [asdict(each) for each in resized.edits]
        print_json("apply", {"edits": edits, "left": left, "backup": written or None})
    else:
        sys.stdout.write(unified_diff(str(args.script), text, resized.edits))
        for each in left:
            print(f"hpcncf: left as it is: {printable(each)}", file=sys.stderr)
        if written:
            print(f"hpcncf: written; as it was: {written}", file=sys.stderr)
        elif not resized.edits and not left:
            print("hpcncf: the script asks for what the job needs", file=sys.stderr)
    return 3 if left and not resized.edits else 0


def _read_script(path: Path) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(LARGEST_BYTES + 1)
        if len(data) > LARGEST_BYTES:
            raise UsageError(f"{path}: more than 4 MB, which no scheduler takes as a script")
        return data.decode("utf-8")
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: not text in UTF-8: {error.reason}") from None


# Evidence.


def _evidence(what: str, script: BatchScript) -> TargetEvidence:
    from hpcncf.batch.resize import limit_of
    from hpcncf.cli import lookup
    from hpcncf.cli.job_id import find_attempts
    from hpcncf.explain.read import read_text
    from hpcncf.slurm.job_figures import looks_like_job_id, read_job
    from hpcncf_analysis.advice.target import from_attempts

    path = Path(what)
    if path.is_dir():
        return _from_folder(path, limit_of(script))
    if path.is_file():
        return _from_jobs(read_text(_read_summary(path)), what)
    if looks_like_job_id(what):
        # What hpcncf recorded of the job shows more than Slurm's means.
        attempts = [each for each, _ in find_attempts(what, None) if each.rank_records()]
        if attempts:
            return from_attempts(attempts, limit_of(script))
        return _from_jobs(read_job(what), f"job {what}")
    if path.suffix or len(path.parts) > 1:
        raise UsageError(
            f"{what}: no such file or folder; expected a results folder or a run of `hpcncf run`, "
            "a job's id, or a file with a scheduler's summary"
        )
    paths, _, found = lookup.run(what, None)
    return from_attempts(paths.run(found.id).attempts()[-1:], limit_of(script))


def _from_folder(folder: Path, limit_s: float | None) -> TargetEvidence:
    """Read the evidence from a results folder, a run's folder or an attempt's folder."""
    from hpcncf.paths import AttemptPaths, ResultPaths, RunPaths
    from hpcncf.records.plan_file import read_plan
    from hpcncf_analysis.advice.target import from_attempts

    if (folder / "plan.json").exists():
        paths = ResultPaths(folder.resolve())
        runs = [each for each in read_plan(paths).runs if not each.retired]
        commands = {(str(each.workload), str(each.remedies)) for each in runs}
        if len(commands) > 1:
            raise UsageError(
                f"{folder}: runs of {len(commands)} different commands; name one: its first "
                "letters, which `hpcncf status` shows, or its folder"
            )
        attempts = [attempts[-1] for each in runs if (attempts := paths.run(each.id).attempts())]
        return from_attempts(attempts, limit_s)
    attempts = RunPaths(folder).attempts()[-1:] or [AttemptPaths(folder)]
    if not any(each.rank_records() for each in attempts):
        raise UsageError(
            f"{folder}: no record in it; expected a results folder of hpcncf, a run's or an "
            "attempt's"
        )
    return from_attempts(attempts, limit_s)


def _from_jobs(jobs: list[JobFields], where: str) -> TargetEvidence:
    from hpcncf.explain.conclude import conclude
    from hpcncf_analysis.advice.target import from_explanations

    if not jobs:
        raise UsageError(f"{where}: no figures of a job in it")
    return from_explanations([conclude(each) for each in jobs])


def _read_summary(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(LARGEST_BYTES).decode(errors="replace")
    except OSError as error:
        raise HpcncfError(f"{path}: cannot be read: {error.strerror}") from None


# Writing.


def _write(path: Path, text: str) -> Path:
    """Replace the script atomically, keeping its mode; returns the path of the backup."""
    target = path.resolve()  # a link stays one
    number = 0
    while True:
        backup = target.with_name(f"{target.name}.before{number or ''}")
        try:
            with backup.open("xb") as file:
                file.write(target.read_bytes())
            break
        except FileExistsError:
            number += 1
        except OSError as error:
            raise HpcncfError(f"{backup}: cannot be written: {error.strerror}") from None
    shutil.copystat(target, backup)
    partial = ""
    try:
        with tempfile.NamedTemporaryFile("wb", dir=target.parent, delete=False) as file:
            partial = file.name
            file.write(text.encode())
        shutil.copystat(target, partial)
        _keep_group(target, partial)
        Path(partial).replace(target)
    except OSError as error:
        with contextlib.suppress(OSError):
            Path(partial).unlink()
        raise HpcncfError(f"{path}: cannot be written: {error.strerror}") from None
    return backup


def _keep_group(source: Path, copy: str) -> None:
    """Give the copy the owner and the group of its source, as far as that is allowed."""
    was = source.stat()
    for owner in (was.st_uid, -1):
        with contextlib.suppress(PermissionError):
            os.chown(copy, owner, was.st_gid)
            Path(copy).chmod(was.st_mode & 0o7777)  # chown clears set-group-id
            return
