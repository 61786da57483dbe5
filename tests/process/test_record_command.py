"""`hpcncf run`: the command is not disturbed, and its record reads as our own runs' do."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from hpcncf import cli
from hpcncf.errors import UsageError
from hpcncf.job.plan import Plan, TypedCommand
from hpcncf.paths import AttemptPaths, ResultPaths
from hpcncf.records.command_plan import append_command
from hpcncf.records.plan_file import add_command, read_plan
from hpcncf.records.schema import Claim, End, NodeRecord, Progress, RankRecord, read_record
from hpcncf.state.status import states
from hpcncf.worker.child_process import ENDING
from hpcncf.worker.record_command import plan_command

START = (
    "import argparse, sys\nfrom hpcncf.cli import run\n"
    "parser = argparse.ArgumentParser()\nrun.add_arguments(parser)\n"
    "sys.exit(run.run(parser.parse_args(sys.argv[1:])))\n"
)
SPIN = "import time\nwhile time.process_time() < {seconds}: pass\n"


def hpcncf_run(folder: Path, *words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", START, *words],
        cwd=folder,
        input=stdin,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def python(code: str) -> list[str]:
    return ["--", sys.executable, "-c", code]


def attempts(folder: Path) -> list[AttemptPaths]:
    paths = ResultPaths(folder)
    plan = Plan.model_validate_json(paths.plan.read_text())
    return [attempt for run in plan.active() for attempt in paths.run(run.id).attempts()]


def only(folder: Path) -> AttemptPaths:
    (attempt,) = attempts(folder / "results/run")
    return attempt


def test_a_folder_made_for_the_json_file_is_named(tmp_path: Path) -> None:
    first, again = (
        hpcncf_run(tmp_path, "--quiet", "--json", "new/deep/a.json", "--", "true") for _ in range(2)
    )
    assert first.stderr == f"hpcncf: {tmp_path}/new/deep: new folder, made for a.json\n"
    assert again.stderr == ""
    assert (tmp_path / "new/deep/a.json").is_file()


def test_a_command_is_not_disturbed_and_leaves_the_records_of_a_run(tmp_path: Path) -> None:
    code = SPIN.format(seconds=0.4) + (
        "import signal, sys; print(sys.stdin.read().upper()); print('reported', file=sys.stderr)\n"
        "print(sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])),"
        " signal.getsignal(signal.SIGTERM).name)"
    )
    done = hpcncf_run(tmp_path, "--json", "out.json", *python(code), stdin="words")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "WORDS\n[] SIG_DFL\n"
    assert done.stderr.startswith("reported\n")
    assert "CPU" in done.stderr
    assert "\x1b" not in done.stderr, "no terminal, no escape codes"
    plain = json.loads((tmp_path / "out.json").read_text())
    assert plain["rank"]["kind"] == "rank"
    # Beside others it may last long enough for what the probe saw to stand there instead.
    said = " ".join(done.stderr.split())
    is_program_shown = "Where the time goes" in said
    assert (plain["diagnosis"] is not None) == is_program_shown
    assert is_program_shown or plain["conclusion"] in said

    attempt = only(tmp_path)
    rank = read_record(attempt.rank(0), RankRecord)
    node = read_record(attempt.node(0), NodeRecord)
    claim = read_record(attempt.claim, Claim)
    end = read_record(attempt.end, End)
    assert rank.launched_by == claim.launched_by == "run"
    assert rank.outcome == "completed"
    assert rank.run["workload"]["command"][0] == sys.executable
    assert 0.4 <= rank.cpu.user_s + rank.cpu.system_s < 1.0
    assert rank.cpu.user_s + rank.cpu.system_s <= rank.elapsed_s * rank.cores.on_node + 0.1
    assert rank.memory.rss_peak_mib > 1
    assert rank.environment["python"]
    assert sum(node.tree_cpu_s) > 0
    assert (end.reason, end.exit_codes) == ("exited", [0])


def test_the_exit_code_is_passed_on_though_the_summary_cannot_be_written(tmp_path: Path) -> None:
    code = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    with Path("/dev/full").open("w") as full:
        words = [sys.executable, "-c", START, *python(code)]
        done = subprocess.run(words, cwd=tmp_path, stderr=full, timeout=120, check=False)
    assert done.returncode == -9
    rank = read_record(only(tmp_path).rank(0), RankRecord)
    assert (rank.outcome, rank.exit_code) == ("failed", -9)
    assert rank.error["message"] == "9 (SIGKILL)"
    assert read_record(only(tmp_path).end, End).exit_codes == [-9]


@pytest.mark.parametrize(
    ("program", "exit_code", "message"),
    [
        ("no-such-program", 127, "no-such-program: command not found in PATH"),
        ("./absent", 127, "./absent: no such file"),
        ("echo a | wc", 127, "; a pipeline or other line of a shell needs one: bash -c 'echo a"),
        ("./text", 126, "not executable"),
    ],
)
def test_a_command_that_cannot_start_is_refused_as_by_a_shell(
    tmp_path: Path,
    program: str,
    exit_code: int,
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("text").touch()
    assert cli.main(["run", "--", program]) == exit_code
    said = capsys.readouterr().err
    assert said.startswith("hpcncf: ")
    assert message in said
    assert not Path("results").exists()


def test_a_file_of_another_machine_is_126(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\x7fELF nonsense")
    (tmp_path / "binary").chmod(0o755)
    done = hpcncf_run(tmp_path, "--", "./binary")
    assert done.returncode == 126
    assert "cannot be executed: Exec format error" in done.stderr
    assert read_record(only(tmp_path).end, End).exit_codes == [126]


@pytest.mark.parametrize(("first", "second"), [("SIGALRM", "SIGUSR2"), ("SIGINT", "SIGTERM")])
def test_signals_reach_the_command(tmp_path: Path, first: str, second: str) -> None:
    code = (
        "import signal, sys, time\n"
        f"signal.signal(signal.{first}, lambda *_: print('first', flush=True))\n"
        f"signal.signal(signal.{second}, lambda *_: (print('second', flush=True), sys.exit(7)))\n"
        "print('ready', flush=True)\nwhile True: time.sleep(0.05)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", START, *python(code)],
        cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    ) as process:  # fmt: skip
        assert process.stdout.readline() == "ready\n"
        for name, seen in ((first, "first\n"), (second, "second\n")):
            process.send_signal(signal.Signals[name])
            assert process.stdout.readline() == seen
        assert process.wait(timeout=120) == 7
    ends = signal.Signals[second] in ENDING
    rank = read_record(only(tmp_path).rank(0), RankRecord)
    assert rank.outcome == ("stopped" if ends else "failed")
    assert read_record(only(tmp_path).end, End).reason == ("cancelled" if ends else "exited")


def test_a_key_at_the_terminal_signals_the_command_once(tmp_path: Path) -> None:
    code = (
        "import signal, time\ncame = []\nsignal.signal(signal.SIGINT, lambda *_: came.append(1))\n"
        "print('ready', flush=True)\nwhile not came: time.sleep(0.01)\n"
        "time.sleep(0.3)\nprint('came', len(came), flush=True)\n"
    )
    pid, terminal = os.forkpty()
    if pid == 0:
        os.chdir(tmp_path)
        os.execv(sys.executable, [sys.executable, "-c", START, "--quiet", *python(code)])
    said = b""
    while b"ready" not in said:
        said += os.read(terminal, 1000)
    os.write(terminal, b"\x03")
    while b"came" not in said or not said.endswith(b"\n"):
        said += os.read(terminal, 1000)
    _, status = os.waitpid(pid, 0)
    os.close(terminal)
    assert b"came 1" in said
    assert os.waitstatus_to_exitcode(status) == 0
    assert read_record(only(tmp_path).rank(0), RankRecord).outcome == "completed"


def test_an_orphans_time_is_counted(tmp_path: Path) -> None:
    grandchild = SPIN.format(seconds=0.3) + "open('done', 'w')"
    middle = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {grandchild!r}])"
    code = (
        "import subprocess, sys, time, pathlib\n"
        f"subprocess.run([sys.executable, '-c', {middle!r}])\n"
        "while not pathlib.Path('done').exists(): time.sleep(0.02)\n"
        "time.sleep(0.3)\n"
    )
    assert hpcncf_run(tmp_path, *python(code)).returncode == 0
    rank = read_record(only(tmp_path).rank(0), RankRecord)
    assert rank.cpu.user_s + rank.cpu.system_s >= 0.3


def test_earlier_commands_of_the_folder_stay_active_and_words_need_not_be_utf_8(
    tmp_path: Path,
) -> None:
    shown = python("import os, sys; print(os.fsencode(sys.argv[1]))")
    words = ("--quiet", "--results", "here")
    done = hpcncf_run(tmp_path, *words, *shown, os.fsdecode(b"a\xff"))
    assert done.stdout.strip() == str(b"a\xff")
    done = hpcncf_run(tmp_path, *words, "--name", "second", *python("pass"))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    plan = Plan.model_validate_json((tmp_path / "here/plan.json").read_text())
    first, second = plan.active()
    assert first.words[-1] == r"a\xff"
    assert second.varied["run.command"] == "second"
    assert len(attempts(tmp_path / "here")) == 2


def test_a_request_that_cannot_be_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "results").mkdir()
    (tmp_path / "results/plan.json").write_text("{}")
    assert cli.main(["run", "--results", "results", "--", "true"]) == 2
    assert "not a plan this hpcncf can read" in capsys.readouterr().err
    assert not (tmp_path / "results/runs").exists(), "another job's"
    assert cli.main(["run", "--quiet", "--"]) == 2
    assert "hpcncf run -- python train.py" in capsys.readouterr().err


def test_a_folder_that_cannot_be_written_costs_its_place_only(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = hpcncf_run(tmp_path, "--results", "file/below", *python("print('started')"))
    assert (done.returncode, done.stdout) == (0, "started\n")
    assert "file: cannot be written: Not a directory" in done.stderr
    (record,) = re.findall(r"record: (.+)", done.stderr)
    assert Path(record, "rank-0.json").is_file()


def test_a_recorder_that_is_stopped_and_goes_on_takes_nothing_for_a_signal(tmp_path: Path) -> None:
    """Ctrl-Z, or a job that Slurm suspends, for longer than the recorder waits at once."""
    words = [
        sys.executable,
        "-c",
        START,
        *python("import sys; print(1, flush=True); sys.stdin.read()"),
    ]
    pipe = subprocess.PIPE
    with subprocess.Popen(words, cwd=tmp_path, stdin=pipe, stdout=pipe) as recorder:
        recorder.stdout.readline()
        for _ in range(2):
            recorder.send_signal(signal.SIGSTOP)
            time.sleep(2.2)
            recorder.send_signal(signal.SIGCONT)
            time.sleep(0.3)
        recorder.communicate(timeout=120)
    assert recorder.returncode == 0
    assert read_record(only(tmp_path).rank(0), RankRecord).outcome == "completed"


def test_ranks_that_were_started_together_are_one_run(tmp_path: Path) -> None:
    """As mpirun starts them, by Open MPI's variables; the first prints the only summary."""
    command = ["--json", "figures.json", *python(SPIN.format(seconds=1.0))]
    ranks = []
    for rank in ("1", "0"):
        placed = {
            "OMPI_COMM_WORLD_RANK": rank,
            "OMPI_COMM_WORLD_LOCAL_RANK": rank,
            "OMPI_COMM_WORLD_SIZE": "2",
            "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
            "PMIX_NAMESPACE": "start-1",
        }
        ranks.append(
            subprocess.Popen(
                [sys.executable, "-c", START, *command],
                cwd=tmp_path,
                env={**os.environ, **placed},
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    said = [rank.communicate(timeout=60)[1] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], said
    assert said[0] == ""
    assert said[1].count("hpcncf run:") == 1
    attempt = only(tmp_path)
    records = [read_record(path, RankRecord) for path in attempt.rank_records()]
    assert [(each.rank, each.world_size) for each in records] == [(0, 2), (1, 2)]
    # Nobody bound them to cores of their own: they share those of this machine.
    assert {each.cores.allocated for each in records} == {records[0].cores.usable / 2}
    # The other rank's time is the run's own, not a neighbour's.
    node = read_record(attempt.node(0), NodeRecord)
    assert sum(node.tree_cpu_s) > 1.15, "more than one had"
    assert read_record(attempt.end, End).exit_codes == [0, 0]
    assert json.loads((tmp_path / "figures.json").read_text())["rank"]["rank"] == 0


def test_a_command_that_removes_its_folder_leaves_its_record(tmp_path: Path) -> None:
    here = tmp_path / "here"
    here.mkdir()
    done = hpcncf_run(here, "--results", "../kept", *python("import os; os.rmdir(os.getcwd())"))
    assert done.returncode == 0, done.stderr
    (attempt,) = attempts(tmp_path / "kept")
    assert read_record(attempt.rank(0), RankRecord).outcome == "completed"
    assert not here.exists()


def test_a_command_whose_recorder_was_killed_is_running_until_it_ends(tmp_path: Path) -> None:
    words = [sys.executable, "-c", START, *python("import time; time.sleep(60)")]
    recorder = subprocess.Popen(words, cwd=tmp_path, stderr=subprocess.DEVNULL)
    paths = ResultPaths(tmp_path / "results/run")
    until = time.monotonic() + 60
    while not (paths.plan.exists() and any(a.progress.exists() for a in attempts(paths.folder))):
        assert time.monotonic() < until
        time.sleep(0.05)
    progress = read_record(only(tmp_path).progress, Progress)
    assert progress.phase == "command"
    assert progress.elapsed_s > 0
    command = progress.pid
    recorder.kill()
    recorder.wait()
    plan = Plan.model_validate_json(paths.plan.read_text())
    try:
        assert [state.state for state in states(paths, plan)] == ["running"]
    finally:
        os.kill(command, signal.SIGKILL)
    while psutil.pid_exists(command) and psutil.Process(command).status() != "zombie":
        time.sleep(0.05)
    assert [state.state for state in states(paths, plan)] == ["lost"]


def test_a_short_command_loads_no_schema_and_its_records_are_whole(tmp_path: Path) -> None:
    code = (
        "import sys\nfrom hpcncf.cli import main\n"
        f"code = main(['run', '--results', {str(tmp_path)!r}, '--json', {str(tmp_path / 'j')!r}, "
        "'--', 'true'])\nprint(code, *{name.split('.')[0] for name in sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "exit       0 after" in done.stderr
    code, *loaded = done.stdout.split()
    assert code == "0"
    slow = {"pydantic", "psutil", "yaml", "numpy", "torch", "importlib.metadata", "statistics"}
    assert not slow & set(loaded)
    (attempt,) = attempts(tmp_path)
    for path, kind in (
        (attempt.rank(0), RankRecord),
        (attempt.node(0), NodeRecord),
        (attempt.claim, Claim),
        (attempt.end, End),
    ):
        assert json.loads(path.read_text()) == read_record(path, kind).model_dump(mode="json")
    read_record(attempt.progress, Progress)


def test_the_time_of_a_short_command_is_its_own(tmp_path: Path) -> None:
    done = hpcncf_run(tmp_path, "--quiet", *python("import time; time.sleep(0.03)"))
    assert done.returncode == 0
    attempt = only(tmp_path)
    rank = read_record(attempt.rank(0), RankRecord)
    end = read_record(attempt.end, End)
    assert rank.elapsed_s >= 0.03
    # What hpcncf itself loads and looks up after the start comes on top.
    assert rank.ended_at < end.ended_at


def test_commands_are_added_to_a_plan_of_any_layout(tmp_path: Path) -> None:
    paths = ResultPaths(tmp_path / "results")

    def add(number: int) -> dict[str, Any]:
        run = plan_command(["echo", f'{number} "quoted" \udce9'], 2.0, None)
        assert append_command(paths, run)
        return run

    first, second = add(1), add(2)
    text = paths.plan.read_text()
    plan = read_plan(paths)
    assert [run.id for run in plan.runs] == [first["id"], second["id"]]
    assert plan.model_dump(mode="json")["runs"] == [first, second], "no setting is left out"
    assert text == json.dumps(plan.model_dump(mode="json"), indent=1) + "\n", "one layout"
    paths.plan.write_text(json.dumps(json.loads(text)))
    other = plan_command(["true"], 1.0, "other")
    assert not append_command(paths, other), "somebody else wrote it"
    add_command(paths, TypedCommand(**other))
    assert [run.id for run in read_plan(paths).runs] == [first["id"], second["id"], other["id"]]
    paths.plan.write_text(text.replace('"by_hand": true', '"by_hand": false', 1))
    assert not append_command(paths, other), "a job's run is among them"
    with pytest.raises(UsageError, match="holds the results of the job 'results'"):
        add_command(paths, TypedCommand(**other))


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("PYTHONPATH=/lib {python} -c '{spin}'", "PYTHONPATH had been set anew; add to it"),
        ("{python} -I -c '{spin}'; true", "does not load the probe (python -E, -I and -S)"),
        ("env -u PYTHONPATH {python} -c '{spin}'", "PYTHONPATH had been set anew; add to it"),
        ("PYTHONPATH=/lib:$PYTHONPATH {python} -c '{spin}'", ""),
    ],
)
def test_a_script_that_keeps_the_probe_out_is_told_how(
    line: str, reason: str, tmp_path: Path
) -> None:
    spin = "import time\nwhile time.process_time() < 1.3: pass"
    done = hpcncf_run(tmp_path, "--", "sh", "-c", line.format(python=sys.executable, spin=spin))
    rank = read_record(only(tmp_path).rank(0), RankRecord)
    assert rank.cpu.user_s + rank.cpu.system_s > 1
    assert bool(rank.program) is not bool(reason)
    said = " ".join(done.stderr.split())
    assert reason in said
    assert ("set anew" in said) is ("set anew" in reason)


def test_an_early_verdict_is_one_block_on_lines_of_its_own(tmp_path: Path) -> None:
    line = "printf unfinished >&2; sleep 5; echo done >&2"
    done = hpcncf_run(tmp_path, "--early", "0.3", "--", "sh", "-c", line)
    text, _, rest = done.stderr.partition("done\n")
    first, *block = text.splitlines()
    assert first == "unfinished"
    assert "allocated cores used" in block[0]
    assert block[-1].startswith("hpcncf: more: hpcncf diagnose ")
    assert len(block) <= 6
    assert all(each.startswith("hpcncf: ") for each in block)
    assert "exit       0" in rest
    assert json.loads(only(tmp_path).early.read_text())["lines"] == [
        each.removeprefix("hpcncf: ") for each in block
    ]
    refused = hpcncf_run(tmp_path, "--early", "-1", "--", "true")
    assert refused.returncode == 2
    assert "expected seconds above 0" in refused.stderr


def test_work_that_a_launcher_started_elsewhere_is_not_taken_for_idle_cores(
    tmp_path: Path,
) -> None:
    sleep = shutil.which("sleep")
    assert sleep
    shutil.copy(sleep, tmp_path / "srun")  # a client that waits for what runs on other nodes
    done = hpcncf_run(tmp_path, "--", "sh", "-c", "./srun 2.5; true")
    rank = read_record(only(tmp_path).rank(0), RankRecord)
    assert (rank.cores.used, rank.cpu.efficiency) == (None, None)
    assert "CPU        not measured" in done.stderr
    assert "hpcncf explain JOBID" in " ".join(done.stderr.split())
    brief = hpcncf_run(tmp_path, "--results", "brief", "--", "sh", "-c", "sleep 3; ./srun 0.1")
    assert "CPU        not measured" not in brief.stderr
