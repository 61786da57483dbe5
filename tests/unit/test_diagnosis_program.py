"""Causes of a user's own program, from what the probe inside it saw."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from make_evidence import command

from hpcncf.lint.rules import DRAW_NEGATIVES
from hpcncf.records.schema import (
    ProgramGraph,
    ProgramLoader,
    ProgramMoment,
    ProgramPhase,
    ProgramProfile,
    ProgramRemedy,
    ProgramTable,
    ProgramThread,
    SourceLine,
)
from hpcncf_analysis.diagnosis.diagnose import diagnose_evidence
from hpcncf_analysis.diagnosis.diagnose import find_inside as find
from hpcncf_analysis.diagnosis.evidence import CoreCounts, Evidence, Finding
from hpcncf_analysis.diagnosis.facts import RankTimes
from hpcncf_analysis.diagnosis.program_text import lines as lines_of
from hpcncf_analysis.diagnosis.source_lines import is_independent


def profile(
    seconds: dict[str, float], waiting: dict[str, float] | None = None, **changes: Any
) -> ProgramProfile:
    """One rank, the seconds of whose phases are given; the rest is well."""
    whole = sum(seconds.values())
    plain: dict[str, Any] = {
        "program": "train.py",
        "pid": 100,
        "rank": 0,
        "ranks": 1,
        "is_worker": False,
        "python": "3.11.7",
        "torch": "2.13.0",
        "elapsed_s": whole + 2.0,
        "startup_s": 2.0,
        "imports_s": 1.5,
        "seconds": whole,
        "cpu_s": whole,
        "steps": 1000,
        "batches": 1000,
        "samples": 256_000,
        "phases": {
            name: ProgramPhase(seconds=value, waiting=(waiting or {}).get(name, 0.0), entered=1000)
            for name, value in seconds.items()
        },
        "lines": [],
        "startup_lines": [],
        "loaders": [],
        "tables": [],
        "parameters": 10_000,
        "optimizer": "Adam",
        "torch_threads": 2,
        "cpus": 1,
        "main_cpu_s": whole,
        "runqueue_s": 0.0,
        "threads": [],
        "worker_busy": None,
        "gpu_busy": None,
        "samples_taken": 1000,
        "sampler_cpu_s": 0.1,
        "complete": True,
        "problems": [],
    }
    return ProgramProfile(**(plain | changes))


def line(phase: str, number: int, share: float, **changes: Any) -> SourceLine:
    plain = {"file": "train.py", "function": "f", "own_share": share, "depth": 0}
    return SourceLine(phase=phase, line=number, share=share, **(plain | changes))


def loader(**changes: Any) -> ProgramLoader:
    plain: dict[str, Any] = {
        "workers": 0,
        "persistent": False,
        "dataset": "Ratings",
        "batch_size": 256,
        "epochs": 2,
        "batches": 1000,
        "evaluates": False,
    }
    return ProgramLoader(**(plain | changes))


def worker(busy: float) -> ProgramProfile:
    lines = [line("input", 7, 0.8)]
    return profile({"input": 100.0}, is_worker=True, steps=0, worker_busy=busy, lines=lines)


def graph(backward: int = 64, **changes: Any) -> ProgramGraph:
    plain: dict[str, Any] = {"nodes": 20, "is_cut": False, "leaves": 6, "numbers": 10_000}
    plain |= {"unowned": 0, "doubles": 0, "in_double": False, "hooks": 2}
    return ProgramGraph(backward=backward, **(plain | changes))


def moving(share: float, seconds: dict[str, float] | None = None, **changes: Any) -> ProgramProfile:
    """A program that is found in Python, or between operations, at this share of the looks."""
    rank = profile(seconds or STEP, **changes)
    phases = {
        name: each.model_copy(update={"moving": None if name == "backward" else share})
        for name, each in rank.phases.items()
    }
    return rank.model_copy(update={"phases": phases})


def moments(*step_s: float, phase: str = "forward") -> list[ProgramMoment]:
    """One each hundred steps of these lengths, all of them in one phase."""
    found, spent = [], 0.0
    for at, each in enumerate((0.0, *step_s)):
        spent += 100 * each
        found.append(
            ProgramMoment(elapsed_s=spent, steps=100 * at, main_cpu_s=spent, phases={phase: spent})
        )
    return found


def table(touched: int, rows: int = 100_000) -> ProgramTable:
    return ProgramTable(rows=rows, width=16, touched=touched, sparse=False)


def threads(*cpu_s: float, **changes: Any) -> list[ProgramThread]:
    plain = {"function": "featurise", "file": "train.py", "line": 9} | changes
    return [ProgramThread(cpu_s=each, seen_s=2 * each, **plain) for each in cpu_s]


def ranks(*seconds: dict[str, float], **changes: Any) -> list[ProgramProfile]:
    """One profile each; `changes` hold a value for all of them, or a list."""
    each = [
        {name: v[at] if isinstance(v, list) else v for name, v in changes.items()}
        for at in range(len(seconds))
    ]
    several = enumerate(zip(seconds, each, strict=True))
    return [profile(s, **{"rank": at, "ranks": len(seconds)} | own) for at, (s, own) in several]


def seen(*profiles: ProgramProfile, **changes: Any) -> Evidence:
    return command(program=profiles, **changes)


def only(evidence: Evidence) -> Finding:
    (found,) = find(evidence)
    return found


def source(folder: Path, *lines: str) -> str:
    file = folder / "train.py"
    file.write_text("\n".join(lines) + "\n")
    return str(file)


ONE_CORE, TWO_CORES, FOUR_CORES = (CoreCounts(n, n, 1.0) for n in (1.0, 2.0, 4.0))
STEP = {"forward": 40.0, "backward": 45.0, "optimizer": 10.0, "loop": 5.0}
INPUT = {"input": 60.0, "forward": 20.0, "backward": 15.0, "optimizer": 5.0}
LOOP = {"loop": 100.0}
UPDATES = {"forward": 20.0, "backward": 25.0, "optimizer": 55.0}
MAKES_SAMPLES = {"input": 80.0, "forward": 20.0}
HALF_LOOP = {"loop": 90.0, "forward": 10.0}
WALK = {"forward": 70.0, "backward": 20.0, "optimizer": 60.0}
LAYER = {"forward": 19.0, "backward": 36.0, "optimizer": 38.0, "checkpoint": 7.0}
SMALL = {"forward": 11.0, "backward": 31.0, "optimizer": 46.0, "loop": 6.0, "evaluation": 5.0}
LATE = ({"forward": 90.0, "sync": 10.0}, {"forward": 40.0, "sync": 60.0})
THRICE = ({"forward": 90.0, "sync": 10.0}, {"forward": 30.0, "sync": 70.0})
HELD = ({"forward": 40.0, "sync": 60.0}, {"forward": 98.0, "sync": 2.0})
EXCHANGE = ({"forward": 50.0, "sync": 50.0},) * 2
REPORTED = (RankTimes(0, "node1", instances=3000), RankTimes(1, "node1", instances=1000))
NEIGHBOURS = {"cores": CoreCounts(2.0, 2.0, 0.2), "elapsed_s": 100.0}
GROWN = {"memory_growth_mib": 800.0, "memory_peak_mib": 1000.0}
SLOWED = {"startup_s": 60.0, "startup_runqueue_s": 50.0, "elapsed_s": 160.0}
SHORT = {"elapsed_s": 1.5, "cores": CoreCounts(2.0, 2.0, None)}
BY_CTRL_C = {"failed": "rank 0 failed: exit code 130"}


def tall(rows: int, width: int, touched: int, **changes: Any) -> dict[str, Any]:
    found = ProgramTable(rows=rows, width=width, touched=touched, sparse=False)
    return {"tables": [found], "parameters": rows * width} | changes


def one_by_one(main_s: float, *others: float, **changes: Any) -> ProgramProfile:
    return profile(STEP, main_cpu_s=main_s, threads=threads(*others), **changes)


def alone(moved: float | None = None, **changes: Any) -> ProgramProfile:
    """A program without steps."""
    return profile(LOOP, **{"steps": 0, "moved": moved} | changes)


def beside(used: float) -> Evidence:
    """A loop whose thread waits for a core nearly all of the time."""
    loop = alone(main_cpu_s=12.0, runqueue_s=88.0)
    return seen(loop, runqueue_s=180.0, cores=CoreCounts(2.0, 2.0, used), elapsed_s=100.0)


def workers(busy: float, used: float, cores: float = 2.0, **changes: Any) -> Evidence:
    rank = profile(INPUT, loaders=[loader(workers=1, **changes)])
    return seen(rank, worker(busy), cores=CoreCounts(cores, cores, used))


POOL = [
    profile({"loop": s}, steps=0, startup_s=0.0, imports_s=2.1, runqueue_s=waited)
    for s, waited in ((20.8, 4.8), (17.1, 7.0), (17.1, 7.1))
]
CAUSES: list[tuple[str, Evidence]] = [
    ("", seen(profile(STEP))),
    # Ranks that the probe saw only start.
    ("", seen(*ranks({}, {}, steps=0, elapsed_s=3.0))),
    # Input computes or waits; workers are too few, useless beside busy cores, or overhead.
    ("python_input", seen(profile(INPUT))),
    ("python_input", seen(profile(INPUT, {"input": 0.4}))),
    ("input_io", seen(profile(INPUT, {"input": 0.8}))),
    ("too_few_workers", workers(0.9, 1.6, 4.0)),
    ("python_input", workers(0.9, 1.9)),
    ("worker_overhead", workers(0.1, 1.0)),
    ("worker_overhead", workers(0.1, 1.0, epochs=50)),
    ("worker_overhead", seen(profile({"workers": 30.0, **STEP}, loaders=[loader(workers=2)]))),
    # Rows without a gradient: of embedding tables, many, and cheaper one by one.
    ("dense_optimizer", seen(profile(WALK, **tall(100_000, 16, 500)))),
    ("", seen(profile(WALK, **tall(100_000, 16, 90_000)))),
    ("", seen(profile(WALK | {"optimizer": 3.0}, **tall(100_000, 16, 500)))),
    ("", seen(profile(WALK, **tall(100_000, 16, 500, parameters=9_000_000)))),
    ("", seen(profile(LAYER, **tall(2048, 2048, 356)))),  # a layer with dead units
    ("dense_optimizer", seen(profile(LAYER, **tall(20_480, 205, 3560)))),
    ("", seen(profile(SMALL, **tall(4000, 32, 1595)))),
    ("dense_optimizer", seen(profile(SMALL, **tall(4000, 32, 300)))),
    ("", seen(profile(WALK, **tall(100_000, 16, 500, fused=True)))),
    ("dense_optimizer", seen(profile(WALK, **tall(200_000, 16, 500, fused=True)))),
    # Ranks: one is late, has more to do in whatever is known, or all wait for the exchange.
    ("straggler", seen(*ranks(*LATE))),
    ("load_imbalance", seen(*ranks(*LATE, samples=[1800, 900]))),
    ("straggler", seen(*ranks(*THRICE, batches=0, samples=None))),
    ("load_imbalance", seen(*ranks(*THRICE, batches=0, samples=None), ranks=REPORTED)),
    ("sync_bound", seen(*ranks(*EXCHANGE))),
    ("", seen(ranks(*EXCHANGE)[0])),  # the other rank was not seen
    ("straggler", seen(*ranks(*HELD))),
    ("", seen(*ranks(*HELD, runqueue_s=[0.0, 55.0]))),  # a neighbour held its core
    ("straggler", seen(*ranks({"forward": 10.0, "sync": 90.0}, {"loop": 85.0, "forward": 15.0}))),
    ("", seen(*POOL)),  # processes of a pool are no ranks
    # Preparation counts more than imports; a slow start and a short training are one.
    ("startup_bound", seen(profile(STEP, startup_s=6.0, imports_s=1.0, elapsed_s=8.0))),
    # Its own share counts: a fifth of this run.
    ("startup_bound", seen(profile(STEP, startup_s=6.0, imports_s=4.0, elapsed_s=8.0))),
    ("", seen(profile(STEP, startup_s=6.0, imports_s=5.0, elapsed_s=8.0))),
    ("startup_bound", seen(profile(STEP, startup_s=80.0, elapsed_s=180.0))),
    ("", seen(profile(STEP, startup_s=20.0, elapsed_s=120.0))),
    ("startup_bound", seen(profile(STEP, runqueue_s=80.0, **SLOWED))),
    ("", seen(profile(STEP, runqueue_s=10.0, **SLOWED))),
    # Evaluation, checkpoints and the program's own code, from a quarter of the time on.
    ("evaluation_bound", seen(profile(STEP | {"evaluation": 60.0}))),
    ("", seen(profile(STEP | {"evaluation": 5.0}))),
    ("checkpoint_bound", seen(profile(STEP | {"checkpoint": 60.0}))),
    ("", seen(profile(STEP | {"checkpoint": 5.0}))),
    ("loop_code", seen(profile(STEP | {"loop": 60.0}))),
    ("", seen(profile({"loop": 50.0, "backward": 50.0}))),  # a model that is no Module
    # Beside neighbours by its own threads: one, or two.
    ("loop_code", beside(0.12)),
    ("", beside(0.24)),
    ("loop_code", seen(alone(imports_s=2.0), cores=TWO_CORES)),
    ("", seen(alone(imports_s=90.0), cores=TWO_CORES)),  # ended among its imports
    ("serial_step", seen(alone(0.1), cores=TWO_CORES)),
    ("loop_code", seen(alone(0.5), cores=TWO_CORES)),
    # Threads of BLAS use both cores: they compute, or wait for short operations.
    ("", seen(alone(0.1, cpu_s=190.0), cores=CoreCounts(2.0, 2.0, 1.9))),
    ("loop_code", seen(alone(0.9, cpu_s=190.0), cores=CoreCounts(2.0, 2.0, 1.9))),
    # Threads that share one core; not two cores' worth, which do not wait for each other.
    ("interpreter_lock", seen(one_by_one(30.0, 35.0, 34.0), cores=TWO_CORES)),
    ("", seen(one_by_one(95.0), cores=TWO_CORES)),
    ("", seen(one_by_one(95.0, 90.0), cores=TWO_CORES)),
    ("interpreter_lock", seen(one_by_one(9.0, 6.0, 5.0), runqueue_s=160.0, **NEIGHBOURS)),
    ("serial_step", seen(one_by_one(9.0, 6.0, 5.0), runqueue_s=0.0, **NEIGHBOURS)),
    ("", seen(one_by_one(9.0, 65.0, 60.0), runqueue_s=160.0, **NEIGHBOURS)),
    ("interpreter_lock", seen(one_by_one(1.0, *[4.0] * 24), cores=TWO_CORES)),
    (
        "interpreter_lock",  # pools that ended
        seen(profile(STEP, main_cpu_s=1.0, threads=threads(95.0, threads=8)), cores=TWO_CORES),
    ),
    # Steps on one core of four; of fewer threads than cores, unless they are short.
    ("serial_step", seen(profile(STEP), cores=FOUR_CORES)),
    ("serial_step", seen(profile(STEP, torch_threads=1), cores=TWO_CORES)),
    ("", seen(profile(STEP, torch_threads=2), cores=TWO_CORES)),
    ("", seen(profile(STEP, torch_threads=1, steps=50_000), cores=TWO_CORES)),
    # An optimizer that goes through many parameters one by one.
    ("small_operations", seen(moving(0.7, UPDATES, graphs=[graph(leaves=300)]))),
    ("", seen(moving(0.7, UPDATES, graphs=[graph(leaves=6)]))),
    ("", seen(moving(0.1, UPDATES, graphs=[graph(leaves=300)]))),
    # Doubles that come with numpy's arrays; gradients that nobody updates.
    ("excess_arithmetic", seen(moving(0.1, graphs=[graph(doubles=9_000, in_double=True)]))),
    ("", seen(moving(0.9, graphs=[graph(doubles=9_000, in_double=True)]))),
    ("excess_arithmetic", seen(moving(0.1, graphs=[graph(n, unowned=8_000) for n in (2, 4, 8)]))),
    ("", seen(moving(0.1, graphs=[graph(n, unowned=2_000) for n in (2, 4, 8)]))),
    # What is switched on costs by the operation.
    ("costly_option", seen(profile(STEP, options=["detect_anomaly"], graphs=[graph(nodes=600)]))),
    ("", seen(profile(STEP, options=["detect_anomaly"], graphs=[graph(nodes=60)]))),
    # Own code inside of long operations is no Python loop.
    ("", seen(moving(0.1, STEP | {"loop": 60.0}))),
    ("loop_code", seen(moving(0.9, STEP | {"loop": 60.0}))),
    ("", seen(alone(0.25), cores=TWO_CORES)),
    # Evaluation that keeps graphs for nothing counts from a fifth on.
    ("", seen(profile(STEP | {"evaluation": 30.0}, loaders=[loader(evaluates=True)]))),
    (
        "evaluation_bound",
        seen(
            profile(STEP | {"evaluation": 30.0}, loaders=[loader(evaluates=True, with_graph=990)])
        ),
    ),
    ("memory_growth", seen(profile(STEP), **GROWN)),
    ("", seen(profile(STEP, steps=0), **GROWN)),
]


@pytest.mark.parametrize(("cause", "evidence"), CAUSES)
def test_the_cause_of_a_program(cause: str, evidence: Evidence) -> None:
    assert " ".join(each.cause for each in find(evidence)) == cause


@pytest.mark.parametrize(
    ("said", "evidence"),
    [
        # A short program of many steps is judged, and its hot line named all the same.
        ("healthy", seen(profile(STEP, steps=150), elapsed_s=2.5)),
        ("too_short_to_judge", seen(profile({"forward": 0.5}, steps=90), elapsed_s=2.5)),
        ("loop_code", seen(profile({"loop": 1.4}, steps=0, imports_s=0.1), **SHORT)),
        ("too_short_to_judge", seen(profile({"forward": 0.5}, steps=9), **SHORT)),
        # A training that Ctrl-C ended is judged by its steps.
        ("healthy", seen(profile(STEP, steps=200), **BY_CTRL_C)),
        ("unknown", seen(profile({"forward": 3.0}, steps=200), **BY_CTRL_C)),
    ],
)
def test_how_much_is_enough_to_judge(said: str, evidence: Evidence) -> None:
    judged = diagnose_evidence(evidence)
    assert said == (judged.primary.cause if judged.primary else judged.verdict)
    assert evidence.failed is None or "how it would have ended" in judged.missing[0]


@pytest.mark.parametrize("elapsed_s", [1.5, 30.0])
def test_few_steps_name_their_cause_and_no_gain(elapsed_s: float) -> None:
    def text(steps: int) -> str:
        return text_of(seen(profile({"input": 0.6, "forward": 0.4}, steps=steps), **times))

    times = {"elapsed_s": elapsed_s, "cores": ONE_CORE}
    assert "Expected" in text(10)
    assert "only 9 steps counted" not in text(10)
    assert "Cause 1 input is made" in text(9)
    assert "only 9 steps counted, too few to expect a gain" in text(9)
    assert "Expected" not in text(9)
    assert "Expected" in text_of(
        seen(profile({"input": 60.0, "forward": 40.0}, steps=9), cores=ONE_CORE)
    )


@pytest.mark.parametrize(("rows", "remedy"), [(100_000, "rowwise"), (30_000, "fused")])
def test_small_tables_are_not_advised_what_leaves_them_alone(rows: int, remedy: str) -> None:
    assert remedy in only(seen(profile(WALK, **tall(rows, 16, 150)))).remedy


def test_a_pool_found_mostly_in_the_library_competes_for_the_lock() -> None:
    inside = threads(0.9, 0.9, 0.9, function="__enter__", file=None, line=None)
    at = threads(0.9, line=14)
    times = {"startup_s": 0.0, "elapsed_s": 5.86, "main_cpu_s": 2.36, "imports_s": 0.0, "steps": 0}
    pool = profile({"loop": 5.86}, threads=[*inside, *at], **times)
    cores = CoreCounts(2.0, 2.0, 1.05)
    found = diagnose_evidence(seen(pool, cores=cores)).primary
    assert found
    assert (found.cause, found.places[0].line) == ("interpreter_lock", 14)
    nowhere = pool.model_copy(update={"threads": inside})
    assert "interpreter_lock" not in [each.cause for each in find(seen(nowhere, cores=cores))]


@pytest.mark.parametrize(
    ("function", "found"), [("evaluate", "evaluation_bound"), ("mine", "loop_code")]
)
def test_a_metric_after_the_models_last_score_is_evaluation(function: str, found: str) -> None:
    lines = [
        line("loop", 67, 1.0, function="fit", own_share=0.4),
        line("loop", 52, 0.6, function=function, own_share=0.1, depth=1),
        line("loop", 13, 0.5, function="gauc", depth=2),
        line("evaluation", 67, 1.0, function="fit"),
        line("evaluation", 51, 1.0, function=function, depth=1),
        line("optimizer", 66, 1.0, function="fit"),
    ]
    rank = profile(
        {"loop": 60.0, "evaluation": 5.0, "forward": 15.0, "backward": 20.0}, lines=lines
    )
    first, *others = find(seen(rank))
    assert (first.cause, others) == (found, [])
    if found == "evaluation_bound":
        assert (first.share, first.places[0].line) == (pytest.approx(0.05 + 0.6 * 0.6), 13)


@pytest.mark.parametrize(
    ("text", "found"), [("TABLE = build()", ["startup_bound"]), ("import torch", [])]
)
def test_a_module_that_computes_while_imported_is_preparation(
    text: str, found: list[str], tmp_path: Path
) -> None:
    """All of the start-up is in imports; what a module of the program's own does is its own."""
    module = tmp_path / "tables.py"
    module.write_text(f"{text}\nOTHERS = [\n    price(x) for x in names]\n")
    lines = [
        line("startup", 1, 0.9, own_share=0.0, function="<module>"),
        line("startup", 1, 0.7, function="<module>", file=str(module), depth=1),
        *(
            line("startup", at, 0.2, function="<module>", file=str(module), depth=at - 1)
            for at in (2, 3)
        ),
    ]
    rank = profile(STEP, startup_s=6.0, imports_s=5.8, elapsed_s=8.0, startup_lines=lines)
    got = find(seen(rank))
    assert [each.cause for each in got] == found
    for startup in got:
        assert "imports took 7\u202f% of that" in startup.evidence


