"""Rules on what a step does besides arithmetic: many small operations, growth, needless work.

A phase's time is arithmetic, overhead (Python, dispatch of small operations) or waiting. Overhead
is the share of looks, 0.1 ms apart, between which the training thread went on to another
instruction: inside an operation with enough to do it does not.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from hpcncf.text import pluralize
from hpcncf_analysis.diagnosis import thresholds
from hpcncf_analysis.diagnosis.evidence import Evidence, Finding
from hpcncf_analysis.diagnosis.expected_gain import reduced, removed
from hpcncf_analysis.diagnosis.program_facts import INTERPRETS, ObservedProgram, share_of
from hpcncf_analysis.diagnosis.source_lines import (
    MOST_PLACES,
    CodeLocation,
    find_lines,
    is_independent,
    is_repeated,
    loop_around,
)
from hpcncf_analysis.formatting import (
    format_mebibytes,
    format_number,
    format_percent,
)

# Nodes of a graph from which its operations are many: a network of a dozen layers has less.
MANY_NODES: Final = 300
# Parameters that an optimizer goes through one by one: fewer take it little time.
MANY_TENSORS: Final = 60
# CPU seconds of a node, forward and backward: below, most of it is dispatch.
SMALL_NODE_S: Final = 1.2e-4
# What is left of many small operations once one does the work of all, at best and at worst.
GATHERED: Final = (0.3, 0.15, 0.6)
PARAMETERS: Final = re.compile(r"param|state_dict|\.grad\b|weights\b|modules\(|children\(")
CELLS: Final = re.compile(r"\b(LSTM|GRU|RNN)Cell\(")
LAYERS: Final = re.compile(r"\bin (enumerate\()?(\w+\.)*\w*(layers|blocks|stages|convs|modules)\b")
STEPS: Final = re.compile(r"range\(|enumerate\(|unbind\(|split\(|chunk\(")
# A step at the end over one at the start, and each part of the run over the one before it.
SLOWER: Final = 1.5
EACH_SLOWER: Final = 1.08
FEWEST_MOMENTS: Final = 6
HOOKS: Final = r"register_\w*hook\("
CONTAINER: Final = re.compile(r"(?:self\.)?(\w+)(?:\.append|\.extend| =)")
GROWS: Final = r"\.(append|extend)\(|torch\.(cat|concat|stack|vstack|hstack)\(|np\.(append|concat)"
# Of a graph's numbers.
MOSTLY: Final = 0.5
# What float64 costs beyond float32: twice the bytes, half the numbers in a vector register.
IN_SINGLE: Final = (0.55, 0.45, 0.8)
DOUBLES: Final = r"\.double\(\)|float64|torch\.double|from_numpy\(|as_tensor\("
CHOSEN: Final = r"set_default_dtype\(\s*torch\.(float64|double)"
OPTIONS: Final = {
    "detect_anomaly": ("anomaly detection", r"detect_anomaly\("),
    "profiler": ("a profiler", r"\bprofile\(|emit_nvtx\(|record_function\("),
}
# CPU seconds that each of them takes of an operation: a traceback is formatted of each, or events
# are recorded.
OPTION_S: Final = {"detect_anomaly": 1.2e-4, "profiler": 5e-5}
COPIED_MIB: Final = 128.0
COPIED: Final = 0.15
# Blocks of Python's allocator: an interpreter with torch has a quarter of it.
MANY_OBJECTS: Final = 1_000_000


def small_operations(evidence: Evidence) -> Finding | None:
    """Find steps bound by Python and dispatch: many operations of a few microseconds each."""
    program = evidence.inside
    if program is None or not program.steps:
        return None
    shares = {
        "model": _overhead_of_model(evidence, program),
        "optimizer": _overhead_of_optimizer(program),
        "loop": _overhead_of_parameters(evidence, program),
    }
    found = {
        name: (share, _places_of_overhead(evidence, program, name))
        for name, share in shares.items()
        if share >= thresholds.WORTH
    }
    # A deep network has many operations, too: without a loop of the user's nobody can gather them.
    if "model" in found and not _is_looped(found["model"][1]):
        del found["model"]
    if "optimizer" in found and evidence.tables is not None:
        del found["optimizer"]
    if not found:
        return None
    where = max(found, key=lambda name: found[name][0])
    share, places = found[where]
    nodes = program.nodes
    facts = [f"{format_percent(share)} of the time goes into many short operations"]
    if nodes and where == "model":
        at_least = "more than " if program.longest.graphs[-1].is_cut else ""
        facts[0] += (
            f": {at_least}{format_number(nodes)} in a backward pass, {1e6 * program.node_s:.0f} us "
            "of CPU time each with its forward"
        )
    if moving := program.moving(_phase_of(where, program)):
        facts.append(
            f"at {format_percent(moving)} of the looks the thread was in Python or between "
            "operations"
        )
    return Finding(
        "small_operations",
        share,
        "time",
        tuple(facts),
        _gather(where, places),
        gain=reduced(share, GATHERED),
        places=places,
    )


def _overhead(program: ObservedProgram, phase: str) -> float:
    """Share of the time that a phase spends on Python and dispatch; 0 with too few samples."""
    moving = program.moving(phase)
    if moving is None or moving < INTERPRETS:
        return 0.0
    return program.share(phase) * (1 - program.waiting(phase))


def _overhead_of_optimizer(program: ObservedProgram) -> float:
    """Share of the time lost to an optimizer that updates many tensors one by one."""
    graphs = program.longest.graphs
    leaves = graphs[-1].leaves if graphs else 0
    return _overhead(program, "optimizer") if leaves >= MANY_TENSORS else 0.0


def _overhead_of_model(evidence: Evidence, program: ObservedProgram) -> float:
    """Share of the time lost to a forward and backward pass of many tiny operations."""
    del evidence
    nodes = program.nodes
    if nodes < MANY_NODES or program.node_s > SMALL_NODE_S:
        return 0.0
    forward = program.moving("loop" if program.is_functional else "forward")
    if forward is not None and forward < INTERPRETS / 2:
        return 0.0
    return sum(map(program.share, ("forward", "backward"))) + program.model_in_loop


def _overhead_of_parameters(evidence: Evidence, program: ObservedProgram) -> float:
    """Share of the time lost to a loop over parameters in the program's own code."""
    places = evidence.places("loop")
    if not places or not PARAMETERS.search(_header(places[0])) or _frequent(evidence):
        return 0.0
    return max(0.0, _overhead(program, "loop") - program.model_in_loop)


