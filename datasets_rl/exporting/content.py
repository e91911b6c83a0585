"""What is exported: the episodes and fields of a stored dataset, read in batches of bounded size."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import takewhile
from typing import Any

import numpy as np
from numpy.typing import NDArray

from datasets_rl.errors import InvalidArgumentError, join_names
from datasets_rl.exporting.videos import StoredClip, find_clip
from datasets_rl.format.images.encoded import EncodedColumn, encode
from datasets_rl.format.manifest import Manifest
from datasets_rl.format.reader import StoredDataset
from datasets_rl.format.schema import Field
from datasets_rl.preprocessing.batches import episode_batch, step_bytes, whole_episodes
from datasets_rl.ted.episode import EncodedImages, Episode, TextStates
from datasets_rl.ted.episode_batch import EpisodeBatch
from datasets_rl.ted.keys import (
    EPISODE,
    NEXT,
    NEXT_DONE,
    NEXT_REWARD,
    NEXT_TERMINATED,
    NEXT_TRUNCATED,
    OBSERVATION,
    Key,
)

_BATCH_BYTES = 32 << 20
_FLAGS = (NEXT_TERMINATED, NEXT_TRUNCATED)


class Content:
    """Episodes and fields of a stored dataset.

    Args:
        stored: The dataset.
        episodes: Indices of the episodes, int64 [E], ascending. All by default.
        keys: Keys of the fields. All by default. The reward and the flags are always kept.
        fps: Steps per second, instead of the number in the metadata.
        images: How images are written, in a format that has several `ExportFormat.image_forms`. Empty for the default.
    """

    def __init__(
        self,
        stored: StoredDataset,
        episodes: NDArray[np.int64] | None = None,
        keys: Collection[Key] | None = None,
        fps: float | None = None,
        images: str = "",
    ) -> None:
        if fps is not None and not 0 < fps < math.inf:
            raise InvalidArgumentError(f"fps is {fps}, expected a number of steps per second above 0")
        self.stored = stored
        self.fps = fps
        self.images = images
        self._episodes = episodes
        table = stored.episodes
        chosen = np.arange(len(table)) if episodes is None else episodes
        self.episodes: NDArray[np.int64] = chosen
        """Indices of the exported episodes in the stored dataset, [E]."""
        self.lengths: NDArray[np.int64] = np.asarray(table.lengths)[chosen]
        """Number of steps of each episode, [E]."""
        self.known: NDArray[np.bool_] = np.asarray(table["final_known"])[chosen]
        """Whether the state after the last step of each episode is known, [E]."""
        own = {EPISODE, NEXT_DONE}
        always = {NEXT_REWARD, *_FLAGS}
        self.fields: tuple[Field, ...] = tuple(
            field
            for field in stored.schema
            if field.key not in own and (keys is None or field.key in keys or field.key in always)
        )

    @property
    def manifest(self) -> Manifest:
        """The manifest of the stored dataset."""
        return self.stored.manifest

    @property
    def frame_rate(self) -> float:
        """Number of steps per second, an integer where possible, or 0 if unknown."""
        rate = self.fps or self.manifest.fps or 0
        return int(rate) if rate == int(rate) else rate

    @property
    def steps(self) -> int:
        """Number of steps, N."""
        return int(self.lengths.sum())

    @property
    def bytes(self) -> int:
        """Number of bytes on disk of the exported part, about.

        Compressed images and frames of videos are exported as pixels.
        """
        compressed = [field for field in self.stored.schema if field.image_form.exported_as_pixels]
        files = {name for field in compressed for name in (field.file, field.final_file)}
        others = sum(entry.bytes for entry in self.manifest.files if entry.path not in files)
        pixels = sum(field.step_bytes for field in compressed)
        return others * self.steps // max(self.manifest.steps, 1) + pixels * self.steps

    @property
    def states(self) -> list[Field]:
        """Fields with a value before and after every step."""
        return [field for field in self.fields if field.shared]

    @property
    def extras(self) -> list[Field]:
        """Fields with a value per step, without the action, the reward, the flags and separate next values."""
        own = {"action", NEXT}
        return [field for field in self.fields if not field.shared and field.key[0] not in own]

    @property
    def actions(self) -> list[Field]:
        """The action, or its parts."""
        return [field for field in self.fields if field.key[0] == "action"]

    @property
    def next_fields(self) -> list[Field]:
        """Fields under "next" that are stored separately, such as next observations of frames stacked in time."""
        return [field for field in self.fields if field.key[0] == NEXT and field.key not in {NEXT_REWARD, *_FLAGS}]

    @property
    def observations(self) -> list[Field]:
        """The observation, or its parts. In a dataset without that key, every state except the info."""
        named = [field for field in self.fields if field.key[0] == OBSERVATION[0]]
        return named or [field for field in self.states if field.key[0] != "info"]

    @property
    def infos(self) -> list[Field]:
        """The states that are not observations."""
        observed = {field.key for field in self.observations}
        return [field for field in self.states if field.key not in observed]

    @property
    def metadata_names(self) -> list[str]:
        """Names of the metadata of episodes."""
        return self.stored.episodes.metadata_names

    def metadata(self, name: str) -> NDArray[Any]:
        """Return metadata of the episodes, [E]."""
        return np.asarray(self.stored.episodes[name])[self.episodes]

    @cached_property
    def _ends(self) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Whether each episode ends terminated, and truncated, [E]."""
        last = np.asarray(self.stored.episodes.stops)[self.episodes] - 1
        terminated, truncated = (np.asarray(self.stored.items(key)).reshape(-1)[last] for key in _FLAGS)
        return terminated, truncated

    @property
    def both_flags(self) -> int:
        """Number of episodes that are terminated and truncated at once."""
        terminated, truncated = self._ends
        return int((terminated & truncated).sum())

    def count_truncated(self, max_length: int | None = None) -> int:
        """Return the number of episodes, of at most `max_length` steps, that are truncated and not terminated."""
        terminated, truncated = self._ends
        short = True if max_length is None else self.lengths <= max_length
        return int((truncated & ~terminated & short).sum())

    def steps_of(self, key: Key) -> NDArray[Any]:
        """Return the values of a field at the steps of the episodes, [N, ...]."""
        values = self.stored.column(key)
        if self._episodes is None:
            return values
        rows = np.zeros(len(self.stored), np.bool_)
        for start, stop in self._spans():
            rows[start:stop] = True
        return np.asarray(values[rows])

    @cached_property
    def clips(self) -> Mapping[Key, Sequence[StoredClip]]:
        """The clip of each episode, of fields with its frames in a row in a stored video, at the frame rate."""
        found = {}
        for field in self.fields:
            if field.image_form.in_shared_files:
                column: Any = self.stored.items(field.key)
                frames = (column.read_stored(start, stop) for start, stop in self._spans())
                clips = [*takewhile(bool, (find_clip(one, self.frame_rate or 1) for one in frames))]
                if len(clips) == len(self.episodes):
                    found[field.key] = [clip for clip in clips if clip]
        return found

    def _spans(self) -> Iterator[tuple[int, int]]:
        """Yield the first row of each episode in the stored dataset, and the row after its last row."""
        starts = np.asarray(self.stored.episodes.starts)[self.episodes]
        return zip(starts.tolist(), (starts + self.lengths).tolist(), strict=True)

    def batches(self, max_bytes: int = _BATCH_BYTES, *, frames: bool = False) -> Iterator[EpisodeBatch]:
        """Yield the episodes in batches of about `max_bytes`, at least 1 episode each.

        Encoded images stay encoded, and others are pixels. With `frames`, frames of videos become pixels on access.
        """
        keys = {field.key for field in self.fields}
        decoded = {
            field.key
            for field in self.fields
            if field.image_form.exported_as_pixels and not (frames and field.image_form.in_shared_files)
        }
        selected = np.zeros(len(self.stored.episodes), np.bool_)
        selected[self.episodes] = True
        max_steps = max_bytes // max(step_bytes(self.stored.schema), 1)
        for first, stop in whole_episodes(self.stored.episodes.lengths, max_steps):
            if not (chosen := selected[first:stop]).any():
                continue
            batch = episode_batch(self.stored, first, stop)
            batch = batch if self._episodes is None else batch.select_episodes(chosen)
            yield _decompressed(batch.select_fields(keys), decoded)

    def __iter__(self) -> Iterator[Episode]:
        """Yield each episode: T actions, and T + 1 states, or T where the final state is unknown."""
        for batch in self.batches():
            yield from batch


