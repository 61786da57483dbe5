"""Read a job file: YAML 1.2, `-s` overrides, errors with their position."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any, Final, TypeVar, get_args

import yaml
from pydantic import BaseModel, ValidationError

from hpcncf.errors import UsageError, abbreviate, did_you_mean
from hpcncf.job.command import Program
from hpcncf.job.plan import Plan, expand_job, grid_points, missing_native_engine, with_engine_fallback
from hpcncf.job.settings import error_location
from hpcncf.job.spec import SECTIONS, Data, JobSpec, suggest_setting
from hpcncf.ncf.data.manifest import content_key, read_manifest


class YamlLoader(yaml.SafeLoader):
    """Safe YAML whose scalars mean what they say: `1e-3` is a number, `no` and `1:30` are text.

    PyYAML speaks YAML 1.1, where it is the other way round. Keys given twice are refused.
    """

    yaml_implicit_resolvers = {}  # noqa: RUF012
    # YAML 1.2's own tags only: no dates, sets, bytes.
    yaml_constructors = {  # noqa: RUF012
        tag: construct
        for tag, construct in yaml.SafeLoader.yaml_constructors.items()
        if tag is None or tag.rpartition(":")[2] in ("map", "seq", "str")
    }

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if isinstance(key, list | dict):
                raise yaml.constructor.ConstructorError(
                    None,
                    None,
                    f"a key must be plain text, came {abbreviate(key)}",
                    key_node.start_mark,
                )
            if key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"key {key!r} is given twice", key_node.start_mark
                )
            seen.add(key)
        return super().construct_mapping(node, deep)


def _scalar(convert: Callable[[str], Any]) -> Callable[[YamlLoader, yaml.ScalarNode], Any]:
    """A constructor that says where the text is which an explicit tag (`!!int abc`) got wrong."""

    def construct(loader: YamlLoader, node: yaml.ScalarNode) -> Any:
        text = str(loader.construct_scalar(node))
        try:
            return convert(text)
        except (ValueError, LookupError):
            kind = node.tag.rpartition(":")[2]
            raise yaml.constructor.ConstructorError(
                None, None, f"not of type {kind}: {abbreviate(text)}", node.start_mark
            ) from None

    return construct


TRUTH = {"true": True, "false": False}

for tag, pattern, first, convert in (
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF", lambda text: TRUTH[text.lower()]),
    ("null", r"~|null|Null|NULL|", "~nN", lambda _: None),
    ("int", r"[-+]?[0-9]+", "-+0123456789", int),  # YAML 1.1's own would read 010 as eight
    (
        "float",
        r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?",
        "-+0123456789.",
        float,
    ),
):
    YamlLoader.add_implicit_resolver(
        f"tag:yaml.org,2002:{tag}",
        re.compile(rf"^(?:{pattern})$"),
        [*first, ""] if tag == "null" else list(first),
    )
    YamlLoader.add_constructor(f"tag:yaml.org,2002:{tag}", _scalar(convert))


def parse_yaml(text: str, where: str) -> Any:
    """The YAML text as plain data. Raises UsageError with `where`, line and column."""
    try:
        return yaml.load(text, YamlLoader)  # a SafeLoader
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        at = f":{mark.line + 1}:{mark.column + 1}" if mark else ""
        raise UsageError(f"{where}{at}: not readable as YAML: {error.problem}") from None
    except yaml.YAMLError as error:
        raise UsageError(f"{where}: not readable as YAML: {error}") from None
    except RecursionError:
        raise UsageError(f"{where}: not readable as YAML: nested too deeply") from None


def read_utf8(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: not UTF-8 text: {error.reason} at byte {error.start}") from None
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from None


BATCH_SIZES: Final = frozenset({"training.global_batch_size", "training.batch_size_per_rank"})


def qualify_parameters(plain: dict[str, Any]) -> None:
    """A command's `lr` in grid, points, exclude and baseline becomes `parameters.lr`, in place.

    Its data need not be valid.
    """
    for section in ("grid", "points", "exclude", "baseline"):
        if section in plain and _is_command(plain):
            plain[section] = _spelled_out(plain[section])


def _is_command(plain: dict[str, Any]) -> bool:
    return isinstance(plain.get("workload"), dict)


def _spelled_out(part: Any) -> Any:
    if isinstance(part, list):
        return [_spelled_out(each) if isinstance(each, dict) else each for each in part]
    if not isinstance(part, dict):
        return part
    return {_parameter(key): value for key, value in part.items()}


def _parameter(key: Any) -> Any:
    return key if not isinstance(key, str) or "." in key else f"parameters.{key}"


def qualify_key(plain: dict[str, Any], dotted: str) -> str:
    """`lr` of a command as `parameters.lr`: not where a key of the file has that name."""
    if not _is_command(plain) or dotted in JobSpec.model_fields:
        return dotted
    head, dot, rest = dotted.partition(".")
    return f"{head}{dot}{_parameter(rest)}" if head == "grid" else str(_parameter(dotted))


def apply_override(plain: dict[str, Any], dotted: str, value: Any) -> None:
    """Set `dotted` in the job's plain data, which need not be valid, in place.

    It speaks for every run: an axis of the grid becomes this value, and so do points that name it.
    """
    _set(plain, dotted, value)
    # Of the two batch sizes there is one: the one overridden.
    others = BATCH_SIZES - {dotted} if dotted in BATCH_SIZES and value is not None else frozenset()
    for other in others:
        _without(plain, other)
    grid, points = plain.get("grid"), plain.get("points")
    if isinstance(grid, dict) and any(key in grid for key in (dotted, *others)):
        plain["grid"] = _replaced(grid, others, dotted, [value])
    if isinstance(points, list):
        plain["points"] = [
            _replaced(point, others, dotted, value)
            if isinstance(point, dict) and any(key in point for key in (dotted, *others))
            else point
            for point in points
        ]


def _set(plain: dict[str, Any], dotted: str, value: Any) -> None:
    # A grid's keys are themselves dotted: grid.resources.cpus_per_task=[1,2]
    head, _, rest = dotted.partition(".")
    path = [head, rest] if head == "grid" and rest else dotted.split(".")
    at = plain
    for part in path[:-1]:
        if not isinstance(at.setdefault(part, {}), dict):
            raise UsageError(f"-s {dotted}: {part!r} is a value, it has no keys below it")
        at = at[part]
    at[path[-1]] = value


def _without(plain: dict[str, Any], dotted: str) -> None:
    section, key = dotted.split(".")
    plain[section].pop(key, None)


def _replaced(
    settings: dict[str, Any], gone: frozenset[str], dotted: str, value: Any
) -> dict[str, Any]:
    kept = {key: each for key, each in settings.items() if key not in gone}
    return kept | {dotted: value}


M = TypeVar("M", bound=BaseModel)


def load_job(path: Path, overrides: Sequence[str] = ()) -> JobSpec:
    """The job file's settings, data paths made absolute.

    Raises UsageError with file or `-s`, key, what came and what is possible.
    """
    plain = parse_yaml(read_utf8(path), str(path))
    if not isinstance(plain, dict):
        raise UsageError(
            f"{path}: expected a mapping with the keys {', '.join(JobSpec.model_fields)}; "
            f"came {'nothing' if plain is None else type(plain).__name__}"
        )
    qualify_parameters(plain)
    own = deepcopy(plain)
    given = [(_apply(plain, setting), setting) for setting in overrides]
    qualify_parameters(plain)
    try:
        job = JobSpec.model_validate(plain)
    except ValidationError as error:
        raise _refusal(JobSpec, error, lambda loc: _source(loc, path, own, given)) from None
    try:
        return make_paths_absolute(job, path.parent.resolve())
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
    if whole or (part and not _contains(own, loc)):
        return f"-s {(whole or part)[-1]}"
    return _overridden(path, part)


def _contains(own: Any, loc: Sequence[int | str]) -> bool:
    for part in loc:
        if not isinstance(own, dict) or part not in own:
            return False
        own = own[part]
    return True


def _apply(plain: dict[str, Any], setting: str) -> str:
    """Set `a.b=value` in place, the value read as YAML; returns the key's whole name."""
    dotted, equals, text = setting.partition("=")
    if not equals or not dotted:
        raise UsageError(
            f"-s {setting}: expected key=value, as in -s training.epochs=1 or -s repeats=3"
        )
    key = qualify_key(plain, dotted)
    apply_override(plain, key, parse_yaml(text, f"-s {setting}"))
    return key


