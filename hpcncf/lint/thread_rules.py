"""Rules for threads and workers: how many there are, and how many cores they have."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from hpcncf.batch.edits import Edit
from hpcncf.batch.launchers import ExpandedWord, Stage
from hpcncf.batch.request import parse_array
from hpcncf.batch.script import Assignment, Start
from hpcncf.batch.shell import Word
from hpcncf.lint.batch_context import FARMING, LAUNCHERS, SHORT, Context, find, options_of
from hpcncf.lint.rules import THREAD_VARIABLES, Complaint, too_many_threads, too_many_workers
from hpcncf.text import pluralize

COUNTS_NODE: Final = re.compile(
    r"nproc\s+--all|/proc/cpuinfo|\blscpu\b|getconf\s+_NPROCESSORS|sysctl\b|SLURM_CPUS_ON_NODE"
    r"|SLURM_JOB_CPUS_PER_NODE|(?<!joblib\.)(?<!loky\.)(?<!process_)\bcpu_count\(\)"
)
COUNTS_CORES: Final = re.compile(r"\bnproc\b")
DEEPEST_VARIABLE: Final = 3
JOB_COUNTS: Final = frozenset({"SLURM_CPUS_ON_NODE", "SLURM_JOB_CPUS_PER_NODE"})
WORKER_OPTIONS: Final = frozenset(
    {"num-workers", "workers", "dataloader-num-workers", "loader-workers", "n-workers", "nworkers"}
)
# Each is a process with threads of its own; of workers only where no DataLoader is likely, whose
# workers run one thread each (torch.set_num_threads(1) in torch's worker loop).
PROCESS_OPTIONS: Final = re.compile(r"(?:n-?|num-?)?(?:jobs|procs?|processes)")
OTHER_WORKERS: Final = frozenset({"workers", "n-workers", "nworkers"})
THREAD_OPTIONS: Final = re.compile(
    r"(?:num-?|n-?)?threads?|nthreads?|n-jobs|njobs|num-threads|num-cpus|n-cpus|cpus|ncores|cores"
)
BESIDE: Final = re.compile(r"jobs|workers|proc|threads|cpus|cores|parallel|^j$|^n$|^p$|^t$")
INTERPRETED: Final = re.compile(
    r"\.(?:sh|bash|py|pl|R|r|jl)$|^(?:Rscript|R|julia|perl|java|matlab)$"
)
TRAINS: Final = re.compile(
    r"train|fit|learn|torch|ncf|model|tune|sweep|grid|search|recsys|embed|matrix|factor|als|bpr"
)
FIXED_BY_SCHEDULER: Final = {
    "slurm": "$SLURM_CPUS_PER_TASK",
    "lsf": "$LSB_DJOB_NUMPROC",
    "pbs": "$NCPUS",
    "sge": "$NSLOTS",
}


def check_threads(context: Context) -> Iterator[Complaint]:
    for assigned in context.script.assigned:
        if assigned.name in THREAD_VARIABLES:
            yield from _thread_variable(context, assigned)
    alone = _runs_alone(context)
    # Chunks of PBS on several nodes are another rule's.
    has_one_node = context.is_slurm or (context.request.nodes or 1) == 1
    cores_of_job = context.request.cores if has_one_node else None
    array = parse_array(context.request.array or "")
    parts = array[0] if array else 0  # `--njobs 64` of an array of 64 is their number
    for start, stage in context.pythons:
        for option in options_of(stage):
            value = option.value
            if value is None or context.script.scheduler is None:
                continue
            if counted := _counts_too_much(context, value, start):
                yield find("threads-of-node", option.line, counted=counted, mend=_mend(context))
            if value.number is None:
                continue
            if option.name in WORKER_OPTIONS:
                cores = _cores_of_rank(context, start) if has_one_node else None
                if cores is not None and (alone or cores > 1):
                    yield from too_many_workers(option.line, value.number, cores)
            elif (
                THREAD_OPTIONS.fullmatch(option.name)
                and alone
                and not value.origins
                and value.number != parts
            ):
                mend = _mend(context).lstrip("$")
                yield from too_many_threads(option.line, value.number, cores_of_job, mend)
        if alone and has_one_node:
            yield from _processes_of_option(context, start, stage)
        yield from _of_program(context, start, stage)
    yield from _omp_of_chunk(context)
    yield from _ranks_above_cores(context)
    yield from _too_few(context)
    yield from _too_few_compiled(context)
    yield from _several_processes(context)


def _processes_of_option(context: Context, start: Start, stage: Stage) -> Iterator[Complaint]:
    """Find `--n-jobs 8` beside `OMP_NUM_THREADS=8`: so many processes with so many threads."""
    cores = context.request.cores
    given = {name: start.variables[name] for name in THREAD_VARIABLES if name in start.variables}
    counts = [int(each.text) for each in given.values() if each.text and each.text.isdigit()]
    if cores is None or not counts or not 1 < max(counts) <= cores or start.stage(*LAUNCHERS):
        return
    for option in options_of(stage):
        processes = option.value.number if option.value is not None else None
        is_worker = option.name in OTHER_WORKERS and not context.request.has_gpus
        if processes is None or not (is_worker or PROCESS_OPTIONS.fullmatch(option.name)):
            continue
        if not 1 < processes <= cores or processes * max(counts) <= cores:
            continue
        fitting = max(cores // processes, 1)
        edits = [
            Edit(each.line, (changed,))
            for each in context.script.assigned
            if each.name in given and each.value.number and each.line <= start.line
            for text in (context.line(each.line),)
            for changed in (re.sub(rf"\b({each.name}=)\S+", rf"\g<1>{fitting}", text, count=1),)
            if changed != text and not each.command.is_conditional
        ]
        is_whole = len(edits) == len(given)
        yield find(
            "processes-times-threads", option.line, tuple(edits) if is_whole else (), is_worker,
            processes=processes, threads=pluralize(max(counts), "thread"),
            cores=pluralize(cores, "core"), fitting=fitting,
        )  # fmt: skip
        return


def _omp_of_chunk(context: Context) -> Iterator[Complaint]:
    """Find chunks of PBS with more threads (`ompthreads`) than cores for each rank."""
    cores = context.request.cores
    if context.script.scheduler != "pbs" or cores is None:
        return
    for directive in context.script.directives:
        found = re.search(r"\bompthreads=(\d{1,4})\b", directive.text)
        if not found or int(found[1]) <= cores or "+" in directive.text:
            continue
        mended = f"{directive.text[: found.start(1)]}{cores}{directive.text[found.end(1) :]}"
        yield find(
            "too-many-threads", directive.line, (Edit(directive.line, (mended,)),),
            threads=int(found[1]), cores=pluralize(cores, "core"), mend=cores,
        )  # fmt: skip


def _of_program(context: Context, start: Start, stage: Stage) -> Iterator[Complaint]:
    """Find wrong numbers of cores and workers in the program, if the script sets none."""
    facts = context.facts(stage)
    if facts is None or context.script.scheduler is None:
        return
    counted, at = facts.counts_node, facts.counts_node_in
    if not counted and not context.is_slurm:
        counted, at = facts.counts_all, facts.counts_all_in
    if counted and not context.request.is_exclusive:
        where = f"{counted} in {stage.script}" + (f", line {at}," if at else "")
        mend = "len(os.sched_getaffinity(0))"
        if not context.is_slurm:  # LSF, PBS and Grid Engine often leave all cores to a job
            mend = f'int(os.environ["{_mend(context).lstrip("$")}"])'
        yield find("threads-of-node", start.line, counted=where, mend=mend)
    said = any(option.name in WORKER_OPTIONS for option in options_of(stage))
    cores = _cores_of_rank(context, start)
    known = context.request.cores_per_task is not None or not context.is_slurm
    if facts.pool is not None and known and cores is not None and facts.pool > cores:
        yield find(
            "pool-too-large", start.line, where=f"{stage.script}, line {facts.pool_in},",
            processes=facts.pool, cores=pluralize(cores, "core"), mend=_mend(context),
        )  # fmt: skip
    if facts.workers is not None and known and not said:
        yield from too_many_workers(start.line, facts.workers, cores)


def _ranks_above_cores(context: Context) -> Iterator[Complaint]:
    """Find torchrun with more ranks than the task has cores."""
    cores = context.request.cores
    if cores is None or context.request.is_exclusive or context.request.tasks_on_node != 1:
        return
    for start in context.script.starts:
        launcher = start.stage("torchrun")
        ranks = launcher.number("nproc-per-node") if launcher else None
        if ranks is not None and ranks > cores and not start.stage("mpirun"):
            yield find(
                "ranks-above-cores", start.line, ranks=pluralize(ranks, "rank"),
                cores=pluralize(cores, "core"), ranks_number=ranks,
            )  # fmt: skip


def _runs_alone(context: Context) -> bool:
    """Return whether the job is a single task, or has slots for a single process."""
    return not context.is_slurm or context.request.task_count == 1


def _cores_of_rank(context: Context, start: Start) -> int | None:
    """Return the number of cores for each rank that a launcher starts; None if unknown."""
    cores = context.request.cores
    launcher = start.stage("torchrun", "accelerate")
    if launcher is None or cores is None:
        return cores
    processes = launcher.number("nproc-per-node", "num-processes")
    return max(cores // processes, 1) if processes else None


def _mend(context: Context) -> str:
    """Return the environment variable that holds the number of cores of a rank."""
    return FIXED_BY_SCHEDULER[context.script.scheduler or "slurm"]


def _thread_variable(context: Context, assigned: Assignment) -> Iterator[Complaint]:
    request = context.request
    line, value = assigned.line, assigned.value
    if context.script.scheduler is None:
        return
    text = context.line(line)
    counted = _counts_too_much(context, value, None)
    if counted and not assigned.in_task:
        mend = _mend(context)
        mended = re.sub(
            rf"({assigned.name}=)(\S*\$\([^)]*\)\S*|`[^`]*`|\S+)", rf"\g<1>{mend}", text, count=1
        )
        edits = (Edit(line, (mended,)),) if mended != text else ()
        yield find("threads-of-node", line, edits, counted=counted, mend=mend)
        return
    if value.number is None or "unset" in text:
        return
    cores = request.cores_per_task
    if cores is None and (not context.is_slurm or request.task_count == 1):
        gives_cores = context.is_slurm and request.has_gpus and "ntasks" not in request.options
        cores = None if gives_cores else request.cores  # DefCpuPerGPU, of which nothing is known
    yield from too_many_threads(line, value.number, cores, _mend(context).lstrip("$"))


def _counts_too_much(context: Context, value: ExpandedWord, start: Start | None) -> str:
    """Return the command that counts more cores than a rank has; empty if none does."""
    request = context.request
    commands = _commands_in(context, value.word)
    counts_node = next(filter(None, map(COUNTS_NODE.search, commands)), None)
    if not counts_node and "nproc()" not in value.origins and not value.origins & JOB_COUNTS:
        return ""
    several = context.is_slurm and _ranks_on_node(context) > 1
    if value.origins & JOB_COUNTS:
        return "SLURM_CPUS_ON_NODE" if several else ""
    if context.is_slurm:
        if several:
            return "nproc"
        is_shared = not request.is_exclusive
        return counts_node[0] if counts_node and is_shared else ""
    if request.is_exclusive or (start is not None and start.stage("mpirun")):
        return ""
    return counts_node[0] if counts_node else "nproc"


def _commands_in(context: Context, word: Word, depth: int = 0) -> list[str]:
    """Return the commands whose output a word contains, also by way of variables."""
    found: list[str] = []
    for part in word.parts:
        if part.kind == "command":
            found.append(part.text)
        elif part.kind in ("variable", "arithmetic") and depth < DEEPEST_VARIABLE:
            names = {part.text}
            if part.kind == "arithmetic":
                names = set(re.findall(r"[A-Za-z_]\w*", part.text))
            for name in sorted(names):
                before = next(
                    (
                        each.value.word
                        for each in reversed(context.script.assigned)
                        if each.name == name and each.line <= word.line
                    ),
                    None,
                )
                if before is not None and before is not word:
                    found += _commands_in(context, before, depth + 1)
    return found


def _ranks_on_node(context: Context) -> int:
    """Return the largest number of ranks that a launcher starts on one node."""
    most = 1
    for start in context.script.starts:
        srun = start.stage("srun")
        computes = start.stages[-1].kind in ("python", "shell")
        if srun is not None and computes and not context.is_unknown_step(srun):
            most = max(most, context.step_tasks_on_node(srun))
        mpirun = start.stage("mpirun")
        if mpirun is not None:
            most = max(most, mpirun.number("np", "n") or context.request.task_count)
        launcher = start.stage("torchrun")
        if launcher is not None:
            most = max(most, launcher.number("nproc-per-node") or 1)
    return most


def _too_few(context: Context) -> Iterator[Complaint]:
    """Find programs that run one thread on many cores."""
    cores = context.request.cores
    if cores is None or cores < 4 or not _runs_alone(context) or context.request.has_gpus:
        return
    if len(context.pythons) != 1 or context.launches:
        return
    start, stage = context.pythons[0]
    if start.command.background or start.command.loops or start.stage(*LAUNCHERS):
        return
    if any(BESIDE.search(option.name) for option in options_of(stage)):
        return
    facts = context.facts(stage)
    if facts is not None and facts.starts_processes:
        return
    yield from _threads_below(context, start, cores, is_note=False)


def _too_few_compiled(context: Context) -> Iterator[Complaint]:
    """Find `OMP_NUM_THREADS=4` for a compiled program on 16 cores; some cannot use more: a note."""
    request = context.request
    cores = request.cores
    if cores is None or cores < 4 or request.has_gpus or request.task_count != 1:
        return
    started = [each for each in context.script.starts if each.stages[-1].name not in SHORT]
    if len(started) != 1 or (request.nodes or 1) > 1 or request.resources.get("mpiprocs"):
        return
    (start,) = started
    last = start.stages[-1]
    typed = last.place.word.text if last.place else ""
    srun = start.stage("srun")
    if last.kind != "program" or not ("/" in typed or srun) or INTERPRETED.search(last.name):
        return
    if start.command.background or start.command.loops or start.stage(*LAUNCHERS[1:], "wrapper"):
        return
    if srun is not None and srun.has("cpus-per-task", "ntasks", "ntasks-per-node", "exact"):
        return
    if last.name in FARMING or any(BESIDE.search(option.name) for option in options_of(last)):
        return
    yield from _threads_below(context, start, cores, is_note=True)


def _threads_below(
    context: Context, start: Start, cores: int, is_note: bool
) -> Iterator[Complaint]:
    """Find literal numbers of threads of at most half the cores."""
    for assigned in context.script.assigned:
        number = assigned.value.number
        if assigned.name == "OMP_NUM_THREADS" and number and number * 2 <= cores:
            if assigned.value.origins or assigned.line > start.line:
                continue
            text = context.line(assigned.line)
            mend = _mend(context)
            mended = text.replace(f"OMP_NUM_THREADS={number}", f"OMP_NUM_THREADS={mend}")
            edits = (Edit(assigned.line, (mended,)),) if mended != text else ()
            yield find(
                "too-few-threads", assigned.line, edits, is_note,
                threads=pluralize(number, "thread"), cores=cores,
            )  # fmt: skip


def _several_processes(context: Context) -> Iterator[Complaint]:
    """Find parallel programs of which each starts as many threads as the job has cores."""
    cores = context.request.cores
    if cores is None or cores < 2 or not _runs_alone(context):
        return
    beside = [
        (start, stage)
        for start, stage in context.plain_pythons
        if start.command.background and not start.in_task
    ]
    if not beside:
        return
    processes = 0
    for start, _ in beside:
        loops = start.command.loops
        turns = [len(block.values) for block in loops if block.kind == "for"]
        literal = all(word.literal for block in loops for word in block.values)
        if loops and (not turns or not literal):
            return  # nobody knows how many
        count = 1
        for turn in turns:
            count *= max(turn, 1)
        processes += count
    start, stage = beside[0]
    facts = context.facts(stage)
    is_heavy = facts.computes if facts else TRAINS.search(stage.script.lower()) is not None
    threads = next(
        (start.variables[name] for name in THREAD_VARIABLES if name in start.variables), None
    )
    if threads is None:
        has_own = any(THREAD_OPTIONS.fullmatch(option.name) for option in options_of(stage))
        if processes < 3 or not is_heavy or has_own or start.stage("wrapper"):
            return
        each = cores
    elif threads.text and threads.text.isdigit():
        each = int(threads.text)
    else:
        return
    if processes * each > 2 * cores or (threads is not None and processes * each > 1.5 * cores):
        fitting = max(cores // processes, 1)
        text = context.line(start.line)
        mended = re.sub(r"^(\s*)", rf"\g<1>OMP_NUM_THREADS={fitting} ", text, count=1)
        edits = (Edit(start.line, (mended,)),) if threads is None else ()
        yield find(
            "processes-times-threads", start.line, edits, processes=processes,
            threads=pluralize(each, "thread"), cores=pluralize(cores, "core"), fitting=fitting,
        )  # fmt: skip
