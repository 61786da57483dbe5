"""One rank of the memory benchmark: trains, then tells its memory and its speed."""

from __future__ import annotations

import json
import re
import resource
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread
from typing import Any, Final

from hpcncf.job.plan import Run
from hpcncf.job.spec import Data, Model, Resources, Training
from hpcncf.ncf.data.prepared import load_prepared
from hpcncf.ncf.distributed import join_group, leave_group, wait_for_ranks
from hpcncf.ncf.trainer import Trainer
from hpcncf.paths import RunPaths
from hpcncf.worker import environment
from hpcncf.worker.recorder import at_once

MIB: Final = 1 << 20
SAMPLED_S: Final = 0.02


def mapped_mib(folder: Path, smaps: str) -> float:
    """This process's proportional share of the folder's files: a page that n processes have mapped
    counts for an nth (`Pss` in proc_pid_smaps(5))."""
    kib, ours = 0, False
    for line in smaps.splitlines():
        if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
            ours = str(folder) in line
        elif ours and line.startswith("Pss:"):
            kib += int(line.split()[1])
    return kib / 1024


def status_mib(name: str) -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) / 1024
    raise AssertionError(f"/proc/self/status has no {name}")


class Anonymous(Thread):
    """Looks how much memory the process has that is not a file's; the largest is kept."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.peak_mib = 0.0

    def run(self) -> None:
        while True:
            self.peak_mib = max(self.peak_mib, status_mib("RssAnon"))
            time.sleep(SAMPLED_S)


def trained(folder: Path, settings: dict[str, Any]) -> dict[str, float]:
    place = environment.place()
    training = Training.model_validate(settings)
    run = Run(
        id="memory",
        repeat=0,
        varied={},
        workload="ncf",
        resources=Resources(tasks_per_node=place.world_size),
        data=Data(path=str(folder)),
        data_key=None,
        model=Model(),
        training=training,
    )
    join_group(place, run.resources, training, run.id)
    watching = Anonymous()
    watching.start()
    data = load_prepared(folder)
    with TemporaryDirectory() as checkpoints:
        trainer = Trainer(run, data, place, RunPaths(Path(checkpoints)), lambda _: None)
        read = resource.getrusage(resource.RUSAGE_SELF).ru_majflt
        trainer.train()
        read = resource.getrusage(resource.RUSAGE_SELF).ru_majflt - read
    record = trainer.record()
    wait_for_ranks(place)
    shared_mib = mapped_mib(folder, Path("/proc/self/smaps").read_text())
    wait_for_ranks(place)  # until all have looked, all have the files mapped
    leave_group()
    return {
        "data_mib": shared_mib,
        "own_mib": watching.peak_mib,
        "peak_mib": status_mib("VmHWM"),
        "instances_per_s": record.counted_instances / record.counted_s,
        "major_faults": read,
    }


if __name__ == "__main__":
    print(json.dumps(trained(Path(sys.argv[1]), json.loads(sys.argv[2]))), flush=True)
    at_once(0)
