"""The part of hpcncf that runs inside the user's program. Standard library only, Python 3.9 on.

This file is all that a short process runs. A thread loads the observer once the process has lived
for a while, or the first import of torch does. Nothing of it is in `sys.modules`, and nothing is
imported that a module of the program's could be mistaken for: see `import_privately`.
"""

import _imp
import _signal
import _thread
import atexit
import builtins
import os
import sys
import time

# They start other programs, or have nothing to explain.
LEFT_ALONE = frozenset(
    "pip pip3 conda mamba micromamba uv poetry hpcncf torchrun accelerate ray virtualenv".split()
)
MODULES_LEFT_ALONE = (
    "pip",
    "venv",
    "ensurepip",
    "hpcncf",
    "torch.distributed.run",
    "torch.distributed.launch",
    "accelerate.commands.launch",
)
# A process that ends earlier, without torch, pays for this file only.
LOADS_AFTER_S = 0.3
# Enough for the compiler, should the observer have to be compiled; Python's own takes 8 MiB.
STACK_BYTES = 1 << 20
# A thread takes 64 MiB of addresses for its memory: too much of a limit that is less than this.
LEAST_ADDRESSES = 4 << 30
THREAD_ENDS_WITHIN_S = 10.0

# Modules whose import is waited for, from the start: one that is being imported when the observer
# begins would not be noticed. What is done with them is in the observer's IMPORTED.
IMPORTS = (
    "torch",
    "torch._dynamo.eval_frame",
    "torch.utils.data.dataloader",
    "torch.distributed.distributed_c10d",
)

_PACKAGE = "_hpcncf_probe"
STATE = {}
_MODULES = {}
_WAITING = set(IMPORTS)
_LOADING = _thread.allocate_lock()


def start(folder, inside, loader, names):
    """Begin to observe this process, unless it is a helper of Python or a launcher."""
    words = command_line()
    if is_helper(words) or not is_main_interpreter():
        return
    package = type(sys)(_PACKAGE)
    package.__dict__.update(names)
    _MODULES[_PACKAGE] = package
    STATE.update(
        folder=folder,
        inside=inside,
        loader=type(loader),
        program=os.path.basename(script(words)),
        is_child=False,
    )
    _begin()
    sys.meta_path.insert(0, Finder)
    # No thread but the program's own may be there when it forks.
    os.register_at_fork(before=pause, after_in_parent=_resume, after_in_child=_forked)
    atexit.register(end)
    run()
    guarded = os.environ.get("HPCNCF_GUARD")
    if guarded:
        load_own("trial_guard").begin(guarded, os.environ["HPCNCF_TRIAL"] + ".unsafe")


def attach(folder, inside, loader, names, until):
    """Begin to observe this process, which has run for a while, up to the moment `until`.

    The moment is one of `time.perf_counter()`. The sampler's thread then takes everything out.
    False for a helper of Python or a launcher, which has nothing to explain.
    """
    STATE["until"] = until
    start(folder, inside, loader, names)
    if STATE.get("folder") != folder:
        return False
    observe()
    for name in IMPORTS:
        module = sys.modules.get(name)
        spec = getattr(module, "__spec__", None)
        if module is not None and not getattr(spec, "_initializing", False):
            _WAITING.discard(name)
            load_own("observer").imported(name, module)
    return True


def detach():
    """Remove everything that `attach` installed, and write what was observed.

    What stays are three functions that Python calls at a fork, and that then do nothing.
    """
    STATE["problem"] = "the watch is over"
    if Finder in sys.meta_path:
        sys.meta_path.remove(Finder)
    atexit.unregister(end)
    load_own("observer").detach()


def is_over():
    """Return whether the time for which this process is watched after `attach` has ended."""
    return time.perf_counter() >= STATE.get("until", float("inf"))


def _begin():
    """Reset the probe's state at the start of a process, or in a child that was just forked."""
    STATE.update(
        began=time.perf_counter(),
        started_at=time.time(),
        began_cpu_s=time.thread_time(),
        began_process_cpu_s=time.process_time(),
        first_thread=(_thread.get_ident(), _thread.get_native_id()),
        loading=_thread.allocate_lock(),
        observer=None,
        thread=None,
        resume=False,
        problem=None,
    )


def is_main_interpreter():
    """Return whether this is the process's first interpreter, in its first thread.

    In any other interpreter, a thread that outlives the interpreter ends the process.
    """
    try:
        _signal.signal(0, _signal.SIG_DFL)  # never done: there is no such signal
    except ValueError as error:
        return "main thread" not in str(error)
    return False


