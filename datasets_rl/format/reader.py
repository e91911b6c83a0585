"""Reader of a stored dataset: opens a folder in O(1), read-only."""

from __future__ import annotations

import json
import math
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from datasets_rl.disk import MANIFEST_FILE
from datasets_rl.errors import IntegrityError, InvalidArgumentError, UnknownKeyError
from datasets_rl.fingerprints.fingerprint import FINGERPRINTS_FILE, SKETCHES_FILE, Fingerprints
from datasets_rl.format.current import in_current_version
from datasets_rl.format.episode_log import EPISODES_FILE
from datasets_rl.format.images.base import Items
from datasets_rl.format.images.compressed import dictionary_file, read_dictionary
from datasets_rl.format.manifest import Manifest
from datasets_rl.format.npy import copy_on_write, map_npy, open_npy, release_pages, take_fields
from datasets_rl.format.schema import ROWS_FILE, Field, Schema
from datasets_rl.read.compressed_frames import FrameDictionary
from datasets_rl.ted.keys import EPISODE, NEXT, NEXT_FINAL_KNOWN, ROOT_FLAGS, Key, dotted_name
from datasets_rl.ted.steps import values_after
from datasets_rl.ted.table import EPISODE_DTYPE, EpisodeTable

T = TypeVar("T")


