"""Folders of TorchRL, written by tensordict: saved rollouts, and a dumped ring buffer of several environments."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from raw.case import Case, Fault
from raw.damage import changed_bytes
from tensordict import NonTensorStack, TensorDict
from upstreams import bucket, hub

from datasets_rl.ted.episode import Episode, TextStates

__all__ = ["CASES", "RING", "ROLLOUTS", "draw", "dumped", "in_ted"]

ROLLOUTS = "lab/rollouts"
RING = "lab/ring"
LENGTHS = ((4, 1, 6), (3, 5))


def draw(rng: np.random.Generator, length: int, end: str, *, camera: bool = False) -> Episode:
    """Generate an episode of T steps with T + 1 states. The end is "terminated", "truncated", or empty without a flag."""
    last = (np.arange(length) == length - 1)[:, None]
    steps = {
        ("action",): rng.normal(size=(length, 2)).astype(np.float32),
        ("next", "reward"): rng.normal(size=(length, 1)),
        ("next", "terminated"): last & (end == "terminated"),
        ("next", "truncated"): last & (end == "truncated"),
    }
    states: dict[Any, Any] = {("observation",): rng.normal(size=(length + 1, 3)).astype(np.float32)}
    states["info", "velocity"] = rng.normal(size=(length + 1, 2))
    if camera:
        states["pixels",] = rng.integers(0, 256, (length + 1, 6, 5, 3)).astype(np.uint8)
        steps["task",] = TextStates.from_texts([("open", "close", "ö")[one] for one in rng.integers(0, 3, length)])
    return Episode(steps, states)


def in_ted(episodes: Sequence[Episode], first: int = 0) -> TensorDict:
    """Return episodes in TorchRL's format. Flags beside next are False, and the reward is not beside next."""
    parts = []
    for number, one in enumerate(episodes, first):
        rows = len(one)
        data = TensorDict({}, [rows])
        for key, values in one.steps.items():
            if isinstance(values, TextStates):
                data[key] = NonTensorStack(*(values.vocabulary[code] for code in values.codes.tolist()))
            else:
                data[key] = torch.from_numpy(values.copy())
        for key, values in one.states.items():
            data[key] = torch.from_numpy(values[:-1].copy())
            data[("next", *key)] = torch.from_numpy(values[1:].copy())
        data["next", "done"] = data["next", "terminated"] | data["next", "truncated"]
        for name in ("done", "terminated", "truncated"):
            data[name] = torch.zeros(rows, 1, dtype=torch.bool)
        data["episode"] = torch.full((rows,), number)
        parts.append(data)
    return torch.cat(parts)


def rollouts(folder: Path) -> list[Episode]:
    """Write a saved TensorDict for each of two rollouts."""
    rng = np.random.default_rng(0)
    found = []
    for number, lengths in enumerate(LENGTHS):
        episodes = [
            draw(rng, length, ("terminated", "truncated")[at % 2], camera=True) for at, length in enumerate(lengths)
        ]
        steps = in_ted(episodes, 10 * number).exclude("done", "terminated", "truncated")
        steps.memmap(folder / ROLLOUTS / f"rollout_{number}")
        found += [Episode(one.steps, one.states, metadata={"file": number}) for one in episodes]
    return found


def dumped(folder: Path, steps: TensorDict, capacity: int, written: int, cursor: int, *, index: bool = False) -> None:
    """Write what `ReplayBuffer.dumps` writes of a storage of `capacity` rows: row i of the steps is row i of the storage."""
    shape = [capacity, *steps.shape[1:]]
    storage = torch.zeros_like(steps[:1]).expand(shape).clone()
    storage[:written] = steps[:written]
    if index:
        storage["index"] = torch.arange(capacity).reshape([-1] + [1] * (len(shape) - 1)).expand(shape)
    storage.memmap(folder / "storage")
    length = written * int(np.prod(shape[1:]))
    state = {"metadata": {}, "is_pytree": False, "len": length}
    (folder / "storage" / "storage_metadata.json").write_text(json.dumps(state))
    (folder / "writer").mkdir()
    (folder / "writer" / "metadata.json").write_text(json.dumps({"cursor": cursor, "write_count": 100}))
    (folder / "buffer_metadata.json").write_text(json.dumps({"batch_size": 32}))
    (folder / "prefetch.pkl").write_bytes(b"cos\nsystem\n(S'false'\ntR.")  # runs a program if it is loaded