def command_line():
    words = getattr(sys, "orig_argv", None)  # since 3.10; sys.argv is not set yet
    if words is None:
        with open("/proc/self/cmdline", "rb") as file:
            words = file.read().decode("utf-8", "replace").split("\0")[:-1]
    return words


def is_helper(words):
    code = words[words.index("-c") + 1] if "-c" in words[:-1] else ""
    if "multiprocessing.resource_tracker" in code or "joblib.externals.loky.backend" in code:
        return True
    name = script(words)
    if "-m" in words[:-1] and name == words[words.index("-m") + 1]:
        return name in MODULES_LEFT_ALONE
    base = os.path.basename(name)
    return base in LEFT_ALONE or base == "torchrun"


def script(words):
    """Return what Python was started with: a script's path, a module's name, or `-c`."""
    arguments = iter(words[1:])
    for word in arguments:
        if word == "-m":
            return next(arguments, "")
        if word == "-c":
            return "-c"
        if word in ("-X", "-W", "--check-hash-based-pycs"):
            next(arguments, None)
        elif not word.startswith("-") or word == "-":
            return word
    return ""


# -- the observer


def observe():
    """Return the observer of this process; load and start it if there is none yet."""
    with STATE["loading"]:
        if STATE["observer"] is None:
            STATE["observer"] = load_own("observer").begin()
            if STATE["thread"] is None:
                run()
    return STATE["observer"]


def end():
    """Stop the sampler thread and write the record, when the process exits by itself.

    Python is about to shut down: none of the probe's threads may be left.
    """
    pause()
    STATE["problem"] = "it ended at once"
    asked = os.environ.get("HPCNCF_WITH") and not STATE["is_child"]
    if asked:
        observe()  # says why nothing was applied
    if STATE["observer"] is not None:
        load_own("observer").end()


def _forked():
    """Reset the probe in a forked child, observed only if it trains or is a loader's worker."""
    _begin()
    STATE["is_child"] = True
    if _PACKAGE + ".observer" in _MODULES:
        load_own("observer").forget()
    if is_over():
        STATE["problem"] = "the watch is over"


# -- the thread


def pause():
    """Stop the sampler thread, if it runs."""
    thread, STATE["thread"] = STATE["thread"], None
    STATE["resume"] = thread is not None
    if thread is not None:
        thread.end()


def _resume():
    if STATE["resume"]:
        run()


def _live(stop):
    """Main function of the sampler thread: wait for a while, then take samples."""
    if STATE["observer"] is None:
        left = STATE["began"] + LOADS_AFTER_S - time.perf_counter()
        if stop.acquire(True, max(0.0, left)):
            return
    observe().sample(stop)


def run():
    """Start the sampler thread, which `pause` stops; record the problem if it cannot start."""
    if STATE["problem"] is None and _address_limit() < LEAST_ADDRESSES:
        STATE["problem"] = "no sampler: the limit of the address space is low"
    if STATE["problem"] is not None:
        return
    thread = STATE["thread"] = Thread()
    try:
        thread.begin(_live)
    except (RuntimeError, ValueError, OSError) as error:
        STATE["thread"] = None
        STATE["problem"] = f"no sampler: {error}"


class Thread:
    """A thread unknown to `threading`, so that the program neither counts it nor waits for it.

    It gets none of the process's signals. Those that the program blocks, to wait for them, would
    else be delivered here.
    """

    def __init__(self):
        self.stop, self.ended = _thread.allocate_lock(), _thread.allocate_lock()
        self.stop.acquire()
        self.ended.acquire()
        self.number = None

    def begin(self, work):
        size = _thread.stack_size(STACK_BYTES)
        mask = _signal.pthread_sigmask(_signal.SIG_SETMASK, _signal.valid_signals())
        try:
            _thread.start_new_thread(self._run, (work,))
        finally:
            _thread.stack_size(size)
            _signal.pthread_sigmask(_signal.SIG_SETMASK, mask)

    def _run(self, work):
        try:
            self.number = _thread.get_native_id()
            work(self.stop)
        except Exception:
            pass
        finally:
            self.ended.release()

    def end(self):
        """Stop the thread, and wait up to THREAD_ENDS_WITHIN_S until the kernel has removed it."""
        self.stop.release()
        until = time.perf_counter() + THREAD_ENDS_WITHIN_S
        if not self.ended.acquire(True, THREAD_ENDS_WITHIN_S):
            return
        if self.number is None:
            return
        task = f"/proc/self/task/{self.number}"
        while time.perf_counter() < until:
            try:
                os.stat(task)
            except OSError:
                return
            time.sleep(0.00002)


