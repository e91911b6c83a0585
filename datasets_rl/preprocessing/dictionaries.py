"""Dictionaries of compressed images: kept where images are unchanged, else trained on the images of the result.

A dictionary for each field is decided before a build, so that all partial datasets, and a resumed build, have the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from datasets_rl import disk
from datasets_rl.format.images.compressed import CompressedImages
from datasets_rl.format.schema import Column
from datasets_rl.read.compressed_frames import TRAINING_FRAMES, FrameDictionary, compress
from datasets_rl.ted.keys import NEXT, Key, dotted_name


@dataclass(frozen=True)
class ImageDictionary:
    """The dictionary of a field, and the bytes of compressed images."""

    dictionary: FrameDictionary
    image_bytes: float
    """The mean size of an image in bytes."""


def common_dictionary(columns: Sequence[Any]) -> ImageDictionary | None:
    """Return the dictionary of columns that are compressed with the same dictionary, or None if they are not."""
    first = columns[0]
    if not (isinstance(first, CompressedImages) and all(map(first.is_compressed_like, columns))):
        return None
    count = sum(map(len, columns))
    return ImageDictionary(first.dictionary, sum(images.nbytes for images in columns) / max(count, 1))


def train_dictionary(columns: Sequence[NDArray[np.uint8]]) -> ImageDictionary:
    """Return a dictionary that is trained on all images of columns, [n, ...] each."""
    frames = spread_images(np.concatenate(columns))
    dictionary = FrameDictionary.train(frames)
    data, _ = compress(frames, dictionary)
    return ImageDictionary(dictionary, len(data) / max(len(frames), 1))


def spread_images(images: Any, count: int = TRAINING_FRAMES) -> NDArray[np.uint8]:
    """Return the pixels of at most `count` images of a column, at equal distances."""
    rows = np.linspace(0, len(images) - 1, min(count, len(images))).astype(np.int64)
    return np.asarray(images[rows])


def store_dictionaries(folder: Path, dictionaries: Mapping[Key, ImageDictionary]) -> None:
    """Write the dictionaries of a build, except for dictionaries that an earlier attempt at the build wrote."""
    folder.mkdir(parents=True, exist_ok=True)
    for key, fitted in dictionaries.items():
        if not (path := folder / dotted_name(key)).exists():
            disk.write_bytes(path, fitted.dictionary.data)


def read_dictionaries(folder: Path, columns: Sequence[Column]) -> dict[Key, FrameDictionary]:
    """Return the dictionaries of a build.

    Values that are stored separately at t + 1 have the dictionary of the values at t.
    """
    dictionaries = {}
    for column in columns:
        if column.image_form.has_dictionary:
            path = folder / dotted_name(column.key)
            if not path.exists() and column.key[0] == NEXT:
                path = folder / dotted_name(column.key[1:])
            dictionaries[column.key] = FrameDictionary(path.read_bytes())
    return dictionaries
