"""`--auto` of `hpcncf run`: trials first, within a share of the job's time limit."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import textwrap
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from hpcncf.errors import HpcncfError, UsageError
from hpcncf.text import format_duration, pluralize

if TYPE_CHECKING:
    from hpcncf.tune.auto import AutoChoice

SHARE: Final = 3.0
"""Percent of the time limit."""
MOST_SHARE: Final = 50.0
NO_LIMIT_S: Final = 60.0
LEAST_S: Final = 10.0
SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
INDENT: Final = 10
LINE: Final = 80


def add_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "tuning itself",
        "Short trials, as of `hpcncf tune`, in folders of their own; then the command with the "
        "fastest remedies whose losses were the same, or unchanged.",
    )
    group.add_argument("--auto", action="store_true", help="try the command first")
    group.add_argument(
        "--auto-share",
        type=float,
        metavar="PERCENT",
        help=f"of the job's time limit that trials may take (default: {SHARE:g})",
    )
    group.add_argument(
        "--auto-seconds",
        type=float,
        metavar="S",
        help=f"time of all trials instead (default where no limit is known: {NO_LIMIT_S:g})",
    )


def choose(args: argparse.Namespace, words: Sequence[str], results: Path) -> AutoChoice | None:
    """Make the trials, and return what the command is to run with; None without `--auto`.

    Whatever goes wrong in the trials, the command runs unchanged. Raises UsageError for options
    that exclude each other.
    """
    asked = [name for name in ("auto_share", "auto_seconds") if getattr(args, name) is not None]
    if not args.auto:
        if asked:
            raise UsageError(f"run: --{asked[0].replace('_', '-')} is of no use without --auto")
        return None
    if args.remedies or args.no_probe:
        other = "--with" if args.remedies else "--no-probe"
        raise UsageError(f"run: --auto chooses remedies by trials: remove {other}")
    for name, most in (("auto_share", MOST_SHARE), ("auto_seconds", 1e9)):
        value = getattr(args, name)
        if value is not None and not 0 < value <= most:
            option = f"--{name.replace('_', '-')}"
            raise UsageError(f"run: {option} {value:g}: expected above 0, at most {most:g}")
    from hpcncf.tune.auto import AutoChoice, find_obstacle

    if obstacle := find_obstacle(words):
        return AutoChoice(reason=obstacle)
    seconds, source = _seconds(args)
    if seconds < LEAST_S:
        return AutoChoice(
            reason=f"{source} leave {seconds:.2g} s, too few for a trial: give --auto-seconds"
        )
    if not args.quiet:
        print(f"hpcncf: trials for at most {seconds:.0f} s ({source})", file=sys.stderr, flush=True)
    return _try(words, results, seconds)


def _seconds(args: argparse.Namespace) -> tuple[float, str]:
    """Time for all trials, and what it follows from."""
    from hpcncf.launcher.time_limit import time_limit_s

    if args.auto_seconds is not None:
        return args.auto_seconds, "--auto-seconds"
    limit_s, share = time_limit_s(), args.auto_share or SHARE
    if limit_s is None:
        return NO_LIMIT_S, "no time limit is known here; --auto-seconds sets another"
    return limit_s * share / 100, f"{share:g} % of the time limit of {format_duration(limit_s)}"


def _try(words: Sequence[str], results: Path, seconds: float) -> AutoChoice:
    """Make the trials; a signal ends them and this process, as it would have ended the command."""
    from hpcncf.tune.auto import AutoChoice, tune_here
    from hpcncf.worker.terminal import die_of

    came: list[int] = []
    stamp = f"{time.strftime('%Y%m%d-%H%M%S')}-{os.uname().nodename}-{os.getpid()}"
    folder = results.with_name(f"{results.name}-auto") / stamp
    # One that is ignored, as by nohup, stays so.
    held = {each: signal.getsignal(each) for each in SIGNALS}
    held = {each: handler for each, handler in held.items() if handler is not signal.SIG_IGN}
    for each in held:
        signal.signal(each, lambda signum, _: came.append(signum))
    try:
        found = tune_here(words, folder, seconds, lambda: bool(came))
    except OSError as error:
        found = AutoChoice(reason=f"no trial could be made: {error.filename}: {error.strerror}")
    except HpcncfError as error:
        found = AutoChoice(reason=f"no trial could be made: {error}")
    except Exception as error:
        found = AutoChoice(reason=f"the trials failed: {type(error).__name__}: {error}")
    finally:
        for each, handler in held.items():
            signal.signal(each, handler)
    if came:
        die_of(came[0])
    return found


def describe(choice: AutoChoice) -> list[str]:
    """Lines for the summary: what was tried, what was taken and why, what to ask for next."""
    from hpcncf.cli.output import format_path

    lines = [("Took", f"{choice.remedies or 'the program unchanged'}: {choice.reason}")]
    if choice.trials:
        tried = f"{pluralize(choice.trials, 'trial')} in {choice.seconds:.0f} s"
        lines.insert(0, ("Tried", f"{tried}: {'; '.join(choice.tried) or 'none could be timed'}"))
    lines += [("Out", each) for each in choice.out]
    lines += [("Drop", choice.drop)] if choice.drop else []
    if choice.trials and choice.results:
        lines.append(("Trials", f"hpcncf report {format_path(choice.results)}"))
    later = " " * INDENT
    return [
        textwrap.fill(text, LINE, initial_indent=f"{label:{INDENT}}", subsequent_indent=later)
        for label, text in lines
    ]


def plain(choice: AutoChoice) -> dict[str, Any]:
    """Convert the choice of `--auto` to plain data for `--json`."""
    return {
        "with": str(choice.remedies),
        "reason": choice.reason,
        "trials": choice.trials,
        "seconds": choice.seconds,
        "tried": choice.tried,
        "out": choice.out,
        "drop": choice.drop,
        "results": str(choice.results) if choice.results else None,
    }
