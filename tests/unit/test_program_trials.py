"""The search for what to ask for and change in a program, from trials that are given."""

from __future__ import annotations

import json
from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from hpcncf.cli.tune import _end
from hpcncf.errors import UsageError
from hpcncf.job.spec import Remedies
from hpcncf.paths import ResultPaths
from hpcncf.records.schema import write_record
from hpcncf.tune import program
from hpcncf.tune.outcome import Outcome, find_outcome
from hpcncf.tune.program import Programs, Setup, Tried
from hpcncf.tune.search import Step, next_step
from hpcncf.tune.trials import Ask, Known, Trial
from hpcncf.tune.tuning import Now, Saved, build_run, find_study, read_state
from hpcncf_analysis.diagnosis.evidence import Finding
from hpcncf_analysis.significance import Verdict

LOSSES = (0.7, 0.6, 0.55)


@pytest.fixture
def tuning(tmp_path: Path) -> Programs:
    return program.build_tuning(
        ["python", "train.py", "--out", "{x}"], tmp_path, 4, 1.0, "knee", "local", None, 4.0
    )


Given = tuple[Setup, Trial]


def seen(text: str, step_s: float | None, cores: int = 4, **changes: object) -> Given:
    applied = tuple((each, "x.py:1") for each in text.split(",") if each)
    trial = Trial(
        *(Ask(0, None, 0), "completed", 0.01, step_s, 0.0, 9.0, 0.0, 1),
        error=0.02,
        losses=LOSSES,
        memory_mib=500.0,
        cores_used=1.0,
        applied=applied,
    )
    return Setup(cores, Remedies.parse(text)), replace(trial, **changes)  # type: ignore[arg-type]


def tried(tuning: Programs, *given: Given) -> Tried:
    setups = list(dict.fromkeys(setup for setup, _ in given))
    tuning = tuning.extended([setup.settings for setup in setups])
    trials, seen_of = [], dict.fromkeys(setups, 0)
    for setup, trial in given:
        ask = Ask(setups.index(setup), None, seen_of[setup])
        seen_of[setup] += 1
        trials.append(replace(trial, ask=ask))
    judged, rules = tuning.judged(list(trials), {})
    return Tried(tuning, Known(tuning.grid.points, judged, rules))


def step_of(tuning: Programs, *given: Given) -> Step:
    found = tried(tuning, *given)
    return next_step(found.known, found.tuning)


def outcome_of(tuning: Programs, *given: Given) -> Outcome:
    found = tried(tuning, *given)
    step = next_step(found.known, found.tuning)
    outcome = find_outcome(Now(found.tuning, None, found.known, {}, step))
    assert outcome is not None
    assert outcome.program is not None
    return outcome


def printed(tuning: Programs, capsys: pytest.CaptureFixture[str], *given: Given) -> list[str]:
    found = tried(tuning, *given)
    step = next_step(found.known, found.tuning)
    now = Now(found.tuning, None, found.known, {}, step)
    args = Namespace(job=["python", "train.py"], json=False)
    _end(args, now)
    return capsys.readouterr().out.splitlines()


@pytest.fixture
def suggestions(monkeypatch: pytest.MonkeyPatch) -> None:
    def suggested(tuning: Programs, setup: Setup) -> list[Remedies]:
        if setup.remedies or setup not in tuning.setups:
            return []
        return [Remedies.parse(each) for each in ("threads=1", "workers=2", "fused")]

    monkeypatch.setattr(Programs, "suggested", suggested)


def labels(tuning: Programs, *given: Given) -> list[str]:
    found = step_of(tuning, *given)
    points = tried(tuning, *given).tuning.extended(found.more).grid.points
    return [points[ask.point].label for ask in found.asks]


