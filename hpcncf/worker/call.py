"""`python -m hpcncf.worker.call FILE`: call a function of `hpcncf.submit` as a rank of its run.

Functions and results are pickles, as submitit's are: to open one is to run what it holds. Each is
therefore its user's alone, and one that anybody else could have written is not opened.
"""

from __future__ import annotations

import os
import pickle
import stat
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from hpcncf.errors import HpcncfError
from hpcncf.paths import ResultPaths
from hpcncf.records.plan_file import read_plan
from hpcncf.worker.unpicklable import UnpicklableError, find_unpicklable

RESULT: Final = "result.pkl"
WORDS: Final = ("-m", "hpcncf.worker.call")


def lacks_result(words: Sequence[str], output: Path) -> bool:
    """Return whether the command calls a Python function but left no result file.

    `os._exit`, for example, ends the process without one.
    """
    return tuple(words[1:3]) == WORDS and not (output / RESULT).exists()


def dump(value: Any) -> bytes:
    """Pickle the value. Raises UnpicklableError, which names the part that cannot be pickled."""
    import cloudpickle

    try:
        return bytes(cloudpickle.dumps(value))
    except Exception as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        culprit = find_unpicklable(value) or f"a {type(value).__qualname__}"
        raise UnpicklableError(f"{culprit} cannot be pickled ({reason})", reason) from None


def write_own(path: Path, content: bytes) -> None:
    """Write a pickle into a file that only its user can read or write."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
    partial.replace(path)


def read_own(path: Path) -> Any:
    """Load a file from `write_own`. Raises HpcncfError if another user could have written it."""
    with path.open("rb") as file:
        found = os.fstat(file.fileno())
        if found.st_uid != os.getuid() or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise HpcncfError(
                f"{path}: is another user's, or others may write to it. Opening it could run their "
                "code, so it is not opened"
            )
        return pickle.loads(file.read())


def main() -> int:
    """Call the pickled function and store its result; return 1 if it raised an exception.

    The traceback of the exception is stored and printed.
    """
    file, output = Path(sys.argv[1]), Path(os.environ["HPCNCF_OUTPUT"])
    plan = read_plan(ResultPaths(output.parents[3]))
    # From the plan, for the words have lost the values' types.
    (run,) = (run for run in plan.runs if run.id == os.environ["HPCNCF_RUN_ID"])
    returned, content = False, b""
    try:
        call = read_own(file)
        sys.path[:0] = [each for each in call["path"] if each not in sys.path]
        value = pickle.loads(call["function"])(**run.parameters)
        content = _dump_result(value)
        returned = True
    except Exception as error:
        text = f"{type(error).__name__}: {error}\n"
        if not isinstance(error, UnpicklableError):
            text = f"the function raised an exception\n\n{traceback.format_exc()}"
        content = dump((False, text))
        sys.stderr.write(text)
    if os.environ.get("RANK", "0") == "0":
        write_own(output / RESULT, content)
    return 0 if returned else 1


def _dump_result(value: Any) -> bytes:
    try:
        return dump((True, value))
    except UnpicklableError as error:
        culprit = find_unpicklable(value) or f"a {type(value).__qualname__}"
        raise UnpicklableError(
            f"what the function returned cannot be sent back: {culprit} cannot be pickled "
            f"({error.reason}). Return plain data: numbers, text, lists, dictionaries, arrays",
            error.reason,
        ) from None


if __name__ == "__main__":
    sys.exit(main())
