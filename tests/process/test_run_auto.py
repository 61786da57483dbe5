"""`hpcncf run --auto`: trials that cannot harm the real run, and what it takes of them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from test_json_output import check
from unit.test_program_trials import Given, seen, tried

from hpcncf import cli
from hpcncf.errors import HpcncfError
from hpcncf.launcher.time_limit import time_limit_s
from hpcncf.monitor.cgroup import usable_cpus
from hpcncf.probe.launch import GUARD, GUARD_KERNEL, GUARD_UNSET, observed
from hpcncf.tune import auto
from hpcncf.tune import sandbox as sandbox_module
from hpcncf.tune.auto import AutoChoice, OwnAllocation, find_obstacle
from hpcncf.tune.program import Setup, build_tuning
from hpcncf.tune.sandbox import kernel_version, open_sandbox, restrict_thread, writable
from hpcncf.tune.search import next_step
from hpcncf.tune.tuning import Now

HPCNCF = [sys.executable, "-m", "hpcncf"]
PROGRAM = """
import os, sys, time, torch
os.makedirs("out", exist_ok=True)
print("started", file=open("out/log.txt", "a"))
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.Adam(model.parameters())
for step in range(1500):
    loss = model(torch.randn(16, 8)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    time.sleep(0.01 if optimizer.defaults["fused"] else 0.02)
print("fused:", optimizer.defaults["fused"])
sys.exit(7)
"""


@pytest.mark.slow
def test_auto_takes_a_remedy_and_leaves_the_real_run_its_output_and_exit_code(
    tmp_path: Path,
) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    words = ["run", "--auto", "--auto-seconds", "70", "--json", "auto.json", "--"]
    done = subprocess.run(
        [*HPCNCF, *words, sys.executable, "train.py"],
        cwd=tmp_path,
        capture_output=True,
        preexec_fn=lambda: os.sched_setaffinity(0, usable_cpus()[:1]),
        text=True,
    )
    assert (done.returncode, done.stdout) == (7, "fused: True\n"), done.stderr
    assert "Took      fused: a step takes" in done.stderr
    assert (tmp_path / "out/log.txt").read_text() == "started\n", "by the real run only"
    found = check("run", (tmp_path / "auto.json").read_text())["auto"]
    assert found["with"] == "fused"
    assert found["trials"] >= 2
    assert found["seconds"] < 75
    assert Path(found["results"]).parent.name == "run-auto"


def guarded(folder: Path, code: str) -> tuple[int, str]:
    """Run code in a trial's guard, without the kernel's; returns exit code and what stopped it."""
    own = folder / "own"
    for each in (own, folder / "probe"):
        each.mkdir(exist_ok=True)
    trial = folder / "trial.json"
    environment = observed(dict(os.environ), folder / "probe", trial=trial)
    allowed = os.pathsep.join(map(str, (own, folder / "probe", "/dev")))
    environment |= {GUARD: allowed, GUARD_KERNEL: "0", "PYTHONDONTWRITEBYTECODE": "1"}
    script = own / "train.py"
    script.write_text(code)
    done = subprocess.run([sys.executable, str(script)], cwd=own, env=environment, check=False)
    unsafe = Path(f"{trial}.unsafe")
    return done.returncode, unsafe.read_text() if unsafe.exists() else ""


@pytest.mark.parametrize(
    ("line", "part"),
    [
        ("open('../kept.txt', 'w')", "writes"),
        ("os.open('../kept.txt', os.O_RDWR)", "writes"),
        ("pathlib.Path('../kept.txt').write_text('x')", "writes"),
        ("os.remove('../kept.txt')", "removes"),
        ("shutil.rmtree('../full')", "removes"),
        ("os.makedirs('../other/new')", "makes the folder"),
        ("os.replace('../kept.txt', 'x')", "moves or links"),
        ("os.truncate('../kept.txt', 0)", "changes"),
        ("sqlite3.connect('../kept.db')", "opens the database"),
        ("socket.create_connection(('192.0.2.1', 80), 1)", "connects to 192.0.2.1 port 80"),
        ("subprocess.run(['cp', '../kept.txt', '../copy'])", "starts cp"),
        ("subprocess.run(['git', 'gc'])", "starts git"),
        ("os.system('echo x > ../kept.txt')", "starts the shell line echo"),
        ("subprocess.run('rm ../kept.txt', shell=True)", "starts the shell line rm"),
        ("os.symlink('../kept.txt', 'a'); open('a', 'a')", "writes"),
    ],
)
def test_guard_ends_a_trial_before_it_reaches_out(tmp_path: Path, line: str, part: str) -> None:
    (tmp_path / "kept.txt").write_text("kept")
    (tmp_path / "full").mkdir()
    (tmp_path / "full/kept.txt").write_text("kept")
    modules = "import os, pathlib, shutil, socket, sqlite3, subprocess\n"
    code, unsafe = guarded(tmp_path, f"{modules}\n{line}\nprint('never')\n")
    assert code == 0
    assert f"it {part}" in unsafe
    assert unsafe.endswith("(train.py:3)"), unsafe
    kept = [each.read_text() for each in (tmp_path / "kept.txt", tmp_path / "full/kept.txt")]
    assert kept == ["kept", "kept"]
    assert {each.name for each in tmp_path.iterdir()} == {
        *("kept.txt", "full", "own", "probe", "trial.json.unsafe")
    }


def test_guard_takes_variables_away_that_the_real_run_has_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the program and from what it starts, which may set them itself."""
    for name, value in {"RANK": "0", "OMP_NUM_THREADS": "2", GUARD_UNSET: "RANK,NONE"}.items():
        monkeypatch.setenv(name, value)
    code = """
import os, subprocess, sys
assert "RANK" not in os.environ and os.environ["OMP_NUM_THREADS"] == "2"
os.environ["RANK"] = "1"
shows = "import os; raise SystemExit(int(os.environ['RANK']))"
raise SystemExit(subprocess.call([sys.executable, "-c", shows]))
"""
    assert guarded(tmp_path, code) == (1, "")


def test_guard_lets_a_trial_work_in_its_own_folder(tmp_path: Path) -> None:
    code = """
import os, socket, sqlite3, subprocess, tempfile
os.makedirs("a/b", exist_ok=True)
os.makedirs(".", exist_ok=True)
open("a/b/c", "w").write("x")
os.replace("a/b/c", "a/d")
os.remove("a/d")
sqlite3.connect(":memory:")
open("../kept.txt").read()
subprocess.run(["uname"], stdout=subprocess.DEVNULL)
subprocess.run("git rev-parse HEAD 2>&1".split()[:3], capture_output=True)
subprocess.run("uname -a", shell=True, stdout=subprocess.DEVNULL)
server = socket.create_server(("127.0.0.1", 0))
socket.create_connection(server.getsockname())
socket.socket(socket.AF_INET, socket.SOCK_DGRAM).connect(("192.0.2.1", 80))
try:
    open("nowhere/x")
except FileNotFoundError:
    raise SystemExit(5)
"""
    (tmp_path / "kept.txt").write_text("kept")
    assert guarded(tmp_path, code) == (5, "")


@pytest.mark.skipif(not kernel_version(), reason="this kernel has no Landlock")
def test_kernel_keeps_a_restricted_thread_in_its_folders(tmp_path: Path) -> None:
    """Whatever writes, here a shell; other threads of the process go on as before."""
    inside, outside = tmp_path / "in", tmp_path / "out"
    for each in (inside, outside):
        each.mkdir()
        (each / "file").write_text("before")

    def work() -> list[int]:
        restrict_thread([inside, Path("/dev")])
        lines = ("echo x > {}/file", "echo x > {}/new", "rm {}/file", "mkdir {}/folder")
        return [
            subprocess.run(["sh", "-c", line.format(each)], stderr=subprocess.DEVNULL).returncode
            for each in (inside, outside)
            for line in lines
        ]

    with ThreadPoolExecutor(1) as pool:
        codes = pool.submit(work).result()
    assert codes[:4] == [0, 0, 0, 0]
    assert 0 not in codes[4:]
    assert [each.name for each in outside.iterdir()] == ["file"]
    assert (outside / "file").read_text() == "before"
    (outside / "new").write_text("by the main thread")


def test_sandbox_copies_small_files_and_links_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(cache))
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "not made yet"))
    source = tmp_path / "source"
    for folder in ("out", "data", ".git"):
        (source / folder).mkdir(parents=True)
    for name in ("small.txt", "out/log.txt"):
        (source / name).write_text("before")
    (source / "out/model.pt").write_bytes(b"x" * (2 << 20))
    (source / "dangling").symlink_to("nowhere")
    for number in range(20):
        (source / f"data/{number}").touch()
    monkeypatch.setattr(sandbox_module, "MOST_ENTRIES", 10)
    with open_sandbox(source) as sandbox:
        work = sandbox.work
        for _ in range(2):
            sandbox.renew()
            assert (work / "small.txt").read_text() == (work / "out/log.txt").read_text()
            assert not (work / "new.txt").exists()
            assert (work / "out/model.pt").resolve() == source / "out/model.pt"
            links = [each.name for each in work.iterdir() if each.is_symlink()]
            assert sorted(links) == [".git", "dangling", "data"]
            (work / "out/log.txt").write_text("changed")
            (work / "new.txt").write_text("new")
        assert {sandbox.folder, cache} <= set(writable(sandbox))
        assert "NUMBA_CACHE_DIR" not in sandbox.variables
        assert sandbox.variables["TRITON_CACHE_DIR"] == str(sandbox.temporary)
        monkeypatch.setattr(sandbox_module, "MOST_ENTRIES", 3)
        with pytest.raises(HpcncfError, match="has more than 3 entries"):
            sandbox.renew()
    assert not sandbox.folder.exists()
    assert (source / "out/log.txt").read_text() == "before"
    assert (source / "out/model.pt").exists(), "what is linked is not removed with the links"


