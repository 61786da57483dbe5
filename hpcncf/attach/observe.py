"""Observe processes of this node for some seconds: by /proc, py-spy, and the probe inside."""

from __future__ import annotations

from typing import Any, Final

from hpcncf.attach import find, inside, py_spy
from hpcncf.attach.watch import Watch

# By then it is known which processes compute.
LINES_AFTER_S: Final = 0.5


class Observation:
    """A watch with the samplers that run beside it."""

    def __init__(self, watch: Watch, with_lines: bool = True) -> None:
        self._watch = watch
        self._samplers: list[py_spy.Sampler] = []
        self._probes: list[inside.ProbeInside] = []
        self._not_inside: dict[int, str] = {}
        self._why_not: dict[int, str] = {}
        self._waits = with_lines
        self._seconds = 0.0

    def run(self, seconds: float) -> dict[str, Any]:
        """Watch for some seconds; return all figures as JSON has them."""
        self._seconds = seconds
        try:
            self._watch.run(seconds, self._begin_inside)
        finally:
            sampled = [(each.pid, *each.end()) for each in self._samplers]
        raw = self._watch.result()
        programs: dict[int, dict[str, Any]] = {}
        for pid, seen, why in sampled:
            if seen:
                programs[pid] = seen
            elif why:
                self._why_not[pid] = py_spy.explain(why, pid)
        for probe in self._probes:
            seen, why = probe.end()
            # Without steps, samples from outside are truer: the probe's are taken where C code lets
            # go of the interpreter's lock.
            if seen and (seen["steps"] or probe.pid not in programs):
                programs[probe.pid] = seen
                self._why_not.pop(probe.pid, None)
            elif why:
                self._not_inside[probe.pid] = why
        raw["programs"] = list(programs.values())
        raw["unseen"] += _unseen("lines of code", self._why_not)
        raw["unseen"] += _unseen("phases and steps, from inside", self._not_inside)
        return raw

    def _begin_inside(self) -> None:
        """Start a sampler for each of the busiest Python processes, and load the probe, once."""
        if not self._waits or self._watch.at_s() < LINES_AFTER_S:
            return
        self._waits = False
        program = py_spy.find_program()
        for pid in self._watch.busiest(py_spy.MOST_PROCESSES):
            self._load_probe(pid)
            why = py_spy.why_forbidden(pid, program)
            if why is None and program is not None:
                try:
                    self._samplers.append(py_spy.Sampler(program, pid, self._seconds))
                except OSError as error:
                    why = f"{program}: {error.strerror}"
            if why is not None:
                self._why_not[pid] = why

    def _load_probe(self, pid: int) -> None:
        why = inside.why_not(pid, self._watch.python_of(pid))
        if why is None and not self._watch.is_worker(pid):
            left = self._seconds - self._watch.at_s()
            try:
                self._probes.append(inside.ProbeInside(pid, left))
            except find.CannotWatch as error:
                why = str(error)
            except OSError as error:
                why = f"the probe's files cannot be written: {error}"
        if why:
            self._not_inside[pid] = why


def _unseen(what: str, why_not: dict[int, str]) -> list[str]:
    by_reason: dict[str, list[int]] = {}
    for pid, why in why_not.items():
        by_reason.setdefault(why, []).append(pid)
    return [
        f"{what}, of process{'es' * (len(pids) > 1)} {', '.join(map(str, pids))}: {why}"
        for why, pids in by_reason.items()
    ]
