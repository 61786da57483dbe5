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
from pathlib import Path
from typing import Any, Final

import cloudpickle

from hpcncf.errors import HpcncfError
from hpcncf.paths import ResultPaths
from hpcncf.records.plan_file import read_plan

RESULT: Final = "result.pkl"


def write_own(path: Path, value: Any) -> None:
    """Pickle the value into a file that only its user can read or write."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(cloudpickle.dumps(value))
    partial.replace(path)


def read_own(path: Path) -> Any:
    """What `write_own` wrote. Raises HpcncfError if others own the file or can write to it."""
    with path.open("rb") as file:
        found = os.fstat(file.fileno())
        if found.st_uid != os.getuid() or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise HpcncfError(
                f"{path}: is another user's, or others may write to it. Opening it could run their "
                "code, so it is not opened"
            )
        return pickle.loads(file.read())


def main() -> int:
    """Exit code 1 if the function raises an exception, whose traceback is kept and printed."""
    file, output = Path(sys.argv[1]), Path(os.environ["HPCNCF_OUTPUT"])
    plan = read_plan(ResultPaths(output.parents[3]))
    # From the plan, for the words have lost the values' types.
    (run,) = (run for run in plan.runs if run.id == os.environ["HPCNCF_RUN_ID"])
    try:
        kept = (True, read_own(file)(**run.parameters))
    except Exception:
        kept = (False, traceback.format_exc())
        traceback.print_exc()
    if os.environ.get("RANK", "0") == "0":
        write_own(output / RESULT, kept)
    return 0 if kept[0] else 1


if __name__ == "__main__":
    sys.exit(main())
