"""Writer of episodes step by step, as an environment produces them."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

import numpy as np
from numpy.typing import NDArray

from datasets_rl.errors import DatasetsRLError, InvalidArgumentError
from datasets_rl.format.schema import Column
from datasets_rl.recording.recorder import Recorder, signed_dtype
from datasets_rl.specs import CompositeSpec, NonTensorSpec
from datasets_rl.ted.episode import Episode, TextStates, Values
from datasets_rl.ted.keys import (
    ACTION,
    NEXT,
    NEXT_REWARD,
    NEXT_TERMINATED,
    NEXT_TRUNCATED,
    OBSERVATION,
    Key,
    as_key,
    dotted_name,
)
from datasets_rl.ted.rewards import float_rewards
from datasets_rl.ted.table import COMPUTED

if TYPE_CHECKING:
    from typing_extensions import Self

    from datasets_rl.specs import TensorSpec

_INFO = "info"
_MIN_COMMIT_STEPS = 100_000
_FLAG = np.dtype(np.bool_)
_RESERVED = COMPUTED | {"source"}


class EpisodeWriterOptions(TypedDict, total=False):
    """Arguments of `EpisodeWriter` that do not follow from an environment."""

    root: Path | str | None
    infos: Sequence[str]
    metadata: Mapping[str, Any] | None
    score: tuple[float, float] | None
    fps: float | None
    names: Mapping[str | Key, Sequence[str]] | None
    commit_every: int | None


class EpisodeWriter:
    """Writer that adds episodes to a local dataset, step by step.

        start(s_0)   step(a_0, s_1, r_0, ...)   step(a_1, s_2, r_1, ...)   end()

    An episode is safe once the last `step`, or `end`, returns: if the process dies, the next writer of the dataset, or
    ``append_episodes(dataset)``, adds the episode. `commit` adds all episodes to the dataset in an atomic step, and
    `close` calls `commit`. Processes that have the dataset open see the new episodes when they open the dataset again.
    Several processes may write to the same dataset.

        >>> with EpisodeWriter("local/pushing") as writer:
        ...     writer.start(observation)
        ...     writer.step(action, next_observation, reward, terminated)
        ...     writer.end()

    Observations and actions are numbers, arrays, lists of numbers, tensors, texts, or dicts and tuples of such values.
    Arrays keep their dtype (unsigned integers of 16 bits and more become int32 and int64), and Python floats become
    float32. Rewards are float32, or float64 if the dataset exists with float64 rewards.

    Args:
        dataset: An id ``local/NAME``. A dataset that exists must have the same fields.
        root: The folder of the source, by default ``<RLDS_HOME>/local``.
        infos: Names of entries of `info` to store. An entry that `start` also receives is stored as ``("info", NAME)``,
            and any other entry as ``("next", "info", NAME)``.
        specs: For a new dataset, the specs of the observation and of the action, by the names ``observation`` and
            ``action``.
        metadata: For a new dataset, texts and numbers that describe the dataset.
        score: For a new dataset, the returns with the normalized scores 0 and 1, of a random policy and of an expert.
        fps: For a new dataset, the steps per second, as the metadata ``fps``.
        names: For a new dataset, the names of the elements of vectors, as the metadata ``names``: by the key of a field,
            ``"action"``, ``"observation.state"`` or ``("observation", "state")``, a name for each element.
        commit_every: Number of episodes after which the writer commits. By default, the writer commits when the recorded
            steps outnumber the steps of the dataset, and at least 100,000: each step is then copied about once.

    Raises:
        InvalidArgumentError: If the dataset is not of the source ``local``, or was preprocessed, if the two returns of
            `score` are not finite, or out of order, or if `fps` is not above 0, or `names` are not texts.
    """

    def __init__(
        self,
        dataset: str,
        *,
        root: Path | str | None = None,
        infos: Sequence[str] = (),
        specs: Mapping[str, TensorSpec] | None = None,
        metadata: Mapping[str, Any] | None = None,
        score: tuple[float, float] | None = None,
        fps: float | None = None,
        names: Mapping[str | Key, Sequence[str]] | None = None,
        commit_every: int | None = None,
    ) -> None:
        self._infos = tuple(infos)
        self._names = _names_of_elements(names or {})
        described = {**(metadata or {}), **_rate(fps), **({"names": self._names} if self._names else {})}
        description: dict[str, Any] = {"specs": _spec_documents(specs or {}), "metadata": described}
        if score is not None:
            description["score"] = _score_document(*score)
        self._recorder = Recorder(dataset, description, root=root)
        self._recorder.check_grows()
        self._commit_every = commit_every
        self._columns: list[Column] = []
        self._forms: dict[Key, tuple[np.dtype[Any], tuple[int, ...]]] = {}
        stored = self._recorder.stored
        self._reward_dtype = np.dtype(np.float32) if stored is None else stored.schema[NEXT_REWARD].dtype
        self._open: dict[int, _OpenEpisode] = {}
        self.episodes = 0
        """Number of episodes that this writer has finished."""
        self.steps = 0
        """Number of steps of the finished episodes."""
        self._recorded_episodes = self._recorded_steps = 0
        self._next_commit_steps = self._steps_before_commit()

    def _steps_before_commit(self) -> int:
        return max(_MIN_COMMIT_STEPS, 0 if self._recorder.stored is None else self._recorder.stored.steps)

    def start(
        self, observation: Any, info: Mapping[str, Any] | None = None, *, lane: int = 0, **metadata: float | bool
    ) -> None:
        """Start an episode. An open episode of the same lane ends as truncated. Call `drop` first to drop the episode.

        Args:
            observation: The first observation, s_0.
            info: The infos of the reset.
            lane: The number of the environment among parallel environments.
            **metadata: Numbers that describe the episode, such as the seed. The numbers become columns of the episode
                table.

        Raises:
            InvalidArgumentError: If `metadata` has the name of a computed column of the episode table, such as
                ``length``.
        """
        self.end(lane=lane)
        if reserved := sorted(_RESERVED & metadata.keys()):
            raise InvalidArgumentError(f"the episode table computes {', '.join(reserved)}, expected other names")
        states = dict(self._leaves(observation, OBSERVATION))
        for name in self._infos:
            if info is not None and name in info:
                states |= self._leaves(info[name], (_INFO, name))
        self._open[lane] = _OpenEpisode(states, metadata)

    def step(
        self,
        action: Any,
        observation: Any,
        reward: Any,
        terminated: Any = False,
        truncated: Any = False,
        info: Mapping[str, Any] | None = None,
        *,
        lane: int = 0,
        **fields: Any,
    ) -> None:
        """Append a step. A terminated or truncated step ends the episode, which is then written.

        Args:
            action: The action a_t.
            observation: The observation after the action, s_t+1.
            reward: The reward of the action, a single number.
            terminated: Whether the episode ends in a terminal state.
            truncated: Whether the episode ends for another reason, such as a time limit.
            info: The infos of the step.
            lane: The number of the environment among parallel environments.
            **fields: Further values of the step. ``log_prob=value`` is stored as the field ``log_prob``.

        Raises:
            InvalidArgumentError: If no episode is open, or if fields, shapes or dtypes differ from the first step or from
                the dataset.
        """
        episode = self._open.get(lane)
        if episode is None:
            raise InvalidArgumentError("no episode is open", hint="call start with the first observation")
        states = dict(self._leaves(observation, OBSERVATION))
        steps = dict(self._leaves(action, ACTION))
        for name, value in fields.items():
            steps |= self._leaves(value, (name,))
        for name in self._infos:
            key: Key = (_INFO, name)
            in_states = episode.has_info(name)
            if info is None or name not in info:
                raise InvalidArgumentError(
                    f"info has no {name!r}: the entries are {', '.join(map(str, info or ())) or 'none'}",
                    hint="remove the name from infos, or give the entry for every step",
                )
            (states if in_states else steps).update(self._leaves(info[name], key if in_states else (NEXT, *key)))
        for key, number, dtype in (
            (NEXT_REWARD, reward, self._reward_dtype),
            (NEXT_TERMINATED, terminated, _FLAG),
            (NEXT_TRUNCATED, truncated, _FLAG),
        ):
            steps[key] = _one_number(number, key, dtype)
        if not self._columns:
            self._columns = self._checked_columns(states, steps, lane)
        episode.append(states, steps)
        if steps[NEXT_TERMINATED][0] or steps[NEXT_TRUNCATED][0]:
            self._finish(lane)

    def end(self, *, lane: int = 0) -> None:
        """End the open episode as truncated. An open episode without a step is dropped."""
        episode = self._open.get(lane)
        if episode is not None and len(episode):
            episode.truncate()
            self._finish(lane)
        self._open.pop(lane, None)

    def drop(self, *, lane: int = 0) -> None:
        """Drop the open episode."""
        self._open.pop(lane, None)

    def commit(self) -> None:
        """Add all finished episodes to the dataset, in an atomic step.

        Raises:
            DiskFullError: If the new version of the dataset does not fit on the disk. No episode is lost.
            LockedError: If another process changes the dataset for longer than an hour.
        """
        self._recorder.commit()
        self._recorded_episodes = self._recorded_steps = 0
        self._next_commit_steps = self._steps_before_commit()

    def close(self) -> None:
        """End the open episodes as truncated, and add all episodes to the dataset."""
        try:
            for lane in list(self._open):
                self.end(lane=lane)
            self.commit()
        finally:
            self._recorder.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *details: object) -> None:
        self.close()

    def _finish(self, lane: int) -> None:
        episode = self._open.pop(lane).to_episode()
        try:
            recording = self._recorder.recording(self._columns)
            recording.writer.append(episode)
            recording.commit()
        except BaseException:
            # The files of the recording may hold a part of this episode. The commit adds the episodes in the journal.
            self._recorder.end_recording()
            raise
        self.episodes += 1
        self.steps += len(episode)
        self._recorded_episodes += 1
        self._recorded_steps += len(episode)
        due = self._recorded_steps >= self._next_commit_steps
        if self._commit_every is not None:
            due = self._recorded_episodes >= self._commit_every
        if due:
            self._commit_later_if_impossible()

    def _commit_later_if_impossible(self) -> None:
        try:
            self.commit()
        except (DatasetsRLError, OSError) as error:
            # The episodes are safe, and the recording program should continue.
            self._next_commit_steps *= 2
            warnings.warn(f"the recorded episodes are not yet a part of {self._recorder.id}: {error}", stacklevel=5)

    def _checked_columns(self, states: Mapping[Key, Any], steps: Mapping[Key, Any], lane: int) -> list[Column]:
        """Return the columns of the first step. If the dataset has other columns, the episode is dropped."""
        columns = [_column(key, value, shared=True) for key, value in states.items()]
        columns += [_column(key, value, shared=False) for key, value in steps.items()]
        try:
            _check_names(self._names, columns)
            self._recorder.check_columns(columns)
        except InvalidArgumentError:
            self.drop(lane=lane)
            self._forms.clear()
            raise
        return columns

    def _leaves(self, value: Any, key: Key) -> list[tuple[Key, Any]]:
        """Return (key, array or text) for each leaf of a value. Each array is a copy."""
        if isinstance(value, Mapping):
            return [leaf for name, inner in value.items() for leaf in self._leaves(inner, (*key, str(name)))]
        if isinstance(value, tuple):
            return [leaf for number, inner in enumerate(value) for leaf in self._leaves(inner, (*key, str(number)))]
        return [(key, value if isinstance(value, str) else self._as_array(value, key))]

    def _as_array(self, value: Any, key: Key) -> NDArray[Any]:
        """Return a copy of an array, in the dtype and the shape of the first value of the field."""
        if hasattr(value, "detach"):  # NumPy 2 warns when it converts a tensor
            value = value.detach().cpu().numpy()
        array = np.array(value, np.float32 if type(value) is float else None)
        if key not in self._forms:
            dtype = signed_dtype(array.dtype)
            if dtype.kind not in "biuf":
                raise InvalidArgumentError(
                    f"{dotted_name(key)} is a {type(value).__name__}, expected numbers or a text"
                )
            self._forms[key] = (dtype, array.shape)
        dtype, shape = self._forms[key]
        if array.shape != shape or not np.can_cast(array.dtype, dtype, "same_kind"):
            raise InvalidArgumentError(
                f"{dotted_name(key)} is {array.dtype} {list(array.shape)}, expected {dtype} {list(shape)} as the first value"
            )
        return array.astype(dtype, copy=False)


class _OpenEpisode:
    """States and steps of an open episode."""

    def __init__(self, states: Mapping[Key, Any], metadata: Mapping[str, float | bool]) -> None:
        self._states = {key: [value] for key, value in states.items()}
        self._steps: dict[Key, list[Any]] = {}
        self._metadata = metadata

    def __len__(self) -> int:
        """Return the number of steps."""
        return len(self._steps[NEXT_TRUNCATED]) if self._steps else 0

    def has_info(self, name: str) -> bool:
        """Return whether the first states have an entry of `info`."""
        return any(key[:2] == (_INFO, name) for key in self._states)

    def append(self, states: Mapping[Key, Any], steps: Mapping[Key, Any]) -> None:
        """Append the states after a step, and the values of the step."""
        if not self._steps:
            self._steps = {key: [] for key in steps}
        for lists, values in ((self._states, states), (self._steps, steps)):
            if lists.keys() != values.keys():
                names = [sorted(map(dotted_name, keys)) for keys in (values, lists)]
                raise InvalidArgumentError(f"step {len(self)} has {names[0]}, expected {names[1]}")
        for lists, values in ((self._states, states), (self._steps, steps)):
            for key, value in values.items():
                lists[key].append(value)

    def truncate(self) -> None:
        """Mark the last step as truncated."""
        self._steps[NEXT_TRUNCATED][-1] = np.ones(1, np.bool_)

    def to_episode(self) -> Episode:
        """Return the episode."""
        steps, states = (
            {key: _stacked(values) for key, values in lists.items()} for lists in (self._steps, self._states)
        )
        return Episode(steps, states, metadata=self._metadata)


def _one_number(value: Any, key: Key, dtype: np.dtype[Any]) -> NDArray[Any]:
    array = np.asarray(value.tolist() if hasattr(value, "detach") else value)  # NumPy has no bfloat16
    if array.size != 1:
        raise InvalidArgumentError(f"{dotted_name(key)} has the shape {list(array.shape)}, expected a single number")
    return (float_rewards(array) if dtype == np.float32 else array).reshape(1).astype(dtype)


def _column(key: Key, value: Any, *, shared: bool) -> Column:
    if isinstance(value, str):
        return Column(key, np.dtype(np.int32), (), shared=shared, text=True)
    return Column(key, value.dtype, value.shape, shared=shared)


def _stacked(values: Sequence[Any]) -> Values:
    return TextStates.from_texts(values) if isinstance(values[0], str) else np.stack(values)


def _spec_documents(specs: Mapping[str, TensorSpec]) -> dict[str, Any]:
    """Return the specs of all leaves as JSON, by dotted name. Texts have no specs."""
    leaves: dict[str, Any] = {}
    for name, spec in specs.items():
        if isinstance(spec, CompositeSpec):
            leaves |= {f"{name}.{inner}": document for inner, document in _spec_documents(dict(spec.items())).items()}
        elif not isinstance(spec, NonTensorSpec):
            leaves[name] = spec.to_json()
    return leaves


def _rate(fps: float | None) -> dict[str, float]:
    if fps is not None and not (math.isfinite(fps) and fps > 0):
        raise InvalidArgumentError(f"fps is {fps}, expected a number of steps per second above 0")
    return {} if fps is None else {"fps": fps}


def _names_of_elements(names: Mapping[str | Key, Sequence[str]]) -> dict[str, list[str]]:
    """Return the names of the elements by dotted name."""
    lists = {dotted_name(as_key(key)): [*elements] for key, elements in names.items()}
    for name, elements in lists.items():
        is_text = isinstance(names.get(name), str)
        if is_text or not all(isinstance(element, str) for element in elements) or len({*elements}) != len(elements):
            raise InvalidArgumentError(f"the names of {name} are {elements}, expected a list of different texts")
    return lists


def _check_names(names: Mapping[str, Sequence[str]], columns: Sequence[Column]) -> None:
    """Check that each named field is a vector with as many elements as names."""
    shapes = {dotted_name(column.key): column.shape for column in columns}
    for name, elements in names.items():
        if name not in shapes:
            raise InvalidArgumentError(f"names has {name!r}: the fields are {', '.join(sorted(shapes))}")
        if shapes[name] not in {(len(elements),), *([()] if len(elements) == 1 else [])}:
            raise InvalidArgumentError(f"{name} has {len(elements)} names, but the shape is {list(shapes[name])}")


def _score_document(low: float, high: float) -> dict[str, Any]:
    low, high = float(low), float(high)
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise InvalidArgumentError(f"score is ({low:g}, {high:g}), expected two returns, the lower return first")
    return {"low": low, "high": high, "origin": "stated by the program that recorded the dataset"}
