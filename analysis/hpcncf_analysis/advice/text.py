"""The conclusion of a report in words, all of it from the table of judged configurations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from hpcncf.collect.resource_columns import PARAMETER
from hpcncf.table import Table
from hpcncf.text import pluralize
from hpcncf_analysis.advice.judge import (
    CHOICES,
    Choice,
    Diagnoses,
    Judged,
    Judgement,
    Outcomes,
    agreed_diagnosis,
    assess_confidence,
)
from hpcncf_analysis.advice.next_job import Advice, why_not
from hpcncf_analysis.advice.request import format_yaml_value, memory_to_request_gb
from hpcncf_analysis.configurations import (
    Configuration,
    commonest_values,
    varying_settings,
)
from hpcncf_analysis.diagnosis import format
from hpcncf_analysis.diagnosis.evidence import Cause, Diagnosis, Finding
from hpcncf_analysis.diagnosis.program_text import CAUSES
from hpcncf_analysis.formatting import (
    NONE,
    format_core_time,
    format_cores,
    format_duration,
    format_hundredths,
    format_metric,
    format_percent,
    format_ratio,
    format_score,
)
from hpcncf_analysis.packing import TITLE, curves
from hpcncf_analysis.quality import best_quality, evaluation_task, quality, quality_metric
from hpcncf_analysis.scaling import distinct

# More configurations than these are given by their number.
MAX_NAMED: Final = 3
# More commands than these are in the table.
MAX_FACTS: Final = 12
# So much of the evidence stands in the answer, the rest in the table of causes.
MAX_EVIDENCE: Final = 2
NO_CAUSE: Final = "none: no cause accounts for 20 % or more of the time or cores."
# More rows that are beaten nobody reads; the front is shown whole.
MAX_BEATEN: Final = 20
# Of the tables of choices and of all rows; those without a value are left out.
FIGURES: Final = ("time", "core time", "GPU time", "CPU efficiency")
CHOICE_NAMES: Final[dict[Choice, str]] = {
    "cheapest": "least core-hours",
    "recommended": "recommended",
    "fastest": "fastest",
}
# Columns that are no keys of a job file, or keys of another name.
NOT_KEYS: Final = {"batch", "data_title", "data_key", "command", "epochs", "remedies"}
# Seeds are repeats, and how long to train is the user's choice: the advice converts to it.
NOT_ASKED: Final = {"training.seed", "training.epochs"}
TRIALS: Final = (
    "These are trials of hpcncf tune, each ended after some of its work. What to ask for is shown "
    "by the same hpcncf tune command, which repeats no run."
)


@dataclass(frozen=True)
class StudyConclusion:
    sentence: str
    """The headline, and the sentences behind it."""
    choices: Table | None = None
    """The three choices, with time and core time of the user's whole job."""
    note: str = ""
    """What the table's figures are for."""
    answer: Sequence[tuple[str, str]] = ()
    """Cores and cause of the recommended configuration, or of the one to work on."""
    elsewhere: Sequence[tuple[str, str]] = ()
    """Cores, cause, cost and remedy of the configuration that wastes most, if that is another."""
    facts: Sequence[str] = field(default_factory=list)
    cause: Cause | None = None
    """The cause that costs most."""


