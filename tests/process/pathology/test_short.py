"""A few of the cases, started and diagnosed: `python -m benchmarks pathology` does all of them."""

from __future__ import annotations

import pytest

from pathology import beside, suite
from pathology.case import CASES, Case
from pathology.start import Bench

SHORT = [case for case in CASES if case.short]


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return Bench(tmp_path_factory.mktemp("pathology"))


@pytest.mark.alone
@pytest.mark.slow
@pytest.mark.parametrize("case", SHORT, ids=lambda case: case.name)
def test_the_cause_that_was_made_is_the_one_that_is_named(case: Case, bench: Bench) -> None:
    if lacking := case.required - beside.available():
        pytest.skip(f"needs {' and '.join(sorted(lacking))}")
    result = suite.settled(case, bench, tries=2)
    if result.disturbed and not result.right:
        pytest.skip(f"disturbed, {result.tries} times: {result.disturbed}: {result.verdict}")
    assert result.verdict == case.label, result.problem or result.said
