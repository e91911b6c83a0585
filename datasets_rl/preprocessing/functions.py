"""A user's function as a step: for a transition, a batch of them, or a whole episode."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from datasets_rl.errors import InvalidArgumentError
from datasets_rl.preprocessing.base import Step
from datasets_rl.preprocessing.digests import digest
from datasets_rl.preprocessing.tensors import apart, from_tensors, leaves_of, to_tensors, twice_in
from datasets_rl.ted.episode import end_to_end
from datasets_rl.ted.episode_batch import EpisodeBatch
from datasets_rl.ted.keys import as_key, dotted

__all__ = ["Function", "Per", "joined"]

Per = Literal["step", "batch", "episode"]

_ALONE = 256
"""Steps that are taken apart at once: Python's collector goes through all the tensors that there are, again and again."""


@dataclass
class Function(Step):
    """What a function makes of transitions.

        per="step"      fn(TensorDict [])  -> TensorDict []            one after the other
        per="batch"     fn(TensorDict [B]) -> TensorDict [B]           rows of several episodes
        per="episode"   fn(TensorDict [T]) -> TensorDict [T'], a list of them, or None

    Args:
        fn: The function.
        per: What it is given.
        most: Steps of a batch; as many as come at once where it is 0.
    """

    fn: Callable[[TensorDictBase], Any]
    per: Per = "step"
    most: int = 0

    def __post_init__(self) -> None:
        if not callable(self.fn):
            raise InvalidArgumentError(f"fn is a {type(self.fn).__name__}; expected a function of a TensorDict")
        if self.per not in {"step", "batch", "episode"}:
            raise InvalidArgumentError(f"per is {self.per!r}; expected 'step', 'batch' or 'episode'")

    def __call__(self, block: EpisodeBatch) -> EpisodeBatch | None:
        """Return what the function makes of a block."""
        if self.per == "episode":
            return joined([one for number in range(len(block)) for one in self._of_episode(block, number)])
        data = to_tensors(block)
        parts = data.split(self.most or (_ALONE if self.per == "step" else max(len(data), 1)), 0)
        call = self.fn if len(parts) == 1 else lambda one: _own(self.fn(one))
        came = [_of_steps(self.fn, one) if self.per == "step" else call(one) for one in parts]
        odd = [one for one in came if not isinstance(one, TensorDictBase)]
        return from_tensors([*odd, came[0]][0] if odd or len(came) == 1 else torch.cat(came), block, whole=False)

    def _of_episode(self, block: EpisodeBatch, number: int) -> list[EpisodeBatch]:
        one = block.pick(np.array([number]))
        came = self.fn(to_tensors(one))
        several = came if isinstance(came, (list, tuple)) else [] if came is None else [came]
        made = [from_tensors(_own(data), one, whole=True) for data in several]
        return [each for each in made if each is not None]

    def to_json(self) -> dict[str, Any]:
        """Describe the step: the function by its name and by what it does."""
        name = getattr(self.fn, "__qualname__", type(self.fn).__qualname__)
        most = {"most": self.most} if self.most else {}
        return {"use": "function", "name": name, "per": self.per, **most, "digest": digest(self.fn)}


def joined(parts: Sequence[EpisodeBatch]) -> EpisodeBatch | None:
    """Put blocks behind each other; None if there is none.

    A field that one of them has at t and at t + 1, each for itself, is so in all: in an episode of one step nothing
    tells the two apart.

    Raises:
        InvalidArgumentError: If they do not have the same fields.
    """
    if len(parts) < 2:
        return parts[0] if parts else None
    twice = frozenset().union(*map(twice_in, parts))
    parts = [apart(part, twice) for part in parts]
    first = parts[0]
    for part in parts[1:]:
        for kind in ("steps", "states"):
            here, there = getattr(first, kind), getattr(part, kind)
            if here.keys() != there.keys():
                odd = sorted(map(".".join, here.keys() ^ there.keys()))
                raise InvalidArgumentError(f"episodes come out with different fields: {', '.join(odd)}")

    def cat(kind: str) -> dict[Any, Any]:
        return {key: end_to_end([getattr(part, kind)[key] for part in parts]) for key in getattr(first, kind)}

    return EpisodeBatch(
        np.concatenate([part.lengths for part in parts]),
        cat("steps"),
        cat("states"),
        cat("final_states"),
        np.concatenate([part.final_known for part in parts]),
        cat("metadata"),
        first.vocabulary,
        np.concatenate([part.numbers for part in parts]),
    )


def _own(data: Any) -> Any:
    """Copy what a function gave: it may write into the same tensors the next time."""
    return data.clone() if isinstance(data, TensorDictBase) else data


def _of_steps(fn: Callable[[TensorDictBase], Any], data: TensorDictBase) -> Any:
    """Return what a function makes of each transition, [N]; fields that it leaves as they are stay where they are.

    Raises:
        InvalidArgumentError: If it does not give the same fields for all, or one that is no tensor.
    """
    columns = dict(leaves_of(data))
    changed: dict[Any, dict[int, Tensor]] = {}
    keys: Mapping[Any, Any] = {}
    for number, row in enumerate(data.unbind(0)):
        before = dict(leaves_of(row))
        came = fn(row)
        if not isinstance(came, TensorDictBase):
            return came
        leaves = dict(leaves_of(came))
        keys = keys or leaves
        if leaves.keys() != keys.keys():
            raise InvalidArgumentError(
                f"it gives {_named(leaves.keys() ^ keys.keys())} for some steps; expected the same fields of all"
            )
        new = {
            key: leaf for key, leaf in leaves.items() if not _as_it_was(leaf, before.get(key), columns.get(key), number)
        }
        if odd := [key for key, leaf in new.items() if not isinstance(leaf, Tensor)]:
            raise InvalidArgumentError(f"{_named(odd)} is no tensor")
        for key, leaf in new.items():
            changed.setdefault(key, {})[number] = leaf.clone()
    steps = range(len(data))
    return TensorDict(
        {
            key: torch.stack([changed[key][step] if step in changed[key] else columns[key][step] for step in steps])
            if key in changed
            else columns[key]
            for key in keys
        },
        batch_size=[len(data)],
    )


def _as_it_was(leaf: Any, before: Any, column: Any, number: int) -> bool:
    """Say whether a row of a column is the very tensor still: `unsqueeze_` and its like change what it is."""
    if leaf is not before:
        return False
    place = column.data_ptr() + number * column.stride(0) * column.itemsize
    found = leaf.data_ptr(), leaf.shape, leaf.stride()
    return bool(found == (place, column.shape[1:], column.stride()[1:]))


def _named(keys: Iterable[Any]) -> str:
    return ", ".join(sorted(dotted(as_key(key)) for key in keys))
