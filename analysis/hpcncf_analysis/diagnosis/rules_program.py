"""Rules on a user's own program, by what the probe inside it saw.

Shares are of the time after start-up, the mean over the ranks.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from hpcncf.lint.rules import DRAW_NEGATIVES
from hpcncf.records.schema import ProgramLoader, ProgramProfile, ProgramTable, SourceLine
from hpcncf_analysis.configurations import pluralize
from hpcncf_analysis.diagnosis import expected_gain, thresholds
from hpcncf_analysis.diagnosis.evidence import Cause, Evidence, Finding, Gain, Place
from hpcncf_analysis.diagnosis.program_facts import (
    MOST_PLACES,
    PHASES,
    Program,
    is_brief,
    line_of_thread,
    lines_that_keep_graphs,
    loader_places,
    place,
    places_of,
    seconds_in,
    share_of,
    text_of,
)
from hpcncf_analysis.diagnosis.rules_ranks import Balance, balance, has_more_work
from hpcncf_analysis.formatting import (
    format_cores,
    format_duration,
    format_mebibytes,
    format_number,
    format_percent,
)

# One busy core of two is half of them, less the moments in which it waits.
SERIAL: Final = 0.45
# The same where the program itself gave torch fewer threads than cores; a shorter step gains little
# by more.
LIMITED: Final = 0.75
LONG_STEP_S: Final = 0.01
# Lines that unpack a sample, which no array operation does for a whole batch.
UNPACKS: Final = re.compile(
    r"decod|decompress|image|jpe?g|audio|h5py|parse|tokeni|json\.|execute\(|"
    r"\b(load|open|imread|read\w*)\(|\bre\.(find|split|sub)|strptime"
)
NEGATIVES: Final = re.compile(r"neg|random\.sample\(|set\(.*\) ?-|not in |\bwhile \w+ in ")
# Of the time that a dense optimizer spends, what an update of the touched rows alone takes, over
# their share of all rows: they lie apart, so each costs a cache miss where the walk streams.
SCATTERED: Final = (4.0, 1.0, 10.0)
ALL_LEFT: Final = 0.9
# Numbers in a table from which on `hpcncf.remedies.rowwise` takes it; of a fused optimizer.
LEAST_BY_ROWS: Final = 2**19
LEAST_IF_FUSED: Final = 2**21
# The feed-forward layer of a transformer; tables of 2,000 rows and more are rarely as wide.
TALL: Final = 4


def removed(share: float) -> Gain:
    """All of it removed: the most that a remedy can give."""
    most = faster(share)
    return Gain(most, 1.0, most)


def reduced(share: float, left: tuple[float, float, float]) -> Gain:
    """The share of the time reduced to `left` of it: expected, at best, at worst."""
    expected, best, worst = (faster(share * (1 - part)) for part in left)
    return Gain(expected, worst, best)


def faster(saved: float) -> float:
    """By which factor a program gets faster of whose time a share is saved."""
    return 1 / max(0.05, 1 - saved)


def _finding(
    cause: Cause,
    share: float,
    facts: Sequence[str],
    remedy: str,
    places: Sequence[Place] = (),
    gain: Gain | None = None,
) -> Finding:
    """A cause that costs a share of the time: at most, a remedy removes all of it."""
    saved = gain or removed(share)
    return Finding(cause, share, "time", tuple(facts), remedy, gain=saved, places=tuple(places))


def find(evidence: Evidence) -> list[Finding]:
    """All causes that the probe gives ground for."""
    program = Program(evidence)
    rules = (
        _startup,
        _lock,
        _input,
        _workers,
        _dense_optimizer,
        _ranks,
        _evaluation,
        _checkpoint,
        _loop,
        _serial,
        _memory,
    )
    findings = [found for rule in rules if (found := rule(program)) is not None]
    return [_without_gain(each, program) for each in findings]


def _without_gain(finding: Finding, program: Program) -> Finding:
    """The finding itself, unless its share is one of single steps: then with that remark."""
    steps = max(each.steps for each in program.ranks)
    few = 0 < steps < thresholds.SHORT_STEPS and program.evidence.elapsed_s < thresholds.LONG_S
    if not few or finding.gain is None or finding.cause == "startup_bound":
        return finding
    fact, *others = finding.evidence
    remark = f"only {pluralize(steps, 'step')} counted, too few to expect a gain"
    return replace(finding, gain=None, evidence=(f"{fact}; {remark}", *others))


def _startup(program: Program) -> Finding | None:
    rank = max(program.ranks, key=lambda each: each.startup_s)
    own_s = max(0.0, rank.startup_s - rank.startup_runqueue_s)  # what neighbours did not add
    whole_s = rank.elapsed_s - rank.startup_runqueue_s - (rank.runqueue_s or 0.0)
    share = min(1.0, own_s / whole_s) if whole_s > 0 else 0.0
    if rank.startup_s <= 0 or share < thresholds.STARTUP:
        return None
    imports = max(0.0, rank.imports_s / rank.startup_s - _worked_in_imports(rank.startup_lines))
    if own_s < 2 * thresholds.STARTUP_S and own_s * (1 - imports) < thresholds.PREPARED_S:
        return None
    return Finding(
        "startup_bound",
        share,
        "time",
        (
            f"{format_duration(rank.startup_s)} of {format_duration(rank.elapsed_s)} passed before "
            "the first step ended",
            f"imports took {format_percent(imports)} of that",
        ),
        "Put packages on a fast or local file system, and import less."
        if imports >= 0.5
        else "Prepare the data once and keep it in a file (numpy.save, Parquet), or do more in "
        "one run.",
        places=tuple(places_of(rank.startup_lines, share)),
    )


def _worked_in_imports(lines: Sequence[SourceLine]) -> float:
    """Share of the start-up in which modules of the user's own compute while they are imported."""
    main = {each.file for each in lines if each.depth == 0}
    modules = [each for each in lines if each.function == "<module>" and each.file not in main]
    # A comprehension is called by the line around it.
    outermost = {
        file: min(each.depth for each in modules if each.file == file)
        for file in {each.file for each in modules}
    }
    return sum(
        each.share
        for each in modules
        if each.depth == outermost[each.file]
        and (text := text_of(each))
        and not text.startswith(("import ", "from "))
    )


