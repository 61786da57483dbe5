"""jobs/remedies.yaml's remedies, each in alternation with the configuration that it is added to.

The two are processes of their own that take turns of a sixth of a second: a slow machine slows
both. A gain is the median of the turns' ratios, and its interval is of order statistics: the few
turns that a neighbour slows move neither. A row ends when its 95 % interval is within 5 % of the
gain, or when it has had three times its share of the time that is left. Start-up is outside of the
turns. Rows of another arithmetic are then trained for two epochs. On Frappe if HPCNCF_DATA names
the folder of its zip, else on made data of its shape. A word on the command line chooses the
remedies that have it.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import comb, exp, log
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from statistics import median
from typing import Any, Final
from uuid import uuid4

import psutil
import torch.distributed as dist

from benchmarks import results
from benchmarks.training import frappe_or_made, in_processes, trained, trainer
from benchmarks.verbs import end_in_order
from hpcncf.data.prepared import load_prepared
from hpcncf.job.load import build_plan, load_job
from hpcncf.job.plan import Run
from hpcncf.launcher.environment import Place
from hpcncf.monitor.cgroup import usable_cpus
from hpcncf.ncf.distributed import pin_rank
from hpcncf_analysis.formatting import format_duration, format_ratio, format_score
from hpcncf_analysis.remedy_effects import format_changes

JOB: Final = Path(__file__).parent.parent / "jobs/remedies.yaml"
TURN_S: Final = 0.15
LEAST, ENOUGH = 6, 12
"""Pairs of turns that an interval needs, and before a row may end for its width: a few turns agree
by chance."""
BUDGET_S: Final = 915.0
"""For all rows."""
SHARES: Final = 3
SETTLED: Final = 0.05
CONFIDENCE: Final = 0.95
SCORES_DIFFER: Final = 0.01
START_S: Final = 180.0
EPOCHS: Final = 2
FORKED: Final = multiprocessing.get_context("forkserver")
FORKED.set_forkserver_preload(["hpcncf.ncf.trainer", "hpcncf.ncf.engines.native"])
SPAWNED: Final = multiprocessing.get_context("spawn")


def train(run: Run, data: Path, rank: int, store: str, turns: Connection) -> None:
    """One rank's process: `turns` receives two numbers of steps, and sends steps, instances and
    time of both; it pauses after the second. First, warnings about settings without effect."""
    assert run.training is not None
    ranks, each = run.resources.tasks_per_node, run.resources.cpus_per_task
    os.sched_setaffinity(0, sorted(usable_cpus())[rank * each : (rank + 1) * each])
    place = Place(rank, rank, ranks, ranks)
    if ranks > 1:
        os.environ |= {"GLOO_SOCKET_IFNAME": "lo", "RES_OPTIONS": "timeout:1 attempts:1"}
        dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks)
    if run.training.pin != "none":
        pin_rank(run.training.pin, each, place)
    endless = {"epochs": 10_000, "evaluation": "none", "checkpoint_every": 0}
    endless["log_every"] = steps_at_once(run)
    settings = run.training.model_dump(mode="json") | endless
    if run.training.threads == "auto":
        settings["threads"] = each
    training = trainer(load_prepared(data), data, settings, place=place)
    turns.send((training.warnings, training.schedule.steps))
    first, until = turns.recv()
    began: tuple[int, int, float] | None = None

    def pause() -> None:
        nonlocal first, until, began
        if training.steps_done >= first:
            now = (training.steps_done, training.instances, time.perf_counter())
            began = began or now
            if training.steps_done >= until:
                turns.send((began, now))
                first, until = turns.recv()
                began = None

    training.after_step = pause
    training.train()


def rank_process(*given: Any) -> None:
    """As `train`; an error goes to the other end of `turns`."""
    try:
        train(*given)
    except BaseException:
        given[-1].send(traceback.format_exc())


def steps_at_once(run: Run) -> int:
    """A turn begins and ends after a multiple of so many steps, on every rank. Engine native makes
    them in one call, so that few would cost it speed."""
    assert run.training is not None
    if run.training.engine == "native":
        return max(4, 16_384 // run.training.batch_over_ranks(1))
    return 4


class TrainingRanks:
    """The ranks of a run that trains when it is asked to."""

    def __init__(self, run: Run) -> None:
        self.run, self._steps, self._step_s = run, 0, 0.0
        self._at_once = steps_at_once(run)
        self._ends: list[Connection] = []
        self._processes: list[BaseProcess] = []

    def start(self, data: Path, folder: str) -> None:
        assert self.run.training is not None
        policy = self.run.training.omp_wait_policy
        context = FORKED if policy == "default" else SPAWNED
        store = str(Path(folder, uuid4().hex))
        began = time.perf_counter()
        if policy != "default":  # read when torch is loaded
            os.environ["OMP_WAIT_POLICY"] = policy
        for rank in range(self.run.resources.tasks_per_node):
            ours, theirs = context.Pipe()
            process = context.Process(
                target=rank_process, args=(self.run, data, rank, store, theirs)
            )
            process.start()
            self._ends.append(ours)
            self._processes.append(process)
        os.environ.pop("OMP_WAIT_POLICY", None)
        found = [self._answer(end) for end in self._ends]
        self.warnings: list[str] = found[0][0]
        self.steps_per_epoch: int = found[0][1]
        self._train(0)
        self.startup_s = time.perf_counter() - began
        self._train(self._at_once)
        self._signal(signal.SIGSTOP)

    def _answer(self, end: Connection) -> Any:
        if not end.poll(START_S):
            raise RuntimeError(f"{self.run.varied}: not over in {START_S:.0f} s")
        answer = end.recv()
        if isinstance(answer, str):
            raise RuntimeError(answer)
        return answer

    def _train(self, steps: int) -> float:
        """Train for some steps to get going, and as many as given; instances a second of these."""
        first = self._steps + self._at_once
        for end in self._ends:
            end.send((first, first + steps))
        marks = [self._answer(end) for end in self._ends]
        began, ended = (max(mark[end][2] for mark in marks) for end in (0, 1))
        made = sum(after[1] - before[1] for before, after in marks)
        before, self._steps = marks[0][0][0], marks[0][1][0]
        if self._steps == before:
            return 0.0
        self._step_s = (ended - began) / (self._steps - before)
        return made / (ended - began)

    def turn(self, whole_epochs: bool) -> float:
        """Instances a second of a turn; whole epochs also if they are short, for each begins with
        work of its own."""
        if whole_epochs or self.steps_per_epoch * self._step_s <= 2 * TURN_S:
            epochs = TURN_S / (self.steps_per_epoch * self._step_s)
            steps = self.steps_per_epoch * max(1, round(epochs))
        else:
            steps = self._at_once * max(1, round(TURN_S / self._step_s / self._at_once))
        self._signal(signal.SIGCONT)
        speed = self._train(steps)
        self._signal(signal.SIGSTOP)
        return speed

    def _signal(self, number: signal.Signals) -> None:
        for process in self._processes:
            assert process.pid is not None
            for each in (psutil.Process(process.pid), *psutil.Process(process.pid).children(True)):
                with contextlib.suppress(psutil.NoSuchProcess):
                    each.send_signal(number)

    def close(self) -> None:
        for process in self._processes:
            assert process.pid is not None
            with contextlib.suppress(psutil.NoSuchProcess):
                for each in psutil.Process(process.pid).children(True):
                    each.kill()
            process.kill()
            process.join()


@dataclass
class RemedyPair:
    """A remedy, and the configuration that lacks it."""

    one: Run
    on: Run
    changed: Mapping[str, Any]
    before: Mapping[str, Any]
    logs: list[float] = field(default_factory=list)
    """Logarithms of the gains of pairs of turns."""
    startup_s: float = 0.0
    saved_s: float = 0.0
    """Of a step."""
    sentence: str = ""
    """Why it was not measured."""
    failed: bool = False

    @property
    def width(self) -> float:
        """By how much the interval's farther end differs from the gain, as a share."""
        low, middle, high = interval(self.logs)
        return exp(max(high - middle, middle - low)) - 1

    @property
    def gain(self) -> float:
        return exp(median(self.logs))

    def is_over(self, until: float) -> bool:
        pairs = len(self.logs)
        late = pairs >= LEAST and time.monotonic() > until
        return late or (pairs >= ENOUGH and self.width <= SETTLED)


