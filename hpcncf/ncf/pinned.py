"""A rank binds itself to its share of the cores that its node's ranks may use."""

from __future__ import annotations

import os
import socket
import sys

from hpcncf.errors import HpcncfError
from hpcncf.monitor import cores, numa
from hpcncf.ncf import distributed
from hpcncf.rank import pinning
from hpcncf.rank.launcher import Place
from hpcncf.rank.pinning import How


def pin(how: How, each: int, place: Place) -> None:
    """`each`: cores of a rank. Memory needs no policy: the kernel puts a page on the node of the
    CPU that writes it first.

    Raises HpcncfError where there are too few cores, or no way to bind to them.
    """
    if sys.platform != "linux":
        raise HpcncfError(f"training.pin {how}: only Linux binds processes: use pin none")
    pinning.refuse_other_binding()
    if os.environ.get("HPCNCF_NODE_CPUS") == "":
        raise HpcncfError(
            f"training.pin {how}: nothing confines this job's runs, which are side by side, to "
            "cores of their own: all would bind to the same ones: use pin none"
        )
    mine = (socket.gethostname(), cores.usable_cpus())
    every = distributed.gathered(mine, place)
    here = [rank for rank, (name, _) in enumerate(every) if name == mine[0]]
    masks = [every[rank][1] for rank in here]
    found = numa.cores(cpu for mask in masks for cpu in mask)
    own = pinning.shares(how, masks, each, found)[here.index(place.rank)]
    pinning.bind(own)
    if set(own) != os.sched_getaffinity(0):
        raise HpcncfError(f"training.pin {how}: the kernel did not bind this rank to {own}")
