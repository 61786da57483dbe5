"""Which rank this is, and where rank 0 is, from the variables of whatever started the ranks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcncf.errors import UsageError
from hpcncf.launcher.environment import (
    Place,
    candidates,
    hosts,
    launched_by,
    per_node,
    place,
    place_of_command,
    rendezvous,
    requeued,
    slurm_job_id,
    start_of_ranks,
)

TORCHRUN = {
    "RANK": "5",
    "LOCAL_RANK": "1",
    "WORLD_SIZE": "8",
    "LOCAL_WORLD_SIZE": "4",
    "GROUP_RANK": "1",
    "TORCHELASTIC_RUN_ID": "none",
    "MASTER_ADDR": "cpu7",
    "MASTER_PORT": "29500",
}
STEP = {
    "SLURM_JOB_ID": "4711",
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "3",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_STEP_NODELIST": "cpu[03-04]",
}
UNEVEN = STEP | {"SLURM_STEP_NUM_TASKS": "3", "SLURM_STEP_TASKS_PER_NODE": "2,1"}
LOCAL = {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
HYDRA = {"PMI_RANK": "3", "PMI_SIZE": "4", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}
BATCH = {"SLURM_JOB_ID": "4711", "SLURM_PROCID": "0", "SLURM_NTASKS": "4"}
# As batch scripts export them: without the ranks of a node.
BY_HAND = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "0"}


@pytest.mark.parametrize(
    ("env", "expected", "of_command"),
    [
        ({}, Place(), Place()),
        (TORCHRUN, Place(5, 1, 8, 4, 1), Place(5, 1, 8, 4, 1)),
        (STEP | TORCHRUN, Place(5, 1, 8, 4, 1), Place(5, 1, 8, 4, 1)),
        (LOCAL, Place(1, 1, 2, 2, 0), Place()),  # RANK may have been set for the program only
        (STEP, Place(3, 1, 4, 2, 1), Place(3, 1, 4, 2, 1)),
        (STEP | BY_HAND, Place(1, 0, 2, 2, 0), Place(3, 1, 4, 2, 1)),
        (UNEVEN, Place(3, 1, 3, 1, 1), Place(3, 1, 3, 1, 1)),
        (UNEVEN | {"SLURM_NODEID": "0"}, Place(3, 1, 3, 2, 0), Place(3, 1, 3, 2, 0)),
        (BATCH, Place(), Place()),  # outside of srun
        (HYDRA, Place(), Place()),  # MPICH's start has no name that two nodes know,
        (STEP | HYDRA, Place(3, 1, 4, 2, 1), Place(3, 1, 4, 2, 1)),  # unless Slurm gives it one
    ],
)
def test_a_ranks_place_is_known_from_what_started_it(
    env: dict[str, str], expected: Place, of_command: Place
) -> None:
    assert place(env) == expected
    assert place_of_command(env) == of_command


def test_a_variable_that_is_no_number_is_named() -> None:
    with pytest.raises(UsageError, match="WORLD_SIZE: expected a number, came 'two'"):
        place({"RANK": "0", "WORLD_SIZE": "two"})
    with pytest.raises(UsageError, match="LOCAL_RANK: expected a number, came ''"):
        place(LOCAL | {"LOCAL_RANK": ""})


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        (
            STEP,
            {
                "RANK": "3",
                "WORLD_SIZE": "4",
                "MASTER_ADDR": "cpu03",
                "MASTER_PORT": str(candidates("4711 0 - -")[0]),
            },
        ),
        (TORCHRUN, {"RANK": "5", "WORLD_SIZE": "8"}),
        (STEP | {"SLURM_STEP_NUM_NODES": "1"}, {"MASTER_ADDR": "127.0.0.1"}),
    ],
)
def test_ranks_meet_at_the_first_host_or_where_they_are_told(
    env: dict[str, str], expected: dict[str, str]
) -> None:
    assert expected.items() <= rendezvous(env).items()
    assert "MASTER_ADDR" in expected or "MASTER_ADDR" not in rendezvous(env)


def test_every_start_of_ranks_has_ports_of_its_own() -> None:
    changed = ("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT", "SLURM_PROCID")
    starts = [start_of_ranks(STEP | {name: "9"}) for name in changed]
    assert len(set(starts)) == 4
    assert starts[3] == start_of_ranks(STEP), "all of its ranks agree"


@given(st.text())
def test_no_port_is_one_that_the_kernel_gives_away_or_a_service_owns(start: str) -> None:
    ports = candidates(start)
    assert len(ports) == 16
    assert all(12000 <= port < 32000 for port in ports)


def test_who_launched_is_known() -> None:
    launchers = [{}, TORCHRUN, STEP, STEP | {"HPCNCF_LAUNCHED_BY": "run"}]
    assert [launched_by(env) for env in launchers] == ["train", "torchrun", "slurm", "run"]
    with pytest.raises(UsageError, match="expected one of local, slurm"):
        launched_by({"HPCNCF_LAUNCHED_BY": "cron"})


def test_a_slurm_job_is_known_and_its_own_earlier_claims() -> None:
    env = {"SLURM_JOB_ID": "9", "SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "2"}
    assert [slurm_job_id(each) for each in (env, {"SLURM_JOB_ID": "9"}, {})] == ["7_2", "9", None]
    again = {"SLURM_JOB_ID": "9", "SLURM_RESTART_COUNT": "1"}
    assert requeued("9", again)
    assert not requeued("8", again)
    assert not requeued(None, again)
    assert not requeued("9", {"SLURM_JOB_ID": "9"}), "a second srun of the first start"
    assert not requeued("9", {"SLURM_JOB_ID": "9", "SLURM_RESTART_COUNT": "0"}), "since 23.11"


@pytest.mark.parametrize(
    ("nodelist", "expected"),
    [
        ("n-1", ["n-1"]),
        ("cpu[03-05,9],gpu1", ["cpu03", "cpu04", "cpu05", "cpu9", "gpu1"]),
        ("r1n[2-3]-ib", ["r1n2-ib", "r1n3-ib"]),
        ("rack[1-2]node[1-2]", ["rack1node1", "rack1node2", "rack2node1", "rack2node2"]),
        ("n1.x.org,n2.x.org", ["n1.x.org", "n2.x.org"]),
        ("", []),
    ],
)
def test_slurms_list_of_hosts_is_written_out(nodelist: str, expected: list[str]) -> None:
    assert hosts(nodelist) == expected


numbers = st.integers(0, 200)
spans = st.tuples(numbers, st.integers(0, 5), st.integers(1, 4))
texts = st.from_regex(r"[a-z][a-z0-9.-]{0,6}[a-z]", fullmatch=True)


@given(texts, st.lists(spans, min_size=1, max_size=4), texts | st.just(""))
def test_any_numbers_in_brackets_are_counted_with_their_zeros(
    before: str, ranges: list[tuple[int, int, int]], after: str
) -> None:
    written, expected = [], []
    for first, more, width in ranges:
        names = [str(number).zfill(width) for number in range(first, first + more + 1)]
        written.append(names[0] if more == 0 else f"{names[0]}-{names[-1]}")
        expected += [before + name + after for name in names]
    assert hosts(f"{before}[{','.join(written)}]{after}") == expected


def test_numbers_per_node_are_written_out() -> None:
    found = [per_node(text) for text in ("2", "2(x3),1", "1,2", "", "two")]
    assert found == [[2], [2, 2, 2, 1], [1, 2], [], []]
