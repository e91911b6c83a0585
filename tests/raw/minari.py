"""Datasets in Minari's formats, written by Minari, and the values that Minari was given.

with written(folder, "D4RL/door/human-v2", space=SPACES["dict"], data_format="arrow") as episodes: ...
"""

from __future__ import annotations

import json
import os
import shutil
import tarfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium
import h5py
import numpy as np
import pytest
from raw.case import Case, Fault
from upstreams import hub

from datasets_rl.ted.episode import Episode, TextStates

__all__ = ["CASES", "SPACES", "Given", "episodes", "extract_linked", "flat", "write"]

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
    """An episode that is passed to Minari: T actions and T + 1 observations, as lists of values of the spaces."""

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
    """Generate episodes with values of the spaces. Every second episode is terminated, and the others are truncated."""
    rng = np.random.default_rng(seed)
    made = []
    for number, length in enumerate(lengths):
        end = [False] * (length - 1) + [True]
        never = [False] * length
        made.append(
            Given(
                [_draw(space, rng) for _ in range(length + 1)],
                [_draw(action, rng) for _ in range(length)],
                rng.normal(size=length).tolist(),
                never if number % 2 else end,
                end if number % 2 else never,
                infos(length, rng) if infos else None,
                seeds[number] if number < len(seeds) else None,
            )
        )
    return made


def _draw(space: Any, rng: np.random.Generator) -> Any:  # noqa: PLR0911 -- a kind of space each
    """Return a random value of a space."""
    if isinstance(space, spaces.Dict):
        return {name: _draw(one, rng) for name, one in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_draw(one, rng) for one in space.spaces)
    if isinstance(space, spaces.Text):
        return MISSIONS[rng.integers(len(MISSIONS))]
    if isinstance(space, spaces.Discrete):
        return int(space.start + rng.integers(space.n))
    if isinstance(space, spaces.Box) and len(space.shape) > 1 and space.shape[0] >= 32:
        # JPEG changes the pixels of a uniform color by at most a few units.
        return np.full(space.shape, rng.integers(256), np.uint8)
    if isinstance(space, spaces.Box):
        return (space.low + rng.random(space.shape) * (space.high - space.low)).astype(space.dtype)
    space.seed(int(rng.integers(1 << 31)))
    return space.sample()


def stacked(values: Sequence[Any]) -> Any:
    """Convert a list of values to the structure of Minari's buffers, with lists as leaves."""
    first = values[0]
    if isinstance(first, dict):
        return {name: stacked([one[name] for one in values]) for name in first}
    if isinstance(first, tuple):
        return tuple(stacked([one[number] for one in values]) for number in range(len(first)))
    return list(values)


