"""Strong and weak scaling of configurations: lines, laws, cautions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import isinf
from typing import Any, Final, Literal

from hpcncf.table import Table
from hpcncf.text import pluralize
from hpcncf_analysis.configurations import (
    Configuration,
    format_threads,
    group_by_series,
    label_settings,
    varying_settings,
)
from hpcncf_analysis.formatting import (
    format_interval,
    format_number,
    format_percent,
    format_score,
)
from hpcncf_analysis.quality import is_worse
from hpcncf_analysis.usl import FEWEST_SIZES, Law, Refusal, fit_law

Interval = tuple[float, float] | None
Show = Callable[[float | None], str]
Grows = Literal["ranks", "cores per rank"]
Work = Literal["epoch", "step"]

MODELS: Final = {"cpu_model": "CPU models", "gpu_model": "GPU models"}
# A large grid has a line for every row and column of it: more laws than these nobody compares.
MAX_LAWS: Final = 12
# Work for each core is called equal within this share: batches and data sets are whole numbers.
TOLERANCE: Final = 0.05


def known_interval(low: float | None, high: float | None) -> Interval:
    """The interval (low, high); None unless both ends are known."""
    return None if low is None or high is None else (low, high)


def format_with_interval(value: float | None, interval: Interval, show: Show) -> str:
    """Format a value with its interval, if any, on a second line: `1.50×`, `[1.42×–1.58×]`."""
    return show(value) if interval is None else f"{show(value)}\n{format_interval(*interval, show)}"


def distinct(rows: Iterable[Mapping[str, Any]], column: str) -> list[str]:
    """Sorted distinct known values of a column."""
    return sorted({row[column] for row in rows if row.get(column)})


def comparison_cautions(one: Configuration, base: Configuration) -> list[str]:
    """Reasons not to compare a configuration with its base, as sentence parts; may be empty."""
    cautions = []
    for column, called in MODELS.items():
        ours, theirs = distinct(one.rows, column), distinct(base.rows, column)
        if ours and theirs and len({*ours, *theirs}) > 1:
            against = f"{' and '.join(ours)} against {' and '.join(theirs)}"
            cautions.append(f"different {called} ({against})")
    scores = one.median("hr10"), base.median("hr10")
    if (scores[0] is None) != (scores[1] is None):
        cautions.append("the quality of one of them was not evaluated")
    elif is_worse(one, base) or is_worse(base, one):
        against = " against ".join(map(format_score, scores))
        cautions.append(f"unequal quality (HR@10 {against})")
    return cautions


def comparison_doubts(shown: Sequence[Configuration]) -> list[str]:
    """Sentences of doubt about comparing the configurations, the gravest first; may be empty."""
    doubts = []
    unequal = [
        (one, members[0])
        for members in group_by_series(shown).values()
        for one in members[1:]
        if is_worse(one, members[0]) or is_worse(members[0], one)
    ]
    if unequal:
        one, base = unequal[0]
        doubts.append(
            f"{pluralize(len(unequal), 'speed-up')} compare models of unequal quality, as "
            f"{one.label} (HR@10 {format_score(one.median('hr10'))}) with {base.label} "
            f"({format_score(base.median('hr10'))}): as fast is not as good."
        )
    return doubts


@dataclass(frozen=True)
class SizeSeries:
    """Sizes of one series in ascending order: more ranks of equal cores, or more cores per rank."""

    series: str
    grows: Grows
    points: tuple[Configuration, ...]
    left_out: tuple[Configuration, ...]
    """Of a size that another of the line already has: on more nodes, with other threads."""

    @property
    def base(self) -> Configuration:
        return self.points[0]

    @property
    def name(self) -> str:
        """Title of the line, such as `1 to 8 ranks × 2 cores · vectorized`."""
        sizes = f"{self.sizes[0]:g} to {self.sizes[-1]:g}"
        if self.grows == "ranks":
            shape = f"{sizes} ranks × {pluralize(self.base.cores / self.base.ranks, 'core')}"
        else:
            shape = f"{sizes} cores"
            shape = shape if self.base.ranks == 1 else f"{self.base.ranks} ranks × {shape}"
        return " · ".join(part for part in (shape, self.series) if part)

    @property
    def unit(self) -> str:
        return "ranks" if self.grows == "ranks" else "cores"

    @property
    def sizes(self) -> list[float]:
        return [_size(one, self.grows) for one in self.points]

    def speeds(self) -> list[list[float]]:
        """Speeds of the repeats at each size, [size][repeat], in the order of `sizes`."""
        return [one.speeds for one in self.points]

    def fit(self) -> Law | Refusal:
        """Fit the scaling law to the line's speeds, or return why it cannot be fitted."""
        return fit_law(self.sizes, self.speeds())


