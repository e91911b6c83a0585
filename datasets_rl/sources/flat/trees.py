"""Python values of a file as arrays: a dict of arrays, a list of episodes, or a list of steps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from datasets_rl.errors import ConversionError, join_names
from datasets_rl.read.streams import ITEMS_MAX
from datasets_rl.sources.flat.arrays import TEXT, Array, ArrayFile, NpzArrays, Rows
from datasets_rl.sources.flat.names import usual_keys
from datasets_rl.sources.flat.pickle_ways import LEGACY, ZIP, way_of_pickle, way_of_torch
from datasets_rl.sources.flat.text_tables import is_exact

_STEPS: Mapping[int, tuple[str, ...]] = {
    5: ("observation", "action", "reward", "next_observation", "done"),
    6: ("observation", "action", "reward", "next_observation", "terminated", "truncated"),
}
"""Names of the values of a step in a tuple of some length, in the order of the field: (s, a, r, s', done)."""


class ValuesFile(ArrayFile):
    """Arrays in memory. Arrays of objects are errors only if they are used."""

    def __init__(self, values: Mapping[str, NDArray[Any]], name: str) -> None:
        self.name = name
        self._values = values
        self.scalars = {array: one for array, one in values.items() if not one.ndim and one.dtype.kind in "biuf"}
        self.arrays = {
            array: Array(len(values), values.shape[1:], TEXT, text=True)
            if values.dtype.kind == "U"
            else Array(len(values), values.shape[1:], values.dtype.newbyteorder("="))
            for array, values in self._values.items()
            if values.ndim
        }
        if not self.arrays:
            raise ConversionError(name, ["the file has no arrays, expected arrays of observations and actions"])

    @override
    def blocks(self, name: str, rows: int) -> Iterator[Rows]:
        values, array = self._values[name], self.arrays[name]
        if values.dtype.hasobject:
            raise ConversionError(self.name, [f"{name} has Python objects, expected numbers or texts"])
        for start in range(0, len(values), rows):
            block = values[start : start + rows]
            yield block.tolist() if array.text else block.astype(array.dtype, copy=False)

    def __exit__(self, *details: object) -> None:
        self._values = {}


class TreeFile(ValuesFile):
    """Arrays of Python values, which are in memory.

    a dict       {"observations": [N, D], "actions": [N, A]}        the arrays of all episodes
    episodes     [{"observations": [T, D], ...}, ...]               groups episode_0, episode_1, ...
    steps        [{"obs": [D], "action": [A], "reward": 1.0}, ...]  a row for each, as are tuples (s, a, r, s', done)
    both         [[step, step, ...], [step, ...], ...]              the steps of each episode

    Raises:
        ConversionError: If the values have another type, or the structure is not certain.
    """

    def __init__(self, value: Any, name: str) -> None:
        super().__init__(dict(_arrays(value, name)), name)


class PickleFile(TreeFile):
    """Arrays of a pickle of plain values, which is read without calling anything that the pickle names."""

    def __init__(self, path: Path, name: str) -> None:
        from datasets_rl.read.pickles import load

        data = path.read_bytes()
        if data.startswith((ZIP, LEGACY)):
            raise ConversionError(name, ["torch.save wrote the file, expected a pickle"], hint=way_of_torch(path))
        try:
            value = load(data, name)
        except ConversionError as error:
            error.hint = way_of_pickle(path, error) or error.remedy
            raise
        super().__init__(value, name)


class ObjectsFile(TreeFile):
    """Arrays of an npy file of Python objects."""

    def __init__(self, path: Path, name: str) -> None:
        from datasets_rl.read.pickles import load_npy

        value = load_npy(path, name)
        if isinstance(value, np.ndarray) and value.dtype.hasobject:
            value = list(value) if value.ndim else value.item()
        if isinstance(value, np.ndarray):
            names = value.dtype.names
            value = {field: value[field] for field in names} if names else {path.stem: value}
        super().__init__(value, name)


def open_npz(path: Path, name: str) -> ArrayFile:
    """Open an npz file, of which arrays of fields may be arrays of Python objects: an array for each episode."""
    file = NpzArrays(path, name)
    fields = [array for array, key in usual_keys(file.arrays).items() if key[0] != "info"]
    objects = [array for array in fields if file.arrays[array].dtype.hasobject and not file.arrays[array].text]
    if not objects:
        return file
    with file:
        values = {array: file.read_objects(array) for array in objects}
        values |= {array: np.asarray(file.read_all(array)) for array in file.readable}
    return ValuesFile(_by_episode(values, name), name)


def _by_episode(values: Mapping[str, Any], name: str) -> dict[str, NDArray[Any]]:
    """Return values as arrays. Of a list of arrays of other lengths, each is the array of an episode.

    Raises:
        ConversionError: If the lists of the fields have other numbers of arrays.
    """
    arrays = {key: as_array(value) for key, value in values.items()}
    fields = [array for array, key in usual_keys(arrays).items() if key[0] != "info"]
    parts = {
        array: [as_array(part) for part in values[array]]
        for array in fields
        if arrays[array].dtype.hasobject and arrays[array].ndim == 1
    }
    parts = {array: episodes for array, episodes in parts.items() if all(part.ndim for part in episodes)}
    if len({len(episodes) for episodes in parts.values()}) > 1:
        stated = ", ".join(f"{array} has {len(episodes):,} arrays" for array, episodes in parts.items())
        raise ConversionError(name, [f"{stated}, expected an array for each episode"])
    episodes = {f"episode_{number}/{array}": part for array, own in parts.items() for number, part in enumerate(own)}
    return {**episodes, **{array: value for array, value in arrays.items() if array not in parts}}


def _arrays(value: Any, name: str) -> Iterator[tuple[str, NDArray[Any]]]:
    if isinstance(value, Mapping):
        yield from _by_episode(dict(_values(value, "")), name).items()
        return
    if not isinstance(value, (list, tuple)) or not value:
        raise ConversionError(
            name, [f"the file has {_described(value)}, expected a dict of arrays or a list of episodes or steps"]
        )
    if all(isinstance(item, (list, tuple)) and item and all(map(_is_step, item)) for item in value):
        for number, steps in enumerate(value):
            for key, array in _columns_of_steps(_leaves_of(steps, f"episode {number:,} of {name}"), name):
                yield f"episode_{number}/{key}", array
        return
    if not all(map(_is_step, value)):
        kinds = join_names(sorted({_described(item) for item in value}), ITEMS_MAX)
        problem = f"the file has a list of {kinds}, expected a list of dicts, or of tuples (s, a, r, s', done)"
        raise ConversionError(name, [problem])
    leaves = _leaves_of(value, name)
    if not isinstance(value[0], Mapping) or _are_steps(leaves, name):
        yield from _columns_of_steps(leaves, name)
        return
    for number, leaf in enumerate(leaves):
        for key, array in leaf.items():
            yield f"episode_{number}/{key}", array


def _is_step(item: Any) -> bool:
    """Return whether a value may be a step: a dict, or a tuple of as many values as a step has."""
    return isinstance(item, Mapping) or (isinstance(item, (list, tuple)) and len(item) in _STEPS)


def _leaves_of(items: Sequence[Any], name: str) -> list[dict[str, NDArray[Any]]]:
    """Return the values of dicts, or of tuples that are certainly steps, by name.

    Raises:
        ConversionError: If the names differ, or a tuple is not a step.
    """
    leaves = [
        dict(_leaves(item if isinstance(item, Mapping) else dict(zip(_STEPS[len(item)], item, strict=True)), ""))
        for item in items
    ]
    _check_names(leaves, name)
    for number, (item, leaf) in enumerate(zip(items, leaves, strict=True)):
        if not isinstance(item, Mapping):
            _check_tuple(leaf, number, name)
    return leaves


def _columns_of_steps(leaves: Sequence[Mapping[str, NDArray[Any]]], name: str) -> Iterator[tuple[str, NDArray[Any]]]:
    for key in leaves[0]:
        yield key, _stacked([leaf[key] for leaf in leaves], key, name)


def _leaves(value: Mapping[Any, Any], path: str) -> Iterator[tuple[str, NDArray[Any]]]:
    yield from ((name, as_array(inner)) for name, inner in _values(value, path))


def _values(value: Mapping[Any, Any], path: str) -> Iterator[tuple[str, Any]]:
    for name, inner in value.items():
        if isinstance(inner, Mapping):
            yield from _values(inner, f"{path}{name}/")
        else:
            yield f"{path}{name}", inner


def as_array(value: Any) -> NDArray[Any]:
    """Return a value as an array. Values without a common shape are objects."""
    if isinstance(value, np.ndarray) and value.dtype.hasobject and value.ndim > 1:
        value = value.tolist()  # numpy makes an array of objects of arrays with a common shape
    try:
        array = np.asarray(value)
    except ValueError:
        array = np.empty(len(value), object)
    is_rounded = array.dtype.kind == "f" and isinstance(value, (list, tuple)) and not is_exact(array)
    if array.dtype.kind in "SV" or (array.dtype.kind == "U" and array.ndim > 1) or (is_rounded and _has_long(value)):
        return np.empty(array.shape, object)
    return array


def _has_long(value: Any) -> bool:
    """Return whether nested lists of numbers have an integer that a float of 64 bits does not hold exactly."""
    numbers = (number for number in np.array(value, object).flat if isinstance(number, (int, np.integer)))
    return any(int(float(number)) != int(number) for number in numbers)


def _check_names(leaves: Sequence[Mapping[str, NDArray[Any]]], name: str) -> None:
    names = leaves[0].keys()
    for number, leaf in enumerate(leaves):
        if leaf.keys() != names:
            other = sorted(leaf.keys() ^ names)
            problem = f"element {number:,} of the list differs from the first element in {join_names(other, ITEMS_MAX)}"
            raise ConversionError(name, [f"{problem}, expected the same names in every element"])


def _check_tuple(leaf: Mapping[str, NDArray[Any]], number: int, name: str) -> None:
    """Check that a tuple is certainly (s, a, r, s', done): a number, a flag, and two states of the same shapes."""
    flags = [array for key, array in leaf.items() if key in {"done", "terminated", "truncated"}]
    states = [
        {key.partition("/")[2]: array.shape for key, array in leaf.items() if key.partition("/")[0] == root}
        for root in ("observation", "next_observation")
    ]
    are_flags = flags and all(array.size == 1 and array.reshape(()).item() in {0, 1} for array in flags)
    if "reward" not in leaf or leaf["reward"].size != 1 or not are_flags or states[0] != states[1]:
        problem = f"tuple {number:,} has values of the shapes {[list(array.shape) for array in leaf.values()]}"
        raise ConversionError(name, [f"{problem}, expected a step (s, a, r, s', done)"])


def _are_steps(leaves: Sequence[Mapping[str, NDArray[Any]]], name: str) -> bool:
    """Return whether the elements of a list are steps, not episodes.

    Raises:
        ConversionError: If both are possible.
    """
    shapes = [{key: array.shape for key, array in leaf.items()} for leaf in leaves]
    numbers = {key for key, shape in shapes[0].items() if not shape}
    if numbers and _are_values_of_episodes(shapes, numbers):
        return False
    if numbers:  # a reward or a flag is a number for each step
        if all({key for key, shape in element.items() if not shape} == numbers for element in shapes):
            return True
    else:
        lengths = [{shape[0] for shape in element.values() if shape} for element in shapes]
        is_whole = all(
            () not in element.values() and max(rows) - min(rows) <= 1
            for element, rows in zip(shapes, lengths, strict=True)
        )
        # Vectors of the same length in every element may also be the values of a step.
        is_certain = len(set(map(frozenset, lengths))) > 1 or any(len(shape) > 1 for shape in shapes[0].values())
        if is_whole and is_certain:
            return False
    shown = ", ".join(f"{key} {list(shape)}" for key, shape in shapes[0].items())
    raise ConversionError(
        name, [f"the elements of the list have {shown}, expected arrays of episodes or values of steps"]
    )


def _are_values_of_episodes(shapes: Sequence[Mapping[str, tuple[int, ...]]], numbers: set[str]) -> bool:
    """Return whether numbers are values of episodes, such as a success: the arrays have another length in each element."""
    rows = [{shape[0] for key, shape in element.items() if key not in numbers and shape} for element in shapes]
    is_whole = all(one and max(one) - min(one) <= 1 for one in rows)
    return (
        is_whole and len(set(map(frozenset, rows))) > 1 and all(len(element) > len(numbers) + 1 for element in shapes)
    )


def _stacked(values: Sequence[NDArray[Any]], key: str, name: str) -> NDArray[Any]:
    shapes = {array.shape for array in values}
    if len(shapes) > 1:
        shown = join_names([str(list(shape)) for shape in sorted(shapes)], ITEMS_MAX)
        raise ConversionError(name, [f"{key} has the shapes {shown}, expected the same shape in every step"])
    return np.stack(values)


def _described(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"an array {value.dtype.name} {list(value.shape)}"
    return (
        f"{len(value):,} values in a {type(value).__name__}"
        if isinstance(value, (list, tuple))
        else f"a {type(value).__name__}"
    )
