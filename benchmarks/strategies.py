"""Every strategy of docs/engines.md's table, measured: speed at two sizes, quality at one of them.

Each run is a process for each rank, on cores of its own, so that none inherits another's memory or
threads. In a round all strategies take turns, and the next round goes the other way, so that the
machine's drift is nobody's gain. At full size a run is a window of steps; the small data, Frappe
where HPCNCF_DATA names the folder of its zip, else made, is trained for three epochs.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch.distributed as dist

from benchmarks import results
from benchmarks.strategy import STRATEGIES, Strategy
from benchmarks.training import FULL_SIZE, frappe_or_made, full_size, trainer
from hpcncf.monitor.cgroup import usable_cpus
from hpcncf.ncf.data.prepared import load_prepared
from hpcncf.ncf.engines.native.library import installed_builds
from hpcncf.records.schema import TrainingRecord
from hpcncf.worker.environment import Place
from hpcncf.worker.recorder import at_once

ROUNDS: Final = 3
EPOCHS: Final = 3
WORDS: Final = 5
"""Columns of the table that are written by hand."""
MEASURED: Final = ("full size", "×", "small", "×", "start, s", f"HR@10, {EPOCHS} epochs")

# A server that has imported torch once: its ranks are forked, and begin at once.
CONTEXT: Final = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["hpcncf.ncf.trainer", "hpcncf.ncf.engines.native.engine"])


@dataclass(frozen=True)
class Told:
    """Of one run, over its ranks."""

    instances_per_s: float
    startup_s: float
    hr10: float | None


def work(rank: int, strategy: Strategy, data: Path, window: dict[str, Any], folder: str) -> None:
    """One rank's process, from its start to its record."""
    cpus = sorted(usable_cpus())
    os.sched_setaffinity(0, cpus[rank * strategy.cores : (rank + 1) * strategy.cores])
    if strategy.ranks > 1:
        # As hpcncf's own ranks have it: a name service that is away would hold up the start.
        os.environ |= {"GLOO_SOCKET_IFNAME": "lo", "RES_OPTIONS": "timeout:1 attempts:1"}
        where = f"file://{folder}/store"
        dist.init_process_group("gloo", init_method=where, rank=rank, world_size=strategy.ranks)
    place = Place(rank, rank, strategy.ranks, strategy.ranks)
    training = trainer(load_prepared(data), data, window | strategy.training, place=place)
    training.train()
    Path(folder, f"{rank}.json").write_text(training.record().model_dump_json())
    at_once(0)


def ran(strategy: Strategy, data: Path, window: dict[str, Any]) -> Told:
    """Raises ChildProcessError where a rank fails; what it says is on standard error."""
    with tempfile.TemporaryDirectory() as folder:
        ranks = [
            CONTEXT.Process(target=work, args=(rank, strategy, data, window, folder))
            for rank in range(strategy.ranks)
        ]
        for rank in ranks:
            rank.start()
        for rank in ranks:
            rank.join()
        if any(rank.exitcode for rank in ranks):
            raise ChildProcessError(f"{strategy.name}: {[rank.exitcode for rank in ranks]}")
        records = [Path(folder, f"{rank}.json").read_text() for rank in range(strategy.ranks)]
    return told([TrainingRecord.model_validate_json(each) for each in records])


def told(ranks: list[TrainingRecord]) -> Told:
    return Told(
        sum(each.counted_instances for each in ranks) / max(each.counted_s for each in ranks),
        max(each.startup_s for each in ranks),
        ranks[0].epochs[-1].hr10,
    )


def measured(data: Path, rounds: int, chosen: list[Strategy], full: bool) -> dict[str, Told]:
    """By name: medians of the speed and of the start, and the quality, which all rounds share."""
    found: dict[str, list[Told]] = {each.name: [] for each in chosen}
    for number in range(rounds):
        for strategy in chosen if number % 2 == 0 else reversed(chosen):
            window = {"max_steps": strategy.steps, "epochs": 1, "evaluation": "none"}
            one = ran(strategy, data, window if full else {"epochs": EPOCHS})
            found[strategy.name].append(one)
            print(f"{strategy.name}: {one}", file=sys.stderr, flush=True)
    return {
        name: Told(
            statistics.median(each.instances_per_s for each in runs),
            statistics.median(each.startup_s for each in runs),
            runs[0].hr10,
        )
        for name, runs in found.items()
    }


def words(document: str) -> dict[str, list[str]]:
    """First cell -> the cells that are written by hand, of the table between the markers."""
    section = document.partition("<!-- bench: strategies -->")[2].partition(results.END)[0]
    rows = [line.strip("|").split("|") for line in results.first_table(section).splitlines()]
    return {row[0].strip(): [cell.strip() for cell in row[:WORDS]] for row in rows}


def table(
    rows: dict[str, list[str]],
    shown: Iterable[Strategy],
    full: dict[str, Told],
    small: dict[str, Told],
) -> list[str]:
    """The table's lines, with what was measured behind the words."""
    head, _, *_ = rows.values()
    lines = [[*head, *MEASURED], ["---"] * WORDS + ["---:"] * len(MEASURED)]
    for each in shown:
        lines.append([*rows[each.name], *speed(each, full), *speed(each, small)])
        lines[-1] += rest(small.get(each.name))
    return [f"| {' | '.join(cells)} |" for cells in lines]


def speed(strategy: Strategy, found: dict[str, Told]) -> list[str]:
    """Instances per second, and how often that is what the row it is compared to makes."""
    mine, base = found.get(strategy.name), found.get(strategy.against)
    return [
        f"{mine.instances_per_s:,.0f}" if mine else "–",
        f"{mine.instances_per_s / base.instances_per_s:.2f}" if mine and base else "–",
    ]


def rest(found: Told | None) -> list[str]:
    if found is None:
        return ["–", "–"]
    return [f"{found.startup_s:.1f}", "–" if found.hr10 is None else f"{found.hr10:.4f}"]


def runnable(text: str) -> list[Strategy]:
    """Those whose name has the text, and what they are compared to.

    Raises SystemExit where the machine has one core.
    """
    if len(usable_cpus()) < 2:
        raise SystemExit("strategies: two cores are needed, for two ranks or two threads")
    named = [each for each in STRATEGIES if text in each.name and each.steps]
    names = {each.name for each in named} | {each.against for each in named}
    chosen = [each for each in STRATEGIES if each.name in names]
    if installed_builds():
        return chosen
    print("Engine native was not built here, and is not measured.\n")
    return [each for each in chosen if each.training.get("engine") != "native"]


def main() -> int:
    """Print the table."""
    asking = argparse.ArgumentParser(prog="python -m benchmarks.strategies", description=__doc__)
    asking.add_argument("--rounds", type=int, default=ROUNDS)
    asking.add_argument("--only", metavar="TEXT", default="", help="strategies whose name has it")
    asked = asking.parse_args()
    chosen = runnable(asked.only)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "small"
        titles = [data.manifest.title for data in (full_size(), frappe_or_made(folder))]
        print(
            f"Instances per second, medians of {asked.rounds} rounds. Full size: {titles[0]}. "
            f"Small: {titles[1]}. ×: against the row named beside it. Start: until the first step, "
            "without imports.\n"
        )
        full = measured(FULL_SIZE, asked.rounds, chosen, full=True)
        small = measured(folder, asked.rounds, chosen, full=False)
    rows = words(results.document("strategies").read_text())
    print(*table(rows, chosen if asked.only else STRATEGIES, full, small), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
