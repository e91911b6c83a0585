"""Reader of Minari's episodes.

observations   o_0  o_1  o_2  ...  o_T-1  o_T        the state after the last step is always stored
actions        a_0  a_1  a_2  ...  a_T-1
rewards        r_0  r_1  r_2  ...  r_T-1             r_t is the reward for a_t
infos          i_0  i_1  i_2  ...  i_T-1  i_T        or T rows, i_1 ... i_T, if the reset returned no info
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from datasets_rl.errors import ConversionError
from datasets_rl.format.images.base import Form
from datasets_rl.format.schema import Column
from datasets_rl.read.streams import refuse
from datasets_rl.sources.base import NO_TRANSITION, NOT_FINITE, EpisodeReader
from datasets_rl.sources.minari.episodes import (
    EpisodeError,
    Hdf5Episodes,
    LinkedEpisodes,
    RawEpisode,
    StoredColumn,
    TableEpisodes,
    key_of_names,
)
from datasets_rl.sources.minari.links import Run
from datasets_rl.sources.minari.spaces import Leaf, leaf_spaces, read_space, spec_document
from datasets_rl.sources.rows import split_episode
from datasets_rl.sources.selection import read_numbers
from datasets_rl.sources.values import WIDENED, WIDENED_INTEGERS, count_not_finite
from datasets_rl.ted.episode import EncodedImages, Episode, TextStates
from datasets_rl.ted.keys import NEXT_REWARD, NEXT_TERMINATED, NEXT_TRUNCATED, Key, dotted_name

_IMAGE_AXES = 3
_FLAGS = (NEXT_TERMINATED, NEXT_TRUNCATED)
_VERSIONS = frozenset({"0.4.0", "0.4.1", "0.4.2", "0.4.3", "0.5.0", "0.5.1", "0.5.2", "0.5.3", "0.5.4"})
_METADATA = (
    "env_spec",
    "eval_env_spec",
    "observation_space",
    "action_space",
    "algorithm_name",
    "author",
    "author_email",
    "code_permalink",
    "description",
    "minari_version",
    "requirements",
    "ref_min_score",
    "ref_max_score",
    "num_episodes_average_score",
    "combined_datasets",
    "data_format",
    "jpeg_encoding",
)
_TEXTS = {
    "minari-n-plus-one": "an episode has one more observation than actions: the observation after the last step",
    **NO_TRANSITION,
    "info-without-reset": "the infos of these episodes have no row for the reset: the info of the first state was "
    "filled with zeros",
    "end-without-flag": "episodes end without a flag: the last row was marked truncated",
    "flag-inside-episode": "rows inside an episode have an end flag: the trajectory ends there, and the next begins",
    "both-flags": "rows that are terminated and truncated keep both flags",
    **NOT_FINITE,
    "jpeg": "images are stored as JPEG, which is lossy",
    "jpeg-of-symbols": "values are stored as JPEG although the space is not an image, as Minari 0.5.3 did: the values are "
    "damaged",
    **WIDENED_INTEGERS,
    "flags-cast": "the files store flags as numbers, 0 or 1, which were converted to booleans",
    "unknown-minari-version": "the files are of a Minari version that this reader was not tested with",
    "space-missing": "the metadata lacks the observation or action space: the range of the values is not known",
}


class MinariReader(EpisodeReader):
    """Reader of the files of a shard of a Minari dataset.

    Args:
        dataset_id: Id of the dataset, for messages.
        files: The local files, by path.
        metadata: `Listing.params`: the metadata, if there is a separate file, and the selection.

    Raises:
        ConversionError: If the files contradict the metadata or each other. The error names every problem.
    """

    rules = _TEXTS

    def __init__(self, dataset_id: str, files: Mapping[str, Path], metadata: Mapping[str, Any]) -> None:
        self._dataset_id = dataset_id
        self._selected: str = metadata.get("episodes", "")
        self._given = metadata
        self._metadata = dict(metadata.get("metadata", {}))
        self._episodes = self._open(files)
        try:
            self.steps = self._stated_steps(metadata)
            self.metadata = {
                name: _as_plain_value(self._metadata[name]) for name in _METADATA if name in self._metadata
            }
            first = self._first_episode()
            self._check_complete(first)
            steps = first.columns[NEXT_TERMINATED].length
            self.columns = [
                _column_of(key, stored, steps, self._episodes.leaves.get(key)) for key, stored in first.columns.items()
            ]
        except BaseException:
            self._episodes.close()
            raise
        self._by_key = {column.key: column for column in self.columns}

    def __exit__(self, *details: object) -> None:
        self._episodes.close()

    def _open(self, files: Mapping[str, Path]) -> Hdf5Episodes | TableEpisodes:
        main = next((file for path, file in files.items() if path.endswith(".hdf5")), None)
        if main is None:
            return TableEpisodes(files, self._leaves_of(self._metadata), self._dataset_id)
        runs = [Run(*run) for run in self._given.get("runs", ())]
        episodes = LinkedEpisodes(files, runs) if runs else Hdf5Episodes(main, {})
        if not self._metadata:
            self._metadata = dict(episodes.attributes)
        try:
            episodes.leaves = self._leaves_of(self._metadata)
        except ConversionError:
            episodes.close()
            raise
        if not episodes.numbers:
            episodes.close()
            raise ConversionError(self._dataset_id, [f"{main.name} has no episode"])
        return episodes

    def _leaves_of(self, metadata: Mapping[str, Any]) -> dict[Key, Leaf]:
        problems: list[str] = []
        by_key: dict[Key, Leaf] = {}
        self._spaceless = [name for name in ("observation_space", "action_space") if name not in metadata]
        for name, root in (("observation_space", "observation"), ("action_space", "action")):
            space = read_space(metadata[name], name, problems) if name in metadata else None
            if space is not None:
                by_key.update({(root, *key_of_names(leaf.names)): leaf for leaf in leaf_spaces(space)})
        refuse(self._dataset_id, problems)
        return by_key

    def _stated_steps(self, metadata: Mapping[str, Any]) -> int | None:
        """Return the number of steps that the file states. Only files of versions before 0.5 state the number."""
        if "metadata" in metadata:
            return None
        total, numbers = self._metadata.get("total_episodes"), self._episodes.numbers
        if isinstance(total, int) and total != len(numbers):
            raise ConversionError(
                self._dataset_id, [f"it has {len(numbers):,} episodes, but the metadata states {total:,}"]
            )
        steps = self._metadata.get("total_steps")
        return int(steps) if isinstance(steps, int) and not self._selected else None

    def _check_complete(self, raw: RawEpisode) -> None:
        missing = [dotted_name(key) for key in (NEXT_REWARD, *_FLAGS) if key not in raw.columns]
        if missing:
            raise self._error(raw.number, [f"it has no {name}" for name in missing])

    @override
    def specs(self) -> Mapping[str, Any]:
        specs = {}
        for column in self.columns:
            leaf = self._episodes.leaves.get(column.key)
            if leaf is not None and not column.text:
                spec = spec_document(leaf)
                if (spec["dtype"], tuple(spec["shape"])) == (column.dtype.name, column.shape):
                    specs[dotted_name(column.key)] = spec
        return specs

    def episodes(self, part: Any = None) -> Iterator[Episode]:
        """Yield the episodes with the given numbers, or by default the selected episodes of the file."""
        self.counts.clear()
        numbers = self._episodes.numbers
        selected = part if part is not None else [numbers[row] for row in read_numbers(self._selected, len(numbers))]
        for number in selected:
            try:
                yield from self._split(self._read_episode(number))
            except EpisodeError as error:
                raise self._error(number, error.args) from None
            except ConversionError as error:
                raise self._error(number, error.problems) from None
        self.counts["unknown-minari-version"] += int(self._metadata.get("minari_version") not in _VERSIONS)
        self.counts["space-missing"] += len(self._spaceless)

    def _first_episode(self) -> RawEpisode:
        """Return the first episode that has a step, because an empty episode may not show the types of the columns."""
        numbers = self._episodes.numbers
        opened = (self._read_episode(number) for number in numbers)
        return next((raw for raw in opened if not _is_empty(raw)), None) or self._read_episode(numbers[0])

    def _read_episode(self, number: int) -> RawEpisode:
        try:
            return self._episodes.read(number)
        except EpisodeError as error:
            raise self._error(number, error.args) from None

    def _error(self, number: int, problems: Any) -> ConversionError:
        start = f"episode {number}: "
        return ConversionError(
            self._dataset_id, [problem if problem.startswith(start) else start + problem for problem in problems]
        )

    def _split(self, raw: RawEpisode) -> Iterator[Episode]:
        if _is_empty(raw):
            self.counts["no-transition"] += 1
            return
        steps = self._check_episode(raw)
        columns = {key: stored for key, stored in raw.columns.items() if key in self.kept}
        flags = [self._read_flag(columns[key], key) for key in _FLAGS]
        ends = flags[0] | flags[1]
        self.counts["minari-n-plus-one"] += 1
        self.counts["both-flags"] += int(np.count_nonzero(flags[0] & flags[1]))
        self.counts["end-without-flag"] += int(not ends[-1])
        self.counts["flag-inside-episode"] += int(np.count_nonzero(ends[:-1]))
        self.counts["info-without-reset"] += any(
            self._lacks_reset(key, stored, steps) for key, stored in columns.items()
        )
        if not ends[-1]:
            flags[1] = flags[1].copy()
            flags[1][-1] = ends[-1] = True
        metadata = {
            "source": np.int64(raw.number),
            "seed": np.uint64(0 if raw.seed is None else raw.seed % (1 << 64)),
            "seeded": raw.seed is not None,
        }
        for begin, end in pairwise([0, *(np.flatnonzero(ends) + 1).tolist()]):

            def read(key: Key, start: int, stop: int, begin: int = begin) -> Any:
                stored = columns[key]
                lacks_reset = self._lacks_reset(key, stored, steps)
                rows = self._read_values(
                    self._by_key[key], stored, begin + start, begin + stop, lacks_reset=lacks_reset
                )
                return rows[:, None] if key == NEXT_REWARD else rows

            of_trajectory = {key: flag[begin:end, None] for key, flag in zip(_FLAGS, flags, strict=True)}
            yield from split_episode(of_trajectory, [self._by_key[key] for key in columns], read, metadata)

    def _read_values(
        self, column: Column, stored: StoredColumn, first: int, last: int, *, lacks_reset: bool = False
    ) -> Any:
        """Read the rows [first, last). If the column lacks the row of the reset, row 0 is zeros."""
        if stored.kind == "jpeg":
            leaf = self._episodes.leaves.get(column.key)
            self.counts["jpeg" if leaf is None or leaf.image else "jpeg-of-symbols"] += last - first
            if column.encoded:
                return EncodedImages(stored.read_images(first, last))
        if lacks_reset:
            values = stored.read(max(first - 1, 0), last - 1)
            values = values if first else _with_leading_zero(values)
        else:
            values = stored.read(first, last)
        if isinstance(values, TextStates):
            return values
        if values.dtype != column.dtype:
            self.counts["widened"] += last - first
            values = values.astype(column.dtype)
        self.counts["not-finite"] += count_not_finite(values)
        return values

    def _read_flag(self, stored: StoredColumn, key: Key) -> NDArray[np.bool_]:
        values = stored.read(0, stored.length)
        if isinstance(values, TextStates):
            raise EpisodeError(f"{dotted_name(key)} has strings, expected flags")
        values = values.reshape(-1)
        if values.dtype == np.bool_:
            return values
        if not np.isin(values, (0, 1)).all():
            raise EpisodeError(f"{dotted_name(key)} has numbers other than 0 and 1")
        self.counts["flags-cast"] += len(values)
        return np.asarray(values == 1)

    @staticmethod
    def _lacks_reset(key: Key, stored: StoredColumn, steps: int) -> bool:
        return key[0] == "info" and stored.length == steps

    def _check_episode(self, raw: RawEpisode) -> int:
        """Return the number of steps, after checking that the columns agree with each other and the first episode's."""
        missing = [dotted_name(key) for key in self._by_key if key not in raw.columns]
        extra = [dotted_name(key) for key in raw.columns if key not in self._by_key]
        if missing or extra:
            problems = [f"it has no {name}, unlike the first episode" for name in missing]
            raise EpisodeError(*problems, *(f"it has {name}, unlike the first episode" for name in extra))
        steps = raw.columns[NEXT_TERMINATED].length
        problems = []
        if raw.steps is not None and raw.steps != steps:
            problems.append(f"it has {steps:,} steps, but the metadata states {raw.steps:,}")
        for key, stored in raw.columns.items():
            first = self._by_key[key]
            lengths = {steps + 1} if first.shared else {steps}
            lengths |= {steps} if key[0] == "info" else set()
            if stored.length not in lengths:
                problems.append(f"{dotted_name(key)} has {stored.length:,} rows for {steps:,} steps")
            shape, dtype = (stored.shape, WIDENED.get(stored.dtype, stored.dtype))
            if not _fits_column(key, shape, dtype, first):
                problems.append(
                    f"{dotted_name(key)} is {dtype.name} {list(shape)}, "
                    f"in the first episode {first.dtype.name} {list(first.shape)}"
                )
        if problems:
            raise EpisodeError(*problems)
        return steps


