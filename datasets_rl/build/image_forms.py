"""The forms in which a conversion stores images: chosen by a sample of the first shard, before the first row is written.

first shard    rows 0 ... 5,000, or fewer large rows          ...
sample         | 4/5: a dictionary is trained | 1/5: compressed      |
                                                 at most 1/4 of the bytes: the field is compressed, else raw

The choice is a file in the work folder, which all processes of the conversion read, and a process that resumes the
conversion.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from datasets_rl import disk
from datasets_rl.errors import Argument, Call, ConversionError, Remedy
from datasets_rl.format.images import form_class
from datasets_rl.format.images.base import Form
from datasets_rl.format.schema import Column, is_wide_pixels
from datasets_rl.read.compressed_frames import TRAINING_FRAMES, FrameDictionary, compress
from datasets_rl.read.images import decode
from datasets_rl.sources.selection import MIN_RATIO
from datasets_rl.ted.episode import DeferredStates, EncodedImages, Episode, TextStates
from datasets_rl.ted.episode_batch import EpisodeBatch
from datasets_rl.ted.keys import Key, dotted_name

Read: TypeAlias = Callable[[], Generator[Episode | EpisodeBatch | DeferredStates, None, None]]
"""Reads the pieces of a shard."""
BAD_SHARDS = "images-compress-badly"
"""Rule of the decision that counts the shards with images that are far larger than in the sample."""
_SAMPLE_ROWS = 5_000
_SAMPLE_BYTES = 36 << 20
_TRAINING_BYTES = 32 << 20  # many times the size of a dictionary, zstd copies these bytes
_DECODED_BYTES = 8 << 20


@dataclass(frozen=True, slots=True)
class ChosenForm:
    """The form in which a field of images is stored."""

    form: Form
    image_bytes: float = 0.0
    """Mean of the bytes of a compressed image in the sample, or 0 if no image was compressed."""
    dictionary: FrameDictionary = field(default_factory=FrameDictionary)


@dataclass(frozen=True)
class ImageForms:
    """The form of each field of images of a dataset. Other fields are not listed."""

    fields: Mapping[Key, ChosenForm]

    def columns(self, columns: Iterable[Column]) -> list[Column]:
        """Return columns of a reader in the form of the dataset."""
        return [
            replace(column, form=self.fields[column.key].form) if column.key in self.fields else column
            for column in columns
        ]

    @property
    def dictionaries(self) -> dict[Key, FrameDictionary]:
        """The dictionaries of the compressed fields."""
        return {key: chosen.dictionary for key, chosen in self.fields.items() if form_class(chosen.form).has_dictionary}

    @property
    def compressed_bytes(self) -> float:
        """Estimated bytes of the compressed images of a step."""
        return sum(chosen.image_bytes for chosen in self.fields.values())

    @cached_property
    def digest(self) -> str:
        """Digest of the choice: only rows with equal digests can be joined."""
        return hashlib.sha256(json.dumps(self.to_json()).encode()).hexdigest()

    def to_json(self) -> dict[str, Any]:
        """Return the choice as a JSON value."""
        return {
            dotted_name(key): {
                "form": chosen.form,
                "image_bytes": chosen.image_bytes,
                "dictionary": base64.b64encode(chosen.dictionary.data).decode(),
            }
            for key, chosen in self.fields.items()
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> ImageForms:
        """Restore the choice from the output of `to_json`."""
        return cls(
            {
                tuple(name.split(".")): ChosenForm(
                    entry["form"], entry["image_bytes"], FrameDictionary(base64.b64decode(entry["dictionary"]))
                )
                for name, entry in document.items()
            }
        )


class FormChoice:
    """The choice of a conversion, made when the files of the first shard are there.

    Args:
        name: The id of the dataset, for messages.
        images: The form that the user has chosen: ``raw``, ``compressed``, ``encoded``, ``video``, or an empty text.
        path: The file of the choice, or None if only this process needs the choice.
        key: The key of the conversion.
    """

    def __init__(self, name: str, images: str, path: Path | None, key: str) -> None:
        self._name = name
        self._images = images
        self._key = key
        self.path = path
        self._made: ImageForms | None = None
        if path is not None:
            with suppress(OSError, ValueError):
                self._made = read_forms(path, key)

    @property
    def is_made(self) -> bool:
        """Whether this process, or an earlier process, has made the choice."""
        return self._made is not None

    @property
    def forms(self) -> ImageForms:
        """The choice.

        Raises:
            RuntimeError: If the choice is not made.
        """
        if self._made is None:
            raise RuntimeError("the forms of images are not chosen, expected the first shard to be opened before")
        return self._made

    def make(self, columns: Sequence[Column], kept: Collection[Key], read: Read) -> None:
        """Choose the forms by the first shard. See `choose_forms`."""
        self._made = choose_forms(self._name, columns, kept, self._images, read)
        if self.path is not None:
            document = {"key": self._key, "forms": self._made.to_json()}
            self.path.parent.mkdir(parents=True, exist_ok=True)
            disk.write_bytes(self.path, json.dumps(document).encode())


def read_forms(path: Path, key: str | None = None) -> ImageForms:
    """Return the choice in a file of `FormChoice`.

    Raises:
        OSError, ValueError: If there is no choice, or the choice is of another conversion than `key`.
    """
    document = json.loads(path.read_bytes())
    if key not in {None, document["key"]}:
        raise ValueError(f"{path} is of another conversion")
    return ImageForms.from_json(document["forms"])


def choose_forms(name: str, columns: Sequence[Column], kept: Collection[Key], images: str, read: Read) -> ImageForms:
    """Choose how each field of images is stored.

    Args:
        name: The id of the dataset, for messages.
        columns: All columns of the source.
        kept: The keys of the columns that are stored.
        images: The form that the user has chosen, or an empty text.
        read: Reads the first shard.

    Raises:
        ConversionError: If images are to stay encoded, and the source has pixels, or are to stay videos, and the source
            has no videos.
    """
    if images == "video" and not any(column.video for column in columns):
        problem = "images are to stay videos, but the source has none"
        choice = Argument("selection", Call("Selection", options={"images": "encoded"}))
        raise ConversionError(name, [problem], hint=Remedy("use {}, raw, or compressed", choice))
    columns = [column for column in columns if column.key in kept]
    encoded = [column for column in columns if column.image_form.holds_files]
    stays_encoded = images in {"", "encoded", "video"}
    pixels = [
        column
        for column in columns
        if (is_wide_pixels(column) and column.image_form.takes_pixels) or (column in encoded and not stays_encoded)
    ]
    if images == "encoded" and pixels and not encoded:
        problem = (
            f"images are to stay encoded, but {', '.join(dotted_name(column.key) for column in pixels)} "
            "is pixels in the files of the source, not PNG or JPEG"
        )
        choice = Argument("selection", Call("Selection", options={"images": "compressed"}))
        raise ConversionError(name, [problem], hint=Remedy("use {}, or raw", choice))
    forms = {
        column.key: ChosenForm(column.form)
        for column in columns
        if not column.image_form.takes_pixels and column not in pixels
    }
    forms |= {column.key: ChosenForm("raw") for column in pixels}
    wide = [column for column in pixels if is_wide_pixels(column)]
    if images != "raw" and wide:
        with closing(read()) as pieces:
            sample = _sample(pieces, wide)
        for column in wide:
            dictionary, image_bytes, ratio = _measure(sample[column.key])
            if images == "compressed" or ratio >= MIN_RATIO:
                forms[column.key] = ChosenForm("compressed", image_bytes, dictionary)
    return ImageForms(forms)


def _sample(
    pieces: Iterator[Episode | EpisodeBatch | DeferredStates], columns: Sequence[Column]
) -> dict[Key, NDArray[np.uint8]]:
    """Return the first images of each column, [n, ...]."""
    max_rows = max(1, min(_SAMPLE_ROWS, _SAMPLE_BYTES // sum(column.step_bytes for column in columns)))
    found = {column.key: np.empty((max_rows, *column.shape), np.uint8) for column in columns}
    rows = 0
    # The conversion reads the shard again, and reports the problems of the shard.
    with suppress(ConversionError):
        for piece in pieces:
            if isinstance(piece, DeferredStates) or getattr(piece, "deferred", False):
                continue
            count = min(len(piece) if isinstance(piece, Episode) else piece.count, max_rows - rows)
            values = {**piece.steps, **piece.states}
            for column in columns:
                taken = values[column.key][:count]
                pixels = decoded(taken, column) if isinstance(taken, EncodedImages) else taken
                found[column.key][rows : rows + count] = pixels
            rows += count
            if rows == max_rows:
                break
    return {key: images[:rows] for key, images in found.items()}


def _measure(images: NDArray[np.uint8]) -> tuple[FrameDictionary, float, float]:
    """Compress a sample of images, [n, ...], of which a part was not used to train the dictionary.

    Returns:
        The dictionary, the mean of the bytes of a compressed image, and the bytes of the pixels per stored byte.
    """
    if not len(images):
        return FrameDictionary(), 0.0, 0.0
    split = math.ceil(len(images) * 4 / 5)
    every = math.ceil(max(split / TRAINING_FRAMES, images[:split].nbytes / _TRAINING_BYTES))
    dictionary = FrameDictionary.train(images[:split:every])
    others = images[split:] if split < len(images) else images
    data, _ = compress(others, dictionary)
    image_bytes = len(data) / len(others)
    return dictionary, image_bytes, images.nbytes / (len(dictionary.data) + image_bytes * len(images))


def decoded(images: EncodedImages, column: Column) -> NDArray[np.uint8]:
    """Return the pixels of encoded images, uint8 [n, ...]. An image without bytes is zeros.

    Raises:
        ConversionError: If an image cannot be decoded, or has another shape.
    """
    pixels: NDArray[np.uint8] = np.zeros((len(images), *column.shape), np.uint8)
    present = [number for number, image in enumerate(images.images) if len(image)]
    decode([images.images[number] for number in present], pixels, dotted_name(column.key), positions=present)
    return pixels


def with_pixels(
    piece: Episode | EpisodeBatch, columns: Mapping[Key, Column], forms: ImageForms
) -> Iterator[Episode | EpisodeBatch]:
    """Yield a piece with decoded images where images are stored as pixels. An episode gets pieces of a few megabytes.

    Raises:
        ConversionError: If an image cannot be decoded.
    """
    held = {**piece.steps, **piece.states}
    decoding = [
        columns[key]
        for key, values in held.items()
        if isinstance(values, EncodedImages)
        and key in forms.fields
        and not form_class(forms.fields[key].form).holds_files
    ]
    if not decoding:
        yield piece
    elif isinstance(piece, EpisodeBatch):
        steps, states, finals = (
            arrays | {column.key: decoded(arrays[column.key], column) for column in decoding if column.key in arrays}
            for arrays in map(dict, (piece.steps, piece.states, piece.final_states))
        )
        yield replace(piece, steps=steps, states=states, final_states=finals)
    else:
        rows = max(1, _DECODED_BYTES // sum(column.step_bytes for column in decoding))
        for start, stop in pairwise([*range(0, len(piece), rows), len(piece)]):
            is_last = stop == len(piece)
            steps = {key: _rows(values, start, stop) for key, values in piece.steps.items()}
            states = {key: _rows(values, start, None if is_last else stop) for key, values in piece.states.items()}
            for column in decoding:
                arrays = states if column.key in states else steps
                arrays[column.key] = decoded(arrays[column.key], column)
            yield replace(piece, steps=steps, states=states, continues=piece.continues or not is_last)


def _rows(values: Any, start: int, stop: int | None) -> Any:
    if isinstance(values, TextStates):
        return replace(values, codes=values.codes[start:stop])
    return values[start:stop]
