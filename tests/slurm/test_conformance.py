"""A real Slurm passes the cases that the fake of the fast tests passes."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from slurm.conftest import User, eventually
from slurm.test_send import limited
from tests.conformance import CASES, Slurm

pytestmark = pytest.mark.slurm


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_a_real_slurm_passes(
    case: Callable[[Slurm], None], user: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_CONF", str(user.cluster.folder / "etc/slurm.conf"))
    case(Slurm(user.folder, lambda most: limited(user.cluster, most), eventually))
