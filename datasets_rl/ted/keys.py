"""Keys of the TorchRL Episode Data format (TED).

A transition is a row. Root keys describe time t, keys under "next" describe t+1:

    observation  action  episode  done  terminated  truncated      next: observation  reward  done  terminated  truncated

A key is a tuple of names, ``("next", "reward")``. On disk and on the command line a key is written with dots,
``next.reward``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

from datasets_rl.errors import InvalidArgumentError, UnknownKeyError

Key = tuple[str, ...]
EndKey = Key | tuple[Key, ...]
"""Key of the flag that ends a trajectory. With several keys, any flag does."""
Leaf = TypeVar("Leaf")

NEXT = "next"
OBSERVATION: Key = ("observation",)
ACTION: Key = ("action",)
EPISODE: Key = ("episode",)
DONE: Key = ("done",)
TERMINATED: Key = ("terminated",)
TRUNCATED: Key = ("truncated",)
MASK: Key = ("mask",)
NEXT_REWARD: Key = (NEXT, "reward")
NEXT_COST: Key = (NEXT, "cost")
NEXT_SUCCESS: Key = (NEXT, "success")
NEXT_DONE: Key = (NEXT, "done")
NEXT_FINAL_KNOWN: Key = (NEXT, "final_known")
"""Key of the mask of known next states: False exactly on the last transition of an episode with an unknown
final observation. Readers derive the mask from the episode table. The mask is never stored."""
NEXT_TERMINATED: Key = (NEXT, "terminated")
NEXT_TRUNCATED: Key = (NEXT, "truncated")
NEXT_MASK: Key = (NEXT, "mask")
"""Factor of the value of the next state, where the factor is not 1 - terminated."""
PLAIN: tuple[Key, ...] = (OBSERVATION, ACTION, NEXT_REWARD, NEXT_TERMINATED, NEXT_TRUNCATED)
"""Fields of a source without additional fields."""
ROOT_FLAGS: tuple[Key, ...] = (DONE, TERMINATED, TRUNCATED)


def is_observation(key: Key) -> bool:
    """Return whether a field is an observation, or a part such as ``("observation", "pixels")``."""
    return OBSERVATION[0] in key


def nest_keys(leaves: Mapping[Key, Leaf]) -> dict[str, Any]:
    """Return values as nested dicts: ``{("next", "reward"): r}`` becomes ``{"next": {"reward": r}}``."""
    tree: dict[str, Any] = {}
    for key, leaf in leaves.items():
        node = tree
        for name in key[:-1]:
            node = node.setdefault(name, {})
        node[key[-1]] = leaf
    return tree


def natural_order(name: str | Key) -> tuple[Any, ...]:
    """Return what names, paths and keys are sorted by: ``"joint_2"`` comes before ``"joint_10"``."""
    if not isinstance(name, str):
        return tuple(map(natural_order, name))
    parts = re.split(r"(\d+)", name)
    # Names that differ in leading zeros only are in the order of characters.
    return tuple((int(part), "") if part.isdecimal() else (-1, part) for part in parts), name


def dotted_name(key: Key) -> str:
    """Return a key as a dotted name: ``("next", "reward")`` becomes ``"next.reward"``."""
    return ".".join(key)


def as_key(key: str | Iterable[Any]) -> Key:
    """Return the key for a dotted name, a tuple of names, or a tuple with nested tuples.

    Raises:
        InvalidArgumentError: If the argument is not a key.
    """
    if isinstance(key, str):
        parts: tuple[str, ...] = tuple(key.split("."))
    elif not isinstance(key, Iterable):
        parts = ()
    else:
        parts = tuple(name for part in key for name in ((part,) if isinstance(part, str) else as_key(part)))
    if not parts or not all(parts):
        raise InvalidArgumentError(f"{key!r} is not a key, expected a name, 'a.b', or a tuple of names")
    return parts


def keys_named(names: str | Iterable[str | Key], known: Sequence[Key]) -> list[Key]:
    """Return the keys of fields by name, in the order of `known`, each once.

    If a batch has ``("next", "final_known")``, a choice with a next observation contains it: without the mask, a next
    observation that is unknown cannot be distinguished from a known observation.

    Args:
        names: A name, or several names: each the key of a field, or the first names of the keys of several fields.
        known: The keys of all fields.

    Raises:
        UnknownKeyError: If no field has a given name. The error lists all such names.
        InvalidArgumentError: If there is no name, or a name is not a key.
    """
    named_keys = [(name, as_key(name)) for name in ([names] if isinstance(names, str) else names)]
    spelled = names_among(known)
    chosen = [spelled_key(name if isinstance(name, str) else key, spelled) for name, key in named_keys]
    if not chosen:
        raise InvalidArgumentError("keys are empty, expected the key of at least 1 field")
    unknown = [name for name in chosen if not any(key[: len(name)] == name for key in known)]
    if unknown:
        raise UnknownKeyError([dotted_name(name) for name in unknown], [dotted_name(key) for key in known])
    keys = {key for key in known if any(key[: len(name)] == name for name in chosen)}
    if any(key[0] == NEXT and key[1:] in known and key[1:] not in ROOT_FLAGS for key in keys):
        keys.add(NEXT_FINAL_KNOWN)
    return [key for key in known if key in keys]


NamesAt: TypeAlias = Callable[[Key], Iterable[str]]
"""Function that returns the names under a key, () for the root. Empty under a leaf."""


def names_among(known: Iterable[Key]) -> NamesAt:
    """Return the function that `spelled_key` needs, for data with these keys."""
    keys = list(known)
    return lambda path: dict.fromkeys(
        key[len(path)] for key in keys if len(key) > len(path) and key[: len(path)] == path
    )


def spelled_key(key: str | Key, names_at: NamesAt) -> Key:
    """Return the key of an entry with a name that may have dots, as in the data.

    Without an entry of that very name, dots separate the names of groups. A new entry is named like the others: with dots,
    if the data has no such group, but entries with names that begin with the group and a dot.

        "observation.state"        data                                  result
                                   {"observation": {"state": ...}}       ("observation", "state")
                                   {"observation.state": ...}            ("observation.state",)
                                   {"observation.image": ...}            ("observation.state",), a new entry
    """
    names = (key,) if isinstance(key, str) else key
    if all(name in names_at(names[:depth]) for depth, name in enumerate(names)):
        return names
    if entry := _entry_named(".".join(names), (), names_at):
        return entry
    path: Key = ()
    for name in names:
        rest = name
        while "." in rest and all(rest.split(".")):
            group, _, others = rest.partition(".")
            siblings = names_at(path)
            if group not in siblings and any(other.startswith(f"{group}.") for other in siblings):
                break
            path, rest = (*path, group), others
        path = (*path, rest)
    return path


def _entry_named(dotted: str, path: Key, names_at: NamesAt) -> Key:
    """Return the key under `path` with this dotted name, or () if there is no such key."""
    names = names_at(path)
    if dotted in names:
        return (*path, dotted)
    groups = (name for name in names if dotted.startswith(f"{name}."))
    return next(filter(None, (_entry_named(dotted[len(name) + 1 :], (*path, name), names_at) for name in groups)), ())
