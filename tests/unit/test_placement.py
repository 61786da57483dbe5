"""The cores and GPUs that co-located runs get of their job."""

from __future__ import annotations

from hpcncf.job.spec import Resources
from hpcncf.local.colocate import slot_cpus, slot_gpus


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
