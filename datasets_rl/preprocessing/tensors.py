"""Conversion of a batch of episodes to a TensorDict of transitions, and of the result of a function back.

    states  s_0  s_1  s_2          ->   observation       s_0  s_1  s_2
    final   f                           next.observation  s_1  s_2  f          one TensorDict [N] of TED

On the way back, an entry under "next" with the values of the root entry one step later becomes a state, which is
stored once. Otherwise (the function treats t and t + 1 differently) the two are stored separately. Encoded and
compressed images whose pixels the function does not change keep their bytes, under whatever name. Both are determined
by comparing the values. The layout that results for the first batches then applies to the dataset.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tensordict import TensorDictBase, is_leaf_nontensor
from torch import Tensor

from datasets_rl.errors import InvalidArgumentError
from datasets_rl.ted.episode import StoredImages, concatenate_columns
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
    dotted_name,
)
from datasets_rl.ted.steps import values_after
from datasets_rl.ted.unchecked import nest_leaves

_FLAGS = (NEXT_TERMINATED, NEXT_TRUNCATED, NEXT_DONE)


def to_tensors(batch: EpisodeBatch) -> TensorDictBase:
    """Return the transitions of a batch in TED, [N], in new memory.

    The fields always include ``("next", "final_known")``, so that the fields that a function sees do not depend on the
    batch.
    """
    count = batch.count
    leaves: dict[Key, Tensor] = {key: torch.zeros(count, 1, dtype=torch.bool) for key in ROOT_FLAGS}
    for key, values in {**batch.steps, **batch.states}.items():
        leaves[key] = torch.from_numpy(np.array(values))
    for key, values in batch.states.items():
        following = values_after(np.asarray(values), np.asarray(batch.final_states[key]), batch.table, 0, count)
        leaves[(NEXT, *key)] = torch.from_numpy(following)
    leaves[NEXT_DONE] = leaves[NEXT_TERMINATED] | leaves[NEXT_TRUNCATED]
    known = np.ones((count, 1), np.bool_)
    known[batch.table.stops - 1, 0] = batch.final_known
    leaves[NEXT_FINAL_KNOWN] = torch.from_numpy(known)
    leaves[EPISODE] = torch.from_numpy(np.repeat(batch.numbers, batch.lengths))
    return nest_leaves(leaves, torch.Size((count,)))


def from_tensors(data: Any, batch: EpisodeBatch, *, whole: bool) -> EpisodeBatch | None:
    """Return the result of a function on `to_tensors(batch)` as a batch of episodes.

    Args:
        data: The result, a TensorDict [M] in chronological order. Episodes end where ``("next", "done")``,
            ``("next", "terminated")`` or ``("next", "truncated")`` is True. A last row without any of them is
            truncated.
        batch: The batch that the function was given, which has the metadata of the episodes.
        whole: Whether `data` is the result for one whole episode, and may have any length. Otherwise the rows
            must correspond to the rows of the batch.

    Returns:
        The episodes, or None if there are no rows.

    Raises:
        InvalidArgumentError: If `data` is not such a TensorDict. The error names all problems.
    """
    leaves = _collect_leaves(data, batch, whole=whole)
    count = data.batch_size[0]
    if not count:
        return None
    terminated, truncated, done = (leaves.pop(key, np.zeros((count, 1), np.bool_)) for key in _FLAGS)
    ends = (terminated | truncated | done)[:, 0]
    cut = whole and count < batch.count and not ends[-1]
    if not whole:
        ends = ends.copy()
        ends[batch.table.stops - 1] = True
    ends[-1] = True
    stops = np.flatnonzero(ends) + 1
    # An end that is only "done" counts as truncation.
    truncated = truncated | (ends[:, None] & ~terminated)
    lengths = np.diff(stops, prepend=0)
    origin = np.zeros(len(stops), np.int64) if whole else batch.table.episode_of(stops - 1)
    # The final state can be unknown only for the last piece of an episode, and only if the last steps were not dropped.
    last = np.append(origin[1:] != origin[:-1], True)
    known = batch.final_known[origin] | ~last | cut
    pairs = [key for key in leaves if (NEXT, *key) in leaves and key not in batch.steps]
    if whole and not batch.final_known[0]:
        known[:-1] &= _continues_after_ends(leaves, pairs, ends)
    states, final_states = {}, {}
    for key in pairs:
        following = leaves[(NEXT, *key)]
        if not known.all():
            # Copied, because the function may have returned the same tensor under both names.
            leaves[(NEXT, *key)] = following = following.copy()
            following[stops[~known] - 1] = 0
        if not _is_one_step_later(leaves[key], following, ends):
            continue
        states[key] = leaves.pop(key)
        final_states[key] = leaves.pop((NEXT, *key))[stops - 1]
    texts = {**batch.vocabulary, **_next_vocabulary(batch, batch.states)}
    vocabulary = {key: words for key, words in texts.items() if key in leaves or key in states}
    steps = {NEXT_TERMINATED: terminated, NEXT_TRUNCATED: truncated, **leaves}
    metadata = {name: values[origin] for name, values in batch.metadata.items()}
    numbers = batch.numbers[origin]
    compressed = batch.compressed | {(NEXT, *key) for key in batch.compressed & batch.states.keys()}
    result = EpisodeBatch(lengths, steps, states, final_states, known, metadata, vocabulary, numbers, compressed)
    return _restore_stored(result, batch)


def _restore_stored(result: EpisodeBatch, batch: EpisodeBatch) -> EpisodeBatch:
    """Replace pixels by the stored images of a batch, in each field with only such images."""
    steps, states, final_states = dict(result.steps), dict(result.states), dict(result.final_states)
    for key, images in {**batch.steps, **batch.states}.items():
        names = {key, (NEXT, *key)} & steps.keys()
        if not isinstance(images, StoredImages) or not (names or key in states):
            continue
        arrays = [images, batch.final_states[key]] if key in batch.states else [images]
        stored, indices = concatenate_columns(arrays), _image_indices([np.asarray(array) for array in arrays])
        if key in states:
            rows, ends = (_find_images(values[key], indices, stored) for values in (states, final_states))
            if rows is not None and ends is not None:
                states[key], final_states[key] = stored[rows], stored[ends]
        for name in names:
            rows = _find_images(steps[name], indices, stored)
            steps[name] = steps[name] if rows is None else stored[rows]
    return replace(result, steps=steps, states=states, final_states=final_states)


def _image_indices(arrays: Sequence[NDArray[np.uint8]]) -> dict[bytes, int]:
    """Return the index of each image by pixels.

    Of images with equal pixels, the first index counts, because unknown final states, which are last, have no bytes.
    """
    indices: dict[bytes, int] = {}
    for index, pixels in enumerate(chain.from_iterable(arrays)):
        indices.setdefault(pixels.tobytes(), index)
    return indices


def _find_images(values: NDArray[Any], indices: Mapping[bytes, int], stored: Any) -> NDArray[np.int64] | None:
    """Return the indices of images among the stored images, [N], or None if an image is not stored."""
    if values.dtype != stored.dtype or values.shape[1:] != stored.shape[1:]:
        return None
    result = [indices.get(pixels.tobytes(), -1) for pixels in values]
    return None if -1 in result else np.array(result, np.int64)


def unshared_keys(batch: EpisodeBatch) -> frozenset[Key]:
    """Return the keys of the fields that a batch has separately at t and at t + 1."""
    return frozenset(key for key in batch.steps if (NEXT, *key) in batch.steps)


def unshare(batch: EpisodeBatch, keys: frozenset[Key]) -> EpisodeBatch:
    """Return the same episodes with some states as two separate fields, at t and at t + 1."""
    separate = [key for key in batch.states if key in keys]
    if not separate:
        return batch
    steps = dict(batch.steps) | {key: batch.states[key] for key in separate}
    steps |= {(NEXT, *key): batch.next_states(key) for key in separate}
    return replace(
        batch,
        steps=steps,
        states={key: values for key, values in batch.states.items() if key not in keys},
        final_states={key: values for key, values in batch.final_states.items() if key not in keys},
        vocabulary={**batch.vocabulary, **_next_vocabulary(batch, separate)},
        compressed=batch.compressed | {(NEXT, *key) for key in batch.compressed.intersection(separate)},
    )


def _next_vocabulary(batch: EpisodeBatch, states: Iterable[Key]) -> dict[Key, Sequence[str]]:
    """Return the texts of the codes at t + 1 of states, if the states are texts, by the key under "next"."""
    return {(NEXT, *key): batch.vocabulary[key] for key in states if key in batch.vocabulary}


def _is_one_step_later(root: NDArray[Any], following: NDArray[Any], ends: NDArray[np.bool_]) -> bool:
    """Return whether values under "next" are the values at the root one step later, except at ends of episodes."""
    if root.shape != following.shape or root.dtype != following.dtype:
        return False
    inside = np.flatnonzero(~ends[:-1])
    # Compared as bytes, so that NaN equals NaN.
    left, right = (np.ascontiguousarray(array).reshape(len(array), -1).view(np.uint8) for array in (root, following))
    if len(inside) == len(root) - 1:
        return bool(np.array_equal(left[1:], right[:-1]))
    return bool(np.array_equal(left[inside + 1], right[inside]))


def _continues_after_ends(
    leaves: Mapping[Key, NDArray[Any]], pairs: Sequence[Key], ends: NDArray[np.bool_]
) -> NDArray[np.bool_]:
    """Return whether the row after each end but the last continues, which the next of two copies does not."""
    inner = np.flatnonzero(ends[:-1])
    continues = np.ones(len(inner), np.bool_)
    for key in pairs:
        root, following = leaves[key], leaves[(NEXT, *key)]
        if _is_one_step_later(root, following, ends):
            continues &= np.array([root[row + 1].tobytes() == following[row].tobytes() for row in inner], np.bool_)
    return continues


def _collect_leaves(data: Any, batch: EpisodeBatch, *, whole: bool) -> dict[Key, NDArray[Any]]:
    if not isinstance(data, TensorDictBase):
        raise InvalidArgumentError(f"it returned a {type(data).__name__}, expected a TensorDict")
    if data.ndim != 1:
        raise InvalidArgumentError(
            f"it returned a TensorDict of batch size {list(data.batch_size)}, expected one axis, the steps"
        )
    problems = [*_required_key_problems(arrays := _tensors_by_key(data)), *_value_problems(data)]
    if not whole and len(data) != batch.count:
        problems.append(
            f"it returned {len(data):,} steps for {batch.count:,}, but only functions per episode may change lengths"
        )
    if problems:
        raise InvalidArgumentError("; ".join(problems))
    for key in (NEXT_REWARD, *_FLAGS):
        if key in arrays:
            arrays[key] = arrays[key].reshape(len(data), 1)
    return arrays


def named_leaves(data: TensorDictBase) -> Iterator[tuple[Any, Any]]:
    """Yield all entries with names, including entries that are not tensors."""
    yield from data.items(include_nested=True, leaves_only=True, is_leaf=is_leaf_nontensor)


def _tensors_by_key(data: TensorDictBase) -> dict[Key, NDArray[Any]]:
    computed = {EPISODE, *ROOT_FLAGS, NEXT_FINAL_KNOWN}
    return {
        key: _as_array(value)
        for name, value in named_leaves(data)
        if (key := as_key(name)) not in computed and isinstance(value, Tensor)
    }


def _value_problems(data: TensorDictBase) -> Iterator[str]:
    for name, value in named_leaves(data):
        key = as_key(name)
        if not isinstance(value, Tensor):
            yield f"{dotted_name(key)} is {type(value).__name__}, expected a tensor"
        elif key in ROOT_FLAGS and value.any():
            yield f"{dotted_name(key)} is True in some steps, expected False: the flags of a step are under next"


def _as_array(value: Tensor) -> NDArray[Any]:
    value = value.detach().cpu()
    if value.dtype == torch.bfloat16:
        value = value.float()
    array: NDArray[Any] = np.ascontiguousarray(value.numpy())
    return array


def _required_key_problems(arrays: Mapping[Key, NDArray[Any]]) -> Iterator[str]:
    if NEXT_REWARD not in arrays:
        yield "next.reward is missing, expected in every dataset"
    if not any(key in arrays for key in _FLAGS):
        yield "next.terminated, next.truncated and next.done are missing, expected at least one flag that marks the ends of episodes"
    for key in (NEXT_REWARD, *_FLAGS):
        if key in arrays and arrays[key].size != len(arrays[key]):
            yield f"{dotted_name(key)} has {list(arrays[key].shape[1:])} for each step, expected one value"
    for key in _FLAGS:
        if key in arrays and arrays[key].dtype != np.bool_:
            yield f"{dotted_name(key)} is {arrays[key].dtype}, expected bool"
