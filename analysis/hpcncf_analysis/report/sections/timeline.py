"""Step times of a run over its time, with the pauses between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from statistics import median
from typing import Any, Final

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from hpcncf.records.schema import Epoch, RankRecord, RecordError, TrainingRecord, read_record
from hpcncf_analysis.formatting import format_duration, format_number
from hpcncf_analysis.report.figure_style import (
    BLUE,
    FAINT,
    GREY,
    PHASES_STYLE,
    PURPLE,
    annotate,
    name_rows,
    quiet_grid,
    stack_panels,
)
from hpcncf_analysis.report.section import Drawing, ReportData, SectionPart

Row = Mapping[str, Any]

FIRST, SLOW, EVALUATION, CHECKPOINT = "first batch", "slow step", "evaluation", "checkpoint"
# Each kind of stop, and its colour.
STOPS: Final = {
    FIRST: PHASES_STYLE["input"],
    SLOW: "#8A6100",
    EVALUATION: "#2A7FA8",
    CHECKPOINT: PURPLE,
}
# Heights of a panel of steps, and of a lane below it for a kind of stop.
STEPS_IN: Final = 1.35
LANE_IN: Final = 0.24
# Fewer recorded sums are no course of time.
FEWEST_STRETCHES: Final = 9
# What is beyond so many times the time that all but a fiftieth stay below would flatten the rest.
MAX_OVER_QUANTILE: Final = 2.0
FIFTIETH: Final = 50
CAPTION: Final = (
    "Blue: the mean time of a few steps, one after another, of the first rank. Pauses stand below, "
    "each as wide as it is long. An arrow stands for steps beyond the panel. The configuration "
    "recommended, then the slowest."
)


@dataclass(frozen=True)
class Stop:
    """An interruption of the steps, of one of the kinds in STOPS, such as an evaluation.

    Steps continue during the wait for a first batch, and a slow step is a step itself: the time of
    both is in the time of their stretch, too.
    """

    kind: str
    begun_s: float
    seconds: float


@dataclass(frozen=True)
class Stretch:
    """Steps whose time is recorded as one sum."""

    begun_s: float
    ended_s: float
    step_s: float


@dataclass(frozen=True)
class Timeline:
    """Step times of one rank's attempt; all times count from its first step."""

    stretches: Sequence[Stretch]
    stops: Sequence[Stop]
    ended_s: float
    step_s: float
    """The median over the recorded sums."""

    @property
    def kinds(self) -> list[str]:
        """Kinds of STOPS that occur in the timeline."""
        return [kind for kind in STOPS if self.seconds(kind)]

    def seconds(self, kind: str) -> list[float]:
        """Duration in seconds of each stop of this kind."""
        return [stop.seconds for stop in self.stops if stop.kind == kind]


def timeline_parts(data: ReportData) -> list[SectionPart]:
    timelines: dict[str, Timeline] = {}
    for one in data.chosen_and_slowest:
        part = _first_rank(data, one.rows[0])
        if found := build_timeline(part) if part else None:
            timelines[one.label] = found
    title = "The steps over time, and the pauses"
    return data.draw(Drawing("timeline", title, CAPTION, lambda: timeline_figure(timelines)))


def _first_rank(data: ReportData, row: Row) -> TrainingRecord | None:
    if data.paths is None:
        return None
    record = data.paths.run(row["run_id"]).attempt(row["attempt"]).rank(0)
    try:
        return read_record(record, RankRecord).training
    except RecordError:
        return None  # collect has listed it as skipped


