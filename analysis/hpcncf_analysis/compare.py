"""Compare two runs or studies: settings, speed, quality, significance."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from hpcncf.collect.collect import collect
from hpcncf.collect.resource_columns import METRIC, PARAMETER
from hpcncf.collect.training_columns import PHASES_TRAINED
from hpcncf.errors import UsageError
from hpcncf.job.identity import SEED
from hpcncf.job.spec import Model, Resources, Training
from hpcncf.paths import ResultPaths
from hpcncf.records.host import PACKAGES
from hpcncf.records.schema import RankRecord, RecordError, read_record
from hpcncf.table import Table, escape_markdown
from hpcncf.text import pluralize
from hpcncf_analysis.configurations import (
    Configuration,
    command_name,
    completed_runs,
    group_configurations,
    inert_settings,
    is_disturbed,
    numeric_metrics,
)
from hpcncf_analysis.formatting import (
    NONE,
    format_duration,
    format_hundredths,
    format_interval,
    format_metric,
    format_number,
    format_ratio,
    format_score,
)
from hpcncf_analysis.quality import QualityVerdict, compare_quality
from hpcncf_analysis.scaling import MODELS, distinct
from hpcncf_analysis.significance import ALPHA, Ratio, Verdict, compare_pairs, compare_repeats

Row = Mapping[str, Any]

EARLY: Final = ("cancelled", "stopped", "timeout")
# The value of a setting that a run does not have.
ABSENT: Final = "none"
# They decide neither what a run computes nor, but for the batch, how fast: `batch` says it alike.
NOT_SPEED: Final = {
    "mem_gb",
    "timeout_min",
    "runs_per_task",
    "requeues",
    "checkpoint_every_min",
    "global_batch_size",
    "batch_size_per_rank",
}
MACHINE: Final = (*PACKAGES, "python", "platform", "cpu_model", "commit", "folder_commit")
# Of the recorded variables those of a run's place, not its speed.
PLACE: Final = ("RANK", "LOCAL_", "WORLD_SIZE", "MASTER_", "HPCNCF_", "SLURM_", "TORCH")
# Shown for both sides beside their speed, medians over the repeats.
FIGURES: Final = (
    "instances_per_s",
    "elapsed_s",
    "seconds_per_epoch",
    "core_s_per_epoch",
    "cpu_efficiency",
    "memory_peak_mib",
    "hr10",
    "ndcg10",
    "loss",
)
# Else runs per hour.
SPEEDS: Final = {"instances_per_s": "/s", "steps_per_s": " steps/s"}
# With so many comparisons some differ by chance alone.
MANY: Final = 5


@dataclass(frozen=True)
class Side:
    name: str
    rows: Sequence[Row]
    """Completed runs, as in the table of runs."""
    environments: Sequence[Mapping[str, Any]]
    """What the first rank of each says of software and machine."""
    left_out: int
    """Runs that are not complete, or retired."""


def side_from_results(
    name: str, paths: ResultPaths, run_id: str | None = None, repeats: bool = False
) -> Side:
    """Return the complete runs of a results folder as one side of a comparison.

    With `run_id` only that run, retired or not; with `repeats`, too, all runs of its
    configuration. Raises UsageError if no run is complete.
    """
    found: Sequence[Row] = collect(paths).runs
    counting: Sequence[Row] = completed_runs(found)
    if run_id is not None:  # it may be retired
        one = [row for row in found if row["run_id"] == run_id]
        configurations = {row["config"] for row in one}
        found = [row for row in found if row["config"] in configurations] if repeats else one
        counting = found
    complete = [row for row in counting if row["state"] == "completed" and row["elapsed_s"]]
    if run_id is not None:  # of one that was ended early, the speed of its steps
        ended = [row for row in found if row["state"] in EARLY and row.get("steps_per_s")]
        complete += [{**row, "elapsed_s": None} for row in ended]
    if not complete:
        states = ", ".join(sorted({row["state"] for row in found})) or "no runs"
        raise UsageError(f"{name}: no complete run to compare ({states})")
    environments = []
    for row in complete:
        with suppress(RecordError):  # `collect` named it
            rank = paths.run(row["run_id"]).attempt(row["attempt"]).rank(0)
            environments.append(read_record(rank, RankRecord).environment)
    left_out = len(found) - len(complete)
    return Side(name, complete, [each for each in environments if each], left_out)


@dataclass(frozen=True)
class Change:
    name: str
    a: str
    b: str

    def __str__(self) -> str:
        return f"{self.name}: {self.a} → {self.b}"


def settings_of(row: Row) -> dict[str, str]:
    """Settings that decide a run's work and speed, name -> text; equal text, equal setting."""
    names = [*Resources.model_fields, *Training.model_fields, "batch", *Model.model_fields]
    names += ["data_key", *sorted(name for name in row if name.startswith(PARAMETER))]
    settings = {name: row.get(name) for name in names if name not in NOT_SPEED}
    settings["remedies"] = row.get("remedies")
    if typed := command_name(row):
        settings |= {"command": typed, "cores": row["cores_allocated"]}
    elif not any(name.startswith(PARAMETER) for name in row):  # else it names them once more
        settings["command"] = row.get("command")
    return {name: _text(value) for name, value in settings.items() if value is not None}