def conclude(
    configurations: Sequence[Configuration],
    counts: Mapping[str, int],
    table: Judgement | None = None,
    diagnoses: Diagnoses | None = None,
    outcomes: Outcomes | None = None,
    base: str | None = None,
    advised: Mapping[str, tuple[Advice, str]] | None = None,
    of_trials: bool = False,
) -> StudyConclusion:
    """Draw the conclusion of a report from its configurations and judgement.

    `counts`: state -> number of runs. `base`: the configuration of the job file without its
    grid. `advised`: purpose -> advice and a sentence on how to submit it. `of_trials`: the runs
    are trials of hpcncf tune.
    """
    if not configurations:
        total = sum(counts.values())
        states = ", ".join(f"{number} {state}" for state, number in sorted(counts.items()))
        return StudyConclusion(
            f"No run is complete yet ({states} of {pluralize(total, 'run')}), so there is nothing "
            "to conclude. See `hpcncf status`."
        )
    found, measured = diagnoses or {}, outcomes or {}
    if table is None:
        if not all(one.is_command for one in configurations):
            return StudyConclusion("The completed runs measured no speed: nothing can be compared.")
        facts = [f"{one.label}: {_usage(one)}." for one in configurations[:MAX_FACTS]]
        more = len(configurations) - MAX_FACTS
        facts += [f"And {pluralize(more, 'command')} more, in the table."] if more > 0 else []
        sentence = f"{len(configurations)} different commands, not compared."
        return StudyConclusion(TRIALS if of_trials else sentence, facts=facts)
    causes = explain_cause(table, found, measured)
    headline = describe_recommendation(table, configurations, measured, advised or {})
    note = f"Time and core time are for {table.work}."
    if table.to_repeat:
        note += " Only runs that were long enough to judge are chosen."
    facts = [*compare_choices(table, base), *describe_excluded(table)]
    if curves(row for one in configurations for row in one.rows):
        facts.append(
            f"This is about a single run. For how many runs to share a node or GPU see “{TITLE}”."
        )
    return StudyConclusion(
        sentence=" ".join(headline),
        choices=choices_table(table),
        note=note,
        answer=causes.answer,
        elsewhere=causes.elsewhere,
        facts=facts,
        cause=causes.cause,
    )


def _usage(one: Configuration) -> str:
    enough = memory_to_request_gb(one.rows)
    memory = f"; mem_gb: {enough:g} is enough" if enough else ""
    return (
        f"{pluralize(one.cores, 'core')} allocated, {format_cores(one.median('cores_usable'))} "
        f"usable, {format_hundredths(one.median('cores_used'))} used, CPU efficiency "
        f"{format_percent(one.median('cpu_efficiency'))}{memory}"
    )


def name_rows(rows: Sequence[Judged]) -> str:
    if len(rows) > MAX_NAMED:
        return f"{rows[0].label} and {len(rows) - 1} more configurations"
    return " and ".join(row.label for row in rows)


def describe_recommendation(
    table: Judgement,
    configurations: Sequence[Configuration],
    outcomes: Outcomes,
    advised: Mapping[str, tuple[Advice, str]],
) -> list[str]:
    """Sentences on which runs to repeat and what to request, or why nothing is recommended."""
    sentences = []
    if table.to_repeat:
        verb = "it was" if len(table.to_repeat) == 1 else "they were"
        sentences.append(
            f"Repeat {name_rows(table.to_repeat)} with longer runs: {verb} too short to judge "
            f"({table.to_repeat[0].reason})."
        )
        if "repeat" in advised:
            advice, how = advised["repeat"]
            sentences.append(f"{advice.reasons[-1]} {how}")
    row = table.recommended
    if row:
        until = "Of the runs that were long enough: ask" if table.to_repeat else "Ask"
        settings = describe_settings(row.one, configurations)
        busy = ""
        if row.efficiency is not None:
            busy = f", and keeps {format_percent(row.efficiency)} of its cores busy"
        takes = f"{row.label} {_takes(row)} for {table.work}{busy}"
        sentences.append(f"{until} for {settings}. {takes}.")
        sure = assess_confidence(row, "recommended", table)
        return [*sentences, *([] if sure.level == "settled" else [sure.text])]
    row = table.candidate
    if row is None:
        return sentences
    why = f"of {row.label}, {why_not(row, table)}."
    if row.cause:
        cause = f"{row.cause.cause} ({CAUSES[row.cause.cause]})"
        why = f"{row.label} loses {format.cost(row.cause)} to {cause}."
    sentences.append(f"No configuration is recommended yet: {why}")
    if row.cause:
        sentences.append(describe_remedy(row.key, row.cause, outcomes))
    if "next" in advised and advised["next"][0].changed:
        advice, how = advised["next"]
        sentences.append(f"{advice.reasons[1]} {how}")
    return sentences