def test_training_that_waits_for_a_thread_that_makes_its_batches() -> None:
    """The thread's line is the one to change, not the one that waits."""
    own = {"lines": [line("loop", 3, 1.0)], "waiting": {"loop": 0.95}, "main_cpu_s": 4.0}
    for cpu_s, named in ((88.0, ("python_input", 9)), (5.0, ("loop_code", 3))):
        found = only(seen(profile(HALF_LOOP, threads=threads(cpu_s), **own), cores=TWO_CORES))
        assert (found.cause, found.places[0].line) == named


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("pickle.dump(state, file)", "checkpoint_bound"),
        ("np.savez(path, **arrays)", "checkpoint_bound"),
        ("table.to_parquet(path)", "checkpoint_bound"),
        ("saved = resave(table)", "loop_code"),
        ("log.write(json.dumps(row))", "loop_code"),
    ],
)
def test_a_loop_that_writes_its_state_writes_checkpoints(
    text: str, cause: str, tmp_path: Path
) -> None:
    lines = [line("loop", 1, 1.0, file=source(tmp_path, text))]
    assert only(seen(profile(STEP | {"loop": 60.0}, lines=lines))).cause == cause


def test_a_state_that_is_pickled_is_written_in_two_phases(tmp_path: Path) -> None:
    """Pickling tensors calls torch.save, and the line that writes them does the rest."""
    file = source(tmp_path, "pickle.dump(state, file)", "os.fsync(file)", "scores = rank(x)")
    lines = [line("loop", number, 0.3, file=file) for number in (1, 2, 3)]
    seconds = {"checkpoint": 5.0, "loop": 30.0, "forward": 30.0, "backward": 35.0}
    found = only(seen(profile(seconds, lines=lines)))
    assert (found.cause, found.places[0].line) == ("checkpoint_bound", 1)
    assert found.share == pytest.approx(0.05 + 0.6 * 0.3)


