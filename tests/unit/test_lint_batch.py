"""What `hpcncf lint` finds in batch scripts as their users post them, and how it mends them."""

from __future__ import annotations

import csv
import random
import subprocess
import time
from pathlib import Path

import pytest

from hpcncf.batch.edits import Edit, apply_edits, unified_diff
from hpcncf.cli import main
from hpcncf.lint.batch_script import check_batch_script

SCRIPTS = Path(__file__).parents[1] / "data/scripts"
with (SCRIPTS / "expected.tsv").open() as table:
    EXPECTED = {
        row["file"]: row["findings"].split() for row in csv.DictReader(table, delimiter="\t")
    }


def read(path: Path) -> str:
    return path.read_bytes().decode()


def findings(text: str) -> list[str]:
    return [f"{each.line}:{each.rule}" for each in check_batch_script(text)]


@pytest.mark.parametrize("name", EXPECTED)
def test_users_script(name: str) -> None:
    assert findings(read(SCRIPTS / "users" / name)) == EXPECTED[name]


def test_every_script_of_users_is_expected() -> None:
    assert {path.name for path in (SCRIPTS / "users").iterdir()} == set(EXPECTED)


@pytest.mark.parametrize("name", EXPECTED)
def test_mended_script_lacks_the_finding(name: str) -> None:
    text = read(SCRIPTS / "users" / name)
    found = check_batch_script(text)
    mended = [each for each in found if each.edits]
    after = apply_edits(text, [edit for each in mended for edit in each.edits])
    assert not {each.rule for each in mended} & {each.rule for each in check_batch_script(after)}


def test_diff_of_fix_is_taken_by_patch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in EXPECTED:
        (tmp_path / name).write_bytes((SCRIPTS / "users" / name).read_bytes())
    assert main(["lint", "--fix", *EXPECTED]) == 1
    diff = capsys.readouterr().out
    done = subprocess.run(["patch", "-p0", "--dry-run"], input=diff, text=True, check=False)
    assert done.returncode == 0


def test_diff_shows_each_reason_above_its_line() -> None:
    text = "".join(f"{number}\n" for number in range(1, 8))
    edits = [Edit(3, ("three",), "three"), Edit(4, (), "four"), Edit(7, ("6b",), "new", True)]
    assert unified_diff("job.sh", text, edits) == (
        "--- job.sh\n+++ job.sh\n"
        "@@ -1,3 +1,3 @@ three\n 1\n 2\n-3\n+three\n"
        "@@ -4,3 +4,2 @@ four\n-4\n 5\n 6\n"
        "@@ -7,1 +6,2 @@ new\n+6b\n 7\n"
    )


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_edits_keep_line_ends(end: str) -> None:
    text = end.join(["a", "b", "c"])
    edits = [Edit(2, ("B", "B2")), Edit(4, ("wait",), inserts=True)]
    assert apply_edits(text, edits) == end.join(["a", "B", "B2", "c", "wait", ""])


HOSTILE = [
    "$(" * 10**6,
    "'" * 10**6,
    "((" * 10**6,
    "{ " * 10**6,
    "<<a\n" * 10**6,
    "${" * 10**6,
    "#SBATCH --x=" * 10**5,
    "#SBATCH -c 1\n" * 10**5,
    "case x in\n" * 10**5,
    "".join(random.Random(1).choices("$(){}'\"\\`<>&|;= \n#-ab", k=10**6)),
]


@pytest.mark.parametrize("body", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_text_is_read_in_time(body: str) -> None:
    began = time.process_time()
    check_batch_script(f"#!/bin/bash\n#SBATCH -c 2\n{body}")
    assert time.process_time() - began < 2
