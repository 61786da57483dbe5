"""What a batch script's rules need to know of a Python program: its ranks, devices, workers."""

from __future__ import annotations

import ast
import re
import sys
import warnings
from collections.abc import Callable, Mapping
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
POOLS: Final = ("Pool", "ProcessPoolExecutor")
POOL_SIZES: Final = ("processes", "max_workers", "n_jobs")
CPU_LIBRARIES: Final = frozenset(
    {"numpy", "pandas", "scipy", "sklearn", "statsmodels", "polars", "networkx", "skimage"}
)
BESIDE_THEM: Final = CPU_LIBRARIES | {
    "joblib", "matplotlib", "seaborn", "tqdm", "yaml", "pyarrow", "h5py", "PIL", "click", "psutil",
    "requests", "tables", "openpyxl", "librosa", "soundfile", "Bio", "lxml", "nltk", "gensim",
}  # fmt: skip
# These run another program, or code that is not seen.
HIDDEN: Final = re.compile(
    r"\b(?:subprocess|os\.system|ctypes|importlib|__import__|exec\(|eval\(|cuda|gpu)", re.I
)
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
    counts_node: str
    """The call that counts the cores of the node, and not those that it may use; or empty."""
    counts_node_in: int
    """Line of that call; 0 if it is unknown."""
    counts_all: str
    """The call that takes all cores that the process may use, such as `n_jobs=-1`; or empty."""
    counts_all_in: int
    pool: int | None
    """Largest pool of processes that its text gives as a number."""
    pool_in: int
    trainer: tuple[int | None, int | None] | None
    """Devices and nodes of Lightning's Trainer, where they are numbers."""
    loopback: str
    """The address of this node that it takes for that of rank 0; empty if there is none."""
    loopback_in: int
    visible_gpus: int | None
    """Number of GPUs that it leaves itself by CUDA_VISIBLE_DEVICES."""
    visible_in: int
    cpu_libraries: tuple[str, ...]
    """Libraries that it computes with, if no import can use a GPU; else empty."""
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
    tree = _parse(text)
    calls = _ProgramCalls()
    if tree is not None:
        calls.visit(tree)
    code = _without_comments(text, tree)
    counts_node = bool(COUNTS_NODE.search(code)) and not COUNTS_OWN.search(code)
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
        counts_node="cpu_count()" if counts_node else "",
        counts_node_in=calls.counts_node_in,
        counts_all="" if COUNTS_OWN.search(code) else calls.counts_all,
        counts_all_in=calls.counts_all_in,
        pool=calls.pool,
        pool_in=calls.pool_in,
        loopback=calls.loopback,
        loopback_in=calls.loopback_in,
        visible_gpus=calls.visible_gpus,
        visible_in=calls.visible_in,
        trainer=calls.trainer if "lightning" in code else None,
        cpu_libraries=calls.cpu_libraries() if not HIDDEN.search(code) else (),
        workers=workers.pop() if len(workers) == 1 else None,
        reads_variables=frozenset(re.findall(r"\b[A-Z][A-Z0-9_]{4,}\b", code)),
    )


def _parse(text: str) -> ast.Module | None:
    """Parse a program; None if it is not Python of this version."""
    try:
        with warnings.catch_warnings(action="ignore"):
            return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _without_comments(text: str, tree: ast.Module | None) -> str:
    """Return the program without comments and docstrings, or unchanged if it is not Python."""
    if tree is None:
        return re.sub(r"#[^\n]*", "", text)
    try:
        for node in ast.walk(tree):
            body = getattr(node, "body", None)
            if isinstance(body, list) and body and isinstance(body[0], ast.Expr):
                value = body[0].value
                if isinstance(value, ast.Constant) and isinstance(value.value, str):
                    body[0] = ast.Pass()
        return ast.unparse(tree)
    except (RecursionError, MemoryError):
        return re.sub(r"#[^\n]*", "", text)


