"""Steps that keep some of the episodes, as they are."""

from __future__ import annotations

import operator
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from datasets_rl.errors import InvalidArgumentError
from datasets_rl.preprocessing.base import Step
from datasets_rl.preprocessing.steps._fields import as_fractions, drawn, need
from datasets_rl.ted.episode_batch import EpisodeBatch
from datasets_rl.ted.keys import EPISODE, NEXT_DONE, NEXT_REWARD, NEXT_TERMINATED, NEXT_TRUNCATED, Key, as_key, dotted

__all__ = [
    "SPAN",
    "KeepEpisodes",
    "KeepLengths",
    "KeepReturns",
    "KeepSuccess",
    "KeepTopReturns",
    "KeepWhere",
    "Split",
    "read_span",
    "returns",
    "success_key",
]

SPAN = {"form": "a range START:STOP or START:STOP:STEP from 0, as in 0:100:2, or one number"}
"""What is expected of a field that `read_span` reads, for messages."""
TEST = {"form": "a comparison with a number, true, false or a text, as in '> 0.5', '== true' or '!= open the drawer'"}
"""What is expected of the test of `KeepWhere`, for messages."""
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
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def returns(block: EpisodeBatch) -> NDArray[np.float64]:
    """Return the sum of the rewards of each episode, [E]."""
    rewards = block.steps[NEXT_REWARD][:, 0].astype(np.float64)
    sums: NDArray[np.float64] = np.add.reduceat(rewards, block.table.starts)
    return sums


def success_key(block: EpisodeBatch, name: str) -> Key:
    """Return the field that says where an episode succeeds: the one named, or the only one called "success".

    Raises:
        InvalidArgumentError: If there is none, or several.
    """
    if name:
        return need(block, [name])[0]
    found = [key for key in (*block.steps, *block.states) if key[-1] == "success"]
    if len(found) != 1:
        which = ", ".join(map(dotted, found)) or "none"
        raise InvalidArgumentError(f"fields called success: {which}; expected one", hint="name it with key=")
    return found[0]


def read_span(text: str) -> tuple[int, int | None, int]:
    """Read a range of numbers from 0 as users write it, ``0:100``, ``0:100:2`` or ``7``: start, stop, step.

    Raises:
        InvalidArgumentError: If it is none, or it is empty.
    """
    match = _SPAN.fullmatch(text)
    if match is None or not text:
        raise InvalidArgumentError(f"{text!r} is no range; expected {SPAN['form']}")
    start = int(match[1] or 0)
    stop = start + 1 if ":" not in text else int(match[2]) if match[2] else None
    if stop is not None and stop <= start:
        raise InvalidArgumentError(f"{text!r} is empty; expected a range with something in it")
    return start, stop, int(match[3] or 1)


def _kept(block: EpisodeBatch, mask: NDArray[np.bool_]) -> EpisodeBatch | None:
    return block.pick(mask) if mask.any() else None


