"""Causes of a user's own program, from what the probe inside it saw."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from make_evidence import command

from hpcncf.records.schema import (
    ProgramLoader,
    ProgramPhase,
    ProgramProfile,
    ProgramTable,
    ProgramThread,
    SourceLine,
)
from hpcncf_analysis.diagnosis.diagnose import diagnose_evidence
from hpcncf_analysis.diagnosis.evidence import CoreCounts, RankTimes
from hpcncf_analysis.diagnosis.program_text import lines as text_of
from hpcncf_analysis.diagnosis.rules_program import find
from hpcncf_analysis.diagnosis.rules_time import too_short_to_judge

TWO_CORES = CoreCounts(2.0, 2.0, 1.0)


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


def table(touched: int, rows: int = 100_000) -> ProgramTable:
    return ProgramTable(rows=rows, width=16, touched=touched, sparse=False)


def causes(*profiles: ProgramProfile, **changes: Any) -> list[str]:
    return [found.cause for found in find(command(program=profiles, **changes))]


STEP = {"forward": 40.0, "backward": 45.0, "optimizer": 10.0, "loop": 5.0}
INPUT = {"input": 60.0, "forward": 20.0, "backward": 15.0, "optimizer": 5.0}


def test_a_program_that_computes_has_no_cause() -> None:
    assert causes(profile(STEP)) == []


def test_ranks_that_the_probe_saw_only_start_have_no_cause() -> None:
    ranks = [profile({}, rank=rank, ranks=2, steps=0, elapsed_s=3.0) for rank in range(2)]
    assert causes(*ranks) == []


def test_a_linear_layer_with_dead_units_is_no_embedding_table() -> None:
    layer = ProgramTable(rows=2048, width=2048, touched=356, sparse=False)
    seconds = {"forward": 19.0, "backward": 36.0, "optimizer": 38.0, "checkpoint": 7.0}
    assert causes(profile(seconds, tables=[layer], parameters=5_267_466)) == []
    taller = ProgramTable(rows=20_480, width=205, touched=3560, sparse=False)
    assert causes(profile(seconds, tables=[taller], parameters=5_267_466)) == ["dense_optimizer"]


@pytest.mark.parametrize(("touched", "expected"), [(1595, []), (300, ["dense_optimizer"])])
def test_a_walk_that_scattered_rows_would_not_shorten_is_no_cause(
    touched: int, expected: list[str]
) -> None:
    items = ProgramTable(rows=4000, width=32, touched=touched, sparse=False)
    seconds = {"forward": 11.0, "backward": 31.0, "optimizer": 46.0, "loop": 6.0, "evaluation": 5.0}
    assert causes(profile(seconds, tables=[items], parameters=153_600)) == expected


@pytest.mark.parametrize(("rows", "remedy"), [(100_000, "rowwise"), (30_000, "fused")])
def test_small_tables_are_not_advised_what_leaves_them_alone(rows: int, remedy: str) -> None:
    seconds = {"forward": 30.0, "backward": 20.0, "optimizer": 50.0}
    rank = profile(seconds, tables=[table(500, rows)], parameters=16 * rows)
    (found,) = find(command(program=(rank,)))
    assert found.cause == "dense_optimizer"
    assert remedy in found.remedy


def test_a_pool_found_mostly_in_the_library_competes_for_the_lock() -> None:
    def thread(**found: Any) -> ProgramThread:
        plain = {"threads": 1, "cpu_s": 0.9, "runqueue_s": 0.85, "seen_s": 4.97, "also": []}
        return ProgramThread(**(plain | found))

    within = [thread(function="__enter__", file=None, line=None) for _ in range(3)]
    at = thread(function="featurise", file="train.py", line=14, seen_s=0.04)
    pool = profile(
        {"loop": 5.86}, steps=0, startup_s=0.0, elapsed_s=5.86, main_cpu_s=2.36, imports_s=0.0
    ).model_copy(update={"threads": [*within, at]})
    found = diagnose_evidence(command(program=(pool,), cores=CoreCounts(2.0, 2.0, 1.05)))
    assert found.primary is not None
    assert (found.primary.cause, found.primary.places[0].line) == ("interpreter_lock", 14)
    alone = pool.model_copy(update={"threads": within})
    assert "interpreter_lock" not in causes(alone, cores=CoreCounts(2.0, 2.0, 1.05))


def test_processes_of_a_pool_are_no_ranks() -> None:
    pool = [
        profile({"loop": seconds}, steps=0, startup_s=0.0, imports_s=2.1, runqueue_s=waited)
        for seconds, waited in ((20.8, 4.8), (17.1, 7.0), (17.1, 7.1))
    ]
    assert "straggler" not in causes(*pool)


def test_a_rank_that_is_late_is_the_straggler() -> None:
    late = profile({"forward": 90.0, "sync": 10.0}, rank=0, ranks=2)
    waits = profile({"forward": 40.0, "sync": 60.0}, rank=1, ranks=2)
    assert causes(late, waits) == ["straggler"]


def test_a_rank_with_more_samples_has_more_work() -> None:
    late = profile({"forward": 90.0, "sync": 10.0}, rank=0, ranks=2, samples=1800)
    waits = profile({"forward": 45.0, "sync": 55.0}, rank=1, ranks=2, samples=900)
    assert causes(late, waits) == ["load_imbalance"]


def test_a_rank_that_reports_more_instances_has_more_work() -> None:
    """In as many steps, whose batches the program makes itself."""
    late = profile({"forward": 90.0, "sync": 10.0}, rank=0, ranks=2, batches=0, samples=None)
    waits = profile({"forward": 30.0, "sync": 70.0}, rank=1, ranks=2, batches=0, samples=None)
    assert causes(late, waits) == ["straggler"]
    reported = (RankTimes(0, "node1", instances=3000), RankTimes(1, "node1", instances=1000))
    assert causes(late, waits, ranks=reported) == ["load_imbalance"]


def test_ranks_that_all_wait_for_the_exchange_are_bound_by_it() -> None:
    ranks = [
        profile({"forward": 50.0, "sync": 50.0}, rank=rank, ranks=2, tables=[table(touched=900)])
        for rank in range(2)
    ]
    assert causes(*ranks) == ["sync_bound"]
    assert causes(ranks[0]) == []  # the other rank was not seen


@pytest.mark.parametrize(
    ("share_waiting", "cause"), [(0.0, "python_input"), (0.4, "python_input"), (0.8, "input_io")]
)
def test_input_computes_or_waits(share_waiting: float, cause: str) -> None:
    assert causes(profile(INPUT, {"input": share_waiting})) == [cause]


@pytest.mark.parametrize(
    ("busy", "cores", "changes", "cause"),
    [
        (0.9, CoreCounts(4.0, 4.0, 1.6), {}, "too_few_workers"),
        (0.9, CoreCounts(2.0, 2.0, 1.9), {}, "python_input"),
        (0.1, CoreCounts(2.0, 2.0, 1.0), {}, "worker_overhead"),
        (0.1, CoreCounts(2.0, 2.0, 1.0), {"epochs": 50}, "worker_overhead"),
    ],
)
def test_steps_that_wait_for_workers(
    busy: float, cores: CoreCounts, changes: dict[str, Any], cause: str
) -> None:
    rank = profile(INPUT, loaders=[loader(workers=1, **changes)])
    assert causes(rank, worker(busy), cores=cores) == [cause]


def test_workers_that_start_for_each_epoch() -> None:
    rank = profile({"workers": 30.0, **STEP}, loaders=[loader(workers=2, epochs=90)])
    assert causes(rank) == ["worker_overhead"]


@pytest.mark.parametrize(
    ("touched", "optimizer_s", "found"),
    [(500, 60.0, ["dense_optimizer"]), (90_000, 60.0, []), (500, 3.0, [])],
)
def test_a_dense_optimizer_walks_rows_without_a_gradient(
    touched: int, optimizer_s: float, found: list[str]
) -> None:
    seconds = {"forward": 70.0, "backward": 20.0, "optimizer": optimizer_s}
    assert causes(profile(seconds, tables=[table(touched)], parameters=1_600_100)) == found


def test_tables_that_are_few_of_the_parameters_are_not_the_cause() -> None:
    seconds = {"forward": 30.0, "backward": 20.0, "optimizer": 50.0}
    assert causes(profile(seconds, tables=[table(500)], parameters=9_000_000)) == []


@pytest.mark.parametrize(
    ("phase", "cause"),
    [
        ("evaluation", "evaluation_bound"),
        ("checkpoint", "checkpoint_bound"),
        ("loop", "loop_code"),
    ],
)
def test_a_phase_that_takes_a_third_is_a_cause(phase: str, cause: str) -> None:
    rest = {name: seconds for name, seconds in STEP.items() if name != phase}
    assert causes(profile({phase: 60.0, **rest})) == [cause]
    assert causes(profile({phase: 5.0, **rest})) == []


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
    first, *others = find(command(program=[rank]))
    assert (first.cause, others) == (found, [])
    if found == "evaluation_bound":
        assert (first.share, first.places[0].line) == (pytest.approx(0.05 + 0.6 * 0.6), 13)


def test_a_model_that_is_no_module_computes_in_the_loop() -> None:
    assert causes(profile({"loop": 50.0, "backward": 50.0})) == []


@pytest.mark.parametrize(("imports_s", "found"), [(1.0, ["startup_bound"]), (4.0, [])])
def test_preparation_counts_more_than_imports(imports_s: float, found: list[str]) -> None:
    rank = profile(STEP, startup_s=6.0, imports_s=imports_s, elapsed_s=8.0)
    assert causes(rank) == found


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
    assert causes(rank) == found
    if found:
        (startup,) = find(command(program=[rank]))
        assert "imports took 7\u202f% of that" in startup.evidence


def test_a_short_program_of_many_steps_is_judged() -> None:
    short = command(elapsed_s=2.5, program=(profile(STEP, steps=150),))
    assert too_short_to_judge(short) is None
    few = command(elapsed_s=2.5, program=(profile({"forward": 0.5}, steps=90),))
    assert too_short_to_judge(few) is not None


def test_the_hot_line_of_a_short_program_is_one_all_the_same() -> None:
    short = {"elapsed_s": 1.5, "cores": CoreCounts(2.0, 2.0, None)}
    rank = profile({"loop": 1.4}, steps=0, imports_s=0.1)
    got = diagnose_evidence(command(program=(rank,), **short))
    assert [each.cause for each in got.findings] == ["loop_code"]
    got = diagnose_evidence(command(program=(profile({"forward": 0.5}, steps=9),), **short))
    assert [each.cause for each in got.findings] == ["too_short_to_judge"]


@pytest.mark.parametrize(("used", "found"), [(0.12, ["loop_code"]), (0.24, [])])
def test_a_loop_beside_neighbours_is_judged_by_its_own_threads(
    used: float, found: list[str]
) -> None:
    """One thread, or two; the probe's own waits for a core all the time, too."""
    rank = profile({"loop": 100.0}, steps=0, main_cpu_s=12.0, runqueue_s=88.0)
    cores = CoreCounts(2.0, 2.0, used)
    assert causes(rank, cores=cores, runqueue_s=180.0, elapsed_s=100.0) == found


