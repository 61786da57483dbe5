"""Two people whom the cluster alone knows: its passwd lies over the machine's, not in it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

GROUP: Final = ("lab", 20000)
PEOPLE: Final = {"ada": 20001, "ben": 20002}


def write(folder: Path) -> None:
    """The cluster's passwd and group, and everybody's home."""
    group, number = GROUP
    users = [
        f"{who}:x:{uid}:{number}::{home(folder, who)}:/bin/bash" for who, uid in PEOPLE.items()
    ]
    _write(folder, "passwd", users)
    _write(folder, "group", [f"{group}:x:{number}:{','.join(PEOPLE)}"])
    for who, uid in PEOPLE.items():
        home(folder, who).mkdir(parents=True)
        os.chown(home(folder, who), uid, number)


def _write(folder: Path, name: str, more: Sequence[str]) -> None:
    known = Path("/etc", name).read_text().splitlines()
    (folder / "etc" / name).write_text("\n".join([*known, *more]) + "\n")


def home(folder: Path, who: str) -> Path:
    return folder / "home" / who


def known_to(folder: Path, command: Sequence[str]) -> list[str]:
    """The command, started where the cluster's people are known; needs a mount namespace."""
    lay = 'mount --bind "$1/passwd" /etc/passwd && mount --bind "$1/group" /etc/group'
    return ["sh", "-c", f'{lay} && shift && exec "$@"', "sh", str(folder / "etc"), *command]


def acting(folder: Path, who: str, command: Sequence[str]) -> list[str]:
    """The command as one of them types it, who lets the group write."""
    become = ["setpriv", f"--reuid={who}", f"--regid={GROUP[0]}", "--init-groups"]
    shell = ["sh", "-c", 'umask 002 && exec "$@"', "sh"]
    seen = ["env", f"HOME={home(folder, who)}", f"USER={who}", f"LOGNAME={who}"]
    inside = known_to(folder, [*become, *seen, *shell, *command])
    return ["unshare", "--mount", *inside]
