"""Streaming: a dataset is sampled during its download, with a bounded amount of disk space.

upstream   shard 3   shard 0   shard 4   shard 1  ...        in random order
              |---------|
             fetched ahead
folder     [shard 3: a small stored dataset] [shard 0]       the oldest shard is deleted if the space is exceeded
batches     slices of trajectories of shard 3, every trajectory once, then of shard 0, ...
"""

from __future__ import annotations

import itertools
import threading
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from copy import copy
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from tensordict import TensorDict
from torch import Tensor
from typing_extensions import override

from datasets_rl import disk
from datasets_rl.datasets.shards import Shards
from datasets_rl.errors import InvalidArgumentError, LockedError, UnknownKeyError
from datasets_rl.fetch.parallel import CancelToken
from datasets_rl.fetch.prefetcher import Prefetcher
from datasets_rl.format.reader import StoredDataset
from datasets_rl.format.writer import DatasetWriter
from datasets_rl.preprocessing.batches import episode_batches, step_bytes
from datasets_rl.samplers.epochs import Epochs, Items, Uneven, seeded
from datasets_rl.samplers.seeded import SeededSampler
from datasets_rl.samplers.slices import MASK_KEY, SLICE_ID, BatchLayout
from datasets_rl.storages.base import ReadOnlyStorage, Storage
from datasets_rl.storages.dataset import DatasetStorage
from datasets_rl.store.layout import is_marked, mark_folder
from datasets_rl.ted.keys import EPISODE, NEXT, NEXT_DONE, NEXT_FINAL_KNOWN, NEXT_TRUNCATED, Key, as_key, dotted_name

Index = NDArray[np.int64]

_ROW_BITS = 40
_MAX_OPEN = 256  # shards with mapped files, for batches that are sampled but not yet read
_MAX_POOL = 128  # shards with mixed steps
_WRITTEN_BYTES = 64 << 20
_MAX_IN_FLIGHT = 2  # groups of raw files that are on the disk at once
_INIT: Key = ("is_init",)


class NoLength(InvalidArgumentError, TypeError):
    """Raised when the length of a stream is requested. A TypeError, because `list` then continues without a length."""


@dataclass(frozen=True, slots=True)
class EpisodeSpan:
    """Consecutive steps of a trajectory in a shard."""

    shard: int
    """The number of the shard."""
    start: int
    length: int

    @property
    def rows(self) -> Tensor:
        """The indices of the steps in the stream, int64 [length]."""
        return torch.arange(self.start, self.start + self.length) + (self.shard << _ROW_BITS)