def test_a_program_that_was_ended_among_its_imports_has_no_slow_loop() -> None:
    for imports_s, found in ((9.0, []), (2.0, ["loop_code"])):
        rank = profile({"loop": 10.0}, steps=0, imports_s=imports_s)
        assert causes(rank, cores=TWO_CORES) == found


def test_a_start_up_that_outlasts_the_training() -> None:
    assert causes(profile(STEP, startup_s=80.0, elapsed_s=180.0)) == ["startup_bound"]
    assert causes(profile(STEP, startup_s=20.0, elapsed_s=120.0)) == []


def test_a_start_up_beside_neighbours_is_held_against_the_programs_own_time() -> None:
    slowed = {"startup_s": 60.0, "startup_runqueue_s": 50.0, "elapsed_s": 160.0}
    assert causes(profile(STEP, runqueue_s=80.0, **slowed)) == ["startup_bound"]
    assert causes(profile(STEP, runqueue_s=10.0, **slowed)) == []


def threads(*cpu_s: float) -> list[ProgramThread]:
    return [
        ProgramThread(function="featurise", file="train.py", line=9, cpu_s=each, seen_s=2 * each)
        for each in cpu_s
    ]


@pytest.mark.parametrize(
    ("main_s", "others", "found"),
    [
        (30.0, (35.0, 34.0), ["interpreter_lock"]),
        (95.0, (), []),
        (95.0, (90.0,), []),  # two cores' worth: they do not wait for each other
    ],
)
def test_threads_that_share_one_core(
    main_s: float, others: tuple[float, ...], found: list[str]
) -> None:
    rank = profile(STEP, main_cpu_s=main_s, threads=threads(*others))
    assert causes(rank, cores=TWO_CORES) == found


