"""The state of a component of a replay buffer: as plain values, and as a folder.

    <folder>/
      state.json         written last: the tree, with dtype, shape and file in place of each tensor, and a digest
      <sha256>.npy       a tensor, named by the digest of the file

A file is named after its content, so that the next dump detects unchanged tensors by their digests alone, wherever the
tensors were changed, and writes need no bookkeeping. A component with much data returns the data in pieces
(`row_chunks`). A change then rewrites a single piece, and loading needs the memory of a piece. Every file opens with
`numpy.load`.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import json
import math
import mmap
import os
import re
import stat
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing.context import get_spawning_popen
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from datasets_rl import disk
from datasets_rl.disk import STATE_FILE
from datasets_rl.errors import IntegrityError, InvalidArgumentError, join_names

_LOCK_FILE = ".lock"
_FORMAT = "datasets-rl checkpoint"
_VERSION = 1

_HEADER_BYTES = 4096
"""Size of the header of a file in bytes: a page of memory, so that the mapped data are aligned."""
_PIECE_BYTES = 1 << 24
"""Approximate size of a piece in bytes."""
_INLINE_BYTES = 512
"""Maximum size of a tensor that is stored in the JSON itself, in bytes."""

_NAME = re.compile(r"[0-9a-f]{64}\.npy")
_MADV_POPULATE_READ = 22
"""Advice of Linux, which Python's `mmap` has no name for."""
_DIGEST = ', "digest": "'
_QUOTED = re.compile(rf'"({_NAME.pattern})"')
_OURS = re.compile(rf"{_NAME.pattern}|\.{_NAME.pattern}\.\d+\.tmp|\.state\.json@\w+-\d+(t\d+)?(\.\d+)?\.tmp|\.lock.*")
_THREADS = min(8, os.cpu_count() or 1)
_HINT = "load an older checkpoint"


