"""A dataset that is sampled while it comes, in a folder that does not grow.

upstream   shard 3   shard 0   shard 4   shard 1  ...        in random order
              |---------|
             fetched ahead
folder     [shard 3: a small stored dataset] [shard 0]       the oldest goes when there is no room
batches     slices of trajectories of shard 3, every trajectory once, then of shard 0, ...
"""

from __future__ import annotations

import itertools
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

from datasets_rl import disk, sources
from datasets_rl.errors import InvalidArgumentError, LockedError
from datasets_rl.fetch.asset import Asset, Fetched
from datasets_rl.fetch.fetcher import Fetcher
from datasets_rl.fetch.parallel import CancelToken
from datasets_rl.fetch.prefetcher import Prefetcher
from datasets_rl.fetch.upstream import Upstream
from datasets_rl.format.reader import StoredDataset
from datasets_rl.pipeline.conversion import ConversionJob, convert
from datasets_rl.samplers.base import Sampler
from datasets_rl.samplers.slices import MASK_KEY, SLICE_ID
from datasets_rl.settings import Settings
from datasets_rl.sources import Selection
from datasets_rl.storages.base import Storage
from datasets_rl.storages.dataset import DatasetStorage
from datasets_rl.ted.keys import EPISODE, NEXT, NEXT_DONE, NEXT_FINAL_KNOWN, NEXT_TRUNCATED, Key

__all__ = ["EpisodeSpan", "NoLength", "Stream", "StreamSampler"]

_ROW_BITS = 40
_OPEN_MOST = 256  # shards whose files stay mapped, for batches that were chosen and not yet read
_AHEAD = 2  # groups of files that lie on the disk at once
_INIT: Key = ("is_init",)


class NoLength(InvalidArgumentError, TypeError):
    """A stream was asked for its length; `list` takes a TypeError for an answer and goes on without."""


@dataclass(frozen=True, slots=True)
class EpisodeSpan:
    """Consecutive steps of one trajectory in a shard."""

    shard: int
    """How many shards were opened before this one."""
    start: int
    length: int

    @property
    def rows(self) -> Tensor:
        """The steps as the stream numbers them, int64 [length]."""
        return torch.arange(self.start, self.start + self.length) + (self.shard << _ROW_BITS)


