"""Rules on a user's own program, by what the probe inside it saw.

Shares are of the time after start-up, the mean over the ranks.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, Literal

from hpcncf.errors import HpcncfError
from hpcncf.lint.python_script import check_python
from hpcncf.lint.rules import Complaint
from hpcncf.records.schema import (
    ProgramLoader,
    ProgramPhase,
    ProgramProfile,
    ProgramTable,
    ProgramThread,
    RecordError,
    SourceLine,
    read_regular,
)
from hpcncf_analysis.configurations import pluralize
from hpcncf_analysis.diagnosis import expected_gain, thresholds
from hpcncf_analysis.diagnosis.evidence import Evidence, Finding, Gain, Place
from hpcncf_analysis.formatting import (
    format_cores,
    format_duration,
    format_mebibytes,
    format_number,
    format_percent,
)

PHASES: Final = (
    "input",
    "forward",
    "backward",
    "optimizer",
    "sync",
    "evaluation",
    "checkpoint",
    "workers",
    "loop",
)
# The line that itself takes at least this share of its phase is the one to change, else the first
# of a function whose own lines take HOT together, else the deepest that takes HOT with its calls.
HOT_ITSELF: Final = 0.3
HOT: Final = 0.4
MOST_PLACES: Final = 3
# One busy core of two is half of them, less the moments in which it waits.
SERIAL: Final = 0.45
# The same where the program itself gave torch fewer threads than cores; a shorter step gains little
# by more.
LIMITED: Final = 0.75
LONG_STEP_S: Final = 0.01
# Of pairs of looks: 0.49 to 1.0 in six Python loops of tests/programs, 0.0 to 0.13 in two programs
# of arrays there.
INTERPRETS: Final = 0.35
COMPUTES: Final = 0.2
# Functions whose time after `no_grad` is evaluation as well.
EVALUATES: Final = re.compile(r"eval|valid|test|metric", re.IGNORECASE)
# Lines that unpack a sample, which no array operation does for a whole batch.
UNPACKS: Final = re.compile(
    r"decod|decompress|image|jpe?g|audio|h5py|parse|tokeni|json\.|execute\(|"
    r"\b(load|open|imread|read\w*)\(|\bre\.(find|split|sub)|strptime"
)
# Lines that write a state to a file without `torch.save`.
WRITES: Final = re.compile(
    r"\b(pickle|joblib|json)\.dump\(|fsync|\bsavez?(_compressed|_file|_pretrained)?\(|"
    r"\.to_(csv|parquet|pickle|hdf)\("
)
# C code of these lines lets go of the interpreter's lock, and takes samples that were due on the
# lines before. If those of the function took this much of its own, one of them is the line to
# change: a comprehension, which repeats, before one that runs once.
HANDS_OVER: Final = re.compile(
    r"\b(torch|np|numpy)\.(tensor|as_tensor|from_numpy|stack|array|asarray|\w*Tensor)\(|\.put\("
)
ABSORBED: Final = 0.5
# They come up to 0.1 ms late: of functions that take hardly longer, most fall on that line.
BRIEF_S: Final = 2e-4
ABSORBED_IN_BRIEF: Final = 0.15
REPEATS: Final = re.compile(r"\bfor\b.*\bin\b")
NEGATIVES: Final = re.compile(r"neg|random\.sample\(|set\(.*\) ?-|not in ")
# Of the time that a dense optimizer spends, what an update of the touched rows alone takes, over
# their share of all rows: they lie apart, so each costs a cache miss where the walk streams.
SCATTERED: Final = (4.0, 1.0, 10.0)
ALL_LEFT: Final = 0.9
# Numbers in a table from which on `hpcncf.remedies.rowwise` takes it.
LEAST_BY_ROWS: Final = 2**19
# The feed-forward layer of a transformer; tables of 2,000 rows and more are rarely as wide.
TALL: Final = 4
LARGEST_SOURCE: Final = 1024**2


class Program:
    """The ranks of a program together, and one worker of theirs."""

    def __init__(self, evidence: Evidence) -> None:
        self.evidence = evidence
        self.ranks = [each for each in evidence.program if not each.is_worker]
        self.workers = [each for each in evidence.program if each.is_worker]
        self.steps = max((each.steps for each in self.ranks), default=0)
        self.longest = max(self.ranks, key=lambda each: each.seconds)

    @property
    def idle_cores(self) -> float:
        """Usable cores that neither it nor a neighbour used."""
        cores = self.evidence.cores
        busy = (cores.used or 0.0) + (self.evidence.others_cores or 0.0)
        return max(0.0, (cores.usable or 0.0) - busy)

    @property
    def wanted(self) -> float:
        """Cores that it would have used without neighbours, by how long its training thread waited
        for one: the probe's own thread waits, too, and computes little."""
        used, rank = self.evidence.cores.used or 0.0, self.longest
        if rank.main_cpu_s and rank.runqueue_s:
            used *= 1 + rank.runqueue_s / rank.main_cpu_s
        return min(used, self.evidence.wanted or 0.0)

    @property
    def spinning(self) -> float:
        """Cores of torch's threads that wait for work without sleeping while samples are made: what
        they used beyond the other phases."""
        cores = 0.0
        for rank in self.ranks:
            if rank.torch_threads is None or rank.seconds <= 0:
                continue
            computes_s = rank.seconds - _seconds(rank.phases.get("input"))
            spun_s = _library_cpu_s(rank) - (rank.torch_threads - 1) * computes_s
            cores += max(0.0, spun_s) / rank.seconds
        return cores

    @property
    def library_cores(self) -> float:
        """Cores of the threads that a library (BLAS) has beside the Python ones."""
        return sum(_library_cpu_s(each) / each.seconds for each in self.ranks if each.seconds > 0)

    @property
    def interprets(self) -> bool:
        """Whether a program without steps goes from one short operation to the next, so that
        threads of a library only wait."""
        return (self.longest.moved or 0.0) >= INTERPRETS

    @property
    def computes(self) -> bool:
        """Whether a program without steps makes one operation on large arrays after the other."""
        moved = self.longest.moved
        return moved is not None and moved < COMPUTES

    @property
    def several(self) -> bool:
        """Whether its processes are ranks: those of a pool (joblib) do not wait for each other."""
        return self.evidence.world_size > 1 or self.longest.ranks > 1

    def share(self, phase: str) -> float:
        """Of the time after start-up, the mean over the ranks."""
        shares = [shares_of(each).get(phase, 0.0) for each in self.ranks]
        return sum(shares) / len(shares)

    def waiting(self, phase: str) -> float:
        """Share of a phase in which the training thread waited, the mean over the ranks."""
        parts = [each.phases[phase] for each in self.ranks if phase in each.phases]
        seconds = sum(part.seconds for part in parts)
        waited = sum(part.seconds * (part.waiting or 0.0) for part in parts)
        return waited / seconds if seconds > 0 else 0.0

    def places(self, *phases: str, rank: ProgramProfile | None = None) -> tuple[Place, ...]:
        """The user's lines of these phases, the hottest first."""
        profile = rank or self.longest
        found = []
        for phase in phases:
            lines = [each for each in profile.lines if each.phase == phase]
            brief = phase == "input" and _is_brief(_seconds(profile.phases.get(phase)), profile)
            found += _places(lines, self.share(phase) if rank is None else 1.0, brief)
        return tuple(found)


