"""Digests of ranges: what every writer writes, and their size, which limits what a stream reads in addition."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from datasets_rl import append, download, verify
from datasets_rl.format.digests import FileDigests, range_bytes
from datasets_rl.format.manifest import Manifest
from datasets_rl.preprocessing import Recipe, preprocess

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


def by_hand(folder: Path) -> bytes:
    """Return the digests of the ranges of a dataset whose files are shorter than 2 GiB."""
    digests = b""
    for name in sorted(path.name for path in folder.glob("*") if path.name not in {"manifest.json", "digests.npy"}):
        data = (folder / name).read_bytes() if (folder / name).is_file() else b""
        digests += b"".join(hashlib.sha256(data[at : at + 64 * KIB]).digest() for at in range(0, len(data), 64 * KIB))
    return digests


@pytest.fixture(scope="module")
def pendulum(tmp_path_factory) -> Path:
    return download("demo/pendulum", root=tmp_path_factory.mktemp("home") / "demo")


@pytest.mark.parametrize("how", ["converted", "preprocessed", "merged", "appended"])
def test_every_writer_of_a_dataset_writes_the_digests_of_its_ranges(how, pendulum, tmp_path):
    scaled = tmp_path / "scaled"
    folder = {
        "converted": lambda: pendulum,
        "preprocessed": lambda: preprocess(pendulum, "td3_bc", dest=scaled),
        "merged": lambda: preprocess(
            [pendulum, preprocess(pendulum, "td3_bc", dest=scaled)], Recipe([]), dest=tmp_path / "both"
        ),
        "appended": lambda: [append("local/own", pendulum, root=tmp_path, again=True) for _ in range(2)][-1],
    }[how]()

    assert np.load(folder / "digests.npy").tobytes() == by_hand(folder)
    assert "digests.npy" in {file.path for file in Manifest.read(folder).files}
    assert verify(folder).problems == ()


@given(st.data())
def test_digests_do_not_depend_on_how_the_bytes_are_divided(data):
    content = data.draw(st.binary(max_size=200)) * data.draw(st.integers(1, 2000))
    digests = FileDigests(len(content))
    place = 0
    while place < len(content):
        count = data.draw(st.integers(1, len(content)))
        digests.update(np.frombuffer(content[place : place + count], np.uint8))
        place += count

    assert digests.sha256 == hashlib.sha256(content).hexdigest()
    ranges = [content[at : at + 64 * KIB] for at in range(0, len(content), 64 * KIB)]
    assert digests.ranges == b"".join(hashlib.sha256(one).digest() for one in ranges)


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        (0, 64 * KIB),
        (1, 64 * KIB),
        (2 * GIB, 64 * KIB),
        (2 * GIB + 1, 128 * KIB),
        (4 * GIB, 128 * KIB),
        (16 * GIB + 1, MIB),
        (100 * GIB, MIB),
        (10_000 * GIB, MIB),
    ],
)
def test_ranges_are_short_and_their_digests_few(size, expected):
    assert range_bytes(size) == expected
    assert 32 * size / expected <= max(MIB, size / (32 * KIB))
