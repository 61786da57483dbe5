"""What the nodes have left, and which of them a job gets."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from fake_slurm.jobs import Job
from fake_slurm.settings import Settings


@dataclass
class Nodes:
    settings: Settings
    down: set[str] = field(default_factory=set)

    def of(self, job: Job) -> list[str]:
        """Those of its partition, and of those that it names."""
        wanted = unfolded(job.request.asked.nodelist or "")
        unwanted = unfolded(job.request.asked.exclude or "")
        known = self.settings.partitions[job.partition].nodes
        return [node for node in known if node not in unwanted and (not wanted or node in wanted)]

    def fits(self, job: Job) -> bool:
        """Whether it could start on empty nodes."""
        return len(self._with_room(job, [])) >= job.request.nodes

    def places(self, job: Job, running: Iterable[Job]) -> list[str] | None:
        """The nodes that it gets now; None where there is no room."""
        room = [node for node in self._with_room(job, list(running)) if node not in self.down]
        count = job.request.nodes
        return room[:count] if len(room) >= count else None

    def _with_room(self, job: Job, running: list[Job]) -> list[str]:
        return [node for node in self.of(job) if self._room(job, node, running)]

    def _room(self, job: Job, node: str, running: list[Job]) -> bool:
        there = [other.request for other in running if node in other.nodes]
        asked, settings = job.request, self.settings
        if there and (asked.asked.exclusive or any(other.asked.exclusive for other in there)):
            return False
        return (
            asked.cpus_per_node + sum(other.cpus_per_node for other in there) <= settings.cpus
            and asked.mem_mib + sum(other.mem_mib for other in there) <= settings.mem_mib
            and asked.gpus + sum(other.gpus for other in there) <= settings.gpus_of(node)
        )


def unfolded(text: str) -> set[str]:
    """`node[1-3],node5`."""
    found: set[str] = set()
    prefix, _, rest = text.partition("[")
    if not rest:
        return set(filter(None, text.split(",")))
    inside, _, more = rest.partition("]")
    for span in inside.split(","):
        first, _, last = span.partition("-")
        found |= {f"{prefix}{number}" for number in range(int(first), int(last or first) + 1)}
    return found | unfolded(more.lstrip(","))
