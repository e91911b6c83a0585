"""The HDF5 reader returns the values that h5py returns, faster, and refuses hostile files."""

from __future__ import annotations

import threading
import tracemalloc
import zlib
from collections import Counter

import h5py
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from datasets_rl.errors import ConversionError
from datasets_rl.read import hdf5
from datasets_rl.read.hdf5 import Hdf5File

ARRAY = np.random.default_rng(0).normal(size=(1000, 7)).astype(np.float32)

LAYOUTS = {
    "gzip": {"compression": "gzip"},
    "gzip cut along both axes": {"compression": "gzip", "chunks": (128, 3)},
    "shuffled gzip": {"compression": "gzip", "shuffle": True},
    "one chunk": {"compression": "gzip", "chunks": (1000, 7)},
    "chunks of one row": {"compression": "gzip", "chunks": (1, 7)},
    "contiguous": {},
    "chunked only": {"chunks": (300, 2)},
    "shuffled only": {"chunks": (300, 2), "shuffle": True},
    "lzf": {"compression": "lzf", "chunks": (300, 2)},
    "with checksums": {"compression": "gzip", "fletcher32": True, "chunks": (300, 2)},
}
TYPES = ["<f4", ">f4", "<f8", ">f8", "<f2", "i1", "<i8", ">u2", "?"]


def one(path, array=ARRAY, **options):
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=array, **options)
    return path


def joined(file, names=("x",), **options):
    blocks = list(file.blocks(names, **options))
    return {name: np.concatenate([block.columns[name] for block in blocks]) for name in names}


@pytest.mark.first(3, of="layout")
@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("dtype", TYPES)
def test_every_layout_and_type_reads_as_with_h5py(tmp_path, layout, dtype):
    array = (ARRAY * 50).astype(dtype) if dtype != "?" else ARRAY > 0
    with Hdf5File(one(tmp_path / "x.h5", array, **layout)) as file:
        read = file.read("x", 130, 777)
        streamed = joined(file, rows=90)["x"]

    np.testing.assert_array_equal(read, array[130:777])
    np.testing.assert_array_equal(streamed, array)
    assert read.dtype == streamed.dtype == array.dtype.newbyteorder("=")
    assert read.dtype.isnative


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_blocks_of_any_size_join_to_the_column(tmp_path, data):
    """Chunks of the columns end at different rows, and the caller chooses where blocks end."""
    rows = data.draw(st.integers(1, 60))
    chunks = [(data.draw(st.integers(1, rows)), data.draw(st.integers(1, 3))) for _ in range(2)]
    block = data.draw(st.integers(1, 70))
    start = data.draw(st.integers(0, rows - 1))
    stop = data.draw(st.integers(start + 1, rows))
    arrays = [np.random.default_rng(number).normal(size=(rows, 3)) for number in range(2)]
    path = tmp_path / "x.h5"
    with h5py.File(path, "w") as file:
        for number, (array, chunk) in enumerate(zip(arrays, chunks, strict=True)):
            file.create_dataset(str(number), data=array, chunks=chunk, compression="gzip")

    with Hdf5File(path, threads=2) as file:
        there = start
        for got in file.blocks(["0", "1"], rows=block, overlap=["1"], start=start, stop=stop):
            assert got.start == there
            np.testing.assert_array_equal(got.columns["0"], arrays[0][got.start : got.stop])
            np.testing.assert_array_equal(got.columns["1"], arrays[1][got.start : min(got.stop + 1, stop)])
            there = got.stop
        assert there == stop


def test_a_pass_decompresses_every_chunk_once(tmp_path, monkeypatch):
    seen = Counter()
    real = hdf5._decompress

    def counting(data, size):
        seen[bytes(data)] += 1
        return real(data, size)

    monkeypatch.setattr(hdf5, "_decompress", counting)
    with Hdf5File(one(tmp_path / "x.h5", compression="gzip", chunks=(128, 2))) as file:
        joined(file, rows=37, overlap=["x"])

    assert set(seen.values()) == {1}
    assert len(seen) == 8 * 4


