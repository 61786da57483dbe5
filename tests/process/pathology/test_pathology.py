"""The cases are well made, and what they are counted by is right."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import make_results
import pytest
import yaml

from benchmarks.programs import FOLDER
from hpcncf.job.plan import expand_job
from hpcncf.job.spec import JobSpec, validate_settings
from hpcncf_analysis.diagnosis.evidence import CAUSES
from pathology import matrix, suite
from pathology.case import DATA, PROGRAMS, Beside, Case, Job, Run
from pathology.cases import CASES
from pathology.start import Bench, Said, job_file, others_cores, read
from pathology.suite import Result


def made(label: str, verdict: str, others: float = 0.0) -> Result:
    case = Case(label, "way", Run("burn.py"), "it is", 1)  # type: ignore[arg-type]
    return Result(case, Said(verdict, (), "", 1.0, others))


def test_every_cause_is_made_in_more_than_one_way() -> None:
    """Here, or by one of the programs in tests/programs."""
    ways = Counter(case.label for case in CASES)
    programs = yaml.safe_load((FOLDER / "expected.yaml").read_text())
    ways.update(cause for program in programs.values() for cause in program["cause"][:1])
    assert {cause for cause in CAUSES if ways[cause] > 1} == set(CAUSES)
    assert ways["healthy"] >= 6


def test_no_two_cases_have_one_name() -> None:
    assert len({case.name for case in CASES}) == len(CASES)


def test_no_case_lasts_longer_than_a_minute_and_all_together_nine() -> None:
    assert max(case.seconds for case in CASES) <= 60
    assert sum(case.seconds for case in CASES) <= 9 * 60


def test_what_cases_name_is_there() -> None:
    for case in CASES:
        if case.start.program:
            assert (PROGRAMS / case.start.program.split()[0]).is_file()
        else:
            assert isinstance(case.start, Job)
            assert case.start.data in DATA


def test_job_files_of_the_cases_are_such_as_a_user_may_write(tmp_path: Path) -> None:
    for case in CASES:
        if isinstance(case.start, Job):
            plain = job_file(case, case.start, case.start.program.split(), tmp_path)
            [run] = expand_job(validate_settings(JobSpec, plain, case.name)).runs
            assert run.resources.cores <= case.cores


def test_a_case_that_needs_what_is_not_here_is_left_out() -> None:
    one, two = (Case("healthy", str(n), Run("burn.py"), "it is", 1, cores=n) for n in (1, 2))
    assert suite.possible([one, two], set()) == ([one], [two])
    assert suite.possible([one, two], {"two cores"}) == ([one, two], [])


def test_cases_are_named_by_their_cause_or_their_way() -> None:
    assert {case.label for case in suite.named(["healthy"])} == {"healthy"}
    assert [case.name for case in suite.named(["neighbour_load.native"])] == [
        "neighbour_load.native"
    ]
    assert suite.named(["neighbour"]) == []
    assert suite.named([]) == CASES


def test_a_job_disturbed_by_others_says_so_but_not_by_its_own_neighbour() -> None:
    seen = made("healthy", "neighbour_load", others=0.2).disturbed
    assert seen == "others or the hypervisor used 0.2 cores"
    assert made("healthy", "healthy", others=0.1).disturbed is None
    own = Case("neighbour_load", "own", Run(""), "", 1, beside=Beside(neighbour=(0,)))
    assert Result(own, Said("neighbour_load", (), "", 1.0, 0.5)).disturbed is None


def test_a_machine_that_stood_still_disturbed_the_job() -> None:
    [run] = expand_job(validate_settings(JobSpec, {"name": "a", "data": {"path": "x"}}, "a")).runs
    node = make_results.node_record(run, windows=3)
    seen = {"runs": [{"verdict": "unknown", "primary": None, "secondary": []}]}
    for lengths, disturbed in (
        ([1.0, 4.9, 1.0], None),
        ([1.0, 10.2, 1.0], "the machine stood still for 10 s"),
    ):
        said = read(seen, 12.2, node.model_copy(update={"length_s": lengths}))
        assert Result(Case("healthy", "way", Run(""), "", 7), said).disturbed == disturbed


def test_a_disturbed_job_is_tried_again_and_what_disturbed_it_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = Said("unknown", (), "", 17.0, 0.0, longest_s=10.0)
    said = [late, replace(late, verdict="healthy", took_s=7.0, longest_s=1.0), late, late]
    monkeypatch.setattr(Bench, "start", lambda *_: said.pop(0))
    case = Case("healthy", "way", Run("burn.py"), "it is", 7)
    mended, wrong = (suite.settled(case, Bench(tmp_path), tries=2) for _ in range(2))
    assert (mended.right, mended.tries, wrong.right, wrong.tries) == (True, 2, False, 2)
    seen = "\n".join(matrix.jobs([mended, wrong]))
    assert "right (try 2: the machine was disturbed) | 7 |" in seen
    assert "(disturbed: the machine stood still for 10 s)" in seen


def test_what_a_hypervisor_took_counts_as_used_by_others() -> None:
    spent = {"length_s": [1.0, 3.0], "others_cores": [0.4, 0.0], "steal": [0.0, 0.25]}
    [run] = expand_job(validate_settings(JobSpec, {"name": "a", "data": {"path": "x"}}, "a")).runs
    node = make_results.node_record(run, windows=2).model_copy(
        update=spent | {"cpus": [0, 1], "busy": [[0.5] * 2] * 2, "ours": [[0.5] * 2] * 2}
    )
    assert others_cores(node) == pytest.approx((0.4 * 1 + 2 * 0.25 * 3) / 4)


def test_a_diagnosis_is_read_by_its_primary_cause_else_by_its_verdict() -> None:
    found = {"cause": "sync_bound", "evidence": ["58 % of a step", "4 MiB"]}
    also = {"cause": "serial_step", "evidence": []}
    one = {"verdict": "cause", "primary": found, "secondary": [also]}
    said = read({"runs": [one]}, 12.0, None)
    assert (said.verdict, said.secondary) == ("sync_bound", ("serial_step",))
    assert said.evidence == "58 % of a step; 4 MiB"
    well: dict[str, object] = {"verdict": "healthy", "primary": None, "secondary": []}
    assert read({"runs": [well]}, 12.0, None).verdict == "healthy"


def test_the_score_counts_causes_and_false_alarms_apart() -> None:
    results = [
        made("sync_bound", "sync_bound"),
        made("sync_bound", "unknown"),
        made("straggler", "sync_bound"),
        made("healthy", "healthy"),
        made("healthy", "serial_step"),
    ]
    seen = matrix.score(results)
    assert "1 of 3 (33%) jobs with a cause" in seen
    assert "2 causes were made, 1 of them named" in seen
    assert "False alarms: 1 of 2" in seen


def test_the_matrix_counts_what_was_said_of_each_cause() -> None:
    said = ("oversubscribed", "unknown")
    rows = list(matrix.confusion([made("oversubscribed", verdict) for verdict in said]))
    assert len(rows) == 3
    cells = [cell.strip() for cell in rows[2].strip("|").split("|")]
    assert cells[:2] == ["2 oversubscribed", "2"]
    assert cells[3] == "**1**"
    assert cells[-3:] == ["", "1", ""]
    assert {row.count("|") for row in rows} == {rows[0].count("|")}


def test_what_cannot_be_made_here_is_reported_with_what_it_needs() -> None:
    case = Case("gpu_underused", "way", Run(""), "", 1, cores=2, needs=frozenset({"gpu"}))
    [line] = matrix.not_made([case])
    assert line.endswith("gpu_underused.way: it needs gpu and two cores.")


def test_a_job_that_failed_is_reported_with_its_problem() -> None:
    failed = Result(made("sync_bound", "").case, None, "hpcncf submit: exit code 1")
    assert "hpcncf submit: exit code 1" in "\n".join(matrix.jobs([failed]))
    assert not failed.right
