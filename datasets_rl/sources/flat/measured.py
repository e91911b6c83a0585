"""Measured match of states and next observations with the observations, at the lags -1, 0 and 1.

    row                  0     1     2     3
    observation         o_0   o_1   o_2   o_3
    next observation    o_1   o_2   o_3   o_4        lag 1, as expected. Lag 0 repeats the observations
    state               o_0   o_1   o_2   o_3        lag 0, before the action. Lag 1: after the action, as Isaac Lab records

The first steps of a file are compared. A row with an observation that equals the observation of a neighboring row does not
show the lag, and is not counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from datasets_rl.errors import ConversionError, join_names
from datasets_rl.sources.flat.arrays import ArrayFile, join_rows
from datasets_rl.sources.flat.ends import Ends
from datasets_rl.sources.flat.names import STATES
from datasets_rl.sources.flat.plan import ColumnSlice, Plan
from datasets_rl.sources.lags import LAGS, MIN_ROWS, lag_of_states
from datasets_rl.sources.values import find_jumps
from datasets_rl.ted.keys import is_observation

_ROWS = 1024
_BYTES = 16 << 20
"""Maximum number of bytes of an array that are read."""
_SHOWN = 2
MIN_STEPS = 2
_SHUFFLED_HINT = (
    'if the rows are in no order, each row is an episode: state in dataset.toml, [episodes], by = "seams". Otherwise correct '
    "the array"
)
_SHIFTED: Mapping[int | None, str] = {1: "is from after the action", -1: "is from before the preceding action"}
_ROLES = {-1: "the preceding row", 0: "the same row", 1: "the following row"}
_NEXT_HINT = (
    "correct the array, or remove it from the file: without it, the observation of the following row is the next one"
)

_Index = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Match:
    """Match of an array with the observations of a file."""

    array: str
    """Name of the array, or of the group of the arrays."""
    observations: str
    lag: int | None
    """The lag with the match, or None if there is no match at a single lag."""
    matches: int
    """Number of rows of the next observation, or of elements of the states, with the match."""
    compared: int
    """Number of rows that were compared."""
    is_next: bool
    arrays: tuple[str, ...] = ()
    """The arrays of states."""
    is_state_by_name: bool = False
    """Whether only the name of the array says that it has states of a simulator."""

    @property
    def is_doubtful(self) -> bool:
        """Whether nothing but the name of the array says which states it has."""
        return self.lag is None and self.is_state_by_name

    @property
    def rule(self) -> str:
        """Name of the decision that records the match, or empty without a match."""
        if self.lag is None:
            return "states-not-measured" if self.is_doubtful else ""
        return "next-observation-measured" if self.is_next else "states-measured"

    def __str__(self) -> str:
        if self.lag is None:
            return f"{self.array} matches {self.observations} at no lag, {self.compared:,} rows compared"
        kind = "rows" if self.is_next else "elements"
        counted = f"{self.matches:,} {kind}, {self.compared:,} rows compared"
        return f"{self.array} is {self.observations} of {_ROLES[self.lag]} ({counted})"


def measure(file: ArrayFile, plan: Plan, ends: Ends) -> list[Match]:
    """Return the match of each array of next observations and of each group of states with the observations.

    Arrays that show nothing, such as images in place of vectors and observations that do not change, are left out.
    """
    return [match for match in (*_next_matches(file, plan, ends), *_state_matches(file, plan, ends)) if match]


def check_matches(file: ArrayFile, matches: Iterable[Match], *, alone: bool = True) -> None:
    """Check that next observations follow the observations, and that states are from before the actions.

    Args:
        file: The file.
        matches: The matches.
        alone: Whether the file is the only file of the dataset. Of several files, some may be too short to compare.

    Raises:
        ConversionError: If an array is shifted, or the states may be from before or after the action. The error names
            every such array.
    """
    problems, hints = [], []
    for match in matches:
        if match.is_next and match.lag != 1:
            problems.append(f"{match.array} is not the observation after the step: {match}")
            hints.append(_SHUFFLED_HINT if match.lag is None else _NEXT_HINT)
        elif not match.is_next and (match.lag in _SHIFTED or (match.is_doubtful and (alone or match.compared))):
            when = _SHIFTED.get(match.lag, "may be from before or after the action")
            problems.append(f"{match.array} {when}: {match}")
            hints.append(_state_hint(match))
    if problems:
        raise ConversionError(file.name, problems, hint="; ".join(dict.fromkeys(hints)))


def _state_hint(match: Match) -> str:
    name, *others = match.arrays
    inner = "".join(f".{part}" for part in name.replace("/", ".").split(".")[1:])
    before = f'info.states{inner} = "{name}" for states before the actions, or '
    more = f", and so on for {len(others):,} more arrays" if others else ""
    stated = f'{before if match.lag is None else ""}states_after{inner} = "{name}" for states after the actions{more}'
    return f"state in dataset.toml, [fields], {stated}"


def check_next(file: ArrayFile, plan: Plan, ends: Ends) -> None:
    """Check that the next observations of a file are those of the following rows.

    Raises:
        ConversionError: If next observations are shifted.
    """
    check_matches(file, filter(None, _next_matches(file, plan, ends)))


def _next_matches(file: ArrayFile, plan: Plan, ends: Ends) -> Iterator[Match | None]:
    for rows in next_rows(file, plan, ends, _ROWS, _BYTES):
        yield match_of_rows(rows.name, rows.own, rows.after, rows.observed, rows.episodes, seams=plan.layout.seams)


@dataclass(frozen=True, slots=True)
class NextRows:
    """First steps of a file, with the next observations and the observations."""

    name: str
    """Name of the array of the next observations."""
    own: str
    """Name of the array of the observations."""
    after: NDArray[np.generic]
    """Next observations, [n, ...]."""
    observed: NDArray[np.generic]
    """Observations, [n, ...]."""
    episodes: _Index
    """Number of the episode of each step, [n]."""

    @property
    def seams(self) -> _Index:
        """Steps after which the observation of the next step of the episode is not the next observation."""
        jumps, _ = find_jumps(self.after[:-1], self.observed[1:])
        return np.flatnonzero(jumps & (self.episodes[1:] == self.episodes[:-1]))


def next_rows(file: ArrayFile, plan: Plan, ends: Ends, rows: int, max_bytes: int) -> Iterator[NextRows]:
    """Yield the first steps of each array of next observations, of files with two steps or more.

    Args:
        file: The file.
        plan: The plan of the file.
        ends: The ends of the episodes.
        rows: Maximum number of steps.
        max_bytes: Maximum number of bytes of an array.
    """
    by_key = {part.column.key: part.array for part in plan.parts}
    for key, name in plan.following.items() if ends.steps >= MIN_STEPS else ():
        own = by_key[key]
        steps, episodes = first_steps(file, ends, (own, name), rows, max_bytes)
        after = rows_of(file, name, steps + ends.extra * episodes)
        observed = rows_of(file, own, steps + ends.extras[own] * episodes)
        yield NextRows(name, own, after, observed, episodes)


def match_of_rows(
    name: str, own: str, after: NDArray[np.generic], observed: NDArray[np.generic], episodes: _Index, *, seams: bool
) -> Match | None:
    """Return the match of next observations, [n, ...], with observations, [n, ...], of steps of these episodes, [n].

    The match is None if the rows show nothing, or if the rows are in no order and `seams` allows this.
    """
    moves, _ = find_jumps(observed[1:], observed[:-1])
    joined = episodes[1:] == episodes[:-1]
    inner = np.flatnonzero(joined[:-1] & joined[1:] & moves[:-1] & moves[1:]) + 1
    if not len(inner):
        # Episodes of a step or two show only whether the observations are repeated.
        repeated = ~find_jumps(after, observed)[0]
        is_shown = bool(moves.any()) and bool(repeated.all()) and not joined.any()
        return Match(name, own, 0, len(observed), len(observed), is_next=True) if is_shown else None
    counts = {lag: int((~find_jumps(after[inner], observed[inner + lag])[0]).sum()) for lag in LAGS}
    lag = max(LAGS, key=lambda lag: (counts[lag], lag == 1))
    if 2 * counts[lag] < len(inner):
        # A file of seams may have rows in no order.
        return None if seams else Match(name, own, None, counts[1], len(inner), is_next=True)
    return Match(name, own, lag, counts[lag], len(inner), is_next=True)


def _state_matches(file: ArrayFile, plan: Plan, ends: Ends) -> Iterator[Match | None]:
    vectors = [part for part in plan.parts if part.state and is_vector(file, part)]
    observed = [part for part in vectors if is_observation(part.column.key)]
    groups: dict[str, list[ColumnSlice]] = {}
    for part in plan.parts:
        if part.state and not is_observation(part.column.key) and part.column.key[0] == "info":
            groups.setdefault(part.array.partition("/")[0].partition(".")[0], []).append(part)
    stated = {field.key for field in plan.layout.fields}
    for root, parts in groups.items():
        by_name = not any(part.column.key in stated for part in parts) and any(
            root.lower() in names for names in STATES.values()
        )
        states = [part for part in parts if part in vectors]
        is_long = ends.steps >= MIN_STEPS
        match = _match_of_states(file, ends, root, states, observed) if states and observed and is_long else None
        if match is None and by_name:
            own = observed[0].array if observed else "the observations"
            match = Match(root, own, None, 0, 0, is_next=False, arrays=tuple(part.array for part in parts))
        # Arrays of info that are unlike the observations show nothing.
        if match is not None and (match.lag is not None or by_name):
            yield replace(match, is_state_by_name=by_name)


def is_vector(file: ArrayFile, part: ColumnSlice) -> bool:
    """Return whether a row of an array is a number or a vector of numbers."""
    array = file.arrays[part.array]
    return not (array.text or array.encoded) and len(array.shape) <= 1 and array.dtype.kind in "iuf"


def _match_of_states(
    file: ArrayFile, ends: Ends, root: str, states: Sequence[ColumnSlice], observed: Sequence[ColumnSlice]
) -> Match | None:
    steps, episodes = first_steps(file, ends, [part.array for part in (*states, *observed)], _ROWS, _BYTES)
    joined = episodes[1:] == episodes[:-1]
    inner = np.flatnonzero(joined[:-1] & joined[1:])
    own, beside = (elements(file, ends, parts, steps, episodes) for parts in (states, observed))
    if len(inner) < MIN_ROWS:
        return None
    lag, matches = lag_of_states(own, beside, joined)
    names = join_names([part.array for part in observed], _SHOWN)
    return Match(root, names, lag, matches, len(inner), is_next=False, arrays=tuple(part.array for part in states))


def elements(
    file: ArrayFile, ends: Ends, parts: Sequence[ColumnSlice], steps: _Index, episodes: _Index
) -> NDArray[np.float64]:
    """Return the elements of several arrays of the rows of steps, [n, elements]."""
    rows = (rows_of(file, part.array, steps + ends.extras[part.array] * episodes) for part in parts)
    return np.concatenate([values.reshape(len(steps), -1).astype(np.float64) for values in rows], axis=1)


def first_steps(file: ArrayFile, ends: Ends, names: Sequence[str], rows: int, max_bytes: int) -> tuple[_Index, _Index]:
    """Return the first steps of a file and their episodes, [n] each, as many as the memory for the arrays allows."""
    widest = max(file.arrays[name].row_bytes for name in names)
    count = min(ends.steps, rows, max(2 * MIN_ROWS, max_bytes // max(widest, 1)))
    stops = np.cumsum(ends.lengths)
    steps = np.arange(count)
    return steps, np.searchsorted(stops, steps, "right").astype(np.int64)


def rows_of(file: ArrayFile, name: str, rows: _Index) -> NDArray[np.generic]:
    """Return some of the first rows of an array. `rows` ascend."""
    stop = int(rows[-1]) + 1
    parts, count = [], 0
    for block in file.blocks(name, stop):
        parts.append(block)
        count += len(block)
        if count >= stop:
            break
    return np.asarray(join_rows(parts))[rows]


def counted(matches: Iterable[Match]) -> Mapping[str, int]:
    """Return the number of rows that were compared, or of arrays that were not, by the rule that records the match."""
    counts: dict[str, int] = {}
    for match in matches:
        if match.rule:
            counts[match.rule] = counts.get(match.rule, 0) + (1 if match.is_doubtful else match.compared)
    return counts
