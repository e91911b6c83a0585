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
from datasets_rl.sources.flat.arrays import TEXT, Array, ArrayFile, Rows

_STEP = ("observation", "action", "reward", "next_observation", "done")
"""Names of the values of a step in a tuple, in the order of the field: (s, a, r, s', done)."""

_WAYS = {
    "pandas": "convert the file where it was made: import pandas; pandas.read_pickle('{0}').to_parquet('{1}.parquet')",
    "torch": "convert the file where it was made: import numpy, torch; "
    "numpy.savez('{1}.npz', **{{name: value.numpy() for name, value in torch.load('{0}').items()}})",
}
"""What makes a file that can be read of a pickle with objects of a library."""


class TreeFile(ArrayFile):
    """Arrays of Python values, which are in memory.

    a dict       {"observations": [N, D], "actions": [N, A]}        the arrays of all episodes
    episodes     [{"observations": [T, D], ...}, ...]               groups episode_0, episode_1, ...
    steps        [{"obs": [D], "action": [A], "reward": 1.0}, ...]  a row for each, as are tuples (s, a, r, s', done)

    Raises:
        ConversionError: If the values are none of these, or the structure is not certain.
    """

    def __init__(self, value: Any, name: str) -> None:
        self.name = name
        self._values = dict(_arrays(value, name))
        self.scalars = {
            array: values for array, values in self._values.items() if not values.ndim and values.dtype.kind in "biuf"
        }
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


class PickleFile(TreeFile):
    """Arrays of a pickle of plain values, which is read without calling anything that the pickle names."""

    def __init__(self, path: Path, name: str) -> None:
        from datasets_rl.read.pickles import load

        try:
            value = load(path.read_bytes(), name)
        except ConversionError as error:
            text = str(error)
            error.hint = next(
                (way.format(path.name, path.stem) for library, way in _WAYS.items() if library in text), error.remedy
            )
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


def _arrays(value: Any, name: str) -> Iterator[tuple[str, NDArray[Any]]]:
    if isinstance(value, Mapping):
        yield from _leaves(value, "")
        return
    if not isinstance(value, (list, tuple)) or not value:
        raise ConversionError(
            name, [f"the file has {_described(value)}, expected a dict of arrays or a list of episodes or steps"]
        )
    items = list(value)
    if all(isinstance(item, Mapping) for item in items):
        leaves = [dict(_leaves(item, "")) for item in items]
    elif all(isinstance(item, (list, tuple)) and len(item) == len(_STEP) for item in items):
        leaves = [dict(_leaves(dict(zip(_STEP, item, strict=True)), "")) for item in items]
        _check_tuples(leaves, name)
    else:
        kinds = join_names(sorted({_described(item) for item in items}), ITEMS_MAX)
        problem = f"the file has a list of {kinds}, expected a list of dicts, or of tuples (s, a, r, s', done)"
        raise ConversionError(name, [problem])
    _check_names(leaves, name)
    if _are_steps(leaves, name):
        for key in leaves[0]:
            yield key, _stacked([leaf[key] for leaf in leaves], key, name)
        return
    for number, leaf in enumerate(leaves):
        for key, array in leaf.items():
            yield f"episode_{number}/{key}", array


def _leaves(value: Mapping[Any, Any], path: str) -> Iterator[tuple[str, NDArray[Any]]]:
    for name, inner in value.items():
        if isinstance(inner, Mapping):
            yield from _leaves(inner, f"{path}{name}/")
        else:
            yield f"{path}{name}", _as_array(inner)


def _as_array(value: Any) -> NDArray[Any]:
    """Return a value as an array. Values without a common shape are objects."""
    try:
        array = np.asarray(value)
    except ValueError:
        array = np.empty(len(value), object)
    if array.dtype.kind in "SV" or (array.dtype.kind == "U" and array.ndim > 1):
        return np.empty(array.shape, object)
    return array


def _check_names(leaves: Sequence[Mapping[str, NDArray[Any]]], name: str) -> None:
    names = leaves[0].keys()
    for number, leaf in enumerate(leaves):
        if leaf.keys() != names:
            other = sorted(leaf.keys() ^ names)
            problem = f"element {number:,} of the list differs from the first element in {join_names(other, ITEMS_MAX)}"
            raise ConversionError(name, [f"{problem}, expected the same names in every element"])


def _check_tuples(leaves: Sequence[Mapping[str, NDArray[Any]]], name: str) -> None:
    """Check that tuples are certainly (s, a, r, s', done): a number, a flag, and two states of the same shape."""
    for number, leaf in enumerate(leaves):
        state, reward, after, done = (leaf[key] for key in ("observation", "reward", "next_observation", "done"))
        is_flag = done.size == 1 and done.reshape(()).item() in {0, 1}
        if reward.size != 1 or not is_flag or state.shape != after.shape:
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
        if isinstance(value, Sequence)
        else f"a {type(value).__name__}"
    )