@pytest.mark.parametrize(
    ("tensors", "before", "samples", "named"),
    [(0.5, 0.3, 10_000, 1), (0.7, 0.2, 10_000, 3), (0.7, 0.26, 1_000_000, 1)],
)
def test_a_line_that_makes_tensors_takes_samples_of_those_before_it(
    tensors: float, before: float, samples: int, named: int, tmp_path: Path
) -> None:
    text = ("points = [turn(x) for x in row]", "angle = draw()", "return torch.tensor(points)")
    file = source(tmp_path, *text)
    shares = {1: 0.4 * before, 2: 0.6 * before, 3: tensors}
    lines = [line("input", number, share, file=file) for number, share in shares.items()]
    found = only(seen(profile(INPUT, lines=lines, samples=samples)))
    assert found.places[0].line == named


def test_a_thread_that_ends_its_batches_with_a_tensor(tmp_path: Path) -> None:
    text = ("while j in seen[u]:", "    j = draw()", "q.put(torch.tensor(users))")
    busy = threads(35.0, file=source(tmp_path, *text), line=3, also=[2, 1])
    found = only(seen(profile(STEP, main_cpu_s=60.0, threads=busy), cores=TWO_CORES))
    assert (found.cause, found.places[0].line) == ("interpreter_lock", 2)


