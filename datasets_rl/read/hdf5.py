"""HDF5 files as numpy arrays: lazily, in bounded memory, on every core, and without trusting the file.

The HDF5 library inflates gzip chunks one after another on one core, under a lock. Here the library only finds the
stored bytes of a chunk; zlib inflates several at once in threads, because it runs without the interpreter's lock.

A column is cut into chunks along its rows, and often along its other axes too. Reading goes by bands, a row of chunks:

            columns 0-1   2-3    4-5   ...  16
    rows     0  +-------+------+------+   +--+
    band 0      | chunk |      |      |   |  |
         15625  +-------+------+------+   +--+
    band 1      |       |      |      |   |  |

so that a pass over the file inflates every chunk once, wherever the blocks that the caller asked for end.
"""

from __future__ import annotations

import itertools
import math
import os
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np
from numpy.typing import NDArray

from datasets_rl.errors import ConversionError
from datasets_rl.read.streams import AGAIN, shown, unlike

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["CHUNK_GRACE", "LIBRARY_ERRORS", "MAGIC", "Block", "Hdf5Array", "Hdf5File", "chunk_issues", "library_errors"]

MAGIC = b"\x89HDF\r\n\x1a\n"
_DEFLATE_MOST = 1100  # deflate cannot shrink anything more than 1032-fold: what claims more was never written
_JOB_BYTES = 1 << 20  # less, and the threads wait for each other; more, and the last one works alone
_THREADS_MOST = 8
_DEPTH_MOST = 16
_NAMES_MOST = 100_000  # groups that hold each other several times have names without end
_BAND_MOST = 1 << 30
_UNWRITTEN_MOST = 64 << 20  # bytes of fill values that a file can declare without storing anything
CHUNK_GRACE = 64 << 20
"""Bytes of a chunk that fit into memory, however few rows the dataset has."""
LIBRARY_ERRORS = (OSError, RuntimeError, KeyError, ValueError, TypeError)
"""What h5py raises for a damaged file."""

_Job = Callable[[], None]


class _Damaged(Exception):
    """Chunks that do not decode; the arguments say which, a sentence each."""


@dataclass(frozen=True, slots=True)
class Block:
    """The rows [start, stop) of several columns."""

    start: int
    stop: int
    columns: Mapping[str, NDArray[np.generic]]
    """[stop - start, ...], or one row more where that was asked for."""


class Hdf5Array:
    """One dataset of a file: what it is, known without reading it."""

    def __init__(self, name: str, dataset: h5py.Dataset) -> None:
        self.name = name
        """With slashes, from the root: ``infos/qpos``."""
        self.shape: tuple[int, ...] = tuple(dataset.shape or ())
        self.stored: np.dtype[Any] = np.dtype(np.dtype(dataset.dtype).str)
        self.dtype: np.dtype[Any] = self.stored.newbyteorder("=")
        """In this machine's byte order."""
        self.text = h5py.check_string_dtype(dataset.dtype) is not None
        self.chunks: tuple[int, ...] | None = dataset.chunks
        self.filters = _filters(dataset)
        """The numbers of the filters in the order in which they were applied, if all can be undone here."""
        self.dataset = dataset
        self.unwritten = _unwritten(self)
        """Chunks that the file does not store; every value in them is the fill value. A dataset without chunks is one."""
        if self.unwritten:
            self.filters = None  # only the library knows the fill value

    @property
    def numeric(self) -> bool:
        """Whether it holds booleans, integers or floats."""
        return self.dtype.kind in "biuf"

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return self.dtype.itemsize * math.prod(self.shape[1:])

    @property
    def band_rows(self) -> int:
        """How many rows the chunks of a band have; 1 where the dataset is not chunked."""
        return self.chunks[0] if self.chunks else 1

    def faults(self) -> Iterator[str]:
        """Yield why the dataset must not be read: its bytes lie elsewhere, or were never written."""
        dataset = self.dataset
        if dataset.is_virtual or dataset.external:
            yield f"{self.name} keeps its data in other files; expected them in this one"
        elif dataset.shape is not None and 0 not in self.shape:
            yield from self._storage_faults()

    def _storage_faults(self) -> Iterator[str]:
        stored = self.dataset.id.get_storage_size()
        item = int(self.dataset.id.get_type().get_size())
        declared = item * math.prod(self.shape)
        most = stored * (_DEFLATE_MOST if self.chunks else 1)
        if declared > (max(most, _UNWRITTEN_MOST) if self.unwritten else most):
            yield f"{self.name} declares {list(self.shape)}, {declared:,} bytes, but stores {stored:,}"
        elif self.unwritten < 0:
            yield f"{self.name} declares {list(self.shape)} and stores {-self.unwritten:,} chunks more than that has"
        elif (
            self.unwritten and self.dataset.id.get_create_plist().fill_value_defined() == h5py.h5d.FILL_VALUE_UNDEFINED
        ):
            yield f"{self.name} leaves {self.unwritten:,} chunks unwritten, and has no fill value that stands for them"
        yield from chunk_issues(self.name, self.shape, self.chunks, item)


