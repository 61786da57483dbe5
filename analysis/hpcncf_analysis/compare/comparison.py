"""Two sides put side by side: configuration by configuration, and all together. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

from hpcncf.tables.told import METRIC
from hpcncf_analysis.advice.quality import is_worse, quality_gap
from hpcncf_analysis.compare import chance
from hpcncf_analysis.compare.chance import Ratio
from hpcncf_analysis.compare.changes import (
    Change,
    cautions,
    of_environment,
    of_nodes,
    of_settings,
    settings_of,
)
from hpcncf_analysis.compare.phases import Moved, moved
from hpcncf_analysis.compare.sides import Side
from hpcncf_analysis.summary import Configuration, configurations, metrics

Quality = Literal["worse", "better", "alike", "not compared"]

# Told of both sides beside their speed, medians over the repeats.
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
        for name in metrics([*self.a.rows, *self.b.rows]):
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
    speed_of: Literal["instances_per_s", "runs_per_hour"]
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
    """Configurations are matched by all settings but those that tell the sides apart."""
    changed = of_settings(a.rows, b.rows)
    environment = of_environment(a.environments, b.environments) + of_nodes(a.rows, b.rows)
    apart = {change.name for change in changed}
    ours, theirs = _by_settings(a, apart), _by_settings(b, apart)
    counted = all(row["instances_per_s"] for row in [*a.rows, *b.rows])
    pairs = [_pair(ours[key], theirs[key], counted) for key in ours if key in theirs]
    speeds = [(_speeds(pair.a, counted), _speeds(pair.b, counted)) for pair in pairs]
    return Comparison(
        a=a,
        b=b,
        speed_of="instances_per_s" if counted else "runs_per_hour",
        settings=changed,
        environment=environment,
        cautions=cautions(a.rows, b.rows, environment),
        pairs=pairs,
        only_a=[one.label for key, one in ours.items() if key not in theirs],
        only_b=[one.label for key, one in theirs.items() if key not in ours],
        overall=chance.of_all(speeds) if len(pairs) > 1 else None,
    )


def _by_settings(side: Side, apart: set[str]) -> dict[tuple[tuple[str, str], ...], Configuration]:
    found: dict[tuple[tuple[str, str], ...], Configuration] = {}
    for one in configurations({**row, "retired": False} for row in side.rows):
        told = settings_of(one.rows[0]).items()
        key = tuple(sorted((name, text) for name, text in told if name not in apart))
        # Threads asked for by number may be those that `auto` gave another: the label tells.
        found[key if key not in found else (*key, ("label", one.label))] = one
    return found


def _pair(a: Configuration, b: Configuration, counted: bool) -> Pair:
    ratio = chance.of_one(_speeds(a, counted), _speeds(b, counted))
    return Pair(a, b, ratio, _quality(a, b), moved(a, b))


def _speeds(one: Configuration, counted: bool) -> list[float]:
    """Of every repeat: instances a second, or where some run counted none, runs per hour."""
    if counted:
        return [row["instances_per_s"] for row in one.rows]
    return [3600 / row["elapsed_s"] for row in one.rows]


def _quality(a: Configuration, b: Configuration) -> Quality:
    if quality_gap(a, b) is None:  # not evaluated, or not alike
        return "not compared"
    if is_worse(b, a):
        return "worse"
    return "better" if is_worse(a, b) else "alike"
