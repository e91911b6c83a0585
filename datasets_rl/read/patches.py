"""Patches: frames as a typical frame of which a few words are others.

    typical     | a | b | c | d | e | f |       words of 8 bytes
    frame       | a | b | X | d | e | Y |
    patch       | 0 | 2 code of X | 5 code of Y |       a byte; then a position and a code for each word, 16 bits each

To make a patch takes a quarter of the time of zstd, which spends most of its time on beginning a frame. The first byte of
a zstd frame is another one, so that both can be among the compressed frames of a memory. A word without a code follows
its position and the code 0xffff.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray

_WORD: Final = 8
_MAX_POSITIONS, _MAX_WORDS = 1 << 16, 1 << 12
WORDS_BYTES: Final = _MAX_WORDS * _WORD
"""Maximum bytes of the words with a code."""
_MAX_PART: Final = 20
"""A patch has at most this part of the bytes of its frame: what would be larger is left to zstd."""
_MEDIAN_FRAMES, _TRAINING_BYTES = 101, 8 << 20


def _no_words() -> NDArray[np.uint64]:
    return np.empty(0, np.uint64)


@dataclass(frozen=True)
class FramePatches:
    """What patches of frames of one size need; without a typical frame, no frame becomes a patch."""

    typical: NDArray[np.uint64] = field(default_factory=_no_words)
    """The typical frame, [W]."""
    words: NDArray[np.uint64] = field(default_factory=_no_words)
    """The word of each code, all different, [n]."""

    @classmethod
    def train(cls, frames: NDArray[np.uint8]) -> FramePatches:
        """Return what frames like these, [n, bytes], have in common.

        The typical frame has the median of each byte, and the words with a code are those that are most often elsewhere.
        """
        count, size = frames.shape
        if not count or size % _WORD or size // _WORD > _MAX_POSITIONS:
            return cls()
        chosen = frames[:: -(-count // _MEDIAN_FRAMES)]
        typical = np.partition(chosen, len(chosen) // 2, axis=0)[len(chosen) // 2].view(np.uint64)
        samples = np.ascontiguousarray(frames[:: -(-frames.nbytes // _TRAINING_BYTES)]).view(np.uint64)
        words, counts = np.unique(samples[samples != typical], return_counts=True)
        return cls(typical, words[np.argsort(-counts, kind="stable")[:_MAX_WORDS]])

    @property
    def max_bytes(self) -> int:
        """Maximum size of a patch."""
        return self.typical.nbytes // _MAX_PART

    @cached_property
    def table(self) -> NDArray[np.int32]:
        """Where the words are found, see `find_places`."""
        from datasets_rl.read.zstd_loops import find_places  # deferred: it loads numba

        table = np.full(1 << (2 * len(self.words)).bit_length(), -1, np.int32)
        find_places(self.words, table)
        return table

    def to_bytes(self) -> bytes:
        """Return the typical frame and the words."""
        return self.typical.tobytes() + self.words.tobytes()

    @classmethod
    def from_bytes(cls, data: bytes, frame_bytes: int) -> FramePatches:
        """Restore from the output of `to_bytes`, for frames of so many bytes."""
        values = np.frombuffer(data, np.uint64)
        return cls(values[: frame_bytes // _WORD], values[frame_bytes // _WORD :])
