"""What the runs ran on, and the definitions of all figures."""

from __future__ import annotations

from typing import Final

from hpcncf_analysis.report.section import DefinitionList, ReportData, Section

# Columns of runs.csv.
ENVIRONMENT: Final = (
    *("node", "cpu_model", "commit", "python", "torch"),
    *("device", "backend", "parameters"),
)
COMMIT_LENGTH: Final = 10
DEFINITIONS: Final = {
    "serial share (Karp-Flatt)": (
        "(1/S - 1/p) / (1 - 1/p) of a speed-up S on p times the cores: where it grows with the "
        "cores overhead does, where it stays the serial part holds the rest back (Karp, Flatt "
        "1990)."
    ),
    "cores: allocated, usable, used": (
        "Granted; what affinity and the cgroup allow; CPU seconds over elapsed seconds. Used is no "
        "count of busy cores: one migrating thread makes two half busy."
    ),
    "CPU efficiency: whole run": (
        "CPU seconds of all the run's processes / (elapsed seconds × cores allocated), as seff: "
        "start-up and evaluation included. Above 100 % it is flagged, never clipped."
    ),
    "CPU efficiency: peak": "The same in the busiest window; of several ranks an upper bound.",
    "core time": "Elapsed time × cores allocated.",
    "of the limit, of what was asked": (
        "Elapsed / time limit; peak resident memory, summed over a node's ranks, / memory asked "
        "for."
    ),
}
# What only our own training has; a command's report does without.
OF_TRAINING: Final = {
    "instances/s": (
        "Training examples (positives and sampled negatives) of all ranks, over the slowest rank's "
        "time. Start-up, warm-up steps, evaluation and checkpoints are not counted."
    ),
    "speed-up, parallel efficiency": (
        "Speed over that of the fewest cores with otherwise equal settings; this over the ratio of "
        "cores: at 100 % each core does as much."
    ),
    "work, time for it, weak efficiency": (
        "Weak scaling: the work of an epoch (more data) or of a step (a larger batch) grows with "
        "the cores. Efficiency is the base's time for its work over the time for so much more."
    ),
    "scaling law, σ, κ, N*": (
        "Laws fitted to the medians of four sizes or more, by least squares of relative errors, "
        "with 95 % intervals by bootstrap over the repeats: contention σ (Amdahl's serial share) "
        "and crosstalk κ; N* is the fastest size (Gunther 2007). Never used beyond four times the "
        "largest size measured."
    ),
    "load balance, communication, input, computation scaling": (
        "POP's factors of the steps' time: mean over largest time that a rank does not wait for "
        "others; that largest over the elapsed time; what waiting for batches leaves; the base's "
        "useful core-seconds for an instance over these."
    ),
    "time to quality": (
        "From the first step to the end of the first evaluation that reaches the HR@10 asked for, "
        "median over the runs; one that never does counts as longer than any (MLPerf's rule)."
    ),
    "CPU efficiency: in training": "The same from the first step to the last, without start-up.",
    "s/epoch, core-s/epoch": (
        "Instances of an epoch / speed, from the same steps: warm-up is in neither; times the "
        "cores allocated: what an epoch costs. ≈: every epoch was cut short."
    ),
    "evaluation: s/epoch, pairs/s": (
        "Medians over epochs: the slowest rank's time for one evaluation, and the pairs of user "
        "and item that all ranks scored, over it."
    ),
    "an epoch's first batch, the steps": (
        "The wait for the first batch of an epoch, and its share of the training's time; slow "
        "steps, over ten times the median (and over 50 ms), by their share of the counted steps' "
        "time; the median step of the last third over that of the first, less 1."
    ),
    "HR@10, NDCG@10": (
        "After the last epoch, or where runs differ in epochs after the fewest; leave-one-out: is "
        "the held-out item among the first 10 of itself and the sampled negatives (evaluation: "
        "full, of all items), and how far up (He et al. 2017)."
    ),
    "HR@10 unseen": "The same over test pairs that do not occur in training.",
    "count table": (
        "Ranking by the user's own counts, then by popularity: what memory alone reaches."
    ),
}


def build(data: ReportData) -> Section:
    """Section on hardware, versions and code of the runs, each value once.

    Commits are abbreviated.
    """
    pairs = []
    for name in ENVIRONMENT:
        length = COMMIT_LENGTH if name == "commit" else None
        values = sorted({str(row[name])[:length] for row in data.runs if row.get(name)})
        if values:
            pairs.append((name.replace("_", " "), "; ".join(values)))
    return Section("environment", "Environment", [DefinitionList(pairs)] if pairs else [])


def build_definitions(data: ReportData) -> Section:
    trained = any(row["workload"] == "ncf" for row in data.found.runs)
    pairs = [*DEFINITIONS.items(), *(OF_TRAINING if trained else {}).items()]
    return Section("definitions", "Definitions", [DefinitionList(pairs)], folded=True)
