"""States of runs and arrays in one line each, and as plain data."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from hpcncf.cli.output import ID, table_layout, usual_values, varies
from hpcncf.collect.resource_columns import measure, usable
from hpcncf.collect.training_columns import reports
from hpcncf.records.code_version import ELSEWHERE
from hpcncf.records.schema import Progress
from hpcncf.slurm import query
from hpcncf.state.decide import NOT_SENT, has_all_ranks, whole_records
from hpcncf.state.status import RunState
from hpcncf.text import format_duration, pluralize


def describe_arrays(states: Sequence[RunState]) -> list[str]:
    """Describe each Slurm array in a line: `array 123: 40 of 64 done, 8 running`."""
    lines = []
    for array in plain_arrays(states):
        by_state = dict(array["states"])
        parts = [f"{by_state.pop('completed', 0)} of {array['runs']} done"]
        pending = by_state.pop("pending", 0)
        parts += [f"{number} {state.replace('_', ' ')}" for state, number in by_state.items()]
        if pending:
            why = "; ".join(array["waiting_for"])
            parts.append(f"{pending} pending" + (f": {why}" if why else ""))
        if pending and array["expected_start"]:
            parts.append(f"the next expected {when(array['expected_start'])}")
        lines.append(f"array {array['array']}: {', '.join(parts)}")
    return lines


def plain_arrays(states: Sequence[RunState]) -> list[dict[str, Any]]:
    """States of Slurm arrays as plain data for `--json`, with the reasons for waiting."""
    arrays: dict[str, list[RunState]] = defaultdict(list)
    for state in states:
        array, _, element = state.job.id.partition("_") if state.job else ("", "", "")
        if element:
            arrays[array].append(state)
    found = []
    for array, runs in arrays.items():
        waiting = Counter(state.reason for state in runs if state.state == "pending")
        starts = [state.slurm.starts for state in runs if state.slurm and state.slurm.starts]
        summary = {
            "array": array,
            "runs": len(runs),
            "states": dict(Counter(state.state for state in runs)),
            "waiting_for": dict(waiting.most_common(3)),
            "expected_start": min(starts, default=None),
        }
        found += [summary] if len(runs) > 1 else []
    return found


def when(text: str) -> str:
    """Format a time: `at 14:05` if it is today, else with the day."""
    moment = query.parse_time(text)
    if moment is None:
        return f"at {text}"
    today = moment.date() == datetime.now().astimezone().date()
    return f"at {moment:%H:%M}" if today else f"on {moment:%b %-d at %H:%M}"


NAMED: Final = 3
SAME_FIRST: Final = (
    "let the site's `venv` or `conda` be the submitter's, or submit from that; then "
)


def plain_progress(state: RunState) -> dict[str, Any]:
    """State and figures of one run as plain data for `--json`."""
    return {
        "id": state.run.id,
        "state": state.state,
        "reason": state.reason or None,
        "attempt": state.attempt,
        "varied": state.run.varied,
        "repeat": state.run.repeat,
        "retired": state.run.retired,
        "resources": state.run.resources.model_dump(mode="json"),
        "job_id": state.job.id if state.job else None,
        "slurm": {
            "state": state.slurm.word or None,
            "reason": state.slurm.reason or None,
            "expected_start": state.slurm.starts or None,
            "restarts": state.slurm.restarts,
        }
        if state.slurm
        else None,
        "node": state.node or None,
        "progress": state.progress.model_dump(mode="json") if state.progress else None,
        **run_figures(state),
        "stale": state.stale,
        "problems": state.problems,
    }


FIGURES: Final = (
    "elapsed_s",
    "instances_per_s",
    "cpu_efficiency",
    "cores_usable",
    "cores_allocated",
)


def run_figures(state: RunState) -> dict[str, float | None]:
    """Figures of a run by name, such as its efficiency; None for unknown ones.

    They describe the whole run once every rank left a record, else its progress so far.
    """
    source: dict[str, Any] = {}
    if has_all_ranks(whole_records(state.ranks)) and state.state not in ("pending", "running"):
        source = measure(state.run, whole_records(state.ranks), None)
    elif state.state == "running":
        source = {"elapsed_s": _at_work_s(state)}
        source |= state.progress.model_dump() if state.progress else {}
    return {name: source.get(name) for name in FIGURES}


def _at_work_s(state: RunState) -> float | None:
    """Seconds since the run began, or None if unknown.

    Its Slurm job may have processed other runs before.
    """
    if state.begun_at is not None:
        since = datetime.now(UTC) - datetime.fromisoformat(state.begun_at)
        return max(since.total_seconds(), 0.0)  # the node's clock may be ahead
    alone = state.job is None or len(state.job.runs) == 1
    return state.slurm.elapsed_s if state.slurm and alone else None


def sentence(state: RunState) -> str:
    """Describe a run: `node1, 3 min, training, epoch 2/3, CPU 98 %`, or why it does not run."""
    figures = run_figures(state)
    parts = []
    if state.state == "running":
        lasted_s = figures["elapsed_s"]
        parts = [state.node, "" if lasted_s is None else format_duration(lasted_s), _epoch(state)]
    if figures["instances_per_s"] is not None:
        parts.append(f"{figures['instances_per_s']:,.0f} instances/s")
    if figures["cpu_efficiency"] is not None:
        parts.append(_cores_in_use(state, figures["cpu_efficiency"]))
    parts += [_too_few_cores(state), NOT_SENT if _why_not_sent(state) else state.reason]
    if state.state == "pending" and state.slurm and state.slurm.starts:
        parts.append(f"expected to start {when(state.slurm.starts)}")
    return ", ".join(part for part in parts if part)


def _cores_in_use(state: RunState, efficiency: float) -> str:
    """Format the CPU efficiency: `CPU 98 %`, for a running run with cores and memory in use.

    While it runs, figures are those of rank 0: `1.9 of 2 cores (CPU 98 %), 412 MiB`.
    """
    text, now = f"CPU {100 * efficiency:.0f} %", state.progress
    if state.state != "running" or now is None or now.cores_allocated is None:
        return text
    cores = f"{efficiency * now.cores_allocated:.1f} of {now.cores_allocated:g} cores ({text})"
    memory = "" if now.rss_mib is None else f", {now.rss_mib:,.0f} MiB"
    several = "rank 0: " if state.run.resources.world_size > 1 else ""
    return f"{several}{cores}{memory}"


def _too_few_cores(state: RunState) -> str:
    can_use, allocated = None, None
    if has_all_ranks(state.ranks):
        can_use = usable(state.ranks)
        allocated = sum(rank.cores.allocated for rank in state.ranks)
    elif state.state == "running" and state.progress is not None:
        can_use, allocated = state.progress.cores_usable, state.progress.cores_allocated
    if can_use is None or allocated is None or can_use >= allocated:
        return ""
    return f"! only {can_use:g} of {allocated:g} allocated cores usable"


def describe_too_few_cores(states: Sequence[RunState]) -> list[str]:
    """Warn about runs that cannot use all cores that Slurm gave them."""
    return [
        f"{warning} in {_named(runs)}: see how srun binds them (docs/your-cluster.md)"
        for warning, runs in _grouped(states, _too_few_cores).items()
    ]


def _grouped(
    states: Sequence[RunState], line_of: Callable[[RunState], str]
) -> dict[str, list[RunState]]:
    """Group runs by the line that describes them, leaving out runs without one."""
    runs: dict[str, list[RunState]] = {}
    for state in states:
        if line := line_of(state):
            runs.setdefault(line, []).append(state)
    return runs


def _epoch(state: RunState) -> str:
    now = state.progress
    if now is None or now.phase == "startup":
        return "starting"
    if now.phase == "command":
        return ", ".join([*_observed(now), *reports(now)])
    epochs, steps = now.epochs, now.steps_per_epoch
    most = state.run.training.max_steps if state.run.training else None
    if most is not None and steps:  # it may come before the last epoch's end
        epochs = min(epochs, -(-most // steps))
        steps = min(steps, most - now.epoch * steps)
    share = now.evaluated
    if now.phase == "training" and steps > 0:
        share = now.step / steps
    done = "" if share is None else f" {100 * share:.0f} %"
    return f"{now.phase}, epoch {min(now.epoch + 1, epochs)}/{epochs}{done}"


def _observed(now: Progress) -> list[str]:
    """Summarize the probe's observations: `1,204 steps`, `input 62 %, optimizer 21 %`."""
    most = sorted(now.phases.items(), key=lambda item: -item[1])[:2]
    steps = [f"{now.step:,} steps"] if now.step else []
    return [*steps, *(f"{phase} {share:.0%}".replace("%", " %") for phase, share in most)]


