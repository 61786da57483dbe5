"""`hpcncf data` as a user types it."""

from __future__ import annotations

import argparse
import json
import shlex
from io import StringIO
from pathlib import Path

import pytest
from make_results import of_format_3

from hpcncf import cli
from hpcncf.cli import data
from hpcncf.data.manifest import DataError, prepare_command, read_manifest
from hpcncf.errors import UsageError
from hpcncf.monitor import cgroup

TINY = ["synthetic", "--users", "9", "--items", "40", "--rows", "70", "--test-negatives", "9"]


def hpcncf_data(*words: object) -> int:
    parser = argparse.ArgumentParser()
    data.add_arguments(parser)
    return data.run(parser.parse_args([str(word) for word in words]))


def test_prepare_and_info_describe_the_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "out"
    assert hpcncf_data("prepare", *TINY, "--context", 5, "-o", folder) == 0
    made = capsys.readouterr()
    assert "made: Synthetic data: 79 rows, 9 users, 40 items, 5 context columns" in made.out
    assert "70 training rows x 8 columns" in made.out
    assert made.err == f"hpcncf: warning: {read_manifest(folder).ranking_warning}\n"  # no progress
    assert hpcncf_data("prepare", *TINY, "--context", 5, "-o", folder) == 0
    assert "already there" in capsys.readouterr().out
    assert hpcncf_data("info", folder) == 0
    reported = capsys.readouterr().out
    assert "9 test rows with 9 negatives, 4,881 parameters" in reported
    assert "context: number, group0=0, group0=1, group0=2, group0=3" in reported


