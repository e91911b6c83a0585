"""Streaming: a dataset is sampled while it is downloaded, with a bounded amount of disk space.

upstream   shard 3   shard 0   shard 4   shard 1  ...        in random order
              |---------|
             fetched ahead
folder     [shard 3: a small stored dataset] [shard 0]       the oldest shard is deleted if the space is exceeded
batches     slices of trajectories of shard 3, every trajectory once, then of shard 0, ...
"""

from __future__ import annotations

import itertools
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict
from torch import Tensor

from datasets_rl import disk
from datasets_rl.datasets.shards import Shards
from datasets_rl.errors import InvalidArgumentError, LockedError, UnknownKeyError
from datasets_rl.fetch.parallel import CancelToken
from datasets_rl.fetch.prefetcher import Prefetcher
from datasets_rl.format.reader import StoredDataset
from datasets_rl.samplers.base import Sampler
from datasets_rl.samplers.slices import MASK_KEY, SLICE_ID, BatchLayout
from datasets_rl.storages.base import ReadOnlyStorage, Storage
from datasets_rl.storages.dataset import DatasetStorage
from datasets_rl.ted.keys import EPISODE, NEXT, NEXT_DONE, NEXT_FINAL_KNOWN, NEXT_TRUNCATED, Key, as_key, dotted_name

_ROW_BITS = 40
_MAX_OPEN = 256  # shards whose files stay mapped, for batches that are sampled but not yet read
_MAX_IN_FLIGHT = 2  # groups of raw files that are on the disk at once
_INIT: Key = ("is_init",)


class NoLength(InvalidArgumentError, TypeError):
    """Raised when the length of a stream is requested; a TypeError, because `list` then continues without a length."""


@dataclass(frozen=True, slots=True)
class EpisodeSpan:
    """Consecutive steps of one trajectory in a shard."""

    shard: int
    """The number of shards that were opened before this one."""
    start: int
    length: int

    @property
    def rows(self) -> Tensor:
        """The indices of the steps in the stream, int64 [length]."""
        return torch.arange(self.start, self.start + self.length) + (self.shard << _ROW_BITS)


