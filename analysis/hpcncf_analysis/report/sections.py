"""The sections of a report in reading order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from hpcncf_analysis import remedies, spent
from hpcncf_analysis.advice.judge import Outcomes
from hpcncf_analysis.advice.next_job import Purpose
from hpcncf_analysis.advice.text import all_rows_note, all_rows_table, describe_gain
from hpcncf_analysis.configurations import Configuration, Table, pluralize
from hpcncf_analysis.diagnosis import format
from hpcncf_analysis.diagnosis.evidence import Diagnosis
from hpcncf_analysis.diagnosis.format import settings
from hpcncf_analysis.formatting import (
    NONE,
    THIN,
    format_duration,
    format_hundredths,
    format_interval,
    format_mebibytes,
    format_number,
    format_percent,
    format_ratio,
    format_score,
)
from hpcncf_analysis.packing import TITLE, curves, left_out, sentences, table
from hpcncf_analysis.pop import SLOWER, pop_from_rows, pop_table
from hpcncf_analysis.quality import describe_time_to_quality, times_to_quality
from hpcncf_analysis.report.definitions import DEFINITIONS, OF_TRAINING
from hpcncf_analysis.report.scaling_tables import (
    cost_table,
    strong_table,
    time_to_quality_table,
    weak_table,
)
from hpcncf_analysis.report.section import (
    BulletList,
    CodeBlock,
    DefinitionList,
    FigureRow,
    Paragraph,
    Part,
    RenderedFigure,
    ReportData,
    Section,
    TableBlock,
    omit_failure,
)
from hpcncf_analysis.report.tables import (
    environment_pairs,
    epoch_table,
    main_notes,
    main_table,
    quality_note,
    quality_table,
    ranks_table,
)
from hpcncf_analysis.report.timeline import describe_timeline
from hpcncf_analysis.scaling import describe_peaks, law_note, law_table
from hpcncf_analysis.spent import attempt_table, describe_accounting, describe_interruption_cost

Row = Mapping[str, Any]


def advice_parts(material: ReportData) -> list[Part]:
    """Empty if nothing can be advised."""
    parts: list[Part] = []
    if material.table and (table := all_rows_table(material.table)):
        parts += [TableBlock(table), Paragraph(all_rows_note(material.table), note=True)]
    for written in material.written:
        advice = written.advice
        parts += [
            Paragraph(f"{PURPOSES[advice.purpose]}: {advice.chosen.label}"),
            BulletList(advice.reasons),
            CodeBlock(f"hpcncf submit {written.job}", "sh"),
        ]
    if material.written:
        first = material.written[0]
        parts += [
            Paragraph(f"The first job file, {first.job.name}:"),
            CodeBlock(first.advice.job_yaml.strip(), "yaml"),
            Paragraph("The same request for a batch script of your own:"),
            CodeBlock(first.advice.sbatch.strip(), "sh"),
        ]
    return parts


PURPOSES: Final[dict[Purpose, str]] = {
    "repeat": "To repeat",
    "next": "Next",
    "fastest": "The fastest",
    "cheapest": "The least core-hours",
}
TEXTS_CAUSES: Final = frozenset({"cause", "evidence", "gain", "remedy"})


def cause_parts(material: ReportData) -> list[Part]:
    """A row for each cause of each configuration's first run."""
    rows = [
        cells
        for one in material.shown
        if (found := material.diagnoses.get(one.rows[0]["run_id"]))
        for cells in _rows(one, found, material.outcomes)
    ]
    if not rows:
        return []
    columns = ["configuration", "cause", "cost", "evidence", "gain", "remedy"]
    note = "Of each configuration's first run, its primary cause first."
    return [TableBlock(Table(columns, rows, TEXTS_CAUSES)), Paragraph(note, note=True)]


def _rows(one: Configuration, found: Diagnosis, outcomes: Outcomes) -> list[list[str]]:
    if not found.findings:
        missing = f"unknown: {'; '.join(found.missing)}" if found.missing else NONE
        return [[one.label, found.verdict, NONE, missing, NONE, NONE]]
    return [
        [
            one.label if finding is found.findings[0] else "",
            finding.cause,
            NONE if finding.cause == "too_short_to_judge" else format.cost(finding),
            "; ".join(finding.evidence),
            "; ".join(describe_gain(one.key, finding, outcomes)) or NONE,
            " ".join(filter(None, (finding.remedy, format.settings(finding.changes)))),
        ]
        for finding in found.findings
    ]


