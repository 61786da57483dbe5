"""Writes what is derived from the code: JSON Schemas, references, examples of batch scripts."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from hpcncf import plan, records, spec, submissions, workload
from hpcncf.ncf.data.manifest import Manifest
from hpcncf.slurm import examples, request

ROOT = Path(__file__).parent.parent
SCHEMAS: dict[str, type[BaseModel]] = {
    "job": spec.JobSpec,
    "site": request.Site,
    "plan": plan.Plan,
    "rank": records.RankRecord,
    "node": records.NodeRecord,
    "progress": records.Progress,
    "claim": records.Claim,
    "end": records.End,
    "submission": submissions.Submission,
    "manifest": Manifest,
}
SECTIONS: list[tuple[str, type[BaseModel], str]] = [
    ("The file", spec.JobSpec, ""),
    ("workload", workload.Program, "workload."),
    ("resources", spec.Resources, "resources."),
    ("data", spec.Data, "data."),
    ("model", spec.Model, "model."),
    ("training", spec.Training, "training."),
]
SITE_OPENING = """\
# The site file

*Written by `make schemas` from `hpcncf/slurm/request.py`; the patterns stand in
[`slurm_templates/`](../slurm_templates).*

What differs between clusters, as YAML. A job file names it with `site:`: a file of
`slurm_templates/` or of `~/.config/hpcncf/sites/` without its ending, or a path.
"""
RECORDS: list[tuple[str, type[BaseModel]]] = [
    ("claim.json", records.Claim),
    ("progress.json", records.Progress),
    ("rank-N.json", records.RankRecord),
    ("rank-N.json: cores", records.Cores),
    ("rank-N.json: cpu", records.Cpu),
    ("rank-N.json: memory", records.Memory),
    ("rank-N.json: io", records.Io),
    ("rank-N.json: training", records.TrainingRecord),
    ("rank-N.json: training.phases", records.Phases),
    ("rank-N.json: training.sync", records.Sync),
    ("rank-N.json: training.epochs", records.Epoch),
    ("rank-N.json: training.batches", records.Batches),
    ("node-N.json", records.NodeRecord),
    ("node-N.json: gpus", records.Gpu),
    ("node-N.json: gpus.processes", records.GpuProcess),
    ("end.json", records.End),
]
RECORDS_OPENING = """\
# The records

*Written by `make schemas` from `hpcncf/records.py`; the JSON Schemas are in
[`hpcncf/schemas/`](../hpcncf/schemas).*

Each attempt at a run leaves JSON files in `results/<job>/runs/<run_id>/attempt-<n>/`. They are
written whole or not at all, and readable without hpcncf:

    import json
    record = json.load(open("results/demo/runs/0123456789ab/attempt-1/rank-0.json"))
    print(record["cores"]["used"], "of", record["cores"]["allocated"])

`schema_version` is 1. A key that a later version adds does not raise it; a key that changes its
meaning does, and an older hpcncf then refuses the file by name and goes on with the rest. Seconds
end in `_s`, MiB in `_mib`, shares are 0 to 1 and may exceed 1 where they honestly do. What could
not be measured is null.
"""
OPENING = """\
# The job file

*Written by `make schemas` from `hpcncf/spec.py`; the examples stand in [`jobs/`](../jobs).*

A job file asks one question. It is YAML: a base setting, and a `grid` around it. Unknown keys are
refused with the known ones; every value is checked when the file is read, and every combination
when the plan is made. Scalars are YAML 1.2's: `1e-3` is a number, `no` and `1:30` are text.

Any key can be overridden on the command line with `-s key=value`, the value written as in YAML:

    hpcncf plan jobs/cores.yaml -s training.epochs=1 -s 'grid.resources.cpus_per_task=[1, 2]'

An editor that knows YAML schemas completes and checks a job file whose first line is

    # yaml-language-server: $schema=PATH/hpcncf/schemas/job.json

