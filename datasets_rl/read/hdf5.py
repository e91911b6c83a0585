"""Reader of HDF5 files: lazy, in bounded memory, on every core, and safe for untrusted files.

The HDF5 library decompresses gzip chunks one after another on a single core, under a lock. Here the library only locates the
stored bytes of a chunk. zlib decompresses several chunks at once in threads, because zlib releases the interpreter's
lock.

A column is split into chunks along the rows, and often along the other axes too. A column is read by bands, which are rows of
chunks:

            columns 0-1   2-3    4-5   ...  16
    rows     0  +-------+------+------+   +--+
    band 0      | chunk |      |      |   |  |
         15625  +-------+------+------+   +--+
    band 1      |       |      |      |   |  |

A pass over the file therefore decompresses every chunk once, whatever the size of the requested blocks.
"""

from __future__ import annotations

import itertools
import math
import os
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from h5py._objects import phil
from numpy.typing import NDArray
from typing_extensions import Self

from datasets_rl.errors import ConversionError
from datasets_rl.libraries import raise_fault_of_code
from datasets_rl.read.streams import AGAIN, COMPRESSION_MAX, first_problems, unexpected_format
from datasets_rl.read.threads import core_count

MAGIC = b"\x89HDF\r\n\x1a\n"
_JOB_BYTES = (
    1 << 20
)  # with smaller jobs the threads wait for each other, and with larger jobs the last thread works alone
_THREADS_MAX = 8
_DEPTH_MAX = 16
_NAMES_MAX = 100_000  # groups that link to each other have infinitely many names
_BAND_MAX_BYTES = 1 << 30
_UNWRITTEN_MAX_BYTES = 64 << 20  # bytes of fill values that a file can declare without storing anything
CHUNK_GRACE = 64 << 20
"""Size of a chunk that is always accepted, however few rows the dataset has."""
LIBRARY_ERRORS = (OSError, RuntimeError, KeyError, ValueError, TypeError)
"""Exceptions that h5py raises for a damaged file: a TypeError is about a type that NumPy does not have, or about a
wrong call."""

_Job = Callable[[], None]


class _DamagedError(Exception):
    """Chunks that cannot be decoded. The arguments are a sentence for each chunk."""


@dataclass(frozen=True, slots=True)
class Block:
    """Rows [start, stop) of several columns."""

    start: int
    stop: int
    columns: Mapping[str, NDArray[np.generic]]
    """Values, [stop - start, ...], or with the first row of the next block for `overlap`, [stop - start + 1, ...]."""


class Hdf5Array:
    """Dataset of a file: name, shape, dtype and storage, which are known without reading the values."""

    def __init__(self, name: str, dataset: h5py.Dataset) -> None:
        self.name = name
        """Path from the root, with slashes: ``infos/qpos``."""
        self.shape: tuple[int, ...] = tuple(dataset.shape or ())
        self.stored: np.dtype[Any] = np.dtype(np.dtype(dataset.dtype).str)
        self.dtype: np.dtype[Any] = self.stored.newbyteorder("=")
        """Dtype in the byte order of this machine."""
        self.text = h5py.check_string_dtype(dataset.dtype) is not None
        self.chunks: tuple[int, ...] | None = dataset.chunks
        self.filters = _filter_ids(dataset)
        """Ids of the filters, in the order of application, or None if only the HDF5 library can undo the filters."""
        self.dataset = dataset
        self.unwritten = _unwritten_chunk_count(self)
        """Number of chunks that were never written and read as the fill value. An unchunked dataset counts as a chunk."""
        if self.unwritten:
            self.filters = None  # only the library knows the fill value

    @property
    def numeric(self) -> bool:
        """Whether the dataset holds booleans, integers or floats."""
        return self.dtype.kind in "biuf"

    @property
    def row_bytes(self) -> int:
        """Number of bytes of a row."""
        return self.dtype.itemsize * math.prod(self.shape[1:])

    @property
    def band_rows(self) -> int:
        """Number of rows of a band of chunks, or 1 if the dataset is not chunked."""
        return self.chunks[0] if self.chunks else 1

    def problems(self) -> Iterator[str]:
        """Yield the errors of the dataset: data in other files, or far less data than the shape declares."""
        dataset = self.dataset
        if dataset.is_virtual or dataset.external:
            yield f"{self.name} stores its data in other files, expected data in this file"
        elif dataset.shape is not None and 0 not in self.shape:
            yield from self._storage_problems()

    def _storage_problems(self) -> Iterator[str]:
        stored = self.dataset.id.get_storage_size()
        item = int(self.dataset.id.get_type().get_size())
        declared = item * math.prod(self.shape)
        most = stored * (COMPRESSION_MAX if self.chunks else 1)
        if declared > (max(most, _UNWRITTEN_MAX_BYTES) if self.unwritten else most):
            yield f"{self.name} declares {list(self.shape)}, {declared:,} bytes, but stores {stored:,}"
        elif self.unwritten < 0:
            yield f"{self.name} declares {list(self.shape)}, but stores {-self.unwritten:,} chunks more than that has"
        elif (
            self.unwritten and self.dataset.id.get_create_plist().fill_value_defined() == h5py.h5d.FILL_VALUE_UNDEFINED
        ):
            yield f"{self.name} has {self.unwritten:,} chunks that were never written, and no fill value for such chunks"
        yield from chunk_problems(self.name, self.shape, self.chunks, item)