class Stateful:
    """Base class of storages, samplers, writers and buffers: a state that can be saved and restored.

    A state is a tree of dicts with string keys, lists, tuples, tensors and JSON values: no object needs pickle. A
    component returns its state from `state_dict` and restores a state in `load_state_dict`. The folder format is built
    on these two methods.
    """

    def state_dict(self) -> dict[str, Any]:
        """Return the state.

        Tensors may share memory with the component: save or copy the tensors before the component changes.
        """
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore a state from `state_dict`. Tensors are copied.

        Raises:
            InvalidArgumentError: If the state does not fit. Nothing has changed then.
        """
        raise_reasons(self.state_problems(state_dict))

    def state_problems(self, state_dict: dict[str, Any]) -> list[str]:
        """Return all reasons why a state cannot be restored. The list of a valid state is empty."""
        del state_dict
        return []

    def renumbered(self, state_dict: dict[str, Any], shift: int, slots: int) -> dict[str, Any]:
        """Convert the state of a full ring for a larger ring: slot i becomes slot (i - shift) mod slots.

            shift 2    slots  0 1 2 3      ages  2 3 0 1   ->   slots  0 1 2 3 . .     ages  0 1 2 3

        A state without slot numbers is returned unchanged.
        """
        del shift, slots
        return state_dict

    def dumps(self, path: Path | str) -> None:
        """Write the state into a folder: arrays as .npy files, the rest as JSON, in a single atomic step.

        Unchanged files of an earlier dump are not written again.

        Raises:
            InvalidArgumentError: If the state contains a value that is neither a tensor nor a JSON value.
        """
        write_state(path, type(self).__name__, self.state_dict())

    def loads(self, path: Path | str) -> None:
        """Restore a state that `dumps` wrote.

        Raises:
            InvalidArgumentError: If the state does not fit, or the folder has no checkpoint. Nothing has changed then.
            IntegrityError: If files are missing or damaged. Nothing has changed then.
        """
        self.load_state_dict(read_state(path))


def row_chunks(rows: Tensor) -> list[Tensor]:
    """Split rows, [N, ...], into views of about 16 MiB."""
    return list(torch.split(rows, max(_PIECE_BYTES // max(rows[:1].nbytes, 1), 1)))


def map_pages(rows: Tensor) -> None:
    """Map all pages of rows that a checkpoint's file holds, before they are copied.

    A copy would map 16 pages per page fault, and the faults are a third of the time of a load. Systems without
    MADV_POPULATE_READ, before Linux 5.14, do so.
    """
    if sys.platform == "linux" and rows.device.type == "cpu" and rows.is_contiguous():
        start = rows.data_ptr() & -mmap.PAGESIZE
        size = rows.data_ptr() + rows.nbytes - start
        _libc().madvise(ctypes.c_void_p(start), ctypes.c_size_t(size), _MADV_POPULATE_READ)


@functools.cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None)


def ensemble_problems(kind: str, parts: Sequence[Stateful], states: Any) -> list[str]:
    """Return all reasons why the components of an ensemble, all of the same type, cannot restore their states."""
    if not isinstance(states, (list, tuple)) or not all(isinstance(state, dict) for state in states):
        return [f"{kind}s are not a list of states"]
    if len(states) != len(parts):
        return [f"the state has {len(states)} {kind}s, expected {len(parts)}"]
    return [
        f"{kind} {number}: {reason}"
        for number, (part, state) in enumerate(zip(parts, states, strict=True))
        for reason in part.state_problems(state)
    ]


def raise_reasons(reasons: list[str]) -> None:
    """Raise if there are reasons why a state cannot be restored.

    Raises:
        InvalidArgumentError: If the list is not empty.
    """
    if reasons:
        raise InvalidArgumentError(f"the saved state does not fit: {'; '.join(reasons)}")


def check_start_method(part: Any, what: str, hint: str) -> None:
    """Raise if a component is being pickled for a process that is started by spawn.

    Args:
        part: The component. Each process would change a separate copy.
        what: Description of the component's data.
        hint: What to use instead.

    Raises:
        InvalidArgumentError: If a process is being started.
    """
    if get_spawning_popen() is not None:
        raise InvalidArgumentError(
            f"a {type(part).__name__} cannot be shared between processes: each would change a separate copy of {what}",
            hint=hint,
        )


def write_state(path: Path | str, kind: str, state: dict[str, Any], *, beside: Path | None = None) -> None:
    """Write a state into a folder, in a single atomic step.

    Every file is complete and on the disk before ``state.json`` names the file, and ``state.json`` is replaced by a
    single rename. A process that dies at any point leaves the old state or the new one, and the next dump removes the
    remaining files.

    Args:
        path: The folder: a new folder, an empty folder, or a folder with a checkpoint.
        kind: Class name of the component, for readers of the file.
        state: A tree of dicts with string keys, lists, tuples, tensors, numbers, strings, booleans and None.
        beside: A subfolder of `path` with live files of the component. The subfolder may exist and is not touched.

    Raises:
        InvalidArgumentError: If the state contains any other value, or the folder other files. Nothing has been
            written then.
        DiskFullError: If the state does not fit on the disk. The old state stays valid.
        LockedError: If another process has been writing there for an hour.
    """
    large: list[tuple[Tensor, dict[str, Any]]] = []
    problems: list[str] = []
    try:
        tree = _encode_value(state, "", large, problems)
    except RecursionError:
        problems.append("the state is nested too deeply, or contains itself")
    if problems:
        raise InvalidArgumentError(f"the state cannot be saved: {'; '.join(problems)}")
    folder = Path(path)
    _check_folder(folder, beside)
    with disk.lock(folder / _LOCK_FILE, f"the checkpoint {folder}"):
        try:
            with ThreadPoolExecutor(_THREADS) as pool:
                names = pool.map(lambda job: _store_tensor(folder, job[0]), large)
                for (_, entry), name in zip(large, names, strict=True):
                    entry["file"] = name
            content = {"format": _FORMAT, "version": _VERSION, "kind": kind, "state": tree}
            # On a single line: with indentation, a list of a million elements takes ten times as long.
            disk.write_text(folder / STATE_FILE, _with_digest(json.dumps(content, allow_nan=False)))
        finally:
            _remove_unused_files(folder)


def read_state(path: Path | str, *, deep: bool = False) -> dict[str, Any]:
    """Read a state that `write_state` wrote.

    Tensors are memory-mapped, so that a state may exceed the memory. Writing to a tensor changes this process's view
    and never the file.

    Args:
        path: The folder.
        deep: Whether to read every byte and compare the digests. If False, only the existence, size, dtype and shape of
            the files are checked.

    Raises:
        InvalidArgumentError: If the folder has no checkpoint, or a newer format version.
        IntegrityError: If files are missing or damaged. The error lists all problems.
    """
    folder = Path(path)
    text = _read_text(folder)
    while True:
        try:
            return _decode_state(folder, text, deep=deep)
        except (IntegrityError, FileNotFoundError):
            # Another process may have finished a dump, which removes files of the previous state.
            new_text = _read_text(folder)
            if new_text == text:
                raise
            text = new_text


def _decode_state(folder: Path, text: str, *, deep: bool) -> dict[str, Any]:
    saved: list[_SavedTensor] = []
    problems: list[str] = []
    try:
        tree = _decode_value(_parse_tree(folder, text), "", saved, problems)
    except RecursionError:
        tree, problems = {}, [f"{STATE_FILE} is nested too deeply"]
    if not isinstance(tree, dict):
        problems.append(f"the state is a {type(tree).__name__}, expected a dict")
    problems += _file_problems(folder, saved, deep=deep)
    if not problems and not _digest_matches(text):
        problems.append(f"{STATE_FILE} does not match its digest: the file was changed after it was written")
    if problems:
        raise IntegrityError(f"the checkpoint {folder}", problems, hint=_HINT)
    return {key: _load_tensors(value, folder) for key, value in tree.items()}


@dataclass(frozen=True, slots=True)
class _SavedTensor:
    """Description of a tensor in a folder."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    bits: bytes
    """The bytes of the tensor, if they are stored in the JSON."""
    file: str | None

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


