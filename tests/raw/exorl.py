"""ExORL's zip files: episodes as its replay buffer writes them, and videos beside them."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from raw.case import Case, Fault
from raw.damage import changed_bytes, flip_middle_byte, python_objects
from servers import serve

from datasets_rl.ted.episode import Episode

__all__ = ["CASES", "MAZE", "WALKER", "arrays_of", "draw", "episode", "npz", "write_zip"]

WALKER, MAZE = "walker/rnd.zip", "point_mass_maze/aps.zip"
SIZES = {WALKER: (24, 6, 18, 1), MAZE: (4, 2, 4, 4)}
"""Sizes of the observation, the action and the physics, and the number of rewards."""
LENGTHS = (40, 1, 0, 25, 30, 7, 12, 9, 3, 5, 2)
"""Steps of the episodes; number 10 is after number 9, and the episode without a step is left out."""

Rows = dict[str, np.ndarray]


def draw(kind: str, length: int, seed: int, *, terminated: bool = False) -> Rows:
    """Draw an episode: T steps, with T + 1 observations and states of the simulator."""
    rng = np.random.default_rng(seed)
    observation, action, physics, rewards = SIZES[kind]
    made: Rows = {
        "observation": rng.normal(size=(length + 1, observation)).astype(np.float32),
        "physics": rng.normal(size=(length + 1, physics)),
        "action": rng.uniform(-1, 1, (length, action)).astype(np.float32),
        "reward": rng.random((length, rewards), np.float32),
        "discount": np.ones((length, 1), np.float32),
    }
    if kind == MAZE:
        made["task"] = rng.normal(size=(length, 10)).astype(np.float32)
    made["discount"][-1:] = 0 if terminated else 1
    return made


def arrays_of(rows: Rows) -> Rows:
    """Return the arrays of a file, with the reset as row 0, with values that mean nothing."""
    reset = {"action": 7, "reward": 7, "discount": 1, "task": 7}
    return {
        name: np.concatenate(
            [np.full_like(values[:1], reset[name]) if len(values) else _row(values, reset[name]), values]
        )
        if name in reset
        else values
        for name, values in rows.items()
    }


def _row(values: np.ndarray, value: float) -> np.ndarray:
    return np.full((1, *values.shape[1:]), value, values.dtype)


def episode(kind: str, rows: Rows, number: int) -> Episode:
    """Return what must be stored of an episode."""
    end = (np.arange(len(rows["action"])) == len(rows["action"]) - 1)[:, None]
    over = rows["discount"][-1] == 0
    steps: dict[Any, Any] = {
        ("action",): rows["action"],
        ("next", "reward"): rows["reward"][:, :1],
        ("next", "discount"): rows["discount"],
        ("next", "terminated"): end & over,
        ("next", "truncated"): end & ~over,
    }
    if kind == MAZE:
        steps |= {("next", "task_reward"): rows["reward"], ("meta", "task"): rows["task"]}
    states: dict[Any, Any] = {("observation",): rows["observation"], ("info", "physics"): rows["physics"]}
    return Episode(steps, states, metadata={"episode_id": np.int64(number)})


def npz(arrays: Mapping[str, Any]) -> bytes:
    """Return a compressed npz file."""
    with io.BytesIO() as file:
        np.savez_compressed(file, **arrays)
        return file.getvalue()


def write_zip(path: Path, files: Mapping[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> None:
    """Write a zip file of always the same bytes, in the order of a directory listing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, data in files.items():
            archive.writestr(zipfile.ZipInfo(name, (2022, 2, 1, 0, 0, 0)), data, method)


def _files(drawn: Sequence[Rows]) -> dict[str, bytes]:
    named = {f"buffer/episode_{n}_{len(one['action'])}.npz": npz(arrays_of(one)) for n, one in enumerate(drawn)}
    # A directory lists 10 before 2, and other files are beside the episodes.
    return {"buffer/": b"", "video/0.mp4": b"not read", "buffer/.part_1_1.npz": b"", **dict(sorted(named.items()))}


def _written(kind: str, method: int = zipfile.ZIP_DEFLATED) -> Callable[[Path], list[Episode]]:
    def write(folder: Path) -> list[Episode]:
        drawn = [draw(kind, length, n, terminated=n in {0, 4}) for n, length in enumerate(LENGTHS)]
        write_zip(folder / kind, _files(drawn), method)
        return [episode(kind, one, n) for n, one in enumerate(drawn) if len(one["action"])]

    return write


