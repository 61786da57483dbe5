"""Find the line that a thread worked on, which may not be the one where it released the GIL."""

import sys
from _functools import partial
from _operator import contains

MOST_PLACES = 4000
# Instructions after which Python 3.11 and later let go of the interpreter's lock, but for
# `list.append`; a conditional jump backward falls through as often as not.
CHECKS = ("CALL", "JUMP_BACKWARD", "RESUME")
# What stands behind these is reached by a jump.
LEAVES = ("JUMP_BACKWARD", "JUMP_FORWARD", "RETURN", "RAISE", "RERAISE")
WORKS = ("BINARY", "BUILD", "COMPARE", "CONTAINS", "FORMAT", "INPLACE", "STORE_SUBSCR", "UNPACK")
# `in` compares with the items of a list one by one: some 15 ns each, where a call that follows
# takes a microsecond or more.
LONG_SEARCH = 200
# So often is looked at what is searched: a look at a frame's variables may keep them alive.
MOST_LOOKS = 8
MOST_FRAMES = 4
MOST_LOADS = 8
# With these, there may be interpreters that do not share their lock, of which Python 3.12 and later
# read the frames all the same: the program then crashes. Since 3.14 `concurrent.futures`, and so
# torch, imports the first one, which says how many interpreters there are.
MAKE_INTERPRETERS = (
    ("_interpreters", "_xxsubinterpreters", "_testcapi", "_testinternalcapi")
    if sys.version_info >= (3, 12)
    else ()
)


LISTS_INTERPRETERS = "_interpreters"
# Number of interpreters -> whether frames may be read: a KeyError for more than one.
ONE = {1: True}


def one_interpreter():
    """Return iterators that continue only as long as this process has a single interpreter.

    All of their code is C. They end where another interpreter may have been made, and raise
    KeyError if there are several.
    """
    found = []
    for name in MAKE_INTERPRETERS:
        module = sys.modules.get(name) if name == LISTS_INTERPRETERS else None
        list_all = getattr(module, "list_all", None)
        if list_all is None:
            found.append(iter(partial(contains, sys.modules, name), True))
        else:
            found.append(map(ONE.__getitem__, map(len, iter(list_all, None))))
    return found


def current_frames():
    """Map each thread's ident to its innermost frame; empty if frames cannot be read safely.

    The check and the reading are one call of C code, so that no interpreter is made in between.
    """
    try:
        return next(zip(*one_interpreter(), iter(sys._current_frames, None)))[-1]
    except (StopIteration, KeyError):
        return {}


class _Place:
    """An instruction at which a thread was stopped."""

    def __init__(self, code, at):
        self.code = code  # kept, so that its id stays its own
        self.shares, self.searches = _since_lock(code, at)
        self.owed = {}
        self.looks = 0
        self.long = {}


_PLACES = {}


def prepare():
    """Import the modules that `worked_on` needs, to keep their cost out of the first sample."""
    import opcode  # noqa: F401

    if sys.version_info >= (3, 11):
        import dis  # noqa: F401


def worked_on(code, at, thread=None):
    """Return the line that the thread worked on, if not the one where it released the GIL, or None.

    Instructions other than calls never release it, however long they take: what comes next would
    take the blame. If a long list was searched since, the sample is of that line. Samples at the
    jump that ends a loop's body are shared among its lines, by their numbers of operations.
    """
    place = _PLACES.get((id(code), at))
    if place is None:
        if len(_PLACES) >= MOST_PLACES:
            return None
        place = _PLACES[id(code), at] = _Place(code, at)
    if place.searches:
        if thread is not None and place.looks < MOST_LOOKS:
            _look_for_searches(place, thread)
        if place.long:
            line = max(place.long, key=place.long.get)
            if 2 * place.long[line] > place.looks:
                return line
    if not place.shares:
        return None
    for line, share in place.shares.items():
        place.owed[line] = place.owed.get(line, 0.0) + share
    chosen = max(place.owed, key=place.owed.get)
    place.owed[chosen] -= 1.0
    return chosen


def has_begun(code, at):
    """Return whether a thread was stopped at the first instruction of this function."""
    import opcode

    return opcode.opname[code.co_code[at]] == "RESUME" if at >= 0 else False


def before(code, at):
    """Return the last line before code that has no line, such as the jump at the end of a loop."""
    found = code.co_firstlineno
    for begin, _, line in code.co_lines():
        if begin > at:
            break
        found = line or found
    return found


