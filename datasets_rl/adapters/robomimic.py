"""A dataset as the `SequenceDataset` of robomimic: sequences with stacked frames, padding, goals and normalization."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, TypedDict

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Dataset

from datasets_rl.adapters.items import BatchItems
from datasets_rl.arguments import check, size_problems, unless
from datasets_rl.errors import InvalidArgumentError, UnknownKeyError, join_names
from datasets_rl.format.statistics import Moments
from datasets_rl.storages.dataset import DatasetStorage
from datasets_rl.storages.packed import as_array
from datasets_rl.storages.view import View
from datasets_rl.ted.keys import ACTION, NEXT, NEXT_DONE, NEXT_REWARD, OBSERVATION, Key, dotted_name
from datasets_rl.ted.table import concatenated_ranges

_NAMES: Mapping[str, tuple[Key, ...]] = {
    "actions": (ACTION,),
    "rewards": (NEXT_REWARD,),
    "dones": (("dones",), NEXT_DONE),
    "states": (("info", "states"),),
}
"""Keys that stand for a name of robomimic, the first that the dataset has."""
_GROUPS = frozenset({"obs", "next_obs", "goal_obs"})
_MASKS = "mask."
_OBS_TOLERANCE = 1e-3
_LIMIT = 0.999999
_MIN_RANGE, _MIN_STD = 1e-4, 1e-6
_BLOCK_ROWS = 1 << 16


class _ElementMoments(Moments):
    """Moments of each element, however many there are."""

    MAX_ELEMENTS = sys.maxsize


class RobomimicOptions(TypedDict, total=False):
    """Arguments of `RobomimicSequences`, and arguments of ``SequenceDataset`` about the file, which have no effect."""

    action_keys: Sequence[str]
    action_config: Mapping[str, Mapping[str, Any]] | None
    frame_stack: int
    seq_length: int
    pad_frame_stack: bool
    pad_seq_length: bool
    get_pad_mask: bool
    goal_mode: str | None
    load_next_obs: bool
    hdf5_normalize_obs: bool
    filter_by_attribute: str | None
    demo_limit: int | None
    hdf5_path: Any
    hdf5_cache_mode: Any
    hdf5_use_swmr: Any
    lang: None


WITHOUT_EFFECT = ("hdf5_path", "hdf5_cache_mode", "hdf5_use_swmr", "lang")


class RobomimicSequences(Dataset[dict[str, Any]]):
    """Sequences of a dataset, with the interface of ``SequenceDataset``.

        seq_length 3, frame_stack 2, an episode of 4 steps
        index 0     0 0 1 2     pad_mask  . x x x
        index 3     2 3 3 3               x x . .

    An item is a dict of numpy arrays [L, ...] with L = frame_stack - 1 + seq_length: the dataset keys, float32, ``obs`` and
    ``next_obs``, dicts by the name of an observation, ``goal_obs`` without the axis of time, and ``index``. A dataset key
    that the dataset does not have consists of zeros, [L, 1].

    `__getitems__` reads the sequences of a batch at once, as the `DataLoader` of torch does.

    Args:
        storage: The steps.
        obs_keys: Names of observations, below the key ``observation``.
        dataset_keys: Names of other fields: ``actions``, ``rewards``, ``dones``, ``states``, or dotted keys.
        action_keys: Names of the fields that are normalized and joined into ``actions``.
        action_config: For a name of `action_keys`, ``{"normalization": "min_max"}``, ``"gaussian"`` or None.
        frame_stack: Number of steps up to the step of a sequence.
        seq_length: Number of steps from the step of a sequence.
        pad_frame_stack: Whether a sequence may begin before its episode, where the first step is repeated.
        pad_seq_length: Whether a sequence may end after its episode, where the last step is repeated.
        get_pad_mask: Whether items have ``pad_mask``, bool [L, 1], True for steps of the episode.
        goal_mode: "last" for the last next observation of the episode as ``goal_obs``, or None.
        load_next_obs: Whether items have ``next_obs``.
        hdf5_normalize_obs: Whether `get_obs_normalization_stats` has the mean and deviation of the observations.
        filter_by_attribute: A filter key of robomimic, a column ``mask.NAME`` of the episode table.
        demo_limit: Number of episodes to read, from the first.

    Raises:
        InvalidArgumentError: If an argument is invalid, no episode remains, an episode is too short for a sequence
            without padding, next observations are asked for that are not known, or an action does not exist.
        UnknownKeyError: If the dataset has no such observation.
    """

    def __init__(
        self,
        storage: DatasetStorage | View,
        obs_keys: Sequence[str],
        dataset_keys: Sequence[str] = ("actions", "rewards", "dones"),
        *,
        action_keys: Sequence[str] = ("actions",),
        action_config: Mapping[str, Mapping[str, Any]] | None = None,
        frame_stack: int = 1,
        seq_length: int = 1,
        pad_frame_stack: bool = True,
        pad_seq_length: bool = True,
        get_pad_mask: bool = False,
        goal_mode: str | None = None,
        load_next_obs: bool = True,
        hdf5_normalize_obs: bool = False,
        filter_by_attribute: str | None = None,
        demo_limit: int | None = None,
    ) -> None:
        check(
            size_problems(frame_stack=frame_stack, seq_length=seq_length),
            unless(goal_mode in {None, "last"}, f"goal_mode is {goal_mode!r}, expected 'last' or None"),
            unless(goal_mode is None or load_next_obs, "goal_mode needs load_next_obs: goals are next observations"),
        )
        self.obs_keys, self.action_keys = tuple(obs_keys), tuple(action_keys)
        self.dataset_keys = tuple(dict.fromkeys((*dataset_keys, *action_keys)))
        self.action_config = dict(action_config or {})
        self.n_frame_stack, self.seq_length = frame_stack, seq_length
        self.pad_frame_stack, self.pad_seq_length = pad_frame_stack, pad_seq_length
        self.get_pad_mask, self.goal_mode, self.load_next_obs = get_pad_mask, goal_mode, load_next_obs
        self.hdf5_normalize_obs, self.filter_by_attribute = hdf5_normalize_obs, filter_by_attribute
        self._storage = storage
        self._fields = self._find_fields()
        parts = [(*_group_and_name(name), key) for name, key in self._fields.items()]
        self._columns = tuple(parts)
        self._goals = tuple(("goal_obs", name, key) for group, name, key in parts if group == "next_obs")
        self._offsets = np.arange(1 - frame_stack, seq_length)
        self._choose(demo_limit)

    def _find_fields(self) -> dict[str, Key]:
        """Return the key of each name: of an observation ``obs/NAME``, of another field that the dataset has NAME."""
        keys = {*self._storage.keys()}
        found: dict[str, Key] = {}
        for name in self.obs_keys:
            path = tuple(name.replace("/", ".").split("."))
            key = next((one for one in ((*OBSERVATION, *path), path) if one in keys), None)
            if key is None:
                raise UnknownKeyError(name, [dotted_name(one) for one in sorted(keys) if one[0] == OBSERVATION[0]])
            found[f"obs/{name}"] = key
            if self.load_next_obs:
                if (NEXT, *key) not in keys:
                    raise InvalidArgumentError(
                        f"{dotted_name(key)} has no next value", hint="pass load_next_obs=False, or other obs_keys"
                    )
                found[f"next_obs/{name}"] = (NEXT, *key)
        for name in self.dataset_keys:
            path = tuple(name.replace("/", ".").split("."))
            key = next((one for one in (*_NAMES.get(name, ()), path) if one in keys), None)
            if key is not None:
                found[name] = key
        for name in self.action_keys:
            if name not in found:
                parts = [dotted_name(one) for one in sorted(keys) if one[0] == ACTION[0]]
                raise InvalidArgumentError(
                    f"action_keys has {name!r}, which the dataset does not have",
                    hint=f"name the parts of the action in action_keys: {join_names(parts, 20) or 'there are none'}",
                )
        return found

    def _choose(self, demo_limit: int | None) -> None:
        table = self._storage.episodes
        chosen = np.arange(len(table))
        if self.filter_by_attribute is not None:
            column = _MASKS + self.filter_by_attribute
            if column not in table.names:
                masks = [name.removeprefix(_MASKS) for name in table.names if name.startswith(_MASKS)]
                raise InvalidArgumentError(
                    f"filter_by_attribute is {self.filter_by_attribute!r}, expected one of {join_names(masks, 20) or 'none'}"
                )
            chosen = np.flatnonzero(table[column])
        self._episodes = chosen[:demo_limit]
        lengths = table.lengths[self._episodes]
        counts = lengths - (0 if self.pad_frame_stack else self.n_frame_stack - 1)
        counts = counts - (0 if self.pad_seq_length else self.seq_length - 1)
        short = self._episodes[counts < 1]
        unknown = self._episodes[~table["final_known"][self._episodes]] if self.load_next_obs else []
        check(
            unless(bool(len(counts)), "no episode remains"),
            unless(
                not len(short),
                f"{len(short)} episodes are too short for a sequence without padding, such as episode {[*short[:1]]}",
            ),
            unless(
                not len(unknown),
                f"the observation after the last action of {len(unknown)} episodes is not known, expected "
                "load_next_obs=False, or a dataset with final_unknown='drop'",
            ),
        )
        self.demos = [f"demo_{number}" for number in table.numbers[self._episodes].tolist()]
        """Names of the episodes."""
        self.n_demos = len(self.demos)
        self._starts, self._lengths = table.starts[self._episodes], lengths
        self._stops = np.cumsum(counts)
        # The row of sequence i is i plus a number that is the same for all sequences of an episode.
        first = 0 if self.pad_frame_stack else self.n_frame_stack - 1
        self._first_rows = self._starts - (self._stops - counts) + first
        self.total_num_sequences = int(self._stops[-1])

    def __len__(self) -> int:
        return self.total_num_sequences

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> BatchItems:
        """Return the items at B indices, which are read at once.

        Raises:
            IndexError: If an index is out of range.
        """
        numbers = np.asarray([*indices], np.int64)
        count = len(self)
        if len(numbers) and not (-count <= numbers.min() and numbers.max() < count):
            raise IndexError(f"sequence {[*indices]!r:.60} is out of range of {count} sequences")
        numbers = np.where(numbers < 0, numbers + count, numbers)
        demos = np.searchsorted(self._stops, numbers, "right")
        rows = self._first_rows[demos] + numbers
        columns = self._sequences(rows, demos, self._offsets)
        if self.goal_mode == "last":
            last = self._lengths[demos] - (0 if self.pad_seq_length else self.seq_length - 1) - 1
            columns |= self._take(self._goals, self._starts[demos] + last)
            if self.get_pad_mask:
                columns["goal_obs"]["pad_mask"] = np.ones((len(rows), 1), np.bool_)
        return BatchItems({**columns, "index": numbers.tolist()}, len(numbers))

    def _sequences(
        self, rows: NDArray[np.int64], demos: NDArray[np.int64], offsets: NDArray[np.int64]
    ) -> dict[str, Any]:
        """Return the values of the windows around B rows of some episodes, [B, L, ...] by name, in dicts by group."""
        first = self._starts[demos, None]
        wanted = rows[:, None] + offsets
        steps = wanted.clip(first, first + self._lengths[demos, None] - 1)
        columns = self._take(self._columns, steps)
        columns |= {
            name: np.zeros((*steps.shape, 1), np.float32) for name in self.dataset_keys if name not in self._fields
        }
        actions = [self._normalized(name, columns[name]) for name in self.action_keys]
        columns["actions"] = np.concatenate(actions, -1) if len(actions) > 1 else actions[0].copy()
        if self.get_pad_mask:
            inside = (steps == wanted)[..., None]
            for group in (columns, *(columns[name] for name in _GROUPS if name in columns)):
                group["pad_mask"] = inside.copy()
        return columns

    def _take(self, fields: Sequence[tuple[str, str, Key]], steps: NDArray[np.int64]) -> dict[str, Any]:
        """Return fields of some rows [...], in dicts by group. Their memory is shared with nothing."""
        found = self._storage.take_columns(torch.from_numpy(steps.reshape(-1)), tuple([key for _, _, key in fields]))
        columns: dict[str, Any] = {}
        for group, name, key in fields:
            column = as_array(found[key])
            values = column.reshape(steps.shape + column.shape[1:])
            if group:
                columns.setdefault(group, {})[name] = np.ascontiguousarray(values)
            else:
                columns[name] = self._numbers(name, values)
        return columns

    def _numbers(self, name: str, values: NDArray[Any]) -> NDArray[np.float32]:
        """Return a field as float32. Rewards and flags have no last axis, as in the files of robomimic."""
        is_scalar = name not in self.action_keys and values.ndim == 3 and values.shape[-1] == 1
        return (values[..., 0] if is_scalar and self._fields[name][0] == NEXT else values).astype(np.float32)

    def _normalized(self, name: str, values: NDArray[Any]) -> NDArray[Any]:
        values = values if values.ndim > 2 else values[..., None]
        if self._normalization(name) is None:
            return values
        stats = self.get_action_normalization_stats()[name]
        return np.asarray((values - stats["offset"]) / stats["scale"], np.float32)

    def _normalization(self, name: str) -> str | None:
        kind: str | None = self.action_config.get(name, {}).get("normalization")
        if kind not in {None, "min_max", "gaussian"}:
            raise InvalidArgumentError(
                f"the normalization of {name} is {kind!r}, expected 'min_max', 'gaussian' or None"
            )
        return kind

    def _moments(self, name: str) -> dict[str, NDArray[np.float64]]:
        """Return min, max, mean and std of the elements of a field, [1, ...] each, over the chosen episodes."""
        key = self._fields[name]
        rows = torch.from_numpy(concatenated_ranges(self._starts, self._lengths))
        values = self._storage.pick(key, rows[:1])
        shape = values.shape[1:] or (1,)
        moments = _ElementMoments((int(np.prod(shape)),))
        for part in rows.tensor_split(max(1, len(rows) // _BLOCK_ROWS)):
            moments.update(self._storage.pick(key, part).float().numpy().reshape(len(part), -1))
        found = moments.to_json()
        return {one: np.asarray(found[one], np.float64).reshape(1, *shape) for one in ("min", "max", "mean", "std")}

    @cached_property
    def _action_stats(self) -> dict[str, dict[str, NDArray[np.float32]]]:
        found = {}
        for name in self.action_keys:
            one, kind = self._moments(name), self._normalization(name)
            low, high = (one[edge].astype(np.float32) for edge in ("min", "max"))
            if kind == "min_max":
                is_flat = high - low < _MIN_RANGE
                span = np.where(is_flat, np.float32(2 * _LIMIT), high - low)
                scale = span / (2 * _LIMIT)
                offset = np.where(is_flat, low, low + scale * _LIMIT)
            elif kind == "gaussian":
                offset = one["mean"]
                scale = np.where(one["std"] < _MIN_STD, 1, one["std"])
            else:
                scale, offset = np.ones_like(low), np.zeros_like(low)
            found[name] = {"scale": scale.astype(np.float32), "offset": offset.astype(np.float32)}
        return found

    def get_action_normalization_stats(self) -> dict[str, dict[str, NDArray[np.float32]]]:
        """Return ``scale`` and ``offset`` by the name of an action, [1, D] each: (action - offset) / scale."""
        return self._action_stats

    def set_action_normalization_stats(self, stats: dict[str, dict[str, NDArray[np.float32]]]) -> None:
        """Replace what `get_action_normalization_stats` returns, such as by the statistics of several datasets."""
        self.__dict__["_action_stats"] = stats

    def get_obs_normalization_stats(self) -> dict[str, dict[str, NDArray[np.float32]]]:
        """Return ``offset`` and ``scale`` by the name of an observation, [1, ...] each.

        Raises:
            InvalidArgumentError: If `hdf5_normalize_obs` is False, or an observation consists of images.
        """
        if not self.hdf5_normalize_obs:
            raise InvalidArgumentError("hdf5_normalize_obs is False, expected True for statistics of observations")
        found = {}
        for name in self.obs_keys:
            if self._storage.pick(self._fields[f"obs/{name}"], torch.zeros(1, dtype=torch.int64)).dtype == torch.uint8:
                raise InvalidArgumentError(f"{name} consists of images, expected numbers to normalize")
            one = self._moments(f"obs/{name}")
            scale = one["std"] + _OBS_TOLERANCE
            found[name] = {"offset": one["mean"].astype(np.float32), "scale": scale.astype(np.float32)}
        return found

    def get_dataset_sampler(self) -> None:
        """Return None: the program shuffles the sequences."""

    def get_trajectory_at_index(self, index: int) -> dict[str, Any]:
        """Return an episode by its number among the chosen episodes: the fields of an item, [T, ...], and ``ep``."""
        demo = np.arange(self.n_demos)[index, None]
        columns = self._sequences(self._starts[demo], demo, np.arange(self._lengths[index]))
        return {**BatchItems(columns, 1)[0], "ep": self.demos[index]}

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({self.n_demos:,} episodes, {len(self):,} sequences, obs_keys={self.obs_keys}, "
            f"seq_length={self.seq_length}, frame_stack={self.n_frame_stack}, filter_key={self.filter_by_attribute})"
        )


def _group_and_name(name: str) -> tuple[str, str]:
    """Return the group of an observation and its name in the group, or no group and the name of another field."""
    group, _, inner = name.partition("/")
    return (group, inner) if group in _GROUPS and inner else ("", name)
