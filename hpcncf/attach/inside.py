"""The probe in a Python program that runs already: Python 3.14 and later let one in (PEP 768).

`sys.remote_exec` has the program run a script the next time that its main thread is between two
instructions of Python. The script loads the probe, whose own thread takes it out again when the
time is over, whatever becomes of this process.
"""

from __future__ import annotations

import json
import os
import pkgutil
import shutil
import subprocess
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from hpcncf.attach import find

FIRST_VERSION: Final = (3, 14)
# Where the probe lies below a folder: it tells its own files from the user's by it.
INSIDE: Final = "probe/inject/_hpcncf_probe"
MODULES: Final = (
    *("__init__", "apply_remedies", "as_json", "cuda_events", "lines", "observer", "phases"),
    *("seams", "small_collections", "step_facts", "tables", "torch_phases"),
    *("trial_guard", "trial_speed"),
)
ASKS_WITHIN_S: Final = 20.0
# After the end of the watch, for the probe's last record.
WRITES_WITHIN_S: Final = 3.0
# Of a program that has nothing to explain, as torchrun beside its ranks.
LAUNCHER: Final = "a launcher"
SCRIPT: Final = """\
def _hpcncf(folder, until):
    import os, sys, time
    left = until - time.time()
    try:
        os.unlink(os.path.join(folder, "script.py"))
        if left < 0.5:  # nobody waits for it any more
            os.rmdir(folder)
            return
        with open(os.path.join(folder, "reached"), "w") as file:
            if not sys._is_gil_enabled():
                file.write("it runs without the interpreter's lock, which the probe needs")
                return
        import _imp
        inside = os.path.join(folder, "probe/inject/_hpcncf_probe")
        loader = sys.modules["_frozen_importlib_external"].SourceFileLoader(
            "_", os.path.join(inside, "__init__.py")
        )
        code = loader.get_code("_")
        _imp._fix_co_filename(code, "<_hpcncf_probe>")
        probe = {"__name__": "_hpcncf_probe"}
        exec(code, probe)
        is_in = probe["attach"](
            os.path.join(folder, "seen"), inside, loader, probe, time.perf_counter() + left
        )
        if not is_in:
            with open(os.path.join(folder, "reached"), "w") as file:
                file.write("a launcher")
    except Exception as error:  # the program must not see that there is a probe
        try:
            with open(os.path.join(folder, "reached"), "w") as file:
                file.write("the probe failed: %s: %s" % (type(error).__name__, error))
        except OSError:
            pass
"""


class ProbeInside:
    """The probe, loaded into one running process for some seconds."""

    def __init__(self, pid: int, seconds: float) -> None:
        """Ask the process to load the probe.

        Raises CannotWatch if it refuses.
        """
        self.pid = pid
        self._folder = Path(tempfile.mkdtemp(prefix="hpcncf-attach-"))
        self._until = time.time() + seconds
        try:
            self._write()
            self._ask()
        except BaseException:
            shutil.rmtree(self._folder, ignore_errors=True)
            raise

    def _write(self) -> None:
        folder = self._folder
        inside, seen = folder / INSIDE, folder / "seen"
        for each in (inside, seen):
            each.mkdir(parents=True)
        for name in MODULES:
            content = pkgutil.get_data("hpcncf", f"{INSIDE}/{name}.py")
            assert content is not None
            (inside / f"{name}.py").write_bytes(content)
        call = f"_hpcncf({str(folder)!r}, {self._until!r})\ndel _hpcncf\n"
        (folder / "script.py").write_text(SCRIPT + call)
        owner = find.owner(self.pid)
        if owner not in (None, os.geteuid()):  # root watches a user's program
            for path in (folder, *folder.rglob("*")):
                os.chown(path, owner, -1)

    def _ask(self) -> None:
        # By the program's own interpreter: of another version it would refuse.
        code = "import sys; sys.remote_exec(int(sys.argv[1]), sys.argv[2])"
        words = [f"/proc/{self.pid}/exe", "-I", "-S", "-c", code, str(self.pid)]
        try:
            done = subprocess.run(
                [*words, str(self._folder / "script.py")],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=ASKS_WITHIN_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise find.CannotWatch(f"its interpreter cannot be run again: {error}") from None
        if done.returncode != 0:
            raise find.CannotWatch(_explain(done.stderr))

    def end(self) -> tuple[dict[str, Any] | None, str | None]:
        """Wait for the probe's last record; return it and, if there is none, why."""
        deadline = max(time.time(), self._until) + WRITES_WITHIN_S
        reached = self._folder / "reached"
        record = None
        while time.time() < deadline and find.is_alive(self.pid):
            record = self._newest() or record
            if record and record["final"]:
                break
            if time.time() > self._until and not reached.exists():
                break
            time.sleep(0.1)
        record = self._newest() or record
        if not reached.exists():
            # The script has to stay: Python would report that it is missing. It then removes
            # itself, and does no more.
            for name in ("probe", "seen"):
                shutil.rmtree(self._folder / name, ignore_errors=True)
            return None, (
                "its main thread ran no Python in the watch (it was in C code, or asleep), so that "
                "the probe could not be loaded"
            )
        why = reached.read_text() or "the probe left no record: it takes a second or more"
        shutil.rmtree(self._folder, ignore_errors=True)
        if record is None:
            return None, None if why == LAUNCHER else why
        # What it did before is not known: the first step seen is no start.
        return record | {"start_up": None, "inside": True}, None

    def _newest(self) -> dict[str, Any] | None:
        """Return the record of the process itself; None if there is none yet."""
        with suppress(OSError, ValueError):
            for path in (self._folder / "seen").glob(f"{self.pid}-*.json"):
                found: dict[str, Any] = json.loads(path.read_text())
                return found
        return None


def why_not(pid: int, python: str) -> str | None:
    """Return why the probe cannot be loaded into a process; empty if its Python is too old.

    None if it can be.
    """
    version = tuple(int(part) for part in python.split(".")) if python else (0,)
    if version < FIRST_VERSION:
        return ""
    variables = find.environment(pid)
    if "HPCNCF_PROBE" in variables:
        return "`hpcncf run` observes it already: `hpcncf status` shows its phases"
    if variables.get("PYTHON_DISABLE_REMOTE_DEBUG"):
        return "PYTHON_DISABLE_REMOTE_DEBUG is set in its environment"
    for kind in ("mnt", "pid"):
        with suppress(OSError):
            own = os.readlink(f"/proc/self/ns/{kind}")  # noqa: PTH115
            if os.readlink(f"/proc/{pid}/ns/{kind}") != own:  # noqa: PTH115
                return "it is inside a container: attach from inside, where its files are"
    return None


def _explain(errors: str) -> str:
    last = errors.strip().splitlines()[-1] if errors.strip() else "without a message"
    if "PermissionError" in last or "permission" in last.lower():
        return "reading its memory is forbidden (ptrace)"
    if "remote debugging is not enabled" in last.lower() or "disabled" in last.lower():
        return "it was started with remote debugging switched off (-X disable_remote_debug)"
    if "find the main thread" in last:
        return "it was just starting or ending"
    return f"sys.remote_exec: {last}"
