"""CPython's own tests, with and without hpcncf, test by test.

`python -m tests.cpython_tests PYTHON [MODULE ...]` prints each test whose result differs twice.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from hpcncf.probe.launch import observed

# What a probe in the process, a thread, a changed path or a signal could touch.
MODULES = """
sys signal threading subprocess pickle import site faulthandler tracemalloc pty thread threadsignals
atexit os posix fork1 wait3 wait4 popen select selectors io builtin traceback inspect dis code gc
weakref runpy cmd_line cmd_line_script pkgutil importlib sys_settrace sys_setprofile bdb cprofile
profile warnings contextlib coroutines queue sched timeout resource support embed interpreters
_interpreters _xxsubinterpreters concurrent_futures multiprocessing_fork multiprocessing_spawn
multiprocessing_forkserver asyncio audit zipimport module modulefinder threading_local
"""
LONGEST_S = 900
RESULT = re.compile(r"^(\w+ \([\w.]+\)).*?\.\.\. (?:.*\n)?.*?(ok|FAIL|ERROR|skipped)", re.MULTILINE)


def results(python: str, module: str, with_probe: bool) -> dict[str, str]:
    """The result of each test of a module, and how its process ended."""
    with tempfile.TemporaryDirectory() as made:
        environment = {**os.environ, "TMPDIR": made}
        environment.pop("PYTHONPATH", None)
        if with_probe:
            (Path(made) / "seen").mkdir()
            environment = observed(environment, Path(made) / "seen")
        words = [python, "-m", "unittest", "-v", f"test.test_{module}"]
        try:
            done = subprocess.run(
                words,
                cwd=made,
                env=environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=LONGEST_S,
                start_new_session=True,
            )
        except subprocess.TimeoutExpired:
            return {"module": "did not end"}
    said = done.stderr.decode(errors="replace")
    found = dict(RESULT.findall(said))
    failed = re.findall(r"^(FAIL|ERROR): (\w+ \([\w.]+\))", said, re.MULTILINE)
    return found | {name: result for result, name in failed} | {"module": str(done.returncode)}


def differences(python: str, module: str) -> tuple[int, list[str]]:
    """How many tests there are, and those that fail with the probe only, each time."""
    plain = results(python, module, False)
    probed = results(python, module, True)
    worse = {name for name, result in probed.items() if plain.get(name, result) != result}
    if worse:
        again = results(python, module, True)
        plain |= {name: again[name] for name in worse if again.get(name) == plain[name]}
        worse = {name for name in worse if again.get(name, plain[name]) != plain[name]}
    return len(plain) - 1, [f"{name}: {plain[name]} -> {probed[name]}" for name in sorted(worse)]


def main(python: str, modules: Sequence[str]) -> int:
    folder = subprocess.check_output(
        [python, "-c", "import test; print(test.__path__[0])"], text=True
    ).strip()
    there = [
        each
        for each in modules or MODULES.split()
        if (Path(folder) / f"test_{each}.py").exists() or (Path(folder) / f"test_{each}").is_dir()
    ]
    tests = failed = 0
    with ThreadPoolExecutor(int(os.environ.get("AT_ONCE", "2"))) as pool:
        found = pool.map(lambda each: differences(python, each), there)
        for module, (number, worse) in zip(there, found, strict=True):
            tests += number
            failed += len(worse)
            print(f"{module}: {number} tests", *worse, sep="\n  ", flush=True)
    print(f"{python}: {len(there)} modules, {tests:,} tests, {failed} differ")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
