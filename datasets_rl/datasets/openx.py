"""Replay buffers of Open X-Embodiment datasets, with the constructor of TorchRL's class, without TensorFlow."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from typing_extensions import Unpack, override

from datasets_rl import store
from datasets_rl.buffers.tensordict import TensorDictReplayBuffer
from datasets_rl.datasets.experience_replay import BaseDatasetExperienceReplay
from datasets_rl.datasets.options import Download, PartOptions
from datasets_rl.datasets.streamed import StreamedExperienceReplay, source_stream
from datasets_rl.datasets.streaming import Stream
from datasets_rl.errors import InvalidArgumentError
from datasets_rl.samplers.base import Sampler
from datasets_rl.samplers.epochs import Uneven
from datasets_rl.samplers.slices import SliceSampler, slice_size_problems
from datasets_rl.samplers.slices_without_replacement import SliceSamplerWithoutReplacement
from datasets_rl.sources import Selection, split_derived
from datasets_rl.writers.immutable import ImmutableDatasetWriter

_PAD_MAX = 1 << 31


class OpenXExperienceReplay(BaseDatasetExperienceReplay):
    """Replay buffer of an Open X-Embodiment dataset, downloaded or streamed.

        >>> dataset = OpenXExperienceReplay("cmu_stretch", batch_size=128, num_slices=2, download=True)
        >>> dataset.sample().reshape(2, -1)
        >>> for trajectory in OpenXExperienceReplay("cmu_stretch"):     # streamed during the download
        ...     ...

    Fields have the names in the records: ``("observation", "image")``, uint8 [rows, columns, channels], and the other
    sensors of the robot. Strings are integer codes, which `texts` maps to the strings.

    A stream needs no disk space for the whole dataset: its shards are fetched in order into a folder of bounded size,
    ``<root>/.stream/<id>``. Each epoch yields every trajectory once, in random order within a shard: a slice of each
    or, when iterated without a batch size, the whole trajectory. A stream has no length and no index, and takes no
    sampler.

    `BaseDatasetExperienceReplay` describes the other arguments and errors.

    Args:
        dataset_id: The id, such as ``"cmu_stretch"``.
        batch_size: Number of steps (with `split_trajs`, of episodes) in a batch, unless `sample` gets another number.
            Without a batch size, iteration yields single trajectories.
        shuffle: Whether to shuffle the trajectories when each is sampled once.
        num_slices: Number of slices in a batch, each of a trajectory. Excludes `slice_len`.
        slice_len: Number of steps of a slice. A stream with neither argument yields batches of a single slice.
        pad: For streams: padding value for slices of trajectories that are too short. True is 0.
        replacement: Whether slices are drawn with replacement. By default True, and False for a stream, which does not
            support replacement.
        streaming: Whether to stream instead of storing the dataset. By default if `download` is not given and the
            dataset is not stored.
        download: True creates the dataset if missing, False requires a stored dataset unless `streaming` is True,
            "force" creates the dataset again.
        sampler: Sampler of the steps, uniform with replacement by default. Excludes `num_slices` and `slice_len`.
        split_trajs: Whether elements are whole episodes, [E, T], padded with zeros, with a `mask`. Not for streams.
        strict_length: True excludes trajectories that are too short for a slice (for streams, such trajectories raise
            an error). False uses the whole trajectory.
        seed: For streams, as `uneven`, `rank` and `world_size`: see `StreamedExperienceReplay`. A stored dataset takes an
            `EpisodeSampler` or an `EpisodeSliceSampler`.
        uneven: For streams: what to do about ranks with different numbers of trajectories.
        rank: For streams: the number of this process.
        world_size: For streams: the number of processes.
        cache_size: For streams: number of bytes of shards that stay on disk for the next epoch, in addition to the
            shards in use.

    Raises:
        UnknownIdError: If the id has characters other than letters, digits and underscores.
        InvalidArgumentError: If arguments exclude each other, too, with every problem.
    """

    source = "openx"

    def __new__(cls, dataset_id: str = "", *arguments: Any, **options: Any) -> Any:
        """Return a stream if the arguments ask for a stream."""
        streaming = options.get("streaming")
        if streaming is None and dataset_id:
            # A derived dataset exists only on disk.
            streaming = (
                options.get("download") is None
                and not split_derived(dataset_id)[1]
                and not store.dataset_paths(f"{cls.source}/{dataset_id}", root=options.get("root")).exists
            )
        return _open_stream(f"{cls.source}/{dataset_id}", *arguments, **options) if streaming else super().__new__(cls)

    def __init__(
        self,
        dataset_id: str,
        batch_size: int | None = None,
        *,
        shuffle: bool = True,
        num_slices: int | None = None,
        slice_len: int | None = None,
        pad: float | bool | None = None,
        replacement: bool | None = None,
        streaming: bool | None = None,  # noqa: ARG002 -- decided in `__new__`
        root: Path | str | None = None,
        download: Download | None = None,
        sampler: Sampler | None = None,
        strict_length: bool = True,
        cache_size: int = 4 << 30,  # noqa: ARG002 -- of streams
        seed: int | None = None,
        uneven: Uneven = "keep",
        rank: int | None = None,
        world_size: int | None = None,
        **options: Unpack[PartOptions],
    ) -> None:
        self.shuffle, self.num_slices, self.slice_len = shuffle, num_slices, slice_len
        self.strict_length = strict_length
        sliced = num_slices is not None or slice_len is not None
        problems = ["pad is for streams"] if pad not in {None, False} else []
        if (seed, uneven, rank, world_size) != (None, "keep", None, None):
            problems.append("seed, uneven, rank and world_size are for streams: pass sampler=EpisodeSampler(...)")
        problems += ["a sampler and slices exclude each other"] if sliced and sampler is not None else []
        if sliced and not shuffle and replacement is not False:
            problems.append("shuffle=False needs replacement=False")
        problems += slice_size_problems(num_slices, slice_len) if sliced else []
        if problems:
            raise InvalidArgumentError("; ".join(problems))
        sampler = sampler or self._slice_sampler(replacement)
        download = True if download is None else download
        super().__init__(dataset_id, batch_size, sampler, root=root, download=download, **options)

    def _slice_sampler(self, replacement: bool | None) -> Sampler | None:
        if self.num_slices is None and self.slice_len is None:
            return None
        slices: dict[str, Any] = {
            "num_slices": self.num_slices,
            "slice_len": self.slice_len,
            "strict_length": self.strict_length,
        }
        if replacement is False:
            return SliceSamplerWithoutReplacement(**slices, shuffle=self.shuffle)
        return SliceSampler(**slices)

    def __iter__(self) -> Iterator[Any]:
        """Yield batches.

        Without a batch size, yield single trajectories, or with `slice_len` a slice of each trajectory.
        """
        if self.batch_size is not None:
            yield from super().__iter__()
            return
        count = self.num_slices or 1
        if self.slice_len is not None:
            sampler = SliceSamplerWithoutReplacement(
                slice_len=self.slice_len, strict_length=self.strict_length, shuffle=self.shuffle
            )
            size = self.slice_len
        else:
            sampler = SliceSamplerWithoutReplacement(num_slices=count, strict_length=False, shuffle=self.shuffle)
            size = count * int(self.episodes.lengths.max())
        sampler.generator = self.sampler.generator
        batches: TensorDictReplayBuffer = TensorDictReplayBuffer(
            storage=self.storage,
            sampler=sampler,
            writer=ImmutableDatasetWriter(),
            collate_fn=self._components.collate_fn,
            pin_memory=self._components.pin_memory,
            transform=self.transforms or None,
            batch_size=size,
        )
        yield from batches


class OpenXStream(StreamedExperienceReplay):
    """Stream of an Open X-Embodiment dataset. Unlike others, a dataset of a single shard can be streamed, too."""

    @override
    def _open(self, *arguments: Any, **options: Any) -> Stream:
        return source_stream(*arguments, **options)


_STORED_ONLY = {
    "download": "streaming and download exclude each other",
    "replacement": "a stream yields every trajectory once: replacement=True is for downloaded datasets",
    "sampler": "a stream takes no sampler",
    "split_trajs": "split_trajs is for downloaded datasets, and a stream iterated without a batch size yields whole"
    " trajectories",
    "delta_timestamps": "delta_timestamps are for downloaded datasets, and a stream yields slices",
    "final_unknown": "final_unknown is for downloaded datasets, and batches of a stream have next.final_known",
}
"""Arguments that a stream does not have, with what is wrong with other values than the defaults."""


def _open_stream(
    dataset_id: str,
    batch_size: int | None = None,
    *,
    num_slices: int | None = None,
    slice_len: int | None = None,
    pad: float | bool | None = None,
    selection: Selection | None = None,
    **options: Any,
) -> OpenXStream:
    """Return a stream for the arguments of `OpenXExperienceReplay`."""
    problems = [text for name, text in _STORED_ONLY.items() if options.pop(name, None) not in [None, False, "keep"]]
    value = None if pad is None or pad is False else 0.0 if pad is True else float(pad)
    if value is not None and not abs(value) < _PAD_MAX:
        problems.append(
            f"pad is {value}, expected a number of magnitude below {_PAD_MAX:,}, as integer fields are padded too"
        )
    sliced = num_slices is not None or slice_len is not None
    problems += slice_size_problems(num_slices, slice_len) if sliced else []
    if problems:
        raise InvalidArgumentError("; ".join(problems))
    options.pop("streaming", None)
    selection = selection or Selection()
    slices = num_slices if sliced else 1
    return OpenXStream(
        dataset_id, batch_size, num_slices=slices, slice_len=slice_len, pad=value, selection=selection, **options
    )
