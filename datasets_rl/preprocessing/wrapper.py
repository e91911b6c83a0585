"""Wrapper of an environment that applies preprocessing steps to observations, and inverts the steps for actions."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from operator import getitem
from typing import Any

import numpy as np
from numpy.typing import NDArray

from datasets_rl.errors import DatasetsRLError, InvalidArgumentError
from datasets_rl.libraries import importing
from datasets_rl.preprocessing.base import DataStep, Step
from datasets_rl.preprocessing.naming import make_step
from datasets_rl.ted.episode_batch import EpisodeBatch
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
    nest_keys,
)

with importing("gymnasium", "gymnasium", "make_env"):
    import gymnasium
    from gymnasium import spaces

Space = gymnasium.Space[Any]
Arrays = Mapping[Key, NDArray[Any]]
_HUGE = float(np.finfo(np.float32).max)
"""Bounds of this size and beyond stand for none."""


class PreprocessedEnv(gymnasium.Wrapper[Any, Any, Any, Any], gymnasium.utils.RecordConstructorArgs):
    """Environment with the observations and actions of a preprocessed dataset.

        observation    as stored: the steps of the recipes are applied, also to earlier observations where a step needs
        them action         in the units of the dataset: the inverses of the steps give the action of the environment
        reward         of the environment, so that returns and scores are those of the environment

    Where the steps leave several fields, an observation is a dict of these fields. A single field is an array.

    Args:
        env: The environment, as the dataset names it.
        steps: The steps that preprocessed the dataset, as from `describe_env`.
        columns: The dtype and the shape of the fields of the dataset, by dotted name.

    Raises:
        InvalidArgumentError: If a step cannot be applied, or the results do not have the fields of the dataset.
    """

    def __init__(
        self, env: gymnasium.Env[Any, Any], steps: Sequence[Mapping[str, Any]], columns: Mapping[str, Mapping[str, Any]]
    ) -> None:
        # The specification of the environment then has the steps, and so has a dataset of recordings.
        gymnasium.utils.RecordConstructorArgs.__init__(self, steps=list(steps), columns=dict(columns))
        gymnasium.Wrapper.__init__(self, env)
        restored = list(_restored_steps(steps))
        self._observations = _Pipeline(restored, env.observation_space, OBSERVATION)
        self._actions = _Pipeline(restored, env.action_space, ACTION)
        self._dtypes = _stored_dtypes(self._observations.examples, columns, OBSERVATION)
        if self._observations.stages:
            self.observation_space = _value_of(self._observations.result_spaces(self._dtypes), spaces.Dict)
        if self._actions.stages:
            dtypes = _stored_dtypes(self._actions.examples, columns, ACTION)
            self.action_space = _value_of(self._actions.result_spaces(dtypes), spaces.Dict)
            self._actions.check_inverse()

    @property
    def is_changed(self) -> bool:
        """Whether a step applies to the observations or to the actions."""
        return bool(self._observations.stages or self._actions.stages)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset the environment. Return the observation as the dataset holds it."""
        observation, info = self.env.reset(seed=seed, options=options)
        self._observations.clear()
        return self._observed(observation), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step the environment by an action as the dataset holds actions. Return the observation in the same form."""
        if self._actions.stages:
            action = self._actions.inverse(action)
        observation, reward, terminated, truncated, info = self.env.step(action)
        return self._observed(observation), reward, terminated, truncated, info

    def _observed(self, observation: Any) -> Any:
        if not self._observations.stages:
            return observation
        fields = self._observations(observation)
        return _value_of(
            {
                key: fields[key] if isinstance(fields[key], str) else fields[key].astype(dtype, copy=False)
                for key, dtype in self._dtypes.items()
            }
        )


def _restored_steps(entries: Sequence[Any]) -> Iterator[tuple[str, Step]]:
    """Yield the steps that can change observations and actions, fitted, each with a label."""
    for entry in entries:
        label = entry.get("label", "a step") if isinstance(entry, Mapping) else "a step"
        try:
            step = _restored_step(dict(entry["step"]), entry["fitted"])
        except InvalidArgumentError as error:
            raise InvalidArgumentError(f"{label}: {error.message}") from error
        except (AttributeError, KeyError, TypeError, ValueError) as error:  # a description is read from files
            raise InvalidArgumentError(f"{label} is not described as a step: {error!r}") from error
        if step is not None:
            yield label, step


def _restored_step(arguments: dict[str, Any], fitted: Mapping[str, Any]) -> Step | None:
    """Return a fitted step, or None for a step that leaves observations and actions unchanged."""
    if arguments.get("environment") == "unchanged":
        return None
    if "digest" in arguments:
        raise InvalidArgumentError("the manifest has a digest of its code, but not the code")
    step = make_step(arguments.pop("use"), (), arguments)
    if isinstance(step, DataStep):
        return None
    step.restore(fitted)
    return step


class _Stage:
    """A step that applies to an environment, and the earlier fields that the step needs.

    Args:
        label: The name of the step, for messages.
        step: The step, as from `Step.for_environment`.
        before: An example of the fields before the step, [1, ...] each.
    """

    def __init__(self, label: str, step: Step, before: Arrays) -> None:
        self.label, self.step, self.before = label, step, before
        self.earlier: deque[Arrays] = deque(maxlen=step.window)

    def __call__(self, batch: EpisodeBatch) -> EpisodeBatch:
        """Return a transformed step, given the previous steps since the start of the episode.

        Raises:
            InvalidArgumentError: If the step refuses the values.
        """
        is_state = bool(batch.states)
        if self.step.window > 1:
            self.earlier.append(batch.states)
            rows = {key: np.concatenate([states[key] for states in self.earlier]) for key in batch.states}
            batch = _batch(rows, batch.vocabulary, is_state=True)
        result = self.step(batch)
        if result is None:
            raise InvalidArgumentError("it drops steps")
        return _batch({key: value[-1:] for key, value in _fields(result).items()}, result.vocabulary, is_state=is_state)


class _Pipeline:
    """The steps that apply to the observations or to the actions of an environment, in order.

    Args:
        steps: All steps, each with a label.
        space: The space of the observations or actions.
        root: The name of the fields: `OBSERVATION` or `ACTION`.

    Raises:
        InvalidArgumentError: If a step cannot be applied.
    """

    def __init__(self, steps: Sequence[tuple[str, Step]], space: Space, root: Key) -> None:
        self._space, self._root = space, root
        self._leaves = dict(_leaves(space, root))
        self.stages: list[_Stage] = []
        batch = self._batch_of(0)
        for label, step in steps:
            try:
                applied = step.for_environment(batch)
                if applied is not None:
                    self.stages.append(_Stage(label, applied, _fields(batch)))
                    batch = self.stages[-1](batch)
            except (DatasetsRLError, IndexError, NotImplementedError, ValueError) as error:
                raise InvalidArgumentError(f"{label}: {getattr(error, 'message', error)}") from error
        if not _fields(batch):  # the dataset holds no such field
            self.stages = []
        self.clear()
        self.examples = _fields(batch)
        """Fields after all steps, [1, ...] each."""
        self._original = {key: as_key(texts[0]) for key, texts in batch.vocabulary.items()}

    def __call__(self, value: Any) -> dict[Key, Any]:
        """Return the fields of an observation after all steps: arrays and texts."""
        leaves = dict(_leaves(value, self._root))
        texts = {key: (leaf,) for key, leaf in leaves.items() if isinstance(leaf, str)}
        arrays = {key: np.asarray(0 if key in texts else leaf)[None] for key, leaf in leaves.items()}
        batch = self._applied(_batch(arrays, texts, is_state=True))
        fields: dict[Key, Any] = {key: array.reshape(array.shape[1:]) for key, array in _fields(batch).items()}
        return fields | {key: words[0] for key, words in batch.vocabulary.items()}

    def _applied(self, batch: EpisodeBatch) -> EpisodeBatch:
        for stage in self.stages:
            batch = stage(batch)
        return batch

    def clear(self) -> None:
        """Forget the earlier fields: an episode starts."""
        for stage in self.stages:
            stage.earlier.clear()

    def inverse(self, value: Any) -> Any:
        """Return the action of the environment for an action in the units of the dataset."""
        tree = {self._root_name: value} if self._root_name else value
        arrays: Arrays = {key: np.asarray(reduce(getitem, key, tree))[None] for key in self.examples}
        for stage in reversed(self.stages):
            arrays = stage.step.invert_actions(arrays, stage.before)
        return _as_sample({key: array[0] for key, array in arrays.items()}, self._space, self._root)

    @property
    def _root_name(self) -> str:
        """The first name of all fields, or an empty text for several first names."""
        names = {key[0] for key in self.examples}
        return names.pop() if len(names) == 1 else ""

    def check_inverse(self) -> None:
        """Check that actions are mapped back to the actions of the environment."""
        limits = [self._results(number) for number in range(3)]
        for key, space in self._leaves.items():
            if not isinstance(space, spaces.Box) and not self._is_unchanged(key, limits):
                raise InvalidArgumentError(
                    f"{self.stages[0].label}: {dotted_name(key)} is {space}, expected a Box to change"
                )
        after: Arrays = {
            key: _between(*(bound.get(key, example) for bound in limits[1:])) if example.dtype.kind == "f" else example
            for key, example in self.examples.items()
        }
        for stage in reversed(self.stages):
            try:
                before = stage.step.invert_actions(after, stage.before)
                again = _fields(stage(_batch(before, {}, is_state=False)))
            except (DatasetsRLError, KeyError, RuntimeError, ValueError) as error:
                reason = getattr(error, "message", error)
                raise InvalidArgumentError(f"{stage.label}: its actions have no inverse: {reason}") from error
            if any(not np.allclose(again[key], values, rtol=1e-2, atol=1e-3) for key, values in after.items()):
                raise InvalidArgumentError(f"{stage.label}: its actions have no inverse")
            after = before

    def result_spaces(self, dtypes: Mapping[Key, np.dtype[Any]]) -> dict[Key, Space]:
        """Return the spaces of the results with these dtypes, by field. Bounds are transformed from the environment."""
        limits = [self._results(number) for number in range(3)]
        return {
            key: self._leaves[self._original[key]]
            if key in self._original
            else self._leaves[key]
            if self._is_unchanged(key, limits) and self._leaves[key].dtype == dtype
            else _box(self.examples[key][0].shape, dtype, [bound[key][0] for bound in limits[1:] if key in bound])
            for key, dtype in dtypes.items()
        }

    def _is_unchanged(self, key: Key, limits: Sequence[Arrays]) -> bool:
        """Return whether a field of the environment is unchanged among the results, given the results of the limits."""
        return key in self._leaves and all(
            key in after and np.array_equal(after[key], before) and after[key].dtype == before.dtype
            for after, before in zip(limits, map(np.asarray, _limits(self._leaves[key])), strict=True)
        )

    def _results(self, number: int) -> Arrays:
        """Return the results for the examples (0), the lowest (1) and the highest values (2).

        A step that refuses values leaves the results out.
        """
        batch = self._batch_of(number)
        try:
            with np.errstate(all="ignore"):
                for stage in self.stages:
                    results = [stage(batch) for _ in range(stage.step.window)]
                    batch = results[-1]
        except InvalidArgumentError:  # such as a bound that does not fit a dtype
            return {}
        finally:
            self.clear()
        return _fields(batch)

    def _batch_of(self, number: int) -> EpisodeBatch:
        arrays = {key: _limits(space)[number] for key, space in self._leaves.items()}
        # The name of a text field stands for the texts, so that the field is known under a new name.
        names = {key: (dotted_name(key),) for key, space in self._leaves.items() if isinstance(space, spaces.Text)}
        return _batch(arrays, names, is_state=self._root == OBSERVATION)


def _batch(arrays: Arrays, vocabulary: Mapping[Key, Sequence[str]], *, is_state: bool) -> EpisodeBatch:
    """Return fields, [W, ...] each, as an episode of W steps with an unknown final state."""
    count = len(next(iter(arrays.values()), (0,)))
    flags = np.zeros((2, count, 1), np.bool_)
    flags[1, -1] = True
    steps = {
        NEXT_REWARD: np.zeros((count, 1), np.float32),
        NEXT_TERMINATED: flags[0],
        NEXT_TRUNCATED: flags[1],
        **({} if is_state else arrays),
    }
    states = arrays if is_state else {}
    return EpisodeBatch(
        np.array([count]),
        steps,
        states,
        {key: np.zeros_like(values[:1]) for key, values in states.items()},
        np.zeros(1, np.bool_),
        vocabulary=vocabulary,
    )


def _fields(batch: EpisodeBatch) -> Arrays:
    """Return the fields of the steps, without the fields of the next steps."""
    return {key: np.asarray(value) for key, value in {**batch.steps, **batch.states}.items() if key[0] != NEXT}


def _leaves(tree: Any, key: Key) -> Iterator[tuple[Key, Any]]:
    """Yield the leaves of a space, or of a sample of a space, by key."""
    if isinstance(tree, (Mapping, tuple, spaces.Tuple)):
        for name, inner in tree.items() if isinstance(tree, Mapping) else enumerate(tree):
            yield from _leaves(inner, (*key, str(name)))
    else:
        yield key, tree


def _limits(space: Space) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Return an example and the lowest and the highest values of a space, [1, ...] each."""
    if isinstance(space, spaces.Box):
        low, high = space.low[None], space.high[None]
        example = np.clip(np.zeros_like(low), low, high)
        if low.dtype.kind == "f":
            low, high = np.where(low <= -_HUGE, -np.inf, low), np.where(high >= _HUGE, np.inf, high)
        return example, low.astype(example.dtype), high.astype(example.dtype)
    if isinstance(space, spaces.Text):
        return (np.zeros(1, np.int32),) * 3
    if isinstance(space, spaces.MultiBinary):
        zeros = np.zeros((1, *space.shape), space.dtype)
        return zeros, zeros, zeros + 1
    if isinstance(space, (spaces.Discrete, spaces.MultiDiscrete)):
        start = np.asarray(space.start)[None]
        return start, start, start + (space.n if isinstance(space, spaces.Discrete) else space.nvec) - 1
    raise InvalidArgumentError(f"the space {space} is not of arrays")


