"""Cores, memory and time limit for a configuration, from its measured runs.

Runs that shared a node are requested one by one, because each had cores of its own. Runs that
shared a GPU stay together: the price of one is its share of that GPU.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any, Final

from hpcncf.explain.conclude import LEAST_MARGIN_S, TIME_MARGIN
from hpcncf.job.spec import Resources
from hpcncf.text import pluralize
from hpcncf_analysis.configurations import Configuration
from hpcncf_analysis.formatting import format_duration, format_mebibytes, format_percent
from hpcncf_analysis.quality import epochs_trained

Row = Mapping[str, Any]

# A later run may need a little more than the highest peak of the repeats.
MEMORY_MARGIN: Final = 0.25
# hpcncf itself, beside each rank of a command; a command's record does not count it.
HPCNCF_MIB: Final = 64.0


@dataclass(frozen=True)
class ResourceRequest:
    """Slurm resources of one run, or of several that share a GPU, and the figures' sources."""

    resources: Resources
    expected_s: float | None
    """Seconds that the run should take; None if no measurement shows it."""
    memory: str
    """The source of `mem_gb`, a sentence."""
    time: str
    """The source of `timeout_min`, a sentence."""
    sharing: str = ""
    """What becomes of the runs that were beside it, a sentence; empty if there were none."""

    @property
    def core_hours(self) -> float | None:
        """Core-hours of a whole run, with evaluation and start-up; None if the time is unknown."""
        return None if self.expected_s is None else self.resources.cores * self.expected_s / 3600


def build_request(
    one: Configuration, planned: Resources, epochs: int | None = None
) -> ResourceRequest:
    """Request the planned nodes, tasks and cores, with memory and time as measured.

    Figures that were not measured stay as `planned`. `epochs`: number that the time limit is
    for (default: the run's own).
    """
    mem_gb, expected_s = memory_to_request_gb(one.rows), expected_seconds(one, epochs)
    sized = {
        "mem_gb": mem_gb or planned.mem_gb,
        "timeout_min": planned.timeout_min if expected_s is None else time_limit_min(expected_s),
        "runs_per_task": 1,
        # No more runs than share its GPU, and MPS only if processes share one.
        "runs_per_node": 1,
        "mps": planned.mps and max(planned.runs_per_gpu, planned.ranks_per_gpu) > 1,
    }
    memory = "Memory: as before, because none was measured."
    if mem_gb is not None:
        peak_mib, beside_mib = _memory_peaks_mib(one.rows)
        beside = f", {format_mebibytes(beside_mib)} for hpcncf beside it" if beside_mib else ""
        memory = (
            f"Memory: the highest peak of a node, {format_mebibytes(peak_mib)}{beside}, and "
            f"{format_percent(MEMORY_MARGIN)} more."
        )
    time = "Time limit: as before, because no epoch's time is known."
    if expected_s is not None:
        source, row = "the longest run took", one.rows[0]
        if row["workload"] != "command":
            count = pluralize(epochs or row["epochs"], "epoch")
            source = f"{count} with evaluation and start-up take"
        time = (
            f"Time limit: {source} {format_duration(expected_s)}, and "
            f"{format_percent(TIME_MARGIN)} more, at least {format_duration(LEAST_MARGIN_S)}."
        )
    sharing = ""
    if planned.runs_per_gpu > 1:
        alone = "-s repeats=1 -s resources.runs_per_gpu=1"
        alone += " -s resources.mps=false" * planned.mps
        sharing = (
            f"Measured with {planned.runs_per_gpu} runs on a GPU, and requested with as many "
            f"repeats; they may be other runs as well. A single run ({alone}) pays for the whole "
            "GPU."
        )
    elif planned.side_by_side > 1:
        sharing = (
            f"Measured with {planned.side_by_side} runs side by side. This requests one, on as "
            "many cores as it had."
        )
    return ResourceRequest(planned.model_copy(update=sized), expected_s, memory, time, sharing)


def time_limit_min(expected_s: float) -> int:
    """Time limit in whole minutes: the expected time plus a margin."""
    return ceil(max(expected_s * (1 + TIME_MARGIN), expected_s + LEAST_MARGIN_S) / 60)


def expected_seconds(one: Configuration, epochs: int | None = None) -> float | None:
    """Seconds of a whole run by its slowest repeat; None unless known for every repeat."""
    times = [seconds_of_whole_run(row, epochs) for row in one.rows]
    known = [seconds for seconds in times if seconds is not None]
    return max(known) if len(known) == len(times) else None


def seconds_of_whole_run(row: Row, epochs: int | None = None) -> float | None:
    """Seconds of a run of `epochs`, with start-up and evaluation; None if unknown.

    `epochs` defaults to the run's own number.

    The run's own elapsed time, with epochs added or removed; if `max_steps` or `max_s` cut an
    epoch short, or an earlier attempt computed some of them, start-up and whole epochs added up.
    """
    if row["workload"] == "command":
        return float(row["elapsed_s"]) if row["elapsed_s"] else None
    epoch_s, own, elapsed_s = row["seconds_per_epoch"], epochs_trained(row), row["elapsed_s"]
    if epoch_s is None or not row.get("epochs"):
        return None
    epoch_s += row.get("seconds_per_evaluation") or 0.0
    overhead_s = elapsed_s - row["training_s"] - row["evaluation_s"]
    if not row["max_steps"] and own == row["epochs"]:
        overhead_s = max(overhead_s, elapsed_s - own * epoch_s)
    return float(overhead_s + (epochs or row["epochs"]) * epoch_s)


def format_yaml_value(value: Any) -> str:
    """Format a setting's value as in a job file (YAML)."""
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(str, value))}]"
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)


def memory_to_request_gb(rows: Sequence[Row]) -> float | None:
    """GB to request per node: the highest peak plus a margin; None if not measured.

    For a command, hpcncf's own memory is added. Rounded up to a tenth; Slurm's GB has 1024 MiB.
    """
    peak_mib, beside_mib = _memory_peaks_mib(rows)
    if peak_mib is None:
        return None
    return ceil((peak_mib + beside_mib) * (1 + MEMORY_MARGIN) / 1024 * 10) / 10


def _memory_peaks_mib(rows: Sequence[Row]) -> tuple[float | None, float]:
    """Return the highest memory peak of a node, and hpcncf's own share beside a command, in MiB.

    The peak is the largest of the repeats, None if not measured.
    """
    peak_mib = max((row["memory_peak_mib"] for row in rows if row["memory_peak_mib"]), default=None)
    is_command = rows[0]["workload"] == "command"
    return peak_mib, HPCNCF_MIB * rows[0]["tasks_per_node"] if is_command else 0.0