def test_blocks_own_their_memory(tmp_path):
    """The caller may keep a block while the next ones are read."""
    with Hdf5File(one(tmp_path / "x.h5", compression="gzip", chunks=(64, 7))) as file:
        kept = [block.columns["x"] for block in file.blocks(["x"], rows=10)]

    np.testing.assert_array_equal(np.concatenate(kept), ARRAY)


def test_memory_does_not_grow_with_the_file(tmp_path):
    array = np.random.default_rng(0).integers(0, 4, (400_000, 8)).astype(np.float64)
    with Hdf5File(one(tmp_path / "x.h5", array, compression="gzip", compression_opts=1), threads=2) as file:
        tracemalloc.start()
        for _ in file.blocks(["x"], rows=10_000):
            pass
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()

    assert array.nbytes > 25_000_000
    assert peak < 8_000_000


def test_datasets_are_listed_without_reading_them(tmp_path):
    path = tmp_path / "x.h5"
    with h5py.File(path, "w") as file:
        file["a/b/c"] = np.zeros((5, 2), ">i4")
        file["a/scalar"] = 3.5
        file["text"] = "hello"
    with Hdf5File(path) as file:
        facts = {name: (array.shape, array.dtype.str, array.numeric) for name, array in file.arrays.items()}

    assert facts["a/b/c"] == ((5, 2), "<i4", True)
    assert facts["a/scalar"] == ((), "<f8", True)
    assert not facts["text"][2]


def test_datasets_without_steps_are_read_as_plain_values(tmp_path):
    path = tmp_path / "x.h5"
    with h5py.File(path, "w") as file:
        file["text"] = "hello"
        file["bytes"] = np.bytes_(b"SAC")
        file["iteration"] = np.int64(7)
        file["flag"] = np.bool_(True)
        file["weight"] = np.ones((2, 3), ">f4")
        file["texts"] = np.array([b"a", b"bc"])
        file["nothing"] = h5py.Empty("f4")
    with Hdf5File(path) as file:
        values = {name: file.value(name) for name in file.arrays}

    assert (values["text"], values["bytes"], values["iteration"], values["flag"]) == ("hello", "SAC", 7, True)
    assert type(values["iteration"]) is int
    assert values["weight"].dtype == np.dtype("<f4")
    assert values["texts"].tolist() == ["a", "bc"]
    assert not values["nothing"]


def test_closing_stops_the_threads(tmp_path):
    path = one(tmp_path / "x.h5", compression="gzip", chunks=(10, 7))
    with Hdf5File(path) as file:
        next(file.blocks(["x"], rows=100))

    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("inflate")]


class TestRareButValid:
    """Rarely used features of HDF5 are read like h5py reads them."""

    @pytest.mark.parametrize("fill", [0, 7])
    @pytest.mark.parametrize("options", [{"compression": "gzip", "chunks": (10, 5)}, {"chunks": (10, 17)}, {}], ids=str)
    def test_unwritten_chunks_have_the_fill_value(self, tmp_path, options, fill):
        path = tmp_path / "x.h5"
        with h5py.File(path, "w") as file:
            dataset = file.create_dataset("x", (100, 17), "f4", fillvalue=fill, **options)
            if options:
                dataset[30:50] = np.random.default_rng(0).normal(size=(20, 17))

        with Hdf5File(path) as file, h5py.File(path, locking=False) as plain:
            np.testing.assert_array_equal(file.read("x"), plain["x"][:])
            np.testing.assert_array_equal(joined(file, rows=7)["x"], plain["x"][:])
            assert file.read("x")[60, 3] == fill
            assert file.arrays["x"].unwritten == {(): 1, ("chunks",): 8, ("compression", "chunks"): 32}[tuple(options)]

    @pytest.mark.parametrize("size", [512, 1024, 1 << 16])
    def test_a_user_block_may_come_before_the_signature(self, tmp_path, size):
        path = tmp_path / "x.h5"
        with h5py.File(path, "w", userblock_size=size) as file:
            file.create_dataset("x", data=ARRAY, compression="gzip", chunks=(100, 7))
        path.write_bytes(b"MATLAB 7.3 MAT-file" + path.read_bytes()[19:])

        with Hdf5File(path) as file:
            np.testing.assert_array_equal(file.read("x"), ARRAY)

    def test_soft_links_within_the_file_are_other_names_of_their_target(self, tmp_path):
        path = tmp_path / "x.h5"
        with h5py.File(path, "w") as file:
            file["run/3/x"] = ARRAY
            file["latest"] = h5py.SoftLink("/run/3")
            file["run/y"] = h5py.SoftLink("3/x")
            file["z"] = h5py.SoftLink("latest/./x")

        with Hdf5File(path) as file:
            assert list(file.arrays) == ["latest/x", "run/3/x", "run/y", "z"]
            np.testing.assert_array_equal(file.read("run/y"), ARRAY)


