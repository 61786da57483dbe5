"""The fake Slurm passes the cases that tests/slurm/test_conformance.py runs on a real one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import FakeSlurm

from tests.conformance import CASES, Slurm


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_the_fake_passes(
    case: Callable[[Slurm], None], fake_slurm: FakeSlurm, tmp_path: Path
) -> None:
    def holds(happened: Callable[[], bool]) -> None:
        assert happened()

    case(
        Slurm(tmp_path, lambda most: fake_slurm.set(max_submit=most if most >= 0 else None), holds)
    )
