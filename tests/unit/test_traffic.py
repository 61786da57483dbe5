"""Whether the network or a disk is the limit, from the nodes' series."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from make_evidence import evidence, two_ranks
from make_results import demo, node_record, plan_of, rank_record

from hpcncf.monitor.node import network_link_mib_s
from hpcncf_analysis.diagnosis.diagnose import find
from hpcncf_analysis.diagnosis.evidence import RankTimes
from hpcncf_analysis.diagnosis.traffic import Traffic, traffic_of

LIMIT = "the network is the limit"


def exchange(nodes: int, traffic: Traffic) -> str:
    """What is said of two ranks that spend 0.4 of their steps in the exchange."""
    ranks = [RankTimes(at, f"n{at % nodes}", 95.0, 38.0, 1000, 95.0) for at in (0, 1)]
    (finding,) = [f for f in find(two_ranks(*ranks, traffic=traffic)) if f.cause == "sync_bound"]
    return finding.evidence[-1]


@pytest.mark.parametrize(
    ("nodes", "traffic", "said"),
    [
        # 80 MiB/s of all time are 200 while they exchange, of 2 x 120 that the link carries.
        (2, Traffic(80.0, 0.0, 0.0, link=120.0), LIMIT),
        (2, Traffic(8.0, 0.0, 0.0, link=120.0), "latency or a slow rank is the limit"),
        (2, Traffic(80.0, 0.0, 0.0), "the speed of its link is not known"),
        (1, Traffic(0.0, 50.0, 0.0, link=120.0), "50 MiB/s over loopback"),
        (1, Traffic(0.0, 0.0, 0.0), "stays in the node's memory"),
    ],
)
def test_an_exchange_says_whether_the_network_is_its_limit(
    nodes: int, traffic: Traffic, said: str
) -> None:
    assert said in exchange(nodes, traffic)


@pytest.mark.parametrize(
    ("traffic", "said"),
    [
        (Traffic(2.0, 0.0, 90.0), "90 MiB/s, its network carried 2 MiB/s"),
        (Traffic(40.0, 0.0, 1.0, link=1000.0), "the files come over the network"),
        (
            Traffic(100.0, 0.0, 1.0, link=120.0),
            "the files come over the network, which is the limit",
        ),
    ],
)
def test_files_that_a_run_waits_for_are_placed(traffic: Traffic, said: str) -> None:
    waits = {"input": 0.7, "forward": 0.3}
    told = evidence(used=0.3, phases=waits, traffic=traffic)
    (finding,) = [f for f in find(told) if f.cause == "input_io"]
    assert finding.evidence[-1].endswith(said)


def test_traffic_is_the_busiest_nodes_while_it_trained(tmp_path: Path) -> None:
    run = plan_of(demo(tmp_path, repeats=1)).runs[0]
    rank = rank_record(run, 0)
    quiet = node_record(run, windows=60)
    length_s = quiet.length_s[0]
    # The first windows are the start: what was read then is not the training's.
    series: dict[str, Any] = {"disk_mib": [9000.0] + [3.0 * length_s] * 59}
    busy = quiet.model_copy(update=series | {"network_mib": [5.0 * length_s] * 60})
    found = traffic_of([quiet, busy], [rank])
    assert found
    assert (found.network, found.disk) == pytest.approx((5.0, 3.0), rel=1e-3)
    assert traffic_of([], [rank]) is None


def test_only_a_physical_interface_says_what_the_network_carries(tmp_path: Path) -> None:
    for name, speed, physical in (
        ("eth0", "1000", True),
        ("veth1", "10000", False),
        ("ib0", "-1", True),
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / "speed").write_text(f"{speed}\n")
        if physical:
            (tmp_path / name / "device").mkdir()
    assert network_link_mib_s(tmp_path) == pytest.approx(119.2, rel=1e-3)
    assert network_link_mib_s(tmp_path / "veth1") is None
