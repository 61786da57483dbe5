"""What the next attempt at a run resumes from: written whole, and never a pickle of code."""

from __future__ import annotations

import os
import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from hpcncf.plan import Run
from hpcncf.records import Epoch

FORMAT = 1


@dataclass(frozen=True)
class Checkpoint:
    """A run after its first `epoch` epochs and `step` steps."""

    epoch: int
    step: int
    model: dict[str, Any]
    optimizer: dict[str, Any]
    epochs: list[Epoch]


class Unusable(Exception):
    """The file is torn, or of something else; training starts again."""


def save(
    path: Path, run: Run, step: int, epochs: list[Epoch], model: nn.Module, optimizer: Optimizer
) -> None:
    """Write all of it or none: a kill meanwhile leaves the checkpoint before."""
    content = {
        "format": FORMAT,
        "run_id": run.id,
        "data_key": run.data_key,
        "epoch": len(epochs),
        "step": step,
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "epochs": [each.model_dump(mode="json") for each in epochs],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        torch.save(content, partial)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def load(path: Path, run: Run) -> Checkpoint:
    """Raises Unusable, saying why, where it is not a whole checkpoint of this run."""
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
        if content["format"] != FORMAT:
            raise Unusable(f"format {content['format']}, expected {FORMAT}")
        theirs, ours = (content["run_id"], content["data_key"]), (run.id, run.data_key)
        if theirs != ours:
            raise Unusable(f"of run {theirs[0]} on data {theirs[1]}, expected {ours[0]}, {ours[1]}")
        return Checkpoint(
            epoch=content["epoch"],
            step=content["step"],
            model=content["model"],
            optimizer=content["optimizer"],
            epochs=[Epoch.model_validate(each) for each in content["epochs"]],
        )
    # torch tells a torn file in as many ways as there are places to tear it.
    except (OSError, EOFError, RuntimeError, ValueError, LookupError, TypeError) as error:
        raise Unusable(f"{type(error).__name__}: {error}") from error
    except pickle.UnpicklingError as error:
        raise Unusable(f"not a file of tensors: {error}") from error