def _decompressed(batch: EpisodeBatch, keys: Collection[Key]) -> EpisodeBatch:
    """Return the batch with the images of some fields as pixels, which every format holds."""

    def arrays(columns: Mapping[Key, Any]) -> dict[Key, Any]:
        return {key: np.asarray(values) if key in keys else values for key, values in columns.items()}

    return replace(
        batch,
        steps={key: _with_blanks(values) for key, values in arrays(batch.steps).items()},
        states=arrays(batch.states),
        final_states=arrays(batch.final_states),
        compressed=frozenset(),
    )


def _with_blanks(values: Any) -> Any:
    """Return images of steps, with black images in place of unknown images, which have no bytes."""
    if not isinstance(values, EncodedColumn) or all(map(len, values.images)):
        return values
    (blank,) = encode(np.zeros((1, *values.shape[1:]), np.uint8))
    return replace(values, images=[image if len(image) else blank for image in values.images])


def column_of(batch: EpisodeBatch, field: Field) -> Any:
    """Return the values of a field at the steps of a batch, [N, ...]."""
    return batch.states[field.key] if field.shared else batch.steps[field.key]


def info_paths(fields: Collection[Field]) -> Mapping[Key, Key]:
    """Return the names below ``infos`` of fields by key, in formats that have this group for other fields.

    info.qpos  ->  infos/qpos          qpos  ->  infos/qpos, or infos/qpos_ beside info.qpos
    """
    paths: dict[Key, Key] = {}
    for key in sorted((field.key for field in fields), key=lambda key: key[0] != "info"):
        path = key[1:] if key[0] == "info" and len(key) > 1 else key
        while any(all(map(str.__eq__, path, other)) for other in paths.values()):  # equal, or a group of the other
            path = (f"{path[0]}_", *path[1:])
        paths[key] = path
    return paths


