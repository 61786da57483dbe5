"""The thresholds of all rules, each with its reason."""

from __future__ import annotations

from typing import Final

WORTH: Final = 0.2
"""Share of the time or the cores below which a cause is not worth a word: removing all of it would
make a run 1.25 times as fast at most, and repeats on shared machines differ by a tenth."""

EVALUATION: Final = 1.5
"""How many times WORTH evaluation must take: some of it belongs to every training."""

SHORT_S: Final = 5.0
"""Seconds after start-up that a run must have for a judgement. CPU time ticks every 10 ms and
the monitor samples once a second: five samples. (jobstats judges nothing below 300 s.)"""
SEEN_STEPS: Final = 100
SEEN_S: Final = 2.0
"""Steps or seconds after start-up that a probed program must have for a judgement: the probe times
every step and samples a hundred lines a second."""
LONG_S: Final = 60.0
"""Seconds of elapsed time that are never too short: the report has to explain them."""
SHORT_STEPS: Final = 10
"""Counted steps below which their shares are those of single steps."""

CONFINED_CORES: Final = 0.5
"""Cores allocated above those usable: less is a quota that was rounded."""

RUNNABLE: Final = 1.25
"""Threads that want a core, over usable cores. torch keeps a helper or two that run for moments:
a run with as many threads as cores was seen at up to 1.1."""
HANDED_OVER: Final = 2.0
"""The same of ranks that were given no more threads than cores: in each, torch's threads and gloo's
hand work to each other. Two ranks of one thread were seen at up to 1.4, and more beside others."""
STARTUP: Final = 1 / 3
"""Share of start-up from which more training in one run is the first thing to ask for."""
STARTUP_S: Final = 5.0
"""Importing torch and joining a group take two to four seconds, which nothing shortens."""
PREPARED_S: Final = 1.0
"""Seconds of start-up besides imports that are the first step's own: it starts torch's threads."""

ONE_THREAD: Final = 0.75
"""Cores' worth of CPU time from which somebody computes all the time; below, it waits."""
BUSY: Final = 0.7
"""Share of the usable cores that were used, below which a run without a finding is `unknown`, not
`healthy`. jobstats marks a CPU efficiency below 65 % red and below 80 % black."""

IMBALANCE: Final = 1.1
"""The slowest rank's useful time over the mean of all, below which ranks are alike: load balance
0.9, which POP calls good above 0.8."""
SPARSE: Final = 0.5
"""Share of a table's rows that a step reads, above which an update of all rows wastes little."""

MEMORY_LIMIT: Final = 0.85
"""Share of the memory limit, held at the largest sample, from which mapped pages come and go: what
the kernel takes away between two samples is not seen."""
FAULTS_PER_S: Final = 100.0
"""Page faults that read from a disk, a second: reading a data set once makes far fewer."""

WORKER_START_S: Final = 0.03
"""CPU seconds of a forked worker's start and end: pages copied, queues, its own exit. Seen at 0.028
and 0.030 over epochs of three batches, with one worker and with two."""

GPU_BUSY: Final = 0.5
"""Share of the time with a kernel on the GPU. jobstats marks 15 % red and 25 % black, of hours in
which a GPU is often idle on purpose; within the steps of a training half is little."""
GPU_INPUT: Final = 0.3
"""Share of a step in the input phase, below which it is not the input that a GPU waits for."""

STEAL: Final = 0.01
"""Share of the cores' time that a hypervisor took, below which it is not worth a line."""
EXPLAINED: Final = 2.0
"""How many times as much as its explanation a finding may cost and still stand behind it: with a
core of two taken away, what is left takes twice as long."""
