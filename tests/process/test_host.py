"""A record describes its software and machine, without secrets."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from hpcncf.records.host import cpu_model, describe_host, package_version


def test_a_host_is_plain_data_without_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_TOKEN", "hush-hush")
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    about = describe_host()
    assert "hush-hush" not in json.dumps(about, allow_nan=False)
    assert about["variables"]["OMP_NUM_THREADS"] == "3"
    assert about["python"].count(".") == 2
    assert about["torch"]
    assert about["cpu_model"]
    assert {"commit", "dirty", "platform"} <= set(about)


def test_torch_is_not_imported() -> None:
    code = "import sys; from hpcncf.records.host import describe_host; describe_host()\n"
    code += "print('torch' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout == "False\n"


def test_a_package_that_is_missing_has_no_version() -> None:
    assert package_version("no-such-package-hpcncf") is None


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
