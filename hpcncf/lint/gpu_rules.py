"""Rules for GPUs: requested and not used, used and not requested, fewer than ranks."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from hpcncf.batch.edits import Edit
from hpcncf.batch.launchers import Stage
from hpcncf.batch.options import Scheduler
from hpcncf.batch.script import Start
from hpcncf.lint.batch_context import LAUNCHERS, ArgumentOf, Context, find, options_of
from hpcncf.lint.rules import Complaint
from hpcncf.text import pluralize

DEVICE: Final = frozenset({"device", "accelerator", "dev"})
COUNT: Final = frozenset({"gpus", "num-gpus", "ngpus", "n-gpus", "n-gpu", "devices"})
GPU_INDEX: Final = frozenset(
    {"gpu-id", "gpu-ids", "gpuid", "gpu-index", "device-id", "cuda-device"}
)
ON_CPU: Final = frozenset(
    {"no-cuda", "cpu", "use-cpu", "no-gpu", "cpu-only", "nogpu", "disable-cuda"}
)
GPU_VALUE: Final = re.compile(r"(?:cuda|gpu)(?::\d+)?")
GPU_OPTION: Final = re.compile(r"--gres[= ]\S*gpu|--gpus|-gpu\b|ngpus=|gpus?=")
COMMENTED: Final = re.compile(r"\s*#[#\s]*(?:SBATCH|BSUB|PBS|\$)\s+-")
REQUESTS: Final[dict[Scheduler, str]] = {
    "slurm": "--gres=gpu:1",
    "lsf": '#BSUB -gpu "num=1"',
    "pbs": "ngpus=1 to the chunk (select=1:ngpus=1:...)",
    "sge": "the site's resource for GPUs, such as `#$ -l gpu=1`",
}
VISIBLE: Final = re.compile(r"\d+(?:,\d+)*")


def check_gpus(context: Context) -> Iterator[Complaint]:
    request = context.request
    if context.script.scheduler is None:
        return
    if request.has_gpus:
        yield from _unused(context)
        yield from _ranks_against_gpus(context)
        yield from _visible_devices(context)
        yield from _left_by_program(context)
        yield from _hidden_gpus(context)
    elif not request.is_exclusive and not _may_have_gpus(context):
        for _, stage in context.pythons:
            if option := next(
                (each for each in options_of(stage) if _wants_gpu(each.name, each.shown)), None
            ):
                yield find(
                    "gpu-not-requested", option.line, said=f"{option.name} {option.shown}".strip(),
                    why=_why_no_gpu(context), mend=REQUESTS[context.script.scheduler],
                )  # fmt: skip


def _why_no_gpu(context: Context) -> str:
    """Return the line that was meant to request GPUs, or that a partition's name requests none."""
    read = {directive.line for directive in context.script.directives if directive.is_read}
    for number, line in enumerate(context.script.lines, 1):
        is_directive = number not in read and COMMENTED.match(line)
        if is_directive and GPU_OPTION.search(line):
            return f": line {number} is a comment"
    return "; the name of a partition or queue requests none"


def _may_have_gpus(context: Context) -> bool:
    """Return whether an option that selects nodes, such as `--constraint`, mentions GPUs."""
    request = context.request
    return any(
        "gpu" in (request.value(name) or "").lower()
        for name in ("constraint", "qos", "gres", "tres-per-node", "nodelist", "R", "app")
    )


def _wants_gpu(name: str, shown: str) -> bool:
    if name in DEVICE:
        return GPU_VALUE.fullmatch(shown.lower()) is not None
    if name in ("gpus", "num-gpus", "ngpus", "n-gpus", "n-gpu"):
        return shown.isdigit() and int(shown) > 0
    return False


def _stays_on_cpu(context: Context, start: Start, stage: Stage) -> str:
    """Return the words that keep a program on the CPU; empty if there are none."""
    for option in options_of(stage):
        if option.name in DEVICE and option.shown.lower() == "cpu":
            return f"--{option.name} cpu"
        if option.name in ON_CPU and option.shown.lower() not in ("0", "false", "no"):
            return f"--{option.name}"
        if option.name in COUNT and option.shown == "0" and option.name != "devices":
            return f"--{option.name} 0"
        if option.name in ("use-gpu", "use-cuda", "gpu", "cuda") and option.shown.lower() in (
            "false", "no", "off",
        ):  # fmt: skip
            return f"--{option.name} {option.shown}"
    visible = start.variables.get("CUDA_VISIBLE_DEVICES")
    if visible is not None and visible.text in ("", "-1") and not visible.origins:
        return "CUDA_VISIBLE_DEVICES"
    facts = context.facts(stage)
    if facts is not None and facts.cpu_libraries:
        names = ", ".join(facts.cpu_libraries)
        return f"the choice of libraries in {stage.script} ({names})"
    return 'device "cpu" in the program' if facts and facts.stays_on_cpu else ""


