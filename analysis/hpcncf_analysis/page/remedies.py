"""What each remedy did, on the page. Pure."""

from __future__ import annotations

from typing import Final

from hpcncf_analysis.page.material import Material
from hpcncf_analysis.page.section import Grid, Part, Words
from hpcncf_analysis.remedies import effect, telling

# As many as jobs/remedies.yaml has, and some more.
ALL: Final = 100
UNMEASURED = "No run of the job's baseline is complete: there is nothing to compare remedies with."


def parts_remedies(material: Material) -> list[Part]:
    effects = effect.effects(material.shown)
    table = telling.table(effects)
    if table:
        return [Grid(table, in_markdown=ALL), Words(telling.note(effects), note=True)]
    named = any(row["baseline"] and not row["retired"] for row in material.found.runs)
    measured = any(one.rows[0].get("baseline") for one in material.shown)
    return [Words(UNMEASURED)] if named and not measured else []
