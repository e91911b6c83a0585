"""Bits that look random and follow from integers: SplitMix64 (Steele, Lea and Flood, 2014)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
"""The step of SplitMix64: the fractional part of the golden ratio, times 2^64."""
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


def mix_bits(integers: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return the finalizer of SplitMix64 of integers, in the shape of the integers: different integers stay different."""
    mixed = (integers ^ (integers >> np.uint64(30))) * _FIRST  # modulo 2**64
    mixed = (mixed ^ (mixed >> np.uint64(27))) * _SECOND
    return mixed ^ (mixed >> np.uint64(31))
