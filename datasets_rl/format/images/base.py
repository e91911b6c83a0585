"""The contract of a form of images: an `ImageForm` says how the values of a field are stored.

    array_files, whole_files    the files of the field, and the layout of the arrays
    open                        what readers get: an array, or an `ImageColumn`
    writer                      what a `DatasetWriter` appends to: a `FieldWriter`
    ..._problems                what contradicts the form, in a schema or in an episode

The defaults of a form are for values that are stored in the layout of the memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from datasets_rl.fingerprints.canonical import RowDigests, digest_numbers
from datasets_rl.ted.episode import EncodedImages, TextStates
from datasets_rl.ted.keys import dotted_name

if TYPE_CHECKING:
    from datasets_rl.format.images.columns import ImageColumn
    from datasets_rl.format.npy import NpyStream
    from datasets_rl.format.reader import StoredDataset
    from datasets_rl.format.schema import Column, Field
    from datasets_rl.read.compressed_frames import FrameDictionary

Form: TypeAlias = Literal["raw", "encoded", "compressed", "video"]
"""How the images of a field are stored."""
Items: TypeAlias = "NDArray[Any] | ImageColumn"
"""The values of a stored field, [N, ...]: a view of the file, or images that become pixels when rows are taken."""
Renumber: TypeAlias = Callable[[NDArray[Any]], None]
"""Changes a block of a file of another dataset, in place, into what this dataset stores."""


@dataclass(frozen=True, slots=True)
class ArrayFile:
    """Array file of a dataset: the dtype and shape of an item, and what has an item."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    """Shape of an item."""
    per: Literal["step", "episode", "byte", "packet"]
    """``step`` and ``episode`` have an item each, ``byte`` stands for the bytes of encoded or compressed images, and
    ``packet`` for the packets of videos."""
    ends: str = ""
    """For encoded or compressed images: the file with the end offsets."""

    @property
    def counted(self) -> bool:
        """Whether the numbers of steps and of episodes state the number of items."""
        return self.per in {"step", "episode"}

    @property
    def listed(self) -> bool:
        """Whether a file that is read as a whole states the number of items."""
        return self.per == "packet"

    def count(self, steps: int, episodes: int) -> int:
        """Return the number of items, or 0 for a file that is not `counted`, where other files state the number."""
        return {"step": steps, "episode": episodes}.get(self.per, 0)


@dataclass(frozen=True, slots=True)
class WholeFile:
    """File of a dataset that is read as a whole: a vocabulary, a dictionary of compressed images, a list of videos."""

    name: str
    min_bytes: int
    max_bytes: int | None = None


class ImageForm:
    """How the values of a field are stored.

    Args:
        column: The field, or a column that has no position on disk yet.
    """

    name: ClassVar[Form]
    noun: ClassVar[str]
    """What the values are, for messages: "encoded images"."""
    summary: ClassVar[str] = ""
    """How the images are stored, for descriptions: "PNG or JPEG". Empty for pixels."""
    is_array: ClassVar[bool] = False
    """Whether the values are stored in the layout of the memory."""
    takes_pixels: ClassVar[bool] = False
    """Whether a writer takes pixels, and images of any form, and stores the pixels without loss."""
    holds_files: ClassVar[bool] = False
    """Whether each image is a PNG or JPEG file, which an export can copy, and which takes long to decode."""
    in_shared_files: ClassVar[bool] = False
    """Whether the images are frames of video files: of other episodes and fields, too, and copied as a whole."""
    has_dictionary: ClassVar[bool] = False
    """Whether the images of the field share a `FrameDictionary`, which a writer needs before the first image."""

    def __init__(self, column: Column) -> None:
        self.column = column

    @property
    def key(self) -> str:
        """Dotted key of the field."""
        return dotted_name(self.column.key)

    @property
    def file(self) -> str:
        """File of the values at each step, of a wide field."""
        return f"{self.key}.npy"

    @property
    def final_file(self) -> str:
        """File of the values after the last action of each episode, of a wide shared field."""
        return f"final.{self.key}.npy"

    @property
    def item(self) -> tuple[np.dtype[Any], tuple[int, ...]]:
        """Dtype and shape of an item of the array with an item per step."""
        return self.column.dtype, self.column.shape

    @property
    def min_step_bytes(self) -> int:
        """Lower bound for the bytes of a step on disk."""
        dtype, shape = self.item
        return dtype.itemsize * math.prod(shape)

    @property
    def buffered_bytes(self) -> int:
        """Bytes of a step in the memory of a writer, about."""
        return self.column.step_bytes

    @property
    def exported_as_pixels(self) -> bool:
        """Whether exports have pixels instead of the stored bytes, unless an export copies shared files."""
        return not (self.is_array or self.holds_files)

    @property
    def places(self) -> list[tuple[str, Literal["step", "episode"]]]:
        """The files of the steps and of the final states, if the field has these, each with the noun of an item."""
        return [(self.file, "step"), (self.final_file, "episode")] if self.column.shared else [(self.file, "step")]

    def array_files(self) -> list[ArrayFile]:
        """Return the array files of a wide field. End offsets precede the images that the offsets divide."""
        return [ArrayFile(name, *self.item, per) for name, per in self.places]

    def whole_files(self) -> list[WholeFile]:
        """Return the files of the field that are read as a whole."""
        return []

    def shared_files(self, stored: StoredDataset) -> Collection[str]:
        """Return the paths of the shared files of a dataset that have images of the field."""
        del stored
        return ()

    def is_file_of_images(self, path: str) -> bool:
        """Return whether a file of a dataset, by its path, has images of the field, or what readers of the images need."""
        return path in {*(file.name for file in self.array_files()), *(file.name for file in self.whole_files())}

    def scattered_files(self) -> list[str]:
        """Return the array files of which a batch reads a few bytes here and there, and that are not mapped."""
        return []

    def field_problems(self, field: Field) -> Iterator[str]:
        """Yield how the dtype, shape or file of the field contradicts the form."""
        del field
        yield from ()

    def form_problem(self, values: Any) -> str:
        """Return how the values of an episode are not in this form. Empty if a writer takes the values."""
        if isinstance(values, TextStates):
            return f"a text column, expected {self.column.dtype.name}"
        if self.takes_pixels or getattr(values, "form", "raw") == self.name:
            return ""
        return f"{getattr(values, 'noun', 'pixels')}, expected {self.noun}"

    def value_problems(self, values: Any, min_rows: int, max_rows: int) -> Iterator[str]:
        """Yield what is wrong with the values of the field in an episode, which must have a number of rows in a range."""
        dtype, shape = self.column.dtype, self.column.shape
        if isinstance(values, EncodedImages):
            yield f"{self.key} holds {type(values).__name__}, expected {dtype.name}"
        elif problem := self.form_problem(values):
            yield f"{self.key} is {problem}"
        elif values.dtype != dtype or values.shape[1:] != shape or not min_rows <= len(values) <= max_rows:
            actual = f"{values.dtype.name} {list(values.shape)}"
            yield f"{self.key} is {actual}, expected {dtype.name} {[min_rows, *shape]}"

    def open(self, stored: StoredDataset, *, final: bool) -> Items:
        """Return the values of a wide field, at each step or, with `final`, after each episode.

        Raises:
            IntegrityError: If a dictionary or a list of videos is damaged.
        """
        return stored.map(self.final_file if final else self.file)

    def writer(self, folder: Path, dictionary: FrameDictionary | None) -> FieldWriter:
        """Return the writer of the field.

        Args:
            folder: The folder of the dataset.
            dictionary: The dictionary of the images, if the form has a dictionary that the folder does not have yet.
        """
        del dictionary
        return FieldWriter(self, folder)


@dataclass(frozen=True, slots=True)
class CopiedRows:
    """Rows of a buffer whose images are stored unchanged, as bytes of another dataset."""

    start: int
    """The first row in the buffer."""
    file: Path
    """File of the images in a version of the other dataset."""
    numbers: NDArray[np.int64]
    """The row or, of final states, the episode of each image there, [n]."""


class FieldWriter:
    """The files of a field while a dataset is written. By default, arrays with an `ImageForm.item` per row.

    Args:
        form: The form of the field.
        folder: The folder of the dataset.
    """

    def __init__(self, form: ImageForm, folder: Path) -> None:
        self.form = form
        self.folder = folder
        self.streams: Mapping[str, NpyStream] = {}

    def open(self, streams: Mapping[str, NpyStream], entries: Sequence[Mapping[str, Any]]) -> None:
        """Set the array files, by name, to which later images are appended. `entries` are the results of `commit` in an earlier process."""
        del entries
        self.streams = streams

    def stored_values(self, values: Any) -> Any:
        """Return the values of rows, [n, ...], as a buffer takes values. The buffer decodes images of another form."""
        return values

    def unknown(self) -> Any:
        """Return the stored value of an unknown state, [1, ...]."""
        return self.new_buffer(1)

    def new_buffer(self, capacity: int) -> Any:
        """Return memory for the values of this many rows, to which slices of `stored_values` are assigned."""
        dtype, shape = self.form.item
        return np.zeros((capacity, *shape), dtype)

    def digests(self, buffer: Any, count: int) -> RowDigests:
        """Return the digests of the first values of a buffer, [n]."""
        return digest_numbers(buffer[:count])

    def copied(self, buffer: Any) -> Sequence[CopiedRows]:
        """Return the rows of a buffer that are copied as bytes. `digests` leaves zeros for these rows."""
        del buffer
        return ()

    def append(self, buffer: Any, count: int, *, final: bool, deferred: Sequence[int] = ()) -> None:
        """Write the first values of a buffer to the files of the steps or of the final states.

        Args:
            buffer: Result of `new_buffer`.
            count: Number of rows.
            final: Whether the images are final states.
            deferred: Rows of the buffer, ascending, that `patch` may overwrite.
        """
        del deferred
        self.streams[self.form.final_file if final else self.form.file].append(buffer[:count])

    def clear(self, buffer: Any) -> None:
        """Empty a buffer, which is then filled again."""

    def patch(self, row: int, values: NDArray[Any]) -> None:
        """Overwrite a deferred row of the dataset with pixels, [1, ...]."""
        self.streams[self.form.file].patch(row, values)

    def merge(self, folder: Path, entries: Sequence[Mapping[str, Any]]) -> Mapping[str, Renumber]:
        """Prepare to append the files of another dataset, and return the changes of the blocks of these files, by file.

        Args:
            folder: The folder of the other dataset.
            entries: The result of the only `commit` of the other writer.
        """
        del folder, entries
        return {}

    def files(self) -> dict[str, int]:
        """Return the size of each file beside the arrays that was written so far, by path in the dataset."""
        return {}

    def commit(self, *, sync: bool) -> list[Mapping[str, Any]] | None:
        """Flush the shared files, on the disk with `sync`, and return an entry of each new file. None for a form without such files."""
        del sync
        return None

    def finish(self) -> Mapping[str, bytes]:
        """Write the lists of shared files, and return the digests of ranges that are known, by path in the dataset."""
        return {}