def interval(values: Sequence[float]) -> tuple[float, float, float]:
    """The median and its 95 % interval, exact for any distribution: of the k-th value and the k-th
    last, for the largest k at which so few lie on one side by chance once in 20 times."""
    number, chance, left_out = len(values), 2 / 2 ** len(values), 0
    while chance <= 1 - CONFIDENCE:
        left_out += 1
        chance += 2 * comb(number, left_out) / 2**number
    ordered = sorted(values)
    left_out = max(left_out - 1, 0)
    return ordered[left_out], median(ordered), ordered[-1 - left_out]


def rows_of(runs: Sequence[Run]) -> list[RemedyPair]:
    """Each run but the baseline, on the one that has the most of its changes and no other."""
    base = next(run for run in runs if run.baseline)
    apart = {
        run.id: {key: value for key, value in run.varied.items() if value != base.varied.get(key)}
        for run in runs
    }
    found = []
    for run in runs:
        if run is not base:
            mine = apart[run.id]
            below = [each for each in runs if apart[each.id].items() < mine.items()]
            on = max(below, key=lambda each: len(apart[each.id]))
            changed = {key: mine[key] for key in mine if run.varied[key] != on.varied.get(key)}
            found.append(RemedyPair(run, on, changed, apart[on.id]))
    order = [run.id for run in runs]
    return sorted(found, key=lambda row: (len(row.before), order.index(row.on.id)))


