"""Steps that keep some of the episodes, unchanged."""

from __future__ import annotations

import operator
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from datasets_rl.errors import InvalidArgumentError
from datasets_rl.preprocessing.base import DataStep
from datasets_rl.preprocessing.steps._fields import require_keys
from datasets_rl.ted.episode_batch import EpisodeBatch
from datasets_rl.ted.keys import (
    EPISODE,
    NEXT_DONE,
    NEXT_REWARD,
    NEXT_TERMINATED,
    NEXT_TRUNCATED,
    Key,
    as_key,
    dotted_name,
)

SPAN = {"form": "a range START:STOP or START:STOP:STEP from 0, as in 0:100:2, or one number"}
"""The metadata of a field that `read_span` parses: the expected form, for messages."""
TEST = {"form": "a comparison with a number, true, false or a text, as in '> 0.5', '== true' or '!= open the drawer'"}
"""The metadata of the test of `KeepWhere`: the expected form, for messages."""
_SPAN = re.compile(r"(\d*)(?::(\d*)(?::([1-9]\d*))?)?")
_TEST = re.compile(r"\s*(==|!=|<=|>=|<|>)\s*(.+?)\s*")
_TESTS = {
    "==": operator.eq,
    "!=": operator.ne,
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
}


def returns_of_episodes(batch: EpisodeBatch) -> NDArray[np.float64]:
    """Return the undiscounted return of each episode, [E]."""
    rewards = batch.steps[NEXT_REWARD][:, 0].astype(np.float64)
    sums: NDArray[np.float64] = np.add.reduceat(rewards, batch.table.starts)
    return sums


def success_key(batch: EpisodeBatch, name: str) -> Key:
    """Return the key of the field that marks success: the given name, or else the only field called "success".

    Raises:
        InvalidArgumentError: If there is no such field, or several.
    """
    if name:
        return require_keys(batch, [name])[0]
    candidates = [key for key in (*batch.steps, *batch.states) if key[-1] == "success"]
    if len(candidates) != 1:
        names = ", ".join(map(dotted_name, candidates)) or "none"
        raise InvalidArgumentError(
            f"fields called success: {names}, expected exactly one", hint="pass the field to use as key="
        )
    return candidates[0]


def check_bounds(low: float | None, high: float | None) -> None:
    """Check that two bounds, None for no bound, are not in the wrong order.

    Raises:
        InvalidArgumentError: If `low` is greater than `high`.
    """
    if low is not None and high is not None and low > high:
        raise InvalidArgumentError(f"min is {low} and max is {high}, expected max to be at least as large as min")


def read_span(text: str) -> tuple[int, int | None, int]:
    """Parse a range of non-negative integers, ``0:100``, ``0:100:2`` or ``7``, into start, stop and step.

    Raises:
        InvalidArgumentError: If the text is not a range, or the range is empty.
    """
    match = _SPAN.fullmatch(text)
    if match is None or not text:
        raise InvalidArgumentError(f"{text!r} is not a range, expected {SPAN['form']}")
    start = int(match[1] or 0)
    stop = start + 1 if ":" not in text else int(match[2]) if match[2] else None
    if stop is not None and stop <= start:
        raise InvalidArgumentError(f"{text!r} is an empty range, expected the stop to be greater than the start")
    return start, stop, int(match[3] or 1)


def _in_span(numbers: NDArray[np.int64], span: str) -> NDArray[np.bool_]:
    """Return whether each of the numbers, [E], is in a range that `read_span` parses."""
    start, stop, step = read_span(span)
    within: NDArray[np.bool_] = (numbers >= start) & ((numbers - start) % step == 0)
    return within if stop is None else within & (numbers < stop)


def in_spans(numbers: NDArray[np.int64], spans: Iterable[int | str]) -> NDArray[np.bool_]:
    """Return whether each of the numbers, [E], is in any of several ranges that `read_span` parses."""
    found = np.zeros(len(numbers), np.bool_)
    for span in spans:
        found |= _in_span(numbers, str(span))
    return found


