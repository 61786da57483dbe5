"""Sessions at a terminal, with keys, each with and without hpcncf and compared.

`python -m tests.sessions` runs all of them and prints what differs.
"""

from __future__ import annotations

import contextlib
import os
import pty
import re
import select
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

TOOL = Path(__file__).with_name("run_command.py")
PROMPT = "P> "
LONGEST_S = 60.0
CTRL_C, CTRL_Z, CTRL_BACKSLASH = "\x03", "\x1a", "\x1c"

# Words that are waited for are spelled so that the shell's echo of the command has none of them.
FILES = {
    "wait.py": "import time\nprint('rea' + 'dy', flush=True)\ntime.sleep(90)\n",
    "ask.py": "print('rea' + 'dy', flush=True)\nprint('got', input())\n",
    "goes_on.py": "import signal, time\nsignal.signal(18, lambda *_: print('go' + 'es on', "
    "flush=True))\nprint('rea' + 'dy', flush=True)\nend = time.time() + 90\n"
    "while time.time() < end:\n    time.sleep(0.1)\n",
    "secret.py": "import getpass\nprint(len(getpass.getpass('pass' + 'word')))\n",
}
# What is typed, and what is then waited for. `RUN` is hpcncf or nothing.
SESSIONS: dict[str, Sequence[tuple[str, str]]] = {
    "ctrl-c": [("RUN PY wait.py; echo rc=$?\n", "ready"), (CTRL_C, PROMPT)],
    "ctrl-c in a loop": [
        ("for i in 1 2 3; do RUN PY wait.py; done; echo la''st\n", "ready"),
        (CTRL_C, PROMPT),
        ("echo e''nd\n", "end\r\nP> "),
    ],
    "ctrl-c in a script": [
        ('bash -c "for i in 1 2; do RUN PY wait.py; done; echo la""st"\n', "ready"),
        (CTRL_C, PROMPT),
    ],
    "ctrl-c, own group": [
        ("RUN timeout 60 PY wait.py; echo rc=$?\n", "ready"),
        (CTRL_C, "rc=1"),
        ("", PROMPT),
    ],
    "ctrl-backslash, own group": [
        ("RUN timeout 60 PY wait.py; echo rc=$?\n", "ready"),
        (CTRL_BACKSLASH, "rc=1"),
        ("", PROMPT),
    ],
    "input, own group": [
        ("RUN timeout 60 PY ask.py; echo rc=$?\n", "ready"),
        ("hello\n", "rc=0"),
        ("", PROMPT),
    ],
    "password, own group": [("RUN timeout 60 PY secret.py\n", "password"), ("abc\n", "3\r\nP> ")],
    "ctrl-z and fg": [
        ("RUN PY goes_on.py\n", "ready"),
        (CTRL_Z, "topped"),
        ("", PROMPT),
        ("fg\n", "goes on"),
        (CTRL_C, PROMPT),
    ],
    "ctrl-z and fg, own group": [
        ("RUN timeout 60 PY ask.py\n", "ready"),
        (CTRL_Z, "topped"),
        ("", PROMPT),
        ("fg\n", "timeout"),
        ("yes\n", "got yes"),
        ("", PROMPT),
    ],
    "input in the background": [
        ("RUN PY ask.py &\n", "ready"),
        ("\n", "topped"),
        ("fg\n", "ask.py"),
        ("yes\n", "got yes"),
        ("", PROMPT),
    ],
    "a shell inside": [
        ("RUN bash --noediting --norc --noprofile -i\n", PROMPT),
        ("PY wait.py\n", "ready"),
        (CTRL_C, PROMPT),
        ("exit 3\n", PROMPT),
        ("echo rc=$?\n", "rc=3"),
    ],
    "a pipe": [("RUN PY -c 'print(6)' | cat; echo rc=$?\n", "rc=0"), ("", PROMPT)],
}


def transcript(steps: Sequence[tuple[str, str]], with_hpcncf: bool) -> str:
    """What the terminal shows, without hpcncf's own words and numbers of processes."""
    with tempfile.TemporaryDirectory() as made:
        for name, text in FILES.items():
            (Path(made) / name).write_text(text)
        tool = f"{sys.executable} {TOOL} run --quiet --results {made}/r -- " if with_hpcncf else ""
        terminal = _Terminal(made)
        try:
            shown = "".join(
                terminal.type(keys.replace("RUN ", tool).replace("PY", sys.executable), wait)
                for keys, wait in steps
            )
        finally:
            terminal.close()
    shown = (shown.replace(tool, "") if tool else shown).replace(made, "").replace("\r", "")
    shown = re.sub(r"^\[1\] \d+", "[1]", shown, flags=re.MULTILINE)
    return re.sub(r" +", " ", shown)


class _Terminal:
    """An interactive shell at a terminal of its own."""

    def __init__(self, folder: str) -> None:
        self._pid, self._fd = pty.fork()
        if not self._pid:
            os.chdir(folder)
            environment = {**os.environ, "PS1": PROMPT, "TERM": "dumb"}
            environment.pop("PYTHONPATH", None)
            words = ["bash", "--noediting", "--norc", "--noprofile", "-i"]
            os.execvpe("bash", words, environment)
        self._shown = ""
        self.type("", PROMPT)

    def type(self, keys: str, wait: str) -> str:
        """Press these keys, then return all up to the text that is waited for."""
        time.sleep(0.3)
        os.write(self._fd, keys.encode())
        end = time.monotonic() + LONGEST_S
        while wait not in self._shown and time.monotonic() < end:
            if select.select([self._fd], [], [], 0.2)[0]:
                try:
                    self._shown += os.read(self._fd, 65536).decode(errors="replace")
                except OSError:
                    break
        if wait not in self._shown:
            shown, self._shown = self._shown, ""
            return f"{shown}[{wait!r} did not come]"
        before, self._shown = self._shown.split(wait, 1)
        return before + wait

    def close(self) -> None:
        os.close(self._fd)
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)


def main() -> int:
    failed = 0
    for name, steps in SESSIONS.items():
        plain, run = (transcript(steps, with_hpcncf) for with_hpcncf in (False, True))
        failed += plain != run
        print(f"{name}: {'same' if plain == run else 'differs'}", flush=True)
        if plain != run:
            print(plain, run, sep="\n----\n", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
