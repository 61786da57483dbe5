"""Throughput of runs side by side on one node or GPU, by their number."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from statistics import fmean, median
from typing import Any, Final

from hpcncf.job.spec import Model, Resources, Training
from hpcncf_analysis.configurations import (
    Table,
    format_shape,
    format_threads,
    label_settings,
    pluralize,
    varying_settings,
)
from hpcncf_analysis.formatting import (
    NONE,
    format_interval,
    format_number,
    format_percent,
    format_ratio,
)

# A pack counts where all of its runs are complete, of the same settings, and as many as were
# asked
# for: one that was short, or mixed, is the speed of no setting.

Row = Mapping[str, Any]
Settings = tuple[str, ...]

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
NEAR: Final = 0.05


@dataclass(frozen=True)
class Size:
    """So many runs side by side: medians over the packs that were measured."""

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
    """The sizes of one setting, the smallest first."""

    label: str
    on_gpu: bool
    """Whether they share a GPU; else a node's cores."""
    mps: bool
    sizes: Sequence[Size]

    @property
    def best(self) -> Size:
        return max(self.sizes, key=lambda size: size.total)

    @property
    def recommended(self) -> Size:
        """The fewest whose total is as good as the greatest."""
        return next(one for one in self.sizes if one.total >= (1 - NEAR) * self.best.total)

    @property
    def falls_at(self) -> Size | None:
        """The first size behind the best whose total is clearly less."""
        behind = (one for one in self.sizes if one.runs > self.best.runs)
        return next((one for one in behind if one.total < (1 - NEAR) * self.best.total), None)


def curves(rows: Iterable[Row]) -> list[Curve]:
    """One for each setting that was packed, of the completed runs with a speed."""
    known = [row for row in rows if row.get("instances_per_s")]
    packs: dict[Settings, dict[bool, list[list[Row]]]] = defaultdict(lambda: defaultdict(list))
    for pack in _packs(known):
        packs[_settings(pack[0])][bool(pack[0].get("pack_mps"))].append(pack)
    varying = _sentences([found[0][0] for each in packs.values() for found in each.values()])
    wide = _by_cores(known)
    return [
        curve
        for each in packs.values()
        for mps in sorted(each)
        if (curve := _curve(each[mps] + (_alone(each[False]) if mps else []), mps, varying, wide))
    ]


def left_out(rows: Sequence[Row]) -> int:
    """Packed runs whose pack counts for no curve."""
    known = [row for row in rows if row.get("instances_per_s")]
    counted = {id(row) for pack in _packs(known) for row in pack}
    return sum(runs_asked_for(row) > 1 and id(row) not in counted for row in rows)


def runs_asked_for(row: Row) -> int:
    return max(row.get("runs_per_node") or 1, row.get("runs_per_gpu") or 1)


def _settings(row: Row, without: Collection[str] = ()) -> Settings:
    return tuple(repr(row.get(name)) for name in SETTINGS if name not in without)


def _by_cores(rows: Sequence[Row]) -> dict[tuple[Settings, int], float]:
    """The median speed of single ranks alone, by their settings and cores."""
    speeds: dict[tuple[Settings, int], list[float]] = defaultdict(list)
    for row in rows:
        if runs_asked_for(row) == 1 and row["world_size"] == 1:
            cores = int(row["cpus_per_task"])
            speeds[_settings(row, WIDTH), cores].append(row["instances_per_s"])
    return {key: median(found) for key, found in speeds.items()}


def _packs(rows: Sequence[Row]) -> list[list[Row]]:
    """Those that are whole and alike; a run alone is a pack, too."""
    together: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        together[row.get("pack") or row["run_id"]].append(row)
    return [
        pack
        for pack in together.values()
        if len(pack) == pack[0].get("pack_runs", 1) == runs_asked_for(pack[0])
        and len({_settings(row) for row in pack}) == 1
    ]


def _alone(packs: Sequence[list[Row]]) -> list[list[Row]]:
    return [pack for pack in packs if len(pack) == 1]


def _sentences(firsts: Sequence[Row]) -> list[str]:
    unsaid = (*PACKING, *FREE)
    return [name for name in varying_settings(firsts) if name not in unsaid] if firsts else []


def _curve(
    packs: Sequence[list[Row]],
    mps: bool,
    varying: Sequence[str],
    wide: Mapping[tuple[Settings, int], float],
) -> Curve | None:
    """None where nothing shared anything."""
    by_size: dict[int, list[list[Row]]] = defaultdict(list)
    for pack in packs:
        by_size[_sharing(pack[0])].append(pack)
    if max(by_size) == 1:
        return None
    first = packs[0][0]
    words = [format_shape(first), *format_threads(first), *label_settings(first, varying).values()]
    sizes = [_size(runs, by_size[runs], wide) for runs in sorted(by_size)]
    return Curve(" · ".join(words), bool(first["gpus_per_node"]), mps, sizes)


