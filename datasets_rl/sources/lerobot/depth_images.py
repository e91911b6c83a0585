"""Images of depth cameras in columns of TIFF or PNG files: values are depths in the unit of the feature."""

from __future__ import annotations

import io
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from datasets_rl.format.schema import Column
from datasets_rl.read.streams import first_problems, refuse
from datasets_rl.ted.keys import dotted_name

_FORMATS = ("TIFF", "PNG")
_MODES: Mapping[str, np.dtype[Any]] = {
    "F": np.dtype(np.float32),
    "I;16": np.dtype(np.uint16),
    "I;16B": np.dtype(np.uint16),
    "I": np.dtype(np.int32),
}


def read_depths(files: Any, column: Column, first: int) -> NDArray[Any]:
    """Return the depths of images.

    Args:
        files: The bytes of each image, [n].
        column: The field: float32 for meters, an integer for millimeters, [rows, columns, 1].
        first: Number of the first image in errors.

    Raises:
        ConversionError: If images are damaged, or have another size or type. The error names each image.
    """
    depths = np.empty((len(files), *column.shape), column.dtype)
    problems = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow warns of damaged files, which also end in an error
        for number, file in enumerate(files):
            try:
                depths[number, ..., 0] = _read_depth(file, column)
            except (OSError, ValueError, SyntaxError, EOFError) as error:  # errors of Pillow
                problems.append(f"{dotted_name(column.key)}: image {first + number:,} {error}")
    refuse("", first_problems(problems, "images"))
    return depths


def _read_depth(file: bytes, column: Column) -> NDArray[Any]:
    """Return the depths of an image, [rows, columns].

    Raises:
        OSError, ValueError, SyntaxError, EOFError: If the image cannot be decoded, or does not fit the field.
    """
    rows, columns, _ = column.shape
    with Image.open(io.BytesIO(file), formats=_FORMATS) as image:
        dtype = _MODES.get(image.mode)
        if image.size != (columns, rows) or dtype is None or (dtype.kind == "f") != (column.dtype.kind == "f"):
            is_float = column.dtype.kind == "f"
            expected = f"[{rows}, {columns}] of {'float32' if is_float else 'uint16'}"
            raise ValueError(f"is [{image.height}, {image.width}] of mode {image.mode}, expected {expected}")
        return np.asarray(image)
