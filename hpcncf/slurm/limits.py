"""Asking Slurm what there is and what it allows: two calls, and one for each name to look up."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Self, TypeVar

from hpcncf.slurm import capacity, commands, preflight
from hpcncf.slurm.capacity import Capacity
from hpcncf.slurm.request import Site
from hpcncf.spec import Resources

SHOW: Final = ("scontrol", "--all", "--oneliner", "show")
LIST: Final = ("sacctmgr", "--noheader", "--parsable2", "show")
T = TypeVar("T")


@dataclass(frozen=True)
class Limits:
    """What a site's jobs may ask for."""

    site: Site
    known: Capacity

    @classmethod
    def of(cls, site: Site, user: str) -> Self:
        """Asks Slurm; what does not answer is not known, and told in `known.problems`."""
        return cls(site, _ask(site, user))

    @classmethod
    def unknown(cls) -> Self:
        """Nothing is refused."""
        return cls(Site(), Capacity())

    def refusal(self, resources: Resources) -> str | None:
        """Why Slurm would refuse it or let it wait for ever; None where nothing is known of it."""
        return preflight.refusal(preflight.asked_preflight(resources, self.site, os.environ), self.known)

    def notes(self) -> list[str]:
        problems = "; ".join(self.known.problems)
        return [f"not checked against the cluster's limits: {problems}"] if problems else []


def _ask(site: Site, user: str) -> Capacity:
    problems: list[str] = []

    def said(read: Callable[[str], T], *command: str) -> T | None:
        text = commands.said(list(command), problems)
        return read(text) if text else None

    if {"clusters", "M"} & set(site.additional_parameters):
        return Capacity(problems=["the site sends its jobs to other clusters"])
    partitions = said(capacity.partitions, *SHOW, "partition")
    if not partitions:  # then nothing else answers, either
        return Capacity(problems=problems)
    nodes = said(capacity.nodes, *SHOW, "node")
    wants = preflight.asked_preflight(Resources(), site, os.environ)
    accounts = qos = reservations = None
    routed = not wants.partition and said(capacity.routed, "scontrol", "show", "config")
    if wants.account:
        asked = ("associations", "where", f"user={user}", "format=account")
        accounts = said(capacity.accounts, *LIST, *asked)
    if wants.qos:
        qos = said(capacity.qos, *LIST, "qos", "format=name,flags,maxwall")
    if wants.reservation:
        reservations = said(capacity.reservations, *SHOW, "reservation")
    return Capacity(
        partitions, nodes, accounts or None, qos or None, reservations, bool(routed), problems
    )
