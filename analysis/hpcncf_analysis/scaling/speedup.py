"""Speed-up and parallel efficiency against the smallest run of the same series. Pure."""

from __future__ import annotations

import pandas as pd


def with_scaling(configurations: pd.DataFrame) -> pd.DataFrame:
    """Add `speedup`, `parallel_efficiency` and `base`, the label of the series' smallest.

    That has the fewest `cores`, then the fewest `ranks`, of those of its `series` with a `speed`.
    The work is the same, so that the speed-up T(base) / T(this) is the ratio of speeds; parallel
    efficiency is the speed-up for each time that the cores were multiplied: 1.0 is ideal.
    """
    speed = configurations["speed"].astype(float)
    speed = speed.where(speed > 0)
    measured = configurations.assign(speed=speed).dropna(subset="speed")
    smallest = measured.sort_values(["cores", "ranks", "label"]).drop_duplicates("series")
    base = smallest.set_index("series").reindex(configurations["series"])
    base.index = configurations.index
    speedup = speed / base["speed"]
    return configurations.assign(
        speedup=speedup,
        parallel_efficiency=speedup / (configurations["cores"] / base["cores"]),
        base=base["label"],
    )


def karp_flatt(speedup: float, times_the_cores: float) -> float | None:
    """Serial share that a speed-up on so many times the cores shows, (1/S - 1/p) / (1 - 1/p).

    Karp, Flatt 1990. Where it grows with the cores, overhead does; where it stays, the serial part
    is what holds. Below 0: faster than ideal. None without more cores than the base's.
    """
    if times_the_cores <= 1 or speedup <= 0:
        return None
    return (1 / speedup - 1 / times_the_cores) / (1 - 1 / times_the_cores)
