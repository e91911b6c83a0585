"""Katakomba's files: a group of compressed arrays for each game, as its script writes them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from raw.case import Case, Fault
from upstreams import hub

from datasets_rl.ted.episode import Episode

__all__ = ["CASES", "FILE", "play", "write_file"]

NAME = "mon-hum-neu"
FILE = f"data-{NAME}-any.hdf5"
LENGTHS = {"1203": 150, "87": 3, "9041": 25, "12": 1}
"""The number of steps of each game, of which the first has enough to pay for a dictionary; their order is not that of
their names."""


def play(rng: np.random.Generator, length: int, *, points: int = 100) -> dict[str, Any]:
    """Generate a game: a room, in which an adventurer walks at random, T screens in all."""
    chars = np.full((length, 24, 80), ord(" "), np.uint8)
    colors = np.zeros((length, 24, 80), np.int8)
    chars[:, 5:18, 20:60], colors[:, 5:18, 20:60] = ord("."), 7
    chars[:, 23, :12] = np.frombuffer(b"Dlvl:1  $:0 ", np.uint8)
    rows = np.clip(11 + np.cumsum(rng.integers(-1, 2, length)), 5, 17)
    columns = np.clip(40 + np.cumsum(rng.integers(-1, 2, length)), 20, 59)
    chars[np.arange(length), rows, columns] = ord("@")
    colors[np.arange(length), rows, columns] = 15
    scores = np.cumsum(rng.integers(0, 3, length) * 50)
    rewards = np.zeros(length, np.int32)
    rewards[:-1] = np.diff(scores)
    rewards[-1] = rewards[-2] if length > 1 else 0
    return {
        "tty_chars": chars,
        "tty_colors": colors,
        "tty_cursor": np.stack([rows, columns], axis=1).astype(np.int16),
        "actions": rng.integers(0, 121, length).astype(np.uint8),
        "rewards": rewards,
        "dones": np.arange(length) == length - 1,
        "attributes": {"points": points, "turns": 10 * length, "role": "Mon", "death": f"killed by a newt, {points}"},
    }


def write_file(path: Path, games: Mapping[str, Mapping[str, Any]]) -> None:
    """Write the games in this order, as h5py writes arrays with `compression="gzip"`."""
    with h5py.File(path, "w", track_order=True) as file:
        for name, game in games.items():
            group = file.create_group(name)
            for key, values in game.items():
                if key != "attributes":
                    group.create_dataset(key, data=values, compression="gzip")
            group.attrs.update(game["attributes"])


def _written(folder: Path) -> list[Episode]:
    rng = np.random.default_rng(3)
    games = {name: play(rng, length, points=10 * length) for name, length in LENGTHS.items()}
    write_file(folder / FILE, games)
    return [_episode(name, game) for name, game in games.items()]


def _episode(name: str, game: Mapping[str, Any]) -> Episode:
    ends = game["dones"][:, None]
    steps = {
        ("action",): game["actions"][:, None],
        ("next", "reward"): game["rewards"][:, None].astype(np.float32),
        ("next", "terminated"): ends,
        ("next", "truncated"): np.zeros_like(ends),
    }
    states = {
        ("observation", "tty_chars"): game["tty_chars"],
        ("observation", "tty_colors"): game["tty_colors"].astype(np.uint8),
        ("observation", "tty_cursor"): game["tty_cursor"],
    }
    metadata = {"game": int(name), "points": game["attributes"]["points"], "turns": game["attributes"]["turns"]}
    return Episode(steps, states, metadata=metadata)


@contextmanager
def _served(folder: Path) -> Iterator[Mapping[str, str]]:
    (folder / "hub" / "data").mkdir(parents=True, exist_ok=True)
    link = folder / "hub" / "data" / FILE
    if not link.exists():
        link.hardlink_to(folder / FILE)
    with hub({"Howuhh/katakomba": folder / "hub"}) as server:
        yield {"HF_ENDPOINT": server.url}


def _changed(act: Callable[[h5py.File], object]) -> Callable[[Path], None]:
    """Return a function that changes the open file with `act`."""

    def corrupt(folder: Path) -> None:
        with h5py.File(folder / FILE, "r+") as file:
            act(file)

    return corrupt


def _put(name: str, change: Callable[[np.ndarray], Any]) -> Callable[[Path], None]:
    """Return a function that replaces an array of a game."""

    def act(file: h5py.File) -> None:
        values = change(file[name][()])
        del file[name]
        file.create_dataset(name, data=values)

    return _changed(act)


def _set(row: int, value: Any) -> Callable[[np.ndarray], np.ndarray]:
    def change(values: np.ndarray) -> np.ndarray:
        values = values.astype(np.int8) if values.dtype == bool else values
        values[row] = value
        return values

    return change


FAULTS = {
    "no colors": Fault(_changed(lambda file: file.__delitem__("87/tty_colors")), "game 87: it has no array tty_colors"),
    "fewer actions": Fault(
        _put("1203/actions", lambda v: v[:-1]), "game 1203: actions has 149 rows, rewards has 150 rows"
    ),
    "a screen of another size": Fault(_put("9041/tty_chars", lambda v: v[:, :21]), "in the first game uint8 [24, 80]"),
    "screens of floats": Fault(_put("1203/tty_chars", lambda v: v.astype("f4")), "expected bytes"),
    "screens of one axis": Fault(_put("1203/tty_chars", lambda v: v[:, 0]), "expected 3 axes"),
    "two actions for each key": Fault(
        _put("12/actions", lambda v: np.stack([v, v], 1)), "expected one value for each row"
    ),
    "a negative color": Fault(_put("9041/tty_colors", _set(7, -1)), "game 9041: tty_colors of row 7 is negative"),
    "an end within a game": Fault(
        _put("1203/dones", _set(4, True)), "game 1203: a flag is set at step 4, within an episode"
    ),
    "flags of two": Fault(_put("87/dones", _set(2, 2)), "game 87: dones is 2 at row 2, expected 0 or 1"),
    "no points": Fault(
        _changed(lambda file: file["87"].attrs.__delitem__("points")), "game 87: the attribute points is None"
    ),
    "an array outside of a game": Fault(_changed(lambda file: file.create_dataset("x", data=[1])), "x is an array"),
    "no game": Fault(lambda folder: h5py.File(folder / FILE, "w").close(), "it has no game"),
    "a truncated file": Fault(
        lambda folder: (folder / FILE).write_bytes((folder / FILE).read_bytes()[:3000]), "truncated"
    ),
    "a web page": Fault(
        lambda folder: (folder / FILE).write_bytes(b"<!DOCTYPE html><title>Sorry</title>" * 99), "page"
    ),
}


def _many(folder: Path, size: int) -> None:
    """Write games of 5,000 steps; the size is that of their screens, of which the file has a small part."""
    rng = np.random.default_rng(0)
    game = play(rng, 5000)
    write_file(folder / FILE, {str(number): game for number in range(max(1, size // (5000 * 3850)))})


CASES: Sequence[Case] = [
    Case(
        f"katakomba/{NAME}",
        _written,
        _served,
        faults=FAULTS,
        many=_many,
        small={"datasets_rl.sources.katakomba._SHARD_BYTES": 8_000},
        manifest={"license": "NetHack General Public License"},
    )
]
