"""Archives give their files in order, without files on disk, and hostile members are refused."""

from __future__ import annotations

import gzip
import io
import lzma
import tarfile
import tracemalloc
import zipfile

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from raw.xz import blocked

from datasets_rl.errors import ConversionError
from datasets_rl.read import archive, xz
from datasets_rl.read.archive import Limits, members, members_of_chunk
from datasets_rl.read.npz import NpzFile

FILES = {
    "a.npy": b"x" * 1000,
    "folder/b.npy": bytes(range(256)) * 30,
    "empty": b"",
    "block": b"y" * 512,
    "long/" * 40 + "name": b"z",
    "ümläut": b"u",
}
SQUEEZE = {"tar": bytes, "tar.gz": gzip.compress, "tar.xz": lzma.compress}
FORMATS = {"ustar": tarfile.USTAR_FORMAT, "gnu": tarfile.GNU_FORMAT, "pax": tarfile.PAX_FORMAT}


def tarred(files=FILES, form=tarfile.PAX_FORMAT, extra=()):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=form) as tar:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
        for entry in extra:
            tar.addfile(entry, io.BytesIO(bytes(entry.size)))
    return out.getvalue()


def zipped(files=FILES, method=zipfile.ZIP_DEFLATED):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as made:
        for name, content in files.items():
            made.writestr(name, content)
    return out.getvalue()


def read(data, **options):
    return {member.name: bytes(member.read()) for member in members(io.BytesIO(data), "x", **options)}


def faults(data, **options):
    with pytest.raises(ConversionError) as caught:
        read(data, **options)
    return caught.value.problems


@pytest.mark.parametrize("form", FORMATS.values(), ids=FORMATS)
@pytest.mark.parametrize("squeeze", SQUEEZE.values(), ids=SQUEEZE)
def test_tar_reads_as_written(tmp_path, squeeze, form):
    data = squeeze(tarred(form=form))
    (tmp_path / "x.tar").write_bytes(data)

    assert read(data) == FILES
    assert list(read(data)) == list(FILES)
    assert {member.name: member.size for member in members(tmp_path / "x.tar")} == {
        name: len(content) for name, content in FILES.items()
    }


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_zip_reads_as_written(method):
    data = zipped(FILES | {"folder/": b""}, method)

    assert read(data) == FILES


def test_the_header_of_old_writers_is_read():
    data = bytearray(tarred({"a": b"hello"}, tarfile.USTAR_FORMAT))
    data[257:265] = bytes(8)
    data[148:156] = b"%06o\0 " % (sum(data[:148]) + sum(data[156:512]) + 256)

    assert read(bytes(data)) == {"a": b"hello"}


def test_members_may_be_read_in_parts_or_skipped():
    found = {}
    for member in members(io.BytesIO(lzma.compress(tarred())), "x"):
        if member.name == "folder/b.npy":
            found[member.name] = member.stream.read(7)
    assert found == {"folder/b.npy": bytes(range(7))}


def test_streams_of_xz_may_follow_each_other():
    data = tarred()

    assert read(lzma.compress(data[:700]) + bytes(8) + lzma.compress(data[700:])) == FILES


def test_reading_a_skipped_member_is_an_error():
    first, *_ = members(io.BytesIO(tarred()), "x")

    with pytest.raises(ValueError, match="a member can be read only until"):
        first.read()


def test_folders_are_skipped():
    folder = tarfile.TarInfo("folder")
    folder.type = tarfile.DIRTYPE

    assert read(tarred({"a": b"1"}, extra=[folder])) == {"a": b"1"}


def test_an_npz_inside_a_tar_is_read():
    out = io.BytesIO()
    np.savez_compressed(out, x=np.arange(5))
    member = next(members(io.BytesIO(lzma.compress(tarred({"episode.npz": out.getvalue()}))), "x"))

    with NpzFile(io.BytesIO(member.read()), member.name) as file:
        np.testing.assert_array_equal(file.read("x"), np.arange(5))


FOUL_NAMES = ["../a", "a/../../b", "/etc/passwd", "..\\a", "C:\\a", "C:/a", "\\a"]


@pytest.mark.parametrize("name", FOUL_NAMES)
def test_names_outside_of_the_archive_are_refused(name):
    assert "leads out of the archive" in faults(tarred({name: b""}))[0]
    assert "leads out of the archive" in faults(zipped({name: b""}))[0]


