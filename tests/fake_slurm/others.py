"""scancel, sinfo, and what sacctmgr tells of accounts and qualities of service."""

from __future__ import annotations

import argparse
import re
from typing import Final

from fake_slurm.cluster import Cluster
from fake_slurm.jobs import folded
from fake_slurm.request import Refused, signal_number
from fake_slurm.scheduler import FEW
from fake_slurm.scontrol import state_of
from fake_slurm.times import clock


def scancel(cluster: Cluster, words: list[str], user: int) -> str:
    """What it does not know it passes over in silence, as Slurm's does."""
    options = argparse.ArgumentParser("scancel", add_help=False, allow_abbrev=False)
    options.add_argument("-s", "--signal")
    options.add_argument("-b", "--batch", action="store_true")
    options.add_argument("-f", "--full", action="store_true")
    options.add_argument("--me", action="store_true")
    for names in (("-u", "--user"), ("-n", "--name"), ("-t", "--state"), ("-p", "--partition")):
        options.add_argument(*names)
    options.add_argument("jobs", nargs="*")
    asked = options.parse_intermixed_args(words)
    named = [job for word in asked.jobs for job in cluster.queue.find(word)]
    elements = [job for word in asked.jobs if "_" in word for job in cluster.queue.find(word)]
    for job in list(cluster.queue.jobs) if asked.me or asked.user or asked.name else named:
        if asked.name not in (None, job.title) or asked.state not in (None, job.state):
            continue
        if asked.signal and signal_number(asked.signal) != 9:
            cluster.signal(job, signal_number(asked.signal), script=asked.batch)
        else:
            cluster.cancel(job, user)
    for job in elements:
        job.nameless = job.state == "CANCELLED" and not job.numbered
    return ""


SINFO: Final = "%9P %.5a %.10l %.6D %.6t %N"
HEADS: Final = {
    "P": "PARTITION",
    "R": "PARTITION",
    "a": "AVAIL",
    "l": "TIMELIMIT",
    "D": "NODES",
    "t": "STATE",
    "T": "STATE",
    "N": "NODELIST",
    "c": "CPUS",
    "m": "MEMORY",
    "G": "GRES",
}
LETTER: Final = r"%(\.?)(\d*)([A-Za-z])"


def sinfo(cluster: Cluster, words: list[str]) -> str:
    options = argparse.ArgumentParser("sinfo", add_help=False, allow_abbrev=False)
    options.add_argument("-h", "--noheader", action="store_true")
    options.add_argument("-N", "--Node", action="store_true")
    options.add_argument("-o", "--format", default=SINFO)
    for names in (("-p", "--partition"), ("-n", "--nodes"), ("-t", "--states")):
        options.add_argument(*names)
    asked = options.parse_args(words)
    rows = _sinfo_rows(cluster, asked)
    shown = list(dict.fromkeys(_filled(asked.format, row) for row in rows))
    head = [] if asked.noheader else [_filled(asked.format, HEADS)]
    return "".join(f"{line}\n" for line in [*head, *shown])


def _filled(form: str, row: dict[str, str]) -> str:
    def cell(found: re.Match[str]) -> str:
        width = int(found[2] or 0)
        text = row.get(found[3], "")
        return text.rjust(width) if found[1] else text.ljust(width)

    return re.sub(LETTER, cell, form)


def _sinfo_rows(cluster: Cluster, asked: argparse.Namespace) -> list[dict[str, str]]:
    """A row for each partition and kind of node; with -N for each node."""
    settings = cluster.queue.settings
    rows = []
    for one in settings.partitions.values():
        if asked.partition not in (None, one.name):
            continue
        kinds: dict[tuple[str, ...], list[str]] = {}
        for node in one.nodes:
            kind = (state_of(node, cluster), str(settings.gpus_of(node)))
            kinds.setdefault((*kind, node) if asked.Node else kind, []).append(node)
        for (state, gpus, *_), nodes in kinds.items():
            rows.append(
                {
                    "P": one.name + ("*" if one.name == "cpu" else ""),
                    "R": one.name,
                    "a": "up",
                    "l": "infinite" if one.max_min is None else clock(one.max_min * 60),
                    "D": str(len(nodes)),
                    "t": {"allocated": "alloc", "mixed": "mix"}.get(state, state),
                    "T": state,
                    "N": folded(nodes),
                    "c": str(settings.cpus),
                    "m": str(settings.mem_mib),
                    "G": "(null)" if gpus == "0" else f"gpu:{gpus}",
                }
            )
    return rows


def sacctmgr(cluster: Cluster, words: list[str]) -> str:
    """`show qos format=...`, `show associations format=...`, parsable."""
    if not cluster.queue.settings.accounting:
        said = "You are not running a supported accounting_storage plugin\n"
        raise Refused(said)
    if not cluster.queue.settings.database:
        raise Refused("sacctmgr: error: Problem talking to the database: Connection refused\n")
    what = next(word for word in words if word in ("qos", "assoc", "associations", "user"))
    form = next((word for word in words if word.startswith("format=")), "format=name")
    fields = form.removeprefix("format=").lower().split(",")
    limit = cluster.queue.settings.max_submit
    known = [{"account": name} for name in cluster.queue.settings.accounts or ("root", "lab")]
    if what == "qos":
        known = [{"name": "normal"}, {"name": "few", "maxsubmitjobsperuser": str(FEW)}]
    more = {"user": "root", "maxsubmitjobs": "" if limit is None else str(limit)}
    return "".join("|".join((row | more).get(name, "") for name in fields) + "\n" for row in known)
