"""RL Unplugged's records, with the rewards and actions of an agent that sees a reward with the observation after it."""

from __future__ import annotations

import gzip
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import crc32c
import numpy as np
from raw.case import Case, Fault
from raw.tfrecords import example
from upstreams import bucket

from datasets_rl.ted.episode import Episode

__all__ = ["CASES", "FINGER", "POLE", "RODENT", "Rollout", "draw", "features", "framed", "write_files"]

FINGER = "dm_control_suite_episodes/finger_turn_hard/train"
RODENT = "dm_locomotion_episodes/rodent_gaps/train"
POLE = "rwrl/combined_challenge_easy/cartpole/swingup/1_percent/episodes.tfrecord"
SIZES: Mapping[str, tuple[Mapping[str, int], int]] = {
    FINGER: ({"position": 4, "velocity": 3, "touch": 2, "target_position": 2, "dist_to_target": 1}, 2),
    RODENT: ({"walker/joints_pos": 30, "walker/sensors_gyro": 3, "walker/egocentric_camera": 0}, 38),
    POLE: ({"position": 3, "velocity": 2, "dummy-0": 1, "dummy-9": 1}, 1),
}
"""Sizes of the observations, 0 for a camera, and of the action."""


@dataclass(frozen=True)
class Rollout:
    """An episode of T steps."""

    states: Mapping[str, np.ndarray]
    """[T + 1, ...] each, by name."""
    action: np.ndarray
    reward: np.ndarray
    terminated: bool
    number: int = 0
    more: Mapping[str, Any] = field(default_factory=dict)
    """Other features of the record."""

    def __len__(self) -> int:
        return len(self.reward)


def draw(kind: str, length: int, seed: int, *, terminated: bool = False, **more: Any) -> Rollout:
    """Draw an episode."""
    rng = np.random.default_rng(seed)
    sizes, width = SIZES[kind]
    states: dict[str, np.ndarray] = {}
    for name, size in sizes.items():
        if size:
            states[name] = rng.normal(size=(length + 1, size)).astype(np.float32)
        else:
            small = rng.integers(0, 256, (length + 1, 16, 16, 3), np.uint8)
            states[name] = small.repeat(4, axis=1).repeat(4, axis=2)
    action = rng.uniform(-1, 1, (length, width)).astype(np.float32)
    return Rollout(states, action, rng.random(length, np.float32), terminated, 1_000_000_007 * (seed + 1), more)


