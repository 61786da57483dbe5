"""Causes that lie in cores: too few, too many threads for them, others on them, or idle ones."""

from __future__ import annotations

from typing import Final

from pathology.case import Beside, Case, Job, Run

# What a step of Slurm 22.05 hands on: two cores granted to the job, one left by srun without -c.
GRANT: Final = {"SLURM_JOB_ID": "1", "SLURM_CPUS_ON_NODE": "2"}
BUSY: Final = "burn.py --seconds 5.5"
TWO_BUSY: Final = f"{BUSY} --processes 2"
TWO_THREADS: Final = "products.py --seconds 8 --threads 2"

CONFINED: Final = [
    Case(
        "one_core_confinement",
        "srun",
        Run(TWO_BUSY),
        "Slurm granted two cores, the binding leaves one, and two processes want to work",
        7,
        env=GRANT,
        short=True,
    ),
    Case(
        "one_core_confinement",
        "omp-places",
        Run(TWO_THREADS),
        "OMP_PLACES names one core for both threads of two that are usable",
        11,
        cores=2,
        env={"OMP_PROC_BIND": "true", "OMP_PLACES": "{{cpu}}"},
    ),
    Case(
        "one_core_confinement",
        "quota",
        Run(TWO_BUSY),
        "granted two cores; the control group gives two busy processes the time of one",
        7,
        cores=2,
        env=GRANT,
        beside=Beside(cpu_quota=1.0),
        needs=frozenset({"cpu cgroup"}),
    ),
]

OVERSUBSCRIBED: Final = [
    Case(
        "oversubscribed",
        "threads",
        Run("products.py --seconds 8 --threads 8"),
        "torch is asked to compute with eight threads on two cores",
        11,
        cores=2,
    ),
    Case(
        "oversubscribed",
        "processes",
        Run(f"{BUSY} --processes 8"),
        "eight processes are always ready to run on two cores",
        7,
        cores=2,
    ),
    Case(
        "oversubscribed",
        "ranks",
        Job(
            {"resources.tasks_per_node": 2},
            program="products.py --seconds 8 --threads 4 --width 256",
        ),
        "each of two ranks has one core and starts four threads, whatever OMP_NUM_THREADS says",
        13,
        cores=2,
    ),
]

NEIGHBOUR: Final = [
    Case(
        "neighbour_load",
        "command",
        Run(BUSY),
        "a foreign process is busy on the one core that the command may use",
        7,
        beside=Beside(neighbour=(0,)),
        short=True,
    ),
    Case(
        "neighbour_load",
        "two-cores",
        Run(TWO_BUSY),
        "a foreign process is busy on one of the two cores that two processes want",
        7,
        cores=2,
        beside=Beside(neighbour=(1,)),
    ),
    Case(
        "neighbour_load",
        "native",
        Job({"training.engine": "native", "training.epochs": 60}, data="small"),
        "engine native keeps its core busy, and gets half of it",
        20,
        beside=Beside(neighbour=(0,)),
    ),
]

SERIAL: Final = [
    Case(
        "serial_step",
        "native",
        Job(
            {
                "resources.cpus_per_task": 2,
                "training.engine": "native",
                "training.threads": 1,
                "training.epochs": 160,
            },
            data="small",
        ),
        "two cores are allocated, and the compiled step has one thread",
        14,
        cores=2,
    ),
    Case(
        "serial_step",
        "command",
        Run(BUSY),
        "two cores are usable, and the program is one thread",
        7,
        cores=2,
    ),
    Case(
        "serial_step",
        "products",
        Run("products.py --seconds 8 --threads 1"),
        "two cores are usable; torch computes with one thread, and the step's phases all compute",
        11,
        cores=2,
    ),
]

CASES: Final = [*CONFINED, *OVERSUBSCRIBED, *NEIGHBOUR, *SERIAL]
