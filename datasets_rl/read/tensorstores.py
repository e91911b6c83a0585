"""What the readers with TensorStore share: the cache, and the errors of this package for the exceptions of TensorStore."""

from __future__ import annotations

from datasets_rl.errors import ConversionError
from datasets_rl.read.streams import AGAIN

CACHE_BYTES = 256 << 20
"""Decompressed chunks that stay in memory, because the chunks of narrow arrays have more rows than the chunks of wide
arrays."""
CHUNK_MAX_BYTES = 256 << 20
LIBRARY_ERRORS = (ValueError, OSError, RuntimeError, KeyError, OverflowError)
"""Exceptions that TensorStore raises for a damaged store."""
_OF_THE_SYSTEM = ("RESOURCE_EXHAUSTED", "PERMISSION_DENIED", "UNAVAILABLE")
"""How messages of TensorStore begin where the system refused something, such as another open file."""


def fault(error: Exception, name: str, where: str = "") -> Exception:
    """Return the error to raise for an exception of TensorStore.

    Args:
        error: The exception.
        name: The name of the file or the store.
        where: The beginning of the problem, such as the name of the array.
    """
    text = first_sentence(error)
    if text.startswith(_OF_THE_SYSTEM):
        return OSError(f"{name}: {where}{text}")  # the reason is at the end of the text
    return ConversionError(name, [f"{where}{text[:300]}"], hint=AGAIN)


def first_sentence(error: BaseException) -> str:
    """Return the first sentence of an error of TensorStore, which appends places in the code of TensorStore."""
    return str(error).partition(" [")[0]
