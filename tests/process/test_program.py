"""A program of one's own as the ranks of a run: what it finds, what it leaves, how it ends."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from conftest import alive, within

from hpcncf.collect import collect
from hpcncf.job.load import build_plan, load_job
from hpcncf.job.plan import Run
from hpcncf.paths import AttemptPaths, ResultPaths
from hpcncf.records.schema import NodeRecord, Progress, RankRecord, read_optional, read_record
from hpcncf_analysis.report.build import write_report

JOB = """\
name: own
workload: {command: [%s, -c, "{code}"]}
resources: {mem_gb: 1, timeout_min: 2}
"""


@dataclass(frozen=True)
class Own:
    """A job of one Python program in a folder."""

    folder: Path

    @property
    def paths(self) -> ResultPaths:
        return ResultPaths(self.folder / "results")

    def writes(self, code: str, more: str = "", resources: str = "") -> Run:
        text = JOB.replace("%s", sys.executable).replace("mem_gb: 1", f"mem_gb: 1{resources}")
        text += f"parameters: {{code: {json.dumps(code)}}}\n{more}"
        (self.folder / "job.yaml").write_text(text)
        return self.planned()[0]

    def planned(self) -> list[Run]:
        job = load_job(self.folder / "job.yaml")
        return build_plan(job, self.folder / "job.yaml").active()

    def begins(self, run: Run, **variables: str) -> subprocess.Popen[bytes]:
        """One rank, as `hpcncf train` and torchrun start it."""
        words = [sys.executable, "-m", "hpcncf.worker", "job.yaml", "--run-id", run.id]
        return subprocess.Popen(
            [*words, "--results", self.paths.folder],
            cwd=self.folder,
            env=os.environ | variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def ends(self, run: Run) -> tuple[int, bytes, str]:
        with self.begins(run) as rank:
            out, err = rank.communicate(timeout=120)
        return rank.returncode, out, err.decode()

    def attempt(self, run: Run) -> AttemptPaths:
        return self.paths.run(run.id).attempts()[-1]

    def record(self, run: Run, rank: int = 0) -> RankRecord:
        return read_record(self.attempt(run).rank(rank), RankRecord)


@pytest.fixture
def own(tmp_path: Path) -> Own:
    return Own(tmp_path)


def finish(ranks: Sequence[subprocess.Popen[bytes]]) -> list[int]:
    for rank in ranks:
        rank.communicate(timeout=120)
    return [rank.returncode for rank in ranks]


@pytest.mark.alone
def test_ranks_find_each_other_and_agree_on_the_attempt_without_torch(own: Own) -> None:
    """In the job file's folder; each other's time is the run's own, not a neighbour's."""
    spin = "import time\\nwhile time.process_time() < 0.6: pass"
    code = (
        "import json, os, subprocess, sys; from pathlib import Path; open('job.yaml');"
        "assert 'torch' not in sys.modules; name = 'rank-' + os.environ['RANK'];"
        f"subprocess.run([sys.executable, '-c', '{spin}']);"
        "Path(os.environ['HPCNCF_OUTPUT'], name).write_text(json.dumps(dict(os.environ)))"
    )
    run = own.writes(code, resources=", tasks_per_node: 2, cpus_per_task: 3")
    known = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "h", "MASTER_PORT": "7"}
    ranks = [own.begins(run, RANK=str(rank), LOCAL_RANK=str(rank), **known) for rank in (1, 0)]
    assert finish(ranks) == [0, 0]
    assert [own.record(run, rank).outcome for rank in (0, 1)] == ["completed"] * 2
    for rank in (0, 1):
        seen = json.loads((own.attempt(run).output / f"rank-{rank}").read_text())
        assert known.items() <= seen.items()
        assert (seen["RANK"], seen["LOCAL_RANK"]) == (str(rank), str(rank))
        assert (seen["HPCNCF_RUN_ID"], seen["HPCNCF_ATTEMPT"]) == (run.id, "1")
        assert seen.get("OMP_NUM_THREADS") == os.environ.get("OMP_NUM_THREADS", "3")
    records = [own.record(run, rank) for rank in (0, 1)]
    assert all(each.cpu.user_s + each.cpu.system_s >= 0.6 for each in records)
    assert sum(read_record(own.attempt(run).node(0), NodeRecord).tree_cpu_s) > 0.9


def test_the_output_is_passed_on_byte_for_byte(own: Own) -> None:
    code = "import os\nfor part in range(64): os.write(1, bytes(range(256)) * 256)"
    status, out, _ = own.ends(own.writes(code))
    assert status == 0
    assert out.startswith(bytes(range(256)) * 256 * 64)


def test_what_was_printed_last_is_not_lost_and_an_orphan_does_not_hold_the_rank(own: Own) -> None:
    code = (
        "import os, subprocess; subprocess.Popen(['sleep', '40'], stderr=subprocess.DEVNULL);"
        "os.write(1, b'x' * 60000 + b'\\nhpcncf: last=1')"
    )
    run = own.writes(code)
    status, out, _ = own.ends(run)
    assert status == 0
    assert b"x" * 60000 + b"\nhpcncf: last=1\ncompleted; record:" in out
    assert own.record(run).reported == {"last": 1}


def test_an_exit_code_is_passed_on_and_the_record_is_of_a_failure(own: Own) -> None:
    run = own.writes("import sys; print('hpcncf: loss=9'); sys.exit(5)")
    status, _, err = own.ends(run)
    record = own.record(run)
    assert status == 5
    assert "exit code: 5" in err
    assert (record.outcome, record.exit_code) == ("failed", 5)
    assert record.error == {"type": "exit code", "message": "5", "traceback": ""}
    assert record.reported == {"loss": 9}


@pytest.mark.parametrize(
    ("workload", "words"),
    [
        ("{command: [./nowhere]}", "nowhere: no such file"),
        ("{command: [no-such-program]}", "command not found in PATH"),
        ("{command: ['true'], folder: nowhere}", "no such folder"),
    ],
)
def test_a_program_that_is_not_there_leaves_a_record_that_says_so(
    own: Own, workload: str, words: str
) -> None:
    (own.folder / "job.yaml").write_text(f"name: own\nworkload: {workload}\n")
    (run,) = own.planned()
    status, _, err = own.ends(run)
    record = own.record(run)
    assert status != 0
    assert words in err
    assert record.outcome == "failed"
    assert words in record.error["message"]


WAITS = "from pathlib import Path\nimport time\nPath('begun').touch()\ntime.sleep(60)"
SAVES = """\
import os, signal, sys, time
from pathlib import Path
saved = Path(os.environ['HPCNCF_CHECKPOINTS'], 'saved')
def save(*_):
    saved.write_text('3')
    sys.exit(0)