def _unused(context: Context) -> Iterator[Complaint]:
    reasons = [(start, _stays_on_cpu(context, start, stage)) for start, stage in context.pythons]
    others = [
        start
        for start in context.script.starts
        if start.stages[-1].kind == "program" and start.stage("srun", "mpirun", "wrapper")
    ]
    if not reasons or not all(why for _, why in reasons) or others:
        return
    start, why = reasons[0]
    request = context.request
    option = next(
        (
            request.options[name]
            for name in ("gres", "gpus", "gpus-per-node", "gpus-per-task", "gpu")
            if name in request.options
        ),
        None,
    )
    directive = next(
        (each for each in context.script.directives if option and each.line == option.line), None
    )
    is_alone = directive is not None and len(directive.options) == 1
    edits = (Edit(option.line, ()),) if option and is_alone else ()
    yield find("gpu-unused", start.line, edits, why=why)


def _ranks_against_gpus(context: Context) -> Iterator[Complaint]:
    request = context.request
    gpus = request.gpus_on_node
    shares = {"gpus-per-task", "ntasks-per-gpu", "gpu-bind"} & set(request.options)
    if not gpus or shares or "shard" in (request.value("gres") or ""):
        return
    for start, stage in context.pythons:
        if _stays_on_cpu(context, start, stage):
            continue
        line, ranks, is_whole = _ranks_on_node(context, start)
        counted = next(
            (each for each in options_of(stage) if each.name in COUNT and each.shown.isdigit()),
            None,
        )
        wanted = int(counted.shown) if counted is not None else 0
        most = gpus * (context.nodes if counted and counted.name == "num-gpus" else 1)
        if ranks > gpus and (
            start.stage("torchrun", "accelerate") or _meets(context, start, stage)
        ):
            edits = _more_gpus(context, ranks)
            said = pluralize(ranks, "rank")
            yield find(
                "fewer-gpus-than-ranks", line, edits, ranks=said, gpus=pluralize(gpus, "GPU")
            )
        elif counted is not None and wanted > most:
            edits = _more_gpus(context, wanted)
            said = f"--{counted.name} {wanted}"
            at = counted.line
            yield find("fewer-gpus-than-ranks", at, edits, ranks=said, gpus=pluralize(gpus, "GPU"))
        elif is_whole and 1 <= ranks < gpus and not start.command.background:
            yield find("idle-gpus", line, by="uses", used=ranks, gpus=gpus)
        elif (
            (
                counted is not None
                and 0 < int(counted.shown) < gpus
                and start.stage(*LAUNCHERS) is None
            )
            and counted.name != "devices"
            and not start.command.background
        ):
            yield find("idle-gpus", counted.line, by="uses", used=int(counted.shown), gpus=gpus)
        elif gpus > 1 and (one := _only_gpu(context, start)):
            yield find(
                "idle-gpus", one.line, by=f"--{one.name} {one.shown} uses", used=1, gpus=gpus
            )


def _only_gpu(context: Context, start: Start) -> ArgumentOf | None:
    """Return the option by which the job's only program takes one GPU; None if it has none."""
    if len(context.pythons) != 1 or start.command.background or start.command.loops:
        return None
    srun = start.stage("srun")
    if srun is None and context.launches:
        return None
    if srun is not None and (
        start.stage(*LAUNCHERS[1:])
        or context.is_unknown_step(srun)
        or context.step_tasks(srun) != 1
    ):
        return None
    ((_, stage),) = context.pythons
    named = {each for word in stage.arguments for each in re.findall(r"cuda:\d+", word.shown)}
    if len(named) > 1:
        return None
    return next((each for each in options_of(stage) if _names_one_gpu(stage, each)), None)


def _names_one_gpu(stage: Stage, option: ArgumentOf) -> bool:
    """Return whether an option names a single GPU: `--device cuda:0`, but not `--gpus 0 1`."""
    following = [
        stage.arguments[index + 1].shown
        for index, each in enumerate(stage.arguments[:-1])
        if each is option.value
    ]
    if following and re.match(r"\d|cuda:", following[0]):
        return False
    if option.name in DEVICE:
        return re.fullmatch(r"(?:(?:cuda|gpu):)?\d", option.shown.lower()) is not None
    if option.name in ("gpu", "devices"):  # a number or an index: one GPU either way
        return option.shown in ("0", "1")
    return option.name in GPU_INDEX and re.fullmatch(r"\d", option.shown) is not None