Row_every_run = Mapping[str, Any]

TEXTS_EVERY_RUN: Final = frozenset({"settings", "state", "what happened"})
# As the monitor says it.
TOO_SHORT_EVERY_RUN: Final = "too short to judge"
COLUMNS: Final = ("run", "settings", "repeat", "state")
FIGURES: Final = {
    "elapsed": ("elapsed_s", format_duration),
    "of the limit": ("time_efficiency", format_percent),
    "instances/s": ("instances_per_s", format_number),
    "CPU efficiency": ("cpu_efficiency", format_percent),
    "peak memory": ("memory_peak_mib", format_mebibytes),
    "of what was asked": ("memory_efficiency", format_percent),
    "HR@10": ("hr10", format_score),
}
# Told only where a run has them.
OF_TRAINING_EVERY_RUN: Final = ("instances/s", "HR@10")
NAMED: Final = 3


def every_run_table(runs: Sequence[Row_every_run]) -> Table:
    """Every planned run, whatever became of it."""
    figures = {
        name: (column, show)
        for name, (column, show) in FIGURES.items()
        if name not in OF_TRAINING_EVERY_RUN or any(row.get(column) is not None for row in runs)
    }
    keys = [column for column, _ in figures.values()]
    return Table(
        [*COLUMNS, *figures, "what happened"],
        [
            [
                *_run_cells(row),
                *(show(row.get(column)) for column, show in figures.values()),
                _describe_end(row),
            ]
            for row in runs
        ],
        TEXTS_EVERY_RUN,
        [[None, None, row["repeat"], None, *map(row.get, keys), None] for row in runs],
    )


def _run_cells(row: Row_every_run) -> list[str]:
    varied = ", ".join(f"{key.split('.')[-1]}: {value}" for key, value in row["varied"].items())
    return [
        row["run_id"],
        varied or row["command"] or "the base setting",
        str(row["repeat"]),
        row["state"] + (" (retired)" if row["retired"] else ""),
    ]


def _describe_end(row: Row_every_run) -> str:
    """Its end, and its warnings: without the word on how little was measured where the run's end
    is what matters."""
    ended_well = row["state"] == "completed"
    warned = [text for text in row["warnings"] if ended_well or TOO_SHORT_EVERY_RUN not in text]
    return "; ".join(
        text for text in [row["reason"], row["progress"], row["stale"], *warned] if text
    )


def warnings_table(runs: Sequence[Row_every_run]) -> Table | None:
    """Each warning once, with the runs that gave it, the most frequent first."""
    by_text: dict[str, list[str]] = {}
    for row in runs:
        for text in row["warnings"]:
            by_text.setdefault(text, []).append(row["run_id"])
    ordered = sorted(by_text.items(), key=lambda each: -len(each[1]))
    rows = [[_run_list(runs_), text] for text, runs_ in ordered]
    return Table(["runs", "warning"], rows, frozenset({"warning"})) if rows else None


def _run_list(runs: Sequence[str]) -> str:
    if len(runs) <= NAMED:
        return ", ".join(runs)
    return f"{pluralize(len(runs), 'run')}, as {runs[0]}"


COLUMNS_GPUS: Final = [
    "configuration",
    "GPUs",
    "busy",
    "busy with this run",
    "most MiB used",
    "clock, MHz",
    "clocks held down",
    "W of each",
    "an epoch: GPU-s",
    "an epoch: J",
    "the run: GPU-h",
]
TEXTS_GPUS: Final = frozenset({"GPUs"})
NOTE: Final = (
    "Busy: some kernel was on the GPU, however little of it it filled. Clocks held down: share of "
    "the samples, for the commonest reason. Of runs that share a GPU each counts its even part of "
    "hours and joules; busy, memory, clock and power are the whole GPU's."
)
NO_NVML_NOTE: Final = (
    "Of these GPUs NVML reported nothing (pip install 'hpcncf[gpu]' where the runs are)."
)


def gpu_parts(material: ReportData) -> list[Part]:
    """Nothing where no run had a GPU."""
    had = [one for one in material.shown if one.median("gpu_hours")]
    if not had:
        return []
    told = any(row.get("gpu_model") for one in had for row in one.rows)
    note = NOTE if told else NO_NVML_NOTE
    return [
        TableBlock(Table(COLUMNS_GPUS, [_row(one) for one in had], TEXTS_GPUS).told),
        Paragraph(note, note=True),
    ]