def shares_of(profile: ProgramProfile) -> dict[str, float]:
    """Phase -> share of the rank's time."""
    whole = profile.seconds
    return {name: part.seconds / whole for name, part in profile.phases.items()} if whole else {}


def _is_brief(seconds: float, profile: ProgramProfile) -> bool:
    """Whether making one sample takes too short to separate its lines by samples."""
    return seconds < BRIEF_S * (profile.samples or 0)


def _library_cpu_s(rank: ProgramProfile) -> float:
    """CPU seconds of threads that no Python code runs in; 0 where they are not known."""
    if rank.main_cpu_s is None:
        return 0.0
    python_s = rank.main_cpu_s + rank.sampler_cpu_s + sum(each.cpu_s for each in rank.threads)
    return max(0.0, rank.cpu_s - python_s)


def _seconds(part: ProgramPhase | None) -> float:
    return part.seconds if part else 0.0


def _places(lines: Sequence[SourceLine], share: float, brief: bool = False) -> list[Place]:
    """The hot line, one inside the phase if there is any, then those that take most themselves."""
    first = None
    for side in ([each for each in lines if not each.outside], lines):
        first = max(side, key=lambda each: each.own_share, default=None)
        if first is None or first.own_share < HOT_ITSELF:
            hot = [each for each in side if each.share >= HOT]
            first = _of_hot_function(side) or max(
                hot, key=lambda each: (each.depth, each.share), default=None
            )
        if first is not None:
            break
    others = [each for each in lines if each.own_share >= 0.05]
    others.sort(key=lambda each: -each.own_share)
    first = first or (others[0] if others else None)
    if first is not None:
        first = _before_hand_over(first, lines, ABSORBED_IN_BRIEF if brief else ABSORBED)
    chosen = [*([first] if first else []), *(each for each in others if each is not first)]
    return [place(each, share) for each in chosen[:MOST_PLACES] if each.share >= 0.1]


