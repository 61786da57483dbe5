"""What sacctmgr, squeue and scontrol print, read as room for more jobs."""

from __future__ import annotations

import pytest
from conftest import FakeSlurm

from hpcncf.launch.job_arrays import Quota, account_room, parse_config, query_quota, queued
from hpcncf.slurm.site import Site

# As `sacctmgr -nP show assoc format=account,partition,maxsubmitjobs,defaultqos` prints it.
ASSOCIATIONS = "lab||10|\nlab|short|3|\nroot|||few\n"
LEVELS = "normal|\nfew|5\n"
QUEUE = "lab|normal\nlab|normal\nroot|few\nroot|normal\n"


@pytest.mark.parametrize(
    ("account", "site", "left", "limit"),
    [
        ("lab", {}, 8, "MaxSubmitJobs of your account lab is 10, 2 are queued already"),
        ("lab", {"partition": "cpu"}, 8, "lab is 10"),
        ("lab", {"partition": "short"}, 1, "lab is 3"),
        ("lab", {"qos": "few"}, 4, "MaxSubmitJobsPerUser of QOS few is 5, 1 are queued"),
        ("root", {}, 4, "QOS few is 5"),
    ],
)
def test_a_qos_goes_before_the_account_and_the_partitions_own_before_all(
    account: str, site: dict[str, str], left: int, limit: str
) -> None:
    bound = account_room(ASSOCIATIONS, LEVELS, QUEUE, account, Site.model_validate(site))
    assert bound[0] == left
    assert limit in bound[1]


def test_where_nothing_is_limited_nothing_bounds() -> None:
    assert account_room("root|||\n", "normal|\n", "", "root", Site()) is None
    assert account_room("", "", "", "root", Site()) is None


def test_the_configuration_is_read_whatever_stands_around_it() -> None:
    text = "Configuration data as of 2026-01-01\nMaxArraySize            = 1001\nPlugin = a=b\n"
    assert parse_config(text) == {"MaxArraySize": "1001", "Plugin": "a=b"}


def test_a_slurm_that_does_not_answer_sets_no_limit(fake_slurm: FakeSlurm) -> None:
    fake_slurm.set(controller=False)
    assert query_quota(Site()) == Quota()
    assert queued(["1_0"]) is None


@pytest.mark.parametrize(("most", "array"), [(7, 7), (0, 1)])
def test_slurm_is_asked_for_its_largest_array(fake_slurm: FakeSlurm, most: int, array: int) -> None:
    """0 forbids arrays, but not jobs."""
    fake_slurm.set(max_array_size=most)
    assert query_quota(Site()).array == array
