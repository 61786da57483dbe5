"""Measure one rank of a run: what the recorder of a process and that of a command share."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from hpcncf.errors import HpcncfError
from hpcncf.launcher.environment import Place, slurm_job_id
from hpcncf.monitor.monitor_thread import Monitor
from hpcncf.paths import AttemptPaths
from hpcncf.records.plain import (
    plain_record,
    utc_now,
    write_plain,
    write_plain_with_retries,
)

if TYPE_CHECKING:
    from hpcncf.launcher.requeue import RequeueDecision
    from hpcncf.records.schema import RankRecord

# The runs that share a node or GPU, as JSON, for the ranks of each.
PACKED: Final = "HPCNCF_PACKED"


class RankRecorder:
    """Measures one rank of a run and writes its record: this process, or a command."""

    def __init__(
        self, run: Mapping[str, Any], place: Place, attempt: AttemptPaths | None = None
    ) -> None:
        """Prepare to record. `run` is a `job.plan.Run` as plain data."""
        self._plain_run, self.place, self._attempt = dict(run), place, attempt
        self.run_id: str = run["id"]
        self.warnings: list[str] = []
        self._monitor: Monitor | None = None

    @property
    def attempt(self) -> AttemptPaths:
        assert self._attempt is not None
        return self._attempt

    @property
    def monitor(self) -> Monitor:
        assert self._monitor is not None
        return self._monitor

    def start_monitor(self, allocated: float, pid: int | None = None) -> None:
        """Start to measure this process, or the command `pid`.

        A node's first rank measures the node, too.
        """
        cpus = os.environ.get("HPCNCF_NODE_CPUS")  # of the whole run here, by its launcher
        is_first = self.place.local_rank == 0
        self._monitor = Monitor(
            self.run_id,
            self.attempt.number,
            node_index=self.place.node_index,
            pid=pid,
            allocated=allocated,
            node_file=self.attempt.node(self.place.node_index) if is_first else None,
            node_cpus=[int(cpu) for cpu in cpus.split(",")] if cpus else None,
            siblings=self.place.local_world_size > 1,
        )
        self._monitor.start()

    def write_progress(self, **position: Any) -> None:
        """Write the progress file that `status` shows; `position` has the unmeasured fields."""
        progress = plain_record(
            "progress",
            self.run_id,
            self.attempt.number,
            updated_at=utc_now(),
            **self.monitor.so_far(),
            **position,
        )
        with contextlib.suppress(OSError):  # without it `status` shows less; the run goes on
            write_plain(self.attempt.progress, progress)

    def plain_record(self, measured: Mapping[str, Any], **others: Any) -> dict[str, Any]:
        """Build the rank's record as plain data.

        `others` has the fields that the monitor does not measure.
        """
        # A command of a packed run may start runs, which inherit the variable of that run.
        packed = json.loads(os.environ[PACKED]) if os.environ.get(PACKED) else None
        packed = packed if packed and self.run_id in packed["runs"] else None
        missing = [f"mps: {packed['mps_missing']}"] if packed and packed["mps_missing"] else []
        warnings = [*measured["warnings"], *missing, *others.pop("warnings"), *self.warnings]
        return plain_record(
            "rank",
            self.run_id,
            self.attempt.number,
            **dict(measured) | {"warnings": warnings},
            rank=self.place.rank,
            local_rank=self.place.local_rank,
            world_size=self.place.world_size,
            node=os.uname().nodename,
            node_index=self.place.node_index,
            slurm_job_id=slurm_job_id(),
            run=self._plain_run,
            by_launcher=others.pop("by_launcher", []),
            packed=packed,
            **others,
        )

    def build_record(self, measured: Mapping[str, Any], **others: Any) -> RankRecord:
        """Build the rank's record from the data of `plain_record`."""
        from hpcncf.records.schema import RankRecord

        return RankRecord(**self.plain_record(measured, **others))

    def leave(self, record: RankRecord) -> None:
        """Write the rank's record; retry for a while if the disk is full or unreachable.

        Raises HpcncfError if it cannot be written.
        """
        from hpcncf.worker.lost_ranks import LOST

        path = self.attempt.rank(record.rank)
        try:
            write_plain_with_retries(path, record.model_dump(mode="json"))
        except OSError as problem:
            raise HpcncfError(f"{path}: cannot be written: {problem.strerror}") from None
        message = record.error["message"] if record.error else LOST
        if record.world_size > 1 and record.outcome != "completed" and not message.startswith(LOST):
            # The first to end is linked to, so that no rank has to read hundreds of records.
            with contextlib.suppress(OSError):  # another was first, or there are no links here
                self.attempt.first(record.outcome).symlink_to(path.name)

    def requeue_last(self, decision: RequeueDecision, within_s: float) -> str:
        """Requeue the job if `decision` says so; return why Slurm refused, or an empty text.

        Slurm then kills the rest of the job: the other ranks' records come first.
        """
        if decision.job_id is None:
            return ""
        from hpcncf.launcher.requeue import requeue_job
        from hpcncf.worker.attempt import all_left

        all_left(self.attempt, self.place.world_size, within_s)
        return requeue_job(decision.job_id) or ""
