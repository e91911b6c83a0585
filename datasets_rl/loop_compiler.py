"""Compilation of loops by numba, once for each machine. Modules with such loops are imported only when needed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

import numba
from llvmlite import ir
from numba.core import cgutils
from numba.extending import intrinsic
from numba.np import arrayobj

Function = TypeVar("Function", bound=Callable[..., Any])


def compile_for(signature: Any, *, reorder: bool = False) -> Callable[[Function], Function]:
    """Compile a function for a signature, immediately, and cache the machine code on the disk.

    The compiled function releases the GIL.

    Args:
        signature: The signature in the syntax of numba, as a string or as a type of numba.
        reorder: Whether floating-point numbers may be added in another order, which is several times as fast, and rounds
            otherwise on other processors.
    """
    options: dict[str, Any] = {"nogil": True, "fastmath": {"reassoc", "contract"} if reorder else False}

    def compile_now(function: Function) -> Function:
        try:
            dispatcher = numba.njit(signature, cache=True, **options)(function)
        except (
            RuntimeError,
            OSError,
        ):  # neither the folder of the module nor the user's cache is writable, or disk full
            dispatcher = numba.njit(signature, **options)(function)
        return cast("Function", dispatcher)

    return compile_now


@intrinsic
def _int64_pointer(typing_context: Any, address: Any) -> Any:
    """Return a pointer to integers at an address."""
    del typing_context, address

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

    pointer: Any = numba.types.CPointer  # numba has no types
    return pointer(numba.int64)(numba.int64), generate


int64_pointer: Any = _int64_pointer  # its first argument is passed by the compiler
"""``carray(int64_pointer(address), count)`` is an array of the integers at an address, in a compiled loop.

The address of a tensor is known in a fifth of the time in which torch makes an array of the tensor.
"""


@intrinsic
def _copy(typing_context: Any, source: Any, start: Any, out: Any, out_start: Any, count: Any) -> Any:
    del typing_context, start, out_start, count

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        read = pointer_to(context, builder, signature, arguments, 0)
        written = pointer_to(context, builder, signature, arguments, 2)
        item_bytes = context.get_abi_sizeof(context.get_data_type(source.dtype))
        cgutils.raw_memcpy(builder, written, read, arguments[4], item_bytes)  # type: ignore[no-untyped-call]  # numba has no types
        return context.get_dummy_value()

    return numba.void(source, numba.int64, out, numba.int64, numba.int64), generate


copy_items: Any = _copy  # its first argument is passed by the compiler
"""``copy_items(source, start, out, out_start, count)`` copies items between two arrays of a dtype, which do not overlap.

The positions are positions in the flat arrays. numba does not recognize a loop of single items as a copy, and takes
seconds to compile an assignment of slices.
"""


_CLASSES = (64, 32, 16, 8, 4)
"""Bytes of a move between registers and memory: a copy of up to twice as many bytes is two moves, which may overlap."""


@intrinsic
def _copy_pieces(
    typing_context: Any, source: Any, start: Any, out: Any, out_start: Any, count: Any, distance: Any, pieces: Any
) -> Any:
    del typing_context, start, out_start, count, distance, pieces

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        first_read = pointer_to(context, builder, signature, arguments, 0)
        first_written = pointer_to(context, builder, signature, arguments, 2)
        count, distance, pieces = arguments[4:]

        def copy_all(size: Any, positions: Sequence[Any]) -> None:
            """Build the loop that copies each piece by moves of a size at some positions."""
            with cgutils.for_range(builder, pieces) as loop:
                written = builder.gep(first_written, [builder.mul(loop.index, count)])
                read = builder.gep(first_read, [builder.mul(loop.index, distance)])
                for position in positions:
                    ends = builder.gep(written, [position]), builder.gep(read, [position])
                    cgutils.raw_memcpy(builder, *ends, size, 1)  # type: ignore[no-untyped-call]

        def copy_from(classes: tuple[int, ...]) -> None:
            zero = ir.Constant(count.type, 0)
            if not classes:
                copy_all(count, [zero])
                return
            size = ir.Constant(count.type, classes[0])
            with builder.if_else(builder.icmp_signed(">=", count, size)) as (fits, is_shorter):
                with fits:
                    copy_all(size, [zero, builder.sub(count, size)])
                with is_shorter:
                    copy_from(classes[1:])

        longest = ir.Constant(count.type, 2 * _CLASSES[0])
        with builder.if_else(builder.icmp_signed(">", count, longest)) as (is_long, is_short):
            with is_long:
                copy_from(())
            with is_short:
                copy_from(_CLASSES)
        return context.get_dummy_value()

    return numba.void(source, numba.int64, out, *(numba.int64,) * 4), generate


copy_pieces: Any = _copy_pieces  # its first argument is passed by the compiler
"""``copy_pieces(source, start, out, out_start, count, distance, pieces)`` copies pieces of `count` bytes, one after another.

The pieces are `distance` bytes apart in `source`. Up to 128 bytes are copied without a call, which takes several times as
long as a copy of a few numbers. How is decided once, and not for each piece.
"""


def pointer_to(context: Any, builder: Any, signature: Any, arguments: Any, number: int) -> Any:
    """Return a pointer to an item of the array that is argument `number`. The next argument is the flat index."""
    make_array: Any = arrayobj.make_array  # numba has no types
    array = make_array(signature.args[number])(context, builder, arguments[number])
    return builder.bitcast(builder.gep(array.data, [arguments[number + 1]]), ir.IntType(8).as_pointer())