def test_a_hot_function_has_the_line_to_change_before_its_call() -> None:
    """Two calls of one function, whose lines take a little each."""
    called = {"own_share": 0.0, "function": "main"}
    lines = [line("loop", 26, 0.5, **called), line("loop", 27, 0.45, **called)]
    lines += [
        line("loop", at, share, depth=1) for at, share in {18: 0.2, 20: 0.25, 22: 0.2}.items()
    ]
    assert only(seen(profile(HALF_LOOP, lines=lines))).places[0].line == 20


def test_the_deepest_hot_line_is_the_one_to_change(tmp_path: Path) -> None:
    file = source(tmp_path, "a", "b", "c = list(set(range(n)) - seen)", "d")
    lines = [
        line("input", 1, 1.0, own_share=0.01, depth=0, file=file),
        line("input", 3, 0.6, own_share=0.6, depth=1, file=file),
        line("input", 4, 0.3, own_share=0.3, depth=2, file=file),
    ]
    found = only(seen(profile(INPUT, lines=lines), cores=TWO_CORES))
    assert [(each.line, round(each.share, 2)) for each in found.places] == [(3, 0.36), (4, 0.18)]
    assert found.places[0].source == "c = list(set(range(n)) - seen)"


def test_a_line_inside_the_loader_stands_before_the_loop() -> None:
    lines = [line("input", 30, 0.6, outside=True), line("input", 8, 0.35, depth=0)]
    found = only(seen(profile(INPUT, lines=lines), cores=TWO_CORES))
    assert [each.line for each in found.places] == [8, 30]


