"""`make bench`: measures the tables of docs/results.md, one benchmark after another.

`python -m benchmarks NAME...` runs those named, and without names all but those that install or
diagnose other programs; `--all` runs these, too. Each is a process of its own, with a time limit; a
failed one stops no other. Tables go to standard output, and with `--write` into docs/results.md at
once, which then names this sitting at its top.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from threading import Timer
from typing import Final

from benchmarks import results
from benchmarks.results import BenchmarkOutput

ENDS_S: Final = 20.0
"""A benchmark that is over its limit has so long to end what it started."""


@dataclass(frozen=True)
class Benchmark:
    title: str
    seconds: int
    """About what it takes on two quiet cores, until the page has the time of its last run."""

    @property
    def limit_s(self) -> float:
        return 2.0 * self.seconds + 60


BENCHMARKS: Final = {
    "demo": Benchmark("The demo", 240),
    "engines": Benchmark("The ladder of engines and optimizers", 130),
    "ranks": Benchmark("Ranks", 60),
    "quality": Benchmark("Quality", 80),
    "time_to_quality": Benchmark("Time to quality", 170),
    "remedies": Benchmark("What each remedy did", 945),
    "rowwise": Benchmark("Exact rows in a program of one's own", 560),
    "probe": Benchmark("The probe", 110),
    "login": Benchmark("The login node", 60),
    "evaluate": Benchmark("Evaluation", 20),
    "memory": Benchmark("Memory", 120),
}
OTHER_PROGRAMS: Final = {
    "programs": Benchmark("Programs as their users write them", 850),
    "peers": Benchmark("RecBole and cornac", 220),
    "public": Benchmark("Programs that nobody here wrote", 330),
    "pathology": Benchmark("Causes made on purpose", 450),
}
WHEN_NAMED: Final = {"gpu": Benchmark("On a GPU", 600)}
ALL: Final = BENCHMARKS | OTHER_PROGRAMS | WHEN_NAMED


def parser() -> argparse.ArgumentParser:
    asking = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    asking.add_argument("--all", action="store_true", help=f"also {', '.join(OTHER_PROGRAMS)}")
    asking.add_argument("--write", action="store_true", help="into docs/results.md, too")
    asking.add_argument("--minutes", type=float, help="skip what would not end within this time")
    asking.add_argument("names", nargs="*", metavar="NAME", help=", ".join(ALL))
    return asking


def main() -> int:
    """Exit code 1 if a benchmark failed or was skipped, 2 for an unknown name."""
    asked = parser().parse_args()
    if unknown := set(asked.names) - set(ALL):
        parser().error(f"no benchmark {', '.join(sorted(unknown))}; there are {', '.join(ALL)}")
    names = asked.names or [*BENCHMARKS, *(OTHER_PROGRAMS if asked.all else ())]
    expected = expected_seconds(names, results.PAGE.read_text())
    ends = time.monotonic() + 60 * asked.minutes if asked.minutes else float("inf")
    origin = results.describe_origin()  # of the code that is measured, before anything is written
    print(f"{origin}\n{describe_time(expected)}", file=sys.stderr, flush=True)
    bad = []
    for number, name in enumerate(names, 1):
        benchmark, left_s = ALL[name], ends - time.monotonic()
        rest = {each: expected[each] for each in names[number - 1 :]}
        if expected[name] > left_s:
            print(f"[{number}/{len(names)}] {name}: skipped", file=sys.stderr, flush=True)
            bad.append(f"{name} (skipped)")
            continue
        head = f"[{number}/{len(names)}] {name}, {expected[name]} s; left with it:"
        print(f"{head} {describe_time(rest)}", file=sys.stderr, flush=True)
        print(f"\n## {benchmark.title}\n", flush=True)
        began = time.monotonic()
        printed, why = run(name, min(benchmark.limit_s, left_s))
        block = BenchmarkOutput(name, printed, round(time.monotonic() - began), origin)
        print(f"{name}: {why or 'done'}, {block.seconds} s", file=sys.stderr, flush=True)
        if why:
            bad.append(f"{name} ({why})")
            block = results.failed(block, why)
        if asked.write:
            results.write(block, benchmark.title, new_sitting=not asked.names)
    if bad:
        print(f"failed: {', '.join(bad)}", file=sys.stderr)
    return 1 if bad else 0


def expected_seconds(names: Sequence[str], page: str) -> dict[str, int]:
    """Of each benchmark: its last run's, if the page has it."""
    last = {name: block.seconds for name, block in results.blocks(page).items()}
    return {name: last.get(name) or ALL[name].seconds for name in names}


def describe_time(expected: Mapping[str, int]) -> str:
    number = f"{len(expected)} benchmark{'s' * (len(expected) != 1)}"
    return f"{number}, about {-(-sum(expected.values()) // 60)} min"


def run(name: str, limit_s: float) -> tuple[str, str | None]:
    """A benchmark's output, which is also passed on line by line, and why it failed, if it did."""
    lines, late = [], False
    command = [sys.executable, "-m", f"benchmarks.{name}"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, cwd=results.ROOT, start_new_session=True
    ) as benchmark:

        def end() -> None:
            nonlocal late
            late = True
            benchmark.terminate()
            killing.start()

        ending = Timer(limit_s, end)
        killing = Timer(ENDS_S, os.killpg, (benchmark.pid, signal.SIGKILL))
        ending.daemon = killing.daemon = True
        ending.start()
        assert benchmark.stdout is not None
        try:
            for line in benchmark.stdout:
                print(line, end="", flush=True)
                lines.append(line)
            code = benchmark.wait()
        except BaseException:
            benchmark.terminate()
            raise
        finally:
            ending.cancel()
            killing.cancel()
    if late:
        return "".join(lines), f"not over in {limit_s:.0f} s"
    return "".join(lines), f"exit code {code}" if code else None


if __name__ == "__main__":
    sys.exit(main())
