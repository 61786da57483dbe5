"""A page's sections in reading order, each there only where it has something to say. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from hpcncf_analysis import history, spent, tables, timeline
from hpcncf_analysis.definitions import DEFINITIONS, OF_TRAINING
from hpcncf_analysis.packing import telling
from hpcncf_analysis.page import (
    asking,
    causes,
    every_run,
    gpus,
    memory,
    packing,
    ranks,
    remedies,
    scaling,
    scored,
)
from hpcncf_analysis.page.material import Material
from hpcncf_analysis.page.section import Drawn, Figures, Grid, Pairs, Part, Points, Section, Words
from hpcncf_analysis.table import Table

# More rows than these are closed until somebody asks for them.
LONG: Final = 12
SYNC_NOTE: Final = (
    "What synchronising takes of a rank's mean step. On one node ranks exchange what "
    "the threads of one rank simply share: one rank with as many threads as cores is to be tried "
    "first."
)


def sections(material: Material) -> list[Section]:
    built = [build(material) for build in BUILDERS]
    return [section for section in built if section.parts]


def _compared(material: Material) -> Section:
    if not material.shown:
        return Section("compared", "", [])
    main = tables.main_table(material.shown)
    title = "Speed, cores and quality" if "instances/s" in main.columns else "Time and cores"
    notes = [
        *tables.main_notes(material.shown),
        *_some(history.accounting(material.runs, material.found.unaccounted)),
    ]
    return Section("compared", title, [Grid(main, sortable=True), Words(" ".join(notes), True)])


def _speed(material: Material) -> Section:
    drawn = material.drawn("efficiency_speed", "speedup")
    return Section("speed", "What the cores bought", [*_figures(drawn), *scaling.parts_scaling(material)])


def _step(material: Material) -> Section:
    parts = _figures(material.drawn("waterfall", "step_time"))
    times = spent.times_table(material.shown)
    if times:
        note = spent.times_note(material.shown)
        parts += [Grid(times, title="The whole run, beside its steps"), *_words_sections(note)]
    if material.timelines:
        told = [timeline.reading(label, each) for label, each in material.timelines.items()]
        parts += [*_figures(material.drawn("timeline")), Points(told)]
    pauses = spent.pauses(material.found.epochs, material.shown)
    if pauses:
        parts.append(Grid(pauses, title="Pauses, and the pace of the steps"))
    return Section("step", "Where the time goes", parts)


def _cores(material: Material) -> Section:
    return Section("cores", "What the cores did", _figures(material.drawn("core_heatmap")))


def _gpus(material: Material) -> Section:
    return Section("gpus", "What the GPUs did", gpus.parts_gpus(material))


def _ranks(material: Material) -> Section:
    parts = [
        *_figures(material.drawn("ranks")),
        *scaling.efficiencies(material),
        *ranks.parts_ranks(material),
    ]
    cost = tables.ranks_table(material.shown)
    if cost:
        parts += [Grid(cost, title="What the ranks cost"), Words(SYNC_NOTE, True)]
    return Section("ranks", "Ranks side by side", parts)


def _quality(material: Material) -> Section:
    table = tables.quality_table(material.shown)
    parts = _figures(material.drawn("quality"))
    if table:
        parts = [*_words_sections(tables.quality_note(material.runs)), *parts, Grid(table)]
    parts += scaling.to_quality(material)
    return Section("quality", "Quality", parts)


def _epochs(material: Material) -> Section:
    table = tables.epoch_table(material.found.epochs, material.shown)
    title = "Epochs of each configuration's first run"
    return Section("epochs", title, _grid_sections(table), folded=True)


def _memory(material: Material) -> Section:
    return Section("memory", "Memory", memory.parts_memory(material))


def _unfinished(material: Material) -> Section:
    waiting = [r for r in material.found.runs if r["state"] != "completed" and not r["retired"]]
    table = every_run.table_every_run(waiting) if waiting else None
    return Section("unfinished", "Runs that are not complete", _grid_sections(table))


def _attempts(material: Material) -> Section:
    table = history.attempt_table(material.found.attempts)
    parts: list[Part] = [*_words_sections(history.price(material.runs))] if table.rows else []
    return Section("attempts", "Interrupted and begun again", [*parts, *_grid_sections(table)])


def _every_run(material: Material) -> Section:
    table = every_run.table_every_run(material.found.runs)
    note = Words("A heading sorts the table, where the browser runs scripts.", note=True)
    parts: list[Part] = [Grid(table, sortable=True), note]
    return Section("runs", "Every run", parts if table.rows else [], folded=len(table.rows) > LONG)


def _warnings(material: Material) -> Section:
    table = every_run.warnings(material.found.runs)
    parts = _grid_sections(table)
    if material.found.skipped:
        parts += [Words("Files that were skipped:"), Points(material.found.skipped)]
    return Section("warnings", "Warnings", parts)


def _environment(material: Material) -> Section:
    told = tables.environment(material.runs)
    return Section("environment", "Environment", [Pairs(told)] if told else [])


def _definitions(material: Material) -> Section:
    trained = any(row["workload"] == "ncf" for row in material.found.runs)
    told = [each for each in DEFINITIONS if trained or each[0] not in OF_TRAINING]
    return Section("definitions", "Definitions", [Pairs(told)], folded=True)


def _causes(material: Material) -> Section:
    return Section("causes", "Why the runs were no faster", causes.parts_causes(material))


def _scored(material: Material) -> Section:
    labels = {one.key: one.label for one in material.shown}
    return Section("predicted", "Predicted against measured", scored.parts_scored(material.score, labels))


def _remedies(material: Material) -> Section:
    return Section("remedies", "What each remedy did", remedies.parts_remedies(material))


def _packing(material: Material) -> Section:
    return Section("packing", telling.TITLE, packing.parts_packing(material))


def _next(material: Material) -> Section:
    return Section("next", "What to ask for next", asking.parts(material.written))


def _figures(drawn: list[Drawn]) -> list[Part]:
    return [Figures(drawn)] if drawn else []


def _grid_sections(table: Table | None) -> list[Part]:
    return [Grid(table)] if table and table.rows else []


def _words_sections(text: str | None) -> list[Part]:
    return [Words(text)] if text else []


def _some(text: str | None) -> Iterable[str]:
    return [text] if text else []


BUILDERS: Final[list[Callable[[Material], Section]]] = [
    _compared,
    _speed,
    _causes,
    _remedies,
    _packing,
    _step,
    _cores,
    _gpus,
    _ranks,
    _quality,
    _epochs,
    _memory,
    _unfinished,
    _attempts,
    _every_run,
    _warnings,
    _environment,
    _definitions,
    _scored,
    _next,
]