def test_obstacles_are_known_before_any_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_obstacle(["python3", "train.py"]) == ""
    assert "started by bash" in find_obstacle(["bash", "run.sh"])
    assert "started by torchrun" in find_obstacle(["torchrun", "train.py"])
    assert "several ranks" in find_obstacle(["python", "-m", "torch.distributed.run", "train.py"])
    assert "does not load the probe" in find_obstacle(["python", "-I", "train.py"])
    names = ("STEP_NUM_TASKS=4", "PROCID=0", "LOCALID=0", "NODEID=0", "STEP_TASKS_PER_NODE=4")
    for name, _, value in (each.partition("=") for each in names):
        monkeypatch.setenv(f"SLURM_{name}", value)
    assert "one of 4 ranks" in find_obstacle(["python", "train.py"])


def test_input_of_the_real_run_is_not_read_by_trials(tmp_path: Path) -> None:
    words = [*HPCNCF, "run", "--quiet", "--json", "out.json", "--auto", "--"]
    command = [*words, sys.executable, "-c", "import sys; print(sys.stdin.read())"]
    done = subprocess.run(command, cwd=tmp_path, input="given", capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "given\n")
    found = check("run", (tmp_path / "out.json").read_text())["auto"]
    assert "standard input" in found["reason"]
    assert found["trials"] == 0


