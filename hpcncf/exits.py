"""How a process ended, in words."""

from __future__ import annotations

import signal


def signal_name(number: int) -> str:
    """`9 (SIGKILL)`; real-time signals have no name."""
    known = {each.value: each.name for each in signal.Signals}
    return f"{number} ({known[number]})" if number in known else str(number)


def exit_phrase(rank: int, code: int) -> str:
    """`rank 1 was killed by signal 9 (SIGKILL)`, `rank 0 exited with code 3`."""
    if code >= 0:
        return f"rank {rank} exited with code {code}"
    return f"rank {rank} was killed by signal {signal_name(-code)}"
