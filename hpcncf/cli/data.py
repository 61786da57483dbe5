"""`hpcncf data`: prepare a data set, describe a prepared folder."""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TextIO

from hpcncf.cli import data_bench
from hpcncf.cli.output import print_json
from hpcncf.errors import UsageError

if TYPE_CHECKING:
    from hpcncf.data.manifest import Manifest
    from hpcncf.data.prepare import PreparedFolder

Report = Callable[[str], None]

EPILOG = """\
examples:
  hpcncf data prepare frappe -o data/frappe
  hpcncf data prepare movielens --source ml-1m/ratings.dat -o data/ml-1m
  hpcncf data prepare csv --source a.csv --user user --item shop --context hour,weather -o data/a
  hpcncf data prepare synthetic --like yelp -o data/yelp
  hpcncf data info data/frappe
"""
DATASETS = {
    "frappe": "app use in context: 654 users, 1,127 apps, 21 context columns",
    "movielens": "ratings.dat or u.data, or the folder of one",
    "ncf": "*.train.rating, *.test.rating, *.test.negative of the NCF paper's code",
    "csv": "a CSV file with a header (.tsv: separated by tabs)",
    "parquet": "a Parquet file; only the named columns are read",
    "synthetic": "generated data of a given shape",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    prepare = actions.add_parser("prepare", help="Prepare a folder from a data set.")
    datasets = prepare.add_subparsers(dest="dataset", metavar="DATASET", required=True)
    for name, about in DATASETS.items():
        dataset = datasets.add_parser(name, help=about, description=about)
        _add_options(dataset, name)
    data_bench.add_arguments(actions.add_parser("bench", help="Time the loaders of a job file."))
    info = actions.add_parser("info", help="Describe a prepared folder.")
    info.add_argument("folder", type=Path, metavar="FOLDER")
    info.add_argument("--json", action="store_true", help="print JSON")


def _add_options(parser: argparse.ArgumentParser, name: str) -> None:
    add = parser.add_argument
    add("-o", "--output", type=Path, required=True, metavar="FOLDER")
    if name != "synthetic":
        add("--source", type=Path, required=name != "frappe", help="the file, or its folder")
    if name != "ncf":
        add("--seed", type=int, default=1, help="of the data set (default: 1)")
        add(
            "--test-negatives", type=int, default=99, metavar="N", help="per test row (default: 99)"
        )
    add("--force", action="store_true", help="replace other data in the folder")
    add("--json", action="store_true", help="print JSON")
    if name == "frappe":
        about = "if Frappe cannot be downloaded, generate data of its shape, marked as such"
        add("--or-synthetic", action="store_true", help=about)
    if name in ("csv", "parquet"):
        add("--user", required=True, metavar="COLUMN")
        add("--item", required=True, metavar="COLUMN")
        about = "numbers are kept, text becomes one-hot"
        add("--context", default="", metavar="A,B,C", help=about)
        add("--time", metavar="COLUMN", help="hold out each user's latest row, not a random one")
    if name == "parquet":
        about = "that decode columns (default: the usable cores)"
        add("--threads", type=int, metavar="N", help=about)
    if name == "synthetic":
        add("--like", choices=("yelp", "frappe", "movielens"), help="a known shape")
        add("--users", type=int)
        add("--items", type=int)
        add("--rows", type=int, help="training rows")
        add("--context", type=int, help="context columns (default: 0)")


def run(args: argparse.Namespace) -> int:
    if args.action == "bench":
        return data_bench.run(args)
    return _info(args) if args.action == "info" else _prepare(args)


def _prepare(args: argparse.Namespace) -> int:
    with ProgressLine(sys.stderr) as report:
        written = _write(args, report)
    if args.json:
        described = _describe(args.output, written.manifest)
        print_json("data", {"outcome": written.outcome} | described)
    else:
        same = ", made from the same input with the same options"
        outcome = written.outcome + (same if written.outcome == "already there" else "")
        print(f"{args.output}: {outcome}: {written.manifest.title}")
        print(_shape(written.manifest))
    if written.manifest.ranking_warning:
        print(f"hpcncf: warning: {written.manifest.ranking_warning}", file=sys.stderr)
    return 0


def _write(args: argparse.Namespace, report: Report) -> PreparedFolder:
    from hpcncf.monitor.cgroup import available_bytes

    source: Any = getattr(args, "source", None)
    output, force = args.output, args.force
    if args.dataset == "ncf":
        from hpcncf.data.datasets import prepare_ncf_files

        return prepare_ncf_files(output, source, force, available_bytes())
    seed, negatives = args.seed, args.test_negatives
    if not 0 <= seed < 2**63:
        raise UsageError(f"--seed {seed}: expected 0 to 2^63 - 1")
    if negatives < 1:
        raise UsageError(f"--test-negatives {negatives}: expected 1 or more")
    if args.dataset == "synthetic":
        return _write_synthetic(args)
    if args.dataset in ("csv", "parquet"):
        from hpcncf.data.readers import Columns, prepare_table

        context = tuple(name.strip() for name in args.context.split(",") if name.strip())
        columns = Columns(args.user, args.item, context, args.time)
        threads = _threads(args) if args.dataset == "parquet" else 1
        own = (columns, seed, negatives, force, report, threads, available_bytes())
        return prepare_table(output, source, args.dataset, *own)
    from hpcncf.data import datasets

    if args.dataset == "movielens":
        available = available_bytes()
        return datasets.prepare_movielens(output, source, seed, negatives, force, report, available)
    if source or not args.or_synthetic:
        try:
            source = source or datasets.find_zip(report)
        except datasets.Unavailable as error:
            instead = "--or-synthetic generates data of its shape instead"
            raise datasets.Unavailable(f"{error}; {instead}") from None
        return datasets.prepare_frappe(output, source, seed, negatives, force)
    written, reason = datasets.prepare_frappe_or_synthetic(output, seed, negatives, force, report)
    if reason:
        print(f"hpcncf: note: the real Frappe is not available. {reason}", file=sys.stderr)
    return written


def _threads(args: argparse.Namespace) -> int:
    from hpcncf.monitor.cgroup import usable

    if args.threads is not None and args.threads < 1:
        raise UsageError(f"--threads {args.threads}: expected 1 or more")
    return args.threads or max(1, int(usable()))


def _write_synthetic(args: argparse.Namespace) -> PreparedFolder:
    from hpcncf.data import synthetic
    from hpcncf.monitor.cgroup import available_bytes

    shape = (args.users, args.items, args.rows)
    own = {"seed": args.seed, "test_negatives": args.test_negatives, "force": args.force}
    if args.like:
        if shape != (None, None, None) or args.context is not None:
            raise UsageError("--like is a whole shape: give it, or --users, --items and --rows")
        return synthetic.prepare_synthetic_like(args.output, args.like, **own)
    if None in shape:
        raise UsageError("synthetic data needs --like, or all of --users, --items and --rows")
    own |= {"context": args.context or 0, "available_bytes": available_bytes()}
    return synthetic.prepare_synthetic(args.output, *shape, **own)


class ProgressLine:
    """Progress, on one line that a terminal shows while it lasts; a log gets none."""

    EVERY_S = 0.2

    def __init__(self, stream: TextIO) -> None:
        self._stream, self._seen = stream, stream.isatty()
        self._doing, self._again_s = "", 0.0

    def __call__(self, what: str) -> None:
        doing = what.partition(":")[0]
        if not self._seen or (doing == self._doing and time.monotonic() < self._again_s):
            return
        self._doing, self._again_s = doing, time.monotonic() + self.EVERY_S
        self._write(f"{what} ..."[: shutil.get_terminal_size().columns - 1])

    def _write(self, line: str) -> None:
        self._stream.write(f"\r\x1b[K{line}")
        self._stream.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._doing:
            self._write("")


def _info(args: argparse.Namespace) -> int:
    from hpcncf.data.prepared import load_prepared

    data = load_prepared(args.folder)
    manifest, unseen = data.manifest, int(data.test_unseen.sum())
    sizes = {path.name: path.stat().st_size for path in sorted(args.folder.glob("*.npy"))}
    if args.json:
        plain = _describe(args.folder, manifest)
        print_json("data", plain | {"unseen_test_rows": unseen, "bytes": sizes})
        return 0
    print(f"{manifest.title}\n{_shape(manifest)}")
    print(f"test pairs that training does not have: {unseen:,} of {manifest.test_rows:,}")
    print(f"context: {', '.join(manifest.context_columns) or 'none'}")
    print(f"source: {' '.join(map(str, manifest.source.values()))}")
    print(f"options: {_options(manifest)}")
    print(f"key: {manifest.key}")
    print(f"size: {sum(sizes.values()) / 2**20:,.1f} MiB")
    return 0


def _options(manifest: Manifest) -> str:
    return (
        ", ".join(f"{name} {value}" for name, value in manifest.options.items() if value) or "none"
    )


def _describe(folder: Path, manifest: Manifest) -> dict[str, Any]:
    return {"folder": str(folder), "parameters": manifest.parameters} | manifest.model_dump(
        mode="json"
    )


def _shape(manifest: Manifest) -> str:
    """Describe the size of prepared data: rows, columns, pairs and model parameters."""
    return (
        f"{manifest.train_rows:,} training rows x {3 + len(manifest.context_columns)} columns "
        f"({manifest.train_pairs:,} user-item pairs), {manifest.test_rows:,} test rows with "
        f"{manifest.negatives_label}, {manifest.parameters:,} parameters"
    )
