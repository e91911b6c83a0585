"""OGBench's files, as its generators write them: flat arrays of all episodes, with a row more than steps in each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from raw.case import Case, Fault
from raw.damage import changed_arrays, changed_bytes, flip_middle_byte, python_objects
from servers import serve
from upstreams import hub

from datasets_rl.ted.episode import Episode

__all__ = ["CASES", "SCENE", "draw", "write_file"]

SCENE = "scene-play-v0.npz"
SCENE_GOAL = {"cube": (0.4, 0.15, 0.02), "buttons": (1, 1), "drawer": -0.16, "window": 0.0}
LARGE = "humanoidmaze-giant-navigate-100m-v0"
POWDER = "powderworld-easy-play-v0-val.npz"
CUBE = "visual-cube-single-play-v0.npz"
LENGTHS = (7, 3, 0, 12, 1)
"""Numbers of steps of the episodes; the episode without a step has a row, and is left out."""


def draw(rng: np.random.Generator, length: int, *, kind: str = "scene") -> dict[str, np.ndarray]:
    """Generate the rows of an episode, [length + 1, ...] each."""
    rows = length + 1
    if kind == "powder":
        return {
            "observations": rng.integers(0, 256, (rows, 32, 32, 6), np.uint8),
            "actions": rng.integers(0, 64, rows).astype(np.int32),
        }
    sizes = {"scene": (40, 5, 25, 2), "humanoid": (69, 21, 28, 0), "cube": (0, 5, 21, 0)}
    width, action, joints, buttons = sizes[kind]
    arrays: dict[str, np.ndarray] = {
        "observations": rng.normal(size=(rows, width)).astype(np.float32),
        "actions": rng.uniform(-1, 1, (rows, action)).astype(np.float32),
        "qpos": rng.normal(size=(rows, joints)).astype(np.float32),
        "qvel": rng.normal(size=(rows, joints - 1)).astype(np.float32),
    }
    if kind == "cube":
        small = rng.integers(0, 256, (rows, 8, 8, 3), np.uint8)
        arrays["observations"] = small.repeat(8, axis=1).repeat(8, axis=2)
    if buttons:
        arrays["button_states"] = (rng.random((rows, buttons)) < 0.7).astype(np.int64)
        solved = rng.random(rows) < 0.5
        arrays["qpos"][solved, 14:17] = SCENE_GOAL["cube"]
        arrays["qpos"][solved, 23] = -0.13
        arrays["qpos"][:, 24] = np.where(rng.random(rows) < 0.7, 0.02, 0.1)
    return arrays


def write_file(path: Path, episodes: Sequence[Mapping[str, np.ndarray]], flag: Any = bool) -> None:
    """Write the rows of all episodes back to back, with `terminals` in the last row of each."""
    path.parent.mkdir(parents=True, exist_ok=True)
    joined = {name: np.concatenate([one[name] for one in episodes]) for name in episodes[0]}
    ends = np.concatenate([np.arange(len(one["actions"])) == len(one["actions"]) - 1 for one in episodes])
    np.savez_compressed(path, terminals=ends.astype(flag), **joined)


def episode(arrays: Mapping[str, np.ndarray], file: int = 0, rewards: Callable[..., Any] | None = None) -> Episode:
    """Return what must be stored of the rows of an episode."""
    length = len(arrays["actions"]) - 1
    end = (np.arange(length) == length - 1)[:, None]
    actions = arrays["actions"][:length].reshape(length, -1)
    steps: dict[Any, Any] = {
        ("action",): actions,
        ("next", "reward"): np.zeros((length, 1), np.float32),
        ("next", "terminated"): np.zeros_like(end),
        ("next", "truncated"): end,
    }
    if rewards is not None:
        made = np.array([rewards(arrays, row) for row in range(length)], np.float32)
        steps |= {("next", "reward"): made[:, :1], ("next", "mask"): made[:, 1:]}
    states: dict[Any, Any] = {("observation",): arrays["observations"]}
    states |= {("info", name): arrays[name] for name in ("qpos", "qvel", "button_states") if name in arrays}
    return Episode(steps, states, metadata={"file": np.int64(file)})


def scene_reward(arrays: Mapping[str, np.ndarray], row: int) -> tuple[float, float]:
    """Return the reward and the mask of the third task of the scene in a row."""
    joints = arrays["qpos"][row]
    distance = sum((float(at) - to) ** 2 for at, to in zip(joints[14:17], SCENE_GOAL["cube"], strict=True)) ** 0.5
    reached = [distance <= 0.04]
    reached += [bool(at == to) for at, to in zip(arrays["button_states"][row], SCENE_GOAL["buttons"], strict=True)]
    reached += [
        abs(float(joints[23]) - SCENE_GOAL["drawer"]) <= 0.04,
        abs(float(joints[24]) - SCENE_GOAL["window"]) <= 0.04,
    ]
    return sum(reached) - 5, float(not all(reached))


def _written(path: str, kind: str, flag: Any = bool, rewards: Callable[..., Any] | None = None) -> Any:
    def write(folder: Path) -> list[Episode]:
        rng = np.random.default_rng(3)
        drawn = [draw(rng, length, kind=kind) for length in LENGTHS]
        write_file(folder / path, drawn, flag)
        return [episode(one, rewards=rewards) for one in drawn if len(one["actions"]) > 1]

    return write


def _written_large(folder: Path) -> list[Episode]:
    rng = np.random.default_rng(4)
    episodes = []
    for file in range(2):
        drawn = [draw(rng, length, kind="humanoid") for length in (5, 2 + file)]
        write_file(folder / LARGE / f"humanoidmaze-giant-navigate-v0-{file:03}.npz", drawn)
        episodes += [episode(one, file) for one in drawn]
    return episodes


@contextmanager
def _served(folder: Path) -> Iterator[Mapping[str, str]]:
    with serve({f"/{path.name}": path for path in folder.glob("*.npz")}) as server:
        yield {"RLDS_MIRRORS": f"ogbench={server.url}"}


@contextmanager
def _served_by_hub(folder: Path) -> Iterator[Mapping[str, str]]:
    with hub({"zhouzypaul/ogbench_datasets": folder}) as server:
        yield {"HF_ENDPOINT": server.url}


FAULTS = {
    "no end in the last row": Fault(
        changed_arrays(SCENE, terminals=lambda v: v & (np.arange(len(v)) < len(v) - 1)), "terminals of the last row"
    ),
    "no end at all": Fault(changed_arrays(SCENE, terminals=np.zeros_like), "terminals of the last row"),
    "flags of two": Fault(changed_arrays(SCENE, terminals=lambda v: v * 2.0), "expected 0 or 1"),
    "flags of two axes": Fault(changed_arrays(SCENE, terminals=lambda v: v[:, None]), "one flag for each row"),
    "fewer actions": Fault(
        changed_arrays(SCENE, actions=lambda v: v[:-1]), "actions has 27 rows, terminals has 28 rows"
    ),
    "no observations": Fault(changed_arrays(SCENE, observations=None), "it has no array observations"),
    "no joints": Fault(changed_arrays(SCENE, qpos=None), "it has no array qpos, from which the rewards"),
    "joints of another robot": Fault(changed_arrays(SCENE, qpos=lambda v: v[:, 1:]), "the task needs 25 elements"),
    "more buttons": Fault(
        changed_arrays(SCENE, button_states=lambda v: np.hstack([v, v])), "the task needs 2 elements"
    ),
    "observations of one axis": Fault(
        changed_arrays(SCENE, observations=lambda v: v[:, 0]), "observations is float32 [28]"
    ),
    "text for actions": Fault(changed_arrays(SCENE, actions=lambda v: v.astype("S4")), "actions has dtype |S4"),
    "Python objects": Fault(changed_arrays(SCENE, actions=python_objects), "actions"),
    "a truncated file": Fault(changed_bytes(SCENE, lambda data: data[:-100]), ""),
    "a changed byte": Fault(
        changed_bytes(SCENE, flip_middle_byte),
        "",
    ),
    "a web page": Fault(
        changed_bytes(SCENE, lambda _: b"<!DOCTYPE html><html><title>Moved</title></html>"), "web page"
    ),
    "a git-LFS pointer": Fault(
        changed_bytes(SCENE, lambda _: b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n"), "git-LFS"
    ),
}
LARGE_FILE = f"{LARGE}/humanoidmaze-giant-navigate-v0-001.npz"
FAULTS_LARGE = {
    "another robot in the second file": Fault(
        changed_arrays(LARGE_FILE, observations=lambda v: v[:, 1:]),
        "observation is float32 [68], in the first file float32 [69]",
    ),
    "fewer arrays in the second file": Fault(
        changed_arrays(LARGE_FILE, qvel=None), "it has no info.qvel, unlike the first file"
    ),
}


def _many(path: str, kind: str, row_bytes: int, length: int) -> Callable[[Path, int], None]:
    def write(folder: Path, size: int) -> None:
        rng = np.random.default_rng(0)
        few = [draw(rng, length, kind=kind) for _ in range(2)]
        count = max(1, size // (row_bytes * (length + 1)))
        write_file(folder / path, [few[number % 2] for number in range(count)])

    return write


CASES: Sequence[Case] = [
    Case(
        "ogbench/scene-play-singletask-task3-v0",
        _written(SCENE, "scene", rewards=scene_reward),
        _served,
        faults=FAULTS,
        many=_many(SCENE, "scene", 4 * (40 + 5 + 25 + 24) + 16, 200),
    ),
    Case(f"ogbench/{LARGE}", _written_large, _served_by_hub, faults=FAULTS_LARGE),
    Case("ogbench/powderworld-easy-play-v0-val", _written(POWDER, "powder", np.int32), _served),
    Case(
        "ogbench/visual-cube-single-play-v0",
        _written(CUBE, "cube"),
        _served,
        many=_many(CUBE, "cube", 64 * 64 * 3 + 4 * 46, 100),
    ),
]
