"""Compare two runs or studies: settings, speed, quality, significance."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import ValidationError

from hpcncf.collect.collect import Datasets, collect, run_row
from hpcncf.collect.resource_columns import METRIC, PARAMETER
from hpcncf.collect.training_columns import PHASES_TRAINED
from hpcncf.errors import UsageError
from hpcncf.job.plan import SEED, Run
from hpcncf.job.spec import Model, Resources, Training
from hpcncf.paths import AttemptPaths, ResultPaths
from hpcncf.records.host import PACKAGES
from hpcncf.records.schema import NodeRecord, RankRecord, RecordError, read_record
from hpcncf.state.decide import has_all_ranks
from hpcncf.state.status import RunState
from hpcncf_analysis.advice.next_job import read_request
from hpcncf_analysis.alerts import is_disturbed
from hpcncf_analysis.configurations import (
    Configuration,
    command_name,
    completed_runs,
    group_configurations,
    inert_settings,
    numeric_metrics,
    pluralize,
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
from hpcncf_analysis.prices import NO_PRICES, Prices, is_faster_worth_it, priced_rows
from hpcncf_analysis.quality import is_worse, quality_gap
from hpcncf_analysis.scaling import MODELS, distinct
from hpcncf_analysis.significance import ALPHA, Ratio, compare_all, compare_repeats


@dataclass(frozen=True)
class Moved:
    """The phase whose time for an instance changed most in the direction of the whole."""

    phase: str
    a_us: float
    """Microseconds of a step's time for each instance of all ranks: share / instances_per_s."""
    b_us: float


def moved(a: Configuration, b: Configuration) -> Moved | None:
    """None where the records do not show phases, or the speeds are equal."""
    ours, theirs = _per_instance(a), _per_instance(b)
    if not ours or not theirs:
        return None
    change = {
        phase: theirs.get(phase, 0.0) - ours.get(phase, 0.0) for phase in ours.keys() | theirs
    }
    whole = sum(change.values())
    most = max(sorted(change), key=lambda phase: change[phase] * whole)
    if change[most] * whole <= 0:
        return None
    return Moved(most, ours.get(most, 0.0), theirs.get(most, 0.0))


def _per_instance(one: Configuration) -> dict[str, float]:
    """Phase -> microseconds, of those that the program has; empty where none is known."""
    speed = one.median("instances_per_s")
    shares = {phase: one.median(f"{phase}_share") for phase in PHASES_TRAINED}
    if not speed:
        return {}
    return {phase: 1e6 * share / speed for phase, share in shares.items() if share is not None}


Row = Mapping[str, Any]
EARLY: Final = ("cancelled", "stopped", "timeout")


@dataclass(frozen=True)
class Side:
    name: str
    rows: Sequence[Row]
    """Completed runs, as in the table of runs."""
    environments: Sequence[Mapping[str, Any]]
    """What the first rank of each says of software and machine."""
    left_out: int
    """Runs that are not complete, or retired."""
    prices: Prices = NO_PRICES
    """Of the site on which the study ran."""


def side_from_results(
    name: str, paths: ResultPaths, run_id: str | None = None, repeats: bool = False
) -> Side:
    """All complete runs of a folder; or the one asked for, with `repeats` those of its
    configuration. UsageError where there is none."""
    found = _select_runs(collect(paths).runs, run_id, repeats)
    counting = completed_runs(found) if run_id is None else found  # one asked for may be retired
    complete = [row for row in counting if row["state"] == "completed" and row["elapsed_s"]]
    if run_id is not None:  # of one that was ended early, the speed of its steps
        ended = [row for row in found if row["state"] in EARLY and row.get("steps_per_s")]
        complete += [{**row, "elapsed_s": None} for row in ended]
    if not complete:
        states = ", ".join(sorted({row["state"] for row in found})) or "no runs"
        raise UsageError(f"{name}: no complete run to compare ({states})")
    environments = [_environment(paths, row) for row in complete]
    site = read_request(paths).site
    return Side(
        name,
        complete,
        [each for each in environments if each],
        len(found) - len(complete),
        Prices(site.prices, site.currency),
    )