def _lock(program: Program) -> Finding | None:
    """Several Python threads want to compute, and together get about one core."""
    rank = program.longest
    whole = rank.elapsed_s if not rank.steps else rank.seconds
    if rank.main_cpu_s is None or whole <= 0:
        return None
    cores = program.evidence
    # Beside neighbours they get less of a core than they would use.
    wanted = cores.wanted / cores.used if cores.wanted and cores.used else 1.0
    busy = [each for each in rank.threads if wanted * each.cpu_s >= 0.02 * whole]
    # Some may be found only in the library, in which they let go of the lock.
    at = next((each for each in busy if each.file), None)
    others = sum(each.cpu_s for each in busy) / whole
    together = others + rank.main_cpu_s / whole
    computed = sum(each.threads for each in busy)
    computed += wanted * rank.main_cpu_s >= 0.1 * whole
    if at is None or computed < 2 or wanted * others < thresholds.WORTH:
        return None
    if wanted * together < 0.7 or together > 1.2:
        return None
    return Finding(
        "interpreter_lock",
        min(wanted * others, 1.0),
        "time",
        (
            f"{computed} Python threads computed, {together:.2f} cores together: only one "
            "at a time holds the interpreter's lock",
        ),
        "Use processes instead of threads (DataLoader workers, multiprocessing), or array "
        "operations that release the lock.",
        places=(place(line_of_thread(at), others),),
    )


def _input(program: Program) -> Finding | None:
    share = program.share("input")
    if share < thresholds.WORTH:
        return None
    loader = _loader(program)
    if loader and loader.workers:
        return _slow_workers(program, loader, share)
    waits, places = program.waiting("input"), program.places("input")
    fact = f"{format_percent(share)} of the time the training thread is in its data loader"
    if waits > 0.5:
        read_mib = program.evidence.read_mib
        read = [f"{read_mib:,.0f} MiB were read from storage"] if read_mib else []
        return _finding(
            "input_io",
            share,
            [f"{fact}, which waits for {format_percent(waits)} of that", *read],
            "Read ahead with DataLoader workers, from a faster place (node-local disk or memory), "
            "in larger pieces.",
            places,
        )
    remedy, gain = _input_remedy(program, share, places)
    facts = [f"{fact}, which computes for {format_percent(1 - waits)} of that"]
    return _finding("python_input", share, facts, remedy, places, gain)


