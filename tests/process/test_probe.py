"""The probe inside a program: what it sees, and that the program does not notice it."""

from __future__ import annotations

import glob
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from hpcncf.launch.sbatch_wrapper import copy_probe
from hpcncf.probe.launch import observed
from hpcncf.probe.read import read_profiles
from hpcncf.records.schema import ProgramProfile

# On one thread: if others use the cores, two wait for each other for most of a second in ten steps.
MANY_STEPS = """
import torch
torch.set_num_threads(1)
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
optimizer = torch.optim.Adam(model.parameters())
data = torch.utils.data.TensorDataset(torch.randn(640, 8), torch.randn(640, 1))
for epoch in range({epochs}):
    for x, y in torch.utils.data.DataLoader(data, batch_size=32, shuffle=True):
        loss = torch.nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
print([p.double().sum().item().hex() for p in model.parameters()])
"""


def python(
    code: str,
    tmp_path: Path,
    seen: Path | None = None,
    command: Sequence[str] = (sys.executable,),
    **variables: str,
) -> subprocess.CompletedProcess[str]:
    """The code run as a script of the user's; with the probe, whose files go to `seen`, or
    without."""
    script = tmp_path / "script.py"
    script.write_text(code)
    environment = {**os.environ, **variables}
    if seen is not None:
        seen.exists() or seen.mkdir()
        environment = observed(environment, seen)
    return subprocess.run(
        [*command, str(script)],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=400,
    )


def same_with_and_without(code: str, tmp_path: Path, **variables: str) -> Any:
    """What a program prints and how it ends must not depend on the probe."""
    bare = python(code, tmp_path, **variables)
    seen = python(code, tmp_path, tmp_path / "seen", **variables)
    outcomes = [(each.returncode, each.stdout, timeless(each.stderr)) for each in (seen, bare)]
    assert outcomes[0] == outcomes[1]
    return seen


def timeless(text: str) -> str:
    """Without the moment and process that torch's log lines begin with."""
    return re.sub(r"^W\d{4} [\d:.]+ \d+ ", "", text, flags=re.MULTILINE)


def records(tmp_path: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted((tmp_path / "seen").glob("*.json"))]


def profile_of(tmp_path: Path) -> ProgramProfile:
    """Of the one process that was seen."""
    (seen,), problems = read_profiles(tmp_path / "seen")
    assert (problems, seen.problems) == ([], [])
    return seen


def observe(code: str, tmp_path: Path, **variables: str) -> ProgramProfile:
    python(code, tmp_path, tmp_path / "seen", **variables)
    return profile_of(tmp_path)


# Programs that take steps, each in a process that is forked once torch is imported: as a rank is
# that a launcher forks. Importing torch takes longer than any of them.
TRAIN = """
import copy, json, os, sys, time
import torch
import torch._dynamo  # as every optimizer does
torch.set_num_threads(1)
def work(seconds):
    began = time.perf_counter()
    while time.perf_counter() < began + seconds:
        pass
    return time.perf_counter() - began
class Rows(torch.utils.data.Dataset):
    def __init__(self, number, get):
        self.number, self.get = number, get
    def __len__(self):
        return self.number
    def __getitem__(self, i):
        return self.get(i)
def steps(number, optimizer=None, batches=None, width=1):
    model = torch.nn.Linear(width, width)
    optimizer = (optimizer or torch.optim.SGD)(model.parameters(), 0.1)
    for x in batches or [torch.ones(1, width)] * number:
        optimizer.zero_grad()
        model(x.view(-1, width).float()).sum().backward()
        optimizer.step()
        yield model
def loader(number, get):
    return torch.utils.data.DataLoader(Rows(number, get), batch_size=1)
def short_steps():
    spent = dict.fromkeys("input optimizer evaluation".split(), 0.0)
    def get(i):
        spent["input"] += work(0.0004)
        return i
    class Slow(torch.optim.SGD):
        def step(self, closure=None):
            spent["optimizer"] += work(0.0002)
    for step, _ in enumerate(steps(2000, Slow, loader(2000, get))):
        if step % 497 == 496:
            time.sleep(0.4)
            spent["evaluation"] += 0.4
    print(json.dumps(list(spent.values())))
def few_long_steps():
    list(steps(9, batches=loader(9, lambda i: time.sleep(0.3) or i)))
def anew():
    model = torch.nn.Linear(9, 9)
    for step in range(400):
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        model(torch.randn(4, 9)).sum().backward()
        optimizer.step()
def decorated():
    class Own(torch.optim.SGD):
        @torch.no_grad()
        def step(self):
            work(0.001)
    list(steps(400, Own))
def within():
    class Own(torch.optim.SGD):
        def step(self):
            with torch.no_grad():
                work(0.001)
    list(steps(400, Own))
def no_grad():
    for step, model in enumerate(steps(20, width=9)):
        copy.deepcopy(model.state_dict())
        if step % 5 == 0:
            with torch.no_grad():
                model(torch.randn(4, 9))
def remedy():
    from hpcncf.remedies import rowwise
    table = torch.nn.Embedding(20000, 16)
    optimizer = torch.optim.Adam(table.parameters())
    rowwise(table, optimizer)
    for _ in range(1000):
        optimizer.zero_grad()
        table(torch.randint(20000, (256,))).sum().backward()
        optimizer.step()
    table.state_dict()["weight"].sum()  # brings all rows up to date
for train in (short_steps, few_long_steps, anew, decorated, within, no_grad, remedy):
    child = os.fork()
    if not child:
        train()
        sys.exit()
    assert os.wait()[1] == 0, train
    print(train.__name__, child, flush=True)
"""


