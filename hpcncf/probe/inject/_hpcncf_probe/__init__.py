"""The part of hpcncf that runs inside the user's program. Standard library only, Python 3.9 on."""

import os
import sys

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


def start(folder):
    """Begin to observe this process, unless it is a helper of Python or a launcher."""
    words = command_line()
    if is_helper(words):
        return
    from _hpcncf_probe import apply_remedies, observer, trial_speed

    apply_remedies.ask(os.environ.get("HPCNCF_WITH"))
    trial_speed.begin(os.environ.get("HPCNCF_TRIAL"))
    observer.start(folder, os.path.basename(script(words)))


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
    """What Python was asked to run: a file, a module's name, or `-c`."""
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
