"""What each figure of a report means: the words that stand under its tables."""

from __future__ import annotations

from typing import Final

DEFINITIONS: Final[list[tuple[str, str]]] = [
    (
        "instances/s",
        "Training examples, positives and sampled negatives, of all ranks together, over the time "
        "of the slowest rank's counted steps. Warm-up steps, evaluation and checkpoints are not "
        "counted.",
    ),
    (
        "speed-up",
        "Speed over the speed of the series' base: the fewest cores with otherwise equal settings.",
    ),
    (
        "parallel efficiency",
        "Speed-up over the ratio of cores to the base's: 100 % means that each core does as much.",
    ),
    (
        "cores allocated, usable, used",
        "Cores that were granted / that affinity and the cgroup allow / CPU seconds over elapsed "
        "seconds. Used is not a count of busy cores: one migrating thread makes two half busy.",
    ),
    (
        "CPU efficiency",
        "CPU seconds (user + system, the run's whole process tree) / (elapsed seconds × cores "
        "allocated), as seff has it; from the first rank's start to the last one's end, start-up "
        "and evaluation included. May exceed 100 %, and is then flagged, never clipped.",
    ),
    (
        "in training",
        "CPU efficiency of the training, without start-up: over the seconds from the first step to "
        "the last, evaluation included, from the node's series; none where those are too few.",
    ),
    (
        "peak",
        "The same over the busiest window; of several ranks the mean of their peaks, an upper "
        "bound, since they need not coincide.",
    ),
    (
        "s/epoch",
        "Median over epochs of the slowest rank's training time; evaluation and checkpoints are "
        "apart. Where max_steps cut the epoch short: the epoch's instances / instances/s.",
    ),
    ("core-s/epoch", "Cores allocated × s/epoch: what an epoch costs."),
    (
        "of the limit, of what was asked",
        "Elapsed / time limit; the largest sum of the ranks' peak resident memory on a node, an "
        "upper bound, / memory asked for.",
    ),
    (
        "HR@10, NDCG@10",
        "Of the last epoch, leave-one-out: is the held-out item among the first 10 of itself and "
        "the sampled negatives, and how far up (He et al. 2017).",
    ),
    ("HR@10 unseen", "The same over test pairs that do not occur in training."),
    (
        "count table",
        "HR@10 and NDCG@10 of ranking by the user's own counts, then by popularity: what memory "
        "alone reaches.",
    ),
    (
        "median [smallest–largest]",
        "Over the repeats of a configuration. One repeat has no interval.",
    ),
]
