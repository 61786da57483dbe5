"""A Slurm whose jobs never start: it queues, lists, cancels and refuses as Slurm 22.05 does.

It is each of the commands (`python fake_slurm.py NAME WORDS`), and what a test says about them.
How jobs run and end is tested on a real Slurm, in tests/slurm.
"""

from __future__ import annotations

import fcntl
import json
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

NAMES = ("sbatch", "srun", "squeue", "sacct", "scontrol", "scancel", "sinfo", "sacctmgr")
RECORDED = Path(__file__).parent / "data/slurm-22.05"
# What the nodes of the recorded cluster have, and what those of this one have.
LARGER = {
    "CPUTot=2": "CPUTot=16",
    "CPUEfctv=2": "CPUEfctv=16",
    "RealMemory=4000": "RealMemory=64000",
}
KNOWN: dict[str, Any] = {
    "controller": True,  # whether slurmctld answers
    "accounting": True,  # whether there is a slurmdbd
    "max_array_size": 1001,
    "max_submit": None,  # jobs that one user may have in the queue
}


class FakeSlurm:
    """The cluster, to a test."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.bin = folder, folder / "bin"
        self.bin.mkdir(parents=True)
        for name in NAMES:
            words = f'-IS {shlex.quote(__file__)} {name} {shlex.quote(str(folder))} "$@"'
            (self.bin / name).write_text(f"#!/bin/sh\nexec {shlex.quote(sys.executable)} {words}\n")
            (self.bin / name).chmod(0o755)

    @property
    def submitted(self) -> list[str]:
        """Each script that sbatch took, in order."""
        return [one["script"] for one in read(self.folder / "jobs.json", [])]

    @property
    def calls(self) -> list[str]:
        """Each command line except sbatch's."""
        log = self.folder / "calls"
        return log.read_text().splitlines() if log.exists() else []

    def answer(self, command: str, text: str) -> None:
        """What this command prints from now on, whatever is queued."""
        (self.folder / f"{command}.says").write_text(text)

    def refuse(self, text: str) -> None:
        """Have sbatch refuse with this text from now on; accept again if it is empty."""
        self.set(refuse=text)

    def set(self, **changes: object) -> None:
        """Change some of `KNOWN`."""
        file = self.folder / "settings.json"
        file.write_text(json.dumps(read(file, {}) | changes))


class Refused(Exception):
    """What the command says on stderr."""


def read(file: Path, nothing: Any) -> Any:
    return json.loads(file.read_text()) if file.exists() else nothing


def main(name: str, folder: Path, words: list[str]) -> int:
    if words == ["--version"]:
        print("slurm-wlm 22.05.8")
        return 0
    if name != "sbatch":
        with (folder / "calls").open("a") as calls:
            calls.write(" ".join([name, *words]) + "\n")
    if (folder / f"{name}.says").exists():
        sys.stdout.write((folder / f"{name}.says").read_text())
        return 0
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            sys.stdout.write(Commands(folder).answer(name, words))
        except Refused as refused:
            sys.stderr.write(str(refused))
            return 1
    return 0


