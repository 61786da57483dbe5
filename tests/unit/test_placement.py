"""What runs side by side exclude, and what each of them has of the job."""

from __future__ import annotations

from typing import Any

import pytest

from hpcncf.job.spec import Resources, Training
from hpcncf.job.validate import placement_conflicts, slot_cpus, slot_gpus


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"runs_per_node": 2, "nodes": 2}, "runs_per_node places whole runs on one node"),
        ({"runs_per_node": 2, "launcher": "torchrun"}, "use launcher srun"),
        ({"runs_per_gpu": 2}, "runs_per_gpu shares a GPU, and gpus_per_node is 0"),
        ({"mps": True}, "mps shares a GPU"),
        ({"runs_per_node": 3, "runs_per_gpu": 2, "gpus_per_node": 1}, "no multiple of"),
        ({"ranks_per_gpu": 2, "gpus_per_node": 1}, "are 2 ranks on each node"),
        ({"ranks_per_gpu": 2, "gpus_per_node": 2, "tasks_per_node": 4}, ""),
        ({"runs_per_node": 4, "runs_per_gpu": 2, "gpus_per_node": 1, "mps": True}, ""),
    ],
)
def test_what_does_not_go_together_is_refused_with_what_would(
    asked: dict[str, Any], said: str
) -> None:
    reasons = placement_conflicts(Resources(**asked))
    assert (said in "; ".join(reasons)) if said else not reasons


def test_each_run_has_its_own_cores_and_its_share_of_the_gpus() -> None:
    asked = Resources(runs_per_node=4, runs_per_gpu=2, gpus_per_node=1, cpus_per_task=2, mem_gb=3)
    cpus, gpus = list(range(8)), ["4", "7"]
    assert (asked.node_cores, asked.node_gpus, asked.node_mem_gb) == (8, 2, 12)
    assert [slot_cpus(slot, asked, cpus) for slot in range(4)] == [
        [0, 1],
        [2, 3],
        [4, 5],
        [6, 7],
    ]
    shared = [slot_gpus(slot, asked, gpus) for slot in range(4)]
    assert shared == [["4"], ["4"], ["7"], ["7"]]


def test_ranks_that_share_a_gpu_talk_over_gloo() -> None:
    sharing = Resources(gpus_per_node=1, tasks_per_node=2, ranks_per_gpu=2)
    assert Training().backend_for(sharing) == "gloo"
    assert Training().backend_for(Resources(gpus_per_node=1)) == "nccl"