def _input_remedy(program: Program, share: float, places: Sequence[Place]) -> tuple[str, Gain]:
    """What to change, by what the hot lines do, and the gain to expect of it."""
    text = " ".join(f"{each.function} {each.source or ''}" for each in places[:1]).lower()
    idle = int(program.idle_cores + 0.3)
    if UNPACKS.search(text):
        once = "Do it once and keep the arrays (numpy.save, Parquet)"
        if idle < 1:
            return f"{once}.", removed(share)
        # As many batches at a time as there are idle cores, beside the steps.
        most = 1 / max(1 - share, share / idle, 0.05)
        workers = (
            f"num_workers={idle}, for {pluralize(idle, 'core')} {'is' if idle == 1 else 'are'}"
        )
        return f"{once}, or read in DataLoader workers ({workers} idle).", Gain(
            max(1.0, 0.8 * most), 1.0, max(1.0, most, faster(share))
        )
    remedy = "Make whole batches at once by array operations: hpcncf.remedies.BatchLoader."
    if NEGATIVES.search(text):
        remedy = f"{DRAW_NEGATIVES}."
    return remedy, reduced(share, expected_gain.VECTORIZED)


def _loader(program: Program) -> ProgramLoader | None:
    trains = [each for each in program.longest.loaders if not each.evaluates]
    return max(trains, key=lambda each: each.batches, default=None)


def _slow_workers(program: Program, loader: ProgramLoader, share: float) -> Finding:
    """The steps wait though workers make the batches."""
    share = min(1.0, share + program.share("workers"))
    facts = [
        f"{format_percent(share)} of the time the training thread waits for "
        f"{pluralize(loader.workers, 'loader worker')}"
    ]
    busy = [each.worker_busy for each in program.workers if each.worker_busy is not None]
    if busy:
        facts.append(f"a worker is busy for {format_percent(busy[0])} of its time")
    places = list[Place]()
    if program.workers:
        worker = program.workers[0]
        brief = is_brief(loader.workers * (worker.main_cpu_s or 0.0), program.longest)
        places = places_of(worker.lines, share, brief)
    if not busy or busy[0] < 0.5:
        return _costly_workers(program, loader, share, facts, places)
    idle = program.idle_cores
    if idle < 0.7:
        return _finding(
            "python_input",
            share,
            facts,
            "Make whole batches at once with array operations (`__getitems__`): all cores are "
            "busy, so more workers will not help.",
            places,
        )
    more = loader.workers + max(1, int(idle + 0.3))
    most = min(more / loader.workers, faster(share))
    return _finding(
        "too_few_workers",
        share,
        [*facts, f"{format_cores(idle)} usable cores are idle"],
        f"Use more workers (hpcncf run --with workers={more}), or make a sample cheaper.",
        places,
        Gain(most, 1.0, faster(share)),
    )


KEEP_WORKERS: Final = (
    "Keep the workers (hpcncf run --with persistent_workers), or make the batches in the main "
    "process (--with workers=0)."
)


def _costly_workers(
    program: Program,
    loader: ProgramLoader,
    share: float,
    facts: Sequence[str],
    places: Sequence[Place],
) -> Finding:
    remedy = (
        "Make the batches in the main process (hpcncf run --with workers=0), or send larger ones."
    )
    if loader.epochs > 2 and not loader.persistent:
        facts = [*facts, f"they are started anew for each of {loader.epochs} epochs"]
        remedy = KEEP_WORKERS
    made = loader_places(program.longest.lines, share)
    return _finding("worker_overhead", share, facts, remedy, [*made, *places])


def _workers(program: Program) -> Finding | None:
    """Starting and stopping workers, where waiting for their batches is not a cause already."""
    share, waits = program.share("workers"), program.share("input")
    if (
        share < thresholds.WORTH / 2
        or waits >= thresholds.WORTH
        or share + waits < thresholds.WORTH
    ):
        return None
    share += waits
    loader = _loader(program)
    return _finding(
        "worker_overhead",
        share,
        [
            f"{format_percent(share)} of the time loader workers start, stop or are waited for, "
            f"{loader.epochs if loader else 0} times"
        ],
        KEEP_WORKERS,
        [*loader_places(program.longest.lines, share), *program.places("workers")],
    )


