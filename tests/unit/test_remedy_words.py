"""Remedies as text, as settings of a job file, and as a part of a run's id."""

from __future__ import annotations

import pytest

from hpcncf.errors import UsageError
from hpcncf.job.expand import expand_job
from hpcncf.job.spec import JobSpec, Remedies

TEXT = (
    "rowwise,threads=1,workers=2,persistent_workers,prefetch_factor=4,pin_memory,fused,omp=passive"
)


def test_text_and_settings_are_the_same() -> None:
    found = Remedies.parse(TEXT)
    assert str(found) == TEXT
    assert found.threads == 1
    assert found.workers == 2
    assert found
    assert not Remedies.parse("")
    assert Remedies.parse("workers=0").workers == 0
    assert Remedies.parse("threads=3,omp=active").variables == {
        "OMP_WAIT_POLICY": "ACTIVE",
        "OMP_NUM_THREADS": "3",
        "MKL_NUM_THREADS": "3",
    }


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("rowise", "Did you mean 'rowwise'"),
        ("threads", "threads: needs a value: threads=VALUE"),
        ("threads=", "needs a value"),
        ("workers=-1", "greater than or equal to 0"),
        ("threads=0", "threads: "),
        ("fused=3", "fused: "),
        ("fused,foreach", "exclude"),
        ("workers=0,persistent_workers", "needs workers"),
        ("omp=spin", "omp: "),
    ],
)
def test_what_cannot_be_asked_for_is_refused(text: str, part: str) -> None:
    with pytest.raises(UsageError, match="--with: ") as refused:
        Remedies.parse(text)
    assert part in str(refused.value)


def job(**settings: object) -> JobSpec:
    plain = {"name": "j", "workload": {"command": ["python", "train.py"]}, **settings}
    return JobSpec.model_validate(plain)


def test_remedies_are_an_axis_and_part_of_the_id_only_when_set() -> None:
    (base,) = expand_job(job()).runs
    runs = expand_job(
        job(grid={"remedies.threads": [None, 1], "remedies.fused": [False, True]})
    ).runs
    assert len({run.id for run in runs}) == 4
    assert base.id in {run.id for run in runs}
    assert base.id == "0952a590ea0e"  # as version 0.1.0 has it
    assert {str(run.remedies) for run in runs} == {"", "threads=1", "fused", "threads=1,fused"}
    assert all(set(run.varied) == {"remedies.threads", "remedies.fused"} for run in runs)


def test_remedies_need_a_program_and_the_probe() -> None:
    for settings in (
        {"workload": "ncf", "data": {"path": "d", "dataset": "frappe"}},
        {"workload": {"command": ["python"], "probe": False}},
    ):
        for changes in ({"remedies": {"threads": 1}}, {"grid": {"remedies.threads": [1]}}):
            with pytest.raises(ValueError, match="remedies: "):
                job(**settings, **changes)
    with pytest.raises(UsageError, match="needs workers"):
        expand_job(job(grid={"remedies.workers": [0], "remedies.prefetch_factor": [2]}))