def ring(folder: Path) -> list[Episode]:
    """Write a full buffer of two environments, [12, 2], whose oldest row is row 5."""
    rng = np.random.default_rng(1)
    columns = [[draw(rng, length, "terminated") for length in lengths] for lengths in ((4, 8), (7, 5))]
    columns[1][-1].steps["next", "terminated"][:] = False  # the buffer ends within the episode
    oldest = 5
    steps = torch.stack([in_ted(episodes) for episodes in columns], 1).exclude("episode")
    dumped(folder / RING, torch.cat([steps[-oldest:], steps[:-oldest]]), 12, 12, oldest, index=True)
    found = [one for episodes in columns for one in episodes]
    found[-1].steps["next", "truncated"][-1] = True
    return [Episode(one.steps, one.states, metadata={"file": 0}) for one in found]


@contextmanager
def on_the_hub(folder: Path) -> Iterator[Mapping[str, str]]:
    """Serve the files from a repository of the Hub."""
    with hub({"me/sets": folder}) as server:
        yield {"HF_ENDPOINT": server.url, "RLDS_MIRRORS": "torchrl=hf://datasets/me/sets"}


@contextmanager
def in_a_bucket(folder: Path) -> Iterator[Mapping[str, str]]:
    """Serve the files from a bucket."""
    with bucket({"mine": folder}) as server:
        yield {"STORAGE_EMULATOR_HOST": server.url, "RLDS_MIRRORS": "torchrl=gs://mine"}


