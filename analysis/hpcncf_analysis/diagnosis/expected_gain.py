"""Settings that remove a cause, and their expected gain (docs/diagnosis.md)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from hpcncf.job.spec import Training
from hpcncf.job.validate import LOADER_SETTINGS, REFERENCE_ONLY, WORKER_SETTINGS
from hpcncf_analysis.diagnosis.evidence import Evidence, Gain

# A job file that gives such a setting is refused (`hpcncf/job/validate.py`).

# Setting of a remedy -> those that another value of it gave a meaning.
OVERRULED: Final[Mapping[str, tuple[str, ...]]] = {
    "training.loader": LOADER_SETTINGS,
    "training.num_workers": WORKER_SETTINGS,
    "training.engine": ("adam", "sparse", "compile", "cuda_graph", "precision", *REFERENCE_ONLY),
}


def applied(evidence: Evidence, **changes: Any) -> dict[str, Any]:
    """Dotted `training` settings that make the changes in a job file; empty for a command.

    Settings that the changes overrule are set back to their defaults.
    """
    if not evidence.trained:
        return {}
    dotted = {f"training.{name}": value for name, value in changes.items()}
    names = [name for key in dotted for name in OVERRULED.get(key, ())]
    plain = Training().model_dump(mode="json")
    given = {name: evidence.training.get(name, plain[name]) for name in names}
    reset = {f"training.{name}": plain[name] for name in names if given[name] != plain[name]}
    return reset | dotted


# A step's phases are shares that add up to 1; what is left of them after the remedy is L, and the
# factor 1 / L. Constants are ratios of work to work, measured at sizes of their own, not times: a
# machine's speed cancels. docs/metrics.md explains why that much; a test holds its numbers to
# these.

VECTORIZED: Final = (0.04, 0.0, 0.2)
"""Of a per-sample loader's time, what the vectorized one takes: expected, at best, at worst."""
CACHES: Final = (1.25, 1.55, 1.0)
"""By how much the rest of a step gains when the samples of Python no longer crowd the caches."""
ROWS_INPUT: Final = 0.4
"""Of the reference engine's input by whole arrays, what rowwise takes: it takes a positive's user
and context once, not once for each negative."""

CORE_CACHES_MIB: Final = 4.0
"""A core's L2 and its share of the last level: an optimiser that walks more leaves the next forward
pass nothing in them."""
OPTIMISED_BYTES: Final = 16
"""Of a parameter that Adam walks: its value, gradient and two moments of four bytes each."""
WARM_PASSES: Final = 4.5
"""A rowwise step without its input, in forward passes of the reference engine whose data lie in the
core's caches: the same products forward and backward, and its rows' own work."""
COLD_PASSES: Final = 3.0
"""The same where the reference engine's optimiser has emptied the caches: its forward pass takes
twice as long then, and rowwise's rows come from memory, too."""
CAUGHT_UP: Final = 0.67
"""A row of the tables caught up at an epoch's end, in forward passes of an instance."""
ROWWISE: Final = 1.3
"""By which factor either way the rowwise engine's step was off its formula."""
EXCHANGED: Final = 4.0
"""A rowwise step with its exchange of rows, in forward times of the reference engine on ranks,
which hold DistributedDataParallel's own work."""
EXCHANGE: Final = 1.5
"""By which factor either way that was off: the more rows, the dearer."""

SAMPLED_LEFT: Final = (0.03, 0.0, 0.15)
"""Of a full ranking's time, what ranking 99 negatives takes: their share of thousands of items."""
SAVED_LEFT: Final = (0.0, 0.0, 0.1)
"""Of the checkpoints' time, what stays without them."""
SERIAL_LEFT: Final = (0.0, 0.0, 0.3)
"""Of the core-hours that idle beside a serial step, what stays: one core may be slower."""


def faster(saved: float) -> float:
    """Factor by which a program gets faster if this share of its time is saved."""
    return 1 / max(0.05, 1 - saved)


def removed(share: float) -> Gain:
    """Gain if the whole share of the time is removed, the most that a remedy can give."""
    most = faster(share)
    return Gain(most, 1.0, most)


