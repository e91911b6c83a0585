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
from abc import abstractmethod
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tensordict import TensorDict
from torch import Tensor

from datasets_rl import disk, sources, store
from datasets_rl.build.conversion import ConversionJob, convert
from datasets_rl.errors import InvalidArgumentError, LockedError
from datasets_rl.fetch.asset import Asset, Fetched
from datasets_rl.fetch.fetcher import Fetcher
from datasets_rl.fetch.parallel import CancelToken
from datasets_rl.fetch.prefetcher import Prefetcher
from datasets_rl.fetch.upstream import Upstream
from datasets_rl.format.reader import StoredDataset
from datasets_rl.samplers.base import Sampler
from datasets_rl.samplers.slices import MASK_KEY, SLICE_ID
from datasets_rl.settings import Settings
from datasets_rl.sources import Selection
from datasets_rl.storages.base import Storage
from datasets_rl.storages.dataset import DatasetStorage
from datasets_rl.ted.keys import EPISODE, NEXT, NEXT_DONE, NEXT_FINAL_KNOWN, NEXT_TRUNCATED, Key

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


class ShardStream(Storage):
    """The steps of a dataset whose shards come one after the other; read-only, and without a length.

    Each shard becomes a small stored dataset on the disk, which is deleted when the space is needed.

    Args:
        dataset_id: The name of the dataset in messages.
        folder: The folder of the streams of this dataset; each stream that is open has its own folder below it.
        cache_bytes: The maximum size in bytes of the shards on the disk, in addition to those that are open or being fetched.
        shuffle: Whether the shards, and the trajectories of each, are in random order.
        pad: The value with which short trajectories are padded; None does not pad.
    """

    def __init__(
        self, dataset_id: str, *, folder: Path, cache_bytes: int, shuffle: bool = True, pad: float | None = None
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
        self._folder = self._own_folder(folder)

    @property
    @abstractmethod
    def shard_count(self) -> int:
        """The number of shards."""

    @abstractmethod
    def _shard_folder(self, number: int) -> Path:
        """Return the folder of a shard, whose name differs for different content."""

    @abstractmethod
    def _missing(self, number: int) -> list[Any]:
        """Return what must be fetched for a shard; an empty list if the shard is stored."""

    @abstractmethod
    def _fetch(self, missing: Sequence[Any], cancel: CancelToken) -> list[Any]:
        """Fetch what is missing, in the thread of the prefetcher."""

    @abstractmethod
    def _build(self, number: int, fetched: Sequence[Any], build: Path) -> None:
        """Write a shard as a stored dataset into a folder that does not exist."""

    def _drop(self, number: int, fetched: Sequence[Any]) -> None:
        """Delete what was fetched for a shard, once it is stored."""

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
    def read_only(self) -> bool:
        """Whether the data cannot be changed: always True."""
        return True

    @property
    def filled_count(self) -> int:
        """Raise `NoLength`: the total number of steps is unknown."""
        raise NoLength(f"{self.dataset_id} is streamed and has no length", hint="use download=True")

    def runs(self, generator: torch.Generator | None) -> Iterator[EpisodeSpan]:
        """Yield every whole trajectory once."""
        order = self._order(self.shard_count, generator)
        groups = [self._missing(number) for number in order]
        with Prefetcher(groups, self._fetch_unless_stored, _MAX_IN_FLIGHT) as prefetcher:
            for shard in order:
                number = self._open(shard, prefetcher.take())
                prefetcher.release()
                table = self._opened[number].storage.episodes
                for episode in self._order(len(table), generator):
                    yield EpisodeSpan(number, int(table.starts[episode]), int(table.lengths[episode]))

    def _order(self, count: int, generator: torch.Generator | None) -> list[int]:
        return torch.randperm(count, generator=generator).tolist() if self.shuffle else list(range(count))

    def _fetch_unless_stored(self, missing: Sequence[Any], cancel: CancelToken) -> list[Any]:
        return self._fetch(missing, cancel) if missing else []

    def _is_stored(self, number: int) -> bool:
        return (self._shard_folder(number) / disk.MANIFEST_FILE).is_file()

    def _open(self, shard: int, fetched: Sequence[Any]) -> int:
        folder = self._shard_folder(shard)
        if (missing := self._missing(shard)) and not fetched:  # it was deleted for space since the epoch started
            fetched = self._fetch(missing, CancelToken())
        if fetched:
            self._store(shard, fetched, folder)
        folder.touch()  # the shard that was used least recently is deleted first
        self._free_space(folder)
        number = next(self._numbers)
        opened = _Shard.of(StoredDataset(folder), self._episodes, self.vocabulary)
        self._opened[number] = opened
        self._episodes += len(opened.storage.episodes)
        while len(self._opened) > _MAX_OPEN:
            self._opened.popitem(last=False)
        return number

    def _store(self, shard: int, fetched: Sequence[Any], folder: Path) -> None:
        build = self._folder / "build"
        disk.remove_tree(build)
        self._build(shard, fetched, build)
        folder.parent.mkdir(parents=True, exist_ok=True)
        disk.publish_folder(build, folder)
        self._drop(shard, fetched)

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

    def set(self, cursor: Any, data: Any, *, set_cursor: bool = True) -> None:
        """Raise an error: a dataset is read-only."""
        del set_cursor
        raise InvalidArgumentError(
            f"{self.dataset_id} is read-only; {type(data).__name__} was to be written at {cursor!r}"
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

    def starts_are_marked(self, run: EpisodeSpan) -> bool:
        """Return whether the dataset has a field that marks the first step of each trajectory."""
        return _INIT in self._opened[run.shard].storage.stored.schema

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.dataset_id!r}, {self.shard_count:,} shards)"


