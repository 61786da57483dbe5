"""The cases are well made, and what they are counted by is right."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import make_results
import pytest
import yaml

from benchmarks import programs
from hpcncf.job.expand import expand_job
from hpcncf.job.plan import Run
from hpcncf.job.spec import JobSpec
from hpcncf_analysis.diagnosis.evidence import CAUSES
from pathology import suite
from pathology.case import CASES, PROGRAMS, Beside, Case
from pathology.start import Bench, Said, job_file, others_cores, read
from pathology.suite import Result


def case(label: str, way: str = "way", **changes: Any) -> Case:
    return Case(label=label, way=way, run="burn.py", **changes)


def made(label: str, verdict: str, others: float = 0.0, **changes: Any) -> Result:
    return Result(case(label, **changes), Said(verdict, (), "", 1.0, others))


@pytest.fixture
def run() -> Run:
    return expand_job(JobSpec.model_validate({"name": "a", "data": {"path": "x"}})).runs[0]


def test_every_cause_is_made_in_more_than_one_way() -> None:
    """Here, or by one of the programs in benchmarks/corpus."""
    ways = Counter(case.label for case in CASES)
    expected = yaml.safe_load((programs.FOLDER / "expected.yaml").read_text())
    ways.update(cause for program in expected.values() for cause in program["cause"][:1])
    assert {cause for cause in CAUSES if ways[cause] > 1} == set(CAUSES)
    assert ways["healthy"] >= 6


def test_cases_can_be_started_and_take_nine_minutes(tmp_path: Path) -> None:
    assert max(case.seconds for case in CASES) <= 60
    assert sum(case.seconds for case in CASES) <= 9 * 60
    for each in CASES:
        assert each.words or each.data
        assert not each.words or (PROGRAMS / each.words[0]).is_file()
        if not each.run:
            plain = job_file(each, each.words, tmp_path)
            [run] = expand_job(JobSpec.model_validate(plain)).runs
            assert run.resources.cores <= each.cores


def test_cases_are_chosen_by_their_names_and_by_what_they_need() -> None:
    one, two = (case("healthy", str(n), cores=n) for n in (1, 2))
    assert suite.possible([one, two], set()) == ([one], [two])
    assert suite.possible([one, two], {"two cores"}) == ([one, two], [])
    assert {case.label for case in suite.named(["healthy"])} == {"healthy"}
    [native] = suite.named(["neighbour_load.native"])
    assert native.name == "neighbour_load.native"
    assert suite.named(["neighbour"]) == []
    assert suite.named([]) == CASES


def test_a_job_is_disturbed_by_others_but_not_by_its_own_neighbour(run: Run) -> None:
    seen = made("healthy", "neighbour_load", others=0.2).disturbed
    assert seen == "others or the hypervisor used 0.2 cores"
    assert made("healthy", "healthy", others=0.1).disturbed is None
    assert made("neighbour_load", "", 0.5, beside=Beside(neighbour=(0,))).disturbed is None
    spent = {"length_s": [1.0, 3.0], "others_cores": [0.4, 0.0], "steal": [0.0, 0.25]}
    node = make_results.node_record(run, windows=2).model_copy(
        update=spent | {"cpus": [0, 1], "busy": [[0.5] * 2] * 2, "ours": [[0.5] * 2] * 2}
    )
    assert others_cores(node) == pytest.approx((0.4 * 1 + 2 * 0.25 * 3) / 4)


def test_a_diagnosis_is_read_with_the_machine_beside_it(run: Run) -> None:
    found = {"cause": "sync_bound", "evidence": ["58 % of a step", "4 MiB"]}
    also = {"cause": "serial_step", "evidence": []}
    said = read({"runs": [{"primary": found, "secondary": [also]}]}, 12.0, None)
    assert (said.verdict, said.secondary) == ("sync_bound", ("serial_step",))
    assert said.evidence == "58 % of a step; 4 MiB"
    nothing = {"runs": [{"verdict": "unknown", "primary": None, "secondary": []}]}
    node = make_results.node_record(run, windows=3)
    for longest_s, disturbed in ((4.9, None), (10.2, "the machine stood still for 10 s")):
        lengths = {"length_s": [1.0, longest_s, 1.0]}
        said = read(nothing, 12.2, node.model_copy(update=lengths))
        assert said.verdict == "unknown"
        assert Result(case("healthy"), said).disturbed == disturbed


def test_a_disturbed_job_is_tried_again_and_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = Said("unknown", (), "", 17.0, 0.0, longest_s=10.0)
    said = [late, replace(late, verdict="healthy", took_s=7.0, longest_s=1.0), late, late]
    monkeypatch.setattr(Bench, "start", lambda *_: said.pop(0))
    mended, wrong = (suite.settled(case("healthy"), Bench(tmp_path), tries=2) for _ in range(2))
    assert (mended.right, mended.tries, wrong.right, wrong.tries) == (True, 2, False, 2)
    failed = Result(case("healthy"), None, "hpcncf submit: exit code 1")
    rows = [each.row() for each in (mended, wrong, failed)]
    assert [row.found for row in rows] == ["healthy", "unknown", "failed"]
    assert rows[0].program.endswith("; try 2: the machine was disturbed")
    assert rows[1].program.endswith("; disturbed: the machine stood still for 10 s")
    assert rows[2].program.endswith("; hpcncf submit: exit code 1")


def test_the_page_counts_causes_and_false_alarms_apart() -> None:
    pairs = ["sync_bound sync_bound", "sync_bound unknown", "straggler sync_bound"]
    pairs += ["healthy healthy", "healthy serial_step"]
    page = list(programs.page([made(*pair.split()).row() for pair in pairs]))
    assert page[0] == (
        "Causes right: 2 of 5. False alarms: 1 of 2 healthy programs, without a verdict 0.\n"
    )
    assert "| sync_bound | 2 | 1 | unknown 1 |" in page
    assert "| straggler | 1 | 0 | sync_bound 1 |" in page
