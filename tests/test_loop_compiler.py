"""Copies in compiled loops, beside slices of numpy."""

import numba
import numpy as np
import pytest

from datasets_rl.loop_compiler import copy_short


@pytest.fixture(scope="module")
def copied():
    @numba.njit("void(uint8[::1], int64, uint8[::1], int64, int64)")
    def copied(source, start, out, out_start, count):
        copy_short(source, start, out, out_start, count)

    return copied


def test_short_copies_write_exactly_their_bytes_at_any_position(copied):
    source = np.random.default_rng(0).integers(1, 256, 400, np.uint8)
    for count in range(300):  # below, at and above each size of a move
        start, out_start = count % 13, count % 7
        out, expected = np.zeros(400, np.uint8), np.zeros(400, np.uint8)
        expected[out_start : out_start + count] = source[start : start + count]

        copied(source, start, out, out_start, count)

        np.testing.assert_array_equal(out, expected, err_msg=f"of {count} bytes")
