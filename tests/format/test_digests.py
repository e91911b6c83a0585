"""Digests of ranges: what every writer writes, and their size, which limits what a stream reads in addition."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from stored_data import digest_by_hand, ranges_by_hand

from datasets_rl import append_episodes, download, verify
from datasets_rl.format.digests import RangeHasher, digest_of_bytes
from datasets_rl.format.manifest import Manifest
from datasets_rl.preprocessing import Recipe, preprocess
from datasets_rl.store import version_folder


def by_hand(folder: Path) -> bytes:
    """Return the digests of the ranges of the files of a dataset."""
    files = [path for path in folder.glob("*") if path.is_file() and path.name not in {"manifest.json", "digests.npy"}]
    return b"".join(ranges_by_hand(path.read_bytes()) for path in sorted(files))


@pytest.fixture(scope="module")
def pendulum(tmp_path_factory) -> Path:
    return download("demo/pendulum", root=tmp_path_factory.mktemp("home") / "demo")


@pytest.mark.parametrize("how", ["converted", "preprocessed", "merged", "appended"])
def test_every_writer_of_a_dataset_writes_the_digests_of_its_ranges(how, pendulum, tmp_path):
    scaled = tmp_path / "scaled"
    folder = {
        "converted": lambda: pendulum,
        "preprocessed": lambda: preprocess(pendulum, "td3_bc", out=scaled),
        "merged": lambda: preprocess(
            [pendulum, preprocess(pendulum, "td3_bc", out=scaled)], Recipe([]), out=tmp_path / "both"
        ),
        "appended": lambda: [append_episodes("local/own", pendulum, root=tmp_path, again=True) for _ in range(2)][-1],
    }[how]()

    folder = version_folder(folder)
    assert np.load(folder / "digests.npy").tobytes() == by_hand(folder)
    files = {file.path: file.digest for file in Manifest.read(folder).files}
    assert "digests.npy" in files
    assert files == {path: digest_by_hand((folder / path).read_bytes()) for path in files}
    assert verify(folder).problems == ()


@given(st.data())
def test_digests_do_not_depend_on_how_the_bytes_are_divided(data):
    content = data.draw(st.binary(max_size=200)) * data.draw(st.integers(1, 8000))
    hasher = RangeHasher()
    place = 0
    while place < len(content):
        count = data.draw(st.integers(1, len(content)))
        hasher.update(np.frombuffer(content[place : place + count], np.uint8))
        place += count

    assert hasher.finish(Path("not read")) == ranges_by_hand(content)
    assert digest_of_bytes(content) == digest_by_hand(content)


@given(
    kept=st.integers(0, 700_000),
    added=st.integers(0, 700_000),
    overwritten=st.lists(st.tuples(st.integers(0, 1_400_000), st.integers(1, 300_000)), max_size=3),
)
def test_digests_cover_the_bytes_of_an_earlier_process_and_those_that_were_overwritten(
    tmp_path_factory, kept, added, overwritten
):
    path = tmp_path_factory.mktemp("digests") / "file"
    content = bytearray(np.random.default_rng(kept).bytes(kept + added))
    hasher = RangeHasher(skipped=kept)
    hasher.update(memoryview(bytes(content))[kept:])
    for start, count in overwritten:
        stop = min(start + count, len(content))
        if start < stop:
            content[start:stop] = bytes(stop - start)
            hasher.invalidate(start, stop)
    path.write_bytes(content)

    assert hasher.finish(path) == ranges_by_hand(bytes(content))