class Stream(ShardStream):
    """The steps of a dataset of a source, whose shards are downloaded and converted one after the other.

    Args:
        dataset_id: The id with its source.
        root: The folder of the source, in which the stream has a folder below ``.stream``.
        selection: The selection to stream.
        cache_bytes: The maximum size in bytes of the shards on the disk, in addition to those that are open or being fetched.
        shuffle: Whether the shards, and the trajectories of each, are in random order.
        pad: The value with which short trajectories are padded; None does not pad.
        settings: The settings; by default those of the environment.

    Raises:
        FetchError: If the list of files cannot be requested from the upstream.
        InvalidArgumentError: If episodes are selected by number, and the upstream does not state the counts of files.
    """

    def __init__(
        self,
        dataset_id: str,
        *,
        root: Path,
        selection: Selection,
        cache_bytes: int,
        shuffle: bool = True,
        pad: float | None = None,
        settings: Settings | None = None,
    ) -> None:
        folder = root / store.STREAM_FOLDER / sources.find(dataset_id).name
        super().__init__(dataset_id, folder=folder, cache_bytes=cache_bytes, shuffle=shuffle, pad=pad)
        self._settings = replace(settings or Settings.from_env(), progress=False)
        self._selection = selection
        head, name = sources.split_id(dataset_id)
        origin = sources.get_source(head)
        entry = origin.entry(name)
        origin.check(selection)
        if not self._settings.offline:  # the description that an earlier stream fetched may be out of date
            (self._folder / "upstream.json").unlink(missing_ok=True)
        self._fetcher = Fetcher(self._folder / "raw", self._settings)
        upstream = Upstream(
            self._folder / "raw",
            self._folder / "upstream.json",
            settings=self._settings,
            mirrors=self._settings.mirrors.get(head, ()),
        )
        self.listing = origin.resolve(name, selection, upstream).narrow_to(selection)
        if self.listing.numbers is not None:
            raise InvalidArgumentError(
                f"{dataset_id} is streamed, and its upstream does not state how many episodes each file has"
            )
        self._entry = self.listing.entry or entry

    @property
    def shard_count(self) -> int:
        """The number of shards."""
        return len(self.listing.shards)

    def _job(self, number: int) -> ConversionJob:
        """Return the conversion job of a shard, which becomes a separate stored dataset."""
        required = {*self.listing.common, *self.listing.shards[number].paths}
        assets = tuple(asset for asset in self.listing.assets if asset.path in required)
        listing = replace(self.listing, assets=assets, shards=(self.listing.shards[number],), steps=None)
        return ConversionJob(self._entry, listing, self._selection)

    def _shard_folder(self, number: int) -> Path:
        return self._folder / "shards" / self._job(number).key[:32]

    def _missing(self, number: int) -> list[Asset]:
        return [] if self._is_stored(number) else list(self._job(number).listing.assets)

    def _fetch(self, missing: Sequence[Asset], cancel: CancelToken) -> list[Fetched]:
        return self._fetcher.fetch(missing, cancel)

    def _build(self, number: int, fetched: Sequence[Fetched], build: Path) -> None:
        del fetched
        convert(self._job(number), self._fetcher, build)

    def _drop(self, number: int, fetched: Sequence[Fetched]) -> None:
        del number
        self._fetcher.drop(file.path for file in fetched if file.asset.path not in self.listing.common)


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
        if not isinstance(storage, ShardStream):
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

    def _next_trajectories(self, stream: ShardStream, count: int) -> list[EpisodeSpan]:
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

    def batch(self, stream: ShardStream, chosen: Sequence[EpisodeSpan], length: int) -> tuple[Tensor, dict[str, Any]]:
        """Return the rows of slices, padded to `length` steps if the stream pads, and the fields that describe them."""
        lengths = np.array([run.length for run in chosen])
        sizes = lengths if stream.pad is None else np.full_like(lengths, length)
        count, firsts = int(sizes.sum()), np.cumsum(sizes) - sizes
        indices = np.arange(count) - np.repeat(firsts, sizes)
        mask = torch.from_numpy(indices < np.repeat(lengths, sizes))
        rows = torch.full((count,), -1)
        rows[mask] = torch.cat([run.rows for run in chosen])
        ends: NDArray[np.bool_] = np.zeros((count, 1), np.bool_)
        ends[firsts + lengths - 1] = True
        info: dict[Any, Any] = {
            SLICE_ID: torch.from_numpy(np.repeat(np.arange(len(chosen)), sizes)),
            NEXT_TRUNCATED: torch.from_numpy(ends),
            NEXT_DONE: torch.from_numpy(ends.copy()),
        }
        if stream.pad is not None:
            info[MASK_KEY] = mask
        if stream.starts_are_marked(chosen[0]):
            info[_INIT[0]] = torch.from_numpy(indices == 0)
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
        if not isinstance(storage, ShardStream):
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

    def _refill(self, stream: ShardStream, target: int) -> None:
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