def _ranks_on_node(context: Context, start: Start) -> tuple[int, int, bool]:
    """Return the line, the ranks on a node, and whether each rank takes one GPU."""
    launcher = start.stage("torchrun")
    if launcher is not None:
        word = launcher.get("nproc-per-node")
        number = word.number if word else (1 if start.stage("torchrun") else None)
        if word is not None and number is None:
            return start.line, 0, False
        return (word.word.line if word else start.line), number or 0, word is not None
    accelerate = start.stage("accelerate")
    if accelerate is not None:
        processes = accelerate.number("num-processes")
        machines = accelerate.number("num-machines") or context.nodes
        return start.line, (processes or 0) // max(machines, 1), processes is not None
    srun = start.stage("srun")
    if srun is None or context.is_unknown_step(srun) or srun.has("gpus-per-task", "gres", "gpus"):
        return start.line, 0, False
    return start.line, context.step_tasks_on_node(srun), context.step_tasks_on_node(srun) > 1


def _meets(context: Context, start: Start, stage: Stage) -> bool:
    """Return whether the tasks are ranks of one training; unrelated tasks may share a GPU."""
    if context.may_be_ranks(stage) or any(each.name in COUNT for each in options_of(stage)):
        return context.request.tasks_on_node is not None
    return bool({"MASTER_ADDR", "WORLD_SIZE"} & set(start.variables)) and (
        context.request.tasks_on_node is not None
    )


def _more_gpus(context: Context, ranks: int) -> tuple[Edit, ...]:
    request = context.request
    for name in ("gres", "gpus-per-node"):
        option = request.options.get(name)
        if option is not None and option.value and option.value.count(",") == 0:
            value = re.sub(r"\d+$", str(ranks), option.value)
            if value == option.value:
                value = f"{option.value}:{ranks}"
            text = context.line(option.line)
            start, end = option.value_start, option.value_end
            return (Edit(option.line, (f"{text[:start]}{value}{text[end:]}",)),)
    return ()


def _visible_devices(context: Context) -> Iterator[Complaint]:
    for assigned in context.script.assigned:
        if assigned.name != "CUDA_VISIBLE_DEVICES" or assigned.command.loops:
            continue
        text = assigned.value.text
        is_whole_job = assigned.command.exports or not assigned.command.words
        if not text or not VISIBLE.fullmatch(text) or assigned.value.origins or not is_whole_job:
            continue
        if assigned.command.is_conditional or assigned.command.background:
            continue
        line = context.line(assigned.line)
        is_alone = re.fullmatch(r"\s*(?:export\s+)?CUDA_VISIBLE_DEVICES=\S+\s*", line)
        edits = (Edit(assigned.line, ()),) if is_alone else ()
        # All that are requested: right on a node that has no more of them.
        gpus = context.request.gpus_on_node or 0
        is_note = sorted(map(int, text.split(","))) == list(range(gpus))
        yield find("cuda-visible-devices", assigned.line, edits, is_note, value=text)


def _hidden_gpus(context: Context) -> Iterator[Complaint]:
    """Find `CUDA_VISIBLE_DEVICES=1,3 srun ...` that names other GPUs than the job has."""
    gpus = context.request.gpus_on_node
    for assigned in context.script.assigned:
        command = assigned.command
        if assigned.name != "CUDA_VISIBLE_DEVICES" or not command.words or command.exports:
            continue
        text = assigned.value.text
        if not gpus or not text or not VISIBLE.fullmatch(text) or assigned.value.origins:
            continue
        if command.loops or command.background or command.is_conditional:
            continue
        numbers = [int(number) for number in text.split(",")]
        missing = sorted(number for number in numbers if number >= gpus)
        if not missing:
            others = [start for start, _ in context.pythons if start.command is not command]
            if len(numbers) < gpus and not others:
                yield find("idle-gpus", assigned.line, by="uses", used=len(numbers), gpus=gpus)
            continue
        line = context.line(assigned.line)
        mended = line.replace(f"CUDA_VISIBLE_DEVICES={text} ", "", 1)
        edits = (Edit(assigned.line, (mended,)),) if mended != line else ()
        what = f"{', '.join(map(str, missing))} may be another job's or none"
        is_or_are = "GPU is" if gpus == 1 else "GPUs are"
        yield find(
            "hidden-gpus", assigned.line, edits, value=text, gpus=f"{gpus} {is_or_are}", what=what
        )


def _left_by_program(context: Context) -> Iterator[Complaint]:
    """Find a program that sets CUDA_VISIBLE_DEVICES to fewer GPUs than the job has."""
    gpus = context.request.gpus_on_node or 0
    if len(context.pythons) != 1:
        return
    start, stage = context.pythons[0]
    facts = context.facts(stage)
    if facts is None or facts.visible_gpus is None or facts.visible_gpus >= gpus:
        return
    if start.command.background or start.command.loops:
        return
    where = f"CUDA_VISIBLE_DEVICES in {stage.script}, line {facts.visible_in}, leaves it"
    yield find("idle-gpus", start.line, used=facts.visible_gpus, gpus=gpus, by=where)
