"""Episodes as a TensorDict of transitions, and what a function made of it as episodes again.

    states  s_0  s_1  s_2          ->   observation       s_0  s_1  s_2
    final   f                           next.observation  s_1  s_2  f          one TensorDict [N] of TED

On the way back an entry under "next" that is the root entry one step later is stored once, as before. One that is not
(the function treats t and t + 1 differently) becomes a field of its own. Encoded pictures that come out as they went in
stay encoded, wherever they are now. Which it is, is found out and then held to.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tensordict import TensorDictBase, is_leaf_nontensor
from torch import Tensor

from datasets_rl.errors import InvalidArgumentError
from datasets_rl.storages.packed import nest
from datasets_rl.ted.episode import EncodedImages, end_to_end
from datasets_rl.ted.episode_batch import EpisodeBatch
from datasets_rl.ted.keys import (
    EPISODE,
    NEXT,
    NEXT_DONE,
    NEXT_FINAL_KNOWN,
    NEXT_REWARD,
    NEXT_TERMINATED,
    NEXT_TRUNCATED,
    ROOT_FLAGS,
    Key,
    as_key,
    dotted,
)
from datasets_rl.ted.steps import next_of

__all__ = ["apart", "from_tensors", "leaves_of", "to_tensors", "twice_in"]

_FLAGS = (NEXT_TERMINATED, NEXT_TRUNCATED, NEXT_DONE)


def to_tensors(block: EpisodeBatch) -> TensorDictBase:
    """Return the transitions of a block, strict TED, [N], in fresh memory.

    They always have ``("next", "final_known")``: what a function is given depends on no other block.
    """
    count = block.count
    leaves: dict[Key, Tensor] = {key: torch.zeros(count, 1, dtype=torch.bool) for key in ROOT_FLAGS}
    for key, values in {**block.steps, **block.states}.items():
        leaves[key] = torch.from_numpy(np.array(values))
    for key, values in block.states.items():
        following = next_of(np.asarray(values), np.asarray(block.final_states[key]), block.table, 0, count)
        leaves[(NEXT, *key)] = torch.from_numpy(following)
    leaves[NEXT_DONE] = leaves[NEXT_TERMINATED] | leaves[NEXT_TRUNCATED]
    known = np.ones((count, 1), np.bool_)
    known[block.table.stops - 1, 0] = block.final_known
    leaves[NEXT_FINAL_KNOWN] = torch.from_numpy(known)
    leaves[EPISODE] = torch.from_numpy(np.repeat(block.numbers, block.lengths))
    return nest(leaves, torch.Size((count,)))


def from_tensors(data: Any, block: EpisodeBatch, *, whole: bool) -> EpisodeBatch | None:
    """Return the episodes of what a function made of `to_tensors(block)`.

    Args:
        data: A TensorDict [M], in the order of time. Episodes end where ``("next", "done")``, ``("next", "terminated")``
            or ``("next", "truncated")`` is True; a last row without any of them is truncated.
        block: What it was made of: the facts of the episodes come from there.
        whole: It is all of one episode, of any length; otherwise the rows are those of the block, one for one.

    Returns:
        The episodes; None if there is no row.

    Raises:
        InvalidArgumentError: If it is no such TensorDict; all reasons at once.
    """
    leaves = _leaves(data, block, whole=whole)
    count = data.batch_size[0]
    if not count:
        return None
    terminated, truncated, done = (leaves.pop(key, np.zeros((count, 1), np.bool_)) for key in _FLAGS)
    ends = (terminated | truncated | done)[:, 0]
    cut = whole and count < block.count and not ends[-1]
    if not whole:
        ends = ends.copy()
        ends[block.table.stops - 1] = True
    ends[-1] = True
    stops = np.flatnonzero(ends) + 1
    # An end that says nothing more is a cut.
    truncated = truncated | (ends[:, None] & ~terminated)
    lengths = np.diff(stops, prepend=0)
    origin = np.zeros(len(stops), np.int64) if whole else block.table.episode_of(stops - 1)
    # Only the last piece of an episode can end where the state is not known, and not where its last steps are gone.
    last = np.append(origin[1:] != origin[:-1], True)
    known = block.final_known[origin] | ~last | cut
    pairs = [key for key in leaves if (NEXT, *key) in leaves and key not in block.steps]
    if whole and not block.final_known[0]:
        known[:-1] &= _goes_on(leaves, pairs, ends)
    states, final_states = {}, {}
    for key in pairs:
        following = leaves[(NEXT, *key)]
        if not known.all():
            # The function may have given one tensor under both names.
            leaves[(NEXT, *key)] = following = following.copy()
            following[stops[~known] - 1] = 0
        if not _one_step_later(leaves[key], following, ends):
            continue
        states[key] = leaves.pop(key)
        final_states[key] = leaves.pop((NEXT, *key))[stops - 1]
    words = {key: texts for key, texts in block.vocabulary.items() if key in leaves or key in states}
    steps = {NEXT_TERMINATED: terminated, NEXT_TRUNCATED: truncated, **leaves}
    metadata = {name: values[origin] for name, values in block.metadata.items()}
    came = EpisodeBatch(lengths, steps, states, final_states, known, metadata, words, block.numbers[origin])
    return _still_encoded(came, block)


def _still_encoded(came: EpisodeBatch, block: EpisodeBatch) -> EpisodeBatch:
    """Put the encoded pictures of a block in the place of their pixels, for each field that has nothing else."""
    steps, states, final_states = dict(came.steps), dict(came.states), dict(came.final_states)
    for key, images in {**block.steps, **block.states}.items():
        names = {key, (NEXT, *key)} & steps.keys()
        if not isinstance(images, EncodedImages) or not (names or key in states):
            continue
        several = [images, block.final_states[key]] if key in block.states else [images]
        known, numbers = end_to_end(several), _numbers([np.asarray(one) for one in several])
        if key in states:
            rows, ends = (_found(values[key], numbers, known) for values in (states, final_states))
            if rows is not None and ends is not None:
                states[key], final_states[key] = known[rows], known[ends]
        for name in names:
            rows = _found(steps[name], numbers, known)
            steps[name] = steps[name] if rows is None else known[rows]
    return replace(came, steps=steps, states=states, final_states=final_states)


def _numbers(several: Sequence[NDArray[np.uint8]]) -> dict[bytes, int]:
    """Return the number of each picture by its pixels; of equal ones the first, so that one that has bytes wins."""
    numbers: dict[bytes, int] = {}
    for number, pixels in enumerate(chain.from_iterable(several)):
        numbers.setdefault(pixels.tobytes(), number)
    return numbers


def _found(values: NDArray[Any], numbers: Mapping[bytes, int], known: Any) -> NDArray[np.int64] | None:
    """Return which picture each is, [N]; None if one of them is another."""
    if values.dtype != known.dtype or values.shape[1:] != known.shape[1:]:
        return None
    found = [numbers.get(pixels.tobytes(), -1) for pixels in values]
    return None if -1 in found else np.array(found, np.int64)


def twice_in(block: EpisodeBatch) -> frozenset[Key]:
    """Return the fields that are there at t and at t + 1, each for itself."""
    return frozenset(key for key in block.steps if (NEXT, *key) in block.steps)


def apart(block: EpisodeBatch, keys: frozenset[Key]) -> EpisodeBatch:
    """Return the same episodes with some states stored twice: at t, and at t + 1 as a field of its own."""
    twice = [key for key in block.states if key in keys]
    if not twice:
        return block
    steps = dict(block.steps) | {key: block.states[key] for key in twice}
    steps |= {(NEXT, *key): block.following(key) for key in twice}
    return replace(
        block,
        steps=steps,
        states={key: values for key, values in block.states.items() if key not in keys},
        final_states={key: values for key, values in block.final_states.items() if key not in keys},
    )


def _one_step_later(root: NDArray[Any], following: NDArray[Any], ends: NDArray[np.bool_]) -> bool:
    if root.shape != following.shape or root.dtype != following.dtype:
        return False
    inside = np.flatnonzero(~ends[:-1])
    # As bytes: what is no number at t is no number one step earlier.
    left, right = (np.ascontiguousarray(one).reshape(len(one), -1).view(np.uint8) for one in (root, following))
    if len(inside) == len(root) - 1:
        return bool(np.array_equal(left[1:], right[:-1]))
    return bool(np.array_equal(left[inside + 1], right[inside]))


def _goes_on(leaves: Mapping[Key, NDArray[Any]], pairs: Sequence[Key], ends: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Say of each end but the last whether the row behind it follows on it: of copies put behind each other none does."""
    inner = np.flatnonzero(ends[:-1])
    on = np.ones(len(inner), np.bool_)
    for key in pairs:
        root, following = leaves[key], leaves[(NEXT, *key)]
        if _one_step_later(root, following, ends):
            on &= np.array([root[row + 1].tobytes() == following[row].tobytes() for row in inner], np.bool_)
    return on


