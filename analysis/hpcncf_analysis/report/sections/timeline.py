"""Step times of a run over its time, with the pauses between them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from statistics import median
from typing import Any, Final

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from hpcncf.collect import training_columns
from hpcncf.ncf.step_clock import MAX_PAUSES, PAUSE_FACTOR, PAUSE_S
from hpcncf.records.schema import (
    Epoch,
    RankRecord,
    RecordError,
    TrainingRecord,
    read_record,
)
from hpcncf_analysis.configurations import (
    Configuration,
    pluralize,
)
from hpcncf_analysis.formatting import format_duration, format_number, format_percent
from hpcncf_analysis.report.figures.style import (
    BLUE,
    FAINT,
    GREY,
    PHASES_STYLE,
    PURPLE,
    new_figure,
    quiet_grid,
    report_style,
    wrap_titles,
)
from hpcncf_analysis.report.section import (
    BulletList,
    Drawing,
    Part,
    ReportData,
)

Row = Mapping[str, Any]

FIRST, SLOW, EVALUATION, CHECKPOINT = "first batch", "slow step", "evaluation", "checkpoint"


STOPS: Final = (FIRST, SLOW, EVALUATION, CHECKPOINT)


# A smaller share is no pause to speak of.
MIN_PAUSE_SHARE: Final = 0.01


@dataclass(frozen=True)
class Stop:
    """No step was taken: one of STOPS; a slow step is itself the stop."""

    kind: str
    begun_s: float
    seconds: float


@dataclass(frozen=True)
class Stretch:
    """Steps whose time is recorded as one sum, without the stops among them."""

    begun_s: float
    ended_s: float
    step_s: float


@dataclass(frozen=True)
class Timeline:
    """One rank's steps of one attempt; all times are since its first step."""

    stretches: Sequence[Stretch]
    stops: Sequence[Stop]
    training_s: float
    drift: float | None

    @property
    def ended_s(self) -> float:
        ends = [each.ended_s for each in self.stretches]
        return max([*ends, *(stop.begun_s + stop.seconds for stop in self.stops)])

    @property
    def step_s(self) -> float:
        """The median over the stretches."""
        return median(each.step_s for each in self.stretches)

    def seconds(self, kind: str) -> list[float]:
        """Seconds of each stop of the kind."""
        return [stop.seconds for stop in self.stops if stop.kind == kind]

    def share(self, kind: str) -> float:
        """Of the training's time."""
        return sum(self.seconds(kind)) / self.training_s if self.training_s else 0.0


def select_runs(stepped: Sequence[Configuration], shown: Sequence[Configuration]) -> dict[str, Row]:
    """Label -> the run to show: the first of those whose steps are shown, and the least steady."""
    found = {one.label: one.rows[0] for one in stepped}
    unsteady = [
        (_unsteadiness(row), one.label, row)
        for one in shown
        for row in one.rows
        if "step_drift" in row and training_columns.unsteady(row)
    ]
    if unsteady:
        _, label, row = max(unsteady, key=lambda each: each[0])
        found.setdefault(label, row)
    return found


def _unsteadiness(row: Row) -> float:
    """How far beyond what is still steady."""
    drifted, paused = row["step_drift"] or 0.0, row["pause_share"] or 0.0
    return float(max(abs(drifted) / training_columns.DRIFTED, paused / training_columns.PAUSED))


def build_timeline(part: TrainingRecord) -> Timeline | None:
    """None if too few steps' times are recorded."""
    if len(part.batches.seconds) < training_columns.FEWEST or not part.epochs:
        return None
    if part.steps > part.batches.every * (len(part.batches.seconds) + 1):
        return None  # its record contradicts itself
    walked = list(_split_steps(part))
    return Timeline(
        stretches=[each for each in walked if isinstance(each, Stretch)],
        stops=[each for each in walked if isinstance(each, Stop) and each.seconds > 0],
        training_s=part.training_s,
        drift=training_columns.drift(part),
    )