def _select_runs(runs: Sequence[Row], run_id: str | None, repeats: bool) -> Sequence[Row]:
    if run_id is None:
        return runs
    one = [row for row in runs if row["run_id"] == run_id]
    configurations = {row["config"] for row in one}
    return [row for row in runs if row["config"] in configurations] if repeats else one


def _environment(paths: ResultPaths, row: Row) -> Mapping[str, Any]:
    with suppress(RecordError):  # `collect` named it
        attempt = paths.run(row["run_id"]).attempt(row["attempt"])
        return read_record(attempt.rank(0), RankRecord).environment
    return {}


def side_from_record(name: str, path: Path) -> Side:
    """The run whose record this is, with its other ranks' from the same folder.

    Raises RecordError where it is none, UsageError where the run has no figures.
    """
    first = read_record(path, RankRecord)
    run = _run(path, first)
    siblings = AttemptPaths(path.parent)
    others = [_same_run(each, first) for each in siblings.rank_records() if each.name != path.name]
    ranks = sorted([first, *(o for o in others if o)], key=lambda record: record.rank)
    if not has_all_ranks(ranks):
        raise UsageError(
            f"{name}: rank {first.rank} of {first.world_size}; the other ranks' records do not lie "
            "beside it, and a run's speed is all its ranks'"
        )
    nodes = [node for each in siblings.node_records() if (node := _node(each, first))]
    state = RunState(run, "completed", "", first.attempt, ranks, None, [])
    row = run_row(state, ranks, nodes, Datasets().of(run))
    if not row["elapsed_s"]:
        raise UsageError(f"{name}: it took no time that could be compared")
    return Side(name, [row], [first.environment], 0)


def _run(path: Path, record: RankRecord) -> Run:
    try:
        return Run.model_validate(record.run)
    except ValidationError as error:
        problem = error.errors()[0]
        where = ": ".join(str(part) for part in problem["loc"])
        raise RecordError(f"{path}: run: {where}: {problem['msg']}") from None


def _same_run(path: Path, first: RankRecord) -> RankRecord | None:
    with suppress(RecordError):
        record = read_record(path, RankRecord)
        if (record.run_id, record.attempt) == (first.run_id, first.attempt):
            return record
    return None


