"""A rank leaves its record however it ends, and is started by whatever starts ranks."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from conftest import free_port, within
from make_runs import trainer

from hpcncf import cli
from hpcncf.errors import HpcncfError
from hpcncf.job.load import build_plan, load_job
from hpcncf.job.plan import Run
from hpcncf.job.spec import Training
from hpcncf.launcher.environment import set_openmp
from hpcncf.paths import AttemptPaths, ResultPaths
from hpcncf.records.claims import claim_attempt
from hpcncf.records.plan_file import read_plan, record_plan
from hpcncf.records.schema import Claim, NodeRecord, Progress, RankRecord, read_record, write_record
from hpcncf.worker import processes
from hpcncf.worker.__main__ import main
from hpcncf.worker.rank import work

JOB = """\
name: small
data: {{path: {data}}}
training: {{threads: 1, epochs: 2, global_batch_size: 50}}
grid: {{resources.tasks_per_node: {ranks}}}
"""


@pytest.fixture(scope="module")
def data(folder: Path) -> Path:
    return folder


@pytest.fixture
def job(tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A job file of one run, in the folder that we are in; no launcher's variables around."""
    for name in [*os.environ]:
        if name.startswith(("SLURM_", "HPCNCF_ATTEMPT", "HPCNCF_LAUNCHED_BY", "TORCHELASTIC_")):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    return write_job(tmp_path, data)


def write_job(folder: Path, data: Path, ranks: str = "[1]") -> Path:
    path = folder / "small.yaml"
    path.write_text(JOB.format(data=data, ranks=ranks))
    return path


def runs(job: Path, *settings: str) -> list[Run]:
    return build_plan(load_job(job, settings), job).runs


def attempt_of(run: Run, number: int = 1) -> AttemptPaths:
    return ResultPaths(Path("results/small")).run(run.id).attempt(number)


def rank_of(run: Run, rank: int = 0, attempt: int = 1) -> RankRecord:
    return read_record(attempt_of(run, attempt).rank(rank), RankRecord)


def test_one_rank_by_hand_leaves_plan_record_series_progress_and_a_log(
    job: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(job)]) == 0
    [run] = runs(job)
    record = rank_of(run)
    assert (record.outcome, record.exit_code, record.error) == ("completed", 0, None)
    assert record.launched_by == "train"
    assert len(record.training.epochs) == 2
    assert 0 < record.training.startup_s < record.elapsed_s
    assert record.run["id"] == run.id
    assert read_plan(ResultPaths(Path("results/small"))).runs == [run]
    assert read_record(attempt_of(run).node(0), NodeRecord).attempt == 1
    assert read_record(attempt_of(run).progress, Progress).epochs == 2
    assert not (attempt_of(run).folder.parent / "checkpoint.pt").exists()

    logged = capsys.readouterr()
    assert logged.err == ""
    first, second, end = logged.out.splitlines()
    said = (
        r"epoch 1/2: loss 0\.\d{4}, HR@10 0\.\d{3}, NDCG@10 0\.\d{3}, [\d,]+ instances/s, "
        r"[\d.]+ s, [\d.]+ s of them evaluation"
    )
    assert re.fullmatch(said, first)
    assert second.startswith("epoch 2/2: ")
    assert end == f"completed; record: {attempt_of(run).rank(0)}"


