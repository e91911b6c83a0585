"""Reader of ``.npz`` files: the arrays of a zip file, each of which is read only on request."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from numpy.typing import NDArray
from typing_extensions import Self

from datasets_rl.errors import ConversionError, join_names
from datasets_rl.read.npy import NpyReader
from datasets_rl.read.streams import ITEMS_MAX, first_problems, refuse
from datasets_rl.read.zips import ZipReader


class NpzFile:
    """Open ``.npz`` file. A context manager.

    Opening it reads the directory and the headers of the arrays.

    Args:
        source: The file, or a seekable stream.
        name: Name of the file in errors, by default the name in the path.

    Raises:
        ConversionError: If the file is not a zip file, or members are not arrays or declare more data than exists.
            The error names all such members.
    """

    def __init__(self, source: Path | str | BinaryIO, name: str = "") -> None:
        self._zip = ZipReader(source, name)
        self.name = self._zip.name
        try:
            self.arrays: Mapping[str, NpyReader] = self._open()
        except BaseException:
            self._zip.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *details: object) -> None:
        self._zip.close()

    def require(self, names: Iterable[str]) -> None:
        """Raise a ConversionError that lists the missing arrays, if there are any."""
        if missing := [name for name in names if name not in self.arrays]:
            present = join_names([*self.arrays], ITEMS_MAX) or "none"
            raise ConversionError(self.name, [f"it has no array {join_names(missing, ITEMS_MAX)}, only {present}"])

    def read(self, name: str) -> NDArray[Any]:
        """Read an array.

        Raises:
            ConversionError: If the file has no array of that name, or the array is truncated, damaged, or has Python objects.
        """
        return self.open(name).read()

    def read_objects(self, name: str) -> Any:
        """Read an array of Python objects, as `datasets_rl.read.pickles.load_npy` does.

        Raises:
            ConversionError: If the file has no array of that name, or the objects are not plain data.
        """
        from datasets_rl.read.pickles import load_npy

        self.require([name])
        member = f"{name}.npy" if f"{name}.npy" in self._zip.members else name
        size = self._zip.members[member].size
        return load_npy(self._zip.open(member), f"{self.name}: {member}", most=size)

    def blocks(self, name: str, rows: int) -> Iterator[NDArray[Any]]:
        """Yield an array in blocks of `rows`. The blocks of several arrays may be read alternately.

        Raises:
            ConversionError: For the reasons of `read`.
        """
        return self.open(name).blocks(rows)

    def open(self, name: str) -> NpyReader:
        """Return a reader of an array, at the first row.

        Raises:
            ConversionError: If the file has no array of that name.
        """
        self.require([name])
        return self._reader(f"{name}.npy" if f"{name}.npy" in self._zip.members else name)

    def _reader(self, member: str) -> NpyReader:
        return NpyReader(self._zip.open(member), f"{self.name}: {member}", most=self._zip.members[member].size)

    def _open(self) -> dict[str, NpyReader]:
        problems: list[str] = []
        arrays: dict[str, NpyReader] = {}
        for member in self._zip.members:
            try:
                arrays[member.removesuffix(".npy")] = self._reader(member)
            except ConversionError as error:
                problems.extend(f"{member}: {problem}" for problem in error.problems)
        refuse(self.name, first_problems(problems))
        return arrays