class Hdf5File:
    """An open HDF5 file. A context manager.

    Only data that lies in the file itself is read: links to other files, data in other files, and Python objects are
    refused. A soft link within the file names its target a second time. Chunks that were never written have the fill
    value, as HDF5 defines it.

    Args:
        path: The file.
        threads: How many chunks are inflated at once; by default one for each core, at most 8.

    Raises:
        ConversionError: If it is no HDF5 file, or is cut, or reaches out of itself; every fault at once.
    """

    def __init__(self, path: Path | str, *, threads: int | None = None) -> None:
        self.path = Path(path)
        _check_magic(self.path)
        with library_errors(self.path.name):
            # Nobody writes to a raw file any more, and network file systems often have no locks.
            self._file = h5py.File(self.path, "r", rdcc_nbytes=0, locking=False)
        self._pool = ThreadPoolExecutor(threads or min(_cores(), _THREADS_MOST), thread_name_prefix="inflate")
        try:
            self.arrays: Mapping[str, Hdf5Array] = self._open()
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

    @property
    def unwritten(self) -> int:
        """Chunks of all datasets that the file does not store, and that read as fill values."""
        return sum(array.unwritten for array in self.arrays.values())

    def read(self, name: str, start: int = 0, stop: int | None = None) -> NDArray[np.generic]:
        """Read the rows [start, stop) of a numeric dataset.

        Args:
            name: The dataset.
            start: The first row.
            stop: The row after the last one; by default the end.

        Returns:
            [stop - start, ...], in this machine's byte order.

        Raises:
            ConversionError: If a chunk does not decode; the error names the rows.
        """
        array = self.arrays[name]
        cursor = _Cursor(array)
        self._finish(self._submit(cursor.advance(start, array.shape[0] if stop is None else stop)))
        return cursor.rows()

    def blocks(
        self, names: Sequence[str], *, rows: int, overlap: Collection[str] = (), start: int = 0, stop: int | None = None
    ) -> Iterator[Block]:
        """Read columns of equal length side by side; the next block is inflated while the caller works on this one.

        Args:
            names: The columns.
            rows: Rows of a block.
            overlap: Columns that come with the first row of the next block too, where there is one.
            start: The first row.
            stop: The row after the last one; by default the end.

        Yields:
            Blocks, without gaps, in order. Each owns its memory.

        Raises:
            ConversionError: If chunks do not decode; the error names the columns and the rows.
        """
        cursors = {name: _Cursor(self.arrays[name]) for name in names}
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
        """Read a dataset that belongs to no step: a scalar, a text, or an array.

        Raises:
            ConversionError: If it does not decode, or holds Python objects.
        """
        array = self.arrays[name]
        if not (array.text or array.numeric or array.dtype.kind == "U"):
            raise ConversionError(self.path.name, [f"{name} has dtype {array.dtype}; expected numbers or text"])
        with library_errors(self.path.name, f"{name}: "):
            return _plain(array.dataset[()], text=array.text)

    def _open(self) -> dict[str, Hdf5Array]:
        problems: list[str] = []
        arrays: dict[str, Hdf5Array] = {}
        budget = iter(range(_NAMES_MOST))
        try:
            for name, dataset in _walk(self._file, "", (), budget, problems):
                arrays[name] = Hdf5Array(name, dataset)
                problems.extend(arrays[name].faults())
        except LIBRARY_ERRORS as error:
            problems.append(f"HDF5 says: {_reason(error)}")
        if next(budget, None) is None:
            problems.append(f"it has {_NAMES_MOST:,} names of groups and datasets or more; expected fewer")
        if problems:
            raise ConversionError(self.path.name, shown(problems), hint=AGAIN)
        return arrays

    def _submit(self, jobs: Iterator[_Job]) -> list[Future[None]]:
        return [self._pool.submit(job) for job in jobs]

    def _finish(self, pending: Sequence[Future[None]]) -> None:
        problems: list[str] = []
        for future in pending:
            error = future.exception()
            if isinstance(error, _Damaged):
                problems.extend(error.args)
            elif error is not None:
                raise error
        if problems:
            raise ConversionError(self.path.name, shown(problems), hint=AGAIN)


