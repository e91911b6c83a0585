"""An .npy file has the same digest for any division into blocks."""

import numpy as np
import pytest
from stored_data import digest_by_hand

from datasets_rl.format.npy import NpyStream

FLOATS = np.dtype("f8")


@pytest.mark.parametrize("sizes", [[5], [200_000], [3, 200_000, 1, 150_000, 131_072]], ids=["small", "large", "both"])
def test_large_blocks_are_hashed_in_order(tmp_path, sizes):
    values = np.arange(sum(sizes), dtype=FLOATS)
    stream = NpyStream(tmp_path / "x.npy", FLOATS, expected=len(values))

    for block in np.split(values, np.cumsum(sizes)[:-1]):
        stream.append(block)
    entry = stream.close()

    assert np.array_equal(np.load(tmp_path / "x.npy"), values)
    assert entry.digest == digest_by_hand((tmp_path / "x.npy").read_bytes())
