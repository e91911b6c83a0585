"""Replay buffers of Open X-Embodiment datasets, with the constructor of TorchRL's class, without TensorFlow."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from typing_extensions import Unpack, override

from datasets_rl import store
from datasets_rl.buffers.tensordict import TensorDictReplayBuffer
from datasets_rl.datasets.experience_replay import BaseDatasetExperienceReplay, BufferOptions, Download
from datasets_rl.datasets.streamed import source_stream
from datasets_rl.datasets.streaming import StreamSampler
from datasets_rl.errors import InvalidArgumentError
from datasets_rl.samplers.base import Sampler
from datasets_rl.samplers.slices import SliceSampler, slice_size_problems
from datasets_rl.samplers.slices_without_replacement import SliceSamplerWithoutReplacement
from datasets_rl.settings import Settings
from datasets_rl.sources import Selection, split_derived
from datasets_rl.storages.final_states import FinalUnknown
from datasets_rl.writers.immutable import ImmutableDatasetWriter

_PAD_MAX = 1 << 31


class OpenXExperienceReplay(BaseDatasetExperienceReplay):
    """Replay buffer of an Open X-Embodiment dataset, downloaded or streamed.

        >>> dataset = OpenXExperienceReplay("cmu_stretch", batch_size=128, num_slices=2, download=True)
        >>> dataset.sample().reshape(2, -1)
        >>> for trajectory in OpenXExperienceReplay("cmu_stretch"):     # streamed while it is fetched
        ...     ...

    Fields have the names in the records: ``("observation", "image")``, uint8 [rows, columns, channels], and the other
    sensors of the robot. Strings are integer codes, which `texts` maps to the strings.

    A stream needs no disk space for the whole dataset: its shards are fetched one after the other into a folder of
    bounded size, ``<root>/.stream/<id>``. Each epoch yields every trajectory once, in random order within a shard: a
    slice of each or, when iterated without a batch size, the whole trajectory. A stream has no length and no index, and
    takes no sampler.

    The arguments without a description are those of `BaseDatasetExperienceReplay`.

    Args:
        dataset_id: The id, such as ``"cmu_stretch"``.
        batch_size: Number of steps (with `split_trajs`, of episodes) in a batch, unless `sample` gets another number.
            Without it, iteration yields one trajectory after the other.
        shuffle: Whether to shuffle the trajectories when each is sampled once.
        num_slices: Number of slices in a batch, each of one trajectory; excludes `slice_len`.
        slice_len: Number of steps of a slice. A stream with neither argument yields batches of one slice.
        pad: For streams: padding value for slices of trajectories that are too short; True is 0.
        replacement: Whether slices are drawn with replacement; by default True, and False for a stream, which does not
            support replacement.
        streaming: Whether to stream instead of storing the dataset; by default if `download` is not given and the
            dataset is not stored.
        download: True creates the dataset if it is missing, False requires it to exist unless `streaming` is True,
            "force" creates it again.
        sampler: Sampler of the steps; uniform with replacement by default. Excludes `num_slices` and `slice_len`.
        split_trajs: Whether elements are whole episodes, [E, T], padded with zeros, with a `mask`; not for streams.
        strict_length: True excludes trajectories that are too short for a slice (for streams, they raise an error);
            False uses the whole trajectory.
        cache_size: For streams: number of bytes of shards that stay on disk for the next epoch, in addition to the
            shards in use.

    Raises:
        UnknownIdError: If the id has characters other than letters, digits and underscores.
        InvalidArgumentError: If arguments exclude each other, with every problem; or if the selection contradicts the
            stored one.
        FetchError: If no upstream has the dataset.
    """

    source = "openx"

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
        streaming: bool | None = None,
        root: Path | str | None = None,
        download: Download | None = None,
        sampler: Sampler | None = None,
        split_trajs: bool = False,
        strict_length: bool = True,
        selection: Selection | None = None,
        final_unknown: FinalUnknown | None = None,
        cache_size: int = 4 << 30,
        **options: Unpack[BufferOptions],
    ) -> None:
        if streaming is None:
            # A derived dataset exists only on disk.
            streaming = (
                download is None
                and not split_derived(dataset_id)[1]
                and not store.dataset_paths(f"{self.source}/{dataset_id}", root=root).exists
            )
        self.streaming = streaming
        self.download: Download = not streaming if download is None else download
        self.shuffle, self.num_slices, self.slice_len = shuffle, num_slices, slice_len
        self.strict_length = strict_length
        self.pad = None if pad is None or pad is False else 0.0 if pad is True else float(pad)
        self._check_arguments(sampler, replacement, final_unknown, split_trajs=split_trajs)
        if not self.streaming:
            super().__init__(
                dataset_id,
                batch_size,
                sampler or self._slice_sampler(replacement),
                split_trajs=split_trajs,
                root=root,
                download=self.download,
                selection=selection,
                final_unknown=final_unknown,
                **options,
            )
            return
        self.dataset_id = dataset_id
        self.split_trajs = False
        self._stream_selection = _with_encoded_images(selection or Selection())
        self.stream = source_stream(
            f"{self.source}/{dataset_id}",
            root,
            self._stream_selection,
            Settings.from_env(),
            cache_bytes=cache_size,
            shuffle=shuffle,
            pad=self.pad,
        )
        TensorDictReplayBuffer.__init__(
            self,
            storage=self.stream,
            sampler=StreamSampler(num_slices=num_slices, slice_len=slice_len, strict_length=strict_length),
            batch_size=batch_size,
            **options,
        )

    def _check_arguments(
        self,
        sampler: Sampler | None,
        replacement: bool | None,
        final_unknown: FinalUnknown | None,
        *,
        split_trajs: bool,
    ) -> None:
        sliced = self.num_slices is not None or self.slice_len is not None
        rules = {
            "streaming and download exclude each other": self.streaming and bool(self.download),
            "a stream yields every trajectory once: replacement=True is for downloaded datasets": self.streaming
            and replacement is True,
            "a stream takes no sampler": self.streaming and sampler is not None,
            "split_trajs is for downloaded datasets; a stream iterated without a batch size yields whole trajectories": (
                self.streaming and split_trajs
            ),
            "final_unknown is for downloaded datasets; batches of a stream have next.final_known": self.streaming
            and final_unknown not in {None, "keep"},
            "pad is for streams": not self.streaming and self.pad is not None,
            f"pad is {self.pad}; expected a number of magnitude below {_PAD_MAX:,}, as integer fields are padded too": (
                self.pad is not None and not abs(self.pad) < _PAD_MAX
            ),
            "a sampler and slices exclude each other": sliced and sampler is not None,
            "shuffle=False needs replacement=False": not self.streaming
            and sliced
            and not self.shuffle
            and replacement is not False,
        }
        problems = [text for text, violated in rules.items() if violated]
        problems += slice_size_problems(self.num_slices, self.slice_len) if sliced else []
        if problems:
            raise InvalidArgumentError("; ".join(problems))

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
        """Yield batches; without a batch size, yield one trajectory at a time, or with `slice_len` a slice of each."""
        if self.batch_size is not None:
            if isinstance(self.sampler, StreamSampler):
                with self.locked_for_change():
                    self.sampler.start_epoch()
            yield from super().__iter__()
            return
        if self.streaming:
            cutter = StreamSampler(strict_length=self.strict_length)
            cutter.generator = self.sampler.generator
            for run in self.stream.runs(cutter.generator):
                index = run.rows
                info: dict[Any, Any] = {}
                if self.slice_len is not None:
                    part = cutter.cut(run, self.slice_len, filled=self.pad is not None)
                    index, info = cutter.batch(self.stream, [part], self.slice_len)
                yield self.finish(self.stream.take(index), {**info, "index": index})
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

    @override
    def _replace_steps(self) -> None:
        if self.streaming:
            raise InvalidArgumentError(
                f"{self.dataset_id} is streamed; expected a stored dataset", hint="open it with download=True"
            )
        super()._replace_steps()

    def texts(self, key: str | tuple[str, ...]) -> list[str]:
        """Return the strings of the integer codes of a text field; for a stream, the strings read so far.

        Raises:
            UnknownKeyError: If there is no such text field.
        """
        return self.stream.texts(key) if self.streaming else super().texts(key)

    @property
    def selection(self) -> Selection:
        """Selection of the buffer; for a stream, images stay encoded by default."""
        return self._stream_selection if self.streaming else super().selection

    @property
    def data_path(self) -> Path:
        """Folder of the dataset.

        Raises:
            InvalidArgumentError: If the buffer is a stream, which has no folder.
        """
        if self.streaming:
            raise InvalidArgumentError(f"{self.dataset_id} is streamed and has no folder")
        return super().data_path

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.stream!r})" if self.streaming else super().__repr__()


def _with_encoded_images(selection: Selection) -> Selection:
    """Return the selection with encoded images by default, because a stream samples few images more than once."""
    return replace(selection, options={"images": "encoded", **selection.options})


CLASS = OpenXExperienceReplay
