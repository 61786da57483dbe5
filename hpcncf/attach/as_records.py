"""Records of a watch, in the shape that `hpcncf run` leaves, so that one page shows both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from hpcncf.launcher.allocation import allocated_cores
from hpcncf.monitor.monitor_thread import PEAK_WINDOW_S, Peak, node_record, warnings
from hpcncf.monitor.windows import GpuWindow, Window
from hpcncf.records.schema import Cores, Cpu, Io, Memory, NodeRecord, ProgramProfile, RankRecord

Raw = Mapping[str, Any]
"""What `Watch.result` returned, of one node."""


def records(
    raws: Sequence[Raw],
    job: str | None = None,
    allocated: Mapping[str, float] | None = None,
    programs: Mapping[str, list[ProgramProfile]] | None = None,
) -> tuple[list[RankRecord], list[NodeRecord]]:
    """Build for each node a rank's record of all watched processes, and the node's record.

    `allocated`: node -> cores of the job there. `programs`: node -> what was seen inside.
    """
    ranks, nodes = [], []
    for index, raw in enumerate(raws):
        windows = [_window(each) for each in raw["windows"]]
        about = {"run_id": f"{raw['node']}:{raw['main']}", "attempt": 1, "node": raw["node"]}
        ranks.append(
            _rank(
                raw,
                windows,
                **about,
                rank=index,
                world_size=len(raws),
                node_index=index,
                slurm_job_id=job,
                allocated=(allocated or {}).get(raw["node"]),
                program=(programs or {}).get(raw["node"], []),
            )
        )
        nodes.append(
            node_record(
                windows,
                raw["node_cpus"],
                **about,
                node_index=index,
                started_at=raw["started_at"],
            )
        )
    return ranks, nodes


def _window(plain: Mapping[str, Any]) -> Window:
    values: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in plain.items()
    }
    values["gpus"] = tuple(GpuWindow(**each) for each in plain["gpus"])
    return Window(**values)


def _rank(
    raw: Raw,
    windows: list[Window],
    *,
    allocated: float | None,
    program: list[ProgramProfile],
    **about: Any,
) -> RankRecord:
    elapsed_s, cpu = raw["elapsed_s"], raw["cpu"]
    used_s = cpu["user_s"] + cpu["system_s"]
    allocated = allocated or allocated_cores(raw["variables"]) or raw["cores"]["usable"] or 1.0
    cores = Cores(
        allocated=allocated,
        used=used_s / elapsed_s if elapsed_s > 0 else None,
        affinity_changed=False,
        **raw["cores"],
    )
    efficiency = used_s / (elapsed_s * allocated) if elapsed_s > 0 else None
    peak = Peak()
    for at_s, spent_s in raw["samples"]:
        peak.add(at_s, spent_s)
    runs = None if cpu["runqueue_s"] is None else used_s + cpu["runqueue_s"]
    memory = Memory(**raw["memory"])
    begun = datetime.fromisoformat(raw["started_at"])
    main = next((each for each in raw["processes"] if each["pid"] == raw["main"]), None)
    return RankRecord(
        **about,
        local_rank=0,
        launched_by="attach",
        pid=raw["main"],
        outcome="completed",
        exit_code=None,
        error=None,
        started_at=raw["started_at"],
        ended_at=(begun + timedelta(seconds=elapsed_s)).isoformat(timespec="milliseconds"),
        elapsed_s=elapsed_s,
        run={"workload": {"command": main["command"] if main else []}, "age_s": raw["age_s"]},
        environment={},
        training=None,
        cores=cores,
        cpu=Cpu(
            **cpu,
            efficiency=efficiency,
            efficiency_peak=None
            if peak.cores is None
            else max(peak.cores / allocated, efficiency or 0.0),
            peak_window_s=PEAK_WINDOW_S,
            runnable_mean=runs / elapsed_s if runs is not None and elapsed_s > 0 else None,
        ),
        memory=memory,
        io=Io(**raw["io"]),
        program=program,
        warnings=warnings(cores, memory, elapsed_s, windows, raw["node_cpus"], raw["variables"]),
    )
