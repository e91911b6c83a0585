"""Folders of npy files, which are the arrays of the same rows: ``observations.npy``, ``actions.npy``, ..."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from typing_extensions import override

from datasets_rl.errors import ConversionError, join_names
from datasets_rl.read.npy import NpyReader
from datasets_rl.read.streams import first_problems
from datasets_rl.sources.flat.arrays import TEXT, Array, ArrayFile, Rows
from datasets_rl.sources.flat.names import usual_keys

_EPISODES = (
    "make arrays of all rows where the files were made: import numpy; "
    "arrays = {{name: numpy.load(name + '.npy', allow_pickle=True) for name in {0!r}}}; "
    "numpy.savez('episodes.npz', episode_lengths=[len(episode) for episode in arrays[{1!r}]], "
    "**{{name: numpy.concatenate(list(values)) for name, values in arrays.items()}})"
)


class NpyFolder(ArrayFile):
    """Open folder of npy files.

    Args:
        path: Any npy file of the folder.
        name: Not used. Errors have the name of the folder.

    Raises:
        ConversionError: If a file is damaged, or a file with a usual name has an array for each episode.
    """

    def __init__(self, path: Path, name: str) -> None:
        del name
        self._folder, self.name = path.parent, path.parent.name
        self._paths = {file.stem: file for file in sorted(self._folder.iterdir()) if _is_npy(file)}
        problems, objects, found, self.scalars = [], [], {}, {}
        for array, file in self._paths.items():
            try:
                with file.open("rb") as stream:
                    reader = self._reader(array, stream)
                    if reader.pickled:
                        objects.append(array)
                    elif not reader.shape and reader.dtype.kind in "biuf":
                        self.scalars[array] = reader.read()
            except ConversionError as error:
                problems += [f"{file.name}: {problem}" for problem in error.problems]
                continue
            if reader.shape:
                text = reader.dtype.kind == "U"
                dtype = TEXT if text else reader.dtype.newbyteorder("=")
                found[array] = Array(reader.shape[0], reader.shape[1:], dtype, text=text)
        if problems:
            raise ConversionError(self.name, first_problems(problems))
        self.arrays = found
        if wanted := [*usual_keys(objects)]:
            problem = f"{join_names(wanted)} {'has' if len(wanted) == 1 else 'have'} Python objects"
            rows = next((one for one, key in usual_keys(wanted).items() if key[0] == "action"), wanted[0])
            hint = _EPISODES.format(tuple(usual_keys(self._paths)), rows)
            raise ConversionError(self.name, [f"{problem}, expected arrays with the rows of all episodes"], hint=hint)

    @override
    def blocks(self, name: str, rows: int) -> Iterator[Rows]:
        array = self.arrays[name]
        with self._paths[name].open("rb") as stream:
            reader = self._reader(name, stream)
            for block in reader.blocks(rows):
                yield block.tolist() if array.text else block

    def _reader(self, name: str, stream: object) -> NpyReader:
        path = self._paths[name]
        return NpyReader(stream, f"{self.name}: {path.name}", most=path.stat().st_size)  # type: ignore[arg-type]

    def __exit__(self, *details: object) -> None: ...


def _is_npy(path: Path) -> bool:
    return path.suffix.lower() == ".npy" and path.name[0] != "." and path.is_file()
