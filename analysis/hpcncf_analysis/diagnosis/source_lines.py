"""Lines of the user's program: which one of a phase is the one to change."""

from __future__ import annotations

import ast
import builtins
import functools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from hpcncf.errors import HpcncfError
from hpcncf.lint.python_script import check_python
from hpcncf.lint.rules import Complaint
from hpcncf.records.schema import ProgramThread, RecordError, SourceLine, read_regular

# The line that itself takes at least this share of its phase is the one to change, else the first
# of a function whose own lines take HOT together, else the deepest that takes HOT with its calls.
HOT_ITSELF: Final = 0.3
HOT: Final = 0.4
MOST_PLACES: Final = 3
# Of pairs of looks: 0.49 to 1.0 in six Python loops of benchmarks/corpus, 0.0 to 0.13 in two
# programs of arrays there.
INTERPRETS: Final = 0.35
COMPUTES: Final = 0.2
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
LARGEST_SOURCE: Final = 1024**2


@dataclass(frozen=True)
class CodeLocation:
    """A line of the user's program that a cause lies in."""

    file: str
    line: int
    function: str
    share: float
    """Of the program's time after start-up, with all that the line called."""
    source: str | None = None
    """The line's text; None if the file cannot be read, or has changed since."""
    advice: str | None = None
    """What `hpcncf lint` says of that line."""

    @property
    def name(self) -> str:
        """Place in short form, such as `train.py:88 sample_negatives`."""
        return f"{Path(self.file).name}:{self.line} {self.function}".rstrip()


def places_of(lines: Sequence[SourceLine], share: float, brief: bool = False) -> list[CodeLocation]:
    """Choose the lines to show: first the one to change, then those with most own time.

    The line to change is one inside the phase, if there is any.
    """
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
    """Line with most own time in the hottest function; None if that is below HOT."""
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
    """Return the line itself, or the one before it whose samples were attributed to it.

    This happens at calls into C code that release the interpreter's lock.
    """
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
    """Source text of the line; empty if the file cannot be read."""
    text, _ = _source(line.file)
    return text[line.line - 1].strip() if 0 < line.line <= len(text) else ""


def place(line: SourceLine, share: float = 1.0) -> CodeLocation:
    """Convert a sampled line to a place, with its text and `hpcncf lint` advice if readable."""
    _, complaints = _source(line.file)
    return CodeLocation(
        file=line.file,
        line=line.line,
        function=line.function,
        share=line.share * share,
        source=text_of(line) or None,
        advice=complaints[line.line].message if line.line in complaints else None,
    )


def line_of_thread(thread: ProgramThread) -> SourceLine:
    """Line at which a thread was seen most often; requires a thread seen in user code."""
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


def loader_places(lines: Iterable[SourceLine], share: float) -> list[CodeLocation]:
    """Place where the DataLoader with workers is created; empty unless it is unambiguous."""
    for file in dict.fromkeys(each.file for each in lines):
        if call := _loader_with_workers(file):
            line, name = call
            return [CodeLocation(file, line, name, share, _source(file)[0][line - 1].strip())]
    return []


@functools.lru_cache(maxsize=64)
def _loader_with_workers(file: str) -> tuple[int, str] | None:
    """(line, name) of the only call with `num_workers` in a file; None if not exactly one."""
    try:
        tree = ast.parse("\n".join(_source(file)[0]))
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
    return (calls[0].lineno, ast.unparse(calls[0].func)) if len(calls) == 1 else None


def find_lines(file: str, pattern: str) -> list[CodeLocation]:
    """Lines of the file that match a pattern, comments aside, with their functions."""
    text, _ = _source(file)
    wanted = re.compile(pattern)
    return [
        CodeLocation(file, number, _function_at(file, number), 0.0, line.strip())
        for number, line in enumerate(text, 1)
        if wanted.search(line.partition("#")[0])
    ]


def loop_around(file: str, line: int) -> str:
    """Head of the innermost loop around a line, such as `for x in y:`; empty without one.

    The loop in which the training itself goes on, with its backward pass, is none.
    """
    loops = [
        (begin, end, text)
        for begin, end, text, trains in _loops(file)
        if begin <= line <= end and not trains
    ]
    return max(loops, default=(0, 0, ""))[2]


def is_repeated(file: str, line: int) -> bool:
    """Whether a line is in any loop, the training loop included."""
    return any(begin <= line <= end for begin, end, *_ in _loops(file))


# Of functions that call one another.
MOST_CALLS: Final = 4
# Calls that give something else each time.
CHANGES: Final = re.compile(
    r"rand|sample|choice|shuffle|next|iter|read|recv|load|time|draw|step|batch|pop|get\(|input"
)


# What an optimizer may change, by whatever name.
LEARNS: Final = re.compile(r"requires_grad|Parameter\(|optim|\bnn\.")


