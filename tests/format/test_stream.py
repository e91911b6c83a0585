"""An .npy file has the same digest for any division into blocks."""

import threading
from pathlib import Path

import numpy as np
import pytest

from datasets_rl.errors import DiskFullError
from datasets_rl.format.npy import NpyStream, file_sha256

FLOATS = np.dtype("f8")


@pytest.mark.parametrize("sizes", [[5], [200_000], [3, 200_000, 1, 150_000, 131_072]], ids=["small", "large", "both"])
def test_large_blocks_are_hashed_in_order(tmp_path, sizes):
    values = np.arange(sum(sizes), dtype=FLOATS)
    stream = NpyStream(tmp_path / "x.npy", FLOATS, expected=len(values))

    for block in np.split(values, np.cumsum(sizes)[:-1]):
        stream.append(block)
    entry = stream.close()

    assert np.array_equal(np.load(tmp_path / "x.npy"), values)
    assert entry.sha256 == file_sha256(tmp_path / "x.npy")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="/dev/full stands for a full disk")
def test_no_thread_remains_after_a_full_disk():
    stream = NpyStream(Path("/dev/full"), FLOATS, expected=1 << 20)

    with pytest.raises(DiskFullError):
        stream.append(np.zeros(1 << 20))

    assert not [one for one in threading.enumerate() if one.name == "rlds-digest"]
    stream.discard()
