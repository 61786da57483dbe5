"""Reading a job file: its settings, `-s key=value` overrides, errors that say where."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError

from hpcncf import plan as planning
from hpcncf import serving
from hpcncf.errors import UsageError, nearest, shown
from hpcncf.ncf.data import manifest
from hpcncf.overrides import full_name, override, spelled_out
from hpcncf.plain_yaml import parse, read_text
from hpcncf.plan import Plan
from hpcncf.settings import place
from hpcncf.spec import SECTIONS, Data, JobSpec, meant
from hpcncf.workload import Program

M = TypeVar("M", bound=BaseModel)


def load_jobfile(path: Path, overrides: Sequence[str] = ()) -> JobSpec:
    """The job file's settings, data paths made absolute.

    Raises UsageError with file or `-s`, key, what came and what is possible.
    """
    plain = parse(read_text(path), str(path))
    if not isinstance(plain, dict):
        raise UsageError(
            f"{path}: expected a mapping with the keys {', '.join(JobSpec.model_fields)}; "
            f"came {'nothing' if plain is None else type(plain).__name__}"
        )
    spelled_out(plain)
    own = deepcopy(plain)
    given = [(_apply(plain, setting), setting) for setting in overrides]
    spelled_out(plain)
    try:
        job = JobSpec.model_validate(plain)
    except ValidationError as error:
        raise _refusal(JobSpec, error, lambda loc: _source(loc, path, own, given)) from None
    try:
        return with_absolute_paths(job, path.parent.resolve())
    except UsageError as error:
        raise UsageError(f"{_overridden(path, overrides)}: {error}") from None


def _overridden(path: Path, overrides: Sequence[str]) -> str:
    """The source of a problem that the file and what overrides it may only have together."""
    return " -s ".join([f"{path} with", *overrides]) if overrides else str(path)


def _source(
    loc: Sequence[int | str], path: Path, own: Any, given: Sequence[tuple[str, str]]
) -> str:
    """The override that gave what is wrong, the last one that did, or the file, with those that
    gave a part of it; `own`: what the file says; `given`: dotted keys and `key=value`."""
    dotted = ".".join(map(str, loc))
    whole = [setting for key, setting in given if f"{dotted}.".startswith(f"{key}.")]
    part = [setting for key, setting in given if not loc or key.startswith(f"{dotted}.")]
    if whole or (part and not _says(own, loc)):
        return f"-s {(whole or part)[-1]}"
    return _overridden(path, part)


def _says(own: Any, loc: Sequence[int | str]) -> bool:
    for key in loc:
        if not isinstance(own, dict) or key not in own:
            return False
        own = own[key]
    return True


def _apply(plain: dict[str, Any], setting: str) -> str:
    """Set `a.b=value` in place, the value read as YAML; returns the key's whole name."""
    dotted, equals, text = setting.partition("=")
    if not equals or not dotted:
        raise UsageError(
            f"-s {setting}: expected key=value, as in -s training.epochs=1 or -s repeats=3"
        )
    key = full_name(plain, dotted)
    override(plain, key, parse(text, f"-s {setting}"))
    return key


def validated(model: type[M], plain: Any, where: str) -> M:
    """`plain` as `model`. Raises UsageError listing every problem, a line each."""
    try:
        return model.model_validate(plain)
    except ValidationError as error:
        raise _refusal(model, error, lambda _: where) from None


def _refusal(
    model: type[BaseModel], error: ValidationError, where: Callable[[list[int | str]], str]
) -> UsageError:
    """Every problem, a line each, behind `where` its place came from."""
    told = [(_loc(problem), problem) for problem in error.errors()]
    lines = [f"{where(loc)}: {_complaint(model, loc, problem)}" for loc, problem in told]
    return UsageError("\n".join(dict.fromkeys(lines)))


def _loc(problem: Mapping[str, Any]) -> list[int | str]:
    loc = place(problem["loc"])
    if loc[:1] == ["workload"]:
        del loc[1:2]  # which of its two forms was meant
    elif loc[:1] == ["parameters"]:
        del loc[2:]  # and which kind of scalar
    return loc


