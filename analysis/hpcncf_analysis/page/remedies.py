"""What each remedy did, on the page. Pure."""

from __future__ import annotations

from hpcncf_analysis.page.material import Material
from hpcncf_analysis.page.section import Grid, Part, Words
from hpcncf_analysis.remedies import effect, telling


def parts(material: Material) -> list[Part]:
    effects = effect.effects(material.shown)
    table = telling.table(effects)
    return [Grid(table), Words(telling.note(effects), note=True)] if table else []