def _of_hot_function(lines: Sequence[SourceLine]) -> SourceLine | None:
    """The line that takes most itself of a function whose lines together take HOT themselves."""
    own: dict[tuple[str, str], list[SourceLine]] = {}
    for each in lines:
        own.setdefault((each.file, each.function), []).append(each)
    hot = max(own.values(), key=lambda of: sum(each.own_share for each in of), default=[])
    if sum(each.own_share for each in hot) < HOT:
        return None
    return max(hot, key=lambda each: each.own_share)


def _before_hand_over(
    first: SourceLine, lines: Sequence[SourceLine], absorbed: float
) -> SourceLine:
    """The line itself, or the one whose samples it took."""
    if not HANDS_OVER.search(text_of(first)):
        return first
    before = [
        each
        for each in lines
        if (each.file, each.function) == (first.file, first.function)
        and not HANDS_OVER.search(text_of(each))
    ]
    if sum(each.own_share for each in before) < absorbed * first.own_share:
        return first
    return max(
        before, key=lambda each: each.own_share * (4 if REPEATS.search(text_of(each)) else 1)
    )


def text_of(line: SourceLine) -> str:
    """The line's text; empty if the file is not there."""
    text, _ = _source(line.file)
    return text[line.line - 1].strip() if 0 < line.line <= len(text) else ""


def place(line: SourceLine, share: float = 1.0) -> Place:
    """A line with its text and its lint, if the file is there."""
    _, complaints = _source(line.file)
    return Place(
        file=line.file,
        line=line.line,
        function=line.function,
        share=line.share * share,
        source=text_of(line) or None,
        advice=complaints[line.line].message if line.line in complaints else None,
    )


def loader_place(lines: Sequence[SourceLine], share: float) -> list[Place]:
    """Where the DataLoader with workers is made, if a file of these lines has one such call."""
    for file in dict.fromkeys(each.file for each in lines):
        if call := _loader_call(file):
            at, name, source = call
            return [Place(file=file, line=at, function=name, share=share, source=source)]
    return []


@functools.lru_cache(maxsize=64)
def _loader_call(file: str) -> tuple[int, str, str] | None:
    """Line, function and text of the only call with `num_workers` in the file."""
    text, _ = _source(file)
    try:
        tree = ast.parse("\n".join(text))
    except (SyntaxError, ValueError, RecursionError):
        return None
    calls = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and any(
            word.arg == "num_workers" and getattr(word.value, "value", None) != 0
            for word in node.keywords
        )
    ]
    if len(calls) != 1:
        return None
    at = calls[0].lineno
    return at, ast.unparse(calls[0].func), text[at - 1].strip()


@functools.lru_cache(maxsize=64)
def _source(file: str) -> tuple[list[str], Mapping[int, Complaint]]:
    """Lines of the file, and line -> complaint."""
    try:
        text = read_regular(Path(file), LARGEST_SOURCE).decode("utf-8", "replace")
    except (OSError, ValueError, RecordError):  # ValueError: a null character in the name
        return [], {}
    try:
        complaints = {each.line: each for each in check_python(text)}
    except HpcncfError:
        complaints = {}
    return text.splitlines(), complaints


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
    return [found for rule in rules if (found := rule(program)) is not None]


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
        places=tuple(_places(rank.startup_lines, share)),
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
        places=(place(_line_of(at), others),),
    )