def _split_steps(part: TrainingRecord) -> Iterator[Stretch | Stop]:
    """Step after step, cut wherever another sum, an epoch or a slow step begins."""
    epochs = _epoch_starts(part)
    first = {
        at: epoch.first_batch_s for at, epoch in epochs.items() if _is_whole_epoch(epoch, part)
    }
    slow = _slow_step_seconds(part, epochs, first)
    plain = _step_seconds(part, first, slow)
    sums = range(0, part.steps, part.batches.every)
    cuts = sorted({*sums, *epochs, *slow, *(at + 1 for at in slow), part.steps})
    now, epoch = 0.0, epochs[0]
    for at, until in pairwise(cuts):
        stops = _stops_after(epoch, part) if at and at in epochs else []
        epoch = epochs.get(at, epoch)
        stops += [(FIRST, first[at])] if at in first else []
        stops += [(SLOW, slow[at])] if at in slow else []
        for kind, seconds in stops:
            yield Stop(kind, now, seconds)
            now += seconds
        if at not in slow:
            step_s = plain[at // part.batches.every]
            yield Stretch(now, now + (until - at) * step_s, step_s)
            now += (until - at) * step_s
    for kind, seconds in _stops_after(epoch, part):
        yield Stop(kind, now, seconds)
        now += seconds


def _epoch_starts(part: TrainingRecord) -> dict[int, Epoch]:
    """Step of this attempt -> the epoch that begins, or goes on, with it."""
    own = [epoch for epoch in part.epochs if epoch.epoch >= (part.resumed_epoch or 0)]
    ends = accumulate((epoch.steps for epoch in own), initial=0)
    earlier = part.resumed_step or 0
    placed = {max(0, end - earlier): epoch for end, epoch in zip(ends, own, strict=False)}
    return {at: epoch for at, epoch in placed.items() if at < part.steps}


def _is_whole_epoch(epoch: Epoch, part: TrainingRecord) -> bool:
    """Of an epoch that was resumed, waits and checkpoints are sums over several attempts."""
    return not (part.resumed_step and epoch.epoch == part.resumed_epoch)


def _stops_after(epoch: Epoch, part: TrainingRecord) -> list[tuple[str, float]]:
    """A checkpoint in mid-epoch counts as the epoch's: where it stood is not recorded."""
    written = [(CHECKPOINT, epoch.checkpoint_s)] if _is_whole_epoch(epoch, part) else []
    return [(EVALUATION, epoch.evaluation_s), *written]


def _slow_step_seconds(
    part: TrainingRecord, epochs: Mapping[int, Epoch], first: Mapping[int, float]
) -> dict[int, float]:
    """Step -> its seconds, where it is slow for more than its wait for an epoch's first batch."""
    begun = {epoch.epoch: at for at, epoch in epochs.items()}
    earlier = {part.resumed_epoch: part.resumed_step or 0}
    every = part.batches.every
    limit = max(PAUSE_FACTOR * median(part.batches.seconds) / every, PAUSE_S)
    found = {}
    for pause in part.batches.pauses:
        number = int(pause["epoch"])
        at = begun[number] + int(pause["step"]) - earlier.get(number, 0)
        found[at] = pause["seconds"] - first.get(at, 0.0)
    return {at: seconds for at, seconds in found.items() if seconds > limit}


def _step_seconds(
    part: TrainingRecord, first: Mapping[int, float], slow: Mapping[int, float]
) -> list[float]:
    """Seconds of a step, for each sum: the stops taken out; 0 where nothing else is in it."""
    every, left = part.batches.every, part.training_s - sum(part.batches.seconds)
    seconds = [*part.batches.seconds, max(0.0, left)]
    steps = [every] * len(part.batches.seconds)
    steps.append(part.steps - sum(steps))
    for at, stopped in [*first.items(), *slow.items()]:
        seconds[at // every] -= stopped
    for at in slow:
        steps[at // every] -= 1
    return [
        max(0.0, each) / many if many else 0.0 for each, many in zip(seconds, steps, strict=True)
    ]


def describe_timeline(label: str, timeline: Timeline) -> str:
    """What the figure shows, in one sentence."""
    pauses = [*_begins(timeline), *_slow_steps(timeline)] or [
        "no pause takes 1\u202f% of the training"
    ]
    more = [
        text
        for text in (_describe_other_time(timeline), training_columns.pace(timeline.drift))
        if text
    ]
    return f"{label}: {'; '.join([*pauses, *more])}."


def _begins(timeline: Timeline) -> list[str]:
    pauses = timeline.seconds(FIRST)
    share = timeline.share(FIRST)
    if share < MIN_PAUSE_SHARE:
        return []
    first, later = pauses[0], pauses[1:]
    if not later:
        which = f"the epoch begins with a pause of {format_duration(first)}"
    elif 2 * median(later) < first:
        which = (
            f"the first epoch begins with a pause of {format_duration(first)}, a later one of "
            f"{format_duration(median(later))}"
        )
    else:
        which = f"each epoch begins with a pause of {format_duration(median(pauses))}"
    return [f"{which}: {format_percent(share)} of the training"]


def _slow_steps(timeline: Timeline) -> list[str]:
    share = timeline.share(SLOW)
    if share < MIN_PAUSE_SHARE:
        return []
    count = len(timeline.seconds(SLOW))
    steps = f"{'at least ' if count == MAX_PAUSES else ''}{pluralize(count, 'single step')}"
    return [f"{steps} of over ten times the median: {format_percent(share)} of the training"]


def _describe_other_time(timeline: Timeline) -> str:
    named = {
        "evaluation": timeline.seconds(EVALUATION),
        "checkpoints": timeline.seconds(CHECKPOINT),
    }
    shares = {name: sum(seconds) / timeline.ended_s for name, seconds in named.items()}
    parts = [
        f"{format_percent(each)} is {name}"
        for name, each in shares.items()
        if each >= MIN_PAUSE_SHARE
    ]
    return f"of the time since the first step {' and '.join(parts)}" if parts else ""


COLOURS: Final = {
    FIRST: PHASES_STYLE["input"],
    SLOW: "#8A6100",
    EVALUATION: "#2A7FA8",
    CHECKPOINT: PURPLE,
}


STEPS_IN: Final = 1.35


LANE_IN: Final = 0.24


# What is beyond so many times the time that all but a fiftieth stay below would flatten the rest.
MAX_OVER_QUANTILE: Final = 2.0


FIFTIETH: Final = 50


def timeline_figure(timelines: Mapping[str, Timeline]) -> Figure | None:
    """Title -> run: a panel for each, a lane below it for each kind of stop that it has."""
    if not timelines:
        return None
    lanes = [[kind for kind in STOPS if one.seconds(kind)] for one in timelines.values()]
    titles, lines_in = wrap_titles(
        f"{title}: {format_number(1000 * one.step_s)} ms" for title, one in timelines.items()
    )
    heights = [each for kinds in lanes for each in (STEPS_IN, LANE_IN * len(kinds))]
    with report_style():
        figure = new_figure(sum(heights) + lines_in + 0.65 * len(timelines) + 0.3)
        panels = figure.subplots(len(heights), 1, height_ratios=heights)
        pairs = zip(panels[::2], panels[1::2], titles, timelines.values(), lanes, strict=True)
        for steps, below, title, one, kinds in pairs:
            steps.set_title(title)
            _steps(steps, one)
            _lanes(below, one, kinds)
        panels[-1].set_xlabel("seconds since the first step")
    return figure


def _steps(axes: Axes, one: Timeline) -> None:
    """A level line for each sum of steps; nothing where none was taken."""
    top = _top([each.step_s for each in one.stretches])
    at: list[float] = []
    ms: list[float] = []
    for each in one.stretches:
        if at and each.begun_s > at[-1]:
            at, ms = [*at, at[-1]], [*ms, float("nan")]
        at += [each.begun_s, each.ended_s]
        ms += [1000 * min(each.step_s, top)] * 2
    axes.plot(at, ms, color=BLUE, lw=1.2, solid_capstyle="butt")
    beyond = [each.begun_s for each in one.stretches if each.step_s > top]
    if beyond:  # an empty line would claim room in the layout
        axes.plot(beyond, [1000 * top] * len(beyond), "^", color=BLUE, ms=6, clip_on=False)
    axes.set_xlim(0, one.ended_s)
    axes.set_ylim(0, 1150 * top)
    axes.set_ylabel("ms a step")
    axes.tick_params(axis="x", labelbottom=False)
    quiet_grid(axes)


def _top(times: list[float]) -> float:
    """The longest that is drawn to scale; an arrow stands for what is beyond."""
    ordered = sorted(times)
    return min(ordered[-1], MAX_OVER_QUANTILE * ordered[-1 - len(ordered) // FIFTIETH])


def _lanes(axes: Axes, one: Timeline, kinds: list[str]) -> None:
    for row, kind in enumerate(kinds):
        bars = [(stop.begun_s, stop.seconds) for stop in one.stops if stop.kind == kind]
        # The edge keeps the shortest visible.
        axes.broken_barh(bars, (row - 0.36, 0.72), color=COLOURS[kind], lw=0.8)
        axes.annotate(
            _lengths(one.seconds(kind)),
            (1, row),
            xycoords=("axes fraction", "data"),
            xytext=(6, 0),
            textcoords="offset points",
            va="center",
            size=10,
        )
    axes.set_yticks(range(len(kinds)), kinds)
    axes.set_ylim(max(len(kinds), 1) - 0.5, -0.5)
    axes.set_xlim(0, one.ended_s)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.grid(visible=True, axis="x", color=FAINT, lw=0.6)
    axes.set_axisbelow(True)
    axes.spines["bottom"].set_color(GREY)


def _lengths(seconds: list[float]) -> str:
    """`6 × 0.82 s`, by the median."""
    each = format_duration(median(seconds))
    return each if len(seconds) == 1 else f"{len(seconds)} × {each}"


def build_timelines(data: ReportData) -> dict[str, Timeline]:
    """By label; without the runs of too few steps."""
    rows = select_runs(data.recommended_and_slowest, data.shown)
    found = {label: _first_rank(data, row) for label, row in rows.items()}
    timelines = {label: build_timeline(part) for label, part in found.items() if part}
    return {label: timeline for label, timeline in timelines.items() if timeline}


def _first_rank(data: ReportData, row: Row) -> TrainingRecord | None:
    if data.paths is None:
        return None
    record = data.paths.run(row["run_id"]).attempt(row["attempt"]).rank(0)
    try:
        return read_record(record, RankRecord).training
    except RecordError:
        return None  # collect has listed it as skipped


CAPTION: Final = (
    "Blue: the mean time of a few steps, one after another, of the first rank. Pauses are taken "
    "out of it and stand below, each as wide as it is long. An arrow stands for steps beyond the "
    "panel. The configuration recommended, then the slowest, then the least steady if a run did "
    "not keep its pace."
)


def timeline_parts(data: ReportData) -> list[Part]:
    timelines = build_timelines(data)
    if not timelines:
        return []
    title = "The steps over time, and the pauses"
    drawing = Drawing("timeline", title, CAPTION, lambda: timeline_figure(timelines))
    sentences = [describe_timeline(label, each) for label, each in timelines.items()]
    return [*data.draw(drawing), BulletList(sentences)]
