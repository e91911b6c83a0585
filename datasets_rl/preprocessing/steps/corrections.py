"""Steps that correct faults of single episodes, as an audit names them. The manifest keeps the reason.

An environment needs no correction: the steps make recorded values what an environment gives. What an environment gives, too,
such as angles that jump by a full turn, cannot be corrected there, and the steps say so.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from datasets_rl.errors import InvalidArgumentError
from datasets_rl.preprocessing.base import DataStep, Step
from datasets_rl.preprocessing.steps._fields import map_fields, require_keys, with_steps
from datasets_rl.preprocessing.steps.keep import in_spans, read_span
from datasets_rl.preprocessing.steps.times import keep_rows
from datasets_rl.ted.episode import concatenate_columns
from datasets_rl.ted.episode_batch import EpisodeBatch
from datasets_rl.ted.keys import NEXT_TERMINATED, NEXT_TRUNCATED, as_key

EPISODES = {"form": "numbers and ranges START:STOP of episodes from 0, as in 3,7,10:20"}
"""The metadata of a field with episodes, for messages. Without episodes, a step applies to all episodes."""
_PLACE = re.compile(r"(\d+)/(\d+)")
_SPAN = re.compile(r"(\d+)/(\d*):(\d*)")


@dataclass
class FixShift(DataStep):
    """Move a field by some steps within each episode, for an action or an image that was stored too late or too early.

        action     a0 a1 a2 a3          steps=1       a1 a2 a3        the value of the following step
        state      s0 s1 s2 s3 | f                    s0 s1 s2 | s3   steps without a value are dropped

    Args:
        episodes: The episodes, by default all.
        key: The field to move, as named in batches.
        steps: The field of step t gets the value of step t + `steps`.
        reason: Why, for the manifest.
    """

    episodes: tuple[int | str, ...] = field(default=(), metadata=EPISODES)
    key: str = "action"
    steps: int = 1
    reason: str = ""

    def __post_init__(self) -> None:
        _check_spans(self.episodes)
        if not self.steps:
            raise InvalidArgumentError("steps is 0, expected a positive or negative number of steps")

    @override
    def __call__(self, batch: EpisodeBatch) -> EpisodeBatch | None:
        (key,) = require_keys(batch, [self.key])
        chosen = _chosen(batch, self.episodes)
        shift = np.where(chosen, self.steps, 0)
        starts, stops = np.maximum(0, -shift), batch.lengths - np.maximum(0, shift)
        kept = keep_rows(batch, starts, stops)
        if kept is None:
            return None
        present = stops > starts
        # The rows of the result, moved by the shift of their episode, as rows of the batch.
        firsts = (batch.table.starts + starts + shift)[present]
        rows = np.repeat(firsts - kept.table.starts, kept.lengths) + np.arange(kept.count)
        if key in batch.steps:
            return with_steps(kept, {key: batch.steps[key][rows]})
        # The state after the last step is the moved state of the step after the last one, or the final state.
        after = (batch.table.starts + stops + shift)[present]
        ends = batch.table.stops[present]
        final = np.where(after < ends, np.minimum(after, batch.count - 1), batch.count + np.flatnonzero(present))
        known = np.where(after <= ends, np.where(after == ends, batch.final_known[present], True), False)
        states = concatenate_columns([batch.states[key], batch.final_states[key]])
        final_known = kept.final_known & known
        finals = {**kept.final_states, key: states[final]}
        return replace(
            kept,
            states={**kept.states, key: batch.states[key][rows]},
            final_states={name: _with_zeros(values, ~final_known) for name, values in finals.items()},
            final_known=final_known,
        )


@dataclass
class FixUnit(DataStep):
    """Multiply a field by a factor, for episodes in another unit.

    Args:
        episodes: The episodes, by default all.
        key: The field, as named in batches.
        factor: The factor: 0.01745 from degrees to radians.
        reason: Why, for the manifest.
    """

    episodes: tuple[int | str, ...] = field(default=(), metadata=EPISODES)
    key: str = "action"
    factor: float = 1.0
    reason: str = ""

    def __post_init__(self) -> None:
        _check_spans(self.episodes)
        if not np.isfinite(self.factor) or not self.factor:
            raise InvalidArgumentError(f"factor is {self.factor}, expected a finite number that is not 0")

    @override
    def __call__(self, batch: EpisodeBatch) -> EpisodeBatch:
        return _mapped(batch, self.key, self.episodes, lambda values: (values * self.factor).astype(values.dtype))


@dataclass
class FixChannels(DataStep):
    """Exchange the first and the last channel of images, for episodes with red in the place of blue.

    Args:
        episodes: The episodes, by default all.
        key: The field of images with the channels last, as named in batches.
        reason: Why, for the manifest.
    """

    episodes: tuple[int | str, ...] = field(default=(), metadata=EPISODES)
    key: str = "observation"
    reason: str = ""

    def __post_init__(self) -> None:
        _check_spans(self.episodes)

    @override
    def __call__(self, batch: EpisodeBatch) -> EpisodeBatch:
        return _mapped(batch, self.key, self.episodes, lambda values: values[..., ::-1])


@dataclass
class FixSigns(Step):
    """Give each quaternion of an episode the sign of the quaternion before. q and -q are the same rotation.

    Args:
        first: The first of the four elements of the quaternion.
        key: The field, as named in batches.
        reason: Why, for the manifest.
    """

    first: int = 0
    key: str = "observation"
    reason: str = ""

    @override
    def __call__(self, batch: EpisodeBatch) -> EpisodeBatch:
        def fix(values: NDArray[Any]) -> NDArray[Any]:
            part = values[:, self.first : self.first + 4]
            flips = np.where((part[1:] * part[:-1]).sum(axis=1) < 0, -1, 1)
            signs = np.concatenate([[1], np.cumprod(flips)])
            fixed = values.copy()
            fixed[:, self.first : self.first + 4] = part * signs[:, None]
            return fixed

        return _mapped_episodes(batch, self.key, fix)

    @override
    def for_environment(self, fields: EpisodeBatch) -> None:
        _refuse(self.key, fields, "the sign of a quaternion follows from all earlier steps")


@dataclass
class FixWraps(Step):
    """Unwrap angles within each episode: a jump by a full turn is taken out.

    Args:
        elements: The elements of the field that are angles.
        key: The field, as named in batches.
        turn: A full turn in the unit of the field: 6.28319 for radians, 360 for degrees.
        around: An angle for each element, such as its mean. Each episode is moved by full turns, so that its first angle is
            within half a turn of `around`. By default, the first angle stays as it is.
        reason: Why, for the manifest.
    """

    elements: tuple[int, ...] = (0,)
    key: str = "observation"
    turn: float = 2 * np.pi
    around: tuple[float, ...] = ()
    reason: str = ""

    def __post_init__(self) -> None:
        if self.around and len(self.around) != len(self.elements):
            raise InvalidArgumentError(
                f"around has {len(self.around)} angles, expected an angle for each of {len(self.elements)} elements"
            )

    @override
    def __call__(self, batch: EpisodeBatch) -> EpisodeBatch:
        def fix(values: NDArray[Any]) -> NDArray[Any]:
            fixed = values.copy()
            chosen = list(self.elements)
            angles = np.unwrap(values[:, chosen].astype(np.float64), axis=0, period=self.turn)
            if self.around:
                angles -= self.turn * np.round((angles[:1] - np.array(self.around)) / self.turn)
            fixed[:, chosen] = angles
            return fixed

        return _mapped_episodes(batch, self.key, fix)

    @override
    def for_environment(self, fields: EpisodeBatch) -> None:
        _refuse(self.key, fields, "an angle without jumps follows from all earlier steps")


@dataclass
class FixEnds(DataStep):
    """Mark terminated episodes as truncated, for time limits that were stored as terminal states.

    Args:
        episodes: The episodes, by default all.
        reason: Why, for the manifest.
    """

    episodes: tuple[int | str, ...] = field(default=(), metadata=EPISODES)
    reason: str = ""

    def __post_init__(self) -> None:
        _check_spans(self.episodes)

    @override
    def __call__(self, batch: EpisodeBatch) -> EpisodeBatch:
        rows = np.repeat(_chosen(batch, self.episodes), batch.lengths)[:, None]
        terminated = np.asarray(batch.steps[NEXT_TERMINATED])
        truncated = np.asarray(batch.steps[NEXT_TRUNCATED])
        return with_steps(batch, {NEXT_TERMINATED: terminated & ~rows, NEXT_TRUNCATED: truncated | (terminated & rows)})


@dataclass
class TrimSteps(DataStep):
    """Keep a part of the steps of single episodes, for idle steps at the start or at the end.

        trim_steps:4/12:,7/:80      episode 4 from its step 12, and episode 7 up to its step 80, exclusive

    Args:
        spans: EPISODE/START:STOP, with steps counted from 0. The other episodes stay whole.
        reason: Why, for the manifest.
    """

    spans: tuple[str, ...] = field(metadata={"form": "EPISODE/START:STOP, as in 4/12: or 7/:80"})
    reason: str = ""

    def __post_init__(self) -> None:
        for span in self.spans:
            match = _SPAN.fullmatch(str(span))
            if match is None or (match[2] and match[3] and int(match[2]) >= int(match[3])):
                raise InvalidArgumentError(
                    f"{span!r} is not a part of an episode, expected EPISODE/START:STOP, as in 4/12:80"
                )

    @override
    def __call__(self, batch: EpisodeBatch) -> EpisodeBatch | None:
        starts, stops = np.zeros(len(batch), np.int64), batch.lengths.copy()
        for span in self.spans:
            episode, start, stop = _SPAN.fullmatch(str(span)).groups()  # type: ignore[union-attr]  # checked in __post_init__
            chosen = batch.numbers == int(episode)
            starts[chosen] = np.maximum(starts[chosen], int(start or 0))
            stops[chosen] = np.minimum(stops[chosen], int(stop) if stop else stops[chosen])
        return keep_rows(batch, starts, stops)


@dataclass
class SplitEpisodes(DataStep):
    """Divide episodes at steps, for episodes that were joined, or whose steps are missing.

        state        s0 s1 s2 s3 | f         4/2        s0 s1 | unknown     s2 s3 | f
        truncated     .  .  .  x                         .  x                .  x

    The observation after the last step of the first part is unknown, and the first part is truncated. Both parts have the
    number and the metadata of the episode.

    Args:
        places: EPISODE/STEP: the step, counted from 0, with which the second part starts.
        reason: Why, for the manifest.
    """

    places: tuple[str, ...] = field(metadata={"form": "EPISODE/STEP, as in 4/31"})
    reason: str = ""

    def __post_init__(self) -> None:
        for place in self.places:
            match = _PLACE.fullmatch(str(place))
            if match is None or not int(match[2]):
                raise InvalidArgumentError(f"{place!r} is not a place in an episode, expected EPISODE/STEP, as in 4/31")

    @override
    def __call__(self, batch: EpisodeBatch) -> EpisodeBatch:
        cuts = np.zeros(batch.count, np.bool_)
        for place in self.places:
            episode, step = map(int, _PLACE.fullmatch(str(place)).groups())  # type: ignore[union-attr]  # checked in __post_init__
            chosen = (batch.numbers == episode) & (batch.lengths > step)
            cuts[batch.table.starts[chosen] + step] = True
        firsts = np.flatnonzero(cuts)
        if not len(firsts):
            return batch
        starts = np.union1d(batch.table.starts, firsts)
        stops = np.append(starts[1:], batch.count)
        origins = batch.table.episode_of(starts)
        divided = stops != batch.table.stops[origins]
        truncated = np.array(batch.steps[NEXT_TRUNCATED])
        truncated[stops[divided] - 1] = True
        return replace(
            batch,
            lengths=stops - starts,
            steps={**batch.steps, NEXT_TRUNCATED: truncated},
            final_states={key: _with_zeros(values[origins], divided) for key, values in batch.final_states.items()},
            final_known=batch.final_known[origins] & ~divided,
            metadata={name: values[origins] for name, values in batch.metadata.items()},
            numbers=batch.numbers[origins],
        )


def _refuse(name: str, fields: EpisodeBatch, why: str) -> None:
    """Raise an `InvalidArgumentError` if a field of an environment is changed by a step that an environment cannot repeat."""
    key = as_key(name)
    if key in fields.steps or key in fields.states:
        raise InvalidArgumentError(f"an environment cannot repeat what the step does to {name}: {why}")


def _with_zeros(values: Any, rows: NDArray[np.bool_]) -> Any:
    if not isinstance(values, np.ndarray):
        return values.without(rows)
    changed = values.copy()
    changed[rows] = 0
    return changed


def _check_spans(spans: tuple[int | str, ...]) -> None:
    for span in spans:
        read_span(str(span))


def _chosen(batch: EpisodeBatch, spans: tuple[int | str, ...]) -> NDArray[np.bool_]:
    """Return whether each episode is chosen, [E]. Without spans, all are."""
    return in_spans(batch.numbers, spans) if spans else np.ones(len(batch), np.bool_)


def _mapped(batch: EpisodeBatch, name: str, spans: tuple[int | str, ...], change: Any) -> EpisodeBatch:
    """Return the batch with a function applied to the values of a field in the chosen episodes."""
    (key,) = require_keys(batch, [name])
    episodes = _chosen(batch, spans)
    rows = np.repeat(episodes, batch.lengths)

    def changed(_: Any, values: NDArray[Any]) -> NDArray[Any]:
        chosen = rows if len(values) == len(rows) and values is not batch.final_states.get(key) else episodes
        result = np.array(values)
        result[chosen] = change(result[chosen])
        return result

    return map_fields(batch, [key], changed)


def _mapped_episodes(batch: EpisodeBatch, name: str, change: Any) -> EpisodeBatch:
    """Return the batch with a function applied to all values of a field of each episode, the final state included."""
    (key,) = require_keys(batch, [name])
    shape = (batch.steps if key in batch.steps else batch.states)[key].shape[1:]
    if len(shape) != 1:
        raise InvalidArgumentError(f"{name} has the shape {list(shape)} at each step, expected a vector, [elements]")
    if key in batch.steps:
        values = np.asarray(batch.steps[key])
        parts = [change(values[rows.start : rows.stop]) for rows in batch.table]
        return with_steps(batch, {key: np.concatenate(parts)})
    states, finals = np.asarray(batch.states[key]), np.array(batch.final_states[key])
    parts = []
    for number, rows in enumerate(batch.table):
        known = bool(batch.final_known[number])
        whole = np.concatenate([states[rows.start : rows.stop], finals[number : number + known]])
        fixed = change(whole)
        parts.append(fixed[: len(rows)])
        finals[number : number + known] = fixed[len(rows) :]
    return replace(
        batch, states={**batch.states, key: np.concatenate(parts)}, final_states={**batch.final_states, key: finals}
    )
