"""Reader of the episodes of RL Unplugged, each of which is a record of a TFRecord file.

step           0    1    2   ...  L-2  L-1
observation    s_0  s_1  s_2      ...  s_L-1     the last step has the state after the last action
action         a_0  a_1  a_2      a_L-2   -
reward         r_0  r_1  r_2      r_L-2   -
is_terminal    0    0    0        0    1 if the game was over
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from datasets_rl.errors import ConversionError
from datasets_rl.read.images import decode
from datasets_rl.read.streams import refuse
from datasets_rl.read.tfds import Leaf, Schema
from datasets_rl.read.tfrecord import read_records
from datasets_rl.sources.atari_dqn.log_reader import ACTION, ACTIONS, COLUMNS, FRAME
from datasets_rl.sources.base import NO_TRANSITION, EpisodeReader
from datasets_rl.sources.rows import end_flags, split_episode
from datasets_rl.ted.episode import Episode
from datasets_rl.ted.keys import NEXT_REWARD, OBSERVATION, Key

_KINDS = {
    "steps/observation": "image",
    "steps/action": "numbers",
    "steps/reward": "numbers",
    "steps/is_terminal": "numbers",
    "steps/is_last": "numbers",
    "checkpoint_id": "numbers",
}
_CHECKPOINT_MAX = 1 << 31
_TEXTS = {
    "last-step-without-action": "the last step of an episode has only the final observation. The action was ignored",
    **NO_TRANSITION,
    "end-without-terminal": "episodes that end before the game was over were marked truncated",
}


class RecordReader(EpisodeReader):
    """Reader of a file of records, with ``features.json``, which describes the features.

    Args:
        dataset_id: Id of the dataset, for messages.
        files: Both local files, by path.
        metadata: `Listing.params`. "frames" is whether to read the observations.

    Raises:
        ConversionError: If features.json describes other features.
    """

    rules = _TEXTS

    def __init__(self, dataset_id: str, files: Mapping[str, Path], metadata: Mapping[str, Any]) -> None:
        self.columns = COLUMNS
        self.metadata = {"upstream": "rlu"}
        self._dataset_id = dataset_id
        self._frames = bool(metadata["frames"])
        by_name = {path.rpartition("/")[2]: Path(file) for path, file in files.items()}
        self._schema = Schema(by_name.pop("features.json").read_bytes())
        (self._path,) = by_name.values()
        leaves = self._schema.leaves
        problems = [problem for name in _KINDS if (problem := _feature_problem(name, leaves.get(name)))]
        refuse(f"features.json of {dataset_id}", problems)

    @override
    def episodes(self, part: Any = None) -> Iterator[Episode]:
        self.counts.clear()
        features = [name for name, kind in _KINDS.items() if self._frames or kind != "image"]
        with self._path.open("rb") as stream:
            for number, payload in enumerate(read_records(stream, self._path.name)):
                name = f"record {number:,} of {self._path.name}"
                columns: dict[str, Any] = self._schema.read(payload, name, features)
                checkpoint = int(columns.pop("checkpoint_id", part))
                if not 0 <= checkpoint < _CHECKPOINT_MAX:
                    raise ConversionError(
                        name, [f"checkpoint_id is {checkpoint:,}, expected the number of a checkpoint"]
                    )
                named = {key.rpartition("/")[2]: values for key, values in columns.items()}
                yield from self._split(named, name, checkpoint)

    def _split(self, raw: Mapping[str, Any], name: str, checkpoint: int) -> Iterator[Episode]:
        problems = list(_contradictions(raw))
        refuse(name, problems)
        steps = max(0, len(raw["action"]) - 1)
        self.counts["last-step-without-action" if steps else "no-transition"] += 1
        if not steps:
            return
        over = bool(raw["is_terminal"][-1])
        self.counts["end-without-terminal"] += int(not over)
        values: dict[Key, NDArray[Any]] = {
            ACTION: raw["action"].astype(np.int32),
            NEXT_REWARD: raw["reward"][:, None],
        }

        def read(key: Key, start: int, stop: int) -> NDArray[Any]:
            if key == OBSERVATION:
                return _decode_frames(raw["observation"], start, stop, name)
            return values[key][start:stop]

        columns = COLUMNS if self._frames else COLUMNS[1:]
        flags = end_flags(steps, terminated=over)
        yield from split_episode(flags, columns, read, {"checkpoint": np.int32(checkpoint)})


def _feature_problem(name: str, leaf: Leaf | None) -> str:
    """Return how a feature differs from the expected feature, or an empty text if the feature does not differ.

    Files that are not sorted by checkpoint have no checkpoint_id.
    """
    kind, of_steps = _KINDS[name], name.startswith("steps/")
    if leaf is None:
        return f"it has no {name}" if of_steps else ""
    if leaf.kind != kind:
        return f"{name} is {leaf.kind}, expected {kind}"
    if len(leaf.lists) != of_steps or (kind == "numbers" and leaf.shape):
        return f"{name} has lists or arrays, expected one value{' per step' if of_steps else ''}"
    return ""


def _contradictions(raw: Mapping[str, Any]) -> Iterator[str]:
    last, terminal, reward, action = (raw[name] for name in ("is_last", "is_terminal", "reward", "action"))
    if not len(action):
        return
    if last[:-1].any() or not last[-1]:
        yield f"is_last is True at {np.flatnonzero(last).tolist()[:5]}, expected only {len(last) - 1}, the last step"
    if terminal[:-1].any():
        yield (
            f"is_terminal is True at step {int(terminal.argmax())}, "
            f"expected only at the last step, {len(last) - 1}, or at no step"
        )
    if len(rows := np.flatnonzero(~np.isfinite(reward[:-1]))):
        yield f"reward is {reward[rows[0]]} at step {rows[0]:,}, expected a finite number"
    if len(rows := np.flatnonzero((action[:-1] < 0) | (action[:-1] >= ACTIONS))):
        yield f"action is {action[rows[0]]} at step {rows[0]:,}, expected 0 to {ACTIONS - 1}"


def _decode_frames(images: Any, start: int, stop: int, name: str) -> NDArray[np.uint8]:
    frames: NDArray[np.uint8] = np.empty((stop - start, *FRAME, 1), np.uint8)
    decode(images[start:stop], frames, name, first=start)
    return frames[..., 0]
