"""What differs between two sides but speed: settings, software, machines. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from hpcncf.environment import PACKAGES
from hpcncf.spec import Model, Resources, Training
from hpcncf.tables.told import PARAMETER
from hpcncf_analysis.alerts import disturbed
from hpcncf_analysis.labels import command_name, counted
from hpcncf_analysis.scaling.comparable import MODELS, distinct

Row_changes = Mapping[str, Any]

# They decide neither what a run computes nor, but for the batch, how fast: `batch` says it alike.
_NOT_SPEED: Final = {
    "mem_gb",
    "timeout_min",
    "runs_per_task",
    "requeues",
    "checkpoint_every_min",
    "global_batch_size",
    "batch_size_per_rank",
}
NONE_CHANGES: Final = "none"
_MACHINE: Final = (*PACKAGES, "python", "platform", "cpu_model", "commit", "folder_commit")
# Of the recorded variables those that tell a run's place, not its speed.
_PLACE: Final = ("RANK", "LOCAL_", "WORLD_SIZE", "MASTER_", "HPCNCF_", "SLURM_", "TORCH")


@dataclass(frozen=True)
class Change:
    name: str
    a: str
    b: str

    def __str__(self) -> str:
        return f"{self.name}: {self.a} → {self.b}"


def settings_of(row: Row_changes) -> dict[str, str]:
    """All that decides a run's work and speed, as text: equal text, equal setting."""
    names = [*Resources.model_fields, *Training.model_fields, "batch", *Model.model_fields]
    names += ["data_key", *sorted(name for name in row if name.startswith(PARAMETER))]
    told = {name: row.get(name) for name in names if name not in _NOT_SPEED}
    if row["by_hand"]:
        told |= {"command": command_name(row), "cores": row["cores_allocated"]}
    elif not any(name.startswith(PARAMETER) for name in row):  # else it names them once more
        told["command"] = row.get("command")
    return {name: _text(value) for name, value in told.items() if value is not None}


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return "-".join(map(str, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def of_settings(a: Sequence[Row_changes], b: Sequence[Row_changes]) -> list[Change]:
    """Settings with one value in all of A and another in all of B."""
    return [
        Change(name, *ours, *theirs)
        for name, ours, theirs in _apart(map(settings_of, a), map(settings_of, b))
        if len(ours) == len(theirs) == 1
    ]


def _apart(
    a: Iterable[Mapping[str, str]], b: Iterable[Mapping[str, str]]
) -> Iterator[tuple[str, list[str], list[str]]]:
    """Every name whose values are not the same on both sides, with those of each."""
    ours, theirs = _values(a), _values(b)
    for name in dict.fromkeys([*ours, *theirs]):
        left, right = (values.get(name, {NONE_CHANGES}) for values in (ours, theirs))
        if left != right:
            yield name, sorted(left), sorted(right)


def _values(told: Iterable[Mapping[str, str]]) -> dict[str, set[str]]:
    """Name -> its values; NONE where one of them lacks it."""
    all_of_them = list(told)
    names = dict.fromkeys(name for each in all_of_them for name in each)
    return {name: {each.get(name, NONE_CHANGES) for each in all_of_them} for name in names}


def of_environment(a: Sequence[Mapping[str, Any]], b: Sequence[Mapping[str, Any]]) -> list[Change]:
    """Software and machine, where the sides' values are not the same; nothing where one is mute."""
    if not a or not b:
        return []
    return [
        Change(name, ", ".join(ours), ", ".join(theirs))
        for name, ours, theirs in _apart(map(_described, a), map(_described, b))
    ]


def _described(environment: Mapping[str, Any]) -> dict[str, str]:
    told = {name: environment.get(name) for name in _MACHINE}
    for commit, dirty in (("commit", "dirty"), ("folder_commit", "folder_dirty")):
        if told[commit]:
            told[commit] = str(told[commit])[:10] + " and changes" * bool(environment.get(dirty))
    variables = environment.get("variables") or {}
    told |= {name: text for name, text in variables.items() if not name.startswith(_PLACE)}
    return {name: NONE_CHANGES if value is None else _text(value) for name, value in told.items()}


def of_nodes(a: Sequence[Row_changes], b: Sequence[Row_changes]) -> list[Change]:
    ours, theirs = (sorted({str(row["node"]) for row in rows if row["node"]}) for rows in (a, b))
    return [] if ours == theirs else [Change("nodes", ", ".join(ours), ", ".join(theirs))]


def cautions(a: Sequence[Row_changes], b: Sequence[Row_changes], environment: Sequence[Change]) -> list[str]:
    """What makes the comparison of their speeds worth less, the gravest first."""
    found = []
    for column, called in MODELS.items():
        there = distinct([*a, *b], column)
        if len(there) > 1:
            found.append(
                f"different {called} ({'; '.join(there)}): a difference may be the machines' and "
                "not the change's"
            )
    troubled = sum(map(disturbed, [*a, *b]))
    if troubled:
        found.append(
            f"in {counted(troubled, 'run')} other processes were busy on the same cores: "
            "repeat when the machine is quiet"
        )
    if any("and changes" in change.a + change.b for change in environment):
        found.append("code with changes that no commit holds: the commit does not tell them apart")
    return found