def test_workers_are_blamed_where_the_loader_is_made(tmp_path: Path) -> None:
    text = ["loader = DataLoader(", "    data, num_workers=8)", "for x in loader:", "    pass"]
    lines = [line("input", 3, 1.0, file=source(tmp_path, *text), outside=True)]
    found = only(seen(profile(INPUT, loaders=[loader(workers=8)], lines=lines), worker(0.1)))
    assert (found.cause, found.places[0].line) == ("worker_overhead", 1)


def test_the_line_that_keeps_every_graph_is_named(tmp_path: Path) -> None:
    text = (
        "for x in loader:",
        "    loss = model(x)",
        "    loss.backward()",
        "    kept.append(loss)",
    )
    lines = [line("backward", 3, 1.0, file=source(tmp_path, *text))]
    found = only(seen(profile(STEP, lines=lines), **GROWN))
    assert [each.source for each in found.places] == ["kept.append(loss)"]


@pytest.mark.parametrize(
    ("text", "remedy"),
    [
        ("pool = list(set(range(n)) - self.seen)", "NegativeSampler"),
        ("while item not in seen: item = random.sample(items, 1)", "NegativeSampler"),
        ("return torch.tensor(self.rows[i])", "BatchLoader"),
        ("image = Image.open(self.files[i])", "num_workers=3"),
        ("x = np.load(self.files[i])", "num_workers=3"),
        ("when = datetime.strptime(text, FORMAT)", "num_workers=3"),
    ],
)
def test_the_remedy_of_an_input_is_by_what_its_line_does(
    text: str, remedy: str, tmp_path: Path
) -> None:
    file = source(tmp_path, text, "for batch in DataLoader(data):", "    pass")
    lines = [
        line("input", 1, 0.8, file=file, function="__getitem__"),
        line("input", 2, 0.2, file=file, function="main", outside=True),
    ]
    assert remedy in only(seen(profile(INPUT, lines=lines), cores=FOUR_CORES)).remedy