@pytest.mark.parametrize("limit_mib", [None, 64])
def test_a_shape_that_does_not_fit_in_memory_is_refused(
    limit_mib: int | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """By the memory of the node, or by the limit of the job."""
    limit = limit_mib and cgroup.Limit(limit_mib, Path("memory.max"))
    monkeypatch.setattr(cgroup, "memory_limit", lambda: limit)
    rows = 10**7 if limit else 10**14
    words = ["data", "prepare", "synthetic", "--users", 9, "--items", 9, "--rows", rows, "-o", "no"]
    monkeypatch.chdir(tmp_path)
    assert cli.main([str(word) for word in words]) == 2
    said = capsys.readouterr().err
    assert f"synthetic data: {rows + 9:,} rows with 0 context columns need" in said
    assert (f"and {limit_mib}.0 MiB are available" in said) == bool(limit)
    assert "Prepare a sample of the rows" in said
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("negatives", "warned"), [(1, True), (9, True), (10, False)])
def test_so_few_negatives_that_every_item_is_a_hit_are_warned_of(
    negatives: int, warned: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ranked among nine others an item is always one of the first ten."""
    assert hpcncf_data("prepare", *TINY[:-1], negatives, "-o", tmp_path / "out") == 0
    reported = capsys.readouterr()
    assert ("HR@10" in reported.err) == warned
    assert f"with {negatives} negative{'s' if negatives > 1 else ''}, " in reported.out


def test_json_holds_the_counts_the_key_and_the_sizes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hpcncf_data("prepare", *TINY, "-o", tmp_path / "out", "--json")
    made = json.loads(capsys.readouterr().out)
    assert (made["outcome"], made["users"], made["parameters"]) == ("made", 9, 4721)
    hpcncf_data("info", tmp_path / "out", "--json")
    reported = json.loads(capsys.readouterr().out)
    assert reported["key"] == made["key"]
    assert reported["bytes"]["positives_indptr.npy"] == 128 + 8 * 10
    assert reported["unseen_test_rows"] <= reported["test_rows"] == 9


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["synthetic"], "--like, or all of --users, --items and --rows"),
        (["synthetic", "--users", "9", "--items", "40"], "--like, or all of"),
        (["synthetic", "--like", "yelp", "--users", "9"], "--like is a whole shape"),
        (["synthetic", "--like", "yelp", "--context", "0"], "--like is a whole shape"),
        ([*TINY, "--seed", "-1"], "--seed -1: expected 0 to"),
        (["synthetic", "--like", "frappe", "--test-negatives", "0"], "--test-negatives 0"),
        (
            ["parquet", "--source", "a", "--user", "u", "--item", "i", "--threads", "0"],
            "--threads 0: expected 1 or more",
        ),
    ],
)
def test_a_request_that_makes_no_sense_is_refused(
    tmp_path: Path, words: list[str], complaint: str
) -> None:
    with pytest.raises(UsageError, match=complaint):
        hpcncf_data("prepare", *words, "-o", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_every_data_set_is_prepared_through_its_verb(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pyarrow = pytest.importorskip("pyarrow", reason="needs the extra parquet")
    from pyarrow import parquet

    table = tmp_path / "a.csv"
    table.write_text("u,i,h,t\n1,a,2.5,1\n1,b,3.5,2\n2,c,1.5,1\n2,d,1,2\n")
    named = ["--user", "u", "--item", "i", "--context", "h, t", "--time", "t"]
    one = ["--test-negatives", 1]
    ratings = tmp_path / "u.data"
    ratings.write_text("1\t5\t3\t100\n1\t6\t3\t101\n2\t7\t3\t100\n")
    for kind, text in (("train.rating", "0\t0\n"), ("test.rating", "0\t1\n")):
        (tmp_path / f"x.{kind}").write_text(text)
    (tmp_path / "x.test.negative").write_text("(0,1)\t2\n")
    hpcncf_data("prepare", "csv", "--source", table, *named, *one, "-o", tmp_path / "c")
    rows = {"u": [1, 1, 2], "i": ["a", "b", "c"]}
    parquet.write_table(pyarrow.table(rows), tmp_path / "a.parquet")
    source = ["--source", tmp_path / "a.parquet", "--user", "u", "--item", "i"]
    hpcncf_data("prepare", "parquet", *source, *one, "-o", tmp_path / "p")
    hpcncf_data("prepare", "movielens", "--source", ratings, *one, "-o", tmp_path / "m")
    hpcncf_data("prepare", "ncf", "--source", tmp_path / "x", "-o", tmp_path / "n")
    titles = [line for line in capsys.readouterr().out.splitlines() if "made:" in line]
    assert [title.split("made: ")[1].split(":")[0] for title in titles] == [
        "a.csv",
        "a.parquet",
        "MovieLens u.data",
        "NCF files x",
    ]
    hpcncf_data("info", tmp_path / "c")
    assert "context: h, t\n" in capsys.readouterr().out


def test_a_source_that_is_given_but_missing_is_an_error_even_or_synthetic(tmp_path: Path) -> None:
    words = ["--source", tmp_path / "x.zip", "--or-synthetic", "-o", tmp_path / "out"]
    with pytest.raises(DataError, match=r"x\.zip: cannot be read: No such file"):
        hpcncf_data("prepare", "frappe", *words)


@pytest.mark.parametrize(
    ("words", "code", "complaint"),
    [
        ("prepare csv --source a.csv --user usr --item i -o out", 2, "no column 'usr'"),
        ("prepare csv --source no.csv --user u --item i -o out", 2, "No such file"),
        ("prepare movielens --source . -o out", 2, "contains neither"),
        ("prepare ncf --source . -o out", 2, "expected one *.train.rating"),
        ("prepare ncf --source no -o out", 2, "No such file"),
        ("prepare synthetic --users 9 --items 9 --rows 1 -o out", 2, "--rows 9 or more"),
        ("prepare synthetic --like frappe -o .", 2, "Choose another folder"),
        ("info .", 2, "no prepared data here (no manifest.json). Prepare it with `hpcncf data"),
        ("info no", 2, "no prepared data here"),
        ("prepare csv --source broken.csv --user u --item i -o out", 1, "expected 2 columns"),
        ("info torn", 1, "not a manifest"),
    ],
)
def test_a_wrong_request_ends_with_2_and_broken_content_with_1(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: str,
    code: int,
    complaint: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.csv").write_text("u,i\n1,a\n")
    Path("broken.csv").write_text("u,i\n1,a,3\n")
    Path("torn").mkdir()
    Path("torn/manifest.json").write_text("{")
    assert cli.main(["data", *words.split()]) == code
    assert complaint in capsys.readouterr().err


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("stream", "shown"), [(Terminal(), True), (StringIO(), False)])
def test_progress_is_one_line_of_a_terminal_and_nothing_in_a_log(
    stream: StringIO, shown: bool
) -> None:
    with data.ProgressLine(stream) as say:
        say("reading a.csv: 1%")
        say("reading a.csv: 2%")  # too soon after the first
        say("downloading b")
    reported = "\r\x1b[Kreading a.csv: 1% ...\r\x1b[Kdownloading b ...\r\x1b[K"
    assert stream.getvalue() == (reported if shown else "")


@pytest.mark.parametrize("dataset", data.DATASETS)
def test_the_command_advised_for_missing_data_parses_once_filled_in(dataset: str) -> None:
    advised = prepare_command(dataset, Path("a folder"))
    filled = shlex.split(advised.replace("SHAPE", "yelp"))
    args = cli.parser().parse_args(filled[1:])
    assert (args.dataset, args.output) == (dataset, Path("a folder"))


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("synthetic --like frappe --test-negatives 9", None),
        ("synthetic --users 9 --items 40 --rows 70 --seed 0 --test-negatives 9", None),
        ("synthetic --users 9 --items 40 --rows 70 --context 5 --test-negatives 9", None),
        ("csv --source a.csv --user u --item 'the item' --test-negatives 1", "a.csv"),
        (
            "csv --source a.csv --user u --item h --context 'the item,g' --time t --seed 3 "
            "--test-negatives 1",
            "a.csv",
        ),
        ("movielens --source u.data --seed 2 --test-negatives 1", "u.data"),
        ("ncf --source x", "x"),
    ],
)
def test_the_command_advised_for_an_earlier_format_prepares_the_same_data(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: str,
    named: str | None,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.csv").write_text("u,the item,h,g,t\n1,a,5,0,1\n1,b,6,1,2\n2,c,7,0,1\n2,d,8,1,2\n")
    Path("u.data").write_text("1\t5\t3\t100\n1\t6\t3\t101\n2\t7\t3\t100\n")
    Path("x.train.rating").write_text("0\t0\n")
    Path("x.test.rating").write_text("0\t1\n")
    Path("x.test.negative").write_text("(0,1)\t2\n")
    assert cli.main(["data", "prepare", *shlex.split(words), "-o", "a folder"]) == 0
    before = read_manifest(Path("a folder"))
    of_format_3(Path("a folder"))
    capsys.readouterr()
    assert cli.main(["data", "info", "a folder"]) == 1
    advised = capsys.readouterr().err.split("`")[1]
    pasted = advised.replace("FILE", str(named)).replace("FOLDER", str(named))
    assert cli.main(shlex.split(pasted)[1:]) == 0
    assert "a folder: replaced: " in capsys.readouterr().out
    assert read_manifest(Path("a folder")) == before
