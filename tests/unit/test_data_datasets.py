"""Public data sets: Frappe with its download, MovieLens, and the NCF paper's files."""

from __future__ import annotations

import hashlib
import os
import threading
import urllib.request
import zipfile
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from make_results import of_format_3

from hpcncf import cli
from hpcncf.data import datasets, manifest
from hpcncf.data.arrays import unpack_context
from hpcncf.data.datasets import (
    CATEGORIES,
    ZIP,
    Unavailable,
    download,
    find_zip,
    prepare_frappe,
    prepare_frappe_or_synthetic,
    prepare_movielens,
    prepare_ncf_files,
    read_frappe,
)
from hpcncf.data.manifest import DataError
from hpcncf.data.prepared import PreparedData, load_prepared

CONTENT = b"rows" * 50_000
SHA256 = hashlib.sha256(CONTENT).hexdigest()


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    (tmp_path / "served").mkdir()
    (tmp_path / "served" / "a.zip").write_bytes(CONTENT)
    handler = partial(Quiet, directory=str(tmp_path / "served"))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as http:
        thread = threading.Thread(target=http.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{http.server_address[1]}"
        http.shutdown()
        thread.join()


def test_a_file_with_the_right_checksum_is_kept(server: str, tmp_path: Path) -> None:
    download(f"{server}/a.zip", SHA256, tmp_path / "cache" / "a.zip")
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["a.zip"]
    assert (tmp_path / "cache" / "a.zip").read_bytes() == CONTENT


def test_another_file_and_a_cache_that_cannot_be_written_are_refused(
    server: str, tmp_path: Path
) -> None:
    with pytest.raises(Unavailable, match=f"not the published file: SHA-256 {SHA256}"):
        download(f"{server}/a.zip", "0" * 64, tmp_path / "cache" / "a.zip")
    assert not (tmp_path / "cache").exists()
    (tmp_path / "file").write_text("")
    with pytest.raises(Unavailable, match="cannot be written"):
        download(f"{server}/a.zip", SHA256, tmp_path / "file" / "a.zip")


def test_a_failed_download_names_the_url(server: str, tmp_path: Path) -> None:
    for url in (f"{server}/missing.zip", f"{server}:bad", "http://127.0.0.1:9/a.zip"):
        with pytest.raises(Unavailable, match=f"{url}: cannot be downloaded"):
            download(url, SHA256, tmp_path / "a.zip")


def test_a_download_that_takes_too_long_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(datasets, "TOTAL_S", 0.01)

    def slow(*_: object, **__: object) -> None:
        threading.Event().wait(0.2)
        raise OSError

    monkeypatch.setattr(datasets, "urlopen", slow)
    with pytest.raises(Unavailable, match=r"cannot be downloaded: not done within 0\.01 s"):
        download("http://127.0.0.1/a.zip", SHA256, tmp_path / "a.zip")


HEADER = "user\titem\tcnt\tdaytime\tweekday\tisweekend\thomework\tcost\tweather\tcountry\tcity"
NOWHERE = "http://127.0.0.1:9/Mobile_Frappe.zip"


def log(user: int, item: int, count: object = 1, weather: str = "sunny") -> str:
    day = "morning\tsunday\tweekend\tunknown\tfree"
    return f"{user}\t{item}\t{count}\t{day}\t{weather}\tSpain\t0"


def zipped(folder: Path, logs: list[str], rated: dict[int, str]) -> Path:
    folder.mkdir(exist_ok=True)
    meta = ["item\tpackage\trating", *(f"{item}\tcom.x\t{text}" for item, text in rated.items())]
    with zipfile.ZipFile(folder / ZIP, "w") as archive:
        archive.writestr("Mobile_Frappe/frappe/frappe.csv", "\n".join([HEADER, *logs]))
        archive.writestr("Mobile_Frappe/frappe/meta.csv", "\n".join(meta))
    return folder / ZIP


def grid(users: range, items: range) -> list[str]:
    return [log(user, item) for user in users for item in items]


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> PreparedData:
    folder = os.environ.get("HPCNCF_DATA")
    if not folder or not (Path(folder) / ZIP).is_file():
        pytest.skip(f"needs {ZIP} in the folder HPCNCF_DATA")
    made = tmp_path_factory.mktemp("frappe") / "data"
    prepare_frappe(made, Path(folder))
    return load_prepared(made)


def test_the_published_file_gives_exactly_the_known_counts(real: PreparedData) -> None:
    found = real.manifest
    assert (found.rows, found.users, found.items) == (84_385, 654, 1_127)
    assert (found.train_rows, found.test_rows, found.parameters) == (83_731, 654, 74_673)
    assert unpack_context(real.train_rows).shape == (83_731, 21)
    assert found.title == "Frappe (real): 84,385 rows, 654 users, 1,127 items, 21 context columns"
    logged = set(zip(real.train_users.tolist(), real.train_items.tolist(), strict=True))
    tested = set(zip(real.test_users.tolist(), real.test_items.tolist(), strict=True))
    assert len(logged | tested) == 13_989


def test_the_context_is_a_scaled_count_and_four_one_hot_groups(real: PreparedData) -> None:
    columns = real.manifest.context_columns
    groups = [name.split("=")[0] for name in columns]
    sizes = {name: groups.count(name) for name in CATEGORIES}
    assert sizes == {"daytime": 7, "weather": 8, "isweekend": 2, "homework": 3}
    both = np.concatenate([unpack_context(real.train_rows), real.test_context])
    assert (both[:, 0].min(), both[:, 0].max()) == (0.0, 1.0)
    for name in sizes:
        chosen = both[:, [group == name for group in groups]]
        assert set(np.unique(chosen)) == {0.0, 1.0}
        assert (chosen.sum(axis=1) == 1).all()
    # Most test pairs occur in training, too.
    assert 1 - real.test_unseen.mean() == pytest.approx(0.77, abs=0.03)


def test_rare_items_and_users_go_until_none_is_left_then_unrated_apps(tmp_path: Path) -> None:
    # 7 rows a user, 6 an item; an item's count tells which it is.
    kept = [log(user, item, count=10 ** (item + 1) - 1) for user in range(6) for item in range(7)]
    rare_item = [log(user, 50) for user in (0, 1, 2, 3, 9)]
    # User 9 has six rows only while item 50 is there: both must go, in two rounds.
    falls_with_it = [log(9, item) for item in (0, 1, 2, 3, 4)]
    source = zipped(
        tmp_path,
        kept + rare_item + falls_with_it,
        {item: "unknown" if item == 3 else "4.5" for item in range(60)},
    )
    rows = read_frappe(source).rows
    assert (len(rows), rows.user_names.tolist()) == (36, list(range(6)))
    logs = np.array([0, 1, 2, 4, 5, 6]) / 6
    assert np.unique(rows.context[:, 0]) == pytest.approx(logs)


def test_the_count_is_scaled_from_the_least_to_the_most(tmp_path: Path) -> None:
    logs = grid(range(6), range(5)) + [log(user, 5, count=9**user) for user in range(6)]
    rows = read_frappe(zipped(tmp_path, logs, dict.fromkeys(range(6), "4"))).rows
    assert rows.context_columns[0] == "log10(cnt + 1)"
    scaled = rows.context[-6:, 0]
    expected = np.log10((9.0 ** np.arange(6) + 1) / 2) / np.log10((9.0**5 + 1) / 2)
    assert scaled == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(
    ("row", "complaint"),
    [
        ("1\t2\t3", r"frappe.csv:38: expected 11 columns, came 3"),
        (log(1, 2, count="many"), r"frappe.csv:38: cnt: expected a whole number of 1 or more"),
        (log(1, 2, count=0), r"frappe.csv:38: cnt: .* came '0'"),
        (log(-1, 2), r"frappe.csv:38: user: .* came '-1'"),
    ],
)
def test_a_broken_row_is_reported_with_its_line_and_nothing_is_written(
    tmp_path: Path, row: str, complaint: str
) -> None:
    logs = [*grid(range(6), range(6)), row]
    source = zipped(tmp_path / "in", logs, dict.fromkeys(range(6), "4"))
    with pytest.raises(DataError, match=complaint):
        prepare_frappe(tmp_path / "out", source)
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


def test_a_file_that_is_no_zip_or_lacks_the_table_is_reported(tmp_path: Path) -> None:
    (tmp_path / "a.zip").write_text("hello")
    with pytest.raises(DataError, match="not a readable zip"):
        prepare_frappe(tmp_path / "out", tmp_path / "a.zip")
    with zipfile.ZipFile(tmp_path / "b.zip", "w") as archive:
        archive.writestr("readme.txt", "no table")
    with pytest.raises(DataError, match=r"no frappe\.csv inside"):
        prepare_frappe(tmp_path / "out", tmp_path / "b.zip")
    with pytest.raises(DataError, match="No such file"):
        prepare_frappe(tmp_path / "out", tmp_path / "missing.zip")
    path = zipped(tmp_path / "source", [log(1, 1)], {1: "4.0"})
    content = bytearray(path.read_bytes())
    content[content.index(b"PK\x01\x02") + 8] |= 1
    path.write_bytes(content)
    with pytest.raises(DataError, match="encrypted"):
        prepare_frappe(tmp_path / "data", path)


def test_a_file_that_is_not_the_published_one_is_not_called_real(tmp_path: Path) -> None:
    source = zipped(tmp_path, grid(range(6), range(8)), dict.fromkeys(range(8), "4"))
    made = prepare_frappe(tmp_path / "out", source, test_negatives=0)
    assert "not the published file: 48 rows" in made.manifest.title


def test_the_zip_is_found_in_hpcncf_data_then_in_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HPCNCF_DATA", str(tmp_path / "data"))
    said: list[str] = []
    with pytest.raises(Unavailable, match=r"--source") as found:
        find_zip(said.append, NOWHERE)
    for word in (NOWHERE, str(tmp_path / "data"), str(tmp_path / "cache" / "hpcncf")):
        assert word in str(found.value)
    assert said == [f"downloading {NOWHERE}"]
    (tmp_path / "cache").mkdir()
    cached = zipped(tmp_path / "cache" / "hpcncf", [], {})
    assert find_zip(said.append, NOWHERE) == cached
    given = zipped(tmp_path / "data", [], {})
    assert find_zip(said.append, NOWHERE) == given


@pytest.fixture
def cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the zip would be found, and is not yet; it cannot be downloaded."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in ("HPCNCF_DATA", "no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")
    monkeypatch.setattr(urllib.request, "_opener", None)  # which keeps the proxies it was made with
    (tmp_path / "cache").mkdir()
    return tmp_path / "cache" / "hpcncf" / ZIP


def leave_zip(cached: Path) -> None:
    zipped(
        cached.parent,
        grid(range(6), range(8)) + [log(7, item) for item in range(8, 14) for _ in range(6)],
        dict.fromkeys(range(14), "4"),
    )


def or_synthetic(folder: Path, force: bool = False) -> tuple[str, str, bool]:
    """What became of the folder, what it holds, and whether that is real."""
    made, reason = prepare_frappe_or_synthetic(folder, 1, 2, force, lambda _: None, NOWHERE)
    return made.outcome, made.manifest.dataset, reason is None


def test_synthetic_data_stands_in_until_frappe_is_available(tmp_path: Path, cached: Path) -> None:
    folder = tmp_path / "out"
    assert or_synthetic(folder) == ("made", "synthetic", False)
    assert or_synthetic(folder) == ("already there", "synthetic", False)
    leave_zip(cached)
    assert or_synthetic(folder) == ("replaced", "frappe", True)
    cached.unlink()
    assert or_synthetic(folder) == ("already there", "frappe", False)


@pytest.mark.usefixtures("cached")
@pytest.mark.parametrize("given", [False, True])
def test_the_stand_in_is_advised_only_if_it_was_not_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], given: bool
) -> None:
    words = ["--test-negatives", "2", "-o", str(tmp_path / "out"), *["--or-synthetic"][:given]]
    assert cli.main(["data", "prepare", "frappe", *words]) == (0 if given else 1)
    complaint = capsys.readouterr().err
    assert "--source FILE" in complaint
    assert ("--or-synthetic" in complaint) is not given


