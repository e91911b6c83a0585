"""Reader of ``features.json`` of TensorFlow Datasets, the schema of the features of an Example.

An RLDS episode is an Example. The features are flat, with slashes in the names, and concatenate all steps:

    features.json    {"steps": Dataset({"observation": {"image": Image, "state": Tensor [7]}}), "episode_id": Text}
    in the record    steps/observation/image   T byte strings
                     steps/observation/state   T * 7 floats
                     episode_id                1 byte string

Lists within the steps are ragged: flat values and lengths are separate features.
"""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from datasets_rl.errors import ConversionError
from datasets_rl.read.ragged import Ragged
from datasets_rl.read.streams import COMPRESSION_MAX, refuse
from datasets_rl.read.tfrecord import Feature, parse_example

Column: TypeAlias = "NDArray[Any] | list[memoryview] | list[str] | list[NDArray[Any]] | Ragged"
"""Numbers [T, ...], or T encoded images, byte strings, strings, or arrays of unequal shapes; or ragged lists of these."""

_DEPTH_MAX = 16
_NUMBERS = {
    "bool",
    *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)),
    "float16",
    "float32",
    "float64",
}
_PASSED_OVER = {
    "boundingBox": "boxes in an image",
    "audio": "audio",
    "translation": "translations",
    "jsonFeature": "a feature of a custom class",
}


