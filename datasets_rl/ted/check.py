"""The rules of TED, checked on a stored dataset block by block, in bounded memory."""

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
    dotted,
)
from datasets_rl.ted.table import EpisodeTable

if TYPE_CHECKING:
    from collections.abc import Callable

    from datasets_rl.format.schema import Schema
    from datasets_rl.ted.keys import Key

    Column = Callable[[Key, int, int], NDArray[Any]]

__all__ = ["Problems", "check_rules"]

_BLOCK_BYTES = 16 << 20
_JUMP = 20.0
_ALONE = 5.0
"""How many times longer a jump is than every step near it; smooth motion changes its speed by less."""
_NEAR = 4


@dataclass(slots=True)
class Problems:
    """What a check found."""

    problems: list[str] = field(default_factory=list)
    """Broken rules: the dataset must not be used."""
    remarks: list[str] = field(default_factory=list)
    """What is allowed and worth knowing."""


def check_rules(schema: Schema, table: EpisodeTable, column: Column) -> Problems:
    """Check every rule of TED, and look for values that are no data.

    Rules: ``next.done`` is ``next.terminated | next.truncated`` and True exactly on the last row of every episode;
    ``episode`` is the number of the episode that the table says; the next observation is the observation of the row
    below, and zeros where the final one is not known; the returns of the table are the sums of the rewards.
    Looked for: NaN and infinity, rows whose observation is all zeros, and single steps within an episode that are
    many times longer than the usual step and than every step near them (a seam that nobody marked). Phases of long
    steps, as when a pendulum swings up before it stands still, are no seams.

    Args:
        schema: The fields.
        table: The episodes, E.
        column: Takes a key and a range of rows, and returns the values, [stop - start, ...].

    Returns:
        What was found; each kind of fault once, with the first row and the number of rows.
    """
    findings = Problems()
    tallies: dict[str, _Tally] = {}
    steps = table.steps
    a_step = schema.record_bytes + sum(wide.step_bytes for wide in schema.wide)
    block = max(1, min(1 << 16, _BLOCK_BYTES // a_step))
    returns = np.zeros(len(table))
    for start in range(0, steps, block):
        stop = min(start + block, steps)
        episodes = table.episode_of(np.arange(start, stop))
        for rule, wrong in _flag_faults(table, column, episodes, start, stop):
            tallies.setdefault(rule, _Tally()).add(wrong, start)
        for rule, wrong in _value_remarks(schema, column, start, stop):
            tallies.setdefault(rule, _Tally(broken=False)).add(wrong, start)
        for rule, wrong in _state_faults(schema, table, column, episodes, start, stop):
            tallies.setdefault(rule, _Tally()).add(wrong, start)
        for rule, wrong in _jumps(schema, column, episodes, start, stop):
            tallies.setdefault(rule, _Tally(broken=False)).add(wrong, start)
        np.add.at(returns, episodes, column(NEXT_REWARD, start, stop)[:, 0].astype(np.float64))
    for rule, tally in tallies.items():
        if tally.count:
            where = findings.problems if tally.broken else findings.remarks
            where.append(f"{rule}: row {tally.first:,}" + (f" and {tally.count - 1:,} more" * (tally.count > 1)))
    _check_returns(table, returns, findings)
    unknown = int((~table["final_known"]).sum())
    if unknown:
        findings.remarks.append(f"the final observation of {unknown:,} of {len(table):,} episodes is not known (zeros)")
    return findings


@dataclass(slots=True)
class _Tally:
    broken: bool = True
    first: int = -1
    count: int = 0

    def add(self, wrong: NDArray[np.bool_], start: int) -> None:
        rows = np.flatnonzero(wrong)
        if len(rows) and not self.count:
            self.first = start + int(rows[0])
        self.count += len(rows)


_Faults = Iterator[tuple[str, NDArray[np.bool_]]]


def _flag_faults(table: EpisodeTable, column: Column, episodes: NDArray[np.int64], start: int, stop: int) -> _Faults:
    terminated, truncated, done = (
        column(key, start, stop)[:, 0] for key in (NEXT_TERMINATED, NEXT_TRUNCATED, NEXT_DONE)
    )
    last = table.stops[episodes] - 1 == np.arange(start, stop)
    yield "next.done is not next.terminated | next.truncated", done != (terminated | truncated)
    yield "next.done is False on the last row of an episode", last & ~done
    yield "next.done is True inside an episode", done & ~last
    yield "episode is not the number that the episode table gives", column(EPISODE, start, stop) != episodes


def _value_remarks(schema: Schema, column: Column, start: int, stop: int) -> _Faults:
    for one in schema:
        if one.dtype.kind == "f":
            values = _flat(column(one.key, start, stop))
            yield f"{one.name} is NaN or infinite", np.logical_not(np.isfinite(values).all(axis=1))
        if one.key == OBSERVATION and one.dtype.kind in "fu":
            values = _flat(column(one.key, start, stop))
            yield f"{one.name} is all zeros", np.logical_not(values.any(axis=1))


def _state_faults(
    schema: Schema, table: EpisodeTable, column: Column, episodes: NDArray[np.int64], start: int, stop: int
) -> _Faults:
    last = table.stops[episodes] - 1 == np.arange(start, stop)
    unknown = last & ~table["final_known"][episodes]
    for one in schema:
        if not one.shared:
            continue
        following = _flat(column((NEXT, *one.key), start, stop))
        below = _flat(column(one.key, start + 1, min(stop + 1, table.steps)))
        wrong = np.zeros(stop - start, np.bool_)
        wrong[: len(below)] = _differ(following[: len(below)], below)
        yield f"next.{one.name} is not {one.name} of the row below inside an episode", wrong & ~last
        if one.key[0] == OBSERVATION[0]:
            yield f"next.{one.name} is not zeros where the final one is unknown", unknown & following.any(axis=1)


def _jumps(schema: Schema, column: Column, episodes: NDArray[np.int64], start: int, stop: int) -> _Faults:
    for one in schema:
        if one.key[0] != OBSERVATION[0] or one.dtype.kind != "f" or one.wide or stop - start < 3:
            continue
        values = _flat(column(one.key, start, stop)).astype(np.float64)
        with np.errstate(invalid="ignore", over="ignore"):
            length = np.sqrt((np.diff(values, axis=0) ** 2).sum(axis=1))
        counted = (episodes[1:] == episodes[:-1]) & np.isfinite(length)
        length[~counted] = 0
        measured = length[counted]
        usual = np.median(measured) if len(measured) else 0.0
        long = np.flatnonzero((length > _JUMP * usual) & (usual > 0))
        wrong = np.zeros(stop - start, np.bool_)
        wrong[long[length[long] > _ALONE * _longest_near(length, episodes, long)]] = True
        yield f"{one.name} jumps more than {_JUMP:g} times the usual step inside an episode", wrong


def _longest_near(
    length: NDArray[np.float64], episodes: NDArray[np.int64], steps: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Return for some steps the longest of the `_NEAR` steps before and after each, in its episode and without itself."""
    around = np.concatenate([np.arange(-_NEAR, 0), np.arange(1, _NEAR + 1)])
    near = (steps[:, None] + around).clip(0, len(length) - 1)
    others = (near != steps[:, None]) & (episodes[near] == episodes[steps][:, None])
    return np.asarray(np.where(others, length[near], 0).max(axis=1, initial=0))


def _flat(values: NDArray[Any]) -> NDArray[Any]:
    # The length is worked out: for no rows at all numpy cannot infer it.
    return values.reshape(len(values), math.prod(values.shape[1:]))


def _differ(left: NDArray[Any], right: NDArray[Any]) -> NDArray[np.bool_]:
    differ = left != right
    if left.dtype.kind == "f":
        differ &= ~(np.isnan(left) & np.isnan(right))
    wrong: NDArray[np.bool_] = differ.any(axis=1)
    return wrong


def _check_returns(table: EpisodeTable, returns: NDArray[np.float64], findings: Problems) -> None:
    kept = table["return"]
    wrong = np.flatnonzero(~np.isclose(kept, returns, rtol=1e-6, atol=1e-6, equal_nan=True))
    if len(wrong):
        first = int(wrong[0])
        findings.problems.append(
            f"the return of episode {first} is {kept[first]:g} in the table and {returns[first]:g} as the sum of "
            f"{dotted(NEXT_REWARD)} ({len(wrong):,} such episodes)"
        )
