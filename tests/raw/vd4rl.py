"""V-D4RL's files: rollouts of a double pole in MuJoCo, in the formats of DreamerV2 and DrQ-v2."""

from __future__ import annotations

import io
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import h5py
import mujoco
import numpy as np
from raw.case import Case, Fault
from upstreams import hub

from datasets_rl.ted.episode import Episode

__all__ = ["CASES", "Rollout", "as_npz", "episode", "roll", "write_npz", "write_shards"]

EPISODES_64 = "main/walker_walk/random/64px"
EPISODES_84 = "main/cheetah_run/medium/84px"
_MODEL = """
<mujoco><option timestep="0.005"/><default><joint damping="0.5"/></default><worldbody>
<body><joint name="a" type="hinge" axis="0 1 0"/>
<geom type="capsule" fromto="0 0 0 0 0 .5" size=".05"/><body pos="0 0 .5"><joint name="b" type="hinge" axis="0 1 0"/>
<geom type="capsule" fromto="0 0 0 0 0 .4" size=".05"/></body></body></worldbody>
<actuator><motor joint="a"/><motor joint="b"/></actuator></mujoco>
"""


@dataclass(frozen=True)
class Rollout:
    """A rollout of the control suite: R observations, with the preceding action and reward for all but the first."""

    pixels: np.ndarray
    """[R, H, W, 3], uint8."""
    action: np.ndarray
    reward: np.ndarray
    discount: np.ndarray
    state: Mapping[str, np.ndarray]
    """[R, ...]: the observations of the task other than images."""

    def __len__(self) -> int:
        return len(self.reward)


def roll(rows: int = 501, size: int = 64, seed: int = 0, *, terminal: bool = False) -> Rollout:
    """Simulate a double pole with random torques."""
    rng = np.random.default_rng(seed)
    model = mujoco.MjModel.from_xml_string(_MODEL)
    data = mujoco.MjData(model)
    data.qpos[:] = rng.normal(size=2)
    pixels = np.empty((rows, size, size, 3), np.uint8)
    action = rng.uniform(-1, 1, (rows, 2)).astype(np.float32)
    reward = np.zeros(rows, np.float32)
    state = {"height": np.empty(rows, np.float32), "orientations": np.empty((rows, 4), np.float32)}
    action[0] = 0  # a reset of the control suite has neither an action nor a reward
    for row in range(rows):
        if row:
            data.ctrl[:] = action[row]
            mujoco.mj_step(model, data, 4)
            reward[row] = (1 + np.cos(data.qpos[0])) / 2
        else:
            mujoco.mj_forward(model, data)
        tips = data.geom_xpos[:, [0, 2]]
        pixels[row] = _drawn(tips, size)
        state["height"][row] = tips[1, 1]
        state["orientations"][row] = np.concatenate([np.cos(data.qpos), np.sin(data.qpos)])
    discount = np.ones(rows, np.float32)
    discount[-1] = 0 if terminal else 1
    return Rollout(pixels, action, reward, discount, state)