@pytest.mark.parametrize("squeeze", SQUEEZE.values(), ids=SQUEEZE)
def test_an_archive_of_the_current_folder_is_read(tmp_path, squeeze):
    """What ``tar -cJf x.tar.xz .`` packs: the folder ``./`` first, and ``./`` before every name."""
    for name, content in {"maze/a.npy": b"1", "b.npy": b"22"}.items():
        (tmp_path / "folder" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "folder" / name).write_bytes(content)
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        tar.add(tmp_path / "folder", "./")
        assert tar.getnames()[0] == "./"

    assert read(squeeze(out.getvalue())) == {"maze/a.npy": b"1", "b.npy": b"22"}


@pytest.mark.parametrize("name", [".", "", "./.", "./../b", "/."])
def test_a_file_without_a_name_or_outside_is_refused(name):
    assert len(faults(tarred({name: b""}))) == 1


def test_two_spellings_of_one_path_are_a_duplicate():
    assert faults(tarred({"./a": b"1", "a": b"2"})) == ("a is duplicated",)
    assert faults(zipped({"./a": b"1", "a": b"2"})) == ("a is duplicated",)


def test_all_invalid_names_of_a_zip_are_reported_at_once():
    assert len(faults(zipped(dict.fromkeys(FOUL_NAMES, b"") | {"good": b""}))) == len(FOUL_NAMES)


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        (tarfile.SYMTYPE, "a symbolic link"),
        (tarfile.LNKTYPE, "a hard link"),
        (tarfile.CHRTYPE, "a device"),
        (tarfile.BLKTYPE, "a device"),
        (tarfile.FIFOTYPE, "a pipe"),
        (tarfile.GNUTYPE_SPARSE, "sparse"),
    ],
)
def test_members_that_are_not_plain_files_are_refused(kind, says):
    entry = tarfile.TarInfo("odd")
    entry.type, entry.linkname = kind, "/etc/passwd"

    assert faults(tarred(extra=[entry])) == (f"odd is {says}, expected a plain file",)


def test_a_duplicate_name_is_refused():
    entry = tarfile.TarInfo("a.npy")

    assert faults(tarred(extra=[entry])) == ("a.npy is duplicated",)


def test_members_before_an_invalid_one_are_given():
    found = []
    with pytest.raises(ConversionError):
        found.extend(member.name for member in members(io.BytesIO(tarred({"a": b"1", "../b": b""})), "x"))
    reading = members(io.BytesIO(tarred({"a": b"1", "../b": b""})), "x")

    assert next(reading).name == "a"


def test_a_damaged_header_is_refused():
    data = bytearray(tarred({"a": b"1" * 600, "b": b"2"}, tarfile.USTAR_FORMAT))
    data[512 + 1024 + 3] ^= 1

    assert faults(bytes(data)) == ("byte 1,536 of the archive is not the beginning of a member",)


def test_data_after_the_end_is_refused():
    assert faults(tarred() + b"x" * 600) == ("more data follows the end of the archive",)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "empty"),
        (b"<html>", "web page"),
        (b"version https://git-lfs.github.com/spec/v1\n", "git-LFS"),
        (b"7z\xbc\xaf\x27\x1c", "is not a tar"),
        (bytes(1024), "is not a tar"),
        (gzip.compress(b"hello" * 300, mtime=0), "is not the beginning of a member"),
        (lzma.compress(b"hello"), "is truncated at byte 5"),
    ],
    ids=["nothing", "html", "lfs", "7z", "zeros", "gzip", "xz"],  # gzip data has a timestamp
)
def test_data_that_is_not_an_archive_is_reported(data, says):
    assert says in faults(data)[0]


@pytest.mark.first(1)
@pytest.mark.parametrize("squeeze", [gzip.compress, lzma.compress], ids=["gz", "xz"])
def test_a_decompression_bomb_is_refused_without_memory_for_it(squeeze, monkeypatch):
    monkeypatch.setattr(archive, "_GRACE", 1 << 20)
    entry = tarfile.TarInfo("bomb")
    entry.size = 40_000_000
    data = squeeze(tarred({}, extra=[entry]))
    tracemalloc.start()
    with pytest.raises(ConversionError, match="expected at most 100 times as many"):
        for _ in members(io.BytesIO(data), "x", limits=Limits(ratio=100)):
            pass
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert peak < 10_000_000