def _sharing(row: Row) -> int:
    """Runs that share a GPU; without one, a node."""
    return int(row["runs_per_gpu"]) if row["gpus_per_node"] else runs_asked_for(row)


def _size(
    runs: int, packs: Sequence[list[Row]], wide: Mapping[tuple[Settings, int], float]
) -> Size:
    """Of packs over several GPUs, one GPU's share."""
    first = packs[0][0]
    cores = runs * int(first["cpus_per_task"]) if runs > 1 and not first["gpus_per_node"] else 0
    shares = [runs / len(pack) for pack in packs]
    totals = [
        share * sum(row["instances_per_s"] for row in pack)
        for share, pack in zip(shares, packs, strict=True)
    ]
    memory = [
        share * sum(row["memory_peak_mib"] for row in pack)
        for share, pack in zip(shares, packs, strict=True)
        if all(row.get("memory_peak_mib") is not None for row in pack)
    ]
    on_gpu = [row.get("gpu_memory_peak_mib") for pack in packs for row in pack]
    return Size(
        runs=runs,
        total=median(totals),
        low=min(totals),
        high=max(totals),
        packs=len(packs),
        memory_mib=median(memory) if memory else None,
        gpu_memory_mib=max((mib for mib in on_gpu if mib is not None), default=None),
        overlap=min(map(overlap, packs)),
        fills_node=runs * int(first["cpus_per_task"]) * int(first["tasks_per_node"])
        >= (first.get("cores_on_node") or inf),
        instead=wide.get((_settings(first, WIDTH), cores)),
    )


def overlap(pack: Sequence[Row]) -> float:
    """The time in which all were at work, over their mean time; 1 for a run alone."""
    began = [row.get("worked_from") or 0.0 for row in pack]
    ended = [row.get("worked_to") or 0.0 for row in pack]
    spent = fmean(end - begin for begin, end in zip(began, ended, strict=True))
    common = min(ended) - max(began)
    return max(common, 0.0) / spent if len(pack) > 1 and spent > 0 else 1.0


# With less, part of the time the pack was smaller than it is called.
TOGETHER: Final = 0.8
# Of the page's section.
TITLE: Final = "Runs side by side"
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


def table(curves: Sequence[Curve]) -> Table:
    rows = [_row(curve, size) for curve in curves for size in curve.sizes]
    return Table(COLUMNS, rows).without_empty_columns


def named(curve: Curve) -> str:
    return curve.label + (" · MPS" if curve.mps else "")


def _row(curve: Curve, size: Size) -> list[str]:
    one = _single_run(curve)
    several = size.packs > 1
    return [
        named(curve),
        str(size.runs),
        format_number(size.total),
        format_interval(size.low, size.high, format_number) if several else "",
        format_ratio(size.total / one.total) if one else NONE,
        format_number(size.each),
        format_percent(size.each / one.total) if one else NONE,
        format_number(size.instead),
        format_number(size.memory_mib),
        format_number(size.gpu_memory_mib),
        str(size.packs),
    ]


def _single_run(curve: Curve) -> Size | None:
    return next((size for size in curve.sizes if size.runs == 1), None)


def sentences(curve: Curve) -> Iterator[str]:
    """What is recommended, where the total falls, and what makes it worth less."""
    where = f"{named(curve)}: "
    if len(curve.sizes) == 1:
        runs = curve.sizes[0].runs
        yield f"{where}only {runs} side by side were measured: others are needed to compare with."
    else:
        yield where + _advice(curve)
    apart = min(curve.sizes, key=lambda size: size.overlap)
    if apart.overlap < TOGETHER:
        yield (
            f"Of the {apart.runs} side by side all were at work for only "
            f"{format_percent(apart.overlap)} of their time, so that the true total is less: "
            "longer runs are more exact."
        )


def _advice(curve: Curve) -> str:
    best, one = curve.recommended, _single_run(curve)
    shared = "a GPU" if curve.on_gpu else "a node"
    if best.runs == 1:
        return f"one run on {shared} is best; {_loss(curve)}"
    text = f"{best.runs} runs on {shared}: {format_number(best.total)} instances/s together"
    if one:
        text += f", {format_ratio(best.total / one.total)} those of one"
        text += f", each at {format_percent(best.each / one.total)} of its speed alone"
    if best.instead:
        text += f"; one run on as many cores makes {format_number(best.instead)}"
    return f"{text}; {_beyond(curve)}"


def _loss(curve: Curve) -> str:
    most = curve.sizes[-1]
    change = most.total / curve.sizes[0].total
    return f"{pluralize(most.runs, 'run')} bring {format_ratio(change)} as much together."


def _beyond(curve: Curve) -> str:
    falls, largest = curve.falls_at, curve.sizes[-1]
    if falls:
        return f"with {falls.runs} the total falls to {format_number(falls.total)}."
    if curve.recommended is largest:
        if largest.fills_node:
            return "they fill the node's cores."
        return "the total was still growing, so more may be better."
    return "more bring nothing."