def test_a_complete_run_is_run_again_only_when_asked(
    job: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """From its job file or its results folder."""
    [run] = runs(job)
    assert main([str(job), "--run", run.id]) == 0
    assert rank_of(run).outcome == "completed"
    capsys.readouterr()
    assert main([str(job)]) == 0
    seen = f"run {run.id} is complete and is not run again. Use --again to run it once more\n"
    assert capsys.readouterr().err == seen
    assert not attempt_of(run, 2).folder.exists()
    assert work(Path("results/small"), run.id[:6], again=True) == 0
    again, first = rank_of(run, attempt=2), rank_of(run)
    assert again.outcome == "completed"
    assert again.training.model_sha256 == first.training.model_sha256


def test_what_looks_alive_elsewhere_is_left_alone_unless_it_is_known_to_be_over(job: Path) -> None:
    [run] = runs(job)
    assert main([str(job)]) == 0
    ended = claim_attempt(ResultPaths(Path("results/small")).run(run.id), "slurm", "7")
    shutil.rmtree(attempt_of(run).folder)
    claim = read_record(ended.claim, Claim)
    write_record(ended.claim, claim.model_copy(update={"node": "node9"}))
    with pytest.raises(HpcncfError, match=r"already running as process .* on node9"):
        work(Path("results/small"), run.id, over=1)
    assert work(Path("results/small"), run.id, over=2) == 0
    assert rank_of(run, attempt=3).outcome == "completed"


def test_which_of_several_runs_must_be_said(
    job: Path, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_job(job.parent, data, "[1, 2]")
    assert main([str(job)]) == 2
    seen = capsys.readouterr().err
    for run in runs(job):
        assert f"{run.id}  tasks_per_node={run.resources.tasks_per_node} repeat=0" in seen
    assert not Path("results").exists()


@pytest.mark.parametrize(
    ("nodes", "ranks", "said"),
    [
        (1, 1, "planned for 2 ranks (nodes 1 x tasks_per_node 2), started with 1, 1 of them on"),
        (1, 1, "torchrun --nnodes 1 --nproc-per-node 2"),
        (2, 4, "(nodes 2 x tasks_per_node 2), started with 4, 4 of them on this node"),
    ],
)
def test_other_ranks_than_planned_are_refused(
    job: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    nodes: int,
    ranks: int,
    said: str,
) -> None:
    if ranks > 1:
        for name, value in {"RANK": 0, "WORLD_SIZE": ranks}.items():
            monkeypatch.setenv(name, str(value))
    settings = ["-s", f"resources.nodes={nodes}", "-s", "resources.tasks_per_node=2"]
    assert main([str(job), *settings]) == 2
    assert said in capsys.readouterr().err


def test_an_attempt_that_was_presumed_dead_ends_when_it_sees_that(job: Path) -> None:
    endless = ("-s", "training.epochs=100000")
    [run] = runs(job, "training.epochs=100000")
    checkpoint = attempt_of(run).folder.parent / "checkpoint.pt"

    def take_over() -> None:
        assert within(120, checkpoint.exists)
        attempt_of(run, 2).folder.mkdir()

    other = threading.Thread(target=take_over)
    other.start()
    assert main([str(job), *endless]) == 1
    other.join()
    assert rank_of(run).error["message"].endswith("attempt 2 has taken over")


def test_what_a_killed_process_left_half_written_goes_when_the_run_is_complete(job: Path) -> None:
    [run] = runs(job)
    left = [
        attempt_of(run).folder / ".progress.json.ab12",
        attempt_of(run).folder.parent / ".checkpoint.pt.n.1",
        attempt_of(run).folder.parent / ".0123456789abcdef" / "claim.json",
    ]
    for file in left:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    assert main([str(job)]) == 0
    assert not any(file.exists() for file in left)
    assert not left[-1].parent.exists(), "an attempt that was not yet taken"


def cut_rows(data: Path) -> None:
    rows = data / "train_rows.npy"
    rows.write_bytes(rows.read_bytes()[:-4])


def change_key(data: Path) -> None:
    manifest = data / "manifest.json"
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"key": "f" * 64}))


@pytest.mark.parametrize(
    ("setting", "harm", "kind", "message"),
    [
        ("lr=1e30", None, "HpcncfError", "the loss became nan"),
        ("lr=0.001", cut_rows, "DataError", "train_rows.npy: not a complete .npy array"),
        ("lr=0.001", change_key, "HpcncfError", "holds other data than when the run was planned"),
    ],
)
def test_a_failing_run_leaves_a_record_that_says_why(
    job: Path,
    data: Path,
    capsys: pytest.CaptureFixture[str],
    setting: str,
    harm: Callable[[Path], None] | None,
    kind: str,
    message: str,
) -> None:
    moved = shutil.copytree(data, job.parent / "moved")
    write_job(job.parent, moved)
    results, settings = ResultPaths(Path("results/small")), [f"training.{setting}"]
    [run] = runs(job, *settings)
    record_plan(results, load_job(job, settings), build_plan(load_job(job, settings), job))
    if harm:
        harm(moved)
    assert work(results.folder) == 1
    record = rank_of(run)
    assert (record.outcome, record.exit_code, record.error["type"]) == ("failed", 1, kind)
    assert message in record.error["message"]
    assert record.error["traceback"] == "", "it is the user's to mend"
    assert (record.training is None) == (harm is not None), "what was measured until then"
    assert message in capsys.readouterr().err
    assert cli.main(["status", "--failures", "results/small"]) == 0
    seen = " ".join(capsys.readouterr().out.split())
    assert f"1 run failed: rank 0: {kind}: " in seen
    assert message in seen
    assert "Traceback" not in seen


