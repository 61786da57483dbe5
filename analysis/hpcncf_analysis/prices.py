"""Prices of cores, nodes and GPU types: the cost of a run, and whether faster hardware pays."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Final

from hpcncf.table import Table
from hpcncf_analysis.configurations import Configuration
from hpcncf_analysis.formatting import NONE, format_duration, format_number, format_ratio

Row = Mapping[str, Any]

# Keys of `prices` in a site file that are no part of a model's name.
CORE: Final = "core"
NODE: Final = "node"
# Times that differ by less are equal.
EQUAL_TIME: Final = 0.02


@dataclass(frozen=True)
class Prices:
    """`prices` and `currency` of a site file."""

    of_an_hour: Mapping[str, float] = field(default_factory=dict)
    currency: str = ""

    def hourly(self, row: Row) -> float | None:
        """Price of an hour of the run: its nodes if they have a price, else its cores and GPUs;
        None if one that counts has none. Runs side by side share a node or GPU evenly."""
        nodes, shared_gpu = row.get("nodes") or 1, row.get("runs_per_gpu") or 1
        node = self._of_model(row.get("cpu_model"), self.of_an_hour.get(NODE))
        if node is not None:
            return float(node * nodes / max(row.get("runs_per_node") or 1, shared_gpu))
        gpus, core = (row.get("gpus_per_node") or 0) * nodes, self.of_an_hour.get(CORE)
        if not gpus:
            return None if core is None else float(core * row["cores_allocated"])
        gpu = self._of_model(row.get("gpu_model"))
        cores = (core or 0.0) * row["cores_allocated"]
        return None if gpu is None else float(gpu * gpus / shared_gpu + cores)

    def _of_model(self, model: str | None, otherwise: float | None = None) -> float | None:
        """The price of the longest name that the model's contains, in any case."""
        models = [name for name in self.of_an_hour if name not in (CORE, NODE)]
        names = [name for name in models if name.casefold() in (model or "").casefold()]
        return self.of_an_hour[max(names, key=len)] if names else otherwise

    def show(self, amount: float | None) -> str:
        return NONE if amount is None else f"{format_number(amount)} {self.currency}".strip()


NO_PRICES: Final = Prices()


@dataclass(frozen=True)
class Priced:
    """A configuration's repeats on one hardware."""

    hardware: str
    """Model of the GPUs, else of the CPU."""
    label: str
    hourly: float
    seconds: float
    """Of an epoch, or of a command's run: the median."""
    unit: str
    """`an epoch` or `a run`."""

    @property
    def cost(self) -> float:
        return self.hourly * self.seconds / 3600


def priced_rows(one: Configuration, prices: Prices) -> list[Priced]:
    """One for each hardware that its repeats ran on; without those that have no price or time."""
    unit, name = ("a run", "elapsed_s") if one.is_command else ("an epoch", "seconds_per_epoch")
    groups: dict[str, list[tuple[float, float]]] = {}
    for row in one.rows:
        hourly = prices.hourly(row)
        if row.get(name) and hourly is not None:
            model = row.get("gpu_model") if row.get("gpus_per_node") else row.get("cpu_model")
            hardware = str(model or "unknown hardware")
            groups.setdefault(hardware, []).append((hourly, row[name]))
    return [
        Priced(hardware, one.label, found[0][0], median(seconds for _, seconds in found), unit)
        for hardware, found in groups.items()
    ]


def price_table(rows: Sequence[Priced], prices: Prices) -> Table | None:
    """What an epoch or a run costs, the least first; None if nothing has a price."""
    if not rows:
        return None
    money = f", {prices.currency}" if prices.currency else ""
    columns = ["configuration", "hardware", f"an hour{money}", "s", f"an epoch or run{money}"]
    cells = [
        [row.label, row.hardware, *map(format_number, (row.hourly, row.seconds, row.cost))]
        for row in sorted(rows, key=lambda row: row.cost)
    ]
    return Table(columns, cells, frozenset({"hardware"}))


def is_faster_worth_it(rows: Iterable[Priced], prices: Prices) -> list[str]:
    """One sentence for each faster hardware, against the one that costs least; of each hardware the
    configuration that costs least. Empty if only one hardware has a price."""
    best: dict[str, Priced] = {}
    for row in rows:
        if row.hardware not in best or row.cost < best[row.hardware].cost:
            best[row.hardware] = row
    if len(best) < 2:
        return []
    slow = max(best.values(), key=lambda row: (row.seconds, row.hardware))
    faster = [row for row in best.values() if row.seconds < (1 - EQUAL_TIME) * slow.seconds]
    return [_worth(row, slow, prices) for row in sorted(faster, key=lambda row: row.seconds)]


def _worth(fast: Priced, slow: Priced, prices: Prices) -> str:
    figures = (
        f"{fast.unit} takes {format_duration(fast.seconds)} with {fast.label} on {fast.hardware} "
        f"and {format_duration(slow.seconds)} with {slow.label} on {slow.hardware}, and costs "
        f"{prices.show(fast.cost)} against {prices.show(slow.cost)}"
    )
    times = format_ratio(slow.seconds / fast.seconds)
    if fast.cost <= slow.cost:
        return f"{fast.hardware} is worth its price: {figures} ({times} the speed)."
    an_hour = (fast.cost - slow.cost) / (slow.seconds - fast.seconds) * 3600
    return (
        f"{fast.hardware} is worth its price only if an hour saved is worth "
        f"{prices.show(an_hour)}: {figures} ({times} the speed, "
        f"{format_ratio(fast.cost / slow.cost)} the cost)."
    )
