"""Strong and weak scaling of configurations: lines, laws, cautions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import isinf
from typing import Any, Final, Literal

from hpcncf.collect.training_columns import unsteady
from hpcncf_analysis import formatting
from hpcncf_analysis.configurations import (
    Configuration,
    Table,
    format_threads,
    group_by_series,
    label_settings,
    pluralize,
    varying_settings,
    with_scaling,
)
from hpcncf_analysis.formatting import (
    NONE,
    format_number,
    format_percent,
    format_ratio,
    format_score,
)
from hpcncf_analysis.quality import is_worse
from hpcncf_analysis.usl import FEWEST_SIZES, Knee, Law, Name, Refusal, fit_law

Interval = tuple[float, float] | None
Show = Callable[[float | None], str]


def known_interval(low: float | None, high: float | None) -> Interval:
    """None unless both are known."""
    return None if low is None or high is None else (low, high)


def format_with_interval(value: float | None, interval: Interval, show: Show) -> str:
    """`1.50×`, and below it `[1.42×–1.58×]` where there is an interval."""
    if interval is None:
        return show(value)
    return f"{show(value)}\n{formatting.format_interval(*interval, show)}"


MODELS: Final = {"cpu_model": "CPU models", "gpu_model": "GPU models"}


def comparison_cautions(one: Configuration, base: Configuration) -> list[str]:
    """Sentence parts; empty where nothing speaks against comparing the two."""
    cautions = (*(_models(one, base, column) for column in MODELS), _quality(one, base))
    return [text for text in cautions if text]


def _models(one: Configuration, base: Configuration, column: str) -> str:
    ours, theirs = distinct(one.rows, column), distinct(base.rows, column)
    if not ours or not theirs or len({*ours, *theirs}) == 1:
        return ""
    return f"different {MODELS[column]} ({' and '.join(ours)} against {' and '.join(theirs)})"


def distinct(rows: Iterable[Mapping[str, Any]], column: str) -> list[str]:
    """The known values that runs had, each once."""
    return sorted({row[column] for row in rows if row.get(column)})


def _quality(one: Configuration, base: Configuration) -> str:
    ours, theirs = one.median("hr10"), base.median("hr10")
    if (ours is None) != (theirs is None):
        return "the quality of one of them was not evaluated"
    if is_worse(one, base) or is_worse(base, one):
        return f"unequal quality (HR@10 {format_score(ours)} against {format_score(theirs)})"
    return ""


Grows = Literal["ranks", "cores per rank"]
# A large grid has a line for every row and column of it: more laws than these nobody compares.
MOST: Final = 12


@dataclass(frozen=True)
class Line:
    """Sizes of one series, ascending: more ranks of as many cores, or more cores for as many
    ranks."""

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
        """`1 to 8 ranks × 2 cores · vectorized`."""
        row, sizes = self.base.rows[0], f"{self.sizes[0]:g} to {self.sizes[-1]:g}"
        if self.grows == "ranks":
            shape = f"{sizes} ranks × {pluralize(cores_per_rank(self.base), 'core')}"
        else:
            ranks = int(row["world_size"])
            shape = f"{sizes} cores" if ranks == 1 else f"{ranks} ranks × {sizes} cores"
        return " · ".join(part for part in (shape, self.series) if part)

    @property
    def sizes(self) -> list[float]:
        return [line_size(one, self.grows) for one in self.points]

    def speeds(self) -> list[list[float]]:
        """Of each size its repeats' speeds."""
        return [repeat_speeds(one) for one in self.points]

    def fit(self, name: Name) -> Law | Refusal:
        return fit_law(self.sizes, self.speeds(), name)


def scaling_lines(configurations: Sequence[Configuration]) -> list[Line]:
    """Every line of two sizes or more, the longest of each series first."""
    found = []
    for series, members in group_by_series(configurations).items():
        kinds: tuple[Grows, ...] = ("ranks", "cores per rank")
        of_series = [line for grows in kinds for line in _lines(series, members, grows)]
        found += sorted(of_series, key=lambda line: -len(line.points))
    return found


def lines_to_fit(found: Sequence[Line]) -> list[Line]:
    """Those of enough sizes for a law; of very many the longest."""
    several = [line for line in found if len(line.points) >= FEWEST_SIZES]
    return sorted(several, key=lambda line: -len(line.points))[:MOST]


def _lines(series: str, members: Sequence[Configuration], grows: Grows) -> list[Line]:
    kept: dict[float, list[Configuration]] = {}
    for one in members:
        kept.setdefault(cores_per_rank(one) if grows == "ranks" else one.ranks, []).append(one)
    made = [_line(series, grows, ones) for ones in kept.values()]
    return [line for line in made if len(line.points) > 1]


def _line(series: str, grows: Grows, ones: Sequence[Configuration]) -> Line:
    """Of several of one size the plainest: the fewest nodes, a thread for each core."""
    plainest: dict[float, Configuration] = {}
    for one in sorted(ones, key=_plainness):
        plainest.setdefault(line_size(one, grows), one)
    points = tuple(one for _, one in sorted(plainest.items()))
    return Line(series, grows, points, tuple(one for one in ones if one not in points))