def test_a_run_stopped_by_a_signal_leaves_its_record_and_its_checkpoint(job: Path) -> None:
    """And a log that cannot be written does not end it before; OpenMP shows how it was set."""
    settings = ("training.epochs=5000", "training.omp_wait_policy=active")
    [run] = runs(job, *settings)
    checkpoint = attempt_of(run).folder.parent / "checkpoint.pt"
    shown = {"OMP_DISPLAY_ENV": "true"}
    with (
        Path("/dev/full").open("wb") as full,
        subprocess.Popen(
            command(job, *settings), env=os.environ | shown, stdout=full, stderr=subprocess.PIPE
        ) as process,
    ):
        try:
            assert within(120, checkpoint.exists)
            process.send_signal(signal.SIGUSR2)
            _, seen = process.communicate(timeout=120)
        finally:
            process.kill()
    assert process.returncode == 128 + signal.SIGUSR2
    record = rank_of(run)
    assert (record.outcome, record.exit_code) == ("stopped", 128 + signal.SIGUSR2)
    assert b"stopped by SIGUSR2" in seen
    assert b"OMP_WAIT_POLICY = 'ACTIVE'" in seen
    assert record.training.epochs
    assert checkpoint.exists()


def test_the_next_attempt_resumes_and_lists_every_epoch(job: Path) -> None:
    [run] = runs(job)
    folder = attempt_of(run).folder.parent
    cut = run.model_copy(update={"training": run.training.model_copy(update={"epochs": 1})})
    trainer(cut, folder).train()
    assert (folder / "checkpoint.pt").exists()
    assert main([str(job)]) == 0
    resumed = rank_of(run).training
    assert resumed.resumed_epoch == 1
    assert [epoch.epoch for epoch in resumed.epochs] == [0, 1]
    assert not (folder / "checkpoint.pt").exists()


@pytest.mark.parametrize("engine", ["reference", "rowwise", "native"])
def test_the_log_has_a_line_for_so_many_batches_and_the_model_stays_the_same(
    job: Path, capsys: pytest.CaptureFixture[str], engine: str
) -> None:
    same = ["-s", f"training.engine={engine}"]
    assert main([str(job), *same, "--results", "plain"]) == 0
    assert "batch" not in capsys.readouterr().out
    assert main([str(job), *same, "-s", "training.log_every=5", "--results", "logged"]) == 0
    lines = re.findall(
        r"^epoch (\d)/2, batch (\d+)/(\d+): loss 0\.\d{4}, [\d,]+ instances/s$",
        capsys.readouterr().out,
        re.MULTILINE,
    )
    steps = int(lines[0][2])
    every = [*range(5, steps, 5), steps]
    expected = [(epoch, str(batch), str(steps)) for epoch in "12" for batch in every]
    assert lines == expected
    plain, logged = (
        read_record(next(Path(name).glob("runs/*/attempt-1/rank-0.json")), RankRecord)
        for name in ("plain", "logged")
    )
    assert plain.run_id == logged.run_id
    assert plain.training.model_sha256 == logged.training.model_sha256


def test_openmp_is_set_too_late_if_torch_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    assert torch.get_num_threads() > 0
    monkeypatch.setenv("OMP_WAIT_POLICY", "")  # so that it is put back
    [seen] = set_openmp(Training(omp_wait_policy="passive"))
    assert "has no effect" in seen
    assert set_openmp(Training()) == []


def command(job: Path, *settings: str) -> list[str]:
    overrides = [part for setting in settings for part in ("-s", setting)]
    return [sys.executable, "-m", "hpcncf.worker", str(job), *overrides]


def two_ranks(job: Path, run: Run, *settings: str, **known: str) -> list[subprocess.Popen[bytes]]:
    """As our local launcher starts them, but for the claim."""
    env = os.environ | {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"}
    env |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())} | known
    return [
        subprocess.Popen(
            [*command(job, *settings), "--run", run.id],
            env=env | {"RANK": rank, "LOCAL_RANK": rank},
            stderr=subprocess.PIPE,
        )
        for rank in ("0", "1")
    ]


def test_a_rank_whose_peer_died_ends_and_says_so(job: Path, data: Path) -> None:
    write_job(job.parent, data, "[2]")
    settings = ("training.epochs=5000", "training.checkpoint_every=0")
    [run] = runs(job, *settings)
    first, second = two_ranks(job, run, *settings)

    def trains() -> bool:
        path = attempt_of(run).progress
        return path.exists() and read_record(path, Progress).phase == "training"

    try:
        assert within(120, trains)
        second.kill()
        _, seen = first.communicate(timeout=120)
    finally:
        first.kill()
        second.kill()
    assert first.returncode == 1
    assert seen.count(b"another rank ended while this one waited for it") == 1
    record = rank_of(run)
    assert record.outcome == "failed"
    lost = f"rank 1 (process {second.pid} on {os.uname().nodename}) is gone and left no record"
    expected = f"another rank ended while this one waited for it: {lost}"
    assert record.error["message"].startswith(expected)


