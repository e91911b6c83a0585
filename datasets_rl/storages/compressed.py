"""Compressed leaves of a storage: a step has references to frames in place of the frames.

    step written      | pixels [84, 84] | action | next.pixels [84, 84] |
                        v                         v
    frame ring        | frame t | frame t+1 | ...                              one for each shape of frames
                        v                         v
    row               | reference | action | reference | ...

The observation after a step and the observation of the following step are a single frame, if the bytes are equal.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from datasets_rl.format.images.cache import COPIED_BYTES
from datasets_rl.read.threads import run_on_all_cores
from datasets_rl.storages.frame_ring import FrameRing, Frames, References, SavedFrames
from datasets_rl.storages.structure import Leaf
from datasets_rl.ted.keys import NEXT, dotted_name

__all__ = ["CompressedLeaves"]

_TRAINING_FRAMES: Final = 1000
"""Number of frames that are stored unchanged, before the dictionary is trained on these frames."""
_WRITTEN_FRAMES: Final = 4096
"""Maximum number of frames per leaf that are written before the replaced frames are gone."""
_MOVED_FRAMES: Final = 1024

Rows = NDArray[np.int64]
_ALL = slice(None)


class CompressedLeaves:
    """All compressed leaves of a storage.

    Args:
        leaves: The compressed leaves, by number in the structure of a step.
        columns: The references of each compressed leaf, int64 [slots, *envs], by the number of the leaf.
        allocate: Function of the number of a ring and of a number of bytes that returns memory, see `FrameRing`.
        reserve: See `FrameRing`.
    """

    def __init__(
        self,
        leaves: dict[int, Leaf],
        columns: dict[int, Tensor],
        allocate: Callable[[int, int], NDArray[np.uint8]],
        reserve: Callable[[int], None],
    ) -> None:
        shapes = dict.fromkeys(leaf.shape for leaf in leaves.values())
        self._groups = [
            _Group(
                {number: leaf for number, leaf in leaves.items() if leaf.shape == shape},
                columns,
                partial(allocate, ring),
                reserve,
            )
            for ring, shape in enumerate(shapes)
        ]
        self._groups_of = {number: group for group in self._groups for number in group.columns}

    @property
    def nbytes(self) -> int:
        """Bytes of memory that the frames use."""
        return sum(group.ring.nbytes for group in self._groups)

    @staticmethod
    def slots_per_write(envs: int) -> int:
        """Return the maximum number of slots of a call of `writing`."""
        return max(_WRITTEN_FRAMES // envs, 1)

    @contextmanager
    def writing(self, rows: Rows, leaves: dict[int, Any], *, follows: bool) -> Iterator[dict[int, Tensor]]:
        """Store frames. The references, int64 [*axes] of each leaf, must be written inside of the context.

        Args:
            rows: The rows that hold the references, each at most once, int64 [n].
            leaves: The frames of each compressed leaf, [*axes, *shape], where the axes have n elements.
            follows: Whether the storage has not changed since the last call, so that these may continue the steps of
                that call.
        """
        frames = {
            number: leaf.detach().cpu().contiguous().view(-1, self._groups_of[number].ring.frame_bytes).numpy()
            for number, leaf in leaves.items()
        }
        written: dict[int, Tensor] = {}
        for group in self._groups:
            group.begin_write(follows=follows)
            for number, references in group.encode(frames).items():
                axes = leaves[number].shape[: leaves[number].ndim - len(group.shape)]
                written[number] = torch.from_numpy(references).view(axes)
        replaced = [group.references_at(rows) for group in self._groups]
        yield written
        for group, references in zip(self._groups, replaced, strict=True):
            group.end_write(rows, frames, references)

    def read(self, references: dict[int, Tensor]) -> dict[int, Tensor]:
        """Return frames, uint8 [*axes, *shape], for references, int64 [*axes], both by the number of the leaf."""
        frames: dict[int, Tensor] = {}
        for group in self._groups:
            numbers = [number for number in references if self._groups_of[number] is group]
            flat = [references[number].reshape(-1).numpy() for number in numbers]
            if not flat:
                continue
            out = torch.empty(sum(map(len, flat)), group.ring.frame_bytes, dtype=torch.uint8)
            group.ring.read(np.concatenate(flat), out.numpy())
            for number, part in zip(numbers, torch.split(out, [*map(len, flat)]), strict=True):
                frames[number] = part.view(*references[number].shape, *group.shape)
        return frames

    def clear(self) -> None:
        """Remove all frames, after all steps were removed."""
        for group in self._groups:
            for column in group.columns.values():
                column[...] = 0
            group.recount()

    def invalidate(self) -> None:
        """Count the frames again before the next write, after references were overwritten by others."""
        for group in self._groups:
            group.ring.writing = True

    def state_dict(self) -> list[dict[str, Any]]:
        """Return the frames of each ring, see `FrameRing.state_dict`."""
        return [group.ring.state_dict() for group in self._groups]

    def use_dictionaries(self, saved: Iterable[SavedFrames]) -> None:
        """Use the dictionaries of a state for frames of the same sizes."""
        for group in self._groups:
            for frames in saved:
                if frames.frame_bytes == group.ring.frame_bytes and frames.dictionary and not group.ring.dictionary:
                    group.ring.use_dictionary(frames.dictionary.data)

    @property
    def memories(self) -> list[NDArray[np.uint8]]:
        """The memory in use of each ring, as views."""
        return [group.ring.memory[: group.ring.nbytes] for group in self._groups]

    def restore(self, memories: Sequence[NDArray[np.uint8]]) -> None:
        """Copy the `memories` of the frames of a storage of the same size."""
        for group, memory in zip(self._groups, memories, strict=True):
            group.ring.memory[: len(memory)] = memory


class _Group:
    """The compressed leaves of a shape, and the frames."""

    def __init__(
        self,
        leaves: dict[int, Leaf],
        columns: dict[int, Tensor],
        allocate: Callable[[int], NDArray[np.uint8]],
        reserve: Callable[[int], None],
    ) -> None:
        self.columns: dict[int, Rows] = {number: columns[number].numpy().reshape(-1) for number in leaves}
        self.shape = next(iter(leaves.values())).shape
        numbers = {leaf.path: number for number, leaf in leaves.items()}
        self._next_of = {number: numbers[(NEXT, *path)] for path, number in numbers.items() if (NEXT, *path) in numbers}
        self._order = sorted(leaves, key=lambda number: number in self._next_of)
        rows = len(next(iter(self.columns.values())))
        envs = math.prod(next(iter(columns.values())).shape[1:])
        frames = len(leaves) * (rows + max(_WRITTEN_FRAMES, envs)) + _TRAINING_FRAMES
        name = " and ".join(repr(dotted_name(leaf.path)) for leaf in leaves.values())
        self.ring = FrameRing(math.prod(self.shape), frames, allocate, reserve, name)
        self._envs, self._seen = envs, 0
        self._last: tuple[Rows, dict[int, Frames]] | None = None
        """The last rows that were written, and the observations after these rows."""

    def references_at(self, rows: Rows | slice) -> References:
        """Return the references of all leaves in some rows, [leaves * n]."""
        return np.concatenate([column[rows] for column in self.columns.values()])

    def recount(self) -> None:
        """Count the references of all rows."""
        self.ring.recount(self.references_at(_ALL))

    def begin_write(self, *, follows: bool) -> None:
        """Mark the frames as being written. If a process died during a write, count the frames again."""
        if self.ring.writing:
            self.recount()
        self.ring.writing = True
        if not follows:
            self._last = None

    def encode(self, frames: dict[int, Frames]) -> dict[int, References]:
        """Store frames, [n, bytes] of each leaf, and return their references, [n], by the number of the leaf."""
        frames = {number: frames[number] for number in self.columns}
        if self.ring.dictionary is None:
            self._seen += sum(map(len, frames.values()))
            if self._seen >= _TRAINING_FRAMES:
                self._train([*frames.values()])
        references: dict[int, References] = {}
        for number in self._order:
            following = self._next_of.get(number)
            references[number] = (
                self.ring.append(frames[number])
                if following is None
                else self._shared(frames[number], following, frames[following], references[following])
            )
        return references

    def _shared(self, frames: Frames, following: int, next_frames: Frames, next_references: References) -> References:
        """Return references to observations: after the previous step for equal frames, otherwise new references."""
        envs = min(self._envs, len(frames))
        references, equal = np.empty(len(frames), np.int64), np.zeros(len(frames), np.bool_)
        references[envs:] = next_references[: len(frames) - envs]
        _compare(frames[envs:], next_frames, equal[envs:])
        if self._last is not None and len(self._last[0]) == envs:
            rows, last = self._last
            references[:envs] = self.columns[following][rows]
            _compare(frames[:envs], last[following], equal[:envs])
        if equal.all():
            self.ring.retain(references)
        else:
            self.ring.retain(references[equal])
            references[~equal] = self.ring.append(frames[~equal])
        return references

    def end_write(self, rows: Rows, frames: dict[int, Frames], replaced: References) -> None:
        """Count the references that were overwritten, and remember the last observations for the next write."""
        self.ring.release(replaced)
        while self.ring.is_sparse():
            self._move(np.unique(self.ring.movable(self.references_at(_ALL))))
        self.ring.writing = False
        count = len(replaced) // len(self.columns)
        if self._next_of and count:
            last = np.arange(max(count - self._envs, 0), count)
            self._last = rows[last], {number: frames[number][last] for number in self._next_of.values()}

    def _train(self, frames: Sequence[Frames]) -> None:
        """Train the dictionary on the first frames, and compress frames that were stored without a dictionary."""
        stored = np.unique(self.references_at(_ALL))
        stored = stored[stored > 0]
        first = np.empty((len(stored), self.ring.frame_bytes), np.uint8)
        self.ring.read(stored, first)
        count = max(_TRAINING_FRAMES // len(frames), 1)
        samples = [part[:: max(len(part) // count, 1)] for part in frames]
        self.ring.train(np.concatenate([first, *samples])[: 2 * _TRAINING_FRAMES])
        self._move(stored)

    def _move(self, old: References) -> None:
        """Store frames again, and change all references to the new frames.

        If the process dies, both frames are valid.
        """
        frames = np.empty((_MOVED_FRAMES, self.ring.frame_bytes), np.uint8)
        new = np.empty_like(old)
        for start in range(0, len(old), _MOVED_FRAMES):
            part = old[start : start + _MOVED_FRAMES]
            self.ring.read(part, frames[: len(part)])
            new[start : start + len(part)] = self.ring.append(frames[: len(part)])
        for column in self.columns.values():
            places = np.searchsorted(old, column)
            rows = np.flatnonzero(np.append(old, -1)[places] == column)
            self.ring.retain(new[places[rows]])
            self.ring.release(column[rows])
            column[rows] = new[places[rows]]
        self.ring.release(new)  # which `append` has counted


def _compare(frames: Frames, others: Frames, equal: NDArray[np.bool_]) -> None:
    """Write to `equal`, bool [n], which frames, [n, bytes], are equal to the first n of others."""
    from datasets_rl.format.images.loops import compare_images  # deferred: the module loads numba

    per_task = max(COPIED_BYTES // frames.shape[1], 1)
    run_on_all_cores(lambda first, last: compare_images(frames, others, equal, first, last), len(frames), per_task)
