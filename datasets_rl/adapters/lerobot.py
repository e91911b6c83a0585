"""A dataset as the `LeRobotDataset` of LeRobot 0.6: its items, metadata, statistics, tasks and episodes.

The features are those of an export to LeRobot, see `datasets_rl.exporting.lerobot_features`.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from datasets_rl.adapters.items import BatchItems, Item
from datasets_rl.errors import InvalidArgumentError, join_names
from datasets_rl.exporting.content import Content, is_image
from datasets_rl.exporting.lerobot_features import (
    COUNTERS,
    FLAGS,
    IMAGE_SAMPLES,
    LANGUAGE,
    FeatureStatistics,
    default_task,
    feature,
    feature_fields,
    is_language,
    parse_language,
    ranked,
    task_field,
)
from datasets_rl.fingerprints.fingerprint import Fingerprints
from datasets_rl.format.copies import first_copies, telling_fingerprints
from datasets_rl.format.schema import Field
from datasets_rl.libraries import importing
from datasets_rl.storages.dataset import DatasetStorage
from datasets_rl.storages.view import View
from datasets_rl.ted.keys import Key, dotted_name
from datasets_rl.ted.table import EpisodeTable, concatenated_ranges

_PURPOSE = "as_lerobot()"
_BLOCK_BYTES = 16 << 20
_QUANTILES = ("q01", "q10", "q50", "q90", "q99")


class LeRobotFrames(Dataset[dict[str, Any]]):
    """The frames of a dataset, with the interface of ``LeRobotDataset``.

    An item is a dict of a frame: images are uint8 [C, H, W], other numbers float32, int64 or bool, and the features with
    `delta_timestamps` have a first axis of W frames and a mask ``x_is_pad``, bool [W]. ``task`` is a text.

    `__getitems__` reads the frames of a batch at once, as the `DataLoader` of torch does.

    Args:
        content: The stored dataset and its fields.
        storage: The steps.
        delta_timestamps: Seconds from each frame by the name of a feature, [W] each.
        episodes: Numbers of the episodes to read. All by default.
        image_transforms: Function of an image, uint8 [..., C, H, W], for the images of each item.
        tolerance_s: Largest difference between a number of seconds and the time of its frame.

    Raises:
        InvalidArgumentError: If an episode does not exist, or seconds are not those of a frame, or are given for a
            feature that does not exist or consists of texts.
    """

    def __init__(
        self,
        content: Content,
        storage: DatasetStorage | View,
        delta_timestamps: Mapping[str, Sequence[float]] | None = None,
        *,
        episodes: Sequence[int] | None = None,
        image_transforms: Callable[[Any], Any] | None = None,
        tolerance_s: float = 1e-4,
    ) -> None:
        self.meta = LeRobotMetadata(content, storage)
        self.image_transforms = image_transforms
        self.tolerance_s = tolerance_s
        self.delta_timestamps = delta_timestamps
        self._storage, self._stored = storage, content.stored
        self.delta_indices = None if delta_timestamps is None else self._delta_indices(delta_timestamps)
        self._plain: list[Key] = []
        windows: dict[tuple[int, ...], list[str]] = {}
        for name, field in self.meta.fields.items():
            if self.delta_indices and name in self.delta_indices:
                windows.setdefault(tuple(self.delta_indices[name]), []).append(name)
            else:
                self._plain.append(field.key)
        self._plain += FLAGS
        self._windows = {_offsets(offsets): names for offsets, names in windows.items()}
        self._choose(episodes)

    def _choose(self, episodes: Sequence[int] | None) -> None:
        self.episodes = None if episodes is None else [*map(int, episodes)]
        table = self.meta.table
        self._rows: Tensor | None = None
        self._relative: _RelativeRows | None = None
        if self.episodes is None:
            return
        if wrong := [number for number in self.episodes if not 0 <= number < len(table)]:
            raise InvalidArgumentError(
                f"episodes has {join_names([*map(str, wrong)], 5)}, expected numbers in [0, {len(table)})"
            )
        chosen = np.unique(np.asarray(self.episodes, np.int64))
        if not len(chosen):
            raise InvalidArgumentError("episodes is empty, expected at least one number of an episode")
        self._relative = _RelativeRows(table.starts[chosen], table.lengths[chosen])
        self._rows = torch.from_numpy(concatenated_ranges(table.starts[chosen], table.lengths[chosen]))

    def _delta_indices(self, seconds: Mapping[str, Sequence[float]]) -> dict[str, list[int]]:
        """Return the frames of the windows by feature, relative to the frame of an item, [W] each."""
        fps, fields = self.meta.fps, self.meta.fields
        problems = [
            f"{name} is not a feature of numbers or images: the features are {join_names([*fields], 20)}"
            for name in seconds
            if name not in fields or fields[name].text
        ]
        indices = {name: [round(number * fps) for number in numbers] for name, numbers in seconds.items()}
        for name, numbers in seconds.items():
            apart = [
                number
                for number, index in zip(numbers, indices[name], strict=True)
                if not abs(number - index / fps) <= self.tolerance_s
            ]
            if apart or not len(numbers):
                found = join_names([f"{number:g}" for number in apart], 5) or "no seconds"
                problems.append(f"{name} has {found}, expected multiples of 1/{fps:g} s")
        if problems:
            raise InvalidArgumentError("delta_timestamps: " + "; ".join(problems))
        return indices

    def split(self, eval_split: float) -> tuple[LeRobotFrames, LeRobotFrames | None]:
        """Return the frames for training and the held-out frames, as ``make_train_eval_datasets`` of LeRobot.

        The last ``ceil(n * eval_split)`` of the n episodes of each task are held out, without image transforms. A warning
        says how many of them have copies among the episodes for training.

        Args:
            eval_split: The share of the episodes, in [0, 1). With 0, nothing is held out, and the second is None.

        Raises:
            InvalidArgumentError: If the share is out of range, or no episode is left for training.
        """
        if not 0 <= eval_split < 1:
            raise InvalidArgumentError(f"eval_split is {eval_split}, expected a share in [0, 1)")
        if eval_split == 0:
            return self, None
        tasks: dict[str, list[int]] = {}
        names = self.meta.episodes["tasks"]
        for number in range(len(self.meta.table)) if self.episodes is None else self.episodes:
            tasks.setdefault(names[number][0], []).append(number)
        held_out = {task: math.ceil(len(numbers) * eval_split) for task, numbers in tasks.items()}
        train = [one for task, numbers in tasks.items() for one in numbers[: len(numbers) - held_out[task]]]
        if not train:
            raise InvalidArgumentError(
                f"eval_split is {eval_split}, which leaves 0 of {sum(map(len, tasks.values()))} episodes for training"
            )
        held = [one for task, numbers in tasks.items() for one in numbers[len(numbers) - held_out[task] :]]
        firsts = first_copies(self._fingerprints())
        if copies := int(np.isin(firsts[held], firsts[train]).sum()):
            warnings.warn(
                f"{copies:,} of {len(held):,} held-out episodes of {self.repo_id} have copies among the episodes for training, which "
                "makes the evaluation loss too small: the step split of a recipe has copies on one side",
                stacklevel=2,
            )
        return self._with(train, self.image_transforms), self._with(held, None)

    def _fingerprints(self) -> Fingerprints:
        rows = self._storage.rows if isinstance(self._storage, View) else None
        return telling_fingerprints(self._stored, rows, self.meta.table)

    def _with(self, episodes: Sequence[int], image_transforms: Callable[[Any], Any] | None) -> LeRobotFrames:
        made = object.__new__(type(self))
        made.__dict__.update(self.__dict__, image_transforms=image_transforms)
        made.__dict__.pop("hf_dataset", None)
        made._choose(episodes)
        return made

    @property
    def repo_id(self) -> str:
        """The id of the dataset."""
        return self.meta.repo_id

    @property
    def root(self) -> Any:
        """The folder of the stored dataset."""
        return self.meta.root

    @property
    def fps(self) -> float:
        """Frames per second."""
        return self.meta.fps

    @property
    def features(self) -> dict[str, dict[str, Any]]:
        """The features by name, as in ``meta/info.json``."""
        return self.meta.features

    @property
    def num_frames(self) -> int:
        """Number of frames of the chosen episodes."""
        return self.meta.total_frames if self._rows is None else len(self._rows)

    @property
    def num_episodes(self) -> int:
        """Number of chosen episodes."""
        return self.meta.total_episodes if self.episodes is None else len(self.episodes)

    @property
    def absolute_to_relative_idx(self) -> Mapping[int, int] | None:
        """The position of a frame among the frames of the chosen episodes, or None if all episodes are chosen."""
        return self._relative

    @cached_property
    def hf_dataset(self) -> Any:
        """The frames without images and windows, as a ``datasets.Dataset``.

        Raises:
            MissingDependencyError: If the library datasets or pyarrow is not installed.
        """
        with importing("datasets", "rlhf", _PURPOSE):
            from datasets.arrow_dataset import Dataset as ArrowDataset
        with importing("pyarrow", "pyarrow", _PURPOSE):
            import pyarrow as pa
        from datasets_rl.exporting.formats.parquet import arrow_array

        rows = torch.arange(self.meta.total_frames) if self._rows is None else self._rows
        columns = {name: pa.array(values.numpy()) for name, values in self.meta.counters(rows).items()}
        for name, field in self.meta.fields.items():
            if not is_image(field) and not field.text:
                values = _numbers(self._storage.pick(field.key, rows)).numpy()
                kind = pa.from_numpy_dtype(values.dtype)
                for size in reversed(values.shape[1:]):
                    kind = pa.list_(kind, size)
                columns[name] = arrow_array(values, kind)
        for key in FLAGS:
            columns[dotted_name(key)] = pa.array(self._storage.pick(key, rows)[:, 0].numpy())
        return ArrowDataset(pa.table(columns)).with_format("torch")

    def set_image_transforms(self, image_transforms: Callable[[Any], Any] | None) -> None:
        """Replace the function that is applied to the images of each item."""
        self.image_transforms = image_transforms

    def clear_image_transforms(self) -> None:
        """Remove the function that is applied to the images of each item."""
        self.image_transforms = None

    def __len__(self) -> int:
        return self.num_frames

    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return self.__getitems__(range(*index.indices(len(self))))
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> BatchItems | list[Item]:
        """Return the items at B positions among the chosen frames, which are read at once.

        Raises:
            IndexError: If a position is out of range.
        """
        positions = torch.as_tensor([*map(int, indices)], dtype=torch.int64)
        count = len(self)
        if len(positions) and not (-count <= int(positions.min()) and int(positions.max()) < count):
            raise IndexError(f"frame {[*indices]!r:.60} is out of range of {count} frames")
        positions = torch.where(positions < 0, positions + count, positions)
        columns = self._columns(positions if self._rows is None else self._rows[positions])
        items = BatchItems(columns, len(positions))
        if self.image_transforms is None:
            return items
        changed = [*items]
        for item in changed:
            for name in self.meta.camera_keys:
                item[name] = self.image_transforms(item[name])
        return changed

    def _columns(self, rows: Tensor) -> dict[str, Any]:
        """Return the frames at B rows of the dataset: tensors [B, ...], or lists of B texts."""
        fields = self.meta.fields
        plain = self._storage.take_fields(rows, self._plain)
        columns: dict[str, Any] = {
            name: self._feature(field, plain[field.key]) for name, field in fields.items() if field.key in self._plain
        }
        for offsets, names in self._windows.items():
            found = self._storage.take_windows([fields[name].key for name in names], rows, offsets)
            for name, value in zip(names, found.entries, strict=True):
                columns[name] = self._feature(fields[name], value, window=True)
                columns[f"{name}_is_pad"] = found.outside.clone()
        columns |= {dotted_name(key): plain[key][:, 0].contiguous() for key in FLAGS}
        columns |= self.meta.counters(rows)
        texts = self.meta.task_texts
        columns["task"] = [texts[number] for number in columns["task_index"].tolist()]
        return columns

    def _feature(self, field: Field, value: Tensor, *, window: bool = False) -> Any:
        if field.text:
            vocabulary = self.meta.vocabulary(field.key)
            texts = [vocabulary[code] for code in value.reshape(-1).tolist()]
            return [parse_language(text) for text in texts] if is_language(field) else texts
        if is_image(field):
            return value.movedim(-1, -3).contiguous()
        value = _numbers(value).contiguous()
        return value.squeeze(-1) if value.ndim == 2 + window and value.shape[-1] == 1 else value

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({self.repo_id!r}, {self.num_episodes:,} episodes, {self.num_frames:,} frames, "
            f"features: {', '.join(self.features)})"
        )


class LeRobotMetadata:
    """What a dataset is, with the interface of ``LeRobotDatasetMetadata``.

    Args:
        content: The stored dataset and its fields.
        storage: The steps.
    """

    repo_type = "dataset"
    robot_type: str | None

    def __init__(self, content: Content, storage: DatasetStorage | View) -> None:
        self.repo_id = content.manifest.id
        self.root = content.stored.folder
        self.fps = content.frame_rate or 1
        self.robot_type = content.manifest.stated("robot_type")
        self.table: EpisodeTable = storage.episodes
        """The episodes of the frames."""
        self.fields: dict[str, Field] = feature_fields(content)
        """The stored fields by the name of their feature."""
        self._content, self._storage = content, storage
        self._task = task_field(content)
        names_of_field = content.manifest.element_names
        scalar = {"shape": (1,), "names": None}
        described = {name: feature(field, names_of_field(field)) for name, field in self.fields.items()}
        self.features: dict[str, dict[str, Any]] = {
            **{name: {**one, "shape": tuple(one["shape"])} for name, one in described.items()},
            **{dotted_name(key): {"dtype": "bool", **scalar} for key in FLAGS},
            **{name: {"dtype": dtype, **scalar} for name, dtype in COUNTERS.items()},
        }
        """The features by name, as in ``meta/info.json``: dtype, shape and names."""

    @property
    def camera_keys(self) -> list[str]:
        """Names of the features that are images."""
        return [name for name, field in self.fields.items() if is_image(field)]

    @property
    def image_keys(self) -> list[str]:
        """Names of the features that are images. Frames of videos are images, too."""
        return self.camera_keys

    @property
    def video_keys(self) -> list[str]:
        """Empty: frames of videos are decoded like images."""
        return []

    @property
    def depth_keys(self) -> list[str]:
        """Empty: depths are arrays of numbers."""
        return []

    @property
    def has_language_columns(self) -> bool:
        """Whether a feature consists of columns of language."""
        return any(name in LANGUAGE for name in self.features)

    @property
    def names(self) -> dict[str, Any]:
        """Names of the elements by feature."""
        return {name: one["names"] for name, one in self.features.items()}

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes by feature."""
        return {name: one["shape"] for name, one in self.features.items()}

    @property
    def total_episodes(self) -> int:
        """Number of episodes of the dataset."""
        return len(self.table)

    @property
    def total_frames(self) -> int:
        """Number of frames of the dataset."""
        return self.table.steps

    @property
    def total_tasks(self) -> int:
        """Number of tasks."""
        return len(self.task_texts)

    def vocabulary(self, key: Key) -> Sequence[str]:
        """Return the texts of a text field by code."""
        return self._content.stored.texts(key)

    @cached_property
    def _ranks(self) -> tuple[list[str], NDArray[np.int64]]:
        """The texts of the tasks, in the order of their first frames, and the number of the task by code of a text."""
        if self._task is None:
            return [default_task(self._content)], np.zeros(1, np.int64)
        vocabulary = self.vocabulary(self._task.key)
        distinct, _ = ranked(self._storage.column(self._task.key).reshape(-1).numpy())
        numbers: dict[str, int] = {}
        by_code = np.zeros(len(vocabulary), np.int64)
        for code in distinct.tolist():
            by_code[code] = numbers.setdefault(vocabulary[code], len(numbers))
        return [*numbers], by_code

    @property
    def task_texts(self) -> list[str]:
        """The texts of the tasks by number."""
        return self._ranks[0]

    @cached_property
    def tasks(self) -> Any:
        """The tasks as a pandas ``DataFrame``: the text is the index, and ``task_index`` the number.

        Raises:
            MissingDependencyError: If pandas is not installed.
        """
        with importing("pandas", "pandas", _PURPOSE):
            from pandas import DataFrame, Index
        return DataFrame({"task_index": range(self.total_tasks)}, index=Index(self.task_texts, name="task"))

    def get_task_index(self, task: str) -> int | None:
        """Return the number of a task, or None if the dataset has no such task."""
        return self.task_texts.index(task) if task in self.task_texts else None

    def _task_numbers(self, rows: Tensor) -> Tensor:
        if self._task is None:
            return torch.zeros(len(rows), dtype=torch.int64)
        codes = self._storage.pick(self._task.key, rows).reshape(-1).long()
        return torch.from_numpy(self._ranks[1]).index_select(0, codes)

    def counters(self, rows: Tensor) -> dict[str, Tensor]:
        """Return the features that count frames, episodes and tasks, of B rows, [B] each."""
        episodes = self.table.episode_of(rows.numpy())
        frames = rows.numpy() - self.table.starts[episodes]
        return {
            "timestamp": torch.from_numpy((frames / self.fps).astype(np.float32)),
            "frame_index": torch.from_numpy(frames),
            "episode_index": torch.from_numpy(np.asarray(episodes)),
            "index": rows,
            "task_index": self._task_numbers(rows),
        }

    @cached_property
    def episodes(self) -> EpisodeRecords:
        """The episodes, as a table with a row for each."""
        return EpisodeRecords(
            {
                "episode_index": range(len(self.table)),
                "tasks": self._tasks_of_episodes(),
                "length": self.table.lengths.tolist(),
                "dataset_from_index": self.table.starts.tolist(),
                "dataset_to_index": self.table.stops.tolist(),
            }
        )

    def _tasks_of_episodes(self) -> list[list[str]]:
        """Return the texts of the tasks of each episode, in the order of their first frames."""
        texts = self.task_texts
        if self._task is None:
            return [[*texts] for _ in range(len(self.table))]
        numbers = self._task_numbers(torch.arange(self.total_frames)).numpy()
        is_new = np.ones(len(numbers), np.bool_)
        is_new[1:] = numbers[1:] != numbers[:-1]
        is_new[self.table.starts] = True
        rows = np.flatnonzero(is_new)
        bounds = np.searchsorted(rows, self.table.starts).tolist()
        found = numbers[rows].tolist()
        return [
            [texts[number] for number in dict.fromkeys(found[start:stop])]
            for start, stop in zip(bounds, [*bounds[1:], len(found)], strict=True)
        ]

    @cached_property
    def stats(self) -> dict[str, dict[str, Any]]:
        """The statistics by feature: min, max, mean, std and count, and quantiles where they are stored.

        Statistics of images are [C, 1, 1], of pixels between 0 and 1, from about 100 images.
        """
        return {name: self._statistics(field) for name, field in self.fields.items() if not field.text}

    def _statistics(self, field: Field) -> dict[str, Any]:
        count, is_camera = self.total_frames, is_image(field)
        statistics = FeatureStatistics(field, has_channels=is_camera)
        every = max(1, count // IMAGE_SAMPLES) if is_camera else 1
        block = every * max(1, _BLOCK_BYTES // max(1, 8 * math.prod(field.shape)))
        for start in range(0, count, block):
            rows = torch.arange(start, min(start + block, count), every)
            statistics.update(self._storage.pick(field.key, rows).numpy())
        found = {
            name: np.asarray(value, np.int64 if name == "count" else np.float64)
            for name, value in statistics.to_json().items()
        }
        stated = self._content.manifest.statistics.get(field.name, {})
        if count == self._content.manifest.steps:
            sizes = found["mean"].shape
            quantiles = {
                name: np.asarray(stated[name], np.float64).reshape(-1) for name in _QUANTILES if name in stated
            }
            found |= {name: value for name, value in quantiles.items() if value.shape == sizes}
        return found

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({self.repo_id!r}, {self.total_episodes:,} episodes, {self.total_frames:,} frames)"
        )


class EpisodeRecords(Sequence[dict[str, Any]]):
    """A table with a row for each episode: a row by number, a dict, and a column by name, a list.

    Args:
        columns: The columns by name, [E] each.
    """

    def __init__(self, columns: Mapping[str, Sequence[Any]]) -> None:
        self._columns = {name: [*values] for name, values in columns.items()}

    @property
    def column_names(self) -> list[str]:
        """Names of the columns."""
        return [*self._columns]

    def to_pandas(self) -> Any:
        """Return the table as a pandas ``DataFrame``.

        Raises:
            MissingDependencyError: If pandas is not installed.
        """
        with importing("pandas", "pandas", _PURPOSE):
            from pandas import DataFrame
        return DataFrame(self._columns)

    def __len__(self) -> int:
        return len(next(iter(self._columns.values())))

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, str):
            return self._columns[index]
        if isinstance(index, slice):
            return {name: values[index] for name, values in self._columns.items()}
        return {name: values[index] for name, values in self._columns.items()}

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (self[number] for number in range(len(self)))


class _RelativeRows(Mapping[int, int]):
    """The positions of rows among the rows of some episodes, which follow each other. Memory grows with the episodes."""

    def __init__(self, starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> None:
        self._starts, self._lengths = starts, lengths
        self._firsts = np.cumsum(lengths) - lengths

    def __getitem__(self, row: int) -> int:
        number = int(np.searchsorted(self._starts, row, "right")) - 1
        step = row - int(self._starts[number])
        if number < 0 or step >= self._lengths[number]:
            raise KeyError(row)
        return int(self._firsts[number]) + step

    def __len__(self) -> int:
        return int(self._lengths.sum())

    def __iter__(self) -> Iterator[int]:
        return iter(concatenated_ranges(self._starts, self._lengths).tolist())


def _offsets(offsets: tuple[int, ...]) -> Sequence[int]:
    """Return offsets as a range if they are consecutive, which a single copy reads."""
    run = range(offsets[0], offsets[0] + len(offsets))
    return run if tuple(run) == offsets else offsets


def _numbers(value: Tensor) -> Tensor:
    """Return values in the dtypes of LeRobot's items: float32, int64 and bool."""
    if value.is_floating_point():
        return value.float()
    return value if value.dtype == torch.bool else value.long()
