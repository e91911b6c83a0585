"""Mutations of the files of `layouts.LAYOUTS`: each file is loaded, changed in a single way, and saved in its format.

flat        obs [N, D], action [N, A], episode_lengths [E]        rows of all episodes
separated   [{obs [T, D], action [T, A]}, ...]                    a dict of arrays for each episode
batched     obs [E, T, D], action [E, T, A], lengths [E]          an axis of episodes
"""

from __future__ import annotations

import gzip
import json
import pickle
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pandas as pd
import pyarrow as pa
from layouts import LENGTHS, NUMBERS, STARTS, STEPS, STOPS, Layout, trajectories

Arrays = dict[str, Any]
"""Arrays by name. The cells of tables are arrays of objects."""
_EPISODE = re.compile(r"(?P<before>(?:.*[^\d])?)(?P<number>\d+)(?P<after>/.*)?")
_TUPLE = ("obs", "action", "reward", "next_obs", "done")
MOVED, JOINED = [5, 5, 3], [10, 3]
"""Lengths of the episodes if the first end is one row too late, or is missing."""


@dataclass(frozen=True)
class Content:
    """Loaded arrays of a layout."""

    episodes: Sequence[Arrays]
    """A dict of arrays for each episode, or a single dict of the arrays of all episodes."""
    save: Callable[[Path, Sequence[Arrays]], Path]
    """Writes changed arrays into a folder, and returns the path that the user names."""
    flat: bool
    """Whether all episodes are in a single dict of arrays."""

    @property
    def batched(self) -> bool:
        """Whether the first axis of the arrays counts the episodes."""
        return self.flat and len(
            self.episodes[0]["obs" if "obs" in self.episodes[0] else next(iter(self.episodes[0]))]
        ) == len(LENGTHS)


@dataclass(frozen=True)
class Mutant:
    """Changed files of a layout."""

    mutation: str
    """Name of the kind of change."""
    detail: str
    """What is changed: the name of an array, a number."""
    episodes: Sequence[Arrays]


def load(layout: Layout, folder: Path) -> Content:
    """Write the files of a layout, and load their arrays."""
    path = layout.write(folder)
    name = path.name
    if layout.write is trajectories:
        rows = pa.ipc.open_stream(path / "data-00000-of-00001.arrow").read_all().to_pylist()
        episodes = [{name: _as_array(value) for name, value in row.items()} for row in rows]
        return Content(episodes, lambda out, own: trajectories(out, _of_one_type([*filter(None, own)])), flat=False)
    if path.is_dir():
        files = sorted(path.iterdir())
        loaders = {".npz": _load_npz, ".hdf5": _load_hdf5}
        savers = {".npz": _save_npz, ".hdf5": _save_hdf5}

        def save_files(out: Path, episodes: Sequence[Arrays]) -> Path:
            for number, arrays in enumerate(episodes):
                if arrays:
                    savers[files[0].suffix](out / f"episode_{number}{files[0].suffix}", arrays)
            return out

        return Content([loaders[file.suffix](file) for file in files], save_files, flat=False)
    if name.endswith(".npz"):
        return _of_file(_load_npz(path), lambda out, arrays: _save_npz(out / name, arrays))
    if name.endswith((".hdf5", ".h5")):
        with h5py.File(path) as file:
            attributes = dict(file.attrs)
        return _of_file(_load_hdf5(path), lambda out, arrays: _save_hdf5(out / name, arrays, attributes))
    if name.endswith((".pkl", ".npy")):
        return _of_objects(path)
    return _of_table(path)


def _of_one_type(episodes: Sequence[Arrays]) -> list[Arrays]:
    """Return the episodes with texts in all episodes, for a name with texts in one: a column of a table has one type."""
    texts = {name for own in episodes for name, values in own.items() if np.asarray(values).dtype.kind == "U"}
    return [{name: _texts(np.asarray(v)) if name in texts else v for name, v in own.items()} for own in episodes]


def _as_array(value: Any) -> Any:
    return np.array(value) if isinstance(value, list) else value


def _load_npz(path: Path) -> Arrays:
    with np.load(path, allow_pickle=True) as file:
        return dict(file)


def _save_npz(path: Path, arrays: Arrays) -> Path:
    np.savez(path, **arrays)
    return path


def _load_hdf5(path: Path) -> Arrays:
    arrays: Arrays = {}

    def take(name: str, value: Any) -> None:
        if isinstance(value, h5py.Dataset):
            arrays[name] = value[()]

    with h5py.File(path) as file:
        file.visititems(take)
    return arrays


