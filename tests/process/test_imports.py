"""Imports point down, and a login node never imports what only a job needs."""

from __future__ import annotations

import ast
import functools
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HEAVY = {"torch", "pandas", "matplotlib", "submitit", "pyarrow"}

# Each folder is one entry, and may import packages of lower layers. Those of one layer do not know
# one another: which of two folders is lower, this list says.
LAYERS: list[set[str]] = [
    {
        "hpcncf",
        "hpcncf.errors",
        "hpcncf.paths",
        "hpcncf.files",
        "hpcncf.removed",
        "hpcncf.text",
        "hpcncf.table",
    },
    {"hpcncf.batch", "hpcncf.native", "hpcncf.data"},
    {"hpcncf.job", "hpcncf.lint", "hpcncf.explain", "hpcncf.remedies"},
    {"hpcncf.records"},
    {"hpcncf.monitor", "hpcncf.slurm", "hpcncf.probe"},
    {"hpcncf.launcher", "hpcncf.state"},
    {"hpcncf.ncf"},
    {"hpcncf.worker", "hpcncf.collect", "hpcncf.attach"},
    {"hpcncf.local"},
    {"hpcncf.launch"},
    {"hpcncf_analysis"},  # its files at the top; each of its folders is a layer of its own
    {"hpcncf_analysis.diagnosis"},
    {"hpcncf_analysis.advice"},
    {"hpcncf_analysis.report"},
    {"hpcncf.tune"},
    {"hpcncf.cli"},
    {"hpcncf.__main__"},
]


@functools.cache
def modules() -> dict[str, Path]:
    """Dotted name -> file, of the program and the analysis."""
    found = {}
    for base in (ROOT / "hpcncf", ROOT / "analysis/hpcncf_analysis"):
        for path in sorted(base.rglob("*.py")):
            parts = path.relative_to(base.parent).with_suffix("").parts
            name = ".".join(part for part in parts if part != "__init__")
            found[name] = path
    return found


@functools.cache
def imported(path: Path, top_level_only: bool = False) -> set[str]:
    """The modules a file imports, `from a import b` both as a and as a.b."""
    tree = ast.parse(path.read_text())
    names: set[str] = set()
    nodes = ast.iter_child_nodes(tree) if top_level_only else ast.walk(tree)
    for node in nodes:
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return names


def package(name: str) -> str:
    """The entry of LAYERS that the module belongs to: its folder, or `hpcncf_analysis`."""
    parts = name.split(".")
    if parts[0] == "hpcncf":
        return name if len(parts) == 1 else f"hpcncf.{parts[1]}"
    folder = ".".join(parts[:2])
    return folder if (ROOT / "analysis" / folder.replace(".", "/")).is_dir() else parts[0]


def layer(name: str) -> int:
    (number,) = (number for number, entries in enumerate(LAYERS) if package(name) in entries)
    return number


def test_each_package_has_one_layer() -> None:
    entries = [entry for entries in LAYERS for entry in entries]
    assert sorted(entries) == sorted({package(name) for name in modules()})


@pytest.mark.parametrize("name", modules())
def test_imports_point_down(name: str) -> None:
    known = modules()
    for other in imported(known[name]) & set(known):
        ours = package(other) == package(name)
        below = layer(other) < layer(name) or layer(other) == 0 == layer(name)
        assert ours or below, f"{name} imports {other}, which is not below it"


def test_no_module_imports_itself_by_way_of_others() -> None:
    known = modules()
    waiting = {name: imported(path) & set(known) - {name} for name, path in known.items()}
    while leaves := {name for name, needs in waiting.items() if not needs}:
        waiting = {name: needs - leaves for name, needs in waiting.items() if name not in leaves}
    assert not waiting, f"these import one another in a circle: {sorted(waiting)}"


def test_only_the_workload_the_remedies_and_the_doctor_import_torch() -> None:
    users = {
        name
        for name, path in modules().items()
        if any(module.split(".")[0] == "torch" for module in imported(path))
    }
    trains = ("hpcncf.ncf.", "hpcncf.remedies.")
    assert {name for name in users if not name.startswith(trains)} <= {"hpcncf.cli.doctor"}
    assert not any(name.startswith("hpcncf.data") for name in users)


def test_the_remedies_need_torch_and_numpy_alone() -> None:
    known = modules()
    for name in (each for each in known if each.startswith("hpcncf.remedies")):
        ours = {each for each in imported(known[name]) if each.startswith("hpcncf")} & set(known)
        assert ours <= {each for each in known if each.startswith("hpcncf.remedies.")} | {
            "hpcncf",
            "hpcncf.remedies",
            "hpcncf.errors",
            "hpcncf.native",
            "hpcncf.native.builds",
        }
        others = {each.split(".")[0] for each in imported(known[name])} - {"hpcncf"}
        assert others - set(sys.stdlib_module_names) <= {"torch", "numpy"}


def test_importing_the_remedies_loads_torch_and_numpy_alone() -> None:
    code = (
        "import sys\nfrom hpcncf.remedies import RowwiseAdam, rowwise\n"
        "print(*{name.split('.')[0] for name in sys.modules})"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    ours = {"pydantic", "submitit", "pandas", "psutil", "yaml", "jinja2", "shtab", "matplotlib"}
    assert not set(out.stdout.split()) & ours


def test_the_analysis_imports_neither_torch_nor_submitit() -> None:
    for name, path in modules().items():
        if name.startswith("hpcncf_analysis"):
            assert not {module.split(".")[0] for module in imported(path)} & {"torch", "submitit"}


def test_modules_called_pure_know_no_clock_disk_or_process() -> None:
    effects = {"os", "time", "pathlib", "subprocess", "datetime", "random", "socket", "psutil"}
    pure = (
        "job.spec",
        "job.validate",
        "job.plan",
        "job.expand",
        "job.identity",
        "job.packs",
        "slurm.states",
        "slurm.pending_reasons",
    )
    for name in (f"hpcncf.{module}" for module in pure):
        assert not {module.split(".")[0] for module in imported(modules()[name])} & effects


@pytest.mark.parametrize(
    ("argv", "forbidden"),
    [
        (["--help"], HEAVY | {"numpy", "pydantic"}),
        (["submit", "--help"], HEAVY | {"numpy", "pydantic"}),
        (["attach", "--pid", "4194303"], HEAVY | {"numpy", "pydantic"}),
        (["lint", "slurm_templates"], HEAVY | {"numpy", "pydantic"}),
        (["status"], HEAVY | {"numpy"}),
        (["plan", "jobs/demo.yaml"], HEAVY | {"numpy"}),
        (["plan", "jobs/demo.yaml", "--sbatch"], (HEAVY | {"numpy"}) - {"submitit"}),
    ],
)
def test_a_login_node_stays_light(argv: list[str], forbidden: set[str]) -> None:
    code = (
        "import sys\nfrom hpcncf.cli import main\n"
        f"try:\n    main({argv!r})\nexcept SystemExit:\n    pass\n"
        "print('\\nLOADED', *{name.split('.')[0] for name in sys.modules})"
    )
    out = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True
    )
    loaded = set(out.stdout.rpartition("LOADED")[2].split())
    assert not loaded & forbidden


def test_no_two_classes_have_one_name() -> None:
    roots = [ROOT / name for name in ("hpcncf", "analysis", "benchmarks", "jobs")]
    files = [path for root in roots for path in root.rglob("*.py") if "corpus" not in path.parts]
    known: dict[str, list[str]] = {}
    for path in files:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                known.setdefault(node.name, []).append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert not {name: places for name, places in known.items() if len(places) > 1}