def _address_limit():
    """Return how many bytes of memory this process may map; infinite if no limit is set."""
    try:
        with open("/proc/self/limits", "rb") as file:
            for line in file:
                if line.startswith(b"Max address space"):
                    return float(line.split()[3].replace(b"unlimited", b"inf"))
    except (OSError, ValueError, IndexError):
        pass
    return float("inf")


# -- modules of our own


def import_privately(name, globals=None, locals=None, fromlist=(), level=0):
    """Import for the probe's own modules: no module loaded from a file is added to `sys.modules`.

    A module of the program's may be named like one of the standard library, and be imported later:
    it must not find ours. Nor may we take the program's for the standard one.
    """
    package, _, inner = name.partition(".")
    if level == 0 and package == _PACKAGE:
        for each in [inner] if inner else fromlist:
            if each not in _MODULES[_PACKAGE].__dict__:
                load_own(each)
        return _MODULES[name if fromlist else _PACKAGE]
    if level == 0 and not inner:
        module = _load_standard(name)
        if module is not None:
            return module
    return builtins.__import__(name, globals, locals, fromlist, level)


OWN_BUILTINS = {**builtins.__dict__, "__import__": import_privately}


def load_own(name):
    """Return a module of the probe by its file's name; load it at the first call."""
    full = f"{_PACKAGE}.{name}"
    if full not in _MODULES:
        path = os.path.join(STATE["inside"], name + ".py")
        module = _load(full, path, f"<{full}>")
        setattr(_MODULES[_PACKAGE], name, module)
    return _MODULES[full]


def _load_standard(name):
    """Load a private copy of a standard-library module; None if the normal import is safe."""
    if name in sys.builtin_module_names:
        return None
    own = _MODULES.get(name)
    if own is not None:
        return own
    if name == "collections" and "dis" in _MODULES:
        return load_own("small_collections")
    library = os.path.dirname(os.__file__) + os.sep
    loaded = sys.modules.get(name)
    if loaded is not None:
        origin = getattr(getattr(loaded, "__spec__", None), "origin", None) or ""
        if origin in ("built-in", "frozen") or origin.startswith(library):
            return None
    for path in (library + name + ".py", os.path.join(library + name, "__init__.py")):
        if os.path.isfile(path):
            return _load(name, path, None)
    return None


def _load(name, path, shown):
    loader = STATE["loader"](name, path)
    code = loader.get_code(name)
    module = _MODULES[name] = type(sys)(name)
    module.__builtins__ = OWN_BUILTINS
    if shown:
        _imp._fix_co_filename(code, shown)
    else:
        module.__file__ = path
    try:
        exec(code, module.__dict__)
    except BaseException:
        del _MODULES[name]
        raise
    return module


# -- the import of torch


class Finder:
    """Import finder that tells the observer when torch and its parts have been imported.

    It stands before all other finders, and leaves the finding itself to them.
    """

    @staticmethod
    def find_spec(name, path=None, target=None):
        if name not in _WAITING:
            return None
        for finder in list(sys.meta_path):
            if finder is Finder or not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(name, path, target)
            if spec is not None:
                _add_call(spec, name)
                return spec
        return None


def _add_call(spec, name):
    """Have the observer told once this module has been executed.

    Finding its spec is not enough: libraries look whether torch is there before they import it.
    """
    loader = spec.loader
    if getattr(loader, "exec_module", None) is None:
        return

    def exec_module(module):
        # As before for the module's own code: a reload, or a copy of the loader, finds no trace.
        del loader.exec_module
        loader.exec_module(module)
        try:
            if name in _WAITING:
                _WAITING.discard(name)
                observe()
                load_own("observer").imported(name, module)
            if not _WAITING and Finder in sys.meta_path:
                sys.meta_path.remove(Finder)
        except Exception:  # the program must not see that there is a probe
            pass

    # Python leaves the frames of its import system out of a traceback, by this name.
    exec_module.__code__ = exec_module.__code__.replace(
        co_filename="<frozen importlib._bootstrap_external>"
    )
    try:
        loader.exec_module = exec_module
    except AttributeError:
        pass  # a loader that keeps no attributes: this module is not observed