def _header(place: CodeLocation) -> str:
    """Source text of the innermost loop around a line, and of the line itself."""
    return f"{loop_around(place.file, place.line)} {place.source or ''}"


def _is_looped(places: Sequence[CodeLocation]) -> bool:
    """Whether the hottest line is in a loop over anything but a network's layers."""
    head = loop_around(places[0].file, places[0].line) if places else ""
    return bool(head) and not LAYERS.search(head)


def _phase_of(where: str, program: ObservedProgram) -> str:
    if where != "model":
        return where
    return "loop" if program.is_functional else "forward"


def _places_of_overhead(
    evidence: Evidence, program: ObservedProgram, where: str
) -> tuple[CodeLocation, ...]:
    places = evidence.places(_phase_of(where, program))
    if where == "model" and not places:
        places = evidence.places("backward")
    return places


def _gather(where: str, places: Sequence[CodeLocation]) -> str:
    """Remedy that replaces many small operations by a single one."""
    if where == "optimizer":
        if any(each.function == "step" for each in places):
            return (
                "Update all parameters by torch._foreach_ functions, or use an optimizer of "
                "torch's with fused=True."
            )
        return (
            "Let one call update all parameters: fused=True or foreach=True (hpcncf run --with "
            "fused)."
        )
    first = places[0] if places else None
    header = _header(first) if first else ""
    if where == "loop" or PARAMETERS.search(header):
        return (
            "Handle all parameters in one call: torch._foreach_ functions, "
            "torch.nn.utils.clip_grad_norm_, torch.optim.swa_utils.AveragedModel for averages; or "
            "do it once in several steps."
        )
    if first and find_lines(first.file, CELLS.pattern):
        return (
            "Call nn.LSTM, nn.GRU or nn.RNN once on the whole sequence, in place of the cell in a "
            "loop; else larger batches, or torch.compile."
        )
    if header.startswith("for ") or header.startswith("while "):
        if STEPS.search(header):
            return (
                "Do what does not need the step before for all at once, outside the loop (a "
                "library module as nn.LSTM for the rest); else larger batches, or torch.compile."
            )
        return (
            "Handle all elements in one operation: stack or pad them with a mask, index once; else "
            "larger batches, or torch.compile."
        )
    return "Give each operation more to do: larger batches; or torch.compile, CUDA graphs on a GPU."


