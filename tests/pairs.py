"""Programs that could notice hpcncf, each run with and without it and compared.

`python -m tests.pairs` runs all of them with every Python that is there and prints what differs;
a word as argument keeps the programs whose name contains it.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from hpcncf.probe.launch import observed

Way = Literal["plain", "probe", "run", "no-probe"]
# `probe` is what a job file's rank has: the environment, and no `hpcncf run` in between.
WAYS: tuple[Way, ...] = ("probe", "run", "no-probe")
TOOL = Path(__file__).parents[1]
LONGEST_S = 240.0


@dataclass(frozen=True)
class Program:
    """A script, and how it is started and disturbed."""

    name: str
    code: str
    options: Sequence[str] = ()
    files: dict[str, str] = field(default_factory=dict)
    """Others beside it."""
    shell: str = ""
    """A line of bash around it, in which "$@" is the command; as `ulimit -n 32; "$@"`."""
    inside: str = ""
    """The same, but the whole line is the command."""
    signals: Sequence[int] = ()
    """Sent to the process that was started, once it has printed a line that says `ready`."""
    stdin: str = ""
    since: tuple[int, int] = (3, 9)
    linger: bool = True
    """Whether it first waits until the observer has been loaded."""
    ways: Sequence[Way] = WAYS


@dataclass(frozen=True)
class Outcome:
    """All that the world sees of a program."""

    stdout: str
    stderr: str
    status: int
    """As `waitpid` has it: minus the signal."""
    files: tuple[tuple[str, str], ...]

    def differences(self, other: Outcome) -> list[str]:
        return [
            f"{name}: {getattr(self, name)!r} -> {getattr(other, name)!r}"
            for name in ("stdout", "stderr", "status", "files")
            if getattr(self, name) != getattr(other, name)
        ]


LINGER = "import time as _time; _time.sleep(0.6); del _time\n"
SHADOWED = """
signal bisect types json functools operator collections re random opcode dis inspect traceback
threading enum copy
"""


def script(name: str, code: str, **more: object) -> Program:
    return Program(name, code, **more)  # type: ignore[arg-type]


# C code of Python's own is imported earlier than without the probe.
MODULES = """import sys
def has_file(name):
    return (getattr(sys.modules[name], '__file__', None) or '').endswith('.py')
