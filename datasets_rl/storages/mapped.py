"""Rows in memory-mapped files, which all processes that know the folder share.

file            content
storage.json    written last: the structure of a step, and the sizes
rows.<n>.bin    table n, int64 [slots, *envs, words]
frames.<n>.bin  compressed frames of the same shape, see `FrameRing`, sparse
counts.bin      the number of steps, and which steps are being written
buffer.lock     the lock of the buffers
storage.lock    the lock of the description
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from datasets_rl import disk
from datasets_rl.errors import InvalidArgumentError
from datasets_rl.format.schema import short_text
from datasets_rl.storages.ledger import Ledger
from datasets_rl.storages.row_layout import row_layout
from datasets_rl.storages.structure import Structure

COUNTS = "counts.bin"
"""The file of the counts."""
_DESCRIPTION = "storage.json"
_LOCK, _DESCRIPTION_LOCK = "buffer.lock", "storage.lock"
_FORMAT = 1
_SPACE_HINT = "free disk space, choose another scratch_dir, or a smaller max_size"


MappedTables = tuple[Structure, tuple[int, ...], list[Tensor]]
"""The structure of a step, the environment axes, and the tables, each int64 [slots, *envs, words], which processes share."""


@dataclass(frozen=True, slots=True)
class MappedRows:
    """The files of a storage."""

    folder: Path
    max_size: int
    """Requested number of steps, which is rounded up to whole slots."""
    ndim: int

    @property
    def existing(self) -> list[str]:
        """The names of the files of an earlier storage in the folder."""
        return [name for name in (_DESCRIPTION, COUNTS, "rows.0.bin") if (self.folder / name).exists()]

    @property
    def lock_path(self) -> Path:
        """Lock file shared by all buffers over this folder, in all processes."""
        return self.folder / _LOCK

    def map_ledger(self, slots: int) -> Ledger:
        """Map the counts of a storage with `slots` slots. With 0, only the counts before the first data."""
        path, words = self.folder / COUNTS, Ledger.word_count(slots)
        with path.open("ab") as stream:
            if stream.tell() < words * 8:
                stream.truncate(words * 8)
        return Ledger(np.memmap(path, np.int64, mode="r+", shape=(words,)), slots)

    def open_tables(self, like: Structure | None) -> MappedTables | None:
        """Map the tables that an earlier storage or another process has created, or None before that.

        Args:
            like: Structure with the classes that the description only names, if this process has such classes.

        Raises:
            InvalidArgumentError: If the files are damaged, or belong to a storage with other arguments.
        """
        path = self.folder / _DESCRIPTION
        if not path.exists():
            return None
        try:
            description = json.loads(path.read_text(encoding="utf-8"))
            env_shape = tuple(description["env_shape"])
            slots = description["slots"]
            is_same_size = self.max_size in {description["max_size"], slots * math.prod(env_shape)}
            expected = (
                ("format", _FORMAT),
                *(() if is_same_size else (("max_size", self.max_size),)),
                ("ndim", self.ndim),
            )
            problems = [
                f"{name} is {short_text(description.get(name))}, expected {value}"
                for name, value in expected
                if description.get(name) != value
            ]
            structure = Structure.from_json(description["structure"], like)
        except (ArithmeticError, AttributeError, KeyError, TypeError, ValueError) as error:
            raise InvalidArgumentError(f"{path} does not describe a storage: {error}") from error
        files = _sizes_of_files(structure, (slots, *env_shape))
        problems = problems or self._file_problems(files)
        if problems:
            raise InvalidArgumentError(f"the storage in {self.folder} does not fit: {'; '.join(problems)}")
        return self._map_tables(structure, env_shape, slots)

    def create_tables(self, structure: Structure, env_shape: tuple[int, ...], slots: int) -> MappedTables:
        """Create the tables for the first data, or map the tables of another process that created them first.

        Raises:
            InvalidArgumentError: If data of another structure has been written first.
            DiskFullError: If the steps do not fit on the disk.
        """
        with disk.lock(self.folder / _DESCRIPTION_LOCK, str(self.folder)):
            first = self.open_tables(structure)
            if first is not None:
                problems = first[0].differences(structure)
                if problems or env_shape != first[1]:
                    raise InvalidArgumentError(
                        f"another process has written data of another structure first: {'; '.join(problems)}"
                    )
                return first
            mapped = self._map_tables(structure, env_shape, slots)
            description = {
                "format": _FORMAT,
                "max_size": self.max_size,
                "slots": slots,
                "ndim": self.ndim,
                "env_shape": list(env_shape),
                "structure": structure.to_json(),
            }
            disk.write_json(self.folder / _DESCRIPTION, description)
        return mapped

    def map_frames(self, number: int, nbytes: int, *, exists: bool) -> NDArray[np.uint8]:
        """Map the memory of compressed frames, of which the disk allocates a block at its first write.

        Args:
            number: Number of the file.
            nbytes: Size of the file in bytes.
            exists: Whether the file must exist, because steps refer to it.

        Raises:
            InvalidArgumentError: If the file is missing, or has another size.
        """
        path = self.folder / f"frames.{number}.bin"
        with path.open("ab") as stream:
            if stream.tell() != nbytes and (exists or stream.tell()):
                raise InvalidArgumentError(
                    f"{path} is missing or damaged: the file has {stream.tell():,} bytes, expected {nbytes:,}",
                    hint="delete the folder, or restore it from a backup",
                )
            stream.truncate(nbytes)
        return np.memmap(path, np.uint8, mode="r+", shape=(nbytes,)).view(np.ndarray)

    def require_space(self, nbytes: int) -> None:
        """Check that compressed frames fit on the disk.

        Raises:
            DiskFullError: If fewer bytes are free.
        """
        disk.require_free(self.folder, nbytes, "the compressed frames", hint=_SPACE_HINT)

    def _map_tables(self, structure: Structure, env_shape: tuple[int, ...], slots: int) -> MappedTables:
        shape = (slots, *env_shape)
        files = _sizes_of_files(structure, shape)
        missing = sum(size * 8 for name, size in files.items() if not (self.folder / name).exists())
        disk.require_free(self.folder, missing, f"{math.prod(shape):,} steps", hint=_SPACE_HINT)
        tables = [_map_file(self.folder / name, size, shape) for name, size in files.items()]
        return structure, env_shape, tables

    def _file_problems(self, files: dict[str, int]) -> list[str]:
        problems = []
        for name, size in files.items():
            path = self.folder / name
            nbytes = path.stat().st_size if path.exists() else None
            if nbytes != size * 8:
                problems.append(
                    f"{name} {'is missing' if nbytes is None else f'has {nbytes}'}, expected {size * 8} bytes"
                )
        return problems

    def remove(self) -> bool:
        """Remove the files, and the folder if it contains nothing else. Return whether there were tables."""
        tables = sorted(self.folder.glob("rows.*.bin")) if self.folder.is_dir() else []
        frames = self.folder.glob("frames.*.bin")
        for name in (_DESCRIPTION, COUNTS, _LOCK, _DESCRIPTION_LOCK, *(path.name for path in (*tables, *frames))):
            disk.remove_file(self.folder / name)
        disk.remove_empty(self.folder)
        return bool(tables)


def _sizes_of_files(structure: Structure, shape: tuple[int, ...]) -> dict[str, int]:
    """Return the name and the number of words of each table."""
    words = [math.prod(shape) * words for words, _ in row_layout(structure)]
    return {f"rows.{number}.bin": size for number, size in enumerate(words)}


def _map_file(path: Path, words: int, shape: tuple[int, ...]) -> Any:
    with path.open("ab") as stream:
        stream.truncate(words * 8)  # sparse: the file system allocates a block at its first write
    return torch.from_file(str(path), shared=True, size=words, dtype=torch.int64).view(*shape, -1)