class Stream(ReadOnlyStorage):
    """The steps of a dataset whose shards come one after the other; read-only, and without a length.

    Each shard becomes a small stored dataset on the disk, which is deleted when the space is needed.

    Args:
        dataset_id: The name of the dataset in messages.
        above: The folder of the streams of this dataset; each stream that is open has its own folder below it.
        open_shards: Returns the shards, given the folder of this stream.
        cache_bytes: The maximum size in bytes of the shards on the disk, in addition to those that are open or being fetched.
        shuffle: Whether the shards, and the trajectories of each, are in random order.
        pad: The value with which short trajectories are padded; None does not pad.

    Raises:
        FetchError: If the description of the dataset cannot be read.
        InvalidArgumentError: If the selection cannot be streamed.
    """

    def __init__(
        self,
        dataset_id: str,
        above: Path,
        open_shards: Callable[[Path], Shards],
        *,
        cache_bytes: int,
        shuffle: bool = True,
        pad: float | None = None,
    ) -> None:
        super().__init__(1)
        self.masked = True  # a shard that is not yet downloaded may lack a final observation
        self.dataset_id = dataset_id
        self.shuffle, self.pad = shuffle, pad
        self.vocabulary: dict[Key, dict[str, int]] = {}
        """The texts read so far, by field, with their numbers."""
        self._cache_bytes = cache_bytes
        self._opened: OrderedDict[int, _Shard] = OrderedDict()
        self._numbers = itertools.count()
        self._episodes = 0
        self._held = ExitStack()
        weakref.finalize(self, self._held.close)  # at the latest when the process ends
        self._folder = self._own_folder(above)
        self.shards = open_shards(self._folder)
        self._held.callback(self.shards.close)

    def _own_folder(self, above: Path) -> Path:
        """Lock and return the first folder that no other stream of this dataset uses, with its existing shards."""
        number = 0
        while True:
            try:
                self._held.enter_context(disk.lock(above / f"{number}.lock", self.dataset_id, wait=0))
            except LockedError:
                number += 1
            else:
                return above / str(number)

    def close(self) -> None:
        """Release the folder, which a later stream can then use."""
        self._held.close()

    @property
    def filled_count(self) -> int:
        """Raise `NoLength`: the total number of steps is unknown."""
        raise NoLength(f"{self.dataset_id} is streamed and has no length", hint="use download=True")

    def runs(self, generator: torch.Generator | None) -> Iterator[EpisodeSpan]:
        """Yield every whole trajectory once."""
        order = self._order(self.shards.count, generator)
        with Prefetcher([[shard] for shard in order], self._fetch, _MAX_IN_FLIGHT) as prefetcher:
            for shard in order:
                number = self._open(shard, prefetcher.take())
                prefetcher.release()
                table = self._opened[number].storage.episodes
                for episode in self._order(len(table), generator):
                    yield EpisodeSpan(number, int(table.starts[episode]), int(table.lengths[episode]))

    def _order(self, count: int, generator: torch.Generator | None) -> list[int]:
        return torch.randperm(count, generator=generator).tolist() if self.shuffle else list(range(count))

    def _fetch(self, shards: Sequence[int], cancel: CancelToken) -> Any:
        """Fetch a shard; None if it is stored."""
        return None if self._is_stored(shards[0]) else self.shards.fetch(shards[0], cancel)

    def _shard_folder(self, shard: int) -> Path:
        return self._folder / "shards" / self.shards.name(shard)

    def _is_stored(self, shard: int) -> bool:
        return (self._shard_folder(shard) / disk.MANIFEST_FILE).is_file()

    def _open(self, shard: int, fetched: Any) -> int:
        folder = self._shard_folder(shard)
        if fetched is None:  # it was stored then, and may have been deleted for space since
            fetched = self._fetch([shard], CancelToken())
        if fetched is not None:
            build = self._folder / "build"
            disk.remove_tree(build)
            self.shards.build(shard, fetched, build)
            folder.parent.mkdir(parents=True, exist_ok=True)
            disk.publish_folder(build, folder)
        folder.touch()  # the shard that was used least recently is deleted first
        self._free_space(folder)
        number = next(self._numbers)
        opened = _Shard.of(StoredDataset(folder), self._episodes, self.vocabulary)
        self._opened[number] = opened
        self._episodes += len(opened.storage.episodes)
        while len(self._opened) > _MAX_OPEN:
            self._opened.popitem(last=False)
        return number

    def _free_space(self, newest: Path) -> None:
        folders = sorted(
            (path for path in newest.parent.iterdir() if path != newest), key=lambda path: path.stat().st_mtime_ns
        )
        sizes = {path: disk.tree_bytes(path) for path in folders}
        while folders and sum(sizes[path] for path in folders) > self._cache_bytes:
            disk.remove_tree(folders.pop(0))

    def get(self, index: Any) -> TensorDict:
        """Raise an error: steps of a stream have no index."""
        raise InvalidArgumentError(
            f"{self.dataset_id} is streamed; {index!r} was requested",
            hint="sample() and iteration return the next steps; download=True gives access to any step",
        )

    def take(self, rows: Tensor) -> TensorDict:
        """Return the steps with the indices of `EpisodeSpan.rows`, int64 [B]; -1 stands for padding."""
        padded = rows < 0
        rows = rows.where(~padded, rows[0])
        numbers = rows >> _ROW_BITS
        order: Tensor | None = None
        if not bool((numbers[1:] >= numbers[:-1]).all()):  # steps of several shards, mixed: one read of each shard
            numbers, order = numbers.sort(stable=True)
            rows = rows[order]
        pieces = []
        start = 0
        for number, count in zip(*torch.unique_consecutive(numbers, return_counts=True), strict=True):
            shard = self._opened[int(number)]
            pieces.append(shard.take(rows[start : start + int(count)] & ((1 << _ROW_BITS) - 1)))
            start += int(count)
        data = pieces[0] if len(pieces) == 1 else TensorDict.cat(pieces)
        if order is not None:
            data = data[order.argsort()]
        if self.pad is not None and padded.any():
            for leaf in data.values(include_nested=True, leaves_only=True):
                leaf[padded] = self.pad if leaf.is_floating_point() else int(self.pad)
            data[NEXT_FINAL_KNOWN][padded] = False
        return data

    def texts(self, key: str | Key) -> list[str]:
        """Return the strings of the integer codes of a text field that were read so far.

        Raises:
            UnknownKeyError: If there is no such text field.
        """
        names = as_key(key)
        if names not in self.vocabulary and names[0] == NEXT:
            names = names[1:]
        if names not in self.vocabulary:
            raise UnknownKeyError(dotted_name(as_key(key)), [dotted_name(known) for known in self.vocabulary])
        return [*self.vocabulary[names]]

    def starts_are_marked(self, run: EpisodeSpan) -> bool:
        """Return whether the dataset has a field that marks the first step of each trajectory."""
        return _INIT in self._opened[run.shard].storage.stored.schema

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.dataset_id!r}, {self.shards.count:,} shards)"