class StoredDataset:
    """Version of a dataset on disk: manifest, N rows, episode table.

    Opening checks the size of every file against the manifest and memory-maps all arrays. Later reads return the opened
    version, even if another version becomes current.

        >>> from datasets_rl import load
        >>> stored = load("demo/pendulum").stored
        >>> len(stored), stored.manifest.id
        (15000, 'demo/pendulum')

    Args:
        folder: The dataset's folder, to open the current version, or the folder of any version.

    Raises:
        NotADatasetError: If the folder has no manifest.
        ManifestError: If the manifest is not valid.
        IntegrityError: If files are missing or have another size. The error names all of these files.
    """

    def __init__(self, folder: Path) -> None:
        # The folder may be a link to another disk. Links within the folder are rejected.
        in_current_version(folder.resolve(), self._open)

    @classmethod
    def unpublished(cls, folder: Path, manifest: Manifest) -> StoredDataset:
        """Open a folder that has all files of a version but its manifest.

        Raises:
            IntegrityError: As for a version.
        """
        stored = cls.__new__(cls)
        stored._open(folder.resolve(), manifest)  # noqa: SLF001  # of this class
        return stored

    def _open(self, version: Path, manifest: Manifest | None = None) -> None:
        self.folder = version
        """The folder of the opened version."""
        self.manifest = manifest or Manifest.read(self.folder)
        self._maps: dict[str, np.memmap[Any, Any]] = {}
        self._items: dict[str, Items] = {}
        self._whole: dict[str, Any] = {}
        problems = [*_coverage_problems(self.manifest), *size_problems(self.folder, self.manifest)]
        if problems:
            raise IntegrityError(str(self.folder), problems)
        episodes = self.folder / EPISODES_FILE
        self._episodes = copy_on_write(episodes, map_npy(episodes))
        for name, file in self.schema.array_files.items():
            if file.listed:
                self._maps[name] = map_npy(self.folder / name)
            else:
                self._maps[name] = open_npy(self.folder / name, *self._expected_layout(name))

    @property
    def schema(self) -> Schema:
        """Fields of a step and the positions of the fields on disk."""
        return self.manifest.schema

    def __len__(self) -> int:
        """Return the number of steps, N."""
        return self.manifest.steps

    @cached_property
    def episodes(self) -> EpisodeTable:
        """Episode table, [E].

        Raises:
            IntegrityError: If the table is not valid or contradicts the manifest.
        """
        path, records = self.folder / EPISODES_FILE, self._episodes
        fields: Mapping[str, Any] = records.dtype.fields or {}
        is_table = all(name in fields and fields[name][0] == EPISODE_DTYPE[name] for name in EPISODE_DTYPE.names or ())
        try:
            table = EpisodeTable(records) if is_table and records.ndim == 1 else None
        except InvalidArgumentError as error:
            raise IntegrityError(str(path), [str(error)]) from error
        if table is None or len(table) != self.manifest.episodes or table.steps != self.manifest.steps:
            expected = f"{self.manifest.episodes} episodes, {self.manifest.steps} steps"
            actual = table or f"{records.dtype} {list(records.shape)}"
            raise IntegrityError(str(path), [f"the size is {actual}, but the manifest states {expected}"])
        unknown = len(table) - np.count_nonzero(table["final_known"])
        if unknown != self.manifest.final_unknown:
            # Readers decide by the manifest alone whether batches have the mask, so the two must agree.
            problem = (
                f"{unknown:,} final observations are unknown, but the manifest states {self.manifest.final_unknown:,}"
            )
            raise IntegrityError(str(path), [problem])
        return table

    @property
    def fingerprints(self) -> Fingerprints:
        """Fingerprints of the episodes, [E], from the files."""
        records, sketches = (np.asarray(self.map(name)) for name in (FINGERPRINTS_FILE, SKETCHES_FILE))
        return Fingerprints(records, sketches, self.episodes.lengths, self.episodes["final_known"])

    @property
    def rows(self) -> NDArray[Any]:
        """Records of rows.npy, a structured array [N], read-only."""
        return self.map(ROWS_FILE)

    def map(self, name: str, *, writable: bool = False) -> NDArray[Any]:
        """Return one file of the dataset as a memory map, checked against the manifest.

        Args:
            name: Name of the file: rows.npy, final.npy, or a file of a wide field.
            writable: Whether to map copy-on-write. Writes never reach the file.

        Raises:
            InvalidArgumentError: If the dataset has no such file.
            IntegrityError: If the file cannot be mapped.
        """
        if name not in self._maps:
            self._expected_layout(name)  # raises if the dataset has no such file
        mapped = self._maps[name]
        return self.open_file(name, lambda path: copy_on_write(path, mapped)) if writable else mapped

    def release_pages(self) -> None:
        """Release the visited pages of all mapped files: see `npy.release_pages`."""
        for mapped in self._maps.values():
            release_pages(mapped)

    def open_file(self, name: str, opener: Callable[[Path], T]) -> T:
        """Open a file of the opened version.

        Args:
            name: Path within the version.
            opener: Opens the file at the given path.

        Returns:
            The result of `opener`.

        Raises:
            IntegrityError: If this version has been deleted.
        """
        try:
            return opener(self.folder / name)
        except FileNotFoundError:
            raise IntegrityError(
                str(self.folder),
                ["another version replaced the opened version, which was deleted"],
                hint="open it again",
            ) from None

    def _expected_layout(self, name: str) -> tuple[np.dtype[Any], tuple[int, ...]]:
        """Return the expected dtype and shape of an array file."""
        if file := self.schema.array_files.get(name):
            count = (
                int(self.map(file.ends)[-1]) if file.ends else file.count(self.manifest.steps, self.manifest.episodes)
            )
            return file.dtype, (count, *file.shape)
        raise InvalidArgumentError(f"{name!r} is not a file of {self.manifest.id}")

    def column(self, key: Key, start: int = 0, stop: int | None = None) -> NDArray[Any]:
        """Return a field of consecutive rows.

        Args:
            key: Any TED key: a stored field, a shared field under "next", a root flag, or ``("next", "final_known")``
                if the dataset has this field.
            start: First row, as in a slice.
            stop: Row after the last row, as in a slice, N by default.

        Returns:
            [stop - start, ...], in the dtype in memory. It is a view of the file if the file has these values in this
            dtype.

        Raises:
            UnknownKeyError: If the dataset has no such key. The error names the existing keys.
        """
        start, stop, _ = slice(start, stop).indices(self.manifest.steps)
        stop = max(start, stop)
        if key in self.schema:
            stored = self.items(key)[start:stop]
            memory_dtype = self.schema[key].memory_dtype
            return stored if memory_dtype is None else stored.astype(memory_dtype)
        if key in ROOT_FLAGS:
            return np.zeros((stop - start, 1), np.bool_)
        if key[0] == NEXT and key[1:] in self.schema and self.schema[key[1:]].shared:
            return values_after(self.items(key[1:]), self.final_states(key[1:]), self.episodes, start, stop)
        if key == NEXT_FINAL_KNOWN and self.manifest.final_unknown:
            return self.episodes.next_known(np.arange(start, stop))[:, None]
        raise UnknownKeyError(dotted_name(key), [dotted_name(existing) for existing in self.keys()])

    def take_fields(self, keys: Sequence[Key], rows: NDArray[np.int64]) -> list[NDArray[Any]]:
        """Return the values of narrow fields in ascending rows, each [K, ...], in the dtype of the file."""
        return take_fields(self.rows, keys, rows)

    def items(self, key: Key) -> Items:
        """Return the values of a stored field, [N, ...], in the dtype of the file: a view, or a lazy image column."""
        return self._field_items(self.schema[key], final=False)

    def final_states(self, key: Key) -> Items:
        """Return the values of a shared field after the last action of each episode, [E, ...], zeros if unknown."""
        return self._field_items(self.schema[key], final=True)

    def _field_items(self, field: Field, *, final: bool) -> Items:
        name = field.final_file if final else field.file
        if not field.wide:
            return np.asarray(self.map(name)[field.name])
        if name not in self._items:
            self._items[name] = field.image_form.open(self, final=final)
        return self._items[name]

    def read_whole(self, name: str, read: Callable[[Path], T]) -> T:
        """Return the content of a file that is read as a whole, and only once.

        Args:
            name: Path within the version.
            read: Reads the file at the given path.

        Raises:
            IntegrityError: If this version has been deleted.
        """
        if name not in self._whole:
            self._whole[name] = self.open_file(name, read)
        content: T = self._whole[name]
        return content

    def read_json(self, name: str) -> Any:
        """Return the content of a JSON file, given its path within the version.

        Raises:
            IntegrityError: If the file is not valid JSON, or this version has been deleted.
        """
        return self.open_file(name, _read_json)

    @property
    def dictionaries(self) -> dict[Key, FrameDictionary]:
        """The dictionaries of all fields of compressed images.

        Raises:
            IntegrityError: If a file is not a dictionary.
        """
        keys = [field.key for field in self.schema if field.image_form.has_dictionary]
        return {key: self.read_whole(dictionary_file(key), read_dictionary) for key in keys}

    def texts(self, key: Key) -> list[str]:
        """Return the vocabulary of a text field: text i has code i, and text 0 is empty.

        Raises:
            UnknownKeyError: If the dataset has no such text field. The error names the existing text fields.
            IntegrityError: If the file with the texts is not a JSON list of texts.
        """
        root_key = key[1:] if key[0] == NEXT and key not in self.schema else key
        if root_key not in self.schema or not self.schema[root_key].text:
            raise UnknownKeyError(dotted_name(key), [field.name for field in self.schema if field.text])
        return self.read_whole(self.schema[root_key].texts_file, _read_texts)

    def keys(self) -> list[Key]:
        """Return all keys of a TED batch: root keys, then keys under "next"."""
        stored = [field.key for field in self.schema if field.key != EPISODE]
        next_keys = [(NEXT, *field.key) for field in self.schema if field.shared]
        root = [key for key in stored if key[0] != NEXT]
        mask = [NEXT_FINAL_KNOWN] if self.manifest.final_unknown else []
        return [*root, EPISODE, *ROOT_FLAGS, *next_keys, *(key for key in stored if key[0] == NEXT), *mask]

    def __getstate__(self) -> dict[str, Any]:
        # The receiving process maps the files again. The operating system shares the pages.
        return {"folder": self.folder, "digest": self.manifest.digest}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.folder = state["folder"]
        self.open_file(MANIFEST_FILE, Path.stat)
        self._open(self.folder)
        if self.manifest.digest != state["digest"]:
            raise IntegrityError(
                str(self.folder),
                ["another version replaced the dataset while the dataset was sent to this process"],
                hint="open it again",
            )

    def __repr__(self) -> str:
        manifest = self.manifest
        return f"StoredDataset({manifest.id}: {manifest.steps:,} steps, {manifest.episodes:,} episodes, {self.folder})"


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise
    except (OSError, ValueError, RecursionError) as error:
        raise IntegrityError(str(path), [f"the file cannot be read: {error}"]) from error


