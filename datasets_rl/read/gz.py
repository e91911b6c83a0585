"""gzip, straight into the caller's memory, as fast as this machine can.

ISA-L inflates about three times as fast as zlib; where no wheel of it exists, zlib does the same work.
"""

from __future__ import annotations

import io
import zlib
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from datasets_rl.errors import ConversionError
from datasets_rl.read.npy import NpyReader
from datasets_rl.read.streams import AGAIN, unlike

try:
    from isal.igzip import IGzipFile as GzipFile
    from isal.igzip_lib import IsalError

    _ERRORS: tuple[Any, ...] = (OSError, zlib.error, IsalError)
except ImportError:
    from gzip import GzipFile  # type: ignore[assignment]  # the same interface

    _ERRORS = (OSError, zlib.error)

if TYPE_CHECKING:
    from typing_extensions import Buffer, Self

__all__ = ["MAGIC", "Gunzip", "GzipNpy"]

MAGIC = b"\x1f\x8b"
_PIECE = 1 << 18
_DEFLATE_MOST = 1100  # deflate cannot shrink anything more than 1032-fold


class Gunzip(io.RawIOBase):
    """The content of a gzip file as a stream. Its checksum is checked where it ends.

    Args:
        stream: The file, from its beginning.
        name: What it is called in errors.
    """

    def __init__(self, stream: BinaryIO | io.RawIOBase, name: str) -> None:
        self._name = name
        self._inflating = GzipFile(fileobj=cast("BinaryIO", stream), mode="rb")  # type: ignore[no-untyped-call]  # isal leaves it untyped

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Buffer, /) -> int:
        """Inflate the next bytes into the buffer; return how many, 0 at the end.

        Raises:
            ConversionError: If the file is cut, or its bytes or checksum are wrong.
        """
        try:
            # A large view would be inflated elsewhere first, as a whole, and then copied.
            return int(self._inflating.readinto(memoryview(buffer).cast("B")[:_PIECE]))
        except EOFError as error:
            raise ConversionError(self._name, ["the gzip stream is cut"], hint=AGAIN) from error
        except _ERRORS as error:
            raise ConversionError(self._name, [f"the gzip stream is damaged: {error}"], hint=AGAIN) from error


class GzipNpy(NpyReader):
    """A ``.npy`` file inside a gzip file. A context manager.

    Args:
        path: The gzip file.

    Raises:
        ConversionError: If it is no gzip file, or its content no array of numbers or text.
    """

    def __init__(self, path: Path | str) -> None:
        path = Path(path)
        with ExitStack() as closing:
            stream = closing.enter_context(path.open("rb"))
            head = stream.read(64)
            if not head.startswith(MAGIC):
                raise ConversionError(path.name, [unlike(head, "a gzip file")], hint=AGAIN)
            most = stream.seek(0, io.SEEK_END) * _DEFLATE_MOST
            stream.seek(0)
            super().__init__(Gunzip(stream, path.name), path.name, most=most)
            self._closing = closing.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *details: object) -> None:
        self._closing.close()
