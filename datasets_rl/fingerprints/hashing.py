"""Hashes of words of 64 bits. They are sums and products modulo 2^64, so numpy computes them equally on every machine."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint64]
GOLDEN = np.uint64(0x9E3779B97F4A7C15)
FIRST, SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
CHAIN = np.uint64(29)
"""How far `chained` shifts hashes."""


def mixed(words: Words) -> Words:
    """Return words of which each bit depends on each bit of the word, as in SplitMix64."""
    words = (words ^ (words >> np.uint64(30))) * FIRST
    words = (words ^ (words >> np.uint64(27))) * SECOND
    result: Words = words ^ (words >> np.uint64(31))
    return result


@lru_cache(maxsize=64)
def keys(count: int) -> Words:
    """Return the odd factors of the first words of a row, [count]."""
    return mixed(np.arange(1, count + 1, dtype=np.uint64) * GOLDEN) | np.uint64(1)


def dot(words: Words) -> Words:
    """Return the hash of each row of words, [n, W] -> [n]. The words change.

    The high half of a word is added to the low half first, because a product forgets the highest bits of its factors.
    """
    factors = keys(words.shape[1])
    if len(factors) == 1:
        words *= factors
        return words[:, 0]
    words ^= words >> np.uint64(35)
    result: Words = words @ factors
    return result


def chained(hashes: Any, words: Any) -> Any:
    """Return the hash of sequences, given the hashes of the words before, and the last word of each."""
    hashes = (hashes ^ words) * FIRST
    return hashes ^ (hashes >> CHAIN)
