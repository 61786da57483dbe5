"""Rules for ranks: their numbers, where they meet, how many they are."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from hpcncf.batch.edits import Edit
from hpcncf.batch.launchers import ExpandedWord, Stage
from hpcncf.batch.options import Option
from hpcncf.batch.script import EACH_TASKS_OWN, Start
from hpcncf.lint.batch_context import LAUNCHERS, Context, find, options_of, replace_value
from hpcncf.lint.rules import Complaint
from hpcncf.text import pluralize

RANK_VARIABLES: Final = frozenset(
    {"RANK", "LOCAL_RANK", "NODE_RANK", "GROUP_RANK", "LOCAL_PROCESS_INDEX"}
)
LOCALHOST: Final = re.compile(r"(?:localhost|127\.0\.0\.1|\[?::1\]?|0\.0\.0\.0)(?::\S*)?")
HOST_NAMES: Final = frozenset({"hostname()", "HOSTNAME", "HOST", "SLURMD_NODENAME"})
NODE_RANK: Final = ("node-rank", "machine-rank")
MEETING_PLACE: Final = ("rdzv-endpoint", "master-addr", "main-process-ip")
HEAD: Final = '$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)'


def check_ranks(context: Context) -> Iterator[Complaint]:
    yield from _ports_of_several(context)
    if not context.is_slurm:
        return
    for start in context.script.starts:
        srun = start.stage("srun")
        if srun is None or context.is_unknown_step(srun):
            continue
        tasks = context.step_tasks(srun)
        nodes = min(context.step_nodes(srun), tasks)
        launcher = start.stage("torchrun", "accelerate")
        if launcher is not None and nodes > 1:
            yield from _torchrun(context, start, launcher, nodes)
        if tasks > 1:
            yield from _expanded_early(start)
            if launcher is None and start.python is not None:
                yield from _world_size(context, start, start.python, tasks)
        if launcher is None and start.python is not None:
            yield from _lightning(context, start, start.python)
            facts = context.facts(start.python)
            if nodes > 1 and facts is not None and facts.loopback:
                where = f"{facts.loopback} in {start.python.script}, line {facts.loopback_in}"
                yield find("rendezvous-localhost", start.line, nodes=nodes, what=where)
    yield from _variables(context)
    yield from _no_rendezvous(context)


def _lightning(context: Context, start: Start, python: Stage) -> Iterator[Complaint]:
    """Find numbers of Lightning's Trainer that are not Slurm's, which Lightning refuses.

    `SLURMEnvironment.validate_settings` compares the numbers of sbatch, not those of srun.
    """
    facts, request = context.facts(python), context.request
    if facts is None or facts.trainer is None:
        return
    devices, nodes = facts.trainer
    on_node = request.number("ntasks-per-node")
    option = request.options.get("ntasks-per-node")
    if devices is not None and on_node is not None and option and devices != on_node:
        edits: tuple[Edit, ...] = ()
        if devices > on_node and "ntasks" not in request.options:
            edits = _tasks_for_devices(context, option, devices, on_node)
        yield find(
            "lightning-tasks", start.line, edits, setting="devices", wanted=devices,
            really=f"{pluralize(on_node, 'task')} on a node", mend=f"--ntasks-per-node={devices}",
        )  # fmt: skip
    elif nodes is not None and request.nodes is not None and nodes != request.nodes:
        yield find(
            "lightning-tasks", start.line, setting="num_nodes", wanted=nodes,
            really=f"tasks on {pluralize(request.nodes, 'node')}", mend=f"--nodes={nodes}",
        )  # fmt: skip


def _tasks_for_devices(
    context: Context, option: Option, devices: int, tasks: int
) -> tuple[Edit, ...]:
    """Return edits that split a node's cores among one task for each device."""
    edits = [Edit(option.line, (replace_value(context.line(option.line), option, str(devices)),))]
    cores = context.request.options.get("cpus-per-task")
    total = (context.request.cores_per_task or 1) * tasks
    if cores is not None:
        if cores.line == option.line or total % devices:
            return ()
        text = replace_value(context.line(cores.line), cores, str(total // devices))
        edits.append(Edit(cores.line, (text,)))
    return tuple(edits)


def _torchrun(context: Context, start: Start, launcher: Stage, nodes: int) -> Iterator[Complaint]:
    if start.python is not None and start.python.script.startswith("$"):
        return  # `torchrun $ARGUMENTS train.py`: they are not known
    rank = launcher.get(*NODE_RANK)
    if rank is not None and rank.number is not None and not rank.origins:
        yield find("node-rank-fixed", rank.word.line, rank=rank.shown, nodes=nodes)
    place = launcher.get(*MEETING_PLACE)
    number = launcher.get("nnodes", "num-machines")
    line = place.word.line if place else start.line
    alone = launcher.has("standalone")
    if place is not None and LOCALHOST.fullmatch(place.shown):
        text = context.line(line)
        mended = text.replace("localhost", "$head").replace("127.0.0.1", "$head")
        # An address in a variable is not in the line that uses it.
        edits = (Edit(line, (f"head={HEAD}", mended)),) if mended != text else ()
        yield find("rendezvous-localhost", line, edits, nodes=nodes, what=place.shown)
    elif alone or (place is None and "MASTER_ADDR" not in start.variables):
        what = "--standalone" if alone else "torchrun without an address"
        yield find("rendezvous-localhost", start.line, nodes=nodes, what=what)
    elif place is not None and start.in_task and place.origins & HOST_NAMES:
        yield find("master-addr-per-task", line, tasks=nodes)
    elif number is not None and number.number is not None and number.number != nodes:
        yield find(
            "world-size-differs", number.word.line, said=f"--nnodes={number.shown}",
            really=f"{nodes} nodes",
        )  # fmt: skip
    elif number is None and launcher.kind == "torchrun":
        yield find(
            "rendezvous-localhost", start.line, nodes=nodes, what="torchrun without --nnodes"
        )


def _expanded_early(start: Start) -> Iterator[Complaint]:
    """Find variables of a single task that the batch script's shell expands for all tasks."""
    if start.in_task:
        return
    words: list[ExpandedWord] = []
    for stage in start.stages:
        words += [each for each in stage.options.values() if each is not None]
        if stage.kind in ("python", "program"):
            words += stage.arguments
    told: set[str] = set()
    for word in words:
        early = sorted(word.origins & EACH_TASKS_OWN)
        # A number, or a text that a shell of each task runs.
        is_alone = word.number == 0 or any(word is stage.options.get("c") for stage in start.stages)
        if early and early[0] not in told and is_alone:
            told.add(early[0])
            yield find("rank-expanded-early", word.word.line, variable=early[0])


def _world_size(context: Context, start: Start, python: Stage, tasks: int) -> Iterator[Complaint]:
    names = {option.name for option in options_of(python)}
    if "multiprocessing-distributed" in names:
        return
    for option in options_of(python):
        if option.name == "world-size" and option.value is not None:
            number = option.value.number
            if number is not None and number != tasks:
                yield find(
                    "world-size-differs", option.line, said=f"--world-size {number}",
                    really=f"srun starts {tasks} tasks",
                )  # fmt: skip
    known = start.variables.get("WORLD_SIZE")
    if known is not None and known.text and known.text.isdigit() and int(known.text) != tasks:
        for assigned in context.script.assigned:
            if assigned.name == "WORLD_SIZE" and assigned.line <= start.line:
                text = context.line(assigned.line)
                mended = re.sub(r"WORLD_SIZE=[\"']?\w+[\"']?", "WORLD_SIZE=$SLURM_NTASKS", text)
                edits = (Edit(assigned.line, (mended,)),) if mended != text else ()
                yield find(
                    "world-size-differs", assigned.line, edits, said=f"WORLD_SIZE={known.text}",
                    really=f"srun starts {tasks} tasks",
                )  # fmt: skip
                return


def _variables(context: Context) -> Iterator[Complaint]:
    """Find wrong values of MASTER_ADDR, RANK and LOCAL_RANK that the script sets for tasks."""
    started = [
        (start, srun)
        for start in context.script.starts
        if (srun := start.stage("srun")) is not None
        and start.python is not None
        and not context.is_unknown_step(srun)
        and start.stage("torchrun", "accelerate") is None
    ]
    tasks = max((context.step_tasks(srun) for _, srun in started), default=1)
    nodes = max((context.step_nodes(srun) for _, srun in started), default=1)
    multi_node = any(
        (srun := start.stage("srun")) is not None and context.step_nodes(srun) > 1
        for start in context.script.starts
    )
    for assigned in context.script.assigned:
        name, value = assigned.name, assigned.value
        if name in RANK_VARIABLES and tasks > 1 and not assigned.in_task:
            early = value.origins & EACH_TASKS_OWN
            if early or (value.number is not None and assigned.command.exports):
                variable = sorted(early)[0] if early else name
                yield find("rank-expanded-early", assigned.line, variable=variable)
        if name != "MASTER_ADDR":
            continue
        if nodes > 1 and tasks > 1 and value.text and LOCALHOST.fullmatch(value.text):
            text = context.line(assigned.line)
            mended = re.sub(r"MASTER_ADDR=\S+", lambda _: f"MASTER_ADDR={HEAD}", text)
            edits = (Edit(assigned.line, (mended,)),)
            yield find(
                "rendezvous-localhost", assigned.line, edits, nodes=nodes,
                what=f"MASTER_ADDR={value.text}",
            )  # fmt: skip
        elif multi_node and assigned.in_task and value.origins & HOST_NAMES:
            yield find("master-addr-per-task", assigned.line, tasks=tasks)


def _no_rendezvous(context: Context) -> Iterator[Complaint]:
    """Find distributed programs for which nobody sets rank 0's address."""
    for start, python in context.pythons:
        srun = start.stage("srun")
        if srun is None or start.stage("torchrun", "accelerate", "deepspeed"):
            continue
        facts = context.facts(python)
        if facts is None or not facts.needs_rendezvous or context.step_tasks(srun) < 2:
            continue
        if "MASTER_ADDR" not in start.variables:
            yield find("no-rendezvous", start.line)


def _ports_of_several(context: Context) -> Iterator[Complaint]:
    """Find several torchruns in the background of one node that listen at the same port."""
    seen: dict[str, Start] = {}
    for start in context.script.starts:
        launcher = start.stage("torchrun", "accelerate")
        if launcher is None or not start.command.background or start.stage("srun"):
            continue
        if launcher.has("standalone", "rdzv-backend"):
            continue
        port = launcher.get("master-port", "main-process-port")
        if port is not None and port.number is None:
            continue
        used = port.shown if port else "29500"
        if used == "0":
            continue
        if start.command.loops or used in seen:
            yield find("same-port", start.line, port=used)
        seen.setdefault(used, start)


def check_fixed_port(context: Context) -> Iterator[Complaint]:
    """Find a fixed port that all tasks of an array would use."""
    array = context.request.array
    if array is None or array.endswith("%1"):  # one task at a time
        return
    for assigned in context.script.assigned:
        value = assigned.value
        if assigned.name == "MASTER_PORT" and value.number is not None and not value.origins:
            text = context.line(assigned.line)
            mended = re.sub(
                r"MASTER_PORT=[\"']?\d+[\"']?",
                "MASTER_PORT=$((12000 + SLURM_JOB_ID % 20000))",
                text,
            )
            edits = (Edit(assigned.line, (mended,)),) if context.is_slurm else ()
            yield find("fixed-port", assigned.line, edits, port=assigned.value.number)
    for start in context.script.starts:
        launcher = start.stage(*LAUNCHERS[2:])
        port = launcher.get("master-port", "main-process-port") if launcher else None
        if port is not None and port.number is not None and not port.origins:
            yield find("fixed-port", port.word.line, port=port.number)