def _save_hdf5(path: Path, arrays: Arrays, attributes: Mapping[str, Any] | None = None) -> Path:
    with h5py.File(path, "w") as file:
        file.attrs.update(attributes or {})
        for name, values in arrays.items():
            text = np.asarray(values).dtype.kind == "U"
            file.create_dataset(
                name,
                data=np.asarray(values).astype(object) if text else values,
                dtype=h5py.string_dtype() if text else None,
            )
    return path


def _of_file(arrays: Arrays, save: Callable[[Path, Arrays], Path]) -> Content:
    """Return the content of a file: separated, if the names of the arrays have the numbers of all episodes."""
    matches = {name: _EPISODE.fullmatch(name) for name in arrays}
    parts = {name: match for name, match in matches.items() if match}
    if len({match["number"] for match in parts.values()}) < len(LENGTHS):
        return Content([arrays], lambda out, episodes: save(out, episodes[0]), flat=True)
    shared = {name: values for name, values in arrays.items() if name not in parts}
    names = {f"{match['before']}{{}}{match['after'] or ''}" for match in parts.values()}
    episodes = [{name: arrays[name.format(number)] for name in sorted(names)} for number in range(len(LENGTHS))]

    def save_separated(out: Path, changed: Sequence[Arrays]) -> Path:
        named = {name.format(number): values for number, own in enumerate(changed) for name, values in own.items()}
        return save(out, {**shared, **named})

    return Content(episodes, save_separated, flat=False)


def _of_objects(path: Path) -> Content:
    name = path.name
    value = pickle.loads(path.read_bytes()) if name.endswith(".pkl") else np.load(path, allow_pickle=True).tolist()

    def write(out: Path, changed: Any) -> Path:
        if name.endswith(".pkl"):
            (out / name).write_bytes(pickle.dumps(changed))
        else:
            np.save(out / name, np.array(changed, dtype=object), allow_pickle=True)
        return out / name

    if isinstance(value, dict):
        return Content([value], lambda out, episodes: write(out, episodes[0]), flat=True)
    first = value[0]
    if isinstance(first, dict) and np.ndim(first.get("reward", first.get("rewards"))) == 1:
        return Content(value, lambda out, episodes: write(out, [*filter(None, episodes)]), flat=False)
    names = _TUPLE if isinstance(first, tuple) else tuple(first)
    rows = [dict(zip(names, step, strict=True)) if isinstance(step, tuple) else step for step in value]
    arrays = {key: np.stack([row[key] for row in rows]) for key in names}

    def save_steps(out: Path, episodes: Sequence[Arrays]) -> Path:
        (own,) = episodes
        count = max(map(len, own.values()))
        steps = [{key: values[row] for key, values in own.items() if row < len(values)} for row in range(count)]
        return write(out, [tuple(step.values()) for step in steps] if isinstance(first, tuple) else steps)

    return Content([arrays], save_steps, flat=True)


def _of_table(path: Path) -> Content:
    name = path.name
    if name.endswith(".jsonl"):
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        table = pd.DataFrame(rows)
    else:
        reads = {".parquet": pd.read_parquet, ".feather": pd.read_feather}
        sep = "\t" if ".tsv" in name else ","
        table = reads.get(path.suffix, lambda file: pd.read_csv(file, sep=sep))(path)

    def save(out: Path, episodes: Sequence[Arrays]) -> Path:
        (own,) = episodes
        count = max(map(len, own.values()))
        changed = pd.DataFrame(
            {
                key: pd.Series(list(values)).reindex(range(count)) if len(values) < count else list(values)
                for key, values in own.items()
            }
        )
        if name.endswith(".jsonl"):
            lines = [
                {key: _plain(values[row]) for key, values in own.items() if row < len(values)} for row in range(count)
            ]
            (out / name).write_text("".join(json.dumps(line) + "\n" for line in lines))
        elif name.endswith(".parquet"):
            changed.to_parquet(out / name)
        elif name.endswith(".feather"):
            changed.to_feather(out / name)
        else:
            text = changed.to_csv(index=False, sep=sep).encode()
            (out / name).write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
        return out / name

    return Content(
        [{key: table[key].to_numpy() for key in table if not str(key).startswith("Unnamed")}], save, flat=True
    )


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


