"""A record describes its software and machine, without secrets."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from hpcncf.records.code_version import checkout as checkout_of
from hpcncf.records.host import cpu_model, describe_host, package_version


def git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
    done = subprocess.run(
        ["git", *identity, "-C", str(folder), *arguments],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return done.stdout.strip()


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("hpcncf.records.code_version.TIMEOUT_S", 120)
    git(tmp_path, "init", "--quiet")
    (tmp_path / "code.py").write_text("a = 1\n")
    (tmp_path / ".gitignore").write_text("ignored/\n")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "-m", "first")
    return tmp_path


def test_it_is_plain_data_with_versions_and_machine() -> None:
    about = describe_host()
    json.dumps(about, allow_nan=False)
    assert about["python"].count(".") == 2
    assert about["torch"]
    assert about["cpu_model"]
    assert {"commit", "dirty", "variables", "platform"} <= set(about)


def test_only_allowed_variables_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_TOKEN", "hush-hush")
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    about = describe_host()
    assert about["variables"]["OMP_NUM_THREADS"] == "3"
    assert "hush-hush" not in json.dumps(about)


def test_torch_is_not_imported() -> None:
    code = "import sys; from hpcncf.records.host import describe_host; describe_host()\n"
    code += "print('torch' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout == "False\n"


def test_a_package_that_is_missing_has_no_version() -> None:
    assert package_version("no-such-package-hpcncf") is None


def test_a_checkout_has_a_commit_and_says_whether_files_differ(checkout: Path) -> None:
    clean = checkout_of(checkout)
    assert clean.commit == git(checkout, "rev-parse", "HEAD")
    assert clean.dirty is False
    (checkout / "results.json").write_text("{}")
    assert checkout_of(checkout).dirty is False, "what git does not track is not the code"
    (checkout / "code.py").write_text("a = 2\n")
    assert checkout_of(checkout).dirty is True


def test_an_ignored_folder_and_no_checkout_have_none(checkout: Path, tmp_path: Path) -> None:
    (checkout / "ignored").mkdir()
    assert checkout_of(checkout / "ignored").commit is None
    assert checkout_of(tmp_path / "absent").commit is None


@pytest.mark.parametrize(
    ("text", "model"),
    [
        ("processor\t: 0\nmodel name\t: EPYC 7763\n", "EPYC 7763"),
        ("cpu\t\t: POWER9, altivec supported\n", "POWER9, altivec supported"),
    ],
)
def test_the_cpu_model_is_read_as_the_kernel_names_it(
    tmp_path: Path, text: str, model: str
) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/cpuinfo").write_text(text)
    assert cpu_model(tmp_path) == model


def test_without_cpuinfo_the_machine_is_named(tmp_path: Path) -> None:
    assert cpu_model(tmp_path)
