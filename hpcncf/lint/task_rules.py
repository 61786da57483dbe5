"""Rules for tasks, slots and processes: what is requested against what the script starts."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from hpcncf.batch.edits import Edit
from hpcncf.batch.launchers import Stage
from hpcncf.batch.script import Start
from hpcncf.lint.batch_context import INTERACTIVE, SHORT, Context, find, replace_value
from hpcncf.lint.rules import Complaint
from hpcncf.text import pluralize

REACHES_NODES: Final = frozenset(
    {"ssh", "pdsh", "clush", "parallel", "ray", "dask", "blaunch", "pbsdsh"}
)
PLAIN_COMMANDS: Final = frozenset(
    {"hostname", "echo", "env", "nvidia-smi", "date", "lscpu", "nproc"}
)
SHARED_ENVIRONMENTS: Final = re.compile(r"(?:mpi|orte|impi|mvapich|rr|fill|distributed|multinode)")
ONE_HOST_ENVIRONMENTS: Final = re.compile(r"(?:smp|omp|openmp|shm|thread|single|local|shared|make)")


def check_tasks(context: Context) -> Iterator[Complaint]:
    if context.is_slurm:
        yield from _single_process(context)
        yield from _srun(context)
    yield from _nodes_without_launcher(context)
    yield from _mpirun(context)
    yield from _slots(context)
    yield from _background(context)


def _single_process(context: Context) -> Iterator[Complaint]:
    """Find requests for several tasks of one node, while the script starts one process."""
    request = context.request
    tasks = request.task_count
    if tasks < 2 or context.launches or context.nodes > 1:
        return
    started = [
        (start, stage) for start, stage in context.plain_pythons if not start.command.background
    ]
    for start, stage in started:
        if context.may_be_ranks(stage):
            yield find("ranks-without-launcher", start.line, tasks=tasks)
        else:
            yield find(
                "tasks-for-threads", start.line, one_task(context, tasks), tasks=tasks,
                cores=tasks * (request.cores_per_task or 1),
            )  # fmt: skip
    if started:
        return
    for start in context.script.starts:
        if start.stages[-1].name in INTERACTIVE:
            yield find(
                "tasks-for-threads", start.line, one_task(context, tasks), tasks=tasks,
                cores=tasks * (request.cores_per_task or 1),
            )  # fmt: skip


def one_task(context: Context, tasks: int) -> tuple[Edit, ...]:
    """Return edits that request one task with all cores in place of several tasks."""
    request = context.request
    option = request.options.get("ntasks") or request.options.get("ntasks-per-node")
    if option is None or not option.line:
        return ()
    text = context.line(option.line)
    cores = tasks * (request.cores_per_task or 1)
    name = "ntasks" if option.name == "ntasks" else "ntasks-per-node"
    edits = [Edit(option.line, (replace_value(text, option, "1"),))]
    given = request.options.get("cpus-per-task")
    if given is not None:
        changed = replace_value(context.line(given.line), given, str(cores))
        if given.line == option.line:
            return ()
        edits.append(Edit(given.line, (changed,)))
    else:
        new = (edits[0].new[0], f"#SBATCH --cpus-per-task={cores}")
        edits[0] = Edit(option.line, new)
    both = request.options.get("ntasks-per-node") if name == "ntasks" else None
    if both is not None and both.line != option.line:
        edits.append(Edit(both.line, (replace_value(context.line(both.line), both, "1"),)))
    return tuple(edits)


def _nodes_without_launcher(context: Context) -> Iterator[Complaint]:
    """Find requests for several nodes, while the script starts processes on one only."""
    if context.nodes < 2 or context.request.resources.get("place") == "pack":
        return
    if any(
        start.stage("srun", "mpirun") or _goes_elsewhere(start) for start in context.script.starts
    ):
        return
    pythons = {id(start) for start, _ in context.pythons}
    means = {"slurm": "srun or mpirun", "lsf": "mpirun or blaunch", "pbs": "mpiexec or pbsdsh"}
    for start in context.script.starts:
        launcher = start.stage("torchrun", "accelerate", "deepspeed")
        if launcher is None and id(start) not in pythons:
            continue
        if launcher and launcher.kind == "deepspeed":
            continue  # it starts other nodes by ssh
        # Of a single process in slots of LSF, PBS and Grid Engine, `_slots` says more.
        if launcher is None and (context.launches or not context.is_slurm):
            continue
        yield find(
            "one-task-for-nodes", start.line, nodes=context.nodes,
            launcher=means.get(context.request.scheduler, "mpirun"),
        )  # fmt: skip


def _goes_elsewhere(start: Start) -> bool:
    """Return whether a command may reach other nodes: ssh, for example, or a user's script."""
    last = start.stages[-1]
    if last.name in REACHES_NODES:
        return True
    is_own = last.kind in ("shell", "program") and last.name.endswith((".sh", "bash"))
    return is_own and bool(last.script or last.kind == "program")