def validate_settings(model: type[M], plain: Any, where: str) -> M:
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
    loc = error_location(problem["loc"])
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
        likely = suggest_setting if model is JobSpec else did_you_mean
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
        message = _describe_pattern(where, str(came))
    else:
        message = str(problem["msg"]).removeprefix("Value error, ")
    return f"{where or 'the file'}: {message}; came {abbreviate(came)} ({type(came).__name__})"


def _describe_pattern(where: str, came: str) -> str:
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
    close = did_you_mean(came, dotted)
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


def make_paths_absolute(job: JobSpec, folder: Path) -> JobSpec:
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
        raise UsageError(f"{key}: {abbreviate(value)} is no path: {error}") from None


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


def read_data_keys(job: JobSpec) -> dict[str, str | None]:
    """Each data path of the job -> what the prepared folder calls its content, None if absent."""
    if job.data is None:
        return {}
    paths = {job.data.path} | {
        str(point["data.path"]) for point in grid_points(job) if "data.path" in point
    }
    return {path: content_key(Path(path)) for path in sorted(paths)}


def build_plan(job: JobSpec, path: Path, overrides: Sequence[str] = ()) -> Plan:
    """The job's plan with the data's keys. Raises UsageError naming the file, and the `overrides`
    that the job was loaded with."""
    try:
        expanded = expand_job(with_engine_fallback(job, missing_native_engine(job)), read_data_keys(job))
        for data in {run.data for run in expanded.runs if run.data and run.data_key}:
            _check_dataset(data)
    except UsageError as error:
        raise UsageError(f"{_overridden(path, overrides)}: {error}") from None
    return expanded


def _check_dataset(data: Data) -> None:
    found = read_manifest(Path(data.path)).dataset
    if data.dataset not in (None, found):
        raise UsageError(
            f"data.dataset: expected {data.dataset!r}, but {data.path} was prepared from {found!r}"
        )