def _size(one: Configuration, grows: Grows) -> float:
    return float(one.ranks) if grows == "ranks" else one.cores / one.ranks


def scaling_lines(configurations: Sequence[Configuration]) -> list[SizeSeries]:
    """Lines of at least two sizes within each series, the longest of a series first."""
    found = []
    for series, members in group_by_series(configurations).items():
        lines = [*_lines(series, members, "ranks"), *_lines(series, members, "cores per rank")]
        found += sorted(lines, key=lambda line: -len(line.points))
    return found


def _lines(series: str, members: Sequence[Configuration], grows: Grows) -> list[SizeSeries]:
    """Lines along which one series grows in ranks or in cores per rank, from two sizes on.

    Of several configurations of one size, a line takes the one on the fewest nodes, with one
    thread for each core.
    """
    fixed: Grows = "cores per rank" if grows == "ranks" else "ranks"
    kept: dict[float, list[Configuration]] = {}
    for one in members:
        kept.setdefault(_size(one, fixed), []).append(one)
    lines = []
    for ones in kept.values():
        plainest: dict[float, Configuration] = {}
        for one in sorted(ones, key=_plainness):
            plainest.setdefault(_size(one, grows), one)
        points = tuple(one for _, one in sorted(plainest.items()))
        left_out = tuple(one for one in ones if one not in points)
        lines.append(SizeSeries(series, grows, points, left_out))
    return [line for line in lines if len(line.points) > 1]


def _plainness(one: Configuration) -> tuple[int, bool, str]:
    row = one.rows[0]
    return row["nodes"], bool(format_threads(row)), one.label


def lines_to_fit(found: Sequence[SizeSeries]) -> list[SizeSeries]:
    """Lines with enough sizes to fit a law; at most the `MAX_LAWS` longest."""
    several = [line for line in found if len(line.points) >= FEWEST_SIZES]
    return sorted(several, key=lambda line: -len(line.points))[:MAX_LAWS]


def law_table(shown: Sequence[Configuration]) -> Table | None:
    """Table of the scaling law fitted to each line; None if no line could be fitted."""
    rows = []
    for line in lines_to_fit(scaling_lines(shown)):
        usl = line.fit()
        if isinstance(usl, Refusal):
            continue
        cautions = [text for one in line.points for text in comparison_cautions(one, line.base)]
        rows.append(
            [
                line.name,
                format_with_interval(usl.sigma, usl.sigma_interval(), format_percent),
                format_with_interval(usl.kappa, usl.kappa_interval(), format_number),
                format_knee(usl),
                format_percent(usl.misfit),
                f"{usl.largest:g} {line.unit}",
                "; ".join(dict.fromkeys(cautions)),
            ]
        )
    columns = ["along", "serial share σ", "crosstalk κ", "fastest size N*"]
    columns += ["misfit", "used up to", "caution"]
    return Table(columns, rows, frozenset({"caution"})) if rows else None


def format_knee(law: Law) -> str:
    """Format the fastest size with its interval, as `12.4 [9.1–17]`, or `none up to 64`."""
    found = law.knee
    if found is None:
        return f"none up to {law.largest:g}"
    return format_with_interval(
        found.size,
        known_interval(found.low, found.high),
        lambda end: f"beyond {law.largest:g}" if end == float("inf") else format_number(end),
    )


def describe_peaks(shown: Sequence[Configuration]) -> list[str]:
    """Sentence for each line whose speed peaks, or may peak, within the law's range."""
    sentences = []
    for line in lines_to_fit(scaling_lines(shown)):
        law = line.fit()
        if isinstance(law, Refusal) or law.knee is None:
            continue
        where = f"{' '.join(format_knee(law).split())} {line.unit} by the USL"
        if law.knee.high is not None and isinf(law.knee.high):
            sentences.append(
                f"{line.name}: open whether speed peaks: at {where}, and its repeats allow that it "
                f"grows as far as the law is used, {law.largest:g}."
            )
            continue
        where += f", beyond the {law.sizes[-1]:g} measured" * (law.knee.size > law.sizes[-1])
        where += ", without an interval (each size ran once)" * (law.knee.high is None)
        sentences.append(f"{line.name}: fastest at {where}; more makes it slower.")
    return sentences


