"""What the next attempt at a run resumes from: written whole, and never a pickle of code."""

from __future__ import annotations

import os
import pickle
import time
import zipfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hpcncf import sharing
from hpcncf.paths import RunPaths
from hpcncf.plan import Run
from hpcncf.records import Epoch

FORMAT = 2
READABLE = (1, 2)  # 1 was of whole epochs only


@dataclass
class EpochSoFar:
    """An epoch that is not over, as all attempts together left it."""

    steps: int = 0
    training_s: float = 0.0
    checkpoint_s: float = 0.0
    first_batch_s: float = 0.0
    losses: list[float] = field(default_factory=list)
    """By rank: the sum over its instances, to the last bit. Empty: no step yet."""
    generators: list[Tensor] = field(default_factory=list)
    """By rank: the state that the model's dropout draws from; empty without dropout."""


@dataclass(frozen=True)
class Checkpoint:
    """A run after its first `step` steps."""

    step: int
    model: dict[str, Any]
    optimizer: dict[str, Any]
    epochs: list[Epoch]
    """Those that are over."""
    so_far: EpochSoFar


class Unusable(Exception):
    """The file is torn, or of something else."""


class NotSaved(Exception):
    """The file could not be written; the one before is still there."""


def save(paths: RunPaths, run: Run, state: Checkpoint) -> None:
    """Write all of it or none, and keep the one before: a kill at any moment leaves a whole one.

    Raises NotSaved, as on a full disk.
    """
    content = {
        "format": FORMAT,
        "run_id": run.id,
        "data_key": run.data_key,
        "step": state.step,
        "model": state.model,
        "optimizer": state.optimizer,
        "epochs": [each.model_dump(mode="json") for each in state.epochs],
        "so_far": asdict(state.so_far),
    }
    paths.folder.mkdir(parents=True, exist_ok=True)
    partial = paths.folder / f".{paths.checkpoint.name}.{os.uname().nodename}.{os.getpid()}"
    try:
        with partial.open("wb") as file:
            sharing.share(file.fileno(), paths.folder)
            torch.save(content, file)
            file.flush()
            os.fsync(file.fileno())  # renamed before its bytes are on the disk, it could be empty
        for path in candidates(paths):
            if path.exists() and not path.is_file():
                put_aside(path)
        if paths.checkpoint.exists():
            paths.checkpoint.replace(paths.checkpoint_before)
        partial.replace(paths.checkpoint)
    except (OSError, RuntimeError) as error:  # torch's writer tells of a full disk as the latter
        raise NotSaved(f"{paths.checkpoint}: not written: {str(error).splitlines()[0]}") from error
    finally:
        partial.unlink(missing_ok=True)


def load(path: Path, run: Run) -> Checkpoint:
    """Raises Unusable, saying why, where it is not a whole checkpoint of this run."""
    try:
        if not path.is_file():  # a pipe would be waited for
            raise Unusable("not a file")
        _check_whole(path)
        content = torch.load(path, map_location="cpu", weights_only=True)
        if content["format"] not in READABLE:
            raise Unusable(f"format {content['format']}, expected {FORMAT}")
        theirs, ours = (content["run_id"], content["data_key"]), (run.id, run.data_key)
        if theirs != ours:
            raise Unusable(f"of run {theirs[0]} on data {theirs[1]}, expected {ours[0]}, {ours[1]}")
        return Checkpoint(
            step=content["step"],
            model=content["model"],
            optimizer=content["optimizer"],
            epochs=[Epoch.model_validate(each) for each in content["epochs"]],
            so_far=EpochSoFar(**content.get("so_far", {})),
        )
    # torch tells a torn file in as many ways as there are places to tear it.
    except (OSError, EOFError, RuntimeError, ValueError, LookupError, TypeError) as error:
        raise Unusable(f"{type(error).__name__}: {error}") from error
    except (pickle.UnpicklingError, zipfile.BadZipFile) as error:
        raise Unusable(f"not a file of tensors: {error}") from error


def _check_whole(path: Path) -> None:
    """torch reads past bytes that are others than were written; the archive has their sums."""
    with zipfile.ZipFile(path) as archive:
        broken = archive.testzip()
    if broken is not None:
        raise Unusable(f"{broken} in it is not what was written")


def put_aside(path: Path) -> None:
    """So that the next one saved does not make it the one before, in place of a good one.

    Raises OSError.
    """
    path.rename(path.with_name(f".{path.name}.unusable.{time.time_ns()}"))


def candidates(paths: RunPaths) -> Iterator[Path]:
    """The newest first."""
    yield paths.checkpoint
    yield paths.checkpoint_before
