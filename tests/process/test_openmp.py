"""OpenMP hears what a run asks for, from the library's own mouth."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from hpcncf.job.spec import Training
from hpcncf.worker.environment import set_openmp


def test_torchs_openmp_hears_the_wait_policy(
    job_file: Callable[[str], Path], tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "hpcncf", "train", str(job_file(""))]
    done = subprocess.run(
        [*command, "-s", "training.omp_wait_policy=active", "-s", "training.max_steps=2"],
        env=os.environ | {"OMP_DISPLAY_ENV": "true"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "OMP_WAIT_POLICY = 'ACTIVE'" in done.stderr


def test_where_torch_is_there_already_it_is_too_late(monkeypatch: pytest.MonkeyPatch) -> None:
    assert torch.get_num_threads() > 0
    monkeypatch.setenv("OMP_WAIT_POLICY", "")  # so that it is put back
    [seen] = set_openmp(Training(omp_wait_policy="passive"))
    assert "has no effect" in seen
    assert set_openmp(Training()) == []
