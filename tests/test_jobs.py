"""Every job file that we ship loads, plans and opens with its question."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcncf import jobfile

JOBS = sorted((Path(__file__).parent.parent / "jobs").glob("*.yaml"))


@pytest.mark.parametrize("path", JOBS, ids=lambda path: path.stem)
def test_a_job_file_opens_with_its_question_and_plans(path: Path) -> None:
    first = path.read_text().splitlines()[0]
    assert first.startswith("# ")
    assert first.endswith("?")
    assert jobfile.plan(jobfile.load(path), path).active()


def test_job_names_are_distinct() -> None:
    names = [jobfile.load(path).name for path in JOBS]
    assert len(names) == len(set(names))
