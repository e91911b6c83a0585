"""Adding whole episodes of a stored dataset or of a TensorDict to a local dataset."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tensordict import TensorDictBase

from datasets_rl.build.partial import writer_columns
from datasets_rl.errors import Argument, IntegrityError, InvalidArgumentError, RecordingWarning, Remedy
from datasets_rl.format.manifest import array_file
from datasets_rl.format.reader import StoredDataset
from datasets_rl.format.schema import Column
from datasets_rl.preprocessing.batches import episode_batches, step_bytes
from datasets_rl.recording.adding import COPIES, add_abandoned_recordings
from datasets_rl.recording.recorder import Recorder, paths_of_own, signed_dtype
from datasets_rl.settings import Settings
from datasets_rl.store.find import locate
from datasets_rl.ted.episode_batch import EpisodeBatch
from datasets_rl.ted.keys import (
    EPISODE,
    NEXT,
    NEXT_DONE,
    NEXT_REWARD,
    NEXT_TERMINATED,
    NEXT_TRUNCATED,
    ROOT_FLAGS,
    Key,
    as_key,
    dotted_name,
)

_BATCH_BYTES = 64 << 20
_DROPPED = {*ROOT_FLAGS, NEXT_DONE, EPISODE, ("index",)}
"""Entries of a batch that a dataset derives itself."""


def append_episodes(
    dataset: str,
    episodes: TensorDictBase | str | Path | None = None,
    *,
    again: bool = False,
    root: Path | str | None = None,
    settings: Settings | None = None,
) -> Path:
    """Add whole episodes to the end of a local dataset, in an atomic step. The dataset is created if necessary.

        >>> append_episodes("local/hopper", "local/hopper-monday")             # a stored dataset
        >>> append_episodes("local/hopper", env.rollout(1000))                 # a TensorDict in TED
        >>> append_episodes("local/hopper")                                    # the recordings of a killed program

    Programs that have the dataset open do not see the new episodes. If the process is killed, the dataset has all new
    episodes or none, and the same call adds the missing episodes. A stored dataset is added only once: the digests of
    the files identify the dataset in any folder. Transitions in memory have no such identity.

    Args:
        dataset: An id ``local/NAME``.
        episodes: The id or the folder of a stored dataset with the same fields, or transitions in TED, [T] or [B, T].
            Episodes of transitions end where ``("next", "done")`` is set, and at the end of each row at the latest. An
            end without a flag is a truncation. Values that the next transition repeats are stored once. Without this
            argument, the episodes that killed programs recorded for `dataset` are added.
        again: Whether to add a stored dataset also if `dataset` has the same episodes already. Every such call adds
            copies, with the same numbers as the first copies (`episodes.numbers`): a selection takes all copies of an
            episode, and a split has all copies on the same side.
        root: The folder of the source of `dataset`, by default ``<RLDS_HOME>/local``.
        settings: The settings, by default from the environment.

    Returns:
        The folder of the dataset.

    Raises:
        InvalidArgumentError: If `dataset` is not of the source ``local``, or was preprocessed, or if the fields differ.
        IntegrityError: If a recording of a dead process cannot be added. The other recordings are added.
        UnknownIdError: If the stored dataset does not exist.
        DiskFullError: If the new version does not fit on the disk.
    """
    if episodes is None:
        return _append_recorded(dataset, root, settings)
    if isinstance(episodes, TensorDictBase):
        batch, columns = _batch_of_transitions(episodes)
        batches, identity, dictionaries = iter([batch]), "", {}
        description: dict[str, Any] = {"specs": {}, "metadata": {}}
    else:
        stored = StoredDataset(locate(episodes, settings=settings))
        columns = writer_columns(stored.schema)
        if shared := [field for field in stored.schema if field.image_form.in_shared_files]:
            raise InvalidArgumentError(
                f"the images of {', '.join(field.name for field in shared)} in {episodes} are "
                f"{shared[0].image_form.noun}, which a recording cannot have",
                hint="store them as images first, with the step compress_images, and append the result",
            )
        batches = episode_batches(stored, 0, len(stored.episodes), _BATCH_BYTES // step_bytes(stored.schema))
        values = {name: value for name, value in stored.manifest.metadata.items() if array_file(value) is None}
        dictionaries = stored.dictionaries
        description = {"specs": dict(stored.manifest.specs), "metadata": values}
        identity = stored.manifest.files_digest
    recorder = Recorder(dataset, description, root=root, settings=settings)
    if identity and (numbers := recorder.held_numbers(identity)) is not None:
        if not again:
            message = f"{dataset} has the episodes of {episodes} already: nothing was added"
            hint = Remedy("{} adds the episodes again", Argument("again", True))
            warnings.warn(RecordingWarning(message, hint=hint), stacklevel=2)
            return recorder.paths.folder
        identity = ""
        if len(numbers) == len(stored.episodes):
            description[COPIES] = True
            batches = _with_numbers(batches, numbers)
    recorder.check_grows()
    recorder.check_columns(columns)
    try:
        recording = recorder.recording(columns, identity, dictionaries)
        for batch in batches:
            recording.writer.extend(batch)
        recording.commit()
        recorder.commit()
    except BaseException:
        recorder.drop()
        raise
    finally:
        recorder.close()
    return recorder.paths.folder


def _with_numbers(batches: Iterable[EpisodeBatch], numbers: NDArray[np.int64]) -> Iterator[EpisodeBatch]:
    """Yield batches with other episode numbers, [E] for the episodes of all batches."""
    first = 0
    for batch in batches:
        stop = first + len(batch)
        yield replace(batch, metadata={**batch.metadata, "source": numbers[first:stop]})
        first = stop


def _append_recorded(dataset: str, root: Path | str | None, settings: Settings | None) -> Path:
    """Add the episodes that dead processes recorded, and return the folder of the dataset."""
    paths = paths_of_own(dataset, root=root, settings=settings)
    kept = add_abandoned_recordings(paths, dataset)
    if len(kept) == 1:
        raise next(iter(kept.values()))
    if kept:
        hint = "the other recordings were added: move these folders away, or delete folders with unneeded episodes"
        raise IntegrityError(str(paths.recorded), [*map(str, kept.values())], hint=hint)
    return locate(dataset, root=root, settings=settings)


def _batch_of_transitions(transitions: TensorDictBase) -> tuple[EpisodeBatch, list[Column]]:
    """Return transitions, [T] or [B, T], as episodes, with the columns of the stored form."""
    if transitions.ndim not in {1, 2} or not transitions.numel():
        raise InvalidArgumentError(f"the batch size is {list(transitions.shape)}, expected [T] or [B, T], with steps")
    rows = transitions.reshape(-1)
    arrays = {as_key(key): _as_array(value, as_key(key)) for key, value in rows.items(True, True)}
    if NEXT_REWARD not in arrays:
        raise InvalidArgumentError(f"{dotted_name(NEXT_REWARD)} is missing, expected transitions in TED")
    count, row_length = len(rows), transitions.shape[-1]
    flags = {key: arrays.pop(key, None) for key in (NEXT_DONE, NEXT_TERMINATED, NEXT_TRUNCATED)}
    terminated, truncated = _end_flags(flags, count, row_length)
    ends = np.flatnonzero(terminated | truncated)
    lengths = np.diff(ends, prepend=-1)
    inner = np.ones(count, np.bool_)
    inner[ends] = False
    steps: dict[Key, NDArray[Any]] = {
        NEXT_TERMINATED: terminated[:, None],
        NEXT_TRUNCATED: truncated[:, None],
        NEXT_REWARD: arrays.pop(NEXT_REWARD).reshape(count, 1),
    }
    states: dict[Key, NDArray[Any]] = {}
    final_states: dict[Key, NDArray[Any]] = {}
    for key, values in arrays.items():
        after = arrays.get((NEXT, *key))
        before = arrays.get(key[1:]) if key[0] == NEXT else None
        if key in _DROPPED or (before is not None and _are_shifted(before, values, inner)):
            continue
        if after is not None and _are_shifted(values, after, inner):
            states[key], final_states[key] = values, after[ends]
        else:
            steps[key] = values
    columns = [
        Column(key, values.dtype, values.shape[1:], shared=key in states) for key, values in (steps | states).items()
    ]
    known = np.ones(len(ends), np.bool_)
    return EpisodeBatch(lengths, steps, states, final_states, known), columns


def _end_flags(
    flags: Mapping[Key, NDArray[Any] | None], count: int, row_length: int
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return terminated and truncated, [N] each. The last episode of each row has an end, too."""
    done, terminated, truncated = (
        np.zeros(count, np.bool_) if values is None else values.reshape(count).astype(np.bool_)
        for values in (flags[NEXT_DONE], flags[NEXT_TERMINATED], flags[NEXT_TRUNCATED])
    )
    if flags[NEXT_TERMINATED] is None:
        terminated = done & ~truncated
    unmarked = done & ~terminated
    unmarked[row_length - 1 :: row_length] |= ~terminated[row_length - 1 :: row_length]
    return terminated, truncated | unmarked


def _are_shifted(values: NDArray[Any], after: NDArray[Any], inner: NDArray[np.bool_]) -> bool:
    """Return whether `after` at t is `values` at t + 1 inside of every episode.

    values   s_0  s_1  s_2 | s_0
    after    s_1  s_2  f   | f
    """
    if values.dtype != after.dtype or values.shape != after.shape:
        return False
    rows = np.flatnonzero(inner)
    return np.array_equal(values[rows + 1], after[rows], equal_nan=values.dtype.kind == "f")


def _as_array(value: Any, key: Key) -> NDArray[Any]:
    if not isinstance(value, torch.Tensor):
        raise InvalidArgumentError(f"{dotted_name(key)} is a {type(value).__name__}, expected a tensor")
    value = value.detach().cpu()
    array: NDArray[Any] = (value.float() if value.dtype == torch.bfloat16 else value).numpy()  # NumPy has no bfloat16
    return array.astype(signed_dtype(array.dtype), copy=False)
