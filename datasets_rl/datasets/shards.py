"""The shards of a dataset of a source, which a stream downloads and converts in order."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from datasets_rl import disk, sources
from datasets_rl.build.conversion import ConversionJob, convert
from datasets_rl.errors import InvalidArgumentError
from datasets_rl.fetch.asset import Fetched
from datasets_rl.fetch.fetcher import Fetcher
from datasets_rl.fetch.parallel import CancelToken
from datasets_rl.fetch.upstream import Upstream
from datasets_rl.settings import Settings
from datasets_rl.sources import Selection

Index = NDArray[np.int64]

_EPISODE_BITS = 32


class Shards(ABC):
    """The shards of a dataset that is streamed: each can be fetched, and built as a small stored dataset."""

    @property
    @abstractmethod
    def count(self) -> int:
        """The number of shards."""

    @abstractmethod
    def name(self, shard: int) -> str:
        """Return the name of the folder of a shard, which differs for different content."""

    @property
    @abstractmethod
    def dataset(self) -> str:
        """A text that differs for other shards."""

    def first_episode(self, shard: int) -> int:
        """Return the number of the first episode of a shard. The shards of a stream have different numbers."""
        return shard << _EPISODE_BITS

    def lengths(self) -> tuple[Index, Index]:
        """Return the numbers of episodes and of steps of each shard, int64 [n], -1 where unknown."""
        return np.full(self.count, -1), np.full(self.count, -1)

    @property
    def shortest(self) -> int | None:
        """The number of steps of the shortest episode, or None if unknown before the shards are opened."""
        return None

    @abstractmethod
    def fetch(self, shard: int, cancel: CancelToken) -> Any:
        """Fetch the content of a shard, in the thread of a prefetcher."""

    @abstractmethod
    def build(self, shard: int, fetched: Any, folder: Path) -> None:
        """Write a shard as a stored dataset into a folder that does not exist, and drop what was fetched."""

    def close(self) -> None:
        """Release the connections."""


class SourceShards(Shards):
    """The shards of a dataset of a source.

    Raises:
        FetchError: If the list of files cannot be requested from the upstream.
        InvalidArgumentError: If episodes are selected by number, and the upstream does not state the counts of files.
    """

    def __init__(self, dataset_id: str, selection: Selection, settings: Settings, folder: Path) -> None:
        settings = replace(settings, progress=False)
        self._selection = selection
        head, name = sources.split_id(dataset_id)
        origin = sources.get_source(head)
        origin.check(selection)
        raw, description = folder / "raw", folder / "upstream.json"
        if not settings.offline:  # the description that an earlier stream fetched may be out of date
            disk.remove_file(description)
        self._fetcher = Fetcher(raw, settings)
        upstream = Upstream(raw, description, settings=settings, mirrors=settings.mirrors.get(head, ()))
        self.listing = origin.resolve(name, selection, upstream).narrow_to(selection)
        if self.listing.numbers is not None:
            raise InvalidArgumentError(
                f"{dataset_id} is streamed, and its upstream does not state how many episodes each file has"
            )
        self._entry = self.listing.entry or origin.entry(name)

    @property
    @override
    def count(self) -> int:
        return len(self.listing.shards)

    @property
    @override
    def dataset(self) -> str:
        listing = self.listing
        parts = [(shard.paths, shard.part) for shard in listing.shards]
        files = [(asset.path, asset.size, asset.sha256) for asset in listing.assets]
        return hashlib.sha256(repr((self._entry.id, str(self._selection), parts, files)).encode()).hexdigest()[:16]

    def _job(self, shard: int) -> ConversionJob:
        """Return the conversion job of a shard, which becomes a separate stored dataset."""
        required = {*self.listing.common, *self.listing.shards[shard].paths}
        assets = tuple(asset for asset in self.listing.assets if asset.path in required)
        listing = replace(self.listing, assets=assets, shards=(self.listing.shards[shard],), steps=None)
        return ConversionJob(self._entry, listing, self._selection)

    @override
    def name(self, shard: int) -> str:
        return self._job(shard).key[:32]

    @override
    def fetch(self, shard: int, cancel: CancelToken) -> list[Fetched]:
        return self._fetcher.fetch(self._job(shard).listing.assets, cancel)

    @override
    def build(self, shard: int, fetched: list[Fetched], folder: Path) -> None:
        convert(self._job(shard), self._fetcher, folder)
        self._fetcher.drop(file.path for file in fetched if file.asset.path not in self.listing.common)