def describe_environment(environment: Mapping[str, Any]) -> dict[str, str]:
    values = {name: environment.get(name) for name in MACHINE}
    for commit, dirty in (("commit", "dirty"), ("folder_commit", "folder_dirty")):
        if values[commit]:
            changes = " and changes" if environment.get(dirty) else ""
            values[commit] = str(values[commit])[:10] + changes
    variables = environment.get("variables") or {}
    values |= {name: text for name, text in variables.items() if not name.startswith(PLACE)}
    return {name: ABSENT if value is None else _text(value) for name, value in values.items()}


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return "-".join(map(str, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def changed_settings(a: Sequence[Row], b: Sequence[Row]) -> list[Change]:
    """Settings that have one value in all runs of A and a different one in all runs of B."""
    return [
        Change(name, *ours, *theirs)
        for name, ours, theirs in _differences(map(settings_of, a), map(settings_of, b))
        if len(ours) == len(theirs) == 1
    ]


def changed_environment(a: Side, b: Side) -> list[Change]:
    """Software, machine properties and nodes that differ between the two sides.

    Software and machine are compared only if both sides recorded them.
    """
    changes = []
    if a.environments and b.environments:
        ours, theirs = (map(describe_environment, side.environments) for side in (a, b))
        changes = [
            Change(name, ", ".join(of_a), ", ".join(of_b))
            for name, of_a, of_b in _differences(ours, theirs)
        ]
    nodes = [sorted({str(row["node"]) for row in side.rows if row["node"]}) for side in (a, b)]
    if nodes[0] != nodes[1]:
        changes.append(Change("nodes", *map(", ".join, nodes)))
    return changes


def _differences(
    a: Iterable[Mapping[str, str]], b: Iterable[Mapping[str, str]]
) -> Iterator[tuple[str, list[str], list[str]]]:
    """Yield each name whose set of values differs, with the sorted values of both sides."""
    sides = list(a), list(b)
    for name in dict.fromkeys(name for side in sides for each in side for name in each):
        ours, theirs = (sorted({each.get(name, ABSENT) for each in side}) for side in sides)
        if ours != theirs:
            yield name, ours, theirs


def find_cautions(rows: Sequence[Row], environment: Sequence[Change]) -> list[str]:
    """Reasons to distrust a comparison of the runs' speeds, the most serious first."""
    found = []
    for column, called in MODELS.items():
        there = distinct(rows, column)
        if len(there) > 1:
            found.append(
                f"different {called} ({'; '.join(there)}): a difference may be the machines' and "
                "not the change's"
            )
    troubled = sum(map(is_disturbed, rows))
    if troubled:
        found.append(
            f"in {pluralize(troubled, 'run')} other processes were busy on the same cores: "
            "repeat when the machine is quiet"
        )
    if any("and changes" in change.a + change.b for change in environment):
        found.append("code with changes that no commit holds: the commit does not identify them")
    return found


@dataclass(frozen=True)
class Moved:
    """The phase whose time for an instance changed most in the direction of the whole."""

    phase: str
    a_us: float
    """Microseconds of a step's time for each instance of all ranks: share / instances_per_s."""
    b_us: float


def find_moved_phase(a: Configuration, b: Configuration) -> Moved | None:
    """Phase whose time per instance changed most in the direction of the total change.

    None if the records do not show phases, or if the total did not change.
    """
    sides = []
    for one in (a, b):
        speed = one.median("instances_per_s")
        shares = {phase: one.median(f"{phase}_share") for phase in PHASES_TRAINED}
        known = {phase: share for phase, share in shares.items() if share is not None}
        if not speed or not known:
            return None
        sides.append({phase: 1e6 * share / speed for phase, share in known.items()})
    ours, theirs = sides
    phases = sorted(ours.keys() | theirs)
    change = {phase: theirs.get(phase, 0.0) - ours.get(phase, 0.0) for phase in phases}
    whole = sum(change.values())
    most = max(phases, key=lambda phase: change[phase] * whole)
    if change[most] * whole <= 0:
        return None
    return Moved(most, ours.get(most, 0.0), theirs.get(most, 0.0))


@dataclass(frozen=True)
class Pair:
    """A configuration that both sides of a comparison ran."""

    a: Configuration
    b: Configuration
    ratio: Ratio
    quality: QualityVerdict
    moved: Moved | None
    """What made the speed another."""

    @property
    def label(self) -> str:
        """Label of A's configuration, followed by B's shape (cores, ranks) where that differs."""
        same = self.a.shape == self.b.shape
        return self.a.label if same else f"{self.a.label} → {self.b.shape}"

    @property
    def metrics(self) -> list[tuple[str, float, float]]:
        """(name, median of A, median of B) of each numeric metric that both commands reported."""
        found = []
        for name in numeric_metrics([*self.a.rows, *self.b.rows]):
            a, b = self.a.median(name), self.b.median(name)
            if a is not None and b is not None:
                found.append((name.removeprefix(METRIC), a, b))
        return found

    def plain(self) -> dict[str, Any]:
        sides = {
            letter: {"runs": [row["run_id"] for row in one.rows]}
            | {name: one.median(name) for name in FIGURES}
            for letter, one in (("a", self.a), ("b", self.b))
        }
        return {
            "label": self.label,
            "speed": asdict(self.ratio),
            "quality": self.quality,
            "moved": asdict(self.moved) if self.moved else None,
            "metrics": {name: {"a": a, "b": b} for name, a, b in self.metrics},
            **sides,
        }


@dataclass(frozen=True)
class Comparison:
    a: Side
    b: Side
    speed_of: str
    """One of SPEEDS, or runs_per_hour."""
    settings: Sequence[Change]
    environment: Sequence[Change]
    cautions: Sequence[str]
    pairs: Sequence[Pair]
    only_a: Sequence[str]
    """Labels of configurations that the other side does not have."""
    only_b: Sequence[str]
    overall: Ratio | None
    """Of two pairs or more."""

    def failures(self, threshold: float) -> list[str]:
        """Reasons to fail a check: pairs slower by more than `threshold`, or worse models.

        Only differences that the repeats prove count as slower.
        """
        slower = [
            f"{label} is slower: {ratio.value:.3f}x"
            for label, ratio in self._slower_by(threshold)
            if ratio.verdict is Verdict.SLOWER
        ]
        worse = [f"{pair.label}: HR@10 is worse" for pair in self.pairs if pair.quality == "worse"]
        return slower + worse

    def open_questions(self, threshold: float) -> list[str]:
        """Labels of pairs that look slower than `threshold` but have too few repeats to tell."""
        slower = self._slower_by(threshold)
        return [label for label, ratio in slower if ratio.verdict is Verdict.TOO_FEW]

    def _slower_by(self, threshold: float) -> list[tuple[str, Ratio]]:
        ratios = [(pair.label, pair.ratio) for pair in self.pairs]
        ratios += [("all together", self.overall)] if self.overall else []
        return [each for each in ratios if each[1].is_slower_by(threshold)]

    def plain(self) -> dict[str, Any]:
        return {
            "a": self.a.name,
            "b": self.b.name,
            "speed_of": self.speed_of,
            "settings": [asdict(change) for change in self.settings],
            "environment": [asdict(change) for change in self.environment],
            "cautions": list(self.cautions),
            "configurations": [pair.plain() for pair in self.pairs],
            "only_a": list(self.only_a),
            "only_b": list(self.only_b),
            "overall": asdict(self.overall) if self.overall else None,
        }


def compare(a: Side, b: Side) -> Comparison:
    """Compare two sides, pairing configurations whose settings agree.

    Settings that differ between the sides as a whole are ignored in the pairing. Raises
    UsageError if a run that was ended early leaves no common measure of speed.
    """
    changed, environment = changed_settings(a.rows, b.rows), changed_environment(a, b)
    apart = {change.name for change in changed}
    ours, theirs = _by_settings(a, apart), _by_settings(b, apart)
    every = [*a.rows, *b.rows]
    speed_of = next((n for n in SPEEDS if all(row.get(n) for row in every)), "runs_per_hour")
    if speed_of == "runs_per_hour" and not all(row["elapsed_s"] for row in every):
        raise UsageError("a run that was ended early has no steps to compare in both")
    both = [(ours[key], theirs[key]) for key in ours if key in theirs]
    speeds = [(_speeds(one, speed_of), _speeds(other, speed_of)) for one, other in both]
    ratios = [compare_repeats(*each) for each in speeds]
    overall = compare_pairs(speeds) if len(speeds) > 1 else None
    inert = {name: text for row in every for name, text in inert_settings(row).items()}
    if changed and not environment and apart <= set(inert):
        ratios = [replace(ratio, verdict=Verdict.NO_EFFECT) for ratio in ratios]
        overall = overall and replace(overall, verdict=Verdict.NO_EFFECT)
    return Comparison(
        a=a,
        b=b,
        speed_of=speed_of,
        settings=changed,
        environment=environment,
        cautions=[
            *(inert[change.name] for change in changed if change.name in inert),
            *find_cautions(every, environment),
        ],
        pairs=[
            Pair(one, other, ratio, compare_quality(one, other), find_moved_phase(one, other))
            for (one, other), ratio in zip(both, ratios, strict=True)
        ],
        only_a=[one.label for key, one in ours.items() if key not in theirs],
        only_b=[one.label for key, one in theirs.items() if key not in ours],
        overall=overall,
    )


def _by_settings(side: Side, apart: set[str]) -> dict[tuple[tuple[str, str], ...], Configuration]:
    ignored = {*apart, SEED, PARAMETER + SEED}
    found: dict[tuple[tuple[str, str], ...], Configuration] = {}
    for one in group_configurations(
        {**row, "retired": False, "state": "completed"} for row in side.rows
    ):
        settings = settings_of(one.rows[0]).items()
        key = tuple(sorted((name, text) for name, text in settings if name not in ignored))
        # Threads asked for by number may be those that `auto` gave another: the label shows it.
        found[key if key not in found else (*key, ("label", one.label))] = one
    return found


def _speeds(one: Configuration, speed_of: str) -> list[float]:
    """Speed of each repeat in the unit `speed_of`; otherwise in runs per hour."""
    if speed_of in SPEEDS:
        return [row[speed_of] for row in one.rows]
    return [3600 / row["elapsed_s"] for row in one.rows]


def above(found: Comparison) -> list[str]:
    """Lines above the table: the two sides, and the settings and environment that changed."""
    sides = [
        f"{letter}: {side.name}, {pluralize(len(side.rows), 'run')}"
        + (f" ({side.left_out} left out: not complete, or retired)" if side.left_out else "")
        for letter, side in (("A", found.a), ("B", found.b))
    ]
    changes = [
        *(f"setting {change}" for change in found.settings),
        *(f"environment {change}" for change in found.environment),
    ]
    return [*sides, *(changes or ["same settings, same software, same machine"])]


def pairs_table(found: Comparison) -> Table:
    """Table with a row for each pair of configurations and a last one for all together.

    The last row is there only if several pairs were compared.
    """
    table = []
    for pair in found.pairs:
        speeds = [_format_speed(one, found.speed_of) for one in (pair.a, pair.b)]
        scores = [format_score(one.median("hr10")) for one in (pair.a, pair.b)]
        quality = "" if scores == [NONE, NONE] else " → ".join(scores)
        quality += f", {pair.quality}" if quality and pair.quality != "alike" else ""
        ratio = pair.ratio
        table.append([pair.label, *speeds, _format_ratio(ratio), ratio.verdict, quality])
    if found.overall:
        ratio = found.overall
        table.append(["all together", "", "", _format_ratio(ratio), ratio.verdict, ""])
    columns = ["configuration", "A", "B", "B / A", "verdict", "HR@10"]
    return Table(columns, table, frozenset({"verdict", "HR@10"}), max_markdown_rows=len(table))


def _format_speed(one: Configuration, speed_of: str) -> str:
    if speed_of not in SPEEDS:
        return format_duration(one.median("elapsed_s"))
    return f"{format_number(one.median(speed_of))}{SPEEDS[speed_of]}"


def _format_ratio(ratio: Ratio) -> str:
    ends = format_interval(ratio.low, ratio.high, format_hundredths)
    return f"{format_ratio(ratio.value)} {ends}".rstrip()


def below(found: Comparison) -> list[str]:
    """Lines below the table: moved phases, metrics, unmatched configurations and cautions."""
    lines = []
    for pair in found.pairs:
        if pair.moved and pair.ratio.verdict in (Verdict.FASTER, Verdict.SLOWER, Verdict.TOO_FEW):
            word = "slower" if pair.ratio.value < 1 else "faster"
            times = f"{format_number(pair.moved.a_us)} → {format_number(pair.moved.b_us)}"
            lines.append(
                f"{pair.label}: {word} most of all in {pair.moved.phase}, {times} µs an instance"
            )
    for pair in found.pairs:
        # Printed, not judged: more may be better or worse.
        if pair.metrics:
            texts = (
                f"{name} {format_metric(a)} → {format_metric(b)}" for name, a, b in pair.metrics
            )
            lines.append(f"{pair.label}: reported {', '.join(texts)}")
    for letter, labels in (("A", found.only_a), ("B", found.only_b)):
        if labels:
            lines.append(f"only in {letter}: {'; '.join(labels)}")
    return [*lines, *found.cautions, *_repeat_notes(found)]


def _repeat_notes(found: Comparison) -> Iterator[str]:
    few = sum(pair.ratio.verdict is Verdict.TOO_FEW for pair in found.pairs)
    if few:
        yield (
            f"{pluralize(few, 'configuration')} with too few repeats to find a difference from "
            "scatter: it takes three on each side, or two against five (repeats: 3 in the job "
            "file; --repeats takes all those of a run that is named)"
        )
    if len(found.pairs) - few >= MANY:
        chances = ALPHA * (len(found.pairs) - few)
        yield (
            f"of {len(found.pairs) - few} comparisons {chances:.1f} would differ by chance "
            "alone; all together is the surer answer"
        )


def verdicts(found: Comparison, threshold: float) -> list[str]:
    """Lines with each failure and open question at this threshold, or that the threshold is met."""
    failed = [f"FAILED: {text}" for text in found.failures(threshold)]
    asked = [
        f"OPEN: {label} looks slower by more than {threshold:.0%}, and the repeats are too few to "
        "be sure"
        for label in found.open_questions(threshold)
    ]
    held = f"held: nothing is shown to be slower by more than {threshold:.0%}, or worse"
    return [*failed, *asked] or [held]


def markdown(found: Comparison, threshold: float | None) -> str:
    """Format a comparison as Markdown for a pull request: table, changes and cautions.

    With a threshold, its verdicts come first.
    """
    parts = [
        [f"- {escape_markdown(line)}" for line in above(found)],
        [pairs_table(found).markdown()],
        [f"- {escape_markdown(line)}" for line in below(found)],
    ]
    if threshold is not None:
        parts.insert(0, [f"**{escape_markdown(text)}**  " for text in verdicts(found, threshold)])
    return "\n\n".join("\n".join(part) for part in parts if part) + "\n"