def describe_settings(one: Configuration, among: Sequence[Configuration]) -> str:
    """Job file settings that make this configuration: ranks, cores and varying ones.

    Varying settings are those that differ within `among`; of more than five, only those that
    differ from the commonest value are named.
    """
    row, firsts = one.rows[0], [other.rows[0] for other in among]
    if one.command:
        remedies = f", --with {row['remedies']}" if row.get("remedies") else ""
        return pluralize(one.cores, "core") + remedies
    varying = varying_settings(firsts)
    usual = commonest_values(firsts, varying)
    varying = [name for name in varying if name not in usual or row.get(name) != usual[name]]
    names = ["nodes"] if row["nodes"] > 1 else []
    names += ["tasks_per_node", "cpus_per_task"]
    names += ["gpus_per_node"] if row["gpus_per_node"] else []
    names += [name for name in ("loader", "num_workers") if row.get(name) and not usual]
    names += [name for name in varying if name in row and not name.startswith(PARAMETER)]
    values = {name: row[name] for name in names if name not in NOT_KEYS}
    if "batch" in names:
        per_rank = row.get("batch_size_per_rank") is not None
        key = "batch_size_per_rank" if per_rank else "global_batch_size"
        values[key] = row["batch_size_per_rank" if per_rank else "batch"]
    planned = {
        key: value for key, value in (row.get("varied") or {}).items() if key not in NOT_ASKED
    }
    commonest = commonest_values([first.get("varied") or {} for first in firsts], list(planned))
    for key, value in planned.items():
        if key not in commonest or value != commonest[key]:
            values[key.split(".")[-1]] = value
    return ", ".join(f"{key}: {format_yaml_value(value)}" for key, value in values.items())


def _takes(row: Judged) -> str:
    gpu = f" and {format_gpu_time(row.gpu_h)}" if row.on_gpus else ""
    return f"takes {format_duration(row.seconds)}, {format_core_time(row.core_h)}{gpu}"


def format_gpu_time(gpu_h: float | None) -> str:
    """Format GPU-hours; below a tenth of an hour in GPU-seconds."""
    return format_core_time(gpu_h).replace("core", "GPU")


def choices_table(table: Judgement) -> Table | None:
    """Table of the cheapest, recommended and fastest rows; None if nothing was judged."""
    if not table.judged:
        return None
    rows = []
    for choice, name in CHOICE_NAMES.items():
        row = table.chosen(choice)
        if row is None:
            rows.append([name, "none yet", *[NONE] * (len(FIGURES) + 1)])
            continue
        names, level = _choice(row, table)
        cells = [names, row.label, *_figures(row), level]
        rows += [] if cells in rows else [cells]
    columns = ["choice", "configuration", *FIGURES, "confidence"]
    return Table(columns, rows, frozenset({"configuration", "confidence"})).without_empty_columns


def all_rows_table(table: Judgement) -> Table | None:
    """Table of all configurations: figures, choice, confidence and reason; None for only one."""
    if len(table.rows) < 2:
        return None
    beaten = [row for row in table.judged if row.beaten_by]
    hidden = {row.key for row in beaten[MAX_BEATEN:]}
    rows = [
        [row.label, *_figures(row), *_choice(row, table), _reason(row, table)]
        for row in table.rows
        if row.key not in hidden
    ]
    columns = ["configuration", *FIGURES, "choice", "confidence", "reason"]
    return Table(columns, rows, frozenset(columns[-3:])).without_empty_columns


def _figures(row: Judged) -> list[str]:
    """Formatted time, core time, GPU time and efficiency of a row, in the order of FIGURES."""
    return [
        format_duration(row.seconds),
        format_core_time(row.core_h),
        format_gpu_time(row.gpu_h) if row.on_gpus else NONE,
        format_percent(row.efficiency),
    ]


def _choice(row: Judged, table: Judgement) -> tuple[str, str]:
    """Names of the choices that the row is, and the confidence in the first of them."""
    made = [
        choice
        for choice in CHOICE_NAMES
        if (chosen := table.chosen(choice)) and chosen.key == row.key
    ]
    if not made:
        return NONE, NONE
    first = next(choice for choice in CHOICES if choice in made)
    names = ", ".join(CHOICE_NAMES[choice] for choice in made)
    return names, assess_confidence(row, first, table).level


