"""The state of a part of a replay buffer: as plain values, and as a folder.

    <folder>/
      state.json         written last: the tree, and in place of each tensor its dtype, shape and file; a digest of it all
      <sha256>.npy       a tensor; the name is the digest of the file

A file is named after its content, so that the next dump finds by the digest alone what has not changed, wherever it was
changed: nobody has to keep marks of writes. A part that holds much gives it in pieces (`pieces`), so that a change
writes one of them, and loading needs the memory of one. Every file opens with `numpy.load`.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import stat
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
from datasets_rl.errors import IntegrityError, InvalidArgumentError

__all__ = ["STATE_FILE", "Stateful", "check_start_method", "part_misfits", "pieces", "read", "refuse", "write"]

STATE_FILE = "state.json"
"""The file that comes last: a folder without it holds no checkpoint."""
_LOCK_FILE = ".lock"
_FORMAT = "datasets-rl checkpoint"
_VERSION = 1

_HEAD = 4096
"""Bytes before the data of a file: a page, so that what is mapped is aligned."""
_PIECE = 1 << 24
"""Bytes of a piece, about."""
_INLINE = 512
"""Tensors of that many bytes stand in the JSON itself."""

_NAME = re.compile(r"[0-9a-f]{64}\.npy")
_SEALED = "digest"
_DIGEST = f', "{_SEALED}": "'
_QUOTED = re.compile(rf'"({_NAME.pattern})"')
_OURS = re.compile(rf"{_NAME.pattern}|\.{_NAME.pattern}\.\d+\.tmp|\.state\.json\.[0-9a-f]+-\d+\.tmp|\.lock.*")
_THREADS = min(8, os.cpu_count() or 1)
_HINT = "load an older checkpoint"


class Stateful:
    """What a storage, a sampler, a writer and a buffer have in common: a state that can be saved and taken over.

    A state is a tree of dicts with text keys, lists, tuples, tensors and JSON values: no object that needs pickle. A part
    says what its state is in `state_dict`, and takes one over in `load_state_dict`; the folder is made of that.
    """

    def state_dict(self) -> dict[str, Any]:
        """Return the state. Tensors may share memory with the part: save or copy them before it changes."""
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over a state that `state_dict` returned. Tensors are copied.

        Raises:
            InvalidArgumentError: If it does not fit; nothing has changed then.
        """
        refuse(self.misfits(state_dict))

    def misfits(self, state_dict: dict[str, Any]) -> list[str]:
        """Say why a state cannot be taken over, all reasons at once; empty if it can."""
        del state_dict
        return []

    def renumbered(self, state_dict: dict[str, Any], shift: int, slots: int) -> dict[str, Any]:
        """Rewrite a state of a full ring for a larger one: what was in slot i comes to slot (i - shift) mod slots.

            shift 2    slots  0 1 2 3      ages  2 3 0 1   ->   slots  0 1 2 3 . .     ages  0 1 2 3

        Only states that name slots have something to rewrite.
        """
        del shift, slots
        return state_dict

    def dumps(self, path: Path | str) -> None:
        """Write the state into a folder: arrays as .npy files, the rest as JSON, in one atomic step.

        What lies there unchanged from an earlier dump is not written again.

        Raises:
            InvalidArgumentError: If the state holds something that is neither tensor nor JSON value.
        """
        write(path, type(self).__name__, self.state_dict())

    def loads(self, path: Path | str) -> None:
        """Take over a state that `dumps` wrote.

        Raises:
            InvalidArgumentError: If it does not fit, or there is none; nothing has changed then.
            IntegrityError: If files of it are missing or damaged; nothing has changed then.
        """
        self.load_state_dict(read(path))


