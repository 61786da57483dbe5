"""How runs side by side share a node: what excludes it, whose cores and GPUs are whose. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from hpcncf.spec import Resources


def conflicts(resources: Resources) -> list[str]:
    """Why these resources do not go together, each with what would; empty when they do."""
    node, gpu, ranks = resources.runs_per_node, resources.runs_per_gpu, resources.ranks_per_gpu
    gpus, tasks = resources.gpus_per_node, resources.tasks_per_node
    shares = "mps" if resources.mps else f"runs_per_{'gpu' if gpu > 1 else 'node'}"
    sharing = next((name for name, is_so in _on_gpus(resources) if is_so), "")
    rules = [
        (
            resources.packed and resources.nodes > 1,
            f"resources.{shares} places whole runs on one node, and nodes is {resources.nodes}: "
            "use nodes 1",
        ),
        (
            resources.packed and resources.launcher == "torchrun",
            f"resources.{shares} with launcher torchrun: a process of hpcncf's own starts the "
            "ranks of runs side by side: use launcher srun",
        ),
        (
            sharing != "" and gpus == 0,
            f"resources.{sharing} shares a GPU, and gpus_per_node is 0: set it, or leave "
            f"{sharing} out",
        ),
        (
            node > 1 and node % gpu > 0,
            f"resources.runs_per_node {node} is no multiple of runs_per_gpu {gpu}: the last GPU "
            "would have fewer runs than the others",
        ),
        (
            ranks > 1 and gpus > 0 and tasks != gpus * ranks,
            f"resources.ranks_per_gpu {ranks} on gpus_per_node {gpus} are {gpus * ranks} ranks on "
            f"each node, and tasks_per_node is {tasks}: make them equal",
        ),
    ]
    return [reason for broken, reason in rules if broken]


def _on_gpus(resources: Resources) -> list[tuple[str, bool]]:
    return [
        ("runs_per_gpu", resources.runs_per_gpu > 1),
        ("ranks_per_gpu", resources.ranks_per_gpu > 1),
        ("mps", resources.mps),
    ]


def cpus_of(slot: int, resources: Resources, ordered: Sequence[int]) -> list[int]:
    """The CPUs of the run in that slot, where the job has `ordered`: those of a core in a row."""
    each = resources.cores
    return list(ordered[slot * each : (slot + 1) * each])


def gpus_of(slot: int, resources: Resources, visible: Sequence[str]) -> list[str]:
    """The GPUs of the run in that slot, as the job names its own."""
    each = resources.gpus_per_node
    first = slot // resources.runs_per_gpu * each
    return list(visible[first : first + each])
