"""Reader of folders that tensordict writes: a raw file for each tensor, and a ``meta.json`` for each level.

    meta.json               {"action": {"shape": [15, 2], "dtype": "torch.float32"}, "next": {"type": "TensorDict"}, "shape": [15]}
    action.memmap           the values in C order, without a header
    next/meta.json          the same for the nested TensorDict
    next/reward.memmap
    task/meta.json          {"_type": "...NonTensorStack", "data": ["open", "close", ...]}

Values that are not tensors are texts in a ``meta.json``, or pickles, which are never loaded.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from datasets_rl.errors import ConversionError
from datasets_rl.read.streams import refuse

__all__ = ["META", "TensorDictFolder", "TensorFile", "read_document"]

META = "meta.json"
"""Name of the file with the keys, shapes and dtypes of a level."""
_ENDING = ".memmap"
_INNER = "_tensordict"
"""Name of the folder with the tensors of a tensorclass."""
_DOCUMENT_MAX_BYTES = 256 << 20
_DEPTH_MAX = 32
_AXES_MAX = 64
_VERSION = 1
_PICKLED = "its values are a pickle, which can run code"
_DTYPES: Mapping[str, str] = {
    "bool": "?",
    "uint8": "u1",
    "int8": "i1",
    **{f"{kind}{8 * size}": f"{kind[0]}{size}" for kind in ("int", "uint") for size in (2, 4, 8)},
    **{f"float{8 * size}": f"f{size}" for size in (2, 4, 8)},
    "bfloat16": "u2",
    "complex64": "c8",
    "complex128": "c16",
}
"""Dtypes of numpy by the names of torch. numpy has no bfloat16, whose values are the upper halves of float32."""
_UNSAFE = {*'/<>:"|?*\\ %', *map(chr, range(32)), chr(127)}
"""Characters that tensordict escapes in the names of files."""


@dataclass(frozen=True, slots=True)
class TensorFile:
    """File with the values of a tensor."""

    path: Path
    shape: tuple[int, ...]
    kind: str
    """Dtype in the words of torch, ``bfloat16``."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Dtype of the values that `decoded` returns."""
        return np.dtype(np.float32) if self.kind == "bfloat16" else np.dtype(_DTYPES[self.kind])

    @property
    def bytes(self) -> int:
        """Number of bytes that the shape and the dtype require."""
        return math.prod(self.shape) * np.dtype(_DTYPES[self.kind]).itemsize

    def stored(self) -> NDArray[Any]:
        """Return the stored values as an array that is mapped into memory: booleans as bytes, and bfloat16 as 16 bits."""
        dtype = np.dtype(np.uint8) if self.kind == "bool" else np.dtype(_DTYPES[self.kind]).newbyteorder("<")
        if not math.prod(self.shape):
            return np.empty(self.shape, dtype)  # such a tensor has no file
        return np.memmap(self.path, dtype, "r", shape=self.shape)

    def decoded(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return stored values in the dtype of the tensor.

        Raises:
            ConversionError: If a boolean is not 0 or 1.
        """
        if self.kind == "bfloat16":
            return (values.astype(np.uint32) << 16).view(np.float32)
        if self.kind != "bool":
            return values.astype(self.dtype, copy=False)
        if values.size and values.max() > 1:
            raise ConversionError(self.path.name, [f"it has the byte {values.max()}, expected the booleans 0 or 1"])
        return values.view(np.bool_)


class TensorDictFolder:
    """Folder of a TensorDict or of a tensorclass, with the nested ones. Opening reads the documents, and no values.

    Args:
        folder: The folder.
        name: Name of the folder in errors.

    Raises:
        ConversionError: If a document is damaged, a file is missing, or the size of a file is not that of the shape and the
            dtype. The error names every problem.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self.name = name
        self.tensors: dict[tuple[str, ...], TensorFile] = {}
        """The files of the tensors, by key."""
        self.texts: dict[tuple[str, ...], NDArray[np.object_]] = {}
        """Texts of each element of the batch, by key, with the shape of the batch."""
        self.values: dict[tuple[str, ...], str | float | bool] = {}
        """Texts and numbers that all elements of the batch share, by key."""
        self.left_out: dict[str, str] = {}
        """Why a value cannot be read, by the dotted key."""
        self._problems: list[str] = []
        folder = folder / _INNER if (folder / _INNER / META).is_file() else folder
        document = self._document(folder)
        self.shape: tuple[int, ...] = _shape_of(document.get("shape", [])) or ()
        """Shape of the batch. A TensorDict without a batch size has an empty shape."""
        names = document.get("_names")
        self.axes: tuple[str, ...] = tuple(map(str, names)) if isinstance(names, list) else ()
        """Names of the axes of the batch, or empty if the axes have no names."""
        if "stack_dim" in document:
            problem = "it is a lazy stack, whose elements are in folders of their own"
            raise ConversionError(name, [problem], hint=_DENSE)
        self._read_level(folder, document, ())
        refuse(name, self._problems)

    def _document(self, folder: Path) -> dict[str, Any]:
        document = read_document(folder / META, self.name)
        version = document.get("_format_version", 0)
        if isinstance(version, int) and version > _VERSION:
            problem = f"{META} has the format version {version}, expected at most {_VERSION}"
            raise ConversionError(self.name, [problem], hint="install a newer version of datasets-rl")
        return document

    def _read_level(self, folder: Path, document: Mapping[str, Any], prefix: tuple[str, ...]) -> None:
        if len(prefix) > _DEPTH_MAX:
            raise ConversionError(self.name, [f"{'.'.join(prefix[:3])}... has more than {_DEPTH_MAX} levels"])
        for key, entry in document.items():
            if not isinstance(entry, Mapping):
                continue  # the shape, the device, or the class
            name = (*prefix, key)
            if "type" in entry:
                inner = _file_of(folder, key, "")
                if not (inner / META).is_file():
                    self._problems.append(f"{'.'.join(name)} has no folder with a {META}")
                    continue
                self._read_nested(inner, name)
            elif "dtype" in entry:
                self._read_tensor(folder, name, entry)

    def _read_nested(self, folder: Path, name: tuple[str, ...]) -> None:
        document = self._document(folder)
        dotted = ".".join(name)
        if (folder / _INNER / META).is_file():
            self._read_level(folder / _INNER, self._document(folder / _INNER), name)
        elif "NonTensor" in str(document.get("_type")):
            self._read_value(name, document)
        elif "stack_dim" in document:
            self.left_out[dotted] = "it is a lazy stack, whose elements may have different shapes"
        else:
            self._read_level(folder, document, name)

    def _read_value(self, name: tuple[str, ...], document: Mapping[str, Any]) -> None:
        """Read a value that is not a tensor, from a document, or note why the value cannot be read."""
        dotted, data = ".".join(name), document.get("data")
        if "stack_dim" not in document and isinstance(data, (str, int, float)):
            self.values[name] = data
        elif "data" not in document or data == "pickle.pkl":
            self.left_out[dotted] = _PICKLED
        else:
            items = np.array(data, object)
            if items.size and all(isinstance(item, str) for item in items.flat):
                self.texts[name] = items
            else:
                self.left_out[dotted] = "its values are neither tensors nor texts"

    def _read_tensor(self, folder: Path, name: tuple[str, ...], entry: Mapping[str, Any]) -> None:
        dotted, shape = ".".join(name), _shape_of(entry.get("shape"))
        kind = str(entry["dtype"]).removeprefix("torch.")
        if shape is None:
            self._problems.append(
                f"{dotted} has the shape {entry.get('shape')!r} in {META}, expected a list of integers"
            )
        elif entry.get("is_nested"):
            self.left_out[dotted] = "it is a nested tensor, with elements of different shapes"
        elif kind not in _DTYPES:
            self.left_out[dotted] = f"numpy has no dtype {kind}"
        else:
            tensor = TensorFile(_file_of(folder, name[-1], _ENDING), shape, kind)
            if not tensor.path.is_file() and tensor.bytes:
                self._problems.append(f"{dotted} has no file {tensor.path.name}, expected {tensor.bytes:,} bytes")
            elif tensor.bytes and (size := tensor.path.stat().st_size) != tensor.bytes:
                stated = f"{tensor.bytes:,} bytes of {kind} {list(shape)} as {META} states"
                self._problems.append(f"{tensor.path.name} of {dotted} has {size:,} bytes, expected {stated}")
            else:
                self.tensors[name] = tensor


_DENSE = (
    "write it as one tensor for each key: import torch, tensordict; data = tensordict.TensorDict.load_memmap(FOLDER, "
    "allow_pickle=False); torch.cat([*data.unbind(data.stack_dim)]).memmap(NEW)"
)


def read_document(path: Path, name: str) -> dict[str, Any]:
    """Return the object in a JSON file.

    Args:
        path: The file.
        name: Name of the folder in errors.

    Raises:
        ConversionError: If the file is missing, too large, or has no object of JSON.
    """
    try:
        with path.open("rb") as stream:
            text = stream.read(_DOCUMENT_MAX_BYTES + 1)
    except FileNotFoundError:
        raise ConversionError(name, [f"it has no {path.name}"]) from None
    if len(text) > _DOCUMENT_MAX_BYTES:
        raise ConversionError(name, [f"{path.name} has more than {_DOCUMENT_MAX_BYTES:,} bytes"])
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConversionError(name, [f"{path.name} is not JSON: {error}"]) from error
    if not isinstance(document, dict):
        raise ConversionError(name, [f"{path.name} has {type(document).__name__}, expected an object"])
    return document


def _shape_of(value: Any) -> tuple[int, ...] | None:
    """Return a shape, or None if the value is not a list of sizes."""
    if not isinstance(value, list) or len(value) > _AXES_MAX:
        return None
    is_size = all(isinstance(size, int) and not isinstance(size, bool) and 0 <= size < 1 << 62 for size in value)
    return tuple(value) if is_size else None


def _file_of(folder: Path, key: str, ending: str) -> Path:
    """Return the file or the folder of a key, which is in the folder whatever the key is."""
    found: Path | None = next((path for path in _candidates(folder, key, ending) if path.exists()), None)
    return found or folder / f"{_escaped(key)}{ending}"


def _candidates(folder: Path, key: str, ending: str) -> Iterator[Path]:
    yield folder / f"{_escaped(key)}{ending}"
    if "/" not in key and "\\" not in key and key not in {"", ".", ".."} and "\0" not in key:
        yield folder / f"{key}{ending}"  # as earlier versions wrote names


def _escaped(key: str) -> str:
    if key in {"", ".", ".."}:
        return "%2E" * len(key) or "%"
    return "".join(f"%{ord(one):02X}" if one in _UNSAFE else one for one in key)
