"""A comparison in words: lines above its table, the table, lines below; as Markdown. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from hpcncf_analysis import words
from hpcncf_analysis.compare.chance import ALPHA, Ratio
from hpcncf_analysis.compare.comparison import Comparison, Pair
from hpcncf_analysis.labels import counted

# With so many comparisons some differ by chance alone.
MANY: Final = 5
HEADS: Final = ("configuration", "A", "B", "B / A", "", "HR@10")


def above(found: Comparison) -> list[str]:
    """What is compared, and what changed but speed."""
    sides = [
        f"{letter}: {side.name}, {counted(len(side.rows), 'run')}"
        + (f" ({side.left_out} left out: not complete, or retired)" if side.left_out else "")
        for letter, side in (("A", found.a), ("B", found.b))
    ]
    changes = [
        *(f"setting {change}" for change in found.settings),
        *(f"environment {change}" for change in found.environment),
    ]
    return [*sides, *(changes or ["same settings, same software, same machine"])]


def rows(found: Comparison) -> list[list[str]]:
    """Under HEADS; the last is all of them together, where there are several."""
    table = [_row(pair, found.speed_of) for pair in found.pairs]
    if found.overall:
        ratio = found.overall
        table.append(["all together", "", "", _ratio(ratio), ratio.verdict, ""])
    return table


def _row(pair: Pair, speed_of: str) -> list[str]:
    speeds = [
        _speed(one.median("instances_per_s"), one.median("elapsed_s"), speed_of)
        for one in (pair.a, pair.b)
    ]
    return [pair.label, *speeds, _ratio(pair.ratio), pair.ratio.verdict, _quality_shown(pair)]


def _speed(per_s: float | None, elapsed_s: float | None, speed_of: str) -> str:
    return (
        f"{words.number(per_s)}/s" if speed_of == "instances_per_s" else words.duration(elapsed_s)
    )


def _ratio(ratio: Ratio) -> str:
    ends = words.interval(ratio.low, ratio.high, words.hundredths)
    return f"{words.times(ratio.value)} {ends}".rstrip()


def _quality_shown(pair: Pair) -> str:
    scores = [words.score(one.median("hr10")) for one in (pair.a, pair.b)]
    if scores == [words.NONE, words.NONE]:
        return ""
    return f"{scores[0]} → {scores[1]}" + (f", {pair.quality}" if pair.quality != "alike" else "")


def below(found: Comparison) -> list[str]:
    """Where the time went, what was not compared, and how far to trust what was."""
    return [*_moved(found), *_metrics(found), *_only(found), *found.cautions, *_repeats(found)]


def _moved(found: Comparison) -> Iterator[str]:
    for pair in found.pairs:
        if pair.moved and pair.ratio.verdict in ("faster", "slower"):
            told = pair.moved
            yield (
                f"{pair.label}: {pair.ratio.verdict} most of all in {told.phase}, "
                f"{words.number(told.a_us)} → {words.number(told.b_us)} µs an instance"
            )


def _metrics(found: Comparison) -> Iterator[str]:
    """Nobody knows whether more of it is better: told, not judged."""
    for pair in found.pairs:
        if pair.metrics:
            told = (f"{name} {words.metric(a)} → {words.metric(b)}" for name, a, b in pair.metrics)
            yield f"{pair.label}: reported {', '.join(told)}"


def _only(found: Comparison) -> Iterator[str]:
    for letter, labels in (("A", found.only_a), ("B", found.only_b)):
        if labels:
            yield f"only in {letter}: {'; '.join(labels)}"


def _repeats(found: Comparison) -> Iterator[str]:
    few = sum(pair.ratio.verdict == "too few repeats" for pair in found.pairs)
    if few:
        yield (
            f"{counted(few, 'configuration')} with too few repeats to tell a difference from "
            "scatter: it takes three on each side, or two against five (repeats: 3 in the job "
            "file; --repeats takes all those of a run that is named)"
        )
    if len(found.pairs) - few >= MANY:
        chances = ALPHA * (len(found.pairs) - few)
        yield (
            f"of {len(found.pairs) - few} comparisons {chances:.1f} would differ by chance "
            "alone; all together is the surer answer"
        )


def verdicts(found: Comparison, threshold: float) -> list[str]:
    """How it stands to the threshold, a line for each failure and each open question."""
    failed = [f"FAILED: {text}" for text in found.failures(threshold)]
    asked = [
        f"OPEN: {label} looks slower by more than {threshold:.0%}, and the repeats are too few to "
        "be sure"
        for label in found.open_questions(threshold)
    ]
    held = f"held: nothing is shown to be slower by more than {threshold:.0%}, or worse"
    return [*failed, *asked] or [held]


def markdown(found: Comparison, threshold: float | None) -> str:
    """For a pull request: one table, what changed, what to mind."""
    lines = [f"- {_escaped(line)}" for line in above(found)]
    table = [_cells(HEADS), _cells(["---", "---:", "---:", "---:", "---", "---"])]
    table += [_cells(map(_escaped, row)) for row in rows(found)]
    notes = [f"- {_escaped(line)}" for line in below(found)]
    stands = (
        [] if threshold is None else [f"**{_escaped(v)}**  " for v in verdicts(found, threshold)]
    )
    parts: Sequence[Sequence[str]] = (stands, lines, table, notes)
    return "\n\n".join("\n".join(part) for part in parts if part) + "\n"


def _cells(texts: Sequence[str] | Iterator[str]) -> str:
    return f"| {' | '.join(texts)} |"


def _escaped(text: str) -> str:
    for mark in ("\\", "|", "*", "_", "`", "<", "["):
        text = text.replace(mark, f"\\{mark}")
    return " ".join(text.split("\n"))
