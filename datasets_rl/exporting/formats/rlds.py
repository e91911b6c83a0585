"""RLDS: TFRecord files with an episode per record, in the layout of TensorFlow Datasets, written without TensorFlow.

    1.0.0/features.json  dataset_info.json  NAME-train.tfrecord-00000-of-00003

An episode of T actions has T + 1 steps: the last step has the final observation, and zeros for action and reward.
"""

from __future__ import annotations

import json
import math
import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from datasets_rl.exporting.base import ExportFormat, final_losses, next_losses
from datasets_rl.exporting.content import Content, is_image, names_of, pixels, text_list, with_final_row
from datasets_rl.exporting.images import encode_images
from datasets_rl.format.schema import Field
from datasets_rl.progress import Report
from datasets_rl.read.tfrecord import masked_crc
from datasets_rl.ted.episode import EncodedImages, Episode, TextStates
from datasets_rl.ted.keys import NEXT_REWARD, NEXT_TERMINATED, OBSERVATION, Key

_VERSION = "1.0.0"
_SHARD_BYTES = 256 << 20
_RECORD_MAX_BYTES = (1 << 31) - 1
_TFDS = "tensorflow_datasets.core.features"
_FLAGS = ("is_first", "is_last", "is_terminal")
_INIT: Key = ("is_init",)
_FLOATS, _INTEGERS = 2, 3


@dataclass(frozen=True)
class _Feature:
    """A field of the steps, as stored in records."""

    path: str
    field: Field
    kind: str
    """``floats``, ``integers``, ``bytes`` (numbers that a record would round), ``image`` or ``text``."""
    image_format: str = ""

    def describe(self) -> dict[str, Any]:
        """Return the feature in features.json."""
        if self.kind == "text":
            return {"pythonClassName": f"{_TFDS}.text_feature.Text", "text": {}}
        shape = {"dimensions": [str(size) for size in self.field.shape]}
        dtype = self.field.read_dtype.name
        if self.kind == "image":
            body = {"shape": shape, "dtype": dtype, "encodingFormat": self.image_format}
            return {"pythonClassName": f"{_TFDS}.image_feature.Image", "image": body}
        encoding = "bytes" if self.kind == "bytes" else "none"
        body = {"shape": shape, "dtype": dtype, "encoding": encoding}
        return {"pythonClassName": f"{_TFDS}.tensor_feature.Tensor", "tensor": body}

    def message(self, values: Any) -> bytes:
        """Return the feature of all steps of an episode as a message."""
        if isinstance(values, TextStates):
            return _bytes_list([text.encode() for text in text_list(values)])
        if self.kind == "image":
            return _bytes_list(encode_images(values))
        array = pixels(values)
        if self.kind == "bytes":
            flat = np.ascontiguousarray(array, array.dtype.newbyteorder("<")).reshape(len(array), -1)
            return _bytes_list([row.tobytes() for row in flat])
        return _floats(array) if self.kind == "floats" else _integers(array)