@pytest.fixture(scope="module")
def trainings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Any, ProgramProfile]]:
    """Of each function of TRAIN: the probe's file, and what is read from it."""
    folder = tmp_path_factory.mktemp("trainings")
    done = python(TRAIN, folder, folder / "seen")
    assert done.returncode == 0, done.stderr
    names = {pid: name for name, pid in re.findall(r"^(\w+) (\d+)$", done.stdout, re.MULTILINE)}
    profiles, problems = read_profiles(folder / "seen")
    assert problems == []
    assert len(profiles) == len(names)
    raw = {str(each["pid"]): each for each in records(folder)}
    found = {names[str(each.pid)]: (raw[str(each.pid)], each) for each in profiles}
    raw_of_short = found["short_steps"][0]
    raw_of_short["spent"] = json.loads(done.stdout.splitlines()[0])
    return found


Trainings = dict[str, tuple[Any, ProgramProfile]]


def without_a_core(record: Any) -> float:
    """Seconds for which the training thread was ready: beside busy neighbours it did not wait."""
    _, ready, _, ready_before = record["threads"][record["main_thread"]]
    return float(ready - ready_before)


@pytest.mark.alone
def test_the_phases_of_short_steps_are_those_that_the_program_measures(
    trainings: Trainings,
) -> None:
    """One step of thirteen is timed; a long one among the others is sampled."""
    record, seen = trainings["short_steps"]
    assert seen.steps == 1999
    assert [(each.batches, each.evaluates) for each in seen.loaders] == [(1999, False)]
    shares = [each / seen.seconds for each in record["spent"]]
    parts = [seen.phases[name].seconds / seen.seconds for name in ("input", "optimizer", "loop")]
    near = 0.1 + without_a_core(record) / seen.seconds  # which may fall into any of the phases
    assert parts[:2] == pytest.approx(shares[:2], abs=near)
    assert shares[2] - near < parts[2] < shares[2] + 0.2 + near  # with what torch does between
    waited = {name: (each.waiting or 0.0) * each.seconds for name, each in seen.phases.items()}
    assert waited["loop"] > 0.5 * record["spent"][2]  # unknown before a second sample
    assert waited["loop"] > 4 * waited["input"]
    long_s = sum(wall for wall, *_ in record["long_steps"].values())
    assert 0 < long_s < record["phases"]["untimed"][0]
    assert record["phases"]["untimed"][0] > 0.5 * seen.seconds


@pytest.mark.alone
def test_each_of_few_long_steps_is_timed(trainings: Trainings) -> None:
    raw, profile = trainings["few_long_steps"]
    seen = profile.phases["input"]
    assert seen.entered == 9  # the ninth says that there are no more
    assert seen.waiting is not None
    assert seen.waiting > 0.95 - without_a_core(raw) / seen.seconds


@pytest.mark.alone
def test_an_optimizer_made_anew_for_each_step_makes_steps(trainings: Trainings) -> None:
    assert trainings["anew"][1].steps == 399


@pytest.mark.alone
@pytest.mark.parametrize("way", ["decorated", "within"])
def test_what_an_optimizer_does_without_gradients_is_its_own(
    trainings: Trainings, way: str
) -> None:
    seen = trainings[way][1]
    assert seen.phases["optimizer"].seconds > 0.6 * seen.seconds


