"""Open X-Embodiment's sets as replay buffers: the constructor of the reference, without TensorFlow and `datasets`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from datasets_rl import store
from datasets_rl.buffers.tensordict import TensorDictReplayBuffer
from datasets_rl.datasets.experience_replay import BaseDatasetExperienceReplay, Download
from datasets_rl.datasets.streaming import Stream, StreamSampler
from datasets_rl.errors import InvalidArgumentError, UnknownKeyError
from datasets_rl.samplers.base import Sampler
from datasets_rl.samplers.slices import SliceSampler, size_faults
from datasets_rl.samplers.slices_without_replacement import SliceSamplerWithoutReplacement
from datasets_rl.settings import Settings
from datasets_rl.sources import Selection, split_derived
from datasets_rl.storages.final_states import FinalUnknown
from datasets_rl.ted.keys import as_key, dotted
from datasets_rl.writers.base import Writer
from datasets_rl.writers.immutable import ImmutableDatasetWriter

__all__ = ["OpenXExperienceReplay"]

_PAD_MOST = 1 << 31


class OpenXExperienceReplay(BaseDatasetExperienceReplay):
    """A set of Open X-Embodiment as a replay buffer, downloaded or streamed.

        >>> dataset = OpenXExperienceReplay("cmu_stretch", batch_size=128, num_slices=2, download=True)
        >>> dataset.sample().reshape(2, -1)
        >>> for trajectory in OpenXExperienceReplay("cmu_stretch"):     # streamed: as they come
        ...     ...

    Fields are called as in the records: ``("observation", "image")``, uint8 [rows, columns, channels], and whatever
    else the robot has. Texts are numbers, whose texts `texts` gives.

    A stream needs no room for the whole set: its shards are fetched one behind the other into a folder of bounded size,
    ``<root>/.stream/<id>``. It gives every trajectory once a round, in random order within a shard, a slice of each or,
    iterated without a batch size, the whole. It has no length, no index, and takes no sampler.

    Args:
        dataset_id: The id, ``"cmu_stretch"``.
        batch_size: Steps (with `split_trajs`, episodes) of a batch where `sample` is not told. Without it, iterating
            gives one trajectory after the other.
        shuffle: Whether trajectories come in random order where each comes once.
        num_slices: Slices of a batch, each of one trajectory; not together with `slice_len`.
        slice_len: Steps of a slice. A stream without either gives batches of one slice.
        pad: Of a stream: what slices of trajectories that are too short are filled up with; True is 0.
        replacement: Whether slices are drawn with replacement; by default True, and False for a stream, which cannot.
        streaming: Read while it comes, and keep nothing; by default if `download` is not given, and the dataset is not
            there.
        root: The source's folder; by default ``<RLDS_HOME>/openx``.
        download: True makes the dataset where it is not there; False without streaming wants it to be there; "force"
            makes it anew.
        sampler: Chooses the steps; uniform with replacement by default. Not together with `num_slices` or `slice_len`.
        writer: Refuses writes by default; a dataset cannot be written to.
        collate_fn: Applied to what the storage returns.
        pin_memory: Whether batches are copied to page-locked memory.
        prefetch: Batches made ahead of time by as many threads.
        transform: Applied to every batch.
        split_trajs: Elements are whole episodes, [E, T], padded with zeros, with a `mask`; not of a stream.
        strict_length: Whether trajectories that are too short for a slice are left out (of a stream: are an error), or
            are taken whole.
        selection: The part that is wanted; by default any stored part, or the whole dataset if there is none.
        final_unknown: What becomes of transitions whose next observation is unknown, see the base class.
        cache_size: Of a stream: bytes of shards that stay on the disk for the next round, beside those at hand.

    Raises:
        UnknownIdError: If it can be no id.
        InvalidArgumentError: If arguments exclude each other, all faults at once; or if the selection contradicts the
            stored one.
        FetchError: If no upstream has it.
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
        writer: Writer | None = None,
        collate_fn: Callable[[Any], Any] | None = None,
        pin_memory: bool = False,
        prefetch: int | None = None,
        transform: Callable[[Any], Any] | Sequence[Callable[[Any], Any]] | None = None,
        split_trajs: bool = False,
        strict_length: bool = True,
        selection: Selection | None = None,
        final_unknown: FinalUnknown | None = None,
        cache_size: int = 4 << 30,
    ) -> None:
        if streaming is None:
            # A derived dataset is on the disk, and nowhere else.
            streaming = not download and not split_derived(dataset_id)[1]
            if download is None and store.dataset_paths(f"{self.source}/{dataset_id}", root=root).exists:
                streaming = False
        self.streaming = streaming
        self.download: Download = not streaming if download is None else download
        self.shuffle, self.num_slices, self.slice_len = shuffle, num_slices, slice_len
        self.strict_length = strict_length
        self.pad = None if pad is None or pad is False else 0.0 if pad is True else float(pad)
        self._refuse(sampler, replacement, final_unknown, split_trajs=split_trajs)
        if not self.streaming:
            super().__init__(
                dataset_id,
                batch_size,
                sampler or self._sampler_of_slices(replacement),
                writer,
                collate_fn,
                pin_memory,
                prefetch,
                transform,
                split_trajs,
                root=root,
                download=self.download,
                selection=selection,
                final_unknown=final_unknown,
            )
            return
        self.dataset_id = dataset_id
        self.split_trajs = False
        self._asked = _kept_encoded(selection or Selection())
        settings = Settings.from_env()
        place = Path(root or settings.home / self.source).expanduser().absolute()
        self.stream = Stream(
            f"{self.source}/{dataset_id}",
            root=place,
            selection=self._asked,
            room=cache_size,
            shuffle=shuffle,
            pad=self.pad,
            settings=settings,
        )
        TensorDictReplayBuffer.__init__(
            self,
            storage=self.stream,
            sampler=StreamSampler(num_slices=num_slices, slice_len=slice_len, strict_length=strict_length),
            writer=writer or ImmutableDatasetWriter(),
            collate_fn=collate_fn,
            pin_memory=pin_memory,
            prefetch=prefetch,
            transform=transform,
            batch_size=batch_size,
        )

    def _refuse(
        self,
        sampler: Sampler | None,
        replacement: bool | None,
        final_unknown: FinalUnknown | None,
        *,
        split_trajs: bool,
    ) -> None:
        sliced = self.num_slices is not None or self.slice_len is not None
        faults = {
            "a stream is not downloaded: streaming and download exclude each other": self.streaming
            and bool(self.download),
            "a stream gives every trajectory once: replacement=True is for downloaded sets": self.streaming
            and replacement is True,
            "a stream takes no sampler": self.streaming and sampler is not None,
            "split_trajs is for downloaded sets; a stream iterated without a batch size gives whole trajectories": (
                self.streaming and split_trajs
            ),
            "final_unknown is for downloaded sets; batches of a stream have next.final_known": self.streaming
            and final_unknown not in {None, "keep"},
            "pad is for streams": not self.streaming and self.pad is not None,
            f"pad is {self.pad}; expected a number that whole numbers can be, too": self.pad is not None
            and not abs(self.pad) < _PAD_MOST,
            "a sampler and slices exclude each other": sliced and sampler is not None,
            "shuffle=False needs replacement=False": not self.streaming
            and sliced
            and not self.shuffle
            and replacement is not False,
        }
        found = [text for text, wrong in faults.items() if wrong]
        found += size_faults(self.num_slices, self.slice_len) if sliced else []
        if found:
            raise InvalidArgumentError("; ".join(found))

    def _sampler_of_slices(self, replacement: bool | None) -> Sampler | None:
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
        """Yield batches; without a batch size one trajectory after the other, or with `slice_len` a slice of each."""
        if self.batch_size is not None:
            yield from super().__iter__()
            return
        if self.streaming:
            cutter = StreamSampler(strict_length=self.strict_length)
            cutter.generator = self._sampler.generator
            for run in self.stream.runs(cutter.generator):
                index = run.rows
                info: dict[Any, Any] = {}
                if self.slice_len is not None:
                    part = cutter.cut(run, self.slice_len, filled=self.pad is not None)
                    index, info = cutter.batch(self.stream, [part], self.slice_len)
                yield self._finish(self.stream.take(index), {**info, "index": index})
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
        sampler.generator = self._sampler.generator
        rounds: TensorDictReplayBuffer = TensorDictReplayBuffer(
            storage=self._storage,
            sampler=sampler,
            writer=ImmutableDatasetWriter(),
            collate_fn=self._collate_fn,
            pin_memory=self._pin_memory,
            transform=self._transforms or None,
            batch_size=size,
        )
        yield from rounds

    def texts(self, key: str | tuple[str, ...]) -> list[str]:
        """Return the texts that the numbers of a text field stand for; of a stream, those met so far.

        Raises:
            UnknownKeyError: If there is no such text field.
        """
        if not self.streaming:
            return super().texts(key)
        if (wanted := as_key(key)) not in self.stream.vocabulary:
            raise UnknownKeyError(dotted(wanted), [dotted(one) for one in self.stream.vocabulary])
        return [*self.stream.vocabulary[wanted]]

    @property
    def selection(self) -> Selection:
        """The part of the dataset that the buffer shows; of a stream, with images as they come."""
        return self._asked if self.streaming else super().selection

    @property
    def data_path(self) -> Path:
        """The folder of the dataset.

        Raises:
            InvalidArgumentError: If it is a stream, which has none.
        """
        if self.streaming:
            raise InvalidArgumentError(f"{self.dataset_id} is streamed: there is no folder of it")
        return super().data_path

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.stream!r})" if self.streaming else super().__repr__()


def _kept_encoded(selection: Selection) -> Selection:
    """Let pictures stay as they come: of a stream, few are looked at more than once."""
    return replace(selection, options={"images": "encoded", **selection.options})


CLASS = OpenXExperienceReplay