class _ProgramCalls:
    """Facts that a program's calls and imports show, with the lines of the calls."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}
        self.counts_node_in = 0
        self.counts_all = ""
        self.counts_all_in = 0
        self.pool: int | None = None
        self.pool_in = 0
        self.trainer: tuple[int | None, int | None] | None = None
        self.loopback = ""
        self.loopback_in = 0
        self.visible_gpus: int | None = None
        self.visible_in = 0
        self.imports: set[str] = set()

    def visit(self, tree: ast.Module) -> None:
        nodes = list(ast.walk(tree))
        for node in tree.body:
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                number = _number(node.value, {})
                if number is not None:
                    self.numbers[node.targets[0].id] = number
        for each in nodes:
            if isinstance(each, ast.Import):
                self.imports |= {alias.name.partition(".")[0] for alias in each.names}
            elif isinstance(each, ast.ImportFrom):
                self.imports.add((each.module or "").partition(".")[0] if not each.level else ".")
        for each in nodes:
            if isinstance(each, ast.Call):
                self._call(each)
            elif isinstance(each, ast.Assign):
                self._assignment(each)

    def _assignment(self, node: ast.Assign) -> None:
        """Take notice of `os.environ["CUDA_VISIBLE_DEVICES"] = "0"` and of MASTER_ADDR."""
        target, value = node.targets[0], node.value
        if not isinstance(target, ast.Subscript) or not isinstance(target.slice, ast.Constant):
            return
        if not isinstance(value, ast.Constant) or not isinstance(value.value, str):
            return
        name = target.slice.value
        if name == "CUDA_VISIBLE_DEVICES" and re.fullmatch(r"\d+(?:, *\d+)*", value.value):
            self.visible_gpus, self.visible_in = value.value.count(",") + 1, node.lineno
        if name == "MASTER_ADDR" and value.value in ("localhost", "127.0.0.1"):
            self.loopback, self.loopback_in = f"MASTER_ADDR={value.value}", node.lineno

    def _call(self, node: ast.Call) -> None:
        func = node.func
        name = func.attr if isinstance(func, ast.Attribute) else getattr(func, "id", "")
        given = {each.arg: each.value for each in node.keywords if each.arg}
        method = given.get("init_method")
        if (
            name == "init_process_group"
            and isinstance(method, ast.Constant)
            and re.match(r"tcp://(?:localhost|127\.0\.0\.1)\b", str(method.value))
        ):
            self.loopback, self.loopback_in = str(method.value), method.lineno
        if name == "cpu_count" and not self.counts_node_in:
            self.counts_node_in = node.lineno
        if name == "Trainer" and self.trainer is None:
            devices = given.get("devices")
            if isinstance(devices, ast.List) and devices.elts:
                count: int | None = len(devices.elts)
            else:
                count = _number(devices, self.numbers)
            nodes = _number(given["num_nodes"], self.numbers) if "num_nodes" in given else 1
            self.trainer = (count if count and count > 0 else None, nodes)
        sizes = [given[each] for each in POOL_SIZES if each in given]
        is_pool = name in POOLS and bool(self.imports & {"multiprocessing", "concurrent", "torch"})
        if is_pool and node.args:
            sizes.append(node.args[0])
        if not is_pool and "n_jobs" not in given:
            return
        for size in sizes:
            number = _number(size, self.numbers)
            if number is not None and number > (self.pool or 1):
                self.pool, self.pool_in = number, node.lineno
            if number == -1 and not self.counts_all:
                self.counts_all, self.counts_all_in = "n_jobs=-1", node.lineno
        if is_pool and not sizes and not self.counts_all:
            self.counts_all, self.counts_all_in = f"{name}()", node.lineno

    def cpu_libraries(self) -> tuple[str, ...]:
        """Return the libraries that compute, if all imports are known to use no GPU."""
        known = BESIDE_THEM | sys.stdlib_module_names
        used = tuple(sorted(self.imports & CPU_LIBRARIES))
        return used if self.imports <= known else ()


def _number(node: ast.expr | None, numbers: Mapping[str, int]) -> int | None:
    """Return the whole number that an expression gives, if it is one or the name of one."""
    if isinstance(node, ast.Name):
        return numbers.get(node.id)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        number = _number(node.operand, numbers)
        return -number if number is not None else None
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return int(node.value) if not isinstance(node.value, bool) else None
    return None
