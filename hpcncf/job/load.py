"""Read strict YAML 1.2, and load a job file with `-s key=value` overrides.

Errors give file, key, value and choices.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any, Final

import yaml
from pydantic import ValidationError

from hpcncf.data.manifest import content_key, is_prepared, read_manifest
from hpcncf.errors import UsageError, abbreviate
from hpcncf.job.engine_fallback import missing_native_engine, with_engine_fallback
from hpcncf.job.expand import expand_job, grid_points
from hpcncf.job.plan import Plan
from hpcncf.job.spec import JobSpec, Program, validation_error
from hpcncf.paths import ResultPaths
from hpcncf.removed import drop_removed_defaults

BATCH_SIZES: Final = frozenset({"training.global_batch_size", "training.batch_size_per_rank"})


class YamlLoader(yaml.SafeLoader):
    """Safe YAML 1.2 without duplicate keys: `1e-3` is a number, `no` and `1:30` are text.

    PyYAML implements YAML 1.1, which reads these the other way round.
    """

    yaml_implicit_resolvers = {}  # noqa: RUF012
    # The tags of YAML 1.2 only: no dates, sets, bytes.
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


def _scalar_constructor(
    convert: Callable[[str], Any],
) -> Callable[[YamlLoader, yaml.ScalarNode], Any]:
    """Build a YAML constructor that reports the place of text unfit for its tag.

    An example is `!!int abc`.
    """

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


_TRUTH: Final = {"true": True, "false": False}

for _tag, _pattern, _first, _convert in (
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF", lambda text: _TRUTH[text.lower()]),
    ("null", r"~|null|Null|NULL|", "~nN", lambda _: None),
    ("int", r"[-+]?[0-9]+", "-+0123456789", int),  # YAML 1.1 would read 010 as eight
    (
        "float",
        r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?",
        "-+0123456789.",
        float,
    ),
):
    YamlLoader.add_implicit_resolver(
        f"tag:yaml.org,2002:{_tag}",
        re.compile(rf"^(?:{_pattern})$"),
        [*_first, ""] if _tag == "null" else list(_first),
    )
    YamlLoader.add_constructor(f"tag:yaml.org,2002:{_tag}", _scalar_constructor(_convert))


def parse_yaml(text: str, where: str) -> Any:
    """Parse YAML text to plain data. Raises UsageError with `where`, line and column."""
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
    """Read a text file. Raises UsageError if it cannot be read or is not UTF-8."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: not UTF-8 text: {error.reason} at byte {error.start}") from None
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from None


def load_job(path: Path, overrides: Sequence[str] = ()) -> JobSpec:
    """Load a job file with overrides `key=value`; all paths become absolute.

    Raises UsageError with the file or the `-s`, the key, its value and the choices.
    """
    plain = parse_yaml(read_utf8(path), str(path))
    if not isinstance(plain, dict):
        raise UsageError(
            f"{path}: expected a mapping with the keys {', '.join(JobSpec.model_fields)}; "
            f"came {'nothing' if plain is None else type(plain).__name__}"
        )
    if ResultPaths(path.parent).plan.exists():  # a results folder's job.yaml names all settings
        drop_removed_defaults(plain)
    qualify_parameters(plain)
    in_file = deepcopy(plain)
    given = [(_apply_setting(plain, setting), setting) for setting in overrides]
    qualify_parameters(plain)
    try:
        job = JobSpec.model_validate(plain)
    except ValidationError as error:
        raise validation_error(
            JobSpec, error, lambda loc: _error_source(loc, path, in_file, given)
        ) from None
    try:
        return make_paths_absolute(job, path.parent.resolve())
    except UsageError as error:
        raise UsageError(f"{_file_with(path, overrides)}: {error}") from None


def build_plan(job: JobSpec, path: Path, overrides: Sequence[str] = ()) -> Plan:
    """Build the job's plan, with the keys of its prepared data.

    Raises UsageError naming the file and the `overrides` that the job was loaded with.
    """
    try:
        keys, datasets = read_data_keys(job), read_datasets(job)
        plan = expand_job(with_engine_fallback(job, missing_native_engine(job)), keys, datasets)
        for data in {run.data for run in plan.runs if run.data and run.data_key}:
            found = datasets[data.path]
            if data.dataset not in (None, found):
                raise UsageError(
                    f"data.dataset: expected {data.dataset!r}, but {data.path} was prepared from "
                    f"{found!r}. Use it with -s data.dataset={found}, or prepare {data.dataset} in "
                    "another folder"
                )
    except UsageError as error:
        raise UsageError(f"{_file_with(path, overrides)}: {error}") from None
    return plan


def read_data_keys(job: JobSpec) -> dict[str, str | None]:
    """Map each data path of the job to its content's key; None if nothing is prepared there."""
    return {path: content_key(Path(path)) for path in _data_paths(job)}


def read_datasets(job: JobSpec) -> dict[str, str]:
    """Map each data path of the job with prepared data to the data's format."""
    folders = {path: Path(path) for path in _data_paths(job) if is_prepared(Path(path))}
    return {path: read_manifest(folder).dataset for path, folder in folders.items()}


def _data_paths(job: JobSpec) -> list[str]:
    if job.data is None:
        return []
    points = (point["data.path"] for point in grid_points(job) if "data.path" in point)
    return sorted({job.data.path, *map(str, points)})


def _apply_setting(plain: dict[str, Any], setting: str) -> str:
    """Set a value given as `a.b=value` (YAML) in place; returns the qualified key."""
    dotted, equals, text = setting.partition("=")
    if not equals or not dotted:
        raise UsageError(
            f"-s {setting}: expected key=value, as in -s training.epochs=1 or -s repeats=3"
        )
    key = qualify_key(plain, dotted)
    apply_override(plain, key, parse_yaml(text, f"-s {setting}"))
    return key


