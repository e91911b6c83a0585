"""A storage in memory-mapped files."""

from __future__ import annotations

import os
import tempfile
import weakref
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor
from typing_extensions import override

from datasets_rl import disk
from datasets_rl.disk import ScratchFolder
from datasets_rl.errors import InvalidArgumentError
from datasets_rl.storages.lazy import LazyTensorStorage
from datasets_rl.storages.lock import ProcessLock
from datasets_rl.storages.mapped import COUNTS, MappedRows
from datasets_rl.ted.keys import Key


class LazyMemmapStorage(LazyTensorStorage):
    """Steps in memory-mapped files, which are created when the first data are written.

    The folder contains `storage.json` (the structure of a step), `rows.0.bin` (the records of all narrow leaves), a
    file for each wide leaf, `counts.bin` (the number of steps, and which steps are being written), and lock files.
    Every process that has the storage, forked or spawned, reads and writes the same steps from the first step on, and
    so does a process that opens the folder with `existsok`. The steps that a killed process was writing are `torn`.
    After a power cut, create a new folder: which pages have reached the disk is undefined.

        >>> import torch
        >>> from datasets_rl import LazyMemmapStorage, ReplayBuffer
        >>> rb = ReplayBuffer(storage=LazyMemmapStorage(1_000_000), batch_size=4)
        >>> rows = rb.extend(torch.arange(10))
        >>> len(rb), rb[3:5]
        (10, tensor([3, 4]))

    Args:
        max_size: Maximum number of steps. With several environments, the number is rounded up to whole slots at the
            first write.
        scratch_dir: The folder. By default a temporary folder, which is removed with the storage. A
            `tempfile.TemporaryDirectory` exists for as long as the storage, unless the folder is cleaned up.
        device: Device of the batches, "auto" for the device of the first data. The files are always mapped by the CPU.
        ndim: Number of leading axes of the data that index steps.
        existsok: Whether to continue with the steps of an earlier storage in the folder. If False, such a folder raises
            an error.
        compilable: Accepted for compatibility with TorchRL. Has no effect.
        shared_init: Accepted for compatibility with TorchRL: any process may always write the first data.
        auto_cleanup: Whether the folder is removed with the storage, at the latest when this process ends. By default
            only a temporary folder is removed. Of a folder passed as `scratch_dir`, the files of the storage are
            removed, and the folder if it contains nothing else. If the process is killed, the files stay. The next
            process that creates a temporary folder removes temporary folders of killed processes.
        compress: Keys of images to store compressed, in `frames.0.bin`, see `LazyTensorStorage`. By default, the keys
            of an earlier storage in the folder.

    Raises:
        InvalidArgumentError: If the folder contains an earlier storage and `existsok` is False, or that storage does
            not match.
        DiskFullError: At the first write, if the steps do not fit on the disk.
    """

    def __init__(
        self,
        max_size: int,
        *,
        scratch_dir: Path | str | tempfile.TemporaryDirectory[str] | None = None,
        device: torch.device | str = "cpu",
        ndim: int = 1,
        existsok: bool = False,
        compilable: bool = False,
        shared_init: bool = False,
        auto_cleanup: bool | None = None,
        compress: Sequence[str | Key] = (),
    ) -> None:
        del compilable, shared_init
        super().__init__(max_size, device=device, ndim=ndim, compress=compress)
        if scratch_dir is None and auto_cleanup is False:
            self.scratch_dir = Path(tempfile.mkdtemp(prefix="datasets_rl_kept_"))
        elif scratch_dir is None:
            self._scratch = ScratchFolder()
            self.scratch_dir = self._scratch.path
        else:
            if isinstance(scratch_dir, tempfile.TemporaryDirectory):
                # A finalizer, because an attribute could not be pickled: its reference ends with the storage.
                weakref.finalize(self, id, scratch_dir)
                scratch_dir = scratch_dir.name
            if not isinstance(scratch_dir, (str, os.PathLike)):
                raise InvalidArgumentError(f"scratch_dir is {scratch_dir!r}, expected a path")
            self.scratch_dir = Path(scratch_dir).absolute()
            disk.check_outside_versions(self.scratch_dir)
            self._scratch = ScratchFolder.containing(self.scratch_dir)
            self.scratch_dir.mkdir(parents=True, exist_ok=True)
        files = MappedRows(self.scratch_dir, self.max_size, self.ndim)
        if files.existing and not existsok:
            raise InvalidArgumentError(
                f"{self.scratch_dir} contains the files of an earlier storage: {', '.join(files.existing)}",
                hint="choose an empty folder, delete these files, or continue with the steps in these files with existsok=True",
            )
        if auto_cleanup and scratch_dir is not None:
            weakref.finalize(self, _remove_files, files, os.getpid())
        self._use_files(files)
        if self._ensure_ledger().unfinished:
            files.lock_path.touch()
            with ProcessLock.for_path(files.lock_path):
                self.recover()
        held, written, _ = self._counted()
        if (written != held and not 0 <= held == self.slot_count < written) or not 0 <= held <= self.slot_count:
            raise InvalidArgumentError(
                f"{self.scratch_dir / COUNTS} has inconsistent counts: held {held}, slots {self.slot_count}, written {written}",
                hint="delete the folder, or restore it from a backup",
            )

    def share(self) -> None:
        """Do nothing: the files are always shared by all processes that have the storage."""

    def cleanup(self) -> bool:
        """Remove the files of the steps, and the folder if it contains nothing else. The storage must not be used then.

        Returns:
            Whether there were files of steps.
        """
        if self._files is None:
            return False
        removed = self._files.remove()
        if self._scratch is not None and self.scratch_dir.is_dir():
            disk.remove_tree(self.scratch_dir)
        return removed

    @override
    def _move_to_device(self, part: Tensor) -> Tensor:
        return part.to(self.device, non_blocking=True)


def _remove_files(files: MappedRows, owner: int) -> None:
    """Remove the files of a storage, and the folder if nothing else is in it.

    A forked process leaves this to the parent.
    """
    if os.getpid() == owner:
        files.remove()
