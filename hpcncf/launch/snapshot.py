"""`code: snapshot`: a copy of a program's code, so that queued runs do not see later edits."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from hpcncf.errors import UsageError
from hpcncf.files import make_folder
from hpcncf.job.plan import Run
from hpcncf.job.spec import JobSpec, Program
from hpcncf.paths import ResultPaths
from hpcncf.records.git import checkout, git_bytes, git_text
from hpcncf.records.plan_file import has_snapshot

MOST_MIB: Final = 200
MOST_FILES: Final = 20_000
# Without git, nothing says what is code: larger files are taken for data, and linked.
LARGEST_CODE: Final = 1024**2
LEFT_OUT: Final = frozenset({".git", "__pycache__", ".mypy_cache", ".pytest_cache", ".ruff_cache"})


@dataclass(frozen=True)
class _Tree:
    """Files and links of a folder; names are relative to its root."""

    root: Path
    copied: list[Path]
    linked: list[Path]
    """Data and other files that git ignores, kept at their places by links."""


def snapshot_code(paths: ResultPaths, job: JobSpec, runs: list[Run], retry: bool) -> list[Run]:
    """Copy the programs' folders into `paths.snapshots`; return runs that use the copies.

    With `retry`, a run that has a copy keeps it. Raises UsageError if a folder is too large.
    """
    copies: dict[str, str] = {}
    found = []
    for run in runs:
        program = run.workload
        assert isinstance(program, Program)
        assert isinstance(job.workload, Program)
        if not (retry and has_snapshot(paths, run)):
            live = job.workload.folder
            copies[live] = copies.get(live) or str(_copy(Path(live), paths))
            program = program.model_copy(update={"folder": copies[live]})
        found.append(run.model_copy(update={"workload": program}))
    return found


def remove_unused(paths: ResultPaths, runs: list[Run]) -> None:
    """Delete copies that no run of the plan uses."""
    if not paths.snapshots.is_dir():
        return
    used = {
        Path(run.workload.folder).resolve()
        for run in runs
        if isinstance(run.workload, Program) and has_snapshot(paths, run)
    }
    for copy in paths.snapshots.iterdir():
        if not any(folder.is_relative_to(copy.resolve()) for folder in used):
            shutil.rmtree(copy, ignore_errors=True)


def _copy(folder: Path, paths: ResultPaths) -> Path:
    """Copy a folder, unless an equal copy exists; return the folder within the copy."""
    if not folder.is_dir():
        raise UsageError(f"workload.folder: {folder}: no such folder")
    top = git_text(folder, "rev-parse", "--show-toplevel")
    if top is not None and checkout(folder).commit is not None:
        tree = _tracked(Path(top), paths)
    else:
        tree = _plain(folder.resolve(), paths)
    mib = sum((tree.root / name).lstat().st_size for name in tree.copied) / 1024**2
    if len(tree.copied) > MOST_FILES or mib > MOST_MIB:
        raise UsageError(
            f"code: snapshot: {folder} holds {len(tree.copied):,} files of {mib:,.0f} MiB; at most "
            f"{MOST_FILES:,} files of {MOST_MIB} MiB are copied. List data in .gitignore: it is "
            "then linked instead"
        )
    final = paths.snapshots / _digest(tree)
    if not final.is_dir():
        make_folder(paths.snapshots)
        partial = Path(tempfile.mkdtemp(prefix=".partial-", dir=paths.snapshots))
        try:
            for name in (*tree.copied, *tree.linked):
                (partial / name).parent.mkdir(parents=True, exist_ok=True)
            for name in tree.copied:
                shutil.copy2(tree.root / name, partial / name)
            for name in tree.linked:
                if not (partial / name).exists():
                    (partial / name).symlink_to(tree.root / name)
            partial.chmod(paths.snapshots.stat().st_mode & 0o777)
            partial.rename(final)
        except OSError:
            shutil.rmtree(partial, ignore_errors=True)
            if not final.is_dir():  # else another submission was quicker
                raise
    return final.absolute() / folder.resolve().relative_to(tree.root)


def _tracked(root: Path, paths: ResultPaths) -> _Tree:
    """List the files of a checkout for a copy: those that git tracks or does not ignore.

    Ignored files are linked.
    """
    root = root.resolve()

    def listed(*options: str) -> list[Path]:
        text = git_bytes(root, "ls-files", "-z", *options) or b""
        names = {Path(os.fsdecode(name)) for name in text.split(b"\0") if name}
        return sorted(name for name in names if not _is_left_out(root, name, paths))

    copied = listed("--cached", "--others", "--exclude-standard")
    linked = listed("--others", "--ignored", "--exclude-standard", "--directory")
    return _Tree(root, [name for name in copied if (root / name).is_file()], linked)


def _plain(root: Path, paths: ResultPaths) -> _Tree:
    copied: list[Path] = []
    linked: list[Path] = []
    for at, folders, files in os.walk(root):
        here = Path(at).relative_to(root)
        folders[:] = sorted(name for name in folders if not _is_left_out(root, here / name, paths))
        for name in [each for each in folders if each.startswith(".")]:
            linked.append(here / name)
            folders.remove(name)
        for name in sorted(files):
            small = (root / here / name).is_file() and (
                (root / here / name).stat().st_size <= LARGEST_CODE
            )
            (copied if small else linked).append(here / name)
        if len(copied) > MOST_FILES:
            break
    return _Tree(root, copied, linked)


def _is_left_out(root: Path, name: Path, paths: ResultPaths) -> bool:
    """Return whether a path is left out of copies: caches, and the results folder itself."""
    results, path = paths.folder.resolve(), root / name
    inside = path.is_relative_to(results) or results.is_relative_to(path)
    return inside or not LEFT_OUT.isdisjoint(name.parts)


def _digest(tree: _Tree) -> str:
    """Hash the names and contents of a folder's files, and the targets of its links."""
    digest = hashlib.sha256(os.fsencode(tree.root))
    for name in tree.copied:
        content = (tree.root / name).read_bytes()
        digest.update(b"\0%s\0%d\0" % (os.fsencode(name), len(content)))
        digest.update(content)
    for name in tree.linked:
        digest.update(b"\1%s\0" % os.fsencode(name))
    return digest.hexdigest()[:16]
