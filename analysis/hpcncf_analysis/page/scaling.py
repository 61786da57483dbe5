"""How speed grows with cores and ranks, what an epoch costs, and when quality is reached. Pure."""

from __future__ import annotations

from typing import Final

from hpcncf_analysis.page.material import Material
from hpcncf_analysis.page.section import Grid, Part, Words
from hpcncf_analysis.scaling import laws, ranks, tables
from hpcncf_analysis.scaling.quality import sentence, times_to_quality
from hpcncf_analysis.table import Table

# More than these are on the page.
MOST_SCALING: Final = 3
POP_NOTE: Final = (
    "Of each configuration's first run: load balance × communication × input = parallel "
    "efficiency, of the time that the ranks' steps took. Computation scaling is against the base: "
    "above 100\u202f%, an instance takes fewer core-seconds than there."
)


def parts_scaling(material: Material) -> list[Part]:
    shown = material.shown
    grids = [
        *_grid(tables.strong_table(shown), "Strong: the same work on more cores"),
        *_grid(tables.weak_table(shown), "Weak: work that grows with the cores"),
        *_grid(laws.law_table(shown), "Laws of the speed, fitted"),
    ]
    if grids:
        grids += _words(" ".join([*laws.peaks(shown), laws.law_note(shown) or ""]).strip())
    return [*grids, *_grid(tables.cost_table(shown), "What an epoch costs")]


def efficiencies(material: Material) -> list[Part]:
    """POP's factors of the ranks."""
    table = ranks.pop_table(material.shown, material.found.ranks)
    grid = _grid(table, "Where the ranks' efficiency goes")
    return [*grid, Words(POP_NOTE, note=True)] if grid else []


def to_quality(material: Material) -> list[Part]:
    """Time to the target that was asked for; nothing where none was."""
    told, target = quality_sentence(material), material.quality
    if told is None or target is None:
        return []
    found = times_to_quality(material.shown, material.found.epochs, target)
    return [
        *_grid(tables.time_to_quality_table(found), f"Time until HR@10 reaches {target:g}"),
        Words(told),
    ]


def quality_sentence(material: Material) -> str | None:
    """Who reaches the target first; None where none was asked for."""
    if material.quality is None:
        return None
    found = times_to_quality(material.shown, material.found.epochs, material.quality)
    return sentence(found, material.quality)


def _grid(table: Table | None, title: str) -> list[Part]:
    return [Grid(table, title=title)] if table else []


def sentences_scaling(material: Material) -> list[str]:
    """For a terminal: the fastest sizes, and the way to the quality that was asked for."""
    told = quality_sentence(material)
    return [*laws.peaks(material.shown)[:MOST_SCALING], *([told] if told else [])]


def _words(text: str) -> list[Part]:
    return [Words(text, note=True)] if text else []