class Stream(Storage):
    """The steps of a dataset whose shards come one after the other; read-only, and without a length.

    Args:
        dataset_id: With its source.
        root: The source's folder; the stream's own lies below it.
        selection: The part that is wanted.
        room: Bytes of shards that stay on the disk, beside those at hand and those on their way.
        shuffle: Whether shards, and the trajectories of each, come in random order.
        pad: What trajectories that are too short are filled up with; None fills nothing up.
        settings: By default those of the environment.

    Raises:
        FetchError: If the upstream cannot be asked.
        InvalidArgumentError: If episodes are wanted by number, and no file says which it has.
    """

    def __init__(
        self,
        dataset_id: str,
        *,
        root: Path,
        selection: Selection,
        room: int,
        shuffle: bool = True,
        pad: float | None = None,
        settings: Settings | None = None,
    ) -> None:
        super().__init__(1)
        self.masked = True  # whether a shard to come lacks a final observation is unknown
        self.dataset_id = dataset_id
        self.shuffle, self.pad = shuffle, pad
        self.vocabulary: dict[Key, dict[str, int]] = {}
        """The texts met so far, by field, and their numbers."""
        self._settings = replace(settings or Settings.from_env(), progress=False)
        self._selection, self._room = selection, room
        self._opened: OrderedDict[int, _Shard] = OrderedDict()
        self._numbers = itertools.count()
        self._episodes = 0
        self._held = ExitStack()
        self._folder = self._own_folder(root / ".stream" / sources.find(dataset_id).name)
        head, name = sources.split_id(dataset_id)
        origin = sources.source(head)
        entry = origin.entry(name)
        origin.check(selection)
        if not self._settings.offline:  # what an earlier stream was told may be of an old version
            (self._folder / "upstream.json").unlink(missing_ok=True)
        self._fetcher = Fetcher(self._folder / "raw", self._settings)
        upstream = Upstream(
            self._folder / "raw",
            self._folder / "upstream.json",
            settings=self._settings,
            mirrors=self._settings.mirrors.get(head, ()),
        )
        self.listing = origin.resolve(name, selection, upstream).narrowed(selection)
        if self.listing.numbers is not None:
            raise InvalidArgumentError(
                f"{dataset_id} is streamed, and its files do not say how many episodes they have"
            )
        self._entry = self.listing.entry or entry

    def _own_folder(self, above: Path) -> Path:
        """Take the first folder that no other stream of this dataset uses, with the shards that it has."""
        number = 0
        while True:
            try:
                self._held.enter_context(disk.lock(above / f"{number}.lock", self.dataset_id, wait=0))
            except LockedError:
                number += 1
            else:
                return above / str(number)

    def close(self) -> None:
        """Give the folder to the next stream."""
        self._held.close()

    @property
    def read_only(self) -> bool:
        """Whether nothing can change the data: always."""
        return True

    @property
    def held(self) -> int:
        """Refuse: nobody knows how many steps will come."""
        raise NoLength(f"{self.dataset_id} is streamed and has no length", hint="download=True knows it")

    def runs(self, generator: torch.Generator | None) -> Iterator[EpisodeSpan]:
        """Yield every trajectory once, whole."""
        shards = self.listing.shards
        order = self._order(len(shards), generator)
        works = [self._work(shards[number].paths, number) for number in order]
        groups = [self._lacking(work) for work in works]
        with Prefetcher(groups, self._fetch, _AHEAD) as ahead:
            for work in works:
                number = self._open(work, ahead.take())
                ahead.release()
                table = self._opened[number].storage.episodes
                for episode in self._order(len(table), generator):
                    yield EpisodeSpan(number, int(table.starts[episode]), int(table.lengths[episode]))

    def _order(self, count: int, generator: torch.Generator | None) -> list[int]:
        return torch.randperm(count, generator=generator).tolist() if self.shuffle else list(range(count))

    def _work(self, paths: Sequence[str], number: int) -> ConversionJob:
        """Say what a shard is made of: a dataset of its own."""
        wanted = {*self.listing.common, *paths}
        assets = tuple(asset for asset in self.listing.assets if asset.path in wanted)
        listing = replace(self.listing, assets=assets, shards=(self.listing.shards[number],), steps=None)
        return ConversionJob(self._entry, listing, self._selection)

    def _place(self, work: ConversionJob) -> Path:
        return self._folder / "shards" / work.key[:32]

    def _lacking(self, work: ConversionJob) -> list[Asset]:
        return [] if (self._place(work) / disk.MANIFEST_FILE).is_file() else list(work.listing.assets)

    def _fetch(self, assets: Sequence[Asset], cancel: CancelToken) -> list[Fetched]:
        return self._fetcher.fetch(assets, cancel) if assets else []

    def _open(self, work: ConversionJob, came: Sequence[Fetched]) -> int:
        place = self._place(work)
        if (assets := self._lacking(work)) and not came:  # it went for want of room since this round began
            came = self._fetch(assets, CancelToken())
        if came:
            self._make(work, came, place)
        place.touch()  # the oldest goes first
        self._make_room(place)
        number = next(self._numbers)
        shard = _Shard.of(StoredDataset(place), self._episodes, self.vocabulary)
        self._opened[number] = shard
        self._episodes += len(shard.storage.episodes)
        while len(self._opened) > _OPEN_MOST:
            self._opened.popitem(last=False)
        return number

    def _make(self, work: ConversionJob, came: Sequence[Fetched], place: Path) -> None:
        build = self._folder / "build"
        disk.remove_tree(build)
        convert(work, self._fetcher, build)
        place.parent.mkdir(parents=True, exist_ok=True)
        disk.publish_folder(build, place)
        self._fetcher.drop(file.path for file in came if file.asset.path not in work.listing.common)

    def _make_room(self, newest: Path) -> None:
        there = sorted(
            (one for one in newest.parent.iterdir() if one != newest), key=lambda one: one.stat().st_mtime_ns
        )
        taken = {one: disk.tree_bytes(one) for one in there}
        while there and sum(taken[one] for one in there) > self._room:
            disk.remove_tree(there.pop(0))

    def get(self, index: Any) -> TensorDict:
        """Refuse: what has not come cannot be asked for by number."""
        raise InvalidArgumentError(
            f"{self.dataset_id} is streamed; {index!r} was asked for",
            hint="sample() and iterating give what comes; download=True gives any step",
        )

    def set(self, cursor: Any, data: Any) -> None:
        """Refuse: a dataset is not written to."""
        raise InvalidArgumentError(
            f"{self.dataset_id} is read-only; {type(data).__name__} was to be written at {cursor!r}"
        )

    def take(self, rows: Tensor) -> TensorDict:
        """Return steps as `EpisodeSpan.rows` numbers them, int64 [B]; -1 is one that is filled up."""
        filled = rows < 0
        rows = rows.where(~filled, rows[0])
        numbers = rows >> _ROW_BITS
        parts = []
        start = 0
        for number, count in zip(*torch.unique_consecutive(numbers, return_counts=True), strict=True):
            shard = self._opened[int(number)]
            parts.append(shard.take(rows[start : start + int(count)] & ((1 << _ROW_BITS) - 1)))
            start += int(count)
        data = parts[0] if len(parts) == 1 else TensorDict.cat(parts)
        if self.pad is not None and filled.any():
            for leaf in data.values(include_nested=True, leaves_only=True):
                leaf[filled] = self.pad if leaf.is_floating_point() else int(self.pad)
            data[NEXT_FINAL_KNOWN][filled] = False
        return data

    def starts_are_marked(self, run: EpisodeSpan) -> bool:
        """Return whether a field says which step is the first of its trajectory."""
        return _INIT in self._opened[run.shard].storage.stored.schema

    def __repr__(self) -> str:
        return f"Stream({self.dataset_id!r}, {len(self.listing.shards):,} shards)"


