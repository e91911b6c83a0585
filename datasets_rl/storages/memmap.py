"""A storage in memory-mapped files."""

from __future__ import annotations

import json
import math
import os
import tempfile
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from datasets_rl import disk
from datasets_rl.checkpoint import with_renamed_keys
from datasets_rl.errors import InvalidArgumentError
from datasets_rl.format.schema import short_text
from datasets_rl.storages.lazy import LazyTensorStorage, row_layout
from datasets_rl.storages.ledger import Ledger
from datasets_rl.storages.lock import ProcessLock
from datasets_rl.storages.scratch import ScratchFolder
from datasets_rl.storages.structure import Structure

__all__ = ["LazyMemmapStorage"]

_DESCRIPTION = "storage.json"
_COUNTS = "counts.bin"
_LOCK = "buffer.lock"
_FORMAT = 1
_SPACE_HINT = "free disk space, choose another scratch_dir, or a smaller max_size"


class LazyMemmapStorage(LazyTensorStorage):
    """Steps in memory-mapped files, which are created when the first data are written.

    The folder contains `storage.json` (the structure of a step), `rows.0.bin` (the records of all narrow leaves), one
    more file per wide leaf, `counts.bin` (the number of steps, and which ones are being written), and lock files. Every
    process that has the storage, forked or spawned, reads and writes the same steps from the first one; so does a
    process that opens the folder with `existsok`. The steps that a killed process was writing are `torn`. After a power
    cut, create a new folder: which pages have reached the disk is undefined.

    Args:
        max_size: Maximum number of steps.
        scratch_dir: The folder; by default a temporary folder, which is removed with the storage.
        device: Device of the batches; "auto" for the device of the first data. The files are always mapped by the CPU.
        ndim: Number of leading axes of the data that index steps.
        existsok: Whether to continue with the steps of an earlier storage in the folder. If False, such a folder raises
            an error.
        compilable: Accepted for compatibility with TorchRL; has no effect.
        shared_init: Accepted for compatibility with TorchRL: any process may always write the first data.
        auto_cleanup: Whether the folder is removed with the storage, at the latest when this process ends; by default
            only a temporary folder is removed. If the process is killed, the next process that creates a temporary
            folder removes the one of this storage; a folder passed as `scratch_dir` stays.

    Raises:
        InvalidArgumentError: If the folder contains an earlier storage and `existsok` is False, or that storage does
            not match.
        DiskFullError: At the first write, if the steps do not fit on the disk.
    """

    _sender_structure: Structure | None = None
    """Structure in the process that sent this storage: it has the classes that the folder only names."""

    def __init__(
        self,
        max_size: int,
        *,
        scratch_dir: Path | str | None = None,
        device: torch.device | str = "cpu",
        ndim: int = 1,
        existsok: bool = False,
        compilable: bool = False,
        shared_init: bool = False,
        auto_cleanup: bool | None = None,
    ) -> None:
        del compilable, shared_init
        super().__init__(max_size, device=device, ndim=ndim)
        self._scratch: ScratchFolder | None = None
        if scratch_dir is None and auto_cleanup is False:
            self.scratch_dir = Path(tempfile.mkdtemp(prefix="datasets_rl_kept_"))
        elif scratch_dir is None:
            self._scratch = ScratchFolder()
            self.scratch_dir = self._scratch.path
        else:
            if not isinstance(scratch_dir, (str, os.PathLike)):
                raise InvalidArgumentError(f"scratch_dir is {scratch_dir!r}; expected a path")
            self.scratch_dir = Path(scratch_dir).absolute()
            self._scratch = ScratchFolder.containing(self.scratch_dir)
            self.scratch_dir.mkdir(parents=True, exist_ok=True)
        existing = [name for name in (_DESCRIPTION, _COUNTS, "rows.0.bin") if (self.scratch_dir / name).exists()]
        if existing and not existsok:
            raise InvalidArgumentError(
                f"{self.scratch_dir} contains the files of an earlier storage: {', '.join(existing)}",
                hint="choose an empty folder, delete these files, or continue with their steps with existsok=True",
            )
        if auto_cleanup and scratch_dir is not None:
            weakref.finalize(self, _remove_folder, self.scratch_dir, os.getpid())
        self._map_counts()
        if self._ensure_ledger().unfinished:
            self.lock_path.touch()
            with ProcessLock.for_path(self.lock_path):
                self.recover()
        held, written, _ = self._counted()
        if (written != held and not 0 <= held == self.slot_count < written) or not 0 <= held <= self.slot_count:
            raise InvalidArgumentError(
                f"{self.scratch_dir / _COUNTS} has inconsistent counts: held {held}, slots {self.slot_count}, written {written}",
                hint="delete the folder, or restore it from a backup",
            )

    def _map_counts(self) -> None:
        self._map_ledger(0)
        self._adopt_files()

    def _map_ledger(self, slots: int) -> None:
        path, words = self.scratch_dir / _COUNTS, Ledger.word_count(slots)
        with path.open("ab") as stream:
            if stream.tell() < words * 8:
                stream.truncate(words * 8)
        self._use_ledger(Ledger(np.memmap(path, np.int64, mode="r+", shape=(words,)), slots))

    @property
    def initialized(self) -> bool:
        """Whether the structure of a step is known to this process or to another process with the same folder."""
        if self._structure is None:
            self._adopt_files()
        return self._structure is not None

    @property
    @override
    def filled_count(self) -> int:
        return super().filled_count if self.initialized else 0

    @property
    @override
    def shared(self) -> bool:
        return True

    def share(self) -> None:
        """Do nothing: the files are always shared by all processes that have the storage."""

    @property
    @override
    def lock_path(self) -> Path:
        return self.scratch_dir / _LOCK

    @override
    def recover(self) -> None:
        if self._ledger is not None and self._ledger.unfinished and self.initialized:
            super().recover()

    def _adopt_files(self) -> None:
        """Map the files that an earlier storage or another process has created.

        Raises:
            InvalidArgumentError: If the files are damaged, or belong to a storage with other arguments.
        """
        path = self.scratch_dir / _DESCRIPTION
        if not path.exists():
            return
        try:
            description = with_renamed_keys(json.loads(path.read_text(encoding="utf-8")), lanes="env_shape")
            problems = [
                f"{name} is {short_text(description.get(name))}; expected {expected}"
                for name, expected in (("format", _FORMAT), ("max_size", self.max_size), ("ndim", self.ndim))
                if description.get(name) != expected
            ]
            structure = Structure.from_json(description["structure"], self._sender_structure)
            env_shape = tuple(description["env_shape"])
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise InvalidArgumentError(f"{path} does not describe a storage: {error}") from error
        slots = self._slots_for(env_shape)
        if not problems:
            problems = self._file_problems(structure, (slots, *env_shape))
        if problems:
            raise InvalidArgumentError(f"the storage in {self.scratch_dir} does not fit: {'; '.join(problems)}")
        if self.device is None:
            self.device = torch.device("cpu")
        self._map_files(structure, env_shape)

    def _file_problems(self, structure: Structure, shape: tuple[int, ...]) -> list[str]:
        problems = []
        for path, size in self._file_sizes(structure, shape):
            nbytes = path.stat().st_size if path.exists() else None
            if nbytes != size * 8:
                problems.append(
                    f"{path.name} {'is missing' if nbytes is None else f'has {nbytes}'}; expected {size * 8} bytes"
                )
        return problems

    def _file_sizes(self, structure: Structure, shape: tuple[int, ...]) -> list[tuple[Path, int]]:
        """Return the path and the number of words of each table."""
        words = [math.prod(shape) * words for words, _ in row_layout(structure)]
        return [(self.scratch_dir / f"rows.{number}.bin", size) for number, size in enumerate(words)]

    def _allocate(self, structure: Structure, env_shape: tuple[int, ...]) -> None:
        objects = [repr(leaf.path) for leaf in structure.leaves if leaf.dtype is None]
        if objects:
            raise InvalidArgumentError(
                f"non-tensor data cannot be stored in a memory-mapped file: {', '.join(objects)}",
                hint="drop these keys, or use a LazyTensorStorage",
            )
        with disk.lock(self.scratch_dir / "storage.lock", str(self.scratch_dir)):
            if self.initialized:  # another process was first
                problems = self._initialized_structure().problems(structure)
                if problems or env_shape != self._env_shape:
                    raise InvalidArgumentError(
                        f"another process has written data of another structure first: {'; '.join(problems)}"
                    )
                return
            self._map_files(structure, env_shape)
            description = {
                "format": _FORMAT,
                "max_size": self.max_size,
                "ndim": self.ndim,
                "env_shape": list(env_shape),
                "structure": structure.to_json(),
            }
            disk.write_json(self.scratch_dir / _DESCRIPTION, description)

    def _map_files(self, structure: Structure, env_shape: tuple[int, ...]) -> None:
        shape = (self._slots_for(env_shape), *env_shape)
        files = self._file_sizes(structure, shape)
        missing = sum(size * 8 for path, size in files if not path.exists())
        disk.require_free(self.scratch_dir, missing, f"{self.max_size:,} steps", hint=_SPACE_HINT)
        self._use_tables(structure, env_shape, [_map_file(path, size, shape) for path, size in files])
        self._map_ledger(self.slot_count)

    def _select_rows(self, flat: Tensor, steps: int) -> list[Tensor]:
        return [self._move_to_device(part) for part in super()._select_rows(flat, steps)]

    def _move_to_device(self, part: Tensor) -> Tensor:
        return part.to(self.device, non_blocking=True)

    def __getstate__(self) -> dict[str, Any]:
        derived = {"_tables", "_views", "_objects", "_columns", "_counts", "_ledger", "_structure"}
        state = {name: value for name, value in self.__dict__.items() if name not in derived}
        return {**state, "_sender_structure": self._structure or self._sender_structure, "_indices": {}}

    def __deepcopy__(self, memo: dict[int, Any]) -> LazyMemmapStorage:
        """Copy the steps too, into a temporary folder: unlike a pickle, a copy does not share the steps."""
        device = "auto" if self.device is None else self.device
        copy = memo[id(self)] = type(self)(self.max_size, device=device, ndim=self.ndim)
        copy._sender_structure = self._structure or self._sender_structure  # noqa: SLF001 - of this class
        copy.load_state_dict(self.state_dict())
        return copy

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._map_counts()


def _map_file(path: Path, words: int, shape: tuple[int, ...]) -> Tensor:
    with path.open("ab") as stream:
        stream.truncate(words * 8)  # sparse: the file system allocates a block at its first write
    return torch.from_file(str(path), shared=True, size=words, dtype=torch.int64).view(*shape, -1)


def _remove_folder(folder: Path, owner: int) -> None:
    """Remove a folder; a forked process that ends leaves it to its parent."""
    if os.getpid() == owner:
        disk.remove_tree(folder)