def _dense_optimizer(program: Program) -> Finding | None:
    """The optimizer walks rows that have no gradient; making and clearing them costs, too."""
    rank = program.longest
    few = _sparse_tables(rank)
    rows, touched = sum(each.rows for each in few), sum(each.touched or 0 for each in few)
    size = sum(each.rows * each.width for each in few)
    if not few or not rank.parameters or size < 0.5 * rank.parameters:
        return None
    part = size / rank.parameters * (1 - touched / rows)
    share = part * program.share("optimizer")
    # The dense gradient is made in the backward pass; of several ranks it is the exchange's.
    made = 0.0 if program.several else part * program.share("backward")
    if share < thresholds.WORTH / 2 or share + made < thresholds.WORTH:
        return None
    left = [min(ALL_LEFT, cost * touched / rows) for cost in SCATTERED]
    if left[0] == ALL_LEFT:
        return None  # an update of scattered rows would take as long as the walk
    least = LEAST_IF_FUSED if rank.fused else LEAST_BY_ROWS
    large = any(each.rows * each.width >= least for each in few)
    if rank.fused and not large:
        return None  # it walks them as fast as their rows alone
    return Finding(
        "dense_optimizer",
        min(1.0, share + made / 2),
        "time",
        (
            f"{rank.optimizer} walks {format_number(rows)} rows of embedding tables, "
            f"{format_number(touched)} of them have a gradient",
            f"the optimizer takes {format_percent(program.share('optimizer'))} of the time, the "
            f"backward pass {format_percent(program.share('backward'))}",
        ),
        "Update only rows with a gradient, same result: hpcncf.remedies.rowwise(model, optimizer)."
        if large
        else "Let one call update all parameters (fused=True, or hpcncf run --with fused): these "
        "tables are too small to gain from updates by rows.",
        gain=reduced(min(1.0, share + made), (left[0], left[1], left[2])) if large else None,
        places=program.places("optimizer"),
    )


def _sparse_tables(rank: ProgramProfile) -> list[ProgramTable]:
    """Embedding tables of which a step reads few rows. Rows of a linear layer have no gradient
    if its units are dead: such a layer is seldom taller than TALL times its width."""
    return [
        each
        for each in rank.tables
        if each.touched is not None
        and each.touched < thresholds.SPARSE * each.rows
        and each.rows > TALL * each.width
    ]


def _ranks(program: Program) -> Finding | None:
    """Time in collectives: their own, or waiting for a rank that is late."""
    ranks = program.ranks
    if not program.several or len(ranks) < ranks[0].ranks:
        return None
    whole = max(each.seconds for each in ranks)
    if whole <= 0:
        return None  # a program that the probe saw start, and nothing of afterwards
    waits = [seconds_in(each, "sync") for each in ranks]
    # A core that a neighbour held makes no straggler.
    useful = [
        max(0.0, each.seconds - wait - (each.runqueue_s or 0.0))
        for each, wait in zip(ranks, waits, strict=True)
    ]
    found, exchange = balance(useful, whole), min(waits) / whole
    if found and found.others_wait >= thresholds.WORTH and found.others_wait > exchange / 2:
        return _late(program, found, useful)
    if exchange < thresholds.WORTH:
        return None
    few = _sparse_tables(program.longest)
    facts = [f"{format_percent(exchange)} of the time even the last rank waits for the exchange"]
    if few:
        facts.append(
            f"a dense all-reduce of embedding tables: {format_number(few[0].touched)} of "
            f"{format_number(few[0].rows)} rows have a gradient"
        )
    return _finding(
        "sync_bound",
        exchange,
        facts,
        "Exchange only rows with a gradient (nn.Embedding(sparse=True))."
        if few
        else "Exchange less often or less: larger batches, no_sync() over several, fewer ranks.",
        (program.places("sync") or program.places("backward"))[:MOST_PLACES],
    )