def is_image(field: Field) -> bool:
    """Return whether a field consists of images, encoded or as pixels of 1, 3 or 4 channels."""
    is_pixels = field.read_dtype == np.uint8 and len(field.shape) == 3 and field.shape[2] in {1, 3, 4}
    return field.image_form.holds_files or is_pixels


def text_list(values: TextStates) -> list[str]:
    """Return the texts of a column, [T]."""
    return [values.vocabulary[code] for code in values.codes.tolist()]


def vocabulary_list(batch: EpisodeBatch, key: Key, codes: NDArray[Any]) -> list[str]:
    """Return the texts of a field of a batch for its codes, [T]."""
    vocabulary = batch.vocabulary[key]
    return [vocabulary[code] for code in codes.tolist()]


def with_final_row(values: Any, steps: int) -> Any:
    """Return the T + 1 states of an episode. An unknown final state consists of zeros, or is an empty text."""
    if len(values) > steps:
        return values
    if isinstance(values, TextStates):
        vocabulary = values.vocabulary if "" in values.vocabulary else (*values.vocabulary, "")
        return TextStates(np.append(values.codes, vocabulary.index("")), vocabulary)
    if isinstance(values, EncodedImages):
        return np.concatenate([pixels(values), np.zeros_like(pixels(values)[:1])])
    return np.concatenate([values, np.zeros((1, *values.shape[1:]), values.dtype)])


def pixels(values: Any) -> NDArray[Any]:
    """Return a column as an array. Encoded images are decoded."""
    return np.asarray(values)


def names_of(fields: Collection[Field]) -> str:
    """Return the names of fields for a message: the first names, and the number of the others."""
    return join_names([field.name for field in fields], 4)