@pytest.mark.alone
def test_only_the_programs_own_no_grad_is_an_evaluation(trainings: Trainings) -> None:
    """A deep copy enters it inside torch."""
    line = TRAIN.splitlines().index("        if step % 5 == 0:") + 2
    sites = trainings["no_grad"][0]["no_grad"]
    assert [(each["place"][1], each["count"]) for each in sites] == [(line, 4)]


@pytest.mark.alone
def test_a_remedy_is_no_line_of_the_user(trainings: Trainings) -> None:
    raw, seen = trainings["remedy"]
    assert raw["no_grad"] == [], "nor an evaluation"
    assert {Path(each.file).name for each in seen.lines} == {"script.py"}
    loop_s = seen.phases["loop"].seconds if "loop" in seen.phases else 0.0  # no sample fell in it
    assert loop_s < seen.phases["optimizer"].seconds


@pytest.mark.parametrize(
    ("work", "interprets"),
    [
        ("total += sum(x * x for x in range(1000))", True),
        ("small @ small; total += small.sum() + small.max()", True),
        ("for _ in range(4): large @ large", False),
    ],
)
def test_a_python_loop_goes_on_while_operations_on_large_arrays_stay(
    tmp_path: Path, work: str, interprets: bool
) -> None:
    code = f"""
import time
import numpy as np
small, large, total = np.ones((8, 8)), np.ones((600, 600)), 0
until = time.process_time() + 1.5
while time.process_time() < until:
    {work}
"""
    seen = observe(code, tmp_path, OMP_NUM_THREADS="1")
    assert seen.moved is not None
    assert seen.moved >= 0.35 if interprets else seen.moved < 0.2


# Each error is raised in a process that is forked once torch is imported.
ERRORS = """
import os, sys
import torch
import torch._dynamo  # as every optimizer does
class Broken(torch.utils.data.Dataset):
    def __len__(self):
        return 4
    def __getitem__(self, i):
        return 1 / (2 - i)
def load():
    for batch in torch.utils.data.DataLoader(Broken(), batch_size=1):
        pass
def twice():
    loss = torch.ones(1, requires_grad=True).square().sum()
    loss.backward()
    loss.backward()
def compiled():
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    @torch.compile(fullgraph=True, backend="eager")
    def forward(x):
        with torch.no_grad():
            y = x * 2
        return model(y + x).sum()
    @torch.compile(backend="eager")
    def step():
        optimizer.step()
    for _ in range(3):
        optimizer.zero_grad()
        forward(torch.ones(2, 4)).backward()
        step()
    print([p.sum().item().hex() for p in model.parameters()], flush=True)
for program in (load, twice, compiled):
    if not os.fork():
        try:
            program()
        except BaseException:
            sys.excepthook(*sys.exc_info())
            os._exit(1)
        os._exit(0)
    print(program.__name__, os.waitstatus_to_exitcode(os.wait()[1]), flush=True)
"""


def test_errors_and_trainings_are_as_without_the_probe_and_phases_are_seen(tmp_path: Path) -> None:
    """Also with a library that looks for torch before its import."""
    looked = "import importlib.util\nassert importlib.util.find_spec('torch')\n"
    done = same_with_and_without(looked + ERRORS + MANY_STEPS.format(epochs=60), tmp_path)
    assert re.findall(r"(\w+) (\d)$", done.stdout, re.MULTILINE) == [
        ("load", "1"),
        ("twice", "1"),
        ("compiled", "0"),
    ]
    assert len(re.findall(r"^\[.*0x.*\]$", done.stdout, re.MULTILINE)) == 2
    assert "ZeroDivisionError" in done.stderr
    assert "second time" in done.stderr
    profiles, problems = read_profiles(tmp_path / "seen")
    assert problems == []
    seen = max(profiles, key=lambda each: each.steps)
    # The first of 60 epochs of 20 steps each begins with the step that ends the start-up.
    assert seen.steps == 60 * 20 - 1
    assert {"input", "forward", "backward", "optimizer"} <= set(seen.phases)
    assert sum(part.seconds for part in seen.phases.values()) == pytest.approx(seen.seconds)
    assert seen.startup_s + seen.seconds <= seen.elapsed_s + 0.01
    assert [(each.batch_size, each.length) for each in seen.loaders] == [(32, 20)]
    assert (seen.complete, seen.problems) == (True, [])


