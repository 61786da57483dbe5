"""Select and load the compiled build of engine native that suits this CPU."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, Structure, c_double, c_int, c_int32, c_int64, c_uint64, c_void_p
from functools import cache
from pathlib import Path
from typing import Any, Final

from hpcncf.errors import HpcncfError

INTERFACE_VERSION: Final = 8
NATIVE_LAYERS: Final = 16
"""Most layers that engine native has room for."""
OPTIMIZER_CODES: Final = {"adam": 0, "lazy_adam": 1, "sgd": 2}

# The fastest first, each with what /proc/cpuinfo must list. Nothing is compiled for the machine it
# is built on: a login node and the compute nodes differ.
BUILDS: Final = {
    "avx512": {"avx512f", "avx512dq", "avx512bw", "avx512vl", "avx2", "fma"},
    "avx2": {"avx2", "fma"},
    "baseline": set[str](),
}


class NotBuilt(HpcncfError):
    """No compiler could build the engine when hpcncf was installed."""

    def __init__(self, reason: str) -> None:
        super().__init__(
            f"{reason}; engine rowwise gives the same results, slower; or install g++ and hpcncf "
            "again"
        )
        self.reason = reason


class AdamSettings(Structure):
    _fields_ = [(name, c_double) for name in ("lr", "b1", "b2", "eps")]


class EngineSettings(Structure):
    _fields_ = [
        *((name, c_int) for name in ("gmf", "mlp", "context", "negatives", "depth", "threads")),
        ("widths", c_int * NATIVE_LAYERS),
        ("rule", c_int),
        ("adam", AdamSettings),
        ("seed", c_uint64),
        ("most_positives", c_int64),
    ]


class EngineData(Structure):
    _fields_ = [
        *((name, c_int64) for name in ("users", "items", "rows", "pairs", "rows_per_block")),
        *((name, c_int64) for name in ("context", "small")),
        *((name, c_void_p) for name in ("train_rows", "indptr", "positives")),
        ("buckets", c_int64),
        *((name, c_void_p) for name in ("bounds", "slots")),
    ]


class Span(Structure):
    """Positions `start` to `stop` of an epoch's order; none unless stop > start."""

    _fields_ = [(name, c_int64) for name in ("epoch", "start", "stop")]


class TestRows(Structure):
    _fields_ = [
        ("rows", c_int64),
        *((name, c_void_p) for name in ("users", "items", "context", "negatives")),
        ("each", c_int64),
    ]


def installed_builds() -> dict[str, Path]:
    """Map the names of the builds that were installed to their library files."""
    found = {name: sorted(Path(__file__).parent.glob(f"_{name}.*so")) for name in BUILDS}
    return {name: paths[0] for name, paths in found.items() if paths}


def cpu_flags() -> set[str]:
    """Features of the CPU and its kernel; empty if /proc/cpuinfo does not list them."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return set()
    return next((set(line.split()[2:]) for line in lines if line.startswith("flags")), set())


def select_build(builds: dict[str, Path], flags: set[str]) -> str | None:
    return next((name for name, needs in BUILDS.items() if name in builds and needs <= flags), None)


@cache
def load_library(name: str | None = None) -> ctypes.CDLL:
    """Load the best build for this machine, or the named one. Raises NotBuilt if there is none."""
    builds = installed_builds()
    name = name or select_build(builds, cpu_flags())
    if name is None or name not in builds:
        raise NotBuilt(
            "engine native was not built: there was no C++ compiler when hpcncf was installed"
        )
    try:
        library = ctypes.CDLL(str(builds[name]))
    except OSError as error:
        raise NotBuilt(f"engine native cannot be loaded: {error}") from None
    if library.hpcncf_interface() != INTERFACE_VERSION:
        raise NotBuilt(f"engine native: {builds[name]} is of another version of hpcncf")
    _declare(library)
    return library


def _declare(library: ctypes.CDLL) -> None:
    signatures: dict[str, tuple[Any, list[Any]]] = {
        "problem": (ctypes.c_char_p, []),
        "new": (c_void_p, [POINTER(EngineSettings), POINTER(EngineData), c_int]),
        "free": (None, [c_void_p]),
        "step": (
            c_int,
            [c_void_p, POINTER(Span), c_int, c_double, POINTER(c_double), POINTER(c_double)],
        ),
        "capacity": (c_int64, [POINTER(EngineSettings), c_int]),
        "gradients": (
            c_int,
            [
                *(c_void_p, POINTER(Span), c_double, POINTER(Span), c_void_p, c_int64),
                *(POINTER(c_int64), POINTER(c_double)),
            ],
        ),
        "apply": (c_int, [c_void_p, POINTER(c_void_p), POINTER(c_int64), c_int]),
        "settle": (c_int, [c_void_p]),
        "evaluate": (c_int, [c_void_p, POINTER(TestRows), POINTER(c_int32)]),
        "draw": (
            c_int,
            [c_void_p, POINTER(Span), POINTER(c_int64), POINTER(c_int32), POINTER(c_int32)],
        ),
        "rows": (c_void_p, [c_void_p, c_int, POINTER(c_int64)]),
        "dense": (c_void_p, [c_void_p, c_int, POINTER(c_int64)]),
        "steps": (c_int64, [c_void_p]),
        "set_steps": (None, [c_void_p, c_int64]),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(library, f"hpcncf_{name}")
        function.restype, function.argtypes = result, arguments


def check_status(library: ctypes.CDLL, status: int | None) -> None:
    """Raise HpcncfError with the library's message if a call failed."""
    if status:
        raise HpcncfError(f"engine native: {library.hpcncf_problem().decode()}")
