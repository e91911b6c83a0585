"""Demonstrations in an HDF5 file of robomimic's shape: a group each, and filter keys that name some demonstrations.

    data                       attributes: total, env_args. LIBERO: problem_info, bddl_file_name
    data/demo_12               attributes: num_samples, ep_meta, and numbers such as success and seed
    data/demo_12/actions       [T, ...], and rewards, dones, states
    data/demo_12/obs/<key>     [T, ...], and next_obs/<key>
    data/demo_12/states/**     [T, ...], and initial_state/** [1, ...]: Isaac Lab's states, after each action
    mask/train                 names of demonstrations

There are four alignments. In row t, the action a_t leads from the state s_t to s_t+1:

    next_obs      obs o_t   next_obs o_t+1      the last next_obs is the final observation
    final         obs o_t                       the final observation was not stored
    before        obs o_t                       the same, in LIBERO's files that were generated again
    after         obs o_t+1                     LIBERO's own files: the observation before the first action was not stored
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from datasets_rl.errors import Argument, Call, ConversionError, Remedy, join_names
from datasets_rl.read.hdf5 import Hdf5Array, Hdf5File
from datasets_rl.read.streams import first_problems
from datasets_rl.sources.lags import MIN_ROWS, lag_of_states
from datasets_rl.ted.keys import ACTION, EPISODE, NEXT_REWARD, OBSERVATION, Key

if TYPE_CHECKING:
    from typing_extensions import Self

DONES: Key = ("dones",)
LANGUAGE: Key = ("language_instruction",)
STATES: Key = ("info", "states")
ROBOT_STATES: Key = ("info", "robot_states")
_ROOTS: Mapping[str, Key] = {
    "obs": OBSERVATION,
    "next_obs": OBSERVATION,
    "actions": ACTION,
    "rewards": NEXT_REWARD,
    "dones": DONES,
    "states": STATES,
    "robot_states": ROBOT_STATES,
    "initial_state": STATES,
}
_NEXT_OBS = "next_obs"
_INITIAL = "initial_state"
_STATED = frozenset({"num_samples"})
"""Attributes of a demonstration that are not metadata."""
_KNOWN = frozenset({*_ROOTS, "actions_abs", "action_dict"})
_RESERVED = frozenset({"next", "mask", "done", "terminated", "truncated", "info", "is_init", *LANGUAGE, *EPISODE})
_NUMBER = re.compile(r"\D*(\d+)", re.ASCII)
_SCENE = re.compile(r"[A-Z].*?SCENE\d+_(.*)")
_LIBERO_KEYS = frozenset({"ee_states", "joint_states"})
_LIBERO_ATTRIBUTES = ("problem_info", "bddl_file_name")
_MEASURED = 10
"""Number of demonstrations of a file in which the joints are compared with the simulator states."""
_COMPARED_ROWS = 1024
_VECTOR_AXES = 2
_SHOWN = 8
_IMAGE_SIZES = {128: "after", 256: "before"}
_STATES_ONLY = "this file holds simulator states only: take low_dim, or extract observations by robomimic's script"
DEMONSTRATION_HINT = "correct the named demonstrations, or delete their groups from a copy of the file"
_LAYOUT_HINT = 'for groups of another layout, write a dataset.toml beside the file, with [episodes] by = "group", and give the folder'
_STATE_HINT = Remedy(
    "state whether the observation beside an action is from before the action, {}, or after the action, {}",
    Argument("selection", Call("Selection", options={"alignment": "before"})),
    Argument("selection", Call("Selection", options={"alignment": "after"})),
)


class DemonstrationError(Exception):
    """Problems of a demonstration. The arguments are a sentence for each problem."""


@dataclass(frozen=True, slots=True)
class Demonstration:
    """An opened demonstration of T rows."""

    number: int
    rows: int
    arrays: Mapping[Key, Hdf5Array]
    """Arrays with a row per action, by key."""
    next_obs: Mapping[Key, Hdf5Array]
    """Observations after each action, by the key of the observation."""
    initial: Mapping[Key, Hdf5Array]
    """States before the first action, [1, ...], by the key of the state. The states of the rows are then the states after
    the actions, as Isaac Lab records them. Otherwise empty."""
    left_out: int
    """Number of arrays without a row per action."""


@dataclass(frozen=True, slots=True)
class Alignment:
    """The alignment of a file, and the evidence for the alignment."""

    name: str
    """``next_obs``, ``final``, ``before`` or ``after``."""
    evidence: str
    """``next_obs``, ``keys``, ``states``, ``image-size`` or ``given``."""


class DemonstrationFile:
    """Open file of demonstrations. A context manager.

    Args:
        path: The local file.
        name: The path in the dataset, for messages, and for the instruction of LIBERO's files.
        alignment: The alignment that the user states, ``before`` or ``after``. By default, the file shows the alignment.
        threads: Number of chunks that are decompressed at once.

    Raises:
        ConversionError: If the file has other contents. The error names every problem.
    """

    def __init__(self, path: Path, name: str, *, alignment: str = "", threads: int | None = None) -> None:
        self.name = name
        self._given = alignment
        self._file = Hdf5File(path, group=None, threads=threads)
        try:
            self._groups = self._find_groups()
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *details: object) -> None:
        self._file.close()

    @property
    def numbers(self) -> Sequence[int]:
        """Numbers of the demonstrations, ascending: by name, demo_10 would precede demo_2."""
        return [*self._groups]

    @property
    def unwritten(self) -> int:
        """Number of chunks of the opened demonstration that were never written."""
        return self._file.unwritten

    @cached_property
    def filter_keys(self) -> Mapping[str, frozenset[int]]:
        """Numbers of the demonstrations of each filter key.

        Raises:
            ConversionError: If a filter key names an absent demonstration.
        """
        if "mask" not in self._file.members(""):
            return {}
        self._file.enter("mask")
        by_name = {group: number for number, group in self._groups.items()}
        problems, found = [], {}
        for path, array in self._file.arrays.items():
            names = self._file.value(path) if array.shape else ""
            listed = names.ravel().tolist() if isinstance(names, np.ndarray) and array.text else [str(names)]
            absent = [name for name in listed if f"data/{name}" not in by_name]
            if absent:
                problems.append(f"{path} names {absent[0]!r:.60}, which is not in data ({len(absent):,} such)")
            found[path.removeprefix("mask/")] = frozenset(
                by_name[f"data/{name}"] for name in listed if f"data/{name}" in by_name
            )
        if problems:
            raise self._error(problems)
        return found

    @cached_property
    def alignment(self) -> Alignment:
        """Where the observation beside an action belongs.

        Raises:
            ConversionError: If nothing in the file shows the alignment, or the file shows another alignment than the
                stated alignment.
        """
        opened = self.first
        if opened.next_obs:
            if self._given == "after":
                problem = (
                    "it has next_obs, so that the observation beside an action is the observation before the action"
                )
                raise self._error([problem])
            return Alignment("next_obs", "given" if self._given else "next_obs")
        if self._given:
            return Alignment(self._given, "given")
        if not self.is_libero:
            return Alignment("final", "keys")
        before, after = np.sum([self._joint_errors(number) for number in self.numbers[:_MEASURED]], axis=0)
        if max(before, after) > 2 * min(before, after):
            return Alignment("before" if before < after else "after", "states")
        images = [array.shape for array in opened.arrays.values() if array.dtype == np.uint8 and len(array.shape) == 4]
        names = {_IMAGE_SIZES.get(size, "") for shape in images for size in shape[1:3]}
        if names in ({"before"}, {"after"}):
            return Alignment(names.pop(), "image-size")
        problem = (
            "neither the simulator states nor the size of the images show whether the observation beside an action of "
            "LIBERO is from before or after the action"
        )
        raise self._error([problem], hint=_STATE_HINT)

    @cached_property
    def is_libero(self) -> bool:
        """Whether LIBERO's scripts wrote the file: by attributes, which not all scripts write, or by names."""
        keys = {key[-1] for key in self.first.arrays if key[0] == OBSERVATION[0]}
        return keys >= _LIBERO_KEYS or any(
            self._file.attribute("data", name) is not None for name in _LIBERO_ATTRIBUTES
        )

    @cached_property
    def first(self) -> Demonstration:
        """The first demonstration with a row, or else the first demonstration."""
        opened = map(self._open_named, self.numbers)
        return next((one for one in opened if one.rows), None) or self._open_named(self.numbers[0])

    @cached_property
    def one_state_size(self) -> bool:
        """Whether all simulator states have the same size."""
        sizes = set()
        for group in self._groups.values():
            states = self._file.shape(f"{group}/states")
            sizes.add(None if states is None else states[1:])
        return len(sizes) == 1

    @property
    def environment(self) -> str:
        """Name of the environment, or empty if the file has no name."""
        return _json_member(self.attribute("env_args"), "env_name") or ""

    def attribute(self, name: str) -> str:
        """Return an attribute of the file, or an empty text if the attribute is missing or is not a text."""
        value = self._file.attribute("data", name)
        return value if isinstance(value, str) else ""

    def instruction(self, number: int) -> str | None:
        """Return the instruction that an attribute of a demonstration or of the file has, or None if there is none."""
        stated = _json_member(self._file.attribute(self._groups[number], "ep_meta"), "lang")
        return stated or _json_member(self._file.attribute("data", "problem_info"), "language_instruction")

    @property
    def instruction_of_name(self) -> str:
        """The instruction that LIBERO puts into the name of a file, after the scene."""
        stem = self.name.rpartition("/")[2].rpartition(".")[0].removesuffix("_demo")
        scene = _SCENE.fullmatch(stem)
        return (stem if scene is None else scene[1]).replace("_", " ")

    def open(self, number: int) -> Demonstration:
        """Open a demonstration: the arrays can be read until another demonstration is opened.

        Raises:
            DemonstrationError: If the arrays have different lengths, or another length than stated.
            ConversionError: If HDF5 cannot read the demonstration.
        """
        group = self._groups[number]
        self._file.enter(group)
        arrays, next_obs, initial, others = self._sort_arrays(group)
        rows = arrays[ACTION].shape[0]
        observations = {key for key in arrays if key[0] == OBSERVATION[0]}
        stated = self._file.attribute(group, "num_samples")
        problems = [] if _agrees(stated, rows) else [f"num_samples is {stated}, but there are {rows:,} actions"]
        problems += [
            f"{array.name} has {array.shape[0]:,} rows, but the actions have {rows:,}"
            for array in (*arrays.values(), *next_obs.values())
            if array.shape[0] != rows
        ]
        if next_obs and next_obs.keys() != observations:
            problems.append("obs and next_obs have different keys")
        problems += _initial_problems(arrays, initial)
        if not observations:
            problems.append(_STATES_ONLY if STATES in arrays else "it has no obs")
        if problems:
            raise DemonstrationError(*problems)
        fitting = {key: array for key, array in others.items() if array.numeric and array.shape[:1] == (rows,)}
        return Demonstration(number, rows, {**arrays, **fitting}, next_obs, initial, len(others) - len(fitting))

    def _sort_arrays(self, group: str) -> tuple[dict[Key, Hdf5Array], ...]:
        """Return the arrays of known names, of next_obs, of the initial state, and the others, by key.

        Raises:
            DemonstrationError: If there are no actions, two arrays map to one key, or an array has no numbers.
        """
        arrays: dict[Key, Hdf5Array] = {}
        next_obs: dict[Key, Hdf5Array] = {}
        initial: dict[Key, Hdf5Array] = {}
        others: dict[Key, Hdf5Array] = {}
        problems: list[str] = []
        for path, array in self._file.arrays.items():
            root, *rest = _clean_names(path[len(group) + 1 :])
            into = {_NEXT_OBS: next_obs, _INITIAL: initial}.get(root, arrays if root in _KNOWN else others)
            key = (*_ROOTS.get(root, (f"{root}_" if root in _RESERVED else root,)), *rest)
            if into.setdefault(key, array) is not array:
                problems.append(f"{path} and {into[key].name} map to the key {'.'.join(key)}")
            if into is not others and not (array.numeric and array.shape):
                problems.append(f"{path} is {'a single value' if array.numeric else array.dtype}, expected numbers")
        if ACTION not in arrays:
            found = join_names(sorted({path[len(group) + 1 :].partition("/")[0] for path in self._file.arrays}), _SHOWN)
            problems.append(f"it has no actions, only {found or 'nothing'}")
        if problems:
            raise DemonstrationError(*problems)
        return arrays, next_obs, initial, others

    def read(self, array: Hdf5Array, start: int = 0, stop: int | None = None) -> NDArray[Any]:
        """Return the rows [start, stop) of an array of the opened demonstration."""
        return self._file.read(array.name, start, stop)

    def metadata(self, number: int) -> dict[str, bool | int | float]:
        """Return the attributes of a demonstration that are single numbers, such as the success and the seed."""
        attributes = self._file.attributes(self._groups[number])
        return {
            name: value
            for name, value in attributes.items()
            if name not in _STATED and isinstance(value, (bool, int, float))
        }

    @cached_property
    def has_other_total(self) -> bool:
        """Whether the file states another number of rows than the demonstrations have, as after a deletion."""
        total = self._file.attribute("data", "total")
        rows = sum((self._file.shape(f"{group}/actions") or (0,))[0] for group in self._groups.values())
        return not _agrees(total, rows)

    @cached_property
    def state_lag(self) -> int | None:
        """Lag of the simulator states against the observations of the same rows, or None if no demonstration shows it.

        0 is before the action, and 1 is after the action.
        """
        for number in self.numbers[:_MEASURED]:
            opened = self._open_named(number)
            states = self._read_vectors(opened, STATES)
            observations = self._read_vectors(opened, OBSERVATION)
            if states is None or observations is None or opened.rows < MIN_ROWS + 2:
                continue
            lag, _ = lag_of_states(states, observations, np.ones(len(states) - 1, np.bool_))
            if lag is not None:
                return lag
        return None

    def _read_vectors(self, opened: Demonstration, root: Key) -> NDArray[np.float64] | None:
        """Return the numbers and the vectors below a key in the first rows of a demonstration, [n, D], or None."""
        arrays = [
            array
            for key, array in opened.arrays.items()
            if key[: len(root)] == root and len(array.shape) <= _VECTOR_AXES and array.dtype.kind in "iuf"
        ]
        rows = min(opened.rows, _COMPARED_ROWS)
        parts = [self.read(array, 0, rows).reshape(rows, -1).astype(np.float64) for array in arrays]
        return np.concatenate(parts, axis=1) if parts else None

    def _find_groups(self) -> dict[int, str]:
        members = self._file.members("data")
        if not members:
            raise self._error(
                ["it has no group data with demonstrations, expected the layout of robomimic"], hint=_LAYOUT_HINT
            )
        problems = []
        groups: dict[int, str] = {}
        for name, is_group in members.items():
            number = _NUMBER.fullmatch(name)
            if not is_group:
                problems.append(f"data/{name} is not a group, expected a group for each demonstration")
            elif number is None:
                problems.append(f"data/{name} has no number, expected demonstrations called demo_0, demo_1 and so on")
            elif int(number[1]) in groups:
                problems.append(f"data/{name} and {groups[int(number[1])]} have the same number")
            else:
                groups[int(number[1])] = f"data/{name}"
        if problems:
            raise self._error(first_problems(problems), hint=_LAYOUT_HINT)
        return dict(sorted(groups.items()))

    def _open_named(self, number: int) -> Demonstration:
        try:
            return self.open(number)
        except DemonstrationError as error:
            problems = [f"{self._groups[number]}: {problem}" for problem in error.args]
            raise self._error(problems, hint=DEMONSTRATION_HINT) from None

    def label(self, number: int) -> str:
        """Return the name of a demonstration."""
        return self._groups[number].removeprefix("data/")

    def _error(self, problems: Sequence[str], hint: str | Remedy = "") -> ConversionError:
        return ConversionError(self.name, problems, hint=hint)

    def _joint_errors(self, number: int) -> tuple[float, float]:
        """Return how far the joints beside an action are from the joints in the state before the action, and in the next.

        The simulator states have the joints in consecutive columns. The place of the columns depends on the simulation.

        Returns:
            The mean distances in rad, at the columns where the distances are smallest, or zeros if the demonstration
            has no joints.
        """
        opened = self._open_named(number)
        arrays = [opened.arrays.get(key) for key in ((*OBSERVATION, "joint_states"), STATES)]
        if opened.rows < 2 or any(array is None or len(array.shape) != 2 for array in arrays):
            return 0, 0
        joints, states = (self.read(array).astype(np.float64) for array in arrays if array is not None)
        if not 0 < joints.shape[1] <= states.shape[1]:
            return 0, 0
        # Row 0 of the files that were generated again has the state of the original file.
        windows = sliding_window_view(states[1:], joints.shape[1], axis=1)
        before, after = (
            float(np.abs(windows - beside[:, None]).mean(axis=(0, 2)).min()) for beside in (joints[1:], joints[:-1])
        )
        return before, after


