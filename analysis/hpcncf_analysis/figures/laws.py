"""A fitted law and its interval, drawn behind the speed-ups that it was fitted to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
from matplotlib.axes import Axes

from hpcncf_analysis.scaling.law import Law
from hpcncf_analysis.scaling.lines import Line, lines, long_enough
from hpcncf_analysis.summary import Configuration

POINTS: Final = 24


def draw(axes: Axes, found: Sequence[Configuration], colours: Mapping[str, str]) -> None:
    """The USL along each line of enough sizes, over what was measured and no further."""
    for line in long_enough(lines(found)):
        law = line.fit("usl")
        if isinstance(law, Law):
            _draw(axes, line, law, colours[line.series])


def _draw(axes: Axes, line: Line, law: Law, colour: str) -> None:
    sizes = np.linspace(line.sizes[0], line.sizes[-1], POINTS).tolist()
    base = line.base
    # The line's base may be another than the series', against which the figure's speed-ups are.
    scale = (base.median("speedup") or 1.0) / (base.speed or 1.0)
    cores = [size * base.cores / line.sizes[0] for size in sizes]
    axes.plot(cores, [law.rate(size) * scale for size in sizes], color=colour, lw=1, alpha=0.7)
    ends = [law.interval(size) for size in sizes]
    known = [end for end in ends if end is not None]
    if len(known) == len(sizes):
        low, high = ([each[at] * scale for each in known] for at in (0, 1))
        axes.fill_between(cores, low, high, color=colour, alpha=0.15, lw=0)