def measure(rows: Sequence[RemedyPair], data: Path, folder: str) -> None:
    """Rows of one reference follow each other, so that it starts once."""
    until = time.monotonic() + BUDGET_S
    with contextlib.ExitStack() as kept:
        reference: TrainingRanks | None = None
        for number, row in enumerate(rows):
            began = time.monotonic()
            allowed = SHARES * (until - began) / (len(rows) - number)
            with contextlib.closing(TrainingRanks(row.one)) as one:
                try:
                    if reference is None or reference.run is not row.on:
                        kept.close()
                        reference = kept.enter_context(contextlib.closing(TrainingRanks(row.on)))
                        reference.start(data, folder)
                    one.start(data, folder)
                    _alternate(row, one, reference, began + allowed)
                except (RuntimeError, EOFError) as error:  # the latter: a rank was killed
                    row.logs, row.failed = [], True
                    row.sentence = f"failed: {(str(error).strip() or 'killed').splitlines()[-1]}"
                    kept.close()
                    reference = None
            seen = f"{row.gain:.2f} to within {row.width:.1%}" if row.logs else row.sentence
            took = f"{len(row.logs)} pairs of turns, {time.monotonic() - began:.0f} s"
            print(f"{format_changes(row.changed)}: {seen}, {took}", file=sys.stderr, flush=True)


def _alternate(row: RemedyPair, one: TrainingRanks, on: TrainingRanks, until: float) -> None:
    idle = [each for each in one.warnings if "no effect" in each]
    if any(key in warning for key in row.changed for warning in idle):
        row.sentence = "; ".join(idle)
        return
    whole = "training.persistent_workers" in row.changed
    while not row.is_over(until):
        first, second = (one, on) if len(row.logs) % 2 else (on, one)
        speeds = {first: first.turn(whole), second: second.turn(whole)}
        row.logs.append(log(speeds[one] / speeds[on]))
    assert one.run.training is not None
    instances = one.run.training.batch_over_ranks(1) * (1 + one.run.training.negatives)
    row.startup_s = one.startup_s - on.startup_s
    row.saved_s = instances / speeds[on] * (1 - 1 / row.gain)


def quality(settings: Mapping[str, Any], folder: Path) -> float | None:
    """HR@10 after two epochs of one rank, in a process of a pool."""
    record = trained(load_prepared(folder), folder, dict(settings) | {"epochs": EPOCHS})
    return record.epochs[-1].hr10


