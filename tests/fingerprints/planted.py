"""Copies of episodes, planted in data of eight kinds, and the episodes of other seeds, which are no copies.

python tests/fingerprints/planted.py [--episodes N] [--strangers N] [--write]

The table says what share of the copies is found. `--write` puts it into docs/identity.md.
"""

from __future__ import annotations

import argparse
import hashlib
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from datasets_rl.build.conversion import specs_of_schema
from datasets_rl.format.manifest import Manifest
from datasets_rl.format.reader import StoredDataset
from datasets_rl.format.schema import END_COLUMNS, Column
from datasets_rl.format.writer import DatasetWriter
from datasets_rl.identifying.identify import Identity, Search
from datasets_rl.identifying.index import make_index
from datasets_rl.identifying.known import KnownDataset
from datasets_rl.ted.episode import Episode

Rows = dict[str, NDArray[Any]]
"""An episode: values by dotted key, [T, ...] each. Keys that begin with "observation" are states."""
PAGE = Path(__file__).parents[2] / "docs" / "identity.md"
F32 = np.float32


def noisy(seed: int) -> Rows:
    """A robot with 17 states and 6 torques, and a policy with noise, as HalfCheetah."""
    generator = np.random.default_rng([1, seed])
    world = np.random.default_rng(1)
    push, spring = world.standard_normal((6, 17)) * 0.3, world.uniform(0.01, 0.1, 17)
    actions = np.clip(generator.standard_normal((200, 6)) * 0.6, -1, 1)
    position, speed, states = generator.standard_normal(17), np.zeros(17), []
    for action in actions:
        states.append(np.concatenate([position[:8], speed[:9]]))
        speed = 0.9 * speed + action @ push - spring * position
        position = position + 0.1 * speed
    observations = np.array(states)
    return {"observation": F32(observations), "action": F32(actions), "next.reward": F32(observations[:, 8:9])}


def gait(seed: int) -> Rows:
    """A policy without noise in an environment without noise: coupled oscillators that swing into one cycle."""
    generator = np.random.default_rng([2, seed])
    phase, size = generator.uniform(0, 6.28, 4), generator.uniform(0.2, 1.8, 4)
    rates, lags = np.array([0.31, 0.31, 0.31, 0.62]), np.array([0, 1.6, 3.1, 0.5])
    states, actions = [], []
    for _ in range(200):
        states.append(np.concatenate([size * np.cos(phase), size * np.sin(phase)]))
        actions.append(np.tanh(states[-1][:4] - 0.3 * states[-1][4:]))
        size = size + 0.05 * (1 - size**2) * size
        phase = phase + rates + 0.05 * np.sin(phase[0] + lags - phase)
    observations = np.array(states)
    return {"observation": observations, "action": np.array(actions), "next.reward": observations[:, :1]}


def pendulum(seed: int) -> Rows:
    """A swing-up with a controller without noise from a random state; it rests at the end."""
    generator = np.random.default_rng([3, seed])
    angle, speed = generator.uniform(-3.1, 3.1), generator.uniform(-1, 1)
    rows: dict[str, list[Any]] = {"observation": [], "action": [], "next.reward": []}
    for _ in range(200):
        energy = 0.5 * speed**2 + 10 * (np.cos(angle) - 1)
        torque = -8 * angle - 2 * speed if abs(angle) < 0.5 else -np.sign(speed + 1e-9) * energy * 0.3
        torque = float(np.clip(torque, -2, 2))
        rows["observation"].append([np.cos(angle), np.sin(angle), speed])
        rows["action"].append([torque])
        rows["next.reward"].append([-(angle**2) - 0.1 * speed**2 - 0.001 * torque**2])
        speed = float(np.clip(speed + 0.05 * (15 * np.sin(angle) + 3 * torque), -8, 8))
        angle = (angle + 0.05 * speed + np.pi) % (2 * np.pi) - np.pi
    return {name: F32(values) for name, values in rows.items()}