@pytest.mark.parametrize("force", [False, True])
def test_a_stand_in_of_an_earlier_format_makes_way_too(
    tmp_path: Path, cached: Path, force: bool
) -> None:
    folder = tmp_path / "out"
    or_synthetic(folder)
    of_format_3(folder)
    leave_zip(cached)
    assert or_synthetic(folder, force) == ("replaced", "frappe", True)


@pytest.mark.parametrize(
    ("had", "has", "then"),
    [
        (True, True, "frappe"),
        (True, False, "synthetic"),
        (False, False, "synthetic"),
    ],
)
def test_data_of_an_earlier_format_needs_force(
    tmp_path: Path,
    cached: Path,
    capsys: pytest.CaptureFixture[str],
    had: bool,
    has: bool,
    then: str,
) -> None:
    """`had`, `has`: the zip is there when the folder is made, and later."""
    folder = tmp_path / "out"
    if had:
        leave_zip(cached)
    or_synthetic(folder)
    of_format_3(folder)
    if not has:
        cached.unlink(missing_ok=True)
    words = ["--or-synthetic", "--test-negatives", "2", "-o", str(folder)]
    assert cli.main(["data", "prepare", "frappe", *words]) == 1
    found = capsys.readouterr().err
    assert (
        f"{folder}/manifest.json: format 3, but this hpcncf reads 4. Replace it with --force"
        in found
    )
    assert cli.main(["data", "prepare", "frappe", *words, "--force"]) == 0
    assert manifest.read_manifest(folder).dataset == then
    assert or_synthetic(folder) == ("already there", then, has)