def _between(low: NDArray[Any], high: NDArray[Any]) -> NDArray[Any]:
    """Return values between two bounds, none of which is in the middle. Bounds may be infinite."""
    low, high = (np.clip(bound.astype(np.float64), -1e3, 1e3) for bound in (np.fmin(low, high), np.fmax(low, high)))
    between: NDArray[Any] = low + 0.4 * (high - low)
    return between


def _box(shape: tuple[int, ...], dtype: np.dtype[Any], bounds: Sequence[NDArray[Any]]) -> spaces.Box:
    """Return the box between two bounds in either order, or without bounds."""
    if dtype.kind == "f":
        lowest, highest = -np.inf, np.inf
    else:
        lowest, highest = (0, 1) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    pair = (
        [bound.astype(dtype) for bound in bounds]
        if len(bounds) == 2
        else [np.full(shape, lowest), np.full(shape, highest)]
    )
    low, high = np.fmin(*pair), np.fmax(*pair)
    if dtype.kind == "f":
        low, high = np.where(np.isnan(low), lowest, low), np.where(np.isnan(high), highest, high)
    return spaces.Box(low.astype(dtype), high.astype(dtype), shape, dtype.type)


def _stored_dtypes(examples: Arrays, columns: Mapping[str, Mapping[str, Any]], root: Key) -> dict[Key, np.dtype[Any]]:
    """Return the dtypes of observations or actions in a dataset by field, which must exist in the environment."""
    roots = {root[0], *(key[0] for key in examples)}
    stored = {as_key(name): column for name, column in columns.items() if as_key(name)[0] in roots}
    problems = [
        f"the dataset has {dotted_name(key)} {column['shape']}, and the environment has "
        + (f"{list(examples[key].shape[1:])}" if key in examples else "no such field")
        for key, column in stored.items()
        if key not in examples or list(examples[key].shape[1:]) != column["shape"]
    ]
    if problems or not stored:
        raise InvalidArgumentError("; ".join(problems) or f"the dataset has no {root[0]} of the environment")
    return {key: np.dtype(column["dtype"]) for key, column in stored.items()}


def _value_of(leaves: Mapping[Key, Any], as_dict: Any = dict) -> Any:
    """Return fields as the value of a space: nested by name, and without the first name if all have the same."""

    def converted(tree: Any) -> Any:
        return as_dict({name: converted(value) for name, value in tree.items()}) if isinstance(tree, dict) else tree

    tree = nest_keys(leaves)
    return converted(next(iter(tree.values())) if len(tree) == 1 else tree)


def _as_sample(leaves: Arrays, space: Space, key: Key) -> Any:
    """Return fields as a sample of a space. Values that are out of bounds by rounding are at the bound."""
    if isinstance(space, spaces.Dict):
        return {name: _as_sample(leaves, inner, (*key, name)) for name, inner in space.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_as_sample(leaves, inner, (*key, str(number))) for number, inner in enumerate(space))
    if not isinstance(space, spaces.Box):
        return leaves[key] if np.ndim(leaves[key]) else leaves[key].astype(space.dtype)
    values = leaves[key].reshape(space.shape)
    clipped = np.clip(values, space.low, space.high)
    return np.where(np.isclose(values, clipped, rtol=1e-5, atol=1e-6), clipped, values).astype(space.dtype)