def test_an_item_drawn_until_it_is_new_is_a_drawn_negative(tmp_path: Path) -> None:
    file = source(tmp_path, "while n in self.liked[u]:")
    hot = line("input", 1, 1.0, file=file, function="__getitem__")
    assert DRAW_NEGATIVES in text_of(seen(profile(INPUT, lines=[hot]), cores=TWO_CORES))


@pytest.mark.parametrize("workers", [0, 2])
def test_drawn_negatives_have_one_remedy_with_workers_and_without(
    workers: int, tmp_path: Path
) -> None:
    text = ["def __getitem__(self, i):", "    return choice(list(set(self.items) - self.seen[i]))"]
    file = source(tmp_path, *text)
    hot = line("loop" if workers else "input", 2, 1.0, file=file, function="__getitem__")
    ranks = [profile(INPUT, lines=[hot])]
    if workers:
        made = worker(0.9).model_copy(update={"lines": [hot]})
        ranks = [profile(INPUT, loaders=[loader(workers=workers)]), made]
    assert DRAW_NEGATIVES in text_of(seen(*ranks, cores=TWO_CORES))


def text_of(evidence: Evidence) -> str:
    lines = lines_of(evidence, diagnose_evidence(evidence))
    assert max(map(len, lines)) <= 80
    assert len(lines) <= 25
    return " ".join(" ".join(lines).split())


def test_gains_are_of_the_time_that_the_causes_before_left() -> None:
    seconds = {"input": 60.0, "forward": 5.0, "backward": 5.0, "optimizer": 30.0}
    lines = [line("input", 3, 0.9, function="a_function_of_a_rather_long_name" * 3)]
    rank = profile(seconds, tables=[table(500)], parameters=1_600_000, lines=lines)
    evidence = seen(rank, cores=ONE_CORE)
    first, second = find(evidence)
    assert (first.cause, second.cause) == ("python_input", "dense_optimizer")
    # 0.04 of the input stays, and of 30 + 5 % for 99.5 % of the rows their fourfold share.
    assert first.gain.factor == pytest.approx(1 / (1 - 0.6 * 0.96))
    assert second.gain.factor == pytest.approx(1 / (1 - 0.35 * 0.995 * 0.98))
    both = 1 / (1 - 0.6 * 0.96 - 0.35 * 0.995 * 0.98)
    text = text_of(evidence)
    assert f"Expected {first.gain.factor:.1f}x." in text
    assert f"{both:.1f}x with cause" in text


@pytest.mark.parametrize(
    ("rank", "asked", "spinning"),
    [
        # In 80 of 100 s one thread alone makes samples; the second computes for 20 s at the most.
        (
            profile(MAKES_SAMPLES, cpu_s=190.0),
            1,
            "0.7 of it by threads of torch",
        ),
        (profile(MAKES_SAMPLES, cpu_s=115.0), 1, ""),
        (profile(STEP, cpu_s=190.0), 2, ""),
        # Threads of BLAS use both cores either way: they compute, or wait for short operations.
        (alone(0.1, cpu_s=190.0), 2, "0.9 of it by threads of a library"),
        (alone(0.9, cpu_s=190.0), 1, "0.9 of it by threads of a library"),
        (alone(cpu_s=115.0), 1, ""),
    ],
)
def test_cores_whose_threads_only_wait_are_not_asked_for(
    rank: ProgramProfile, asked: int, spinning: str
) -> None:
    text = text_of(seen(rank, cores=CoreCounts(2.0, 2.0, rank.cpu_s / 100)))
    assert f"Ask for {asked} core" in text
    assert spinning in text
    assert bool(spinning) == ("of it by threads" in text)


@pytest.mark.parametrize(
    ("changes", "hinted"),
    [
        ({"steps": 50_000}, True),  # of 2 ms
        ({"steps": 5000}, False),  # of 20 ms
        ({"steps": 50_000, "main_cpu_s": 190.0}, False),  # no threads but Python's
        ({"steps": 50_000, "gpu_busy": 0.9}, False),
        ({"steps": 50_000, "ranks": 2}, False),
    ],
)
def test_one_core_may_do_for_short_steps_of_several_threads(
    changes: dict[str, Any], hinted: bool
) -> None:
    rank = profile(STEP, cpu_s=190.0, **changes)
    text = text_of(seen(rank, cores=CoreCounts(2.0, 2.0, 1.9)))
    assert "Ask for 2 cores" in text
    assert ("one may be as fast: hpcncf tune" in text) is hinted


def test_threads_that_were_asked_for_are_not_called_too_few() -> None:
    asked = ProgramRemedy(remedy="threads=1", applied=True, to="torch", count=1)
    given, own = (
        only(seen(profile(STEP, torch_threads=1, remedies=remedies), cores=TWO_CORES))
        for remedies in ([asked], [])
    )
    assert given.cause == own.cause == "serial_step"
    assert "--with threads=1" in given.remedy
    assert "as many threads as cores" in own.remedy