def flat(values: Sequence[Any], key: tuple[str, ...] = ()) -> dict[tuple[str, ...], list[Any]]:
    """Return the leaves of a list of values, by the key that a reader must give them."""
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
        root: The folder that MINARI_DATASETS_PATH names.
        name: The id.
        given: The episodes.
        space: The observation space.
        action: The action space.
        data_format: "hdf5", "arrow" or "parquet".
        jpeg: Minari's `jpeg_encoding`.
        metadata: Fields that replace those of Minari in metadata.json; None removes a field.
    """
    minari = pytest.importorskip("minari", reason="pip install minari, with Python 3.11")
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


ID = "test/things/drawn-v3"
LINKED = "drawn-nested-v0"
_AUTHOR, _REST = ID.split("/", 1)


def _golden(given: Sequence[Given]) -> list[Episode]:
    """Return the episodes that must be stored."""
    found = []
    for number, one in enumerate(given):
        steps: dict[tuple[str, ...], Any] = {
            ("next", "reward"): np.asarray(one.rewards)[:, None],
            ("next", "terminated"): np.asarray(one.terminations)[:, None],
            ("next", "truncated"): np.asarray(one.truncations)[:, None],
        }
        steps |= {("action", *key): _column(values) for key, values in flat(one.actions).items()}
        states = {("observation", *key): _column(values) for key, values in flat(one.observations).items()}
        states |= {("info", name): np.asarray(values) for name, values in (one.infos or {}).items()}
        facts = {"source": number, "seed": one.seed or 0, "seeded": one.seed is not None}
        found.append(Episode(steps, states, metadata=facts))
    return found


def _column(values: Sequence[Any]) -> Any:
    """Return the values of a column as an array, or as `TextStates` where they are strings."""
    return TextStates.from_texts(values) if isinstance(values[0], str) else np.asarray(values)


def _written(space: str, data_format: str) -> Callable[[Path], list[Episode]]:
    """Return the `Case.write` of a space and a format."""

    def act(folder: Path) -> list[Episode]:
        infos = _infos if data_format == "hdf5" else None
        given = episodes(SPACES[space], (4, 1, 7, 3), infos=infos, seeds=(5, None, 7, (1 << 63) + 1))
        # The sizes that Minari computes depend on the file system.
        write(folder, ID, given, space=SPACES[space], data_format=data_format, dataset_size=None)
        return _golden(given)

    return act


def _infos(length: int, rng: np.random.Generator) -> Mapping[str, Any]:
    """Return random infos with a row for the reset."""
    return {"speed": rng.normal(size=length + 1)}


@contextmanager
def _served(folder: Path) -> Iterator[Mapping[str, str]]:
    """Serve the datasets from a repository of the Hub."""
    with hub({f"farama-minari/{_AUTHOR}": folder / _AUTHOR}) as server:
        yield {"HF_ENDPOINT": server.url, "MINARI_REMOTE": "hf://farama-minari"}


def _metadata(**fields: Any) -> Callable[[Path], object]:
    """Return a function that replaces fields of metadata.json."""

    def corrupt(folder: Path) -> None:
        place = folder / ID / "data" / "metadata.json"
        place.write_text(json.dumps({**json.loads(place.read_text()), **fields}))

    return corrupt


def _bytes(path: str, data: bytes) -> Callable[[Path], object]:
    """Return a function that replaces the bytes of a file."""
    return lambda folder: (folder / ID / "data" / path).write_bytes(data)


def _inside(act: Callable[[h5py.File], object]) -> Callable[[Path], object]:
    """Return a function that changes the open HDF5 file."""

    def corrupt(folder: Path) -> None:
        with h5py.File(folder / ID / "data" / "main_data.hdf5", "r+") as file:
            act(file)

    return corrupt


def _replaced(name: str, value: Any) -> Callable[[Path], object]:
    """Return a function that replaces a dataset of the HDF5 file."""

    def act(file: h5py.File) -> None:
        del file[name]
        file[name] = value

    return _inside(act)


def _linked(folder: Path) -> None:
    """Add an external link to another HDF5 file."""
    with h5py.File(folder / "other.hdf5", "w") as other:
        other["more"] = np.zeros(5)
    add = h5py.ExternalLink(str(folder / "other.hdf5"), "more")
    _inside(lambda file: file.__setitem__("episode_0/observations/more", add))(folder)


_POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n"
_ANY = {
    "metadata that is not valid JSON": Fault(_bytes("metadata.json", b"{"), "not valid JSON"),
    "a web page instead of the metadata": Fault(_bytes("metadata.json", b"<html>Sign in</html>"), "web page"),
    "metadata that is a list": Fault(_bytes("metadata.json", b"[]"), "expected an object"),
    "no episodes": Fault(_metadata(total_episodes=0), "total_episodes is 0"),
    "an unknown format": Fault(_metadata(data_format="zarr"), "data_format is 'zarr'"),
    "the metadata of another dataset": Fault(_metadata(dataset_id="other/things-v0"), "other/things-v0"),
    "another number of steps": Fault(_metadata(total_steps=99), "99"),
}
_HDF5 = {
    **_ANY,
    "a git-LFS pointer": Fault(_bytes("main_data.hdf5", _POINTER), "LFS"),
    "a web page instead of the file": Fault(_bytes("main_data.hdf5", b"<html>Sign in</html>" * 99), "web page"),
    "an episode that is missing": Fault(_inside(lambda file: file.__delitem__("episode_2")), "episode"),
    "a column of another length": Fault(_replaced("episode_1/rewards", np.zeros(5)), "rows for"),
    "a link out of the file": Fault(_linked, "is a link, expected the data itself"),
}
_TABLE = {
    **_ANY,
    "a git-LFS pointer": Fault(_bytes("2/part-0.parquet", _POINTER), "LFS"),
    "an episode that is missing": Fault(lambda folder: shutil.rmtree(folder / ID / "data" / "2"), "episode 2"),
    "a truncated table": Fault(_bytes("1/part-0.parquet", b"PAR1" + bytes(100)), "not a parquet file"),
}


def _many(folder: Path, size: int) -> None:
    """Write HDF5 files of 200 episodes with about 176 bytes per step."""
    length = max(1, size // 200 // 176)
    space, rng = spaces.Box(-1, 1, (17,), np.float64), np.random.default_rng(0)
    totals = {"total_steps": 200 * length, "total_episodes": 200}
    place = write(folder, ID, episodes(space, [2]), space=space, **totals) / "data" / "main_data.hdf5"
    with h5py.File(place, "w", track_order=True) as file:
        for number in range(200):
            group = file.create_group(f"episode_{number}")
            group.attrs.update({"id": number, "total_steps": length, "seed": number})
            columns = {
                "observations": rng.normal(size=(length + 1, 17)),
                "actions": rng.normal(size=(length, 6)).astype("f4"),
                "rewards": rng.normal(size=length),
                "terminations": np.zeros(length, bool),
                "truncations": np.arange(length) == length - 1,
            }
            for name, data in columns.items():
                group.create_dataset(name, data=data, chunks=True, maxshape=(None, *data.shape[1:]))


def extract_linked(folder: Path) -> None:
    """Extract the datasets that Minari 0.3.1 combined by links; see `raw.make_minari`."""
    with tarfile.open(Path(__file__).with_name("minari-0.3.1.tar.gz")) as archive:
        archive.extractall(folder, filter="data")


def _linked_parts(folder: Path) -> list[Episode]:
    """Write the dataset with a dataset of links and another dataset as parts. Minari itself read the episodes."""
    extract_linked(folder)
    read = json.loads((folder / "read.json").read_text())[LINKED]
    (folder / "read.json").unlink()
    given = [
        Given(
            list(np.asarray(one["observations"], np.float32)),
            list(np.asarray(one["actions"], np.float32)),
            one["rewards"],
            one["terminations"],
            one["truncations"],
            None,
            number % 2,
        )
        for number, one in enumerate(read)
    ]
    return _golden(given)


@contextmanager
def _served_apart(folder: Path) -> Iterator[Mapping[str, str]]:
    """Serve each dataset from a repository of the Hub."""
    with hub({f"farama-minari/{path.name}": path for path in folder.iterdir()}) as server:
        yield {"HF_ENDPOINT": server.url, "MINARI_REMOTE": "hf://farama-minari"}


_SMALL = {"datasets_rl.sources.minari._SHARD_BYTES": 10_000}
CASES = [
    Case(f"minari/{ID}", _written("dict", "hdf5"), _served, faults=_HDF5, many=_many, small=_SMALL),
    Case(f"minari/{ID}", _written("text", "parquet"), _served, faults=_TABLE, small=_SMALL),
    Case(f"minari/{LINKED}", _linked_parts, _served_apart),
]
