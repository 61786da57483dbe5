"""Measure a command that this process runs as a rank of a run."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from hpcncf.errors import name_exit
from hpcncf.launcher.environment import LaunchedBy, Place
from hpcncf.paths import AttemptPaths
from hpcncf.probe.launch import program_of, unobservable, why_unobserved
from hpcncf.records.claims import process_start
from hpcncf.worker.child_process import FILE, Child, ReportedValues
from hpcncf.worker.rank_recorder import RankRecorder

# A process of Python leaves no profile if it ends before it is a second old, or has not trained.
LOOKS_AFTER_S: Final = 0.5
LOOKS_EVERY_S: Final = 5.0
# They ask daemons to start processes, on any node: no children of theirs.
LAUNCHERS: Final = frozenset({"srun", "blaunch", "pbsdsh"})
# Of a command that waited for these for a larger share of its time, what it used says nothing.
LAUNCHING_SHARE: Final = 0.2
NOT_COUNTED: Final = (
    "a launcher such as srun started the work, and the probe saw none of its processes (other "
    "languages, python -I, a container): only the script's own are counted here. Slurm's figures: "
    "hpcncf explain JOBID"
)


class CommandRecorder(RankRecorder):
    """Measures a command from its start on, typed or of a job file, and makes its record.

    A short command's is made without any schema: see `records.plain`.
    """

    def __init__(
        self,
        run: Mapping[str, Any],
        place: Place,
        attempt: AttemptPaths,
        child: Child,
        environment: Mapping[str, Any],
        launched_by: LaunchedBy,
        allocated: float,
    ) -> None:
        super().__init__(run, place, attempt)
        self.child, self.report = child, ReportedValues()
        self._environment, self._launched_by = dict(environment), launched_by
        self._process_started: float | None = None
        self._unseen: str | None = None
        self._launching_s = 0.0
        if Path(f"/proc/{child.pid}").exists():
            self._process_started = process_start(child.pid)
        program = run["workload"]
        shell = program.get("shell")
        self._words = ["bash", "-c", shell] if shell is not None else program["command"]
        self.start_monitor(allocated, child.pid)

    def watch_processes(self, load: Callable[[], None], inject: str | None) -> None:
        """Look in a thread, now and then, at what programs the command runs.

        Once one of Python has run for a while, `load` imports what the summary of such a program
        needs, which would else come at the end. Where the probe in the folder `inject` cannot get
        into it, the reason is kept. None: there is no probe.
        """

        def watch() -> None:
            every_s, loaded = LOOKS_AFTER_S, inject is None
            while not self.child.ended.wait(every_s):
                programs = {pid: program_of(pid) for pid in self.monitor.pids}
                if not LAUNCHERS.isdisjoint(programs.values()):
                    self._launching_s += every_s
                for pid, program in programs.items():
                    if loaded or inject is None or not program.startswith("python"):
                        continue
                    self._unseen = why_unobserved(pid, inject)
                    if self._unseen is None:
                        load()
                        loaded = True
                every_s = min(LOOKS_EVERY_S, 1.2 * every_s)

        threading.Thread(target=watch, name="hpcncf-watch", daemon=True).start()

    def wait(self) -> tuple[int, dict[str, Any]]:
        """Wait for the command's end; return its exit code and the measurements as plain data.

        The exit code is minus the number of the signal that ended the command, if one did.
        """
        self._write_progress()  # by it `status` finds the command if this process is killed
        code = self.child.wait(self._write_progress, self.monitor.see_main)
        return code, self.monitor.stop_plain(self.child.ended_s)

    def _write_progress(self) -> None:
        if self.place.rank != 0:
            return
        so_far = ReportedValues()  # of its own: a file that is just being written is no problem yet
        so_far.values = dict(self.report.values)
        so_far.read_file(self.attempt.output / FILE)
        speed = so_far.values.get("instances_per_s")
        steps, phases = 0, dict[str, float]()
        if _has_files(self.attempt.probe(0)):
            from hpcncf.probe.read import read_profiles, shares_so_far

            steps, phases = shares_so_far(read_profiles(self.attempt.probe(0))[0])
        self.write_progress(
            phase="command",
            epoch=0,
            epochs=0,
            step=steps,
            steps_per_epoch=0,
            reported=so_far.values,
            instances_per_s=speed if isinstance(speed, int | float) else None,
            pid=self.child.pid,
            process_started=self._process_started,
            slurm_step=os.environ.get("SLURM_STEP_ID"),
            phases=phases,
        )

    def end(self, measured: Mapping[str, Any], code: int, stopped: bool) -> dict[str, Any]:
        """Build the record of the command that ended with `code`, as plain data.

        `stopped`: the command had been asked to stop.
        """
        self.report.end()
        if self.place.rank == 0:
            self.report.read_file(self.attempt.output / FILE)
        folder = self.attempt.probe(self.place.rank)
        is_probed = folder.exists()
        profiles, unread, launched = list[dict[str, Any]](), list[str](), list[dict[str, Any]]()
        if _has_files(folder):
            from hpcncf.launcher.launched import add_launched
            from hpcncf.probe.read import read_processes, take_profiles

            measured, launched = add_launched(measured, read_processes(folder), os.environ)
            taken, unread = take_profiles(folder)
            profiles = [each.model_dump(mode="json") for each in taken]
        elif is_probed:
            folder.rmdir()
        if is_probed and not profiles and (why := unobservable(self._words) or self._unseen):
            unread = [*unread, why]
        if not launched and self._launching_s > LAUNCHING_SHARE * measured["elapsed_s"]:
            measured = _without_use(measured)
            unread = [*unread, NOT_COUNTED]
        kind, message = name_exit(code)
        return self.plain_record(
            measured,
            pid=self.child.pid,
            launched_by=self._launched_by,
            outcome="stopped" if stopped else "completed" if code == 0 else "failed",
            exit_code=code,
            error={"type": kind, "message": message, "traceback": ""} if code else None,
            environment=self._environment,
            training=None,
            reported=self.report.values,
            program=profiles,
            by_launcher=launched,
            warnings=[*self.report.problems, *unread],
        )


def _without_use(measured: Mapping[str, Any]) -> dict[str, Any]:
    """Return the measurements without the use of cores, which was elsewhere."""
    return {
        **measured,
        "cores": {**measured["cores"], "used": None},
        "cpu": {**measured["cpu"], "efficiency": None, "efficiency_peak": None},
    }


def _has_files(folder: Path) -> bool:
    try:
        with os.scandir(folder) as there:
            return any(True for _ in there)
    except OSError:
        return False