def test_a_program_has_no_settings_of_a_training() -> None:
    (found,) = diagnose_evidence(seen(profile(STEP), runnable=8.0, cores=TWO_CORES)).findings
    assert found.cause == "oversubscribed"
    assert "OMP_NUM_THREADS" in found.remedy
    assert "training.threads" not in found.remedy


def test_phases_that_work_are_no_waste() -> None:
    text = text_of(seen(profile(STEP)))
    assert "backward 45%" in text
    assert "Cause none: no known waste" in text


@pytest.mark.parametrize(("threads", "advised"), [(2, True), (1, False)])
def test_threads_that_neighbours_hold_up_are_better_fewer(threads: int, advised: bool) -> None:
    rank = profile(STEP, torch_threads=threads, runqueue_s=20.0)
    held = {"others_cores": 1.2, "runqueue_s": 120.0, "runnable": 2.0, "elapsed_s": 100.0}
    found = diagnose_evidence(seen(rank, cores=CoreCounts(2.0, 2.0, 0.8), **held)).primary
    assert found
    assert found.cause == "neighbour_load"
    assert ("--with threads=1" in found.remedy) is advised


@pytest.mark.parametrize(("others", "disturbed"), [(1.2, True), (0.3, False)])
def test_what_neighbours_took_comes_before_all_shares_and_gains(
    others: float, disturbed: bool
) -> None:
    rank = profile(INPUT, runqueue_s=20.0)
    held = {"others_cores": others, "runqueue_s": 60.0, "runnable": 1.0, "elapsed_s": 100.0}
    text = text_of(seen(rank, cores=CoreCounts(2.0, 2.0, 0.8), **held))
    assert "Expected" in text
    assert text.startswith("Disturbed") is disturbed
    assert ("took 0.6 of its 2 cores" in text.partition("Where the time goes")[0]) is disturbed
    assert ("beside the others" in text) is disturbed


@pytest.mark.parametrize(
    ("text", "grows", "named"),
    [
        ("    layer.register_forward_hook(keep)", {"hooks": 2}, 2),
        ("    loss.backward(retain_graph=True)", {"nodes": 20}, 2),
        ("    seen.append(loss.item())", {}, 3),
        ("    loss.append(seen.item())", {}, None),
        ("    loss = model(x)", {}, None),
    ],
)
def test_steps_that_get_slower_while_something_grows(
    text: str, grows: dict[str, int], named: int | None, tmp_path: Path
) -> None:
    """Without anything that grows it is not known that the work is the same."""
    file = source(tmp_path, "for x in loader:", text, "    mean = sum(seen) / len(seen)")
    looks = [graph(n, **{name: n * each for name, each in grows.items()}) for n in (2, 4, 8, 64)]
    slower = moments(*(0.01 * (1 + at) for at in range(12)))
    rank = profile(STEP, lines=[line("forward", 3, 1.0, file=file)], graphs=looks, moments=slower)
    found = find(seen(rank))
    assert [each.cause for each in found] == (["slowing_steps"] if named else [])
    if named:
        assert found[0].places[0].line == named
        # Thirds of 2.5, 6.5 and 10.5 hundredths of a second; the mean is 6.5.
        assert found[0].share == pytest.approx(1 - 2.5 / 6.5)


def test_steps_of_changing_length_are_no_trend() -> None:
    for lengths in ([0.02] * 12, [0.01, 0.03] * 6, [0.03, 0.02, 0.01] * 4):
        looks = [graph(n, hooks=n) for n in (2, 4, 8, 64)]
        assert find(seen(profile(STEP, graphs=looks, moments=moments(*lengths)))) == []


@pytest.mark.parametrize(
    ("text", "called", "cause", "remedy"),
    [
        ("gc.collect()", None, "frequent_call", "once an epoch"),
        ("best = copy.deepcopy(model)", "copy deepcopy", "frequent_call", "better than the last"),
        ("auc = score(y, p)", "sklearn roc_auc_score", "frequent_call", "running sums"),
        ("log.info('step %d', step)", None, "frequent_call", "Log once"),
        ("self.log_metrics(step)", None, "frequent_call", "Log once"),
        ("kept.append(policy.log_prob(action))", None, "loop_code", "array operations"),
        ("total += math.log(x) * torch.logsumexp(y, 0)", None, "loop_code", "array operations"),
        ("user_score = score[user]", None, "loop_code", "array operations"),
        ("part = batch.groupby(key)", "pandas groupby", "loop_code", "calls pandas groupby"),
        ("total += a * b", None, "loop_code", "array operations"),
    ],
)
def test_a_call_in_each_step_is_no_python_loop(
    text: str, called: str | None, cause: str, remedy: str, tmp_path: Path
) -> None:
    hot = line("loop", 1, 1.0, file=source(tmp_path, text), called=called)
    found = only(seen(profile(STEP | {"loop": 60.0}, lines=[hot])))
    assert found.cause == cause
    assert remedy in found.remedy


@pytest.mark.parametrize(
    ("objects", "mib", "cause"), [(5_000_000, 400.0, "worker_memory"), (300_000, 400.0, "")]
)
def test_workers_that_copy_python_objects(objects: int, mib: float, cause: str) -> None:
    reads = worker(0.9).model_copy(
        update={"private_mib": [20.0, 200.0, 20.0 + mib], "python_objects": objects}
    )
    rank = profile(STEP, loaders=[loader(workers=2)])
    found = find(seen(rank, reads, memory_peak_mib=1600.0))
    assert " ".join(each.cause for each in found) == cause
    if found:
        assert found[0].share == pytest.approx(2 * mib / 1600)


