"""The conclusion: every sentence agrees with the table, the diagnoses and the job files."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from make_configurations import configuration, diagnosis, row

from hpcncf.job.expand import expand_job
from hpcncf.job.identity import configuration_id
from hpcncf.job.plan import Run
from hpcncf.job.spec import JobSpec
from hpcncf.slurm.site import Site
from hpcncf_analysis.advice.judge import judge
from hpcncf_analysis.advice.next_job import (
    Advice,
    build_advice,
    build_repeat,
    judge_job,
    measured_remedies,
)
from hpcncf_analysis.advice.text import (
    CHOICE_NAMES,
    StudyConclusion,
    all_rows_table,
    conclude,
    describe_settings,
)
from hpcncf_analysis.configurations import Configuration
from hpcncf_analysis.diagnosis.evidence import CoreCounts, Diagnosis, Gain
from hpcncf_analysis.formatting import format_core_time, format_duration, format_percent
from hpcncf_analysis.planned_job import PlannedJob


def concluded(*shown: Configuration, diagnoses: Any = None, **more: Any) -> StudyConclusion:
    table = judge(shown, diagnoses, min_efficiency=more.pop("min_efficiency", 0.0))
    return conclude(shown, {"completed": len(shown)}, table, diagnoses, **more)


def test_nothing_complete_concludes_nothing() -> None:
    assert conclude([], {"planned": 2, "failed": 1}).choices is None
    assert "1 failed, 2 planned of 3 runs" in conclude([], {"planned": 2, "failed": 1}).sentence


def test_runs_without_a_speed_are_not_compared() -> None:
    assert concluded(configuration("a", instances_per_s=None)).choices is None


def test_what_tune_tried_is_no_request() -> None:
    """Each trial ends by itself: neither its time nor its job file are those of the program."""
    words = {"command": ["python", "train.py"]}
    shown = [configuration("one", workload="command")]
    for trial in (False, True):
        job = JobSpec.model_validate({"name": "a", "workload": words | {"trial": trial}})
        runs = {run.id: run for run in expand_job(job).runs}
        planned = PlannedJob("a", runs, job)
        table = judge_job(shown, planned, {})
        assert (table is None) is planned.of_trials is trial
    found = conclude(shown, {"completed": 1}, table, of_trials=planned.of_trials)
    assert "trials of hpcncf tune" in found.sentence
    assert found.facts


def test_the_three_choices_stand_in_one_table() -> None:
    """40 s on one core, 28 s on two (56 core-s, within 40 / 0.7), 25 s on four."""
    found = concluded(
        configuration("one", seconds=10.0),
        configuration("two", seconds=6.0, cores=2),
        configuration("four", seconds=5.0, cores=4),
        base="four",
    )
    assert found.choices
    assert [cells[:4] for cells in found.choices.rows] == [
        ["least core-hours", "one", "40\u202fs", "40\u202fcore-s"],
        ["recommended", "two", "28\u202fs", "56\u202fcore-s"],
        ["fastest", "four", "25\u202fs", "100\u202fcore-s"],
    ]
    saving, fastest = found.facts
    assert "0.56× the core time and 1.12× the time of the job file's own settings" in saving
    assert "costs more core-hours" in fastest


def test_what_is_fast_and_bad_is_named_with_its_quality() -> None:
    found = concluded(configuration("a"), configuration("b", seconds=1.0, hr10=0.6))
    (fact,) = found.facts
    assert "0.600 for b, against 0.800 for a" in fact
    many = [configuration(f"bad{n}", seconds=1.0 + n, hr10=0.6) for n in range(9)]
    (fact,) = concluded(configuration("a"), *many).facts
    assert "bad0 and 8 more configurations" in fact


def test_one_run_with_a_cause_is_reported_its_cost_and_remedy() -> None:
    gain = Gain(2.5, 2.0, 3.0)
    cause = diagnosis("python_input", {"training.loader": "vectorized"}, gain)
    found = concluded(configuration("a", run_id="a"), diagnoses={"a": cause})
    assert found.cause == "python_input"
    assert dict(found.answer)["Remedy"] in found.sentence
    assert "-s training.loader=vectorized; predicted: 2.50×" in found.sentence


def named(label: str, **changes: Any) -> Configuration:
    return configuration(label, run_id=label, **changes)


def test_the_answer_is_the_cause_that_costs_the_most_core_hours() -> None:
    """58 % of 3 core-hours are more than 58 % of one; what was too short is no waste."""
    quick, slow = named("quick"), named("slow", core_hours=3.0, seconds=50.0)
    diagnoses = {
        "quick": diagnosis("sync_bound"),
        "slow": diagnosis("python_input"),
    }
    wide = named("wide", seconds=4.0, cores=8)
    healthy = diagnoses | {"wide": diagnosis()}
    assert concluded(quick, slow, wide, diagnoses=healthy).cause == "sync_bound", "of the candidate"
    free = healthy | {"quick": diagnosis()}
    found = concluded(quick, slow, wide, diagnoses=free)
    assert found.cause == "python_input"
    assert [name for name, _ in found.answer] == ["Recommended", "Cores", "Cause"]
    assert dict(found.answer)["Recommended"] == "quick."
    assert dict(found.answer)["Cause"].startswith("none")
    costliest = ["Cores", "Cause", "Evidence", "Cost", "Remedy"]
    assert [name for name, _ in found.elsewhere] == costliest
    assert dict(found.elsewhere)["Cost"].endswith(" of slow.")
    short = free | {"slow": diagnosis("too_short_to_judge")}
    assert concluded(quick, slow, wide, diagnoses=short).cause is None
    assert not concluded(quick, slow).answer


def test_healthy_and_unknown_differ() -> None:
    quick, slow = named("quick"), named("slow")
    healthy = {"quick": diagnosis(), "slow": diagnosis()}
    assert dict(concluded(quick, slow, diagnoses=healthy).answer)["Cause"].startswith("none")
    unknown = healthy | {"slow": Diagnosis("slow", "unknown", None, (), CoreCounts(1, 1, 1))}
    assert dict(concluded(quick, slow, diagnoses=unknown).elsewhere)["Cause"].startswith("unknown")
    short = healthy | {"slow": diagnosis("too_short_to_judge")}
    assert "too short" in dict(concluded(quick, slow, diagnoses=short).elsewhere)["Cause"]


@pytest.mark.parametrize("many", [False, True])
def test_a_request_names_what_differs_and_nothing_else(many: bool) -> None:
    keys = [f"training.{name}" for name in ("a", "b", "c", "d", "e", "f", "g")[: 7 if many else 2]]
    base = dict.fromkeys(keys, None)
    shown = [
        configuration(
            key,
            [row(varied=base | {key: 1, keys[0]: int(key == keys[0]), "training.epochs": epochs})],
        )
        for epochs, key in enumerate(keys, start=1)
    ]
    text = describe_settings(shown[1], shown)
    assert ("a: 0" in text) is not many
    assert "b: 1" in text
    assert "epochs" not in text


# Random studies of one job: loaders, cores and engines, each with random speeds, efficiencies and
# causes, judged as a report judges them.

DIAGNOSES = [
    diagnosis(),
    diagnosis(),
    diagnosis("too_short_to_judge"),
    diagnosis("python_input", {"training.loader": "vectorized"}, Gain(4.25, 3.0, 6.0)),
    diagnosis("serial_step", {"resources.cpus_per_task": 1}, Gain(0.5, 0.4, 0.7, "core_hours")),
    diagnosis("neighbour_load"),
]
GRID = {"resources.cpus_per_task": [1, 2, 4], "training.loader": ["per_sample", "vectorized"]}


def planned_runs() -> tuple[JobSpec, list[Run]]:
    job = JobSpec.model_validate({"name": "a", "data": {"path": "/d"}, "grid": GRID})
    return job, expand_job(job, {"/d": "key"}).runs


@st.composite
def studies(draw: st.DrawFn) -> tuple[list[Configuration], PlannedJob, dict[str, Diagnosis]]:
    job, runs = planned_runs()
    shown, diagnoses = [], {}
    for run in runs[: draw(st.integers(1, len(runs)))]:
        cores = run.resources.cpus_per_task
        efficiency = draw(st.floats(0.05, 1.0))
        plain = {
            "run_id": run.id,
            "loader": run.training and run.training.loader,
            "varied": run.varied,
            "cpu_efficiency": efficiency,
            "cores_used": efficiency * cores,
            "hr10": draw(st.sampled_from([0.8, 0.8, 0.8, 0.4])),
        }
        one = configuration(
            f"{cores} cores {plain['loader']}",
            [
                row(draw(st.floats(1.0, 100.0)), cores, **plain)
                for _ in range(draw(st.integers(1, 3)))
            ],
        )
        shown.append(Configuration(**{**vars(one), "key": configuration_id(run)}))
        diagnoses[run.id] = draw(st.sampled_from(DIAGNOSES))
    by_id = {run.id: run for run in runs}
    return shown, PlannedJob("a", by_id, job, Site(min_cpu_efficiency=0.7)), diagnoses


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(studies())
def test_a_report_never_contradicts_itself(
    study: tuple[list[Configuration], PlannedJob, dict[str, Diagnosis]],
) -> None:
    shown, planned, diagnoses = study
    table = judge_job(shown, planned, diagnoses)
    assert table
    outcomes = measured_remedies(shown, planned, diagnoses)
    advised: dict[str, tuple[Advice, str]] = {}
    repeat, advice = build_repeat(table, planned), build_advice(table, planned, diagnoses)
    if repeat:
        advised["repeat"] = repeat, "Submit it with `hpcncf submit repeat.yaml`."
    if advice:
        advised["next"] = advice, "Submit it with `hpcncf submit next.yaml`."
    found = conclude(shown, {"completed": 1}, table, diagnoses, outcomes, planned.base, advised)
    by_key = {one.key: one for one in shown}

    # A recommendation is long enough, efficient, as good as the best, and has no open cause.
    chosen = table.recommended
    if chosen:
        own = diagnoses[chosen.one.rows[0]["run_id"]].primary
        assert own is None or (chosen.key, own.cause) in outcomes
        assert (chosen.efficiency or 0.0) >= 0.7
        assert chosen.one.median("hr10") == max(one.median("hr10") or 0.0 for one in shown)
        assert advice
        assert advice.changed is None or len(table.rows) == 1
        assert planned.configuration(advice.job) == planned.of(chosen.one) or advice.changed
    short = [one for one in shown if diagnoses[one.rows[0]["run_id"]] is DIAGNOSES[2]]
    assert not {row.key for row in table.judged} & {one.key for one in short}

    # The first sentence is about what has to be repeated, and its job file repeats it.
    assert found.sentence.startswith("Repeat ") == bool(table.to_repeat) == (repeat is not None)
    if repeat:
        assert len(repeat.job.points) == len(table.to_repeat)
        assert "repeat.yaml" in found.sentence
    assert ("No configuration is recommended" in found.sentence) == (
        chosen is None and bool(table.judged)
    )

    # The printed table, the sentences and the whole table show the same figures.
    rows = {cells[0]: cells for cells in found.choices.rows} if found.choices else {}
    whole = {
        cells[0]: cells for cells in (all_rows_table(table) or found.choices or _no_rows()).rows
    }
    for choice, name in CHOICE_NAMES.items():
        (cells,) = [cells for names, cells in rows.items() if name in names.split(", ")] or [None]
        judged = table.chosen(choice)
        if judged and cells:
            figures = [format_duration(judged.seconds), format_core_time(judged.core_h)]
            assert cells[1:4] == [judged.label, *figures]
            assert cells[4] == format_percent(judged.efficiency)
            if judged.label in whole:
                assert whole[judged.label][1:4] == [*figures, cells[4]]
                assert name in whole[judged.label][-3].split(", ")
    if chosen:
        assert f"{chosen.label} takes {format_duration(chosen.seconds)}" in found.sentence

    # A measured gain is no prediction, and what is tried was not measured.
    text = " ".join([found.sentence, *found.facts, *(value for _, value in found.answer)])
    remedy = dict(found.answer).get("Remedy", "")
    if "predicted" in remedy:
        assert "measured:" not in remedy
    if advice and advice.changed:
        assert planned.configuration(advice.job) not in map(planned.of, shown)
    for key, cause in outcomes:
        one = by_key[key]
        assert f"{one.label} loses" not in text or cause not in text
    assert not re.search(r"\b(?:1[0-9]{2}|[2-9][0-9]{2})\u202f% of the", text)


def _no_rows() -> Any:
    from hpcncf.table import Table

    return Table([], [])


def test_the_cause_shown_is_of_the_job_not_of_the_run_that_was_longest() -> None:
    """An epoch of `slow` takes 10 s and one of `long` 2 s, which had twenty times as many."""
    slow = configuration("slow", seconds=10.0, run_id="a", core_hours=1.0)
    long = configuration("long", seconds=2.0, run_id="b", epochs=60, core_hours=4.0)
    best = configuration("best", seconds=1.0, run_id="c", core_hours=0.1)
    found = {
        "a": diagnosis("python_input"),
        "b": diagnosis("sync_bound"),
        "c": diagnosis(),
    }
    table = judge([slow, long, best], diagnoses=found, epochs=3)
    assert conclude([slow, long, best], {"completed": 3}, table, found).cause == "python_input"