def _row(one: Configuration) -> list[str]:
    hours = one.median("gpu_h_per_epoch")
    return [
        one.label,
        f"{one.rows[0]['gpus']:g} {one.rows[0].get('gpu_model') or ''}".strip(),
        format_percent(one.median("gpu_busy")),
        format_percent(one.median("gpu_ours")),
        format_number(one.median("gpu_memory_peak_mib")),
        format_number(one.median("gpu_sm_mhz")),
        _describe_throttling(one),
        format_number(one.median("gpu_power_w")),
        format_number(None if hours is None else 3600 * hours),
        format_number(one.median("gpu_j_per_epoch")),
        format_number(one.median("gpu_hours")),
    ]


def _describe_throttling(one: Configuration) -> str:
    reasons = dict.fromkeys(row.get("gpu_throttled_by") for row in one.rows)
    named = ", ".join(reason for reason in reasons if reason)
    return format_percent(one.median("gpu_throttled")) + (f" ({named})" if named else "")


Row_memory = Mapping[str, Any]

# The ranks' columns that speak of a shortage; told only where one is known and above 0.
SHORTAGE: Final = {
    "memory_major_faults": "read back from disk: pages",
    "memory_swap_peak_mib": "swapped MiB",
    "memory_pressure_s": "waited for memory: s",
}
NOTE_MEMORY: Final = (
    "Peaks are the largest samples of resident memory, files that are mapped included: an upper "
    "bound of what a run needs. Of several repeats the largest."
)


def memory_parts(material: ReportData) -> list[Part]:
    known = [one for one in material.shown if one.median("memory_peak_mib") is not None]
    if not known:
        return []
    by_run: dict[str, list[Row_memory]] = {}
    for row in material.found.ranks:
        by_run.setdefault(row["run_id"], []).append(row)
    of = {
        one.key: [rank for row in one.rows for rank in by_run.get(row["run_id"], [])]
        for one in known
    }
    short = [name for name in SHORTAGE if any(_most(ranks, name) for ranks in of.values())]
    columns = ["configuration", "MiB of a node", "asked", "of what was asked"]
    columns += [
        "MiB of the largest rank",
        "limit of the cgroup",
        *(SHORTAGE[name] for name in short),
    ]
    rows = [_row_memory(one, of[one.key], short) for one in known]
    return [TableBlock(Table(columns, rows)), Paragraph(NOTE_MEMORY, note=True)]


def _row_memory(one: Configuration, ranks: Sequence[Row_memory], short: Sequence[str]) -> list[str]:
    peak = _most(one.rows, "memory_peak_mib")
    asked = one.rows[0]["mem_gb"]
    return [
        one.label,
        format_number(peak),
        NONE if asked is None else f"{asked:g}{THIN}GB",
        format_percent(_most(one.rows, "memory_efficiency")),
        format_number(_most(ranks, "memory_rss_peak_mib")),
        format_mebibytes(_most(ranks, "memory_limit_mib")),
        *(format_number(_most(ranks, name)) for name in short),
    ]


def _most(rows: Sequence[Row_memory], name: str) -> float | None:
    return max((row[name] for row in rows if row.get(name) is not None), default=None)


NOTE_PACKING: Final = (
    "The answer at the top is about what a single run takes and costs, this about how many do most "
    "together. All: the runs of a pack together, median over packs. A total within 5 % of the "
    "greatest is as good, and the fewest runs that reach it are recommended. MiB: the sum of the "
    "runs' peaks, in which pages that they share are counted for each."
)


def packing_parts(material: ReportData) -> list[Part]:
    found = curves(material.runs)
    if not found:
        return []
    drawn = material.drawn("packing")
    told = [sentence for each in found for sentence in sentences(each)]
    over = left_out(material.runs)
    note = NOTE_PACKING
    if over:
        note += (
            f" Left out: {pluralize(over, 'run')} of packs that were short, mixed or incomplete."
        )
    figures: list[Part] = [FigureRow(drawn)] if drawn else []
    return [BulletList(told), *figures, TableBlock(table(found)), Paragraph(note, note=True)]


Row_ranks = Mapping[str, Any]

# So many configurations show their ranks, and so many ranks each: others are in ranks.csv.
MAX_RANK_TABLES: Final = 4
RANKS: Final = 32


def configurations_with_ranks(material: ReportData) -> list[Configuration]:
    """The fastest of several ranks."""
    several = [one for one in material.shown if one.ranks > 1 and one.speed]
    return sorted(several, key=lambda one: one.speed or 0.0, reverse=True)[:MAX_RANK_TABLES]


