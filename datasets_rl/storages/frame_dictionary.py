"""What the frames of a ring have in common: a typical frame with the words of its patches, and a dictionary for zstd."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np

from datasets_rl.errors import InvalidArgumentError
from datasets_rl.read.patches import WORDS_BYTES, FramePatches
from datasets_rl.read.zstd import ZstdDictionary, compress, decompress

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from datasets_rl.storages.frame_ring import Frames

__all__ = ["FrameDictionary"]

_MAX_BYTES: Final = 1 << 18
_MIN_BYTES: Final = 4096
_SAMPLE_BYTES_PER_BYTE: Final = 16
_SIZE: Final = np.dtype(np.int64)


@dataclass(frozen=True)
class FrameDictionary:
    """What compressed frames of one size need to be read."""

    zstd: ZstdDictionary = field(default_factory=ZstdDictionary)
    patches: FramePatches = field(default_factory=FramePatches)

    @classmethod
    def train(cls, frames: Frames) -> FrameDictionary:
        """Return a dictionary for frames like these, [n, bytes]."""
        max_bytes = min(_MAX_BYTES, frames.nbytes // _SAMPLE_BYTES_PER_BYTE)
        zstd = ZstdDictionary.train(frames, max_bytes) if max_bytes >= _MIN_BYTES else ZstdDictionary()
        return cls(zstd, FramePatches.train(frames))

    @staticmethod
    def max_bytes(frame_bytes: int) -> int:
        """Return the maximum size of `to_bytes` for frames of so many bytes, the typical frame among them."""
        return _SIZE.itemsize + frame_bytes + WORDS_BYTES + _MAX_BYTES

    def to_bytes(self) -> bytes:
        """Return the dictionary as bytes: the number of those of the patches, these, and the dictionary of zstd."""
        patches = self.patches.to_bytes()
        return np.array(len(patches), _SIZE).tobytes() + patches + self.zstd.data

    @classmethod
    def from_bytes(cls, data: bytes, frame_bytes: int) -> FrameDictionary:
        """Restore a dictionary from the output of `to_bytes`, for frames of so many bytes.

        Raises:
            InvalidArgumentError: If the bytes are not those of such a dictionary.
        """
        content = data[_SIZE.itemsize :]
        size = int(np.frombuffer(data[: _SIZE.itemsize], _SIZE)[0]) if len(data) >= _SIZE.itemsize else -1
        if (size and not frame_bytes <= size <= len(content)) or size % _SIZE.itemsize:
            raise InvalidArgumentError(
                f"the dictionary of the compressed frames has {len(data):,} bytes, of which {size:,} are those of patches; "
                f"expected 0, or at least {frame_bytes:,}, the bytes of a frame"
            )
        return cls(ZstdDictionary(content[size:]), FramePatches.from_bytes(content[:size], frame_bytes))

    def compress(self, frames: Frames) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        """Compress frames, see `datasets_rl.read.zstd.compress`."""
        return compress(frames, self.zstd, self.patches)

    def decompress(
        self,
        data: NDArray[np.uint8],
        starts: NDArray[np.int64],
        stops: NDArray[np.int64],
        out: Frames,
        places: NDArray[np.int64],
    ) -> None:
        """Decompress frames, see `datasets_rl.read.zstd.decompress`."""
        decompress(data, starts, stops, self.zstd, out, places, self.patches, name="the compressed frames")
