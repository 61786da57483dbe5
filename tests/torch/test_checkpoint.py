"""A checkpoint is whole, of this run, and plain tensors, or it is not used."""

from __future__ import annotations

import os
import pickle
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from make_runs import planned, tiny

from hpcncf.job.plan import Run
from hpcncf.job.spec import Model
from hpcncf.launcher.environment import Place
from hpcncf.ncf.checkpoint import (
    Checkpoint,
    CheckpointNotSaved,
    PartialEpoch,
    UnusableCheckpoint,
    checkpoint_paths,
    load_checkpoint,
    save_checkpoint,
)
from hpcncf.ncf.model import NeuMF
from hpcncf.ncf.progress import REPORT_EVERY_S, ProgressReporter, TrainingPhase, TrainingProgress
from hpcncf.ncf.step_clock import StepClock
from hpcncf.paths import RunPaths
from hpcncf.records.schema import Epoch


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("data") / "tiny"
    tiny(folder)
    return planned(folder)


@pytest.fixture
def saved(run: Run, tmp_path: Path) -> Path:
    paths = RunPaths(tmp_path / "run")
    save_checkpoint(paths, run, state())
    return paths.checkpoint


def state(step: int = 31, so_far: PartialEpoch | None = None) -> Checkpoint:
    model = NeuMF(4, 5, 2, Model())
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.tensor([1]), torch.tensor([2]), torch.zeros(1, 2)).sum().backward()
    optimizer.step()
    whole = (model.state_dict(), optimizer.state_dict(), [EPOCH])
    return Checkpoint(step, *whole, so_far or PartialEpoch())


EPOCH = Epoch(
    epoch=0,
    training_s=1.0,
    evaluation_s=0.5,
    checkpoint_s=0.0,
    first_batch_s=0.1,
    steps=31,
    instances=7505,
    loss=0.5,
)


def test_what_is_saved_is_loaded(run: Run, saved: Path) -> None:
    found = load_checkpoint(saved, run)
    assert (found.step, found.epochs, found.partial_epoch) == (31, [EPOCH], PartialEpoch())
    assert set(found.model) == set(NeuMF(4, 5, 2, Model()).state_dict())
    assert found.optimizer["state"][0]["step"] == 1


def test_an_epoch_in_progress_is_kept_to_the_last_bit(run: Run, tmp_path: Path) -> None:
    so_far = PartialEpoch(7, 1.5, 0.1, 0.2, [0.1 + 0.2, 1 / 3], [torch.get_rng_state()])
    paths = RunPaths(tmp_path)
    save_checkpoint(paths, run, state(38, so_far))
    found = load_checkpoint(paths.checkpoint, run).partial_epoch
    assert (found.steps, found.losses) == (7, [0.1 + 0.2, 1 / 3])
    assert torch.equal(found.generators[0], so_far.generators[0])


def test_the_one_before_is_kept(run: Run, saved: Path) -> None:
    paths = RunPaths(saved.parent)
    save_checkpoint(paths, run, state(62))
    steps = [load_checkpoint(path, run).step for path in checkpoint_paths(paths)]
    assert steps == [62, 31]


def test_in_a_groups_folder_all_of_the_group_may_resume_from_it(run: Run, saved: Path) -> None:
    saved.parent.chmod(0o770)
    before = os.umask(0o077)
    try:
        save_checkpoint(RunPaths(saved.parent), run, state(62))
    finally:
        os.umask(before)
    assert saved.stat().st_mode & 0o777 == 0o660


def test_what_cannot_be_written_leaves_the_one_that_is_there(run: Run, saved: Path) -> None:
    paths = RunPaths(saved.parent)
    full = Path(f"{saved.parent}/.checkpoint.pt.{os.uname().nodename}.{os.getpid()}")
    full.symlink_to("/dev/full")
    with pytest.raises(CheckpointNotSaved, match=r"No space left|writ"):
        save_checkpoint(paths, run, state(62))
    assert load_checkpoint(saved, run).step == 31


