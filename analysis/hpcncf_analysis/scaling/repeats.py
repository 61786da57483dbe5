"""How sure repeats make their median. Pure."""

from __future__ import annotations


def confidence(repeats: int) -> float | None:
    """That the range of so many repeats holds the median of endless ones; None of one repeat.

    1 - 2^(1 - n), whatever the values' distribution: the median lies outside only where all n fell
    on the same side of it (Conover, Practical Nonparametric Statistics, 1999).
    """
    return None if repeats < 2 else 1 - 0.5 ** (repeats - 1)
