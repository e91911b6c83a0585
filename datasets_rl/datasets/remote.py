"""The shards of datasets that are published in the stored format: whole episodes are read by range requests.

address    manifest.json, episodes.npy, digests.npy, texts, dictionaries of compressed images: read once
           rows.npy, images, ...: of each block of episodes, the ranges of the rows and of the final states, which are
           compared with digests before any value is used
folder     [block 7: a small stored dataset] [block 2] ...        the oldest is deleted if the space is exceeded
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from datasets_rl import disk
from datasets_rl.datasets.shards import Shards
from datasets_rl.disk import CURRENT_FILE, MANIFEST_FILE
from datasets_rl.errors import FetchError, IntegrityError, InvalidArgumentError, ManifestError, OfflineError
from datasets_rl.fetch import fetch
from datasets_rl.fetch.asset import Asset
from datasets_rl.fetch.parallel import CancelToken
from datasets_rl.fetch.ranges import RangeReader
from datasets_rl.fingerprints.fingerprint import FINGERPRINTS_FILE, SKETCHES_FILE
from datasets_rl.format.chunks import CHUNKS_FILE, Chunks
from datasets_rl.format.current import version_named
from datasets_rl.format.digests import RangeDigests, digest_of_bytes
from datasets_rl.format.episode_log import EPISODES_FILE
from datasets_rl.format.manifest import DIGESTS_FILE, StoredFile, checked_manifest
from datasets_rl.format.npy import NpyStream
from datasets_rl.format.schema import ROWS_FILE
from datasets_rl.read.npy import read_header
from datasets_rl.settings import Settings
from datasets_rl.sources import Selection, select_episodes
from datasets_rl.sources.base import group_by_size
from datasets_rl.ted.keys import EPISODE, dotted_name
from datasets_rl.ted.table import EpisodeTable

_BLOCK_BYTES = 4 << 20
"""Bytes of the episodes that are read together. A longer episode is a separate block."""
_SMALL_BLOCK_BYTES = 1 << 16
_MIN_BLOCKS = 32
"""A small dataset has at least this many blocks, unless the blocks would be too small: ranks divide the blocks among
themselves."""
_HEADER_BYTES = 1 << 16
_FINGERPRINTS = (FINGERPRINTS_FILE, SKETCHES_FILE)
_JSON_MAX_BYTES = 64 << 20
_REPLACED = "open the dataset again: the dataset was replaced, or the published files are wrong"


@dataclass(frozen=True)
class _Array:
    """An array file at the address, and where its items begin."""

    entry: StoredFile
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    """Shape of an item."""
    count: int
    """Number of items."""
    start: int
    """Offset of the first item."""

    def part(self, start: int, stop: int) -> tuple[StoredFile, int, int]:
        """Return the file, and the offsets of the items [start, stop) in the file."""
        item_bytes = self.dtype.itemsize * math.prod(self.shape)
        return self.entry, self.start + start * item_bytes, self.start + stop * item_bytes


def current_version(address: str, settings: Settings) -> str:
    """Return the address of the current version of a dataset. An address without ``CURRENT`` is returned unchanged.

    A version never changes, so that a stream of a version has the same steps when another version becomes current.

    Raises:
        FetchError: If the server gives no answer, or fails.
        ManifestError: If the file ``CURRENT`` does not hold the name of a version.
    """
    url = f"{address}/{CURRENT_FILE}"
    with tempfile.TemporaryDirectory(prefix="rlds-stream-") as aside:
        try:
            (fetched,) = fetch([Asset((url,), CURRENT_FILE)], Path(aside), settings=replace(settings, progress=False))
        except FetchError as error:
            if _is_down(error):
                raise
            return address
        return f"{address}/{version_named(fetched.path.read_bytes(), url)}"


def _is_down(error: FetchError) -> bool:
    """Return whether a file could not be asked for. Other errors mean that there is no such file.

    Buckets answer in different ways that there is no file, 403 where the list of files is private. Whether there is a
    dataset, its manifest tells.
    """
    return error.unreached and not isinstance(error, OfflineError)


class RemoteShards(Shards):
    """The episodes of a published dataset in blocks, read by range requests when needed.

    Args:
        address: The folder of a version, see `current_version`: ``hf://datasets/user/name@commit``,
            ``s3://bucket/folder``, ``gs://bucket/folder`` or ``https://host/folder``.
        selection: The selection to stream, which may have episodes.
        settings: The settings.
        folder: The folder of the stream.

    Raises:
        FetchError: If a file cannot be read.
        ManifestError: If the manifest at the address is not valid.
        IntegrityError: If the files differ from the manifest.
        InvalidArgumentError: If the selection has anything but episodes.
    """

    def __init__(self, address: str, selection: Selection, settings: Settings, folder: Path) -> None:
        if replace(selection, episodes="", options={}) != Selection():
            raise InvalidArgumentError(f"{address} is streamed by whole episodes, and {selection} was requested")
        self._folder, self._settings = folder, replace(settings, progress=False)
        self._reader = RangeReader(self._settings)
        self.address = address
        self.manifest = checked_manifest(self._read_manifest(), where=f"{address}/{MANIFEST_FILE}")
        """The manifest of the whole dataset."""
        if shared := [field for field in self.manifest.schema if field.image_form.in_shared_files]:
            names, noun = ", ".join(field.name for field in shared), shared[0].image_form.noun
            problem = f"the images of {names} are {noun}, which are read as whole files"
            raise InvalidArgumentError(f"{address} cannot be streamed: {problem}", hint="download the dataset")
        self._chunks = self._read_chunks()
        try:
            self._digests = RangeDigests(self._read_file(DIGESTS_FILE), self.manifest)
        except (ValueError, EOFError) as error:
            raise IntegrityError(f"{address}/{DIGESTS_FILE}", [str(error)]) from error
        self.episodes = self._read_episodes()
        """The table of all episodes."""
        self._arrays: dict[str, _Array] = {}
        self._whole_files = {name: self._read_file(name) for name in self.manifest.schema.whole_files}
        self._blocks = self._group_episodes(selection)

    @property
    @override
    def count(self) -> int:
        return len(self._blocks)

    @property
    @override
    def dataset(self) -> str:
        firsts = np.array([(block[0], block[-1]) for block in self._blocks])
        return f"{self.manifest.digest[:16]}-{hashlib.sha256(firsts.tobytes()).hexdigest()[:16]}"

    @override
    def first_episode(self, shard: int) -> int:
        return int(self._blocks[shard][0])

    @override
    def lengths(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        steps = np.array([self.episodes.lengths[block].sum() for block in self._blocks], np.int64)
        return np.array([len(block) for block in self._blocks], np.int64), steps

    @property
    @override
    def shortest(self) -> int:
        return min(int(self.episodes.lengths[block].min()) for block in self._blocks)

    @override
    def close(self) -> None:
        self._reader.close()

    def _read_chunks(self) -> Chunks:
        try:
            document = self._read_json(CHUNKS_FILE)
        except FetchError as error:
            if _is_down(error):
                raise
            return Chunks()  # a dataset without large files has no such list
        return Chunks.from_json(document, self.manifest, where=f"{self.address}/{CHUNKS_FILE}")

    def _read_manifest(self) -> Any:
        try:
            return self._read_json(MANIFEST_FILE)
        except FetchError as error:
            # `current_version` has found no CURRENT, or a CURRENT that names a version without a manifest.
            raise FetchError(
                f"{MANIFEST_FILE}, or the file {CURRENT_FILE} of a stored dataset with its version",
                error.failures,
                hint="if the server can be reached, give the address of a folder that has CURRENT and the version that CURRENT"
                " names, or of a version",
            ) from error

    def _read_json(self, name: str) -> Any:
        path = self._folder / "raw" / name
        if not self._settings.offline:  # the file that an earlier stream fetched may be out of date
            disk.remove_tree(path)
        (fetched,) = fetch([Asset((f"{self.address}/{name}",), name)], path.parent, settings=self._settings)
        try:
            if fetched.size > _JSON_MAX_BYTES:
                raise ManifestError(
                    f"{self.address}/{name}",
                    [f"the file has {fetched.size:,} bytes, expected at most {_JSON_MAX_BYTES:,}"],
                )
            return json.loads(fetched.path.read_text(encoding="utf-8"))
        except (ValueError, RecursionError) as error:
            raise ManifestError(f"{self.address}/{name}", [f"the file is not JSON: {error}"]) from error

    def _read_episodes(self) -> EpisodeTable:
        data = self._read_file(EPISODES_FILE)
        try:
            records = np.load(io.BytesIO(data), allow_pickle=False)
            table = EpisodeTable(records)
        except (ValueError, OSError, EOFError) as error:
            raise IntegrityError(
                f"{self.address}/{EPISODES_FILE}", [f"the file is not an episode table: {error}"]
            ) from error
        if len(table) != self.manifest.episodes or table.steps != self.manifest.steps:
            expected = f"{self.manifest.episodes:,} episodes, {self.manifest.steps:,} steps"
            raise IntegrityError(
                f"{self.address}/{EPISODES_FILE}", [f"the table is {table}, expected {expected} as in the manifest"]
            )
        return table

    def _read_file(self, name: str) -> bytes:
        """Return a whole file, compared with its digest."""
        entry = self._entry(name)
        data = b"".join(self._reader.read(list(self._spans(entry, 0, entry.bytes))))
        if (digest := digest_of_bytes(data)) != entry.digest:
            problem = f"the file has the digest {digest[:12]}..., expected {entry.digest[:12]}..."
            raise IntegrityError(f"{self.address}/{name}", [problem], hint=_REPLACED)
        return data

    def _entry(self, name: str) -> StoredFile:
        entry = self.manifest.file(name)
        if entry is None:
            raise ManifestError(f"{self.address}/{MANIFEST_FILE}", [f"the manifest does not list {name}"])
        return entry

    def _spans(self, entry: StoredFile, start: int, stop: int) -> Iterator[tuple[Asset, int, int]]:
        """Yield the ranges of the pieces of a file that make up the bytes [start, stop)."""
        for piece in self._chunks.pieces(entry):
            first, last = max(start, piece.start), min(stop, piece.start + piece.bytes)
            if first < last:
                asset = Asset((f"{self.address}/{piece.path}",), piece.path, size=piece.bytes)
                yield asset, first - piece.start, last - piece.start

    def _read_parts(
        self, parts: Sequence[tuple[StoredFile, int, int]], cancel: CancelToken | None = None
    ) -> list[memoryview]:
        """Return the bytes [start, stop) of files, compared with the digests of the ranges."""
        covers = [self._digests.cover(*part) for part in parts]
        spans = [list(self._spans(entry, *cover)) for (entry, _, _), cover in zip(parts, covers, strict=True)]
        data = iter(self._reader.read([span for group in spans for span in group], cancel))
        checked = []
        for (entry, start, stop), (first, _), group in zip(parts, covers, spans, strict=True):
            whole = b"".join(next(data) for _ in group)
            if problem := self._digests.problem(entry, first, whole):
                raise IntegrityError(f"{self.address}/{entry.path}", [problem], hint=_REPLACED)
            checked.append(memoryview(whole)[start - first : stop - first])
        return checked

    def _group_episodes(self, selection: Selection) -> list[NDArray[np.int64]]:
        """Return the episodes of each block: consecutive, because a block is a single range of rows."""
        selected = np.flatnonzero(select_episodes(selection.episodes, self.episodes.numbers))
        step_bytes = max(1, self.manifest.bytes // self.manifest.steps)
        block_bytes = min(_BLOCK_BYTES, max(_SMALL_BLOCK_BYTES, self.manifest.bytes // _MIN_BLOCKS))
        blocks: list[NDArray[np.int64]] = []
        for run in np.split(selected, np.flatnonzero(np.diff(selected) != 1) + 1):
            sizes = (self.episodes.lengths[run] * step_bytes).tolist()
            blocks += [np.array(group, np.int64) for group in group_by_size(run.tolist(), sizes, block_bytes)]
        return blocks

    @override
    def name(self, shard: int) -> str:
        first, last = self._blocks[shard][[0, -1]]
        return f"{self.manifest.digest[:16]}-{first}-{last}"

    @override
    def fetch(self, shard: int, cancel: CancelToken) -> dict[str, NDArray[Any]]:
        """Read the arrays of a block, by file."""
        first, last = (int(episode) for episode in self._blocks[shard][[0, -1]])
        rows = int(self.episodes.starts[first]), int(self.episodes.starts[last] + self.episodes.lengths[last])
        states = first, last + 1
        ranges: dict[str, tuple[int, int]] = {}
        encoded: list[tuple[str, str, int]] = []
        for name, file in self.manifest.schema.array_files.items():
            if name in _FINGERPRINTS:
                continue  # the fingerprints of a part are never read
            start, stop = states if file.per == "episode" else rows
            if not file.ends:
                ranges[name] = start, stop
                continue
            start, stop = ranges[file.ends]
            encoded.append((name, file.ends, start))
            ranges[file.ends] = max(start - 1, 0), stop  # an image begins at the end of the previous image
        arrays = self._read_items(ranges, cancel)
        self._check_block(shard, arrays[ROWS_FILE])
        images = {}
        for name, ends, start in encoded:
            first = int(arrays[ends][0]) if start else 0
            images[name] = (first, int(arrays[ends][-1]))
            arrays[ends] = arrays[ends][int(start > 0) :] - first
        return arrays | self._read_items(images, cancel)

    def _read_items(self, ranges: Mapping[str, tuple[int, int]], cancel: CancelToken) -> dict[str, NDArray[Any]]:
        """Return the items [start, stop) of array files, by file."""
        layouts = {name: self._array(name) for name in ranges}
        for name, (start, stop) in ranges.items():
            if not 0 <= start <= stop <= layouts[name].count:
                problem = f"the file has {layouts[name].count:,} items, expected items from {start:,} to {stop:,}"
                raise IntegrityError(f"{self.address}/{name}", [problem])
        parts = [layouts[name].part(*span) for name, span in ranges.items()]
        arrays = {}
        for (name, (start, stop)), data in zip(ranges.items(), self._read_parts(parts, cancel), strict=True):
            layout = layouts[name]
            arrays[name] = np.frombuffer(bytearray(data), layout.dtype).reshape(stop - start, *layout.shape)
        return arrays

    def _array(self, name: str) -> _Array:
        """Return the layout of an array, from the header of its file, which is read once."""
        if name not in self._arrays:
            entry = self._entry(name)
            (head,) = self._read_parts([(entry, 0, min(_HEADER_BYTES, entry.bytes))])
            try:
                header = read_header(io.BytesIO(head), header_max_bytes=_HEADER_BYTES)
            except ValueError as error:
                raise IntegrityError(f"{self.address}/{name}", [str(error)]) from error
            expected = header.size + math.prod(header.shape) * header.dtype.itemsize
            if header.fortran or header.dtype.hasobject or not header.shape or expected > entry.bytes:
                shape = f"{header.dtype} {list(header.shape)}"
                raise IntegrityError(f"{self.address}/{name}", [f"the array is {shape} in {entry.bytes:,} bytes"])
            self._arrays[name] = _Array(entry, header.dtype, header.shape[1:], header.shape[0], header.size)
        return self._arrays[name]

    def _check_block(self, number: int, rows: NDArray[Any]) -> None:
        """Check that rows belong to the episodes: the digests of whole files cannot be compared."""
        episodes = self._blocks[number]
        if rows.dtype != self.manifest.schema.record:
            problem = f"the records are {rows.dtype}, expected {self.manifest.schema.record} as in the manifest"
            raise IntegrityError(f"{self.address}/{ROWS_FILE}", [problem])
        expected = np.repeat(episodes, self.episodes.lengths[episodes])
        if not np.array_equal(rows[dotted_name(EPISODE)], expected):
            problem = f"the rows of episodes {episodes[0]} to {episodes[-1]} have other episode numbers"
            raise IntegrityError(f"{self.address}/{ROWS_FILE}", [problem], hint=_REPLACED)

    @override
    def build(self, shard: int, fetched: dict[str, NDArray[Any]], folder: Path) -> None:
        episodes, manifest = self._blocks[shard], self.manifest
        table = self.episodes.records[episodes].copy()
        table["start"] -= table["start"][0]
        rows = fetched[ROWS_FILE]
        rows[dotted_name(EPISODE)] -= episodes[0]
        folder.mkdir(parents=True)
        unknown = {name: self.manifest.schema.array_files[name] for name in _FINGERPRINTS}
        zeros = {name: np.zeros((len(table), *file.shape), file.dtype) for name, file in unknown.items()}
        arrays = {**fetched, **zeros, EPISODES_FILE: table}
        files = [_write_array(folder, name, array) for name, array in arrays.items()]
        for name, data in self._whole_files.items():
            (folder / name).write_bytes(data)
            files.append(self._entry(name))
        replace(
            manifest,
            steps=len(rows),
            episodes=len(table),
            final_unknown=int((~table["final_known"]).sum()),
            files=tuple(files),
            raw=(),
            statistics={},
            spikes=(),
            metadata={},
            decisions=(),
        ).write(folder)


def _write_array(folder: Path, name: str, array: NDArray[Any]) -> StoredFile:
    trailing = array.dtype.itemsize if name == ROWS_FILE else 0
    stream = NpyStream(folder / name, array.dtype, array.shape[1:], len(array), trailing=trailing)
    stream.append(array)
    return stream.close()
