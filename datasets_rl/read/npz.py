"""``.npz`` files: the arrays of a zip file, each read when it is asked for and not before."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from numpy.typing import NDArray

from datasets_rl.errors import ConversionError
from datasets_rl.read.npy import NpyReader
from datasets_rl.read.streams import listed, shown
from datasets_rl.read.zips import ZipReader

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["NpzFile"]


class NpzFile:
    """An open ``.npz`` file. A context manager.

    Opening it reads the directory and the headers of the arrays.

    Args:
        source: The file, or a stream that can seek.
        name: What it is called in errors; by default the file's name.

    Raises:
        ConversionError: If it is no zip file, or members are no arrays or claim more than they hold; all at once.
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
        """Raise ConversionError with all the names that the file does not have."""
        if missing := [name for name in names if name not in self.arrays]:
            there = listed([*self.arrays]) or "none"
            raise ConversionError(self.name, [f"it has no array {listed(missing)}; it has {there}"])

    def read(self, name: str) -> NDArray[Any]:
        """Read an array.

        Raises:
            ConversionError: If the file has none of that name, or it is cut, damaged, or holds Python objects.
        """
        return self.open(name).read()

    def blocks(self, name: str, rows: int) -> Iterator[NDArray[Any]]:
        """Yield an array in blocks of that many rows; several arrays may take turns.

        Raises:
            ConversionError: As `read` does.
        """
        return self.open(name).blocks(rows)

    def open(self, name: str) -> NpyReader:
        """Return an array, to be read from its first row on.

        Raises:
            ConversionError: If the file has none of that name.
        """
        self.require([name])
        return self._reader(f"{name}.npy" if f"{name}.npy" in self._zip.members else name)

    def _reader(self, member: str) -> NpyReader:
        return NpyReader(self._zip.open(member), f"{self.name}: {member}", most=self._zip.members[member].size)

    def _open(self) -> dict[str, NpyReader]:
        problems: list[str] = []
        found: dict[str, NpyReader] = {}
        for member in self._zip.members:
            try:
                found[member.removesuffix(".npy")] = self._reader(member)
            except ConversionError as error:
                problems.extend(f"{member}: {problem}" for problem in error.problems)
        if problems:
            raise ConversionError(self.name, shown(problems))
        return found
