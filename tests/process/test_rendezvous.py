"""How ranks find rank 0, and nobody else in its place."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import psutil
import pytest
from conftest import free_port

from hpcncf.errors import HpcncfError, UsageError
from hpcncf.launcher.rendezvous import (
    Meeting,
    choose_interface,
    found_store,
    host_others,
    listening,
    meeting_of_run,
    resolved,
)

HERE = "127.0.0.1"


def free_ports(number: int) -> list[int]:
    found: set[int] = set()
    while len(found) < number:
        found.add(free_port())
    return [*found]


@contextmanager
def stranger(port: int, says: bytes) -> Iterator[None]:
    """A server that says something to whoever comes, and never goes by itself."""
    ours = listening(HERE, [port])
    guests = []

    def serve() -> None:
        with suppress(OSError):  # closed at the end
            while True:
                guest, _ = ours.accept()
                guests.append(guest)
                guest.sendall(says)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ours.shutdown(socket.SHUT_RDWR)
        ours.close()
        thread.join()
        for guest in guests:
            guest.close()


@pytest.mark.parametrize("says", [b"", b"hpcncf other run 99\n", b"x" * 600])
def test_a_stranger_on_the_port_is_passed_over(says: bytes) -> None:
    at = Meeting(HERE, free_ports(2), "run 1")
    with stranger(at.ports[0], says):
        ours = listening(HERE, at.ports)
        assert ours.getsockname()[1] == at.ports[1]
        host_others(at, ours, 4711, 1)
        assert found_store(at, HERE, 30) == 4711


def test_two_runs_at_the_same_ports_do_not_mix() -> None:
    ports = free_ports(2)
    one, two = Meeting(HERE, ports, "run 1"), Meeting(HERE, ports, "run 2")
    for number, at in enumerate((one, two)):
        host_others(at, listening(HERE, ports), 4711 + number, 2)
    for at, port in ((two, 4712), (one, 4711), (one, 4711), (two, 4712)):
        assert found_store(at, HERE, 30) == port


def test_whoever_else_comes_to_rank_0_learns_nothing() -> None:
    at = Meeting(HERE, free_ports(1), "run 1")
    host_others(at, listening(HERE, at.ports), 4711, 1)
    with socket.create_connection((HERE, at.ports[0]), timeout=30) as curious:
        curious.sendall(b"GET / HTTP/1.1\n")
        assert curious.recv(100) == b""
    assert found_store(at, HERE, 30) == 4711


def test_a_rank_0_that_does_not_come_is_said() -> None:
    at = Meeting("node1", free_ports(1), "run 1")
    with pytest.raises(HpcncfError, match=r"rank 0 was not found on node1 \(127.0.0.1\)"):
        found_store(at, HERE, 0.1)


def test_without_a_free_port_the_ports_are_named() -> None:
    [port] = free_ports(1)
    with stranger(port, b""), pytest.raises(HpcncfError, match=f"no port free .*{port}"):
        listening(HERE, [port])


def test_runs_and_requeued_jobs_have_words_of_their_own() -> None:
    env = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0"}
    every = [
        meeting_of_run("a", env),
        meeting_of_run("b", env),
        meeting_of_run("a", env | {"SLURM_RESTART_COUNT": "1"}),
    ]
    assert len({at.words for at in every}) == len({tuple(at.ports) for at in every}) == 3


def test_the_interface_is_the_one_that_leads_to_rank_0_or_that_was_set() -> None:
    env: dict[str, str] = {}
    choose_interface(HERE, env)
    loopback = env.pop("GLOO_SOCKET_IFNAME")
    assert HERE in [each.address for each in psutil.net_if_addrs()[loopback]]
    assert env == {}, "NCCL knows better than loopback"
    env = {"GLOO_SOCKET_IFNAME": loopback, "NCCL_SOCKET_IFNAME": "^eth"}
    choose_interface(HERE, env)
    assert env == {"GLOO_SOCKET_IFNAME": loopback, "NCCL_SOCKET_IFNAME": "^eth"}
    with pytest.raises(UsageError, match=r"no network interface 'ib7'; it has .*lo"):
        choose_interface(HERE, {"GLOO_SOCKET_IFNAME": "ib7"})


def test_a_host_without_an_address_is_named() -> None:
    with pytest.raises(HpcncfError, match=r"host nowhere\.invalid, where rank 0 is, has no addr"):
        resolved("nowhere.invalid")


JOIN = """
import os, sys
from pathlib import Path
from hpcncf.ncf import distributed
from hpcncf.launcher import environment as launcher
from hpcncf.worker import process_exit as ending
from hpcncf.job.spec import Resources, Training
place = launcher.place()
distributed.join_group(place, Resources(tasks_per_node=2), Training(), "run")
distributed.wait_for_ranks(place)
inodes = {os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")
          if os.path.islink(f"/proc/self/fd/{fd}")}
for file in ("tcp", "tcp6"):
    for line in Path(f"/proc/net/{file}").read_text().splitlines()[1:]:
        words = line.split()
        if words[3] == "0A" and f"socket:[{words[9]}]" in inodes:
            print(words[1].split(":")[0])
distributed.wait_for_ranks(place)
distributed.leave_group()
ending.exit_now(0)
"""


def test_nothing_of_ours_listens_on_all_addresses() -> None:
    env = os.environ | {
        "WORLD_SIZE": "2",
        "MASTER_ADDR": HERE,
        "MASTER_PORT": str(free_ports(1)[0]),
    }
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", JOIN],
            env=env | {"RANK": rank, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": "2"},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for rank in ("0", "1")
    ]  # fmt: skip
    said = [rank.communicate(timeout=120) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], said
    listened = [address for seen, _ in said for address in seen.split()]
    assert len(listened) >= 3, "the store, and gloo of each rank"
    assert set(listened) == {"0100007F"}, "127.0.0.1, as the kernel writes it"
