"""What Slurm takes at once: the size of an array, and how many jobs a user may have queued."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from hpcncf.slurm import commands
from hpcncf.slurm.request import Site
from hpcncf.submissions import user

# Slurm's own MaxArraySize, where nobody tells; it caps the index, so an array holds as many.
USUAL_ARRAY: Final = 1001
ASSOCIATION: Final = ("account", "partition", "maxsubmitjobs", "defaultqos")
QOS: Final = ("name", "maxsubmitjobsperuser")
QUEUE: Final = "%a|%q"


@dataclass(frozen=True)
class Quota:
    """How many array elements fit. Each of them counts as a job."""

    array: int = USUAL_ARRAY
    """Most elements of one array."""
    left: int | None = None
    """Most elements that may be added to the queue now; None: no limit is known."""
    limit: str = ""
    """What sets `left`, in words."""

    def without(self, elements: int) -> Quota:
        """What it leaves beside so many others."""
        return self if self.left is None else replace(self, left=max(self.left - elements, 0))


def quota_quotas(site: Site) -> Quota:
    """Asked of this cluster, in at most four calls; what cannot be asked sets no limit."""
    config = parse_config(answer("scontrol", "show", "config") or "")
    queue = answer("squeue", "--noheader", "--array", f"--user={user()}", f"--format={QUEUE}") or ""
    bounds = [_of_cluster(config, queue)]
    if "limits" in config.get("AccountingStorageEnforce", ""):
        shown = ["sacctmgr", "--noheader", "--parsable2", "show"]
        rows = answer(*shown, "assoc", f"user={user()}", f"format={','.join(ASSOCIATION)}") or ""
        levels = answer(*shown, "qos", f"format={','.join(QOS)}") or ""
        account = site.account or (answer(*shown, "user", user(), "format=defaultaccount") or "")
        bounds.append(of_account(rows, levels, queue, account.strip(), site))
    left, limit = min((bound for bound in bounds if bound), default=(None, ""))
    array = int(config.get("MaxArraySize", USUAL_ARRAY))
    return Quota(max(array, 1), left, limit)  # 0 forbids arrays; one task is none


def _of_cluster(config: dict[str, str], queue: str) -> tuple[int, str] | None:
    """Other people's jobs count as well, but to list them all would be a burden to the cluster."""
    most = config.get("MaxJobCount", "")
    return _bound(int(most), _lines(queue), "this cluster's MaxJobCount") if most else None


def of_account(
    associations: str, levels: str, queue: str, account: str, site: Site
) -> tuple[int, str] | None:
    """Elements that the user's association or QOS leaves, and why; a QOS's limit goes first."""
    rows = [row for row in _rows(associations, len(ASSOCIATION)) if row[0] == account]
    rows = [row for row in rows if row[1] in ("", site.partition)]
    if not rows:
        return None
    _, _, most, usual = max(rows, key=lambda row: row[1])  # the partition's own, where it has one
    qos = site.qos or usual or "normal"
    queued = _rows(queue, 2)
    for name, per_user in _rows(levels, len(QOS)):
        if name == qos and per_user:
            used = sum(row[1] == qos for row in queued)
            return _bound(int(per_user), used, f"MaxSubmitJobsPerUser of QOS {qos}")
    if not most:
        return None
    used = sum(row[0] == account for row in queued)
    return _bound(int(most), used, f"MaxSubmitJobs of your account {account}")


def _bound(most: int, used: int, name: str) -> tuple[int, str]:
    return max(most - used, 0), f"{name} is {most:,}, {used:,} are queued already"


def queued(ids: Sequence[str]) -> set[str] | None:
    """Which of these jobs are in the queue; None where Slurm cannot be asked."""
    problems = list[str]()
    said = commands.of_jobs(["squeue", "--noheader", "--array", "--format=%i"], ids, problems)
    return None if problems else set(said.split()) & set(ids)


def parse_config(text: str) -> dict[str, str]:
    """`scontrol show config`: its `Key = Value` lines."""
    pairs = (line.partition("=") for line in text.splitlines() if "=" in line)
    return {key.strip(): value.strip() for key, _, value in pairs}


def answer(*command: str) -> str | None:
    """What the command prints; None where Slurm cannot be asked."""
    problems = list[str]()
    text = commands.said(list(command), problems)
    return None if problems else text


def _rows(text: str, columns: int) -> list[list[str]]:
    rows = [[cell.strip() for cell in line.split("|")] for line in text.splitlines()]
    return [row for row in rows if len(row) == columns]


def _lines(text: str) -> int:
    return len(text.split())