MARKS: Mapping[str, Callable[[Sequence[int]], np.ndarray]] = {
    r"episode_starts": lambda lengths: np.isin(np.arange(sum(lengths)), np.cumsum([0, *lengths[:-1]])),
    r"traj_starts": lambda lengths: np.cumsum([0, *lengths[:-1]]),
    r"indices": lambda lengths: np.cumsum(lengths[:-1]),
    r".*lengths": np.array,
    r"episode_ends": np.cumsum,
    r"traj_ends": lambda lengths: np.cumsum(lengths) - 1,
    r"traj_id|trial_id|ep|episode|episode_id|episode_index": lambda lengths: np.repeat(
        np.arange(len(lengths)), lengths
    ),
    r"timestep": lambda lengths: np.concatenate([np.arange(length) for length in lengths]),
    r"mask": lambda lengths: np.arange(max(LENGTHS)) < np.array(lengths)[:, None],
}
"""Arrays that mark the episodes, and the values of such an array for other lengths of the episodes."""
_FLAGS = re.compile(r"terminals?|timeouts|terminated|truncated|dones?|end|stop")
_NEXT = re.compile(r"next_ob.*|obs_next")


def mutants(content: Content) -> Iterator[Mutant]:
    """Yield all mutations of the files of a layout."""
    arrays = content.episodes[0]
    yield from _of_each_array(content)
    if content.flat and not content.batched:
        yield from _of_rows(arrays)
    if not content.flat:
        yield from _of_episodes([*content.episodes])
    if not content.flat:
        return
    for name, values in arrays.items():
        if make := next((make for pattern, make in MARKS.items() if re.fullmatch(pattern, name)), None):
            same = lambda lengths: make(lengths).astype(values.dtype)  # noqa: B023, E731 - called at once
            yield Mutant("flag moved", name, [{**arrays, name: same(MOVED)}])
            yield Mutant("joined", name, [{**arrays, name: same(JOINED)}])
            if values.dtype.kind == "b":
                yield Mutant("inverted", name, [{**arrays, name: ~values}])
            if name == "timestep":
                yield Mutant("steps from 2", name, [{**arrays, name: values + 2}])
                yield Mutant("steps from 2", "of the first episode", [{**arrays, name: values + 2 * (NUMBERS == 0)}])
        if _FLAGS.fullmatch(_last(name)) and len(values) == STEPS:
            ends = np.flatnonzero(values)
            moved, joined = values.copy(), values.copy()
            moved[ends[0]], moved[ends[0] + 1] = moved[ends[0] + 1], moved[ends[0]]
            joined[ends[0]] = 0
            yield Mutant("flag moved", name, [{**arrays, name: moved}])
            yield Mutant("joined", name, [{**arrays, name: joined}])
            yield Mutant("inverted", name, [{**arrays, name: ~values}])


