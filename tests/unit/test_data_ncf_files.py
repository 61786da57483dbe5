"""The NCF paper's files are prepared with their own test rows and negatives."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcncf.ncf.data.datasets import prepare_ncf_files
from hpcncf.ncf.data.manifest import DataError
from hpcncf.ncf.data.prepared import load_prepared

TRAIN = "0\t0\t5\t978\n0\t2\t3\t979\n1\t0\t4\t980\n"
TEST = "0\t4\t5\t990\n1\t2\t4\t991\n"
NEGATIVE = "(0,4)\t1\t3\n(1,2)\t4\t5\n"


def files(folder: Path, train: str = TRAIN, test: str = TEST, negative: str = NEGATIVE) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "ml-1m.train.rating").write_text(train)
    (folder / "ml-1m.test.rating").write_text(test)
    (folder / "ml-1m.test.negative").write_text(negative)
    return folder


@pytest.mark.parametrize("source", ["", "ml-1m", "ml-1m.train.rating", "ml-1m.test.negative"])
def test_the_given_test_rows_and_negatives_are_used(tmp_path: Path, source: str) -> None:
    prepare_ncf_files(tmp_path / "out", files(tmp_path / "in") / source)
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
        prepare_ncf_files(tmp_path / "out", files(tmp_path / "in", **broken))
    assert not (tmp_path / "out").exists()


def test_a_user_of_all_items_leaves_no_negative_to_draw(tmp_path: Path) -> None:
    every = "".join(f"0\t{item}\n" for item in range(6))
    with pytest.raises(DataError, match="user 0: has a training row of each of the 6 items"):
        prepare_ncf_files(tmp_path / "out", files(tmp_path / "in", train=every))


def test_a_folder_of_two_data_sets_asks_which(tmp_path: Path) -> None:
    folder = files(tmp_path / "in")
    (folder / "pinterest-20.train.rating").write_text(TRAIN)
    with pytest.raises(DataError, match=r"came ml-1m\.train\.rating, pinterest-20\.train\.rating"):
        prepare_ncf_files(tmp_path / "out", folder)
    assert prepare_ncf_files(tmp_path / "out", folder / "ml-1m").outcome == "made"