def slowing_steps(evidence: Evidence) -> Finding | None:
    """Find steps that take longer and longer while something beside them grows."""
    program = evidence.inside
    if program is None or not program.steps:
        return None
    trend = program.trend
    if trend is None or trend.ratio < SLOWER:
        return None
    phase = trend.phase
    grown, places = _what_grows(evidence, program, phase)
    if not grown:
        return None
    share = 1 - 1 / trend.over_first
    if "is gone through" in grown:
        # It was empty at first: all that the line takes is of its growth.
        share = max(share, places[0].share)
    if share < thresholds.WORTH:
        return None
    facts = [
        f"a step takes {trend.ratio:.1f} times as long at the end as at the start, most of it in "
        f"its phase {phase}, while {grown}",
    ]
    return Finding(
        "slowing_steps",
        share,
        "time",
        tuple(facts),
        _stop_growth(grown),
        gain=removed(share),
        places=places,
    )


def is_growth(evidence: Evidence, place: CodeLocation) -> bool:
    """Whether this line is the one that `slowing_steps` names as growing with each step."""
    growing = slowing_steps(evidence)
    return growing is not None and growing.places[:1] == (place,)


def _what_grows(
    evidence: Evidence, program: ObservedProgram, phase: str
) -> tuple[str, tuple[CodeLocation, ...]]:
    """Describe what grows from step to step, with the lines responsible; or ("", ())."""
    rank = program.longest
    files = program.files
    hot = evidence.places(phase)
    if len(rank.graphs) >= 3:
        first, last = rank.graphs[1], rank.graphs[-1]
        passes = last.backward - first.backward
        if passes and last.hooks - first.hooks >= 0.5 * passes:
            more = (last.hooks - first.hooks) / passes
            fact = f"hooks pile up, {more:.2g} in each step"
            lines = [place for file in files for place in find_lines(file, HOOKS)]
            return fact, (*_inside_loops(lines), *hot)[:MOST_PLACES]
        if last.nodes > SLOWER * first.nodes or (last.is_cut and not first.is_cut):
            fact = (
                f"the graph of a backward pass grew from {format_number(first.nodes)} to "
                f"{format_number(last.nodes)} operations{' or more' if last.is_cut else ''}"
            )
            lines = [p for file in files for p in find_lines(file, r"retain_graph\s*=\s*True")]
            return fact, (*lines, *hot)[:MOST_PLACES]
    for place in hot:
        names = set(re.findall(r"[A-Za-z_]\w*", place.source or ""))
        grows = [p for file in files for p in _inside_loops(find_lines(file, GROWS))]
        for line in grows:
            container = CONTAINER.match(line.source or "")
            if container and container[1] in names:
                fact = f"{container[1]} grows at line {line.line} and is gone through in each step"
                return fact, (place, *(each for each in hot if each != place))
    if evidence.memory_growth_mib:
        return f"memory grew by {format_mebibytes(evidence.memory_growth_mib)} meanwhile", hot
    return "", ()


def _inside_loops(places: Sequence[CodeLocation]) -> list[CodeLocation]:
    """Keep places in a loop, or in a function, which may be called in one."""
    return [p for p in places if is_repeated(p.file, p.line) or p.function != "<module>"]


def _stop_growth(grown: str) -> str:
    if "hooks" in grown:
        return "Register the hook once, before the loop, or remove its handle after each step."
    if "graph" in grown:
        return (
            "Cut the graph between steps: detach() what is carried over, and no retain_graph=True."
        )
    return (
        "Keep running sums, or only the last steps; go through all that was collected once an "
        "epoch, not in each step."
    )