def test_an_error_at_the_import_of_torch_is_shown_without_the_probe(tmp_path: Path) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise KeyboardInterrupt\n")
    done = same_with_and_without("import torch\n", tmp_path)
    assert "torch/__init__.py" in done.stderr


def test_an_interrupt_inside_the_probe_is_shown_without_it(tmp_path: Path) -> None:
    """A signal's handler runs wherever the thread is, in the probe's own lines, too."""
    done = python(
        """
import sys
import torch
from torch.utils.data import DataLoader
def interrupt(frame, event, arg):
    if frame.f_code.co_name in ("pop", "push") and "_hpcncf_probe" in frame.f_code.co_filename:
        raise KeyboardInterrupt
    return interrupt
def load():
    loader = DataLoader(torch.arange(4))
    sys.settrace(interrupt)
    for batch in loader:
        pass
load()
""",
        tmp_path,
        tmp_path / "seen",
    )
    lines = [line for line in done.stderr.splitlines() if line.startswith("  File")]
    assert [line.rpartition(" in ")[2] for line in lines] == ["<module>", "load", "interrupt"]
    assert done.stderr.endswith("KeyboardInterrupt\n")


@pytest.mark.parametrize(
    "code",
    [
        "import os; print('a', flush=True); os._exit(7)",
        "import sys; sys.exit('bye')",
        "import os, signal; os.kill(os.getpid(), signal.SIGTERM)",
        "import os, signal, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: print('got it'))\n"
        "os.kill(os.getpid(), signal.SIGTERM)",
        "import atexit; atexit.register(print, 'last'); print('first')",
        "import os, sys; print(1, flush=True); os.execv(sys.executable, [sys.executable, '-c', "
        "'print(2)'])",
        "import os\ntry:\n    os.execv('/nowhere', ['x'])\nexcept OSError as e:\n    print(e)",
        "import sys; sys.stdout.close()",
        "import threading; print(threading.active_count(), threading.main_thread().name)",
        "import sys; print([p for p in sys.path if 'probe' in p or 'inject' in p])",
        "import sys; print(sys.meta_path[-1], sys.excepthook is sys.__excepthook__)",
        "import os\nif os.fork() == 0:\n    os._exit(3)\nprint(os.wait()[1])",
        "raise KeyboardInterrupt",
        "import os; os.closerange(3, 64); print('all closed')",
        "import signal, time\nsignal.signal(signal.SIGPROF, lambda *_: print('profiled'))\n"
        "signal.setitimer(signal.ITIMER_PROF, 0.05)\nend = time.time() + 60\n"
        "while signal.getitimer(signal.ITIMER_PROF)[0] and time.time() < end: pass",
        "import threading, time\nthreading.Thread(target=lambda: (time.sleep(0.3), print('later'))"
        ").start()\nprint('main is over', len(threading.enumerate()))",
        "import sys\nsys.setrecursionlimit(9000)\ndef down(n):\n    return n and 1 + down(n - 1)\n"
        "print(sum(down(3000) for _ in range(200)))",
        "import gc, sys, weakref\nclass Big: pass\ndef f():\n    big = Big()\n"
        "    return weakref.ref(big)\nprint(sum(f()() is not None for _ in range(200_000)))",
        "import subprocess, sys\nprint(subprocess.check_output([sys.executable, '-m', 'pip', "
        "'--version'], text=True).split()[0])",
        "import warnings; warnings.simplefilter('error'); import os\n"
        "if os.fork() == 0:\n    os._exit(0)\nos.wait(); print('no warning')",
    ],
)
def test_a_program_ends_as_it_does_without_the_probe(code: str, tmp_path: Path) -> None:
    same_with_and_without(code, tmp_path)


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_processes_of_multiprocessing_work(method: str, tmp_path: Path) -> None:
    done = same_with_and_without(
        f"""
import multiprocessing
def double(x):
    return 2 * x
if __name__ == "__main__":
    with multiprocessing.get_context("{method}").Pool(2) as pool:
        print(pool.map(double, range(5)))
""",
        tmp_path,
    )
    assert done.stdout == "[0, 2, 4, 6, 8]\n"