def _pick_episodes(batch: EpisodeBatch, mask: NDArray[np.bool_]) -> EpisodeBatch | None:
    return batch.select_episodes(mask) if mask.any() else None


def _episodes_with_hits(batch: EpisodeBatch, hits: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return whether a condition on steps, [N], holds in any step of each episode, [E]."""
    result: NDArray[np.bool_] = np.logical_or.reduceat(hits, batch.table.starts)
    return result


@dataclass
class KeepReturns(DataStep):
    """Keep the episodes with a return in [`min`, `max`]."""

    min: float = -np.inf
    max: float = np.inf

    @override
    def __call__(self, batch: EpisodeBatch) -> EpisodeBatch | None:
        episode_returns = returns_of_episodes(batch)
        return _pick_episodes(batch, (episode_returns >= self.min) & (episode_returns <= self.max))


@dataclass
class KeepLengths(DataStep):
    """Keep the episodes with a number of steps in [`min`, `max`]."""

    min: int = 1
    max: int | None = None

    def __post_init__(self) -> None:
        check_bounds(self.min, self.max)

    @override
    def __call__(self, batch: EpisodeBatch) -> EpisodeBatch | None:
        longest = np.inf if self.max is None else self.max
        return _pick_episodes(batch, (batch.lengths >= self.min) & (batch.lengths <= longest))


@dataclass
class KeepTopReturns(DataStep):
    """Keep the episodes with the highest returns, including all episodes that tie with the last kept episode.

    Args:
        percent: The share to keep, greater than 0 and at most 100.
        of: Whether `percent` is a share of the episodes or of the steps. For steps, the best episodes are kept while
            their total number of steps does not exceed the share. At least one episode is kept.
    """

    percent: float = 10.0
    of: Literal["episodes", "steps"] = "episodes"
    _min: float = field(default=-np.inf, init=False, repr=False)

    requires_fit = True

    def __post_init__(self) -> None:
        if not 0 < self.percent <= 100:
            raise InvalidArgumentError(f"percent is {self.percent}, expected a number greater than 0 and at most 100")

    def fit(self, batches: Iterable[EpisodeBatch]) -> None:
        """Compute the lowest return to keep."""
        pairs = [(returns_of_episodes(batch), batch.lengths) for batch in batches]
        episode_returns, lengths = (np.concatenate(arrays) for arrays in zip(*pairs, strict=True))
        best = np.argsort(-episode_returns, kind="stable")
        if self.of == "episodes":
            count = int(len(episode_returns) * self.percent / 100)
        else:
            count = int((np.cumsum(lengths[best]) <= lengths.sum() * self.percent / 100).sum())
        self._min = float(episode_returns[best[max(count, 1) - 1]])

    @property
    def fitted(self) -> Mapping[str, Any]:
        """The lowest return to keep."""
        return {"min": self._min}

    @override
    def __call__(self, batch: EpisodeBatch) -> EpisodeBatch | None:
        return _pick_episodes(batch, returns_of_episodes(batch) >= self._min)


@dataclass
class KeepSuccess(DataStep):
    """Keep the successful episodes, in which a field is greater than 0 in any step, or in the final state.

    Args:
        key: The field, by default the only field called "success".
        keep: If False, keep the other episodes instead.
    """

    key: str = ""
    keep: bool = True

    @override
    def __call__(self, batch: EpisodeBatch) -> EpisodeBatch | None:
        key = success_key(batch, self.key)
        values = np.asarray(batch.steps[key] if key in batch.steps else batch.states[key])
        success = _episodes_with_hits(batch, np.asarray((values > 0).reshape(batch.count, -1).any(-1)))
        if key in batch.states:
            success |= batch.final_known & (np.asarray(batch.final_states[key]) > 0).reshape(len(batch), -1).any(-1)
        return _pick_episodes(batch, success == self.keep)


@dataclass
class KeepWhere(DataStep):
    """Keep the episodes in which a field passes a test: in any step, in all steps, in the first or in the last step.

        keep_where:next.reward,> 0.5            some reward is greater than 0.5
        keep_where:next.terminated,== true,last the episode is terminated, not truncated
        keep_where:episode,!= 5                 all episodes except number 5
        keep_where:info.task,== open the drawer the text of a step

    Args:
        key: The field, as named in batches. If the field has several elements, all elements must pass the test.
        test: One of ==, !=, <, <=, > and >=, followed by a number, by true or false, or by a text.
        over: The steps that must pass the test: "any", "all", "first" or "last".
    """

    key: str
    test: str = field(metadata=TEST)
    over: Literal["any", "all", "first", "last"] = "any"

    def __post_init__(self) -> None:
        if _TEST.fullmatch(self.test) is None:
            raise InvalidArgumentError(f"test is {self.test!r}, expected {TEST['form']}")

    @override
    def __call__(self, batch: EpisodeBatch) -> EpisodeBatch | None:
        hits, table = self._hits(batch), batch.table
        if self.over in {"first", "last"}:
            return _pick_episodes(batch, hits[table.starts if self.over == "first" else table.stops - 1])
        reduce = np.logical_or if self.over == "any" else np.logical_and
        return _pick_episodes(batch, reduce.reduceat(hits, table.starts))

    def _hits(self, batch: EpisodeBatch) -> NDArray[Any]:
        """Return whether each step passes the test, bool [N]."""
        compare, operand = _TEST.fullmatch(self.test).groups()  # type: ignore[union-attr]  # checked in __post_init__
        key = as_key(self.key)
        if key in batch.vocabulary:
            texts = np.array([_TESTS[compare](text, operand) for text in batch.vocabulary[key]], np.bool_)
            passed: NDArray[np.bool_] = texts[_values_of(batch, key)]
        else:
            try:
                number = float({"true": 1, "false": 0}.get(operand.lower(), operand))
            except ValueError as error:
                raise InvalidArgumentError(
                    f"{self.key} holds numbers, expected a number, true or false after {compare}, not {operand!r}"
                ) from error
            passed = _TESTS[compare](_values_of(batch, key), number)
        return np.all(passed.reshape(batch.count, -1), axis=-1)  # type: ignore[no-any-return]  # an array, because of the axis


def _values_of(batch: EpisodeBatch, key: Key) -> NDArray[Any]:
    """Return the values of a field, [N, ...], as in batches. "episode" and ("next", "done") are computed."""
    if key == EPISODE:
        return np.repeat(batch.numbers, batch.lengths)
    if key == NEXT_DONE:
        done: NDArray[np.bool_] = np.logical_or(batch.steps[NEXT_TERMINATED], batch.steps[NEXT_TRUNCATED])
        return done
    (key,) = require_keys(batch, [".".join(key)])
    values: NDArray[Any] = np.asarray(batch.steps[key] if key in batch.steps else batch.states[key])
    return values


@dataclass
class KeepEpisodes(DataStep):
    """Keep the episodes in a range of numbers, counted from 0: 0:100 for the first hundred, 0::10 for every tenth."""

    numbers: str = field(metadata=SPAN)

    def __post_init__(self) -> None:
        read_span(self.numbers)

    @override
    def __call__(self, batch: EpisodeBatch) -> EpisodeBatch | None:
        return _pick_episodes(batch, _in_span(batch.numbers, self.numbers))


@dataclass
class DropEpisodes(DataStep):
    """Drop the episodes with these numbers, counted from 0: 5 for one, 3,7,10:20 for several and for ranges.

    Later steps see the numbers of the dataset as well, not the numbers of the result.

    Args:
        numbers: The numbers and ranges.
        reason: Why, for the manifest.
    """

    numbers: tuple[int | str, ...] = field(metadata={"form": "numbers and ranges START:STOP from 0, as in 3,7,10:20"})
    reason: str = ""

    def __post_init__(self) -> None:
        for span in self.numbers:
            read_span(str(span))

    @override
    def __call__(self, batch: EpisodeBatch) -> EpisodeBatch | None:
        return _pick_episodes(batch, ~in_spans(batch.numbers, self.numbers))