def law_note(shown: Sequence[Configuration]) -> str | None:
    """Sentences on why lines have no law and which sizes a law omits; None if all is fitted."""
    found = scaling_lines(shown)
    fitted = lines_to_fit(found)
    if found and not fitted:
        return (
            f"No law is fitted: one needs {FEWEST_SIZES} sizes or more along one line (more ranks, "
            f"or more cores for each), and {max(len(line.points) for line in found)} were measured "
            "at most."
        )
    fits = [(line, line.fit()) for line in fitted]
    parts = [f"No law of {line.name}: {f.reason}." for line, f in fits if isinstance(f, Refusal)]
    aside = {one.label for line in fitted for one in line.left_out}
    if aside:
        parts.append(f"A law takes one of each size, and not: {'; '.join(sorted(aside))}.")
    if len(found) > len(fitted):
        more = pluralize(len(found) - len(fitted), "further line")
        parts.append(f"No law is fitted to {more}.")
    return " ".join(parts) or None


# Weak scaling: the work is an epoch if the data grows with the cores, a step if the batch does. An
# epoch over the same data is strong scaling, whatever its batches.


@dataclass(frozen=True)
class WeakComparison:
    """One configuration against the fewest cores of its weak series."""

    base: Configuration
    one: Configuration
    work: Work

    @property
    def work_ratio(self) -> float:
        """Work per epoch or step in instances, divided by that of the base."""
        return work_instances(self.one, self.work) / work_instances(self.base, self.work)

    @property
    def speedup(self) -> float:
        """Scaled speed-up (Gustafson 1988): the base's time for the same work over this time."""
        return (self.one.speed or 0.0) / (self.base.speed or 1.0)

    @property
    def time_ratio(self) -> float:
        """Time per epoch or step divided by the base's; 1 is ideal weak scaling."""
        return self.work_ratio / self.speedup

    @property
    def efficiency(self) -> float:
        """Weak-scaling efficiency: scaled speed-up over the ratio of the cores to the base's."""
        return self.speedup / (self.one.cores / self.base.cores)


def weak_scaling(configurations: Sequence[Configuration]) -> list[WeakComparison]:
    """Compare configurations whose work grows with the cores with the smallest such one."""
    varying = varying_settings([one.rows[0] for one in configurations]) if configurations else []
    found: list[WeakComparison] = []
    kinds: tuple[Work, ...] = ("epoch", "step")
    for work in kinds:
        grows = {"batch", *(["data_title", "data_key"] if work == "epoch" else [])}
        fixed = [name for name in varying if name not in grows]
        groups: dict[tuple[str, ...], list[Configuration]] = {}
        for one in configurations:
            if work_instances(one, work) and one.speed and not one.by_time:
                data = "" if work == "epoch" else str(one.rows[0].get("data_key"))
                words = label_settings(one.rows[0], fixed).values()
                groups.setdefault((*words, data), []).append(one)
        for members in groups.values():
            found += _weak_series(members, work)
    return found


def work_instances(one: Configuration, work: Work) -> float:
    """Instances per epoch, or positives per step, of a configuration; 0 if unknown."""
    if work == "epoch":
        return one.median("instances_per_epoch") or 0.0
    return float(one.rows[0].get("batch") or 0)


def _weak_series(members: Sequence[Configuration], work: Work) -> list[WeakComparison]:
    found: list[WeakComparison] = []
    placed: set[str] = set()
    ordered = sorted(members, key=lambda one: (one.cores, one.ranks, one.label))
    per_core = {one.key: work_instances(one, work) / one.cores for one in ordered}
    for base in ordered:
        more = [
            one
            for one in ordered
            if one.key not in placed
            and one.cores > base.cores
            and abs(per_core[one.key] / per_core[base.key] - 1) <= TOLERANCE
        ]
        if base.key not in placed and more:
            placed |= {base.key, *(one.key for one in more)}
            found += [WeakComparison(base, one, work) for one in more]
    return found
