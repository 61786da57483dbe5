"""Route the calls of a function through the probe, without replacing the function object.

Its code is replaced, not the function. So it is found by its identity (TorchScript's table of
functions, torch.compile's), pickled by its name, and `inspect` shows its signature and source.
"""

import sys
from _functools import partial

from _hpcncf_probe.phases import hide_frames, is_ours

SOURCE = """
def outer({free}):
    def inner({parameters}):
        if 0: {keep}
        _hpcncf_call = "hpcncf: call"
        try:
            return _hpcncf_call({arguments})
        except BaseException as _hpcncf_error:
            _hpcncf_hide = "hpcncf: hide"
            _hpcncf_hide(_hpcncf_error)
            raise
"""
VARARGS, KEYWORDS = 0x04, 0x08
# A frame leaves its own entry in a traceback before it can handle the error. From this version on
# an error has its traceback with it, and the entry can be taken off again.
CAN_TAKE_OFF = sys.version_info >= (3, 11)


FUNCTION = type(lambda: None)
# Functions whose code was replaced, with the code that they had.
REPLACED = []
# Code of the probe's that calls pass through.
PASSED = set()


def observe_calls(function, call):
    """Have every call `function(...)` become `call(original, ...)`; return False for a C function.

    Choose a function whose own body warns with no `stacklevel`: there is one frame more below it.
    """
    code = getattr(function, "__code__", None)
    if code is None or type(function) is not FUNCTION:
        return False
    original = FUNCTION(
        code, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )
    original.__kwdefaults__ = function.__kwdefaults__
    original.__qualname__ = function.__qualname__
    function.__code__ = _through(code, partial(call, original))
    REPLACED.append((function, code))
    PASSED.add(call.__code__)
    return True


def restore(keep=None):
    """Restore the original code of all functions but `keep`."""
    kept = [each for each in REPLACED if each[0] is keep]
    for function, code in REPLACED:
        if function is not keep:
            function.__code__ = code
    REPLACED[:] = kept


def _through(code, call):
    """Build code with the parameters of `code` that passes its arguments on to `call`."""
    names, total = code.co_varnames, code.co_argcount
    by_place, only_by_name = names[:total], names[total : total + code.co_kwonlyargcount]
    rest = names[total + code.co_kwonlyargcount :]
    parameters, arguments = list(by_place), list(by_place)
    if code.co_posonlyargcount:
        parameters.insert(code.co_posonlyargcount, "/")
    star = [f"*{rest[0]}"] if code.co_flags & VARARGS else []
    parameters += star or (["*"] if only_by_name else [])
    parameters += only_by_name
    arguments += star + [f"{name}={name}" for name in only_by_name]
    if code.co_flags & KEYWORDS:
        parameters.append(f"**{rest[len(star)]}")
        arguments.append(parameters[-1])
    text = SOURCE.format(
        free=", ".join(code.co_freevars),
        keep=", ".join(code.co_freevars) or "pass",
        parameters=", ".join(parameters),
        arguments=", ".join(arguments),
    )
    outer = _inner(compile(text, code.co_filename, "exec", dont_inherit=True))
    inner = _inner(outer)
    values = {"hpcncf: call": call, "hpcncf: hide": hide}
    shown = {"co_filename": code.co_filename, "co_firstlineno": code.co_firstlineno}
    shown["co_name"] = code.co_name
    if hasattr(code, "co_qualname"):
        shown["co_qualname"] = code.co_qualname
    consts = tuple(
        values.get(each, each) if isinstance(each, str) else each for each in inner.co_consts
    )
    return inner.replace(co_consts=consts, **shown)


def _inner(code):
    return next(each for each in code.co_consts if type(each) is type(code))


def hide(error):
    """Remove the calling frame, and the probe's frames after it, from an error's traceback."""
    if not CAN_TAKE_OFF:
        hide_frames(error)
        return
    trace = error.__traceback__.tb_next
    while trace is not None and is_ours(trace):
        trace = trace.tb_next
    error.__traceback__ = trace