def _leaves(data: Any, block: EpisodeBatch, *, whole: bool) -> dict[Key, NDArray[Any]]:
    if not isinstance(data, TensorDictBase):
        raise InvalidArgumentError(f"it gave a {type(data).__name__}; expected a TensorDict")
    if data.ndim != 1:
        raise InvalidArgumentError(
            f"it gave a TensorDict of batch size {list(data.batch_size)}; expected one axis, the steps"
        )
    problems = [*_missing(found := _tensors(data)), *_odd(data)]
    if not whole and len(data) != block.count:
        problems.append(
            f"it gave {len(data):,} steps for {block.count:,}; only functions per episode may change lengths"
        )
    if problems:
        raise InvalidArgumentError("; ".join(problems))
    for key in (NEXT_REWARD, *_FLAGS):
        if key in found:
            found[key] = found[key].reshape(len(data), 1)
    return found


def leaves_of(data: TensorDictBase) -> Iterator[tuple[Any, Any]]:
    """Yield all entries with their names, also those that are no tensors."""
    yield from data.items(include_nested=True, leaves_only=True, is_leaf=is_leaf_nontensor)


def _tensors(data: TensorDictBase) -> dict[Key, NDArray[Any]]:
    own = {EPISODE, *ROOT_FLAGS, NEXT_FINAL_KNOWN}
    return {
        key: _array(value)
        for name, value in leaves_of(data)
        if (key := as_key(name)) not in own and isinstance(value, Tensor)
    }


