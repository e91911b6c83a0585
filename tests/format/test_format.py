"""The bytes on disk, computed by hand, and the errors when they change."""

from __future__ import annotations

import hashlib
import shutil
import struct
from contextlib import suppress

import numpy as np
import pytest
from stored_data import columns, trajectory, write_dataset

from datasets_rl.errors import IntegrityError, InvalidArgumentError
from datasets_rl.format.integrity import check_files
from datasets_rl.format.reader import StoredDataset
from datasets_rl.format.schema import WIDE_BYTES, Column
from datasets_rl.format.writer import DatasetWriter
from datasets_rl.storages import DatasetStorage
from datasets_rl.ted.episode import Episode

FILES = ["rows.npy", "final.npy", "episodes.npy", "pixels.npy", "final.pixels.npy"]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A dataset with narrow and wide fields, some of them shared."""
    folder = tmp_path_factory.mktemp("made")
    pixels = Column(("pixels",), np.dtype("u1"), (WIDE_BYTES,), shared=True)
    trajectories = [trajectory(3), trajectory(2, seed=1)]
    for number, one in enumerate(trajectories):
        shown = np.full((len(one) + 1, WIDE_BYTES), number + 1, np.uint8)
        trajectories[number] = type(one)(one.steps, {**one.states, ("pixels",): shown})
    write_dataset(folder, trajectories, columns(pixels))
    return folder


@pytest.fixture
def folder(made, tmp_path):
    shutil.copytree(made, tmp_path / "copy")
    return tmp_path / "copy"


def body(path):
    """Return the bytes after the header of an .npy file, version 1."""
    raw = path.read_bytes()
    assert raw[:8] == b"\x93NUMPY\x01\x00"
    return raw[10 + struct.unpack("<H", raw[8:10])[0] :]


def test_the_bytes_equal_those_computed_by_hand(tmp_path):
    """Two episodes: states 1 2 3 with actions 10 20, and state 4 with action 30 and an unknown final state.

    A record: observation f4 (shared, first), reward f4, action i2, terminated, truncated, done ?, episode i4.
    Sorted by item size after the shared field: reward at 4, episode at 8, action at 12, flags at 14, 15, 16; padded
    to 24 bytes. Then a record of zeros, so that a window of the last row stays inside the file.
    """
    writer = DatasetWriter(
        tmp_path,
        [
            Column(("observation",), np.dtype("<f4"), (1,), shared=True),
            Column(("action",), np.dtype("<i2"), ()),
            Column(("next", "reward"), np.dtype("<f4"), (1,)),
            Column(("next", "terminated"), np.dtype("?"), (1,)),
            Column(("next", "truncated"), np.dtype("?"), (1,)),
        ],
        name="toy/golden",
    )
    for states, actions, rewards, ended in [([1, 2, 3], [10, 20], [0.5, 0.25], 0), ([4], [30], [-1], 1)]:
        last = np.arange(len(actions)) == len(actions) - 1
        writer.append(
            Episode(
                {
                    ("action",): np.array(actions, np.int16),
                    ("next", "reward"): np.array(rewards, np.float32)[:, None],
                    ("next", "terminated"): (last & (ended == 0))[:, None],
                    ("next", "truncated"): (last & (ended == 1))[:, None],
                },
                {("observation",): np.array(states, np.float32)[:, None]},
            )
        )
    writer.finish()
    writer.discard()
    record = struct.Struct("<ffih???7x")
    final = struct.Struct("<f4x")
    table = struct.Struct("<qqdq?")

    assert body(tmp_path / "rows.npy") == b"".join(
        [
            record.pack(1, 0.5, 0, 10, False, False, False),
            record.pack(2, 0.25, 0, 20, True, False, True),
            record.pack(4, -1, 1, 30, False, True, True),
            bytes(24),
        ]
    )
    assert body(tmp_path / "final.npy") == final.pack(3) + final.pack(0)
    assert body(tmp_path / "episodes.npy") == table.pack(0, 2, 0.75, 0, True) + table.pack(2, 1, -1, 1, False)
    names = [
        "episodes.npy",
        "final.npy",
        "fingerprints.npy",
        "rows.npy",
        "sketches.npy",
    ]  # each file is shorter than a range
    digests = [hashlib.sha256((tmp_path / name).read_bytes()).digest() for name in names]
    assert body(tmp_path / "digests.npy") == b"".join(digests)
    assert {path.name for path in tmp_path.iterdir()} == {*names, "digests.npy"}


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("change", ["cut", "extended", "emptied", "missing", "folder"])
def test_a_file_of_another_size_is_found_when_the_dataset_is_opened(folder, name, change):
    path = folder / name
    if change in {"missing", "folder"}:
        path.unlink()
        if change == "folder":
            path.mkdir()
    else:
        with path.open("r+b") as stream:
            stream.truncate({"cut": path.stat().st_size - 1, "extended": path.stat().st_size + 1, "emptied": 0}[change])

    with pytest.raises(IntegrityError, match=name):
        StoredDataset(folder)
    assert any(name in problem for problem in check_files(folder, lambda _: None))


@pytest.mark.parametrize("name", FILES)
def test_any_flipped_bit_is_found_by_the_digests(folder, name):
    path = folder / name
    size = path.stat().st_size
    for place in {0, 9, 40, size // 2, size - 1}:
        raw = bytearray(path.read_bytes())
        raw[place] ^= 1 << (place % 8)
        path.write_bytes(raw)
        problems = check_files(folder, lambda _: None)
        raw[place] ^= 1 << (place % 8)
        path.write_bytes(raw)

        assert [problem.partition(" ")[0] for problem in problems] == [name]
    assert check_files(folder, lambda _: None) == []


@pytest.mark.first(2)
@pytest.mark.parametrize("name", FILES)
def test_a_flipped_header_is_an_integrity_error_and_not_a_crash(folder, name):
    """Sizes are correct; the header is checked when the file is mapped."""
    path = folder / name
    raw = path.read_bytes()
    for place in range(128):
        path.write_bytes(raw[:place] + bytes([raw[place] ^ 0x01]) + raw[place + 1 :])
        with suppress(IntegrityError):
            stored = StoredDataset(folder)
            DatasetStorage(stored).get([0, 1, 2, 3, 4])
            assert len(stored.episodes) == 2
        assert check_files(folder, lambda _: None)


def test_every_changed_file_is_named_at_once(folder):
    (folder / "rows.npy").unlink()
    (folder / "final.npy").write_bytes(b"")

    with pytest.raises(IntegrityError) as caught:
        StoredDataset(folder)
    assert len(caught.value.problems) == 2


def test_files_outside_of_the_manifest_are_reported(folder):
    (folder / "notes.txt").write_text("mine")

    assert check_files(folder, lambda _: None) == ["notes.txt is not in the manifest"]


def test_bytes_are_reported_as_they_are_checked(folder):
    counted = []
    check_files(folder, counted.append)

    assert sum(counted) == StoredDataset(folder).manifest.bytes


def test_an_episode_table_that_does_not_add_up_is_refused(folder):
    table = np.load(folder / "episodes.npy", mmap_mode="r+")
    table["length"] = [4, 2]
    table.flush()

    with pytest.raises(IntegrityError, match="expected contiguous episodes"):
        _ = StoredDataset(folder).episodes
    assert check_files(folder, lambda _: None)


def test_rows_without_the_record_of_zeros_after_them_are_refused(folder):
    """A window of the last row would reach past the file."""
    rows = np.load(folder / "rows.npy")
    with (folder / "rows.npy").open("wb") as stream:
        np.lib.format.write_array_header_1_0(
            stream,
            {
                "descr": np.lib.format.dtype_to_descr(rows.dtype),
                "fortran_order": False,
                # The file has the same size, so it opens: one record more in the header, and no record of zeros.
                "shape": (5,),
            },
        )
        stream.write(rows.tobytes())
    size = (folder / "rows.npy").stat().st_size
    text = (folder / "manifest.json").read_text()
    wanted = StoredDatasetSizes.of(text, "rows.npy")
    (folder / "manifest.json").write_text(text.replace(f'"bytes": {wanted}', f'"bytes": {size}'))

    with pytest.raises(IntegrityError, match="record of zeros"):
        DatasetStorage(StoredDataset(folder))


class StoredDatasetSizes:
    """Return the sizes in a manifest, found with a plain search."""

    @staticmethod
    def of(text, name):
        return int(text.partition(f'"path": "{name}"')[2].partition('"bytes": ')[2].partition(",")[0])


def test_a_header_longer_than_numpy_reads_by_default_is_read(tmp_path):
    """By default, NumPy rejects headers of more than 10,000 characters, which about 300 fields exceed."""
    more = [Column((f"info{number}", "a_long_name"), np.dtype("?"), ()) for number in range(400)]
    whole = trajectory(2)
    flags = {column.key: np.array([True, False]) for column in more}
    stored = write_dataset(tmp_path, [type(whole)({**whole.steps, **flags}, whole.states)], columns(*more))

    assert DatasetStorage(stored).get([0, 1])["info7", "a_long_name"].tolist() == [True, False]


@pytest.mark.parametrize(("start", "stop"), [(0, None), (2, 4), (-2, None), (3, 1), (5, 9), (0, 0), (-99, 99)])
@pytest.mark.parametrize("key", [("action",), ("next", "observation"), ("next", "pixels"), ("done",), ("episode",)])
def test_rows_of_a_column_count_as_in_a_slice(folder, key, start, stop):
    stored = StoredDataset(folder)

    assert np.array_equal(stored.column(key, start, stop), stored.column(key)[start:stop])


def test_only_files_of_the_dataset_are_mapped(folder):
    with pytest.raises(InvalidArgumentError, match="not a file of toy/data"):
        StoredDataset(folder).map("../manifest.json")


def test_columns_are_read_only_and_mappings_are_private(folder):
    stored = StoredDataset(folder)
    before = (folder / "rows.npy").read_bytes()

    with pytest.raises(ValueError, match="read-only"):
        stored.column(("action",))[0] = 7
    stored.map("rows.npy", writable=True)["action"][:] = 7
    assert (folder / "rows.npy").read_bytes() == before
