"""`hpcncf.submit`: run a Python function over a grid, on Slurm or on this machine."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from hpcncf.errors import HpcncfError, UsageError
from hpcncf.files import make_folder
from hpcncf.job.expand import expand_job
from hpcncf.job.plan import Plan
from hpcncf.job.spec import JobSpec, validate_settings
from hpcncf.launch import submit as launch
from hpcncf.launch.cancel import cancel
from hpcncf.launch.function_code import hash_function
from hpcncf.paths import ResultPaths
from hpcncf.records.plan_file import read_plan, record_plan
from hpcncf.records.submissions import Cluster
from hpcncf.records.user_code import is_user_file
from hpcncf.slurm.query import RateLimitedStates, job_states
from hpcncf.state import status
from hpcncf.state.status import UNDER_WAY, RunState
from hpcncf.worker.call import RESULT, WORDS, dump, read_own, write_own
from hpcncf.worker.unpicklable import UnpicklableError

POLL_S: Final = 2.0


class RunFailed(HpcncfError):
    """The function raised an exception, or its run ended without a result."""


@dataclass(frozen=True)
class Future:
    """One submitted run. Its record, log and diagnosis are those of any run."""

    id: str
    parameters: Mapping[str, Any]
    results: Path
    """The results folder: `hpcncf status` and `hpcncf report` read it."""

    @property
    def state(self) -> str:
        """State of the run as `hpcncf status` shows it: `pending`, `running`, `completed`, ..."""
        return self._look().state

    def done(self) -> bool:
        """Whether the run has ended, successfully or not."""
        return self.state not in UNDER_WAY

    def result(self, timeout: float | None = None) -> Any:
        """Wait for the run's end, and return the function's return value on rank 0.

        Raises TimeoutError after `timeout` seconds, RunFailed if the function raised an exception
        (with its traceback) or the run ended without a result.
        """
        until = None if timeout is None else time.monotonic() + timeout
        ask = RateLimitedStates()
        while (now := self._look(ask)).state in UNDER_WAY:
            if until is not None and time.monotonic() >= until:
                raise TimeoutError(f"run {self.id} is {now.state} after {timeout:g} s")
            time.sleep(POLL_S if until is None else min(POLL_S, max(0, until - time.monotonic())))
        found = self._read(now)
        if found is None:
            raise RunFailed(f"run {self.id}: {now.state}: {now.reason or 'it left no result'}")
        returned, value = found
        if not returned:
            raise RunFailed(f"run {self.id}: {value}")
        return value

    def cancel(self) -> None:
        """Cancel the run, whether it is running or still in the queue."""
        paths, plan = self._plan()
        cancel(paths, plan, plan.runs)

    def _plan(self) -> tuple[ResultPaths, Plan]:
        """Return the paths of the results folder, and its plan reduced to this run."""
        paths = ResultPaths(self.results)
        plan = read_plan(paths)
        own = [run for run in plan.runs if run.id == self.id]
        if not own:
            raise HpcncfError(f"{self.results}: holds no run {self.id}")
        return paths, plan.model_copy(update={"runs": own})

    def _look(self, ask: status.AskSlurm = job_states) -> RunState:
        return status.states(*self._plan(), ask)[0]

    def _read(self, now: RunState) -> tuple[bool, Any] | None:
        """Read the result: (True, value), (False, traceback), or None if there is none."""
        if now.attempt is None:
            return None
        path = ResultPaths(self.results).run(self.id).attempt(now.attempt).output / RESULT
        try:
            found: tuple[bool, Any] = read_own(path)
        except FileNotFoundError:
            return None
        return found


def submit(
    function: Callable[..., Any],
    grid: Mapping[str, Sequence[Any]] | None = None,
    resources: Mapping[str, Any] | None = None,
    *,
    name: str | None = None,
    results: str | Path | None = None,
    cluster: Literal["auto"] | Cluster = "auto",
    site: str = "cpu",
    repeats: int = 1,
) -> list[Future]:
    """Submit `function(**point)` for each point of the grid; return futures in grid order.

    It does not wait for the runs.

    `grid`: parameter -> values (numbers, text, truth values); runs are their cross product.
    `resources`: `cpus_per_task`, `mem_gb`, `timeout_min`, `nodes`, ... as in a job file. Each rank
    calls the function, and rank 0's return value is kept. Equal calls of equal code are one run,
    which is not submitted again; the code is the function, what it refers to, and the modules of
    yours that it imports. Raises UsageError for settings that no job file could have,
    HpcncfError if the cluster refuses.
    """
    where = launch.choose_cluster(cluster)
    grid = {key: _values(key, values) for key, values in (grid or {}).items()}
    spelled = getattr(function, "__name__", type(function).__name__)
    title = name or re.sub(r"[^A-Za-z0-9._-]", "-", spelled).strip("-.") or "function"
    paths = ResultPaths(Path(results or Path("results") / title).resolve())
    make_folder(paths.functions)
    named = getattr(function, "__qualname__", type(function).__qualname__)
    try:
        content = dump({"path": _user_path(), "function": dump(function)})
    except UnpicklableError as error:
        raise UsageError(
            f"{named}: cannot be sent to a worker: {error}. Make it inside the function, or in a "
            "module that the function imports"
        ) from None
    code = hash_function(function)
    for place in code.unfollowed:
        print(f"hpcncf: {named}: a change will go unnoticed: {place}", file=sys.stderr)
    file = paths.functions / f"{code.sha256[:16]}.pkl"
    write_own(file, content)
    words = [sys.executable, *WORDS, str(file)]
    plain = {
        "name": title,
        "site": site,
        "workload": {
            "command": [*words, *(f"{key}={{{key}}}" for key in grid)],
            "folder": str(Path.cwd()),
        },
        "parameters": {key: values[0] for key, values in grid.items()},
        "resources": dict(resources or {}),
        "grid": {f"parameters.{key}": values for key, values in grid.items()},
        "repeats": repeats,
    }
    job = validate_settings(JobSpec, plain, "hpcncf.submit")
    plan = expand_job(job)
    limits = launch.limits_of(job, where)
    launch.check(plan.active(), where, limits)
    plan = record_plan(paths, job, plan)
    launched = launch.submit(paths, job, plan, where, limits=limits)
    for each in launched.not_submitted:
        if each.why != "active":
            print(f"hpcncf: run {each.run.id} not submitted: {each.reason}", file=sys.stderr)
    runs = plan.active()  # in random order, so that drift of the machine spreads over all points
    runs.sort(key=lambda run: [*(grid[key].index(run.parameters[key]) for key in grid), run.repeat])
    return [Future(run.id, run.parameters, paths.folder) for run in runs]


def _user_path() -> list[str]:
    """Return the folders from which this process imports the user's own modules."""
    return [each for each in map(os.path.abspath, sys.path) if is_user_file(f"{each}/module.py")]


def _values(key: str, values: Sequence[Any]) -> list[Any]:
    if isinstance(values, str) or not isinstance(values, Sequence) or not values:
        raise UsageError(f"grid: {key}: expected a list of values, such as [0.1, 0.01]")
    return list(values)