def _complaint(model: type[BaseModel], loc: list[int | str], problem: Mapping[str, Any]) -> str:
    where = ".".join(str(part) for part in loc)
    if problem["type"] == "extra_forbidden":
        known = _known_keys(model, [str(part) for part in loc[:-1]])
        section = ".".join(str(part) for part in loc[:-1])
        prefix = f"{section}: " if section else ""
        likely = meant if model is JobSpec else nearest
        return (
            f"{prefix}unknown key {loc[-1]!r}.{likely(str(loc[-1]), known)} "
            f"Known keys: {', '.join(known)}"
        )
    if problem["type"] == "missing":
        return f"{where}: is required and not given"
    came = problem["input"]
    if not loc and problem["type"] == "value_error":  # of several keys, which it names itself
        return str(problem["msg"]).removeprefix("Value error, ")
    if problem["type"] == "string_pattern_mismatch":
        message = _of_the_pattern(where, str(came))
    else:
        message = str(problem["msg"]).removeprefix("Value error, ")
    return f"{where or 'the file'}: {message}; came {shown(came)} ({type(came).__name__})"


def _of_the_pattern(where: str, came: str) -> str:
    """What is possible in words, for the name and the grid's keys."""
    if where == "name":
        return (
            "expected letters, digits, dot, dash and underscore, a letter or digit first, "
            "at most 64 in all"
        )
    if where.startswith("parameters"):
        return "expected a name of letters, digits and single underscores, a letter first"
    dotted = [f"{section}.{key}" for section in SECTIONS for key in SECTIONS[section].model_fields]
    meant = [each for each in dotted if each.split(".")[1] == came.rpartition(".")[2]]
    if meant:
        return f"write {meant[0]}"
    close = nearest(came, dotted)
    return f"expected section.key, as in resources.cpus_per_task{'.' if close else ''}{close}"


def _known_keys(model: type[BaseModel], path: list[str]) -> list[str]:
    for part in path:
        field = model.model_fields.get(part)
        below = _model_in(field.annotation) if field else None
        if below is None:
            return []
        model = below
    return list(model.model_fields)


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """The first model among an annotation's alternatives."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for part in get_args(annotation) if (found := _model_in(part))), None)


def with_absolute_paths(job: JobSpec, folder: Path) -> JobSpec:
    """The same job with its program's folder, and every data path, made absolute from `folder`."""
    if isinstance(job.workload, Program):
        at = _absolute(folder, job.workload.folder, "workload.folder")
        return job.model_copy(update={"workload": job.workload.model_copy(update={"folder": at})})
    return _with_absolute_data(job, folder)


def _absolute(folder: Path, value: Any, key: str) -> Any:
    if not isinstance(value, str) or not value:
        return value  # the plan says what is wrong with it
    try:
        return str((folder / Path(value).expanduser()).resolve())
    except (ValueError, OSError, RuntimeError) as error:  # a NUL byte, a loop, ~nobody
        raise UsageError(f"{key}: {shown(value)} is no path: {error}") from None


def _with_absolute_data(job: JobSpec, folder: Path) -> JobSpec:
    """The grid's too."""

    def absolute(value: Any) -> Any:
        return _absolute(folder, value, "data.path")

    def of_point(point: dict[str, Any]) -> dict[str, Any]:
        return {
            key: absolute(value) if key == "data.path" else value for key, value in point.items()
        }

    grid = {
        key: [absolute(value) for value in values] if key == "data.path" else values
        for key, values in job.grid.items()
    }
    assert job.data is not None
    return job.model_copy(
        update={
            "data": job.data.model_copy(update={"path": absolute(job.data.path)}),
            "grid": grid,
            "points": [of_point(point) for point in job.points],
            "exclude": [of_point(point) for point in job.exclude],
        }
    )


def data_keys(job: JobSpec) -> dict[str, str | None]:
    """Each data path of the job -> what the prepared folder calls its content, None if absent."""
    if job.data is None:
        return {}
    paths = {job.data.path} | {
        str(point["data.path"]) for point in planning.points_plan(job) if "data.path" in point
    }
    return {path: manifest.key(Path(path)) for path in sorted(paths)}


def plan(job: JobSpec, path: Path, overrides: Sequence[str] = ()) -> Plan:
    """The job's plan with the data's keys. Raises UsageError naming the file, and the `overrides`
    that the job was loaded with."""
    try:
        expanded = planning.expand(serving.served(job, serving.problem(job)), data_keys(job))
        for data in {run.data for run in expanded.runs if run.data and run.data_key}:
            _check_dataset(data)
    except UsageError as error:
        raise UsageError(f"{_overridden(path, overrides)}: {error}") from None
    return expanded


def _check_dataset(data: Data) -> None:
    found = manifest.read(Path(data.path)).dataset
    if data.dataset not in (None, found):
        raise UsageError(
            f"data.dataset: expected {data.dataset!r}, but {data.path} was prepared from {found!r}"
        )
