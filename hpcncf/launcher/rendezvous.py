"""How ranks find rank 0, and the network interface they use."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import socket
import threading
import time
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Final

import psutil

from hpcncf.errors import HpcncfError, UsageError
from hpcncf.launcher.environment import candidates, hosts, master, start_of_ranks

# Rank 0 waits at the first free one of a few ports that all ranks work out for themselves, on one
# address; the others ask at these until it answers with the run's own words. So another run's rank
# 0, or any other program on such a port, is never taken for ours. It answers with the port of the
# store, which the kernel chose: that is free by itself.

# For one answer; a stranger on the port may never give one.
ANSWER_S: Final = 2.0
AGAIN_S: Final = 0.1
LONGEST: Final = 512


@dataclass(frozen=True)
class Meeting:
    """Meeting place of the ranks, as every rank knows it before they have met."""

    host: str
    ports: Sequence[int]
    words: str
    """Of this start of this run alone, one line."""

    @property
    def asked(self) -> bytes:
        return f"hpcncf {self.words}\n".encode()

    def answer(self, port: int) -> bytes:
        return f"hpcncf {self.words} {port}\n".encode()


def meeting_of_run(run_id: str, env: Mapping[str, str] = os.environ) -> Meeting:
    words = f"{run_id} {start_of_ranks(env)}"
    return Meeting(master(env), candidates(words), words)


def own_address(host: str, env: Mapping[str, str] = os.environ) -> str:
    """Return the numeric address at which the other ranks can reach rank 0.

    Debian calls a host 127.0.1.1 in its own /etc/hosts: then it is the address from which this
    host would talk to another of the step's.
    """
    address = resolved(host)
    if not address.startswith("127.") or env.get("SLURM_STEP_NUM_NODES", "1") == "1":
        return address
    others = hosts(env["SLURM_STEP_NODELIST"])[1:]
    return source_address(resolved(others[0]))


def resolved(host: str) -> str:
    """Resolve a host name to an IP address, IPv4 if it has one.

    Raises HpcncfError if it cannot be resolved.
    """
    # Asked for any family at once, a host known from /etc/hosts is sought in the name service as
    # well: where that does not answer, for ten seconds and more.
    for family in (socket.AF_INET, socket.AF_UNSPEC):
        try:
            return str(socket.getaddrinfo(host, None, family, socket.SOCK_STREAM)[0][4][0])
        except socket.gaierror as error:
            problem = error.strerror
    raise HpcncfError(
        f"{os.uname().nodename}: host {host}, where rank 0 is, has no address here: "
        f"{problem}; the nodes' names must be known on each of them"
    )


def source_address(address: str) -> str:
    """Return this host's IP address for traffic to another address; sends nothing.

    Raises HpcncfError if there is no route.
    """
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((address, 9))
        except OSError as error:
            raise HpcncfError(
                f"{os.uname().nodename}: no way to {address}, where another rank is: "
                f"{error.strerror}"
            ) from None
        return str(probe.getsockname()[0])


def choose_interface(address: str, env: MutableMapping[str, str] = os.environ) -> None:
    """Have gloo and NCCL use the interface towards rank 0, unless the user chose one.

    Left to itself gloo takes what the host's own name resolves to. NCCL knows better ones than
    loopback. Raises UsageError where the one that was set is not there.
    """
    interfaces = psutil.net_if_addrs()
    for name in filter(None, env.get("GLOO_SOCKET_IFNAME", "").split(",")):
        if name not in interfaces:
            raise UsageError(
                f"GLOO_SOCKET_IFNAME (a site's `interface`): {os.uname().nodename} has no network "
                f"interface {name!r}; it has {', '.join(interfaces)}"
            )
    here = source_address(address)
    for name, held in interfaces.items():
        if any(each.address.partition("%")[0] == here for each in held):
            env.setdefault("GLOO_SOCKET_IFNAME", name)
            if not address.startswith("127."):
                env.setdefault("NCCL_SOCKET_IFNAME", name)
            return


def listening(address: str, ports: Sequence[int]) -> socket.socket:
    """Open a listening socket on the first free port of the list, on this address only.

    Port 0 means any free port. Raises HpcncfError if none is free.
    """
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    for port in ports:
        ours = socket.socket(family, socket.SOCK_STREAM)
        # Linux still refuses a port that somebody listens on; one left a moment ago is free.
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            ours.bind((address, port))
            ours.listen()
        except OSError as error:
            ours.close()
            if error.errno not in (errno.EADDRINUSE, errno.EACCES):
                raise HpcncfError(f"{address}:{port}: {error.strerror}") from None
        else:
            return ours
    raise HpcncfError(f"{address}: no port free for the ranks to meet at: {list(ports)}")


def host_others(meeting: Meeting, ours: socket.socket, port: int, others: int) -> None:
    """Send the store's port to every other rank, in a thread, until all have it."""

    def answer_guests() -> None:
        left = others
        with ours, contextlib.suppress(OSError):
            while left:
                guest, _ = ours.accept()
                with guest:
                    left -= _answer_guest(guest, meeting, port)

    threading.Thread(target=answer_guests, name="hpcncf-meeting", daemon=True).start()


def _answer_guest(guest: socket.socket, meeting: Meeting, port: int) -> bool:
    """Answer one connection; return whether a rank of this run has received the port."""
    with contextlib.suppress(OSError):
        guest.settimeout(ANSWER_S)
        if _line(guest) == meeting.asked:
            guest.sendall(meeting.answer(port))
            return guest.recv(1) == b"+"  # one that gave up before has not: it asks again
    return False


def found_store(meeting: Meeting, address: str, timeout_s: float) -> int:
    """Wait for the store's port from rank 0. Raises HpcncfError if it never comes."""
    deadline = time.monotonic() + timeout_s
    strangers: set[int] = set()
    for port in itertools.cycle(meeting.ports):
        if port == meeting.ports[0] and time.monotonic() > deadline:
            break
        try:
            found = _ask(meeting, address, port)
        except OSError as error:
            found = 0
            if not isinstance(error, ConnectionRefusedError):
                strangers.add(port)
        if found:
            return found
        if port == meeting.ports[-1]:
            time.sleep(AGAIN_S)
    others = f"; others listen at {sorted(strangers)}" if strangers else ""
    raise HpcncfError(
        f"rank 0 was not found on {meeting.host} ({address}), ports {list(meeting.ports)}, within "
        f"{timeout_s:g} s: it did not start, or a firewall between the nodes keeps it away{others}"
    )


def _ask(meeting: Meeting, address: str, port: int) -> int:
    """Ask rank 0 at this port for the store's port; 0 if the peer belongs to another run."""
    with socket.create_connection((address, port), timeout=ANSWER_S) as asking:
        asking.sendall(meeting.asked)
        line = _line(asking)
        number = line.rpartition(b" ")[2].strip()
        if not number.isdigit() or line != meeting.answer(int(number)):
            return 0
        asking.sendall(b"+")
        return int(number)


def _line(connection: socket.socket) -> bytes:
    """Read one line from a connection, up to a length limit and a time limit."""
    said = b""
    deadline = time.monotonic() + ANSWER_S
    while not said.endswith(b"\n") and len(said) < LONGEST and time.monotonic() < deadline:
        more = connection.recv(LONGEST)
        if not more:
            break
        said += more
    return said