@dataclass(frozen=True, slots=True)
class _Shard:
    """An open shard, whose episodes and texts get the numbers of the stream."""

    storage: DatasetStorage
    first: int
    """The number of its first episode in the stream."""
    numbers: dict[Key, Tensor]
    """For each text field, the number of each of its texts in the stream, int32."""

    @classmethod
    def of(cls, stored: StoredDataset, first: int, vocabulary: dict[Key, dict[str, int]]) -> _Shard:
        numbers: dict[Key, Tensor] = {}
        for field in stored.schema:
            if field.text:
                known_texts = vocabulary.setdefault(field.key, {})
                text_numbers = [known_texts.setdefault(text, len(known_texts)) for text in stored.texts(field.key)]
                numbers[field.key] = torch.tensor(text_numbers, dtype=torch.int32)
                if field.shared:
                    numbers[(NEXT, *field.key)] = numbers[field.key]
        return cls(DatasetStorage(stored, masked=True, image_cache=0), first, numbers)

    def take(self, rows: Tensor) -> TensorDict:
        data = self.storage.get(rows)
        data[EPISODE] = data[EPISODE] + self.first
        for key, numbers in self.numbers.items():
            data[key] = numbers[data[key].long()]
        return data


class StreamSampler(Sampler):
    """A sampler that takes a slice of each trajectory of a stream, in order; an epoch takes each trajectory once.

    Args:
        num_slices: The number of slices of a batch.
        slice_len: The number of steps of a slice. Without both, a batch is one slice.
        strict_length: Whether a trajectory shorter than a slice is an error; else it is taken whole. If the stream pads
            trajectories, ``("collector", "mask")`` is True for the real steps.
    """

    def __init__(
        self,
        *,
        num_slices: int | None = None,
        slice_len: int | None = None,
        strict_length: bool = True,
    ) -> None:
        self.num_slices, self.slice_len = num_slices, slice_len
        self.strict_length = strict_length
        self._runs: Iterator[EpisodeSpan] | None = None
        self._next: EpisodeSpan | None = None

    def sample(self, storage: Storage, batch_size: int) -> tuple[Tensor, dict[str, Any]]:
        """Sample the next batch; the last one of an epoch has the remaining slices."""
        if not isinstance(storage, Stream):
            raise InvalidArgumentError(f"a StreamSampler samples from a Stream; got a {type(storage).__name__}")
        length = self.slice_len or batch_size // (self.num_slices or 1)
        if not length or batch_size % length or (self.num_slices and batch_size % self.num_slices):
            raise InvalidArgumentError(
                f"a batch of {batch_size} steps has no {self.num_slices or batch_size / length:g} slices of equal length",
                hint="give a multiple of num_slices or slice_len",
            )
        slices = [
            self.cut(run, length, filled=storage.pad is not None)
            for run in self._next_trajectories(storage, batch_size // length)
        ]
        return self.batch(storage, slices, length)

    def start_epoch(self) -> None:
        """Drop the rest of the present epoch: the next batch is the first one of another."""
        self._runs = self._next = None
        self.ran_out = False

    def _next_trajectories(self, stream: Stream, count: int) -> list[EpisodeSpan]:
        """Return the next trajectories, fewer at the end of an epoch; reads one ahead to detect the end."""
        trajectories: list[EpisodeSpan] = []
        try:
            if self._runs is None:
                self._runs = stream.runs(self.generator)
                self._next = next(self._runs)
            while self._next is not None and len(trajectories) < count:
                trajectories.append(self._next)
                self._next = next(self._runs, None)
        except BaseException:
            self._runs = None  # the next call starts a new epoch
            raise
        self.ran_out = self._next is None
        if self.ran_out:
            self._runs = None
        return trajectories

    def cut(self, run: EpisodeSpan, length: int, *, filled: bool) -> EpisodeSpan:
        """Return a random slice of a trajectory, with a uniformly distributed start; a short trajectory unchanged.

        Raises:
            InvalidArgumentError: If the trajectory is too short, and short ones are neither padded nor allowed.
        """
        if run.length >= length:
            start = int(torch.randint(run.length - length + 1, (), generator=self.generator))
            return EpisodeSpan(run.shard, run.start + start, length)
        if self.strict_length and not filled:
            raise InvalidArgumentError(
                f"a trajectory has {run.length:,} steps; expected {length:,} for a slice",
                hint="take shorter slices, or give pad or strict_length=False",
            )
        return run

    def batch(self, stream: Stream, chosen: Sequence[EpisodeSpan], length: int) -> tuple[Tensor, dict[str, Any]]:
        """Return the rows of slices, padded to `length` steps if the stream pads, and the fields that describe them."""
        lengths = np.array([run.length for run in chosen])
        layout = BatchLayout.from_lengths(lengths, None if stream.pad is None else length)
        rows = torch.cat([run.rows for run in chosen])
        info: dict[Any, Any] = {
            SLICE_ID: layout.numbers,
            NEXT_TRUNCATED: layout.ends,
            NEXT_DONE: layout.ends.clone(),
        }
        if layout.mask is not None:
            info[MASK_KEY] = layout.mask
            rows = torch.full(layout.mask.shape, -1).masked_scatter_(layout.mask, rows)
        if stream.starts_are_marked(chosen[0]):
            info[_INIT[0]] = torch.zeros(len(rows), dtype=torch.bool).index_fill_(0, layout.firsts, value=True)
        return rows, info


class StreamStepSampler(StreamSampler):
    """A sampler of single steps of a stream, from a shuffled buffer of whole trajectories.

    The buffer is filled with the steps of the next trajectories and shuffled. Batches are taken from it; when half of it
    is left, it is filled and shuffled again. An epoch takes each step once.

    Args:
        buffer_steps: The number of steps from which the buffer is refilled to its size: larger mixes better.
        shuffle: False takes the steps in the order of the stream.
    """

    def __init__(self, *, buffer_steps: int = 100_000, shuffle: bool = True) -> None:
        if buffer_steps < 1:
            raise InvalidArgumentError(f"buffer_steps is {buffer_steps}; expected an integer >= 1")
        super().__init__()
        self.buffer_steps, self.shuffle = buffer_steps, shuffle
        self._rows = torch.empty(0, dtype=torch.int64)

    def sample(self, storage: Storage, batch_size: int) -> tuple[Tensor, dict[str, Any]]:
        """Sample the next batch; the last one of an epoch has the remaining steps."""
        if not isinstance(storage, Stream):
            raise InvalidArgumentError(f"a StreamStepSampler samples from a stream; got a {type(storage).__name__}")
        if len(self._rows) <= max(batch_size, self.buffer_steps // 2):
            self._refill(storage, max(self.buffer_steps, 2 * batch_size))
        batch, self._rows = self._rows[:batch_size], self._rows[batch_size:]
        self.ran_out = self._runs is None and not len(self._rows)
        return batch, {}

    def start_epoch(self) -> None:
        """Drop the rest of the present epoch, with the steps in the buffer."""
        super().start_epoch()
        self._rows = self._rows[:0]

    def _refill(self, stream: Stream, target: int) -> None:
        """Add the next trajectories, unless the epoch ends with the steps that are left."""
        pieces = [self._rows]
        count = len(self._rows)
        if self._runs is not None or not count:
            oldest = int(self._rows.min() >> _ROW_BITS) if count else None
            while count < target:
                (run,) = self._next_trajectories(stream, 1)
                pieces.append(run.rows)
                count += run.length
                oldest = run.shard if oldest is None else oldest
                if self._runs is None or run.shard - oldest >= _MAX_OPEN // 2:  # a closed shard cannot be read
                    break
        rows = torch.cat(pieces)
        self._rows = rows[torch.randperm(count, generator=self.generator)] if self.shuffle else rows