@pytest.mark.usefixtures("suggestions")
def test_remedies_are_tried_alone_then_together_then_with_fewer_cores(tuning: Programs) -> None:
    assert labels(tuning) == ["4 cores, unchanged"]
    base = [seen("", 1.0), seen("", 1.02)]
    assert labels(tuning, *base) == [
        "4 cores, threads=1",
        "4 cores, workers=2",
        "4 cores, fused",
    ]
    alone = [*base, seen("threads=1", 0.5), seen("workers=2", 0.8), seen("fused", 0.99)]
    # Fused did not make a step 5 % faster.
    together = "threads=1,workers=2,persistent_workers"
    assert labels(tuning, *alone) == [f"4 cores, {together}"]
    assert labels(tuning, *alone, seen(together, 0.3)) == [
        f"2 cores, {together}",
        "1 core, workers=2,persistent_workers",  # one thread is all that it has
    ]
    one_core = seen("workers=2,persistent_workers", 0.7, 1)
    fewer = [*alone, seen(together, 0.3), seen(together, 0.31, 2), one_core]
    assert labels(tuning, *fewer) == [f"2 cores, {together}", f"4 cores, {together}"]
    known = [one for one in fewer for at in range(3)]
    done = step_of(tuning, *known)
    assert (done.kind, done.why, done.verified) == ("done", "", True)
    advice = outcome_of(tuning, *known)
    assert advice.program.setup == Setup(2, Remedies.parse(together))
    assert advice.against_unchanged
    assert advice.against_unchanged.value == pytest.approx(1.0 / 0.31, rel=0.03)
    assert advice.against_unchanged.verdict is Verdict.FASTER
    assert advice.program.mem_gb == 1
    assert "x.py:1: DataLoader(..., num_workers=2)" in advice.program.changes


@pytest.mark.usefixtures("suggestions")
def test_a_remedy_that_another_leaves_nothing_to_do_is_dropped(tuning: Programs) -> None:
    together = "threads=1,workers=2,persistent_workers,fused"
    given = [seen("", 1.0), seen("threads=1", 0.5), seen("workers=2", 0.8), seen("fused", 0.7)]
    given.append(seen(together, 0.3))
    without = ["threads=1,fused", "threads=1,workers=2,persistent_workers"]
    assert labels(tuning, *given) == [f"4 cores, {each}" for each in reversed(without)]
    idle = [seen("threads=1,fused", 0.4), seen("threads=1,workers=2,persistent_workers", 0.305)]
    assert labels(tuning, *given, *idle) == [
        "2 cores, threads=1,workers=2,persistent_workers",
        "1 core, workers=2,persistent_workers",
    ]


def test_nothing_is_built_on_what_is_out(tuning: Programs, monkeypatch: pytest.MonkeyPatch) -> None:
    def suggested(_: Programs, setup: Setup) -> list[Remedies]:
        first = ["rowwise", "threads=1", "fused", "workers=1"]
        words = ["workers=1", "omp=passive"] if setup.remedies else first
        return [Remedies.parse(each) for each in words]

    monkeypatch.setattr(Programs, "suggested", suggested)
    given = [seen("", 1.0), seen("rowwise", 0.3), seen("threads=1", 0.7), seen("fused", 0.8)]
    given.append(seen("workers=1", 0.2, losses=(0.7, 0.5, 0.4)))
    assert labels(tuning, *given) == ["4 cores, rowwise,threads=1,fused"]
    given.append(seen("rowwise,threads=1,fused", None, fate="failed", reason="not applied"))
    parts = ["rowwise,threads=1", "rowwise,fused"]
    assert labels(tuning, *given) == [f"4 cores, {each}" for each in reversed(parts)]
    given += [seen("rowwise,threads=1", 0.2), seen("rowwise,fused", 0.5)]
    # Not on all three, and not with workers.
    assert labels(tuning, *given) == ["4 cores, rowwise,threads=1,omp=passive"]
    given.append(seen("rowwise,threads=1,omp=passive", 0.3))
    assert labels(tuning, *given) == ["2 cores, rowwise,threads=1", "1 core, rowwise"]


def test_the_fastest_is_built_on(tuning: Programs, monkeypatch: pytest.MonkeyPatch) -> None:
    def suggested(_: Programs, setup: Setup) -> list[Remedies]:
        words = ["omp=passive"] if setup.remedies else ["rowwise", "fused"]
        return [Remedies.parse(each) for each in words]

    monkeypatch.setattr(Programs, "suggested", suggested)
    given = [seen("", 1.0), seen("rowwise", 0.3), seen("fused", 0.8), seen("rowwise,fused", 0.4)]
    assert labels(tuning, *given) == ["4 cores, rowwise,omp=passive"]


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"losses": (0.7, 0.61, 0.55)}, "loss 0.61 in step 2, unchanged 0.6"),
        ({"losses": ()}, "not seen"),
        ({"losses": (0.7, None, 0.55)}, "step 2"),
        ({"losses": (0.7, 0.6123456789, 0.5)}, "loss 0.6123457 in step 2, unchanged 0.6"),
        ({"applied": (), "not_applied": ("threads=1: why",)}, "not applied: threads=1: why"),
        (
            {"applied": (), "not_applied": ("threads=1: a", "fused: b", "threads=1: c")},
            "not applied: threads=1: a; threads=1: c",
        ),
        ({"fate": "failed", "reason": "it failed"}, "it failed"),
    ],
)
def test_a_remedy_that_cannot_show_the_same_results_is_out(
    tuning: Programs, changes: dict[str, object], part: str
) -> None:
    found = tried(tuning, seen("", 1.0), seen("threads=1", 0.1, **changes))
    (reason,) = (trial.reason for trial in found.known.trials if trial.fate == "failed")
    assert part in reason
    assert list(found.known.figures) == [0]