class TestDamage:
    """Damage is a ConversionError that names the fault and its position."""

    @pytest.mark.parametrize(
        ("content", "says"),
        [
            (b"", "is empty"),
            (b"<!DOCTYPE html><html><body>403 Forbidden", "is a web page"),
            (b"\n<?xml version='1.0'?><Error>", "is a web page or an XML error"),
            (b"version https://git-lfs.github.com/spec/v1\noid sha256:12", "git-LFS pointer"),
            (b"PK\x03\x04 something else", "is not HDF5"),
        ],
    )
    def test_data_that_is_not_hdf5_is_reported(self, tmp_path, content, says):
        path = tmp_path / "x.hdf5"
        path.write_bytes(content)
        with pytest.raises(ConversionError, match=says) as caught:
            Hdf5File(path)

        assert "x.hdf5" in str(caught.value)
        assert "force=True" in caught.value.hint

    @pytest.mark.parametrize("kept", [9, 100, 2000, -1])
    def test_a_truncated_file_is_refused(self, tmp_path, kept):
        path = one(tmp_path / "x.h5", compression="gzip")
        path.write_bytes(path.read_bytes()[:kept])
        with pytest.raises(ConversionError, match="HDF5 reports") as caught:
            Hdf5File(path)

        if kept > 1000 or kept < 0:
            assert "eof" in str(caught.value)
            assert "stored_eof" in str(caught.value)

    def test_flipped_bits_are_refused_with_the_column_and_all_rows_at_once(self, tmp_path):
        path = one(tmp_path / "x.h5", compression="gzip", chunks=(100, 7))
        with h5py.File(path) as file:
            places = [file["x"].id.get_chunk_info(number) for number in (2, 7)]
        data = bytearray(path.read_bytes())
        for place in places:
            data[place.byte_offset + place.size // 2] ^= 0x10
        path.write_bytes(data)

        with Hdf5File(path) as file, pytest.raises(ConversionError) as caught:
            file.read("x")
        assert [problem.partition(":")[0] for problem in caught.value.problems] == [
            "x rows 200 to 299",
            "x rows 700 to 799",
        ]

    def test_rows_before_the_damage_are_given(self, tmp_path):
        path = one(tmp_path / "x.h5", compression="gzip", chunks=(100, 7))
        with h5py.File(path) as file:
            place = file["x"].id.get_chunk_info(5)
        data = bytearray(path.read_bytes())
        data[place.byte_offset + 20] ^= 0xFF
        path.write_bytes(data)

        with Hdf5File(path) as file:
            blocks = file.blocks(["x"], rows=100)
            for start in range(0, 500, 100):
                np.testing.assert_array_equal(next(blocks).columns["x"], ARRAY[start : start + 100])
            with pytest.raises(ConversionError, match="x rows 500 to 599"):
                next(blocks)

    def test_damage_that_only_libhdf5_detects_is_refused(self, tmp_path):
        path = one(tmp_path / "x.h5", compression="gzip", fletcher32=True, chunks=(1000, 7))
        with h5py.File(path) as file:
            place = file["x"].id.get_chunk_info(0)
        data = bytearray(path.read_bytes())
        data[place.byte_offset + place.size // 2] ^= 0x10
        path.write_bytes(data)

        with Hdf5File(path) as file, pytest.raises(ConversionError, match="x rows 0 to 999"):
            file.read("x")

    @pytest.mark.parametrize(
        ("stored", "says"),
        [
            (zlib.compress(b"\0" * 50_000_000, 1), "decompresses to more than 2,800 bytes"),
            (zlib.compress(b"\0" * 2801), "decompresses to more than 2,800 bytes"),
            (zlib.compress(b"\0" * 100), "has 100 bytes, expected 2,800"),
            (zlib.compress(bytes(ARRAY[:100]))[:-9], "is truncated"),
        ],
        ids=["bomb", "one too many", "short", "cut"],
    )
    def test_a_chunk_of_another_size_is_refused_without_decompressing_it(self, tmp_path, stored, says):
        path = one(tmp_path / "x.h5", ARRAY[:200], compression="gzip", chunks=(100, 7))
        with h5py.File(path, "r+") as file:
            file["x"].id.write_direct_chunk((100, 0), stored)
        with Hdf5File(path, threads=1) as file:
            tracemalloc.start()
            with pytest.raises(ConversionError, match=says):
                file.read("x")
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()

        assert peak < 1_000_000

    def test_a_chunk_that_skipped_its_filter_is_read(self, tmp_path):
        """HDF5 may store a chunk uncompressed where compression does not reduce its size."""
        path = one(tmp_path / "x.h5", ARRAY[:200], compression="gzip", shuffle=True, chunks=(100, 7))
        with h5py.File(path, "r+") as file:
            file["x"].id.write_direct_chunk((0, 0), ARRAY[50:150].tobytes(), filter_mask=3)
        with Hdf5File(path) as file:
            read = file.read("x")

        np.testing.assert_array_equal(read[:100], ARRAY[50:150])
        np.testing.assert_array_equal(read[100:], ARRAY[100:200])

    def test_a_boolean_other_than_0_and_1_is_refused(self, tmp_path):
        path = one(tmp_path / "x.h5", np.zeros(10, bool), compression="gzip", chunks=(10,))
        with h5py.File(path, "r+") as file:
            file["x"].id.write_direct_chunk((0,), zlib.compress(bytes(9) + b"\2"))
        with Hdf5File(path) as file, pytest.raises(ConversionError, match="neither 0 nor 1"):
            file.read("x")


class TestHostile:
    """A file cannot refer to other files, or declare more data than it has."""

    def refused(self, path, says):
        with pytest.raises(ConversionError, match=says):
            Hdf5File(path)

    def test_an_external_link_is_refused(self, tmp_path):
        one(tmp_path / "secret.h5")
        with h5py.File(tmp_path / "x.h5", "w") as file:
            file["observations"] = h5py.ExternalLink("secret.h5", "/x")
        self.refused(tmp_path / "x.h5", "observations is a link out of the file")

    def test_a_soft_link_is_refused(self, tmp_path):
        with h5py.File(tmp_path / "x.h5", "w") as file:
            file["observations"] = h5py.SoftLink("/nowhere")
        self.refused(tmp_path / "x.h5", "observations is a link out of the file")

    def test_data_in_other_files_is_refused(self, tmp_path):
        (tmp_path / "secret.bin").write_bytes(bytes(400))
        with h5py.File(tmp_path / "x.h5", "w") as file:
            file.create_dataset("x", (100,), "f4", external=[(str(tmp_path / "secret.bin"), 0, 400)])
        self.refused(tmp_path / "x.h5", "x stores its data in other files")

    def test_a_virtual_dataset_is_refused(self, tmp_path):
        one(tmp_path / "secret.h5")
        layout = h5py.VirtualLayout((1000, 7), "f4")
        layout[:] = h5py.VirtualSource(tmp_path / "secret.h5", "x", (1000, 7))
        with h5py.File(tmp_path / "x.h5", "w") as file:
            file.create_virtual_dataset("x", layout)
        self.refused(tmp_path / "x.h5", "x stores its data in other files")

    @pytest.mark.parametrize(
        "options", [{"chunks": (1 << 16, 17), "compression": "gzip"}, {"chunks": (1 << 16, 17)}, {}]
    )
    def test_a_huge_declared_shape_is_refused(self, tmp_path, options):
        with h5py.File(tmp_path / "x.h5", "w") as file:
            dataset = file.create_dataset("x", (10**10, 17), "f4", **options)
            if options:
                dataset[:5] = 1
        self.refused(tmp_path / "x.h5", r"x declares \[10000000000, 17\]")

    def test_a_huge_declared_text_is_refused(self, tmp_path):
        with h5py.File(tmp_path / "x.h5", "w") as file:
            file.create_dataset("x", (10**10,), "S1000")
        self.refused(tmp_path / "x.h5", r"x declares \[10000000000\]")

    def test_a_chunk_much_larger_than_the_dataset_is_refused_without_memory_for_it(self, tmp_path):
        with h5py.File(tmp_path / "x.h5", "w") as file:
            file.create_dataset("x", (200, 11), "f4", chunks=(4_000_000, 11), maxshape=(None, 11), compression="gzip")
            file["x"].id.write_direct_chunk((0, 0), zlib.compress(bytes(4_000_000 * 44), 1))
        tracemalloc.start()
        self.refused(
            tmp_path / "x.h5", r"x has chunks of \[4000000, 11\], 176,000,000 bytes, for the shape \[200, 11\]"
        )
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()

        assert peak < 5_000_000

    def test_a_row_of_chunks_that_needs_more_than_a_gigabyte_is_refused(self, tmp_path):
        with h5py.File(tmp_path / "x.h5", "w") as file:
            file.create_dataset("x", (40_000_000, 11), "f4", chunks=(40_000_000, 11), compression="gzip")
            file["x"].id.write_direct_chunk((0, 0), bytes(2_000_000))
        self.refused(tmp_path / "x.h5", "a row of chunks has 1,760,000,000 bytes, expected at most 1,073,741,824")

    def test_cyclic_groups_are_refused(self, tmp_path, monkeypatch):
        monkeypatch.setattr(hdf5, "_NAMES_MAX", 500)
        with h5py.File(tmp_path / "x.h5", "w") as file:
            for level in range(10):
                for name in "abcd":
                    file[f"{level}/{name}"] = file.require_group(str(level + 1))
        self.refused(tmp_path / "x.h5", "it has 500 names of groups and datasets or more")

    def test_a_soft_link_through_another_file_is_refused_and_that_file_is_not_opened(self, tmp_path):
        one(tmp_path / "secret.h5")
        with h5py.File(tmp_path / "x.h5", "w") as file:
            file["a"] = h5py.ExternalLink("secret.h5", "/")
            file["b"] = h5py.SoftLink("/a/x")
        with pytest.raises(ConversionError) as caught:
            Hdf5File(tmp_path / "x.h5")
        assert [problem.partition(" ")[0] for problem in caught.value.problems] == ["a", "b"]

    def test_cyclic_soft_links_are_refused(self, tmp_path):
        with h5py.File(tmp_path / "x.h5", "w") as file:
            file["a"], file["b"] = h5py.SoftLink("/b"), h5py.SoftLink("a")
        self.refused(tmp_path / "x.h5", "a is a link out of the file")

    def test_a_group_that_contains_itself_is_listed_once(self, tmp_path):
        with h5py.File(tmp_path / "x.h5", "w") as file:
            file["a/x"] = np.arange(3)
            file["a/again"] = file["a"]
            file["a/root"] = file["/"]
        with Hdf5File(tmp_path / "x.h5") as file:
            assert list(file.arrays) == ["a/x"]

    def test_a_very_deep_group_is_refused(self, tmp_path):
        with h5py.File(tmp_path / "x.h5", "w") as file:
            file["/".join("a" * 40)] = 1
        self.refused(tmp_path / "x.h5", "nested in 17 groups")

    def test_python_objects_and_references_are_not_read(self, tmp_path):
        with h5py.File(tmp_path / "x.h5", "w") as file:
            ragged = file.create_dataset("ragged", (2,), h5py.vlen_dtype(np.int32))
            ragged[0] = ragged[1] = [1, 2, 3]
            file.create_dataset("pointer", data=file.ref, dtype=h5py.ref_dtype)
        with Hdf5File(tmp_path / "x.h5") as file:
            for name in ("ragged", "pointer"):
                assert not file.arrays[name].numeric
                with pytest.raises(ConversionError, match=f"{name} has dtype object"):
                    file.value(name)
