"""Times as Slurm writes them."""

from __future__ import annotations

from datetime import datetime


def stamp(moment: float, form: str | None = None) -> str:
    """`form` is SLURM_TIME_FORMAT."""
    when = datetime.fromtimestamp(moment)
    if form and form != "standard":
        return when.strftime(form)
    return when.strftime("%Y-%m-%dT%H:%M:%S")


def clock(seconds: int) -> str:
    """`0:07`, `1:00:00`, `1-00:00:00`: squeue's."""
    days, rest = divmod(seconds, 86400)
    hours, rest = divmod(rest, 3600)
    minutes, left = divmod(rest, 60)
    if days:
        return f"{days}-{hours:02}:{minutes:02}:{left:02}"
    return f"{hours}:{minutes:02}:{left:02}" if hours else f"{minutes}:{left:02}"


def full(seconds: float) -> str:
    """`00:00:07`: sacct's and scontrol's."""
    days, rest = divmod(int(seconds), 86400)
    hours, rest = divmod(rest, 3600)
    head = f"{days}-" if days else ""
    return f"{head}{hours:02}:{rest // 60:02}:{rest % 60:02}"


def cpu(seconds: float) -> str:
    """`00:07.250`: sacct's of CPU time below an hour."""
    if seconds >= 3600:
        return full(seconds)
    return f"{int(seconds) // 60:02}:{seconds % 60:06.3f}"