@pytest.mark.parametrize("trials", [1, 2])
def test_a_remedy_that_was_tried_is_not_advised_for_what_still_costs(
    tuning: Programs, monkeypatch: pytest.MonkeyPatch, trials: int
) -> None:
    """As of a program that calls `rowwise` itself."""
    causes = {"dense_optimizer": "call rowwise", "python_input": "make whole batches"}
    findings = [
        Finding(cause, 0.4, "time", ("a",), remedy, places=()) for cause, remedy in causes.items()
    ]
    monkeypatch.setattr(Programs, "findings", lambda *_: findings)
    given = [seen("", 1.0), seen("fused", 0.5), seen("rowwise", None, fate="failed", reason="x")]
    dense, python = outcome_of(
        replace(tuning, core_hours=0.001), *given[: trials + 1]
    ).program.costs
    assert ("call rowwise" in dense) == (trials == 1)
    assert dense.startswith("dense_optimizer: costs 40")
    assert "make whole batches" in python


def test_random_numbers_of_workers_are_named(tuning: Programs) -> None:
    """Only if workers were among the changes."""
    for text, named in (("workers=2", True), ("workers=0", False), ("fused", False)):
        found = tried(tuning, seen("", 1.0), seen(text, 0.1, losses=(0.7, 0.5, 0.4)))
        (reason,) = (trial.reason for trial in found.known.trials if trial.fate == "failed")
        assert ("random numbers" in reason) == named


@pytest.mark.usefixtures("suggestions")
def test_no_change_is_recommended_with_fewer_cores_that_gains_nothing(tuning: Programs) -> None:
    given = [seen("", 1.0), seen("", 1.0), seen("threads=1", 1.2), seen("workers=2", 1.2)]
    given += [seen("fused", 0.9), seen("fused", 0.95, 2), seen("fused", 1.0, 1)]
    given = [one for one in given for at in range(3)]
    assert labels(tuning, *given) == ["1 core, unchanged"]
    assert outcome_of(tuning, *given, *3 * [seen("", 1.01, 1)]).program.setup == Setup(1)
    assert (
        outcome_of(tuning, *given, *3 * [seen("", 1.2, 1)]).program.setup
        == seen("fused", 1.0, 1)[0]
    )
    # A change that clearly gains needs no such trial.
    clear = [*given[:12], *3 * [seen("fused", 0.3)]]
    clear += [*3 * [seen("fused", 0.5, 2)], *3 * [seen("fused", 0.9, 1)]]
    assert step_of(tuning, *clear).kind == "done"


def test_losses_that_round_differently_are_the_same() -> None:
    assert program.first_difference(LOSSES, tuple(1.00001 * each for each in LOSSES)) is None
    assert program.first_difference(LOSSES, LOSSES[:1]) is None
    assert program.first_difference((2e5,), (2e5 + 1,)) is None
    assert program.first_difference((None,), (None,)) is None
    assert program.first_difference(LOSSES, (0.7, 0.6, 0.56)) == 2


