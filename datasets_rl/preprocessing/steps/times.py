"""Steps that keep or combine some of the steps of each episode."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from datasets_rl.errors import InvalidArgumentError
from datasets_rl.preprocessing.base import DataStep, Step
from datasets_rl.preprocessing.steps.keep import read_span
from datasets_rl.ted.episode import concatenate_columns
from datasets_rl.ted.episode_batch import EpisodeBatch
from datasets_rl.ted.keys import NEXT, NEXT_TERMINATED, NEXT_TRUNCATED

_SUMMED = frozenset({"reward", "cost"})
"""Last names of the fields under "next" that are sums over time."""


@dataclass
class FrameSkip(Step):
    """Combine n steps into one: state and action of the first, sum of the rewards, flags of the last.

        state          s0 s1 s2 s3 s4 | f         n = 2          s0    s2    s4 | f
        action         a0 a1 a2 a3 a4                            a0    a2    a4
        next.reward    r0 r1 r2 r3 r4                         r0+r1 r2+r3    r4
        truncated       .  .  .  .  x                             .     .     x

    The final state is unchanged. The last step may combine fewer than n. Costs, and the rewards of agents, are summed
    as the reward is: ``("next", "cost")``, ``("next", "agents", "reward")``. Other fields that exist only under "next"
    are taken from the last of the n steps.

    Args:
        n: The number of steps to combine, at least 1.
    """

    n: int

    def __post_init__(self) -> None:
        if self.n < 1:
            raise InvalidArgumentError(f"n is {self.n}, expected at least 1")

    @property
    @override
    def steps_combined(self) -> int:
        return self.n

    @override
    def __call__(self, batch: EpisodeBatch) -> EpisodeBatch:
        table = batch.table
        step_indices = np.arange(batch.count) - np.repeat(table.starts, batch.lengths)
        first = np.flatnonzero(step_indices % self.n == 0)
        last = np.append(first[1:], batch.count) - 1
        steps = {key: values[last if key[0] == NEXT else first] for key, values in batch.steps.items()}
        for key, values in batch.steps.items():
            if key[0] == NEXT and key[-1] in _SUMMED and values.dtype.kind == "f":
                steps[key] = np.add.reduceat(values.astype(np.float64), first).astype(values.dtype)
        return replace(
            batch,
            lengths=-(-batch.lengths // self.n),
            steps=steps,
            states={key: values[first] for key, values in batch.states.items()},
        )

    @override
    def for_environment(self, fields: EpisodeBatch) -> None:
        raise InvalidArgumentError("the dataset holds one of several actions, which may differ")


@dataclass
class KeepSteps(DataStep):
    """Keep a range of the steps of each episode, counted from 0: 0:100 for the first hundred.

    state        s0 s1 s2 s3 s4 | f       1:3       s1 s2 | s3         the final state is the next one, s3
    truncated     .  .  .  .  x                      .  x              the episode is truncated there

    Episodes without such steps are dropped.
    """

    span: str = field(metadata={"form": "a range START:STOP from 0, as in 10:60"})

    def __post_init__(self) -> None:
        if read_span(self.span)[2] != 1:
            raise InvalidArgumentError(
                f"span is {self.span!r}, expected START:STOP", hint="frame_skip combines steps at a regular interval"
            )

    @override
    def __call__(self, batch: EpisodeBatch) -> EpisodeBatch | None:
        start, stop, _ = read_span(self.span)
        return keep_rows(batch, start, batch.lengths if stop is None else np.minimum(batch.lengths, stop))


@dataclass
class DropUnknownFinal(DataStep):
    """Drop the last step of each episode whose final observation is unknown.

        state              s0 s1 s2 | f unknown          s0 s1 | s2        the final state is the next one, s2
        truncated           .  .  x                       .  x             the episode is truncated there

    Every next observation is then known: targets use no zeros in place of unknown observations, and batches have no ``("next", "final_known")``. An
    episode that has only this step is dropped.

    Args:
        ends: "all" drops the last step however the episode ends. "truncated" keeps it if the episode is terminated,
            because the target of that step is its reward alone and needs no next observation. Batches then keep
            ``("next", "final_known")`` if there is such an episode.
    """

    ends: Literal["all", "truncated"] = "all"

    def __post_init__(self) -> None:
        if self.ends not in {"all", "truncated"}:
            raise InvalidArgumentError(f"ends is {self.ends!r}, expected 'all' or 'truncated'")

    @override
    def __call__(self, batch: EpisodeBatch) -> EpisodeBatch | None:
        dropped = ~batch.final_known
        if self.ends == "truncated":
            dropped &= ~batch.steps[NEXT_TERMINATED][batch.table.stops - 1, 0]
        return keep_rows(batch, 0, batch.lengths - dropped)


@dataclass
class DropTimeouts(DataStep):
    """Drop the last step of each truncated episode, as `d4rl.qlearning_dataset` does.

        state              s0 s1 s2 | f          s0 s1 | s2        the final state is the next one, s2
        truncated           .  .  x               .  x             the episode is truncated there

    CORL, IQL and RLPD train on these steps, and compute returns and statistics of them: D4RL's files lack the next
    observation of the dropped ones. D4RL also leaves out the last row of a file if it is terminated. This step keeps
    that row.
    """

    @override
    def __call__(self, batch: EpisodeBatch) -> EpisodeBatch | None:
        return keep_rows(batch, 0, batch.lengths - batch.steps[NEXT_TRUNCATED][batch.table.stops - 1, 0])


def keep_rows(batch: EpisodeBatch, start: int | NDArray[np.int64], stops: NDArray[np.int64]) -> EpisodeBatch | None:
    """Return the steps of each episode from its start, [E] or a number, to its stop, [E], exclusive.

    Episodes without steps are dropped.
    """
    mask = stops > start
    if not mask.any():
        return None
    start = np.broadcast_to(start, stops.shape)[mask]
    batch, stops = batch.select_episodes(mask), stops[mask]
    cut = stops < batch.lengths
    lengths = stops - start
    starts = batch.table.starts
    rows = np.repeat(starts + start - (np.cumsum(lengths) - lengths), lengths) + np.arange(lengths.sum())
    steps = {key: values[rows] for key, values in batch.steps.items()}
    # Indices into the final states of all episodes, followed by the states that become final states.
    selected = np.arange(len(batch))
    selected[cut] = len(batch) + np.arange(int(cut.sum()))
    final_states = {
        key: concatenate_columns([batch.final_states[key], values[(starts + stops)[cut]]])[selected]
        for key, values in batch.states.items()
    }
    steps[NEXT_TRUNCATED][np.cumsum(lengths)[cut] - 1] = True
    return replace(
        batch,
        lengths=lengths,
        steps=steps,
        states={key: values[rows] for key, values in batch.states.items()},
        final_states=final_states,
        final_known=batch.final_known | cut,
    )
