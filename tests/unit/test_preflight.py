"""Requests are checked against what a cluster has and allows, and folders against mounts."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcncf.job.spec import Resources
from hpcncf.slurm import preflight
from hpcncf.slurm.preflight import Capacity, Limits, Partition, Qos, unshared_folder_warning
from hpcncf.slurm.site import Site

DATA = Path(__file__).parents[1] / "data"
KNOWN = Capacity(
    partitions=preflight.parse_partitions((DATA / "scontrol_partitions.txt").read_text()),
    nodes=preflight.parse_nodes((DATA / "scontrol_nodes.txt").read_text()),
)


def refusal(site: Site | None = None, known: Capacity = KNOWN, **resources: Any) -> str | None:
    """The refusal of a small run that fits anywhere except for `resources`."""
    wants = Resources(mem_gb=1, timeout_min=2).model_copy(update=resources)
    return Limits(site or Site(), known).refusal(wants)


def test_partitions_and_nodes_are_read_as_scontrol_shows_them() -> None:
    cpu, short, gpu = KNOWN.partitions
    assert (cpu.name, cpu.default, cpu.max_minutes, cpu.max_nodes) == ("cpu", True, 60, None)
    assert (short.max_minutes, gpu.default, gpu.state, gpu.accounts) == (5, False, "UP", None)
    assert [node.gpus for node in KNOWN.nodes] == [0, 0, 0, 1]
    last = KNOWN.nodes[-1]
    assert (last.name, last.cpus, last.mem_mib, last.features) == ("node4", 2, 4000, frozenset())
    assert last.partitions == {"cpu", "short", "gpu"}


def test_cores_for_daemons_future_nodes_and_reasons_do_not_mislead() -> None:
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
    ("site", "asked", "seen"),
    [
        (Site(), {}, None),
        (Site(partition="gpu"), {"gpus_per_node": 1}, None),
        (Site(partition="short"), {"nodes": 4, "cpus_per_task": 2, "timeout_min": 5}, None),
        (Site(partition="short,cpu"), {"timeout_min": 30}, None),
        (Site(memory="none"), {"mem_gb": 9000}, None),
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
        (Site(partition="short,cpu"), {"timeout_min": 300},
         "requests 300 min; partition cpu allows 60 min: -s resources.timeout_min=60"),
    ],
)  # fmt: skip
def test_a_request_that_cannot_run_is_refused_with_a_remedy(
    site: Site, asked: dict[str, Any], seen: str | None
) -> None:
    assert refusal(site, **asked) == seen


def partition(name: str, **changes: Any) -> Partition:
    return replace(next(one for one in KNOWN.partitions if one.name == name), **changes)


@pytest.mark.parametrize("routed", [False, True])
def test_a_partition_must_be_named_without_a_default_or_a_plugin_that_chooses(routed: bool) -> None:
    known = replace(KNOWN, partitions=[partition("cpu", default=False)], routed=routed)
    assert (refusal(known=known, timeout_min=30) is None) is routed
    said = "requests 300 min" if routed else "the cluster has no default"
    assert said in str(refusal(known=known, timeout_min=300))


def test_sbatchs_own_variables_override_the_site(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SBATCH_PARTITION", "nope")
    assert "'nope' does not exist" in str(refusal(Site(partition="cpu")))


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
        ({"qos": frozenset({"short"})}, "takes no job of QOS Long (it takes short)"),
        ({"qos": frozenset({"long"})}, None),
    ],
)
def test_a_partition_has_rules_of_its_own(changes: dict[str, object], seen: str | None) -> None:
    known = replace(KNOWN, partitions=[partition("cpu", **changes)], qos={"long": NO_LIMIT})
    said = refusal(Site(account="Mine", qos="Long"), known, nodes=2)
    assert said is None if seen is None else seen in str(said)


NO_LIMIT = Qos(None, frozenset())


@pytest.mark.parametrize(
    ("qos", "partition", "seen"),
    [
        (Qos(10, frozenset()), "cpu", "QOS long allows 10 min"),
        (NO_LIMIT, "short", "partition short allows 5"),
        (Qos(None, frozenset({"partitiontimelimit"})), "short", None),
        (None, "short", None),  # an unknown QOS may lift every limit
    ],
)
def test_a_qos_has_a_limit_and_may_lift_the_partitions(
    qos: Qos | None, partition: str, seen: str | None
) -> None:
    known = replace(KNOWN, qos=qos and {"long": qos})
    said = refusal(Site(partition=partition, qos="long"), known, timeout_min=30)
    assert said is None if seen is None else seen in str(said)


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
def test_simple_constraints_are_matched_with_features(constraint: str, fits: bool) -> None:
    assert preflight.has_features(constraint, frozenset("ab")) is fits


ANSWERS = {
    "show partition": f"cat {DATA}/scontrol_partitions.txt",
    "show node": f"cat {DATA}/scontrol_nodes.txt",
    "show config": "echo 'JobSubmitPlugins        = lua'",
    "show qos": "echo 'normal||1:00'",
}


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    """Puts scontrol and sacctmgr that answer as a cluster did on PATH; returns their calls."""
    cases = "".join(f'*"{words}"*) {answer};;\n' for words, answer in ANSWERS.items())
    for name in ("scontrol", "sacctmgr"):
        script = tmp_path / "bin" / name
        script.parent.mkdir(exist_ok=True)
        script.write_text(f'#!/bin/sh\necho "$*" >> {tmp_path}/calls\ncase "$*" in\n{cases}esac\n')
        script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    return lambda: (tmp_path / "calls").read_text().splitlines()


def test_slurm_is_asked_only_for_what_the_site_meets(asked: Callable[[], list[str]]) -> None:
    limits = Limits.query(Site(partition="short"))
    assert len(asked()) == 2
    assert "partition short allows 5 min" in str(limits.refusal(Resources(timeout_min=60)))
    assert limits.notes() == []
    with_qos = Limits.query(Site(qos="normal"))
    assert with_qos.known.routed
    assert with_qos.known.qos == {"normal": Qos(1, frozenset({""}))}
    elsewhere = Limits.query(Site(partition="x", additional_parameters={"clusters": "other"}))
    assert elsewhere.refusal(Resources()) is None
    assert "sends its jobs to other clusters" in elsewhere.notes()[0]
    assert len(asked()) == 2 + 4


@pytest.mark.parametrize("broken", ["#!/bin/sh\necho 'scontrol: error: down' >&2\nexit 1\n", None])
def test_a_cluster_that_does_not_answer_blocks_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str | None
) -> None:
    if broken is not None:
        (tmp_path / "scontrol").write_text(broken)
        (tmp_path / "scontrol").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}")
    limits = Limits.query(Site(partition="short", account="lap"))
    assert limits.refusal(Resources(timeout_min=60)) is None
    (note,) = limits.notes()
    assert note.startswith("not checked against the cluster's limits: scontrol: ")


@given(st.text())
def test_any_output_of_scontrol_is_read(text: str) -> None:
    for parse in (preflight.parse_partitions, preflight.parse_nodes):
        parse(f"PartitionName={text}\nNodeName={text}")
    preflight.parse_qos(text)


MOUNTS = [
    ("/", "ext4"),
    ("/dev/shm", "tmpfs"),
    ("/var/tmp", "ext3"),
    ("/home", "nfs4"),
    ("/scratch space", "lustre"),
    ("/data", "ext4"),
    ("/data", "overlay"),  # hides the one before
]


@pytest.mark.parametrize(
    ("folder", "seen"),
    [
        ("/home/me", None),
        ("/scratch space/me", None),
        ("/opt/exported/perhaps", None),
        ("/dev/shm/me", "is on /dev/shm (tmpfs) of this machine"),
        ("/tmp/me", "is on / (ext4) of this machine"),
        ("/var/tmp/me", "is on /var/tmp (ext3) of this machine"),
        ("/data/me", "is on /data (overlay) of this machine"),
    ],
)
def test_folders_that_no_other_machine_sees_are_doubted(
    monkeypatch: pytest.MonkeyPatch, folder: str, seen: str | None
) -> None:
    mounts = [SimpleNamespace(mountpoint=at, fstype=kind) for at, kind in MOUNTS]
    monkeypatch.setattr(psutil, "disk_partitions", lambda **_: mounts)
    said = unshared_folder_warning(Path(folder))
    assert said is None if seen is None else seen in str(said)
    assert said is None or "choose another folder" in said


def test_without_mounts_no_folder_is_doubted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil, "disk_partitions", lambda **_: [])
    assert unshared_folder_warning(Path("/tmp")) is None