def test_every_rank_reports_that_another_process_holds_the_run(job: Path, data: Path) -> None:
    write_job(job.parent, data, "[2]")
    [run] = runs(job)
    held = claim_attempt(ResultPaths(Path("results/small")).run(run.id), "local")
    both = two_ranks(job, run)
    seen = [each.communicate(timeout=120)[1].decode() for each in both]
    assert [each.returncode for each in both] == [1, 1]
    assert all(f"process {os.getpid()} on" in each for each in seen)
    assert [path.name for path in held.folder.iterdir()] == ["claim.json"]


def listens(process: subprocess.Popen[bytes]) -> bool:
    """Whether it handles SIGTERM by now."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    caught = next(line for line in status.splitlines() if line.startswith("SigCgt:"))
    return bool(int(caught.split()[1], 16) >> (signal.SIGTERM - 1) & 1)


def test_a_rank_that_waits_for_the_first_leaves_its_record_in_the_attempt_of_its_start(
    job: Path, data: Path
) -> None:
    """As tasks of a Slurm step."""
    write_job(job.parent, data, "[2]")
    [run] = runs(job)
    attempt = claim_attempt(ResultPaths(Path("results/small")).run(run.id), "slurm", "9", 0, 0)
    first, second = two_ranks(job, run, SLURM_JOB_ID="9", SLURM_STEP_ID="0")
    first.kill()
    try:
        assert within(120, lambda: listens(second))
        second.terminate()
        second.communicate(timeout=120)
    finally:
        second.kill()
    left = read_record(attempt.rank(1), RankRecord)
    assert (left.outcome, left.exit_code) == ("stopped", 128 + signal.SIGTERM)


def test_torchrun_leaves_the_same_records(job: Path, data: Path) -> None:
    write_job(job.parent, data, "[1, 2]")
    one, two = sorted(runs(job), key=lambda run: run.resources.world_size)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    subprocess.run(
        [*torchrun, "-m", "hpcncf.worker", str(job), "--run-id", two.id],
        check=True,
        timeout=120,
        capture_output=True,
    )
    assert main([str(job), "--run", one.id]) == 0
    alone, first, second = rank_of(one), rank_of(two, 0), rank_of(two, 1)
    assert [record.launched_by for record in (first, second)] == ["torchrun", "torchrun"]
    assert [record.attempt for record in (first, second)] == [1, 1]
    assert set(alone.model_dump()) == set(first.model_dump()) == set(second.model_dump())
    trainings = [record.training for record in (alone, first, second)]
    losses = [training.epochs[-1].loss for training in trainings if training]
    assert losses == [pytest.approx(losses[0], rel=1e-4)] * 3
    assert [path.name for path in attempt_of(two).node_records()] == ["node-0.json"]


def test_a_folder_where_the_checkpoint_should_be_does_not_fail_a_run(job: Path) -> None:
    [run] = runs(job)
    (attempt_of(run).folder.parent / "checkpoint.pt" / "file").mkdir(parents=True)
    assert main([str(job)]) == 0
    record = rank_of(run)
    assert record.outcome == "completed"
    assert any("checkpoint.pt: not used" in warning for warning in record.warnings)


@pytest.mark.parametrize(
    ("module", "at", "code"),
    [
        ("hpcncf.worker", "hpcncf.worker.recorder", -signal.SIGINT),
        ("hpcncf", "hpcncf.cli", -signal.SIGINT),
    ],
)
def test_ctrl_c_at_the_start_leaves_no_traceback(
    module: str, at: str, code: int, job: Path
) -> None:
    """The signal comes among the imports."""
    early = "import os, signal, sys\nclass Early:\n    def find_spec(self, name, *_):\n"
    early += "        name == 'AT' and os.kill(os.getpid(), signal.SIGINT)\n"
    early += "sys.meta_path.insert(0, Early())\nimport runpy\n"
    early += f"runpy.run_module({module!r}, run_name='__main__')"
    early = early.replace("AT", at)
    done = subprocess.run(
        [sys.executable, "-c", early, str(job)],
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # ignored under nohup
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (code, "")


def test_ctrl_c_waits_until_a_rank_listens() -> None:
    held = "import signal, sys; sys.exit(signal.SIGINT in signal.pthread_sigmask(0, []))"
    done = subprocess.run(
        [sys.executable, "-c", held], preexec_fn=processes.hold_interrupt, check=False
    )
    assert done.returncode == 1