def test_program_that_cannot_be_timed_runs_unchanged(tmp_path: Path) -> None:
    words = ["run", "--auto", "--auto-seconds", "30", "--", sys.executable, "-c", "print(1)"]
    done = subprocess.run([*HPCNCF, *words], cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "1\n")
    assert "the program unchanged: no backward pass of PyTorch was seen" in done.stderr


def test_first_trial_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "import time; time.sleep(60)"]
    began = time.monotonic()
    found = auto.tune_here(command, tmp_path / "results", 3.0, lambda: False)
    assert time.monotonic() - began < 12
    assert not found.remedies
    assert found.reason == "the time was too short for its first trial"


def test_python_that_does_not_load_the_probe_makes_no_trial(tmp_path: Path) -> None:
    wrapper, marker = tmp_path / "python", tmp_path / "started"
    wrapper.write_text(f'#!/bin/sh\nunset PYTHONPATH\nexec {sys.executable} "$@"\n')
    wrapper.chmod(0o755)
    command = [str(wrapper), "-c", f"open({str(marker)!r}, 'w')"]
    found = auto.tune_here(command, tmp_path / "results", 20.0, lambda: False)
    assert "its Python does not load the probe" in found.reason
    assert not marker.exists()


def test_results_folder_that_cannot_be_written_costs_no_run(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    words = ["run", "--results", "file/run", "--auto", "--", sys.executable, "-c", "print(1)"]
    done = subprocess.run([*HPCNCF, *words], cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "1\n")
    assert "no trial could be made:" in done.stderr


def test_signal_during_trials_ends_them_and_the_run(tmp_path: Path) -> None:
    """As it would have ended the command; no process of a trial is left."""
    marker = f"60.{os.getpid()}"
    code = f"import time; time.sleep({marker})"
    words = ["run", "--auto", "--auto-seconds", "50", "--", sys.executable, "-c", code]
    run = subprocess.Popen([*HPCNCF, *words], cwd=tmp_path, stderr=subprocess.DEVNULL)
    while not list(tmp_path.glob("results/run-auto/*/runs/*/attempt-1/progress.json")):
        assert run.poll() is None
        time.sleep(0.1)
    run.send_signal(signal.SIGTERM)
    assert run.wait(20) == -signal.SIGTERM
    left = [
        path
        for path in Path("/proc").glob("[0-9]*/cmdline")
        if marker.encode() in _read(path) and b"sleep" in _read(path)
    ]
    assert left == []
    assert not (tmp_path / "results/run").exists(), "the command itself was not started"


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


@pytest.mark.parametrize(
    ("env", "limit_s"),
    [
        ({"SLURM_JOB_ID": "1", "SLURM_JOB_START_TIME": "100", "SLURM_JOB_END_TIME": "3700"}, 3600),
        ({"PBS_WALLTIME": "7200"}, 7200),
        ({"OAR_JOB_WALLTIME_SECONDS": "60"}, 60),
        ({}, None),
    ],
)
def test_time_limit_of_the_job_is_read(env: dict[str, str], limit_s: float | None) -> None:
    assert time_limit_s(env) == limit_s


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["--auto", "--with", "fused"], "remove --with"),
        (["--auto", "--no-probe"], "remove --no-probe"),
        (["--auto-seconds", "9"], "--auto-seconds is of no use without --auto"),
        (["--auto", "--auto-share", "90"], "--auto-share 90: expected above 0, at most 50"),
    ],
)
def test_options_that_exclude_each_other_are_refused(
    words: list[str], part: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["run", *words, "--", "python", "train.py"]) == 2
    assert part in capsys.readouterr().err