def test_an_archive_beyond_its_limits_is_refused():
    assert "expected at most 1,000" in faults(tarred(), limits=Limits(size=1000))[0]
    assert "expected at most 3" in faults(tarred(), limits=Limits(files=3))[0]
    assert len(faults(zipped(), limits=Limits(size=1000, files=3))) == 2


def test_huge_names_and_attributes_are_refused_unread():
    for kind in (tarfile.GNUTYPE_LONGNAME, tarfile.XHDTYPE):
        entry = tarfile.TarInfo("x")
        entry.type, entry.size = kind, 8 << 30
        assert "header has 8,589,934,592 bytes" in faults(entry.tobuf(tarfile.GNU_FORMAT) + bytes(1024))[0]


def attributes(text):
    entry = tarfile.TarInfo("x")
    entry.type, entry.size = tarfile.XHDTYPE, len(text)
    return entry.tobuf(tarfile.USTAR_FORMAT) + text.ljust(512, b"\0") + tarred({"a": b"1"}, tarfile.USTAR_FORMAT)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (b"13 path=../b\n", "'../b' leads out"),
        (b"14 size=90000\n", "is truncated at byte"),
        (b"11 size=-9\n", "expected a number"),
        (b"99 path=a\n", "are damaged"),
        (b"0 path=a\n", "are damaged"),
        (b"nonsense", "are damaged"),
        (b"22 GNU.sparse.major=1\n", "is sparse"),
    ],
)
def test_inconsistent_attributes_are_refused(text, says):
    with pytest.raises(ConversionError, match=says):
        read(attributes(text))


def test_an_xz_header_that_requires_much_memory_is_refused(monkeypatch):
    monkeypatch.setattr(xz, "_MEMORY", 1 << 20)

    assert "Memory usage limit" in faults(lzma.compress(tarred()))[0]


@settings(max_examples=40, deadline=None)
@given(st.dictionaries(st.from_regex(r"[a-z]{1,8}(/[a-z]{1,120}){0,3}", fullmatch=True), st.binary(max_size=3000)))
def test_any_files_read_as_written(files):
    files = {
        name: content for name, content in files.items() if not any(other.startswith(f"{name}/") for other in files)
    }

    assert read(tarred(files)) == files if files else True
    assert read(zipped(files)) == files


@given(st.binary(max_size=2000), st.integers(1, 700), st.integers(0, 3), st.integers(0, 2))
@settings(max_examples=60, deadline=None)
def test_an_xz_file_is_inflated_from_any_of_its_blocks(data, size, streams, zeros):
    made = blocked(data, size) if data else lzma.compress(b"")
    assert lzma.decompress(made) == data  # the standard library can read the combined stream
    whole = made + bytes(4 * zeros) + b"".join(lzma.compress(data[:number]) for number in range(streams))
    wanted = data + b"".join(data[:number] for number in range(streams))

    file = io.BytesIO(whole)
    found = xz.blocks(file, "x")

    assert sum(block.size for block in found) == len(wanted)
    for number, block in enumerate(found):
        assert xz.open_blocks(file, found[number:], "x").read() == wanted[block.at :]
        assert xz.open_blocks(file, [block], "x").read() == wanted[block.at : block.at + block.size]


@pytest.mark.parametrize("damage", ["cut", "footer", "index", "block"])
def test_an_xz_file_with_damage_is_refused(damage):
    data = bytearray(blocked(bytes(range(256)) * 8, 500))
    data = data[:-20] if damage == "cut" else data
    place = {"footer": -4, "index": -18, "block": 40, "cut": 0}[damage]
    data[place] ^= 1 if damage != "cut" else 0

    def read_all():
        file = io.BytesIO(bytes(data))
        return xz.open_blocks(file, xz.blocks(file, "x"), "x").read()

    with pytest.raises(ConversionError, match="xz stream"):
        read_all()


@pytest.mark.parametrize("zeros", [xz._BUFFER_BYTES - 4, xz._BUFFER_BYTES, 4 * xz._BUFFER_BYTES + 8])
def test_zeros_after_an_xz_file_are_skipped_in_few_reads(zeros):
    """With four bytes per read, a gigabyte of zeros would take an hour."""
    reads = []

    class Counted(io.BytesIO):
        def readinto(self, buffer):
            reads.append(len(buffer))
            return super().readinto(buffer)

    found = xz.blocks(Counted(blocked(b"x" * 100, 60) + bytes(zeros)), "padded.xz")

    assert [block.size for block in found] == [60, 40]
    assert len(reads) < 500