"""
PROGRAMS = [
    # -- how it ends
    script("exit code", "raise SystemExit(7)"),
    script("exit text", "import sys; sys.exit('bye')"),
    script("at once", "print('quick')", linger=False),
    script("_exit", "import os; print('a', flush=True); os._exit(9)"),
    script("error", "def f():\n    1 / 0\nf()"),
    script(
        "error chain", "try:\n    {}['a']\nexcept KeyError as e:\n    raise ValueError(1) from e"
    ),
    script("syntax error", "def f(:\n", linger=False),
    script("interrupt", "raise KeyboardInterrupt"),
    script("abort", "import os; print('x', flush=True); os.abort()"),
    script("killed", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"),
    script("terminated", "import os, signal; os.kill(os.getpid(), signal.SIGTERM)"),
    script("segmentation", "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"),
    script("sigint default", "import os, signal; os.kill(os.getpid(), signal.SIGINT)"),
    script("atexit order", "import atexit\nfor k in range(3):\n    atexit.register(print, k)"),
    script("atexit error", "import atexit\natexit.register(lambda: 1 / 0)\nprint('main')"),
    script("excepthook", "import sys\nsys.excepthook = lambda *a: print(a[0])\n1 / 0"),
    script("excepthook is", "import sys; print(sys.excepthook is sys.__excepthook__)"),
    script("unraisable", "class A:\n    def __del__(self):\n        1 / 0\nA()"),
    script("closed stdout", "import sys; sys.stdout.close()"),
    script("broken pipe", "for k in range(99999):\n    print(k)", inside='"$@" | head -1'),
    script("full device", "print('x' * 10000)", shell='"$@" > /dev/full'),
    script(
        "exec",
        "import os, sys\nprint(1, flush=True)\n"
        "os.execv(sys.executable, [sys.executable, '-c', 'print(2)'])",
    ),
    script(
        "exec fails",
        "import os\ntry:\n    os.execv('/nowhere', ['x'])\nexcept OSError as e:\n    print(e)",
    ),
    # -- modules and paths
    script("modules", MODULES + "print(sorted(m for m in sys.modules if has_file(m)))"),
    script(
        "modules later",
        MODULES + "import time; before = set(sys.modules)\ntime.sleep(1.5)\n"
        "print([m for m in set(sys.modules) ^ before if has_file(m)])",
    ),
    script("path", "import sys; print(sys.path, sys.path_hooks, sys.path_importer_cache.keys())"),
    script("path -P", "import sys; print(sys.path)", options=("-P",), since=(3, 11)),
    script("path -s", "import sys; print(sys.path, sys.flags)", options=("-s",)),
    script("path -I", "import sys; print(sys.path, sys.flags)", options=("-I",)),
    script(
        "sitecustomize",
        "import sitecustomize; print(sitecustomize.X, sitecustomize.__file__)",
        files={"own/sitecustomize.py": "print('mine'); X = 1"},
        shell='PYTHONPATH=$PWD/own "$@"',
        ways=("probe",),  # hpcncf is a Python, and has it, too
    ),
    script(
        "sitecustomize fails",
        "print('on')",
        files={"own/sitecustomize.py": "1 / 0"},
        shell='PYTHONPATH=$PWD/own "$@"',
        ways=("probe",),  # hpcncf is a Python, and has it, too
    ),
    script("no sitecustomize", "import importlib.util as u; print(u.find_spec('sitecustomize'))"),
    script("usercustomize", "import sys; print('usercustomize' in sys.modules)"),
    *(
        script(
            f"PYTHONPATH {line}",
            "import sys; print(sys.path)\nimport here",
            files={"here.py": "print('found')", "lib/x": ""},
            inside=f'export PYTHONPATH={line}; cp "${{@:$#}}" lib/s.py; "${{@:1:$#-1}}" lib/s.py',
        )
        for line in ("$PYTHONPATH:lib", "lib:$PYTHONPATH", "lib:$PYTHONPATH:lib")
    ),
    *(
        script(
            f"own {name}",
            f"import {name}; print({name}.X)",
            files={f"{name}.py": "X = 'mine'\ndef __getattr__(name): return lambda *a: None"},
        )
        for name in SHADOWED.split()
    ),
    script("-m", "print('no')", inside='cp "${@:$#}" pack.py; "${@:1:$#-1}" -m pack a b'),
    script(
        "-c",
        "",
        inside='"${@:1:$#-1}" -c "import sys; print(sys.argv, sys.orig_argv[1:])"',
        since=(3, 10),
    ),
    script("from stdin", "", inside='echo "print(1+1)" | "${@:1:$#-1}" -'),
    script(
        "unittest",
        "import unittest\nclass T(unittest.TestCase):\n    def test(self):\n"
        "        self.assertEqual(1, 2)\nunittest.main(verbosity=0, exit=False, argv=['x'])\n",
        shell='"$@" 2>&1 | sed "s/in [0-9.]*s//"',
    ),
    # -- threads and forks
    script(
        "threads",
        "import threading\nprint(threading.active_count(), threading.enumerate()[0]"
        ".name, threading.main_thread() is threading.current_thread())",
    ),
    script(
        "late thread",
        "import threading, time\nthreading.Thread(target=lambda: (time.sleep(.3),"
        " print('later'))).start()\nprint('over', len(threading.enumerate()))",
    ),
    script(
        "daemon thread",
        "import threading, time\nthreading.Thread(target=time.sleep, args=(99,)"
        ", daemon=True).start()\nprint('over')",
    ),
    script("stack size", "import _thread; print(_thread.stack_size())"),
    script(
        "forks",
        "import os, time, warnings\nwarnings.simplefilter('error')\nfor k in range(60):"
        "\n    pid = os.fork()\n    if not pid:\n        os._exit(k)\n"
        "    assert os.waitpid(pid, 0)[1] == k << 8\n    time.sleep(0.003)\nprint('done')",
    ),
    script(
        "fork tree",
        "import os\nfor _ in range(3):\n    pid = os.fork()\n    if pid:\n"
        "        os.waitpid(pid, 0)\nos.write(1, b'x\\n')\nos._exit(0)",
    ),
    script(
        "fork exits",
        "import os, sys\npid = os.fork()\nif not pid:\n    sys.exit(3)\n"
        "print(os.waitpid(pid, 0)[1])",
    ),
    script(
        "forkpty",
        "import os, pty\npid, fd = pty.fork()\nif not pid:\n    print('in')\n"
        "    os._exit(4)\nprint(os.read(fd, 99), os.waitpid(pid, 0)[1])",
    ),
    *(
        script(
            f"multiprocessing {method}",
            "import multiprocessing\ndef f(x):\n    return x * 2\n"
            "if __name__ == '__main__':\n"
            f"    with multiprocessing.get_context('{method}').Pool(2) as pool:\n"
            "        print(pool.map(f, range(5)))",
        )
        for method in ("fork", "spawn", "forkserver")
    ),
    script(
        "executor",
        "from concurrent.futures import ProcessPoolExecutor\ndef f(x):\n    return x"
        " + 1\nif __name__ == '__main__':\n    with ProcessPoolExecutor(2) as e:\n"
        "        print(list(e.map(f, range(4))))",
    ),
    script(
        "asyncio",
        "import asyncio, sys\nasync def main():\n    p = await asyncio"
        ".create_subprocess_exec(sys.executable, '-c', 'print(3)', stdout=-1)\n"
        "    print((await p.communicate())[0], p.returncode)\nasyncio.run(main())",
    ),
    script(
        "subprocess",
        "import subprocess, sys\nprint(subprocess.run([sys.executable, '-c', "
        "'import sys; print(2); sys.exit(5)'], capture_output=True, preexec_fn=lambda: None))",
        shell="\"$@\" | sed \"s/'[^']*python[^']*'/P/\"",
    ),
    script(
        "subinterpreters",
        "try:\n    import _interpreters as i\nexcept ImportError:\n"
        "    import _xxsubinterpreters as i\nrun = getattr(i, 'run_string', None) or i.exec\n"
        "for _ in range(4):\n    one = i.create()\n    run(one, 'import time; time.sleep(0.1)')\n"
        "    i.destroy(one)\nprint('done')",
    ),
    script(
        "subinterpreters first",
        "try:\n    import _interpreters as i\nexcept ImportError:\n"
        "    import _xxsubinterpreters as i\nrun = getattr(i, 'run_string', None) or i.exec\n"
        "one = i.create()\nrun(one, 'import sys; print(len(sys.path) > 2)')\ni.destroy(one)",
        linger=False,
    ),
    # -- signals inside
    script(
        "blocked signals",
        "import os, signal, time\nsignal.pthread_sigmask(0, {10, 15})\n"
        "time.sleep(0.2)\nos.kill(os.getpid(), 10)\nos.kill(os.getpid(), 15)\ntime.sleep(0.1)\n"
        "print(signal.sigpending(), signal.sigwait({10}))",
    ),
    script(
        "alarm",
        "import signal, time\nsignal.signal(14, lambda *_: print('rang'))\n"
        "signal.setitimer(0, 0.2)\nsignal.pause()",
    ),
    script(
        "profiling timer",
        "import signal, time\nsignal.signal(27, lambda *_: print('prof'))\n"
        "signal.setitimer(2, 0.05)\nend = time.time() + 60\n"
        "while signal.getitimer(2)[0] and time.time() < end: pass",
    ),
    script(
        "dispositions",
        "import signal\nprint([(s, str(signal.getsignal(s))) for s in "
        "sorted(signal.valid_signals())])",
    ),
    script("mask", "import signal; print(signal.pthread_sigmask(0, []))"),
    script(
        "wakeup fd",
        "import os, signal, socket\na, b = socket.socketpair()\n"
        "b.setblocking(False)\nprint(signal.set_wakeup_fd(b.fileno()))\n"
        "signal.signal(10, lambda *_: None)\nos.kill(os.getpid(), 10)\nprint(a.recv(9))",
    ),
    script(
        "ignored by the shell",
        "import signal\nprint(open('/proc/self/status').read().split("
        "'SigIgn:')[1][:18], signal.getsignal(1), signal.getsignal(17))",
        shell="trap '' HUP USR1 CHLD PIPE; \"$@\"",
    ),
    script("pipe of a command", "", inside="yes | head -1; echo ${PIPESTATUS[*]}"),
    # -- signals from outside
    *(
        script(
            f"default {signal.Signals(number).name}",
            "import time\nprint('ready', flush=True)\ntime.sleep(60)",
            signals=(number,),
        )
        for number in (1, 2, 3, 6, 10, 12, 13, 14, 15, 24, 25, 26, 27, 29, 30, 31)
    ),
    script(
        "default real-time",
        "import time\nprint('ready', flush=True)\ntime.sleep(60)",
        signals=(40,),
    ),
    script(
        "ignored by default",
        "import signal, time\nprint('ready', flush=True)\ntime.sleep(0.5)\nprint('on')",
        signals=(17, 18, 23, 28),
    ),
    script(
        "handled",
        "import signal, time\ngot = []\nfor s in (1, 2, 3, 10, 12, 14, 15, 17, 18, 20, "
        "21, 22, 23, 24, 28, 29, 34, 40):\n    signal.signal(s, lambda s, _: got.append(s))\n"
        "print('ready', flush=True)\nend = time.time() + 60\n"
        "while 15 not in got and time.time() < end:\n    time.sleep(0.1)\nprint(sorted(got))",
        signals=(1, 2, 3, 10, 12, 14, 17, 18, 20, 21, 22, 23, 24, 28, 29, 34, 40, 15),
    ),
    # -- what can be looked at
    script(
        "pickles",
        "import os, pickle\nfor f in (os._exit, os.execv, os.execve, os.fork):\n"
        "    print(f, pickle.loads(pickle.dumps(f)) is f)",
    ),
    script("switch interval", "import sys, time\ntime.sleep(0.5)\nprint(sys.getswitchinterval())"),
    script(
        "trace",
        "import sys\nseen = []\nsys.settrace(lambda f, e, a: seen.append(f.f_code"
        ".co_name))\ndef f(): pass\nf()\nsys.settrace(None)\nprint(seen)",
    ),
    script(
        "profile",
        "import sys\nseen = []\nsys.setprofile(lambda f, e, a: seen.append(e))\n"
        "len('')\nsys.setprofile(None)\nprint(seen)",
    ),
    script(
        "monitoring",
        "import sys\nprint([sys.monitoring.get_tool(k) for k in range(6)])",
        since=(3, 12),
    ),
    script(
        "warnings", "import warnings\nwarnings.warn('a')\nwarnings.warn('b', DeprecationWarning)"
    ),
    script(
        "-W error",
        "import os\nif not os.fork():\n    os._exit(0)\nos.wait(); print('fine')",
        options=("-W", "error"),
    ),
    script("-X dev", "print('dev')", options=("-X", "dev")),
    script("-bb", "print(1)", options=("-bb",)),
    script("-O", "assert False\nprint(__debug__)", options=("-O",)),
    script("-u", "print('u', end='')", options=("-u",)),
    script("-i", "x = 5", options=("-i",), stdin="print(x)\n", shell='"$@" 2>&1'),
    script("descriptors", "import os\nprint(os.listdir('/proc/self/fd'), os.open('/dev/null', 0))"),
    script(
        "environment",
        "import os\nprint({k: v for k, v in os.environ.items() if k not in ("
        "'PYTHONPATH', 'HPCNCF_PROBE', 'HPCNCF_OUTPUT', 'SHLVL', '_')})",
    ),
    script("umask", "import os; print(oct(os.umask(0)))", shell='umask 027; "$@"'),
    script("priority", "import os\nprint(os.nice(0), os.sched_getaffinity(0), os.getsid(0) > 0)"),
    script("input", "print(input() + '!')\nprint(input())", stdin="a\nb\n"),
    script("no input", "print(input())", shell='"$@" < /dev/null'),
    script("stdin closed", "import sys; print(sys.stdin)", shell='"$@" <&-'),
    script(
        "recursion",
        "def f(n):\n    return f(n + 1)\ntry:\n    f(0)\nexcept RecursionError as e:\n    print(e)",
    ),
    script(
        "deep",
        "import sys\nsys.setrecursionlimit(9000)\ndef d(n):\n    return n and 1 + d(n - 1)"
        "\nprint(sum(d(3000) for _ in range(50)))",
    ),
    script(
        "objects die",
        "import weakref\nclass A: pass\ndef f():\n    a = A()\n"
        "    return weakref.ref(a)\nprint(sum(f()() is not None for _ in range(50_000)))",
    ),
    script(
        "garbage", "import gc\nprint(gc.isenabled(), gc.get_threshold(), gc.callbacks, gc.garbage)"
    ),
    script(
        "traceback", "import traceback\ndef f():\n    print(len(traceback.extract_stack()))\nf()"
    ),
    script("import error", "import bad", files={"bad.py": "def g():\n    1 / 0\ng()"}),
    script("torch fails", "import torch", files={"torch/__init__.py": "def g():\n    1 / 0\ng()"}),
    script(
        "no torch",
        "import importlib.util as u\nprint(u.find_spec('torch') is None)\n"
        "try:\n    import torch.nope\nexcept ImportError as e:\n    print(type(e).__name__)",
        files={"torch.py": "X = 1"},
    ),
    script(
        "torch is a module",
        "import torch, sys\nprint(torch, torch.__spec__, torch.__loader__ is "
        "torch.__spec__.loader, vars(torch.__loader__))",
        files={"torch.py": "X = 1"},
        shell='"$@" | sed "s/0x[0-9a-f]*//g"',
    ),
    # -- little room
    script(
        "few descriptors",
        "import os\nprint(len([os.open('/dev/null', 0) for _ in range(12)]))",
        inside='ulimit -n 20; "$@"',
    ),
    script(
        "tight addresses",
        "import time; time.sleep(0.4)\nx = bytearray(10_000_000); print(len(x))",
        inside='ulimit -v 60000; "$@"',
    ),
    script("files", "open('a.txt', 'w').write('x')\nimport os; os.mkdir('d'); open('d/b', 'w')"),
    script(
        "removed folder",
        "import os\ntry:\n    os.getcwd()\nexcept OSError as e:\n    print(e)",
        inside='mkdir gone; cp "${@:$#}" s.py; A=$PWD; cd gone; rmdir "$A/gone"; '
        '"${@:1:$#-1}" "$A/s.py"',
    ),
    script("locale C", "import sys; print(sys.stdout.encoding, ascii('ä'))", shell='LC_ALL=C "$@"'),
    script(
        "bytes in arguments",
        "import os, sys\nprint([os.fsencode(a) for a in sys.argv[1:]])",
        shell="\"$@\" $'\\xff' '' ' '",
    ),
    script(
        "home unset", "import os; print(os.path.expanduser('~') != '~')", shell='env -u HOME "$@"'
    ),
]
# One with a reason of its own in each group, for a run of half a minute.
QUICK = (
    "exit code",
    "_exit",
    "killed",
    "modules",
    "path",
    "PYTHONPATH $PYTHONPATH:lib",
    "own types",
    "forks",
    "subinterpreters",
    "blocked signals",
    "ignored by the shell",
    "default SIGXCPU",
    "default real-time",
    "handled",
    "pickles",
    "torch fails",
    "tight addresses",
)


def pythons() -> list[str]:
    """The interpreters of this machine from 3.9 on, by their path."""
    found = [sys.executable]
    for minor in range(9, 16):
        paths = sorted(map(str, Path.home().glob(f".pyenv/versions/3.{minor}.*/bin/python")))
        named = shutil.which(f"python3.{minor}")
        found += [*paths, *([named] if named else [])][:1]
    return [each for each in dict.fromkeys(found) if version(each)]


def version(python: str) -> tuple[int, int] | None:
    words = [python, "-c", "import sys; print(*sys.version_info[:2])"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    return (*map(int, done.stdout.split()),) if done.returncode == 0 else None  # type: ignore


def outcome(program: Program, python: str, way: Way) -> Outcome:
    """Run it once, in a folder of its own, whose name is the same for every way."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made) / "w"
        folder.mkdir()
        for name, text in program.files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)
        (folder / "program.py").write_text((LINGER if program.linger else "") + program.code)
        words = [python, *program.options, str(folder / "program.py")]
        if program.inside:
            words = ["bash", "-c", program.inside, "bash", *words]
        environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "TERM": "dumb"}
        environment.pop("PYTHONPATH", None)
        if way == "probe":
            (Path(made) / "seen").mkdir()
            environment = observed(environment, Path(made) / "seen")
        elif way != "plain":
            tool = [sys.executable, str(TOOL / "tests" / "run_command.py"), "run", "--quiet"]
            tool += ["--results", f"{made}/r", *(["--no-probe"] if way == "no-probe" else [])]
            words = [*tool, "--", *words]
        if program.shell:
            words = ["bash", "-c", program.shell, "bash", *words]
        process = subprocess.Popen(
            words,
            cwd=folder,
            env=environment,
            stdin=subprocess.PIPE if program.stdin else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        assert process.stdout is not None
        said = b""
        if program.signals:
            said = process.stdout.readline()
            for number in program.signals:
                time.sleep(0.3)
                with contextlib.suppress(ProcessLookupError):
                    process.send_signal(number)
        try:
            out, err = process.communicate(program.stdin.encode() or None, timeout=LONGEST_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            out, err = process.communicate()
            err += b"[it did not end]"
        left = []
        for path in sorted(folder.rglob("*")):
            digest = hashlib.sha256(path.read_bytes()).hexdigest()[:8] if path.is_file() else ""
            left.append((str(path.relative_to(folder)), digest))
        texts = [each.decode(errors="replace").replace(made, "") for each in (said + out, err)]
    return Outcome(texts[0], texts[1], process.returncode, tuple(left))


def differences(program: Program, python: str, way: Way) -> list[str]:
    """What is not as without hpcncf, with a program whose own outcome is the same each time."""
    plain = outcome(program, python, "plain")
    found = plain.differences(outcome(program, python, way))
    if found and plain.differences(outcome(program, python, "plain")):
        return []  # it differs from itself
    return found and plain.differences(outcome(program, python, way))


def every(words: Sequence[str], ways: Sequence[Way]) -> Iterator[tuple[Program, str, Way]]:
    for program, python in itertools.product(PROGRAMS, pythons()):
        if (version(python) or (0, 0)) < program.since:
            continue
        if not all(word in program.name for word in words):
            continue
        # `hpcncf run` around it is the same for every Python.
        for way in ways if python == sys.executable else ways[:1]:
            if way in program.ways:
                yield program, python, way


def main(words: Sequence[str]) -> int:
    tasks = list(every(words, WAYS))
    failed = 0
    with ThreadPoolExecutor(8) as pool:
        for (program, python, way), found in zip(
            tasks, pool.map(lambda task: differences(*task), tasks), strict=True
        ):
            failed += bool(found)
            for each in found:
                print(f"{program.name}: {way}, Python {version(python)}: {each}", flush=True)
    print(f"{len(tasks)} pairs, {failed} differ")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