def test_the_hidden_sitecustomize_runs_and_keeps_its_errors(tmp_path: Path) -> None:
    users = tmp_path / "users"
    users.mkdir()
    (users / "sitecustomize.py").write_text("print('mine')\nKEPT = 1\n")
    code = "import sitecustomize; print(sitecustomize.KEPT, sitecustomize.__file__)"
    done = same_with_and_without(code, tmp_path, PYTHONPATH=str(users))
    assert done.stdout.splitlines() == ["mine", f"1 {users}/sitecustomize.py"]
    (users / "sitecustomize.py").write_text("1 / 0\n")
    done = same_with_and_without("print('still here')", tmp_path, PYTHONPATH=str(users))
    assert "ZeroDivisionError" in done.stderr


@pytest.mark.parametrize("seen", ["full", "/proc"])
def test_a_record_that_cannot_be_written_costs_the_record_only(seen: str, tmp_path: Path) -> None:
    code = "import resource, time\nresource.setrlimit(resource.RLIMIT_FSIZE, (200, 200))\n"
    code += "end = time.time() + 2.5\nwhile time.time() < end: pass\nprint('done')"
    done = python(code, tmp_path, tmp_path / seen)
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")
    assert seen == "/proc" or list((tmp_path / seen).iterdir()) == []


def test_a_results_folder_that_cannot_be_written_does_not_cost_the_run(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "hpcncf", "run", "--results", "/proc/none", "--quiet", "--"]
    done = subprocess.run(
        [*words, sys.executable, "-c", "print('ran'); raise SystemExit(3)"],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (3, "ran\n")
    (record,) = tmp_path.glob("hpcncf-run-*/runs/*/attempt-1/rank-0.json")
    assert json.loads(record.read_text())["exit_code"] == 3
    assert str(record.parents[3]) in done.stderr


@pytest.mark.parametrize(("options", "is_noticed"), [(["-I"], True), ([], False)])
def test_a_python_that_does_not_load_the_probe_is_named(
    options: list[str], is_noticed: bool, tmp_path: Path
) -> None:
    words = [sys.executable, "-m", "hpcncf", "run", "--results", str(tmp_path), "--quiet", "--"]
    subprocess.run([*words, sys.executable, *options, "-c", "1"], check=True, timeout=60)
    (record,) = tmp_path.glob("runs/*/attempt-1/rank-0.json")
    warnings = json.loads(record.read_text())["warnings"]
    assert any("does not load the probe" in each for each in warnings) is is_noticed


def test_a_closed_standard_output_gets_nothing_of_the_probe(tmp_path: Path) -> None:
    code = (
        "import os, time\nend = time.time() + 2.6\nlowest = 9\n"
        "while time.time() < end:\n    with open('/dev/null') as file:\n"
        "        lowest = min(lowest, file.fileno())\nraise SystemExit(40 + lowest)\n"
    )
    command = ("bash", "-c", 'exec "$0" "$1" 1>&-', sys.executable)
    done = python(code, tmp_path, tmp_path / "seen", command)
    assert done.returncode == 41  # the program's own files come first, as without the probe


def test_many_processes_leave_nothing_but_their_work(tmp_path: Path) -> None:
    processes = int(os.environ.get("PROCESSES", "500"))  # 10,000 take a minute
    code = f"""
import os, subprocess, sys
ended = 0
for _ in range({processes}):
    child = os.fork()
    if child == 0:
        os._exit(5)
    ended += os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 5
for _ in range(10):
    subprocess.run([sys.executable, "-c", "1"])
print(ended)
"""
    done = same_with_and_without(code, tmp_path)
    assert done.stdout == f"{processes}\n"
    assert len(records(tmp_path)) <= 1


def test_a_program_that_is_killed_leaves_what_was_seen_so_far(tmp_path: Path) -> None:
    code = "import os, signal, time\nend = time.time() + 2.6\n"
    code += "while time.time() < end:\n    sum(range(1000))\nos.kill(os.getpid(), signal.SIGKILL)"
    seen = observe(code, tmp_path)
    assert not seen.complete
    assert 1.5 < seen.phases["loop"].seconds <= seen.elapsed_s + 0.01
    assert {line.line for line in seen.lines} <= {3, 4}


def test_a_line_that_lets_go_of_the_lock_has_its_time(tmp_path: Path) -> None:
    """Another thread gets the lock there, and must not see the program further on than it was."""
    code = """
import hashlib, time
data = bytes(2_000_000)
def digest():
    return hashlib.sha256(data).digest()
def bookkeeping():
    total = 0
    for k in range(300):
        total += k
    return total
end = time.time() + 2
while time.time() < end:
    digest()
    bookkeeping()
    bookkeeping()
"""
    shares = {line.line: line.own_share for line in observe(code, tmp_path).lines}
    assert shares[5] > 0.9


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="Linux only")
def test_only_the_sampler_follows_the_training_thread(tmp_path: Path) -> None:
    """On its core; the program's own threads stay where they were allowed to be."""
    code = """
import os, time
allowed = os.sched_getaffinity(0)
end = time.time() + 1.6
while time.time() < end:
    pass
seen = [os.sched_getaffinity(int(each)) for each in os.listdir("/proc/self/task")]
print(seen.count(allowed), sorted(len(each) for each in seen if each != allowed))
print(os.sched_getaffinity(0) == allowed)
"""
    done = python(code, tmp_path, tmp_path / "seen")
    followed = [] if len(os.sched_getaffinity(0)) == 1 else [1]
    assert done.stdout == f"{2 - len(followed)} {followed}\nTrue\n"