RATINGS = [(1, 10, 5, 300), (1, 20, 3, 900), (1, 30, 4, 100), (2, 30, 1, 50), (2, 40, 2, 40)]


def ratings(path: Path, separator: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(separator.join(map(str, row)) + "\n" for row in RATINGS))
    return path


@pytest.mark.parametrize(("name", "separator"), [("ratings.dat", "::"), ("u.data", "\t")])
def test_the_latest_rating_of_each_user_is_held_out(
    tmp_path: Path, name: str, separator: str
) -> None:
    source = ratings(tmp_path / "ml" / name, separator)
    assert prepare_movielens(tmp_path / "out", source, test_negatives=1).outcome == "made"
    by_folder = prepare_movielens(tmp_path / "out", source.parent, test_negatives=1)
    assert by_folder.outcome == "already there"
    data = load_prepared(tmp_path / "out")
    assert data.test_items.tolist() == [1, 2]  # films 20 and 30
    assert data.train_items.tolist() == [0, 2, 3]
    assert unpack_context(data.train_rows).shape == (3, 0)
    assert data.manifest.title == f"MovieLens {name}: 5 rows, 2 users, 4 items, no context"


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("1::2::3", r"ratings.dat:7: expected user::item::rating::time, came '1::2::3'"),
        ("1::x::3::4", r"ratings.dat:7: item: expected a whole number of 0 or more, came 'x'"),
        ("1::2::good::4", r"ratings.dat:7: rating: expected a number, came 'good'"),
        ("1::2::3::", r"ratings.dat:7: time: .* came ''"),
        ("99999999999999999999::2::3::4", r"ratings.dat:7: user"),
    ],
)
def test_a_broken_rating_is_reported_with_its_line(
    tmp_path: Path, line: str, complaint: str
) -> None:
    source = ratings(tmp_path / "in" / "ratings.dat", "::")
    source.write_text(source.read_text() + "\n" + line + "\n")
    with pytest.raises(DataError, match=complaint):
        prepare_movielens(tmp_path / "out", source)
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


