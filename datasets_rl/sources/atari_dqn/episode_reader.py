"""The episodes of RL Unplugged as trajectories: a record of a TFRecord file each.

step           0    1    2   ...  L-2  L-1
observation    s_0  s_1  s_2      ...  s_L-1     the last step holds the state behind the last action
action         a_0  a_1  a_2      a_L-2   -
reward         r_0  r_1  r_2      r_L-2   -
is_terminal    0    0    0        0    1 where the game was over
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from datasets_rl.errors import ConversionError
from datasets_rl.read.images import decode
from datasets_rl.read.tfds import Leaf, Schema
from datasets_rl.read.tfrecord import records
from datasets_rl.sources.atari_dqn.log_reader import ACTION, ACTIONS, COLUMNS, FRAME
from datasets_rl.sources.base import NO_TRANSITION, Decision, EpisodeReader
from datasets_rl.ted.episode import Episode
from datasets_rl.ted.keys import NEXT_REWARD, NEXT_TERMINATED, NEXT_TRUNCATED, OBSERVATION

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["RecordReader"]

_BLOCK = 1024  # frames
_KINDS = {
    "steps/observation": "image",
    "steps/action": "numbers",
    "steps/reward": "numbers",
    "steps/is_terminal": "numbers",
    "steps/is_last": "numbers",
    "checkpoint_id": "numbers",
}
_CHECKPOINT_MOST = 1 << 31
_TEXTS = {
    "last-step-without-action": "the last step of an episode holds its final observation; its action is none",
    **NO_TRANSITION,
    "end-without-terminal": "episodes that end without the end of the game were marked truncated",
}


class RecordReader(EpisodeReader):
    """A file of records, and ``features.json``, which says what they are.

    Args:
        what: The dataset, for messages.
        files: Both files by path.
        metadata: Whether frames are wanted.

    Raises:
        ConversionError: If the records are said to be something else.
    """

    def __init__(self, what: str, files: Mapping[str, Path], metadata: Mapping[str, Any]) -> None:
        self.columns = COLUMNS
        self.steps = None
        self.metadata = {"upstream": "rlu"}
        self.decisions: list[Decision] = []
        self._what = what
        self._frames = bool(metadata["frames"])
        by_name = {path.rpartition("/")[2]: Path(place) for path, place in files.items()}
        self._schema = Schema(by_name.pop("features.json").read_bytes())
        (self._place,) = by_name.values()
        leaves = self._schema.leaves
        faults = [fault for name in _KINDS if (fault := _unlike(name, leaves.get(name)))]
        if faults:
            raise ConversionError(f"features.json of {what}", faults)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *details: object) -> None:
        """Do nothing: the file is open only while it is read."""

    def episodes(self, part: Any = None) -> Iterator[Episode]:
        """Yield the trajectories of the file."""
        found: Counter[str] = Counter()
        wanted = [name for name, kind in _KINDS.items() if self._frames or kind != "image"]
        with self._place.open("rb") as stream:
            for number, payload in enumerate(records(stream, self._place.name)):
                name = f"record {number:,} of {self._place.name}"
                columns: dict[str, Any] = self._schema.read(payload, name, wanted)
                checkpoint = int(columns.pop("checkpoint_id", part))
                if not 0 <= checkpoint < _CHECKPOINT_MOST:
                    raise ConversionError(
                        name, [f"checkpoint_id is {checkpoint:,}; expected the number of a checkpoint"]
                    )
                yield from self._pieces(
                    {key.rpartition("/")[2]: one for key, one in columns.items()}, name, checkpoint, found
                )
        self.decisions = [Decision(rule, text, found[rule]) for rule, text in _TEXTS.items() if found[rule]]

    def _pieces(self, raw: Mapping[str, Any], name: str, checkpoint: int, found: Counter[str]) -> Iterator[Episode]:
        faults = list(_contradictions(raw))
        if faults:
            raise ConversionError(name, faults)
        steps = max(0, len(raw["action"]) - 1)
        found["last-step-without-action" if steps else "no-transition"] += 1
        if not steps:
            return
        over = bool(raw["is_terminal"][-1])
        found["end-without-terminal"] += int(not over)
        action = raw["action"].astype(np.int32)
        metadata: dict[str, Any] = {"checkpoint": np.int32(checkpoint)}
        for start in range(0, steps, _BLOCK):
            stop = min(start + _BLOCK, steps)
            ends = np.arange(start, stop)[:, None] == steps - 1
            given: dict[tuple[str, ...], NDArray[Any]] = {
                ACTION: action[start:stop],
                NEXT_REWARD: raw["reward"][start:stop, None],
                NEXT_TERMINATED: ends & over,
                NEXT_TRUNCATED: ends & (not over),
            }
            states = (
                {OBSERVATION: _frames(raw["observation"], start, stop + (stop == steps), name)} if self._frames else {}
            )
            yield Episode(given, states, continues=stop < steps, metadata=metadata)


def _unlike(name: str, leaf: Leaf | None) -> str:
    """Say in what a feature is not what is read, if it is not; files that are not sorted have no checkpoint_id."""
    kind, of_steps = _KINDS[name], name.startswith("steps/")
    if leaf is None:
        return f"it has no {name}" if of_steps else ""
    if leaf.kind != kind:
        return f"{name} is {leaf.kind}; expected {kind}"
    if len(leaf.lists) != of_steps or (kind == "numbers" and leaf.shape):
        return f"{name} holds lists or arrays; expected one value{' a step' if of_steps else ''}"
    return ""


def _contradictions(raw: Mapping[str, Any]) -> Iterator[str]:
    last, terminal, reward, action = (raw[name] for name in ("is_last", "is_terminal", "reward", "action"))
    if not len(action):
        return
    if last[:-1].any() or not last[-1]:
        yield f"is_last is True at {np.flatnonzero(last).tolist()[:5]}; expected {len(last) - 1} alone, the last step"
    if terminal[:-1].any():
        yield f"is_terminal is True at step {int(terminal.argmax())}; expected at the last step, {len(last) - 1}, or nowhere"
    if len(rows := np.flatnonzero(~np.isfinite(reward[:-1]))):
        yield f"reward is {reward[rows[0]]} at step {rows[0]:,}; expected a finite number"
    if len(rows := np.flatnonzero((action[:-1] < 0) | (action[:-1] >= ACTIONS))):
        yield f"action is {action[rows[0]]} at step {rows[0]:,}; expected 0 to {ACTIONS - 1}"


def _frames(images: Any, start: int, stop: int, name: str) -> NDArray[np.uint8]:
    frames: NDArray[np.uint8] = np.empty((stop - start, *FRAME, 1), np.uint8)
    decode(images[start:stop], frames, name, first=start)
    return frames[..., 0]
