"""The queue: what waits and why, what starts, and what becomes of it when it ends."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from fake_slurm import request as requests
from fake_slurm.jobs import Job
from fake_slurm.nodes import Nodes
from fake_slurm.request import Refused, Request
from fake_slurm.settings import Settings

FEW = 4
UNMET = {"afterok": {"COMPLETED"}, "afternotok": {"FAILED", "TIMEOUT", "NODE_FAIL", "CANCELLED"}}


@dataclass
class Queue:
    folder: Path
    settings: Settings
    jobs: list[Job] = field(default_factory=list)
    numbers: dict[int, Job] = field(default_factory=dict)
    arrays: dict[int, list[Job]] = field(default_factory=dict)
    next_number: int = 100
    down: set[str] = field(default_factory=set)

    def submit(self, request: Request, user: int) -> int:
        """Raises Refused with what sbatch says."""
        self.check(request, user)
        number = self._number()
        limit = request.asked.time
        minutes = requests.minutes(limit) if limit else 10.0
        begin, group = _begin(request.asked.begin), list[Job]()
        for element in request.elements:
            array = None if element is None else number
            job = Job(number, request, user, array, element, group, limit_min=minutes)
            job.held, job.eligible = request.asked.hold, begin
            group.append(job)
        self.jobs += group
        if group[0].array is None:
            self.numbers[number] = group[0]
        else:
            self.arrays[number] = group
        (self.folder / f"{number}.sbatch").write_text(request.script)
        return number

    def _number(self) -> int:
        self.next_number += 1
        return self.next_number - 1

    def check(self, request: Request, user: int) -> None:
        asked, settings = request.asked, self.settings
        elements = [each for each in request.elements if each is not None]
        if any(each >= settings.max_array_size for each in elements):
            raise Refused(requests.INVALID_ARRAY)
        if (asked.partition or "cpu") not in settings.partitions:
            first = f"sbatch: error: invalid partition specified: {asked.partition}\n"
            raise Refused(first + failed("Invalid partition name specified"))
        if settings.accounts is not None and asked.account not in (None, *settings.accounts):
            raise Refused(failed("Invalid account or account/partition combination specified"))
        if asked.qos not in (None, "normal", "few"):
            raise Refused(failed("Invalid qos specification"))
        if asked.constraint:
            raise Refused(failed("Invalid feature specification"))
        self._check_limits(request, user)
        self._check_nodes(request)

    def _check_limits(self, request: Request, user: int) -> None:
        waiting = [job for job in self.jobs if not job.over and job.user == user]
        few = [job for job in waiting if job.request.asked.qos == "few"]
        more = len(request.elements)
        if request.asked.qos == "few" and len(few) + more > FEW:
            raise Refused("sbatch: error: QOSMaxSubmitJobPerUserLimit\n" + failed(POLICY))
        limit = self.settings.max_submit
        if limit is not None and len(waiting) + more > limit:
            raise Refused("sbatch: error: AssocMaxSubmitJobLimit\n" + failed(POLICY))

    def _check_nodes(self, request: Request) -> None:
        partition = self.settings.partitions[request.asked.partition or "cpu"]
        explicit = request.asked.mem or request.asked.mem_per_cpu
        if explicit and request.mem_mib > self.settings.mem_mib:
            first = "sbatch: error: Memory specification can not be satisfied\n"
            raise Refused(first + failed(UNAVAILABLE))
        if request.gpus > max(self.settings.gpus_of(node) for node in partition.nodes):
            raise Refused(failed(UNAVAILABLE))

    def find(self, word: str) -> list[Job]:
        """`12`, `12_3`, `12_[0-3,7]`: a job, an element, a whole array. Nothing: no such job."""
        master, _, elements = word.partition("_")
        if not master.isdigit():
            return []
        if elements:
            wanted = set(requests.array(elements.strip("[]"))[0])
            return [job for job in self.arrays.get(int(master), []) if job.element in wanted]
        if int(master) in self.arrays:
            return self.arrays[int(master)]
        return [self.numbers[int(master)]] if int(master) in self.numbers else []

    def running(self) -> list[Job]:
        """Those that hold nodes."""
        return [job for job in self.jobs if job.nodes and (not job.over or job.completing)]

    def startable(self) -> Iterator[tuple[Job, list[str]]]:
        """Who may start, and where; says of the others why not."""
        nodes, running = Nodes(self.settings, self.down), self.running()
        busy = Counter(job.array for job in running)
        order = sorted(
            self.waiting(), key=lambda job: -self.settings.partitions[job.partition].tier
        )
        full: set[int] = set()  # no element starts where another has just found no room
        for job in order:
            job.reason = self._waits_for(job, nodes, busy)
            tried = job.reason == "None" and id(job.request) not in full
            places = nodes.places(job, running) if tried else None
            if places:
                running.append(job)
                busy[job.array] += 1
                yield job, places
            elif job.reason == "None":
                full.add(id(job.request))
                job.reason = "Resources"

    def waiting(self) -> list[Job]:
        return [job for job in self.jobs if job.state == "PENDING" and not job.completing]

    def _waits_for(self, job: Job, nodes: Nodes, busy: Counter[int | None]) -> str:
        throttle = job.request.throttle
        if job.held:
            return "JobHeldUser"
        if time.time() < job.eligible:
            return "BeginTime"
        if reason := self._depends(job.request.asked.dependency):
            return reason
        if throttle and job.array is not None and busy[job.array] >= throttle:
            return "JobArrayTaskLimit"
        longest = self.settings.partitions[job.partition].max_min
        if longest is not None and job.limit_min > longest:
            return "PartitionTimeLimit"
        return "None" if nodes.fits(job) else "PartitionConfig"

    def _depends(self, text: str | None) -> str:
        """`afterany:12:13,afterok:14_2`."""
        for part in (text or "").split(",") if text else []:
            kind, *words = part.split(":")
            for job in [job for word in words for job in self.find(word)]:
                if not job.over:
                    return "Dependency"
                if kind in UNMET and job.state not in UNMET[kind]:
                    return "DependencyNeverSatisfied"
        return ""

    def number(self, job: Job) -> None:
        """An element gets a number of its own when it starts; the last keeps the array's."""
        if job.array is None or job.numbered:
            return
        left = [one for one in job.group if not (one is job or one.numbered or one.over)]
        job.number = self._number() if left else job.array
        job.numbered = True
        self.numbers[job.number] = job


POLICY = "Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)"
UNAVAILABLE = "Requested node configuration is not available"


def failed(why: str) -> str:
    return f"sbatch: error: Batch job submission failed: {why}\n"


def _begin(text: str | None) -> float:
    """`now+60`, in seconds."""
    found = (text or "").removeprefix("now+")
    return time.time() + float(found) if found.isdigit() else 0.0
