"""Keep a trial from changing files that the real program reads, and from using the network.

An audit hook sees what Python is about to do. If that would reach out of the trial's own folders,
the process ends instead, and a file says what it was about to do. Compiled libraries that write by
themselves are not seen; where the kernel has Landlock, they cannot do it either.
"""

import os
import sys

from _hpcncf_probe import end as end_process
from _hpcncf_probe.seams import observe_calls

WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
# Programs that only look, or that compilers and loaders of libraries need.
HARMLESS = frozenset(
    "git uname hostname which nproc lscpu nvidia-smi rocm-smi file stty locale".split()
    + "ldconfig ld gcc g++ cc c++ clang nvcc objdump ptxas ninja ar as".split()
)
GIT_READS = frozenset("rev-parse describe log status diff show ls-files rev-list remote".split())
# Modules that write files by themselves.
SILENT = frozenset("h5py netCDF4 safetensors pyarrow polars zarr tensorstore".split())
FOLDERS = []
STATE = {"file": None, "watched": False}


def begin(folders, file):
    """Guard this process: it may write only in `folders`, the first of which it works in.

    The reason for a stop is written to `file`.
    """
    FOLDERS[:] = [os.path.realpath(each) + os.sep for each in folders.split(os.pathsep) if each]
    for name in os.environ.pop("HPCNCF_GUARD_UNSET", "").split(","):
        os.environ.pop(name, None)
    STATE["file"] = file
    STATE["watched"] = os.environ.get("HPCNCF_GUARD_KERNEL") == "1"
    sys.addaudithook(_hook)


def _hook(event, arguments):
    check = CHECKS.get(event)
    if check is None:
        return
    try:
        problem = check(*arguments)
    except Exception:  # arguments that the call itself will refuse
        return
    if problem:
        _stop(problem)


def _stop(problem):
    """End the process, and write the reason with the line of the program that caused it."""
    CHECKS.clear()
    frame, here = sys._getframe(2), FOLDERS[0]
    library = os.path.dirname(os.__file__) + os.sep
    while frame is not None:
        name = frame.f_code.co_filename
        if not name.startswith((library, "<")) and "site-packages" not in name:
            short = name[len(here) :] if name.startswith(here) else name
            problem += f" ({short}:{frame.f_lineno})"
            break
        frame = frame.f_back
    try:
        with open(STATE["file"], "x") as file:
            file.write(problem)
    except OSError:
        pass
    multiprocessing = sys.modules.get("multiprocessing")
    for child in multiprocessing.active_children() if multiprocessing else ():
        child.kill()
    end_process()
    os._exit(0)


def _is_own(path):
    return (path + os.sep).startswith(tuple(FOLDERS))


def _text(path):
    return os.fsdecode(path)


def outside(path):
    """Return the real path if a trial may not write there; for a link, the path it points to."""
    real = os.path.realpath(_text(path))
    return None if _is_own(real) else real


def _entry(path, folder=-1):
    """Return the real path of a folder's entry, without following the entry's own link.

    `folder` is the descriptor of the folder.
    """
    base = os.readlink(f"/proc/self/fd/{folder}") if folder >= 0 else ""
    path = os.path.abspath(os.path.join(base, _text(path)))
    return os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path))


def _reached(*entries):
    return next((each for each in entries if not _is_own(each)), None)


def _opened(path, mode, flags):
    if isinstance(path, int) or path is None:
        return None
    if isinstance(mode, str) and not set(mode) & set("wax+"):
        return None
    if not isinstance(mode, str) and not flags & WRITING:
        return None
    found = outside(path)
    return found and "it writes " + found


def _removed(path, folder=-1):
    found = _reached(_entry(path, folder))
    return found and os.path.lexists(found) and "it removes " + found


def _made(path, _mode, folder=-1):
    found = _reached(_entry(path, folder))
    return found and not os.path.lexists(found) and "it makes the folder " + found


def _changed(path, *_):
    found = None if isinstance(path, int) else outside(path)
    return found and "it changes " + found


def _moved(source, target, folder=-1, other=-1):
    found = _reached(_entry(source, folder), _entry(target, other))
    return found and "it moves or links " + found


def _linked(_source, target, folder=-1):
    found = _reached(_entry(target, folder))
    return found and "it links " + found


def _database(name):
    if isinstance(name, int) or _text(name) in ("", ":memory:"):
        return None
    found = outside(name)
    return found and "it opens the database " + found


def _connected(socket, address):
    datagram = getattr(socket, "type", 0) == 2  # no packet is sent by that
    if datagram or not isinstance(address, tuple):
        return None
    host = str(address[0])
    if host.startswith("127.") or host in ("localhost", "::1", ""):
        return None
    return f"it connects to {host} port {address[1]}"


def _popen(program, arguments, *_):
    words = [_text(each) for each in arguments] if not isinstance(arguments, str) else [arguments]
    if os.path.basename(words[0]) in ("sh", "bash") and words[1:2] == ["-c"]:
        return _line(words[2])
    name = os.path.basename(_text(program or words[0]))
    is_python = name.startswith("python") or program == sys.executable
    return None if is_python or _is_harmless(name, words) else "it starts " + name


def _is_harmless(name, words):
    return name in HARMLESS and (name != "git" or not GIT_READS.isdisjoint(words))


def _line(text):
    """Return what is unsafe about a shell's line; None for one harmless program, not redirected."""
    text = _text(text)
    plain, words = not set("|;&<>`$\n") & set(text), text.split()
    harmless = plain and _is_harmless(words[0], words)
    return None if harmless else "it starts the shell line " + text


def _imported(name, *_):
    if name.partition(".")[0] in SILENT and not STATE["watched"] and "." not in name:
        return f"it imports {name}, whose files cannot be watched on this kernel"
    return None


def install(torch):
    """Check the paths given to `torch.save`, which opens its file outside of Python."""
    if not FOLDERS:
        return

    def save(original, obj, f, *args, **kwargs):
        if isinstance(f, (str, os.PathLike)):
            _hook("open", (f, "w", 0))
        return original(obj, f, *args, **kwargs)

    observe_calls(torch.save, save)


CHECKS = {
    "open": _opened,
    "os.remove": _removed,
    "os.rmdir": _removed,
    "os.mkdir": _made,
    "os.truncate": _changed,
    "os.chmod": _changed,
    "os.chown": _changed,
    "os.utime": _changed,
    "os.rename": _moved,
    "os.link": _moved,
    "os.symlink": _linked,
    "sqlite3.connect": _database,
    "socket.connect": _connected,
    "subprocess.Popen": _popen,
    "os.system": _line,
    "os.exec": _popen,
    "os.posix_spawn": _popen,
    "import": _imported,
}