def pieces(rows: Tensor) -> list[Tensor]:
    """Cut rows, [N, ...], into views of about 16 MiB."""
    return list(torch.split(rows, max(_PIECE // max(rows[:1].nbytes, 1), 1)))


def part_misfits(kind: str, parts: Sequence[Stateful], states: Any) -> list[str]:
    """Say why the parts of an ensemble, all of one kind, cannot take over their states, all reasons at once."""
    if not isinstance(states, (list, tuple)) or not all(isinstance(state, dict) for state in states):
        return [f"{kind}s are not a list of states"]
    if len(states) != len(parts):
        return [f"there were {len(states)} {kind}s and are {len(parts)}"]
    return [
        f"{kind} {number}: {reason}"
        for number, (part, state) in enumerate(zip(parts, states, strict=True))
        for reason in part.misfits(state)
    ]


def refuse(reasons: list[str]) -> None:
    """Raise if there are reasons why a state cannot be taken over."""
    if reasons:
        raise InvalidArgumentError(f"the saved state does not fit: {'; '.join(reasons)}")


def check_start_method(part: Any, what: str, hint: str) -> None:
    """Raise if a part of a buffer is being pickled for a process that is started by spawn.

    Args:
        part: The part; each process would change a copy of its own.
        what: What it holds.
        hint: What to use in its place.

    Raises:
        InvalidArgumentError: If a process is being started.
    """
    if get_spawning_popen() is not None:
        raise InvalidArgumentError(
            f"a {type(part).__name__} cannot be shared between processes: each would change its own copy of {what}",
            hint=hint,
        )


def write(path: Path | str, kind: str, state: dict[str, Any]) -> None:
    """Write a state into a folder, in one atomic step.

    Every file is complete and on the disk before ``state.json`` names it, and that is replaced in one rename: a process
    that dies anywhere leaves the old state or the new one, and the next one removes what it left.

    Args:
        path: The folder: a new one, an empty one, or one that holds a checkpoint.
        kind: Whose state it is, for people.
        state: A tree of dicts with text keys, lists, tuples, tensors, numbers, texts, booleans and None.

    Raises:
        InvalidArgumentError: If the state holds anything else, or the folder does; nothing has been written then.
        DiskFullError: If it does not fit; the old state stands.
        LockedError: If another process has been writing there for an hour.
    """
    large: list[tuple[Tensor, dict[str, Any]]] = []
    problems: list[str] = []
    try:
        tree = _encoded(state, "", large, problems)
    except RecursionError:
        problems.append("it is nested too deep, or a part of it holds itself")
    if problems:
        raise InvalidArgumentError(f"the state cannot be saved: {'; '.join(problems)}")
    folder = Path(path)
    _expect_ours(folder)
    with disk.lock(folder / _LOCK_FILE, f"the checkpoint {folder}"):
        try:
            with ThreadPoolExecutor(_THREADS) as pool:
                names = pool.map(lambda job: _store(folder, job[0]), large)
                for (_, entry), name in zip(large, names, strict=True):
                    entry["file"] = name
            content = {"format": _FORMAT, "version": _VERSION, "kind": kind, "state": tree}
            # In one line: a list of a million elements is indented at a tenth of the speed.
            disk.write_text(folder / STATE_FILE, _sealed(json.dumps(content, allow_nan=False)))
        finally:
            _sweep(folder)


def read(path: Path | str, *, deep: bool = False) -> dict[str, Any]:
    """Read a state that `write` wrote.

    Tensors are mapped, so that a state may be larger than the memory; to write to one changes this process's view of it
    and never the file.

    Args:
        path: The folder.
        deep: Whether every byte is read and compared with the digests; else only that all files are there, with the
            right size, dtype and shape.

    Raises:
        InvalidArgumentError: If there is no checkpoint, or one of a newer version of the format.
        IntegrityError: If anything is missing or damaged; all problems at once.
    """
    folder = Path(path)
    text = _text(folder)
    while True:
        try:
            return _read(folder, text, deep=deep)
        except (IntegrityError, FileNotFoundError):
            # A dump that ended meanwhile has removed files of the state before it.
            again = _text(folder)
            if again == text:
                raise
            text = again


def _read(folder: Path, text: str, *, deep: bool) -> dict[str, Any]:
    saved: list[_Saved] = []
    problems: list[str] = []
    try:
        tree = _decoded(_tree_of(folder, text), "", saved, problems)
    except RecursionError:
        tree, problems = {}, [f"{STATE_FILE} is nested too deep"]
    if not isinstance(tree, dict):
        problems.append(f"the state is a {type(tree).__name__}, not a dict")
    problems += _file_problems(folder, saved, deep=deep)
    if not problems and not _is_as_sealed(text):
        problems.append(f"{STATE_FILE} does not have the digest that it names: it was changed after it was written")
    if problems:
        raise IntegrityError(f"the checkpoint {folder}", problems, hint=_HINT)
    return {key: _loaded(value, folder) for key, value in tree.items()}


@dataclass(frozen=True, slots=True)
class _Saved:
    """A tensor in a folder."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    bits: bytes
    """Its bytes, if they stand in the JSON."""
    file: str | None

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


# --- the digest of the JSON


def _sealed(text: str) -> str:
    """Return the text of a JSON object with the digest of that text as a further, last key."""
    return f'{text[:-1]}{_DIGEST}{hashlib.sha256(text.encode()).hexdigest()}"}}\n'


def _is_as_sealed(text: str) -> bool:
    """Return whether a text has the digest that it names; older releases wrote none."""
    if _SEALED not in json.loads(text):
        return True
    content, _, _ = text.rpartition(_DIGEST)
    return text.rstrip() == _sealed(content + "}").rstrip()


# --- tree -> JSON


def _encoded(value: Any, place: str, large: list[tuple[Tensor, dict[str, Any]]], problems: list[str]) -> Any:
    """Return a state as JSON; what JSON lacks becomes a dict of one key that starts with a $.

    Tensors that get a file are added to `large` with their entry in the JSON, which lacks its name as yet.
    """
    kind = type(value)
    if value is None or kind in {bool, str}:
        return value
    if kind in {int, float}:
        return _encoded_number(value)
    if kind in {list, tuple}:
        items = [_encoded(item, f"{place}[{number}]", large, problems) for number, item in enumerate(value)]
        return items if kind is list else {"$tuple": items}
    if isinstance(value, dict):
        odd = [key for key in value if type(key) is not str]
        problems += [f"{place or 'the state'} has the key {key!r}; expected text" for key in odd]
        return {
            f"${key}" if key.startswith("$") else key: _encoded(item, _below(place, key), large, problems)
            for key, item in value.items()
            if key not in odd
        }
    if _is_plain(value):
        return {"$tensor": _encoded_tensor(value.detach(), large)}
    problems.append(f"{place or 'the state'} is {_described(value)}; expected a dense tensor or a JSON value")
    return None


def _encoded_number(value: float) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else {"$float": repr(value)}
    # Python takes quadratic time to read and write long decimals, and then refuses to.
    return value if abs(value) < 1 << 63 else {"$int": hex(value)}


def _is_plain(value: Any) -> bool:
    """Return whether a value is a tensor that its dtype, shape and bytes describe."""
    if not isinstance(value, Tensor) or value.layout != torch.strided:
        return False
    return not (value.is_nested or value.is_quantized or value.is_meta)


def _encoded_tensor(tensor: Tensor, large: list[tuple[Tensor, dict[str, Any]]]) -> dict[str, Any]:
    entry: dict[str, Any] = {"dtype": _name_of(tensor.dtype), "shape": list(tensor.shape)}
    if tensor.nbytes <= _INLINE:
        entry["bits"] = _bytes_of(tensor).hex()
    else:
        large.append((tensor, entry))
    return entry


def _below(place: str, key: str) -> str:
    return f"{place}.{key}" if place else key


def _described(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"a {type(value).__name__} of layout {value.layout}, dtype {value.dtype} on {value.device}"
    return f"a {type(value).__qualname__}"


# --- JSON -> tree


def _text(folder: Path) -> str:
    try:
        return (folder / STATE_FILE).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise InvalidArgumentError(
            f"{folder} holds no checkpoint: it has no {STATE_FILE}", hint="name a folder that `dumps` wrote"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidArgumentError(f"the checkpoint {folder} cannot be read: {error}") from error


def _tree_of(folder: Path, text: str) -> Any:
    """Return the tree of a checkpoint, still encoded.

    Raises:
        InvalidArgumentError: If the file is no checkpoint's, or one of a newer version of the format.
    """
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise IntegrityError(f"the checkpoint {folder}", [f"{STATE_FILE} is not JSON: {error}"], hint=_HINT) from error
    if not isinstance(content, dict) or (content.get("format") != _FORMAT and not {"kind", "state"} <= content.keys()):
        raise InvalidArgumentError(f"{folder / STATE_FILE} is not a checkpoint; expected the format {_FORMAT!r}")
    version = content.get("version")
    damaged = [
        f"the {name} in {STATE_FILE} is {content.get(name)!r}; expected {wanted!r}"
        for name, wanted, right in (
            ("format", _FORMAT, content.get("format") == _FORMAT),
            ("version", _VERSION, type(version) is int and version >= 1),
        )
        if not right
    ]
    if damaged:
        raise IntegrityError(f"the checkpoint {folder}", damaged, hint=_HINT)
    if version != _VERSION:
        raise InvalidArgumentError(
            f"the checkpoint {folder} has version {version!r} of the format; this release reads version {_VERSION}",
            hint="load it with the release of datasets-rl that wrote it, or a newer one",
        )
    return content.get("state")


def _decoded(value: Any, place: str, found: list[_Saved], problems: list[str]) -> Any:
    """Undo `_encoded`, with `_Saved` where tensors stand."""
    if isinstance(value, list):
        return [_decoded(item, f"{place}[{number}]", found, problems) for number, item in enumerate(value)]
    if not isinstance(value, dict):
        return value
    tag, content = next(iter(value.items()), ("", None))  # type: tuple[str, Any]
    if len(value) > 1 or not tag.startswith("$") or tag.startswith("$$"):
        return {
            key.removeprefix("$"): _decoded(item, _below(place, key), found, problems) for key, item in value.items()
        }
    try:
        return _untagged(tag, content, place, found, problems)
    except (KeyError, TypeError, ValueError):
        problems.append(f"{place} is {str(value)[:200]}, which stands for nothing")
        return None


def _untagged(tag: str, content: Any, place: str, found: list[_Saved], problems: list[str]) -> Any:
    """Undo one of the dicts of one key that `_encoded` makes.

    Raises:
        KeyError, TypeError, ValueError: If it is none of them.
    """
    if tag == "$tuple" and isinstance(content, list):
        return tuple(_decoded(content, place, found, problems))
    if tag == "$int":
        return int(content, 16)
    if tag == "$float" and content in {"nan", "inf", "-inf"}:
        return float(content)
    if tag == "$tensor":
        found.append(_decoded_tensor(content))
        return found[-1]
    raise ValueError(tag)


def _decoded_tensor(entry: dict[str, Any]) -> _Saved:
    """Read a tensor's entry.

    Raises:
        KeyError, TypeError, ValueError: If it contradicts itself.
    """
    shape, file = entry["shape"], entry.get("file")
    saved = _Saved(_DTYPES[entry["dtype"]], tuple(shape), bytes.fromhex(entry.get("bits", "")), file)
    if any(type(size) is not int or size < 0 for size in shape):
        raise ValueError(shape)
    if math.prod(size or 1 for size in shape) * saved.dtype.itemsize >= 1 << 63:
        raise ValueError(shape)
    if file is None and len(saved.bits) != saved.nbytes:
        raise ValueError(len(saved.bits))
    if file is not None and not (_NAME.fullmatch(file) and saved.nbytes):
        raise ValueError(file)
    return saved


def _loaded(value: Any, folder: Path) -> Any:
    """Put tensors in the place of `_Saved`."""
    if isinstance(value, dict):
        return {key: _loaded(item, folder) for key, item in value.items()}
    if isinstance(value, list):
        return [_loaded(item, folder) for item in value]
    if type(value) is tuple:
        return tuple(_loaded(item, folder) for item in value)
    return _load(value, folder) if isinstance(value, _Saved) else value


def _load(saved: _Saved, folder: Path) -> Tensor:
    if not saved.nbytes:
        return torch.empty(saved.shape, dtype=saved.dtype)
    if saved.file is None:
        whole = np.frombuffer(bytearray(saved.bits), np.uint8)
    else:
        whole = np.memmap(folder / saved.file, np.uint8, mode="c", offset=_HEAD, shape=(saved.nbytes,))
    return torch.from_numpy(whole).view(saved.dtype).view(saved.shape)


# --- files


def _name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


_NUMPY = {f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)}
_NUMPY |= {"bool", "float16", "float32", "float64", "complex64", "complex128"}
_DTYPES = {_name_of(one): one for one in vars(torch).values() if isinstance(one, torch.dtype)}


def _head(dtype: torch.dtype, shape: tuple[int, ...]) -> bytes:
    """Return the head of an .npy file, always of `_HEAD` bytes; numpy's own differs between its versions.

    What numpy has no dtype for (bfloat16, float8, complex32) is there as its bits.
    """
    name = _name_of(dtype)
    descr = np.dtype(name if name in _NUMPY else f"u{dtype.itemsize}").str
    text = f"{{'descr': {descr!r}, 'fortran_order': False, 'shape': {shape!r}, }}"
    room = _HEAD - 10
    return b"\x93NUMPY\x01\x00" + room.to_bytes(2, "little") + text.ljust(room - 1).encode() + b"\n"


def _bytes_of(tensor: Tensor) -> memoryview:
    """Return the bytes of a tensor; a view where they lie so in the memory."""
    if not tensor.numel():  # its strides may be anything, which `view` minds
        return memoryview(b"")
    plain = tensor.resolve_conj().resolve_neg().cpu().contiguous().reshape(-1)
    whole: NDArray[np.uint8] = plain.view(torch.uint8).numpy()
    return whole.data


def _store(folder: Path, tensor: Tensor) -> str:
    """Write one file, unless it is there; return its name."""
    head, data = _head(tensor.dtype, tuple(tensor.shape)), _bytes_of(tensor)
    digest = hashlib.sha256(head)
    digest.update(data)
    name = f"{digest.hexdigest()}.npy"
    target = folder / name
    if target.exists() and target.stat().st_size == _HEAD + len(data):
        return name
    temporary = folder / f".{name}.{threading.get_ident()}.tmp"
    with (
        disk.disk_errors(folder, hint="make room, or name another folder; the dump before is whole"),
        temporary.open("wb") as stream,
    ):
        stream.write(head)
        stream.write(data)
    disk.publish_file(temporary, target)
    return name


def _expect_ours(folder: Path) -> None:
    """Refuse a folder that others fill."""
    if not folder.exists():
        return
    if not folder.is_dir():
        raise InvalidArgumentError(f"{folder} is a file; expected a folder for a checkpoint")
    if (folder / STATE_FILE).exists():
        _tree_of(folder, _text(folder))
        return
    foreign = sorted(path.name for path in folder.iterdir() if not _OURS.fullmatch(path.name))
    if foreign:
        shown = ", ".join(foreign[:3]) + (f" and {len(foreign) - 3} more" if len(foreign) > 3 else "")
        raise InvalidArgumentError(f"{folder} is not empty and holds no checkpoint: {shown}", hint="name a new folder")


def _sweep(folder: Path) -> None:
    """Remove what the state that stands does not name: files of an older one, and of a dump that did not end."""
    state = folder / STATE_FILE
    named = set(_QUOTED.findall(state.read_text(encoding="utf-8"))) if state.exists() else set()
    for path in folder.iterdir():
        if path.name not in named and _OURS.fullmatch(path.name) and not path.name.startswith(_LOCK_FILE):
            path.unlink(missing_ok=True)


def _file_problems(folder: Path, found: list[_Saved], *, deep: bool) -> list[str]:
    """Say which files are missing or not as they should be; by their heads and sizes, or to the last byte."""
    with ThreadPoolExecutor(_THREADS) as pool:
        judged = pool.map(
            lambda one: _file_fault(folder / one.file, one, deep=deep), [one for one in found if one.file]
        )
        return [fault for fault in judged if fault]


def _file_fault(path: Path, saved: _Saved, *, deep: bool) -> str:
    head, size = _head(saved.dtype, saved.shape), _HEAD + saved.nbytes
    try:
        about = path.stat()
        if not stat.S_ISREG(about.st_mode) or about.st_size != size:
            return f"{path.name} has {about.st_size:,} bytes; expected {size:,}"
        with path.open("rb") as stream:
            if stream.read(_HEAD) != head:
                return f"{path.name} holds an array of another dtype or shape"
            if deep:
                stream.seek(0)
                if hashlib.sha256(stream.read()).hexdigest() != path.stem:
                    return f"{path.name} does not have the digest that is its name"
    except FileNotFoundError:
        return f"{path.name} is missing"
    except OSError as error:
        return f"{path.name} cannot be read: {error.strerror}"
    return ""
