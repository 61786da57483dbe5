"""Write and read checkpoints. The previous checkpoint is kept; damaged ones are skipped."""

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

from hpcncf.files import set_shared_mode
from hpcncf.job.plan import Run
from hpcncf.paths import RunPaths
from hpcncf.records.schema import Epoch

FORMAT = 2
READABLE_FORMATS = (1, 2)  # 1: whole epochs only


@dataclass
class PartialEpoch:
    """The state of an unfinished epoch, over all attempts."""

    steps: int = 0
    training_s: float = 0.0
    checkpoint_s: float = 0.0
    first_batch_s: float = 0.0
    losses: list[float] = field(default_factory=list)
    """By rank: the exact sum over its instances. Empty: no step yet."""
    generators: list[Tensor] = field(default_factory=list)
    """By rank: the state of the generator for dropout; empty without dropout."""


@dataclass(frozen=True)
class Checkpoint:
    """State of a run after its first `step` training steps, as a checkpoint stores it."""

    step: int
    model: dict[str, Any]
    optimizer: dict[str, Any]
    epochs: list[Epoch]
    """Finished epochs."""
    partial_epoch: PartialEpoch


class UnusableCheckpoint(Exception):
    """Raised if a checkpoint file is damaged, or does not belong to this run."""


class CheckpointNotSaved(Exception):
    """Raised if a checkpoint could not be written; the previous one is intact."""


def save_checkpoint(paths: RunPaths, run: Run, state: Checkpoint) -> None:
    """Write a checkpoint atomically and keep the previous one.

    A kill at any moment leaves a complete checkpoint.

    Raises CheckpointNotSaved, for example on a full disk.
    """
    content = {
        "format": FORMAT,
        "run_id": run.id,
        "data_key": run.data_key,
        "step": state.step,
        "model": state.model,
        "optimizer": state.optimizer,
        "epochs": [each.model_dump(mode="json") for each in state.epochs],
        "so_far": asdict(state.partial_epoch),
    }
    paths.folder.mkdir(parents=True, exist_ok=True)
    partial = paths.folder / f".{paths.checkpoint.name}.{os.uname().nodename}.{os.getpid()}"
    try:
        with partial.open("wb") as file:
            set_shared_mode(file.fileno(), paths.folder)
            torch.save(content, file)
            file.flush()
            os.fsync(file.fileno())  # otherwise a crash after the rename could leave it empty
        for path in checkpoint_paths(paths):
            if path.exists() and not path.is_file():
                set_aside(path)
        if paths.checkpoint.exists():
            paths.checkpoint.replace(paths.previous_checkpoint)
        partial.replace(paths.checkpoint)
    except (OSError, RuntimeError) as error:  # torch raises RuntimeError on a full disk
        reason = str(error).splitlines()[0]
        cause: BaseException | None = error
        while cause is not None:  # torch's own error hides that of the file
            reason = (isinstance(cause, OSError) and cause.strerror) or reason
            cause = cause.__cause__ or cause.__context__
        raise CheckpointNotSaved(f"{paths.checkpoint}: not written: {reason}") from error
    finally:
        partial.unlink(missing_ok=True)


def load_checkpoint(path: Path, run: Run) -> Checkpoint:
    """Read a checkpoint of the run. Raises UnusableCheckpoint with the reason if it cannot."""
    try:
        if not path.is_file():  # reading a pipe would block
            raise UnusableCheckpoint("not a file")
        with zipfile.ZipFile(path) as archive:  # torch does not verify its checksums
            if (broken := archive.testzip()) is not None:
                raise UnusableCheckpoint(f"{broken} in it is damaged")
        content = torch.load(path, map_location="cpu", weights_only=True)
        if content["format"] not in READABLE_FORMATS:
            raise UnusableCheckpoint(f"format {content['format']}, expected {FORMAT}")
        theirs, ours = (content["run_id"], content["data_key"]), (run.id, run.data_key)
        if theirs != ours:
            raise UnusableCheckpoint(
                f"of run {theirs[0]} on data {theirs[1]}, expected {ours[0]}, {ours[1]}"
            )
        return Checkpoint(
            step=content["step"],
            model=content["model"],
            optimizer=content["optimizer"],
            epochs=[Epoch.model_validate(each) for each in content["epochs"]],
            partial_epoch=PartialEpoch(**content.get("so_far", {})),
        )
    # torch raises a different error for each way in which a file can be damaged.
    except (OSError, EOFError, RuntimeError, ValueError, LookupError, TypeError) as error:
        raise UnusableCheckpoint(f"{type(error).__name__}: {error}") from error
    except pickle.UnpicklingError as error:  # its text advises to load it without this protection
        raise UnusableCheckpoint("not a checkpoint of ours: it holds other objects") from error
    except zipfile.BadZipFile as error:
        raise UnusableCheckpoint(f"not a file of tensors: {error}") from error


def set_aside(path: Path) -> None:
    """Rename an unusable checkpoint, so that the next save does not keep it in place of a good one.

    Raises OSError.
    """
    path.rename(path.with_name(f".{path.name}.unusable.{time.time_ns()}"))


def checkpoint_paths(paths: RunPaths) -> Iterator[Path]:
    """Yield the paths of the current and the previous checkpoint, which need not exist."""
    yield paths.checkpoint
    yield paths.previous_checkpoint
