"""Steps that keep some of the steps of an episode."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from datasets_rl.errors import InvalidArgumentError
from datasets_rl.preprocessing.base import Step
from datasets_rl.preprocessing.steps.keep import read_span
from datasets_rl.ted.episode import end_to_end
from datasets_rl.ted.episode_batch import EpisodeBatch
from datasets_rl.ted.keys import NEXT, NEXT_REWARD, NEXT_TERMINATED, NEXT_TRUNCATED

__all__ = ["DropUnknownFinal", "FrameSkip", "KeepSteps"]


@dataclass
class FrameSkip(Step):
    """Make one step of n: the state and the action of the first, the sum of the rewards, the end of the last.

        state          s0 s1 s2 s3 s4 | f         n = 2          s0    s2    s4 | f
        action         a0 a1 a2 a3 a4                            a0    a2    a4
        next.reward    r0 r1 r2 r3 r4                         r0+r1 r2+r3    r4
        truncated       .  .  .  .  x                             .     .     x

    What follows the last step is the final state, as before; the last step may stand for fewer than n. Fields that
    stand under "next" alone are those of the last of the n.

    Args:
        n: Steps that become one, at least 1.
    """

    n: int

    summary = "one step of n, with the sum of their rewards"

    def __post_init__(self) -> None:
        if self.n < 1:
            raise InvalidArgumentError(f"n is {self.n}; expected at least 1")

    def __call__(self, block: EpisodeBatch) -> EpisodeBatch:
        """Return the block with fewer steps."""
        table = block.table
        within = np.arange(block.count) - np.repeat(table.starts, block.lengths)
        first = np.flatnonzero(within % self.n == 0)
        last = np.append(first[1:], block.count) - 1
        steps = {key: values[last if key[0] == NEXT else first] for key, values in block.steps.items()}
        rewards = block.steps[NEXT_REWARD]
        steps[NEXT_REWARD] = np.add.reduceat(rewards.astype(np.float64), first).astype(rewards.dtype)
        return replace(
            block,
            lengths=-(-block.lengths // self.n),
            steps=steps,
            states={key: values[first] for key, values in block.states.items()},
        )


@dataclass
class KeepSteps(Step):
    """Keep a run of the steps of each episode, counted from 0: ``0:100``. Episodes that have none of them go.

    state        s0 s1 s2 s3 s4 | f       1:3       s1 s2 | s3         what follows the last one is known
    truncated     .  .  .  .  x                      .  x              it is cut there
    """

    span: str = field(metadata={"form": "a range START:STOP from 0, as in 10:60"})

    summary = "a run of the steps of each episode"

    def __post_init__(self) -> None:
        if read_span(self.span)[2] != 1:
            raise InvalidArgumentError(
                f"span is {self.span!r}; expected START:STOP", hint="frame_skip leaves steps out"
            )

    def __call__(self, block: EpisodeBatch) -> EpisodeBatch | None:
        """Return the block with fewer steps."""
        start, stop, _ = read_span(self.span)
        return _kept_steps(block, start, block.lengths if stop is None else np.minimum(block.lengths, stop))


@dataclass
class DropUnknownFinal(Step):
    """Drop the last step of each episode whose final observation is unknown, so that every next observation is real.

        state              s0 s1 s2 | f unknown          s0 s1 | s2        what follows the last kept step is known
        truncated           .  .  x                       .  x             it is cut there

    Reading of zeros in targets ends with it, and so do batches' ``("next", "final_known")``. An episode of one such step
    goes.

    Args:
        ends: "all" drops the last step however the episode ends. "truncated" keeps it where the episode is terminated:
            the target of that step is its reward alone and needs no next observation. ``("next", "final_known")`` stays
            in batches then, if there is such an episode.
    """

    ends: Literal["all", "truncated"] = "all"

    summary = "drop last steps whose next observation is unknown"

    def __post_init__(self) -> None:
        if self.ends not in {"all", "truncated"}:
            raise InvalidArgumentError(f"ends is {self.ends!r}; expected 'all' or 'truncated'")

    def __call__(self, block: EpisodeBatch) -> EpisodeBatch | None:
        """Return the block with known final states."""
        dropped = ~block.final_known
        if self.ends == "truncated":
            dropped &= ~block.steps[NEXT_TERMINATED][block.table.stops - 1, 0]
        return _kept_steps(block, 0, block.lengths - dropped)


def _kept_steps(block: EpisodeBatch, start: int, stops: NDArray[np.int64]) -> EpisodeBatch | None:
    """Return the steps from `start` up to a stop of each episode, [E]; episodes that have none of them go."""
    mask = stops > start
    if not mask.any():
        return None
    block, stops = block.pick(mask), stops[mask]
    cut = stops < block.lengths
    lengths = stops - start
    starts = block.table.starts
    rows = np.repeat(starts + start - (np.cumsum(lengths) - lengths), lengths) + np.arange(lengths.sum())
    steps = {key: values[rows] for key, values in block.steps.items()}
    # The final states of all, and after them the states that become one.
    chosen = np.arange(len(block))
    chosen[cut] = len(block) + np.arange(int(cut.sum()))
    final_states = {
        key: end_to_end([block.final_states[key], values[(starts + stops)[cut]]])[chosen]
        for key, values in block.states.items()
    }
    steps[NEXT_TRUNCATED][np.cumsum(lengths)[cut] - 1] = True
    return replace(
        block,
        lengths=lengths,
        steps=steps,
        states={key: values[rows] for key, values in block.states.items()},
        final_states=final_states,
        final_known=block.final_known | cut,
    )
