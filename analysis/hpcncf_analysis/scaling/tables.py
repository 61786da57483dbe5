"""Tables of how the configurations scale: against their base, as laws, by POP's factors. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from hpcncf_analysis import words
from hpcncf_analysis.advice.recommend import Ratio, of_cores, of_speeds
from hpcncf_analysis.scaling import pop
from hpcncf_analysis.scaling.comparable import cautions
from hpcncf_analysis.scaling.law import FEWEST_SIZES, Law, Refusal
from hpcncf_analysis.scaling.lines import Line, lines, long_enough
from hpcncf_analysis.scaling.pop import Pop
from hpcncf_analysis.scaling.quality import TimeToQuality
from hpcncf_analysis.scaling.speedup import karp_flatt
from hpcncf_analysis.scaling.weak import Weak, weak
from hpcncf_analysis.summary import Configuration, by_series
from hpcncf_analysis.table import Table

Row = Mapping[str, Any]
Interval = tuple[float, float] | None

WORK: Final = {"epoch": "an epoch's, with the data", "step": "a step's, with the batch"}
# A rank that computes longer than the others by less than this is not called slower.
SLOWER: Final = 0.02


def strong_table(shown: Sequence[Configuration]) -> Table | None:
    """Each configuration against the fewest cores of its series; None where no series has two."""
    series = [members for members in by_series(shown).values() if len(members) > 1]
    rows = [_strong(one, members[0]) for members in series for one in members[1:]]
    columns = ["configuration", "against", "speed-up", "parallel efficiency"]
    columns += ["serial share (Karp-Flatt)", "caution"]
    return Table(columns, rows, frozenset({"against", "caution"})) if rows else None


def _strong(one: Configuration, base: Configuration) -> list[str]:
    gain = of_speeds(one, base)
    return [
        one.label,
        base.label,
        _ratio(gain, words.times),
        _ratio(of_cores(one, base), words.percent),
        words.percent(karp_flatt(gain.value, one.cores / base.cores)),
        "; ".join(cautions(one, base)),
    ]


def _ratio(ratio: Ratio, show: Callable[[float | None], str]) -> str:
    return with_ends(ratio.value, _ends(ratio.low, ratio.high), show)


def weak_table(shown: Sequence[Configuration]) -> Table | None:
    """Where the work grows with the cores; None where it nowhere does."""
    rows = [_weak(each) for each in weak(shown)]
    columns = ["configuration", "against", "work that grows", "work", "time for it"]
    columns += ["scaled speed-up", "weak efficiency", "caution"]
    texts = frozenset({"against", "work that grows", "caution"})
    return Table(columns, rows, texts) if rows else None


def _weak(each: Weak) -> list[str]:
    of_each = of_cores(each.one, each.base)
    return [
        each.one.label,
        each.base.label,
        WORK[each.work],
        words.times(each.work_ratio),
        words.times(each.time_ratio),
        words.times(each.speedup),
        with_ends(each.efficiency, _ends(of_each.low, of_each.high), words.percent),
        "; ".join(cautions(each.one, each.base)),
    ]


def law_table(shown: Sequence[Configuration]) -> Table | None:
    """Amdahl's law and the USL along the lines of enough sizes; None where there is none."""
    rows = [cells for line in long_enough(lines(shown)) if (cells := _laws(line))]
    columns = ["along", "Amdahl: serial share", "USL: contention σ", "USL: crosstalk κ"]
    columns += ["USL: fastest size N*", "misfit", "used up to"]
    return Table(columns, rows) if rows else None


def _laws(line: Line) -> list[str] | None:
    amdahl, usl = line.fit("amdahl"), line.fit("usl")
    if isinstance(usl, Refusal):
        return None
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
    ]


def knee(law: Law) -> str:
    """`12.4 [9.1–17]`; where speed still grows, from where on nothing is known."""
    found = law.knee
    if found is None:
        return f"none up to {law.largest:g}"
    beyond = f"beyond {law.largest:g}"
    return with_ends(
        found.size,
        _ends(found.low, found.high),
        lambda end: beyond if end == float("inf") else words.number(end),
    )


def peaks(shown: Sequence[Configuration]) -> list[str]:
    """A sentence for each line whose speed peaks within reach: there more makes it slower."""
    fits = [(line, line.fit("usl")) for line in long_enough(lines(shown))]
    return [
        f"{line.name}: fastest at {' '.join(knee(fit).split())} {unit(line)} (USL, 95\u202f% "
        "interval); more makes it slower."
        for line, fit in fits
        if isinstance(fit, Law) and fit.knee
    ]


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
        parts.append(f"Shorter lines, or more of them: {len(found) - len(told)}, without a law.")
    return " ".join(parts) or None