class Stream(ReadOnlyStorage):
    """The steps of a dataset with shards that come in order. Read-only, and without a length.

    Each shard becomes a small stored dataset on the disk, which is deleted when the space is needed.

    Args:
        dataset_id: The name of the dataset in messages.
        above: The folder of the streams of this dataset. Each open stream has a separate folder below it.
        open_shards: Returns the shards, given the folder of this stream.
        cache_bytes: The maximum size in bytes of the shards on the disk, in addition to open shards and shards that are
            being fetched.
        pad: The value with which short trajectories are padded. None does not pad.

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
        pad: float | None = None,
    ) -> None:
        super().__init__(1)
        self.reopened = partial(Stream, dataset_id, above, open_shards, cache_bytes=cache_bytes, pad=pad)
        """Opens the same stream in another process, in a separate folder."""
        self.is_opened_for_copy = False
        """Whether it was in a pickle, and nothing else uses it."""
        self.masked = True  # a shard that is not yet downloaded may lack a final observation
        self.dataset_id = dataset_id
        self.pad = pad
        self.vocabulary: dict[Key, dict[str, int]] = {}
        """The texts read so far, by field, with numbers."""
        self._cache_bytes = cache_bytes
        self._opened: OrderedDict[int, OpenShard] = OrderedDict()
        self._lock = threading.RLock()
        self._order: deque[int] = deque()  # the shards that the prefetcher has not yet returned
        self._ahead = ExitStack()
        self._held = ExitStack()
        weakref.finalize(self, self._held.close)  # at the latest when the process ends
        self._folder = self._own_folder(above)
        self.shards = open_shards(self._folder)
        self._held.callback(self.shards.close)
        self._held.callback(self._ahead.close)
        self._episode_counts, self._step_counts = self.shards.lengths()

    def __reduce__(self) -> tuple[Any, ...]:
        # Another process needs another folder and other threads.
        return self.reopened, (), {"is_opened_for_copy": True}

    def for_worker(self) -> Stream:
        """Return this stream if it was opened for a worker that got it in a pickle, and else another one of its dataset."""
        return self if self.is_opened_for_copy else self.reopened()

    def _own_folder(self, above: Path) -> Path:
        """Lock and return the first folder that no other stream of this dataset uses, with its existing shards."""
        for number in itertools.count():
            folder = above / str(number)
            if folder.exists() and any(folder.iterdir()) and not is_marked(folder):
                continue  # of others
            with suppress(LockedError):
                self._held.enter_context(disk.lock(above / f"{number}.lock", self.dataset_id, wait=0))
                mark_folder(folder)
                return folder
        raise AssertionError("unreachable: numbers do not end")

    def close(self) -> None:
        """Release the folder, which a later stream can then use."""
        self._held.close()

    @property
    def filled_count(self) -> int:
        """Raise `NoLength`: the total number of steps is unknown."""
        raise NoLength(f"{self.dataset_id} is streamed and has no length", hint="use download=True")

    def episodes(self) -> Items:
        """The shards, with episodes as units."""
        return self._items("episodes", self._episode_counts, lambda shard: len(self.open(shard).storage.episodes))

    def steps(self) -> Items:
        """The shards, with steps as units."""
        return self._items("steps", self._step_counts, lambda shard: len(self.open(shard).storage))

    def _items(self, units: str, lengths: Index, open_item: Callable[[int], int]) -> Items:
        return Items(f"{self.shards.dataset} {units}", lengths, open_item, self._follow)

    def _follow(self, shards: Index) -> None:
        """Fetch shards ahead, in this order."""
        self._ahead.close()
        self._order = deque(shards.tolist())
        fetch = partial(_fetch, self.shards, self._folder)  # a thread with a reference would keep the stream alive
        groups = [[shard] for shard in self._order]
        self._prefetcher = self._ahead.enter_context(Prefetcher(groups, fetch, _MAX_IN_FLIGHT))

    def open(self, shard: int) -> OpenShard:
        """Open a shard by its number, and the previous shards of the epoch. A shard may stay open."""
        with self._lock:
            try:
                while shard not in self._opened and shard in self._order:
                    fetched = self._prefetcher.take()
                    self._open(self._order.popleft(), fetched)
                    self._prefetcher.release()
            except BaseException:
                self._order.clear()  # the thread has ended: the next shards are fetched when needed
                self._ahead.close()
                raise
            if shard not in self._opened:
                self._open(shard, _fetch(self.shards, self._folder, [shard], CancelToken()))
            self._opened.move_to_end(shard)
            return self._opened[shard]

    def _open(self, shard: int, fetched: Any) -> None:
        folder = _shard_folder(self.shards, self._folder, shard)
        if fetched is None:  # stored earlier, and perhaps deleted for space since
            fetched = _fetch(self.shards, self._folder, [shard], CancelToken())
        if fetched is not None:
            build = self._folder / "build"
            disk.remove_tree(build)
            self.shards.build(shard, fetched, build)
            folder.parent.mkdir(parents=True, exist_ok=True)
            disk.publish_folder(build, folder)
        folder.touch()  # the shard that was used least recently is deleted first
        self._free_space(folder)
        first = self.shards.first_episode(shard)
        self._opened[shard] = OpenShard.of(StoredDataset(folder), first, self.vocabulary)
        while len(self._opened) > _MAX_OPEN:
            self._opened.popitem(last=False)

    def _free_space(self, newest: Path) -> None:
        folders = sorted(
            (path for path in newest.parent.iterdir() if path != newest), key=lambda path: path.stat().st_mtime_ns
        )
        sizes = {path: disk.tree_bytes(path) for path in folders}
        while folders and sum(sizes[path] for path in folders) > self._cache_bytes:
            disk.remove_tree(folders.pop(0))

    @contextmanager
    def written(self) -> Iterator[StoredDataset]:
        """Hold all episodes, in the order of the shards, as a stored dataset on the disk for the duration of the block.

        The shards of the present epoch that are left are fetched when needed.

        Raises:
            FetchError: If a shard cannot be read.
            DiskFullError: If the disk has too little space.
        """
        folder = self._folder / "written"
        disk.remove_tree(folder)  # of a process that was killed
        try:
            self._write(folder)
            yield StoredDataset(folder)
        finally:
            disk.remove_tree(folder)

    def _write(self, folder: Path) -> None:
        disk.make_folder(folder)
        shards = np.arange(self.shards.count)
        self._follow(shards)
        first = self.open(0).storage.stored
        columns = [field for field in first.schema if field.key not in {EPISODE, NEXT_DONE}]
        writer = DatasetWriter(folder, columns, name=self.dataset_id, dictionaries=first.dictionaries)
        try:
            for shard in shards.tolist():
                stored = self.open(shard).storage.stored
                max_steps = _WRITTEN_BYTES // step_bytes(stored.schema)
                for episodes in episode_batches(stored, 0, len(stored.episodes), max_steps):
                    writer.extend(episodes)
            written = writer.finish()
        finally:
            writer.discard()
        contents = {field.name: getattr(written, field.name) for field in fields(written)}
        replace(first.manifest, **contents).write(folder)

    def get(self, index: Any) -> TensorDict:
        """Raise an error: steps of a stream have no index."""
        raise InvalidArgumentError(
            f"{self.dataset_id} is streamed, and {index!r} was requested",
            hint="sample() and iteration return the next steps, download=True gives access to any step",
        )

    def take(self, rows: Tensor) -> TensorDict:
        """Return the steps with the indices of `EpisodeSpan.rows`, int64 [B]. -1 stands for padding."""
        padded = rows < 0
        rows = rows.where(~padded, rows[0])
        numbers = rows >> _ROW_BITS
        order: Tensor | None = None
        if not bool((numbers[1:] >= numbers[:-1]).all()):  # steps of several shards, mixed: a single read of each shard
            numbers, order = numbers.sort(stable=True)
            rows = rows[order]
        pieces = []
        start = 0
        for number, count in zip(*torch.unique_consecutive(numbers, return_counts=True), strict=True):
            shard = self._opened.get(int(number)) or self.open(int(number))
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

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.dataset_id!r}, {self.shards.count:,} shards)"


def _shard_folder(shards: Shards, folder: Path, shard: int) -> Path:
    return folder / "shards" / shards.name(shard)


def _fetch(shards: Shards, folder: Path, group: Sequence[int], cancel: CancelToken) -> Any:
    """Fetch a shard, or return None if the shard is stored."""
    is_stored = (_shard_folder(shards, folder, group[0]) / disk.MANIFEST_FILE).is_file()
    return None if is_stored else shards.fetch(group[0], cancel)


@dataclass(frozen=True, slots=True)
class OpenShard:
    """An open shard. Its episodes and texts get the numbers of the stream."""

    storage: DatasetStorage
    first: int
    """The number of its first episode."""
    numbers: dict[Key, Tensor]
    """For each text field, the number of each of its texts in the stream, int32."""

    @classmethod
    def of(cls, stored: StoredDataset, first: int, vocabulary: dict[Key, dict[str, int]]) -> OpenShard:
        """Return a shard after adding its texts to a vocabulary."""
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
        """Return the steps of these rows of the shard, int64 [B]."""
        data = self.storage.get(rows)
        data[EPISODE] = data[EPISODE] + self.first
        for key, numbers in self.numbers.items():
            data[key] = numbers[data[key].long()]
        return data


class StreamSampler(SeededSampler):
    """A sampler that takes a slice of each trajectory of a stream. An epoch takes each trajectory once.

    Ranks share the shards, and so the trajectories, as the ranks of an `EpisodeSampler` share episodes. The state is
    valid for every rank, and for any number of ranks.

    Args:
        num_slices: The number of slices of a batch.
        slice_len: The number of steps of a slice. Without both, a batch is a single slice.
        strict_length: Whether a trajectory shorter than a slice is an error. Otherwise the trajectory is taken whole.
            If the stream pads trajectories, ``("collector", "mask")`` is True for the real steps.
        shuffle: Whether the shards, and the trajectories of each, are in random order.
        seed: The seed of the order, as for `EpisodeSampler`.
        uneven: What to do about ranks with different numbers of trajectories or steps, as for `EpisodeSampler`.
        rank: The number of this process, as for `EpisodeSampler`.
        world_size: The number of processes.
    """

    draws_ahead = False

    def __init__(
        self,
        *,
        num_slices: int | None = None,
        slice_len: int | None = None,
        strict_length: bool = True,
        shuffle: bool = True,
        seed: int | None = None,
        uneven: Uneven = "keep",
        rank: int | None = None,
        world_size: int | None = None,
    ) -> None:
        self.num_slices, self.slice_len = num_slices, slice_len
        self.strict_length = strict_length
        self.epochs = Epochs(seed=seed, shuffle=shuffle, uneven=uneven, rank=rank, world_size=world_size)
        self._stream: Stream | None = None
        self._starts: OrderedDict[tuple[int, int | None, int], Tensor] = OrderedDict()

    @override
    def attach(self, storage: Storage) -> None:
        if not isinstance(storage, Stream):
            raise InvalidArgumentError(
                f"a {type(self).__name__} samples from a Stream, and the storage is a {type(storage).__name__}"
            )
        if storage is not self._stream:
            self.epochs.bind(self._items_of(storage))
            self._stream = storage

    def _items_of(self, stream: Stream) -> Items:
        return stream.episodes()

    @override
    def bind(self, storage: Storage, batch_size: int) -> int:
        self.attach(storage)
        return batch_size // self._length(batch_size)

    def _length(self, batch_size: int) -> int:
        """Return the number of steps of a slice."""
        length = self.slice_len or batch_size // (self.num_slices or 1)
        if not length or batch_size % length or (self.num_slices and batch_size % self.num_slices):
            raise InvalidArgumentError(
                f"a batch of {batch_size} steps has no {self.num_slices or batch_size / length:g} slices of equal length",
                hint="give a multiple of num_slices or slice_len",
            )
        return length

    def sample(self, storage: Storage, batch_size: int) -> tuple[Tensor, dict[str, Any]]:
        """Sample the next batch. The last batch of an epoch has the remaining slices."""
        count = self.bind(storage, batch_size)
        return self.take(cast("Stream", storage), count, self._length(batch_size))

    def for_worker(self, worker: int, workers: int) -> StreamSampler:
        """Return a sampler with the share of a worker of this rank."""
        self.epochs.draw_seed(self.generator)
        sampler = copy(self)
        sampler.epochs = self.epochs.divided(worker, workers)
        return sampler

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_stream": None}

    def start_epoch(self) -> None:
        """Drop the rest of the present epoch, unless just restored. The next batch begins another epoch."""
        self.epochs.start()
        self.ran_out = False

    def take(self, stream: Stream, count: int, length: int | None) -> tuple[Tensor, dict[str, Any]]:
        """Return the rows of slices of the next trajectories, with the fields that describe the slices.

        Args:
            stream: The stream, to which the sampler is attached.
            count: The number of trajectories.
            length: The number of steps of a slice. None takes trajectories whole, without fields.
        """
        numbers = [part.tolist() for part in self.epochs.next(count, self.generator)]
        spans = [self._span(stream, shard, episode) for shard, episode in zip(*numbers, strict=True)]
        self.ran_out = self.epochs.ran_out
        if length is None:
            return torch.cat([span.rows for span in spans]), {}
        starts = [float(self._starts_of(stream, shard)[episode]) for shard, episode in zip(*numbers, strict=True)]
        filled = stream.pad is not None
        chosen = [self._cut(span, length, start, filled=filled) for span, start in zip(spans, starts, strict=True)]
        return self.batch(stream, chosen, length)

    def _span(self, stream: Stream, shard: int, episode: int) -> EpisodeSpan:
        table = stream.open(shard).storage.episodes
        return EpisodeSpan(shard, int(table.starts[episode]), int(table.lengths[episode]))

    def _starts_of(self, stream: Stream, shard: int) -> Tensor:
        """Return where the slice of each trajectory of a shard starts, in parts of its possible starts."""
        key = self.epochs.epoch, self.epochs.seed, shard
        if key not in self._starts:
            count = len(stream.open(shard).storage.episodes)
            self._starts[key] = torch.rand(count, dtype=torch.float64, generator=seeded("starts", *key))
            if len(self._starts) > _MAX_OPEN:
                self._starts.popitem(last=False)
        return self._starts[key]

    def check_shortest(self, stream: Stream, length: int) -> None:
        """Check that no episode is shorter than a slice, if short episodes are neither taken whole nor padded.

        Raises:
            InvalidArgumentError: If the length of every episode is known, and an episode is shorter.
        """
        shortest = stream.shards.shortest
        if shortest is not None and shortest < length and self.strict_length and stream.pad is None:
            raise _short_error(shortest, length)

    def _cut(self, run: EpisodeSpan, length: int, start: float, *, filled: bool) -> EpisodeSpan:
        """Return a slice of a trajectory, or a short trajectory unchanged."""
        if run.length >= length:
            return EpisodeSpan(run.shard, run.start + int(start * (run.length - length + 1)), length)
        if self.strict_length and not filled:
            raise _short_error(run.length, length)
        return run

    def batch(self, stream: Stream, chosen: Sequence[EpisodeSpan], length: int) -> tuple[Tensor, dict[str, Any]]:
        """Return the rows of slices, padded to `length` steps if the stream pads, and fields about the slices."""
        lengths = np.array([run.length for run in chosen])
        layout = BatchLayout.from_lengths(lengths, None if stream.pad is None else length)
        rows = torch.cat([run.rows for run in chosen])
        info: dict[Any, Any] = {SLICE_ID: layout.numbers, NEXT_TRUNCATED: layout.ends, NEXT_DONE: layout.ends.clone()}
        if layout.mask is not None:
            info[MASK_KEY] = layout.mask
            rows = torch.full(layout.mask.shape, -1).masked_scatter_(layout.mask, rows)
        if _INIT in stream.open(chosen[0].shard).storage.stored.schema:
            info[_INIT[0]] = torch.zeros(len(rows), dtype=torch.bool).index_fill_(0, layout.firsts, value=True)
        return rows, info


def _short_error(steps: int, length: int) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"a trajectory has {steps:,} steps, expected {length:,} for a slice",
        hint="take shorter slices, or give pad or strict_length=False",
    )


class StreamStepSampler(StreamSampler):
    """A sampler of single steps of a stream, from a shuffled pool of whole trajectories.

    A rank takes as many of its shards as have `buffer_steps` steps, and draws their steps in random order, then the
    next shards. An epoch takes each step once.

    Args:
        buffer_steps: The number of steps that are mixed, at least: larger mixes better. A pool has at most 128 shards.
        shuffle: False takes the steps in the order of the stream.
        seed: The seed of the order, as for `EpisodeSampler`.
        uneven: What to do about ranks with different numbers of steps, as for `EpisodeSampler`.
        rank: The number of this process, as for `EpisodeSampler`.
        world_size: The number of processes.
    """

    def __init__(
        self,
        *,
        buffer_steps: int = 100_000,
        shuffle: bool = True,
        seed: int | None = None,
        uneven: Uneven = "keep",
        rank: int | None = None,
        world_size: int | None = None,
    ) -> None:
        if buffer_steps < 1:
            raise InvalidArgumentError(f"buffer_steps is {buffer_steps}, expected an integer >= 1")
        super().__init__(shuffle=shuffle)
        self.buffer_steps = buffer_steps
        self.epochs = Epochs(
            seed=seed,
            shuffle=shuffle,
            pool=buffer_steps,
            pool_items=_MAX_POOL,
            uneven=uneven,
            rank=rank,
            world_size=world_size,
        )

    @override
    def _items_of(self, stream: Stream) -> Items:
        return stream.steps()

    @override
    def bind(self, storage: Storage, batch_size: int) -> int:
        self.attach(storage)
        return batch_size

    @override
    def sample(self, storage: Storage, batch_size: int) -> tuple[Tensor, dict[str, Any]]:
        """Sample the next batch. The last batch of an epoch has the remaining steps."""
        shards, steps = self.epochs.next(self.bind(storage, batch_size), self.generator)
        self.ran_out = self.epochs.ran_out
        return torch.from_numpy(steps + (shards << _ROW_BITS)), {}