def _late(program: Program, found: Balance, useful: Sequence[float]) -> Finding:
    late, rank = found.others_wait, program.ranks[found.slowest]
    unit, work = _work(program)
    excess = {
        phase: seconds_in(rank, phase)
        - sum(seconds_in(each, phase) for each in program.ranks) / len(program.ranks)
        for phase in PHASES
        if phase != "sync"
    }
    phase = max(excess, key=lambda name: excess[name])
    where = f"most of the difference is in its phase {phase}"
    places = program.places(phase, rank=rank)
    if has_more_work(found, work):
        mean = sum(work) / len(work)
        fact = f"rank {rank.rank} has {work[found.slowest]:,} {unit}, the mean is {mean:,.0f}"
        remedy = "Give every rank as much to do: shard by the cost of the work."
        return _finding("load_imbalance", late, [fact, where], remedy, places)
    others = [each for at, each in enumerate(useful) if at != found.slowest]
    mean = sum(others) / len(others)
    ratio = useful[found.slowest] / mean if mean > 0 else float("inf")
    fact = f"rank {rank.rank} computes {ratio:.2g} times as long as the others, which wait for it"
    remedy = f"Look at rank {rank.rank}: its cores, its data, its own code in that phase."
    return _finding("straggler", late, [fact, where], remedy, places)


def _work(program: Program) -> tuple[str, list[int]]:
    """What each rank had to do, in the finest unit that is known of all."""
    reported = {each.rank: each.instances for each in program.evidence.ranks}
    counts: dict[str, list[int | None]] = {
        "instances": [reported.get(each.rank) for each in program.ranks],
        "samples": [each.samples for each in program.ranks],
        "batches": [each.batches for each in program.ranks],
    }
    for unit, found in counts.items():
        known = [each for each in found if each]
        if len(known) == len(found):
            return unit, known
    return "steps", [each.steps for each in program.ranks]


def _evaluation(program: Program) -> Finding | None:
    in_loop, lines = program.metrics
    scored, computed = program.share("evaluation"), program.share("loop") * in_loop
    share = scored + computed
    if share < 1.5 * thresholds.WORTH:
        return None
    facts = [f"evaluation takes {format_percent(share)} of the time"]
    places: Sequence[Place] = program.places("evaluation")
    if computed > scored:
        facts.append(f"{format_percent(computed)} is after its model has computed")
        places = places_of(lines, computed)
    remedy = "Evaluate less often, in larger batches, or against sampled items."
    return _finding("evaluation_bound", share, facts, remedy, places)


def _checkpoint(program: Program) -> Finding | None:
    """`torch.save`, and lines of a training's own that write a file."""
    saved, in_loop = program.share("checkpoint"), program.share("loop")
    share = saved + sum(each.own_share for each in program.written) * in_loop
    if share < thresholds.WORTH:
        return None
    fact = f"writing checkpoints takes {format_percent(share)} of the time"
    if saved and not program.written:
        fact += f", {sum(each.phases['checkpoint'].entered for each in program.ranks)} in all"
    return _finding(
        "checkpoint_bound",
        share,
        [fact],
        "Write checkpoints less often, or to a faster disk.",
        [*places_of(program.written, in_loop), *program.places("checkpoint")][:MOST_PLACES],
    )


def _loop(program: Program) -> Finding | None:
    """The program's own code between the phases, by what it does there."""
    usable = program.evidence.cores.usable or 0.0
    busy = program.wanted >= thresholds.BUSY * usable
    if not program.steps and (program.computes or (busy and not program.interprets)):
        return None
    # A model that is no Module computes there, too: about half as long as its backward pass.
    # What one rank spends there beyond the others is a straggler's.
    share = min(share_of(each, "loop") for each in program.ranks)
    written = sum(each.own_share for each in program.written)
    share *= max(0.0, 1 - written - program.metrics[0])
    share -= max(0.0, program.share("backward") - program.share("forward"))
    if not program.steps and program.longest.seconds > 0:
        share -= program.longest.imports_s / program.longest.seconds
    if share < 1.25 * thresholds.WORTH:
        return None
    return (_batch_thread(program, share) if program.steps else None) or _own_code(program, share)


