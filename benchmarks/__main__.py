"""`make bench`: every benchmark but those of `WHEN_NAMED`, one after another, as Markdown on
standard output.

`python -m benchmarks NAME...` runs those named, each in a process of its own. With `--write` what
each prints also goes into docs/ (`results.ELSEWHERE` says where), under a line that says where it
comes from; what a failed one printed does not.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time

from benchmarks import results
from hpcncf.records.host import describe_host

BENCHMARKS = {
    "cli_start": "The login node",
    "monitor": "The monitor",
    "probe": "The probe",
    "speed": "Loaders and workers",
    "engines": "The ladder of engines and optimizers",
    "strategies": "Every strategy of the job file",
    "remedies": "What each remedy did",
    "parquet": "Parquet",
    "prepare": "Tables larger than memory",
    "evaluate": "Evaluation",
    "packing": "Runs side by side",
    "neighbour": "Beside a busy neighbour",
    "exchange": "What ranks of a node exchange",
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
    """Run them all; exit code 1 when one fails, 2 when there is none of that name."""
    asked = parser().parse_args()
    if unknown := set(asked.names) - set(TITLES):
        parser().error(f"no benchmark {', '.join(sorted(unknown))}; there are {[*TITLES]}")
    about = describe_host()  # before anything is written: of the code that is measured
    failed = []
    for name in asked.names or BENCHMARKS:
        print(f"\n## {TITLES[name]}\n", flush=True)
        began = time.monotonic()
        code, said = ran(name, *(WHEN_WRITING.get(name, ()) if asked.write else ()))
        origin = results.origin(about, name, time.monotonic() - began)
        print(f"\n{origin}", flush=True)
        if code:
            failed.append(name)
        elif asked.write:
            results.write(name, TITLES[name], f"{origin}\n\n{said}")
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def ran(name: str, *arguments: str) -> tuple[int, str]:
    """A benchmark's exit code, and what it printed: passed on line by line."""
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
