"""NeoRL's and NeoRL-2's files: flat arrays of all trajectories, with all next observations in the file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from raw.case import Case, Fault
from raw.damage import changed_arrays, changed_bytes, flip_middle_byte, python_objects
from servers import serve

from datasets_rl.ted.episode import Episode

__all__ = ["CASES", "FIRST", "SECOND", "arrays_of", "draw"]

FIRST = "v2/HalfCheetah-v3/HalfCheetah-v3-medium-6-train-noise.npz"
SECOND = "neorl2/RocketRecovery/RocketRecovery-5-train.npz"
LENGTHS = (7, 3, 12, 1, 9, 4)


def draw(rng: np.random.Generator, length: int, end: str, sizes: tuple[int, int] = (18, 6)) -> dict[str, np.ndarray]:
    """Generate a trajectory of a policy with noise: the T + 1 observations, and T actions, rewards and flags.

    Args:
        rng: The generator.
        length: Number of actions, T.
        end: "done", "truncated", or empty for an end that no flag marks.
        sizes: Sizes of the observations and of the actions.
    """
    last = np.arange(length) == length - 1
    return {
        "states": rng.normal(size=(length + 1, sizes[0])).astype(np.float32),
        "action": rng.uniform(-1, 1, (length, sizes[1])).astype(np.float32),
        "reward": rng.normal(size=length).astype(np.float32),
        "done": last & (end == "done"),
        "truncated": last & (end == "truncated"),
    }


def arrays_of(drawn: Sequence[Mapping[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Return the arrays of NeoRL's files, with an index that begins with the second trajectory and ends with the number of rows."""
    joined = {name: np.concatenate([one[name] for one in drawn]) for name in ("action", "reward", "done")}
    return {
        "obs": np.concatenate([one["states"][:-1] for one in drawn]),
        "next_obs": np.concatenate([one["states"][1:] for one in drawn]),
        **joined,
        "index": np.cumsum([len(one["action"]) for one in drawn]).astype(np.float64),
    }


def _episode(drawn: Mapping[str, np.ndarray]) -> Episode:
    last = (np.arange(len(drawn["action"])) == len(drawn["action"]) - 1)[:, None]
    steps = {
        ("action",): drawn["action"],
        ("next", "reward"): drawn["reward"][:, None],
        ("next", "terminated"): drawn["done"][:, None],
        ("next", "truncated"): last & ~drawn["done"][:, None],
    }
    return Episode(steps, {("observation",): drawn["states"]})


def _written_first(folder: Path) -> list[Episode]:
    """Write a file of NeoRL: no flag at time limits, but an index."""
    rng = np.random.default_rng(1)
    drawn = [draw(rng, length, "done" if number % 2 else "") for number, length in enumerate(LENGTHS)]
    (folder / FIRST).parent.mkdir(parents=True)
    np.savez_compressed(folder / FIRST, **arrays_of(drawn))
    return [_episode(one) for one in drawn]


def _written_second(folder: Path) -> list[Episode]:
    """Write a file of NeoRL-2: columns with a further axis, truncated, and the first rows of all trajectories."""
    rng = np.random.default_rng(2)
    drawn = [draw(rng, length, ("done", "truncated")[number % 2], (7, 2)) for number, length in enumerate(LENGTHS[:5])]
    arrays = arrays_of(drawn)
    arrays |= {name: arrays[name][:, None] for name in ("reward", "done")}
    arrays["truncated"] = np.concatenate([one["truncated"] for one in drawn])[:, None].astype(np.float32)
    arrays["index"] = np.insert(arrays["index"][:-1], 0, 0).astype(np.int64)
    (folder / SECOND).parent.mkdir(parents=True)
    np.savez(folder / SECOND, **arrays)
    return [_episode(one) for one in drawn]


@contextmanager
def _served(folder: Path) -> Iterator[Mapping[str, str]]:
    paths = {f"/{path.relative_to(folder).as_posix()}": path for path in folder.rglob("*.npz")}
    with serve(paths) as server:
        yield {"RLDS_MIRRORS": f"neorl={server.url}"}


FAULTS = {
    "no rewards": Fault(changed_arrays(FIRST, reward=None), "it has no array reward"),
    "no next observations": Fault(changed_arrays(FIRST, next_obs=None), "it has no array next_obs"),
    "fewer actions": Fault(changed_arrays(FIRST, action=lambda v: v[:-1]), "action has 35 rows"),
    "two rewards for each step": Fault(changed_arrays(FIRST, reward=np.zeros((36, 2))), "expected one number per row"),
    "next observations of another width": Fault(
        changed_arrays(FIRST, next_obs=lambda v: v[:, 1:]), "next_obs is float32 [36, 17], but obs is float32 [36, 18]"
    ),
    "flags of two": Fault(changed_arrays(FIRST, done=lambda v: v * 2.0), "done is 2.0 at row 9, expected 0 or 1"),
    "an index after the end": Fault(
        changed_arrays(FIRST, index=lambda v: v + 1), "index[5] is 37, expected a row from 0 to 36"
    ),
    "an index between two rows": Fault(changed_arrays(FIRST, index=lambda v: v + 0.5), "index[0] is 7.5"),
    "an index that is not a number": Fault(changed_arrays(FIRST, index=lambda v: v * np.nan), "index[0] is nan"),
    "an index of lengths": Fault(
        changed_arrays(FIRST, index=np.array(LENGTHS, float)), "index[1] is 3 after 7, expected ascending"
    ),
    "an index of two axes": Fault(
        changed_arrays(FIRST, index=lambda v: v[:, None]), "expected the first row of each trajectory"
    ),
    "text for actions": Fault(
        changed_arrays(FIRST, action=lambda v: v.astype("S4")), "action has dtype |S4, expected booleans"
    ),
    "Python objects": Fault(changed_arrays(FIRST, action=python_objects), "action"),
    "a truncated file": Fault(changed_bytes(FIRST, lambda data: data[:-100]), ""),
    "a changed byte": Fault(
        changed_bytes(FIRST, flip_middle_byte),
        "",
    ),
    "a web page": Fault(
        changed_bytes(FIRST, lambda _: b"<!DOCTYPE html><html><title>Moved</title></html>"), "web page"
    ),
}


def _many(folder: Path, size: int) -> None:
    """Write a file of trajectories of a thousand steps."""
    rng = np.random.default_rng(0)
    few = [draw(rng, 1000, end) for end in ("", "done")]
    (folder / FIRST).parent.mkdir(parents=True)
    count = max(1, size // (1000 * (4 * 43 + 9)))
    np.savez_compressed(folder / FIRST, **arrays_of([few[number % 2] for number in range(count)]))


CASES: Sequence[Case] = [
    Case(
        "neorl/HalfCheetah-v3-medium-6-train",
        _written_first,
        _served,
        faults=FAULTS,
        many=_many,
        manifest={"license": "CC BY 4.0"},
    ),
    Case("neorl/RocketRecovery-5-train", _written_second, _served),
]
