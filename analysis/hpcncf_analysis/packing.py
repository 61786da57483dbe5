"""Throughput of runs side by side on one node or GPU, by their number.

A pack counts where all of its runs are complete, of the same settings, and as many as were asked
for: one that was short, or mixed, is the speed of no setting. A run alone is a pack, too.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from statistics import fmean, median
from typing import Any, Final

from hpcncf.job.spec import Model, Resources, Training
from hpcncf.table import Table
from hpcncf.text import pluralize
from hpcncf_analysis.configurations import (
    format_shape,
    format_threads,
    label_settings,
    varying_settings,
)
from hpcncf_analysis.formatting import (
    NONE,
    format_interval,
    format_number,
    format_percent,
    format_ratio,
)

Row = Mapping[str, Any]
PackRows = Sequence[Row]
SettingsKey = tuple[str, ...]

# Of the page's section.
TITLE: Final = "Runs side by side"
# The settings of sharing, and those in which equal runs may differ.
PACKING: Final = ("runs_per_node", "runs_per_gpu", "mps")
FREE: Final = ("mem_gb", "timeout_min", "runs_per_task", "requeues", "seed", "lr")
SETTINGS: Final = [
    name
    for name in (*Resources.model_fields, *Training.model_fields, *Model.model_fields, "data_key")
    if name not in (*PACKING, *FREE)
]
# What a run with more cores differs in.
WIDTH: Final = ("cpus_per_task", "threads")
# A total this near to the greatest is as good, and fewer runs take less memory.
NEAR_TOTAL: Final = 0.05
# With less, part of the time the pack was smaller than it is called.
TOGETHER: Final = 0.8
COLUMNS: Final = [
    "configuration",
    "runs side by side",
    "all: instances/s",
    "all: range",
    "all: against one",
    "each: instances/s",
    "each: of its speed alone",
    "one run on as many cores",
    "MiB, all runs",
    "MiB of the GPU",
    "packs",
]


@dataclass(frozen=True)
class Size:
    """Medians over the measured packs of one size (number of runs side by side)."""

    runs: int
    total: float
    """Instances per second of all runs together."""
    low: float
    high: float
    packs: int
    memory_mib: float | None
    """The sum of their peaks on the node: pages that they share are counted in each."""
    gpu_memory_mib: float | None
    overlap: float
    """Of the runs' time, the share in which all of them were at work; the least of the packs."""
    fills_node: bool
    """Whether the runs have all cores of their node."""
    instead: float | None
    """What one run made that had as many cores to itself; None on a GPU, or not measured."""

    @property
    def each(self) -> float:
        return self.total / self.runs


@dataclass(frozen=True)
class Curve:
    """Pack sizes measured for one setting, the smallest first."""

    label: str
    on_gpu: bool
    """Whether they share a GPU; else a node's cores."""
    sizes: Sequence[Size]

    @property
    def alone(self) -> Size | None:
        return self.sizes[0] if self.sizes[0].runs == 1 else None

    @property
    def best(self) -> Size:
        return max(self.sizes, key=lambda size: size.total)

    @property
    def recommended(self) -> Size:
        """Smallest pack size whose total speed is close to the highest."""
        return next(one for one in self.sizes if one.total >= (1 - NEAR_TOTAL) * self.best.total)

    @property
    def falls_at(self) -> Size | None:
        """Smallest pack size above the best whose total speed is clearly lower; None if none is."""
        behind = (one for one in self.sizes if one.runs > self.best.runs)
        return next((one for one in behind if one.total < (1 - NEAR_TOTAL) * self.best.total), None)


def curves(rows: Iterable[Row]) -> list[Curve]:
    """Build one curve for each setting whose runs were packed, completed and have a speed."""
    known = [row for row in rows if row.get("instances_per_s")]
    packs: dict[SettingsKey, dict[bool, list[PackRows]]] = defaultdict(lambda: defaultdict(list))
    for pack in _whole_packs(known):
        packs[_settings(pack[0])][bool(pack[0].get("pack_mps"))].append(pack)
    firsts = [found[0][0] for each in packs.values() for found in each.values()]
    varying = varying_settings(firsts) if firsts else []
    varying = [name for name in varying if name not in (*PACKING, *FREE)]
    wide = _speeds_by_cores(known)
    found = []
    for each in packs.values():
        for mps in sorted(each):
            # A run alone needs no MPS: the curve with MPS begins with it, too.
            of_curve = each[mps] + [pack for pack in each[False] if mps and len(pack) == 1]
            by_size: dict[int, list[PackRows]] = defaultdict(list)
            for pack in of_curve:
                by_size[_runs_sharing(pack[0])].append(pack)
            if max(by_size) > 1:
                first = of_curve[0][0]
                words = [format_shape(first), *format_threads(first)]
                words += [*label_settings(first, varying).values(), *["MPS"] * mps]
                sizes = [_size(runs, by_size[runs], wide) for runs in sorted(by_size)]
                found.append(Curve(" · ".join(words), bool(first["gpus_per_node"]), sizes))
    return found


def left_out(rows: Sequence[Row]) -> int:
    """Number of packed runs missing from all curves because their pack is incomplete."""
    known = [row for row in rows if row.get("instances_per_s")]
    counted = {id(row) for pack in _whole_packs(known) for row in pack}
    return sum(_runs_asked_for(row) > 1 and id(row) not in counted for row in rows)


def _runs_asked_for(row: Row) -> int:
    return max(row.get("runs_per_node") or 1, row.get("runs_per_gpu") or 1)