@pytest.mark.parametrize(
    ("waited_s", "others", "found"),
    [
        (160.0, (6.0, 5.0), ["interpreter_lock"]),
        (0.0, (6.0, 5.0), []),  # nobody kept them from computing more
        (160.0, (65.0, 60.0), []),
    ],
)
def test_threads_that_share_one_core_beside_neighbours(
    waited_s: float, others: tuple[float, ...], found: list[str]
) -> None:
    rank = profile(STEP, main_cpu_s=9.0, threads=threads(*others))
    cores = CoreCounts(2.0, 2.0, 0.2)
    seen = causes(rank, cores=cores, runqueue_s=waited_s, elapsed_s=100.0)
    assert [each for each in seen if each == "interpreter_lock"] == found


def test_training_that_waits_for_a_thread_that_makes_its_batches() -> None:
    """The thread's line is the one to change, not the one that waits."""
    own = {"lines": [line("loop", 3, 1.0)], "waiting": {"loop": 0.95}, "main_cpu_s": 4.0}
    rank = profile({"loop": 90.0, "forward": 10.0}, threads=threads(88.0), **own)
    (found,) = find(command(program=[rank], cores=TWO_CORES))
    assert (found.cause, found.places[0].line) == ("python_input", 9)
    idle = profile({"loop": 90.0, "forward": 10.0}, threads=threads(5.0), **own)
    (found,) = find(command(program=[idle], cores=TWO_CORES))
    assert (found.cause, found.places[0].line) == ("loop_code", 3)


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
    file = tmp_path / "train.py"
    file.write_text(f"{text}\n")
    rank = profile(
        {"loop": 60.0, **INPUT, "input": 0.0}, lines=[line("loop", 1, 1.0, file=str(file))]
    )
    assert causes(rank) == [cause]