# --- the digest of the JSON


def _with_digest(text: str) -> str:
    """Return the text of a JSON object with the digest of that text added as the last key."""
    return f'{text[:-1]}{_DIGEST}{hashlib.sha256(text.encode()).hexdigest()}"}}\n'


def _digest_matches(text: str) -> bool:
    """Return whether a text matches its digest."""
    content, _, _ = text.rpartition(_DIGEST)
    return text.rstrip() == _with_digest(content + "}").rstrip()


# --- tree -> JSON


def _encode_value(value: Any, path: str, file_tensors: list[tuple[Tensor, dict[str, Any]]], problems: list[str]) -> Any:
    """Encode a state as JSON, a value without a JSON type as a dict with a single key that starts with $.

    Tensors that get a file are appended to `file_tensors` with their entry in the JSON, which does not have the file name yet.
    """
    kind = type(value)
    if value is None or kind in {bool, str}:
        return value
    if kind in {int, float}:
        return _encode_number(value)
    if kind in {list, tuple}:
        items = [_encode_value(item, f"{path}[{number}]", file_tensors, problems) for number, item in enumerate(value)]
        return items if kind is list else {"$tuple": items}
    if isinstance(value, dict):
        invalid_keys = [key for key in value if type(key) is not str]
        problems += [f"{path or 'the state'} has the key {key!r}, expected a string" for key in invalid_keys]
        return {
            f"${key}" if key.startswith("$") else key: _encode_value(item, _key_path(path, key), file_tensors, problems)
            for key, item in value.items()
            if key not in invalid_keys
        }
    if _is_plain(value):
        return {"$tensor": _encode_tensor(value.detach(), file_tensors)}
    problems.append(f"{path or 'the state'} is {_describe_value(value)}, expected a dense tensor or a JSON value")
    return None


def _encode_number(value: float) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else {"$float": repr(value)}
    # Python takes quadratic time for long decimals, and raises above a limit.
    return value if abs(value) < 1 << 63 else {"$int": hex(value)}


def _is_plain(value: Any) -> bool:
    """Return whether a value is a tensor that its dtype, shape and bytes fully describe."""
    if not isinstance(value, Tensor) or value.layout != torch.strided:
        return False
    return not (value.is_nested or value.is_quantized or value.is_meta)


def _encode_tensor(tensor: Tensor, file_tensors: list[tuple[Tensor, dict[str, Any]]]) -> dict[str, Any]:
    entry: dict[str, Any] = {"dtype": _dtype_name(tensor.dtype), "shape": list(tensor.shape)}
    if tensor.nbytes <= _INLINE_BYTES:
        entry["bits"] = _bytes_of(tensor).hex()
    else:
        file_tensors.append((tensor, entry))
    return entry


def _key_path(place: str, key: str) -> str:
    return f"{place}.{key}" if place else key