def _plainness(one: Configuration) -> tuple[int, bool, str]:
    row = one.rows[0]
    return row["nodes"], bool(format_threads(row)), one.label


def cores_per_rank(one: Configuration) -> float:
    return one.cores / one.ranks


def line_size(one: Configuration, grows: Grows) -> float:
    return float(one.ranks) if grows == "ranks" else cores_per_rank(one)


def repeat_speeds(one: Configuration) -> list[float]:
    """Its repeats': instances per second; of a command that reports none, runs per hour."""
    if one.by_time:
        return [3600 / row["elapsed_s"] for row in one.rows if row["elapsed_s"]]
    return [row["instances_per_s"] for row in one.rows if row["instances_per_s"]]


# Weak scaling: the work is an epoch if the data grows with the cores, a step if the batch does. An
# epoch over the same data is strong scaling, whatever its batches.

# Work for each core is called equal within this share: batches and data sets are whole numbers.
TOLERANCE: Final = 0.05
Work = Literal["epoch", "step"]


@dataclass(frozen=True)
class WeakComparison:
    """One configuration against the fewest cores of its weak series."""

    base: Configuration
    one: Configuration
    work: Work
    work_ratio: float
    """Instances of an epoch, or of a step, over the base's."""
    time_ratio: float
    """Seconds for that work over the base's: 1 is ideal."""

    @property
    def speedup(self) -> float:
        """Scaled speed-up (Gustafson 1988): the base's time for this work over the time it took."""
        return self.work_ratio / self.time_ratio

    @property
    def efficiency(self) -> float:
        """T(base) / T(this), corrected by how far the work for each core is from equal."""
        return self.speedup / (self.one.cores / self.base.cores)


def weak_scaling(configurations: Sequence[Configuration]) -> list[WeakComparison]:
    """Every configuration that has a base with less work, by base, then cores."""
    kinds: tuple[Work, ...] = ("epoch", "step")
    return [
        compared
        for work in kinds
        for members in _group_by_settings(configurations, work)
        for compared in _series(members, work)
    ]


def _group_by_settings(
    configurations: Sequence[Configuration], work: Work
) -> list[list[Configuration]]:
    """Those of equal settings but resources and what makes the work."""
    varying = varying_settings([one.rows[0] for one in configurations]) if configurations else []
    grows = {"batch", *(["data_title", "data_key"] if work == "epoch" else [])}
    grouped: dict[tuple[str, ...], list[Configuration]] = {}
    for one in configurations:
        if work_instances(one, work) and one.speed and not one.by_time:
            words = label_settings(one.rows[0], [name for name in varying if name not in grows])
            grouped.setdefault((*words.values(), _data(one, work)), []).append(one)
    return list(grouped.values())


def _data(one: Configuration, work: Work) -> str:
    return "" if work == "epoch" else str(one.rows[0].get("data_key"))


def _series(members: Sequence[Configuration], work: Work) -> list[WeakComparison]:
    found: list[WeakComparison] = []
    placed: set[str] = set()
    for base in sorted(members, key=lambda one: (one.cores, one.ranks, one.label)):
        more = [
            one
            for one in members
            if one.key not in placed and _has_equal_work_per_core(base, one, work)
        ]
        if base.key not in placed and more:
            placed |= {base.key, *(one.key for one in more)}
            found += [_compared(base, one, work) for one in sorted(more, key=lambda one: one.cores)]
    return found


def _has_equal_work_per_core(base: Configuration, one: Configuration, work: Work) -> bool:
    each = work_instances(one, work) / one.cores / (work_instances(base, work) / base.cores)
    return one.cores > base.cores and abs(each - 1) <= TOLERANCE


def _compared(base: Configuration, one: Configuration, work: Work) -> WeakComparison:
    assert base.speed
    assert one.speed
    ratio = work_instances(one, work) / work_instances(base, work)
    return WeakComparison(base, one, work, ratio, ratio / (one.speed / base.speed))


def work_instances(one: Configuration, work: Work) -> float:
    """Of an epoch; or of a step, in positives. 0 where it is not known."""
    if work == "epoch":
        return one.median("instances_per_epoch") or 0.0
    return float(one.rows[0].get("batch") or 0)


def comparison_doubts(shown: Sequence[Configuration]) -> list[str]:
    """Sentences, the gravest first; empty where nothing speaks against the comparison."""
    doubts = (_quality_doubts(shown), _outliers(shown), _unsteady(shown))
    return [text for text in doubts if text]


def _quality_doubts(shown: Sequence[Configuration]) -> str:
    pairs = [
        (one, members[0])
        for members in group_by_series(shown).values()
        for one in members[1:]
        if is_worse(one, members[0]) or is_worse(members[0], one)
    ]
    if not pairs:
        return ""
    one, base = pairs[0]
    return (
        f"{pluralize(len(pairs), 'speed-up')} compare models of unequal quality, as {one.label} "
        f"(HR@10 {format_score(one.median('hr10'))}) with {base.label} "
        f"({format_score(base.median('hr10'))}): as fast is not as good."
    )