where PATH is the checkout, or the folder that `pip show -f hpcncf` calls Location.
"""
CLOSING = """\
## Grid, points, exclude

`grid` maps dotted settings to lists of values; the runs are their cross product. `points` adds
single combinations; when there is no grid, `points` alone are the runs, and when there is neither,
the base setting is the one run. `exclude` leaves out those of the grid that match every key given.
A point that names one of the two batch sizes replaces the other.

A program of your own (`workload: {command: [...]}`) has `parameters` to vary: a key of the grid
that has no dot is one of them. [any-program.md](any-program.md) tells how to bring one.

## What does not go together

Refused when the plan is made, with the reason:

| setting | with | why |
|---|---|---|
| `device: cuda` | `gpus_per_node: 0` | no GPU was asked for |
| `backend: nccl` | `device: cpu` | nccl moves GPU memory only |
| `backend: nccl` | more ranks than GPUs on a node | nccl refuses two ranks on one GPU |
| `threads` | fewer `cpus_per_task` | threads without a core of their own slow each other down |
| `num_workers`, `workers`, `collate` … | `loader: vectorized`, `device` | they have no DataLoader |
| `pin_memory`, `non_blocking`, `prefetch_to_device` | `loader: device` | no batch is copied |
| `num_workers` | fewer `cpus_per_task` | the workers would take turns |
| `workers`, `persistent_workers`, `prefetch_factor` | `num_workers: 0` | there is no worker |
| `persistent_workers: false` | `workers: thread` | threads begin in no time |
| `collate: fast` | another `loader` than `per_sample` | there are no samples to put together |
| `global_batch_size` | more ranks than positives in a step | some would have nothing to do |
| `engine: native` | another `loader`, `cuda`, dropout | it draws for itself, on CPUs |
| `engine: native` | more than 16 `layers` | it has room for no more |
| `engine: rowwise`, `native` | ranks with `sync: dense` | it exchanges whole tables' gradients |
| `sync: rows` | `engine: reference` | its gradients are of whole tables |
| `sync_every` | another `sync` than `local_sgd` | the others exchange in every step |
| `engine: rowwise`, `native` | `sparse`, `adam` | both choose among torch's own ways |
| `engine: rowwise`, `native` | `accumulate`, `parallel` | so do these |
| `engine: native` | `compile`, `precision`, `tf32` | it is compiled already, for CPUs, in float32 |
| `engine: rowwise` | `compile: torchscript`; `inductor` in several ranks | a step is no module |
| `engine: rowwise` | `precision` other than `float32` on a CPU | rounding costs more there |
| `cuda_graph` | a CPU, several ranks, another `engine` or `loader` | a replay is all of a step |
| `cuda_graph` | dropout, `profile: torch` | neither can be followed through replays |
| `tf32` | another `precision` than `float32` | it is about products of float32 |
| `precision: float16`, `engine: reference` | `lazy_adam` | its scaler would skip half a step |
| `precision: float16`, `engine: reference` | ranks with `sync: local_sgd` | each skips for itself |
| `bucket_mb` and other settings of DDP | another `engine` or `sync` | there is no DDP |
| `accumulate` | `static_graph` | torch's DDP fails (pytorch/pytorch issue 143580) |
| `accumulate` | fewer positives of a rank in a step | some parts would be empty |
| `parallel: data_parallel` | several ranks | it is one process for all GPUs |
| `parallel: data_parallel` | `compile` | it copies the module in every step |
| `profile_steps` | another `profile` than `torch` | py-spy counts no steps |
| `lr_base_batch` | `lr_scale: none` | there is nothing to scale |
| `adam: foreach`, `fused` | another `optimizer` | they are versions of torch's Adam |
| `sparse: true` | `optimizer: adam` | Adam moves every row in every step |
| `optimizer: lazy_adam` | no `sparse: true` | torch's SparseAdam takes no dense gradients |
| `sparse: true` | several ranks over nccl | nccl exchanges dense gradients only |
| `weight_decay` | all but plain `reference` | rows that no batch has would not decay |

