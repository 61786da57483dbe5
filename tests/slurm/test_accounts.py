"""What ranks record of themselves, beside what Slurm's accounting says of their step."""

from __future__ import annotations

import csv
import time
from pathlib import Path

import pytest

from hpcncf.explain.conclude import FIELDS
from hpcncf.explain.read import read_text
from slurm.conftest import User, eventually
from slurm.test_submit import JOB
from slurm.test_survive import ranks_of, trains

pytestmark = pytest.mark.slurm


def attempts(user: User) -> list[dict[str, str]]:
    user.attempt("collect", "results/tiny")
    with (user.folder / "results/tiny/tables/attempts.csv").open(newline="") as lines:
        return list(csv.DictReader(lines))


def computed_s(user: User) -> float:
    times = [rank.cpu_times() for rank in ranks_of(user)]
    return sum(each.user + each.system for each in times)


@pytest.mark.slow
def test_records_and_accounting_agree_over_a_minute_of_two_ranks(
    user: User, tiny_data: Path
) -> None:
    shape = ["resources.tasks_per_node=2", "resources.requeues=0"]
    user.submits(JOB.format(data=tiny_data), "training.epochs=100000", *shape)
    trains(user)
    ranks = ranks_of(user)
    for rank in ranks:  # so that the minute does not take both cores from the other tests
        rank.suspend()
    time.sleep(50)
    for rank in ranks:
        rank.resume()
    eventually(lambda: any(now["elapsed_s"] > 65 for now in user.records("progress.json")))
    eventually(lambda: computed_s(user) > 20)  # later, on a busy machine
    user.cluster.run("scancel", "--signal=USR2", user.runs()[0]["job_id"])
    user.ends()
    # Slurm inserts the last figures of a step up to five seconds after its end.
    eventually(lambda: attempts(user)[0]["slurm_cpu_s"] != "")
    (row,) = attempts(user)
    assert (row["slurm_agrees"], row["slurm_differs"]) == ("true", "")
    assert float(row["slurm_cpu_s"]) > 18
    assert float(row["slurm_max_rss_mib"]) > 50
    said = user.cluster.run("sacct", "-P", "-j", row["slurm_job_id"], f"--format={FIELDS}")
    (seen,) = read_text(said)
    assert seen.cpu_s == pytest.approx(float(row["slurm_cpu_s"]), rel=0.1)
    assert seen.elapsed_s is not None
    assert seen.elapsed_s >= float(row["slurm_elapsed_s"]), "of the job, and not of its step"
    assert seen.cores_used == pytest.approx(seen.cpu_s / seen.elapsed_s)
    assert seen.memory_mib == pytest.approx(2 * float(row["slurm_max_rss_mib"]))
