"""Counts and durations as text, alike in terminals, messages and reports."""

from __future__ import annotations


def pluralize(number: float, noun: str) -> str:
    """Format a number with its noun: `1 run`, `2 runs`, `1,000 runs`, `1.5 cores`."""
    text = f"{number:,.0f}" if number == int(number) else f"{number:g}"
    return f"{text} {noun}" if number == 1 else f"{text} {noun}s"


def format_duration(seconds: float, space: str = " ") -> str:
    """Format a duration: `42 ms`, `12.8 s`, `2:05 min`, `3 h 20 min`; `space` precedes units."""
    if 0 < seconds < 0.1:
        return f"{1000 * seconds:.3g}{space}ms"
    if seconds < 99.95:
        return f"{seconds:.3g}{space}s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes}:{rest:02}{space}min"
    minutes += rest >= 30
    return f"{minutes // 60}{space}h {minutes % 60}{space}min"
