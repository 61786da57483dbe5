"""Observe processes of this node for some seconds: by /proc, and their lines by py-spy."""

from __future__ import annotations

from typing import Any, Final

from hpcncf.attach import lines
from hpcncf.attach.watch import Watch

# By then it is known which processes compute.
LINES_AFTER_S: Final = 0.5


class Observation:
    """A watch with the samplers that run beside it."""

    def __init__(self, watch: Watch, with_lines: bool = True) -> None:
        self._watch = watch
        self._samplers: list[lines.Sampler] = []
        self._why_not: dict[int, str] = {}
        self._waits = with_lines
        self._seconds = 0.0

    def run(self, seconds: float) -> dict[str, Any]:
        """Watch for some seconds; return all figures as JSON has them."""
        self._seconds = seconds
        try:
            self._watch.run(seconds, self._begin_lines)
        finally:
            ended = [(each.pid, *each.end()) for each in self._samplers]
        for pid, _, why in ended:
            if why:
                self._why_not[pid] = lines.explain(why, pid)
        raw = self._watch.result()
        raw["programs"] = [seen for _, seen, _ in ended if seen]
        raw["unseen"] += self._unseen()
        return raw

    def _begin_lines(self) -> None:
        """Start a sampler for each of the busiest Python processes, once."""
        if not self._waits or self._watch.at_s() < LINES_AFTER_S:
            return
        self._waits = False
        program = lines.find_program()
        for pid in self._watch.busiest(lines.MOST_PROCESSES):
            why = lines.why_forbidden(pid, program)
            if why is None and program is not None:
                try:
                    self._samplers.append(lines.Sampler(program, pid, self._seconds))
                except OSError as error:
                    why = f"{program}: {error.strerror}"
            if why is not None:
                self._why_not[pid] = why

    def _unseen(self) -> list[str]:
        by_reason: dict[str, list[int]] = {}
        for pid, why in self._why_not.items():
            by_reason.setdefault(why, []).append(pid)
        return [
            f"lines of code of process{'es' * (len(pids) > 1)} {', '.join(map(str, pids))}: {why}"
            for why, pids in by_reason.items()
        ]