def maze(seed: int) -> Rows:
    """A point that follows way points of a grid, with small noise in the actions, as PointMaze."""
    generator = np.random.default_rng([4, seed])
    position, speed, target = generator.uniform(1, 7, 2), np.zeros(2), generator.integers(1, 8, 2)
    goal = generator.integers(1, 8, 2)
    rows: dict[str, list[Any]] = {"observation": [], "action": [], "next.reward": [], "observation.goal": []}
    for _ in range(300):
        if np.abs(position - target).max() < 0.3:
            target = np.clip(target + generator.integers(-1, 2, 2), 1, 7)
        action = np.clip(4 * (target - position) - speed + 0.1 * generator.standard_normal(2), -1, 1)
        rows["observation"].append([*position, *speed])
        rows["observation.goal"].append(goal)
        rows["action"].append(action)
        rows["next.reward"].append([float(np.linalg.norm(position - goal) < 0.5)])
        speed = 0.95 * speed + 0.1 * action
        position = position + 0.1 * speed
    return {name.replace("observation.goal", "goal"): F32(values) for name, values in rows.items()}


def demonstrations(seed: int) -> Rows:
    """Smooth motions of an arm between random poses, with a gripper, times, and one instruction for all."""
    generator = np.random.default_rng([5, seed])
    poses = generator.uniform(-1, 1, (7, 7))
    time = np.linspace(0, 1, 30)[:, None]
    blend = 10 * time**3 - 15 * time**4 + 6 * time**5
    path = np.concatenate([start + (stop - start) * blend for start, stop in pairwise(poses)])
    path += 0.002 * np.cumsum(generator.standard_normal(path.shape), axis=0)
    grip = np.repeat(generator.integers(0, 2, 6), 30)[:, None]
    actions = np.concatenate([np.diff(path, axis=0, append=path[-1:])[:, :6] * 20, grip], axis=1)
    return {
        "observation": F32(path),
        "action": F32(actions),
        "next.reward": np.zeros((180, 1), F32),
        "time": F32(np.arange(180)[:, None] * 0.05),
    }


def frames(seed: int) -> Rows:
    """Gray images of a moving square, and actions of four kinds, as Atari. Both are without noise."""
    generator = np.random.default_rng([6, seed])
    actions, place, images = generator.integers(0, 4, (96, 1)), generator.integers(8, 56, 2), []
    moves = np.array([[0, 2], [0, -2], [2, 0], [-2, 0]])
    for action in actions[:, 0]:
        image = np.zeros((64, 64, 1), np.uint8)
        image[place[0] - 3 : place[0] + 3, place[1] - 3 : place[1] + 3] = 200
        images.append(image)
        place = np.clip(place + moves[action], 4, 60)
    return {"observation": np.array(images), "action": actions, "next.reward": F32(actions == 3)}


def camera(seed: int) -> Rows:
    """States of a robot and the images of its camera."""
    rows = demonstrations(seed)
    places = (28 + 24 * np.clip(rows["observation"][:, :2], -1.2, 1.2)).astype(int).clip(0, 58)
    images = np.zeros((180, 64, 64, 1), np.uint8)
    for image, (row, column) in zip(images, places, strict=True):
        image[row : row + 5, column : column + 5] = 255
    return {
        "observation.state": rows["observation"],
        "observation.pixels": images,
        "action": rows["action"],
        "next.reward": rows["next.reward"],
    }


def grid(seed: int) -> Rows:
    """A grid without noise, a start of 400, and random actions of three kinds, as MiniGrid."""
    generator = np.random.default_rng([7, seed])
    actions, place, facing, seen = generator.integers(0, 3, (80, 1)), generator.integers(0, 20, 2), 0, []
    moves = np.array([[0, 1], [1, 0], [0, -1], [-1, 0]])
    for action in actions[:, 0]:
        cells = np.add.outer(np.arange(7) + place[0], np.arange(7) * 3 + place[1]) % 11
        seen.append(np.concatenate([cells.reshape(-1), [facing, *place]]))
        facing = (facing + (action == 0) - (action == 1)) % 4
        place = (place + moves[facing] * (action == 2)).clip(0, 19)
    return {"observation": np.array(seen, np.uint8), "action": actions, "next.reward": F32(actions == 2) * 0}