OTHER_PYTHONS = [
    path
    for minor in range(9, 15)
    if minor != sys.version_info[1]
    for path in (
        *glob.glob(os.path.expanduser(f"~/.pyenv/versions/3.{minor}.*/bin/python")),  # noqa: PTH207, PTH111
        shutil.which(f"python3.{minor}"),
    )[:1]
    if path and subprocess.run([path, "-c", ""], capture_output=True, check=False).returncode == 0
]


NEWER_PYTHONS = [path for path in OTHER_PYTHONS if re.search(r"3\.1[34]", path)]


@pytest.mark.parametrize("interpreter", NEWER_PYTHONS)
def test_module_of_interpreters_costs_no_samples_until_there_are_several(
    interpreter: str, tmp_path: Path
) -> None:
    """Since Python 3.14 `concurrent.futures`, and so torch, imports it."""
    code = """
import time
def spin(seconds):
    end = time.time() + seconds
    while time.time() < end:
        sum(range(100))
spin(0.8)
import _interpreters
spin(1.5)
if {makes}:
    one = _interpreters.create()
    spin(0.3)
    _interpreters.destroy(one)
"""
    for makes in (False, True):
        seen = tmp_path / f"seen-{makes}"
        done = python(code.format(makes=makes), tmp_path, seen, (interpreter,))
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
        ((profile,), problems) = read_profiles(seen)
        assert problems == []
        assert profile.samples_taken > 40
        said = ["no samples: it may have several interpreters"] if makes else []
        assert profile.problems == said


@pytest.mark.parametrize("interpreter", [sys.executable, *OTHER_PYTHONS])
def test_any_python_is_observed_without_hpcncf_in_it(interpreter: str, tmp_path: Path) -> None:
    """Its hot line is named, and no value of its data."""
    code = """
import time
password = "hunter2-in-the-source"
def slow(n):
    total = 0
    for k in range(n):
        total += k * k % 7
    return total
end = time.time() + 1.6
while time.time() < end:
    slow(1000)
"""
    done = python(code, tmp_path, tmp_path / "seen", (interpreter,))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    seen = profile_of(tmp_path)
    assert seen.complete
    hot = max(seen.lines, key=lambda line: line.own_share)
    assert (hot.function, hot.line) in {("slow", 6), ("slow", 7)}
    assert sum(each.own_share for each in seen.lines if each.function == "slow") > 0.8
    (path,) = (tmp_path / "seen").glob("*.json")
    assert "hunter2" not in path.read_text()
    assert path.stat().st_mode & 0o007 == 0


WORKS = """\
import time
def work():
    until = time.process_time() + 1.2
    while time.process_time() < until:
        sum(range(1000))
work()
"""


def test_the_copy_beside_a_jobs_records_names_the_users_lines(tmp_path: Path) -> None:
    """The probe in the package and its copy know what is their own, which no program's line is."""
    folder = tmp_path / "program"
    folder.mkdir()
    copy = copy_probe(tmp_path / "results")
    seen = tmp_path / "seen"
    seen.mkdir()
    path = os.pathsep.join([str(copy), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = python(WORKS, folder, PYTHONPATH=path, HPCNCF_PROBE=str(seen))
    assert (done.returncode, done.stderr) == (0, "")
    assert {Path(line.file).name for line in profile_of(tmp_path).lines} == {"script.py"}
