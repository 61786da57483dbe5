"""Identify a run by what it computes: the settings that its id is a hash of."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any, Final

from hpcncf.job.plan import Run
from hpcncf.job.spec import (
    Model,
    Program,
    Remedies,
    Resources,
    Training,
    build_command,
    placeholder_values,
)
from hpcncf.paths import hash_identity

SEED: Final = "seed"
"""Setting of `training`, or a command's parameter."""


def run_identity(
    workload: Any,
    resources: Resources,
    data_key: str | None,
    model: Model | None,
    training: Training | None,
    repeat: int,
) -> dict[str, Any]:
    """Settings that determine a run's result, as plain data.

    Memory, time limit, paths and site are no part of it. Settings at their defaults are left out,
    so that a later version with more settings still recognises the run.
    """
    plain = model.model_dump(mode="json", exclude_defaults=True) if model else None
    if model and plain is not None:
        plain.pop("init", None)  # `paper` and its number are one; `auto` is `torch` if not resolved
        plain |= {} if model.table_std is None else {"init": model.table_std}
    return {
        "workload": workload,
        "data": data_key,
        "resources": _resource_identity(resources),
        "model": plain,
        "training": _training_identity(training, resources) if training else None,
        "repeat": repeat,
    }


def command_identity(
    program: Program, parameters: Mapping[str, Any], resources: Resources, repeat: int
) -> dict[str, Any]:
    """Identity of a command's run: its words with all values but memory and time limit."""
    unfilled = {name: f"{{resources.{name}}}" for name in Resources.model_fields}
    known = placeholder_values(parameters, unfilled | _resource_identity(resources), repeat)
    words = build_command(program, known)
    workload = {"command": words} | ({"trial": True} if program.trial else {})
    return run_identity(workload, resources, None, None, None, repeat)


def add_remedies(identity: dict[str, Any], remedies: Remedies) -> dict[str, Any]:
    """Add the remedies to a run's identity, which stays as it is if there are none."""
    if not remedies:
        return identity
    return identity | {"remedies": remedies.model_dump(mode="json", exclude_defaults=True)}


def _resource_identity(resources: Resources) -> dict[str, Any]:
    names = {"nodes", "tasks_per_node", "cpus_per_task", "gpus_per_node"}
    # Runs that share a node or a GPU are slower: to measure that, they must be runs of their own.
    for name in ("launcher", "runs_per_node", "runs_per_gpu", "ranks_per_gpu", "mps"):
        if getattr(resources, name) != Resources.model_fields[name].default:
            names.add(name)
    return resources.model_dump(mode="json", include=names)


def _training_identity(training: Training, resources: Resources) -> dict[str, Any]:
    """Training settings that determine the result, with `auto` and batch sizes resolved."""
    plain = training.model_dump(
        mode="json",
        exclude_defaults=True,
        exclude={
            "device",
            "backend",
            "global_batch_size",
            "batch_size_per_rank",
            "epochs",
            "checkpoint_every_min",
            "log_every",
        },
    )
    return plain | {
        "epochs": training.epochs,
        "device": training.device_for(resources),
        "backend": training.backend_for(resources),
        "batch": training.batch_over_ranks(resources.world_size),
    }


def configuration_id(run: Run) -> str:
    """Id of a run's configuration, which all of its repeats share.

    Runs that differ only in their seed are repeats, too.
    """
    name = run.typed_name
    if isinstance(run.workload, Program) and name is None:
        parameters = run.parameters | ({SEED: 0} if SEED in run.parameters else {})
        identity = command_identity(run.workload, parameters, run.resources, 0)
        return hash_identity(add_remedies(identity, run.remedies))
    workload: Any = run.workload
    if name is not None:
        workload = {"command": run.words}
        if name != shlex.join(run.words):  # two names are two things to compare
            workload["name"] = name
    training = run.training and run.training.model_copy(
        update={SEED: Training.model_fields[SEED].default}
    )
    identity = run_identity(workload, run.resources, run.data_key, run.model, training, 0)
    if training:
        identity["training"] |= run.removed_training
    return hash_identity(add_remedies(identity, run.remedies))
