"""Keys of a folder of TorchRL as fields: a key beside ``next`` is a value before the action, and a key in it one after."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from datasets_rl.read.tensordicts import TensorDictFolder
from datasets_rl.sources.flat.layout import Field, Layout
from datasets_rl.sources.torchrl.arrays import STARTS, array_name
from datasets_rl.ted.keys import (
    ACTION,
    EPISODE,
    MASK,
    NEXT,
    NEXT_DONE,
    NEXT_FINAL_KNOWN,
    NEXT_REWARD,
    NEXT_TERMINATED,
    NEXT_TRUNCATED,
    OBSERVATION,
    ROOT_FLAGS,
    Key,
    is_observation,
)

_FLAGS = (NEXT_DONE, NEXT_TERMINATED, NEXT_TRUNCATED)
_OF_STEP = frozenset({"reward", "done", "terminated", "truncated"})
"""Names of values after the action. Beside ``next``, TorchRL has the values of the preceding step."""
TRAJECTORIES: tuple[Key, ...] = (EPISODE, ("collector", "traj_ids"), ("traj_ids",))
"""Keys of the numbers of the episodes, the first of which counts."""
_RESERVED: Mapping[Key, str] = {
    MASK: "TED reserves the name for the mask of the steps, which are the rows of the dataset",
    ("collector", "mask"): "it is the mask of the steps, which are the rows of the dataset",
    ("index",): "it is the number of the row in the buffer",
}
_FLAT = frozenset({("is_full",), ("shift",)})
"""Keys that the save hooks `TED2Flat` and `TED2Nested` add."""


@dataclass(frozen=True, slots=True)
class Keys:
    """What the keys of a folder mean."""

    fields: tuple[Field, ...]
    numbers: Key = ()
    """Key of the numbers of the episodes, or empty."""
    following: Mapping[Key, Key] = field(default_factory=dict)
    """Keys in ``next``, by the key of the value before the action."""
    of_preceding: tuple[Key, ...] = ()
    """Keys of the values of the preceding step, which are not stored."""
    left_out: Mapping[str, str] = field(default_factory=dict)
    """Why a tensor is not stored, by the dotted key."""

    @property
    def has_flags(self) -> bool:
        """Whether flags mark the ends of episodes."""
        return any(one.key in _FLAGS for one in self.fields)

    def layout(self, *, seams: bool) -> Layout:
        """Return the layout of the flat rows.

        Args:
            seams: Whether an episode ends where the next state is not the state of the following row.
        """
        if seams:
            return Layout(self.fields, alignment="same-row", by="seams", seams=True)
        by = "flags" if self.has_flags else "starts"
        return Layout(self.fields, alignment="same-row", by=by, marks="" if self.has_flags else STARTS, starts=STARTS)


def keys_of(folder: TensorDictFolder, *, next_is_following: bool) -> Keys:
    """Return what the keys of a folder mean.

    Args:
        folder: The folder.
        next_is_following: Whether the state after a step is the state of the following row, where ``next`` has none.
    """
    every = [*folder.tensors, *folder.texts]
    known = {*every}
    fields: list[Field] = []
    left_out = dict(folder.left_out)
    following: dict[Key, Key] = {}
    of_preceding: list[Key] = []
    numbers = next((key for key in TRAJECTORIES if key in known), ())
    has_numbers = any((NEXT, *key) in known for key in folder.tensors if key[-1] not in _OF_STEP)
    for key in every:
        after = (NEXT, *key)
        if problem := _RESERVED.get(key) or _name_problem(key):
            left_out[".".join(key)] = problem
        elif key in ROOT_FLAGS or (key[-1] in _OF_STEP and after in known):
            of_preceding.append(key)
        elif key in {EPISODE, NEXT_FINAL_KNOWN}:
            continue
        elif key in folder.texts and (key[0] == NEXT or after in known):
            # Texts are not compared with the following row, and a text after the last step has no place.
            if key[0] == NEXT:
                left_out[".".join(key)] = "the text before the following step is stored"
            else:
                fields.append(Field(key, array_name(key), state=not has_numbers))
        elif after in known:
            following[key] = after
            fields.append(Field(key, array_name(key), state=True))
        elif key[0] != NEXT and next_is_following and is_observation(key):
            fields.append(Field(key, array_name(key), state=True))
        else:
            fields.append(Field(key, array_name(key), state=False))
    return Keys(tuple(fields), numbers, following, tuple(of_preceding), left_out)


def key_problems(folder: TensorDictFolder, keys: Keys) -> list[str]:
    """Return which keys of a step are missing."""
    found = {one.key for one in keys.fields}
    problems = []
    if not any(one.is_state for one in keys.fields):
        problems.append(f"it has no {'.'.join((NEXT, *OBSERVATION))}, the state after the step")
    if not any(ACTION[0] in key for key in found):
        problems.append("it has no action")
    if NEXT_REWARD not in found:
        beside = ", and reward beside next is that of the preceding step" if NEXT_REWARD[1:] in found else ""
        problems.append(f"it has no next.reward{beside}")
    if not keys.has_flags and not keys.numbers:
        problems.append("it has neither next.done nor episode, which mark the ends of episodes")
    shown = ", ".join(".".join(key) for key in folder.tensors) or "none"
    return [*problems, f"its keys are {shown}"] if problems else []


def is_compact(folder: TensorDictFolder) -> bool:
    """Return whether a folder was written with a save hook that stores each state once, such as `TED2Flat`."""
    return folder.values.keys() >= _FLAT


def _name_problem(key: Key) -> str:
    if any(not part or "." in part or "/" in part for part in key):
        return "its name has a dot or a slash, or is empty"
    if key[0] in {EPISODE[0], MASK[0]} and key != EPISODE:
        return "TED reserves the name"
    if key[:2] in {(NEXT, EPISODE[0]), (NEXT, MASK[0])}:
        return "TED reserves the name"
    return ""
