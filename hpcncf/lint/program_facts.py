"""What a batch script's rules need to know of a Python program: its ranks, devices, workers."""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

LARGEST_BYTES: Final = 1_000_000
DISTRIBUTED: Final = re.compile(
    r"init_process_group|DistributedDataParallel|FullyShardedDataParallel|fully_shard|mpi4py"
    r"|horovod|Accelerator\(|lightning|deepspeed|torch\.distributed|MultiWorkerMirrored|Fabric\("
    r"|SLURM_PROCID|PMI_RANK|OMPI_COMM_WORLD_RANK|transformers|jax\.distributed"
)
PROCESSES: Final = re.compile(
    r"multiprocessing|concurrent\.futures|joblib|num_workers|n_jobs|ProcessPool|\bdask\b|\bray\b"
)
GPU: Final = re.compile(r"cuda|\.to\(device|accelerator|gpu|nvidia|cupy|rocm", re.IGNORECASE)
COUNTS_NODE: Final = re.compile(r"\bcpu_count\(")
COUNTS_OWN: Final = re.compile(
    r"sched_getaffinity|cpu_affinity|process_cpu_count|CPUS_PER_TASK|NSLOTS"
)
WORKERS: Final = re.compile(
    r"\bnum_workers=(\d{1,4})\b|add_argument\('--num[-_]workers'[^\n]*?default=(\d{1,4})\b"
)
ON_CPU: Final = re.compile(r"""(?:device\s*=\s*|torch\.device\(\s*)["']cpu["']""")


@dataclass(frozen=True)
class ProgramFacts:
    """Facts about a program that its text shows."""

    is_distributed: bool
    """Whether it can be one of several ranks, or a library that it uses can."""
    starts_processes: bool
    computes: bool
    """Whether it imports torch, numpy or another library with threads of its own."""
    stays_on_cpu: bool
    """Whether it names the CPU as its device, and no GPU anywhere."""
    needs_rendezvous: bool
    """Whether it takes the address of rank 0 from the environment and sets none itself."""
    counts_node: bool
    """Whether it counts the cores of the node, and not those that it may use."""
    workers: int | None
    """Loader workers that its text names as a number; None for none or several."""
    reads_variables: frozenset[str]
    """Names in capitals that its text contains, such as SLURM_ARRAY_TASK_ID."""


Reader = Callable[[str], ProgramFacts | None]


def read_nothing(name: str) -> ProgramFacts | None:  # noqa: ARG001
    """Return None: reader of facts for scripts whose programs are not at hand."""
    return None


def program_reader(*folders: Path, linted: frozenset[Path] = frozenset()) -> Reader:
    """Return a function that reads facts about a program by its name.

    It looks beside the script and in the current folder, and returns None for a program that is
    in neither.

    `linted`: programs whose own lines are checked, too, so that their workers are said there.
    """
    known: dict[str, ProgramFacts | None] = {}

    def read(name: str) -> ProgramFacts | None:
        if name not in known:
            known[name] = _read(name, folders, linted)
        return known[name]

    return read


def _read(name: str, folders: tuple[Path, ...], linted: frozenset[Path]) -> ProgramFacts | None:
    if not name.endswith(".py") or "$" in name or "\0" in name or len(name) > 1000:
        return None
    for folder in folders:
        path = folder / name
        try:
            if path.is_file() and path.stat().st_size <= LARGEST_BYTES:
                facts = facts_of(path.read_text(encoding="utf-8", errors="replace"))
                return replace(facts, workers=None) if path.resolve() in linted else facts
        except OSError:
            continue
    return None


def facts_of(text: str) -> ProgramFacts:
    """Extract facts from a program's text, without its comments and docstrings."""
    code = _without_comments(text)
    workers = {int(one or other) for one, other in WORKERS.findall(code)}
    return ProgramFacts(
        is_distributed=DISTRIBUTED.search(code) is not None,
        starts_processes=PROCESSES.search(code) is not None,
        computes=re.search(
            r"^\s*(?:import|from)\s+(?:torch|numpy|scipy|sklearn|pandas|tensorflow|jax|xgboost"
            r"|lightgbm|implicit|cornac|recbole)\b",
            code,
            re.MULTILINE,
        )
        is not None,
        stays_on_cpu=ON_CPU.search(code) is not None and GPU.search(code) is None,
        needs_rendezvous="init_process_group" in code
        and not re.search(r"init_method|store\s*=|MASTER_ADDR|lightning|accelerate", code),
        counts_node=bool(COUNTS_NODE.search(code)) and not COUNTS_OWN.search(code),
        workers=workers.pop() if len(workers) == 1 else None,
        reads_variables=frozenset(re.findall(r"\b[A-Z][A-Z0-9_]{4,}\b", code)),
    )


def _without_comments(text: str) -> str:
    """Return the program without comments and docstrings, or unchanged if it is not Python."""
    try:
        with warnings.catch_warnings(action="ignore"):
            tree = ast.parse(text)
        for node in ast.walk(tree):
            body = getattr(node, "body", None)
            if isinstance(body, list) and body and isinstance(body[0], ast.Expr):
                value = body[0].value
                if isinstance(value, ast.Constant) and isinstance(value.value, str):
                    body[0] = ast.Pass()
        return ast.unparse(tree)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return re.sub(r"#[^\n]*", "", text)