def _read_texts(path: Path) -> list[str]:
    texts = _read_json(path)
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise IntegrityError(str(path), ["the file is not a JSON list of texts"])
    return texts


def _coverage_problems(manifest: Manifest) -> Iterator[str]:
    """Yield a problem for each required file that the manifest does not list, or lists with too few bytes."""
    schema, steps, episodes = manifest.schema, manifest.steps, manifest.episodes
    needed = {
        name: file.count(steps, episodes) * file.dtype.itemsize * math.prod(file.shape)
        for name, file in schema.array_files.items()
    }
    needed[ROWS_FILE] += schema.record_bytes
    needed |= {EPISODES_FILE: episodes * EPISODE_DTYPE.itemsize}
    needed |= {file.name: file.min_bytes for file in schema.whole_files.values()}
    listed = {entry.path: entry.bytes for entry in manifest.files}
    for whole in schema.whole_files.values():
        if whole.max_bytes is not None and listed.get(whole.name, 0) > whole.max_bytes:
            yield f"{whole.name} has {listed[whole.name]:,} bytes, expected {whole.max_bytes:,} at most"
    for name, min_bytes in sorted(needed.items()):
        if listed.get(name, -1) < min_bytes:
            actual = f"has {listed[name]:,} bytes" if name in listed else "is not listed"
            yield f"{name} {actual}, but {steps:,} steps of {episodes:,} episodes need {min_bytes:,}"


def size_problems(folder: Path, manifest: Manifest) -> Iterator[str]:
    """Yield which files of a version are missing, are no files, or have another size than in the manifest. No data is read."""
    for entry in manifest.files:
        path = folder / entry.path
        try:
            # The file or a parent folder may be a link that leads out of the dataset.
            linked = any((folder / parent).is_symlink() for parent in PurePosixPath(entry.path).parents[:-1])
            status = path.lstat()
        except OSError:
            yield f"{entry.path} is missing"
            continue
        if linked or not stat.S_ISREG(status.st_mode):
            yield f"{entry.path} is a link or not a regular file, expected a file of {entry.bytes:,} bytes"
        elif status.st_size != entry.bytes:
            yield f"{entry.path} is {status.st_size:,} bytes, expected a file of {entry.bytes:,} bytes"
