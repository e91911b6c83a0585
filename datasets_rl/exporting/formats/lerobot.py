"""A dataset in LeRobot's layout, version 3.0.

data/chunk-000/file-000.parquet             a row per step, images as PNG or JPEG
videos/KEY/chunk-000/file-000.mp4           the stored videos unchanged, or images as newly encoded videos
meta/info.json  stats.json  tasks.parquet  episodes/chunk-000/file-000.parquet
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from datasets_rl.exporting.base import ExportFormat, dropped_final_losses, metadata_losses
from datasets_rl.exporting.content import Content, column_of, is_image, names_of, pixels, vocabulary_list
from datasets_rl.exporting.formats.parquet import arrow_array
from datasets_rl.exporting.images import encode_images
from datasets_rl.exporting.lerobot_features import (
    AXES,
    AXES_MAX,
    COUNTERS,
    FLAGS,
    IMAGE_SAMPLES,
    LANGUAGE,
    FeatureStatistics,
    counter_fields,
    default_task,
    depth_fields,
    feature,
    feature_fields,
    has_many_axes,
    is_language,
    next_states,
    parse_language,
    ranked,
    task_field,
)
from datasets_rl.exporting.videos import (
    VIDEO_FILE_BYTES,
    Clip,
    DepthVideos,
    EncodedVideos,
    StoredVideos,
    VideoWriter,
    check_depth_encoder,
    check_encoder,
)
from datasets_rl.format.schema import Field
from datasets_rl.progress import Report
from datasets_rl.ted.episode_batch import EpisodeBatch
from datasets_rl.ted.keys import NEXT_TERMINATED, NEXT_TRUNCATED, dotted_name

if TYPE_CHECKING:
    import pyarrow as pa

_VERSION = "v3.0"
_FILE_BYTES = 100 << 20
_FILES_PER_CHUNK = 1000
_VIDEO_SHARE = 0.05  # assumed bytes per byte of pixels
_DEPTH_SHARE = 0.4  # of depths in single precision
_PATTERN = "chunk-{chunk_index:03d}/file-{file_index:03d}"
_VIDEO_PATH = f"videos/{{video_key}}/{_PATTERN}.mp4"


class LeRobot(ExportFormat):
    """A folder for ``LeRobotDataset(repo_id, root=folder)``. Steps only, because LeRobot has no final observation."""

    name = "lerobot"
    title = "a LeRobot dataset, version 3.0"
    library = "pyarrow"
    extra = "pyarrow"
    image_forms = ("encoded", "video")

    @override
    def problems(self, content: Content) -> Iterator[str]:
        if odd := [field for field in content.actions if has_many_axes(field)]:
            yield f"the format has arrays of at most {AXES_MAX} axes, and {names_of(odd)} has more"

    @override
    def losses(self, content: Content) -> Iterator[str]:
        yield from dropped_final_losses(content)
        if not content.frame_rate:
            yield "the dataset states no frame rate: 1 is written, so that timestamps count steps"
        if odd := [field for field in content.fields if has_many_axes(field)]:
            yield f"{names_of(odd)}: left out, having more than {AXES_MAX} axes"
        named = [field for field in content.fields if len(field.shape) > 1 and content.manifest.element_names(field)]
        if named:
            yield f"{names_of(named)}: the names of the elements are left out, which LeRobot has for vectors alone"
        if fields := next_states(content):
            yield f"{names_of(fields)}: stored separately from the values of the following step, and left out"
        if fields := [field for field, is_equal in counter_fields(content).items() if not is_equal]:
            yield f"{names_of(fields)}: replaced by the counters of LeRobot, which differ"
        depths = depth_fields(content)
        encoded = [field for field in _video_fields(content) if field.key not in content.clips]
        if fields := [field for field in encoded if field not in depths]:
            check_encoder("writing videos")
            yield f"{names_of(fields)}: the images are encoded as videos, with a loss"
        for field in encoded:
            if depth := depths.get(field):
                check_depth_encoder("writing videos of depths")
                steps = [round(1000 * float(step), 1) for step in depth.steps]
                between = f"between {depth.low:g} and {depth.high:g} m, {steps[0]} to {steps[1]} mm apart"
                yield f"{field.name}: each depth becomes the nearest of 4,096 {between}"
        yield from metadata_losses(content)

    @override
    def estimate_bytes(self, content: Content) -> int:
        bytes_of_step = 0.0
        for field in _video_fields(content):
            if field.key in content.clips:
                bytes_of_step += field.step_bytes
            elif not is_image(field):
                bytes_of_step += field.step_bytes * (1 - _DEPTH_SHARE)
            elif not field.image_form.holds_files:
                bytes_of_step += field.step_bytes * (1 - _VIDEO_SHARE)
        return content.bytes - int(bytes_of_step * content.steps)

    @override
    def write(self, content: Content, target: Path, progress: Report) -> None:
        writer = _Writer(content, target)
        for batch in content.batches(frames=True):
            writer.add(batch)
            progress(batch.count)
        writer.finish()


class _Writer:
    """Writer of the tables, which keeps only counts, sums and texts in memory."""

    def __init__(self, content: Content, target: Path) -> None:
        self._content, self._target = content, target
        self._task = task_field(content)
        self._fields = feature_fields(content)
        self._fps = content.frame_rate or 1
        self._tasks: dict[str, int] = {}
        videos = _video_fields(content)
        self._videos = {name: self._video_writer(name, one) for name, one in self._fields.items() if one in videos}
        depths = depth_fields(content)
        self._stats = {
            name: FeatureStatistics(field, has_channels=is_image(field) or (field in depths and name in self._videos))
            for name, field in self._fields.items()
            if not field.text
        }
        self._every = max(1, content.steps // IMAGE_SAMPLES)
        self._rows = self._episodes = self._file = self._file_bytes = 0
        self._data: Any = None
        self._records: Any = None

    def add(self, batch: EpisodeBatch) -> None:
        """Write the steps of whole episodes."""
        import pyarrow as pa

        if self._data is None or self._file_bytes > _FILE_BYTES:
            self._next_file()
        columns = {
            name: self._column(batch, name, field) for name, field in self._fields.items() if name not in self._videos
        }
        clips = {
            name: [*videos.add(self._images(batch, name, self._fields[name]), batch.lengths)]
            for name, videos in self._videos.items()
        }
        terminated, truncated = (batch.steps[key].reshape(-1) for key in (NEXT_TERMINATED, NEXT_TRUNCATED))
        flags = (terminated | truncated, terminated, truncated)
        columns |= {dotted_name(key): pa.array(values) for key, values in zip(FLAGS, flags, strict=True)}
        tasks = self._task_numbers(batch)
        frames = np.arange(batch.count) - np.repeat(batch.table.starts, batch.lengths)
        counters = (
            (frames / self._fps).astype(np.float32),
            frames,
            self._episodes + np.repeat(np.arange(len(batch)), batch.lengths),
            self._rows + np.arange(batch.count),
            tasks,
        )
        columns |= {name: pa.array(values) for name, values in zip(COUNTERS, counters, strict=True)}
        table = pa.table(columns, schema=self._schema())
        for start, length in zip(batch.table.starts.tolist(), batch.lengths.tolist(), strict=True):
            self._data.write_table(table.slice(start, length), length)
        self._file_bytes += table.nbytes
        self._write_episodes(batch, tasks, clips)
        self._rows, self._episodes = self._rows + batch.count, self._episodes + len(batch)

    def finish(self) -> None:
        """Close the tables and videos, and write the counts, the statistics and the tasks."""
        for videos in self._videos.values():
            videos.close()
        self._data.close()
        self._records.close()
        self._write_tasks()
        stats = {name: one.to_json() for name, one in self._stats.items()}
        (self._target / "meta" / "stats.json").write_text(json.dumps(stats, indent=4), encoding="utf-8")
        info = {
            "codebase_version": _VERSION,
            "robot_type": self._content.manifest.stated("robot_type"),
            "total_episodes": self._episodes,
            "total_frames": self._rows,
            "total_tasks": len(self._tasks),
            "chunks_size": _FILES_PER_CHUNK,
            "data_files_size_in_mb": _FILE_BYTES >> 20,
            "video_files_size_in_mb": VIDEO_FILE_BYTES >> 20,
            "fps": self._fps,
            "splits": {"train": f"0:{self._episodes}"},
            "data_path": f"data/{_PATTERN}.parquet",
            "video_path": _VIDEO_PATH if self._videos else None,
            "features": self._features(),
        }
        (self._target / "meta" / "info.json").write_text(json.dumps(info, indent=4), encoding="utf-8")

    def _next_file(self) -> None:
        from pyarrow import parquet

        if self._data is not None:
            self._data.close()
            self._file += 1
        path = self._target / f"data/{_PATTERN}.parquet".format(**_file_index(self._file))
        path.parent.mkdir(parents=True, exist_ok=True)
        self._data = parquet.ParquetWriter(path, self._schema(), use_dictionary=False)
        self._file_bytes = 0

    def _video_writer(self, name: str, field: Field) -> VideoWriter:
        def path_of(file: int) -> Path:
            return self._target / _VIDEO_PATH.format(video_key=name, **_file_index(file))

        if depth := depth_fields(self._content).get(field):
            return DepthVideos(path_of, self._fps, depth)
        clips = self._content.clips.get(field.key)
        return EncodedVideos(path_of, self._fps) if clips is None else StoredVideos(path_of, self._fps, clips)

    def _schema(self) -> pa.Schema:
        import pyarrow as pa

        names = {name: _arrow_type(field) for name, field in self._fields.items() if name not in self._videos}
        names |= {dotted_name(key): pa.bool_() for key in FLAGS}
        names |= {name: pa.from_numpy_dtype(np.dtype(dtype)) for name, dtype in COUNTERS.items()}
        features = {name: _hub_feature(one, name) for name, one in self._features().items() if name in names}
        metadata = {"huggingface": json.dumps({"info": {"features": features}})}
        return pa.schema(list(names.items()), metadata)

    def _features(self) -> dict[str, Any]:
        names_of_field = self._content.manifest.element_names
        features = {name: feature(field, names_of_field(field)) for name, field in self._fields.items()}
        for name, videos in self._videos.items():
            rows, columns, channels = self._fields[name].shape
            about: dict[str, Any] = {
                "height": rows,
                "width": columns,
                "codec": videos.codec,
                "fps": self._fps,
                "channels": channels,
            }
            info: dict[str, Any] = {"has_audio": False, "is_depth_map": False}
            if isinstance(videos, DepthVideos):
                about |= {"pix_fmt": videos.pixel_format, **videos.depth.law}
                info |= {"is_depth_map": True, "depth_unit": videos.depth.unit}
            info |= {f"video.{key}": value for key, value in about.items()}
            features[name] |= {"dtype": "video", "names": [*AXES], "info": info}
        features |= {dotted_name(key): {"dtype": "bool", "shape": [1], "names": None} for key in FLAGS}
        return features | {name: {"dtype": dtype, "shape": [1], "names": None} for name, dtype in COUNTERS.items()}

    def _column(self, batch: EpisodeBatch, name: str, field: Field) -> pa.Array:
        import pyarrow as pa

        if is_image(field):
            images = encode_images(self._images(batch, name, field))
            return pa.array([{"bytes": image, "path": None} for image in images], _arrow_type(field))
        if field.text:
            texts = vocabulary_list(batch, field.key, column_of(batch, field))
            return pa.array(map(parse_language, texts) if is_language(field) else texts, _arrow_type(field))
        array = pixels(column_of(batch, field))
        self._stats[name].update(array)
        return arrow_array(array, _arrow_type(field))

    def _images(self, batch: EpisodeBatch, name: str, field: Field) -> Any:
        """Return the images of a batch, after adding some images to the statistics."""
        values = column_of(batch, field)
        sampled_rows = np.arange(-self._rows % self._every, batch.count, self._every)
        if len(sampled_rows):
            self._stats[name].update(pixels(values[sampled_rows]))
        return values

    def _task_numbers(self, batch: EpisodeBatch) -> NDArray[np.int64]:
        if self._task is None:
            number = self._tasks.setdefault(default_task(self._content), 0)
            return np.full(batch.count, number, np.int64)
        codes, ranks = ranked(column_of(batch, self._task))
        texts = vocabulary_list(batch, self._task.key, codes)
        numbers = [self._tasks.setdefault(text, len(self._tasks)) for text in texts]
        return np.asarray(numbers, np.int64)[ranks]

    def _write_episodes(
        self, batch: EpisodeBatch, tasks: NDArray[np.int64], clips: Mapping[str, Sequence[Clip]]
    ) -> None:
        import pyarrow as pa
        from pyarrow import parquet

        texts = list(self._tasks)
        starts, stops = batch.table.starts, batch.table.stops
        own = [
            [texts[number] for number in dict.fromkeys(tasks[start:stop].tolist())]
            for start, stop in zip(starts.tolist(), stops.tolist(), strict=True)
        ]
        index, count = _file_index(self._file), len(batch)
        table = pa.table(
            {
                "episode_index": pa.array(self._episodes + np.arange(count)),
                "tasks": pa.array(own, pa.list_(pa.string())),
                "length": pa.array(batch.lengths),
                "data/chunk_index": pa.array(np.full(count, index["chunk_index"])),
                "data/file_index": pa.array(np.full(count, index["file_index"])),
                "dataset_from_index": pa.array(self._rows + starts),
                "dataset_to_index": pa.array(self._rows + stops),
                **{name: pa.array(values) for name, values in _clip_columns(clips)},
                "meta/episodes/chunk_index": pa.array(np.zeros(count, np.int64)),
                "meta/episodes/file_index": pa.array(np.zeros(count, np.int64)),
            }
        )
        if self._records is None:
            path = self._target / f"meta/episodes/{_PATTERN}.parquet".format(**_file_index(0))
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


def _video_fields(content: Content) -> list[Field]:
    """Return the fields that become videos: fields with stored videos, and with ``images="video"`` others that can."""

    def can_be_video(field: Field) -> bool:
        return is_image(field) and field.shape[2] == 3 and field.shape[0] % 2 == field.shape[1] % 2 == 0

    if content.images == "encoded":
        return []
    depths = depth_fields(content)
    return [
        field
        for field in feature_fields(content).values()
        if field.key in content.clips or (content.images == "video" and (can_be_video(field) or field in depths))
    ]


def _file_index(file: Any) -> dict[str, Any]:
    """Return the numbers of the folder and of the file for a number of a file, or for an array of numbers."""
    return {"chunk_index": file // _FILES_PER_CHUNK, "file_index": file % _FILES_PER_CHUNK}


def _clip_columns(clips: Mapping[str, Sequence[Clip]]) -> Iterator[tuple[str, NDArray[Any]]]:
    """Yield the columns of meta/episodes that say where the frames of each episode are."""
    for camera, of_episodes in clips.items():
        files = np.asarray([clip.file for clip in of_episodes])
        for name, values in _file_index(files).items():
            yield f"videos/{camera}/{name}", values
        yield f"videos/{camera}/from_timestamp", np.asarray([clip.start for clip in of_episodes])
        yield f"videos/{camera}/to_timestamp", np.asarray([clip.stop for clip in of_episodes])


def _hub_feature(feature: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return a feature in the words of the library datasets."""
    if feature["dtype"] == "language":
        text: dict[str, Any] = {"dtype": "string", "_type": "Value"}
        kinds = {"timestamp": {**text, "dtype": "float32"}, "tool_calls": {"feature": text, "_type": "List"}}
        return {"feature": {one: kinds.get(one, text) for one in LANGUAGE[name]}, "_type": "List"}
    if feature["dtype"] == "image":
        return {"_type": "Image"}
    value = {"dtype": feature["dtype"], "_type": "Value"}
    if feature["shape"] == [1]:
        return value
    if len(feature["shape"]) > 1:
        return {**feature, "_type": f"Array{len(feature['shape'])}D"}
    return {"feature": value, "length": feature["shape"][0], "_type": "List"}


def _arrow_type(field: Field) -> pa.DataType:
    import pyarrow as pa

    if is_image(field):
        return pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    if is_language(field):
        kinds = {"timestamp": pa.float32(), "tool_calls": pa.list_(pa.string())}
        return pa.list_(pa.struct([(name, kinds.get(name, pa.string())) for name in LANGUAGE[field.name]]))
    if field.text:
        return pa.string()
    kind = pa.from_numpy_dtype(field.read_dtype)
    for size in () if field.shape == (1,) else reversed(field.shape):
        kind = pa.list_(kind, size)
    return kind
