"""Copies in compiled loops, beside slices of numpy."""

import numba
import numpy as np
import pytest

from datasets_rl.loop_compiler import copy_pieces


@pytest.fixture(scope="module")
def copied():
    @numba.njit("void(uint8[::1], int64, uint8[::1], int64, int64, int64, int64)")
    def copied(source, start, out, out_start, count, distance, pieces):
        copy_pieces(source, start, out, out_start, count, distance, pieces)

    return copied


def test_short_copies_write_exactly_their_bytes_at_any_position(copied):
    source = np.random.default_rng(0).integers(1, 256, 400, np.uint8)
    for count in range(300):  # below, at and above each size of a move
        start, out_start = count % 13, count % 7
        out, expected = np.zeros(400, np.uint8), np.zeros(400, np.uint8)
        expected[out_start : out_start + count] = source[start : start + count]

        copied(source, start, out, out_start, count, 0, 1)

        np.testing.assert_array_equal(out, expected, err_msg=f"of {count} bytes")


@pytest.mark.parametrize("pieces", [0, 1, 3])
@pytest.mark.parametrize("distance", [0, 5, 150])
def test_pieces_are_written_one_after_another(copied, distance, pieces):
    source = np.random.default_rng(0).integers(1, 256, 1000, np.uint8)
    for count in (0, 1, 3, 4, 7, 16, 24, 68, 128, 129, 150):
        out, expected = np.zeros(1000, np.uint8), np.zeros(1000, np.uint8)
        for piece in range(pieces):
            expected[9 + piece * count :][:count] = source[5 + piece * distance :][:count]

        copied(source, 5, out, 9, count, distance, pieces)

        np.testing.assert_array_equal(out, expected, err_msg=f"of {count} bytes")
