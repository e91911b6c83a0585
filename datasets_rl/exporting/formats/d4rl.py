"""An HDF5 file in D4RL's layout, for ``offline_env.get_dataset`` of D4RL.

observations  actions  rewards  terminals  timeouts  next_observations  infos/...        [N, ...]
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import h5py
from typing_extensions import override

from datasets_rl.exporting.base import ExportFormat, final_losses, metadata_losses
from datasets_rl.exporting.content import Content, column_of, info_paths, names_of, pixels, vocabulary_list
from datasets_rl.format.schema import Field
from datasets_rl.progress import Report
from datasets_rl.ted.episode_batch import EpisodeBatch
from datasets_rl.ted.keys import ACTION, NEXT, NEXT_REWARD, NEXT_TERMINATED, NEXT_TRUNCATED, OBSERVATION, Key

_NAMES: Mapping[Key, str] = {
    OBSERVATION: "observations",
    ACTION: "actions",
    NEXT_REWARD: "rewards",
    NEXT_TERMINATED: "terminals",
    NEXT_TRUNCATED: "timeouts",
    (NEXT, *OBSERVATION): "next_observations",
}
_SCALARS = frozenset({"rewards", "terminals", "timeouts"})


class D4rl(ExportFormat):
    """An HDF5 file. Final observations are in ``next_observations``, which D4RL's newer files have too."""

    name = "d4rl"
    title = "an HDF5 file in D4RL's layout"
    suffix = ".hdf5"
    holds_images = False

    @override
    def problems(self, content: Content) -> Iterator[str]:
        keys = {field.key for field in content.fields}
        for key in (OBSERVATION, ACTION):
            if key not in keys:
                parts = names_of([field for field in content.fields if field.key[0] == key[0]])
                yield f"the format needs a single {key[0]}, and the dataset has {parts or 'none'}"

    @override
    def losses(self, content: Content) -> Iterator[str]:
        if content.known.any():
            yield from final_losses(content, "it becomes zeros, as if known")
        separate = [field for field in content.next_fields if field.key != (NEXT, *OBSERVATION)]
        if separate:
            yield f"{names_of(separate)}: the values after the step are left out"
        lost = [field for field in content.states if field.key != OBSERVATION]
        if lost and content.known.any():
            yield f"{names_of(lost)}: the values after the last step of each episode are left out"
        yield from metadata_losses(content)

    @override
    def write(self, content: Content, target: Path, progress: Report) -> None:
        fields = {_NAMES[field.key]: field for field in content.fields if field.key in _NAMES}
        others = {field.key: field for field in content.fields if field.key not in _NAMES and field.key[0] != NEXT}
        paths = info_paths(others.values())
        fields |= {"/".join(("infos", *paths[key])): field for key, field in others.items()}
        follows = OBSERVATION in {field.key for field in content.states} and bool(content.known.any())
        with h5py.File(target, "w") as file:
            for name, field in fields.items():
                _create(file, name, content.steps, field)
            if follows:
                _create(file, "next_observations", content.steps, content.stored.schema[OBSERVATION])
            start = 0
            for batch in content.batches():
                rows = slice(start, start + batch.count)
                for name, field in fields.items():
                    file[name][rows] = _values(batch, field, scalar=name in _SCALARS)
                if follows:
                    file["next_observations"][rows] = pixels(batch.next_states(OBSERVATION))
                start = rows.stop
                progress(batch.count)


def _create(file: h5py.File, name: str, rows: int, field: Field) -> None:
    if field.text:
        file.create_dataset(name, (rows,), h5py.string_dtype())
        return
    shape = () if name in _SCALARS else field.shape
    file.create_dataset(name, (rows, *shape), field.read_dtype)


def _values(batch: EpisodeBatch, field: Field, *, scalar: bool) -> Any:
    values = column_of(batch, field)
    if field.text:
        return vocabulary_list(batch, field.key, values)
    return pixels(values).reshape(-1) if scalar else pixels(values)