class Rlds(ExportFormat):
    """A folder that ``tfds.builder_from_directory`` opens. Images stay encoded, and pixels become PNG images."""

    name = "rlds"
    title = "RLDS: TFRecord files of TensorFlow Datasets"

    @override
    def problems(self, content: Content) -> Iterator[str]:
        episode_bytes = int(content.lengths.max()) * max(content.bytes // max(content.steps, 1), 1)
        if episode_bytes > _RECORD_MAX_BYTES:
            yield f"an episode is a single record of at most 2 GiB, and the longest has about {episode_bytes:,} bytes"

    @override
    def losses(self, content: Content) -> Iterator[str]:
        yield from final_losses(content, "it becomes zeros, as if known")
        if content.both_flags:
            yield f"{content.both_flags:,} episodes are terminated and truncated, and become terminated"
        if content.infos:
            yield f"{names_of(content.infos)}: readers of RLDS take infos as values of steps, and leave out the infos after the last step"
        yield from next_losses(content)

    @override
    def write(self, content: Content, target: Path, progress: Report) -> None:
        folder = target / _VERSION
        folder.mkdir()
        features = list(_features(content))
        name = _tfds_name(content.manifest.id)
        firsts = _shard_starts(content)
        lengths = np.diff([*firsts, len(content.lengths)]).tolist()
        paths = [folder / f"{name}-train.tfrecord-{number:05d}-of-{len(firsts):05d}" for number in range(len(firsts))]
        metadata = {name: content.metadata(name) for name in content.metadata_names}
        episodes = iter(content)
        first = 0
        for path, count in zip(paths, lengths, strict=True):
            with path.open("wb") as stream:
                for number in range(first, first + count):
                    episode = next(episodes)
                    whole = {name: values[number : number + 1] for name, values in metadata.items()}
                    _write_record(stream, _example(features, episode, whole))
                    progress(len(episode))
            first += count
        (folder / "features.json").write_text(json.dumps(_describe(features, metadata), indent=1), encoding="utf-8")
        info = _info(content, name, lengths, sum(path.stat().st_size for path in paths))
        (folder / "dataset_info.json").write_text(json.dumps(info, indent=1), encoding="utf-8")


def _features(content: Content) -> Iterator[_Feature]:
    own = {field.key for field in content.next_fields}
    for field in content.fields:
        if field.key[0] == "next" and (field.key in own or field.key != NEXT_REWARD):
            continue
        if field.key == _INIT and _marks_starts(content):  # is_first says the same
            continue
        path = "reward" if field.key == NEXT_REWARD else "/".join(_path_in_step(content, field))
        form = _image_format(content, field) if field.image_form.holds_files else "png"
        yield _Feature(f"steps/{path}", field, _kind(field), form)


def _marks_starts(content: Content) -> bool:
    """Return whether ``is_init`` is True at the first step of each episode, and nowhere else."""
    marked = np.flatnonzero(np.asarray(content.stored.items(_INIT)).reshape(-1))
    return np.array_equal(marked, content.stored.episodes.starts)


def _path_in_step(content: Content, field: Field) -> Key:
    """Return the path of a field in a step. Names that RLDS defines get an underscore."""
    key = field.key
    if field in content.observations:
        return key if key[0] == OBSERVATION[0] else (*OBSERVATION, *key)
    return (f"{key[0]}_", *key[1:]) if key[0] in {*_FLAGS, "reward"} else key


def _kind(field: Field) -> str:
    if field.text:
        return "text"
    if is_image(field):
        return "image"
    dtype = field.read_dtype
    # Records have float32 only: other floats are stored as bytes.
    return "floats" if dtype == np.float32 else "bytes" if dtype.kind == "f" else "integers"


def _image_format(content: Content, field: Field) -> str:
    """Return the format of the images by the first image. Images of the other format stay valid for readers."""
    column: Any = content.stored.items(field.key)
    return "jpeg" if column.read_file(0)[:2] == b"\xff\xd8" else "png"


def _example(features: Sequence[_Feature], episode: Episode, whole: Mapping[str, NDArray[Any]]) -> bytes:
    steps = len(episode)
    messages: dict[str, bytes] = {}
    for feature in features:
        field = feature.field
        values = episode.states[field.key] if field.shared else episode.steps[field.key]
        if feature.kind == "image" and isinstance(values, EncodedImages) and len(values) == steps:
            blank = encode_images(np.zeros((1, *field.shape), np.uint8))
            values = EncodedImages([*values.images, *blank])
        messages[feature.path] = feature.message(with_final_row(values, steps))
    last = np.arange(steps + 1) == steps
    terminated = bool(pixels(episode.steps[NEXT_TERMINATED])[-1, 0])
    messages["steps/is_first"] = _integers(np.arange(steps + 1) == 0)
    messages["steps/is_last"] = _integers(last)
    messages["steps/is_terminal"] = _integers(last & terminated)
    if "steps/discount" not in messages:
        # That of the transition into a terminal state is 0, as in the datasets of TensorFlow Datasets.
        ends = np.arange(steps + 1) >= steps - 1
        messages["steps/discount"] = _floats(np.where(ends & terminated, 0, 1).astype(np.float32))
    for name, value in whole.items():
        messages[f"episode_metadata/{name}"] = _metadata_message(value)
    entries = (_delimited(1, _delimited(1, name.encode()) + _delimited(2, body)) for name, body in messages.items())
    return _delimited(1, b"".join(entries))


def _metadata_message(value: NDArray[Any]) -> bytes:
    if value.dtype == np.float32:
        return _floats(value)
    return (
        _bytes_list([value.astype(value.dtype.newbyteorder("<")).tobytes()])
        if value.dtype.kind == "f"
        else _integers(value)
    )


def _describe(features: Sequence[_Feature], metadata: Mapping[str, NDArray[Any]]) -> dict[str, Any]:
    steps: dict[str, Any] = {}
    for feature in features:
        node = steps
        *path, last = feature.path.split("/")[1:]
        for name in path:
            node = node.setdefault(name, {})
        node[last] = _Leaf(feature.describe())
    steps |= {name: _Leaf(_scalar(np.dtype(np.bool_))) for name in _FLAGS}
    steps.setdefault("discount", _Leaf(_scalar(np.dtype(np.float32))))
    whole = {name: _Leaf(_scalar(values.dtype)) for name, values in metadata.items()}
    sequence = {
        "pythonClassName": f"{_TFDS}.dataset_feature.Dataset",
        "sequence": {"feature": _group(steps), "length": "-1"},
    }
    return _group({"steps": _Leaf(sequence), "episode_metadata": whole})


class _Leaf(dict[str, Any]):
    """A described feature, as opposed to a group of features."""


def _group(tree: Mapping[str, Any]) -> dict[str, Any]:
    features = {name: dict(node) if isinstance(node, _Leaf) else _group(node) for name, node in tree.items()}
    return {"pythonClassName": f"{_TFDS}.features_dict.FeaturesDict", "featuresDict": {"features": features}}


def _scalar(dtype: np.dtype[Any]) -> dict[str, Any]:
    encoding = "bytes" if dtype.kind == "f" and dtype != np.float32 else "none"
    tensor = {"shape": {}, "dtype": dtype.name, "encoding": encoding}
    return {"pythonClassName": f"{_TFDS}.scalar.Scalar", "tensor": tensor}


def _info(content: Content, name: str, lengths: Sequence[int], size: int) -> dict[str, Any]:
    manifest = content.manifest
    return {
        "name": name,
        "version": _VERSION,
        "description": f"{manifest.id}, exported by datasets-rl.",
        "citation": manifest.citation,
        "fileFormat": "tfrecord",
        "location": {"urls": [manifest.homepage]} if manifest.homepage else {},
        "splits": [
            {
                "name": "train",
                "numBytes": str(size),
                "shardLengths": [str(length) for length in lengths],
                "filepathTemplate": "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}",
            }
        ],
    }


def _tfds_name(dataset_id: str) -> str:
    """Return a name that TensorFlow Datasets accepts: lower case, letters, digits and underscores."""
    name = re.sub(r"[^a-z0-9]+", "_", dataset_id.lower()).strip("_")
    return name if name[:1].isalpha() else f"d_{name}"


def _shard_starts(content: Content) -> list[int]:
    """Return the first episode of each shard, for shards of about 256 MB."""
    count = min(math.ceil(max(content.bytes, 1) / _SHARD_BYTES), len(content.lengths))
    ends = np.cumsum(content.lengths)
    cuts = np.searchsorted(ends, np.arange(count) * (ends[-1] / count))
    return sorted(set(cuts.tolist()))


# --- messages of protocol buffers, and the records around messages


def _varint(value: int) -> bytes:
    parts = bytearray()
    while value > 127:
        parts.append(value & 127 | 128)
        value >>= 7
    return bytes([*parts, value])


def _delimited(number: int, body: bytes) -> bytes:
    return b"".join((_varint(number << 3 | 2), _varint(len(body)), body))


def _bytes_list(items: Sequence[bytes]) -> bytes:
    return _delimited(1, b"".join(_delimited(1, item) for item in items))


def _floats(values: NDArray[Any]) -> bytes:
    return _delimited(_FLOATS, _delimited(1, np.ascontiguousarray(values, "<f4").tobytes()))


def _integers(values: NDArray[Any]) -> bytes:
    flat = np.ascontiguousarray(values).reshape(-1)
    if flat.dtype.kind == "b" or (flat.dtype.kind in "iu" and flat.size and flat.min() >= 0 and flat.max() < 128):
        packed = flat.astype(np.uint8).tobytes()
    else:
        packed = varints(flat)
    return _delimited(_INTEGERS, _delimited(1, packed))


def varints(values: NDArray[Any]) -> bytes:
    """Return integers, [V], as consecutive varints of 1 to 10 bytes: 7 bits each, the lowest first."""
    rest = values.astype(np.int64).view(np.uint64)
    columns, more = [], []
    while True:
        following = rest >> np.uint64(7)
        columns.append((rest & np.uint64(127)).astype(np.uint8))
        more.append(following > 0)
        rest = following
        if not rest.any():
            break
    digits, continues = np.stack(columns, 1), np.stack(more, 1)
    used = np.ones_like(continues)
    used[:, 1:] = continues[:, :-1]
    return (digits | continues.astype(np.uint8) << 7)[used].tobytes()


def _write_record(stream: BinaryIO, payload: bytes) -> None:
    head = struct.pack("<Q", len(payload))
    stream.write(head + struct.pack("<I", masked_crc(head)))
    stream.write(payload)
    stream.write(struct.pack("<I", masked_crc(payload)))
