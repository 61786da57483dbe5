"""What makes two runs the same one: what they compute, as plain data, and its hash. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from hpcncf import workload as programs
from hpcncf.spec import Model, Resources, Training
from hpcncf.workload import Program


def of(
    workload: Any,
    resources: Resources,
    data_key: str | None,
    model: Model | None,
    training: Training | None,
    repeat: int,
) -> dict[str, Any]:
    """What a run computes, as plain data: not its memory, time limit, paths or site.

    A setting left at its default is left out, so that a later version which adds a setting
    still knows the runs made before it.
    """
    return {
        "workload": workload,
        "data": data_key,
        "resources": _of_resources(resources),
        "model": model.model_dump(mode="json", exclude_defaults=True) if model else None,
        "training": _of_training(training, resources) if training else None,
        "repeat": repeat,
    }


def _of_resources(resources: Resources) -> dict[str, Any]:
    asked = {"nodes", "tasks_per_node", "cpus_per_task", "gpus_per_node"}
    # Runs that share a node or a GPU are slower: to measure that, they must be runs of their own.
    for setting in ("launcher", "runs_per_node", "runs_per_gpu", "ranks_per_gpu", "mps"):
        if getattr(resources, setting) != Resources.model_fields[setting].default:
            asked.add(setting)
    return resources.model_dump(mode="json", include=asked)


def of_command(
    program: Program, parameters: Mapping[str, Any], resources: Resources, repeat: int
) -> dict[str, Any]:
    """The same of a command: its words with all values in them but the memory and the time."""
    open_ = {name: f"{{resources.{name}}}" for name in Resources.model_fields}
    known = open_ | _of_resources(resources)
    words = programs.called(program, programs.values(parameters, known, repeat))
    return of({"command": words}, resources, None, None, None, repeat)


def _of_training(training: Training, resources: Resources) -> dict[str, Any]:
    """Two spellings of one computation are one run: `auto` is resolved, batch sizes are one."""
    plain = training.model_dump(
        mode="json",
        exclude_defaults=True,
        exclude={"device", "backend", "global_batch_size", "batch_size_per_rank", "epochs"}
        | {"checkpoint_every_min"},
    )
    return plain | {
        "epochs": training.epochs,
        "device": training.device_for(resources),
        "backend": training.backend_for(resources),
        "batch": training.batch_over_ranks(resources.world_size),
    }


def run_id(identity: Mapping[str, Any]) -> str:
    """The first 12 hexadecimal digits of the SHA-256 of what a run computes."""
    text = json.dumps(identity, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:12]