def _batch_thread(program: Program, share: float) -> Finding | None:
    """Training waits while another thread of it makes the batches."""
    rank = program.longest
    # It computes more than the training thread, for most of the time between the steps.
    least = 0.5 * rank.seconds * program.share("loop")
    busy = [
        each
        for each in rank.threads
        if each.file
        and each.cpu_s >= (rank.main_cpu_s or 0.0)
        and each.cpu_s + each.runqueue_s >= least
    ]
    if program.waiting("loop") < thresholds.WORTH or not busy or rank.seconds <= 0:
        return None
    computes = min(1.0, (busy[0].cpu_s + busy[0].runqueue_s) / rank.seconds)
    return _finding(
        "python_input",
        share,
        [
            f"for {format_percent(share)} of the time training waits between its steps, while "
            f"another thread of it computes for {format_percent(computes)}"
        ],
        "Make whole batches at once by array operations: a thread computes no faster than "
        "the training itself would.",
        [place(line_of_thread(busy[0]), computes)],
    )


def _own_code(program: Program, share: float) -> Finding:
    cores, waits = program.evidence.cores, program.waiting("loop")
    fact = f"{format_percent(share)} of the time is in the program's own code"
    fact += " between the phases of a step" if program.steps else ""
    if waits > 0.5:
        fact += f", which waits for {format_percent(waits)} of that"
    facts = [fact]
    if cores.used is not None and cores.usable is not None:
        used, usable = format_cores(cores.used), format_cores(cores.usable)
        facts.append(f"{used} of {usable} usable cores in use")
    if program.interprets:
        facts.append("its operations are short: it goes on to the next within 0.1 ms")
    return _finding(
        "loop_code",
        share,
        facts,
        "Replace the Python loop at that line by array operations, or move it out of the step."
        if waits <= 0.5
        else "Look at what that line waits for: a file, a network, a lock or a sleep.",
        program.places("loop"),
    )


def _serial(program: Program) -> Finding | None:
    """The step itself computes, on clearly less than half of the cores."""
    usable, used = program.evidence.cores.usable, program.evidence.wanted
    compute = sum(map(program.share, ("forward", "backward", "optimizer")))
    if program.computes:
        compute += program.share("loop")
    if not usable or used is None or compute < 0.5:
        return None
    rank = program.longest
    threads = (rank.torch_threads or 0) * len(program.ranks)
    limited = program.computes or (
        0 < threads < usable and rank.seconds >= LONG_STEP_S * rank.steps
    )
    if used >= (LIMITED if limited else SERIAL) * usable:
        return None
    facts = [
        f"{'the program' if program.computes else 'the step'} computes for "
        f"{format_percent(compute)} of the time, with {format_cores(used)} of "
        f"{format_cores(usable)} usable cores"
    ]
    remedy = (
        "Ask for fewer cores: a step this small does not spread over more. Or use larger batches."
    )
    if program.computes:
        remedy = "Let the library use as many threads as cores (OMP_NUM_THREADS, "
        remedy += "torch.set_num_threads, n_jobs), or ask for fewer cores."
    elif limited:
        facts.append(f"torch was set to {pluralize(rank.torch_threads or 0, 'thread')}")
        remedy = "Give torch as many threads as cores (torch.set_num_threads, OMP_NUM_THREADS), or "
        remedy += "ask for fewer cores."
        asked = [each.remedy for each in rank.remedies if each.remedy.startswith("threads=")]
        if asked:
            remedy = f"Ask for fewer cores: the others idle by --with {asked[0]}."
    return Finding(
        "serial_step",
        compute * (1 - used / usable),
        "cores",
        tuple(facts),
        remedy,
        places=program.places("forward", *(["loop"] if program.computes else [])),
    )


def _memory(program: Program) -> Finding | None:
    grown, peak = program.evidence.memory_growth_mib, program.evidence.memory_peak_mib
    if grown is None or not peak or not program.steps or grown < thresholds.WORTH * peak:
        return None
    places = lines_that_keep_graphs(program.longest.lines)
    return Finding(
        "memory_growth",
        min(1.0, grown / peak),
        "memory",
        (f"memory grew steadily by {format_mebibytes(grown)}",),
        "Keep numbers, not tensors with a graph: loss.item() or loss.detach()."
        if places
        else "Look for what each step adds to and nothing empties: a list of results, a cache, "
        "a sum of losses that was not detached.",
        places=places,
    )
