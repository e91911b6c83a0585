"""Damage to raw files, for the faults of cases: changed arrays of npz files, changed bytes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["changed_arrays", "changed_bytes", "flip_middle_byte", "python_objects"]


def changed_arrays(path: str, **changes: Any) -> Callable[[Path], None]:
    """Return a function that replaces arrays of an npz file; None removes an array, a function changes an array."""

    def corrupt(folder: Path) -> None:
        with np.load(folder / path) as file:
            arrays = dict(file)
        for name, change in changes.items():
            arrays[name] = change(arrays[name]) if callable(change) else change
        np.savez_compressed(folder / path, **{name: values for name, values in arrays.items() if values is not None})

    return corrupt


def changed_bytes(path: str, change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    """Return a function that changes the bytes of a file."""

    def corrupt(folder: Path) -> None:
        (folder / path).write_bytes(change((folder / path).read_bytes()))

    return corrupt


def flip_middle_byte(data: bytes) -> bytes:
    """Return data with all bits of the byte in its middle inverted."""
    at = len(data) // 2
    return data[:at] + bytes([data[at] ^ 255]) + data[at + 1 :]


def python_objects(values: np.ndarray) -> np.ndarray:
    """Return as many objects of Python as there are values, which numpy pickles."""
    out = np.empty(len(values), object)
    out[:] = [print] * len(values)
    return out