def _since_lock(code, at):
    """Return the operations and searches between the last release of the GIL and `at`.

    Operations are line -> share, known only if `at` is a jump backward. A search is a line and what
    is searched, as `_loaded` describes it.
    """
    if sys.version_info < (3, 11):
        return {}, ()
    import dis

    operations, searches, loads, line, method = {}, [], [], None, None
    leaves, reached = False, {}
    instructions = list(dis.get_instructions(code))
    ends = [one.offset for one in instructions[1:]]
    for one, end in zip(instructions, [*ends, sys.maxsize]):
        line = getattr(one.positions, "lineno", None) or line
        if leaves:
            searches = reached.get(one.offset, [])
        if end > at:  # behind a call there is room that belongs to it
            is_jump = one.opname.startswith(("JUMP_BACKWARD", "POP_JUMP_BACKWARD"))
            whole = sum(operations.values()) if is_jump else 0
            return {line: number / whole for line, number in operations.items() if whole}, searches
        appends = one.opname == "CALL" and method == "append"
        if one.opname in ("LOAD_METHOD", "LOAD_ATTR"):
            method = one.argval
        elif one.opname in ("CALL", "PUSH_NULL") or "NULL + " in one.argrepr:
            method = None  # another function is called, perhaps for the argument
        if one.opname.startswith(CHECKS) and not appends:
            operations, searches = {}, []
        elif line is not None and (appends or one.opname.startswith(WORKS)):
            operations[line] = operations.get(line, 0) + 1
        if one.opname == "CONTAINS_OP" and line is not None:
            searched, _ = _loaded(loads[-MOST_LOADS:])
            if searched:
                searches = [*searches, (line, searched)]
        if one.opcode in dis.hasjrel:
            reached.setdefault(one.argval, searches)
        leaves = one.opname.startswith(LEAVES)
        loads.append((one.opname, one.argval, one.argrepr))
    return {}, ()


def _loaded(instructions):
    """Describe what the last instruction left on the stack, as (operation, operands), or None.

    Also returns the instructions before it. None stands for anything but a variable, an attribute
    or an item.
    """
    if not instructions:
        return None, []
    (name, value, spelled), rest = instructions[-1], instructions[:-1]
    if isinstance(value, tuple) and name.startswith("LOAD_FAST"):  # two at once
        first = ("LOAD_FAST", value[0], value[0])
        return ("variable", value[1]), [*rest, first]
    if name.startswith(("LOAD_FAST", "LOAD_DEREF", "LOAD_GLOBAL", "LOAD_NAME")):
        return ("variable", value), rest
    if name == "LOAD_CONST":
        return ("constant", value), rest
    if name == "LOAD_SMALL_INT":
        return ("constant", value), rest
    if name == "LOAD_ATTR":
        of, rest = _loaded(rest)
        return (("attribute", of, value) if of else None), rest
    if name == "BINARY_SUBSCR" or (name == "BINARY_OP" and spelled == "[]"):
        key, rest = _loaded(rest)
        of, rest = _loaded(rest) if key else (None, rest)
        return (("item", of, key) if of else None), rest
    return None, rest


def _look_for_searches(place, thread):
    """Note which `in` searches of a function go through many items, if it is still running."""
    frame = current_frames().get(thread)
    for _ in range(MOST_FRAMES):
        if frame is None or frame.f_code is place.code:
            break
        frame = frame.f_back
    if frame is None or frame.f_code is not place.code:
        return
    place.looks += 1
    sizes = [(line, _length(_value(searched, frame))) for line, searched in place.searches]
    for line in {line for line, size in sizes if size >= LONG_SEARCH}:
        place.long[line] = place.long.get(line, 0) + 1


def _value(searched, frame):
    """Return the value that `_loaded` describes; None if that would call the program's code."""
    operation, *operands = searched
    if operation == "constant":
        return operands[0]
    if operation == "variable":
        names = frame.f_globals if frame.f_code.co_name == "<module>" else frame.f_locals
        return names.get(operands[0], frame.f_globals.get(operands[0]))
    of = _value(operands[0], frame)
    if operation == "attribute":
        try:
            own = object.__getattribute__(of, "__dict__")
        except AttributeError:
            return None
        return own.get(operands[1]) if type(own) is dict else None
    key = _value(operands[1], frame)
    if type(key).__module__ not in ("builtins", "numpy"):
        return None
    try:
        if isinstance(of, dict) and type(of).__module__ in ("builtins", "collections"):
            return dict.get(of, key)
        return of[key] if type(of) in (list, tuple) or _is_array(of) else None
    except (LookupError, TypeError, ValueError):
        return None


def _length(searched):
    """Return how many items an `in` search goes through; 0 for sets, dicts and unknown types."""
    if type(searched) in (list, tuple):
        return len(searched)
    return searched.size if _is_array(searched) else 0


def _is_array(value):
    numpy = sys.modules.get("numpy")
    return type(value) is getattr(numpy, "ndarray", None)