def rows_of_first_run(ranks: Sequence[Row_ranks], one: Configuration) -> list[Row_ranks]:
    """The ranks' rows of a configuration's first run, those that trained."""
    run = one.rows[0]["run_id"]
    found = [row for row in ranks if row["run_id"] == run and row.get("counted_s") is not None]
    return found[:RANKS]


def rank_parts(material: ReportData) -> list[Part]:
    grids: list[Part] = []
    for one in configurations_with_ranks(material):
        ranks = rows_of_first_run(material.found.ranks, one)
        if ranks:
            grids.append(
                TableBlock(_table(ranks), title=f"{one.label}, run {one.rows[0]['run_id']}")
            )
    return grids


def busy_s(row: Row_ranks) -> float:
    """A rank's counted steps without its waiting for other ranks."""
    return float(row["counted_s"] - row["sync_s"])


def slowest_rank_row(ranks: Sequence[Row_ranks]) -> Row_ranks | None:
    """The rank that the others wait for; None where they are even."""
    found = pop_from_rows(ranks)
    if found is None or found.slowest_by < SLOWER:
        return None
    return next(row for row in ranks if row["rank"] == found.slowest_rank)


def _table(ranks: Sequence[Row_ranks]) -> Table:
    slowest = slowest_rank_row(ranks)
    columns = ["rank", "node", "steps: instances", "steps: seconds", "steps: input"]
    columns += ["steps: computing", "steps: waiting for ranks", "cores used", "CPU efficiency"]
    rows = [_row_ranks(row, row is slowest) for row in ranks]
    return Table([*columns, "peak MiB"], rows, frozenset({"node"}))


def _row_ranks(row: Row_ranks, slowest: bool) -> list[str]:
    return [
        f"{row['rank']}{' (slowest)' if slowest else ''}",
        str(row["node"]),
        format_number(row["counted_instances"]),
        format_number(row["counted_s"]),
        format_number(row["input_s"]),
        format_number(busy_s(row) - row["input_s"]),
        format_number(row["sync_s"]),
        format_hundredths(row["cores_used"]),
        format_percent(row["cpu_efficiency"]),
        format_number(row["memory_rss_peak_mib"]),
    ]


# As many as jobs/remedies.yaml has, and some more.
MAX_REMEDY_ROWS: Final = 100
UNMEASURED = "No run of the job's baseline is complete: there is nothing to compare remedies with."


def remedy_parts(material: ReportData) -> list[Part]:
    effects = remedies.measure_effects(material.shown)
    table = remedies.remedies_table(effects)
    if table:
        return [
            TableBlock(table, in_markdown=MAX_REMEDY_ROWS),
            Paragraph(remedies.describe_baseline(effects), note=True),
        ]
    named = any(row["baseline"] and not row["retired"] for row in material.found.runs)
    measured = any(one.rows[0].get("baseline") for one in material.shown)
    return [Paragraph(UNMEASURED)] if named and not measured else []


# More than these are on the page.
MOST_SCALING: Final = 3
POP_NOTE: Final = (
    "Of each configuration's first run: load balance × communication × input = parallel "
    "efficiency, of the time that the ranks' steps took. Computation scaling is against the base: "
    "above 100\u202f%, an instance takes fewer core-seconds than there."
)


def scaling_parts(material: ReportData) -> list[Part]:
    shown = material.shown
    grids = [
        *_grid(strong_table(shown), "Strong: the same work on more cores"),
        *_grid(weak_table(shown), "Weak: work that grows with the cores"),
        *_grid(law_table(shown), "Laws of the speed, fitted"),
    ]
    if grids:
        grids += _word_parts(" ".join([*describe_peaks(shown), law_note(shown) or ""]).strip())
    return [*grids, *_grid(cost_table(shown), "What an epoch costs")]


def pop_parts(material: ReportData) -> list[Part]:
    """POP's factors of the ranks."""
    table = pop_table(material.shown, material.found.ranks)
    grid = _grid(table, "Where the ranks' efficiency goes")
    return [*grid, Paragraph(POP_NOTE, note=True)] if grid else []


def time_to_quality_parts(material: ReportData) -> list[Part]:
    """Time to the target that was asked for; nothing where none was."""
    told, target = quality_sentence(material), material.quality
    if told is None or target is None:
        return []
    found = times_to_quality(material.shown, material.found.epochs, target)
    return [
        *_grid(time_to_quality_table(found), f"Time until HR@10 reaches {target:g}"),
        Paragraph(told),
    ]


