"""A dataset in LeRobot's layout, version 3.0, without videos.

data/chunk-000/file-000.parquet             a row per step, images as PNG or JPEG
meta/info.json  stats.json  tasks.parquet  episodes/chunk-000/file-000.parquet
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from datasets_rl.exporting.base import ExportFormat, dropped_final_losses, metadata_losses, next_losses
from datasets_rl.exporting.content import Content, column_of, dtype_of, is_image, names_of, pixels, vocabulary_list
from datasets_rl.exporting.images import encode_images
from datasets_rl.exporting.parquet import arrow_array
from datasets_rl.format.schema import Field
from datasets_rl.format.statistics import Moments
from datasets_rl.progress import Report
from datasets_rl.ted.episode_batch import EpisodeBatch
from datasets_rl.ted.keys import NEXT_DONE, NEXT_TERMINATED, NEXT_TRUNCATED, Key, dotted_name

if TYPE_CHECKING:
    import pyarrow as pa

_VERSION = "v3.0"
_FILE_BYTES = 100 << 20
_FILES_PER_CHUNK = 1000
_IMAGE_SAMPLES = 100
_PATTERN = "chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
_COUNTERS: Mapping[str, str] = {
    "timestamp": "float32",
    "frame_index": "int64",
    "episode_index": "int64",
    "index": "int64",
    "task_index": "int64",
}
_INSTRUCTIONS = frozenset({"language_instruction", "instruction", "task", "natural_language_instruction"})


class LeRobot(ExportFormat):
    """A folder for ``LeRobotDataset(repo_id, root=folder)``; steps only, because LeRobot has no final observation."""

    name = "lerobot"
    title = "a LeRobot dataset, version 3.0"
    library = "pyarrow"
    extra = "pyarrow"

    @override
    def problems(self, content: Content) -> Iterator[str]:
        if odd := [field for field in content.actions if _is_unsuited(field)]:
            yield f"it has vectors and images, and {names_of(odd)} is neither"

    @override
    def losses(self, content: Content) -> Iterator[str]:
        yield from dropped_final_losses(content)
        if not _frame_rate(content):
            yield "the dataset states no frame rate: 1 is written, so that timestamps count steps"
        texts = [field for field in content.fields if field.text]
        if len(texts) > 1:
            yield f"a step has one text, its task: {names_of([field for field in texts if field is not _task(content)])} is left out"
        if odd := [field for field in content.fields if _is_unsuited(field) and field not in content.next_fields]:
            yield f"{names_of(odd)}: left out, being neither vectors nor images of 1, 3 or 4 channels"
        yield from next_losses(content)
        yield from metadata_losses(content)

    @override
    def write(self, content: Content, target: Path, progress: Report) -> None:
        writer = _Writer(content, target)
        for batch in content.batches():
            writer.add(batch)
            progress(batch.count)
        writer.finish()


class _Writer:
    """Writer of the tables; it keeps only counts, sums and texts in memory."""

    def __init__(self, content: Content, target: Path) -> None:
        self._content, self._target = content, target
        self._task = _task(content)
        self._fields = feature_fields(content)
        self._fps = _frame_rate(content) or 1
        self._tasks: dict[str, int] = {}
        self._stats = {name: _Stats(field) for name, field in self._fields.items()}
        self._every = max(1, content.steps // _IMAGE_SAMPLES)
        self._rows = self._episodes = self._file = self._file_bytes = 0
        self._data: Any = None
        self._records: Any = None

    def add(self, batch: EpisodeBatch) -> None:
        """Write the steps of whole episodes."""
        import pyarrow as pa

        if self._data is None or self._file_bytes > _FILE_BYTES:
            self._next_file()
        columns = {name: self._column(batch, name, field) for name, field in self._fields.items()}
        done = pixels(batch.steps[NEXT_TERMINATED]) | pixels(batch.steps[NEXT_TRUNCATED])
        columns[dotted_name(NEXT_DONE)] = pa.array(done.reshape(-1))
        tasks = self._task_numbers(batch)
        frames = np.arange(batch.count) - np.repeat(batch.table.starts, batch.lengths)
        counters = (
            (frames / self._fps).astype(np.float32),
            frames,
            self._episodes + np.repeat(np.arange(len(batch)), batch.lengths),
            self._rows + np.arange(batch.count),
            tasks,
        )
        columns |= {name: pa.array(values) for name, values in zip(_COUNTERS, counters, strict=True)}
        table = pa.table(columns, schema=self._schema())
        for start, length in zip(batch.table.starts.tolist(), batch.lengths.tolist(), strict=True):
            self._data.write_table(table.slice(start, length), length)
        self._file_bytes += table.nbytes
        self._write_episodes(batch, tasks)
        self._rows, self._episodes = self._rows + batch.count, self._episodes + len(batch)

    def finish(self) -> None:
        """Close the tables, and write the counts, the statistics and the tasks."""
        self._data.close()
        self._records.close()
        self._write_tasks()
        stats = {name: one.to_json() for name, one in self._stats.items()}
        (self._target / "meta" / "stats.json").write_text(json.dumps(stats, indent=4), encoding="utf-8")
        info = {
            "codebase_version": _VERSION,
            "robot_type": None,
            "total_episodes": self._episodes,
            "total_frames": self._rows,
            "total_tasks": len(self._tasks),
            "chunks_size": _FILES_PER_CHUNK,
            "data_files_size_in_mb": _FILE_BYTES >> 20,
            "video_files_size_in_mb": 200,
            "fps": self._fps,
            "splits": {"train": f"0:{self._episodes}"},
            "data_path": f"data/{_PATTERN}",
            "video_path": None,
            "features": self._features(),
        }
        (self._target / "meta" / "info.json").write_text(json.dumps(info, indent=4), encoding="utf-8")

    def _next_file(self) -> None:
        from pyarrow import parquet

        if self._data is not None:
            self._data.close()
            self._file += 1
        path = self._target / "data" / _PATTERN.format(**self._file_index())
        path.parent.mkdir(parents=True, exist_ok=True)
        self._data = parquet.ParquetWriter(path, self._schema(), use_dictionary=False)
        self._file_bytes = 0

    def _file_index(self) -> dict[str, int]:
        return {"chunk_index": self._file // _FILES_PER_CHUNK, "file_index": self._file % _FILES_PER_CHUNK}

    def _schema(self) -> pa.Schema:
        import pyarrow as pa

        names = {name: _arrow_type(field) for name, field in self._fields.items()}
        names[dotted_name(NEXT_DONE)] = pa.bool_()
        names |= {name: pa.from_numpy_dtype(np.dtype(dtype)) for name, dtype in _COUNTERS.items()}
        features = {name: _hub_feature(feature) for name, feature in self._features().items()}
        metadata = {"huggingface": json.dumps({"info": {"features": features}})}
        return pa.schema(list(names.items()), metadata)

    def _features(self) -> dict[str, Any]:
        names = _element_names(self._content)
        features = {name: _describe(field, names.get(field.name)) for name, field in self._fields.items()}
        features[dotted_name(NEXT_DONE)] = {"dtype": "bool", "shape": [1], "names": None}
        return features | {name: {"dtype": dtype, "shape": [1], "names": None} for name, dtype in _COUNTERS.items()}

    def _column(self, batch: EpisodeBatch, name: str, field: Field) -> pa.Array:
        import pyarrow as pa

        values = column_of(batch, field)
        if is_image(field):
            at = np.arange(-self._rows % self._every, batch.count, self._every)
            if len(at):
                self._stats[name].update(pixels(values[at]))
            return pa.array([{"bytes": image, "path": None} for image in encode_images(values)], _arrow_type(field))
        array = pixels(values)
        self._stats[name].update(array)
        return arrow_array(array, _arrow_type(field))

    def _task_numbers(self, batch: EpisodeBatch) -> NDArray[np.int64]:
        if self._task is None:
            number = self._tasks.setdefault(_default_task(self._content), 0)
            return np.full(batch.count, number, np.int64)
        codes = batch.states[self._task.key] if self._task.shared else batch.steps[self._task.key]
        present = np.unique(codes)
        texts = vocabulary_list(batch, self._task.key, present)
        numbers = [self._tasks.setdefault(text, len(self._tasks)) for text in texts]
        of_steps: NDArray[np.int64] = np.asarray(numbers, np.int64)[np.searchsorted(present, codes)]
        return of_steps

    def _write_episodes(self, batch: EpisodeBatch, tasks: NDArray[np.int64]) -> None:
        import pyarrow as pa
        from pyarrow import parquet

        texts = list(self._tasks)
        starts, stops = batch.table.starts, batch.table.stops
        own = [
            [texts[number] for number in dict.fromkeys(tasks[start:stop].tolist())]
            for start, stop in zip(starts.tolist(), stops.tolist(), strict=True)
        ]
        index, count = self._file_index(), len(batch)
        table = pa.table(
            {
                "episode_index": pa.array(self._episodes + np.arange(count)),
                "tasks": pa.array(own, pa.list_(pa.string())),
                "length": pa.array(batch.lengths),
                "data/chunk_index": pa.array(np.full(count, index["chunk_index"])),
                "data/file_index": pa.array(np.full(count, index["file_index"])),
                "dataset_from_index": pa.array(self._rows + starts),
                "dataset_to_index": pa.array(self._rows + stops),
                "meta/episodes/chunk_index": pa.array(np.zeros(count, np.int64)),
                "meta/episodes/file_index": pa.array(np.zeros(count, np.int64)),
            }
        )
        if self._records is None:
            path = self._target / "meta" / "episodes" / _PATTERN.format(chunk_index=0, file_index=0)
            path.parent.mkdir(parents=True)
            self._records = parquet.ParquetWriter(path, table.schema)
        self._records.write_table(table)

    def _write_tasks(self) -> None:
        """Write the tasks as pandas would: the text is the index of the table."""
        import pyarrow as pa
        from pyarrow import parquet

        pandas = {
            "index_columns": ["__index_level_0__"],
            "column_indexes": [],
            "columns": [
                {
                    "name": "task_index",
                    "field_name": "task_index",
                    "pandas_type": "int64",
                    "numpy_type": "int64",
                    "metadata": None,
                },
                {
                    "name": None,
                    "field_name": "__index_level_0__",
                    "pandas_type": "unicode",
                    "numpy_type": "object",
                    "metadata": None,
                },
            ],
            "creator": {"library": "pyarrow", "version": pa.__version__},
        }
        fields = [("task_index", pa.int64()), ("__index_level_0__", pa.string())]
        schema = pa.schema(fields, {"pandas": json.dumps(pandas)})
        table = pa.table([list(self._tasks.values()), list(self._tasks)], schema=schema)
        parquet.write_table(table, self._target / "meta" / "tasks.parquet")


class _Stats(Moments):
    """Moments of each element of a field, however many it has; of images, those of each channel."""

    MAX_ELEMENTS = sys.maxsize

    def __init__(self, field: Field) -> None:
        self._of_images, self._samples = is_image(field), 0
        super().__init__(field.shape[-1:] if self._of_images else (math.prod(field.shape),))

    @override
    def update(self, block: NDArray[Any]) -> None:
        self._samples += len(block)
        super().update(block / 255 if self._of_images else block)

    @override
    def to_json(self) -> dict[str, Any]:
        """Return the statistics as in stats.json; those of images, whose values are between 0 and 1, are [channels, 1, 1]."""
        axes = (-1, 1, 1) if self._of_images else (-1,)
        numbers = {name: np.reshape(value, axes).tolist() for name, value in super().to_json().items()}
        return {name: numbers[name] for name in ("min", "max", "mean", "std")} | {"count": [self._samples]}


def feature_fields(content: Content) -> dict[str, Field]:
    """Return the fields by the name of their feature: ``observation.state``, ``observation.images.top``, or the dotted key."""
    fields: dict[str, Field] = {}
    for field in content.fields:
        if not field.text and not _is_unsuited(field) and field not in content.next_fields:
            name = _feature_name(content, field)
            fields[name if name not in fields else dotted_name(("observation", "images", *field.key))] = field
    return fields


def _feature_name(content: Content, field: Field) -> str:
    key: Key = field.key
    if field not in content.observations:
        return dotted_name(key)
    inner = key[1:] if key[0] == "observation" else key
    if is_image(field):
        # The reader of LeRobot's datasets, as TorchRL, names cameras observation.image.CAM.
        inner = inner[1:] if inner[:1] == ("images",) or (inner[:1] == ("image",) and inner[1:]) else inner
        return ".".join(("observation", "images", *inner)) if inner else "observation.image"
    return dotted_name(key) if len(key) > 1 or key[0] != "observation" else "observation.state"


def _is_unsuited(field: Field) -> bool:
    return len(field.shape) > 1 and not is_image(field)


def _element_names(content: Content) -> Mapping[str, Any]:
    """Return the names of the elements of fields that the metadata states, by dotted key."""
    names = content.manifest.metadata.get("names")
    return names if isinstance(names, Mapping) else {}


def _task(content: Content) -> Field | None:
    texts = [field for field in content.fields if field.text]
    named = [field for field in texts if field.key[-1] in _INSTRUCTIONS]
    return next(iter([*named, *texts]), None)


def _default_task(content: Content) -> str:
    return str(content.manifest.metadata.get("environment") or content.manifest.id)


def _frame_rate(content: Content) -> float:
    """Return the number of steps per second, an integer where it is one; 0 if it is not known."""
    rate = content.fps or content.manifest.fps or 0
    return int(rate) if rate == int(rate) else rate


def _describe(field: Field, names: Any = None) -> dict[str, Any]:
    """Return a feature of info.json; `names` are the names of its elements, if there is one for each."""
    if is_image(field):
        return {"dtype": "image", "shape": list(field.shape), "names": ["height", "width", "channels"]}
    shape = list(field.shape or (1,))
    named = isinstance(names, list) and len(names) == shape[0] and all(isinstance(name, str) for name in names)
    return {"dtype": dtype_of(field).name, "shape": shape, "names": names if named else None}


def _hub_feature(feature: Mapping[str, Any]) -> dict[str, Any]:
    """Return a feature in the words of the library datasets."""
    if feature["dtype"] == "image":
        return {"_type": "Image"}
    value = {"dtype": feature["dtype"], "_type": "Value"}
    if feature["shape"] == [1]:
        return value
    return {"feature": value, "length": feature["shape"][0], "_type": "List"}


def _arrow_type(field: Field) -> pa.DataType:
    import pyarrow as pa

    if is_image(field):
        return pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    kind = pa.from_numpy_dtype(dtype_of(field))
    return pa.list_(kind, field.shape[0]) if field.shape not in {(), (1,)} else kind