@dataclass(frozen=True, slots=True)
class _Shard:
    """A shard that is there, whose episodes and texts are numbered as in the stream."""

    storage: DatasetStorage
    first: int
    """The number of its first episode."""
    numbers: dict[Key, Tensor]
    """For each text field the stream's number of each of its texts, int32."""

    @classmethod
    def of(cls, stored: StoredDataset, first: int, vocabulary: dict[Key, dict[str, int]]) -> _Shard:
        numbers: dict[Key, Tensor] = {}
        for field in stored.schema:
            if field.text:
                known = vocabulary.setdefault(field.key, {})
                mine = [known.setdefault(text, len(known)) for text in stored.texts(field.key)]
                numbers[field.key] = torch.tensor(mine, dtype=torch.int32)
                if field.shared:
                    numbers[(NEXT, *field.key)] = numbers[field.key]
        return cls(DatasetStorage(stored, masked=True), first, numbers)

    def take(self, rows: Tensor) -> TensorDict:
        data = self.storage.get(rows)
        data[EPISODE] = data[EPISODE] + self.first
        for key, numbers in self.numbers.items():
            data[key] = numbers[data[key].long()]
        return data


class StreamSampler(Sampler):
    """Take a slice of every trajectory of a stream, one after the other; an epoch takes each once.

    Args:
        num_slices: Slices of a batch.
        slice_len: Steps of a slice. Without both, a batch is one slice.
        strict_length: Whether a trajectory that is too short is an error, and not taken whole. Where the stream fills
            them up, ``("collector", "mask")`` is True for what they have.
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
        """Choose the next batch; the last one of an epoch has what is left."""
        if not isinstance(storage, Stream):
            raise InvalidArgumentError(f"a StreamSampler samples from a Stream; got a {type(storage).__name__}")
        length = self.slice_len or batch_size // (self.num_slices or 1)
        if not length or batch_size % length or (self.num_slices and batch_size % self.num_slices):
            raise InvalidArgumentError(
                f"a batch of {batch_size} steps has no {self.num_slices or batch_size / length:g} slices of equal length",
                hint="give a multiple of num_slices or slice_len",
            )
        chosen = [
            self.cut(run, length, filled=storage.pad is not None)
            for run in self._following(storage, batch_size // length)
        ]
        return self.batch(storage, chosen, length)

    def _following(self, stream: Stream, count: int) -> list[EpisodeSpan]:
        """Return the next trajectories; fewer at the end of an epoch, which one knows from looking one further."""
        found: list[EpisodeSpan] = []
        try:
            if self._runs is None:
                self._runs = stream.runs(self.generator)
                self._next = next(self._runs)
            while self._next is not None and len(found) < count:
                found.append(self._next)
                self._next = next(self._runs, None)
        except BaseException:
            self._runs = None  # what broke in the middle begins anew
            raise
        self.ran_out = self._next is None
        if self.ran_out:
            self._runs = None
        return found

    def cut(self, run: EpisodeSpan, length: int, *, filled: bool) -> EpisodeSpan:
        """Choose a slice of a trajectory, every start that it has equally likely; a short one as it is.

        Raises:
            InvalidArgumentError: If it is too short, and nothing says what then.
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
        """Return the rows of slices, filled up to `length` steps where the stream does so, and what to say of them."""
        lengths = np.array([run.length for run in chosen])
        sizes = lengths if stream.pad is None else np.full_like(lengths, length)
        count, firsts = int(sizes.sum()), np.cumsum(sizes) - sizes
        places = np.arange(count) - np.repeat(firsts, sizes)
        mask = torch.from_numpy(places < np.repeat(lengths, sizes))
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
            info[_INIT[0]] = torch.from_numpy(places == 0)
        return rows, info