def edited(path: str, change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    """Return a function that changes a JSON document."""

    def corrupt(folder: Path) -> None:
        document = json.loads((folder / path).read_text())
        change(document)
        (folder / path).write_text(json.dumps(document))

    return corrupt


_FIRST, _LAST = f"{ROLLOUTS}/rollout_0", f"{ROLLOUTS}/rollout_1"
_STORAGE = f"{RING}/storage"


def _removed(folder: Path, *keys: str) -> None:
    for name in keys:
        (folder / f"{name}.memmap").unlink()


ROLLOUT_FAULTS: Mapping[str, Fault] = {
    "a cut tensor": Fault(
        changed_bytes(f"{_LAST}/next/observation.memmap", lambda data: data[:-4]),
        "observation.memmap of next.observation has 92 bytes, expected 96 bytes of float32 [8, 3] as meta.json states",
    ),
    "a shape of fewer rows": Fault(
        edited(f"{_FIRST}/meta.json", lambda meta: meta["action"]["shape"].__setitem__(0, 10)),
        "action.memmap of action has 88 bytes, expected 80 bytes of float32 [10, 2]",
    ),
    "no next observation": Fault(
        edited(
            f"{_FIRST}/next/meta.json", lambda meta: [meta.pop("observation"), meta.pop("pixels"), meta.pop("info")]
        ),
        "it has no next.observation",
    ),
    "a file that was never written": Fault(
        lambda folder: _removed(folder / _LAST, "action"), "action has no file action.memmap, expected 64 bytes"
    ),
    "a folder that was never written": Fault(
        lambda folder: (folder / _LAST / "next" / "meta.json").unlink(), "next has no folder with a meta.json"
    ),
    "another dtype": Fault(
        edited(f"{_FIRST}/meta.json", lambda meta: meta["action"].update(dtype="torch.float64")),
        "expected 176 bytes of float64",
    ),
    "a negative shape": Fault(
        edited(f"{_FIRST}/meta.json", lambda meta: meta["action"].update(shape=[-11, 2])), "expected a list of integers"
    ),
    "a dtype that no computer has": Fault(
        edited(f"{_FIRST}/meta.json", lambda meta: meta["action"].update(dtype="torch.float128")), "it has no action"
    ),
    "meta.json that is no JSON": Fault(
        changed_bytes(f"{_LAST}/meta.json", lambda data: data[:-9]), "meta.json is not JSON"
    ),
    "a later format": Fault(
        edited(f"{_FIRST}/meta.json", lambda meta: meta.update(_format_version=2)), "has the format version 2"
    ),
    "a byte that is no boolean": Fault(
        changed_bytes(f"{_LAST}/next/truncated.memmap", lambda data: b"\7" + data[1:]), "it has the byte 7, expected"
    ),
    "next observations of the same row": Fault(
        lambda folder: (folder / _FIRST / "next" / "observation.memmap").write_bytes(
            (folder / _FIRST / "observation.memmap").read_bytes()
        ),
        "next.observation at row 0 differs from observation at row 1",
    ),
    "no flags and no numbers": Fault(
        lambda folder: [
            edited(f"{_FIRST}/meta.json", lambda meta: meta.pop("episode"))(folder),
            edited(
                f"{_FIRST}/next/meta.json", lambda meta: [meta.pop(key) for key in ("done", "terminated", "truncated")]
            )(folder),
        ],
        "it has neither next.done nor episode, which mark the ends of episodes",
    ),
    "folders of other names": Fault(
        lambda folder: (folder / _LAST).rename(folder / ROLLOUTS / "validation"), "whose names are not numbered"
    ),
}
RING_FAULTS: Mapping[str, Fault] = {
    "another cursor": Fault(
        edited(f"{RING}/writer/metadata.json", lambda state: state.update(cursor=3)), "differs from observation at row"
    ),
    "no cursor": Fault(
        lambda folder: (folder / RING / "writer" / "metadata.json").unlink(), "differs from observation at row"
    ),
    "a length of no shape": Fault(
        edited(f"{_STORAGE}/storage_metadata.json", lambda state: state.update(len=25)),
        "storage_metadata.json has len = 25, and writer/metadata.json has cursor = 5, which do not fit the shape [12, 2]",
    ),
    "a length beside another cursor": Fault(
        edited(f"{_STORAGE}/storage_metadata.json", lambda state: state.update(len=14)),
        "which do not fit the shape [12, 2]",
    ),
    "a length that is no number": Fault(
        edited(f"{_STORAGE}/storage_metadata.json", lambda state: state.update(len=None)),
        "storage_metadata.json has len = None, expected a number of rows",
    ),
    "a storage without keys": Fault(
        edited(f"{_STORAGE}/storage_metadata.json", lambda state: state.update(is_pytree=True)),
        "a storage of tensors without keys",
    ),
    "rows that only a rank keeps": Fault(
        edited(f"{RING}/writer/metadata.json", lambda state: state.update(rank_key="reward")),
        "rows in no order of time",
    ),
    "zeros after the last steps": Fault(
        lambda folder: _zero_finals(folder / _STORAGE), "next has zeros after the last step of 3 of 4 episodes"
    ),
}


def _zero_finals(folder: Path) -> None:
    data = TensorDict.load_memmap(folder)
    data["next", "observation"][data["next", "done"][..., 0]] = 0


def many(folder: Path, size: int) -> None:
    """Write a rollout of about this many bytes."""
    rng = np.random.default_rng(2)
    episodes = [draw(rng, 500, "truncated") for _ in range(max(1, size // 50_000))]
    in_ted(episodes).memmap(folder / ROLLOUTS / "rollout_0")


CASES = [
    Case(
        f"torchrl/{ROLLOUTS}",
        rollouts,
        on_the_hub,
        faults=ROLLOUT_FAULTS,
        many=many,
        small={"datasets_rl.sources.torchrl._SHARD_BYTES": 1000},
    ),
    Case(f"torchrl/{RING}", ring, in_a_bucket, faults=RING_FAULTS),
]