def test_a_byte_that_changed_is_noticed(run: Run, saved: Path) -> None:
    content = bytearray(saved.read_bytes())
    content[len(content) // 2] ^= 1
    saved.write_bytes(content)
    with pytest.raises(UnusableCheckpoint):
        load_checkpoint(saved, run)


def test_nothing_but_the_checkpoint_is_left(saved: Path) -> None:
    assert [path.name for path in saved.parent.iterdir()] == ["checkpoint.pt"]


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.9, 0.999])
def test_a_torn_file_is_refused(run: Run, saved: Path, share: float) -> None:
    content = saved.read_bytes()
    saved.write_bytes(content[: int(len(content) * share)])
    with pytest.raises(UnusableCheckpoint):
        load_checkpoint(saved, run)


def test_the_checkpoint_of_another_run_is_refused(run: Run, saved: Path) -> None:
    with pytest.raises(UnusableCheckpoint, match=r"of run 0123456789ab .*, expected ffffffffffff"):
        load_checkpoint(saved, run.model_copy(update={"id": "ffffffffffff"}))


def test_the_checkpoint_of_other_data_is_refused(run: Run, saved: Path) -> None:
    with pytest.raises(UnusableCheckpoint, match="expected 0123456789ab, other"):
        load_checkpoint(saved, run.model_copy(update={"data_key": "other"}))


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo])
def test_what_is_no_file_is_refused_at_once_and_put_aside(
    run: Run, tmp_path: Path, make: Callable[[Path], None]
) -> None:
    paths = RunPaths(tmp_path)
    for path in checkpoint_paths(paths):
        make(path)
        with pytest.raises(UnusableCheckpoint, match="not a file"):
            load_checkpoint(path, run)
    save_checkpoint(paths, run, state(31))
    save_checkpoint(paths, run, state(62))
    assert [load_checkpoint(path, run).step for path in checkpoint_paths(paths)] == [62, 31]


class Trap:
    """What unpickling would run."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return print, ("this must not run",)


@pytest.mark.parametrize("content", [Trap(), {"format": 1}, [1, 2], {"format": 99}])
def test_what_is_no_checkpoint_is_refused_and_never_run(
    run: Run, tmp_path: Path, content: object, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "checkpoint.pt"
    torch.save(content, path)
    with pytest.raises(UnusableCheckpoint):
        load_checkpoint(path, run)
    path.write_bytes(pickle.dumps(content, protocol=2))
    with pytest.raises(UnusableCheckpoint):
        load_checkpoint(path, run)
    assert capsys.readouterr().out == ""


PHASES: tuple[TrainingPhase, ...] = ("training", "evaluation", "checkpoint")


class Watch:
    """A clock that goes on when it is asked to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def got(
    monkeypatch: pytest.MonkeyPatch, seconds: dict[TrainingPhase, float], epochs: int
) -> list[str]:
    """Which phases' beginnings are reported, where each step of one takes a hundredth of it."""
    watch, seen = Watch(), list[TrainingProgress]()
    monkeypatch.setattr(time, "perf_counter", watch)
    place = Place(rank=0, local_rank=0, world_size=1, local_world_size=1, node_index=0)
    say = ProgressReporter(seen.append, place, StepClock(10, 10, 0), 100)
    for epoch in range(epochs):
        for phase in PHASES:
            for step in range(100):
                say(phase, epoch, step)
                watch.now += seconds[phase] / 100
    return [f"{each.phase} {each.epoch}" for each in seen]


def test_every_phase_is_reported_when_it_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    quick = dict.fromkeys(PHASES, REPORT_EVERY_S / 100)
    assert got(monkeypatch, quick, 1) == ["training 0", "evaluation 0", "checkpoint 0"]


def test_phases_that_take_no_time_are_reported_every_two_seconds_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    quick: dict[TrainingPhase, float] = dict(
        zip(PHASES, (REPORT_EVERY_S / 10, REPORT_EVERY_S / 50, REPORT_EVERY_S / 50), strict=True)
    )
    seen = got(monkeypatch, quick, 100)
    assert len(seen) == pytest.approx(100 * sum(quick.values()) / REPORT_EVERY_S, abs=4)
    assert seen.count("training 99") + seen.count("training 98") <= 1
    assert any(each.startswith("training") for each in seen[3:])


def test_a_phase_that_took_long_is_reported_when_it_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    slow: dict[TrainingPhase, float] = dict(
        zip(PHASES, (0.1, 0.1, 3 * REPORT_EVERY_S), strict=True)
    )
    seen = got(monkeypatch, slow, 3)
    assert [seen.count(f"checkpoint {epoch}") for epoch in range(3)] == [3, 3, 3]