def test_what_the_diagnosis_suggests_is_tried_first(
    tuning: Programs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The budget may end before what is always worth a look."""
    findings = [SimpleNamespace(cause="dense_optimizer")]
    monkeypatch.setattr(Programs, "findings", lambda *_: findings)
    assert [str(each) for each in tuning.suggested(Setup(4))] == ["rowwise", "threads=1", "fused"]


def test_a_program_that_differs_from_itself_shows_nothing_of_a_remedy(tuning: Programs) -> None:
    unchanged = [seen("", 1.0), seen("", 1.0, losses=(0.2, 0.1, 0.05))]
    found = tried(tuning, *unchanged, seen("fused", 0.5, losses=(0.4, 0.3, 0.2)))
    assert "from run to run" in found.known.trials[-1].reason
    alike = tried(tuning, *unchanged, seen("fused", 0.5, losses=unchanged[1][1].losses))
    assert alike.known.trials[-1].fate == "completed"


@pytest.mark.usefixtures("suggestions")
def test_a_round_is_cut_to_the_budget(tuning: Programs) -> None:
    """A trial of 9 s on 4 cores takes 0.01 core-hours."""
    assert labels(replace(tuning, core_hours=0.035), seen("", 1.0)) == [
        "4 cores, threads=1",
        "4 cores, workers=2",
    ]
    spent = step_of(replace(tuning, core_hours=0.01), seen("", 1.0))
    assert (spent.kind, spent.chosen, spent.verified) == ("done", 0, True)
    assert "no room for 4 cores, threads=1" in spent.why


@pytest.mark.usefixtures("suggestions")
def test_a_gain_that_is_not_known_is_not_recommended(tuning: Programs) -> None:
    """Fused: 3 % faster. Threads: a third faster, but the intervals overlap."""
    for text, step_s, error in (("fused", 0.97, 0.001), ("threads=1", 0.7, 0.5)):
        trials = [seen("", 1.0, error=0.01), seen(text, step_s, error=error)]
        found = tried(replace(tuning, core_hours=0.001), *trials)
        step = next_step(found.known, found.tuning)
        assert (step.kind, step.chosen) == ("done", 0)


@pytest.mark.usefixtures("suggestions")
@pytest.mark.parametrize("whose", ["", "fused"])
def test_a_gain_beside_neighbours_is_not_recommended(tuning: Programs, whose: str) -> None:
    """Until it is repeated."""
    trials = [seen(text, s, disturbed=text == whose) for text, s in (("", 1.0), ("fused", 0.4))]
    short = replace(tuning, core_hours=0.001)
    assert step_of(short, *trials).chosen == 0
    assert outcome_of(short, *trials).disturbed == (whose == "")
    assert step_of(short, *trials, *trials).chosen == 1
    assert step_of(short, seen("", 1.0), seen("fused", 0.4)).chosen == 1


@pytest.mark.usefixtures("suggestions")
def test_the_best_so_far_is_named_when_the_budget_ends(
    tuning: Programs, capsys: pytest.CaptureFixture[str]
) -> None:
    """The only trial of the unchanged program ran beside neighbours."""
    short = replace(tuning, core_hours=0.001)
    base = seen("", 0.285, disturbed=True, error=0.1)
    fast, slow = seen("threads=1", 0.068), seen("fused", 0.2, 4)
    found = outcome_of(short, base, fast, fast, slow)
    assert found.program.setup == fast[0]
    assert (found.best.runs, found.base.runs, found.unsettled) == (2, 1, ())
    lines = printed(short, capsys, base, fast, fast, slow)
    assert "knee, so far: 4 cores, threads=1, 4.19 times as fast as unchanged with 4 cores" in lines
    assert (
        "  trials: 2 (4 cores, unchanged: 1); too few repeats; the search is not finished" in lines
    )
    assert "srun hpcncf run --with threads=1 -- python train.py" in lines
    # One trial of each: it may be the neighbours' doing, and is not hidden.
    single = outcome_of(short, base, fast)
    assert single.program.setup == base[0]
    assert single.unsettled == ("4 cores, threads=1",)
    lines = printed(short, capsys, base, fast)
    assert "knee, so far: 4 cores, unchanged" in lines
    assert "faster so far, but not settled: 4 cores, threads=1" in lines
    # Nothing is faster, and yet the search did not end.
    assert "knee, so far: 4 cores, unchanged" in printed(short, capsys, seen("", 1.0))


@pytest.mark.usefixtures("suggestions")
def test_no_remedy_is_known_only_at_the_end_of_the_search(
    tuning: Programs, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = ("threads=1", "workers=2", "fused")
    whole = [seen("", 0.2), seen("", 0.2), *(seen(text, 0.3) for text in texts)]
    whole += [seen("", 0.9, 2), seen("", 0.9, 1)]
    assert step_of(tuning, *whole).why == ""
    lines = printed(tuning, capsys, *whole)
    assert "knee: 4 cores, unchanged: no remedy is known to make it 5 % faster" in lines


@pytest.mark.usefixtures("suggestions")
def test_the_best_is_repeated_if_its_only_trial_was_beside_neighbours(tuning: Programs) -> None:
    whole = [seen("", 1.0), seen("", 1.0)]
    whole += [seen(text, 1.2) for text in ("threads=1", "workers=2")]
    whole += [seen("fused", 0.4, disturbed=True), seen("fused", 3.0, 2), seen("fused", 3.0, 1)]
    assert labels(tuning, *whole) == ["4 cores, fused"]


@pytest.mark.usefixtures("suggestions")
def test_a_program_that_runs_only_once_is_named_with_the_run_that_failed(tuning: Programs) -> None:
    """As one that refuses a folder of results that is there."""
    reason = "failed, rank 0: exit code: 1"
    failed = seen("", None, fate="failed", reason=reason)
    found = step_of(tuning, seen("", 1.0), failed)
    assert (found.kind, found.chosen) == ("done", None)
    assert found.why.startswith(reason)


@pytest.mark.usefixtures("suggestions")
def test_a_program_that_fails_is_not_tried_again(tuning: Programs) -> None:
    found = step_of(tuning, seen("", None, fate="failed", reason="exit code 1"))
    assert (found.kind, found.chosen) == ("done", None)
    assert "exit code 1" in found.why


def test_trials_of_a_changed_program_are_set_aside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    script, settings, output = (Path(each) for each in ("train.py", "a.yaml", "out.csv"))
    for path in (script, settings, output):
        path.write_text("1")
    command = ["python", "train.py", "--config=a.yaml", "--out", "out.csv"]
    first = program.build_tuning(command, None, 4, 1.0, "knee", "local", None, 4.0)

    def found() -> tuple[str, list[str]]:
        tuning, changed = find_study(first)
        return tuning.paths.folder.name, changed

    def measure(folder: str, files: dict[str, str]) -> None:
        plain = first.grid.job.model_dump(mode="json", exclude_defaults=True)
        paths = ResultPaths(Path("results", folder))
        paths.folder.mkdir(parents=True, exist_ok=True)
        write_record(paths.tuning, Saved(job=plain, files=files))

    assert found() == ("train-tune", [])
    measure("train-tune", {})
    script.write_text("2")
    assert found() == ("train-tune", [])  # an earlier version noted no files
    measure("train-tune", first.hash_files())
    output.write_text("2")  # the program's own
    assert found() == ("train-tune", [])
    script.write_text("3")
    assert found() == ("train-tune-2", ["train.py"])
    measure("train-tune-2", first.hash_files())
    assert found() == ("train-tune-2", [])
    settings.write_text("2")
    assert found() == ("train-tune-3", ["a.yaml"])
    script.write_text("2")
    settings.write_text("1")
    assert found() == ("train-tune", [])  # as it was


EARLIER = """{
 "schema_version": 1, "kind": "tuning",
 "job": %s,
 "rounds": [
  {"why": "the program as it is", "asks": [{"point": 0, "steps": null, "repeat": 0}],
   "more": [{"resources.cpus_per_task": 4}]},
  {"why": "each remedy by itself", "asks": [{"point": 1, "steps": null, "repeat": 0}],
   "more": [{"resources.cpus_per_task": 4, "remedies.%s": true}]}
 ],
 "files": {"train.py": "00"}
}"""


def test_study_of_an_earlier_version_is_continued_or_refused(tuning: Programs) -> None:
    job = json.dumps(tuning.grid.job.model_dump(mode="json", exclude_defaults=True))
    tuning.paths.tuning.write_text(EARLIER % (job, "fused"))
    now = read_state(tuning)
    assert [point.label for point in now.known.points] == ["4 cores, unchanged", "4 cores, fused"]
    assert (now.step.kind, now.step.asks) == ("send", ())
    assert now.saved.files == {"train.py": "00"}
    tuning.paths.tuning.write_text(EARLIER % (job, "turbo"))
    with pytest.raises(UsageError, match=r"remedies\.turbo.*this version does not know"):
        read_state(tuning)
    tuning.paths.tuning.write_text(EARLIER % (job.replace("train.py", "other.py"), "fused"))
    with pytest.raises(UsageError, match=r"belongs to a job with other settings \(workload\)"):
        read_state(tuning)


def test_braces_of_the_command_are_its_own(tuning: Programs) -> None:
    (run,) = build_run(tuning.grid.job, {"resources.cpus_per_task": 2}, 0, {}, {}).words[-1:]
    assert run == "{x}"
    assert tuning.grid.job.name == "train-tune"
