r"""Images by path: a column of names of image files is an array of encoded images.

text in the row                        file below the folder of the table
images/0.jpg                           the same path
C:\Users\me\IMG\center_1.jpg           IMG/center_1.jpg, if a single path has the longest equal end
../other/0.jpg, https://host/0.jpg     none

Every path, and the header of every image, is checked before the first row is stored.
"""

from __future__ import annotations

import math
import os
import posixpath
import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from datasets_rl.errors import ConversionError
from datasets_rl.read.exif import UPRIGHT, orientation
from datasets_rl.read.images import Header, decode, read_header
from datasets_rl.read.streams import ITEMS_MAX, first_problems
from datasets_rl.read.threads import run_on_all_cores
from datasets_rl.sources.flat.arrays import Array, ArrayFile, Rows
from datasets_rl.sources.flat.formats import IMAGES, is_image

BY_NAME = "image-by-name"
"""Rule of the decision about rows with a path of another machine."""
NOT_TURNED = "exif-not-applied"
"""Rule of the decision about images that state another orientation than that of their pixels."""
_OTHER_KINDS = re.compile(r"thumb|preview|icon|mask|depth|segment|label|annotation|heatmap|overlay", re.IGNORECASE)
"""Names of folders of images that show something else than the images of an episode."""
_FOREIGN = re.compile(r"[A-Za-z]:|/|~")
_HEAD_BYTES = 1 << 16
_METADATA_MAX_BYTES = 1 << 20
_BLOCK_BYTES = 16 << 20
_BLOCK_IMAGES = 256
_FILES_PER_TASK = 8
_BLOCK_ROWS = 1 << 16
_NONE = -1
_IS_FOUND = _NONE.__lt__


