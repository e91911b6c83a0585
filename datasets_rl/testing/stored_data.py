"""Small stored datasets of known content, and a slow and simple model of the expected reads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from datasets_rl.build.conversion import specs_of_schema
from datasets_rl.format.manifest import Manifest
from datasets_rl.format.reader import StoredDataset
from datasets_rl.format.schema import Column
from datasets_rl.format.writer import DatasetWriter
from datasets_rl.read.compressed_frames import FrameDictionary
from datasets_rl.ted.episode import Episode
from datasets_rl.ted.keys import Key

__all__ = ["FLAGS", "Model", "Trajectory", "Whole", "columns", "plain", "trajectory", "write_dataset"]

BOOL = np.dtype(bool)
FLAGS = (Column(("next", "terminated"), BOOL, (1,)), Column(("next", "truncated"), BOOL, (1,)))


@dataclass(frozen=True)
class Trajectory:
    """A trajectory: the steps, the states, and the step indices at which the writer gets a new piece."""

    steps: Mapping[Key, NDArray[Any]]
    """Columns of the steps by key, [T, ...]."""
    states: Mapping[Key, NDArray[Any]]
    """Columns of the states by key: [T + 1, ...], or [T, ...] where the final state is unknown."""
    cuts: tuple[int, ...] = ()
    """Step indices at which `pieces` splits the trajectory."""
    metadata: Mapping[str, Any] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.steps["next", "reward"])

    def pieces(self) -> Iterator[Episode]:
        """Yield the trajectory as consecutive `Episode`s, split at `cuts`. Only the last piece has the metadata."""
        for start, stop in pairwise([0, *self.cuts, len(self)]):
            last = stop == len(self)
            yield Episode(
                steps={key: array[start:stop] for key, array in self.steps.items()},
                states={key: array[start : None if last else stop] for key, array in self.states.items()},
                continues=not last,
                metadata=self.metadata if last else {},
            )


@dataclass(frozen=True)
class Whole:
    """An episode with texts and encoded images, which cannot be split like arrays."""

    episode: Episode

    def pieces(self) -> Iterator[Episode]:
        yield self.episode


class Model:
    """The expected content of a dataset of some trajectories, as plain Python lists with an entry per step."""

    def __init__(self, trajectories: Sequence[Trajectory]) -> None:
        self.rows: dict[Key, list[NDArray[Any]]] = {}
        self.starts: list[int] = []
        self.lengths: list[int] = []
        self.returns: list[float] = []
        self.known: list[bool] = []
        self.final_states: dict[Key, list[NDArray[Any]]] = {}
        for number, one in enumerate(trajectories):
            self.starts.append(sum(self.lengths))
            self.lengths.append(len(one))
            self.returns.append(float(sum(float(reward[0]) for reward in one.steps["next", "reward"])))
            self.known.append(all(len(one.states[key]) > len(one) for key in one.states if key[0] == "observation"))
            for key, states in one.states.items():
                last = states[len(one)] if len(states) > len(one) else np.zeros_like(states[0])
                self.final_states.setdefault(key, []).append(last)
            for step in range(len(one)):
                self._add_step(number, one, step)
        if not all(self.known):
            self.rows["next", "final_known"] = [
                np.array([known or step + 1 < length])
                for known, length in zip(self.known, self.lengths, strict=True)
                for step in range(length)
            ]

    def _add_step(self, number: int, one: Trajectory, step: int) -> None:
        """Append the row of a step: columns, state, next state and flags."""
        row = {key: array[step] for key, array in one.steps.items()}
        reward = row["next", "reward"]
        row["next", "reward"] = reward.astype("f8" if reward.dtype == "f8" else "f4")
        for key, states in one.states.items():
            row[key] = states[step]
            row[("next", *key)] = states[step + 1] if step + 1 < len(states) else np.zeros_like(states[0])
        row["next", "done"] = np.array([bool(row["next", "terminated"][0]) or bool(row["next", "truncated"][0])])
        row["episode",] = np.int64(number)
        for flag in ("done", "terminated", "truncated"):
            row[flag,] = np.array([False])
        for key, value in row.items():
            self.rows.setdefault(key, []).append(value)

    def __len__(self) -> int:
        return len(self.rows["episode",])

    def column(self, key: Key) -> NDArray[Any]:
        """Return the expected column of a key, [N, ...] for N steps."""
        return np.stack(self.rows[key])


def columns(*more: Column, width: int = 3, dtype: Any = np.float32) -> list[Column]:
    """Return the columns of a small MuJoCo-like dataset, followed by `more`."""
    kind = np.dtype(dtype)
    return [
        Column(("observation",), kind, (width,), shared=True),
        Column(("action",), kind, (2,)),
        Column(("next", "reward"), kind, (1,)),
        *FLAGS,
        *more,
    ]


def trajectory(
    steps: int,
    *,
    seed: int = 0,
    known: bool = True,
    terminated: bool = False,
    cuts: Sequence[int] = (),
    **metadata: Any,
) -> Trajectory:
    """Return a trajectory of T steps for `columns()`. The values depend on the seed and are never 0.

    Args:
        steps: The number of steps, T.
        seed: Determines all values, which are between 1 and 2.
        known: Whether the final state is known.
        terminated: Whether the last step is terminated instead of truncated.
        cuts: Step indices at which `Trajectory.pieces` splits the trajectory.
        metadata: Metadata of the episode.
    """
    generator = np.random.default_rng([seed, steps])
    last = (np.arange(steps) == steps - 1)[:, None]
    return Trajectory(
        steps={
            ("action",): generator.uniform(1, 2, (steps, 2)).astype(np.float32),
            ("next", "reward"): generator.uniform(1, 2, (steps, 1)).astype(np.float32),
            ("next", "terminated"): last & terminated,
            ("next", "truncated"): last & (not terminated),
        },
        states={("observation",): generator.uniform(1, 2, (steps + known, 3)).astype(np.float32)},
        cuts=tuple(cuts),
        metadata=metadata,
    )


def write_dataset(
    folder: Path,
    trajectories: Sequence[Trajectory],
    of: Sequence[Column] | None = None,
    dictionaries: Mapping[Key, FrameDictionary] | None = None,
    **manifest: Any,
) -> StoredDataset:
    """Write trajectories with `DatasetWriter` to `folder`, and return the opened dataset.

    Args:
        folder: The folder of the dataset, which is created.
        trajectories: The episodes, in order.
        of: The schema, `columns()` by default.
        dictionaries: The dictionaries of compressed images.
        manifest: Fields of the manifest that replace the defaults.
    """
    folder.mkdir(parents=True, exist_ok=True)
    writer = DatasetWriter(folder, columns() if of is None else of, name="toy/data", dictionaries=dictionaries)
    try:
        for one in trajectories:
            for piece in one.pieces():
                writer.append(piece)
        written = writer.finish()
    finally:
        writer.discard()
    Manifest(
        **{
            "id": "toy/data",
            "steps": written.steps,
            "episodes": written.episodes,
            "final_unknown": written.final_unknown,
            "schema": written.schema,
            "files": written.files,
            "statistics": written.statistics,
            "spikes": written.spikes,
            "specs": specs_of_schema(written.schema, {}),
            **manifest,
        }
    ).write(folder)
    return StoredDataset(folder)


def plain(batch: Any) -> dict[Key, NDArray[Any]]:
    """Return the leaves of a TensorDict as numpy arrays by key."""
    return {
        key if isinstance(key, tuple) else (key,): leaf.numpy()
        for key, leaf in batch.items(include_nested=True, leaves_only=True)
    }
