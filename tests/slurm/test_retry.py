"""What ran out of memory is reported at once and sent again with more, on a real Slurm."""

from __future__ import annotations

import json

import pytest

from slurm.conftest import User

pytestmark = pytest.mark.slurm

JOB = """\
name: greedy
site: site.yaml
workload: {command: [python3, -c, "print('hpcncf: size=%d' % len(bytearray(300 << 20)))"]}
resources: {mem_gb: 0.2, timeout_min: 10}
"""


def test_what_ran_out_of_memory_completes_with_twice_as_much(user: User) -> None:
    if not json.loads((user.cluster.folder / "cluster.json").read_text())["cgroups"]:
        pytest.skip("this machine has no cgroup v1 to limit memory with")
    (user.folder / "job.yaml").write_text(JOB)
    done = user.attempt("submit", "job.yaml", "--cluster", "slurm", "--wait")
    assert done.returncode == 3, done.stderr
    assert "1 run: 1 out of memory" in done.stdout, "and not the failure that its signal is"
    done = user.attempt("retry", "results/greedy", "--escalate", "--wait")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 run out of memory with 0.2 GB: now 0.4 GB" in done.stderr
    assert [(run["state"], run["attempt"]) for run in user.runs()] == [("completed", 2)]