def _outliers(shown: Sequence[Configuration]) -> str:
    far = [(one, row) for one in shown for row in one.rows if row.get("outlier") is not None]
    if not far:
        return ""
    one, row = far[0]
    return (
        f"Outliers among the repeats: {pluralize(len(far), 'run')}, as {row['run_id']} of "
        f"{one.label} ({format_ratio(row['outlier'])} the median): marked, and left in the medians."
    )


def _unsteady(shown: Sequence[Configuration]) -> str:
    rows = [row for one in shown for row in one.rows if "step_drift" in row]
    found = [row for row in rows if unsteady(row)]
    if not found:
        return ""
    return (
        f"{pluralize(len(found), 'run')} did not keep one pace, as run {found[0]['run_id']}, "
        f"{unsteady(found[0])[0]}: a run's one speed hides that."
    )


def law_table(shown: Sequence[Configuration]) -> Table | None:
    """Amdahl's law and the USL along the lines of enough sizes; None where there is none."""
    rows = [cells for line in lines_to_fit(scaling_lines(shown)) if (cells := _laws(line))]
    columns = ["along", "Amdahl: serial share", "USL: contention σ", "USL: crosstalk κ"]
    columns += ["USL: fastest size N*", "misfit", "used up to", "caution"]
    return Table(columns, rows, frozenset({"caution"})) if rows else None


def _laws(line: Line) -> list[str] | None:
    amdahl, usl = line.fit("amdahl"), line.fit("usl")
    if isinstance(usl, Refusal):
        return None
    cautions = [text for one in line.points for text in comparison_cautions(one, line.base)]
    serial = NONE
    if isinstance(amdahl, Law):
        serial = format_with_interval(amdahl.sigma, amdahl.sigma_interval(), format_percent)
    return [
        line.name,
        serial,
        format_with_interval(usl.sigma, usl.sigma_interval(), format_number),
        format_with_interval(usl.kappa, usl.kappa_interval(), format_number),
        format_knee(usl),
        format_percent(usl.misfit),
        f"{usl.largest:g} {size_unit(line)}",
        "; ".join(dict.fromkeys(cautions)),
    ]


def format_knee(law: Law) -> str:
    """`12.4 [9.1–17]`; where speed still grows, from where on nothing is known."""
    found = law.knee
    if found is None:
        return f"none up to {law.largest:g}"
    beyond = f"beyond {law.largest:g}"
    return format_with_interval(
        found.size,
        known_interval(found.low, found.high),
        lambda end: beyond if end == float("inf") else format_number(end),
    )


def describe_peaks(shown: Sequence[Configuration]) -> list[str]:
    """A sentence for each line whose speed peaks within reach, or may: there more makes it
    slower."""
    fits = [(line, line.fit("usl")) for line in lines_to_fit(scaling_lines(shown))]
    return [_peak(line, fit, fit.knee) for line, fit in fits if isinstance(fit, Law) and fit.knee]


def _peak(line: Line, fit: Law, found: Knee) -> str:
    where = f"{' '.join(format_knee(fit).split())} {size_unit(line)} by the USL"
    if found.high is not None and isinf(found.high):
        return (
            f"{line.name}: open whether speed peaks: at {where}, and its repeats allow that it "
            f"grows as far as the law is used, {fit.largest:g}."
        )
    alone = ", without an interval (each size ran once)" if found.high is None else ""
    beyond = _unmeasured(fit, found.size)
    return f"{line.name}: fastest at {where}{beyond}{alone}; more makes it slower."


def _unmeasured(fit: Law, size: float) -> str:
    return f", beyond the {fit.sizes[-1]:g} measured" if size > fit.sizes[-1] else ""


def size_unit(line: Line) -> str:
    return "ranks" if line.grows == "ranks" else "cores"


def law_note(shown: Sequence[Configuration]) -> str | None:
    """Why lines have no law, and which sizes a law leaves aside."""
    found = scaling_lines(shown)
    fitted = lines_to_fit(found)
    if found and not fitted:
        return (
            f"No law is fitted: one needs {FEWEST_SIZES} sizes or more along one line (more ranks, "
            f"or more cores for each), and {max(len(line.points) for line in found)} were measured "
            "at most."
        )
    fits = [(line, line.fit("usl")) for line in fitted]
    parts = [f"No law of {line.name}: {f.reason}." for line, f in fits if isinstance(f, Refusal)]
    aside = {one.label for line in fitted for one in line.left_out}
    if aside:
        parts.append(f"A law takes one of each size, and not: {'; '.join(sorted(aside))}.")
    if len(found) > len(fitted):
        more = pluralize(len(found) - len(fitted), "further line")
        parts.append(f"No law is fitted to {more}.")
    return " ".join(parts) or None


__all__ = ["with_scaling"]