KINDS: Mapping[str, Callable[[int], Rows]] = {
    "robot with noise": noisy,
    "gait without noise": gait,
    "swing-up without noise": pendulum,
    "maze": maze,
    "demonstrations": demonstrations,
    "gray frames, 4 actions": frames,
    "states and camera": camera,
    "grid, 3 actions": grid,
}


def scripted(seed: int) -> Rows:
    """Actions of a script, the times of the steps, and a state that rests: equal in all episodes."""
    del seed
    times = np.arange(100)[:, None] * 0.02
    return {
        "observation": np.ones((100, 3), F32),
        "action": F32(np.where(times < 1, 0.5, -0.5)),
        "next.reward": F32(times),
    }


def _floats(rows: Rows) -> Rows:
    return {name: values for name, values in rows.items() if values.dtype.kind == "f"}


def renamed(rows: Rows) -> list[Rows]:
    """Other keys, wider dtypes, and steps of other shapes."""
    names = {"observation": "observation.agent.qpos", "action": "action", "next.reward": "next.reward"}
    wide = {
        name: values.astype(np.float64) if values.dtype == F32 and name != "next.reward" else values
        for name, values in rows.items()
    }
    return [{names.get(name, name): values for name, values in wide.items()}]


def rounded(rows: Rows) -> list[Rows]:
    """Numbers as float16."""
    return [
        rows
        | {name: values.astype(np.float16) for name, values in _floats(rows).items() if name != "next.reward"}
        | {"next.reward": F32(np.float16(rows["next.reward"]))}
    ]


def scaled(rows: Rows) -> list[Rows]:
    """Actions that are scaled and moved, one element with another sign."""
    if rows["action"].dtype.kind != "f":
        return [rows]
    width = rows["action"].shape[1]
    return [rows | {"action": rows["action"] * np.linspace(-2, 3, width).astype(F32) + F32(0.25)}]


def _cut(rows: Rows, start: int, stop: int) -> Rows:
    return {name: values[start:stop] for name, values in rows.items()}


