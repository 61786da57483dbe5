"""Measure a command that this process runs as a rank of a run."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import psutil

from hpcncf.errors import name_exit
from hpcncf.job.plan import Run
from hpcncf.job.spec import Program
from hpcncf.launcher.environment import LaunchedBy, Place
from hpcncf.monitor.monitor_thread import Measured
from hpcncf.paths import AttemptPaths
from hpcncf.probe.launch import unobservable
from hpcncf.probe.read import read_profiles, shares_so_far, take_profiles
from hpcncf.records.claims import process_start
from hpcncf.records.schema import RankRecord
from hpcncf.worker.child_process import FILE, Child, ReportedValues
from hpcncf.worker.recorder import RankRecorder


class CommandRecorder(RankRecorder):
    """Measures a command from its start on, typed or of a job file, and makes its record."""

    def __init__(
        self,
        run: Run,
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
        with suppress(psutil.NoSuchProcess):  # it may have ended at once
            self._process_started = process_start(child.pid)
        self.start_monitor(allocated, child.pid)

    def wait(self) -> tuple[int, Measured]:
        """Wait for the command's end; return its exit code and the measurements.

        The exit code is minus the number of the signal that ended the command, if one did.
        """
        self._write_progress()  # by it `status` finds the command if this process is killed
        code = self.child.wait(self._write_progress, self.monitor.see_main)
        return code, self.monitor.stop()

    def _write_progress(self) -> None:
        if self.place.rank != 0:
            return
        so_far = ReportedValues()  # of its own: a file that is just being written is no problem yet
        so_far.values = dict(self.report.values)
        so_far.read_file(self.attempt.output / FILE)
        speed = so_far.values.get("instances_per_s")
        profiles, _ = read_profiles(self.attempt.probe(0))
        steps, phases = shares_so_far(profiles)
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
            phases=phases,
        )

    def end(self, measured: Measured, code: int, stopped: bool) -> RankRecord:
        """Build the record of the command that ended with `code`.

        `stopped`: the command had been asked to stop.
        """
        self.report.end()
        if self.place.rank == 0:
            self.report.read_file(self.attempt.output / FILE)
        folder, program = self.attempt.probe(self.place.rank), self.run.workload
        is_probed = folder.exists()
        profiles, unread = take_profiles(folder)
        if is_probed and not profiles and isinstance(program, Program):
            deaf = unobservable(program.templates)
            unread = [*unread, *([deaf] if deaf else [])]
        kind, message = name_exit(code)
        return self.build_record(
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
            warnings=[*self.report.problems, *unread],
        )
