"""`make bench`: every benchmark but those of `WHEN_NAMED`, one after another, as Markdown on
standard output; before each, what is left to standard error.

`python -m benchmarks NAME...` runs those named, each in a process of its own. With `--write` the
output also goes into docs/ (`results.ELSEWHERE` names the page), below a line with commit, machine
and duration. The output of a failed benchmark is not written.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Mapping

from benchmarks import results
from hpcncf.records.host import describe_host

BENCHMARKS = {
    "cli_start": "The login node",
    "monitor": "The monitor",
    "probe": "The probe",
    "engines": "The ladder of engines and optimizers",
    "strategies": "Every strategy of the job file",
    "remedies": "What each remedy did",
    "rowwise": "Exact rows in a program of one's own",
    "prepare": "Tables larger than memory",
    "evaluate": "Evaluation",
    "packing": "Runs side by side",
    "neighbour": "Beside a busy neighbour",
    "sync": "Ranks",
    "memory": "Memory of ranks",
    "roofline": "The fraction of the roofline",
    "scaling": "Laws of scaling",
    "predict": "Predictions of runs that no law has seen",
    "tune": "Tuning against the whole grid",
    "report": "A thousand runs",
    "quality": "Quality",
    "blocks": "Quality in blocks",
    "time_to_quality": "Time to quality",
    "predictions": "Predicted against measured",
}
# `peers` and `public` install other programs; the others are `make pathology`, `make programs` and
# `make bench-gpu`, which needs a GPU.
WHEN_NAMED = {
    "peers": "RecBole and cornac",
    "pathology": "Causes made on purpose",
    "programs": "Programs as their users write them",
    "public": "Programs that nobody here wrote",
    "gpu": "On a GPU",
}
TITLES = BENCHMARKS | WHEN_NAMED
WHEN_WRITING = {"engines": ("--figure", "docs/images/ladder.png")}


def parser() -> argparse.ArgumentParser:
    asking = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    asking.add_argument("--write", action="store_true", help="into docs/, too")
    asking.add_argument("names", nargs="*", metavar="NAME", help=", ".join(TITLES))
    return asking


def main() -> int:
    """Run the benchmarks named, or all. Exit code 1 if one fails, 2 for an unknown name."""
    asked = parser().parse_args()
    if unknown := set(asked.names) - set(TITLES):
        parser().error(f"no benchmark {', '.join(sorted(unknown))}; there are {[*TITLES]}")
    about = describe_host()  # before anything is written: of the code that is measured
    names = asked.names or list(BENCHMARKS)
    times = {
        name: results.seconds_taken(results.document(name).read_text(), name) for name in names
    }
    print(f"{describe_time(times)}, by their last runs", file=sys.stderr, flush=True)
    failed = []
    for number, name in enumerate(names):
        rest = describe_time({each: times[each] for each in names[number:]})
        print(f"[{number + 1}/{len(names)}] {name}; left: {rest}", file=sys.stderr, flush=True)
        print(f"\n## {TITLES[name]}\n", flush=True)
        began = time.monotonic()
        code, printed = run(name, *(WHEN_WRITING.get(name, ()) if asked.write else ()))
        origin = results.origin(about, name, time.monotonic() - began)
        print(f"\n{origin}", flush=True)
        if code:
            failed.append(name)
        elif asked.write:
            results.write(name, TITLES[name], f"{origin}\n\n{printed}")
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def describe_time(times: Mapping[str, int | None]) -> str:
    """`times`: benchmark -> seconds that its last run took; None if there was none."""
    minutes = -(-sum(filter(None, times.values())) // 60)
    untimed = [name for name, seconds in times.items() if seconds is None]
    more = f", and {len(untimed)} never timed on this page ({', '.join(untimed)})"
    number = f"{len(times)} benchmark{'s' * (len(times) != 1)}"
    return f"{number}: about {minutes} min{more if untimed else ''}"


def run(name: str, *arguments: str) -> tuple[int, str]:
    """A benchmark's exit code and its output, which is also passed on line by line."""
    command = [sys.executable, "-m", f"benchmarks.{name}", *arguments]
    lines = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as benchmark:
        assert benchmark.stdout is not None
        for line in benchmark.stdout:
            print(line, end="", flush=True)
            lines.append(line)
    return benchmark.returncode, "".join(lines)


if __name__ == "__main__":
    sys.exit(main())
