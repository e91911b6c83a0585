"""Patches: a frame as a typical frame with some other words.

    typical     | a | b | c | d | e | f |       words of 8 bytes, a row for each typical frame
    frame       | a | b | X | d | e | Y |
    patch       | 0 | 2 | gaps 2 3 | codes of X, Y |

    byte                | which typical frame
    uint16              | number of words, n
    uint8 [n]           | how many words after the word before; for the first, after the first word of the frame
    uint16 [n]          | code of each word; 0xffff for a word without a code
    uint64              | each word without a code

All numbers are little-endian. To make a patch takes half of the time of zstd, and to read it a quarter: zstd spends most of
the time on beginning a frame. The first byte of a zstd frame is 0x28, so that both can be among the compressed frames
of a column.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray

WORD: Final = 8
"""Bytes of a word."""
MAX_WORDS: Final = 1 << 12
"""Maximum number of words with a code."""
TYPICAL_FRAMES: Final = 8
"""Maximum number of typical frames that training makes."""
MAX_TYPICAL: Final = 32
"""Maximum number of typical frames: the first byte of a patch is less than that of a zstd frame."""
_MAX_POSITIONS: Final = 1 << 16
_MEDIAN_FRAMES, _ROUNDS, _TRAINING_BYTES = 101, 4, 8 << 20
_FRAMES_PER_TYPICAL: Final = 16
_LINE_WORDS, _PROBED_LINES = 8, 8
"""Words of a line of a processor's cache, and number of the lines by which the nearest typical frame is found."""

Words = NDArray[np.uint64]


@dataclass(frozen=True)
class FramePatches:
    """What patches of frames of a size need. Without a typical frame, no frame becomes a patch."""

    typical: Words = field(default_factory=lambda: np.empty((0, 0), np.uint64))
    """The typical frames, [K, W]."""
    words: Words = field(default_factory=lambda: np.empty(0, np.uint64))
    """The word of each code, all different, [n]."""

    @classmethod
    def train(cls, frames: NDArray[np.uint8]) -> FramePatches:
        """Return what similar frames, [n, bytes], have in common.

        A typical frame has the median of each byte of the frames that differ less from this frame than from other typical
        frames. The words with a code are the most frequent other words.
        """
        count, size = frames.shape
        if not count or size % WORD or size // WORD > _MAX_POSITIONS:
            return cls()
        samples = np.ascontiguousarray(frames[:: -(-frames.nbytes // _TRAINING_BYTES)])
        words = samples.view(np.uint64)
        typical = [_median(samples)]
        distances = [_distances(words, typical[0])]
        while (
            len(typical) < min(TYPICAL_FRAMES, len(samples) // _FRAMES_PER_TYPICAL)
            and (least := np.min(distances, axis=0)).any()
        ):
            typical.append(words[np.argmax(least)])
            distances.append(_distances(words, typical[-1]))
        for _ in range(_ROUNDS if len(typical) > 1 else 0):
            nearest = np.argmin(distances, axis=0)
            typical = [_median(samples[nearest == number]) for number in np.unique(nearest)]
            distances = [_distances(words, frame) for frame in typical]
        frames_of_all = np.stack(typical)
        others = words != frames_of_all[np.argmin(distances, axis=0)]
        found, counts = np.unique(words[others], return_counts=True)
        return cls(frames_of_all, found[np.argsort(-counts, kind="stable")[:MAX_WORDS]])

    @cached_property
    def probes(self) -> NDArray[np.int64]:
        """Positions of the words by which the nearest typical frame is found, [P]: where the frames differ most.

        The words are next to each other, since to load a word from memory takes as long as to load eight.
        """
        different = np.zeros(-(-self.typical.shape[1] // _LINE_WORDS) * _LINE_WORDS, np.int64)
        for frame in self.typical:
            different[: len(frame)] += np.count_nonzero(self.typical != frame, axis=0)
        lines = np.sort(np.argsort(-different.reshape(-1, _LINE_WORDS).sum(axis=1), kind="stable")[:_PROBED_LINES])
        positions = (lines[:, None] * _LINE_WORDS + np.arange(_LINE_WORDS)).ravel()
        inside: NDArray[np.int64] = positions[positions < self.typical.shape[1]]
        return inside

    @cached_property
    def probed(self) -> Words:
        """The words of the typical frames at the probes, [K, P]."""
        return np.ascontiguousarray(self.typical[:, self.probes])

    @cached_property
    def table(self) -> NDArray[np.int32]:
        """Where the words are found, see `find_places`."""
        from datasets_rl.read.frame_loops import find_places  # deferred, because it loads numba

        table = np.full(1 << (2 * len(self.words)).bit_length(), -1, np.int32)
        find_places(self.words, table)
        return table


def _median(frames: NDArray[np.uint8]) -> Words:
    """Return the median of each byte, as words."""
    chosen = frames[:: -(-len(frames) // _MEDIAN_FRAMES)]
    median: Words = np.partition(chosen, len(chosen) // 2, axis=0)[len(chosen) // 2].view(np.uint64)
    return median


def _distances(frames: Words, typical: Words) -> NDArray[np.int64]:
    """Return in how many words frames, [n, W], differ from a typical frame."""
    distances: NDArray[np.int64] = np.count_nonzero(frames != typical, axis=1)
    return distances
