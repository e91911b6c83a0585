"""Datasets as Minari publishes them, written by Minari itself, and what it was given to write.

with written(folder, "D4RL/door/human-v2", space=SPACES["dict"], data_format="arrow") as episodes: ...
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

__all__ = ["SPACES", "Given", "episodes", "flat", "write"]

spaces = gymnasium.spaces
ACTION = spaces.Box(-1, 1, (3,), np.float32)
SPACES: Mapping[str, Any] = {
    "box": spaces.Box(-10, 10, (5,), np.float64),
    "matrix": spaces.Box(-1, 1, (2, 3), np.float32),
    "discrete": spaces.Discrete(7, start=-2),
    "multi_discrete": spaces.MultiDiscrete([3, 5]),
    "multi_binary": spaces.MultiBinary(4),
    "dict": spaces.Dict(
        {
            "position": spaces.Box(-1, 1, (2,), np.float64),
            "goal": spaces.Dict({"place": spaces.Box(-1, 1, (3,), np.float32), "kind": spaces.Discrete(4)}),
        }
    ),
    "tuple": spaces.Tuple((spaces.Box(-1, 1, (2,), np.float64), spaces.Discrete(3))),
    "text": spaces.Dict({"mission": spaces.Text(20), "view": spaces.Box(0, 255, (7, 7, 3), np.uint8)}),
    "image": spaces.Box(0, 255, (36, 40, 3), np.uint8),
    "grey": spaces.Dict({"frame": spaces.Box(0, 255, (33, 35), np.uint8)}),
}
MISSIONS = ("go to the door", "pick up the key", "ö → ü")


@dataclass(frozen=True)
class Given:
    """An episode as it was given to Minari: T actions and T + 1 observations, lists of values of the spaces."""

    observations: Sequence[Any]
    actions: Sequence[Any]
    rewards: Sequence[float]
    terminations: Sequence[bool]
    truncations: Sequence[bool]
    infos: Mapping[str, Any] | None
    seed: int | None

    def __len__(self) -> int:
        return len(self.rewards)


def episodes(
    space: Any,
    lengths: Sequence[int] = (4, 1, 7),
    *,
    action: Any = ACTION,
    infos: Callable[[int, np.random.Generator], Mapping[str, Any]] | None = None,
    seeds: Sequence[int | None] = (),
    seed: int = 0,
) -> list[Given]:
    """Draw episodes from the spaces; every second one is terminated, the others are cut."""
    dice = np.random.default_rng(seed)
    made = []
    for number, length in enumerate(lengths):
        end = [False] * (length - 1) + [True]
        never = [False] * length
        made.append(
            Given(
                [_draw(space, dice) for _ in range(length + 1)],
                [_draw(action, dice) for _ in range(length)],
                dice.normal(size=length).tolist(),
                never if number % 2 else end,
                end if number % 2 else never,
                infos(length, dice) if infos else None,
                seeds[number] if number < len(seeds) else None,
            )
        )
    return made


def _draw(space: Any, dice: np.random.Generator) -> Any:  # noqa: PLR0911 -- a kind of space each
    if isinstance(space, spaces.Dict):
        return {name: _draw(one, dice) for name, one in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_draw(one, dice) for one in space.spaces)
    if isinstance(space, spaces.Text):
        return MISSIONS[dice.integers(len(MISSIONS))]
    if isinstance(space, spaces.Discrete):
        return int(space.start + dice.integers(space.n))
    if isinstance(space, spaces.Box) and len(space.shape) > 1 and space.shape[0] >= 32:
        # Even colours survive JPEG nearly unharmed.
        return np.full(space.shape, dice.integers(256), np.uint8)
    if isinstance(space, spaces.Box):
        return (space.low + dice.random(space.shape) * (space.high - space.low)).astype(space.dtype)
    space.seed(int(dice.integers(1 << 31)))
    return space.sample()


def stacked(values: Sequence[Any]) -> Any:
    """Turn a list of values into what Minari's buffers hold: lists at the leaves."""
    first = values[0]
    if isinstance(first, dict):
        return {name: stacked([one[name] for one in values]) for name in first}
    if isinstance(first, tuple):
        return tuple(stacked([one[number] for one in values]) for number in range(len(first)))
    return list(values)


def flat(values: Sequence[Any], key: tuple[str, ...] = ()) -> dict[tuple[str, ...], list[Any]]:
    """Return the leaves of a list of values by key, as a reader must name them."""
    first = values[0]
    inner = first.items() if isinstance(first, dict) else None
    if isinstance(first, tuple):
        inner = ((f"_index_{number}", number) for number in range(len(first)))
        return {
            leaf: found for name, at in inner for leaf, found in flat([one[at] for one in values], (*key, name)).items()
        }
    if inner is None:
        return {key: list(values)}
    return {leaf: found for name in first for leaf, found in flat([one[name] for one in values], (*key, name)).items()}


def write(
    root: Path,
    name: str,
    given: Sequence[Given],
    *,
    space: Any,
    action: Any = ACTION,
    data_format: str = "hdf5",
    jpeg: bool = True,
    **metadata: Any,
) -> Path:
    """Let Minari write a dataset below a folder, as into its own cache.

    Args:
        root: Where MINARI_DATASETS_PATH points.
        name: The id.
        given: The episodes.
        space: Of the observations.
        action: Of the actions.
        data_format: "hdf5", "arrow" or "parquet".
        jpeg: Minari's `jpeg_encoding`.
        metadata: Fields of metadata.json that are put in the place of Minari's; None takes one out.
    """
    import minari
    from minari.data_collector import EpisodeBuffer

    buffers = [
        EpisodeBuffer(
            id=number,
            seed=one.seed,
            observations=stacked(one.observations),
            actions=stacked(one.actions),
            rewards=list(one.rewards),
            terminations=list(one.terminations),
            truncations=list(one.truncations),
            infos=one.infos,
        )
        for number, one in enumerate(given)
    ]
    before = os.environ.get("MINARI_DATASETS_PATH")
    os.environ["MINARI_DATASETS_PATH"] = str(root)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            minari.create_dataset_from_buffers(
                name,
                buffers,
                observation_space=space,
                action_space=action,
                data_format=data_format,
                jpeg_encoding=jpeg,
                algorithm_name="a drawn policy",
                author="nobody",
                author_email="nobody@example.org",
                code_permalink="https://example.org",
            )
    finally:
        if before is None:
            del os.environ["MINARI_DATASETS_PATH"]
        else:
            os.environ["MINARI_DATASETS_PATH"] = before
    folder = root / name
    if metadata:
        path = folder / "data" / "metadata.json"
        known = {**json.loads(path.read_text()), **metadata}
        path.write_text(json.dumps({key: value for key, value in known.items() if value is not None}))
    return folder