class Hdf5File:
    """Open HDF5 file. A context manager.

    Only data in the file itself is read: links to other files, data in other files, and Python objects raise an error.
    A soft link within the file gives the target another name. Chunks that were never written have the fill value, as
    HDF5 defines the value.

    Args:
        path: The file.
        threads: Number of chunks that are decompressed at once, by default a chunk for each core, at most 8.
        group: Group of the datasets that are opened, by default the root. With None, `enter` opens group after group,
            for files with thousands of groups.

    Raises:
        ConversionError: If the file is not an HDF5 file, is truncated, or refers to other files. The error names every
            problem.
    """

    def __init__(self, path: Path | str, *, threads: int | None = None, group: str | None = "") -> None:
        self.path = Path(path)
        _check_magic(self.path)
        with library_errors(self.path.name):
            # Raw files are never written again, and network file systems often have no locks.
            self._file = h5py.File(self.path, "r", rdcc_nbytes=0, locking=False)
        self._pool = ThreadPoolExecutor(threads or min(core_count(), _THREADS_MAX), thread_name_prefix="inflate")
        try:
            self.arrays: Mapping[str, Hdf5Array] = {} if group is None else self._open(group)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *details: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop the threads, then close the file."""
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._file.close()

    def enter(self, group: str) -> None:
        """Replace `arrays` by the datasets below a group. The names begin at the root, ``data/demo_0/actions``.

        Raises:
            ConversionError: As on opening the file, or if there is no such group.
        """
        self.arrays = self._open(group)

    def members(self, group: str) -> dict[str, bool]:
        """Return the names in a group, in the order of the file, and whether each is a group, or nothing without the group.

        Raises:
            ConversionError: If the group is damaged.
        """
        with library_errors(self.path.name):
            node = _follow_path(self._file, group)
            found = {name: _follow_path(node, name) for name in node} if isinstance(node, h5py.Group) else {}
        return {name: isinstance(member, h5py.Group) for name, member in found.items()}

    def shape(self, path: str) -> tuple[int, ...] | None:
        """Return the shape of a dataset, which may be in a group that was not entered, or None if there is no such dataset.

        Raises:
            ConversionError: If the dataset is damaged.
        """
        with library_errors(self.path.name):
            node = _follow_path(self._file, path)
            return tuple(node.shape or ()) if isinstance(node, h5py.Dataset) else None

    def attribute(self, path: str, name: str) -> NDArray[np.generic] | str | float | bool | None:
        """Return an attribute of a group or dataset, or None if the attribute is missing.

        Raises:
            ConversionError: If the attribute cannot be decoded.
        """
        with library_errors(self.path.name, f"attribute {name} of {path}: "):
            node = _follow_path(self._file, path)
            raw = None if node is None else node.attrs.get(name)
            return (
                None if raw is None else _native_value(raw, text=isinstance(raw, np.ndarray) and raw.dtype.kind == "O")
            )

    def attributes(self, path: str) -> dict[str, NDArray[np.generic] | str | float | bool]:
        """Return all attributes of a group or dataset, in the order of the file, without attributes that have no value.

        Raises:
            ConversionError: If an attribute cannot be decoded.
        """
        with library_errors(self.path.name, f"attributes of {path}: "):
            node = _follow_path(self._file, path)
            names = [] if node is None else [*node.attrs]
        found = {name: self.attribute(path, name) for name in names}
        return {name: value for name, value in found.items() if value is not None}

    @property
    def unwritten(self) -> int:
        """Number of chunks of all datasets that were never written and read as fill values."""
        return sum(array.unwritten for array in self.arrays.values())

    def read(self, name: str, start: int = 0, stop: int | None = None) -> NDArray[np.generic]:
        """Read the rows [start, stop) of a numeric dataset.

        Args:
            name: The dataset.
            start: The first row.
            stop: The row after the last row, by default the end.

        Returns:
            The rows, [stop - start, ...], in the byte order of this machine.

        Raises:
            ConversionError: If a chunk cannot be decoded. The error names the rows.
        """
        array = self.arrays[name]
        cursor = _BandReader(array)
        jobs = [*cursor.advance(start, array.shape[0] if stop is None else stop)]
        if len(jobs) > 1:
            self._finish(self._submit(jobs))
        else:
            self._run(jobs)
        return cursor.rows()

    def blocks(
        self, names: Sequence[str], *, rows: int, overlap: Collection[str] = (), start: int = 0, stop: int | None = None
    ) -> Iterator[Block]:
        """Read columns of equal length in blocks. The next block is decompressed while the caller processes a block.

        Args:
            names: The columns.
            rows: Number of rows of a block.
            overlap: Columns that also include the first row of the next block, if there is a next block.
            start: The first row.
            stop: The row after the last row, by default the end.

        Yields:
            Consecutive blocks, each with separate memory.

        Raises:
            ConversionError: If chunks cannot be decoded. The error names the columns and the rows.
        """
        cursors = {name: _BandReader(self.arrays[name]) for name in names}
        total = self.arrays[names[0]].shape[0] if stop is None else stop
        ends = {name: 1 if name in overlap else 0 for name in names}

        def begin(first: int) -> list[Future[None]]:
            jobs = [c.advance(first, min(first + rows + ends[name], total)) for name, c in cursors.items()]
            return self._submit(itertools.chain.from_iterable(jobs))

        pending = begin(start)
        for first in range(start, total, rows):
            self._finish(pending)
            block = Block(first, min(first + rows, total), {name: c.rows() for name, c in cursors.items()})
            pending = begin(block.stop) if block.stop < total else []
            yield block

    def value(self, name: str) -> NDArray[np.generic] | str | float | bool:
        """Read a whole dataset of metadata: a scalar, a string, or an array.

        Raises:
            ConversionError: If the value cannot be decoded, or has Python objects.
        """
        array = self.arrays[name]
        if not (array.text or array.numeric or array.dtype.kind == "U"):
            raise ConversionError(self.path.name, [f"{name} has dtype {array.dtype}, expected numbers or text"])
        with library_errors(self.path.name, f"{name}: "):
            return _native_value(array.dataset[()], text=array.text)

    def _open(self, group: str) -> dict[str, Hdf5Array]:
        problems: list[str] = []
        arrays: dict[str, Hdf5Array] = {}
        budget = iter(range(_NAMES_MAX))
        try:
            node = _follow_path(self._file, group)
            if not isinstance(node, h5py.Group):
                raise ConversionError(self.path.name, [f"{group} is not a group of the file"], hint=AGAIN)
            for name, dataset in _find_datasets(node, f"{group}/" if group else "", (), budget, problems):
                arrays[name] = Hdf5Array(name, dataset)
                problems.extend(arrays[name].problems())
        except LIBRARY_ERRORS as error:
            raise_fault_of_code(error, self.path.name)
            problems.append(f"HDF5 reports: {_error_text(error)}")
        if next(budget, None) is None:
            problems.append(f"it has {_NAMES_MAX:,} names of groups and datasets or more, expected fewer")
        if problems:
            raise ConversionError(self.path.name, first_problems(problems), hint=AGAIN)
        return arrays

    def _run(self, jobs: Iterable[_Job]) -> None:
        """Run jobs in this thread: for a few rows, another thread takes longer to start than to read the rows."""
        try:
            for job in jobs:
                job()
        except _DamagedError as error:
            raise ConversionError(self.path.name, error.args, hint=AGAIN) from None

    def _submit(self, jobs: Iterable[_Job]) -> list[Future[None]]:
        return [self._pool.submit(job) for job in jobs]

    def _finish(self, pending: Sequence[Future[None]]) -> None:
        problems: list[str] = []
        for future in pending:
            error = future.exception()
            if isinstance(error, _DamagedError):
                problems.extend(error.args)
            elif error is not None:
                raise error
        if problems:
            raise ConversionError(self.path.name, first_problems(problems), hint=AGAIN)


class _BandReader:
    """State of a column during a pass: the rows in memory, from the first requested row to the end of the band.

    band      |         |         |         |
    requested      [-----------------)
    in memory      [-----------------~~~~)    ~ is kept for the next block
    """

    def __init__(self, array: Hdf5Array) -> None:
        self._array = array
        self._origin = self._end = 0
        self._requested = slice(0, 0)
        self._buffer: NDArray[np.generic] = np.empty((0, *array.shape[1:]), array.dtype)

    def advance(self, start: int, stop: int) -> Iterator[_Job]:
        """Move to [start, stop), and return the jobs that read the rows that are not in memory."""
        step = self._array.band_rows
        kept = self._buffer[:0]
        first = start - start % step
        if self._origin <= start <= self._end:
            kept, first = self._buffer[start - self._origin :], self._end
        end = max(first, min(-(-stop // step) * step, self._array.shape[0]))
        if end > first:
            buffer: NDArray[np.generic] = np.empty((len(kept) + end - first, *kept.shape[1:]), kept.dtype)
            buffer[: len(kept)] = kept
        else:
            buffer = kept
        self._buffer, self._origin, self._end = buffer, first - len(kept), end
        self._requested = slice(start - self._origin, stop - self._origin)
        return _read_jobs(self._array, buffer[len(kept) :], first, end)

    def rows(self) -> NDArray[np.generic]:
        """Return the requested rows, [stop - start, ...], valid after the jobs are done."""
        return self._buffer[self._requested]


def _read_jobs(array: Hdf5Array, out: NDArray[np.generic], start: int, stop: int) -> Iterator[_Job]:
    """Yield the jobs that fill `out` with the rows [start, stop), which are whole bands."""
    step = array.band_rows
    if array.filters is None or array.chunks is None:
        batch_size = max(step, _JOB_BYTES * 4 // max(array.row_bytes, 1) // step * step)
        for row in range(start, stop, batch_size):
            yield _LibraryJob(array, out[row - start : row - start + batch_size], row)
        return
    chunks, filters = array.chunks, array.filters
    columns = [range(0, size, width) for size, width in zip(array.shape[1:], chunks[1:], strict=True)]
    offsets = itertools.product(range(start, stop, step), *columns)
    batch_size = max(1, _JOB_BYTES // (math.prod(chunks) * array.dtype.itemsize))
    while batch := list(itertools.islice(offsets, batch_size)):
        yield _ChunkJob(array, chunks, filters, out, start, batch)


@dataclass(frozen=True, slots=True)
class _LibraryJob:
    """Job for rows that only the HDF5 library can read: not chunked, or with other filters."""

    array: Hdf5Array
    out: NDArray[np.generic]
    row: int

    def __call__(self) -> None:
        stop = self.row + len(self.out)
        try:
            if self.out.size:
                self.array.dataset.read_direct(self.out, np.s_[self.row : stop])
        except LIBRARY_ERRORS as error:
            raise_fault_of_code(error, self.array.name)
            raise _DamagedError(f"{self.array.name} rows {self.row:,} to {stop - 1:,}: {_error_text(error)}") from error


@dataclass(frozen=True, slots=True)
class _ChunkJob:
    """Job that reads and decompresses chunks and copies them into the output."""

    array: Hdf5Array
    chunks: tuple[int, ...]
    filters: tuple[int, ...]
    out: NDArray[np.generic]
    """Output, [rows, ...]. The first row is row `start` of the dataset."""
    start: int
    offsets: Sequence[tuple[int, ...]]

    def __call__(self) -> None:
        problems = [problem for offset in self.offsets if (problem := self._decode_chunk(offset))]
        if problems:
            raise _DamagedError(*problems)

    def _decode_chunk(self, offset: tuple[int, ...]) -> str:
        """Read a chunk into the output, and return the problem, or an empty string."""
        array, chunks = self.array, self.chunks
        try:
            with phil:  # before h5py 3.16, this function takes no lock
                skipped, stored = array.dataset.id.read_direct_chunk(offset)
            chunk = _undo_filters(stored, array.stored, chunks, self.filters, skipped)
        except (*LIBRARY_ERRORS, zlib.error) as error:
            raise_fault_of_code(error, array.name)
            stop = min(offset[0] + chunks[0], array.shape[0])
            return f"{array.name} rows {offset[0]:,} to {stop - 1:,}: {_error_text(error)}"
        sizes = [min(width, size - at) for width, size, at in zip(chunks, array.shape, offset, strict=True)]
        target = (offset[0] - self.start, *offset[1:])
        into = tuple(slice(at, at + size) for at, size in zip(target, sizes, strict=True))
        self.out[into] = chunk[tuple(slice(size) for size in sizes)]
        return ""


def _filter_ids(dataset: h5py.Dataset) -> tuple[int, ...] | None:
    if not dataset.shape or dataset.chunks is None:
        return None
    properties = dataset.id.get_create_plist()
    filters = tuple(properties.get_filter(number)[0] for number in range(properties.get_nfilters()))
    supported = filters in {(), (h5py.h5z.FILTER_DEFLATE,), (h5py.h5z.FILTER_SHUFFLE, h5py.h5z.FILTER_DEFLATE)}
    # For some rare types, the dtype in numpy differs from the type in the file: such types are converted by the library.
    plain = dataset.id.get_type().equal(h5py.h5t.py_create(dataset.dtype, logical=True))
    return filters if supported and plain else None


def _undo_filters(
    stored: bytes, dtype: np.dtype[Any], shape: tuple[int, ...], filters: tuple[int, ...], skipped: int
) -> NDArray[np.generic]:
    """Undo the filters of a chunk. Bit i of `skipped` is set if filter i was not applied."""
    size = dtype.itemsize * math.prod(shape)
    data = stored
    for number in reversed(range(len(filters))):
        if skipped >> number & 1:
            continue
        if filters[number] == h5py.h5z.FILTER_DEFLATE:
            data = _decompress(data, size)
        else:
            data = np.frombuffer(data, np.uint8).reshape(dtype.itemsize, -1).T.tobytes()
    if len(data) != size:
        raise ValueError(f"the chunk has {len(data):,} bytes, expected {size:,}")
    if dtype.kind == "b" and np.frombuffer(data, np.uint8).max(initial=0) > 1:
        raise ValueError("a boolean is neither 0 nor 1")
    return np.frombuffer(data, dtype).reshape(shape)


def _decompress(data: bytes, size: int) -> bytes:
    """Decompress a chunk of `size` bytes, without allocating more.

    Raises:
        ValueError: If the chunk is truncated, or has more bytes.
    """
    stream = zlib.decompressobj()
    data = stream.decompress(data, size)
    if not stream.eof and stream.decompress(stream.unconsumed_tail, 1):
        raise ValueError(f"the chunk decompresses to more than {size:,} bytes")
    if not stream.eof:
        raise ValueError("the chunk is truncated")
    return data


def _find_datasets(
    group: h5py.Group, prefix: str, parent_ids: tuple[Any, ...], budget: Iterator[int], problems: list[str]
) -> Iterator[tuple[str, h5py.Dataset]]:
    """Yield the datasets below a group by name, and record links that lead out of the file or to no object.

    Args:
        group: The group.
        prefix: Prefix of the names.
        parent_ids: The parent groups, which are not entered again through a cycle.
        budget: Iterator with an element for each name that the file may have, which limits groups with cycles.
        problems: List to which problems are appended.
    """
    parent_ids = (*parent_ids, group.id)
    for name in group:
        if next(budget, None) is None:
            return
        full = f"{prefix}{name}"
        child = _follow_path(group, name)
        if child is None:
            problems.append(
                f"{full} is a link out of the file or to no object, expected the data itself, or a link within the file"
            )
        elif isinstance(child, h5py.Dataset):
            yield full, child
        elif isinstance(child, h5py.Group) and child.id not in parent_ids:
            if len(parent_ids) > _DEPTH_MAX:
                problems.append(f"{full} is nested in {len(parent_ids)} groups, expected at most {_DEPTH_MAX}")
            else:
                yield from _find_datasets(child, f"{full}/", parent_ids, budget, problems)


def _follow_path(group: h5py.Group, path: str, links: int = 0) -> Any:
    """Return the object at a path, following soft links, or None if the object is outside the file or does not exist.

    The library itself would follow an external link on the path and open another file.
    """
    node: Any = group.file if path.startswith("/") else group
    for name in filter(lambda part: part not in {"", "."}, path.split("/")):
        link = node.get(name, getlink=True) if isinstance(node, h5py.Group) else None
        if isinstance(link, h5py.SoftLink) and links < _DEPTH_MAX:
            node = _follow_path(node, link.path, links + 1)
        elif isinstance(link, h5py.HardLink):
            node = node[name]
        else:
            return None
    return node


def chunk_problems(name: str, shape: Sequence[int], chunks: Sequence[int] | None, item_bytes: int) -> Iterator[str]:
    """Yield why chunks need far more memory than the data in the chunks, because a chunk is decompressed as a whole.

    Args:
        name: The dataset.
        shape: The shape of the dataset.
        chunks: The shape of the chunks, or None if the dataset is not chunked.
        item_bytes: Number of bytes of a value.
    """
    if chunks is None:
        return
    size = item_bytes * math.prod(chunks)
    held = item_bytes * math.prod(min(pair) for pair in zip(shape, chunks, strict=True))
    band = item_bytes * min(shape[0], chunks[0]) * math.prod(shape[1:])
    if size > max(held, CHUNK_GRACE):
        yield (
            f"{name} has chunks of {list(chunks)}, {size:,} bytes, for the shape {list(shape)}, "
            f"of which a chunk has {held:,} bytes"
        )
    elif band > _BAND_MAX_BYTES:
        problem = f"{name} has chunks of {list(chunks)} in {list(shape)}: a row of chunks has {band:,} bytes"
        yield f"{problem}, expected at most {_BAND_MAX_BYTES:,} (h5repack rewrites a file with other chunks)"


def _unwritten_chunk_count(array: Hdf5Array) -> int:
    if not array.shape or 0 in array.shape or array.dataset.is_virtual or array.dataset.external:
        return 0
    if array.chunks is None:
        return int(array.dataset.id.get_storage_size() == 0)
    declared = math.prod(-(-size // step) for size, step in zip(array.shape, array.chunks, strict=True))
    return declared - int(array.dataset.id.get_num_chunks())


def _check_magic(path: Path) -> None:
    """Check for the signature at byte 0, or after a user block of 512, 1,024, 2,048, ... bytes, as HDF5 allows."""
    with path.open("rb") as stream:
        head = stream.read(64)
        at = 0
        size = stream.seek(0, os.SEEK_END)
        while at < size:
            stream.seek(at)
            if stream.read(len(MAGIC)) == MAGIC:
                return
            at = at * 2 or 512
    raise ConversionError(path.name, [unexpected_format(head, "HDF5")], hint=AGAIN)


@contextmanager
def library_errors(name: str, prefix: str = "HDF5 reports: ") -> Iterator[None]:
    """Convert the exceptions that h5py raises for a damaged file to ConversionError.

    Args:
        name: The file.
        prefix: Prefix of the library's message.
    """
    try:
        yield
    except LIBRARY_ERRORS as error:
        raise_fault_of_code(error, name)
        raise ConversionError(name, [f"{prefix}{_error_text(error)}"], hint=AGAIN) from error


def _native_value(raw: Any, *, text: bool) -> NDArray[np.generic] | str | float | bool:
    """Convert a value from h5py to a type that the manifest supports."""
    if isinstance(raw, bytes):
        return raw.decode("utf-8", "replace")
    if isinstance(raw, h5py.Empty):
        return ""
    if text and isinstance(raw, np.ndarray):
        return np.asarray([_native_value(item, text=True) for item in raw.ravel()], dtype=str).reshape(raw.shape)
    if isinstance(raw, np.ndarray):
        return raw.astype(raw.dtype.newbyteorder("="), copy=False)
    plain: str | float | bool = raw.item() if isinstance(raw, np.generic) else raw
    return plain


def _error_text(error: BaseException) -> str:
    return str(error.args[0]) if error.args else type(error).__name__