def test_a_folder_without_ratings_and_an_empty_file_are_reported(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"neither ratings\.dat nor u\.data"):
        prepare_movielens(tmp_path / "out", tmp_path)
    (tmp_path / "u.data").write_text("\n")
    with pytest.raises(DataError, match="has no rows"):
        prepare_movielens(tmp_path / "out", tmp_path)
    (tmp_path / "u.data").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DataError, match="not UTF-8 text"):
        prepare_movielens(tmp_path / "out", tmp_path)


TRAIN = "0\t0\t5\t978\n0\t2\t3\t979\n1\t0\t4\t980\n"
TEST = "0\t4\t5\t990\n1\t2\t4\t991\n"
NEGATIVE = "(0,4)\t1\t3\n(1,2)\t4\t5\n"


def ncf_files(folder: Path, train: str = TRAIN, test: str = TEST, negative: str = NEGATIVE) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "ml-1m.train.rating").write_text(train)
    (folder / "ml-1m.test.rating").write_text(test)
    (folder / "ml-1m.test.negative").write_text(negative)
    return folder


@pytest.mark.parametrize("source", ["", "ml-1m", "ml-1m.train.rating", "ml-1m.test.negative"])
def test_the_given_test_rows_and_negatives_are_used(tmp_path: Path, source: str) -> None:
    prepare_ncf_files(tmp_path / "out", ncf_files(tmp_path / "in") / source)
    data = load_prepared(tmp_path / "out")
    assert data.test_items.tolist() == [4, 2]
    assert data.test_negatives.tolist() == [[1, 3], [4, 5]]
    assert data.train_items.tolist() == [0, 2, 0]
    assert data.positives.tolist() == [0, 2, 0]
    assert (data.manifest.users, data.manifest.items) == (2, 6)
    assert data.manifest.title == "NCF files ml-1m: 5 rows, 2 users, 6 items, no context"


