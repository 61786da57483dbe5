"""`hpcncf data`: prepare a data set, describe a prepared folder."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TextIO

from hpcncf.cli import data_bench
from hpcncf.errors import UsageError

if TYPE_CHECKING:
    from hpcncf.ncf.data.manifest import Manifest
    from hpcncf.ncf.data.prepare import PreparedFolder

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
    "yelp": "the folder of Yelp's review.json, business.json and user.json",
    "synthetic": "generated data of a given shape",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    prepare = actions.add_parser("prepare", help="Prepare a folder from a data set.")
    datasets = prepare.add_subparsers(dest="dataset", metavar="DATASET", required=True)
    for name, about in DATASETS.items():
        dataset = datasets.add_parser(name, help=about, description=about)
        _add_common(dataset, name)
        if name in _ADD_OWN:
            _ADD_OWN[name](dataset)
    data_bench.add_arguments(actions.add_parser("bench", help="Time the loaders of a job file."))
    info = actions.add_parser("info", help="Describe a prepared folder.")
    info.add_argument("folder", type=Path, metavar="FOLDER")
    info.add_argument("--json", action="store_true", help="print JSON")


def _add_common(parser: argparse.ArgumentParser, name: str) -> None:
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="FOLDER")
    if name != "synthetic":
        parser.add_argument(
            "--source", type=Path, required=name != "frappe", help="the file, or its folder"
        )
    if name != "ncf":
        parser.add_argument("--seed", type=int, default=1, help="of the data set (default: 1)")
        parser.add_argument(
            "--test-negatives", type=int, default=99, metavar="N", help="per test row (default: 99)"
        )
    parser.add_argument("--force", action="store_true", help="replace other data in the folder")
    parser.add_argument("--json", action="store_true", help="print JSON")


def _add_frappe(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--or-synthetic",
        action="store_true",
        help="if Frappe cannot be downloaded, generate data of its shape, marked as such",
    )


def _add_table(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--user", required=True, metavar="COLUMN")
    parser.add_argument("--item", required=True, metavar="COLUMN")
    parser.add_argument(
        "--context", default="", metavar="A,B,C", help="numbers are kept, text becomes one-hot"
    )
    parser.add_argument(
        "--time", metavar="COLUMN", help="hold out each user's latest row, not a random one"
    )


def _add_parquet(parser: argparse.ArgumentParser) -> None:
    _add_table(parser)
    parser.add_argument(
        "--threads", type=int, metavar="N", help="that decode columns (default: the usable cores)"
    )


def _add_synthetic(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--like", choices=("yelp", "frappe", "movielens"), help="a known shape")
    parser.add_argument("--users", type=int)
    parser.add_argument("--items", type=int)
    parser.add_argument("--rows", type=int, help="training rows")
    parser.add_argument("--context", type=int, help="context columns (default: 0)")


_ADD_OWN: dict[str, Callable[[argparse.ArgumentParser], None]] = {
    "frappe": _add_frappe,
    "csv": _add_table,
    "parquet": _add_parquet,
    "synthetic": _add_synthetic,
}


def run(args: argparse.Namespace) -> int:
    if args.action == "bench":
        return data_bench.run(args)
    return _info(args) if args.action == "info" else _prepare(args)


def _prepare(args: argparse.Namespace) -> int:
    _check(args)
    with ProgressLine(sys.stderr) as report:
        written = _PREPARE[args.dataset](args, report)
    if args.json:
        print(json.dumps({"outcome": written.outcome} | _describe(args.output, written.manifest)))
    else:
        same = ", made from the same input with the same options"
        outcome = written.outcome + (same if written.outcome == "already there" else "")
        print(f"{args.output}: {outcome}: {written.manifest.title}")
        print(_shape(written.manifest))
    if written.manifest.ranking_warning:
        print(f"hpcncf: warning: {written.manifest.ranking_warning}", file=sys.stderr)
    return 0


def _check(args: argparse.Namespace) -> None:
    if args.dataset == "ncf":
        return
    if not 0 <= args.seed < 2**63:
        raise UsageError(f"--seed {args.seed}: expected 0 to 2^63 - 1")
    if args.test_negatives < 1:
        raise UsageError(f"--test-negatives {args.test_negatives}: expected 1 or more")


def _frappe(args: argparse.Namespace, report: Report) -> PreparedFolder:
    from hpcncf.ncf.data.datasets import find_zip, prepare_frappe, prepare_frappe_or_synthetic

    if args.source or not args.or_synthetic:
        source = args.source or find_zip(report)
        return prepare_frappe(args.output, source, args.seed, args.test_negatives, args.force)
    written, reason = prepare_frappe_or_synthetic(
        args.output, args.seed, args.test_negatives, args.force, report
    )
    if reason:
        print(f"hpcncf: {reason}", file=sys.stderr)
    return written


def _public(args: argparse.Namespace, report: Report) -> PreparedFolder:
    from hpcncf.ncf.data.datasets import prepare_movielens, prepare_yelp

    prepare = prepare_movielens if args.dataset == "movielens" else prepare_yelp
    return prepare(args.output, args.source, args.seed, args.test_negatives, args.force, report)


def _ncf(args: argparse.Namespace, _: Report) -> PreparedFolder:
    from hpcncf.ncf.data.datasets import prepare_ncf_files

    return prepare_ncf_files(args.output, args.source, args.force)


def _table(args: argparse.Namespace, report: Report) -> PreparedFolder:
    from hpcncf.ncf.data import readers

    context = tuple(name.strip() for name in args.context.split(",") if name.strip())
    columns = readers.Columns(args.user, args.item, context, args.time)
    return readers.prepare_table(
        args.output,
        args.source,
        args.dataset,
        columns,
        args.seed,
        args.test_negatives,
        args.force,
        report,
        _threads(args) if args.dataset == "parquet" else 1,
    )


def _threads(args: argparse.Namespace) -> int:
    from hpcncf.monitor.cgroup import usable

    if args.threads is not None and args.threads < 1:
        raise UsageError(f"--threads {args.threads}: expected 1 or more")
    return args.threads or max(1, int(usable()))


def _synthetic(args: argparse.Namespace, _: Report) -> PreparedFolder:
    from hpcncf.ncf.data import synthetic

    shape = (args.users, args.items, args.rows)
    own = {"seed": args.seed, "test_negatives": args.test_negatives, "force": args.force}
    if args.like:
        if shape != (None, None, None) or args.context is not None:
            raise UsageError("--like is a whole shape: give it, or --users, --items and --rows")
        return synthetic.prepare_synthetic_like(args.output, args.like, **own)
    if None in shape:
        raise UsageError("synthetic data needs --like, or all of --users, --items and --rows")
    return synthetic.prepare_synthetic(args.output, *shape, context=args.context or 0, **own)


_PREPARE: dict[str, Callable[[argparse.Namespace, Report], PreparedFolder]] = {
    "frappe": _frappe,
    "movielens": _public,
    "ncf": _ncf,
    "yelp": _public,
    "csv": _table,
    "parquet": _table,
    "synthetic": _synthetic,
}


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
    from hpcncf.ncf.data.prepared import load_prepared

    data = load_prepared(args.folder)
    manifest, unseen = data.manifest, int(data.test_unseen.sum())
    sizes = {path.name: path.stat().st_size for path in sorted(args.folder.glob("*.npy"))}
    if args.json:
        plain = _describe(args.folder, manifest)
        print(json.dumps(plain | {"unseen_test_rows": unseen, "bytes": sizes}))
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
    """Columns of a training row: user, item, label and the context."""
    return (
        f"{manifest.train_rows:,} training rows x {3 + len(manifest.context_columns)} columns "
        f"({manifest.train_pairs:,} user-item pairs), {manifest.test_rows:,} test rows with "
        f"{manifest.negatives_label}, {manifest.parameters:,} parameters"
    )