def _computes(start: Start) -> bool:
    """Return whether a step does the job's work, and is not a plain or interactive command."""
    last = start.stages[-1]
    return last.name not in PLAIN_COMMANDS and not any(
        stage.kind == "srun" and stage.has("pty") for stage in start.chain
    )


def _srun(context: Context) -> Iterator[Complaint]:
    request = context.request
    tasks = request.task_count
    for start in context.script.starts:
        srun = next((stage for stage in start.stages if stage.kind == "srun"), None)
        if srun is None or not _computes(start):
            continue
        line = start.line
        yield from _too_large(context, srun, line)
        if context.is_unknown_step(srun):
            continue
        step = context.step_tasks(srun)
        on_node = context.step_tasks_on_node(srun)
        torchrun = start.stage("torchrun", "accelerate")
        if torchrun and on_node > 1 and torchrun.get("nproc-per-node", "num-processes"):
            processes = torchrun.number("nproc-per-node", "num-processes")
            yield find(
                "torchrun-per-task", line, _one_task_per_node(context), tasks=on_node,
                processes=processes * on_node if processes else "all",
            )  # fmt: skip
        in_background = start.command.background
        trains = start.python is not None or start.stage("torchrun", "accelerate", "deepspeed")
        needs_cores = (
            bool(trains)
            and (request.cores_per_task or 1) > 1
            and not _passes_cores(srun, start)
            and not context.is_heterogeneous
        )
        if start.command.loops and in_background and tasks > 1 and not srun.has("ntasks"):
            if not srun.has("nodes", "ntasks-per-node"):
                cores = " --cpus-per-task=$SLURM_CPUS_PER_TASK" if needs_cores else ""
                edits = _add_to_srun(context, start, f"--ntasks=1{cores} --exact")
                yield find("srun-in-loop", line, edits, tasks=tasks)
                continue
        elif in_background and step < tasks and tasks > 1:
            yield from _waiting_steps(context, start, srun)
        elif start.python and step > 1 and not torchrun:
            facts = context.facts(start.python)
            if facts is not None and not facts.is_distributed:
                yield find("copies-by-srun", line, tasks=step)
        if needs_cores:
            loses = on_node > 1 or srun.has("exact", "exclusive") or _binds(srun)
            if loses:
                edits = _add_to_srun(context, start, "--cpus-per-task=$SLURM_CPUS_PER_TASK")
                yield find("srun-without-cores", line, edits, cores=request.cores_per_task)
    yield from _idle_tasks(context)


def _passes_cores(srun: Stage, start: Start) -> bool:
    return srun.has("cpus-per-task", "cpus-per-gpu") or "SRUN_CPUS_PER_TASK" in start.variables


def _binds(srun: Stage) -> bool:
    binding = srun.get("cpu-bind")
    return binding is not None and re.search(r"core|thread|rank", binding.shown) is not None


