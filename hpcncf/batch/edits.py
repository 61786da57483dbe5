"""Changes of a script's lines, and the unified diff that shows them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

CONTEXT: Final = 2


@dataclass(frozen=True, order=True)
class Edit:
    """A line that is replaced by others, or before which others are inserted."""

    line: int
    """From 1; one more than the last line inserts at the end."""
    new: tuple[str, ...]
    """Without line ends; empty removes the line."""
    reason: str = ""
    """Why: the diff shows it above the line."""
    inserts: bool = False
    """Whether the line itself stays, after the new ones."""


def merge_edits(edits: Iterable[Edit]) -> list[Edit]:
    """Sort edits by line, and keep only the first replacement of each line."""
    replaced: dict[int, Edit] = {}
    inserted: dict[tuple[int, tuple[str, ...]], Edit] = {}
    for edit in edits:
        if edit.inserts:
            inserted.setdefault((edit.line, edit.new), edit)
        else:
            replaced.setdefault(edit.line, edit)
    return sorted(
        [*inserted.values(), *replaced.values()], key=lambda each: (each.line, not each.inserts)
    )


def apply_edits(text: str, edits: Sequence[Edit]) -> str:
    """Apply edits to a text and return it; its line ends are kept."""
    return "".join(line for _, after in _changes(text, merge_edits(edits)) for line in after)


def _changes(text: str, edits: Sequence[Edit]) -> Iterator[tuple[list[str], list[str]]]:
    """Yield each line of the text with the lines that replace it."""
    lines = list(_split(text))
    end = "\r\n" if lines and lines[0].endswith("\r\n") else "\n"
    by_line: dict[int, list[Edit]] = {}
    for edit in edits:
        by_line.setdefault(edit.line, []).append(edit)
    for number, line in enumerate(lines, 1):
        after = [line]
        inserted = 0
        for edit in by_line.get(number, ()):
            own_end = "" if not line.endswith("\n") else end
            new = [f"{each}{own_end or end}" for each in edit.new]
            if not edit.inserts:
                if not own_end and new:
                    new[-1] = new[-1].removesuffix(end)
                after[-1:] = new
            else:
                after[inserted:inserted] = new
                inserted += len(new)
        yield [line], after
    tail = [f"{each}{end}" for edit in by_line.get(len(lines) + 1, ()) for each in edit.new]
    if tail:
        if lines and not lines[-1].endswith("\n"):
            tail[0] = end + tail[0]
        yield [], tail


def _split(text: str) -> Iterator[str]:
    """Split a text into lines with their ends, at line feeds only."""
    start = 0
    while start < len(text):
        end = text.find("\n", start)
        end = len(text) if end < 0 else end + 1
        yield text[start:end]
        start = end


def unified_diff(name: str, text: str, edits: Sequence[Edit]) -> str:
    """Format edits of a text as a unified diff; empty if nothing changes.

    The reason of each edit stands after `@@`, where patch and git allow a comment.
    """
    merged = merge_edits(edits)
    reasons: dict[int, list[str]] = {}
    for edit in merged:
        if edit.reason and edit.reason not in reasons.setdefault(edit.line, []):
            reasons[edit.line].append(edit.reason)
    changes = list(_changes(text, merged))
    changed = [index for index, (old, new) in enumerate(changes) if old != new]
    if not changed:
        return ""
    pieces = [f"--- {name}\n", f"+++ {name}\n"]
    shift = 0
    previous = 0
    for place, index in enumerate(changed):
        following = changed[place + 1] if place + 1 < len(changed) else len(changes) + CONTEXT
        # Neighbouring changes have a part of their own, so that each has its reason above it.
        first = max(index - CONTEXT, previous)
        last = min(index + CONTEXT + 1, following, len(changes))
        previous = last
        before = [line for old, _ in changes[first:index] for line in old]
        old, new = changes[index]
        after = [line for each, _ in changes[index + 1 : last] for line in each]
        count_old = len(before) + len(old) + len(after)
        count_new = len(before) + len(new) + len(after)
        start = first + 1 - (count_old == 0)
        start_new = first + 1 + shift - (count_new == 0)
        shift += len(new) - len(old)
        reason = "; ".join(reasons.get(index + 1, []))
        pieces.append(
            f"@@ -{start},{count_old} +{start_new},{count_new} @@{' ' + reason if reason else ''}\n"
        )
        kept = [line for line in new if line in old] if len(new) != len(old) else []
        pieces += [_diff_line(" ", line) for line in before]
        if kept == old:  # an insertion
            at = new.index(old[0]) if old else len(new)
            pieces += [_diff_line("+", line) for line in new[:at]]
            pieces += [_diff_line(" ", line) for line in old]
            pieces += [_diff_line("+", line) for line in new[at + len(old) :]]
        else:
            pieces += [_diff_line("-", line) for line in old]
            pieces += [_diff_line("+", line) for line in new]
        pieces += [_diff_line(" ", line) for line in after]
    return "".join(pieces)


def _diff_line(mark: str, line: str) -> str:
    return (
        f"{mark}{line}" if line.endswith("\n") else f"{mark}{line}\n\\ No newline at end of file\n"
    )