def quality_sentence(material: ReportData) -> str | None:
    """Who reaches the target first; None where none was asked for."""
    if material.quality is None:
        return None
    found = times_to_quality(material.shown, material.found.epochs, material.quality)
    return describe_time_to_quality(found, material.quality)


def _grid(table: Table | None, title: str) -> list[Part]:
    return [TableBlock(table, title=title)] if table else []


def terminal_sentences(material: ReportData) -> list[str]:
    """For a terminal: the fastest sizes, and the way to the quality that was asked for."""
    told = quality_sentence(material)
    return [*describe_peaks(material.shown)[:MOST_SCALING], *([told] if told else [])]


def _word_parts(text: str) -> list[Part]:
    return [Paragraph(text, note=True)] if text else []


Row_scored = Mapping[str, Any]

TEXTS_SCORED: Final = frozenset({"cause", "remedy", "of", "within 25\u202f%"})
GAIN_NAMES: Final = {"instances_per_s": "instances/s", "core_hours": "core-hours"}
NOTE_SCORED: Final = (
    "Each prediction was written down before its run; a figure is the ratio after over before, "
    "with what repeats make of it."
)


def prediction_parts(score: Sequence[Row_scored], labels: Mapping[str, str]) -> list[Part]:
    """`labels`: of configurations. Empty where nothing was predicted."""
    if not score:
        return []
    columns = ["configuration", "cause", "remedy", "of", "predicted", "measured"]
    table = Table(
        [*columns, "within 25\u202f%"], [_row_scored(one, labels) for one in score], TEXTS_SCORED
    )
    return [Paragraph(_summary(score)), TableBlock(table), Paragraph(NOTE_SCORED, note=True)]


def _row_scored(one: Row_scored, labels: Mapping[str, str]) -> list[str]:
    return [
        labels.get(one["base"], one["base"]),
        one["cause"],
        settings(one["changes"]),
        GAIN_NAMES[one["what"]],
        _ratio(one["predicted"], one["low"], one["high"]),
        _ratio(one["measured"], one["measured_low"], one["measured_high"]),
        {True: "yes", False: "no", None: "not measured yet"}[one["within"]],
    ]


def _ratio(value: float | None, low: float | None, high: float | None) -> str:
    return f"{format_ratio(value)}\n{format_interval(low, high, format_ratio)}".strip()


def _summary(score: Sequence[Row_scored]) -> str:
    measured = [one for one in score if one["within"] is not None]
    right = sum(one["within"] for one in measured)
    if not measured:
        return f"None of {len(score)} predictions was measured yet."
    return f"{right} of {len(measured)} measured predictions were right within 25\u202f%."


# More rows than these are closed until somebody asks for them.
MAX_OPEN_ROWS: Final = 12
SYNC_NOTE: Final = (
    "What synchronising takes of a rank's mean step. On one node ranks exchange what "
    "the threads of one rank simply share: one rank with as many threads as cores is to be tried "
    "first."
)


def build_sections(material: ReportData) -> list[Section]:
    """The sections that have something to show; one that fails is left out with one sentence."""
    built = []
    for build in BUILDERS:
        name = build.__name__.strip("_")
        with omit_failure(f"section “{name}”") as problems:
            built.append(build(material))
        built += [Section(name, "Left out", [Paragraph(text, True)]) for text in problems]
    return [section for section in built if section.parts]


def _compared(material: ReportData) -> Section:
    if not material.shown:
        return Section("compared", "", [])
    main = main_table(material.shown)
    title = "Speed, cores and quality" if "instances/s" in main.columns else "Time and cores"
    notes = [
        *main_notes(material.shown),
        *_some(describe_accounting(material.runs, material.found.unaccounted)),
    ]
    return Section(
        "compared", title, [TableBlock(main, sortable=True), Paragraph(" ".join(notes), True)]
    )


def _speed(material: ReportData) -> Section:
    drawn = material.drawn("efficiency_speed", "speedup")
    return Section(
        "speed", "What the cores bought", [*_figure_parts(drawn), *scaling_parts(material)]
    )


def _step(material: ReportData) -> Section:
    parts = _figure_parts(material.drawn("waterfall", "step_time"))
    times = spent.times_table(material.shown)
    if times:
        note = spent.evaluation_note(material.shown)
        parts += [
            TableBlock(times, title="The whole run, beside its steps"),
            *_words_sections(note),
        ]
    if material.timelines:
        told = [describe_timeline(label, each) for label, each in material.timelines.items()]
        parts += [*_figure_parts(material.drawn("timeline")), BulletList(told)]
    pauses = spent.pauses_table(material.found.epochs, material.shown)
    if pauses:
        parts.append(TableBlock(pauses, title="Pauses, and the pace of the steps"))
    return Section("step", "Where the time goes", parts)