def _odd(data: TensorDictBase) -> Iterator[str]:
    for name, value in leaves_of(data):
        key = as_key(name)
        if not isinstance(value, Tensor):
            yield f"{dotted(key)} is {type(value).__name__}; expected a tensor"
        elif key in ROOT_FLAGS and value.any():
            yield f"{dotted(key)} is True somewhere; at the root it stands for a step that is over"


def _array(value: Tensor) -> NDArray[Any]:
    value = value.detach().cpu()
    if value.dtype == torch.bfloat16:
        value = value.float()
    array: NDArray[Any] = np.ascontiguousarray(value.numpy())
    return array


def _missing(found: Mapping[Key, NDArray[Any]]) -> Iterator[str]:
    if NEXT_REWARD not in found:
        yield "next.reward is gone; every dataset has it"
    elif found[NEXT_REWARD].dtype.kind != "f":
        yield f"next.reward is {found[NEXT_REWARD].dtype}; expected floats"
    if not any(key in found for key in _FLAGS):
        yield "next.terminated, next.truncated and next.done are gone; one of them must say where episodes end"
    for key in (NEXT_REWARD, *_FLAGS):
        if key in found and found[key].size != len(found[key]):
            yield f"{dotted(key)} has {list(found[key].shape[1:])} for each step; expected one value"
    for key in _FLAGS:
        if key in found and found[key].dtype != np.bool_:
            yield f"{dotted(key)} is {found[key].dtype}; expected bool"