def _node(path: Path, first: RankRecord) -> NodeRecord | None:
    with suppress(RecordError):
        record = read_record(path, NodeRecord)
        if record.run_id == first.run_id:
            return record
    return None


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
# Of the recorded variables those of a run's place, not its speed.
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
    settings = {name: row.get(name) for name in names if name not in _NOT_SPEED}
    settings["remedies"] = row.get("remedies")
    if row["by_hand"]:
        settings |= {"command": command_name(row), "cores": row["cores_allocated"]}
    elif not any(name.startswith(PARAMETER) for name in row):  # else it names them once more
        settings["command"] = row.get("command")
    return {name: _text(value) for name, value in settings.items() if value is not None}


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return "-".join(map(str, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def changed_settings(a: Sequence[Row_changes], b: Sequence[Row_changes]) -> list[Change]:
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


def _values(rows: Iterable[Mapping[str, str]]) -> dict[str, set[str]]:
    """Name -> its values; NONE where one of them lacks it."""
    all_of_them = list(rows)
    names = dict.fromkeys(name for each in all_of_them for name in each)
    return {name: {each.get(name, NONE_CHANGES) for each in all_of_them} for name in names}


def changed_environment(
    a: Sequence[Mapping[str, Any]], b: Sequence[Mapping[str, Any]]
) -> list[Change]:
    """Software and machine, where the sides' values are not the same; nothing where one is mute."""
    if not a or not b:
        return []
    return [
        Change(name, ", ".join(ours), ", ".join(theirs))
        for name, ours, theirs in _apart(map(_described, a), map(_described, b))
    ]


def _described(environment: Mapping[str, Any]) -> dict[str, str]:
    values = {name: environment.get(name) for name in _MACHINE}
    for commit, dirty in (("commit", "dirty"), ("folder_commit", "folder_dirty")):
        if values[commit]:
            changes = " and changes" if environment.get(dirty) else ""
            values[commit] = str(values[commit])[:10] + changes
    variables = environment.get("variables") or {}
    values |= {name: text for name, text in variables.items() if not name.startswith(_PLACE)}
    return {name: NONE_CHANGES if value is None else _text(value) for name, value in values.items()}


def changed_nodes(a: Sequence[Row_changes], b: Sequence[Row_changes]) -> list[Change]:
    ours, theirs = (sorted({str(row["node"]) for row in rows if row["node"]}) for rows in (a, b))
    return [] if ours == theirs else [Change("nodes", ", ".join(ours), ", ".join(theirs))]


def cautions(
    a: Sequence[Row_changes], b: Sequence[Row_changes], environment: Sequence[Change]
) -> list[str]:
    """What makes the comparison of their speeds worth less, the gravest first."""
    found = []
    for column, called in MODELS.items():
        there = distinct([*a, *b], column)
        if len(there) > 1:
            found.append(
                f"different {called} ({'; '.join(there)}): a difference may be the machines' and "
                "not the change's"
            )
    troubled = sum(map(is_disturbed, [*a, *b]))
    if troubled:
        found.append(
            f"in {pluralize(troubled, 'run')} other processes were busy on the same cores: "
            "repeat when the machine is quiet"
        )
    if any("and changes" in change.a + change.b for change in environment):
        found.append("code with changes that no commit holds: the commit does not identify them")
    return found


Quality = Literal["worse", "better", "alike", "not compared"]

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


@dataclass(frozen=True)
class Pair:
    """One configuration of both sides."""

    a: Configuration
    b: Configuration
    ratio: Ratio
    quality: Quality
    moved: Moved | None
    """What made the speed another."""

    @property
    def label(self) -> str:
        """A's; the shapes where they differ. What else changed stands above all pairs."""
        same = self.a.shape == self.b.shape
        return self.a.label if same else f"{self.a.label} → {self.b.shape}"

    @property
    def metrics(self) -> list[tuple[str, float, float]]:
        """What commands reported under names of their own, on both sides: medians."""
        found = []
        for name in numeric_metrics([*self.a.rows, *self.b.rows]):
            a, b = self.a.median(name), self.b.median(name)
            if a is not None and b is not None:
                found.append((name.removeprefix(METRIC), a, b))
        return found

    def plain(self) -> dict[str, Any]:
        return {
            "label": self.label,
            "speed": asdict(self.ratio),
            "quality": self.quality,
            "moved": asdict(self.moved) if self.moved else None,
            "metrics": {name: {"a": a, "b": b} for name, a, b in self.metrics},
            "a": _plain(self.a),
            "b": _plain(self.b),
        }


def _plain(one: Configuration) -> dict[str, Any]:
    ids = {"runs": [row["run_id"] for row in one.rows]}
    return ids | {name: one.median(name) for name in FIGURES}


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
        """What a check has to stop for: slower by more than the share, or worse; both real."""
        slower = [
            f"{label} is slower: {ratio.value:.3f}x"
            for label, ratio in self._ratios()
            if ratio.verdict == "slower" and ratio.slower_by(threshold)
        ]
        worse = [f"{pair.label}: HR@10 is worse" for pair in self.pairs if pair.quality == "worse"]
        return slower + worse

    def open_questions(self, threshold: float) -> list[str]:
        """What looks too slow, and the repeats are too few to be sure."""
        return [
            label
            for label, ratio in self._ratios()
            if ratio.verdict == "too few repeats" and ratio.slower_by(threshold)
        ]

    def _ratios(self) -> list[tuple[str, Ratio]]:
        every = [("all together", self.overall)] if self.overall else []
        return [*((pair.label, pair.ratio) for pair in self.pairs), *every]

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
    """Configurations are matched by all settings but those that differ between the sides."""
    changed = changed_settings(a.rows, b.rows)
    environment = changed_environment(a.environments, b.environments) + changed_nodes(
        a.rows, b.rows
    )
    apart = {change.name for change in changed}
    ours, theirs = _by_settings(a, apart), _by_settings(b, apart)
    every = [*a.rows, *b.rows]
    speed_of = next((n for n in SPEEDS if all(row.get(n) for row in every)), "runs_per_hour")
    if speed_of == "runs_per_hour" and not all(row["elapsed_s"] for row in every):
        raise UsageError("a run that was ended early has no steps to compare in both")
    pairs = [_pair(ours[key], theirs[key], speed_of) for key in ours if key in theirs]
    speeds = [(_speeds(pair.a, speed_of), _speeds(pair.b, speed_of)) for pair in pairs]
    overall = compare_all(speeds) if len(pairs) > 1 else None
    inert = {name: text for row in [*a.rows, *b.rows] for name, text in inert_settings(row).items()}
    if changed and not environment and apart <= set(inert):
        pairs = [replace(p, ratio=replace(p.ratio, verdict="no effect")) for p in pairs]
        overall = overall and replace(overall, verdict="no effect")
    return Comparison(
        a=a,
        b=b,
        speed_of=speed_of,
        settings=changed,
        environment=environment,
        cautions=[
            *(inert[change.name] for change in changed if change.name in inert),
            *cautions(a.rows, b.rows, environment),
        ],
        pairs=pairs,
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


SPEEDS: Final = {"instances_per_s": "/s", "steps_per_s": " steps/s"}


def _pair(a: Configuration, b: Configuration, speed_of: str) -> Pair:
    ratio = compare_repeats(_speeds(a, speed_of), _speeds(b, speed_of))
    return Pair(a, b, ratio, _quality(a, b), moved(a, b))


def _speeds(one: Configuration, speed_of: str) -> list[float]:
    """Of every repeat; runs per hour if some run counted neither instances nor steps."""
    if speed_of in SPEEDS:
        return [row[speed_of] for row in one.rows]
    return [3600 / row["elapsed_s"] for row in one.rows]


def _quality(a: Configuration, b: Configuration) -> Quality:
    if quality_gap(a, b) is None:  # not evaluated, or not alike
        return "not compared"
    if is_worse(b, a):
        return "worse"
    return "better" if is_worse(a, b) else "alike"


# With so many comparisons some differ by chance alone.
MANY: Final = 5
HEADS: Final = ("configuration", "A", "B", "B / A", "", "HR@10")


def above(found: Comparison) -> list[str]:
    """What is compared, and what changed but speed."""
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


def rows(found: Comparison) -> list[list[str]]:
    """Under HEADS; the last is all of them together, where there are several."""
    table = [_row(pair, found.speed_of) for pair in found.pairs]
    if found.overall:
        ratio = found.overall
        table.append(["all together", "", "", _ratio(ratio), ratio.verdict, ""])
    return table


def _row(pair: Pair, speed_of: str) -> list[str]:
    speeds = [_speed(one, speed_of) for one in (pair.a, pair.b)]
    return [pair.label, *speeds, _ratio(pair.ratio), pair.ratio.verdict, _quality_shown(pair)]


def _speed(one: Configuration, speed_of: str) -> str:
    if speed_of not in SPEEDS:
        return format_duration(one.median("elapsed_s"))
    return f"{format_number(one.median(speed_of))}{SPEEDS[speed_of]}"


def _ratio(ratio: Ratio) -> str:
    ends = format_interval(ratio.low, ratio.high, format_hundredths)
    return f"{format_ratio(ratio.value)} {ends}".rstrip()


def _quality_shown(pair: Pair) -> str:
    scores = [format_score(one.median("hr10")) for one in (pair.a, pair.b)]
    if scores == [NONE, NONE]:
        return ""
    return f"{scores[0]} → {scores[1]}" + (f", {pair.quality}" if pair.quality != "alike" else "")


def below(found: Comparison) -> list[str]:
    """Where the time went, what was not compared, and how far to trust what was."""
    return [
        *_moved(found),
        *_metrics(found),
        *_priced(found),
        *_only(found),
        *found.cautions,
        *_repeats(found),
    ]


def _moved(found: Comparison) -> Iterator[str]:
    for pair in found.pairs:
        if pair.moved and pair.ratio.verdict in ("faster", "slower", "too few repeats"):
            moved = pair.moved
            word = "slower" if pair.ratio.value < 1 else "faster"
            yield (
                f"{pair.label}: {word} most of all in {moved.phase}, "
                f"{format_number(moved.a_us)} → {format_number(moved.b_us)} µs an instance"
            )


def _metrics(found: Comparison) -> Iterator[str]:
    """Metrics that commands reported: printed, not judged, as more may be better or worse."""
    for pair in found.pairs:
        if pair.metrics:
            texts = (
                f"{name} {format_metric(a)} → {format_metric(b)}" for name, a, b in pair.metrics
            )
            yield f"{pair.label}: reported {', '.join(texts)}"


def _priced(found: Comparison) -> Iterator[str]:
    """Whether the faster hardware is worth its price, by the pairs of equally good models."""
    prices = found.b.prices if found.b.prices.of_an_hour else found.a.prices
    equal = [pair for pair in found.pairs if pair.quality in ("alike", "not compared")]
    rows = [row for p in equal for one in (p.a, p.b) for row in priced_rows(one, prices)]
    yield from is_faster_worth_it(rows, prices)


def _only(found: Comparison) -> Iterator[str]:
    for letter, labels in (("A", found.only_a), ("B", found.only_b)):
        if labels:
            yield f"only in {letter}: {'; '.join(labels)}"


def _repeats(found: Comparison) -> Iterator[str]:
    few = sum(pair.ratio.verdict == "too few repeats" for pair in found.pairs)
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
    """How it stands to the threshold, a line for each failure and each open question."""
    failed = [f"FAILED: {text}" for text in found.failures(threshold)]
    asked = [
        f"OPEN: {label} looks slower by more than {threshold:.0%}, and the repeats are too few to "
        "be sure"
        for label in found.open_questions(threshold)
    ]
    held = f"held: nothing is shown to be slower by more than {threshold:.0%}, or worse"
    return [*failed, *asked] or [held]


def markdown(found: Comparison, threshold: float | None) -> str:
    """For a pull request: one table, what changed, what to mind."""
    lines = [f"- {_escaped(line)}" for line in above(found)]
    table = [_cells(HEADS), _cells(["---", "---:", "---:", "---:", "---", "---"])]
    table += [_cells(map(_escaped, row)) for row in rows(found)]
    notes = [f"- {_escaped(line)}" for line in below(found)]
    stands = (
        [] if threshold is None else [f"**{_escaped(v)}**  " for v in verdicts(found, threshold)]
    )
    parts: Sequence[Sequence[str]] = (stands, lines, table, notes)
    return "\n\n".join("\n".join(part) for part in parts if part) + "\n"


def _cells(texts: Sequence[str] | Iterator[str]) -> str:
    return f"| {' | '.join(texts)} |"


def _escaped(text: str) -> str:
    for mark in ("\\", "|", "*", "_", "`", "<", "["):
        text = text.replace(mark, f"\\{mark}")
    return " ".join(text.split("\n"))