def build_timeline(part: TrainingRecord) -> Timeline | None:
    """Build the timeline; None if too few step times are recorded or the record is inconsistent."""
    every, seconds = part.batches.every, part.batches.seconds
    rest = part.steps - every * len(seconds)
    if len(seconds) < FEWEST_STRETCHES or not part.epochs or rest > every:
        return None
    step_s = [each / every for each in seconds]
    step_s.append(max(0.0, part.training_s - sum(seconds)) / max(rest, 1))
    epochs = _epoch_starts(part)
    slow = _slow_steps(part, epochs)
    cuts = sorted({*range(0, part.steps, every), *epochs, *slow, part.steps})
    stretches, stops = [], []
    now, epoch = 0.0, epochs[0]
    for at, until in pairwise([*cuts, part.steps]):
        if at and (at in epochs or at == part.steps):  # the epoch before is over
            for kind, pause in ((EVALUATION, epoch.evaluation_s), (CHECKPOINT, epoch.checkpoint_s)):
                if pause and not (kind == CHECKPOINT and _is_partial(epoch, part)):
                    stops.append(Stop(kind, now, pause))
                    now += pause
        if at in epochs:
            epoch = epochs[at]
            if epoch.first_batch_s and not _is_partial(epoch, part):
                stops.append(Stop(FIRST, now, epoch.first_batch_s))
        if at in slow:
            stops.append(Stop(SLOW, now, slow[at]))
        if at < until:
            each = step_s[at // every]
            stretches.append(Stretch(now, now + (until - at) * each, each))
            now += (until - at) * each
    return Timeline(stretches, stops, now, median(seconds) / every)


def _epoch_starts(part: TrainingRecord) -> dict[int, Epoch]:
    """Map each step of this attempt at which an epoch begins or continues to that epoch."""
    own = [epoch for epoch in part.epochs if epoch.epoch >= (part.resumed_epoch or 0)]
    ends = accumulate((epoch.steps for epoch in own), initial=0)
    earlier = part.resumed_step or 0
    placed = {max(0, end - earlier): epoch for end, epoch in zip(ends, own, strict=False)}
    return {at: epoch for at, epoch in placed.items() if at < part.steps}


def _is_partial(epoch: Epoch, part: TrainingRecord) -> bool:
    """Whether the epoch was resumed, so that its waits are sums over several attempts."""
    return bool(part.resumed_step) and epoch.epoch == part.resumed_epoch


def _slow_steps(part: TrainingRecord, epochs: Mapping[int, Epoch]) -> dict[int, float]:
    """Step -> seconds of each slow step that no wait for a first batch explains."""
    begun = {epoch.epoch: at for at, epoch in epochs.items()}
    earlier = {part.resumed_epoch: part.resumed_step or 0}
    found = {}
    for pause in part.batches.pauses:
        number = int(pause["epoch"])
        at = begun[number] + int(pause["step"]) - earlier.get(number, 0)
        waited_s = epochs[at].first_batch_s if at in epochs else 0.0
        if waited_s < pause["seconds"] / 2:
            found[at] = pause["seconds"]
    return found


def timeline_figure(timelines: Mapping[str, Timeline]) -> Figure | None:
    """Figure of the runs' step times, a panel each with a lane for each kind of stop."""
    if not timelines:
        return None
    heights = {
        f"{title}: {format_number(1000 * one.step_s)} ms": (STEPS_IN, LANE_IN * len(one.kinds))
        for title, one in timelines.items()
    }
    panels = stack_panels(heights, sharex=False)
    for (steps, lanes), one in zip(panels, timelines.values(), strict=True):
        _draw_steps(steps, one)
        _draw_lanes(lanes, one)
    lanes.set_xlabel("seconds since the first step")
    return lanes.get_figure(root=True)


def _draw_steps(axes: Axes, one: Timeline) -> None:
    """Draw the mean step time of each stretch as a level line, with gaps during stops."""
    ordered = sorted(each.step_s for each in one.stretches)
    # The longest that is drawn to scale; an arrow stands for what is beyond.
    top = min(ordered[-1], MAX_OVER_QUANTILE * ordered[-1 - len(ordered) // FIFTIETH])
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


def _draw_lanes(axes: Axes, one: Timeline) -> None:
    for row, kind in enumerate(one.kinds):
        bars = [(stop.begun_s, stop.seconds) for stop in one.stops if stop.kind == kind]
        # The edge keeps the shortest visible.
        axes.broken_barh(bars, (row - 0.36, 0.72), color=STOPS[kind], lw=0.8)
        each = format_duration(median(one.seconds(kind)))
        text = each if len(bars) == 1 else f"{len(bars)} × {each}"
        annotate(axes, text, (1, row), xycoords=("axes fraction", "data"), size=10)
    name_rows(axes, one.kinds)
    axes.set_xlim(0, one.ended_s)
    axes.spines["left"].set_visible(False)
    axes.grid(visible=True, axis="x", color=FAINT, lw=0.6)
    axes.set_axisbelow(True)
    axes.spines["bottom"].set_color(GREY)