def _runs_sharing(row: Row) -> int:
    """Number of runs that share a GPU or, without GPUs, a node."""
    return int(row["runs_per_gpu"]) if row["gpus_per_node"] else _runs_asked_for(row)


def _settings(row: Row, without: Sequence[str] = ()) -> SettingsKey:
    return tuple(repr(row.get(name)) for name in SETTINGS if name not in without)


def _whole_packs(rows: Sequence[Row]) -> list[PackRows]:
    together: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        together[row.get("pack") or row["run_id"]].append(row)
    return [
        pack
        for pack in together.values()
        if len(pack) == pack[0].get("pack_runs", 1) == _runs_asked_for(pack[0])
        and len({_settings(row) for row in pack}) == 1
    ]


def _speeds_by_cores(rows: Sequence[Row]) -> dict[tuple[SettingsKey, int], float]:
    """(settings, cores) -> median instances per second of single-rank runs not packed."""
    speeds: dict[tuple[SettingsKey, int], list[float]] = defaultdict(list)
    for row in rows:
        if _runs_asked_for(row) == 1 and row["world_size"] == 1:
            cores = int(row["cpus_per_task"])
            speeds[_settings(row, WIDTH), cores].append(row["instances_per_s"])
    return {key: median(found) for key, found in speeds.items()}


def _size(
    runs: int, packs: Sequence[PackRows], wide: Mapping[tuple[SettingsKey, int], float]
) -> Size:
    """Summarise the packs of one size, per GPU if a pack spans several GPUs."""
    first = packs[0][0]
    cores = runs * int(first["cpus_per_task"])
    comparable = runs > 1 and not first["gpus_per_node"]

    def sums(name: str) -> list[float]:
        """Sum of a figure over the runs of each pack in which all runs have it."""
        whole = [pack for pack in packs if all(row.get(name) is not None for row in pack)]
        return [runs / len(pack) * sum(row[name] for row in pack) for pack in whole]

    totals, memory = sums("instances_per_s"), sums("memory_peak_mib")
    on_gpu = [row.get("gpu_memory_peak_mib") for pack in packs for row in pack]
    return Size(
        runs=runs,
        total=median(totals),
        low=min(totals),
        high=max(totals),
        packs=len(packs),
        memory_mib=median(memory) if memory else None,
        gpu_memory_mib=max((mib for mib in on_gpu if mib is not None), default=None),
        overlap=min(map(_overlap, packs)),
        fills_node=cores * int(first["tasks_per_node"]) >= (first.get("cores_on_node") or inf),
        instead=wide.get((_settings(first, WIDTH), cores)) if comparable else None,
    )


def _overlap(pack: PackRows) -> float:
    """Time in which all runs were active divided by their mean duration; 1 for a lone run."""
    began = [row.get("worked_from") or 0.0 for row in pack]
    ended = [row.get("worked_to") or 0.0 for row in pack]
    spent = fmean(end - begin for begin, end in zip(began, ended, strict=True))
    common = min(ended) - max(began)
    return max(common, 0.0) / spent if len(pack) > 1 and spent > 0 else 1.0


def table(curves: Sequence[Curve]) -> Table:
    rows = [_cells(curve, size) for curve in curves for size in curve.sizes]
    return Table(COLUMNS, rows).without_empty_columns


def _cells(curve: Curve, size: Size) -> list[str]:
    one = curve.alone
    return [
        curve.label,
        str(size.runs),
        format_number(size.total),
        format_interval(size.low, size.high, format_number) if size.packs > 1 else "",
        format_ratio(size.total / one.total) if one else NONE,
        format_number(size.each),
        format_percent(size.each / one.total) if one else NONE,
        format_number(size.instead),
        format_number(size.memory_mib),
        format_number(size.gpu_memory_mib),
        str(size.packs),
    ]


def sentences(curve: Curve) -> Iterator[str]:
    """Sentences on a curve's best pack size, where the total falls, and doubts about it."""
    if len(curve.sizes) == 1:
        runs = curve.sizes[0].runs
        text = f"only {runs} side by side were measured: others are needed to compare with."
    else:
        text = _recommendation(curve)
    yield f"{curve.label}: {text}"
    apart = min(curve.sizes, key=lambda size: size.overlap)
    if apart.overlap < TOGETHER:
        yield (
            f"Of the {apart.runs} side by side all were at work for only "
            f"{format_percent(apart.overlap)} of their time, so that the true total is less: "
            "longer runs are more exact."
        )


def _recommendation(curve: Curve) -> str:
    best, one, falls, largest = curve.recommended, curve.alone, curve.falls_at, curve.sizes[-1]
    shared = "a GPU" if curve.on_gpu else "a node"
    if best.runs == 1:
        change = format_ratio(largest.total / best.total)
        more = f"{pluralize(largest.runs, 'run')} bring {change} as much together."
        return f"one run on {shared} is best; {more}"
    text = f"{best.runs} runs on {shared}: {format_number(best.total)} instances/s together"
    if one:
        text += f", {format_ratio(best.total / one.total)} those of one"
        text += f", each at {format_percent(best.each / one.total)} of its speed alone"
    if best.instead:
        text += f"; one run on as many cores makes {format_number(best.instead)}"
    if falls:
        end = f"with {falls.runs} the total falls to {format_number(falls.total)}."
    elif best is not largest:
        end = "more bring nothing."
    elif largest.fills_node:
        end = "they fill the node's cores."
    else:
        end = "the total was still growing, so more may be better."
    return f"{text}; {end}"