@dataclass(frozen=True, slots=True)
class _Ends:
    """Ends of the paths below a folder: ``a.jpg``, ``IMG/a.jpg``, ``run/IMG/a.jpg``."""

    folder: str | None
    numbers: dict[str, int] = field(default_factory=dict)
    """Number of the first file with an end."""
    several: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Numbers of the first two files with an end that several files have."""


class PathFolder:
    """Files of a kind among the files of a dataset, which the rows of a table name by their paths.

    Args:
        files: The files on this machine, by the path in the folder of the dataset.
        endings: Ends of the names of the kind, in lower case. Other files are ignored.
    """

    def __init__(self, files: Mapping[str, Path], endings: tuple[str, ...]) -> None:
        kept = {path: file for path, file in files.items() if path.lower().endswith(endings)}
        self.paths = [*kept]
        self.files = [*kept.values()]
        self._numbers = {path: number for number, path in enumerate(self.paths)}
        self._parents: dict[Path, bool] = {}
        self._ends = _Ends(None)

    @cached_property
    def _sorted(self) -> tuple[list[str], list[int]]:
        """The paths in order, and the number of each."""
        order = sorted(range(len(self.paths)), key=self.paths.__getitem__)
        return [self.paths[number] for number in order], order

    def numbers_below(self, folder: str) -> Sequence[int]:
        """Return the numbers of the files below a folder."""
        if not folder:
            return range(len(self.paths))
        paths, order = self._sorted
        # The character after "/" ends the paths that begin with the name of the folder.
        return order[bisect_left(paths, f"{folder}/") : bisect_left(paths, f"{folder}0")]

    def _ends_below(self, folder: str) -> _Ends:
        """Return the ends of the paths below a folder."""
        if self._ends.folder != folder:
            self._ends = _Ends(folder)
            for number in self.numbers_below(folder):
                names = self.paths[number].split("/")
                for depth in range(len(names)):
                    end = "/".join(names[depth:])
                    first = self._ends.numbers.setdefault(end, number)
                    if first != number:
                        self._ends.several.setdefault(end, (first, number))
        return self._ends

    def find(self, text: str, below: str) -> tuple[int, bool, str]:
        """Return the number of the file of a path in a table, whether only names show the file, and the problem.

        Args:
            text: The path, in the spelling of any system.
            below: The folder of the table, which relative paths begin at.
        """
        stripped = text.strip()
        clean = stripped.replace("\\", "/")
        if "://" in clean:
            return _NONE, False, "is an address, expected the path of a file in the folder"
        is_foreign = _FOREIGN.match(clean) is not None
        if not is_foreign:
            for relative in dict.fromkeys((stripped, clean)):
                path = posixpath.normpath(posixpath.join(below, relative))
                if path.startswith("../") or path == "..":
                    return _NONE, False, "leads out of the folder"
                if path in self._numbers:
                    return self._numbers[path], False, ""
        return self._find_by_name(clean.split("/"), below, is_foreign=is_foreign)

    def _find_by_name(self, parts: Sequence[str], below: str, *, is_foreign: bool) -> tuple[int, bool, str]:
        if ".." in parts:
            return _NONE, False, "leads out of the folder" if is_foreign else "does not exist"
        ends = self._ends_below(below)
        longest = ("/".join(parts[depth:]) for depth in range(len(parts)))
        found = next((end for end in longest if end in ends.numbers), "")
        if not found:
            return _NONE, is_foreign, "does not exist"
        if found in ends.several:
            names = " and ".join(self.paths[number] for number in ends.several[found])
            return _NONE, True, f"may be {names}, expected a single file of this name"
        return ends.numbers[found], True, ""

    def is_inside(self, number: int) -> bool:
        """Return whether a file is in the folder, and not a link out of the folder."""
        file, path = self.files[number], self.paths[number]
        parent = file.parent
        if parent not in self._parents:
            root = _root_of(file, path)
            self._parents[parent] = parent.resolve().is_relative_to(root.resolve())
        if not file.is_symlink():
            return self._parents[parent]
        return file.resolve().is_relative_to(_root_of(file, path).resolve())


class ImageFolder(PathFolder):
    """Images among the files of a dataset.

    Args:
        files: The files on this machine, by the path in the folder of the dataset. Other files than images are ignored.
    """

    def __init__(self, files: Mapping[str, Path]) -> None:
        super().__init__(files, IMAGES)
        self._headers: dict[int, Header | str] = {}

    def header(self, number: int) -> Header | str:
        """Return the header of an image, or what is wrong with the image."""
        if number not in self._headers:
            is_inside = self.is_inside(number)
            self._headers[number] = (
                _read_header(self.files[number]) if is_inside else "is a link that leads out of the folder"
            )
        return self._headers[number]

    def read_headers(self, numbers: Sequence[int]) -> None:
        """Read the headers of images in threads."""
        unseen = [number for number in numbers if number not in self._headers]

        def read_range(start: int, stop: int) -> None:
            for number in unseen[start:stop]:
                self.header(number)

        run_on_all_cores(read_range, len(unseen), _FILES_PER_TASK)


@dataclass(slots=True)
class _Column:
    """The images of a column of paths."""

    numbers: NDArray[np.int32]
    """Number of the image of each row in the folder, [N]."""
    by_name: int = 0
    """Number of rows with a path of another machine."""
    not_turned: int = 0
    """Number of rows with an image that states another orientation than that of the pixels."""
    problems: list[str] = field(default_factory=list)
    more: int = 0
    """Number of further rows with problems."""

    def add(self, problem: str) -> None:
        """Add the problem of a row, which is named if few rows have problems."""
        if len(self.problems) < ITEMS_MAX:
            self.problems.append(problem)
        else:
            self.more += 1


class ImagePathsFile(ArrayFile):
    """File in which each text column of paths of images is an array of encoded images.

    Args:
        file: The file.
        folder: The images beside the file.
        below: The folder of the file in the folder of the dataset.
    """

    def __init__(self, file: ArrayFile, folder: ImageFolder, below: str) -> None:
        self.take_notes_of(file)
        self._file, self._folder = file, folder
        self._columns: dict[str, _Column] = {}
        self.arrays = dict(file.arrays)
        for name, array in file.arrays.items():
            if array.text and not array.shape and array.rows and (column := self._resolved(name, below)) is not None:
                self._columns[name] = column
                headers = map(folder.header, filter(_IS_FOUND, column.numbers.tolist()))
                first = next((header for header in headers if isinstance(header, Header)), None)
                shape, dtype = (first.shape, first.dtype) if first else ((), np.dtype(np.uint8))
                self.arrays[name] = Array(array.rows, shape, dtype, encoded=dtype == np.uint8)
            elif array.encoded and array.shape:
                self.arrays[name] = Array(array.rows, array.shape, array.dtype, encoded=array.dtype == np.uint8)

    @property
    def images(self) -> Collection[str]:
        """Names of the arrays of images by path."""
        return self._columns.keys()

    def check(self, names: Collection[str]) -> None:
        """Check all paths and the headers of all images of some arrays.

        Raises:
            ConversionError: If an image does not exist, is outside of the folder, is not an image, or has another size
                than the first image. The error names the first of all problems of each kind.
        """
        problems: list[str] = []
        more = 0
        for name in dict.fromkeys(name for name in names if name in self._columns):
            column = self._columns[name]
            problems += [f"{name} {problem}" for problem in column.problems]
            more += column.more
            problems += self._image_problems(name, column)
        if problems:
            hint = "give the folder with the images, and correct the paths or the files"
            kept = first_problems(problems, "images")
            raise ConversionError(self.name, [*kept, *([f"and {more:,} more paths"] if more else [])], hint=hint)

    def count_rules(self, names: Collection[str]) -> Counter[str]:
        """Return how often each rule was applied to some arrays."""
        columns = [self._columns[name] for name in names if name in self._columns]
        turned = sum(column.not_turned for column in columns)
        return Counter({BY_NAME: sum(column.by_name for column in columns), NOT_TURNED: turned})

    @override
    def blocks(self, name: str, rows: int) -> Iterator[Rows]:
        array = self.arrays[name]
        most = max(1, min(rows, _BLOCK_IMAGES, _BLOCK_BYTES // max(array.row_bytes, 1)))
        if name not in self._columns:
            is_encoded = self._file.arrays[name].encoded and bool(array.shape)
            blocks = self._file.blocks(name, rows)
            yield from self._decoded(name, blocks, most) if is_encoded else blocks
            return
        numbers, rows = self._columns[name].numbers, most
        max_bytes = _METADATA_MAX_BYTES + 2 * array.row_bytes
        for start in range(0, len(numbers), rows):
            images = self._read(numbers[start : start + rows].tolist(), max_bytes)
            pixels: NDArray[Any] = np.empty((len(images), *array.shape), array.dtype)
            # A truncated image has a header. Only decoding shows that all pixels are there.
            decode(images, pixels, f"{self.name}: {name}", first=start)
            yield images if array.encoded else pixels

    def _decoded(self, name: str, blocks: Iterator[Any], most: int) -> Iterator[Rows]:
        """Yield images of a column in blocks of `most`, of which every one can be decoded, or no image is there."""
        array, first = self.arrays[name], 0
        for block in blocks:
            for start in range(0, len(block), most):
                images = block[start : start + most]
                pixels: NDArray[Any] = np.zeros((len(images), *array.shape), array.dtype)
                present = [place for place, image in enumerate(images) if image]
                kept = [images[place] for place in present]
                decode(kept, pixels, f"{self.name}: {name}", first=first + start, positions=present)
                yield images if array.encoded else pixels
            first += len(block)

    def _resolved(self, name: str, below: str) -> _Column | None:
        """Return the images of a column, or None if the texts are not names of images."""
        column = _Column(np.full(self._file.arrays[name].rows, _NONE, np.int32))
        known: dict[str, tuple[int, bool, str]] = {}
        exact: dict[int, int] = {}
        found: dict[int, tuple[str, int]] = {}
        row = 0
        for block in self._file.blocks(name, _BLOCK_ROWS):
            for text in block:
                if not isinstance(text, str) or not is_image(text.strip()):
                    return None
                number, by_name, problem = known.get(text) or self._folder.find(text, below)
                if by_name and not problem and self._is_of_other_kind(number, text, name):
                    problem = f"does not exist: a file of this name is only {self._folder.paths[number]}"
                if len(known) < _BLOCK_ROWS:
                    known[text] = number, by_name, problem
                if problem:
                    column.add(f"{text.strip()!r} in row {row:,} {problem}")
                elif by_name:
                    self._note(column, found, number, (text.strip(), row))
                else:
                    exact.setdefault(number, row)
                column.numbers[row] = number
                column.by_name += by_name
                row += 1
        for number, (text, first) in self._absent(exact, found):
            column.add(self._absence(number, text, first, exact.get(number)))
        return column

    def _is_of_other_kind(self, number: int, text: str, column: str) -> bool:
        """Return whether an image that only names show is in a folder of thumbs, masks and the like, unlike the path."""
        found = _OTHER_KINDS.search(_parts(self._folder.paths[number])[0])
        return found is not None and found[0].lower() not in f"{text} {column}".lower()

    def _note(self, column: _Column, found: dict[int, tuple[str, int]], number: int, named: tuple[str, int]) -> None:
        """Note the first path of a file that only names show, and the problem of another path of the same file."""
        text, row = found.setdefault(number, named)
        if text == named[0]:
            return
        depths = [_depth(one, self._folder.paths[number]) for one in (text, named[0])]
        if depths[0] == depths[1]:
            column.add(f"{named[0]!r} in row {named[1]:,} and {text!r} are both {self._folder.paths[number]}")
            return
        known, absent = ((text, row), named) if depths[0] > depths[1] else (named, (text, row))
        found[number] = known
        column.add(self._absence(number, *absent, known[1]))

    def _absent(
        self, exact: Mapping[int, int], found: Mapping[int, tuple[str, int]]
    ) -> list[tuple[int, tuple[str, int]]]:
        """Return the paths, with the file of the same name, that are certainly those of other files, which are absent.

        Either other paths of the column exist unchanged, or other files in the folder of the path have more equal folders.
        """
        if exact:
            return [*found.items()]
        depths = {number: _depth(text, self._folder.paths[number]) for number, (text, _) in found.items()}
        most: dict[str, int] = {}
        for number, (text, _) in found.items():
            folder = _parts(text)[0]
            most[folder] = max(most.get(folder, 0), depths[number])
        return [(number, named) for number, named in found.items() if depths[number] < most[_parts(named[0])[0]]]

    def _absence(self, number: int, text: str, row: int, other: int | None) -> str:
        used = "" if other is None else f", which row {other:,} names"
        return f"{text!r} in row {row:,} does not exist: a file of this name is only {self._folder.paths[number]}{used}"

    def _image_problems(self, name: str, column: _Column) -> Iterator[str]:
        used, rows = np.unique(column.numbers, return_index=True)
        order = np.argsort(rows)
        first_rows = {int(used[place]): int(rows[place]) for place in order if used[place] >= 0}
        self._folder.read_headers([*first_rows])
        array = self.arrays[name]
        headers = {number: self._folder.header(number) for number in first_rows}
        turns = {number: one.orientation for number, one in headers.items() if isinstance(one, Header)}
        if {*turns.values()} - {UPRIGHT}:
            column.not_turned = sum(turns.get(number, UPRIGHT) != UPRIGHT for number in column.numbers.tolist())
        for number, row in first_rows.items():
            header, where = self._folder.header(number), f"{self._folder.paths[number]} in row {row:,} of {name}"
            if isinstance(header, str):
                yield f"{where} {header}"
            elif (header.shape, header.dtype) != (array.shape, array.dtype):
                found, expected = (f"{list(one.shape)} of {one.dtype}" for one in (header, array))
                yield f"{where} is {found}, expected {expected} as the first image"
            elif turns[number] != (first := next(iter(turns.values()))):
                yield (
                    f"{where} has the orientation {turns[number]} in its EXIF metadata, expected {first} as the first image. "
                    "Turn the pixels, PIL.ImageOps.exif_transpose"
                )

    def _read(self, numbers: Sequence[int], max_bytes: int) -> list[bytes]:
        """Return the bytes of images, each at most `max_bytes`."""
        images = [b""] * len(numbers)

        def read_range(start: int, stop: int) -> None:
            for position in range(start, stop):
                if numbers[position] >= 0 and self._folder.is_inside(numbers[position]):
                    with self._folder.files[numbers[position]].open("rb") as stream:
                        images[position] = stream.read(max_bytes)

        try:
            run_on_all_cores(read_range, len(numbers), _FILES_PER_TASK)
        except OSError as error:
            raise ConversionError(self.name, [f"an image cannot be read: {error}"]) from error
        return images

    def __exit__(self, *details: object) -> None:
        self._file.__exit__(*details)


def _parts(text: str) -> tuple[str, str]:
    """Return the folder and the name of a path in the spelling of any system."""
    folder, _, name = text.replace("\\", "/").rpartition("/")
    return folder, name


def _depth(text: str, path: str) -> int:
    """Return how many names at the end of a path in a table and of the path of a file are equal."""
    pairs = zip(reversed(text.replace("\\", "/").split("/")), reversed(path.split("/")), strict=False)
    return next(
        (depth for depth, (one, other) in enumerate(pairs) if one != other), min(text.count("/"), path.count("/")) + 1
    )


def _read_header(file: Path) -> Header | str:
    try:
        with file.open("rb") as stream:
            size = os.fstat(stream.fileno()).st_size
            head = stream.read(_HEAD_BYTES)
            try:
                header = read_header(head)
            except ConversionError:  # long metadata precede the header of a JPEG
                head += stream.read(_METADATA_MAX_BYTES)
                header = read_header(head)
    except ConversionError as error:
        return "; ".join(error.problems)
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    max_bytes = _METADATA_MAX_BYTES + 2 * math.prod(header.shape) * header.dtype.itemsize
    if size > max_bytes:
        return f"has {size:,} bytes for {list(header.shape)} pixels, expected at most {max_bytes:,}"
    return replace(header, orientation=orientation(head)) if header.format == "jpeg" else header


def _root_of(file: Path, path: str) -> Path:
    """Return the folder of the dataset, of a file that is at a path in the folder."""
    depth = path.count("/")
    return file.parents[depth] if file.as_posix().endswith(f"/{path}") else file.parent