def qualify_parameters(plain: dict[str, Any]) -> None:
    """Rename a command's short keys in place, such as `lr` to `parameters.lr`.

    They may occur in grid, points, exclude and baseline.

    The data need not be valid.
    """
    if not _is_command(plain):
        return
    for section in {"grid", "points", "exclude", "baseline"} & set(plain):
        part = plain[section]
        is_list = isinstance(part, list)
        renamed = [
            {_parameter(key): value for key, value in each.items()}
            if isinstance(each, dict)
            else each
            for each in (part if is_list else [part])
        ]
        plain[section] = renamed if is_list else renamed[0]


def qualify_key(plain: dict[str, Any], dotted: str) -> str:
    """Expand a command's short key, `lr` to `parameters.lr`.

    Keys of the job file itself, and keys of other jobs, stay as they are.
    """
    if not _is_command(plain) or dotted in JobSpec.model_fields:
        return dotted
    head, dot, rest = dotted.partition(".")
    return f"{head}{dot}{_parameter(rest)}" if head == "grid" else str(_parameter(dotted))


def _is_command(plain: dict[str, Any]) -> bool:
    return isinstance(plain.get("workload"), dict)


def _parameter(key: Any) -> Any:
    return key if not isinstance(key, str) or "." in key else f"parameters.{key}"


def apply_override(plain: dict[str, Any], dotted: str, value: Any) -> None:
    """Set the dotted key in the job's plain data, in place.

    The data need not be valid.

    The value applies to every run: it replaces an axis of the grid, and the value in points that
    have the key.
    """
    # A grid's keys are themselves dotted: grid.resources.cpus_per_task=[1,2]
    head, _, rest = dotted.partition(".")
    path = [head, rest] if head == "grid" and rest else dotted.split(".")
    at = plain
    for part in path[:-1]:
        if not isinstance(at.setdefault(part, {}), dict):
            raise UsageError(f"-s {dotted}: {part!r} is a value and has no keys below it")
        at = at[part]
    at[path[-1]] = value

    names = {dotted}
    if dotted in BATCH_SIZES and value is not None:  # one batch size replaces the other
        names |= BATCH_SIZES
        (other,) = BATCH_SIZES - {dotted}
        plain["training"].pop(other.partition(".")[2], None)

    def with_override(settings: Any, value: Any) -> Any:
        if not isinstance(settings, dict) or not names & set(settings):
            return settings
        others = {key: each for key, each in settings.items() if key == dotted or key not in names}
        return others | {dotted: value}

    if "grid" in plain:
        plain["grid"] = with_override(plain["grid"], [value])
    if isinstance(plain.get("points"), list):
        plain["points"] = [with_override(point, value) for point in plain["points"]]


def _file_with(path: Path, overrides: Sequence[str]) -> str:
    """Name the source of an error: the file, with the overrides that may share the cause."""
    return " -s ".join([f"{path} with", *overrides]) if overrides else str(path)


def _error_source(
    loc: Sequence[int | str], path: Path, in_file: Any, given: Sequence[tuple[str, str]]
) -> str:
    """Name the source of an invalid value: an override, else the file.

    It is the last override that gave the value at `loc`, else the file with those that gave a
    part of it.

    `in_file`: the file's own data; `given`: dotted keys and `key=value`.
    """
    dotted = ".".join(map(str, loc))
    whole = [setting for key, setting in given if f"{dotted}.".startswith(f"{key}.")]
    part = [setting for key, setting in given if not loc or key.startswith(f"{dotted}.")]
    if whole or (part and not _has_key(in_file, loc)):
        return f"-s {(whole or part)[-1]}"
    return _file_with(path, part)


def _has_key(plain: Any, loc: Sequence[int | str]) -> bool:
    for key in loc:
        if not isinstance(plain, dict) or key not in plain:
            return False
        plain = plain[key]
    return True


def is_site_file(site: str) -> bool:
    """Whether a job's `site` is the path of a file, not a name."""
    return "/" in site or site.endswith(".yaml")


def make_paths_absolute(job: JobSpec, folder: Path) -> JobSpec:
    """Copy the job with its program's folder, data and site file as absolute paths.

    Relative paths start from `folder`.
    """

    def absolute(value: Any, key: str = "data.path") -> Any:
        if not isinstance(value, str) or not value:
            return value  # the plan reports the error
        try:
            return str((folder / Path(value).expanduser()).resolve())
        except (ValueError, OSError, RuntimeError) as error:  # a NUL byte, a loop, ~nobody
            raise UsageError(f"{key}: {abbreviate(value)} is not a path: {error}") from None

    def of_point(point: dict[str, Any]) -> dict[str, Any]:
        return point | {key: absolute(point[key]) for key in {"data.path"} & set(point)}

    if is_site_file(job.site):
        job = job.model_copy(update={"site": absolute(job.site, "site")})
    if isinstance(job.workload, Program):
        at = absolute(job.workload.folder, "workload.folder")
        return job.model_copy(update={"workload": job.workload.model_copy(update={"folder": at})})
    assert job.data is not None
    paths = job.grid.get("data.path")
    grid = job.grid | ({"data.path": [absolute(value) for value in paths]} if paths else {})
    return job.model_copy(
        update={
            "data": job.data.model_copy(update={"path": absolute(job.data.path)}),
            "grid": grid,
            "points": [of_point(point) for point in job.points],
            "exclude": [of_point(point) for point in job.exclude],
        }
    )