def _add_to_srun(context: Context, start: Start, options: str) -> tuple[Edit, ...]:
    """Return an edit that adds options after `srun`; empty if the line has no `srun`."""
    text = context.line(start.line)
    changed = re.sub(r"\bsrun\b", lambda _: f"srun {options}", text, count=1)
    return (Edit(start.line, (changed,)),) if changed != text else ()


def _one_task_per_node(context: Context) -> tuple[Edit, ...]:
    request = context.request
    option = request.options.get("ntasks-per-node") or request.options.get("ntasks")
    if option is None:
        return ()
    on_node = request.tasks_on_node or 1
    value = "1" if option.name == "ntasks-per-node" else str(context.nodes)
    edits = [Edit(option.line, (replace_value(context.line(option.line), option, value),))]
    cores = request.options.get("cpus-per-task")
    if cores is not None and cores.line != option.line:
        all_cores = str((request.cores_per_task or 1) * on_node)
        text = replace_value(context.line(cores.line), cores, all_cores)
        edits.append(Edit(cores.line, (text,)))
    return tuple(edits)


def _too_large(context: Context, srun: Stage, line: int) -> Iterator[Complaint]:
    """Find steps that request more processors than the job has.

    Hardware threads are counted.
    """
    request = context.request
    if request.is_exclusive or not request.asks_for_cores or srun.has("overcommit", "jobid"):
        return
    if {"cpus-per-gpu", "overcommit"} & set(request.options):
        return
    if request.has_gpus and not {"cpus-per-task", "ntasks"} & set(request.options):
        return  # sites give cores with a GPU (DefCpuPerGPU)
    tasks, cores = srun.number("ntasks"), srun.number("cpus-per-task")
    if tasks is None and cores is None:
        return
    allocated = request.task_count * (request.cores_per_task or 1)
    needed = (tasks or 1) * (cores or 1)
    if needed > 2 * allocated and "ntasks-per-gpu" not in request.options:
        yield find("step-too-large", line, needed=needed, allocated=pluralize(allocated, "core"))


def _waiting_steps(context: Context, start: Start, srun: Stage) -> Iterator[Complaint]:
    """Find parallel steps that Slurm would start one after another."""
    if srun.has("nodelist", "relative", "exclude") or srun.number("ntasks") == context.nodes > 1:
        return  # each on nodes of its own
    on_node = context.request.tasks_on_node
    if (on_node or 2) < 2:
        return
    nodes = srun.number("nodes")
    if nodes and nodes < context.nodes and on_node and context.step_tasks(srun) >= nodes * on_node:
        return  # it fills nodes of its own
    shares_cores = srun.has("exact", "exclusive", "overlap", "cpus-per-task", "cpus-per-gpu")
    memory = context.request.options.get("mem")
    takes_all_memory = (
        memory is not None
        and memory.value != "0"
        and not srun.has("mem", "mem-per-cpu", "mem-per-gpu", "overlap")
    )
    if shares_cores and not takes_all_memory:
        return
    what = "memory" if shares_cores else "cores"
    option = "--mem-per-cpu=..." if shares_cores else "--exact"
    edits = () if shares_cores else _add_to_srun(context, start, option)
    yield find("steps-wait", start.line, edits, what=what, option=option)


def _idle_tasks(context: Context) -> Iterator[Complaint]:
    """Find jobs whose largest launch in the foreground uses fewer tasks than requested."""
    tasks = context.request.task_count
    launched = [
        (start, stage)
        for start in context.script.starts
        for stage in start.stages[:1]
        if stage.kind in ("srun", "mpirun") and _computes(start)
    ]
    if tasks < 2 or not launched or "overcommit" in context.request.options:
        return
    used = [_tasks_of(context, start, stage) for start, stage in launched]
    if any(each is None for each in used) or any(start.command.background for start, _ in launched):
        return
    most = max(each for each in used if each is not None)
    start, stage = launched[0]
    is_hybrid = stage.has("map-by", "ppn", "npernode", "cpus-per-task", "bind-to", "cpus-per-proc")
    threads = start.variables.get("OMP_NUM_THREADS")
    has_threads = threads is not None and threads.text != "1"
    if most < tasks and not is_hybrid and not has_threads:
        yield find("idle-tasks", start.line, used=most, tasks=tasks)


