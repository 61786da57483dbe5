"""The code version of a submission, and whether a rank runs another one."""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from threading import Timer
from typing import Final, Literal

from hpcncf.records.schema import RecordPart

# A repository's own configuration names programs (a file watcher, hooks, external diffs). git
# itself refuses repositories of other users; these options keep it from starting those in our own,
# either. The clean filters of `git diff` (git-lfs) still run: without them every file would look
# changed.

TIMEOUT_S: Final = 5
OPTIONS: Final = (
    "--no-optional-locks",  # `status` would rewrite the index, which another git may hold
    "--no-pager",
    *("-c", "core.fsmonitor=false"),
    *("-c", "core.hooksPath=/dev/null"),
    *("-c", "protocol.allow=never"),  # a partial clone would ask its server for what it lacks
)
# A git that called us (a hook, an alias) would send ours to its own repository.
OF_OTHERS: Final = (
    "GIT_COMMON_DIR",
    "GIT_DIR",
    "GIT_EXTERNAL_DIFF",
    "GIT_INDEX_FILE",
    "GIT_NAMESPACE",
    "GIT_OBJECT_DIRECTORY",
    "GIT_PREFIX",
    "GIT_WORK_TREE",
)
STATUS: Final = ("status", "--porcelain", "--untracked-files=no", "--ignore-submodules=dirty")


def git_text(folder: Path, *arguments: str) -> str | None:
    """What git prints; None when it fails, is missing or takes too long (a slow file system)."""
    text = git_bytes(folder, *arguments)
    return None if text is None else text.decode(errors="backslashreplace").strip()


def git_bytes(folder: Path, *arguments: str, at_most: int = 10_000_000) -> bytes | None:
    """The same as bytes; None, too, where there are more than `at_most`."""
    command = ["git", *OPTIONS, "-C", str(folder), *arguments]
    environment = {key: value for key, value in os.environ.items() if key not in OF_OTHERS}
    environment |= {"GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"}
    try:
        git = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
    except OSError:
        return None
    timer = Timer(TIMEOUT_S, git.kill)
    timer.start()
    with git:
        assert git.stdout is not None
        text = git.stdout.read(at_most + 1)
        if len(text) > at_most:
            git.kill()
    timer.cancel()
    return text if git.returncode == 0 and len(text) <= at_most else None


@dataclass(frozen=True)
class Checkout:
    """Of a git checkout; both None where there is none."""

    commit: str | None = None
    dirty: bool | None = None
    """Whether tracked files differ from the commit."""


def checkout(folder: Path) -> Checkout:
    """The checkout that `folder` is in. A folder that git ignores is in none: an environment
    inside somebody else's checkout is not that code."""
    head = git_text(folder, "rev-parse", "HEAD")
    if head is None or git_text(folder, "check-ignore", "--quiet", ".") is not None:
        return Checkout()
    changes = git_text(folder, *STATUS)
    return Checkout(head, None if changes is None else bool(changes))


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
    """One body of code as a submission found it."""

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
    """What of it is not as it was, in words; the checkouts only where a run uses them."""
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
    """One number for all Python files of a package: names and contents, not their dates."""
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