def _any_step(block: EpisodeBatch, hits: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Say of each episode, [E], whether something holds in any of its steps, [N]."""
    found: NDArray[np.bool_] = np.logical_or.reduceat(hits, block.table.starts)
    return found


@dataclass
class KeepReturns(Step):
    """Keep the episodes whose return lies between two numbers, both included."""

    least: float = -np.inf
    most: float = np.inf

    summary = "episodes by their return"

    def __call__(self, block: EpisodeBatch) -> EpisodeBatch | None:
        """Return those that are kept."""
        found = returns(block)
        return _kept(block, (found >= self.least) & (found <= self.most))


@dataclass
class KeepLengths(Step):
    """Keep the episodes of a number of steps between two, both included."""

    least: int = 1
    most: int | None = None

    summary = "episodes by their length"

    def __post_init__(self) -> None:
        if self.most is not None and self.most < self.least:
            raise InvalidArgumentError(
                f"least is {self.least} and most is {self.most}; expected most to be the greater one"
            )

    def __call__(self, block: EpisodeBatch) -> EpisodeBatch | None:
        """Return those that are kept."""
        most = np.inf if self.most is None else self.most
        return _kept(block, (block.lengths >= self.least) & (block.lengths <= most))


@dataclass
class KeepTopReturns(Step):
    """Keep the episodes with the highest returns; those that are equal to the last one that is kept stay with it.

    Args:
        percent: How much is kept, above 0 to 100.
        of: Whether that is a share of the episodes, or of the steps. By steps, the best episodes are taken as long as
            their steps together are not more than the share; one at least.
    """

    percent: float = 10.0
    of: Literal["episodes", "steps"] = "episodes"
    _least: float = field(default=-np.inf, init=False, repr=False)

    requires_fit = True
    summary = "the episodes with the highest returns, a share"

    def __post_init__(self) -> None:
        if not 0 < self.percent <= 100:
            raise InvalidArgumentError(f"percent is {self.percent}; expected a number above 0, to 100")

    def fit(self, blocks: Iterable[EpisodeBatch]) -> None:
        """Find the return of the last episode that is kept."""
        seen = [(returns(block), block.lengths) for block in blocks]
        found, lengths = (np.concatenate(one) for one in zip(*seen, strict=True))
        best = np.argsort(-found, kind="stable")
        if self.of == "episodes":
            count = int(len(found) * self.percent / 100)
        else:
            count = int((np.cumsum(lengths[best]) <= lengths.sum() * self.percent / 100).sum())
        self._least = float(found[best[max(count, 1) - 1]])

    @property
    def fitted(self) -> Mapping[str, Any]:
        """The lowest return that is kept."""
        return {"least": self._least}

    def __call__(self, block: EpisodeBatch) -> EpisodeBatch | None:
        """Return those that are kept."""
        return _kept(block, returns(block) >= self._least)


@dataclass
class KeepSuccess(Step):
    """Keep the episodes that succeed: those in which a field is above 0 in any step, or in the state after the last.

    Args:
        key: The field; by default the only one that is called "success".
        keep: False keeps the others.
    """

    key: str = ""
    keep: bool = True

    summary = "episodes that succeed"

    def __call__(self, block: EpisodeBatch) -> EpisodeBatch | None:
        """Return those that are kept."""
        key = success_key(block, self.key)
        there = np.asarray(block.steps[key] if key in block.steps else block.states[key])
        found = _any_step(block, np.asarray((there > 0).reshape(block.count, -1).any(-1)))
        if key in block.states:
            found |= block.final_known & (np.asarray(block.final_states[key]) > 0).reshape(len(block), -1).any(-1)
        return _kept(block, found == self.keep)


@dataclass
class KeepWhere(Step):
    """Keep the episodes in which a field passes a test, in any step, in all, in the first or in the last.

        keep_where:next.reward,> 0.5            some reward is above 0.5
        keep_where:next.terminated,== true,last it ends terminated, and not at a time limit
        keep_where:episode,!= 5                 all episodes but number 5
        keep_where:info.task,== open the drawer the text of a step

    Args:
        key: The field, as batches have it. A step passes with a field of several numbers if each of them does.
        test: One of ==, !=, <, <=, >, >=, and what the values are compared with: a number, true or false, or a text.
        over: "any", "all", "first" or "last": in which steps.
    """

    key: str
    test: str = field(metadata=TEST)
    over: Literal["any", "all", "first", "last"] = "any"

    summary = "episodes in which a field passes a test, as > 0.5, == true or != text"

    def __post_init__(self) -> None:
        if _TEST.fullmatch(self.test) is None:
            raise InvalidArgumentError(f"test is {self.test!r}; expected {TEST['form']}")

    def __call__(self, block: EpisodeBatch) -> EpisodeBatch | None:
        """Return those that are kept."""
        hits, table = self._hits(block), block.table
        if self.over in {"first", "last"}:
            return _kept(block, hits[table.starts if self.over == "first" else table.stops - 1])
        reduce = np.logical_or if self.over == "any" else np.logical_and
        return _kept(block, reduce.reduceat(hits, table.starts))

    def _hits(self, block: EpisodeBatch) -> NDArray[Any]:
        """Return in which steps it passes, bool [N]."""
        compare, wanted = _TEST.fullmatch(self.test).groups()  # type: ignore[union-attr]  # it was checked
        key = as_key(self.key)
        if key in block.vocabulary:
            texts = np.array([_TESTS[compare](text, wanted) for text in block.vocabulary[key]], np.bool_)
            passed: NDArray[np.bool_] = texts[_values(block, key)]
        else:
            try:
                number = float({"true": 1, "false": 0}.get(wanted.lower(), wanted))
            except ValueError as error:
                raise InvalidArgumentError(
                    f"{self.key} holds numbers; expected a number, true or false after {compare}, not {wanted!r}"
                ) from error
            passed = _TESTS[compare](_values(block, key), number)
        return np.all(passed.reshape(block.count, -1), axis=-1)  # type: ignore[no-any-return]  # of an array, along an axis


def _values(block: EpisodeBatch, key: Key) -> NDArray[Any]:
    """Return a field of all steps as batches have it, [N, ...]; those that follow from others are not stored."""
    if key == EPISODE:
        return np.repeat(block.numbers, block.lengths)
    if key == NEXT_DONE:
        done: NDArray[np.bool_] = np.logical_or(block.steps[NEXT_TERMINATED], block.steps[NEXT_TRUNCATED])
        return done
    (key,) = need(block, [".".join(key)])
    values: NDArray[Any] = np.asarray(block.steps[key] if key in block.steps else block.states[key])
    return values


@dataclass
class KeepEpisodes(Step):
    """Keep the episodes of some numbers, as they are counted in the dataset from 0: ``0:100``, or ``0::10``."""

    numbers: str = field(metadata=SPAN)

    summary = "episodes by their numbers"

    def __post_init__(self) -> None:
        read_span(self.numbers)

    def __call__(self, block: EpisodeBatch) -> EpisodeBatch | None:
        """Return those that are kept."""
        start, end, step = read_span(self.numbers)
        stop = np.inf if end is None else end
        numbers = block.numbers
        return _kept(block, (numbers >= start) & (numbers < stop) & ((numbers - start) % step == 0))


@dataclass
class Split(Step):
    """Keep the episodes for training, or the others, for validation.

    Which they are, the number of an episode at its source decides: the fractional part of its product with the golden
    ratio, moved by the seed, is below the share of validation. These parts fill the unit interval evenly (a Weyl
    sequence), so that the share is kept among a few episodes as well, and among every second or tenth of them.

    Args:
        part: "train" or "validation". The two have no episode in common, and together have all.
        validation: The share of validation, between 0 and 1.
        seed: Another one gives another choice.
    """

    part: Literal["train", "validation"]
    validation: float = 0.1
    seed: int = 0

    summary = "episodes for training, or those for validation"

    def __post_init__(self) -> None:
        if not 0 < self.validation < 1:
            raise InvalidArgumentError(f"validation is {self.validation}; expected a number between 0 and 1")

    def __call__(self, block: EpisodeBatch) -> EpisodeBatch | None:
        """Return those that are kept."""
        sources = np.asarray(block.metadata.get("source", block.numbers)).astype(np.uint64)
        shift = drawn(self.seed, np.zeros(1, np.int64), np.zeros(1, np.int64))
        places = as_fractions(sources * _GOLDEN)
        return _kept(block, ((places + shift) % 1 < self.validation) == (self.part == "validation"))
