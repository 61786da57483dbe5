"""A job file is read strictly, and errors give file, key, value and choices."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from hpcncf.errors import HpcncfError, UsageError
from hpcncf.job.load import build_plan, load_job, parse_yaml
from hpcncf.job.spec import JobSpec

MINIMAL = "name: a\ndata: {path: d}\n"


def load(folder: Path, text: str, *overrides: str) -> JobSpec:
    path = folder / "job.yaml"
    path.write_text(text)
    return load_job(path, overrides)


def refusal(folder: Path, text: str, *overrides: str) -> str:
    with pytest.raises(UsageError) as refused:
        build_plan(load(folder, text, *overrides), folder / "job.yaml", overrides)
    return str(refused.value)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 0.001),
        ("1.5", 1.5),
        (".5", 0.5),
        ("-3", -3),
        ("010", 10),
        ("1:30", "1:30"),
        ("no", "no"),
        ("on", "on"),
        ("true", True),
        ("null", None),
        ("2026-01-01", "2026-01-01"),
        ("", None),
    ],
)
def test_scalars_follow_yaml_1_2(text: str, value: object) -> None:
    assert parse_yaml(f"key: {text}", "here") == {"key": value}


@given(st.dictionaries(st.text("abc", min_size=1), st.floats(allow_nan=False) | st.integers()))
def test_numbers_survive_yaml(plain: dict[str, Any]) -> None:
    finite = {key: value for key, value in plain.items() if abs(value) < 1e300}
    assert parse_yaml(yaml.safe_dump(finite), "here") == finite


@given(st.text(max_size=200))
def test_any_text_is_read_or_refused(text: str) -> None:
    with contextlib.suppress(UsageError):
        parse_yaml(text, "here")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ["expected a mapping", "came nothing"]),
        ("[1]", ["expected a mapping", "list"]),
        ("a: [", [":1:5", "not readable"]),
        ("name: a\nname: b\n", [":2:1", "'name' is given twice"]),
        ("name: !!python/object/apply:os.system [ls]\n", ["not readable"]),
        ("name: a\n", ["data", "required"]),
        (MINIMAL + "epochs: 1\n", ["Did you mean 'training.epochs'?"]),
        (MINIMAL + "training: {dropout: 0.5}\n", ["Did you mean 'model.dropout'?"]),
        (MINIMAL + "grid: {training.dropout: [0.5]}\n", ["Did you mean 'model.dropout'?"]),
        (MINIMAL + "trainin: {}\n", ["'trainin'", "Did you mean 'training'?", "Known keys: name"]),
        (MINIMAL + "resources: {cpu_per_task: 2}\n", ["resources:", "'cpus_per_task'?"]),
        (MINIMAL + "resources: {nodes: two}\n", ["resources.nodes", "came 'two' (str)"]),
        (
            MINIMAL + "training: {loader: fast}\n",
            ["training.loader", "'per_sample'", "came 'fast'"],
        ),
        (MINIMAL + "grid: {cores: [1]}\n", ["grid.cores"]),
        (MINIMAL + "grid: {training.seed: []}\n", ["grid.training.seed"]),
        (MINIMAL + "grid: {training.sed: [1]}\n", ["grid.training.sed", "'seed'?"]),
        (MINIMAL + "grid: {training: [1]}\n", ["grid.training", "as in resources.cpus_per_task"]),
        (MINIMAL + "grid: {cpus_per_task: [1]}\n", ["write resources.cpus_per_task; came"]),
        (MINIMAL + "grid: {resource.cpus_per_tasks: [1]}\n", ["'resources.cpus_per_task'?"]),
        (MINIMAL + "points: [{trainings.lr: 1}]\n", ["points.0.trainings.lr", "training.lr"]),
        ("name: my job\ndata: {path: d}\n", ["name: ", "letters, digits", "came 'my job'"]),
        (f"name: {'a' * 65}\ndata: {{path: d}}\n", ["name: ", "at most 64"]),
        (MINIMAL + "exclude: [{training.sed: 1}]\n", ["exclude.0.training.sed", "'seed'?"]),
        (MINIMAL + "grid: {training.seed: [1]}\nexclude: [{training.seed: 1}]\n", ["no run"]),
        (MINIMAL + "grid: {training.seed: [{a: 1}]}\n", ["training.seed: ", "came {'a': 1}"]),
        (MINIMAL + "grid: {data.path: ['']}\n", ["data.path", "at least 1 character"]),
        (MINIMAL + "repeats: 100001\n", ["100,001 runs", "100,000"]),
        (MINIMAL + "training: {lr: 1e999}\n", ["training.lr", "finite", "came inf"]),
        (MINIMAL + "resources: {timeout_min: 99999999999}\n", ["timeout_min", "less than 2^31"]),
        (MINIMAL + "exclusive: !!bool maybe\n", [":3:12", "not of type bool: 'maybe'"]),
        (MINIMAL + "site: !!timestamp 1\n", [":3:7", "tag"]),
        (MINIMAL + f"repeats: {'9' * 5000}\n", [":3:10", "not of type int"]),
        (MINIMAL + "grid: " + "[" * 5000, ["nested too deeply"]),
        ('name: a\ndata: {path: "a\\0b"}\n', ["data.path: 'a\\x00b'", "null"]),
        ("name: a\ndata: {path: ~nobody-of-that-name/d}\n", ["data.path", "~nobody"]),
        (MINIMAL + "training: {threads: 0}\n", ["training.threads: Input", "greater than 0"]),
        (MINIMAL + "grid: {training.threads: [0]}\n", ["training.threads: Input", "came 0 (int)"]),
        (MINIMAL + "training: {threads: 4}\n", ["threads 4", "cpus_per_task 1"]),
    ],
)
def test_an_error_gives_the_place_the_value_and_the_choices(
    tmp_path: Path, text: str, words: list[str]
) -> None:
    message = refusal(tmp_path, text)
    assert "job.yaml" in message
    for word in words:
        assert word in message


def test_long_values_are_abbreviated(tmp_path: Path) -> None:
    bomb = "&a [x, x, x]" + "".join(
        f", &{b} [*{a}, *{a}, *{a}]"
        for a, b in zip("abcdefghijklmnopqrs", "bcdefghijklmnopqrst", strict=True)
    )
    assert len(refusal(tmp_path, MINIMAL + f"site: [{bomb}]\n")) < 600
    assert len(refusal(tmp_path, MINIMAL + f"site: [{'x' * 100_000}]\n")) < 600


def test_a_data_path_that_no_file_can_have_is_named(tmp_path: Path) -> None:
    with pytest.raises(HpcncfError, match=r"d{300}: cannot be read: File name too long"):
        build_plan(load(tmp_path, f"name: a\ndata: {{path: {'d' * 300}}}\n"), tmp_path / "job.yaml")


def test_a_missing_or_unreadable_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"nowhere\.yaml: cannot be read"):
        load_job(tmp_path / "nowhere.yaml")
    (tmp_path / "latin.yaml").write_bytes(b"name: \xe9\n")
    with pytest.raises(UsageError, match="not UTF-8"):
        load_job(tmp_path / "latin.yaml")


def test_overrides_reach_any_key(tmp_path: Path) -> None:
    job = load(
        tmp_path,
        MINIMAL,
        "training.epochs=7",
        "repeats=3",
        "grid.resources.cpus_per_task=[1, 2]",
        "training.lr=1e-2",
    )
    assert (job.training.epochs, job.repeats, job.training.lr) == (7, 3, 0.01)
    assert job.grid == {"resources.cpus_per_task": [1, 2]}
    assert load(tmp_path, MINIMAL, "grid={training.seed: [1]}").grid == {"training.seed": [1]}
    text = MINIMAL + "training: {global_batch_size: 64}\n"
    training = load(tmp_path, text, "training.batch_size_per_rank=8").training
    assert (training.global_batch_size, training.batch_size_per_rank) == (None, 8)
    text = MINIMAL + "grid: {resources.cpus_per_task: [1, 2, 4]}\nrepeats: 2\n"
    job = load(tmp_path, text, "resources.cpus_per_task=2")
    runs = build_plan(job, tmp_path / "job.yaml").runs
    assert [run.resources.cpus_per_task for run in runs] == [2, 2], "each run once"


VARIED = """\
grid: {training.loader: [per_sample, batched], training.global_batch_size: [64, 128]}
points: [{training.loader: batched, training.epochs: 9}, {training.batch_size_per_rank: 16}]
"""


@pytest.mark.parametrize(
    ("override", "grid", "points"),
    [
        (
            "training.loader=vectorized",
            {"training.loader": ["vectorized"], "training.global_batch_size": [64, 128]},
            [
                {"training.loader": "vectorized", "training.epochs": 9},
                {"training.batch_size_per_rank": 16},
            ],
        ),
        (
            "training.batch_size_per_rank=32",
            {
                "training.loader": ["per_sample", "batched"],
                "training.batch_size_per_rank": [32],
            },
            [
                {"training.loader": "batched", "training.epochs": 9},
                {"training.batch_size_per_rank": 32},
            ],
        ),
    ],
)
def test_an_override_replaces_what_the_grid_and_points_vary(
    tmp_path: Path, override: str, grid: object, points: object
) -> None:
    job = load(tmp_path, MINIMAL + VARIED, override)
    assert (job.grid, job.points) == (grid, points)


@pytest.mark.parametrize("override", ["epochs", "=3", "training.epoch=3", "name.x=3"])
def test_an_override_that_cannot_be_is_refused(tmp_path: Path, override: str) -> None:
    with pytest.raises(UsageError):
        load(tmp_path, MINIMAL, override)


@pytest.mark.parametrize(
    ("override", "reported"),
    [
        ("training.epochs=x", "-s training.epochs=x: training.epochs: Input should be a valid int"),
        ("training.engin=native", "-s training.engin=native: training: unknown key 'engin'. Did"),
        ("grid.training.sed=[1]", "-s grid.training.sed=[1]: grid.training.sed: unknown key 'sed'"),
        ("a.b=3", "-s a.b=3: unknown key 'a'"),
        ("repeats=0", "-s repeats=0: repeats: Input should be greater than 0; came 0 (int)"),
        ("training={lr: -1}", "-s training={lr: -1}: training.lr: Input should be greater than 0"),
        ("training.threads=9", "FILE with -s training.threads=9: grid point the base: "),
        ("parameters.lr=1", "FILE with -s parameters.lr=1: parameters: fill placeholders of a c"),
        ("data.path=~nobody-of-that-name", "FILE with -s data.path=~nobody-of-that-name: data.pa"),
    ],
)
def test_an_error_in_an_override_names_the_override(
    tmp_path: Path, override: str, reported: str
) -> None:
    message = refusal(tmp_path, MINIMAL, override)
    assert message.startswith(reported.replace("FILE", str(tmp_path / "job.yaml")))


def test_errors_of_a_file_and_several_overrides_name_their_sources(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    wrong = MINIMAL + "training: {lr: -1, epochs: 0}\n"
    given, files = sorted(refusal(tmp_path, wrong, "training.epochs=-2", "repeats=2").splitlines())
    assert files.startswith(f"{path}: training.lr: ")
    assert given.startswith("-s training.epochs=-2: training.epochs: ")
    assert refusal(tmp_path, MINIMAL, "repeats=1", "repeats=0").startswith("-s repeats=0: repeats")
    overrides = "training.lr=-1", "training={lr: -2}", "training.lr=-3"
    assert refusal(tmp_path, MINIMAL, *overrides).startswith("-s training.lr=-3: training.lr: ")
    wrong = MINIMAL + "training: {global_batch_size: 64, batch_size_per_rank: 32}\n"
    message = refusal(tmp_path, wrong, "training.seed=3", "repeats=2")
    assert message.startswith(f"{path} with -s training.seed=3: training: "), "both together"


def test_data_paths_are_relative_to_the_job_file(tmp_path: Path) -> None:
    job = load(tmp_path, "name: a\ndata: {path: d}\ngrid: {data.path: [d, ../e]}\n")
    assert job.data.path == str(tmp_path / "d")
    assert job.grid["data.path"] == [str(tmp_path / "d"), str(tmp_path.parent / "e")]


def test_data_of_another_kind_than_the_job_file_says_is_refused(
    tmp_path: Path, tiny_data: Path
) -> None:
    text = f"name: a\ndata: {{dataset: frappe, path: {tiny_data}}}\n"
    complaint = refusal(tmp_path, text)
    assert "prepared from 'synthetic'" in complaint
    assert "-s data.dataset=synthetic" in complaint
