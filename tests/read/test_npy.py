"""Arrays are read from files, gzip files and zip files as NumPy wrote them, into the caller's memory."""

from __future__ import annotations

import gzip
import io
import tracemalloc
import zipfile

import numpy as np
import pytest

from datasets_rl.errors import ConversionError
from datasets_rl.read import gz
from datasets_rl.read.gz import GzipNpyReader
from datasets_rl.read.npy import NpyReader
from datasets_rl.read.npz import NpzFile
from datasets_rl.read.zips import ZipReader

ARRAY = np.random.default_rng(0).integers(0, 255, (100, 7, 3), np.uint8)
ARRAYS = {
    "bytes": ARRAY,
    "floats": ARRAY.astype("<f4"),
    "other order": ARRAY.astype(">f8"),
    "columns first": np.asfortranarray(ARRAY[:, :, 0]),
    "a number": np.array(3.5),
    "none": np.zeros((0, 3)),
    "text": np.array(["a", "bcd"]),
    "strings": np.array([b"a", b"bcd"]),
    "booleans": ARRAY > 7,
    "complex": ARRAY[0].astype(np.complex64),
}


def npy(array, **options):
    out = io.BytesIO()
    np.save(out, array, **options)
    return out.getvalue()


def claiming(shape):
    """Return the header of an array of bytes, without data."""
    out = io.BytesIO()
    np.lib.format.write_array_header_1_0(out, {"descr": "|u1", "fortran_order": False, "shape": shape})
    return out.getvalue()


def reader(data, most=1 << 30):
    return NpyReader(io.BytesIO(data), "x.npy", most=most)


def zipped(path, array=ARRAY):
    path.write_bytes(gzip.compress(npy(array), 1))
    return path


def one(array, wanted):
    np.testing.assert_array_equal(array, wanted)
    assert array.dtype == wanted.dtype.newbyteorder("=")