@pytest.mark.parametrize(
    ("text", "whole", "remedy"),
    [
        ("return torch.tensor(self.rows[i])", True, "remedies.BatchLoader."),
        ("return torch.tensor(self.rows[i])", False, "__getitems__"),
        ("return events[events[:, 0] == user]", False, "Group the rows once"),
        ("x, y = next(iter(loader))", True, "plain `for batch in loader`"),
    ],
)
def test_the_remedy_of_an_input_fits_its_data_set(
    text: str, whole: bool, remedy: str, tmp_path: Path
) -> None:
    hot = line("input", 1, 1.0, file=source(tmp_path, text))
    rank = profile(INPUT, lines=[hot], loaders=[loader(makes_whole_batches=whole)])
    assert remedy in only(seen(rank, cores=ONE_CORE)).remedy


def test_threads_that_the_environment_gave_are_named() -> None:
    given = {"threads_given": {"OMP_NUM_THREADS": 1}}
    found = only(seen(profile(STEP, torch_threads=1, **given), cores=TWO_CORES))
    assert found.cause == "serial_step"
    assert "OMP_NUM_THREADS=1 of the environment" in " ".join(found.evidence)
    assert found.remedy.startswith("Set OMP_NUM_THREADS")


@pytest.mark.parametrize(
    ("share", "said"),
    [(0.1, "Compute-bound: 90% arithmetic, 1.9 of 2 cores"), (0.9, "Bound by short operations")],
)
def test_a_program_without_waste_is_told_what_its_time_is(share: float, said: str) -> None:
    assert said in text_of(seen(moving(share), cores=CoreCounts(2.0, 2.0, 1.9)))


@pytest.mark.parametrize(
    ("head", "share", "changes", "remedy"),
    [
        ("for t in range(x.shape[1]):", 0.6, {}, "outside the loop"),
        ("for user, item in zip(users, items):", 0.6, {}, "stack or pad"),
        ("for w in model.parameters():", 0.6, {}, "torch._foreach_"),
        # Each layer does another thing; operations with enough to do; few of them; long ones.
        ("for layer in self.layers:", 0.6, {}, None),
        ("for t in range(9):", 0.1, {}, None),
        ("for t in range(9):", 0.6, {"graphs": [graph(nodes=40)]}, None),
        ("for t in range(9):", 0.6, {"steps": 100}, None),
        ("if deep:", 0.6, {}, None),
    ],
)
def test_a_graph_of_many_short_operations(
    head: str, share: float, changes: dict[str, Any], remedy: str | None, tmp_path: Path
) -> None:
    file = source(tmp_path, "def forward(x):", f"    {head}", "        h = cell(x, h)")
    hot = line("forward", 3, 1.0, file=file)
    plain: dict[str, Any] = {"graphs": [graph(nodes=3000)], "steps": 900, "lines": [hot]}
    found = find(seen(moving(share, **(plain | changes))))
    assert [each.cause for each in found] == (["small_operations"] if remedy else [])
    if remedy:
        assert remedy in found[0].remedy
        assert found[0].places[0].line == 3


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("a = normalise(graph)", "excess_arithmetic"),
        ("a = normalise(x)", "loop_code"),
        ("a = draw_batch(graph)", "loop_code"),
        ("a = loader.normalise(graph)", "loop_code"),
    ],
)
def test_work_that_no_step_changes(text: str, cause: str, tmp_path: Path) -> None:
    head = ("import torch", "graph = torch.eye(9)", "def normalise(g):", "    return g @ g")
    loop = ("for x in loader:", f"    {text}", "    model(a, x).backward()")
    hot = line("loop", 6, 1.0, file=source(tmp_path, *head, *loop))
    rank = profile(STEP | {"loop": 60.0}, lines=[hot], graphs=[graph()])
    found = only(seen(rank))
    assert (found.cause, found.places[0].line) == (cause, 6)


def test_a_line_whose_work_grows_is_named_once(tmp_path: Path) -> None:
    text = ("for x in loader:", "    seen.append(x.item())", "    r = np.corrcoef(seen)")
    hot = line("loop", 3, 1.0, file=source(tmp_path, *text))
    slower = moments(*(0.01 * (1 + at) for at in range(12)), phase="loop")
    found = only(seen(profile(STEP | {"loop": 60.0}, lines=[hot], moments=slower)))
    assert (found.cause, found.places[0].line) == ("slowing_steps", 3)


REPEATED = """
import random, torch
from torch import nn
A = torch.rand(9, 9)
kept = [A]
W = torch.rand(9, 9, requires_grad=True)
net = nn.Linear(9, 9)
def normal(a):
    return scale(a) @ a
def scale(a):
    return torch.diag(a.sum(1))
def penalty(w):
    return w.pow(2).sum()
def replay(n):
    return random.choices(kept, k=n)
def newest():
    return kept[-1]
for step in range(9):
    x = {call}
    kept.append(x)
    net(x).sum().backward()
"""


@pytest.mark.parametrize(
    ("call", "repeats"),
    [
        ("normal(A)", True),
        ("normal(A * 2)", True),
        ("penalty(W)", False),  # an optimizer changes it
        ("penalty(net)", False),  # is called in the loop
        ("replay(4)", False),  # draws
        ("newest()", False),  # reads what the loop changes
        ("normal(A * step)", False),
        ("torch.diag(A)", False),  # of a library: not followed
    ],
)
def test_only_what_cannot_change_is_computed_once(call: str, repeats: bool, tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(REPEATED.format(call=call))
    number = 1 + REPEATED.split("\n").index("    x = {call}")
    assert is_independent(str(path), number) is repeats