def pop_table(shown: Sequence[Configuration], ranks: Iterable[Row]) -> Table | None:
    """POP's factors of each configuration's first run of several ranks; None where none was.

    Computation scaling is against the base of its series.
    """
    found = pops(shown, ranks)
    bases = {one.key: members[0] for members in by_series(shown).values() for one in members}
    rows = [
        _pop(one, found[one.key], found.get(bases[one.key].key))
        for one in shown
        if one.ranks > 1 and one.key in found and one.key in bases
    ]
    columns = ["configuration", "load balance", "communication", "input", "parallel efficiency"]
    columns += ["computation scaling", "slowest rank"]
    return Table(columns, rows, frozenset({"slowest rank"})) if rows else None


def pops(shown: Sequence[Configuration], ranks: Iterable[Row]) -> dict[str, Pop]:
    """Configuration -> the factors of its first run, where it trained."""
    by_run: dict[str, list[Row]] = {one.rows[0]["run_id"]: [] for one in shown}
    for row in ranks:
        if row["run_id"] in by_run:
            by_run[row["run_id"]].append(row)
    told = {one.key: pop.of_rows(by_run[one.rows[0]["run_id"]]) for one in shown}
    return {key: found for key, found in told.items() if found}


def _pop(one: Configuration, this: Pop, base: Pop | None) -> list[str]:
    scaled = pop.computation_scaling(base, this) if base else None
    return [
        one.label,
        words.percent(this.load_balance),
        words.percent(this.communication),
        words.percent(this.input),
        words.percent(this.parallel),
        words.percent(scaled),
        slowest(this),
    ]


def slowest(this: Pop) -> str:
    """`rank 1 on node2, 20 % longer`; nothing where the ranks are even."""
    if this.slowest_by < SLOWER:
        return "none: within 2\u202f%"
    longer = words.percent(this.slowest_by)
    return f"rank {this.slowest_rank} on {this.slowest_node}, {longer} longer"


def quality_table(found: Sequence[TimeToQuality]) -> Table | None:
    """Time to the target; None where nothing was evaluated."""
    rows = [
        [
            each.configuration.label,
            _time(each),
            words.number(each.epochs),
            words.core_time(each.core_hours),
            f"{each.reached} of {each.runs}",
        ]
        for each in found
    ]
    columns = ["configuration", "time to quality", "epochs", "core time", "runs that reached it"]
    return Table(columns, rows) if rows else None


def _time(each: TimeToQuality) -> str:
    if each.seconds is None:
        return "never" if each.reached == 0 else "most never"
    high = words.duration(each.high) if each.high is not None else "never"
    ends = "" if each.low is None else f"\n[{words.duration(each.low)}–{high}]"
    return words.duration(each.seconds) + ends


def cost_table(shown: Sequence[Configuration]) -> Table | None:
    """What an epoch costs in time, cores and GPUs; None where nothing was trained."""
    told = [one for one in shown if one.median("seconds_per_epoch") is not None]
    gpus = any(one.median("gpu_hours") for one in told)
    columns = ["configuration", "instances/s", "an epoch: s", "an epoch: core-s"]
    columns += ["an epoch: core-h", "the run: core-h"]
    columns += ["an epoch: GPU-h", "the run: GPU-h"] if gpus else []
    names = ["instances_per_s", "seconds_per_epoch", "core_s_per_epoch", "core_h_per_epoch"]
    names += ["core_hours", *(["gpu_h_per_epoch", "gpu_hours"] if gpus else [])]
    rows = [[one.label, *(_median(one, name) for name in names)] for one in told]
    return Table(columns, rows) if rows else None


def _median(one: Configuration, name: str) -> str:
    ends = (one.figures.get(f"{name}_{end}") for end in ("low", "high"))
    return with_ends(one.median(name), _ends(*ends), words.number)


def _ends(low: float | None, high: float | None) -> Interval:
    return None if low is None or high is None else (low, high)


def with_ends(value: float | None, ends: Interval, show: Callable[[float | None], str]) -> str:
    """`1.50×`, and below it `[1.42×–1.58×]` where there is an interval."""
    return show(value) if ends is None else f"{show(value)}\n{words.interval(*ends, show)}"