def _initial_problems(arrays: Mapping[Key, Hdf5Array], initial: Mapping[Key, Hdf5Array]) -> Iterator[str]:
    """Yield how the state before the first action differs from the states of the rows."""
    states = {key: array for key, array in arrays.items() if key[: len(STATES)] == STATES}
    if initial and initial.keys() != states.keys():
        yield "states and initial_state have different keys"
    for key in initial.keys() & states.keys():
        if initial[key].shape != (1, *states[key].shape[1:]):
            shapes = f"{list(initial[key].shape)}, expected [1, ...] with the rows of {states[key].name}"
            yield f"{initial[key].name} is {shapes}, {list(states[key].shape)}"


def _agrees(stated: object, rows: int) -> bool:
    return stated is None or (isinstance(stated, (int, float)) and stated == rows)


def _clean_names(path: str) -> Iterator[str]:
    return (name.replace(".", "_").replace("\\", "_") or "_" for name in path.split("/"))


def _json_member(text: object, name: str) -> str | None:
    """Return a text in a JSON object, or None if there is no such text."""
    try:
        document = json.loads(text) if isinstance(text, str) else None
    except (ValueError, RecursionError):
        return None
    found = document.get(name) if isinstance(document, Mapping) else None
    return " ".join(map(str, found)) if isinstance(found, list) else found if isinstance(found, str) else None
