"""Generate what derives from the code: JSON Schemas, reference pages, batch scripts."""

from __future__ import annotations

import json
import os
import sys
from argparse import _SubParsersAction
from pathlib import Path
from typing import Any
from unittest import mock

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from docs import output_schemas
from hpcncf import cli
from hpcncf.job.expand import expand_job
from hpcncf.job.spec import Data, JobSpec, Model, Program, Remedies, Resources, Training
from hpcncf.records.schema import (
    Batches,
    Claim,
    Cores,
    Cpu,
    End,
    Epoch,
    Gpu,
    GpuProcess,
    Io,
    Memory,
    NodeRecord,
    Phases,
    Progress,
    RankRecord,
    RecordPart,
    Sync,
    TrainingRecord,
)
from hpcncf.slurm.batch_script import RunSource, plain_script
from hpcncf.slurm.site import Site

ROOT = Path(__file__).parent.parent
# Of interest to editors; records carry their fields in docs/records.md.
SCHEMAS: dict[str, type[BaseModel]] = {"job": JobSpec, "site": Site}
SECTIONS: list[tuple[str, type[BaseModel], str]] = [
    ("The file", JobSpec, ""),
    ("workload", Program, "workload."),
    ("remedies", Remedies, "remedies."),
    ("resources", Resources, "resources."),
    ("data", Data, "data."),
    ("model", Model, "model."),
    ("training", Training, "training."),
]
RECORDS: list[tuple[str, type[BaseModel]]] = [
    ("claim.json", Claim),
    ("progress.json", Progress),
    ("rank-N.json", RankRecord),
    ("rank-N.json: cores", Cores),
    ("rank-N.json: cpu", Cpu),
    ("rank-N.json: memory", Memory),
    ("rank-N.json: io", Io),
    ("rank-N.json: training", TrainingRecord),
    ("rank-N.json: training.phases", Phases),
    ("rank-N.json: training.sync", Sync),
    ("rank-N.json: training.epochs", Epoch),
    ("rank-N.json: training.batches", Batches),
    ("node-N.json", NodeRecord),
    ("node-N.json: gpus", Gpu),
    ("node-N.json: gpus.processes", GpuProcess),
    ("end.json", End),
]
BEGIN, END = "<!-- generated -->\n", "<!-- /generated -->\n"


def texts() -> dict[Path, str]:
    """Every generated file and what should stand in it. A page of docs/ has one generated block."""
    blocks = {
        "job-file": job_file_reference(),
        "records": records_reference(),
        "commands": commands_reference(),
        "site-file": table(Site, ""),
    }
    found = {ROOT / "slurm_templates" / name: text for name, text in example_scripts().items()}
    for name, model in SCHEMAS.items():
        schema = json.dumps(model.model_json_schema(), indent=1)
        found[ROOT / f"hpcncf/schemas/{name}.json"] = schema + "\n"
    for verb in output_schemas.SHAPES:
        schema = json.dumps(output_schemas.build_schema(verb), indent=1)
        found[ROOT / f"hpcncf/schemas/output/{verb}.json"] = schema + "\n"
    for name, block in blocks.items():
        path = ROOT / f"docs/{name}.md"
        begin, rest = path.read_text().split(BEGIN)
        found[path] = f"{begin}{BEGIN}{block}{END}{rest.partition(END)[2]}"
    return found


MODULES = Site(partition="cpu", account="my_project", modules=["python/3.11"], venv="~/hpcncf")
GPUS = Site(
    partition="gpu", account="my_project", container="apptainer exec --nv '/images/torch 2.sif'"
)
NODES = {"nodes": 2, "tasks_per_node": 4, "cpus_per_task": 2, "mem_gb": 16.0}
# Name -> site, resources and grid.
SCRIPTS: dict[str, tuple[Site, dict[str, Any], dict[str, list[Any]]]] = {
    "one_run": (MODULES, {"cpus_per_task": 4}, {}),
    "array": (MODULES, {"cpus_per_task": 2}, {"training.lr": [0.0005, 0.001, 0.002]}),
    "ranks_srun": (MODULES, NODES, {}),
    "ranks_torchrun": (MODULES, {**NODES, "launcher": "torchrun"}, {}),
    "gpus": (GPUS, {"tasks_per_node": 2, "gpus_per_node": 2, "cpus_per_task": 8}, {}),
}
SCRIPT_NOTE = (
    "# An example of what `hpcncf plan JOB.yaml --by-hand` prints. Print your own: a run's id is "
    "made from its settings and data."
)


def example_scripts() -> dict[str, str]:
    """Content of each example script by file name."""
    scripts = {}
    for name, (site, resources, grid) in SCRIPTS.items():
        job = JobSpec(
            name=name, data=Data(path="/data/frappe"), resources=Resources(**resources), grid=grid
        )
        source = RunSource(Path("/project/my job.yaml"), Path(f"/project/results/{name}"))
        runs = expand_job(job, {}).runs
        scripts[f"{name}.sbatch"] = plain_script(job, site, runs, source, SCRIPT_NOTE)
    return scripts


def commands_reference() -> str:
    """Every command's help, as wide as a page of the site whatever the terminal's width."""
    with mock.patch.dict(os.environ, COLUMNS="80"):
        actions = cli.parser()._actions
        verbs = next(each.choices for each in actions if isinstance(each, _SubParsersAction))
        parts = ["## Exit codes\n\n```\n" + cli.EXIT_CODES + "\n```\n"]
        for group, names in cli.GROUPS.items():
            for name in names:
                parts.append(f"## {name}\n\n*{group}*\n\n```\n{verbs[name].format_help()}```\n")
    return "\n".join(parts)


def records_reference() -> str:
    tables = [f"## {title}\n\n{first_line(model)}{fields(model)}" for title, model in RECORDS]
    return "\n".join(tables)


def first_line(model: type[BaseModel]) -> str:
    own = (model.__doc__ or "") if model.__doc__ != RecordPart.__doc__ else ""
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
    return "\n".join(tables)


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
        if key in schema and abs(schema[key]) < 2**30
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