def _drawn(tips: np.ndarray, size: int) -> np.ndarray:
    """Draw discs on a striped floor."""
    grid = np.linspace(-1, 1, size)
    image = np.empty((size, size, 3), np.uint8)
    image[:] = (np.arange(size) // 8 % 2 * 40 + 60)[:, None, None]
    for number, (x, z) in enumerate(tips):
        inside = (grid[None, :] - x) ** 2 + (grid[:, None] + z) ** 2 < 0.05
        image[inside] = [200, 90 * number, int(127 + 120 * x)]
    return image


def episode(
    rollout: Rollout, *, first: bool = True, terminal: bool = False, chw: bool = False, **facts: Any
) -> Episode:
    """Return the trajectory that must be stored, computed from the rollout."""
    steps = len(rollout) - 1
    end = np.arange(steps) == steps - 1
    never = np.zeros(steps, bool)
    pixels = rollout.pixels.transpose(0, 3, 1, 2) if chw else rollout.pixels
    states = {"discount": rollout.discount, **rollout.state}
    return Episode(
        {
            ("action",): rollout.action[1:],
            ("next", "reward"): rollout.reward[1:, None],
            ("next", "terminated"): (end if terminal else never)[:, None],
            ("next", "truncated"): (never if terminal else end)[:, None],
            ("is_init",): (np.arange(steps) == 0) & first,
        },
        {("pixels",): pixels, **{("state", name): values for name, values in states.items()}},
        metadata=facts,
    )


def as_npz(rollout: Rollout, *, terminal: bool = False, **arrays: Any) -> dict[str, np.ndarray]:
    """Return the arrays of DreamerV2's file; an array that is None is left out."""
    rows = np.arange(len(rollout))
    made = {
        "image": rollout.pixels,
        "action": rollout.action,
        "reward": rollout.reward,
        "discount": rollout.discount,
        "is_first": rows == 0,
        "is_last": rows == rows[-1],
        "is_terminal": (rows == rows[-1]) & terminal,
        **rollout.state,
        **arrays,
    }
    return {name: values for name, values in made.items() if values is not None}


def write_npz(folder: Path, arrays: Mapping[str, Any], number: int = 0, rows: int | None = None) -> Path:
    """Write an episode as DreamerV2 does, to ``<time>-<uuid>-<rows>.npz``."""
    folder.mkdir(parents=True, exist_ok=True)
    time = f"20220601T12{number // 60:02}{number % 60:02}"
    length = len(arrays["action"]) if rows is None else rows
    path = folder / f"{time}-{uuid.uuid5(uuid.NAMESPACE_URL, str(number)).hex}-{length}.npz"
    with io.BytesIO() as out:
        np.savez_compressed(out, **arrays)
        path.write_bytes(out.getvalue())
    return path


def write_shards(folder: Path, rollouts: Sequence[Rollout], split: int, **columns: Any) -> None:
    """Write rows as DrQ-v2 does: `array_split` divides them into `split` files, regardless of episodes."""
    folder.mkdir(parents=True, exist_ok=True)
    kinds = []
    for one in rollouts:
        kind = np.ones(len(one))
        kind[0], kind[-1] = 0, 2
        kinds.append(kind)
    whole = {
        "action": np.concatenate([one.action for one in rollouts]),
        "discount": np.concatenate([one.discount for one in rollouts]).astype(np.float64),
        "observation": np.concatenate([one.pixels.transpose(0, 3, 1, 2) for one in rollouts]),
        "reward": np.concatenate([one.reward for one in rollouts]),
        "step_type": np.concatenate(kinds),
        **columns,
    }
    for number in range(split):
        with h5py.File(folder / f"{number}.hdf5", "w") as file:
            for name, values in whole.items():
                file.create_dataset(name, data=np.array_split(values, split)[number], compression="gzip")


def _episodes_64(folder: Path) -> list[Episode]:
    """Write episodes of 64 pixels: of the usual length, terminated, truncated, and without is_terminal."""
    place = folder / "vd4rl" / EPISODES_64
    made = [roll(501, seed=0), roll(40, seed=1, terminal=True), roll(500, seed=2), roll(30, seed=3)]
    write_npz(place, as_npz(made[0]), 0)
    write_npz(place, as_npz(made[1], terminal=True, discount=made[1].discount.astype(np.float64)), 1)
    flags = np.arange(501)
    write_npz(place, as_npz(made[2], is_first=flags == 0, is_last=flags == 500, is_terminal=flags < 0), 2)
    write_npz(place, as_npz(made[3], is_terminal=None), 3)
    # A folder of a path with the same prefix is another dataset.
    write_npz(place / "more", as_npz(roll(3, seed=9)), 4)
    return [episode(one, terminal=n == 1, source=np.int64(n)) for n, one in enumerate(made)]


def _episodes_84(folder: Path) -> list[Episode]:
    """Write three episodes in eleven files; each episode is split between files, and 10.hdf5 comes last."""
    made = [replace(roll(rows, 84, seed), state={}) for seed, rows in enumerate((40, 25, 33))]
    write_shards(folder / "vd4rl" / EPISODES_84, made, 11)
    return [episode(one, chw=True, source=np.int64(number)) for number, one in enumerate(made)]


def _many_64(folder: Path, size: int) -> None:
    """Write about `size` bytes of episodes of 64 pixels."""
    one = as_npz(_noisy(min(501, size // 5_000), 64, 0))
    path = write_npz(folder / "vd4rl" / EPISODES_64, one, 0)
    for number in range(1, max(2, size // path.stat().st_size)):
        write_npz(path.parent, one, number)


def _many_84(folder: Path, size: int) -> None:
    """Write about `size` bytes of rows of 84 pixels in three files."""
    rollouts = [replace(_noisy(min(501, size // 5_000), 84, 0), state={})]
    place = folder / "vd4rl" / EPISODES_84
    write_shards(place, rollouts, 1)
    count = max(2, size // (place / "0.hdf5").stat().st_size)
    write_shards(place, rollouts * count, 3)


def _noisy(rows: int, size: int, seed: int) -> Rollout:
    """Return a rollout with images that compress like real images, to about 5 kB each."""
    made = roll(rows, size, seed)
    rng = np.random.default_rng(seed)
    noise = rng.integers(0, 6, made.pixels.shape, dtype=np.uint8)
    return replace(made, pixels=made.pixels + noise)


@contextmanager
def _served(folder: Path) -> Iterator[Mapping[str, str]]:
    """Serve the files from the repository of the Hub."""
    with hub({"conglu/vd4rl": folder}, page=50) as server:
        yield {"HF_ENDPOINT": server.url}


def _npz(number: int, **arrays: Any) -> Any:
    """Return a function that replaces the npz file of an episode by a corrupted file."""

    def corrupt(folder: Path) -> None:
        path = sorted((folder / "vd4rl" / EPISODES_64).glob("*.npz"))[number]
        with np.load(path) as file:
            there = {name: file[name] for name in file.files}
        there.update(arrays)
        with path.open("wb") as out:
            np.savez_compressed(out, **{name: values for name, values in there.items() if values is not None})

    return corrupt


def _hdf5(number: int, name: str, change: Any) -> Any:
    """Return a function that changes or removes a dataset of an HDF5 file."""

    def corrupt(folder: Path) -> None:
        with h5py.File(folder / "vd4rl" / EPISODES_84 / f"{number}.hdf5", "a") as file:
            values = change(file[name][()])
            del file[name]
            if values is not None:
                file.create_dataset(name, data=values, compression="gzip")

    return corrupt


def _bytes(pattern: str, change: Any, number: int = 0) -> Any:
    """Return a function that changes the bytes of a file."""

    def corrupt(folder: Path) -> None:
        path = sorted((folder / "vd4rl").rglob(pattern))[number]
        path.write_bytes(change(path.read_bytes()))

    return corrupt


def _renamed(folder: Path) -> None:
    """Rename a file so that its name states another number of rows."""
    path = sorted((folder / "vd4rl" / EPISODES_64).glob("*.npz"))[1]
    path.rename(path.with_name(path.name.replace("-40.npz", "-41.npz")))


def _flip(data: bytes) -> bytes:
    """Invert the byte in the middle."""
    at = len(data) // 2
    return data[:at] + bytes([data[at] ^ 255]) + data[at + 1 :]


def _pickled(values: Sequence[Any]) -> np.ndarray:
    """Return an array of Python objects."""
    out = np.empty(len(values), object)
    out[:] = list(values)
    return out


_LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 12\n"
_PAGE = b"<html><title>Rate limited</title></html>"
_rows = np.arange(40)
FAULTS_64 = {
    "rows that differ from key to key": Fault(
        _npz(1, reward=np.zeros(39, np.float32)), "reward has 39 rows, but image has 40"
    ),
    "two more flags than images": Fault(_npz(1, is_last=np.zeros(42, bool)), "is_last has 42 rows"),
    "another number of rows than the name states": Fault(_renamed, "it has 40 rows, but the name states 41"),
    "a first row that is not marked": Fault(_npz(1, is_first=_rows < 0), "row 0 is not marked as the first row"),
    "two first rows": Fault(_npz(1, is_first=_rows % 20 == 0), "row 20 is marked as the first row, like row 0"),
    "a last row that is not marked": Fault(
        _npz(1, is_last=_rows < 0, is_terminal=_rows < 0), "is not marked as the last"
    ),
    "a last row inside": Fault(_npz(1, is_last=_rows % 39 == 1), "row 1 of 40 is marked as the last row"),
    "a terminal row inside": Fault(_npz(1, is_terminal=_rows == 4), "row 4 is marked terminal, but not last"),
    "flags that are not flags": Fault(_npz(1, is_last=_rows.astype("f4")), "is_last has values other than 0 and 1"),
    "images of floats": Fault(_npz(0, image=np.zeros((501, 64, 64, 3), "f4")), "expected uint8 [H, W, 3]"),
    "images of another size": Fault(
        _npz(1, image=np.zeros((40, 32, 32, 3), "u1")), "in the first file uint8 [64, 64, 3]"
    ),
    "actions of another size": Fault(
        _npz(1, action=np.zeros((40, 5), "f4")), "action is float32 [5], in the first file"
    ),
    "a missing column": Fault(_npz(1, height=None), "it has no state.height, unlike the first file"),
    "no images": Fault(_npz(0, image=None), "it has no array image"),
    "Python objects": Fault(_npz(0, action=_pickled([print] * 501)), "action has Python objects"),
    "a cut file": Fault(_bytes("*.npz", lambda data: data[:-100]), ""),
    "a changed byte": Fault(_bytes("*.npz", _flip), ""),
    "a git-LFS pointer": Fault(_bytes("*.npz", lambda _: _LFS), "git-LFS pointer"),
    "a web page": Fault(_bytes("*.npz", lambda _: _PAGE), "web page"),
}
FAULTS_84 = {
    "rows that differ from key to key": Fault(
        _hdf5(3, "reward", lambda v: v[:-1]), "reward has 8 rows, but observation has 9"
    ),
    "no reset at the start": Fault(_hdf5(0, "step_type", lambda v: np.maximum(v, 1)), "row 0 is not a reset"),
    "an episode that continues after its end": Fault(
        _hdf5(1, "step_type", lambda v: np.where(np.arange(len(v)) == 3, 2, v)),
        "row 4 is not a reset, but the previous row is",
    ),
    "a reset inside an episode": Fault(
        _hdf5(1, "step_type", lambda v: np.where(np.arange(len(v)) == 3, 0, v)),
        "row 3 is a reset, but the previous row is not",
    ),
    "files that do not follow each other": Fault(
        _hdf5(2, "step_type", lambda v: np.where(np.arange(len(v)), v, 0)), "(the previous row is in 1.hdf5)"
    ),
    "rows of another kind": Fault(_hdf5(1, "step_type", lambda v: v + 7), "row 0 has step_type 8"),
    "images of floats": Fault(_hdf5(0, "observation", lambda v: v.astype("f4")), "expected uint8"),
    "a missing column": Fault(_hdf5(4, "discount", lambda _: None), "it has no dataset discount"),
    "a cut file": Fault(_bytes("*.hdf5", lambda data: data[:-100]), ""),
    "a git-LFS pointer": Fault(_bytes("*.hdf5", lambda _: _LFS), "git-LFS pointer"),
    "a web page": Fault(_bytes("*.hdf5", lambda _: _PAGE), "web page"),
}
CASES = [
    Case(
        f"vd4rl/{EPISODES_64}",
        _episodes_64,
        _served,
        faults=FAULTS_64,
        many=_many_64,
        manifest={"license": "MIT", "time_limit": 500},
        plain={"totensor": False},
        small={"datasets_rl.sources.vd4rl._SHARD_BYTES": 100_000},
    ),
    Case(
        f"vd4rl/{EPISODES_84}",
        _episodes_84,
        _served,
        faults=FAULTS_84,
        many=_many_84,
        manifest={"license": "MIT"},
        plain={"totensor": False},
        small={"datasets_rl.sources.vd4rl._SHARD_BYTES": 30_000},
    ),
]