@contextmanager
def _served(folder: Path) -> Iterator[Mapping[str, str]]:
    files = {f"/{path.relative_to(folder).as_posix()}": path for path in folder.rglob("*.zip")}
    with serve(files) as server:
        yield {"RLDS_MIRRORS": f"exorl={server.url}"}


def _edit(number: int = 3, name: str = "", **changes: Any) -> Callable[[Path], None]:
    """Return a function that changes arrays of an episode, or renames it; None removes an array."""

    def corrupt(folder: Path) -> None:
        path = folder / WALKER
        with zipfile.ZipFile(path) as archive:
            files = {one: archive.read(one) for one in archive.namelist()}
        (at,) = (one for one in files if one.startswith(f"buffer/episode_{number}_"))
        with np.load(io.BytesIO(files.pop(at))) as file:
            arrays = dict(file)
        for key, change in changes.items():
            arrays[key] = change(arrays[key]) if callable(change) else change
        files[name or at] = npz({key: values for key, values in arrays.items() if values is not None})
        write_zip(path, files)

    return corrupt


def _bomb(folder: Path) -> None:
    """Write an episode of 3 MB of zeros, which takes 3 kB."""
    write_zip(folder / WALKER, {"buffer/episode_0_1.npz": bytes(3_000_000)})


def _inner_bomb(folder: Path) -> None:
    """Write an episode with an array of 6 MB of zeros."""
    data = npz({"observation": np.zeros((2, 400_000)), "action": np.zeros((2, 1)), "reward": 0, "discount": 0})
    write_zip(folder / WALKER, {"buffer/episode_0_1.npz": data})


FAULTS = {
    "no actions": Fault(_edit(action=None), "it has no array action"),
    "no discounts": Fault(_edit(0, discount=None), "it has no array discount"),
    "fewer rewards": Fault(_edit(reward=lambda v: v[:-1]), "reward has 25 rows, but observation has 26"),
    "another number of steps in the name": Fault(
        _edit(name="buffer/episode_3_24.npz"), "it has 26 rows, but the 24 steps in the name need 25"
    ),
    "observations of another size": Fault(
        _edit(observation=lambda v: v[:, 1:]), "observation is float32 [23], in the first episode float32 [24]"
    ),
    "no physics in a later episode": Fault(_edit(physics=None), "it has no info.physics, unlike the first episode"),
    "two discounts": Fault(_edit(discount=lambda v: np.hstack([v, v])), "expected one number for each row"),
    "integer rewards": Fault(_edit(reward=lambda v: v.astype(int)), "expected floats"),
    "text for actions": Fault(_edit(action=lambda v: v.astype("S4")), "expected numbers of at most 64 bits"),
    "Python objects": Fault(_edit(0, action=python_objects), "expected numbers of at most 64 bits"),
    "a single value": Fault(_edit(action=np.float32(1)), "expected a row for each observation"),
    "no episodes": Fault(
        lambda folder: write_zip(folder / WALKER, {"video/0.mp4": b"0"}), "no file with the name of an episode"
    ),
    "an episode of 3 MB": Fault(_bomb, "has 3,000,000 bytes, expected at most 2,097,152"),
    "an array of 6 MB": Fault(_inner_bomb, "expected at most 2,097,152"),
    "a cut file": Fault(changed_bytes(WALKER, lambda data: data[:-100]), "damaged or truncated"),
    "a changed byte": Fault(changed_bytes(WALKER, flip_middle_byte), ""),
    "a web page": Fault(changed_bytes(WALKER, lambda _: b"<html><title>Moved</title></html>"), "web page"),
    "an error of the bucket": Fault(
        changed_bytes(WALKER, lambda _: b"<?xml version='1.0'?><Error>AccessDenied</Error>"), "XML document"
    ),
}


def _many(folder: Path, size: int) -> None:
    """Write two episodes of a thousand steps again and again."""
    few = [npz(arrays_of(draw(WALKER, 1000, n))) for n in range(2)]
    count = max(2, size // len(few[0]))
    write_zip(
        folder / WALKER, {f"buffer/episode_{n:06}_1000.npz": few[n % 2] for n in range(count)}, zipfile.ZIP_STORED
    )


CASES = [
    Case(
        "exorl/walker/rnd",
        _written(WALKER),
        _served,
        faults=FAULTS,
        many=_many,
        manifest={"time_limit": 1000},
        small={
            "datasets_rl.sources.exorl._SHARD_BYTES": 12_000,
            "datasets_rl.sources.exorl.reader._FILE_MAX_BYTES": 2 << 20,
        },
    ),
    Case("exorl/point_mass_maze/aps", _written(MAZE, zipfile.ZIP_STORED), _served),
]