def excess_arithmetic(evidence: Evidence) -> Finding | None:
    """Find needless computing: double precision, repeated work, or unused gradients."""
    program = evidence.inside
    if program is None or not program.steps or not program.longest.graphs:
        return None
    graph = program.longest.graphs[-1]
    compute = sum(map(program.share, ("forward", "backward", "optimizer"))) + program.model_in_loop
    moving = program.moving("loop" if program.is_functional else "forward") or 0.0
    is_double = graph.in_double and graph.doubles >= MOSTLY * graph.numbers
    files = program.files
    chosen = any(find_lines(file, CHOSEN) for file in files)
    arithmetic = compute * (1 - moving)
    if is_double and not chosen and arithmetic >= 2 * thresholds.WORTH:
        lines = [place for file in files for place in find_lines(file, DOUBLES)]
        lines.sort(key=lambda place: ".double()" not in (place.source or ""))
        return Finding(
            "excess_arithmetic",
            arithmetic / 2,
            "time",
            (
                f"the model computes in float64, {format_percent(arithmetic)} of the time: numpy's "
                "arrays are of it, torch's own tensors are not",
            ),
            "Convert the data once (torch.from_numpy(x).float()) and leave the model in float32, "
            "unless the result needs double precision.",
            gain=reduced(arithmetic, IN_SINGLE),
            places=tuple(lines[:MOST_PLACES]) or evidence.places("forward"),
        )
    if repeated := _repeated_work(evidence):
        return repeated
    if not graph.numbers:
        return None
    part = graph.unowned / graph.numbers
    share = program.share("backward") * part
    if share < thresholds.WORTH or len(program.longest.graphs) < 3:
        return None
    return Finding(
        "excess_arithmetic",
        share,
        "time",
        (
            f"gradients of {format_number(graph.unowned)} numbers are computed that no optimizer "
            f"updates, {format_percent(part)} of all",
        ),
        "Switch them off: parameter.requires_grad_(False) for the frozen part, or its forward "
        "under torch.no_grad().",
        gain=removed(share),
        places=evidence.places("forward") or evidence.places("backward"),
    )


# What a call does that a step need not repeat: how, and what to do in its place.
FREQUENT: Final[tuple[tuple[str, str, str], ...]] = (
    (r"gc\.collect\(", "garbage collection", "Leave it to Python, or collect once an epoch."),
    (
        r"deepcopy|\bcopy\.copy\(",
        "a copy of an object",
        "Copy it when it is better than the last, or once an epoch; into tensors that exist "
        "(torch._foreach_copy_).",
    ),
    (
        r"state_dict",
        "a list of all tensors of a model",
        "List the tensors once, before the loop, and handle all of them in one call "
        "(torch._foreach_ functions; torch.optim.swa_utils.AveragedModel for averages), or do it "
        "once in many steps.",
    ),
    (
        r"sklearn|torchmetrics|torcheval|_score\(|auc\(|describe\(|corrcoef\(|confusion_matrix\(",
        "a metric",
        "Compute it once an epoch, or keep running sums.",
    ),
    (
        # Not log(), log_prob() or logsumexp(): those are arithmetic.
        r"\blogg(er|ing)\b|\blog\.(debug|info|warning)\(|(?<!\w)log_(metric|scalar|loss|grad|stat|"
        r"step|epoch|progress)\w*\(|tensorboard|add_(scalar|histogram)|wandb|mlflow|matplotlib|"
        r"savefig|\bprint\(",
        "logging",
        "Log once in many steps.",
    ),
)


def frequent_call(evidence: Evidence) -> Finding | None:
    """Find a call that not every step needs: garbage collection, copies, metrics, logging."""
    program = evidence.inside
    share = share_of_own_code(evidence)
    if program is None or not program.steps or share < thresholds.WORTH:
        return None
    frequent = _frequent(evidence)
    if frequent is None or evidence.waiting("loop") > 0.5 or is_growth(evidence, frequent[0]):
        return None
    hot, what, remedy = frequent
    calls = f"line {hot.line} is {what}, in each step"
    return Finding(
        "frequent_call",
        share,
        "time",
        (f"{format_percent(share)} of the time is between the phases of a step; {calls}",),
        remedy,
        gain=removed(min(share, hot.share) or share),
        places=(hot, *(each for each in evidence.places("loop") if each != hot)),
    )


def _frequent(evidence: Evidence) -> tuple[CodeLocation, str, str] | None:
    """Match the hottest line with FREQUENT: (line, kind of call, remedy), or None."""
    assert evidence.inside is not None
    lines = {
        (each.file, each.line): each
        for each in evidence.inside.longest.lines
        if each.phase == "loop"
    }
    for hot in evidence.places("loop")[:1]:
        line = lines.get((hot.file, hot.line))
        text = f"{line.called or ''} " if line else ""
        text += hot.source or ""
        for pattern, what, remedy in FREQUENT:
            if re.search(pattern, text):
                return hot, what, remedy
    return None


