"""The code version of a submission, and whether a rank runs another one."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Literal

from hpcncf.records.git import checkout, git_bytes, git_text
from hpcncf.records.schema import RecordPart

# More than this of changes is data in a checkout, not code: it is not compared.
MOST_DIFF: Final = 5_000_000
MOST_UNTRACKED: Final = 1000
PACKAGE: Final = Path(__file__).parents[1]
# What runs. Results and data lie about in checkouts, too, and change while the runs run.
CODE: Final = (".py", ".sh", ".pyx", ".c", ".cc", ".cpp", ".cu", ".h", ".jl", ".R")
CHANGED: Final = "the code changed after this run was submitted: "
# Of a rank that another installation of hpcncf ran.
ELSEWHERE: Final = "ranks imported hpcncf from "
DIFF: Final = (
    *("diff", "HEAD", "--binary", "--no-ext-diff", "--no-textconv", "--no-color"),
    "--ignore-submodules=dirty",
)


class Code(RecordPart):
    """One body of code, hpcncf's own or a checkout, as a submission found it."""

    of: Literal["hpcncf", "folder"]
    """`hpcncf`: this program. `folder`: the checkout that the submitter was in."""
    folder: str
    """hpcncf's package, or the checkout's root."""
    commit: str | None
    """None: no checkout, or git does not answer."""
    dirty: bool | None
    """Whether tracked files differed from the commit."""
    sha256: str | None
    """Hash of the tree. hpcncf: of its source files. A checkout: of the commit's tree, changes and
    untracked code files. None: it cannot be compared."""


def record_code(folder: Path) -> list[Code]:
    """Describe hpcncf's code, and that of the checkout around `folder`."""
    package, root = _find_root(PACKAGE), _find_root(folder)
    found = [_describe("hpcncf", PACKAGE, hash_sources(PACKAGE))]
    if root is not None and root != package:
        found.append(_describe("folder", root, hash_tree(root)))
    return found


def _find_root(folder: Path) -> Path | None:
    """Root of the checkout that the folder is in and that does not ignore it."""
    if checkout(folder).commit is None:
        return None
    top = git_text(folder, "rev-parse", "--show-toplevel")
    return Path(top) if top else None


def _describe(of: Literal["hpcncf", "folder"], folder: Path, sha256: str | None) -> Code:
    found = checkout(folder)
    return Code(of=of, folder=str(folder), commit=found.commit, dirty=found.dirty, sha256=sha256)


def changed(then: list[Code], checkouts: bool) -> list[str]:
    """Describe code that differs from what was submitted, checkouts only if `checkouts` is true."""
    return [
        _difference(one)
        for one in then
        if one.sha256 is not None
        and (one.of == "hpcncf" or checkouts)
        and _now(one) not in (None, one.sha256)
    ]


def _difference(then: Code) -> str:
    at = f", commit {then.commit[:7]}{' with changes' * bool(then.dirty)}" if then.commit else ""
    named = f"{'hpcncf' if then.of == 'hpcncf' else 'the checkout'} ({then.folder}{at})"
    if then.of == "hpcncf" and then.folder != str(PACKAGE):
        return f"{ELSEWHERE}{PACKAGE}, and were submitted by {named}, which differs"
    return f"{CHANGED}{named} is not what it was"


def _now(code: Code) -> str | None:
    if code.of == "hpcncf":
        return hash_sources(PACKAGE)
    return hash_tree(Path(code.folder))


def hash_tree(root: Path) -> str | None:
    """Hash a checkout: the commit's tree, changes, untracked code; None if git does not answer."""
    tree = git_bytes(root, "rev-parse", "HEAD^{tree}")
    changes = git_bytes(root, *DIFF, at_most=MOST_DIFF)
    listed = git_bytes(root, "ls-files", "--others", "--exclude-standard", "-z")
    if tree is None or changes is None or listed is None:
        return None
    digest = hashlib.sha256(tree + changes)
    names = [os.fsdecode(name) for name in listed.split(b"\0") if name]
    code = [root / name for name in names if name.endswith(CODE)]
    for part in _contents(root, code[:MOST_UNTRACKED]):
        digest.update(part)
    return digest.hexdigest()


def hash_sources(package: Path) -> str:
    """Hash the names and contents of all Python files of a package, but not their dates."""
    digest = hashlib.sha256()
    for part in _contents(package, sorted(package.rglob("*.py"))):
        digest.update(part)
    return digest.hexdigest()


def _contents(root: Path, files: list[Path]) -> Iterator[bytes]:
    for path in files:
        try:
            content = path.read_bytes()
        except OSError:  # it went while we looked, or is a broken link
            content = b""
        yield f"\0{path.relative_to(root)}\0{len(content)}\0".encode("utf-8", "backslashreplace")
        yield content
