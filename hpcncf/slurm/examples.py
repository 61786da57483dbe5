"""The settings that the plain batch scripts in slurm_templates/ are rendered from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hpcncf.plan import expand
from hpcncf.slurm import byhand
from hpcncf.slurm.request import Site
from hpcncf.spec import Data, JobSpec, Resources

MODULES = Site(partition="cpu", account="my_project", modules=["python/3.11"], venv="~/hpcncf")
GPUS = Site(
    partition="gpu", account="my_project", container="apptainer exec --nv '/images/torch 2.sif'"
)
NODES = {"nodes": 2, "tasks_per_node": 4, "cpus_per_task": 2, "mem_gb": 16.0}
# Name -> what is particular about it.
EXAMPLES: dict[str, tuple[Site, dict[str, Any], dict[str, list[Any]]]] = {
    "one_run": (MODULES, {"cpus_per_task": 4}, {}),
    "array": (MODULES, {"cpus_per_task": 2}, {"training.lr": [0.0005, 0.001, 0.002]}),
    "ranks_srun": (MODULES, NODES, {}),
    "ranks_torchrun": (MODULES, {**NODES, "launcher": "torchrun"}, {}),
    "gpus": (GPUS, {"tasks_per_node": 2, "gpus_per_node": 2, "cpus_per_task": 8}, {}),
}
NOTE_EXAMPLES = (
    "# An example of what `hpcncf plan JOB.yaml --by-hand` prints. Print your own: a run's id is "
    "made from its settings and data."
)


def texts() -> dict[str, str]:
    """File name -> the script."""
    return {f"{name}.sbatch": _text(name, *example) for name, example in EXAMPLES.items()}


def _text(name: str, site: Site, asked: dict[str, Any], grid: dict[str, list[Any]]) -> str:
    job = JobSpec(
        name=name, data=Data(path="/data/frappe"), resources=Resources(**asked), grid=grid
    )
    runs = expand(job, {}).runs
    source = byhand.Source(Path("/project/my job.yaml"), Path(f"/project/results/{name}"))
    return byhand.text_byhand(job, site, runs, source, NOTE_EXAMPLES)
