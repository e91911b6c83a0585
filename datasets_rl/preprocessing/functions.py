"""Functions of the user as steps: called with a transition, a batch of transitions, or a whole episode."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor
from typing_extensions import override

from datasets_rl.errors import InvalidArgumentError
from datasets_rl.preprocessing.base import Step
from datasets_rl.preprocessing.digests import code_digest
from datasets_rl.preprocessing.tensors import from_tensors, named_leaves, to_tensors, unshare, unshared_keys
from datasets_rl.ted.episode import concatenate_columns
from datasets_rl.ted.episode_batch import EpisodeBatch
from datasets_rl.ted.keys import as_key, dotted_name

Per = Literal["step", "batch", "episode"]

_UNBIND_STEPS = 256
"""Steps that are split into transitions at once: Python's garbage collector repeatedly visits all live tensors."""


@dataclass
class Function(Step):
    """A function of transitions as a step.

        per="step"      fn(TensorDict [])  -> TensorDict []            each transition alone
        per="batch"     fn(TensorDict [B]) -> TensorDict [B]           transitions of several episodes
        per="episode"   fn(TensorDict [T]) -> TensorDict [T'], a list of TensorDicts, or None

    Args:
        fn: The function.
        per: Whether the function is called with a transition, a batch or an episode.
        batch_size: The maximum number of transitions of a batch, or 0 for whole batches of episodes.
    """

    fn: Callable[[TensorDictBase], Any]
    per: Per = "step"
    batch_size: int = 0

    def __post_init__(self) -> None:
        if not callable(self.fn):
            raise InvalidArgumentError(f"fn is a {type(self.fn).__name__}, expected a function of a TensorDict")
        if self.per not in {"step", "batch", "episode"}:
            raise InvalidArgumentError(f"per is {self.per!r}, expected 'step', 'batch' or 'episode'")

    @property
    @override
    def is_digest(self) -> bool:
        return True

    @override
    def __call__(self, batch: EpisodeBatch) -> EpisodeBatch | None:
        if self.per == "episode":
            return concatenate_batches(
                [piece for index in range(len(batch)) for piece in self._apply_to_episode(batch, index)]
            )
        data = to_tensors(batch)
        chunks = data.split(self.batch_size or (_UNBIND_STEPS if self.per == "step" else max(len(data), 1)), 0)
        call = self.fn if len(chunks) == 1 else lambda chunk: _copy_result(self.fn(chunk))
        results = [_apply_to_steps(self.fn, chunk) if self.per == "step" else call(chunk) for chunk in chunks]
        invalid = [result for result in results if not isinstance(result, TensorDictBase)]
        if invalid or len(results) == 1:
            return from_tensors([*invalid, results[0]][0], batch, whole=False)
        return from_tensors(torch.cat(results), batch, whole=False)

    def _apply_to_episode(self, batch: EpisodeBatch, index: int) -> list[EpisodeBatch]:
        episode = batch.select_episodes(np.array([index]))
        result = self.fn(to_tensors(episode))
        items = result if isinstance(result, (list, tuple)) else [] if result is None else [result]
        pieces = [from_tensors(_copy_result(data), episode, whole=True) for data in items]
        return [piece for piece in pieces if piece is not None]

    def to_json(self) -> dict[str, Any]:
        """Return the description of the step for the manifest, with the name and the digest of the function."""
        name = getattr(self.fn, "__qualname__", type(self.fn).__qualname__)
        size = {"batch_size": self.batch_size} if self.batch_size else {}
        return {"use": "function", "name": name, "per": self.per, **size, "digest": code_digest(self.fn)}


def concatenate_batches(parts: Sequence[EpisodeBatch]) -> EpisodeBatch | None:
    """Concatenate batches. Return None if `parts` is empty.

    If a batch has a field separately at t and at t + 1, so will the result: the layout of an episode of one step is
    ambiguous.

    Raises:
        InvalidArgumentError: If the batches have different fields.
    """
    if len(parts) < 2:
        return parts[0] if parts else None
    unshared = frozenset().union(*map(unshared_keys, parts))
    batches = [unshare(batch, unshared) for batch in parts]
    first = batches[0]
    for batch in batches[1:]:
        for attribute in ("steps", "states"):
            differing = getattr(first, attribute).keys() ^ getattr(batch, attribute).keys()
            if differing:
                names = sorted(map(".".join, differing))
                raise InvalidArgumentError(f"the resulting episodes have different fields: {', '.join(names)}")

    def cat(attribute: str) -> dict[Any, Any]:
        keys = getattr(first, attribute)
        return {key: concatenate_columns([getattr(batch, attribute)[key] for batch in batches]) for key in keys}

    return EpisodeBatch(
        np.concatenate([batch.lengths for batch in batches]),
        cat("steps"),
        cat("states"),
        cat("final_states"),
        np.concatenate([batch.final_known for batch in batches]),
        cat("metadata"),
        first.vocabulary,
        np.concatenate([batch.numbers for batch in batches]),
        first.compressed,
    )


def _copy_result(data: Any) -> Any:
    """Copy the result of a function, which may write into the same tensors at the next call."""
    return data.clone() if isinstance(data, TensorDictBase) else data


def _apply_to_steps(fn: Callable[[TensorDictBase], Any], data: TensorDictBase) -> Any:
    """Return the results of a function for each transition, [N]. Unchanged fields are not copied."""
    columns = dict(named_leaves(data))
    changed: dict[Any, dict[int, Tensor]] = {}
    keys: Mapping[Any, Any] = {}
    for number, row in enumerate(data.unbind(0)):
        before = dict(named_leaves(row))
        result = fn(row)
        if not isinstance(result, TensorDictBase):
            return result
        leaves = dict(named_leaves(result))
        keys = keys or leaves
        if leaves.keys() != keys.keys():
            raise InvalidArgumentError(
                f"it returns {_join_names(leaves.keys() ^ keys.keys())} for some steps only, expected the same fields for all"
            )
        new = {
            key: leaf
            for key, leaf in leaves.items()
            if not _is_unchanged(leaf, before.get(key), columns.get(key), number)
        }
        if invalid := [key for key, leaf in new.items() if not isinstance(leaf, Tensor)]:
            raise InvalidArgumentError(f"{_join_names(invalid)} is not a tensor")
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


def _is_unchanged(leaf: Any, before: Any, column: Any, number: int) -> bool:
    """Return whether a row of a column is still the same view. Methods such as `unsqueeze_` change its shape."""
    if leaf is not before:
        return False
    address = column.data_ptr() + number * column.stride(0) * column.itemsize
    layout = leaf.data_ptr(), leaf.shape, leaf.stride()
    return bool(layout == (address, column.shape[1:], column.stride()[1:]))


def _join_names(keys: Iterable[Any]) -> str:
    return ", ".join(sorted(dotted_name(as_key(key)) for key in keys))
