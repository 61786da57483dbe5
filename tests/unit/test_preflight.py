"""Before it queues: what the cluster has and allows, held against what the runs ask for."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcncf.job.spec import Resources
from hpcncf.slurm import preflight
from hpcncf.slurm.preflight import Capacity, Limits, Partition, has_features
from hpcncf.slurm.site import Site

DATA = Path(__file__).parents[1] / "data"
KNOWN = Capacity(
    partitions=preflight.parse_partitions((DATA / "scontrol_partitions.txt").read_text()),
    nodes=preflight.parse_nodes((DATA / "scontrol_nodes.txt").read_text()),
)


def refusal(
    site: Site | None = None,
    known: Capacity = KNOWN,
    variables: Mapping[str, str] = MappingProxyType({}),
    **resources: Any,
) -> str | None:
    """Of a small run that fits anywhere, but for what the test says."""
    wants = Resources(mem_gb=1, timeout_min=2).model_copy(update=resources)
    return preflight.refusal(preflight.Request.build(wants, site or Site(), variables), known)


def test_partitions_are_read_as_scontrol_shows_them() -> None:
    assert KNOWN.partitions is not None
    cpu, short, gpu = KNOWN.partitions
    assert (cpu.name, cpu.default, cpu.max_minutes, cpu.max_nodes) == ("cpu", True, 60, None)
    assert (short.max_minutes, gpu.default, gpu.state, gpu.accounts) == (5, False, "UP", None)


def test_nodes_are_read_as_scontrol_shows_them() -> None:
    assert [node.name for node in KNOWN.nodes] == ["node1", "node2", "node3", "node4"]
    assert [node.gpus for node in KNOWN.nodes] == [0, 0, 0, 1]
    last = KNOWN.nodes[-1]
    assert (last.cpus, last.mem_mib, last.features) == (2, 4000, frozenset())
    assert last.partitions == {"cpu", "short", "gpu"}


def test_cores_kept_for_daemons_nodes_to_come_and_reasons_do_not_mislead() -> None:
    text = (
        "NodeName=a CPUEfctv=60 CPUTot=64 Gres=gpu:a100:4(S:0-1),nvme:1 State=MIXED "
        "AvailableFeatures=intel,a100 Partitions=p RealMemory=500 "
        "Reason=bad CPUTot=1 RealMemory=9\n"
        "NodeName=b CPUTot=64 State=FUTURE Partitions=p\n"
    )
    (node,) = preflight.parse_nodes(text)
    assert (node.cpus, node.gpus, node.mem_mib) == (60, 4, 500)
    assert node.features == {"intel", "a100"}


@pytest.mark.parametrize(
    ("gres", "number"),
    [("(null)", 0), ("gpu:1", 1), ("gpu", 1), ("gpu:a100:4(S:0-1),gpu:v100:2", 6), ("nvme:3", 0)],
)
def test_gpus_are_counted_over_their_types(gres: str, number: int) -> None:
    assert preflight.parse_gpus(gres) == number


@pytest.mark.parametrize(
    ("time", "minutes"),
    [("01:00:00", 60), ("1-12:00:00", 2160), ("05:30", 5), ("UNLIMITED", None), ("NONE", None)],
)
def test_slurms_times_are_minutes(time: str, minutes: int | None) -> None:
    assert preflight.parse_minutes(time) == minutes


def test_what_fits_is_not_refused() -> None:
    assert refusal() is None
    assert refusal(Site(partition="gpu"), gpus_per_node=1) is None
    assert refusal(Site(partition="short"), nodes=4, cpus_per_task=2, timeout_min=5) is None


@pytest.mark.parametrize(
    ("site", "asked", "seen"),
    [
        (Site(partition="short"), {"timeout_min": 60},
         "requests 60 min; partition short allows 5 min: -s resources.timeout_min=5; "
         "or set partition: cpu or gpu in the site file"),
        (Site(partition="short"), {"timeout_min": 2, "runs_per_task": 4},
         "requests 8 min (timeout_min 2 x 4 runs); partition short allows 5 min: "
         "-s resources.runs_per_task=2; or set partition: cpu or gpu in the site file"),
        (Site(), {"nodes": 9},
         "requests 9 nodes, each with 1 core, 1024 MiB; partition cpu has 4 such: "
         "fewer resources.nodes, or less on each"),
        (Site(), {"cpus_per_task": 9},
         "requests 9 cores on each node; partition cpu allows 2 at most: "
         "fewer resources.tasks_per_node or resources.cpus_per_task"),
        (Site(), {"mem_gb": 9},
         "requests 9216 MiB of memory on each node; partition cpu allows 4000 at most: "
         "-s resources.mem_gb=3.906"),
        (Site(partition="gpu"), {"gpus_per_node": 2},
         "requests 2 GPUs on each node; partition gpu allows 1 at most: "
         "resources.gpus_per_node at most 1"),
        (Site(), {"gpus_per_node": 1, "nodes": 2},
         "requests 2 nodes, each with 1 core, 1024 MiB, 1 GPU; partition cpu has 1 such: "
         "fewer resources.nodes, or less on each"),
        (Site(constraint="a100"), {},
         "requests 1 node, each with 1 core, 1024 MiB, the feature a100; partition cpu has 0 "
         "such: fewer resources.nodes, or less on each"),
        (Site(partition="cpus"), {},
         "partition 'cpus' does not exist here: set partition in the site file. "
         "Did you mean 'cpu'? There are: cpu, short, gpu"),
    ],
)  # fmt: skip
def test_what_cannot_run_is_reported_with_what_would(
    site: Site, asked: dict[str, Any], seen: str
) -> None:
    assert refusal(site, **asked) == seen


def test_of_several_partitions_one_that_fits_is_enough() -> None:
    assert refusal(Site(partition="short,cpu"), timeout_min=30) is None
    assert "partition cpu allows 60" in str(refusal(Site(partition="short,cpu"), timeout_min=300))


def test_without_a_default_a_partition_has_to_be_named() -> None:
    known = replace(KNOWN, partitions=[partition("cpu", default=False)])
    assert "the cluster has no default" in str(refusal(known=known))


@pytest.mark.parametrize(
    ("config", "routed"),
    [
        ("JobRequeue = 1\nJobSubmitPlugins        = (null)\nKeepAliveTime = 9\n", False),
        ("JobSubmitPlugins        = lua\n", True),
        ("", False),
    ],
)
def test_a_plugin_may_choose_the_partition(config: str, routed: bool) -> None:
    assert preflight.parse_routed(config) is routed
    known = replace(
        KNOWN, partitions=[partition("short", default=True), partition("cpu", default=False)]
    )
    said = refusal(known=replace(known, routed=preflight.parse_routed(config)), timeout_min=30)
    assert (said is None) is routed


def test_where_a_plugin_chooses_what_fits_nowhere_is_refused() -> None:
    assert "requests 300 min" in str(refusal(known=replace(KNOWN, routed=True), timeout_min=300))


def test_sbatchs_own_variables_go_before_the_site() -> None:
    site = Site(partition="cpu")
    assert "'nope' does not exist" in str(refusal(site, variables={"SBATCH_PARTITION": "nope"}))


def partition(name: str, **changes: object) -> Partition:
    assert KNOWN.partitions is not None
    one = next(one for one in KNOWN.partitions if one.name == name)
    return replace(one, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "seen"),
    [
        ({"state": "DOWN"}, "partition cpu is down: jobs wait, none starts"),
        ({"state": "DRAIN"}, "is being drained: it takes no job"),
        ({"max_nodes": 1}, "requests 2 nodes; partition cpu allows 1: resources.nodes at most 1"),
        ({"min_nodes": 3}, "requests 2 nodes; partition cpu takes jobs of 3 or more"),
        ({"max_cpus_per_node": 0}, "partition cpu allows 0 at most"),
        ({"max_mem_mib": 512}, "1024 MiB of memory on each node; partition cpu allows 512"),
        ({"accounts": frozenset({"lab"})}, "takes no job of account Mine (it takes lab)"),
        ({"denied_accounts": frozenset({"mine"})}, "takes no job of account Mine"),
        ({"qos": frozenset({"long"})}, None),
    ],
)
def test_a_partition_has_rules_of_its_own(changes: dict[str, object], seen: str | None) -> None:
    known = replace(KNOWN, partitions=[partition("cpu", **changes)])
    said = refusal(Site(account="Mine"), known, nodes=2)
    assert said is None if seen is None else seen in str(said)


def qos(*flags: str, minutes: int | None = None) -> Capacity:
    return replace(KNOWN, qos={"long": preflight.Qos(minutes, frozenset(flags))})


def test_a_qos_has_a_limit_and_may_lift_the_partitions() -> None:
    site = Site(partition="short", qos="long")
    assert "QOS long allows 10 min" in str(
        refusal(Site(qos="long"), qos(minutes=10), timeout_min=30)
    )
    assert "partition short allows 5" in str(refusal(site, qos(), timeout_min=30))
    assert refusal(site, qos("partitiontimelimit"), timeout_min=30) is None
    assert refusal(site, KNOWN, timeout_min=30) is None, "nobody could be asked what it lifts"


@pytest.mark.parametrize(
    ("site", "seen"),
    [
        (Site(account="lap"), "account 'lap' is not one that you may use here: set account in the "
                              "site file. Did you mean 'lab'? There are: lab"),
        (Site(account="LAB"), None),
        (Site(qos="one"), "qos 'one' is not one that you may use here"),
        (Site(reservation="summer"), "reservation 'summer'"),
        (Site(reservation="Spring"), None),
    ],
)  # fmt: skip
def test_names_that_slurm_does_not_know_are_reported(site: Site, seen: str | None) -> None:
    known = replace(
        qos(), accounts=frozenset({"lab"}), reservations=preflight.parse_reservations(
            "ReservationName=Spring StartTime=2026-11-21T16:52:59 Nodes=node3\n"
        ),
    )  # fmt: skip
    said = refusal(site, known)
    assert said is None if seen is None else str(said).startswith(seen)


def test_of_a_cluster_that_says_nothing_nothing_is_refused() -> None:
    assert refusal(Site(partition="nope", qos="nope"), Capacity(), nodes=1000) is None


def test_memory_that_is_not_asked_for_is_not_checked() -> None:
    assert refusal(Site(memory="none"), mem_gb=9000) is None


@pytest.mark.parametrize(
    ("constraint", "fits"),
    [
        ("", True),
        ("a", True),
        ("c", False),
        ("a&b", True),
        ("a&c", False),
        ("c|b", True),
        ("c|d", False),
        ("[rack1|rack2]", True),
        ("c*2&d*1", True),
        ("a&c|b", True),
    ],
)
def test_features_are_matched_where_that_is_simple(constraint: str, fits: bool) -> None:
    assert has_features(constraint, frozenset("ab")) is fits


ANSWERS = {
    "show partition": f"cat {DATA}/scontrol_partitions.txt",
    "show node": f"cat {DATA}/scontrol_nodes.txt",
    "show reservation": "echo No reservations in the system",
    "show config": "echo 'JobSubmitPlugins = (null)'",
    "show associations": "echo lab",
    "show qos": "echo 'normal||'",
}


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    """scontrol and sacctmgr that answer as a cluster did; the calls they got."""
    cases = "".join(f'*"{words}"*) {answer};;\n' for words, answer in ANSWERS.items())
    for name in ("scontrol", "sacctmgr"):
        script = tmp_path / "bin" / name
        script.parent.mkdir(exist_ok=True)
        script.write_text(f'#!/bin/sh\necho "$*" >> {tmp_path}/calls\ncase "$*" in\n{cases}esac\n')
        script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    return lambda: (tmp_path / "calls").read_text().splitlines()


def test_slurm_is_asked_twice_and_once_for_each_name(asked: Callable[[], list[str]]) -> None:
    limits = Limits.query(Site(partition="short"), "me")
    assert len(asked()) == 2
    assert "partition short allows 5 min" in str(limits.refusal(Resources(timeout_min=60)))
    assert limits.notes() == []
    named = Limits.query(Site(account="lap", qos="normal", reservation="r"), "me")
    assert len(asked()) == 2 + 6
    said = str(named.refusal(Resources(mem_gb=1)))
    assert "Did you mean 'lab'?" in said
    assert "reservation 'r' is not one that you may use here" in said


@pytest.mark.parametrize("broken", ["#!/bin/sh\necho 'scontrol: error: down' >&2\nexit 1\n", None])
def test_a_cluster_that_does_not_answer_blocks_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str | None
) -> None:
    if broken is not None:
        (tmp_path / "scontrol").write_text(broken)
        (tmp_path / "scontrol").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}")
    limits = Limits.query(Site(partition="short", account="lap"), "me")
    assert limits.refusal(Resources(timeout_min=60)) is None
    (note,) = limits.notes()
    assert note.startswith("not checked against the cluster's limits: scontrol: ")


@pytest.mark.usefixtures("asked")
def test_a_site_that_sends_its_jobs_elsewhere_is_not_held_to_this_cluster() -> None:
    limits = Limits.query(Site(partition="x", additional_parameters={"clusters": "other"}), "me")
    assert limits.refusal(Resources()) is None
    assert "sends its jobs to other clusters" in limits.notes()[0]


@given(st.text())
def test_whatever_scontrol_prints_is_read(text: str) -> None:
    for read in (preflight.parse_partitions, preflight.parse_nodes, preflight.parse_reservations):
        assert read(f"PartitionName={text}\nNodeName={text}\nReservationName={text}") is not None
    preflight.parse_qos(text), preflight.parse_accounts(text)
