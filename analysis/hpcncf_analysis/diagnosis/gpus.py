"""What the nodes' series tell of a run's GPUs, and whether those waited for the CPU. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import compress

from hpcncf.records import Gpu, NodeRecord, RankRecord
from hpcncf.tables import watched
from hpcncf_analysis.diagnosis import thresholds
from hpcncf_analysis.diagnosis.evidence import Evidence, Gpus
from hpcncf_analysis.diagnosis.finding import Finding
from hpcncf_analysis.words import percent

Series = Sequence[float | None]


def gpus(nodes: Sequence[NodeRecord], ranks: Sequence[RankRecord] = ()) -> Gpus | None:
    """Means over all GPUs; `busy` is of the run's own kernels where NVML told them apart.

    Of the windows between the ranks' first step and their last, where there are any: a start of a
    minute is not the GPU's idleness. Of a command, of all of its time.
    """
    within = [watched.in_training(ranks, node) for node in nodes]
    training = any(map(any, within))
    if not training:
        within = [[True] * len(node.length_s) for node in nodes]
    pairs = [
        (gpu, list(compress(node.length_s, chosen)), chosen)
        for node, chosen in zip(nodes, within, strict=True)
        for gpu in node.gpus or []
    ]
    busy = [share for each in pairs if (share := _busy(*each)) is not None]
    if not busy:
        return None
    lengths = [length for _, each, _ in pairs for length in each]
    joules = [
        value
        for gpu, _, chosen in pairs
        for value in compress(gpu.energy_j, chosen)
        if value is not None
    ]
    return Gpus(
        number=len(pairs),
        busy=sum(busy) / len(busy),
        watts=sum(joules) / sum(lengths) if joules and sum(lengths) else None,
        training=training,
    )


def _busy(gpu: Gpu, lengths: Sequence[float], chosen: Sequence[bool]) -> float | None:
    ours = _mean(list(compress(gpu.ours, chosen)), lengths)
    return _mean(list(compress(gpu.busy, chosen)), lengths) if ours is None else ours


def _mean(series: Series, lengths: Sequence[float]) -> float | None:
    told = [(value, s) for value, s in zip(series, lengths, strict=True) if value is not None]
    whole = sum(s for _, s in told)
    return sum(value * s for value, s in told) / whole if whole else None


def gpu_underused(evidence: Evidence) -> Finding | None:
    """A GPU that waits: for input, or for the CPU to launch its many small kernels."""
    told = evidence.gpus
    if told is None or told.busy >= thresholds.GPU_BUSY:
        return None
    share = (1 - told.busy) * (_trains(evidence) if told.training else 1.0)
    if not evidence.worth(share):
        return None
    why, remedy = _why(evidence)
    when = "of its training" if told.training else "of the time"
    numbers = [
        f"kernels of this run were on the {_of(told.number)} for {percent(told.busy)} {when}",
        *([] if told.watts is None else [f"{told.watts:.0f} W on average, per GPU"]),
        *why,
    ]
    return Finding("gpu_underused", share, "time", tuple(numbers), remedy)


def _trains(evidence: Evidence) -> float:
    """Share of the elapsed time from the first step to the last, evaluation included."""
    after = (evidence.training_s, evidence.evaluation_s, evidence.checkpoint_s)
    return min(1.0, evidence.of_elapsed(sum(each or 0.0 for each in after)))


def _of(number: int) -> str:
    return "GPU" if number == 1 else f"{number} GPUs, on average,"


def _why(evidence: Evidence) -> tuple[list[str], str]:
    waits = evidence.phases.get("input", 0.0)
    if not evidence.phases:
        told = ["the record has no phases: whether it waits for input or for launches is not known"]
        return told, "Have the program report its phases (docs/any-program.md) to know what for."
    if waits >= thresholds.GPU_INPUT:
        told = [f"input-bound: {percent(waits)} of a step waits for the next batch"]
        return told, "Make batches faster than the GPU takes them: training.loader vectorized."
    told = [
        f"launch-bound: only {percent(waits)} of a step waits for input, the rest is on the CPU"
    ]
    return told, (
        "Give each launch more to do: a larger batch per rank, or several trainings on one GPU."
    )