def trimmed(rows: Rows) -> list[Rows]:
    """5% of the steps less at each end."""
    count = len(rows["action"])
    return [_cut(rows, count // 20, count - count // 20)]


def shortened(rows: Rows) -> list[Rows]:
    """Without the last step."""
    return [_cut(rows, 0, len(rows["action"]) - 1)]


def halved(rows: Rows) -> list[Rows]:
    """Two episodes from one."""
    count = len(rows["action"])
    return [_cut(rows, 0, count // 2), _cut(rows, count // 2, count)]


def lossy(rows: Rows) -> list[Rows]:
    """Images with the errors of a codec."""
    noise = np.random.default_rng(0)
    images = {
        name: np.clip(values.astype(int) + noise.integers(-6, 7, values.shape), 0, 255).astype(np.uint8)
        for name, values in rows.items()
        if values[0].nbytes >= 4096
    }
    return [rows | images]


def everything(rows: Rows) -> list[Rows]:
    """Rounded, scaled and trimmed, with lossy images."""
    return [rounded(scaled(trimmed(lossy(rows)[0])[0])[0])[0]]


CHANGES: Mapping[str, Callable[[Rows], list[Rows]]] = {
    "other keys and dtypes": renamed,
    "float16": rounded,
    "scaled actions": scaled,
    "5% cut at each end": trimmed,
    "last step dropped": shortened,
    "split": halved,
    "lossy images": lossy,
    "all of these but split": everything,
}
EXACT = {"other keys and dtypes"}
JOINED = "two joined"


def joined(episodes: Sequence[Rows]) -> list[Rows]:
    """One episode from two."""
    pairs = zip(episodes[::2], episodes[1::2], strict=False)
    return [{name: np.concatenate([one[name], two[name]]) for name in one} for one, two in pairs]


def store(folder: Path, episodes: Iterator[Rows] | Sequence[Rows], name: str = "toy/data") -> StoredDataset:
    """Store episodes, in an order of their own."""
    writer = None
    for rows in episodes:
        count = len(rows["action"])
        last = (np.arange(count) == count - 1)[:, None]
        keys = {one: tuple(one.split(".")) for one in rows}
        if writer is None:
            columns = [
                Column(key, rows[one].dtype, rows[one].shape[1:], shared=key[0] == "observation")
                for one, key in keys.items()
            ]
            folder.mkdir(parents=True)
            writer = DatasetWriter(folder, [*columns, *END_COLUMNS], name=name)
        states = {key: rows[one] for one, key in keys.items() if key[0] == "observation"}
        steps = {key: rows[one] for one, key in keys.items() if key not in states}
        steps |= {("next", "terminated"): np.zeros_like(last), ("next", "truncated"): last}
        writer.append(Episode(steps, states))
    if writer is None:
        raise ValueError("there are no episodes")
    written = writer.finish()
    writer.discard()
    Manifest(
        name,
        written.steps,
        written.episodes,
        written.final_unknown,
        written.schema,
        written.files,
        statistics=written.statistics,
        spikes=written.spikes,
        specs=specs_of_schema(written.schema, {}),
    ).write(folder)
    return StoredDataset(folder)


def search(of: StoredDataset, *among: StoredDataset) -> Identity:
    """Look up the episodes of a dataset among others."""
    known = [KnownDataset(stored.manifest.id, stored.folder) for stored in among]
    return Search(of, "query", known, make_index(known)).run(near=True)


def share_found(
    kind: str, change: str, stored: StoredDataset, episodes: Sequence[Rows], folder: Path
) -> tuple[int, int]:
    """Return how many copies of episodes are found, and how many there are."""
    copies = joined(episodes) if change == JOINED else [copy for rows in episodes for copy in CHANGES[change](rows)]
    identity = search(store(folder / f"{kind}-{change}", copies[::-1]), stored)
    found = (
        identity.matches[0].exact
        if change in EXACT and identity.matches
        else identity.episodes - identity.unknown - identity.uninformative
    )
    return found, identity.episodes - identity.uninformative


def strangers(kind: str, count: int, folder: Path) -> tuple[int, int, int]:
    """Look up episodes of a kind among as many of other seeds. Return how many are found, are equal, and are searched."""
    make, half = KINDS[kind], count // 2
    known: set[bytes] = set()
    others: set[bytes] = set()

    def counted(seeds: range, values: set[bytes]) -> Iterator[Rows]:
        for rows in map(make, seeds):
            values.add(hashlib.sha256(b"".join(map(bytes, rows.values()))).digest())
            yield rows

    stored = store(folder / f"{kind}-known", counted(range(half), known))
    strange = store(folder / f"{kind}-strangers", counted(range(10**6, 10**6 + half), others))
    identity = search(strange, stored)
    return identity.episodes - identity.unknown - identity.uninformative, len(known & others), count


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--episodes", type=int, default=200)
    parser.add_argument("--strangers", type=int, default=3000)
    parser.add_argument("--kind", default="")
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    changes = [*CHANGES, JOINED]
    lines = [f"| | {' | '.join(changes)} | found among strangers |", f"| --- |{' ---: |' * (len(changes) + 1)}"]
    total = 0
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as temporary:
        folder = Path(temporary)
        for kind, make in [(k, m) for k, m in KINDS.items() if not arguments.kind or arguments.kind in k]:
            episodes = [make(seed) for seed in range(arguments.episodes)]
            stored = store(folder / kind, episodes)
            cells = []
            for change in changes:
                found, count = share_found(kind, change, stored, episodes, folder)
                cells.append(f"{100 * found / count:.1f}%")
            found, equal, count = strangers(kind, arguments.strangers, folder)
            total += count
            cells.append(f"{found} of {count:,}" + (f", of which {equal} are equal" if equal else ""))
            lines.append(f"| {kind} | {' | '.join(cells)} |")
            print(lines[-1], flush=True)
            del episodes, stored
    lines.append("")
    lines.append(f"{total:,} episodes of other seeds were looked up and searched in all.")
    if arguments.write:
        text = PAGE.read_text(encoding="utf-8")
        start, end = "<!-- planted -->\n", "<!-- end -->"
        head, _, rest = text.partition(start)
        PAGE.write_text(f"{head}{start}" + "\n".join(lines) + f"\n{end}{rest.partition(end)[2]}", encoding="utf-8")


if __name__ == "__main__":
    main()
