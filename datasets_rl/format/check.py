"""Check of a stored dataset against the rules of TED, in batches of rows and bounded memory."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from datasets_rl.ted.keys import (
    EPISODE,
    NEXT,
    NEXT_DONE,
    NEXT_REWARD,
    NEXT_TERMINATED,
    NEXT_TRUNCATED,
    OBSERVATION,
    dotted_name,
    is_observation,
)
from datasets_rl.ted.table import EpisodeTable

if TYPE_CHECKING:
    from collections.abc import Callable

    from datasets_rl.format.schema import Schema
    from datasets_rl.ted.keys import Key

    Column = Callable[[Key, int, int], NDArray[Any]]

_BLOCK_BYTES = 16 << 20
_JUMP = 20.0
"""Minimum ratio of a jump to the median step of the same rows."""
_ISOLATED = 5.0
"""Minimum ratio of a jump to every nearby step. The speed of smooth motion changes by less."""
_NEAR = 4
"""Number of steps before and after a jump that the jump is compared with."""


@dataclass(slots=True)
class Problems:
    """Result of a check."""

    problems: list[str] = field(default_factory=list)
    """Violated rules: the dataset must not be used."""
    remarks: list[str] = field(default_factory=list)
    """Notable findings that violate no rule."""


def check_rules(schema: Schema, table: EpisodeTable, column: Column) -> Problems:
    """Check every rule of TED, and report suspicious values.

    Rules: ``next.done`` is ``next.terminated | next.truncated`` and True exactly on the last row of every episode.
    ``episode`` is the number of the episode in the table. The next observation is the observation of the following row,
    and zeros where the final observation is unknown. The returns in the table are the sums of the rewards.

    Suspicious values: NaN and infinity, rows with an observation of zeros, and jumps (probably unmarked boundaries of
    episodes). A jump is a single step within an episode that is many times longer than the median step and than every
    nearby step. A phase of long steps, such as a pendulum that swings up before it stands still, is not a jump.

    Args:
        schema: The fields.
        table: The episodes, E.
        column: Function of a key, a first row and a stop row that returns the values, [stop - start, ...].

    Returns:
        Violated rules and remarks. Each kind is reported once, with the first row and the number of rows.
    """
    result = Problems()
    tallies: dict[str, _RuleViolations] = {}
    steps = table.steps
    step_bytes = schema.record_bytes + sum(wide.step_bytes for wide in schema.wide)
    block = max(1, min(1 << 16, _BLOCK_BYTES // step_bytes))
    returns = np.zeros(len(table))
    for start in range(0, steps, block):
        stop = min(start + block, steps)
        episodes = table.episode_of(np.arange(start, stop))
        for rule, wrong in _flag_problems(table, column, episodes, start, stop):
            tallies.setdefault(rule, _RuleViolations()).add(wrong, start)
        for rule, wrong in _value_remarks(schema, column, start, stop):
            tallies.setdefault(rule, _RuleViolations(violation=False)).add(wrong, start)
        for rule, wrong in _state_problems(schema, table, column, episodes, start, stop):
            tallies.setdefault(rule, _RuleViolations()).add(wrong, start)
        for rule, wrong in _jump_remarks(schema, column, episodes, start, stop):
            tallies.setdefault(rule, _RuleViolations(violation=False)).add(wrong, start)
        np.add.at(returns, episodes, column(NEXT_REWARD, start, stop)[:, 0].astype(np.float64))
    for rule, tally in tallies.items():
        if tally.count:
            messages = result.problems if tally.violation else result.remarks
            messages.append(f"{rule}: row {tally.first:,}" + (f" and {tally.count - 1:,} more" * (tally.count > 1)))
    _check_returns(table, returns, result)
    unknown = int((~table["final_known"]).sum())
    if unknown:
        result.remarks.append(f"the final observation of {unknown:,} of {len(table):,} episodes is unknown (zeros)")
    return result


@dataclass(slots=True)
class _RuleViolations:
    """Number of rows that violate a rule, and the first such row."""

    violation: bool = True
    first: int = -1
    count: int = 0

    def add(self, wrong: NDArray[np.bool_], start: int) -> None:
        rows = np.flatnonzero(wrong)
        if len(rows) and not self.count:
            self.first = start + int(rows[0])
        self.count += len(rows)


_RuleMasks = Iterator[tuple[str, NDArray[np.bool_]]]
"""Rules as sentences, each with the mask of the rows that violate it."""


def _flag_problems(
    table: EpisodeTable, column: Column, episodes: NDArray[np.int64], start: int, stop: int
) -> _RuleMasks:
    terminated, truncated, done = (
        column(key, start, stop)[:, 0] for key in (NEXT_TERMINATED, NEXT_TRUNCATED, NEXT_DONE)
    )
    last = table.stops[episodes] - 1 == np.arange(start, stop)
    yield "next.done is not next.terminated | next.truncated", done != (terminated | truncated)
    yield "next.done is False on the last row of an episode", last & ~done
    yield "next.done is True inside an episode", done & ~last
    yield "episode is not the number that the episode table gives", column(EPISODE, start, stop) != episodes


def _value_remarks(schema: Schema, column: Column, start: int, stop: int) -> _RuleMasks:
    for schema_field in schema:
        if schema_field.dtype.kind == "f":
            values = _flatten_rows(column(schema_field.key, start, stop))
            yield f"{schema_field.name} is NaN or infinite", np.logical_not(np.isfinite(values).all(axis=1))
        if schema_field.key == OBSERVATION and schema_field.dtype.kind in "fu":
            values = _flatten_rows(column(schema_field.key, start, stop))
            yield f"{schema_field.name} is all zeros", np.logical_not(values.any(axis=1))


def _state_problems(
    schema: Schema, table: EpisodeTable, column: Column, episodes: NDArray[np.int64], start: int, stop: int
) -> _RuleMasks:
    last = table.stops[episodes] - 1 == np.arange(start, stop)
    unknown = last & ~table["final_known"][episodes]
    for schema_field in schema:
        if not schema_field.shared:
            continue
        next_values = _flatten_rows(column((NEXT, *schema_field.key), start, stop))
        shifted = _flatten_rows(column(schema_field.key, start + 1, min(stop + 1, table.steps)))
        wrong = np.zeros(stop - start, np.bool_)
        wrong[: len(shifted)] = _row_differences(next_values[: len(shifted)], shifted)
        yield f"next.{schema_field.name} is not {schema_field.name} of the next row inside an episode", wrong & ~last
        if is_observation(schema_field.key):
            yield (
                f"next.{schema_field.name} is not zeros where the final state is unknown",
                unknown & next_values.any(axis=1),
            )


def _jump_remarks(schema: Schema, column: Column, episodes: NDArray[np.int64], start: int, stop: int) -> _RuleMasks:
    for schema_field in schema:
        if (
            schema_field.key[0] != OBSERVATION[0]
            or schema_field.dtype.kind != "f"
            or schema_field.wide
            or stop - start < 3
        ):
            continue
        values = _flatten_rows(column(schema_field.key, start, stop)).astype(np.float64)
        with np.errstate(invalid="ignore", over="ignore"):
            length = np.sqrt((np.diff(values, axis=0) ** 2).sum(axis=1))
        valid = (episodes[1:] == episodes[:-1]) & np.isfinite(length)
        length[~valid] = 0
        lengths = length[valid]
        median = np.median(lengths) if len(lengths) else 0.0
        long = np.flatnonzero((length > _JUMP * median) & (median > 0))
        wrong = np.zeros(stop - start, np.bool_)
        wrong[long[length[long] > _ISOLATED * _longest_near_step(length, episodes, long)]] = True
        yield f"{schema_field.name} jumps more than {_JUMP:g} times the median step inside an episode", wrong


def _longest_near_step(
    length: NDArray[np.float64], episodes: NDArray[np.int64], steps: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Return the length of the longest of the `_NEAR` steps before and after each step in the same episode, [n]."""
    offsets = np.concatenate([np.arange(-_NEAR, 0), np.arange(1, _NEAR + 1)])
    near = (steps[:, None] + offsets).clip(0, len(length) - 1)
    others = (near != steps[:, None]) & (episodes[near] == episodes[steps][:, None])
    return np.asarray(np.where(others, length[near], 0).max(axis=1, initial=0))


def _flatten_rows(values: NDArray[Any]) -> NDArray[Any]:
    # Not -1: numpy cannot infer an axis of an array without rows.
    return values.reshape(len(values), math.prod(values.shape[1:]))


def _row_differences(left: NDArray[Any], right: NDArray[Any]) -> NDArray[np.bool_]:
    differ = left != right
    if left.dtype.kind == "f":
        differ &= ~(np.isnan(left) & np.isnan(right))
    wrong: NDArray[np.bool_] = differ.any(axis=1)
    return wrong


def _check_returns(table: EpisodeTable, returns: NDArray[np.float64], result: Problems) -> None:
    stored = table["return"]
    wrong = np.flatnonzero(~np.isclose(stored, returns, rtol=1e-6, atol=1e-6, equal_nan=True))
    if len(wrong):
        first = int(wrong[0])
        result.problems.append(
            f"the return of episode {first} is {stored[first]:g} in the table and {returns[first]:g} as the sum of "
            f"{dotted_name(NEXT_REWARD)} ({len(wrong):,} such episodes)"
        )