def _line_of(thread: ProgramThread) -> SourceLine:
    """Where it was found most often; only for a thread that was found in the user's code."""
    assert thread.file is not None
    assert thread.line is not None
    found = [
        SourceLine(
            phase="threads",
            file=thread.file,
            line=line,
            function=thread.function,
            share=1.0,
            own_share=1.0,
            depth=0,
        )
        for line in (thread.line, *thread.also)
    ]
    # Threads that take turns keep the lock for 5 ms, or until C code lets go of it.
    return _before_hand_over(found[0], found, ABSORBED)


def _input(program: Program) -> Finding | None:
    share = program.share("input")
    if share < thresholds.WORTH:
        return None
    loader = _loader(program)
    if loader and loader.workers:
        return _slow_workers(program, loader, share)
    waits = program.waiting("input")
    fact = f"{format_percent(share)} of the time the training thread is in its data loader"
    if waits > 0.5:
        return Finding(
            "input_io",
            share,
            "time",
            (f"{fact}, which waits for {format_percent(waits)} of that", *_read(program.evidence)),
            "Read ahead with DataLoader workers, from a faster place (node-local disk or memory), "
            "in larger pieces.",
            gain=removed(share),
            places=program.places("input"),
        )
    places = program.places("input")
    remedy, gain = _input_remedy(program, share, places)
    return Finding(
        "python_input",
        share,
        "time",
        (f"{fact}, which computes for {format_percent(1 - waits)} of that",),
        remedy,
        gain=gain,
        places=places,
    )


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
        remedy = "Draw negatives for a whole batch at once: hpcncf.remedies.NegativeSampler."
    return remedy, reduced(share, expected_gain.VECTORIZED)


def _read(evidence: Evidence) -> list[str]:
    return [f"{evidence.read_mib:,.0f} MiB were read from storage"] if evidence.read_mib else []


def _loader(program: Program) -> ProgramLoader | None:
    trains = [each for each in program.longest.loaders if not each.evaluates]
    return max(trains, key=lambda each: each.batches, default=None)


def _slow_workers(program: Program, loader: ProgramLoader, share: float) -> Finding:
    """The steps wait though workers make the batches."""
    busy = [each.worker_busy for each in program.workers if each.worker_busy is not None]
    restarted = loader.epochs > 2 and not loader.persistent
    share = min(1.0, share + program.share("workers"))
    facts = [
        f"{format_percent(share)} of the time the training thread waits for "
        f"{pluralize(loader.workers, 'loader worker')}"
    ]
    if busy:
        facts.append(f"a worker is busy for {format_percent(busy[0])} of its time")
    idle = program.idle_cores
    lines, brief = list[SourceLine](), False
    if program.workers:
        worker = program.workers[0]
        lines = worker.lines
        brief = _is_brief(loader.workers * (worker.main_cpu_s or 0.0), program.longest)
    places = tuple(_places(lines, share, brief))
    if busy and busy[0] >= 0.5:
        if idle >= 0.7:
            more = loader.workers + max(1, int(idle + 0.3))
            most = min(more / loader.workers, faster(share))
            return Finding(
                "too_few_workers",
                share,
                "time",
                (*facts, f"{format_cores(idle)} usable cores are idle"),
                f"Use more workers (hpcncf run --with workers={more}), or make a sample cheaper.",
                gain=Gain(most, 1.0, faster(share)),
                places=places,
            )
        return Finding(
            "python_input",
            share,
            "time",
            tuple(facts),
            "Make whole batches at once with array operations (`__getitems__`): all cores are "
            "busy, so more workers will not help.",
            gain=removed(share),
            places=places,
        )
    if restarted:
        facts.append(f"they are started anew for each of {loader.epochs} epochs")
    return Finding(
        "worker_overhead",
        share,
        "time",
        tuple(facts),
        "Keep the workers (hpcncf run --with persistent_workers), or make the batches in the "
        "main process (--with workers=0)."
        if restarted
        else "Make the batches in the main process (hpcncf run --with workers=0), or send larger "
        "ones.",
        gain=removed(share),
        places=(*loader_place(program.longest.lines, share), *places),
    )