def test_a_state_that_is_pickled_is_written_in_two_phases(tmp_path: Path) -> None:
    """Pickling tensors calls torch.save, and the line that writes them does the rest."""
    file = tmp_path / "train.py"
    file.write_text("pickle.dump(state, file)\nos.fsync(file)\nscores = rank(x)\n")
    lines = [line("loop", number, 0.3, file=str(file)) for number in (1, 2, 3)]
    rank = profile(
        {"checkpoint": 5.0, "loop": 30.0, "forward": 30.0, "backward": 35.0}, lines=lines
    )
    (found,) = find(command(program=[rank]))
    assert (found.cause, found.places[0].line) == ("checkpoint_bound", 1)
    assert found.share == pytest.approx(0.05 + 0.6 * 0.3)


@pytest.mark.parametrize(
    ("tensors", "before", "samples", "named"),
    [(0.5, 0.3, 10_000, 1), (0.7, 0.2, 10_000, 3), (0.7, 0.26, 1_000_000, 1)],
)
def test_a_line_that_makes_tensors_takes_samples_of_those_before_it(
    tensors: float, before: float, samples: int, named: int, tmp_path: Path
) -> None:
    file = tmp_path / "train.py"
    file.write_text(
        "points = [turn(x) for x in row]\nangle = draw()\nreturn torch.tensor(points)\n"
    )
    shares = {1: 0.4 * before, 2: 0.6 * before, 3: tensors}
    lines = [line("input", number, share, file=str(file)) for number, share in shares.items()]
    (found,) = find(command(program=[profile(INPUT, lines=lines, samples=samples)]))
    assert found.places[0].line == named