def arithmetic(run: Run) -> dict[str, Any]:
    """The settings of the run's training that its model depends on; local SGD's is not measured."""
    assert run.training is not None
    kept = {"negatives", "seed", "lr", "global_batch_size", "optimizer", "engine"}
    kept |= {"precision", "compile", "accumulate", "sparse"}
    settings = run.training.model_dump(mode="json", include=kept)
    adam = run.training.adam if settings["engine"] == "reference" else "default"
    return settings | {"adam": adam}


def qualities(runs: Sequence[Run], data: Path) -> dict[str, float | None]:
    """By run id, those that share their arithmetic trained once."""
    wanted: dict[str, dict[str, Any]] = {}
    for run in runs:
        assert run.training is not None
        wanted[repr(arithmetic(run))] = arithmetic(run)
    scores = in_processes(quality, [(each, data) for each in wanted.values()])
    found = dict(zip(wanted, scores, strict=True))
    return {run.id: found.get(repr(arithmetic(run))) for run in runs}


def describe(row: RemedyPair) -> list[str]:
    """The gain, its interval, and the verdict."""
    if row.sentence:
        return ["", "", row.sentence]
    low, _, high = map(exp, interval(row.logs))
    verdict = f"loses: {format_ratio(row.gain)} of the speed"
    if row.width > SETTLED:
        verdict = "not settled"
    elif low <= 1 <= high or abs(row.gain - 1) <= SETTLED:
        verdict = "does nothing here"
    elif row.gain > 1:
        verdict = f"gains {format_ratio(row.gain)}"
    parts = [verdict]
    if (more := row.one.resources.cores - row.on.resources.cores) > 0:
        parts.append(f"for {more} core{'s' * (more > 1)} more")
    if row.changed.get("training.compile", "none") != "none":
        steps = f"pays after {row.startup_s / row.saved_s:,.0f} steps" if row.saved_s > 0 else ""
        longer = format_duration(max(row.startup_s, 0.0))
        parts.append(f"adds {longer} to the start-up and {steps or 'never pays'}")
    return [format_ratio(row.gain), f"{low:.2f} to {high:.2f}", ", ".join(parts)]


def cells(row: RemedyPair, scores: Mapping[str, float | None]) -> list[str]:
    gain, interval, verdict = describe(row)
    ours, theirs = scores[row.one.id], scores[row.on.id]
    if ours and theirs and not row.sentence and abs(ours - theirs) > SCORES_DIFFER:
        verdict += f"; HR@10 was {format_score(theirs)} without it"
    before = format_changes(row.before) or "the baseline"
    score = "" if row.sentence else format_score(ours)
    return [format_changes(row.changed), before, gain, interval, score, verdict]


def main() -> int:
    end_in_order()
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as temporary:
        data = Path(temporary) / "data"
        title = frappe_or_made(data).manifest.title
        overrides = ["repeats=1", f"data.path={data}"]
        runs = build_plan(load_job(JOB, overrides), JOB, overrides).runs
        rows = [
            row
            for row in rows_of(runs)
            if all(word in format_changes(row.changed) for word in sys.argv[1:])
        ]
        measure(rows, data, temporary)
        scores = qualities([run for row in rows for run in (row.one, row.on)], data)
    idle = sum(bool(row.sentence) and not row.failed for row in rows)
    failed = sum(row.failed for row in rows)
    settled = sum(row.width <= SETTLED for row in rows if row.logs)
    minutes = (time.monotonic() - began) / 60
    print(
        f"{title}. {len(rows)} remedies; {idle} cannot act here, {failed} failed. {settled} of the "
        f"other {len(rows) - idle - failed} are settled to within {SETTLED:.0%}, in {minutes:.0f} "
        "minutes. "
        "Each alternates with the configuration that has all of its changes but the last, in turns "
        f"of {TURN_S} s; HR@10 after {EPOCHS} epochs, equal if only the speed changes.\n"
    )
    columns = ["remedy", "on top of", "gain:", "95 %", "HR@10:", "what it does"]
    print(*results.table(columns, (cells(row, scores) for row in rows)), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