def _tasks_of(context: Context, start: Start, stage: Stage) -> int | None:
    if start.command.loops:
        return None
    if stage.kind == "srun":
        return None if context.is_unknown_step(stage) else context.step_tasks(stage)
    return stage.number("np", "n", "c")


def _mpirun(context: Context) -> Iterator[Complaint]:
    """Find calls of mpirun with more ranks than the job gives Open MPI slots."""
    request, scheduler = context.request, context.script.scheduler
    tasks = request.task_count
    if scheduler == "slurm":
        if request.tasks is None and (request.is_exclusive or not request.asks_for_cores):
            return
    elif scheduler == "pbs":
        yield from _ranks_above_chunks(context)
        return
    elif scheduler not in ("lsf", "sge") or request.tasks is None or request.is_exclusive:
        return
    for start in context.script.starts:
        stage = next((each for each in start.stages if each.kind == "mpirun"), None)
        if stage is None or stage.name not in ("mpirun", "mpiexec", "orterun", "prun"):
            continue
        hosts = ("host", "H", "hostfile", "machinefile", "f", "oversubscribe", "use-hwthread-cpus")
        mapped = stage.get("map-by")
        if stage.has(*hosts) or (mapped and "oversubscribe" in mapped.shown.lower()):
            continue
        ranks = stage.number("np", "n")
        if ranks is not None and ranks > tasks:
            what, mend = "task of Slurm", f"--ntasks={ranks}"
            edits = _more_tasks(context, ranks) if scheduler == "slurm" else ()
            if scheduler != "slurm":
                name = request.resources.get("pe", "")
                what, mend = (
                    "slot of the job",
                    f"-n {ranks}" if scheduler == "lsf" else f"-pe {name} {ranks}",
                )
            yield find("mpirun-slots", start.line, edits, ranks=ranks, what=what, mend=mend,
                       tasks=pluralize(tasks, "slot"))  # fmt: skip


def _ranks_above_chunks(context: Context) -> Iterator[Complaint]:
    """Find more ranks than the cores of all chunks; up to these, it depends on Open MPI's build."""
    request = context.request
    given = request.resources
    each = max(
        request.cores_per_task or 0,
        int(digits) if (digits := given.get("mpiprocs", "")).isdigit() else 0,
    )
    has_several_kinds = any(
        "+" in (option.value or "")
        for directive in context.script.directives
        for option in directive.options
        if option.name == "l"
    )
    if not each or not request.nodes or request.is_exclusive or has_several_kinds:
        return
    for start in context.script.starts:
        stage = next((one for one in start.stages if one.kind == "mpirun"), None)
        ranks = stage.number("np", "n") if stage is not None else None
        if stage is None or ranks is None or stage.name not in ("mpirun", "mpiexec", "orterun"):
            continue
        hosts = stage.get("hostfile", "machinefile", "f")
        is_own = hosts is not None and "PBS_NODEFILE" not in hosts.shown
        if is_own or stage.has("host", "H", "oversubscribe", "use-hwthread-cpus", "map-by"):
            continue
        slots = request.nodes * each
        if ranks > slots:
            by = given.get("chunks_by", "select")
            cores = f"ppn={each}" if by == "nodes" else f"ncpus={each}:mpiprocs={each}"
            mend = f"{by}={-(-ranks // each)}:{cores}, or start {slots}"
            yield find(
                "mpirun-slots", start.line, ranks=ranks, tasks=pluralize(slots, "slot"),
                what="core that PBS gives", mend=mend,
            )  # fmt: skip