def features(kind: str, rollout: Rollout) -> dict[str, Any]:
    """Return the features of the record, with values that mean nothing in the rows of no step."""
    late = kind == POLE
    length = len(rollout)
    void = np.full((1, rollout.action.shape[1]), 7, np.float32)
    discount = np.ones(length + 1, np.float32)
    discount[-1] = 0 if rollout.terminated and length else 1
    made: dict[str, Any] = {
        "action": np.concatenate([void, rollout.action] if late else [rollout.action, void]).ravel().tolist(),
        "reward": [-5.0, *rollout.reward.tolist()],
        "discount": discount.tolist(),
    }
    for name, values in rollout.states.items():
        floats = values.dtype == np.float32
        made[f"observation{':' if late else '/'}{name}"] = (
            values.ravel().tolist() if floats else [one.tobytes() for one in values]
        )
    if not late:
        made["step_type"] = [0.0, *[1.0] * (length - 1), 2.0][: length + 1] if length else [0.0]
        made |= {"episode_id": [rollout.number], "timestamp": [rollout.number // 7]}
    return made | dict(rollout.more)


def episode(kind: str, rollout: Rollout) -> Episode:
    """Return what must be stored of an episode."""
    end = (np.arange(len(rollout)) == len(rollout) - 1)[:, None]
    over = rollout.terminated
    steps: dict[Any, Any] = {
        ("action",): rollout.action,
        ("next", "reward"): rollout.reward[:, None],
        ("next", "discount"): 1 - np.float32(end & over),
        ("next", "terminated"): end & over,
        ("next", "truncated"): end & (not over),
    }
    states: dict[Any, Any] = {("observation", *name.split("/")): values for name, values in rollout.states.items()}
    numbers = {} if kind == POLE else {"episode_id": rollout.number, "timestamp": rollout.number // 7}
    return Episode(steps, states, metadata={name: np.int64(number) for name, number in numbers.items()})


def framed(payload: bytes) -> bytes:
    """Frame a record as `tfrecords.record` does, with a faster implementation of the checksum."""

    def masked(data: bytes) -> bytes:
        crc = crc32c.crc32c(data)
        return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)

    length = struct.pack("<Q", len(payload))
    return length + masked(length) + payload + masked(payload)


def write_files(folder: Path, kind: str, files: Sequence[Sequence[Mapping[str, Any]]]) -> list[Path]:
    """Write the records of each file; those of the real-world RL suite are not compressed."""
    paths = []
    for number, records in enumerate(files):
        paths.append(folder / f"{kind}-{number:05}-of-{len(files):05}")
        paths[-1].parent.mkdir(parents=True, exist_ok=True)
        data = b"".join(framed(example(one)) for one in records)
        paths[-1].write_bytes(data if kind == POLE else gzip.compress(data, 6, mtime=0))
    return paths


def _written(kind: str, files: Sequence[Sequence[tuple[int, bool]]], **more: Any) -> Callable[[Path], list[Episode]]:
    """Return a function that writes files of episodes, each of a length and with or without a termination."""

    def write(folder: Path) -> list[Episode]:
        seeds = iter(range(1000))
        drawn = [[draw(kind, length, next(seeds), terminated=over, **more) for length, over in one] for one in files]
        write_files(folder, kind, [[features(kind, one) for one in some] for some in drawn])
        return [episode(kind, one) for some in drawn for one in some if len(one)]

    return write


@contextmanager
def _served(folder: Path) -> Iterator[Mapping[str, str]]:
    with bucket({"rl_unplugged": folder}) as server:
        yield {"STORAGE_EMULATOR_HOST": server.url}


def _file(folder: Path, kind: str, number: int) -> Path:
    return sorted(folder.glob(f"{kind}-*"))[number]


def _bytes(kind: str, change: Callable[[bytes], bytes], number: int = 0) -> Callable[[Path], object]:
    """Return a function that changes the bytes of a file."""

    def corrupt(folder: Path) -> None:
        path = _file(folder, kind, number)
        path.write_bytes(change(path.read_bytes()))

    return corrupt


def _record(kind: str, number: int = 0, **changes: Any) -> Callable[[Path], object]:
    """Return a function that writes a file with a single record, of which features are changed. None removes a feature."""

    def corrupt(folder: Path) -> None:
        made = features(kind, draw(kind, 5, 99))
        for name, change in changes.items():
            key = name.replace("__", ":" if kind == POLE else "/")
            made[key] = change(made[key]) if callable(change) else change
        data = framed(example({name: values for name, values in made.items() if values is not None}))
        _file(folder, kind, number).write_bytes(data if kind == POLE else gzip.compress(data))

    return corrupt


def _flip(data: bytes) -> bytes:
    at = len(data) // 2
    return data[:at] + bytes([data[at] ^ 255]) + data[at + 1 :]


def _huge(_: bytes) -> bytes:
    """Return a gzip file of 4 MB of zeros after the length of a record."""
    return gzip.compress(framed(bytes((4 << 20) + 1)), 1)


SMALL = {
    "datasets_rl.sources.rl_unplugged._SHARD_BYTES": 3_000,
    "datasets_rl.sources.rl_unplugged.reader._RECORD_MAX_BYTES": 4 << 20,
}
FAULTS = {
    "fewer rewards than steps": Fault(_record(FINGER, reward=lambda v: v[:-1]), "reward has 5 values"),
    "two rewards per step": Fault(_record(FINGER, reward=lambda v: v * 2), "reward has 2 values per step, expected 1"),
    "no discounts": Fault(_record(FINGER, 1, discount=None), "discount is missing"),
    "no actions": Fault(_record(FINGER, action=None), "action is missing"),
    "no observations": Fault(
        _record(FINGER, **dict.fromkeys([f"observation__{name}" for name in SIZES[FINGER][0]])), "it has no feature"
    ),
    "integers for an observation": Fault(
        _record(FINGER, observation__touch=[1] * 12), "observation/touch has integers, expected floats"
    ),
    "another observation in a later file": Fault(
        _record(FINGER, 1, observation__smell=[1.0] * 6), "it has observation/smell, unlike the first record"
    ),
    "an observation of another size in a later file": Fault(
        _record(FINGER, 1, observation__touch=[1.0] * 6),
        "observation/touch is float32 [1] per step, in the first record float32 [2]",
    ),
    "no number in a later file": Fault(_record(FINGER, 1, episode_id=None), "episode_id is not a single integer"),
    "a last step inside": Fault(
        _record(FINGER, step_type=[0.0, 1.0, 2.0, 1.0, 1.0, 2.0]), "step_type is 2 at step 2, expected 1"
    ),
    "no first step": Fault(_record(FINGER, step_type=[1.0] * 6), "step_type is 1 at step 0, expected 0"),
    "a first step at the end": Fault(
        _record(FINGER, step_type=[0.0, *[1.0] * 4, 0.0]), "step_type is 0 at the last step, 5"
    ),
    "a missing file": Fault(lambda folder: _file(folder, FINGER, 2).unlink(), "lacks file 2 of the 4"),
    "a cut file": Fault(_bytes(FINGER, lambda data: data[:-20]), "the gzip stream is truncated"),
    "a changed byte": Fault(_bytes(FINGER, _flip), ""),
    "a web page": Fault(_bytes(FINGER, lambda _: b"<html><title>Access denied</title></html>"), "web page"),
    "a git-LFS pointer": Fault(
        _bytes(FINGER, lambda _: b"version https://git-lfs.github.com/spec/v1\noid x\n"), "git-LFS"
    ),
    "a record of 4 MB in a small file": Fault(_bytes(FINGER, _huge), "expected at most 4,194,304"),
    "files with other names": Fault(
        lambda folder: [path.rename(f"{path}.bak") for path in folder.glob(f"{FINGER}-*")], "has no files of episodes"
    ),
}
FAULTS_RODENT = {
    "images of another size": Fault(
        _record(RODENT, 1, observation__walker__egocentric_camera=[bytes(32 * 32 * 3)] * 6),
        "is uint8 [6, 32, 32, 3], expected uint8 [5, 64, 64, 3]",
    ),
    "images of no square": Fault(
        _record(RODENT, observation__walker__egocentric_camera=[bytes(100)] * 6), "has images of 100 bytes"
    ),
    "fewer images than steps": Fault(
        _record(RODENT, observation__walker__egocentric_camera=[bytes(12288)] * 5), "has 5 images for 6 steps"
    ),
}
FAULTS_POLE = {
    "a changed byte": Fault(
        _bytes(POLE, lambda data: data[:-9] + bytes([data[-9] ^ 1]) + data[-8:]), "does not match the CRC32C"
    ),
    "a changed length": Fault(_bytes(POLE, lambda data: b"\1" + data[1:]), "it is not a TFRecord or gzip file"),
    "a cut file": Fault(_bytes(POLE, lambda data: data[:-5]), "is truncated"),
    "actions of another length": Fault(_record(POLE, action=lambda v: v[:-1]), "action has 5 values"),
}


def _many(kind: str, length: int, files: int) -> Callable[[Path, int], None]:
    """Return a function that writes files of two episodes again and again."""

    def write(folder: Path, size: int) -> None:
        records = [framed(example(features(kind, draw(kind, length, seed)))) for seed in range(2)]
        packed = sum(len(one if kind == POLE else gzip.compress(one, 6)) for one in records) / 2
        count = max(files, round(size / packed))
        for number in range(files):
            path = folder / f"{kind}-{number:05}-of-{files:05}"
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("wb") if kind == POLE else gzip.open(path, "wb", 6) as out:
                for one in range(number, count, files):
                    out.write(records[one % 2])

    return write


CASES = [
    Case(
        "rl_unplugged/control_suite/finger_turn_hard",
        _written(FINGER, [[(7, True), (1, False), (0, False)], [(12, False)], [], [(3, True), (5, False)]]),
        _served,
        faults=FAULTS,
        many=_many(FINGER, 1000, 4),
        manifest={"license": "CC BY 4.0", "time_limit": 1000},
        small=SMALL,
    ),
    Case(
        "rl_unplugged/locomotion/rodent_gaps",
        _written(RODENT, [[(9, True), (4, False)], [(1, True)]]),
        _served,
        faults=FAULTS_RODENT,
        many=_many(RODENT, 700, 4),
        small=SMALL,
    ),
    Case(
        "rl_unplugged/rwrl/cartpole_swingup_easy_1_percent",
        _written(POLE, [[(8, False), (8, False)], [(8, True)]]),
        _served,
        faults=FAULTS_POLE,
        many=_many(POLE, 1000, 3),
        small=SMALL | {"datasets_rl.sources.rl_unplugged._SHARD_BYTES": 1_000},
    ),
]