def _describe_value(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"a {type(value).__name__} of layout {value.layout}, dtype {value.dtype} on {value.device}"
    return f"a {type(value).__qualname__}"


# --- JSON -> tree


def _read_text(folder: Path) -> str:
    try:
        return (folder / STATE_FILE).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise InvalidArgumentError(
            f"{folder} is not a checkpoint: {STATE_FILE} is missing", hint="pass a folder that `dumps` wrote"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidArgumentError(f"the checkpoint {folder} cannot be read: {error}") from error


def _parse_tree(folder: Path, text: str) -> Any:
    """Return the tree of a checkpoint, still encoded."""
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise IntegrityError(f"the checkpoint {folder}", [f"{STATE_FILE} is not JSON: {error}"], hint=_HINT) from error
    if not isinstance(content, dict) or (content.get("format") != _FORMAT and not {"kind", "state"} <= content.keys()):
        raise InvalidArgumentError(f"{folder / STATE_FILE} is not a checkpoint, expected the format {_FORMAT!r}")
    version = content.get("version")
    problems = [
        f"the {name} in {STATE_FILE} is {content.get(name)!r}, expected {expected!r}"
        for name, expected, is_valid in (
            ("format", _FORMAT, content.get("format") == _FORMAT),
            ("version", _VERSION, type(version) is int and version >= 1),
        )
        if not is_valid
    ]
    if problems:
        raise IntegrityError(f"the checkpoint {folder}", problems, hint=_HINT)
    if version != _VERSION:
        raise InvalidArgumentError(
            f"the checkpoint {folder} has version {version!r} of the format, and this release reads version {_VERSION}",
            hint="load it with the release of datasets-rl that wrote it, or a newer release",
        )
    return content.get("state")


def _decode_value(value: Any, path: str, saved_tensors: list[_SavedTensor], problems: list[str]) -> Any:
    """Invert `_encode_value`, with `_SavedTensor` in place of tensors."""
    if isinstance(value, list):
        return [_decode_value(item, f"{path}[{number}]", saved_tensors, problems) for number, item in enumerate(value)]
    if not isinstance(value, dict):
        return value
    tag, content = next(iter(value.items()), ("", None))  # type: tuple[str, Any]
    if len(value) > 1 or not tag.startswith("$") or tag.startswith("$$"):
        return {
            key.removeprefix("$"): _decode_value(item, _key_path(path, key), saved_tensors, problems)
            for key, item in value.items()
        }
    try:
        return _decode_tagged(tag, content, path, saved_tensors, problems)
    except (KeyError, TypeError, ValueError):
        problems.append(f"{path} is {str(value)[:200]}, which is not a valid entry")
        return None


def _decode_tagged(tag: str, content: Any, path: str, saved_tensors: list[_SavedTensor], problems: list[str]) -> Any:
    """Decode a dict with a single key that `_encode_value` created.

    Raises:
        KeyError, TypeError, ValueError: If the content is not from such a dict.
    """
    if tag == "$tuple" and isinstance(content, list):
        return tuple(_decode_value(content, path, saved_tensors, problems))
    if tag == "$int":
        return int(content, 16)
    if tag == "$float" and content in {"nan", "inf", "-inf"}:
        return float(content)
    if tag == "$tensor":
        saved_tensors.append(_decode_tensor(content))
        return saved_tensors[-1]
    raise ValueError(tag)


def _decode_tensor(entry: dict[str, Any]) -> _SavedTensor:
    """Parse the entry of a tensor.

    Raises:
        KeyError, TypeError, ValueError: If the entry is inconsistent.
    """
    shape, file = entry["shape"], entry.get("file")
    saved = _SavedTensor(_DTYPES[entry["dtype"]], tuple(shape), bytes.fromhex(entry.get("bits", "")), file)
    if any(type(size) is not int or size < 0 for size in shape):
        raise ValueError(shape)
    if math.prod(size or 1 for size in shape) * saved.dtype.itemsize >= 1 << 63:
        raise ValueError(shape)
    if file is None and len(saved.bits) != saved.nbytes:
        raise ValueError(len(saved.bits))
    if file is not None and not (_NAME.fullmatch(file) and saved.nbytes):
        raise ValueError(file)
    return saved


def _load_tensors(value: Any, folder: Path) -> Any:
    """Replace every `_SavedTensor` by the tensor of its file."""
    if isinstance(value, dict):
        return {key: _load_tensors(item, folder) for key, item in value.items()}
    if isinstance(value, list):
        return [_load_tensors(item, folder) for item in value]
    if type(value) is tuple:
        return tuple(_load_tensors(item, folder) for item in value)
    return _load_tensor(value, folder) if isinstance(value, _SavedTensor) else value


def _load_tensor(saved: _SavedTensor, folder: Path) -> Tensor:
    if not saved.nbytes:
        return torch.empty(saved.shape, dtype=saved.dtype)
    if saved.file is None:
        flat = np.frombuffer(bytearray(saved.bits), np.uint8)
    else:
        flat = np.memmap(folder / saved.file, np.uint8, mode="c", offset=_HEADER_BYTES, shape=(saved.nbytes,))
    return torch.from_numpy(flat).view(saved.dtype).view(saved.shape)


# --- files


def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


_NUMPY = {f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)}
_NUMPY |= {"bool", "float16", "float32", "float64", "complex64", "complex128"}
_DTYPES = {_dtype_name(value): value for value in vars(torch).values() if isinstance(value, torch.dtype)}


def _npy_header(dtype: torch.dtype, shape: tuple[int, ...]) -> bytes:
    """Return the header of an .npy file, padded to `_HEADER_BYTES`. The size of numpy's header depends on the version.

    Dtypes that numpy lacks (bfloat16, float8, complex32) are stored as unsigned integers of the same bits.
    """
    name = _dtype_name(dtype)
    descr = np.dtype(name if name in _NUMPY else f"u{dtype.itemsize}").str
    text = f"{{'descr': {descr!r}, 'fortran_order': False, 'shape': {shape!r}, }}"
    length = _HEADER_BYTES - 10
    return b"\x93NUMPY\x01\x00" + length.to_bytes(2, "little") + text.ljust(length - 1).encode() + b"\n"


def _bytes_of(tensor: Tensor) -> memoryview:
    """Return the bytes of a tensor, a view if the tensor is contiguous in CPU memory."""
    if not tensor.numel():  # the strides are arbitrary, and `view` would raise
        return memoryview(b"")
    flat = tensor.resolve_conj().resolve_neg().cpu().contiguous().reshape(-1)
    array: NDArray[np.uint8] = flat.view(torch.uint8).numpy()
    return array.data


def _store_tensor(folder: Path, tensor: Tensor) -> str:
    """Write the file of a tensor, unless the file exists, and return the file's name."""
    header, data = _npy_header(tensor.dtype, tuple(tensor.shape)), _bytes_of(tensor)
    digest = hashlib.sha256(header)
    digest.update(data)
    name = f"{digest.hexdigest()}.npy"
    target = folder / name
    if target.exists() and target.stat().st_size == _HEADER_BYTES + len(data):
        return name
    temporary = folder / f".{name}.{threading.get_ident()}.tmp"
    with (
        disk.disk_errors(folder, hint="free disk space, or choose another folder. The previous dump is complete"),
        temporary.open("wb") as stream,
    ):
        stream.write(header)
        stream.write(data)
    disk.publish_file(temporary, target)
    return name


def _check_folder(folder: Path, beside: Path | None) -> None:
    """Raise if a folder contains files of other programs. The subfolder `beside` may exist.

    The folder is listed once: between two looks another thread may finish the first dump.
    """
    disk.check_outside_versions(folder)
    if not folder.exists():
        return
    if not folder.is_dir():
        raise InvalidArgumentError(f"{folder} is a file, expected a folder for a checkpoint")
    names = {path.name for path in folder.iterdir() if not _OURS.fullmatch(path.name)}
    if STATE_FILE in names:
        _parse_tree(folder, _read_text(folder))
        return
    if beside is not None and beside.parent.resolve() == folder.resolve():
        names.discard(beside.name)
    foreign = sorted(names)
    if foreign:
        raise InvalidArgumentError(
            f"{folder} is not empty and is not a checkpoint: {join_names(foreign)}", hint="choose a new folder"
        )


def _remove_unused_files(folder: Path) -> None:
    """Remove files that the current state does not name: files of older states and of unfinished dumps."""
    state = folder / STATE_FILE
    named = set(_QUOTED.findall(state.read_text(encoding="utf-8"))) if state.exists() else set()
    for path in folder.iterdir():
        if path.name not in named and _OURS.fullmatch(path.name) and not path.name.startswith(_LOCK_FILE):
            disk.remove_file(path)


def _file_problems(folder: Path, saved_tensors: list[_SavedTensor], *, deep: bool) -> list[str]:
    """Return which files are missing or damaged, judged by headers and sizes, or with `deep` by every byte."""
    with ThreadPoolExecutor(_THREADS) as pool:
        results = pool.map(
            lambda saved: _file_problem(folder / saved.file, saved, deep=deep),
            [saved for saved in saved_tensors if saved.file],
        )
        return [fault for fault in results if fault]


def _file_problem(path: Path, saved: _SavedTensor, *, deep: bool) -> str:
    header, size = _npy_header(saved.dtype, saved.shape), _HEADER_BYTES + saved.nbytes
    try:
        info = path.stat()
        if not stat.S_ISREG(info.st_mode) or info.st_size != size:
            return f"{path.name} has {info.st_size:,} bytes, expected {size:,}"
        with path.open("rb") as stream:
            if stream.read(_HEADER_BYTES) != header:
                return f"{path.name} has a header with another dtype or shape"
            if deep:
                stream.seek(0)
                if hashlib.sha256(stream.read()).hexdigest() != path.stem:
                    return f"{path.name} does not match the digest in its name"
    except FileNotFoundError:
        return f"{path.name} is missing"
    except OSError as error:
        return f"{path.name} cannot be read: {error.strerror}"
    return ""