## What makes two runs the same

A run's id is a hash of what it computes: the prepared data's content, model and training settings,
seed, repeat, nodes, tasks, CPUs and GPUs. Memory, time limit, site and paths are not in it, so a
retry with more memory is the same run. A setting left at its default is left out of the hash. Runs
no longer in the job file stay in the results, marked retired.
"""


def texts() -> dict[Path, str]:
    """Every generated file and what should stand in it."""
    schemas = {
        ROOT / "hpcncf/schemas" / f"{name}.json": json.dumps(model.model_json_schema(), indent=1)
        + "\n"
        for name, model in SCHEMAS.items()
    }
    return schemas | {
        ROOT / "docs/job-file.md": job_file_reference(),
        ROOT / "docs/records.md": records_reference(),
        **{ROOT / "slurm_templates" / name: text for name, text in examples.texts().items()},
        ROOT / "docs/site-file.md": f"{SITE_OPENING}\n{table(request.Site, '')}",
    }


def records_reference() -> str:
    tables = [f"## {title}\n\n{first_line(model)}{fields(model)}" for title, model in RECORDS]
    return "\n".join([RECORDS_OPENING, *tables])


def first_line(model: type[BaseModel]) -> str:
    own = (model.__doc__ or "") if model.__doc__ != records.Part.__doc__ else ""
    return own.strip().partition("\n")[0] + "\n\n" if own else ""


def fields(model: type[BaseModel]) -> str:
    properties = model.model_json_schema()["properties"]
    rows = [
        f"| `{name}` | {kind(properties[name])}{' or null' if nullable(properties[name]) else ''} "
        f"| {meaning(field)} |"
        for name, field in model.model_fields.items()
    ]
    return "\n".join(["| key | value | meaning |", "|---|---|---|", *rows, ""])


def nullable(schema: dict[str, Any]) -> bool:
    return any(part.get("type") == "null" for part in schema.get("anyOf", []))


def meaning(field: FieldInfo) -> str:
    return " ".join((field.description or "").split()).replace("|", "\\|")


def job_file_reference() -> str:
    tables = [
        f"## {title if not prefix else f'`{title}`'}\n\n{table(model, prefix)}"
        for title, model, prefix in SECTIONS
    ]
    return "\n".join([OPENING, *tables, CLOSING])


def table(model: type[BaseModel], prefix: str) -> str:
    properties = model.model_json_schema()["properties"]
    rows = [
        f"| `{prefix}{name}` | {kind(properties[name])} | {default(model, name)} "
        f"| {meaning(field)} |"
        for name, field in model.model_fields.items()
    ]
    return "\n".join(["| key | value | default | meaning |", "|---|---|---|---|", *rows, ""])


def kind(schema: dict[str, Any]) -> str:
    """A property's JSON Schema in words."""
    if "$ref" in schema or "allOf" in schema:
        return "a mapping, see below"
    if "oneOf" in schema:
        return " or ".join(map(kind, schema["oneOf"]))
    if "anyOf" in schema:
        return " or ".join(kind(part) for part in schema["anyOf"] if part.get("type") != "null")
    if "const" in schema:
        return f"`{schema['const']}`"
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    bounds = [
        f"{word} {schema[key]:g}"
        for key, word in (
            ("minimum", "from"),
            ("exclusiveMinimum", "above"),
            ("exclusiveMaximum", "below"),
        )
        if key in schema and schema[key] < 2**53
    ]
    words = {"array": "list", "object": "mapping", "string": "text", "boolean": "true, false"}
    return " ".join([words.get(schema.get("type", ""), schema.get("type", "any")), *bounds])


def default(model: type[BaseModel], name: str) -> str:
    field = model.model_fields[name]
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    if value is None or value is PydanticUndefined or isinstance(value, BaseModel):
        return ""
    return f"`{json.dumps(value)}`"


def main() -> int:
    for path, text in texts().items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
