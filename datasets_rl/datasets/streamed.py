"""Datasets that are sampled without a download, as replay buffers."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from typing_extensions import override

from datasets_rl import sources, store
from datasets_rl.buffers.arguments import Transform
from datasets_rl.buffers.tensordict import TensorDictReplayBuffer
from datasets_rl.datasets.experience_replay import BaseDatasetExperienceReplay
from datasets_rl.datasets.remote import RemoteShards, current_version
from datasets_rl.datasets.shards import SourceShards
from datasets_rl.datasets.streaming import Stream, StreamSampler, StreamStepSampler
from datasets_rl.disk import CURRENT_FILE, MANIFEST_FILE, expand_home
from datasets_rl.errors import Call, InvalidArgumentError, Remedy
from datasets_rl.samplers.epochs import Uneven
from datasets_rl.settings import Settings
from datasets_rl.sources import Selection
from datasets_rl.writers.base import Writer

_ADDRESSES = ("s3://", "gs://", "http://", "https://")


class _NotStoredError(InvalidArgumentError, AttributeError):
    """Raised when a stream is used as a stored dataset."""


def is_remote_address(dataset: object) -> bool:
    """Return whether a text is the address of a stored dataset in a bucket or on a web server."""
    return isinstance(dataset, str) and dataset.startswith(_ADDRESSES)


class StreamedExperienceReplay(TensorDictReplayBuffer):
    """A dataset that is sampled while its episodes are read over the network, with a bounded amount of disk space.

        >>> stream = load("hf://me/hopper", batch_size=256, streaming=True)
        >>> stream.sample()                                   # 256 steps, of a shuffled buffer of whole episodes
        >>> for batch in stream: ...                          # a new epoch: each step once
        >>> load("s3://bucket/hopper", batch_size=256, streaming=True, slice_len=32).sample()      # 8 slices

    Episodes are read in random order, some ahead. By default, batches are steps of a shuffled buffer. With
    `slice_len` or `num_slices`, they are slices: a slice of each episode, once in an epoch. Without a batch size,
    iteration yields whole episodes, or with `slice_len` a slice of each.

    Args:
        dataset: The address of a dataset in the stored format, ``hf://user/name@revision``, ``s3://bucket/folder``,
            ``gs://bucket/folder`` or ``https://host/folder``, or the id of a source with datasets of several
            files, which are fetched and converted in order.
        batch_size: The number of steps of a batch.
        slice_len: The number of steps of a slice.
        num_slices: The number of slices of a batch.
        strict_length: Whether an episode that is shorter than a slice is an error. Otherwise the episode is taken
            whole. Of a dataset in the stored format, all lengths are known, and the stream is refused. Otherwise the
            error comes with the episode.
        pad: The value with which slices of short episodes are padded. None does not pad.
        shuffle: Whether episodes, and steps in the buffer, are in random order.
        seed: The seed of the order, the same for all ranks. By default a single process draws a seed from the
            generator, and several ranks use 0.
        uneven: What to do about ranks with different numbers of episodes or steps: "keep", "drop" or "pad", as for
            `EpisodeSampler`.
        rank: The number of this process, which reads a share of the episodes. By default the rank in
            `torch.distributed`, if initialized, or in the environment variables ``RANK`` and ``WORLD_SIZE``, else 0 of
            1.
        world_size: The number of processes.
        buffer_steps: The number of steps of the shuffled buffer.
        cache_size: The maximum number of bytes on the disk that stay for the next epoch, in addition to the shards in
            use.
        root: The folder of the cache. By default ``<RLDS_HOME>/<source>/.stream``.
        selection: The selection to stream. Published datasets support episodes.

    `TensorDictReplayBuffer` describes the arguments from `writer` on.

    Raises:
        FetchError: If a file cannot be read.
        IntegrityError: If the published files contradict each other.
        InvalidArgumentError: If the dataset is a single file that only a download can read, or an episode is known to be
            shorter than a slice.
    """

    streaming = True
    workers_draw_shares = True

    def __init__(
        self,
        dataset: str,
        batch_size: int | None = None,
        *,
        slice_len: int | None = None,
        num_slices: int | None = None,
        strict_length: bool = True,
        pad: float | None = None,
        shuffle: bool = True,
        seed: int | None = None,
        uneven: Uneven = "keep",
        rank: int | None = None,
        world_size: int | None = None,
        buffer_steps: int = 100_000,
        cache_size: int = 4 << 30,
        root: Path | str | None = None,
        selection: Selection | None = None,
        writer: Writer | None = None,
        collate_fn: Callable[[Any], Any] | None = None,
        pin_memory: bool = False,
        prefetch: int | None = None,
        transform: Transform | Sequence[Transform] | None = None,
        transform_factory: Callable[[], Transform | Sequence[Transform]] | None = None,
        dim_extend: int | None = None,
        generator: torch.Generator | None = None,
        priority_key: str = "td_error",
        shared: bool = False,
        compilable: bool | None = None,
    ) -> None:
        self.dataset_id = dataset
        self.stream = self._open(
            dataset, root, selection or Selection(), Settings.from_env(), cache_bytes=cache_size, pad=pad
        )
        sliced = slice_len is not None or num_slices is not None
        order: dict[str, Any] = {
            "shuffle": shuffle,
            "seed": seed,
            "uneven": uneven,
            "rank": rank,
            "world_size": world_size,
        }
        self._episodes = StreamSampler(num_slices=num_slices, slice_len=slice_len, strict_length=strict_length, **order)
        super().__init__(
            storage=self.stream,
            sampler=self._episodes if sliced else StreamStepSampler(buffer_steps=buffer_steps, **order),
            batch_size=batch_size,
            writer=writer,
            collate_fn=collate_fn,
            pin_memory=pin_memory,
            prefetch=prefetch,
            transform=transform,
            transform_factory=transform_factory,
            dim_extend=dim_extend,
            generator=generator,
            priority_key=priority_key,
            shared=shared,
            compilable=compilable,
        )
        length = slice_len or (num_slices and batch_size and batch_size // num_slices)
        if length:
            try:
                self._episodes.check_shortest(self.stream, length)
            except InvalidArgumentError:
                self.close()
                raise

    def _open(self, *arguments: Any, **options: Any) -> Stream:
        return _open_stream(*arguments, **options)

    def __getattr__(self, name: str) -> Any:
        """Raise an error that says why a stream lacks what a stored dataset has."""
        if hasattr(BaseDatasetExperienceReplay, name):
            raise _NotStoredError(
                f"{self.dataset_id} is streamed, expected a stored dataset for {name}",
                hint="open the dataset with download=True",
            )
        raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")

    def __iter__(self) -> Iterator[Any]:
        """Yield the batches of a new epoch.

        Without a batch size, yield single whole episodes, or slices of episodes.
        """
        if self.batch_size is not None:
            if isinstance(self.sampler, StreamSampler):
                with self.locked_for_change():
                    self.sampler.start_epoch()
            yield from super().__iter__()
            return
        sampler = self._episodes
        sampler.generator = self.sampler.generator
        sampler.attach(self.stream)
        sampler.start_epoch()
        if sampler.epochs.skip_epoch(1):
            return
        while not sampler.ran_out:
            rows, info = sampler.take(self.stream, 1, sampler.slice_len)
            yield self.finish(self.stream.take(rows), {**info, "index": rows})

    @override
    def for_worker(self, worker: int, workers: int) -> StreamedExperienceReplay:
        """Return a stream of the share of a worker of this rank, with a separate folder."""
        sampler = cast("StreamSampler", self.sampler).for_worker(worker, workers)
        part = copy(self)
        part.stream = self.stream.for_worker()
        part.set_storage(part.stream)
        part.set_sampler(sampler)
        return part

    def texts(self, key: str | tuple[str, ...]) -> list[str]:
        """Return the strings of the integer codes of a text field that were read so far.

        Raises:
            UnknownKeyError: If there is no such text field.
        """
        return self.stream.texts(key)

    def close(self) -> None:
        """Release the folder of the cache, which a later stream can then use."""
        self.stream.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.stream!r})"


def source_stream(
    dataset_id: str, root: Path | str | None, selection: Selection, settings: Settings, **options: Any
) -> Stream:
    """Return the stream of a dataset of a source.

    Args:
        dataset_id: The id with its source.
        root: The folder of the source, in which the stream has a folder below ``.stream``.
        selection: The selection to stream.
        settings: The settings.
        **options: Arguments of `Stream`.
    """
    entry = sources.find(dataset_id)
    folder = expand_home(root or settings.home / entry.source).absolute() / store.STREAM_FOLDER
    return Stream(dataset_id, folder / entry.name, partial(SourceShards, dataset_id, selection, settings), **options)


def _published_stream(address: str, folder: Path, selection: Selection, settings: Settings, **options: Any) -> Stream:
    # Each process that opens this stream again, as workers do, opens the same version.
    version = current_version(address, settings)
    return Stream(address, folder, partial(RemoteShards, version, selection, settings), **options)


def _open_stream(
    dataset: str, root: Path | str | None, selection: Selection, settings: Settings, **options: Any
) -> Stream:
    if is_remote_address(dataset):
        address = dataset.rstrip("/")
        home = expand_home(root).absolute() if root else settings.home
        folder = home / store.STREAM_FOLDER / hashlib.sha256(address.encode()).hexdigest()[:32]
        return _published_stream(address, folder, selection, settings, **options)
    dataset_id, selection = sources.split_address(dataset, selection)
    if sources.split_derived(dataset_id)[1]:
        raise InvalidArgumentError(
            f"{dataset} was derived from another dataset, and cannot be streamed",
            hint=Remedy("open the dataset without streaming, or publish it with {}", Call("push", ..., "hf://...")),
        )
    entry = sources.find(dataset_id)
    if entry.source == "hf" and (
        address := published_address(entry.name, selection.options.get("revision", ""), settings)
    ):
        folder = expand_home(root or settings.home / entry.source).absolute() / store.STREAM_FOLDER / entry.name
        return _published_stream(address, folder, selection, settings, **options)
    stream = source_stream(dataset_id, root, selection, settings, **options)
    listing = cast("SourceShards", stream.shards).listing
    paths = [path for shard in listing.shards for path in shard.paths if path not in listing.common]
    if len(listing.shards) < 2 or len(set(paths)) < len(paths):
        stream.close()
        raise InvalidArgumentError(
            f"{dataset_id} cannot be streamed: its episodes share a file, or continue in the next file",
            hint=Remedy("{}", Call("download", dataset_id)),
        )
    return stream


def published_address(repository: str, revision: str, settings: Settings) -> str:
    """Return the address of a published dataset on the hub at the present commit of a branch or tag.

    Empty if the repository has the files of another source.

    Raises:
        FetchError: If the hub does not have the dataset.
    """
    import tempfile

    from datasets_rl.fetch.upstream import Upstream

    url = f"hf://datasets/{repository}{f'@{revision}' if revision else ''}"
    with tempfile.TemporaryDirectory(prefix="rlds-stream-") as aside:
        listing = Upstream(Path(aside), Path(aside, "upstream.json"), settings=settings).folder(repository, (url,))
    marks = {f"{repository}/{name}" for name in (CURRENT_FILE, MANIFEST_FILE)}
    is_published = any(asset.path in marks for asset in listing.assets)
    return f"hf://datasets/{repository}@{listing.revision}" if is_published else ""
