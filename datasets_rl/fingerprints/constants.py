"""Numbers of the hashes of fingerprints and sketches. Other numbers would make other fingerprints of the same values."""

from __future__ import annotations

import numpy as np

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
FIRST, SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
ROTATION_A, ROTATION_B = np.uint64(0xD6E8FEB86659FD93), np.uint64(0xA0761D6478BD642F)
ROW_GRAM = np.uint64(0x9FB21C651E98DF25 << 8 & 0xFFFFFFFFFFFFFFFF)
"""Eight multiplications by this factor, a multiple of 256, make any integer zero modulo 2^64."""
WINDOW_GRAM = np.uint64(0x9FB21C651E98DF25 << 4 & 0xFFFFFFFFFFFFFFFF)
"""Sixteen multiplications by this factor, a multiple of 16, make any integer zero modulo 2^64."""
STATE = 40
"""Words of the state of a field in an open episode: two sums, the number of steps, the last 8 rows, the number of new fine rows, of
other new rows, and of distinct rows, an unused word, and two sets of 1,024 bits."""
ROWS, GRAMS = 8, 24
SPAN = 8
"""Steps of a window before its middle, and as many after it."""
ELEMENTS = 6
"""The elements of a field that have windows: the first ones."""
GROUP = 3
"""The elements of a window, at most."""
COARSE, FINE = 6.0, 16.0
SMALLEST_RANGE = 2.0**-7
SAMPLED = 4
HASH_BITS = np.uint64(32)
