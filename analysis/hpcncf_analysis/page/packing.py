"""Runs side by side, on the page: the curve, its table, and how many to run. Pure."""

from __future__ import annotations

from typing import Final

from hpcncf_analysis.labels import counted
from hpcncf_analysis.packing import curve, telling
from hpcncf_analysis.page.material import Material
from hpcncf_analysis.page.section import Figures, Grid, Part, Points, Words

NOTE_PACKING: Final = (
    "The answer at the top is about what a single run takes and costs, this about how many do most "
    "together. All: the runs of a pack together, median over packs. A total within 5 % of the "
    "greatest is as good, and the fewest runs that reach it are recommended. MiB: the sum of the "
    "runs' peaks, in which pages that they share are counted for each."
)


def parts_packing(material: Material) -> list[Part]:
    found = curve.curves(material.runs)
    if not found:
        return []
    drawn = material.drawn("packing")
    told = [sentence for each in found for sentence in telling.sentences(each)]
    over = curve.left_out(material.runs)
    note = NOTE_PACKING
    if over:
        note += f" Left out: {counted(over, 'run')} of packs that were short, mixed or incomplete."
    figures: list[Part] = [Figures(drawn)] if drawn else []
    return [Points(told), *figures, Grid(telling.table(found)), Words(note, note=True)]