def _workers(program: Program) -> Finding | None:
    """Starting and stopping workers, where waiting for their batches is not a cause already."""
    share = program.share("workers")
    if share < thresholds.WORTH / 2 or program.share("input") >= thresholds.WORTH:
        return None
    share += program.share("input")
    if share < thresholds.WORTH:
        return None
    loader = _loader(program)
    epochs = loader.epochs if loader else 0
    return Finding(
        "worker_overhead",
        share,
        "time",
        (
            f"{format_percent(share)} of the time loader workers start, stop or are waited for, "
            f"{epochs} times",
        ),
        "Keep the workers (hpcncf run --with persistent_workers), or make the batches in the main "
        "process (--with workers=0).",
        gain=removed(share),
        places=(*loader_place(program.longest.lines, share), *program.places("workers")),
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
    large = any(each.rows * each.width >= LEAST_BY_ROWS for each in few)
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
    waits = [_seconds(each.phases.get("sync")) for each in ranks]
    # A core that a neighbour held makes no straggler.
    useful = [
        max(0.0, each.seconds - wait - (each.runqueue_s or 0.0))
        for each, wait in zip(ranks, waits, strict=True)
    ]
    late = (max(useful) - sum(useful) / len(useful)) / whole
    late *= len(useful) / max(1, len(useful) - 1)
    exchange = min(waits) / whole
    if late >= thresholds.WORTH and late > exchange / 2:
        return _late(program, useful, late)
    if exchange < thresholds.WORTH:
        return None
    few = _sparse_tables(program.longest)
    facts = [f"{format_percent(exchange)} of the time even the last rank waits for the exchange"]
    if few:
        facts.append(
            f"a dense all-reduce of embedding tables: {format_number(few[0].touched)} of "
            f"{format_number(few[0].rows)} rows have a gradient"
        )
    return Finding(
        "sync_bound",
        exchange,
        "time",
        tuple(facts),
        "Exchange only rows with a gradient (nn.Embedding(sparse=True))."
        if few
        else "Exchange less often or less: larger batches, no_sync() over several, fewer ranks.",
        gain=removed(exchange),
        places=(program.places("sync") or program.places("backward"))[:MOST_PLACES],
    )


def _late(program: Program, useful: Sequence[float], late: float) -> Finding:
    slow = max(range(len(useful)), key=lambda at: useful[at])
    rank = program.ranks[slow]
    unit, work = _work(program)
    mean = sum(work) / len(work)
    others = [each for at, each in enumerate(useful) if at != slow]
    ratio = useful[slow] / (sum(others) / len(others)) if sum(others) > 0 else float("inf")
    more = mean > 0 and work[slow] / mean - 1 >= (useful[slow] * len(useful) / sum(useful) - 1) / 2
    cause: Literal["load_imbalance", "straggler"] = "load_imbalance" if more else "straggler"
    excess = {
        phase: _seconds(rank.phases.get(phase))
        - sum(_seconds(each.phases.get(phase)) for each in program.ranks) / len(work)
        for phase in PHASES
        if phase != "sync"
    }
    phase = max(excess, key=lambda name: excess[name])
    fact = f"rank {rank.rank} computes {ratio:.2g} times as long as the others, which wait for it"
    if more:
        fact = f"rank {rank.rank} has {work[slow]:,} {unit}, the mean is {mean:,.0f}"
    return Finding(
        cause,
        late,
        "time",
        (fact, f"most of the difference is in its phase {phase}"),
        "Give every rank as much to do: shard by the cost of the work."
        if more
        else f"Look at rank {rank.rank}: its cores, its data, its own code in that phase.",
        gain=removed(late),
        places=program.places(phase, rank=rank),
    )


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
    scored, metrics = program.share("evaluation"), _metrics(program)
    computed = program.share("loop") * metrics[0]
    share = scored + computed
    if share < 1.5 * thresholds.WORTH:
        return None
    facts = [f"evaluation takes {format_percent(share)} of the time"]
    places = program.places("evaluation")
    if computed > scored:
        facts.append(f"{format_percent(computed)} is after its model has computed")
        places = tuple(_places(metrics[1], computed))
    return Finding(
        "evaluation_bound",
        share,
        "time",
        tuple(facts),
        "Evaluate less often, in larger batches, or against sampled items.",
        gain=removed(share),
        places=places,
    )


def _metrics(program: Program) -> tuple[float, list[SourceLine]]:
    """Share of the time between the phases in which a function that evaluates goes on without
    its model, as for a metric; and its lines, by their share of that."""
    lines = program.longest.lines
    steps = ("input", "forward", "backward", "optimizer")
    trains = {(each.file, each.function) for each in lines if each.phase in steps}
    scores = {(each.file, each.function) for each in lines if each.phase == "evaluation"} - trains
    loop = [each for each in lines if each.phase == "loop"]
    calls = [
        each
        for each in loop
        if (each.file, each.function) in scores and EVALUATES.search(each.function)
    ]
    depth = min((each.depth for each in calls), default=0)
    share = min(1.0, sum(each.share for each in calls if each.depth == depth))
    return share, [
        each.model_copy(
            update={"share": min(1.0, each.share / share), "own_share": each.own_share / share}
        )
        for each in loop
        if share and each.depth >= depth and (each.file, each.function) not in trains
    ]


def _checkpoint(program: Program) -> Finding | None:
    """`torch.save`, and lines of a training's own that write a file."""
    saved, written = program.share("checkpoint"), _written(program)
    share = saved + sum(each.own_share for each in written) * program.share("loop")
    if share < thresholds.WORTH:
        return None
    counts = [each.phases["checkpoint"].entered for each in program.ranks if saved]
    times = f", {sum(counts)} in all" if counts and not written else ""
    places = tuple(_places(written, program.share("loop")))
    return Finding(
        "checkpoint_bound",
        share,
        "time",
        (f"writing checkpoints takes {format_percent(share)} of the time{times}",),
        "Write checkpoints less often, or to a faster disk.",
        gain=removed(share),
        places=(*places, *program.places("checkpoint"))[:MOST_PLACES],
    )


def _written(program: Program) -> list[SourceLine]:
    """Lines between the steps that write a state without `torch.save`."""
    lines = [each for each in program.longest.lines if each.phase == "loop" and program.steps]
    return [each for each in lines if each.own_share and WRITES.search(text_of(each))]


def _loop(program: Program) -> Finding | None:
    """The program's own code between the phases, by what it does there."""
    usable = program.evidence.cores.usable or 0.0
    busy = program.wanted >= thresholds.BUSY * usable
    if not program.steps and (program.computes or (busy and not program.interprets)):
        return None
    # A model that is no Module computes there, too: about half as long as its backward pass.
    # What one rank spends there beyond the others is a straggler's.
    share = min(shares_of(each).get("loop", 0.0) for each in program.ranks)
    share *= max(0.0, 1 - sum(each.own_share for each in _written(program)) - _metrics(program)[0])
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
    return Finding(
        "python_input",
        share,
        "time",
        (
            f"for {format_percent(share)} of the time training waits between its steps, while "
            f"another thread of it computes for {format_percent(computes)}",
        ),
        "Make whole batches at once by array operations: a thread computes no faster than "
        "the training itself would.",
        gain=removed(share),
        places=(place(_line_of(busy[0]), computes),),
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
    return Finding(
        "loop_code",
        share,
        "time",
        tuple(facts),
        "Replace the Python loop at that line by array operations, or move it out of the step."
        if waits <= 0.5
        else "Look at what that line waits for: a file, a network, a lock or a sleep.",
        gain=removed(share),
        places=program.places("loop"),
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
    places = _lines_that_keep_graphs(program.longest.lines)
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


def _lines_that_keep_graphs(lines: Sequence[SourceLine]) -> tuple[Place, ...]:
    found = []
    for file in dict.fromkeys(each.file for each in lines):
        text, complaints = _source(file)
        found += [
            Place(file, number, "", 0.0, text[number - 1].strip(), complaint.message)
            for number, complaint in complaints.items()
            if complaint.rule == "kept-graph"
        ]
    return tuple(found[:MOST_PLACES])