def _more_tasks(context: Context, ranks: int) -> tuple[Edit, ...]:
    request = context.request
    option = request.options.get("ntasks")
    cores = request.options.get("cpus-per-task")
    edits: list[Edit] = []
    if option is not None:
        edits.append(
            Edit(option.line, (replace_value(context.line(option.line), option, str(ranks)),))
        )
    if cores is not None and (option is None or option.line != cores.line):
        each = max((request.cores_per_task or 1) * request.task_count // ranks, 1)
        text = replace_value(context.line(cores.line), cores, str(each))
        new = (text,) if option is not None else (f"#SBATCH --ntasks={ranks}", text)
        edits.append(Edit(cores.line, new))
    return tuple(edits)


def _slots(context: Context) -> Iterator[Complaint]:
    """Find LSF, PBS and Grid Engine jobs of one process whose slots may lie on several hosts."""
    request, scheduler = context.request, context.script.scheduler
    if scheduler in (None, "slurm") or context.launches:
        return
    plain = [start for start, _ in context.plain_pythons if not start.command.background]
    if not plain:
        return
    start = plain[0]
    nodes = request.nodes
    if scheduler == "lsf":
        slots = request.number("n") or 1
        if slots > 1 and nodes is None and "hosts" not in (request.value("R") or ""):
            option = request.options["n"]
            new = (context.line(option.line), '#BSUB -R "span[hosts=1]"')
            yield find("slots-on-several-hosts", start.line, (Edit(option.line, new),),
                       slots=slots, request=f"-n {slots}", mend='-R "span[hosts=1]"')  # fmt: skip
        elif (nodes or 1) > 1:
            yield find("one-task-for-nodes", start.line, nodes=nodes, launcher="mpirun or blaunch")
    elif scheduler == "sge":
        name, slots = request.resources.get("pe", ""), request.cores or 1
        is_shared = SHARED_ENVIRONMENTS.search(name.lower())
        if slots > 1 and is_shared and not ONE_HOST_ENVIRONMENTS.search(name.lower()):
            option = request.options["pe"]
            mended = replace_value(context.line(option.line), option, f"smp {slots}")
            yield find("slots-on-several-hosts", start.line, (Edit(option.line, (mended,)),),
                       slots=slots, request=f"-pe {name} {slots}",
                       mend=f"-pe smp {slots}")  # fmt: skip
    elif (nodes or 1) > 1 and request.resources.get("place") != "pack":
        cores = request.cores_per_task or 1
        if cores > 1:
            yield find("one-task-for-nodes", start.line, nodes=nodes, launcher="mpiexec or pbsdsh")
        else:
            mend = f"select=1:ncpus={nodes}"
            yield find("slots-on-several-hosts", start.line, slots=nodes,
                       request=f"{request.resources.get('chunks_by', 'select')}={nodes}",
                       mend=mend)  # fmt: skip


def _background(context: Context) -> Iterator[Complaint]:
    """Find background jobs that are killed when the script ends."""
    starts = [each for each in context.script.starts if not each.by]
    killed: list[Start] = []
    waits = [
        index
        for index, start in enumerate(starts)
        if start.stages[0].name in ("wait", "fg") and not start.command.background
    ]
    for index, start in enumerate(starts):
        if not start.command.background or start.stages[-1].name in SHORT | {"sleep"}:
            continue
        if any(later > index for later in waits):
            continue
        following = [each for each in starts[index + 1 :] if not each.command.background]
        if any(each.stages[-1].name not in SHORT for each in following):
            continue
        if any(block.kind == "function" for block in start.command.blocks):
            continue
        killed.append(start)
    if killed:
        last = context.script.lines
        at = len(last) + (1 if last[-1] else 0)
        edits = (Edit(at, ("wait",), inserts=True),)
        yield find("no-wait", killed[-1].line, edits)