def _is_empty(raw: RawEpisode) -> bool:
    """Return whether an episode has no steps, according to the flags and, if there is any, the metadata of the episode."""
    flags = raw.columns.get(NEXT_TERMINATED)
    return flags is not None and not flags.length and not raw.steps


def _fits_column(key: Key, shape: tuple[int, ...], dtype: np.dtype[Any], column: Column) -> bool:
    if key in _FLAGS:
        return True
    return dtype == column.dtype and (shape == column.shape or (key == NEXT_REWARD and shape in {(), (1,)}))


def _column_of(key: Key, stored: StoredColumn, steps: int, leaf: Leaf | None) -> Column:
    if key in _FLAGS:
        return Column(key, np.dtype(np.bool_), (1,))
    dtype = WIDENED.get(stored.dtype, stored.dtype)
    if key == NEXT_REWARD:
        return Column(key, dtype, (1,))
    # Old files have additional groups, such as `state`. Such a group has states if there is one more row than actions.
    shared = key[0] in {"observation", "info"} or stored.length == steps + 1
    # An info can lack the image of the reset, and an encoded image of grayscale pixels has an axis that these lack.
    is_image = stored.kind == "jpeg" and key[0] == "observation" and len(stored.shape) == _IMAGE_AXES
    form: Form = "encoded" if is_image and (leaf is None or leaf.image) else "raw"
    return Column(key, dtype, stored.shape, shared=shared, text=stored.kind == "text", form=form)


def _with_leading_zero(values: NDArray[Any] | TextStates) -> NDArray[Any] | TextStates:
    if isinstance(values, TextStates):
        return TextStates(np.concatenate([[0], values.codes + 1]).astype(np.int32), ("", *values.vocabulary))
    return np.concatenate([np.zeros((1, *values.shape[1:]), values.dtype), values])


def _as_plain_value(value: Any) -> str | float | bool:
    """Convert a value of the metadata to a type that the manifest supports."""
    if isinstance(value, list):
        return "; ".join(str(item) for item in value)
    return value if isinstance(value, (str, int, float, bool)) else str(value)