def _reason(row: Judged, table: Judgement) -> str:
    """Why the row is not judged, or what speaks against it, or that nothing does."""
    if row.standing != "judged":
        return f"{row.standing}: {row.reason}"
    parts = []
    if row.cause:
        parts.append(f"open cause: {row.cause.cause}")
    if not table.is_efficient(row):
        parts.append(f"CPU efficiency below {format_percent(table.min_efficiency)}")
    if row.beaten_by:
        parts.append(f"beaten by {row.beaten_by}")
    return "; ".join(parts) or "on the Pareto front"


def all_rows_note(table: Judgement) -> str:
    sentences = [
        f"Time and core time are for {table.work}. On the Pareto front no other configuration "
        f"takes less time for no more core-hours."
    ]
    hidden = sum(row.beaten_by is not None for row in table.judged) - MAX_BEATEN
    if hidden > 0:
        sentences.append(f"{hidden} more that are beaten are left out.")
    models = distinct([run for row in table.rows for run in row.one.rows], "cpu_model")
    if len(models) > 1:
        sentences.append(
            f"They ran on different CPU models ({'; '.join(models)}): the order may change."
        )
    return " ".join(sentences)


def compare_choices(table: Judgement, base: str | None) -> list[str]:
    """Sentences on what the recommended row saves, and why the fastest is not recommended.

    It is compared with the job file's own settings, or else with the most expensive row.
    """
    sentences = []
    row, fastest = table.recommended, table.fastest
    others = [other for other in table.judged if row and other.key != row.key]
    if row and others:
        asked = next((other for other in others if other.key == base), None)
        against = asked or max(others, key=lambda other: other.cost)
        which = "the job file's own settings" if asked else "the dearest configuration"
        ratio = f"{format_ratio(row.core_h / against.core_h)} the core time"
        if row.on_gpus and against.on_gpus:
            ratio += f" and {format_ratio(row.gpu_h / against.gpu_h)} the GPU time"
        sentences.append(
            f"{row.label} needs {ratio} and {format_ratio(row.seconds / against.seconds)} the "
            f"time of {which} ({against.label}, which {_takes(against)})."
        )
    if row and fastest and row.key != fastest.key:
        sentences.append(
            f"The fastest, {fastest.label}, {_takes(fastest)}, and is not recommended: "
            f"{why_not(fastest, table)}."
        )
    return sentences


def describe_excluded(table: Judgement) -> list[str]:
    """Sentences on rows excluded for a worse model or because a setting has no effect."""
    worse = [row for row in table.rows if row.standing == "worse model"]
    sentences = []
    if worse:
        first = worse[0].one
        task = evaluation_task(first)
        best = best_quality([r.one for r in table.rows if evaluation_task(r.one) == task])
        name = quality_metric(first)[0]
        show = format_score if name == "hr10" else format_metric
        label = "HR@10" if name == "hr10" else name.removeprefix("metric_")
        assert best
        sentences.append(
            f"Not recommended, however fast: {name_rows(worse)}. {label} is "
            f"{show(quality(first))} for {first.label}, against {show(quality(best))} for "
            f"{best.label}."
        )
    inert = dict.fromkeys(row.reason for row in table.rows if row.standing == "no effect")
    return [*sentences, *(f"Not compared: {text.rstrip('.')}." for text in inert)]


@dataclass(frozen=True)
class CauseSummary:
    """Text under the headline about cores and causes."""

    answer: Sequence[tuple[str, str]] = ()
    """Of the recommended configuration, if there is one; else of the one whose cause costs most."""
    elsewhere: Sequence[tuple[str, str]] = ()
    """Of the configuration whose cause costs most, if another is recommended."""
    cause: Cause | None = None
    """The cause that costs most."""