def is_independent(file: str, line: int) -> bool:
    """Whether an assignment in the training loop computes the same value in each step.

    It calls a function of the same file. Neither of them uses a name that the loop assigns, calls
    or changes by a method, one that an optimizer may change, or a call that may give something
    else each time. What cannot be followed may change.
    """
    try:
        tree = ast.parse("\n".join(_source(file)[0]))
    except (SyntaxError, ValueError, RecursionError):
        return False
    for loop in ast.walk(tree):
        if not isinstance(loop, ast.For | ast.While):
            continue
        attributes = [n.attr for n in ast.walk(loop) if isinstance(n, ast.Attribute)]
        statement = next(
            (n for n in loop.body if isinstance(n, ast.Assign) and n.lineno == line), None
        )
        if statement is not None and "backward" in attributes:
            call = statement.value
            is_plain = isinstance(call, ast.Call) and isinstance(call.func, ast.Name)
            return is_plain and _is_constant(call, _Scope(tree, loop, statement), set(), 0)
    return False


class _Scope:
    """The names of a file whose values may differ from one step of a loop to the next."""

    def __init__(self, tree: ast.Module, loop: ast.For | ast.While, statement: ast.stmt) -> None:
        self.functions = {n.name: n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)}
        imports = [n for n in ast.walk(tree) if isinstance(n, ast.Import | ast.ImportFrom)]
        known = {(each.asname or each.name).partition(".")[0] for n in imports for each in n.names}
        self.known = known | set(dir(builtins))
        self.assigned = {
            target.id
            for n in tree.body
            if isinstance(n, ast.Assign) and not LEARNS.search(ast.unparse(n))
            for target in n.targets
            if isinstance(target, ast.Name)
        }
        for node in ast.walk(loop):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                self.assigned.discard(node.id)
        own = set(ast.walk(statement))
        for node in ast.walk(loop):
            if isinstance(node, ast.Call) and node not in own:
                called = node.func
                while isinstance(called, ast.Attribute | ast.Subscript):
                    called = called.value
                if isinstance(called, ast.Name):
                    self.assigned.discard(called.id)


def _is_constant(node: ast.AST, scope: _Scope, local: set[str], depth: int) -> bool:
    if depth > MOST_CALLS or CHANGES.search(ast.unparse(node)):
        return False
    if any(
        isinstance(n, ast.Global | ast.Nonlocal | ast.Yield | ast.Await) for n in ast.walk(node)
    ):
        return False
    names = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)} - local - scope.known
    called = names & scope.functions.keys()
    return names - called <= scope.assigned and all(
        _is_constant(function, scope, _locals(function), depth + 1)
        for function in (scope.functions[name] for name in called)
    )


def _locals(function: ast.FunctionDef) -> set[str]:
    nodes = list(ast.walk(function))
    stored = {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    return stored | {n.arg for n in nodes if isinstance(n, ast.arg)}


@functools.lru_cache(maxsize=64)
def _loops(file: str) -> list[tuple[int, int, str, bool]]:
    """(first line, last line, head, has a backward pass) of each loop in a file."""
    try:
        tree = ast.parse("\n".join(_source(file)[0]))
    except (SyntaxError, ValueError, RecursionError):
        return []
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.For | ast.While):
            calls = [n.attr for n in ast.walk(node) if isinstance(n, ast.Attribute)]
            head = "while " + ast.unparse(node.test) if isinstance(node, ast.While) else ""
            if isinstance(node, ast.For):
                head = f"for {ast.unparse(node.target)} in {ast.unparse(node.iter)}"
            found.append((node.lineno, node.end_lineno or node.lineno, head, "backward" in calls))
        elif isinstance(node, ast.ListComp | ast.GeneratorExp | ast.DictComp | ast.SetComp):
            of = node.generators[0]
            head = f"for {ast.unparse(of.target)} in {ast.unparse(of.iter)}"
            found.append((node.lineno, node.end_lineno or node.lineno, head, False))
    return found


@functools.lru_cache(maxsize=4096)
def _function_at(file: str, line: int) -> str:
    """Name of the function that contains a line, or `<module>`; empty if not parseable."""
    try:
        tree = ast.parse("\n".join(_source(file)[0]))
    except (SyntaxError, ValueError, RecursionError):
        return ""
    around = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.lineno <= line <= (node.end_lineno or node.lineno)
    ]
    return max(around, key=lambda node: node.lineno).name if around else "<module>"


def lines_that_keep_graphs(lines: Iterable[SourceLine]) -> tuple[CodeLocation, ...]:
    found = list[CodeLocation]()
    for file in dict.fromkeys(each.file for each in lines):
        text, complaints = _source(file)
        found += [
            CodeLocation(file, number, "", 0.0, text[number - 1].strip(), complaint.message)
            for number, complaint in complaints.items()
            if complaint.rule == "kept-graph"
        ]
    return tuple(found[:MOST_PLACES])


@functools.lru_cache(maxsize=64)
def _source(file: str) -> tuple[list[str], Mapping[int, Complaint]]:
    """Lines of a file, and line number -> lint complaint; empty if it cannot be read."""
    try:
        text = read_regular(Path(file), LARGEST_SOURCE).decode("utf-8", "replace")
    except (OSError, ValueError, RecordError):  # ValueError: a null character in the name
        return [], {}
    try:
        complaints = {each.line: each for each in check_python(text)}
    except HpcncfError:
        complaints = {}
    return text.splitlines(), complaints