def test_a_hot_function_has_the_line_to_change_before_its_call() -> None:
    """Two calls of one function, whose lines take a little each."""
    called = {"own_share": 0.0, "function": "main"}
    lines = [line("loop", 26, 0.5, **called), line("loop", 27, 0.45, **called)]
    lines += [
        line("loop", at, share, depth=1) for at, share in {18: 0.2, 20: 0.25, 22: 0.2}.items()
    ]
    (found,) = find(command(program=[profile({"loop": 90.0, "forward": 10.0}, lines=lines)]))
    assert found.places[0].line == 20


def test_a_thread_that_ends_its_batches_with_a_tensor(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text("while j in seen[u]:\n    j = draw()\nq.put(torch.tensor(users))\n")
    (busy,) = threads(35.0)
    seen = busy.model_copy(update={"file": str(file), "line": 3, "also": [2, 1]})
    rank = profile(STEP, main_cpu_s=60.0, threads=[seen])
    (found,) = find(command(program=[rank], cores=TWO_CORES))
    assert (found.cause, found.places[0].line) == ("interpreter_lock", 2)


def test_a_rank_whose_core_a_neighbour_held_is_no_straggler() -> None:
    first = profile({"forward": 40.0, "sync": 60.0}, ranks=2)
    late = {"rank": 1, "ranks": 2}
    seconds = {"forward": 98.0, "sync": 2.0}
    assert causes(first, profile(seconds, **late)) == ["straggler"]
    assert causes(first, profile(seconds, runqueue_s=55.0, **late)) == []


@pytest.mark.parametrize(("factor", "verdict"), [(1.0, "healthy"), (0.03, "unknown")])
def test_a_training_ended_by_ctrl_c_is_judged_by_its_steps(factor: float, verdict: str) -> None:
    rank = profile({phase: factor * seconds for phase, seconds in STEP.items()}, steps=200)
    seen = diagnose_evidence(command(program=(rank,), failed="rank 0 failed: exit code 130"))
    assert seen.verdict == verdict
    assert "how it would have ended" in seen.missing[0]


def test_the_own_code_of_one_rank_is_not_all_ranks_own_code() -> None:
    waits = profile({"forward": 10.0, "sync": 90.0}, ranks=2)
    moved = profile({"loop": 85.0, "forward": 10.0, "sync": 5.0}, rank=1, ranks=2)
    assert causes(waits, moved) == ["straggler"]


def test_threads_of_a_large_pool_share_one_core() -> None:
    rank = profile({"loop": 100.0}, main_cpu_s=1.0, threads=threads(*[4.0] * 24))
    assert causes(rank, cores=TWO_CORES)[:1] == ["interpreter_lock"]


def test_threads_of_pools_that_ended_share_one_core() -> None:
    (ended,) = threads(95.0)
    pools = ended.model_copy(update={"threads": 8})
    rank = profile({"loop": 100.0}, main_cpu_s=1.0, threads=[pools])
    assert causes(rank, cores=TWO_CORES)[:1] == ["interpreter_lock"]


def test_a_step_on_one_core_of_four() -> None:
    assert causes(profile(STEP), cores=CoreCounts(4.0, 4.0, 1.0)) == ["serial_step"]


@pytest.mark.parametrize(
    ("threads", "steps", "found"),
    [
        (1, 1000, ["serial_step"]),
        (2, 1000, []),  # torch had them, and the step did not
        (1, 50_000, []),  # 2 ms a step
    ],
)
def test_a_step_of_fewer_threads_than_cores(threads: int, steps: int, found: list[str]) -> None:
    rank = profile(STEP, torch_threads=threads, steps=steps)
    assert causes(rank, cores=TWO_CORES) == found


def test_memory_that_grows_with_the_steps() -> None:
    grown = {"memory_growth_mib": 800.0, "memory_peak_mib": 1000.0}
    assert causes(profile(STEP), **grown) == ["memory_growth"]
    assert causes(profile(STEP, steps=0), **grown) == []


def test_the_line_that_keeps_every_graph_is_named(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text(
        "for x in loader:\n    loss = model(x)\n    loss.backward()\n    losses.append(loss)\n"
    )
    rank = profile(STEP, lines=[line("backward", 3, 1.0, file=str(file))])
    grown = {"memory_growth_mib": 800.0, "memory_peak_mib": 1000.0}
    (found,) = find(command(program=[rank], **grown))
    assert [each.source for each in found.places] == ["losses.append(loss)"]


def test_the_deepest_hot_line_is_the_one_to_change(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text("a\nb\nc = list(set(range(n)) - seen)\nd\n")
    where = {"file": str(file)}
    rank = profile(
        INPUT,
        lines=[
            line("input", 1, 1.0, own_share=0.01, depth=0, **where),
            line("input", 3, 0.6, own_share=0.6, depth=1, **where),
            line("input", 4, 0.3, own_share=0.3, depth=2, **where),
        ],
    )
    (found,) = find(command(program=[rank], cores=TWO_CORES))
    assert [(each.line, round(each.share, 2)) for each in found.places] == [(3, 0.36), (4, 0.18)]
    assert found.places[0].source == "c = list(set(range(n)) - seen)"


@pytest.mark.parametrize(
    ("source", "remedy"),
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
    source: str, remedy: str, tmp_path: Path
) -> None:
    file = tmp_path / "train.py"
    file.write_text(f"{source}\nfor batch in DataLoader(data):\n    pass\n")
    lines = [
        line("input", 1, 0.8, file=str(file), function="__getitem__"),
        line("input", 2, 0.2, file=str(file), function="main", outside=True),
    ]
    rank = profile(INPUT, lines=lines)
    (found,) = find(command(program=[rank], cores=CoreCounts(4.0, 4.0, 1.0)))
    assert remedy in found.remedy


def test_a_line_inside_the_loader_stands_before_the_loop() -> None:
    rank = profile(
        INPUT,
        lines=[
            line("input", 30, 0.6, outside=True),
            line("input", 8, 0.35, depth=0),
        ],
    )
    (found,) = find(command(program=[rank], cores=TWO_CORES))
    assert [each.line for each in found.places] == [8, 30]


def test_workers_are_blamed_where_the_loader_is_made(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text("loader = DataLoader(\n    data, num_workers=8)\nfor x in loader:\n    pass\n")
    rank = profile(
        INPUT,
        loaders=[loader(workers=8)],
        lines=[line("input", 3, 1.0, file=str(file), outside=True)],
    )
    (found,) = find(command(program=[rank, worker(0.1)]))
    assert (found.cause, found.places[0].line) == ("worker_overhead", 1)


def test_gains_are_of_the_time_that_the_causes_before_left() -> None:
    seconds = {"input": 60.0, "forward": 5.0, "backward": 5.0, "optimizer": 30.0}
    rank = profile(seconds, tables=[table(500)], parameters=1_600_000)
    seen = command(program=(rank,), cores=CoreCounts(1.0, 1.0, 1.0))
    first, second = find(seen)
    assert (first.cause, second.cause) == ("python_input", "dense_optimizer")
    # 0.04 of the input stays, and of 30 + 5 % for 99.5 % of the rows their fourfold share.
    assert first.gain.factor == pytest.approx(1 / (1 - 0.6 * 0.96))
    assert second.gain.factor == pytest.approx(1 / (1 - 0.35 * 0.995 * 0.98))
    text = "\n".join(text_of(seen, diagnose_evidence(seen)))
    both = 1 / (1 - 0.6 * 0.96 - 0.35 * 0.995 * 0.98)
    assert f"Expected {first.gain.factor:.1f}x." in text
    assert f"{both:.1f}x with cause" in " ".join(text.split())


def test_cores_whose_threads_only_spin_are_not_asked_for() -> None:
    """Both cores are busy, but in 80 of 100 s one thread alone makes samples."""
    seconds = {"input": 80.0, "forward": 10.0, "backward": 10.0}
    for cpu_s, spins in ((190.0, True), (115.0, False)):
        used = CoreCounts(2.0, 2.0, cpu_s / 100)
        seen = command(program=(profile(seconds, cpu_s=cpu_s),), cores=used)
        text = " ".join(" ".join(text_of(seen, diagnose_evidence(seen))).split())
        assert "Ask for 1 core as it is now" in text
        # The second thread computes for 20 s at the most.
        assert ("0.7 of it by threads of torch that spin" in text) == spins
    busy = command(program=(profile(STEP, cpu_s=190.0),), cores=CoreCounts(2.0, 2.0, 1.9))
    assert "Ask for   2 cores" in "\n".join(text_of(busy, diagnose_evidence(busy)))


def test_array_operations_on_one_core_of_two_are_a_serial_step() -> None:
    rank = profile({"loop": 100.0}, steps=0, moved=0.1, lines=[line("loop", 3, 1.0)])
    seen = command(program=(rank,), cores=TWO_CORES)
    (found,) = diagnose_evidence(seen).findings
    assert (found.cause, found.places[0].line) == ("serial_step", 3)
    mixed = command(program=(rank.model_copy(update={"moved": 0.5}),), cores=TWO_CORES)
    assert [each.cause for each in diagnose_evidence(mixed).findings] == ["loop_code"]


@pytest.mark.parametrize(("moved", "cores"), [(0.1, 2), (0.9, 1)])
def test_a_busy_program_without_steps_interprets_or_computes(moved: float, cores: int) -> None:
    """Threads of BLAS use both cores either way."""
    rank = profile({"loop": 100.0}, steps=0, cpu_s=190.0, moved=moved)
    seen = command(program=(rank,), cores=CoreCounts(2.0, 2.0, 1.9))
    found = diagnose_evidence(seen)
    named = [each.cause for each in found.findings]
    assert named == (["loop_code"] if moved >= 0.35 else [])
    text = " ".join(" ".join(text_of(seen, found)).split())
    assert f"Ask for {cores} core" in text
    assert "0.9 of it by threads of a library" in text
    few = command(program=(profile({"loop": 100.0}, steps=0, cpu_s=115.0),))
    assert "of a library" not in " ".join(text_of(few, diagnose_evidence(few)))


def test_the_text_fits_a_terminal() -> None:
    rank = profile(
        INPUT,
        lines=[line("input", 3, 0.9, function="a_function_of_a_rather_long_name" * 3)],
        tables=[table(500)],
        parameters=1_600_100,
    )
    seen = command(program=(rank,))
    text = text_of(seen, diagnose_evidence(seen))
    assert max(map(len, text)) <= 80
    assert len(text) <= 25


@pytest.mark.parametrize(("threads", "advised"), [(2, True), (1, False)])
def test_threads_that_neighbours_hold_up_are_better_fewer(threads: int, advised: bool) -> None:
    rank = profile(STEP, torch_threads=threads, runqueue_s=20.0)
    held = {"others_cores": 1.2, "runqueue_s": 120.0, "runnable": 2.0, "elapsed_s": 100.0}
    found = diagnose_evidence(command(program=(rank,), cores=CoreCounts(2.0, 2.0, 0.8), **held))
    assert found.primary is not None
    assert found.primary.cause == "neighbour_load"
    assert ("--with threads=1" in found.primary.remedy) is advised