def test_a_time_limit_too_short_for_a_trial_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PBS_WALLTIME", "120")
    assert cli.main(["run", "--auto", "--", sys.executable, "-c", ""]) == 0
    err = " ".join(capsys.readouterr().err.split())
    assert "3 % of the time limit of 2:00 min leave 3.6 s, too few for a trial" in err


def state(tmp_path: Path, *given: Given) -> Now:
    """Trials that ended with the time."""
    made = build_tuning(["python", "train.py"], tmp_path, 4, 1.0, "fastest", "local", None, 1.0)
    fields = {name: getattr(made, name) for name in ("paths", "grid", "objective", "core_hours")}
    tuning = OwnAllocation(**fields, cluster="local", limits=None, cores=4)
    found = tried(replace(tuning, core_hours=-1.0), *given)
    step = next_step(found.known, found.tuning)
    return Now(found.tuning, None, found.known, {}, step)


def chosen(tmp_path: Path, *given: Given) -> AutoChoice:
    return auto._choose(state(tmp_path, *given), "")


def test_fastest_setup_with_the_real_runs_cores_is_taken(tmp_path: Path) -> None:
    given = [seen("", 1.0), seen("fused", 0.5), seen("threads=1", 0.2, losses=(9.0,))]
    found = chosen(tmp_path, *given, seen("fused", 0.4, 2), seen("fused", 0.6, 1))
    assert str(found.remedies) == "fused"
    assert found.reason == "a step takes 500 ms instead of 1e+03 ms (2.00x), with the same losses"
    assert found.drop == "2 of 4 cores: as fast with 2 cores, fused"
    (out,) = found.out
    assert out.startswith("4 cores, threads=1: other results")


def test_gain_beside_neighbours_is_repeated_before_the_time_ends(tmp_path: Path) -> None:
    base = seen("", 1.0, disturbed=True)
    once = state(tmp_path, base, seen("fused", 0.2))
    asked = auto._unsettled(once)
    assert asked is not None
    assert once.known.points[asked.point].label == "4 cores, fused"
    named = auto._choose(once, "")
    assert not named.remedies
    assert named.reason == "faster, but in single trials beside neighbours: 4 cores, fused"
    twice = state(tmp_path, base, *2 * [seen("fused", 0.2)])
    assert auto._unsettled(twice) is None
    assert str(auto._choose(twice, "").remedies) == "fused"
    for alone in (seen("", 1.0), seen("fused", 0.99)):
        assert auto._unsettled(state(tmp_path, alone, seen("fused", 0.98))) is None


def test_nothing_is_taken_that_is_not_known_to_gain(tmp_path: Path) -> None:
    found = chosen(tmp_path, seen("", 1.0), seen("fused", 0.97))
    assert not found.remedies
    assert "no setup that was tried is known to be faster" in found.reason
    only = chosen(tmp_path, seen("", 1.0))
    assert only.reason == "the time had room for trials of the unchanged program only"


def test_workers_that_would_not_fit_into_memory_are_not_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The unchanged program takes 500 MiB."""
    from hpcncf.monitor.cgroup import Limit

    made = tried(
        build_tuning(["python", "a.py"], tmp_path, 4, 1.0, "knee", "local", None, 1.0),
        seen("", 1.0),
    )
    monkeypatch.setattr(auto, "memory_limit", lambda: Limit(3000.0, Path("memory.max")))
    fits = {
        workers: OwnAllocation.has_room(None, made.known, seen(f"workers={workers}", 1.0)[0])
        for workers in (0, 2, 4)
    }
    assert fits == {0: True, 2: True, 4: False}
    assert OwnAllocation.has_room(None, made.known, Setup(4))