class TestNpy:
    @pytest.mark.parametrize("array", ARRAYS.values(), ids=ARRAYS)
    def test_it_reads_as_written(self, array):
        one(reader(npy(array)).read(), array)

    @pytest.mark.parametrize("rows", [1, 7, 100, 1000])
    @pytest.mark.parametrize("name", ["bytes", "other order", "columns first"])
    def test_blocks_join_to_the_array(self, name, rows):
        blocks = list(reader(npy(ARRAYS[name])).blocks(rows))

        one(np.concatenate(blocks), ARRAYS[name])
        assert {len(block) for block in blocks[:-1]} <= {rows}

    def test_rows_are_written_to_the_buffer_of_the_caller(self):
        out = np.zeros((120, 7, 3), np.uint8)
        source = reader(npy(ARRAY))
        source.read_into(out[10:50])
        source.read_into(out[50:110])

        np.testing.assert_array_equal(out[10:110], ARRAY)
        assert not out[:10].any()
        assert not out[110:].any()

    def test_the_last_row_is_given_after_the_checksum_is_verified(self, tmp_path):
        with zipfile.ZipFile(tmp_path / "x.npz", "w", zipfile.ZIP_STORED) as file:
            file.writestr("x.npy", npy(ARRAY))
        with zipfile.ZipFile(tmp_path / "x.npz") as file:
            crc = file.getinfo("x.npy").CRC.to_bytes(4, "little")
        (tmp_path / "x.npz").write_bytes((tmp_path / "x.npz").read_bytes().replace(crc, bytes(4)))

        with NpzFile(tmp_path / "x.npz") as file:
            rows = file.open("x")
            out = np.empty((50, 7, 3), np.uint8)
            rows.read_into(out)
            np.testing.assert_array_equal(out, ARRAY[:50])
            with pytest.raises(ConversionError, match="checksum is wrong"):
                rows.read_into(out)
            with pytest.raises(ConversionError, match="checksum is wrong"):
                next(file.blocks("x", 1000))

    def test_an_error_with_thousands_of_members_names_a_few_and_counts_the_rest(self, tmp_path):
        for name, content in {"good": npy(ARRAY[0]), "bad": b"nonsense"}.items():
            with zipfile.ZipFile(tmp_path / name, "w") as file:
                for number in range(3000):
                    file.writestr(f"{number}.npy", content)

        with NpzFile(tmp_path / "good") as file, pytest.raises(ConversionError) as caught:
            file.require(["rewards"])
        assert str(caught.value).startswith("good cannot be converted: it has no array rewards, only 0, 1, 2, ")
        assert "19 and 2,980 more" in str(caught.value)
        with pytest.raises(ConversionError) as caught:
            NpzFile(tmp_path / "bad")
        assert len(caught.value.problems) == 21
        assert caught.value.problems[-1] == "and 2,980 more"

    def test_a_flipped_bit_in_the_name_of_a_member_is_refused(self, tmp_path):
        np.savez(tmp_path / "x.npz", rewards=ARRAY)
        data = (tmp_path / "x.npz").read_bytes()
        first, last = data.index(b"rewards.npy"), data.rindex(b"rewards.npy")
        for at in (first, last):
            (tmp_path / "x.npz").write_bytes(data[:at] + b"s" + data[at + 1 :])
            with pytest.raises(ConversionError, match="the local header has the name"):
                NpzFile(tmp_path / "x.npz")

    def test_reading_more_rows_than_exist_is_refused(self):
        with pytest.raises(ConversionError, match="it has 100 rows, expected 101"):
            reader(npy(ARRAY)).read_into(np.empty((101, 7, 3), np.uint8))

    @pytest.mark.parametrize(
        "out", [np.empty((3, 7, 2), np.uint8), np.empty((3, 7, 3)), np.empty((3, 3, 7), np.uint8).transpose(0, 2, 1)]
    )
    def test_a_buffer_that_does_not_fit_is_a_value_error(self, out):
        with pytest.raises(ValueError, match=r"\[rows, 7, 3\] of uint8, contiguous"):
            reader(npy(ARRAY)).read_into(out)

    def test_bytes_after_the_array_are_refused(self):
        with pytest.raises(ConversionError, match="more bytes follow"):
            reader(npy(ARRAY) + b"x").read()

    def test_objects_are_reported_and_not_read(self):
        source = reader(npy(np.array([{}], object), allow_pickle=True))

        assert source.pickled
        with pytest.raises(ConversionError, match="Python objects"):
            source.read()

    @pytest.mark.parametrize("array", [np.zeros(2, "M8[s]"), np.zeros(2, [("a", "f4")]), np.zeros(2, "V3")])
    def test_other_types_are_refused(self, array):
        with pytest.raises(ConversionError, match="expected numbers or text"):
            reader(npy(array))

    @pytest.mark.parametrize(
        ("data", "says"),
        [
            (b"", "empty"),
            (b"<?xml version", "web page"),
            (b"version https://git-lfs.github.com/spec/v1", "git-LFS"),
            (b"\x93NUMPY\x09\x00\x00\x00\x00\x00", "format is"),
            (b"\x93NUMPY\x02\x00\xff\xff\xff\xff", "header has 4,294,967,295"),
            (b"\x93NUMPY\x01\x00\x10\x00" + b"x" * 16, "header is damaged"),
            (npy(ARRAY).replace(b"(100, 7, 3)", b"(10**9, 7,)"), "header is damaged"),
            (npy(ARRAY).replace(b"(100, 7, 3)", b"(-10, 7, 3)"), "declares"),
            (npy(ARRAY).replace(b"'|u1'", b"'|O' "), "Python objects"),
        ],
    )
    def test_data_that_is_not_an_array_is_reported(self, data, says):
        with pytest.raises(ConversionError, match=says):
            reader(data).read()

    def test_a_declared_size_above_that_of_the_file_is_refused_before_allocation(self):
        with pytest.raises(ConversionError, match=r"declares \[10000000000000, 3\] of uint8, 30,000,000,000,000 bytes"):
            reader(claiming((10**13, 3)))
        with pytest.raises(
            ConversionError, match=r"declares \[100, 7, 3\] of uint8, 2,100 bytes, but the file can have at most 2,099"
        ):
            reader(npy(ARRAY), most=2099)


class TestGzip:
    @pytest.mark.parametrize("array", ARRAYS.values(), ids=ARRAYS)
    def test_it_reads_as_written(self, tmp_path, array):
        with GzipNpyReader(zipped(tmp_path / "x.gz", array)) as source:
            one(source.read(), array)

    def test_several_streams_are_one(self, tmp_path):
        data = npy(ARRAY)
        (tmp_path / "x.gz").write_bytes(gzip.compress(data[:500]) + gzip.compress(data[500:]))
        with GzipNpyReader(tmp_path / "x.gz") as source:
            one(source.read(), ARRAY)

    @pytest.mark.parametrize("end", range(1, 9))
    def test_a_wrong_checksum_or_length_is_refused(self, tmp_path, end):
        path = zipped(tmp_path / "x.gz")
        data = bytearray(path.read_bytes())
        data[-end] ^= 1
        path.write_bytes(data)

        with pytest.raises(ConversionError, match="damaged") as caught, GzipNpyReader(path) as source:
            source.read()
        assert "force=True" in caught.value.hint

    def test_data_that_is_not_gzip_is_reported(self, tmp_path):
        (tmp_path / "x.gz").write_bytes(b"<?xml version='1.0'?><Error><Code>AccessDenied")

        with pytest.raises(ConversionError, match="web page"):
            GzipNpyReader(tmp_path / "x.gz")

    def test_an_impossible_compression_ratio_is_refused(self, tmp_path):
        path = tmp_path / "x.gz"
        path.write_bytes(gzip.compress(claiming((10**10,))))

        with pytest.raises(ConversionError, match=r"declares \[10000000000\]"):
            GzipNpyReader(path)

    @pytest.mark.slow
    def test_rows_reach_the_caller_without_a_copy_of_the_array(self, tmp_path):
        array = np.resize(np.arange(251, dtype=np.uint8), (40, 1000, 1000))
        path = zipped(tmp_path / "x.gz", array)
        out = np.empty_like(array)
        tracemalloc.start()
        with GzipNpyReader(path) as source:
            source.read_into(out)
            peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()

        np.testing.assert_array_equal(out, array)
        assert peak < 3_000_000

    def test_without_isal_the_standard_library_is_used(self, tmp_path, monkeypatch):
        monkeypatch.setattr(gz, "GzipFile", gzip.GzipFile)
        path = zipped(tmp_path / "x.gz")
        with GzipNpyReader(path) as source:
            one(source.read(), ARRAY)
        path.write_bytes(path.read_bytes()[:-9])

        with pytest.raises(ConversionError, match="truncated"), GzipNpyReader(path) as source:
            source.read()