class _Cursor:
    """A column during a pass: the rows in memory, from the one asked for to the end of its band.

    band      |         |         |         |
    asked          [-----------------)
    in memory      [-----------------~~~~)    ~ is kept for the next block
    """

    def __init__(self, array: Hdf5Array) -> None:
        self._array = array
        self._origin = self._end = 0
        self._asked = slice(0, 0)
        self._buffer: NDArray[np.generic] = np.empty((0, *array.shape[1:]), array.dtype)

    def advance(self, start: int, stop: int) -> Iterator[_Job]:
        """Move to [start, stop); what is in memory is kept, the jobs returned fetch the rest."""
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
        self._asked = slice(start - self._origin, stop - self._origin)
        return _jobs(self._array, buffer[len(kept) :], first, end)

    def rows(self) -> NDArray[np.generic]:
        """Return the rows asked for, [stop - start, ...]; valid once the jobs are done."""
        return self._buffer[self._asked]


def _jobs(array: Hdf5Array, out: NDArray[np.generic], start: int, stop: int) -> Iterator[_Job]:
    """Yield the work that fills `out` with the rows [start, stop), which are whole bands."""
    step = array.band_rows
    if array.filters is None or array.chunks is None:
        lump = max(step, _JOB_BYTES * 4 // max(array.row_bytes, 1) // step * step)
        for row in range(start, stop, lump):
            yield _LibraryJob(array, out[row - start : row - start + lump], row)
        return
    chunks, filters = array.chunks, array.filters
    columns = [range(0, size, width) for size, width in zip(array.shape[1:], chunks[1:], strict=True)]
    places = itertools.product(range(start, stop, step), *columns)
    lump = max(1, _JOB_BYTES // (math.prod(chunks) * array.dtype.itemsize))
    while batch := list(itertools.islice(places, lump)):
        yield _ChunkJob(array, chunks, filters, out, start, batch)


@dataclass(frozen=True, slots=True)
class _LibraryJob:
    """Rows that only the HDF5 library can read: not chunked, or compressed in another way."""

    array: Hdf5Array
    out: NDArray[np.generic]
    row: int

    def __call__(self) -> None:
        stop = self.row + len(self.out)
        try:
            if self.out.size:
                self.array.dataset.read_direct(self.out, np.s_[self.row : stop])
        except LIBRARY_ERRORS as error:
            raise _Damaged(f"{self.array.name} rows {self.row:,} to {stop - 1:,}: {_reason(error)}") from error


@dataclass(frozen=True, slots=True)
class _ChunkJob:
    """Chunks to fetch, inflate and put in place."""

    array: Hdf5Array
    chunks: tuple[int, ...]
    filters: tuple[int, ...]
    out: NDArray[np.generic]
    """[rows, ...]; its first row is the dataset's row `start`."""
    start: int
    places: Sequence[tuple[int, ...]]

    def __call__(self) -> None:
        problems = [problem for place in self.places if (problem := self._put(place))]
        if problems:
            raise _Damaged(*problems)

    def _put(self, place: tuple[int, ...]) -> str:
        """Put a chunk in place; return what is wrong with it, if anything is."""
        array, chunks = self.array, self.chunks
        try:
            skipped, stored = array.dataset.id.read_direct_chunk(place)
            chunk = _decode(stored, array.stored, chunks, self.filters, skipped)
        except (*LIBRARY_ERRORS, zlib.error) as error:
            stop = min(place[0] + chunks[0], array.shape[0])
            return f"{array.name} rows {place[0]:,} to {stop - 1:,}: {_reason(error)}"
        sizes = [min(width, size - at) for width, size, at in zip(chunks, array.shape, place, strict=True)]
        target = (place[0] - self.start, *place[1:])
        into = tuple(slice(at, at + size) for at, size in zip(target, sizes, strict=True))
        self.out[into] = chunk[tuple(slice(size) for size in sizes)]
        return ""


def _filters(dataset: h5py.Dataset) -> tuple[int, ...] | None:
    if not dataset.shape or dataset.chunks is None:
        return None
    properties = dataset.id.get_create_plist()
    filters = tuple(properties.get_filter(number)[0] for number in range(properties.get_nfilters()))
    known = filters in {(), (h5py.h5z.FILTER_DEFLATE,), (h5py.h5z.FILTER_SHUFFLE, h5py.h5z.FILTER_DEFLATE)}
    # What numpy and the file mean by a type differs for rare ones, which the library then converts.
    plain = dataset.id.get_type().equal(h5py.h5t.py_create(dataset.dtype, logical=True))
    return filters if known and plain else None


def _decode(
    stored: bytes, dtype: np.dtype[Any], shape: tuple[int, ...], filters: tuple[int, ...], skipped: int
) -> NDArray[np.generic]:
    """Undo the filters of a chunk; bit i of `skipped` says that filter i was not applied to it."""
    size = dtype.itemsize * math.prod(shape)
    data = stored
    for number in reversed(range(len(filters))):
        if skipped >> number & 1:
            continue
        if filters[number] == h5py.h5z.FILTER_DEFLATE:
            data = _inflate(data, size)
        else:
            data = np.frombuffer(data, np.uint8).reshape(dtype.itemsize, -1).T.tobytes()
    if len(data) != size:
        raise ValueError(f"the chunk has {len(data):,} bytes; expected {size:,}")
    if dtype.kind == "b" and np.frombuffer(data, np.uint8).max(initial=0) > 1:
        raise ValueError("a boolean is neither 0 nor 1")
    return np.frombuffer(data, dtype).reshape(shape)


def _inflate(data: bytes, size: int) -> bytes:
    """Inflate a chunk of known size; never more than that, whatever the bytes say."""
    stream = zlib.decompressobj()
    inflated = stream.decompress(data, size)
    if not stream.eof and stream.decompress(stream.unconsumed_tail, 1):
        raise ValueError(f"the chunk inflates to more than {size:,} bytes")
    if not stream.eof:
        raise ValueError("the chunk is cut")
    return inflated


def _walk(
    group: h5py.Group, prefix: str, above: tuple[Any, ...], budget: Iterator[int], problems: list[str]
) -> Iterator[tuple[str, h5py.Dataset]]:
    """Yield the datasets below a group by name; note links that lead out of the file or nowhere.

    Args:
        group: The group.
        prefix: What the names begin with.
        above: The groups that it lies in: one that holds itself is not entered again.
        budget: Has an element for each name that the file may have, however its groups hold each other.
        problems: Gets what is wrong.
    """
    above = (*above, group.id)
    for name in group:
        if next(budget, None) is None:
            return
        full = f"{prefix}{name}"
        child = _target(group, name)
        if child is None:
            problems.append(f"{full} is a link to another place; expected the data itself, or a link within the file")
        elif isinstance(child, h5py.Dataset):
            yield full, child
        elif isinstance(child, h5py.Group) and child.id not in above:
            if len(above) > _DEPTH_MOST:
                problems.append(f"{full} lies {len(above)} groups deep; expected at most {_DEPTH_MOST}")
            else:
                yield from _walk(child, f"{full}/", above, budget, problems)


def _target(group: h5py.Group, path: str, links: int = 0) -> Any:
    """Return what lies at a path, by way of soft links; None where that leads out of the file or nowhere.

    The library would open another file without asking where an external link stands on the way.
    """
    node: Any = group.file if path.startswith("/") else group
    for name in filter(lambda part: part not in {"", "."}, path.split("/")):
        link = node.get(name, getlink=True) if isinstance(node, h5py.Group) else None
        if isinstance(link, h5py.SoftLink) and links < _DEPTH_MOST:
            node = _target(node, link.path, links + 1)
        elif isinstance(link, h5py.HardLink):
            node = node[name]
        else:
            return None
    return node


def chunk_issues(name: str, shape: Sequence[int], chunks: Sequence[int] | None, item: int) -> Iterator[str]:
    """Yield why chunks take more memory than the data in them: a chunk is inflated as a whole.

    Args:
        name: The dataset.
        shape: Its shape.
        chunks: The shape of its chunks; None where it has none.
        item: Bytes of a value.
    """
    if chunks is None:
        return
    size = item * math.prod(chunks)
    held = item * math.prod(min(pair) for pair in zip(shape, chunks, strict=True))
    band = item * min(shape[0], chunks[0]) * math.prod(shape[1:])
    if size > max(held, CHUNK_GRACE):
        yield f"{name} has chunks of {list(chunks)}, {size:,} bytes, for {list(shape)}, of which one holds {held:,} bytes"
    elif band > _BAND_MOST:
        problem = f"{name} has chunks of {list(chunks)} in {list(shape)}: one row of chunks has {band:,} bytes"
        yield f"{problem}; expected {_BAND_MOST:,} at most (h5repack writes it with other chunks)"


def _unwritten(array: Hdf5Array) -> int:
    if not array.shape or 0 in array.shape or array.dataset.is_virtual or array.dataset.external:
        return 0
    if array.chunks is None:
        return int(array.dataset.id.get_storage_size() == 0)
    wanted = math.prod(-(-size // step) for size, step in zip(array.shape, array.chunks, strict=True))
    return wanted - int(array.dataset.id.get_num_chunks())


def _check_magic(path: Path) -> None:
    """Look for the signature where HDF5 allows it: at byte 0, or after a user block of 512, 1,024, 2,048, ... bytes."""
    with path.open("rb") as stream:
        head = stream.read(64)
        at = 0
        size = stream.seek(0, os.SEEK_END)
        while at < size:
            stream.seek(at)
            if stream.read(len(MAGIC)) == MAGIC:
                return
            at = at * 2 or 512
    raise ConversionError(path.name, [unlike(head, "HDF5")], hint=AGAIN)


@contextmanager
def library_errors(name: str, place: str = "HDF5 says: ") -> Iterator[None]:
    """Report what h5py raises for a damaged file as ConversionError.

    Args:
        name: The file.
        place: What stands before the library's own words.
    """
    try:
        yield
    except LIBRARY_ERRORS as error:
        raise ConversionError(name, [f"{place}{_reason(error)}"], hint=AGAIN) from error


def _plain(raw: Any, *, text: bool) -> NDArray[np.generic] | str | float | bool:
    """Turn what h5py returns into what a manifest can hold."""
    if isinstance(raw, bytes):
        return raw.decode("utf-8", "replace")
    if isinstance(raw, h5py.Empty):
        return ""
    if text and isinstance(raw, np.ndarray):
        return np.asarray([_plain(one, text=True) for one in raw.ravel()], dtype=str).reshape(raw.shape)
    if isinstance(raw, np.ndarray):
        return raw.astype(raw.dtype.newbyteorder("="), copy=False)
    plain: str | float | bool = raw.item() if isinstance(raw, np.generic) else raw
    return plain


def _reason(error: BaseException) -> str:
    return str(error.args[0]) if error.args else type(error).__name__


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
