"""Lint a batch script of Slurm, LSF, PBS or Grid Engine against what its commands start."""

from __future__ import annotations

from collections.abc import Iterator

from hpcncf.batch.script import BatchScript, read_batch_script
from hpcncf.lint.amount_rules import check_amounts
from hpcncf.lint.array_rules import check_arrays
from hpcncf.lint.batch_context import Context, find
from hpcncf.lint.directive_rules import check_directives, check_file
from hpcncf.lint.environment_rules import check_environment
from hpcncf.lint.gpu_rules import check_gpus
from hpcncf.lint.program_facts import Reader, read_nothing
from hpcncf.lint.rank_rules import check_fixed_port, check_ranks
from hpcncf.lint.rules import Complaint
from hpcncf.lint.task_rules import check_tasks
from hpcncf.lint.thread_rules import check_threads
from hpcncf.lint.variable_rules import check_variables

CHECKS = (
    check_file,
    check_directives,
    check_amounts,
    check_tasks,
    check_ranks,
    check_fixed_port,
    check_threads,
    check_variables,
    check_gpus,
    check_arrays,
    check_environment,
)


def check_batch_script(text: str, read: Reader = read_nothing) -> list[Complaint]:
    """Check a batch script; return all complaints in the order of its lines."""
    return check_script(read_batch_script(text), read)


def check_script(script: BatchScript, read: Reader = read_nothing) -> list[Complaint]:
    """Check a parsed batch script; return all complaints in the order of its lines."""
    context = Context(script, read)
    found: dict[tuple[int, str], Complaint] = {}
    for complaint in (*_launchers(script), *_all(context)):
        found.setdefault((complaint.line, complaint.rule), complaint)
    return sorted(found.values())


def _all(context: Context) -> Iterator[Complaint]:
    if context.script.scheduler is None:
        return
    for check in CHECKS:
        yield from check(context)


def check_launchers(text: str) -> list[Complaint]:
    """Find uses of torch's deprecated launcher in any shell script."""
    return sorted(_launchers(read_batch_script(text)))


def _launchers(script: BatchScript) -> Iterator[Complaint]:
    for start in script.starts:
        for stage in start.stages:
            if stage.name == "torch.distributed.launch":
                yield find("old-launcher", start.line)