def test_an_index_that_does_not_match_its_blocks_is_refused():
    """The sizes in the index are compared with the decompressed data."""
    one, other = (blocked(bytes(number % 7 for number in range(size)), 400) for size in (1200, 1201))
    back = 4 * (int.from_bytes(one[-8:-4], "little") + 1) + 12
    forged = one[:-back] + other[-back:]

    file = io.BytesIO(forged)
    with pytest.raises(ConversionError, match="xz stream"):
        xz.open_blocks(file, xz.blocks(file, "x"), "x").read()


PACKED = {
    "tar": bytes,
    "xz of one block": lzma.compress,
    "xz of blocks": lambda data: blocked(data, 1536),
    "xz of odd blocks": lambda data: blocked(data, 1111),
    "xz of streams": lambda data: b"".join(lzma.compress(data[at : at + 2048]) for at in range(0, len(data), 2048)),
    "gz": gzip.compress,
}


@pytest.mark.first(1, of=("pack", "parts"))
@pytest.mark.parametrize("form", FORMATS.values(), ids=FORMATS)
@pytest.mark.parametrize("pack", PACKED.values(), ids=PACKED)
@pytest.mark.parametrize("parts", [1, 3, 100, *(pytest.param(parts, marks=pytest.mark.slow) for parts in (2, 7))])
def test_the_parts_of_an_archive_have_all_its_files_in_order(tmp_path, pack, form, parts):
    files = {f"game/{number}": bytes([number]) * (number * 97 % 3000) for number in range(25)}
    path = tmp_path / "x"
    path.write_bytes(pack(tarred(files, form)))

    found = [{one.name: bytes(one.read()) for one in members_of_chunk(path, part, parts)} for part in range(parts)]

    assert {name: content for part in found for name, content in part.items()} == files
    assert [name for part in found for name in part] == list(files)


def test_parts_begin_where_blocks_begin(tmp_path):
    """No block is decompressed twice; a single block belongs to the first part.

    A file takes 7 records of 512 bytes, and the parts begin at records 0, 40, 80 and 120.
    """
    files = {f"{number}": bytes([number]) * 3000 for number in range(20)}
    path = tmp_path / "x"
    path.write_bytes(blocked(tarred(files), 4096))
    assert [len(list(members_of_chunk(path, part, 4))) for part in range(4)] == [6, 6, 6, 2]
    path.write_bytes(lzma.compress(tarred(files)))
    assert [len(list(members_of_chunk(path, part, 4))) for part in range(4)] == [20, 0, 0, 0]


def test_an_uncompressed_archive_is_skipped_without_reading_it(tmp_path):
    path = tmp_path / "x"
    path.write_bytes(tarred({f"{number}": bytes(1 << 20) for number in range(8)}))
    with path.open("rb") as file:
        read_bytes = 0

        class Counting(io.RawIOBase):
            def readinto(self, buffer):
                nonlocal read_bytes
                read_bytes += (got := file.readinto(buffer))
                return got

            def seekable(self):
                return True

            def seek(self, offset, whence=0):
                return file.seek(offset, whence)

        assert len(list(members(Counting(), "x"))) == 8
    assert read_bytes < 100_000


@pytest.mark.parametrize("pack", [bytes, lambda data: blocked(data, 4096)], ids=["tar", "xz"])
@pytest.mark.parametrize("parts", [1, 5])
def test_a_truncated_archive_is_refused_for_any_division_into_parts(tmp_path, pack, parts):
    """The end of the archive is missing, and the truncation is at the end of a file."""
    files = {f"{number}": bytes([number + 1]) * 5120 for number in range(9)}
    path = tmp_path / "x"
    path.write_bytes(pack(tarred(files)[: 9 * (512 + 5120)]))

    with pytest.raises(ConversionError, match="truncated"):
        _ = [one.name for part in range(parts) for one in members_of_chunk(path, part, parts)]


def test_parts_with_an_implausible_compression_ratio_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(archive, "_GRACE", 0)
    path = tmp_path / "x"
    path.write_bytes(blocked(tarred({"x": bytes(1 << 20)}), 1 << 18))

    with pytest.raises(ConversionError, match="decompress to"):
        list(members_of_chunk(path, 0, 2, limits=Limits(ratio=2)))
