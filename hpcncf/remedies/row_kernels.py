"""Update rows by Adam on a CPU in the compiled library of engine native, if it was built.

One compiled call replaces some forty calls of torch, and reads and writes the rows in place.
"""

from __future__ import annotations

import ctypes
import mmap
from ctypes import POINTER, Structure, byref, c_double, c_int, c_int64, c_size_t, c_void_p
from functools import cache
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor

from hpcncf.native.builds import NotBuilt, load_library

if TYPE_CHECKING:
    from hpcncf.remedies.row_rules import AdamRule

OUT_OF_RANGE: Final = "index out of range in self"
"""torch's own words."""


class _History(Structure):
    _fields_ = [
        *(("records", c_void_p), ("columns", c_int64), ("now", c_int64), ("window", c_int64)),
        ("terms", c_int64 * 2),
        *((name, c_double) for name in ("log_first", "log_second", "left_out", "min_shrinkage")),
    ]


class _Table(Structure):
    _fields_ = [
        *((name, c_void_p) for name in ("values", "first", "second", "last")),
        *((name, c_int64) for name in ("rows", "width")),
    ]


class _Step(Structure):
    _fields_ = [(name, c_double) for name in ("beta1", "beta2", "kept", "size", "root", "eps")]


def prefer_huge_pages(tensor: Tensor) -> Tensor:
    """Ask Linux to hold a CPU tensor in huge pages; return the tensor.

    With small pages, nearly every row costs a walk of the page table.

    Memory that was not touched yet comes in large pages at once; other memory is moved by and by.
    """
    advice = getattr(mmap, "MADV_HUGEPAGE", None)
    if advice is not None and tensor.device.type == "cpu" and not torch.compiler.is_compiling():
        page, start = mmap.PAGESIZE, tensor.data_ptr()
        first = -(-start // page) * page
        length = start + tensor.numel() * tensor.element_size() - first
        if length > 0:
            ctypes.CDLL(None).madvise(c_void_p(first), c_size_t(length), advice)
    return tensor


@cache
def library() -> Any:
    """Load the compiled library and declare its row functions; None if it was not built."""
    try:
        found = load_library()
        catch_up, step = found.hpcncf_catch_up_rows, found.hpcncf_step_gradient
    except (NotBuilt, AttributeError):
        return None
    catch_up.restype = c_int
    catch_up.argtypes = [POINTER(_Table), POINTER(_History), c_void_p, c_int64, c_int]
    step.restype = c_int64
    step.argtypes = [
        *(POINTER(_Table), POINTER(_History), POINTER(_Step)),
        *(c_void_p, c_int64, c_void_p, c_int),
    ]
    return found


class RowKernels:
    """Compiled update and catch-up of the rows of one table, in the table's own memory."""

    def __init__(self, values: Tensor, moments: list[Tensor], last: Tensor, rule: AdamRule) -> None:
        self._held = (values, moments, last)
        """Their memory must not go away."""
        self._rule, self._doubles = rule, int(values.dtype == torch.float64)
        pointers = [each.data_ptr() for each in (values, *moments, last)]
        self._table = byref(_Table(*pointers, *values.shape))
        self._history, self._library = _History(), library()

    @staticmethod
    def fit(values: Tensor, moments: list[Tensor]) -> bool:
        tensors = (values, *moments)
        return (
            library() is not None
            and len(moments) == 2
            and all(each.device.type == "cpu" and each.is_contiguous() for each in tensors)
            and len({each.dtype for each in tensors}) == 1
            and not torch.compiler.is_compiling()
        )

    def catch_up(self, ids: Tensor) -> None:
        """Bring the rows `ids` int64 [n] up to date, as if all missed steps had been taken."""
        self._rule.steps.describe_to(self._history)
        code = self._library.hpcncf_catch_up_rows(
            self._table, byref(self._history), ids.data_ptr(), len(ids), self._doubles
        )
        if code:
            raise IndexError(OUT_OF_RANGE)

    def step(self, ids: Tensor, gradient: Tensor) -> int:
        """Apply Adam's step to the rows `ids` [n]; return the number of distinct rows.

        Gradients [n, width] of equal ids are added. Afterwards the rows are up to date for the
        next step.
        """
        self._rule.steps.describe_to(self._history)
        rows: int = self._library.hpcncf_step_gradient(
            *(self._table, byref(self._history), byref(_Step(*self._rule.rates()))),
            *(ids.data_ptr(), len(ids), gradient.data_ptr(), self._doubles),
        )
        if rows < 0:
            raise IndexError(OUT_OF_RANGE)
        return rows