def _of_each_array(content: Content) -> Iterator[Mutant]:
    """Yield the mutations of a single array, of the second episode if the episodes are separated."""
    number = 0 if content.flat else 1
    for name, values in content.episodes[number].items():

        def changed(mutation: str, value: Any, detail: str = "") -> Mutant:
            own = {**content.episodes[number], name: value}  # noqa: B023
            own = {key: array for key, array in own.items() if array is not None}
            episodes = [*content.episodes[:number], own, *content.episodes[number + 1 :]]
            return Mutant(mutation, f"{name}{detail}", episodes)  # noqa: B023

        yield changed("array missing", None)
        if not np.ndim(values):
            continue
        yield changed("array cut", values[:-1])
        yield changed("array prolonged", np.concatenate([values, values[-1:]]))
        if values.dtype.kind == "b":
            yield changed("dtype", values.astype(np.float32), " as floats")
        elif values.dtype.kind == "i":
            yield changed("dtype", values.astype(np.float64), " as floats")
        elif values.dtype.kind == "f":
            yield changed("dtype", values.astype(np.float32), " as float32")
        yield changed("dtype", _texts(values), " as texts")
        if (spoiled := _with_nan(values, len(values) // 2)) is not None:
            yield changed("NaN", spoiled)
        if _NEXT.fullmatch(_last(name)):
            yield changed("next shifted", np.roll(values, 1, axis=0), " by 1")
            yield changed("next shifted", np.roll(values, -1, axis=0), " by -1")
            yield changed("next shifted", np.concatenate([values[:1], values[:-1]]), " within the rows")


def _of_rows(arrays: Arrays) -> Iterator[Mutant]:
    """Yield the mutations of the rows of all arrays."""

    def changed(mutation: str, detail: str, rows: np.ndarray) -> Mutant:
        """Take other rows, of an array of the states with final ones from the episodes of the rows."""
        own = {}
        for name, values in arrays.items():
            if len(values) == STEPS:
                own[name] = values[rows]
            elif len(values) == STEPS + len(LENGTHS) and name != "infos":
                own[name] = np.concatenate([values[rows + NUMBERS[rows]], values[STOPS + np.arange(3)]])[
                    np.argsort(
                        np.concatenate(
                            [np.arange(len(rows)), np.searchsorted(NUMBERS[rows], [0, 1, 2], "right") - 0.5]
                        ),
                        kind="stable",
                    )
                ]
            else:
                own[name] = values
        return Mutant(mutation, detail, [own])

    rows = np.arange(STEPS)
    yield changed("shuffled", "all rows", np.random.default_rng(1).permutation(STEPS))
    yield changed("shuffled", "rows of an episode", np.concatenate([rows[:4], rows[[6, 5, 8, 7, 4]], rows[9:]]))
    yield changed("duplicated", "a row", np.insert(rows, 6, 6))
    yield changed("duplicated", "the last row of an episode", np.insert(rows, 3, 3))
    yield changed("duplicated", "an episode", np.concatenate([rows, rows[STARTS[1] : STOPS[1]]]))
    yield changed("swapped", "two episodes", np.concatenate([rows[4:10], rows[:4], rows[10:]]))
    yield changed("row missing", "the first row", rows[1:])
    yield changed("row missing", "a row", np.delete(rows, 6))
    yield changed("row missing", "the last row", rows[:-1])


def _of_episodes(episodes: list[Arrays]) -> Iterator[Mutant]:
    """Yield the mutations of separated episodes."""
    first, second, third = episodes
    yield Mutant("file missing", "of the second episode", [first, {}, third])
    yield Mutant("file missing", "of the first episode", [{}, second, third])
    yield Mutant("file missing", "of the last episode", [first, second])
    yield Mutant("swapped", "two episodes", [second, first, third])
    yield Mutant("duplicated", "an episode", [first, second, second, third])
    yield Mutant("joined", "two episodes", [{name: _joined(first[name], second[name]) for name in first}, third])
    moved = {
        name: _joined(first[name], values[:1]) if np.ndim(values) else first[name] for name, values in second.items()
    }
    yield Mutant(
        "flag moved",
        "a row",
        [moved, {name: values[1:] if np.ndim(values) else values for name, values in second.items()}, third],
    )
    count = min(len(values) for values in second.values() if np.ndim(values))
    for mutation, detail, rows in (
        ("shuffled", "rows of an episode", np.random.default_rng(1).permutation(count)),
        ("duplicated", "a row", np.insert(np.arange(count), 3, 3)),
        ("row missing", "a row", np.delete(np.arange(count), 3)),
        ("row missing", "the last row", np.arange(count - 1)),
    ):
        own = {
            name: np.concatenate([values[rows], values[count:]]) if np.ndim(values) else values
            for name, values in second.items()
        }
        yield Mutant(mutation, detail, [first, own, third])
    for name, values in second.items():
        if _FLAGS.fullmatch(_last(name)) and np.ndim(values) and values.any():
            yield Mutant("inverted", name, [first, {**second, name: values == 0}, third])
        if _FLAGS.fullmatch(_last(name)) and np.ndim(values):
            shifted = values.copy()
            shifted[2] = 1
            yield Mutant("flag within", name, [first, {**second, name: shifted}, third])


def _last(name: str) -> str:
    return name.rpartition("/")[2]


def _joined(before: Any, after: Any) -> Any:
    return np.concatenate([before, after]) if np.ndim(before) else after


def _texts(values: np.ndarray) -> np.ndarray:
    texts = np.array([str(value) for value in values.reshape(-1).tolist()])
    return texts.reshape(values.shape) if values.dtype.kind != "O" else texts


def _with_nan(values: np.ndarray, row: int) -> np.ndarray | None:
    """Return values with NaN in a row, or None if the dtype has no NaN."""
    if values.dtype.kind not in "fO":
        return None
    spoiled = values.copy()
    if values.dtype.kind == "f":
        spoiled[row] = np.nan
        return spoiled
    cell = _spoiled_cell(values[row])
    if cell is None:
        return None
    spoiled[row] = cell
    return spoiled


def _spoiled_cell(cell: Any) -> Any:
    if isinstance(cell, dict):
        return {key: _spoiled_cell(value) for key, value in cell.items()} or None
    if isinstance(cell, (list, np.ndarray)):
        return [float("nan"), *cell[1:]]
    if isinstance(cell, str):
        return re.sub(r"-?[\d.]+", "nan", cell, count=1)
    return None