def reduced(share: float, left: tuple[float, float, float]) -> Gain:
    """Gain if a share of the time shrinks to `left` of it: (expected, best, worst)."""
    expected, best, worst = (faster(share * (1 - part)) for part in left)
    return Gain(expected, worst, best)


def vectorized(evidence: Evidence) -> Gain:
    """Expected gain of changing to the vectorized loader, which needs 4 % of the input time.

    With the share `input` of the time, the new time is 0.04 input + (1 - input) / 1.25. This is
    beyond Amdahl's bound 1 / (1 - input), because the rest of a step finds its data in the caches
    again, unless the optimiser empties them itself.
    """
    waits, washed = evidence.phases["input"], _washes(evidence)
    expected, best, worst = (
        1 / max(waits * left + (1 - waits) / (1.0 if washed else gained), 0.001)
        for left, gained in zip(VECTORIZED, CACHES, strict=True)
    )
    return Gain(expected, worst, best)


def rowwise(evidence: Evidence) -> Gain:
    """Expected gain of engine rowwise, computed from the shares of the phases of a step.

    The new time is 0.4 input + other + (passes + caught up) forward. A step's own rows cost
    `COLD_PASSES` or `WARM_PASSES`; all rows of the tables are caught up once an epoch, which its
    steps share.
    """
    passes = COLD_PASSES if _washes(evidence) else WARM_PASSES
    return _by_passes(evidence, passes, ROWWISE)


def exchanged_rows(evidence: Evidence) -> Gain:
    """Gain of engine rowwise with an exchange of rows in place of a dense all-reduce.

    The formula is that of `rowwise` with 4 passes.
    """
    return _by_passes(evidence, EXCHANGED, EXCHANGE)


def _by_passes(evidence: Evidence, passes: float, doubt: float) -> Gain:
    phases = evidence.phases
    arrays = evidence.training.get("loader", "vectorized") in ("vectorized", "device")
    fetched = phases.get("input", 0.0) * (ROWS_INPUT if arrays else 1.0)
    forward = (passes + _caught_up(evidence)) * phases.get("forward", 0.0)
    factor = 1 / max(fetched + phases.get("other", 0.0) + forward, 0.001)
    return Gain(factor, factor / doubt, factor * doubt)


def _washes(evidence: Evidence) -> bool:
    """Whether a dense optimiser walks more than a core's caches hold, and so empties them."""
    dense = evidence.training.get("engine", "reference") == "reference"
    walked = OPTIMISED_BYTES * (evidence.parameters or 0) / 2**20
    return dense and not evidence.training.get("sparse") and walked > CORE_CACHES_MIB


def _caught_up(evidence: Evidence) -> float:
    """Cost per step of catching up all table rows each epoch, in units of its forward pass."""
    instances = evidence.ranks[0].instances
    if not evidence.table_rows or not instances:
        return 0.0
    return CAUGHT_UP * evidence.table_rows * evidence.epochs / instances


def in_process(evidence: Evidence) -> Gain:
    """Gain if each rank makes its batches itself, without DataLoader workers.

    L = what a step takes after the first of its epoch, without its wait, + the workers' CPU
    time as a share of the steps, `computed`.

    An epoch's first step is dearer by more than its wait where workers are forked for it: the fork
    shares all pages, and the rank copies each anew that it writes to. If steps are too few to
    separate the first, L = 1 - input + computed. `computed` holds what sending took: at best
    nothing of it stays.
    """
    waits, running = evidence.phases.get("input", 0.0), 1.0
    computed = evidence.computed_by_workers
    if evidence.running_step is not None:
        running = evidence.running_step
        waits = max(0.0, waits - (evidence.first_batch_s or 0.0) / (evidence.training_s or 1.0))
    after = max(running - waits, 0.001) + computed
    return Gain(1 / after, 1 / (after + computed), 1 / (after - computed))


def fewer_core_hours(share: float, left: tuple[float, float, float]) -> Gain:
    """Gain in core-hours, 1 - share (1 - left), if a share of them shrinks to `left`.

    `left`: of what the remedy removes, how much is expected to stay, at best, and at worst.
    """
    expected, best, worst = (1 - share * (1 - part) for part in left)
    return Gain(expected, best, worst, "core_hours")