def _cores(material: ReportData) -> Section:
    return Section("cores", "What the cores did", _figure_parts(material.drawn("core_heatmap")))


def _gpus(material: ReportData) -> Section:
    return Section("gpus", "What the GPUs did", gpu_parts(material))


def _ranks(material: ReportData) -> Section:
    parts = [
        *_figure_parts(material.drawn("ranks")),
        *pop_parts(material),
        *rank_parts(material),
    ]
    cost = ranks_table(material.shown)
    if cost:
        parts += [TableBlock(cost, title="What the ranks cost"), Paragraph(SYNC_NOTE, True)]
    return Section("ranks", "Ranks side by side", parts)


def _quality(material: ReportData) -> Section:
    table = quality_table(material.shown)
    parts = _figure_parts(material.drawn("quality"))
    if table:
        parts = [*_words_sections(quality_note(material.runs)), *parts, TableBlock(table)]
    parts += time_to_quality_parts(material)
    return Section("quality", "Quality", parts)


def _epochs(material: ReportData) -> Section:
    table = epoch_table(material.found.epochs, material.shown)
    title = "Epochs of each configuration's first run"
    return Section("epochs", title, _grid_sections(table), folded=True)


def _memory(material: ReportData) -> Section:
    return Section("memory", "Memory", memory_parts(material))


def _unfinished(material: ReportData) -> Section:
    waiting = [r for r in material.found.runs if r["state"] != "completed" and not r["retired"]]
    table = every_run_table(waiting) if waiting else None
    return Section("unfinished", "Runs that are not complete", _grid_sections(table))


def _attempts(material: ReportData) -> Section:
    table = attempt_table(material.found.attempts)
    parts: list[Part] = (
        [*_words_sections(describe_interruption_cost(material.runs))] if table.rows else []
    )
    return Section("attempts", "Interrupted and begun again", [*parts, *_grid_sections(table)])


def _every_run(material: ReportData) -> Section:
    table = every_run_table(material.found.runs)
    note = Paragraph("A heading sorts the table, where the browser runs scripts.", note=True)
    parts: list[Part] = [TableBlock(table, sortable=True), note]
    return Section(
        "runs", "Every run", parts if table.rows else [], folded=len(table.rows) > MAX_OPEN_ROWS
    )


def _warnings(material: ReportData) -> Section:
    table = warnings_table(material.found.runs)
    parts = _grid_sections(table)
    if material.found.skipped:
        parts += [Paragraph("Files that were skipped:"), BulletList(material.found.skipped)]
    return Section("warnings", "Warnings", parts)


def _environment(material: ReportData) -> Section:
    told = environment_pairs(material.runs)
    return Section("environment", "Environment", [DefinitionList(told)] if told else [])


def _definitions(material: ReportData) -> Section:
    trained = any(row["workload"] == "ncf" for row in material.found.runs)
    told = [each for each in DEFINITIONS if trained or each[0] not in OF_TRAINING]
    return Section("definitions", "Definitions", [DefinitionList(told)], folded=True)


def _causes(material: ReportData) -> Section:
    return Section("causes", "Why the runs were no faster", cause_parts(material))


def _scored(material: ReportData) -> Section:
    labels = {one.key: one.label for one in material.shown}
    return Section(
        "predicted", "Predicted against measured", prediction_parts(material.score, labels)
    )


def _remedies(material: ReportData) -> Section:
    return Section("remedies", "What each remedy did", remedy_parts(material))


def _packing(material: ReportData) -> Section:
    return Section("packing", TITLE, packing_parts(material))


def _next(material: ReportData) -> Section:
    return Section("next", "What to ask for next", advice_parts(material))


def _figure_parts(drawn: list[RenderedFigure]) -> list[Part]:
    return [FigureRow(drawn)] if drawn else []


def _grid_sections(table: Table | None) -> list[Part]:
    return [TableBlock(table)] if table and table.rows else []


def _words_sections(text: str | None) -> list[Part]:
    return [Paragraph(text)] if text else []


def _some(text: str | None) -> Iterable[str]:
    return [text] if text else []


BUILDERS: Final[list[Callable[[ReportData], Section]]] = [
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
