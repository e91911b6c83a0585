"""A storage on disk, mapped into memory."""

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

from datasets_rl import disk
from datasets_rl.errors import InvalidArgumentError
from datasets_rl.format.schema import shorten
from datasets_rl.storages.lazy import LazyTensorStorage, layout
from datasets_rl.storages.ledger import Ledger
from datasets_rl.storages.lock import ProcessLock
from datasets_rl.storages.scratch import ScratchFolder
from datasets_rl.storages.structure import Structure

__all__ = ["LazyMemmapStorage"]

_ABOUT = "storage.json"
_COUNTS = "counts.bin"
_LOCK = "buffer.lock"
_FORMAT = 1
_ELSEWHERE = "make room, choose another scratch_dir, or a smaller max_size"


class LazyMemmapStorage(LazyTensorStorage):
    """Steps in files that are made when the first data comes, and are mapped into memory.

    The folder holds `storage.json` (what one element is), `rows.0.bin` (the records of all narrow leaves), one further
    file for each wide leaf, `counts.bin` (how many steps there are, and which are being written), and lock files. Every
    process that has the storage, forked or spawned, reads and writes the same steps, from the first one on; so does one
    that opens the folder with `existsok`. The steps that a killed process was writing are `torn`. After a power cut,
    make the folder anew: the system does not say which of its pages have reached the disk.

    Args:
        max_size: Steps that fit.
        scratch_dir: The folder; by default a temporary one, which is removed with the storage.
        device: Where batches go; "auto" for the device of the first data. The files are always mapped by the CPU.
        ndim: Leading axes of the data that count positions.
        existsok: Whether to go on with the steps of an earlier storage in the folder. If not, such a folder is refused.
        compilable: Taken because the reference has it; nothing here stands in the way of a compiler or a process.
        shared_init: Taken because the reference has it: the first data may always come from any process.
        auto_cleanup: Whether the folder is removed with the storage, at the latest when this process ends; by default
            only a temporary one. If the process is killed, the next one that makes a temporary folder removes that of
            this storage; a folder that was named stays then.

    Raises:
        InvalidArgumentError: If there is an earlier storage in the folder that is not to be used, or does not fit.
        DiskFullError: When the first data comes, if the steps do not fit on the disk.
    """

    _form: Structure | None = None
    """What one element was in the process that sent this storage: it has the classes, which the folder only names."""

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
            self._scratch = ScratchFolder.of(self.scratch_dir)
            self.scratch_dir.mkdir(parents=True, exist_ok=True)
        there = [name for name in (_ABOUT, _COUNTS, "rows.0.bin") if (self.scratch_dir / name).exists()]
        if there and not existsok:
            raise InvalidArgumentError(
                f"{self.scratch_dir} holds the files of an earlier storage: {', '.join(there)}",
                hint="give an empty folder, delete these files, or go on with their steps with existsok=True",
            )
        if auto_cleanup and scratch_dir is not None:
            weakref.finalize(self, _remove, self.scratch_dir, os.getpid())
        self._map_counts()
        if self._recorded().unfinished:
            self.lock_path.touch()
            with ProcessLock.at(self.lock_path):
                self.recover()
        held, written, _ = self._counted()
        if (written != held and not 0 <= held == self.slots < written) or not 0 <= held <= self.slots:
            raise InvalidArgumentError(
                f"{self.scratch_dir / _COUNTS} says that {held} of {self.slots} slots are held and {written} were written"
            )

    def _map_counts(self) -> None:
        self._map_ledger(0)
        self._adopt()

    def _map_ledger(self, slots: int) -> None:
        path, words = self.scratch_dir / _COUNTS, Ledger.words_of(slots)
        with path.open("ab") as stream:
            if stream.tell() < words * 8:
                stream.truncate(words * 8)
        self._record_in(Ledger(np.memmap(path, np.int64, mode="r+", shape=(words,)), slots))

    @property
    def initialized(self) -> bool:
        """Whether it is known what one element is, to this process or to another one with the same folder."""
        if self._structure is None:
            self._adopt()
        return self._structure is not None

    @property
    def held(self) -> int:
        """Slots that are held now."""
        return super().held if self.initialized else 0

    @property
    def shared(self) -> bool:
        """Whether other processes may read and write the same memory: always."""
        return True

    def share(self) -> None:
        """Do nothing: the files are shared by all processes that have the storage."""

    @property
    def lock_path(self) -> Path:
        """The lock file of all buffers over these files, in all processes."""
        return self.scratch_dir / _LOCK

    def recover(self) -> None:
        """Find the write that a process began and did not end; the caller excludes all other readers and writers."""
        if self._ledger is not None and self._ledger.unfinished and self.initialized:
            super().recover()

    def _adopt(self) -> None:
        """Map the files that an earlier storage, or another process, has made.

        Raises:
            InvalidArgumentError: If they are damaged, or of a storage with other arguments.
        """
        path = self.scratch_dir / _ABOUT
        if not path.exists():
            return
        try:
            about = json.loads(path.read_text(encoding="utf-8"))
            wrong = [
                f"{name} is {shorten(about.get(name))}; expected {wanted}"
                for name, wanted in (("format", _FORMAT), ("max_size", self.max_size), ("ndim", self.ndim))
                if about.get(name) != wanted
            ]
            structure, lane_shape = Structure.from_json(about["structure"], self._form), tuple(about["lanes"])
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise InvalidArgumentError(f"{path} describes no storage: {error}") from error
        slots = self._slots_for(lane_shape)
        if not wrong:
            wrong = self._damage(structure, (slots, *lane_shape))
        if wrong:
            raise InvalidArgumentError(f"the storage in {self.scratch_dir} does not fit: {'; '.join(wrong)}")
        if self.device is None:
            self.device = torch.device("cpu")
        self._map(structure, lane_shape)

    def _damage(self, structure: Structure, shape: tuple[int, ...]) -> list[str]:
        faults = []
        for path, size in self._files(structure, shape):
            found = path.stat().st_size if path.exists() else None
            if found != size * 8:
                faults.append(
                    f"{path.name} {'is missing' if found is None else f'has {found}'}; expected {size * 8} bytes"
                )
        return faults

    def _files(self, structure: Structure, shape: tuple[int, ...]) -> list[tuple[Path, int]]:
        """Return the path and the words of each table."""
        words = [math.prod(shape) * words for words, _ in layout(structure)]
        return [(self.scratch_dir / f"rows.{number}.bin", size) for number, size in enumerate(words)]

    def _allocate(self, structure: Structure, lane_shape: tuple[int, ...]) -> None:
        objects = [repr(leaf.path) for leaf in structure.leaves if leaf.dtype is None]
        if objects:
            raise InvalidArgumentError(
                f"data that is no tensor cannot lie in a mapped file: {', '.join(objects)}",
                hint="leave it out, or use a LazyTensorStorage",
            )
        with disk.lock(self.scratch_dir / "storage.lock", str(self.scratch_dir)):
            if self.initialized:  # another process was first
                faults = self._known().misfits(structure)
                if faults or lane_shape != self._lane_shape:
                    raise InvalidArgumentError(f"another process has stored other data meanwhile: {'; '.join(faults)}")
                return
            self._map(structure, lane_shape)
            about = {
                "format": _FORMAT,
                "max_size": self.max_size,
                "ndim": self.ndim,
                "lanes": list(lane_shape),
                "structure": structure.to_json(),
            }
            disk.write_json(self.scratch_dir / _ABOUT, about)

    def _map(self, structure: Structure, lane_shape: tuple[int, ...]) -> None:
        shape = (self._slots_for(lane_shape), *lane_shape)
        files = self._files(structure, shape)
        missing = sum(size * 8 for path, size in files if not path.exists())
        disk.require_free(self.scratch_dir, missing, f"{self.max_size:,} steps", hint=_ELSEWHERE)
        self._use(structure, lane_shape, [_mapped(path, size, shape) for path, size in files])
        self._map_ledger(self.slots)

    def _selected(self, flat: Tensor, steps: int) -> list[Tensor]:
        return [self._delivered(part) for part in super()._selected(flat, steps)]

    def _delivered(self, part: Tensor) -> Tensor:
        return part.to(self.device, non_blocking=True)

    def __getstate__(self) -> dict[str, Any]:
        made = {"_tables", "_views", "_objects", "_columns", "_counts", "_ledger", "_structure"}
        state = {name: value for name, value in self.__dict__.items() if name not in made}
        return {**state, "_form": self._structure or self._form, "_indices": {}}

    def __deepcopy__(self, memo: dict[int, Any]) -> LazyMemmapStorage:
        """Copy the steps too, into a temporary folder: a pickle is for processes that share them, a copy is not."""
        device = "auto" if self.device is None else self.device
        copy = memo[id(self)] = type(self)(self.max_size, device=device, ndim=self.ndim)
        copy._form = self._structure or self._form  # noqa: SLF001 - of this class
        copy.load_state_dict(self.state_dict())
        return copy

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._map_counts()


def _mapped(path: Path, words: int, shape: tuple[int, ...]) -> Tensor:
    with path.open("ab") as stream:
        stream.truncate(words * 8)  # sparse: blocks are taken when they are written
    return torch.from_file(str(path), shared=True, size=words, dtype=torch.int64).view(*shape, -1)


def _remove(folder: Path, owner: int) -> None:
    """Remove a folder; a forked process that ends leaves it to the one that made it."""
    if os.getpid() == owner:
        disk.remove_tree(folder)