if saved.exists():
    print('hpcncf: began_at=' + saved.read_text())
    sys.exit(0)
signal.signal(signal.SIGUSR2, save)
Path('begun').touch()
time.sleep(60)
"""


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGUSR2])
def test_a_program_that_knows_no_signal_is_stopped_by_it(own: Own, signum: int) -> None:
    run = own.writes(WAITS)
    with own.begins(run) as rank:
        assert within(120, (own.folder / "begun").exists)
        rank.send_signal(signum)
        rank.communicate(timeout=120)
    record = own.record(run)
    assert rank.returncode == 128 + signum
    assert (record.outcome, record.exit_code) == ("stopped", -signum)


def test_a_program_that_saves_itself_when_warned_goes_on_from_there(own: Own) -> None:
    run = own.writes(SAVES)
    with own.begins(run) as rank:
        assert within(120, (own.folder / "begun").exists)
        rank.send_signal(signal.SIGUSR2)
        rank.communicate(timeout=120)
    record = own.record(run)
    assert (record.outcome, record.exit_code) == ("stopped", 0)
    assert own.ends(run)[0] == 0
    assert (own.record(run).outcome, own.attempt(run).number) == ("completed", 2)
    assert own.record(run).reported == {"began_at": 3}


def test_a_signal_reaches_what_a_shells_line_runs(own: Own) -> None:
    own.writes(SAVES)
    (own.folder / "saves.py").write_text(SAVES)
    line = f"{sys.executable} saves.py; echo hpcncf: code=$?"
    (own.folder / "job.yaml").write_text(f"name: own\nworkload: {{shell: '{line}'}}\n")
    (run,) = own.planned()
    with own.begins(run) as rank:
        assert within(120, (own.folder / "begun").exists)
        rank.send_signal(signal.SIGUSR2)
        rank.communicate(timeout=120)
    assert own.record(run).outcome == "stopped"
    assert own.record(run).reported == {"code": 0}


def test_a_rank_that_is_killed_takes_its_program_along(own: Own) -> None:
    code = "import os, time\nfrom pathlib import Path\nPath('begun').write_text(str(os.getpid()))"
    run = own.writes(f"{code}\ntime.sleep(60)")
    begun = own.folder / "begun"
    with own.begins(run) as rank:
        assert within(120, lambda: begun.exists() and begun.read_text() != "")
        rank.kill()
    assert within(120, lambda: not alive(int(begun.read_text())))


def test_while_it_runs_its_progress_says_what_it_reported(own: Own) -> None:
    code = "import time\nprint('hpcncf: epoch=2 epochs=9 instances_per_s=50')\ntime.sleep(60)"
    run = own.writes(code)
    with own.begins(run) as rank:
        assert within(120, lambda: bool(own.paths.run(run.id).attempts()))
        progress = own.attempt(run).progress
        assert within(
            120, lambda: bool((seen := read_optional(progress, Progress)) and seen.reported)
        )
        rank.terminate()
        rank.communicate(timeout=120)
    seen = read_record(progress, Progress)
    assert seen.reported == {"epoch": 2, "epochs": 9, "instances_per_s": 50}
    assert seen.instances_per_s == 50


def test_what_it_reports_becomes_columns_and_a_report_without_training(own: Own) -> None:
    code = (
        "import json, os; from pathlib import Path; print('hpcncf: instances_per_s=70 word=x');"
        "Path(os.environ['HPCNCF_OUTPUT'], 'metrics.json').write_text(json.dumps({'score': 0.25}))"
    )
    own.writes(code)
    text = (own.folder / "job.yaml").read_text().replace('"{code}"', '"{code}", "{lr}"')
    (own.folder / "job.yaml").write_text(text + "grid: {lr: [0.5, 1]}\n")
    for run in own.planned():
        assert own.ends(run)[0] == 0
    found = collect.collect(own.paths)
    collect.write(found, own.paths)
    with (own.paths.tables / "runs.csv").open(newline="") as lines:
        rows = {row["parameter_lr"]: row for row in csv.DictReader(lines)}
    assert set(rows) == {"0.5", "1"}
    for row in rows.values():
        seen = [row[name] for name in ("instances_per_s", "metric_score", "metric_word")]
        assert seen == ["70", "0.25", "x"]
        assert (row["workload"], row["by_hand"]) == ("command", "false")
        assert float(row["time_efficiency"]) < 0.5
    write_report(found, own.paths, {})
    seen = (own.paths.report / "report.md").read_text()
    assert "lr 0.5" in seen
    assert "| score |" in seen
    assert "HR@10" not in seen