class _FeatureError(Exception):
    """A feature that does not match the schema."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """Feature of the schema."""

    name: str
    """Name with slashes, as in the record: ``steps/observation/image``."""
    kind: Literal["numbers", "image", "text", "bytes"]
    dtype: np.dtype[Any]
    """Dtype of the numbers or pixels. An image of float32 is stored as a PNG of four channels, a channel for each byte."""
    shape: tuple[int | None, ...]
    """Shape of a value, with None for a variable size."""
    lists: tuple[int | None, ...]
    """Lengths of the enclosing lists, outermost first, or ``(None,)`` for a feature of the steps of an episode."""
    encoding: str = "none"
    """Encoding of numbers, ``none``, ``bytes`` or ``zlib``, or of an image, ``png``, ``jpeg`` or empty for either."""

    @property
    def dynamic(self) -> bool:
        """Whether the shape is stored with every value."""
        return self.kind == "numbers" and self.shape.count(None) > 1

    @property
    def parts(self) -> Iterator[str]:
        """Names of the features of the record that store this feature."""
        stems = [f"{self.name}/value", f"{self.name}/shape"] if self.dynamic else [self.name]
        for stem in stems:
            if len(self.lists) < 2:
                yield stem
            else:
                yield f"{stem}/ragged_flat_values"
                yield from (f"{stem}/ragged_row_lengths_{level}" for level in range(len(self.lists) - 1))


class Schema:
    """Schema of records, as in ``features.json``.

    Raises:
        ConversionError: If the document is not a schema, or has unsupported features. The error names all problems.
    """

    def __init__(self, document: str | bytes | Mapping[str, Any], name: str = "features.json") -> None:
        self.leaves: dict[str, Leaf] = {}
        """Features by name, in the order of the document."""
        self.passed_over: dict[str, str] = {}
        """Features that are not read, with the types."""
        problems: list[str] = []
        try:
            parsed = json.loads(document) if isinstance(document, str | bytes) else document
        except (ValueError, RecursionError) as error:
            raise ConversionError(name, [f"it is not valid JSON: {error}"]) from error
        self._add_leaves(parsed, (), (), problems)
        if not self.leaves and not problems:
            problems.append("it names no features")
        refuse(name, problems)

    def read(self, payload: memoryview, name: str, names: Collection[str] | None = None) -> dict[str, Column]:
        """Read an episode.

        Args:
            payload: The bytes of the record.
            name: Name of the record in errors.
            names: The names of the leaves to read, by default all.

        Returns:
            The features by name. Floats of four bytes and byte strings are views of the payload.

        Raises:
            ConversionError: If features are missing or do not match the schema. The error names all problems.
        """
        features = parse_example(payload, name)
        problems: list[str] = []
        columns: dict[str, Column] = {}
        steps: dict[str, dict[str, int]] = {}
        for leaf in self.leaves.values():
            if names is not None and leaf.name not in names:
                continue
            try:
                columns[leaf.name] = column = _read_column(leaf, features)
            except _FeatureError as error:
                problems.append(f"{leaf.name} {error}")
                continue
            if leaf.lists:
                steps.setdefault(leaf.name.partition("/")[0], {})[leaf.name] = len(column)
        problems.extend(
            "lengths differ: " + ", ".join(f"{key} {count:,}" for key, count in counts.items())
            for counts in steps.values()
            if len(set(counts.values())) > 1
        )
        refuse(name, problems)
        return columns

    def _add_leaves(self, node: Any, path: tuple[str, ...], lists: tuple[int | None, ...], problems: list[str]) -> None:
        name = "/".join(path)
        if not isinstance(node, Mapping) or len(path) + len(lists) > _DEPTH_MAX:
            problems.append(f"{name or 'the document'} is not a feature, or is nested too deeply")
        elif isinstance(inner := node.get("featuresDict"), Mapping):
            features = inner.get("features", {})
            for key, child in features.items() if isinstance(features, Mapping) else ():
                self._add_leaves(child, (*path, str(key)), lists, problems)
        elif isinstance(inner := node.get("sequence", node.get("dataset")), Mapping):
            self._add_leaves(inner.get("feature"), path, (*lists, _declared_size(inner.get("length"))), problems)
        elif isinstance(inner := node.get("video"), Mapping):
            frames, *frame = _declared_shape(inner) or (None, None, None, 3)
            image = {**inner, "shape": {"dimensions": [-1 if size is None else size for size in frame]}}
            self._add_leaves({"image": image}, path, (*lists, frames), problems)
        elif kind := next((kind for kind in _PASSED_OVER if kind in node), ""):
            self.passed_over[name] = _PASSED_OVER[kind]
        else:
            try:
                self.leaves[name] = _check_size(_read_leaf(node, name, lists))
            except _FeatureError as error:
                problems.append(f"{name or 'the document'} {error}")


def _check_size(leaf: Leaf) -> Leaf:
    if math.prod(size or 1 for size in leaf.shape) * leaf.dtype.itemsize > _TENSOR_MAX_BYTES:
        raise _FeatureError(f"has {len(leaf.shape)} axes with more values than fit into a record")
    return leaf


def _read_leaf(node: Mapping[str, Any], name: str, lists: tuple[int | None, ...]) -> Leaf:
    if "text" in node:
        return Leaf(name, "text", np.dtype(object), (), lists)
    if "classLabel" in node:
        return Leaf(name, "numbers", np.dtype(np.int64), (), lists)
    if isinstance(image := node.get("image"), Mapping):
        dtype, form = str(image.get("dtype", "uint8")), str(image.get("encodingFormat", ""))
        if dtype not in {"uint8", "uint16", "float32"} or form not in {"", "png", "jpeg"}:
            raise _FeatureError(f"is an image of {dtype} in {form}, expected uint8, uint16 or float32 in png or jpeg")
        return Leaf(name, "image", np.dtype(dtype), _declared_shape(image) or (None, None, 3), lists, form)
    if isinstance(tensor := node.get("tensor"), Mapping):
        dtype, encoding = str(tensor.get("dtype")), str(tensor.get("encoding", "none")).lower()
        if dtype in {"string", "object", "str"}:
            return Leaf(name, "bytes", np.dtype(object), _declared_shape(tensor), lists)
        if dtype not in _NUMBERS:
            raise _FeatureError(f"has dtype {dtype}, expected one of {', '.join(sorted(_NUMBERS))}, string")
        if encoding not in {"none", "bytes", "zlib"}:
            raise _FeatureError(f"is encoded as {encoding}, expected none, bytes or zlib")
        return Leaf(name, "numbers", np.dtype(dtype).newbyteorder("<"), _declared_shape(tensor), lists, encoding)
    keys = ", ".join(sorted(map(str, node.keys() - {"pythonClassName", "description"}))) or "nothing"
    raise _FeatureError(
        f"is described by {keys}, expected a tensor, an image, a video, a text, or a dict or list of such features"
    )


def _declared_shape(node: Mapping[str, Any]) -> tuple[int | None, ...]:
    shape = node.get("shape")
    dimensions = shape.get("dimensions", []) if isinstance(shape, Mapping) else []
    return tuple(map(_declared_size, dimensions))


def _declared_size(raw: Any) -> int | None:
    try:
        size = int(raw)
    except (TypeError, ValueError):
        return None
    return size if size >= 0 else None


def _read_column(leaf: Leaf, features: Mapping[str, Feature]) -> Column:
    missing = [part for part in leaf.parts if part not in features]
    if missing and len(leaf.lists) < 2:
        raise _FeatureError("is missing from the record")
    if missing:
        raise _FeatureError(f"is missing from the record: {', '.join(missing)}")
    if len(leaf.lists) < 2:
        return _check_count(_read_values(leaf, features, ""), leaf.lists)
    column = _read_values(leaf, features, "/ragged_flat_values")
    stem = f"{leaf.name}/value" if leaf.dynamic else leaf.name
    for level in reversed(range(len(leaf.lists) - 1)):
        lengths = _require_integers(features[f"{stem}/ragged_row_lengths_{level}"])
        if lengths.min(initial=0) < 0 or int(lengths.sum(dtype=object)) != len(column):
            total = int(lengths.sum())
            raise _FeatureError(f"has {len(column):,} values, but the lengths of the lists add up to {total:,}")
        width = leaf.lists[level + 1]
        if width is not None and (lengths != width).any():
            raise _FeatureError(f"has lists of {lengths.min():,} to {lengths.max():,} values, expected {width:,}")
        column = Ragged(column, lengths)
    return column


def _check_count(column: Column, lists: tuple[int | None, ...]) -> Column:
    """Check the number of values of a feature. Outside of lists, return the single value without the leading axis."""
    expected = lists[0] if lists else 1
    if expected is not None and len(column) != expected:
        raise _FeatureError(f"has {len(column):,} values, expected {expected:,}")
    return column[0] if not lists and isinstance(column, np.ndarray) else column


def _read_values(leaf: Leaf, features: Mapping[str, Feature], suffix: str) -> Column:
    """Return the values of a leaf, [V, ...], in any encoding."""
    stem = f"{leaf.name}/value" if leaf.dynamic else leaf.name
    feature = features[stem + suffix]
    if leaf.kind == "numbers" and leaf.encoding == "none" and not leaf.dynamic:
        return _convert_numbers(leaf, feature)
    if not isinstance(feature, list):
        raise _FeatureError(f"has {_feature_kind(feature)}, expected byte strings")
    strings = feature
    if leaf.kind == "text":
        return _decode_texts(strings)
    if leaf.kind != "numbers":
        size = math.prod(size or 1 for size in leaf.shape) if leaf.kind == "bytes" else 1
        if len(strings) % max(size, 1):
            raise _FeatureError(f"has {len(strings):,} byte strings, expected a multiple of {size:,}")
        return strings
    if not leaf.dynamic:
        return _decode_strings(leaf, strings)
    sizes = _require_integers(features[f"{leaf.name}/shape{suffix}"])
    if len(sizes) % len(leaf.shape):
        raise _FeatureError(f"has shapes of {len(sizes):,} sizes, expected a multiple of {len(leaf.shape)}")
    shapes = sizes.reshape(-1, len(leaf.shape))
    return _decode_shaped(leaf, strings, shapes)


def _convert_numbers(leaf: Leaf, feature: Feature) -> NDArray[Any]:
    """Convert numbers that the record stores as floats or integers to the shape and the dtype of the leaf."""
    if leaf.dtype.kind == "f":
        # An empty float list and a missing list have the same encoding.
        values: NDArray[Any] = np.empty(0, np.float32) if isinstance(feature, list) else feature
        if (isinstance(feature, list) and feature) or values.dtype.kind != "f":
            raise _FeatureError(f"has {_feature_kind(feature)}, expected floats")
    else:
        values = _require_integers(feature)
    values = _cast_checked(values, leaf.dtype)
    free = leaf.shape.count(None)
    size = math.prod(size for size in leaf.shape if size is not None)
    if free and not leaf.lists:
        if not size or len(values) % size:
            raise _FeatureError(f"has {len(values):,} numbers, expected a multiple of {size:,}")
        return values.reshape(1, *(len(values) // size if axis is None else axis for axis in leaf.shape))
    if free:
        raise _FeatureError("has a variable shape, which the record does not store")
    if (size and len(values) % size) or (not size and len(values)):
        raise _FeatureError(f"has {len(values):,} numbers, expected a multiple of {size:,}")
    return values.reshape(len(values) // size if size else 0, *(axis or 0 for axis in leaf.shape))


def _cast_checked(values: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    if values.dtype == dtype:
        return values
    if dtype == np.uint64:
        return values.view(
            np.uint64
        )  # stored as signed integers of the same bits, because records have no unsigned integers
    if dtype.kind in "biu" and values.size:
        low, high = (0, 1) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
        if (smallest := int(values.min())) < low or (largest := int(values.max())) > high:
            raise _FeatureError(f"has the value {smallest if smallest < low else largest}, expected {dtype.name}")
    return values.astype(dtype)


def _decode_strings(leaf: Leaf, strings: Sequence[memoryview]) -> NDArray[Any]:
    """Read numbers that are stored as byte strings, a string for each value."""
    fixed = tuple(1 if size is None else size for size in leaf.shape)
    shape = fixed
    if None in leaf.shape:
        if len(strings) != 1 or leaf.lists:
            raise _FeatureError("has a variable shape, which the record does not store")
        count = len(strings[0] if leaf.encoding == "bytes" else _decompress(strings[0], _TENSOR_MAX_BYTES))
        unit = max(1, math.prod(fixed) * leaf.dtype.itemsize)
        shape = tuple(count // unit if size is None else size for size in leaf.shape)
    # No memory is allocated for a declared size before the strings were found to have that size.
    tensors = [_decode_tensor(leaf, string, shape) for string in strings]
    return np.stack(tensors).astype(leaf.dtype, copy=False) if tensors else np.empty((0, *shape), leaf.dtype)


_TENSOR_MAX_BYTES = (1 << 31) - 1


def _decode_shaped(leaf: Leaf, strings: Sequence[memoryview], shapes: NDArray[np.int64]) -> list[NDArray[Any]]:
    """Decode an array per string, each in a shape from `shapes`, [N, axes]."""
    if len(shapes) != len(strings):
        raise _FeatureError(f"has {len(strings):,} values and {len(shapes):,} shapes")
    for shape in shapes.tolist():
        if any(declared not in {None, size} or size < 0 for size, declared in zip(shape, leaf.shape, strict=True)):
            raise _FeatureError(f"has the shape {shape}, expected {list(leaf.shape)}")
    return [_decode_tensor(leaf, string, tuple(shape)) for string, shape in zip(strings, shapes.tolist(), strict=True)]


def _decode_tensor(leaf: Leaf, string: memoryview, shape: tuple[int, ...]) -> NDArray[Any]:
    size = math.prod(shape) * leaf.dtype.itemsize
    data = string if leaf.encoding == "bytes" else _decompress(string, size)
    if len(data) != size:
        raise _FeatureError(f"has a value of {len(data):,} bytes, expected {size:,}")
    values = np.frombuffer(data, np.uint8 if leaf.dtype.kind == "b" else leaf.dtype)
    if leaf.dtype.kind == "b" and values.max(initial=0) > 1:
        raise _FeatureError("has a boolean that is neither 0 nor 1")
    return values.reshape(shape)


def _decompress(string: memoryview, size: int) -> bytes:
    """Decompress a value, to at most one byte more than the expected size."""
    stream = zlib.decompressobj()
    try:
        data = stream.decompress(string, min(size, len(string) * COMPRESSION_MAX) + 1)
    except zlib.error as error:
        raise _FeatureError(f"cannot be decompressed: {error}") from error
    if not stream.eof and len(data) <= size:
        raise _FeatureError("has a truncated value")
    return data


def _require_integers(feature: Feature) -> NDArray[np.int64]:
    if isinstance(feature, np.ndarray) and feature.dtype.kind == "i":
        return cast("NDArray[np.int64]", feature)
    if isinstance(feature, np.ndarray) or feature:
        raise _FeatureError(f"has {_feature_kind(feature)}, expected integers")
    return np.empty(0, np.int64)


def _decode_texts(strings: Sequence[memoryview]) -> list[str]:
    try:
        return [str(string, "utf-8") for string in strings]
    except UnicodeDecodeError as error:
        raise _FeatureError(f"has text that is not UTF-8: {error}") from error


def _feature_kind(feature: Feature) -> str:
    if isinstance(feature, list):
        return "byte strings"
    return "floats" if feature.dtype.kind == "f" else "integers"
