"""The laws of speed in a table, and in words where speed peaks. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from math import isinf

from hpcncf_analysis import labels, words
from hpcncf_analysis.scaling.cells import ends, with_ends
from hpcncf_analysis.scaling.comparable import cautions
from hpcncf_analysis.scaling.law import FEWEST_SIZES, Knee, Law, Refusal
from hpcncf_analysis.scaling.lines import Line, lines, long_enough
from hpcncf_analysis.summary import Configuration
from hpcncf_analysis.table import Table


def law_table(shown: Sequence[Configuration]) -> Table | None:
    """Amdahl's law and the USL along the lines of enough sizes; None where there is none."""
    rows = [cells for line in long_enough(lines(shown)) if (cells := _laws(line))]
    columns = ["along", "Amdahl: serial share", "USL: contention σ", "USL: crosstalk κ"]
    columns += ["USL: fastest size N*", "misfit", "used up to", "caution"]
    return Table(columns, rows, frozenset({"caution"})) if rows else None


def _laws(line: Line) -> list[str] | None:
    amdahl, usl = line.fit("amdahl"), line.fit("usl")
    if isinstance(usl, Refusal):
        return None
    said = [text for one in line.points for text in cautions(one, line.base)]
    serial = words.NONE
    if isinstance(amdahl, Law):
        serial = with_ends(amdahl.sigma, amdahl.sigma_interval(), words.percent)
    return [
        line.name,
        serial,
        with_ends(usl.sigma, usl.sigma_interval(), words.number),
        with_ends(usl.kappa, usl.kappa_interval(), words.number),
        knee(usl),
        words.percent(usl.misfit),
        f"{usl.largest:g} {unit(line)}",
        "; ".join(dict.fromkeys(said)),
    ]


def knee(law: Law) -> str:
    """`12.4 [9.1–17]`; where speed still grows, from where on nothing is known."""
    found = law.knee
    if found is None:
        return f"none up to {law.largest:g}"
    beyond = f"beyond {law.largest:g}"
    return with_ends(
        found.size,
        ends(found.low, found.high),
        lambda end: beyond if end == float("inf") else words.number(end),
    )


def peaks(shown: Sequence[Configuration]) -> list[str]:
    """A sentence for each line whose speed peaks within reach, or may: there more makes it
    slower."""
    fits = [(line, line.fit("usl")) for line in long_enough(lines(shown))]
    return [_peak(line, fit, fit.knee) for line, fit in fits if isinstance(fit, Law) and fit.knee]


def _peak(line: Line, fit: Law, found: Knee) -> str:
    where = f"{' '.join(knee(fit).split())} {unit(line)} by the USL"
    if found.high is not None and isinf(found.high):
        return (
            f"{line.name}: open whether speed peaks: at {where}, and its repeats allow that it "
            f"grows as far as the law is used, {fit.largest:g}."
        )
    alone = ", without an interval (each size ran once)" if found.high is None else ""
    beyond = _unmeasured(fit, found.size)
    return f"{line.name}: fastest at {where}{beyond}{alone}; more makes it slower."


def _unmeasured(fit: Law, size: float) -> str:
    return f", beyond the {fit.sizes[-1]:g} measured" if size > fit.sizes[-1] else ""


def unit(line: Line) -> str:
    return "ranks" if line.grows == "ranks" else "cores"


def law_note(shown: Sequence[Configuration]) -> str | None:
    """Why lines have no law, and which sizes a law leaves aside."""
    found = lines(shown)
    told = long_enough(found)
    if found and not told:
        return (
            f"No law is fitted: one needs {FEWEST_SIZES} sizes or more along one line (more ranks, "
            f"or more cores for each), and {max(len(line.points) for line in found)} were measured "
            "at most."
        )
    fits = [(line, line.fit("usl")) for line in told]
    parts = [f"No law of {line.name}: {f.reason}." for line, f in fits if isinstance(f, Refusal)]
    aside = {one.label for line in told for one in line.left_out}
    if aside:
        parts.append(f"A law takes one of each size, and not: {'; '.join(sorted(aside))}.")
    if len(found) > len(told):
        more = labels.counted(len(found) - len(told), "further line")
        parts.append(f"No law is fitted to {more}.")
    return " ".join(parts) or None
