"""Records are written whole, read by version, and refused by name when they are something else."""

from __future__ import annotations

import errno
import json
import math
import os
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcncf import files
from hpcncf.paths import RunPaths
from hpcncf.records import plain, schema
from hpcncf.records.schema import Progress, RecordError

SHARES = st.none() | st.floats(0, 10)


def progress(**changes: Any) -> Progress:
    known: dict[str, Any] = {
        "run_id": "0123456789ab",
        "attempt": 1,
        "updated_at": schema.utc_now(),
        "elapsed_s": 1.5,
        "phase": "training",
        "epoch": 0,
        "epochs": 3,
        "step": 10,
        "steps_per_epoch": 328,
        "instances_per_s": None,
        "cpu_efficiency": 0.2,
    }
    return Progress.model_validate(known | changes)


@given(efficiency=SHARES, rate=SHARES, step=st.integers(0, 2**40))
def test_a_record_reads_back_as_it_was_written(
    tmp_path_factory: pytest.TempPathFactory,
    efficiency: float | None,
    rate: float | None,
    step: int,
) -> None:
    path = tmp_path_factory.getbasetemp() / "progress.json"
    record = progress(cpu_efficiency=efficiency, instances_per_s=rate, step=step)
    schema.write_record(path, record)
    assert schema.read_record(path, Progress) == record


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_number_that_json_does_not_know_is_never_written(tmp_path: Path, value: float) -> None:
    with pytest.raises(ValueError, match="JSON"):
        schema.write_record(
            tmp_path / "progress.json", progress().model_copy(update={"elapsed_s": value})
        )
    assert list(tmp_path.iterdir()) == []


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    schema.write_record(path, progress())
    before = path.read_text()
    with pytest.raises(TypeError):
        files.write_bytes(path, 3)  # type: ignore[arg-type]
    assert path.read_text() == before
    assert os.listdir(tmp_path) == ["a.json"]  # noqa: PTH208


def test_records_are_for_the_group_to_read(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    mask = os.umask(0o027)
    try:
        schema.write_record(path, progress())
    finally:
        os.umask(mask)
    assert path.stat().st_mode & 0o777 == 0o640


def changed(**changes: Any) -> bytes:
    return json.dumps(progress().model_dump(mode="json") | changes).encode()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "No such file"),
        (b"", "not JSON"),
        (b'{"kind": "progress", "run_', "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b"[" * 100_000, "nested too deeply"),
        (b"[1, 2]", "came 'list'"),
        (b'{"kind": "rank"}', "came 'rank'"),
        (b'{"kind": "progress", "schema_version": 99}', "later hpcncf"),
        (b'{"kind": "progress", "schema_version": 1}', "run_id"),
        (changed(elapsed_s=math.nan), "elapsed_s: Input should be a finite number"),
        (changed(updated_at="yesterday"), "updated_at: Invalid isoformat string: 'yesterday'"),
        (changed(updated_at="2026-01-31T12:00:00"), "updated_at: expected a moment with its time"),
        (changed(pid=-1), "pid: Input should be greater"),
        (changed(pid=10**30), "pid: Input should be less"),
    ],
)
def test_what_is_not_the_record_is_refused_by_name(
    tmp_path: Path, content: bytes | None, words: str
) -> None:
    path = tmp_path / "progress.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(RecordError) as refused:
        schema.read_record(path, Progress)
    assert str(path) in str(refused.value)
    assert words in str(refused.value)


def test_a_key_that_a_later_version_added_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "progress.json"
    plain = progress().model_dump() | {"joules": 12.5}
    path.write_text(json.dumps(plain))
    assert schema.read_record(path, Progress).model_dump()["joules"] == 12.5


def test_attempts_and_ranks_come_in_numeric_order_and_strangers_are_ignored(
    tmp_path: Path,
) -> None:
    run = RunPaths(tmp_path)
    for name in ("attempt-10", "attempt-2", "attempt-1", "attempt-x", "notes"):
        (tmp_path / name).mkdir()
    assert [attempt.number for attempt in run.attempts()] == [1, 2, 10]
    attempt = run.attempt(2)
    for rank in (11, 2, 0):
        attempt.rank(rank).touch()
    assert [path.name for path in attempt.rank_records()] == [
        "rank-0.json",
        "rank-2.json",
        "rank-11.json",
    ]


def test_a_pipe_among_the_records_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "progress.json")
    with pytest.raises(RecordError, match="came a pipe or a device"):
        schema.read_record(tmp_path / "progress.json", Progress)


def test_a_name_that_is_not_utf_8_can_be_written_of(tmp_path: Path) -> None:
    files.write_text(tmp_path / "text", "x\udcff")
    assert (tmp_path / "text").read_text() == "x\\udcff"


def a_full_disk(monkeypatch: pytest.MonkeyPatch, times: int, problem: int = errno.ENOSPC) -> None:
    """The next so many files have no room."""
    left = [OSError(problem, os.strerror(problem))] * times
    made = tempfile.NamedTemporaryFile

    def make(*given: Any, **named: Any) -> Any:
        if left:
            raise left.pop()
        return made(*given, **named)

    monkeypatch.setattr(files, "NamedTemporaryFile", make)
    monkeypatch.setattr(plain, "RETRY_EVERY_S", 0.01)


@pytest.mark.parametrize("problem", [errno.ENOSPC, errno.ESTALE])
def test_the_record_of_an_end_waits_for_room_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, problem: int
) -> None:
    a_full_disk(monkeypatch, 3, problem)
    record = progress()
    schema.write_record_with_retries(tmp_path / "last.json", record)
    assert schema.read_record(tmp_path / "last.json", Progress) == record


def test_a_disk_that_stays_full_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_full_disk(monkeypatch, times=1000)
    monkeypatch.setattr(plain, "RETRY_S", 0.1)
    with pytest.raises(OSError, match="No space left"):
        schema.write_record_with_retries(tmp_path / "last.json", progress())