@pytest.mark.parametrize(
    ("broken", "complaint"),
    [
        ({"train": "0\t0\n0\n"}, r"train\.rating:2: expected user, item"),
        ({"train": "0\t0\n0\tx\n"}, r"train\.rating:2: item: .* came 'x'"),
        ({"train": ""}, r"train\.rating: has no rows"),
        ({"negative": "(0,4)\t1\t3\n(1,3)\t4\t5\n"}, r"negative:2: expected \(1,2\), .*'\(1,3\)'"),
        ({"negative": "(0,4)\t1\t3\n(1,2)\t4\n"}, r"negative:2: expected 2 negatives, came 1"),
        ({"negative": "(0,4)\n(1,2)\n"}, r"negative:1: expected one or more negatives, came 0"),
        ({"negative": "(0,4)\t1\t3\n"}, r"negative: 1 rows, but ml-1m\.test\.rating has 2"),
        ({"negative": NEGATIVE + "(1,2)\t4\t5\n"}, r"negative:3: more rows than the 2"),
        ({"negative": "(0,4)\t1\t-3\n(1,2)\t4\t5\n"}, r"negative:1: negative: .* came '-3'"),
    ],
)
def test_broken_files_are_reported_with_their_line(
    tmp_path: Path, broken: dict[str, str], complaint: str
) -> None:
    with pytest.raises(DataError, match=complaint):
        prepare_ncf_files(tmp_path / "out", ncf_files(tmp_path / "in", **broken))
    assert not (tmp_path / "out").exists()


def test_a_folder_of_two_data_sets_asks_which(tmp_path: Path) -> None:
    folder = ncf_files(tmp_path / "in")
    (folder / "pinterest-20.train.rating").write_text(TRAIN)
    with pytest.raises(DataError, match=r"came ml-1m\.train\.rating, pinterest-20\.train\.rating"):
        prepare_ncf_files(tmp_path / "out", folder)
    assert prepare_ncf_files(tmp_path / "out", folder / "ml-1m").outcome == "made"