def table_progress(states: Sequence[RunState]) -> str:
    heads = ["run", "varies", "state", "try", "details"]
    usual = usual_values([state.run for state in states])
    rows = [
        [
            state.run.id[:ID],
            varies(state.run, usual) + (" (retired)" if state.run.retired else ""),
            state.state.replace("_", " "),
            str(state.attempt or "-"),
            sentence(state),
        ]
        for state in states
    ]
    return table_layout(heads, rows)


def _why_not_sent(state: RunState) -> str:
    """Reason why `submit` left the run out; "" if it did not."""
    first, _, why = state.reason.partition(": ")
    return why if first == NOT_SENT else ""


def describe_unsent(states: Sequence[RunState]) -> list[str]:
    """One line per reason why `submit` left runs out."""
    planned = [state for state in states if state.state == "planned" and not state.run.retired]
    return [
        f"{_named(runs)} not submitted: {why}"
        for why, runs in _grouped(planned, _why_not_sent).items()
    ]


def _named(states: Sequence[RunState]) -> str:
    """Count runs and name the first ones: `5 runs (1a2b3c4d, 5e6f7a8b, 9c0d1e2f, ...)`."""
    ids = [state.run.id[:ID] for state in states[:NAMED]]
    more = ", ..." * (len(states) > NAMED)
    return f"{pluralize(len(states), 'run')} ({', '.join(ids)}{more})"


def describe_stale(states: Sequence[RunState]) -> list[str]:
    """One line per reason why completed runs are out of date."""
    causes = [state.stale for state in states if state.stale]
    return [
        f"{pluralize(causes.count(cause), 'completed run')} {cause}: "
        + (SAME_FIRST * (ELSEWHERE in cause))
        + "`hpcncf submit --again` runs them once more"
        for cause in dict.fromkeys(causes)
    ]
