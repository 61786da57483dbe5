"""Hostile values in records, claims, progress and submissions end no verb that reads them."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from hpcncf.collect.collect import as_csv
from hpcncf.paths import ResultPaths
from hpcncf.records.schema import (
    LONGEST_TEXT,
    RankRecord,
    RecordError,
    read_record,
)
from tests import hostile, make_results
from tests.hostile import KINDS, attack, call, changes, files_of, is_read, study


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return files_of(study(tmp_path_factory.mktemp("template"), 1))


def test_every_hostile_value_is_read_or_refused_in_one_sentence(template: dict[str, Any]) -> None:
    for change in changes(template):
        kind = KINDS[change.file]
        try:
            record = kind.model_validate_json(json.dumps(change.apply(template[change.file])))
        except ValidationError:
            continue
        for number in _numbers(record.model_dump(exclude={"run", "environment"})):
            assert abs(number) <= 1e39, change


def _numbers(plain: Any) -> list[float]:
    if isinstance(plain, dict):
        return [number for value in plain.values() for number in _numbers(value)]
    if isinstance(plain, list):
        return [number for value in plain for number in _numbers(value)]
    return [plain] if isinstance(plain, int | float) else []


@pytest.mark.parametrize("seed", [0])
def test_every_verb_reads_a_folder_of_hostile_records(
    tmp_path: Path, template: dict[str, Any], seed: int
) -> None:
    chance = random.Random(seed)
    wanted = [change for change in changes(template) if chance.random() < 0.1]
    wanted = [change for change in wanted if is_read(change, template)][:120]
    for done, problem in attack(wanted, tmp_path, 120):
        pytest.fail("\n".join([problem, *map(str, done)]))


def test_values_that_once_ended_a_verb(tmp_path: Path) -> None:
    values: list[tuple[tuple[str | int, ...], Any]] = [
        (("world_size",), 1_000_000_000),
        (("world_size",), 0),
        (("training", "batches", "every"), 0),
        (("training", "epochs", 0, "steps"), 0),
        (("training", "steps"), 10**12),
        (("cpu", "system_s"), 1e308),
        (("environment", "commit"), 0.5),
        (("error",), {"message": "x" * 10_000_000}),
        (("reported",), {f"k{number}": number for number in range(100_000)}),
    ]
    now, intact = study(tmp_path / "now", 3), study(tmp_path / "intact", 1)
    done = hostile.damage(now, [hostile.Change("rank", *each) for each in values])
    assert len(done) == len(values)
    ids = [each.id for each in make_results.plan_of(now.paths).runs]
    assert hostile.read_everything(now.paths, ids[0], intact.paths) == []


def test_a_device_among_the_records_is_not_read(tmp_path: Path) -> None:
    paths = study(tmp_path, 1).paths
    for run in make_results.plan_of(paths).runs:
        attempt = paths.run(run.id).attempt(1)
        attempt.node(1).symlink_to("/dev/zero")
        attempt.rank(1).unlink(missing_ok=True)
        attempt.rank(1).symlink_to("/dev/zero")
    collected = call("collect", str(paths.folder))
    assert collected.problems() == []
    assert "node-1.json: expected a regular file, came a pipe or a device" in collected.output


def test_a_record_larger_than_any_that_is_written_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "rank-0.json"
    with path.open("wb") as file:
        file.truncate(10**12)
    with pytest.raises(RecordError, match="larger than"):
        read_record(path, RankRecord)


def test_a_long_error_is_cut_where_it_is_read(template: dict[str, Any]) -> None:
    plain = template["rank"] | {"error": {"message": "a" + "x" * 10**6 + "b"}}
    error = RankRecord.model_validate(plain).error
    assert len(error["message"]) < LONGEST_TEXT + 10
    assert (error["message"][0], error["message"][-1]) == ("a", "b")
    assert error["type"] == "error"


@pytest.mark.parametrize(
    ("value", "cell"),
    [
        ("=HYPERLINK(1)", "'=HYPERLINK(1)"),
        ("-1+cmd|' /C calc'!A0", "'-1+cmd|' /C calc'!A0"),
        ("@SUM(1)", "'@SUM(1)"),
        ("-1.5e-3", "-1.5e-3"),
        (-1.5, "-1.5"),
        ("a\x1b[31mb", "a?[31mb"),
        (["=1"], "'=1"),
        (True, "true"),
    ],
)
def test_no_cell_of_a_table_is_a_formula(value: Any, cell: str) -> None:
    assert as_csv([{"a": value}], ["a"]) == f"a\n{cell}\n"


def test_status_shows_a_value_with_a_slash_as_it_is(tmp_path: Path) -> None:
    paths = make_results.command_plan(tmp_path)
    plan = make_results.plan_of(paths)
    varied = {"run.command": "<script>x</script>", "data.path": "/data/frappe", "odd": "a/b"}
    run = plan.runs[0].model_copy(update={"varied": varied})
    paths.plan.write_text(plan.model_copy(update={"runs": [run]}).model_dump_json())
    os.environ["COLUMNS"] = "200"
    shown = call("status", str(ResultPaths(paths.folder).folder)).output
    assert "command=<script>x</script> path=frappe odd=a/b" in shown
