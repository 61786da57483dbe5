"""What earlier versions had is refused with a replacement, and their results are read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import make_results
import pytest
import yaml

import hpcncf
from hpcncf.collect.collect import collect
from hpcncf.errors import UsageError
from hpcncf.job.identity import configuration_id
from hpcncf.job.load import build_plan, load_job
from hpcncf.launch.submit import last_cluster
from hpcncf.paths import ResultPaths
from hpcncf.records.plan_file import read_plan
from hpcncf.records.submissions import begin, read_submissions
from hpcncf.removed import SETTINGS, SITE_SETTINGS, VALUES
from hpcncf.slurm.site import load_site

SET: dict[str, Any] = {
    "training.lr_scale": "sqrt",
    "training.lr_base_batch": 512,
    "training.bucket_mb": 8.0,
    "training.gradient_as_bucket_view": True,
    "training.static_graph": True,
    "training.interop_threads": 2,
    "training.collate": "fast",
    "training.workers": "thread",
    "training.tf32": True,
    "training.sync_every": 4,
}


def written(tmp_path: Path, **more: Any) -> Path:
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump({"name": "a", "data": {"path": "data"}} | more))
    return path


def refusal(path: Path, *overrides: str) -> str:
    with pytest.raises(UsageError) as caught:
        build_plan(load_job(path, overrides), path)
    said = str(caught.value)
    assert said.count("\n") == 0
    return said


def test_every_removed_setting_has_a_test() -> None:
    assert set(SET) == set(SETTINGS)


@pytest.mark.parametrize("dotted", SETTINGS)
def test_removed_setting_is_refused_with_its_replacement(tmp_path: Path, dotted: str) -> None:
    section, name = dotted.split(".")
    expected = f"{dotted} is gone since 0.2.0: {SETTINGS[dotted].instead}"
    path = written(tmp_path, **{section: {name: SET[dotted]}})
    assert refusal(path) == f"{path}: {expected}"
    path = written(tmp_path, **{section: {name: SETTINGS[dotted].default}})
    assert refusal(path) == f"{path}: {expected}", "at its default, too"
    plain = written(tmp_path)
    assert refusal(plain, f"{dotted}={json.dumps(SET[dotted])}").endswith(f": {expected}")
    for more in ({"grid": {dotted: [SET[dotted]]}}, {"points": [{dotted: SET[dotted]}]}):
        assert refusal(written(tmp_path, **more)).endswith(expected)


@pytest.mark.parametrize(("dotted", "value"), VALUES)
def test_removed_value_is_refused_with_its_replacement(
    tmp_path: Path, dotted: str, value: str
) -> None:
    section, name = dotted.split(".")
    expected = f"{dotted}: {value} is gone since 0.2.0: {VALUES[dotted, value][1]}"
    path = written(tmp_path, **{section: {"path": "data"} | {name: value}} if section == "data"
                   else {section: {name: value}})  # fmt: skip
    assert refusal(path) == f"{path}: {expected}"
    assert refusal(written(tmp_path, grid={dotted: [value]})).endswith(expected)


@pytest.mark.parametrize(("dotted", "value"), [*SET.items(), *VALUES])
def test_plan_with_removed_settings_is_read_and_its_configurations_stay_apart(
    tmp_path: Path, dotted: str, value: Any
) -> None:
    """As 0.1.0 wrote it: with every setting, in one of two configurations not at its default."""
    paths = make_results.demo(tmp_path, repeats=1)
    make_results.complete(paths)
    plain = json.loads(paths.plan.read_text())
    defaults = {key.split(".")[1]: setting.default for key, setting in SETTINGS.items()}
    for run in plain["runs"]:
        del run["removed"]
        run["training"] |= defaults
    section, name = dotted.split(".")
    plain["runs"][0][section][name] = value
    paths.plan.write_text(json.dumps(plain))
    first, *others = read_plan(paths).runs
    assert first.removed == {dotted: value}
    assert [run.removed for run in others] == [{}] * len(others)
    rows = {row["run_id"]: row for row in collect(paths).runs}
    assert rows[first.id]["state"] == "completed"
    if section == "training":
        assert rows[first.id][name] == value
        same = first.model_copy(update={"removed": {}})
        assert configuration_id(first) != configuration_id(same)


def test_job_file_of_an_earlier_results_folder_is_read_at_its_defaults(tmp_path: Path) -> None:
    defaults = {key.split(".")[1]: setting.default for key, setting in SETTINGS.items()}
    path = written(tmp_path, training=defaults)
    (tmp_path / "plan.json").write_text("{}")
    assert load_job(path).training.loader == "vectorized"
    path = written(tmp_path, training=defaults | {"tf32": True})
    assert "training.tf32 is gone since 0.2.0" in refusal(path)


@pytest.mark.parametrize(("name", "value"), [("prices", {"core": 0.01}), ("currency", "EUR")])
def test_removed_site_setting_is_refused_with_its_replacement(
    tmp_path: Path, name: str, value: Any
) -> None:
    path = tmp_path / "site.yaml"
    path.write_text(yaml.safe_dump({name: value}))
    with pytest.raises(UsageError) as caught:
        load_site(str(path))
    assert str(caught.value) == f"{path}: {name} is gone since 0.2.0: {SITE_SETTINGS[name]}"


def test_cluster_debug_of_a_function_is_refused_and_read_from_old_submissions(
    tmp_path: Path,
) -> None:
    gone: Any = "debug"
    with pytest.raises(UsageError) as caught:
        hpcncf.submit(len, cluster=gone, results=tmp_path / "results")
    assert str(caught.value) == (
        'cluster="debug" is gone since 0.2.0: call the function itself, or use "local"'
    )
    assert not list(tmp_path.iterdir())
    paths = ResultPaths(tmp_path)
    file = begin(paths, "local", ["a"], again=False)
    file.write_text(file.read_text().replace('"local"', '"debug"'))
    assert [each.cluster for each in read_submissions(paths).submissions] == ["debug"]
    assert last_cluster(paths) == "auto"
