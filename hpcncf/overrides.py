"""`-s key=value`: one setting of a job file, for every run that the file asks for."""

from __future__ import annotations

from typing import Any, Final

from hpcncf.errors import UsageError
from hpcncf.spec import JobSpec

BATCH_SIZES: Final = frozenset({"training.global_batch_size", "training.batch_size_per_rank"})


def spelled_out(plain: dict[str, Any]) -> None:
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


def full_name(plain: dict[str, Any], dotted: str) -> str:
    """`lr` of a command as `parameters.lr`: not where a key of the file has that name."""
    if not _is_command(plain) or dotted in JobSpec.model_fields:
        return dotted
    head, dot, rest = dotted.partition(".")
    return f"{head}{dot}{_parameter(rest)}" if head == "grid" else str(_parameter(dotted))


def override(plain: dict[str, Any], dotted: str, value: Any) -> None:
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