class Commands:
    """What each command does. A submission is one entry: a job, or an array of many."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "jobs.json"
        self.jobs: list[dict[str, Any]] = read(self.file, [])
        self.known = KNOWN | read(folder / "settings.json", {})

    def answer(self, name: str, words: list[str]) -> str:
        of_accounting = name in ("sacct", "sacctmgr")
        if of_accounting and not self.known["accounting"]:
            raise Refused("Slurm accounting storage is disabled\n")
        if not of_accounting and not self.known["controller"]:
            why = "Unable to contact slurm controller (connect failure)"
            raise Refused(f"{name}: error: {why}\n")
        said: str = getattr(self, name)(words)
        return said

    def sbatch(self, words: list[str]) -> str:
        if self.known.get("refuse"):
            raise Refused(self.known["refuse"])
        script = Path(words[-1])
        text = script.read_text()
        options = dict(re.findall(r"^#SBATCH --([a-z-]+)(?:=(.*))?$", text, re.M))
        spans, _, throttle = options.get("array", "").partition("%")
        first, _, last = spans.partition("-")
        elements = list(range(int(first), int(last or first) + 1)) if spans else [None]
        if spans and elements[-1] >= self.known["max_array_size"]:
            refuse("Invalid job array specification")
        most = self.known["max_submit"]
        if most is not None and len([*self.queued()]) + len(elements) > most:
            limit = "Job violates accounting/QOS policy (job submit limit, user's size and/or time"
            refuse(f"{limit} limits)", "sbatch: error: AssocMaxSubmitJobLimit\n")
        number = 100 + len(self.jobs)
        kept = {"script": text, "file": str(script.resolve()), "elements": elements}
        kept |= {"number": number, "throttle": throttle, "options": options, "cancelled": []}
        self.write([*self.jobs, kept])
        parsable = "--parsable" in words
        return f"{number}\n" if parsable else f"Submitted batch job {number}\n"

    def write(self, jobs: list[dict[str, Any]]) -> None:
        partial = self.file.with_suffix(".partial")  # whole: a test may read at any time
        partial.write_text(json.dumps(jobs))
        partial.replace(self.file)

    def queued(self, ended: bool = False) -> Iterator[tuple[dict[str, Any], str, str]]:
        """Each job or element with its name and state."""
        for job in self.jobs:
            gone = set(job["cancelled"])
            for element in job["elements"]:
                name = str(job["number"]) + ("" if element is None else f"_{element}")
                if element not in gone:
                    yield job, name, "PENDING"
                elif ended and gone >= set(job["elements"]):  # one of many leaves no trace
                    yield job, name, "CANCELLED"

    def squeue(self, words: list[str]) -> str:
        every = any(word in ("--states=all", "--array") for word in words)
        rows = list(self.queued(ended="--states=all" in words))
        if (wanted := named(words)) is not None:
            rows = [row for row in rows if {row[1], row[1].partition("_")[0]} & wanted]
        if not every:  # one line for all elements that have not started
            rows = list({job["number"]: (job, name, state) for job, name, state in rows}.values())
        form = next((word for word in words if word.lower().startswith("--format=")), "")
        return "".join(f"{line(form, *row)}\n" for row in rows)

    def sacct(self, words: list[str]) -> str:
        wanted = named(words)
        fields = next(word for word in words if word.startswith("--format=")).partition("=")[2]
        lines = []
        for _, name, state in self.queued(ended=True):
            if wanted is None or {name, name.partition("_")[0]} & wanted:
                cells = {"JobID": name, "State": state, "ExitCode": "0:0", "End": "Unknown"}
                lines.append("|".join(cells.get(field, "") for field in fields.split(",")))
        return "".join(f"{each}\n" for each in lines)

    def scancel(self, words: list[str]) -> str:
        for word in [word for word in words if word[0].isdigit()]:
            number, _, spans = word.partition("_")
            for job in [job for job in self.jobs if str(job["number"]) == number]:
                job["cancelled"] += [*numbers(spans)] if spans else job["elements"]
        self.write(self.jobs)
        return ""

    def scontrol(self, words: list[str]) -> str:
        """It shows the nodes and partitions that a real one showed."""
        if "partition" in words:
            return (RECORDED / "scontrol_partitions.txt").read_text()
        if "node" in words:
            text = (RECORDED / "scontrol_nodes.txt").read_text()
            for theirs, ours in LARGER.items():
                text = text.replace(theirs, ours)
            return text
        if "config" in words:
            enforced = "associations,limits,qos" if self.known["accounting"] else "none"
            largest = self.known["max_array_size"]
            return f"AccountingStorageEnforce = {enforced}\nMaxArraySize = {largest}\n"
        if "job" in words:
            raise Refused("slurm_load_jobs error: Invalid job id specified\n")
        return "No reservations in the system\n"

    def sinfo(self, words: list[str]) -> str:
        del words
        return "cpu\nshort\ngpu\n"

    def sacctmgr(self, words: list[str]) -> str:
        fields = next(word for word in words if word.startswith("format=")).partition("=")[2]
        return "normal" + "|" * fields.count(",") + "\n"


def refuse(why: str, before: str = "") -> NoReturn:
    raise Refused(f"{before}sbatch: error: Batch job submission failed: {why}\n")


def named(words: list[str]) -> set[str] | None:
    """The ids behind `--jobs=` or `-j`, with each element of `8_[1-2]`; None if none is named."""
    text = ""
    for word, following in zip(words, [*words[1:], ""], strict=True):
        text = following if word in ("-j", "--jobs") else text
        text = word.partition("=")[2] if word.startswith("--jobs=") else text
    if not text:
        return None
    found = set()
    for word in re.findall(r"[^,\[]+(?:\[[^\]]*\])?", text):
        number, _, spans = word.partition("_")
        found |= {f"{number}_{each}" for each in numbers(spans)} if spans else {number}
    return found


def numbers(spans: str) -> Iterator[int]:
    """`[0-2,5]` or `3`."""
    for span in spans.strip("[]").split(","):
        first, _, last = span.partition("-")
        yield from range(int(first), int(last or first) + 1)


def line(form: str, job: dict[str, Any], name: str, state: str) -> str:
    """As `--format=%i|%a` or `--Format=JobArrayID:|,State:|` asks."""
    options = job["options"]
    reason = "JobHeldUser" if "hold" in options else "None"
    letters = {"i": name, "F": str(job["number"]), "T": state, "r": reason, "o": job["file"]}
    letters |= {"a": options.get("account", "root"), "q": options.get("qos", "normal")}
    if form.startswith("--format="):
        return re.sub(r"%(\w)", lambda found: letters[found[1]], form.partition("=")[2])
    cells = {"JobArrayID": name, "State": state, "Reason": reason, "RestartCnt": "0"}
    cells |= {"StartTime": "N/A", "EndTime": "N/A", "TimeUsed": "0:00", "exit_code": "0"}
    asked = [each.partition(":")[0] for each in form.partition("=")[2].split(",")]
    return "".join(f"{cells.get(field, '')}|" for field in asked)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2]), sys.argv[3:]))
