"""Ask git about a checkout, without starting any program that the repository names."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from threading import Timer
from typing import Final

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
    """Return what git prints; None if it fails, is missing or is too slow (a file server)."""
    text = git_bytes(folder, *arguments)
    return None if text is None else text.decode(errors="backslashreplace").strip()


def git_bytes(folder: Path, *arguments: str, at_most: int = 10_000_000) -> bytes | None:
    """Return what git prints as bytes; None as for `git_text`, or if it exceeds `at_most` bytes."""
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
    """Commit of a git checkout, and whether it is modified; both None without a checkout."""

    commit: str | None = None
    dirty: bool | None = None
    """Whether tracked files differ from the commit."""


def checkout(folder: Path) -> Checkout:
    """Describe the git checkout that contains `folder`.

    A folder that git ignores is in none: an environment inside a checkout is not that code.
    """
    try:
        around = [folder.absolute(), *folder.absolute().parents]
    except OSError:  # the current folder was removed
        return Checkout()
    if not any((each / ".git").exists() for each in around):
        return Checkout()  # git would find none either, and take longer
    head = git_text(folder, "rev-parse", "HEAD")
    if head is None or git_text(folder, "check-ignore", "--quiet", ".") is not None:
        return Checkout()
    changes = git_text(folder, *STATUS)
    return Checkout(head, None if changes is None else bool(changes))
