"""The laws of speed, fitted: curves with their intervals in the figure of the speed-up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
from matplotlib.axes import Axes

from hpcncf_analysis.scaling import law
from hpcncf_analysis.scaling.law import Law
from hpcncf_analysis.scaling.lines import Line, lines, long_enough
from hpcncf_analysis.summary import Configuration, by_series

# A figure that reached as far as the law may be used would press the measured part together.
BEYOND: Final = 1.5
POINTS: Final = 60


def draw_laws(
    axes: Axes, shown: Sequence[Configuration], colours: Mapping[str, str]
) -> list[tuple[float, float]]:
    """A curve and its band for each line of enough sizes; returns their ends (cores, speed-up)."""
    bases = {series: found[0].speed or 1.0 for series, found in by_series(shown).items()}
    ends = []
    for line in long_enough(lines(shown)):
        fitted = law.simplest(line.sizes, line.speeds())
        if isinstance(fitted, Law):
            ends.append(_draw(axes, line, fitted, bases[line.series], colours[line.series]))
    return ends


def _draw(axes: Axes, line: Line, fitted: Law, base: float, colour: str) -> tuple[float, float]:
    cores_of_one = line.base.cores / line.sizes[0]
    sizes = np.geomspace(line.sizes[0], BEYOND * line.sizes[-1], POINTS)
    cores = sizes * cores_of_one
    gains = [fitted.rate(size) / base for size in sizes]
    axes.plot(cores, gains, color=colour, lw=1, ls=(0, (1, 1)), zorder=1)
    bands = [fitted.interval(size) for size in sizes]
    if all(bands):
        low, high = zip(*(band for band in bands if band), strict=True)
        axes.fill_between(
            cores, np.array(low) / base, np.array(high) / base, color=colour, alpha=0.15, lw=0
        )
    return float(cores[-1]), gains[-1]