def share_of_own_code(evidence: Evidence) -> float:
    """Share of the time spent in a program's own code, other known causes deducted.

    0 if the probe saw no program.
    """
    program = evidence.inside
    if program is None:
        return 0.0
    # A model that is no Module computes there, too: about half as long as its backward pass.
    # What one rank spends there beyond the others is a straggler's.
    share = min(share_of(each, "loop") for each in program.ranks)
    written = sum(each.own_share for each in program.written)
    share *= max(0.0, 1 - written - program.metrics[0])
    share -= max(0.0, program.share("backward") - program.share("forward"))
    if not program.steps and program.longest.seconds > 0:
        share -= program.longest.imports_s / program.longest.seconds
    return share


def _repeated_work(evidence: Evidence) -> Finding | None:
    """Find a call in the training loop that computes the same result in each step."""
    assert evidence.inside is not None
    share = share_of_own_code(evidence)
    if share < 1.25 * thresholds.WORTH or evidence.waiting("loop") > 0.5:
        return None
    lines = [each for each in evidence.inside.longest.lines if each.phase == "loop"]
    outer = max(
        (each for each in lines if each.depth == 0), key=lambda each: each.share, default=None
    )
    if outer is None or outer.share < MOSTLY or not is_independent(outer.file, outer.line):
        return None
    return Finding(
        "excess_arithmetic",
        share * outer.share,
        "time",
        (
            f"line {outer.line} takes {format_percent(share * outer.share)} of the time and uses "
            "nothing that a step changes",
        ),
        "Compute it once, before the loop.",
        gain=removed(share * outer.share),
        places=evidence.places("loop"),
    )


def costly_option(evidence: Evidence) -> Finding | None:
    """Find error checks or a profiler left on for the whole training."""
    program = evidence.inside
    if program is None or not program.nodes:
        return None
    rank = program.longest
    step_s = (rank.main_cpu_s or 0.0) / rank.steps if rank.steps else 0.0
    operations = program.nodes - rank.graphs[-1].leaves
    for option, (name, pattern) in OPTIONS.items():
        share = min(0.9, operations * OPTION_S[option] / step_s) if step_s else 0.0
        # A forward pass takes about half as long as the backward pass: tracebacks are its own.
        share = max(share, program.share("forward") - program.share("backward"))
        if option not in rank.options or share < thresholds.WORTH:
            continue
        lines = [place for file in program.files for place in find_lines(file, pattern)]
        return Finding(
            "costly_option",
            share,
            "time",
            (
                f"{name} is on for each of {format_number(operations)} operations of a step "
                f"in all {rank.steps:,} steps",
            ),
            "Switch it off, or on for a few steps only (torch.profiler.schedule)."
            if option == "profiler"
            else "Switch it off once the error is found.",
            gain=removed(share),
            places=tuple(lines[:MOST_PLACES]) or evidence.places("forward"),
        )
    return None


def worker_memory(evidence: Evidence) -> Finding | None:
    """Find loader workers that copy memory pages of Python objects they only read."""
    program = evidence.inside
    peak, loader = evidence.memory_peak_mib, evidence.loader
    if program is None or not peak or loader is None or not loader.workers:
        return None
    copied, objects = program.copied_mib * loader.workers, program.python_objects
    if copied < COPIED_MIB or copied < COPIED * peak or objects < MANY_OBJECTS:
        return None
    subscripts = [p for p in loader.places if re.search(r"\w\[[^\]:]+\]", p.source or "")]
    places = (*subscripts, *(p for p in loader.places if p not in subscripts))
    return Finding(
        "worker_memory",
        min(1.0, copied / peak),
        "memory",
        (
            f"{pluralize(loader.workers, 'loader worker')} copied {format_mebibytes(copied)} that "
            "they share with the main process at first: to read a Python object is to count a "
            "reference in its page",
            f"{format_number(objects)} blocks of Python objects as they began, memory peaked at "
            f"{format_mebibytes(peak)}",
        ),
        "Keep the data in arrays (numpy, torch tensors, Arrow; strings as one array with offsets), "
        "not in lists of Python objects; or use fewer workers.",
        places=places[:MOST_PLACES],
    )