def explain_cause(table: Judgement, diagnoses: Diagnoses, outcomes: Outcomes) -> CauseSummary:
    """Explain cores and cause of the recommended row, then of the costliest open cause.

    A cause that stands in the way of the best row goes before one that wastes more core-hours.
    """
    known = [(row, found) for row in table.rows if (found := agreed_diagnosis(row.one, diagnoses))]
    if not known:
        return CauseSummary()
    own = _describe_recommended(table, known)
    causes = [
        (row, found, found.primary)
        for row, found in known
        if found.primary and found.primary.cause != "too_short_to_judge"
    ]
    if not causes:
        row, found = max(known, key=lambda pair: pair[0].one.median("core_hours") or 0.0)
        cause = _describe_no_cause(known)
        if own:
            return CauseSummary(own, [("Cause", cause)] if cause != NO_CAUSE else [])
        cores = f"{format.counts(found.cores)} ({row.label})."
        return CauseSummary([("Cores", cores), ("Cause", cause)])
    best = table.candidate

    def order(each: tuple[Judged, object, Finding]) -> tuple[bool, float]:
        row, _, finding = each
        open_here = best is not None and row.key == best.key and best.cause is not None
        return open_here, finding.share * row.core_h

    row, found, finding = max(causes, key=order)
    equal = sum(other.cause == finding.cause for _, _, other in causes)
    others = f", in {equal} of {pluralize(len(known), 'configuration')}" if len(known) > 1 else ""
    evidence = "; ".join(finding.evidence[:MAX_EVIDENCE])
    if finding.places:
        evidence += f", at {finding.places[0].name}"
    costliest = [
        ("Cores", f"{format.counts(found.cores)} ({row.label})."),
        ("Cause", f"{finding.cause}{others}: {CAUSES[finding.cause]}."),
        ("Evidence", f"{evidence}."),
        ("Cost", f"{format.cost(finding)} of {row.label}."),
        ("Remedy", describe_remedy(row.key, finding, outcomes)),
    ]
    if not own or (table.recommended and table.recommended.key == row.key):
        return CauseSummary(costliest, (), finding.cause)
    return CauseSummary(own, costliest, finding.cause)


def _describe_recommended(
    table: Judgement, known: Sequence[tuple[Judged, Diagnosis]]
) -> list[tuple[str, str]]:
    """(term, text) for label, cores and cause of the recommended row, or empty.

    Empty if nothing is recommended, or if it was not diagnosed.
    """
    best = table.recommended
    found = next((found for row, found in known if best and row.key == best.key), None)
    if best is None or found is None:
        return []
    cause = _describe_no_cause([(best, found)])
    if found.primary and found.primary.cause != "too_short_to_judge":
        cause = f"{found.primary.cause}, which costs {format.cost(found.primary)}."
    return [
        ("Recommended", f"{best.label}."),
        ("Cores", f"{format.counts(found.cores)}."),
        ("Cause", cause),
    ]


def _describe_no_cause(known: Sequence[tuple[Judged, Diagnosis]]) -> str:
    """Sentence that no cause was found, or for how many configurations it is unknown."""
    short = sum(found.primary is not None for _, found in known)
    if short:
        return (
            f"unknown: the runs of {short} of {pluralize(len(known), 'configuration')} were too "
            "short to judge."
        )
    healthy = sum(found.verdict == "healthy" for _, found in known)
    if healthy < len(known):
        return (
            f"unknown: nothing was found, but the records of {len(known) - healthy} of "
            f"{pluralize(len(known), 'configuration')} do not suffice to call them healthy."
        )
    return NO_CAUSE


def describe_remedy(key: str, finding: Finding, outcomes: Outcomes) -> str:
    """Sentence on a remedy, the settings that apply it, and its measured or predicted gain."""
    settings = format.settings(finding.changes)
    parts = [*([settings] if settings else []), *describe_gain(key, finding, outcomes)]
    if not parts:
        return finding.remedy
    return f"{finding.remedy.removesuffix('.')} ({'; '.join(parts)})."


def describe_gain(key: str, finding: Finding, outcomes: Outcomes) -> list[str]:
    """Gain of a remedy: `measured: …` if the study ran it, `predicted: …`, or an empty list."""
    done = outcomes.get((key, finding.cause))
    if done:
        what = finding.gain.what if finding.gain else "instances_per_s"
        name = "core-hours" if what == "core_hours" else "instances per second"
        return [f"measured: {format_ratio(done.factor)} the {name} ({done.label})"]
    return [f"predicted: {format.gain(finding.gain)}"] if finding.gain else []
