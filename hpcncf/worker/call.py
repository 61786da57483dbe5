"""`python -m hpcncf.worker.call FILE`: call a function of `hpcncf.submit` as a rank of its run."""

from __future__ import annotations

import os
import pickle
import sys
import traceback
from pathlib import Path
from typing import Final

import cloudpickle

from hpcncf.paths import ResultPaths
from hpcncf.records.plan_file import read_plan

RESULT: Final = "result.pkl"


def main() -> int:
    """Exit code 1 if the function raises an exception, whose traceback is kept and printed."""
    file, output = Path(sys.argv[1]), Path(os.environ["HPCNCF_OUTPUT"])
    plan = read_plan(ResultPaths(output.parents[3]))
    # From the plan, for the words have lost the values' types.
    (run,) = (run for run in plan.runs if run.id == os.environ["HPCNCF_RUN_ID"])
    try:
        value = pickle.loads(file.read_bytes())(**run.parameters)
        kept = cloudpickle.dumps((True, value))
        code = 0
    except Exception:
        kept = cloudpickle.dumps((False, traceback.format_exc()))
        traceback.print_exc()
        code = 1
    if os.environ.get("RANK", "0") == "0":
        partial = output / f".{RESULT}"
        partial.write_bytes(kept)
        partial.replace(output / RESULT)
    return code


if __name__ == "__main__":
    sys.exit(main())
