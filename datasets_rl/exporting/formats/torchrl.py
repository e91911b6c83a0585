"""A memory-mapped TensorDict of TED transitions, [N], which TorchRL's storages load.

observation.memmap  action.memmap  done.memmap  next/observation.memmap  next/reward.memmap  meta.json
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from datasets_rl.exporting.base import ExportFormat, metadata_losses
from datasets_rl.exporting.content import Content, column_of, names_of, pixels
from datasets_rl.progress import Report
from datasets_rl.ted.episode_batch import EpisodeBatch
from datasets_rl.ted.keys import (
    EPISODE,
    NEXT,
    NEXT_DONE,
    NEXT_FINAL_KNOWN,
    NEXT_TERMINATED,
    NEXT_TRUNCATED,
    ROOT_FLAGS,
    Key,
)


class TorchRL(ExportFormat):
    """A folder with a file per key, of all rows. Images are decoded."""

    name = "torchrl"
    title = "a memory-mapped TensorDict for TorchRL's storages"

    @override
    def losses(self, content: Content) -> Iterator[str]:
        if texts := [field for field in content.fields if field.text]:
            yield f"{names_of(texts)}: texts become numbers, and rlds-export.json has the text of each number"
        yield from metadata_losses(content)

    @override
    def write(self, content: Content, target: Path, progress: Report) -> None:
        import torch
        from tensordict import TensorDict

        steps = TensorDict({}, [content.steps]).memmap_(str(target))
        unknown = not content.known.all()
        for key, dtype, shape in _columns(content, unknown=unknown):
            torch_dtype = torch.from_numpy(np.empty(0, dtype)).dtype
            steps.make_memmap(key, shape=torch.Size((content.steps, *shape)), dtype=torch_dtype)
        arrays = {key: steps.get(key).numpy() for key, _, _ in _columns(content, unknown=unknown)}
        start = 0
        for batch in content.batches():
            rows = slice(start, start + batch.count)
            for key, values in _batch_columns(content, batch, unknown=unknown):
                arrays[key][rows] = values
            start = rows.stop
            progress(batch.count)
        metadata = {"metadata": {}, "is_pytree": False, "len": content.steps}
        (target / "storage_metadata.json").write_text(json.dumps(metadata), encoding="utf-8")


def _columns(content: Content, *, unknown: bool) -> Iterator[tuple[Key, np.dtype[Any], tuple[int, ...]]]:
    flag = np.dtype(np.bool_)
    for field in content.fields:
        yield field.key, field.read_dtype, field.shape
        if field.shared:
            yield (NEXT, *field.key), field.read_dtype, field.shape
    for key in (*ROOT_FLAGS, NEXT_DONE, *((NEXT_FINAL_KNOWN,) if unknown else ())):
        yield key, flag, (1,)
    yield EPISODE, np.dtype(np.int64), ()


def _batch_columns(content: Content, batch: EpisodeBatch, *, unknown: bool) -> Iterator[tuple[Key, NDArray[Any]]]:
    """Yield the columns of a batch. The root flags are False, as in a new file."""
    for field in content.fields:
        values = column_of(batch, field)
        yield field.key, pixels(values).astype(field.read_dtype, copy=False)
        if field.shared:
            yield (NEXT, *field.key), pixels(batch.next_states(field.key))
    yield NEXT_DONE, pixels(batch.steps[NEXT_TERMINATED]) | pixels(batch.steps[NEXT_TRUNCATED])
    if unknown:
        known = np.ones((batch.count, 1), np.bool_)
        known[batch.table.stops - 1, 0] = batch.final_known
        yield NEXT_FINAL_KNOWN, known
    first = int(np.searchsorted(content.episodes, batch.numbers[0]))
    yield EPISODE, np.repeat(np.arange(first, first + len(batch)), batch.lengths)
