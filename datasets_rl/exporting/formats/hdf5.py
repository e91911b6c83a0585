"""An HDF5 file with the keys of TED as groups, row by row, and the final states in the group ``episodes``.

observation  action  next/reward  next/terminated  next/truncated      [N, ...]
episodes/length  final_known  final/observation  source                [E, ...]
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
from h5py import h5s, h5t
from typing_extensions import override

from datasets_rl.exporting.base import ExportFormat
from datasets_rl.exporting.content import Content, column_of, pixels, vocabulary_list
from datasets_rl.exporting.described import write_description
from datasets_rl.format.schema import Field
from datasets_rl.progress import Report
from datasets_rl.ted.episode import EncodedImages
from datasets_rl.ted.episode_batch import EpisodeBatch

_FILE = "data.hdf5"


class Hdf5(ExportFormat):
    """A folder with an HDF5 file. Images stay encoded, as variable-length arrays of bytes."""

    name = "hdf5"
    title = "a folder with an HDF5 file with TED's keys as groups"

    @override
    def write(self, content: Content, target: Path, progress: Report) -> None:
        with h5py.File(target / _FILE, "w", libver="latest") as file:
            for field in content.fields:
                _create(file, "/".join(field.key), content.steps, field)
                if field.shared:
                    _create(file, f"episodes/final/{'/'.join(field.key)}", len(content.lengths), field)
            file["episodes/length"] = content.lengths
            file["episodes/final_known"] = content.known
            for name in content.metadata_names:
                file[f"episodes/{name}"] = content.metadata(name)
            step = episode = 0
            for batch in content.batches():
                _write_batch(file, content, batch, step, episode)
                step, episode = step + batch.count, episode + len(batch)
                progress(batch.count)
        marks = {
            "by": "lengths",
            "array": "episodes/length",
            "final": "episodes/final/{}",
            "final_known": "episodes/final_known",
        }
        write_description(target, content, "hdf5", _FILE, marks, "/")


def _create(file: h5py.File, name: str, rows: int, field: Field) -> None:
    if field.image_form.holds_files:
        file.create_dataset(name, (rows,), h5py.vlen_dtype(np.uint8))
    elif field.text:
        file.create_dataset(name, (rows,), h5py.string_dtype())
    else:
        file.create_dataset(name, (rows, *field.shape), field.read_dtype)


def _write_batch(file: h5py.File, content: Content, batch: EpisodeBatch, step: int, episode: int) -> None:
    rows, ends = slice(step, step + batch.count), slice(episode, episode + len(batch))
    for field in content.fields:
        name = "/".join(field.key)
        values = column_of(batch, field)
        _write_rows(file[name], rows, batch, field, values)
        if field.shared:
            _write_rows(file[f"episodes/final/{name}"], ends, batch, field, batch.final_states[field.key])


def _write_rows(dataset: h5py.Dataset, rows: slice, batch: EpisodeBatch, field: Field, values: Any) -> None:
    if isinstance(values, EncodedImages):
        write_images(dataset, rows.start, values)
    else:
        dataset[rows] = vocabulary_list(batch, field.key, values) if field.text else pixels(values)


def write_images(dataset: h5py.Dataset, start: int, images: EncodedImages) -> None:
    """Write encoded images to rows of a dataset of byte arrays of any length."""
    column = np.empty(len(images), h5py.vlen_dtype(np.uint8))
    for row, image in enumerate(images.images):
        column[row] = np.frombuffer(image, np.uint8)
    # The assignment to a slice makes a single array of the rows, which fails for rows of the same length.
    space = dataset.id.get_space()
    space.select_hyperslab((start,), (len(images),))
    dataset.id.write(h5s.create_simple((len(images),)), space, column, h5t.py_create(column.dtype))
