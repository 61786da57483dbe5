"""A rank of a task hears that one of its runs was cancelled."""

from __future__ import annotations

from pathlib import Path

from hpcncf import submissions
from hpcncf.paths import ResultPaths
from hpcncf.rank.word import Word


def test_a_run_cancelled_since_it_was_submitted_is_heard_of(tmp_path: Path) -> None:
    paths = ResultPaths(tmp_path)
    word = Word(paths, every_s=0.0)
    assert not word.against("a")
    submissions.begin(paths, "slurm", ["a", "b"], again=False)
    submissions.cancel(paths, ["a"])
    assert [word.against(run) for run in "ab"] == [True, False]
    first = submissions.read(paths).submissions[0]
    submissions.begin(paths, "slurm", ["a"], again=False)
    assert not word.against("a")
    assert word.against("a", first.submitted_at), "the earlier submission is not to run it"


def test_the_folder_is_not_looked_into_all_the_time(tmp_path: Path) -> None:
    paths = ResultPaths(tmp_path)
    submissions.begin(paths, "slurm", ["a"], again=False)
    word = Word(paths, every_s=1e6)
    assert not word.against("a")
    submissions.cancel(paths, ["a"])
    assert not word.against("a")
