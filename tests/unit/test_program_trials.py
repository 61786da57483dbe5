"""The search for what to ask for and change in a program, from trials that are given."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from hpcncf.job.spec import Remedies
from hpcncf.tune import program
from hpcncf.tune.program import Seen, Setup, State, Tuning

LOSSES = (0.7, 0.6, 0.55)


@pytest.fixture
def tuning(tmp_path: Path) -> Tuning:
    return program.build_tuning(
        ["python", "train.py", "--out", "{x}"], tmp_path, 4, 1.0, "knee", "local", None, 4.0
    )


def seen(text: str, step_s: float | None, cores: int = 4, **changes: object) -> Seen:
    remedies = Remedies.parse(text)
    applied = tuple((each, "x.py:1") for each in text.split(",") if each)
    trial = Seen(
        Setup(cores, remedies), 0, "r", 0.01, step_s, 0.02, LOSSES, 500.0, 1.0, (), applied
    )
    return replace(trial, **changes)  # type: ignore[arg-type]


@pytest.fixture
def suggestions(monkeypatch: pytest.MonkeyPatch) -> None:
    def suggested(state: State, setup: Setup) -> list[Remedies]:
        if setup.remedies or not state.of(setup):
            return []
        return [Remedies.parse(each) for each in ("threads=1", "workers=2", "fused")]

    monkeypatch.setattr(program, "_suggested", suggested)


def labels(tuning: Tuning, *trials: Seen) -> list[str]:
    found = program.next_round(program.judge(tuning, trials))
    return [setup.label for setup, _ in found.wanted] if found else []


@pytest.mark.usefixtures("suggestions")
def test_remedies_are_tried_alone_then_together_then_with_fewer_cores(tuning: Tuning) -> None:
    assert labels(tuning) == ["4 cores, unchanged"]
    base = [seen("", 1.0), seen("", 1.02, repeat=1)]
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
        f"1 core, {together}",
    ]
    fewer = [*alone, seen(together, 0.3), seen(together, 0.31, 2), seen(together, 0.7, 1)]
    assert labels(tuning, *fewer) == [f"2 cores, {together}", f"4 cores, {together}"]
    known = [replace(one, repeat=at) for one in fewer for at in range(3)]
    assert labels(tuning, *known) == []
    advice = program.advise(program.judge(tuning, known))
    assert advice.setup == Setup(2, Remedies.parse(together))
    assert advice.speedup == pytest.approx(1.0 / 0.31, rel=0.03)
    assert advice.mem_gb == 1
    assert "x.py:1: DataLoader(..., num_workers=2)" in advice.changes


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"losses": (0.7, 0.61, 0.55)}, "loss 0.61 in step 2, unchanged 0.6"),
        ({"losses": ()}, "not seen"),
        ({"losses": (0.7, None, 0.55)}, "step 2"),
        ({"applied": (), "not_applied": ("threads=1: why",)}, "not applied: threads=1: why"),
        ({"reason": "it failed"}, "it failed"),
    ],
)
def test_a_remedy_that_cannot_show_the_same_results_is_out(
    tuning: Tuning, changes: dict[str, object], part: str
) -> None:
    state = program.judge(tuning, [seen("", 1.0), seen("threads=1", 0.1, **changes)])
    (reason,) = state.left_out.values()
    assert part in reason
    advice = program.advise(state)
    assert advice.setup == Setup(4)


def test_losses_that_round_differently_are_the_same() -> None:
    assert program.first_difference(LOSSES, tuple(1.00001 * each for each in LOSSES)) is None
    assert program.first_difference(LOSSES, LOSSES[:1]) is None
    assert program.first_difference((2e5,), (2e5 + 1,)) is None
    assert program.first_difference((None,), (None,)) is None
    assert program.first_difference(LOSSES, (0.7, 0.6, 0.56)) == 2


def test_a_round_is_cut_to_the_budget(tuning: Tuning) -> None:
    wanted = program.Round("why", tuple((Setup(4, Remedies(threads=at)), 0) for at in (1, 2, 3)))
    state = program.judge(replace(tuning, core_hours=0.035), [seen("", 1.0)])
    assert program.fitting(state, wanted) == replace(wanted, wanted=wanted.wanted[:2])
    spent = program.judge(replace(tuning, core_hours=0.01), [seen("", 1.0)])
    assert program.fitting(spent, wanted) is None


def test_braces_of_the_command_are_its_own(tuning: Tuning) -> None:
    (run,) = program.build_run(tuning.job, {"resources.cpus_per_task": 2}, 0, {}, {}).words[-1:]
    assert run == "{x}"
    assert tuning.job.name == "train-tune"
