"""Asks for memory before it is read, which Numba has no word for and LLVM has."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic


@intrinsic  # type: ignore[misc]  # Numba has no types
def prefetch(typing: Any, array: Any, index: Any) -> Any:  # noqa: ARG001
    """The cache line of the array's element at this place in memory."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        at = builder.bitcast(builder.gep(data, [arguments[1]]), ir.IntType(8).as_pointer())
        i32 = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [at.type, i32, i32, i32])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        builder.call(function, [at, i32(0), i32(3), i32(1)])  # to read, near, of data
        return context.get_dummy_value()

    return types.void(array, types.int64), code