@pytest.fixture(params=["savez", "savez_compressed"])
def npz(request, tmp_path):
    path = tmp_path / "x.npz"
    getattr(np, request.param)(path, **{name.replace(" ", "_"): array for name, array in ARRAYS.items()})
    return path


class TestNpz:
    def test_members_read_as_written(self, npz):
        with NpzFile(npz) as file:
            assert {name: source.shape for name, source in file.arrays.items()} == {
                name.replace(" ", "_"): array.shape for name, array in ARRAYS.items()
            }
            for name, array in ARRAYS.items():
                one(file.read(name.replace(" ", "_")), array)

    def test_members_may_be_read_alternately(self, npz):
        with NpzFile(npz) as file:
            pairs = list(zip(file.blocks("bytes", 9), file.blocks("floats", 9), strict=True))

        np.testing.assert_array_equal(np.concatenate([one for one, _ in pairs]), ARRAY)
        np.testing.assert_array_equal(np.concatenate([other for _, other in pairs]), ARRAY)

    def test_a_stream_can_be_read(self, npz):
        with NpzFile(io.BytesIO(npz.read_bytes()), "from a tar") as file:
            one(file.read("bytes"), ARRAY)

    def test_all_missing_members_are_named(self, npz):
        with (
            NpzFile(npz) as file,
            pytest.raises(ConversionError, match="no array image, reward, only bytes, floats"),
        ):
            file.require(["bytes", "image", "reward"])

    def test_memory_does_not_grow_with_the_array(self, tmp_path):
        np.savez_compressed(tmp_path / "x.npz", x=np.zeros((60, 1000, 1000), np.uint8))
        tracemalloc.start()
        with NpzFile(tmp_path / "x.npz") as file:
            for _ in file.blocks("x", 1):
                pass
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()

        assert peak < 6_000_000

    def test_all_members_that_are_not_arrays_are_reported(self, tmp_path):
        with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
            archive.writestr("a.npy", b"text")
            archive.writestr("b.npy", npy(ARRAY))
            archive.writestr("c.npy", npy(np.zeros(9))[:-80].replace(b"(9,)", b"(99,)"))

        with pytest.raises(ConversionError) as caught:
            NpzFile(tmp_path / "x.npz")
        assert [problem[:6] for problem in caught.value.problems] == ["a.npy:", "c.npy:"]

    def test_objects_are_not_read(self, tmp_path):
        np.savez(tmp_path / "x.npz", x=np.array([{}], object))
        with NpzFile(tmp_path / "x.npz") as file, pytest.raises(ConversionError, match="Python objects"):
            file.read("x")


class TestZip:
    def test_all_invalid_members_are_reported_at_once(self, tmp_path):
        path = tmp_path / "x.zip"
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("twice", b"1")
            with pytest.warns(UserWarning, match="Duplicate"):
                archive.writestr("twice", b"2")
            archive.writestr("lzma", b"3", zipfile.ZIP_LZMA)
            archive.writestr("swollen", bytes(5000), zipfile.ZIP_DEFLATED)
            archive.infolist()[-1].file_size = 10**9
        with pytest.raises(ConversionError) as caught:
            ZipReader(path)

        assert [problem.split(", ")[0] for problem in caught.value.problems] == [
            "twice is duplicated",
            "lzma is compressed with method 14",
            "swollen declares 1,000,000,000 bytes",
        ]

    def test_an_encrypted_member_is_refused(self, tmp_path):
        with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
            archive.writestr("secret", b"1")
        data = bytearray((tmp_path / "x.zip").read_bytes())
        data[data.index(b"PK\x01\x02") + 8] |= 1

        with pytest.raises(ConversionError, match="secret is encrypted"):
            ZipReader(io.BytesIO(data))

    def test_a_member_at_another_offset_is_refused(self, tmp_path):
        with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
            archive.writestr("a", b"1" * 50)
        data = bytearray((tmp_path / "x.zip").read_bytes())
        data[data.index(b"PK\x01\x02") + 42] += 3
        with ZipReader(io.BytesIO(data)) as archive, pytest.raises(ConversionError, match="not at the offset"):
            archive.open("a")
