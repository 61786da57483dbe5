"""The documents agree with the code: links resolve, verbs are named, commands parse."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import re
import shlex
from pathlib import Path
from types import ModuleType

import pytest

from hpcncf import cli
from hpcncf.job.spec import Resources, Training

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]


def generate() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs/generate.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_to_files_resolve(document: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", document.read_text()):
        if not target.startswith("http"):
            assert (document.parent / target).exists(), target


def test_files_named_in_documents_exist() -> None:
    for document in DOCUMENTS:
        text = document.read_text()
        for named in re.findall(
            r"`((?:hpcncf|analysis|jobs|tests|docs|slurm_templates)/[^`*<]*)`", text
        ):
            assert (ROOT / named.split("#")[0]).exists(), f"{document.name}: {named}"


def test_no_document_has_a_place_left_to_fill() -> None:
    for document in DOCUMENTS:
        assert not re.findall(r"(?m)^[A-Z]+(?:_[A-Z]+)+$|TODO|TBD", document.read_text()), document


def test_make_targets_named_in_documents_exist() -> None:
    targets = set(re.findall(r"(?m)^([a-z-]+):", (ROOT / "Makefile").read_text()))
    for document in DOCUMENTS:
        named = set(re.findall(r"(?:`| {4})(?:sudo )?make ([a-z-]+)", document.read_text()))
        assert named <= targets, document.name


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 120


def test_every_page_of_the_documentation_is_in_its_index() -> None:
    index = (ROOT / "docs/README.md").read_text()
    pages = {path.name for path in (ROOT / "docs").glob("*.md")} - {"README.md"}
    assert {name for name in pages if f"({name})" in index} == pages


def test_every_verb_is_in_the_readme() -> None:
    readme = (ROOT / "README.md").read_text()
    for verb in cli.VERBS:
        assert f"hpcncf {verb}" in readme, verb


def commands() -> list[str]:
    """Every `hpcncf ...` line of the documents' code blocks."""
    lines = [line.strip() for path in DOCUMENTS for line in path.read_text().splitlines()]
    blocks = [line.removeprefix("$ ") for line in lines]
    return sorted({line for line in blocks if re.match(r"hpcncf [a-z]+( |$)", line)})


@pytest.mark.parametrize("command", commands())
def test_commands_of_the_documents_parse(command: str) -> None:
    """Capital words stand for the reader's own; what follows two spaces explains the line."""
    words = shlex.split(re.split(r"\s{2,}|\s#", command)[0])[1:]
    words = [word for word in words if word not in ("|", ">", "&&")]
    complaint = io.StringIO()
    code: object = 0
    with contextlib.redirect_stderr(complaint):
        try:
            cli.parser().parse_args(cli.guard_options(words))
        except SystemExit as end:
            code = end.code
    assert code == 0, f"{command}: {complaint.getvalue()}"


def test_generated_files_are_up_to_date() -> None:
    for path, text in generate().texts().items():
        assert path.read_text() == text, f"{path.name}: run `make schemas`"


TECHNIQUES = (
    *("num_workers", "threads", "tasks_per_node", "parallel", "compile", "cuda_graph", "mps"),
    *("runs_per_gpu", "pin_memory", "non_blocking", "precision", "accumulate", "profile"),
    *("cudnn_benchmark", "prefetch_to_device", "loader", "sync", "sparse", "adam", "engine"),
)


@pytest.mark.parametrize("setting", TECHNIQUES)
def test_technique_that_guides_name_is_a_setting_with_a_row(setting: str) -> None:
    assert setting in Training.model_fields or setting in Resources.model_fields
    rows = re.findall(r"(?m)^\| [^|]+\| ([^|]+) \|", (ROOT / "docs/remedies.md").read_text())
    assert any(re.search(rf"`{setting}(`|:)", row) for row in rows)
