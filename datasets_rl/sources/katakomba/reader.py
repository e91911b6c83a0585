"""Reader of Katakomba's files: a group for each game, whose attributes are those of the game.

key press     0     1     2    ...   T-1
tty_*        o_0   o_1   o_2   ...  o_T-1      the screen at which the key was pressed; the one after the last is unknown
actions      a_0   a_1   a_2   ...  a_T-1
rewards      r_0   r_1   r_2   ...  r_T-2      the change of the score by a_t; the last one repeats r_T-2
dones         0     0     0    ...    1
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from datasets_rl.errors import ConversionError
from datasets_rl.format.schema import Column
from datasets_rl.read.hdf5 import Hdf5Array, Hdf5File
from datasets_rl.read.streams import first_problems
from datasets_rl.sources.base import NO_TRANSITION, EpisodeReader
from datasets_rl.sources.rows import rows_in_chunk
from datasets_rl.sources.values import WIDENED, flag_problems
from datasets_rl.ted.episode import Episode
from datasets_rl.ted.keys import ACTION, NEXT_REWARD, NEXT_TERMINATED, NEXT_TRUNCATED, OBSERVATION, Key

_FLAG = np.dtype(np.bool_)
_CHARS, _COLORS, _CURSOR = ((*OBSERVATION, f"tty_{part}") for part in ("chars", "colors", "cursor"))
_ARRAYS: Mapping[str, Key] = {
    "tty_chars": _CHARS,
    "tty_colors": _COLORS,
    "tty_cursor": _CURSOR,
    "actions": ACTION,
    "rewards": NEXT_REWARD,
    "dones": NEXT_TERMINATED,
}
_SCREEN_AXES = 3
_SINGLE = ("actions", "rewards", "dones")
_KIND = {"tty_chars": "u", "tty_colors": "iu", "tty_cursor": "iu", "actions": "iu", "rewards": "iuf", "dones": "biuf"}


class KatakombaReader(EpisodeReader):
    """Reader of a file; a part is the number of a piece of its games, and the number of pieces.

    Args:
        dataset_id: Id of the dataset, for messages.
        path: The file.

    Raises:
        ConversionError: If the file is damaged or has no game, or its first game lacks an array; the error names every
            problem.
    """

    rules: Mapping[str, str] = {
        "same-row": "row i of a game is transition i: the screen at which a key was pressed, the key, and the change of the "
        "score by it",
        "last-reward-repeated": "the reward of the last step of a game is not known: the file repeats the one before it, "
        "which was kept",
        "final-observation-unknown": "the file does not have the screen after the last key press of a game",
        "end-without-flag": "games whose last step is not done: it was marked truncated",
        "flags-cast": "dones are numbers, 0 or 1, which were converted to booleans",
        "unwritten-chunks": "chunks that were never written to the file have the fill value of their array",
        **NO_TRANSITION,
    }

    def __init__(self, dataset_id: str, path: Path) -> None:
        self._dataset_id = dataset_id
        self._path = path
        with Hdf5File(path, threads=1, group=None) as file:
            members = file.members("")
            self._games = [name for name, is_group in members.items() if is_group]
            if others := [name for name, is_group in members.items() if not is_group]:
                raise ConversionError(dataset_id, [f"{others[0]} is an array; expected a group for each game"])
            if not self._games:
                raise ConversionError(dataset_id, ["it has no game; expected a group for each game"])
            file.enter(self._games[0])
            first = self._arrays(file, self._games[0])
            if problems := [*_problems(self._games[0], first)]:
                raise ConversionError(dataset_id, first_problems(problems))
            self._first = {name: (array.dtype, array.shape[1:]) for name, array in first.items()}
            found = file.attributes(self._games[0])
            self._numbers = {
                name: type(value) for name, value in found.items() if isinstance(value, (bool, int, float))
            }
            texts = [name for name, value in found.items() if isinstance(value, str)]
            self.metadata = {
                f"games/{name.replace('.', '_').replace('/', '_')}": np.array(
                    [str(file.attribute(game, name) or "") for game in self._games]
                )
                for name in texts
            }
        self.columns = [self._column(name, key) for name, key in _ARRAYS.items()]
        self.columns += [Column(NEXT_TRUNCATED, _FLAG, (1,))]

    @override
    def episodes(self, part: Any = None) -> Iterator[Episode]:
        piece, pieces = part or (0, 1)
        # Rounded up, so that the first piece has a game, by whose screens their form is chosen.
        first, last = (-(-len(self._games) * number // pieces) for number in (piece, piece + 1))
        self.counts.clear()
        problems: list[str] = []
        with Hdf5File(self._path, group=None) as file:
            for game in self._games[first:last]:
                file.enter(game)
                self.counts["unwritten-chunks"] += file.unwritten
                arrays = self._arrays(file, game)
                if found := [*_problems(game, arrays)] or [*self._differences(game, arrays)]:
                    problems += found
                    continue
                try:
                    yield from self._read_game(file, game, arrays)
                except ConversionError as error:
                    problems += error.problems
        if problems:
            raise ConversionError(self._dataset_id, first_problems(problems))

    @staticmethod
    def _arrays(file: Hdf5File, game: str) -> dict[str, Hdf5Array]:
        """Return the arrays of the entered game, by their names in its group."""
        prefix = f"{game}/"
        return {name.removeprefix(prefix): array for name, array in file.arrays.items()}

    def _column(self, name: str, key: Key) -> Column:
        dtype, shape = self._first[name]
        if name in _SINGLE:
            return Column(key, _FLAG if name == "dones" else WIDENED.get(dtype, dtype), (1,))
        if key == _CURSOR:
            return Column(key, WIDENED.get(dtype, dtype), shape, shared=True)
        # A screen is a small image: most of it is empty, and one of the next looks nearly the same.
        return Column(key, np.dtype(np.uint8), shape, shared=True, form="compressed")

    def _differences(self, game: str, arrays: Mapping[str, Hdf5Array]) -> Iterator[str]:
        """Yield how the arrays of a game differ from those of the first game."""
        for name, (dtype, shape) in self._first.items():
            # Flags of any dtype become booleans.
            if arrays[name].shape[1:] != shape or (arrays[name].dtype != dtype and name != "dones"):
                expected = f"{dtype} {list(shape)}"
                yield f"game {game}: {_described(name, arrays[name])} per row; in the first game {expected}"

    def _read_game(self, file: Hdf5File, game: str, arrays: Mapping[str, Hdf5Array]) -> Iterator[Episode]:
        rows = arrays["dones"].shape[0]
        if not rows:
            self.counts["no-transition"] += 1
            return
        ends = self._read_ends(file, game, rows)
        metadata = self._read_metadata(file, game)
        self.counts["same-row"] += rows
        self.counts["last-reward-repeated"] += 1
        self.counts["final-observation-unknown"] += 1
        self.counts["end-without-flag"] += int(not ends[-1])
        self.counts["flags-cast"] += arrays["dones"].dtype.kind != "b"
        names = [name for name, key in _ARRAYS.items() if key in self.kept and name != "dones"]
        row_bytes = sum(arrays[name].row_bytes for name in names)
        truncated = np.zeros((rows, 1), np.bool_)
        truncated[-1] = not ends[-1]
        columns = {column.key: column for column in self.columns}
        for block in file.blocks([arrays[name].name for name in names], rows=rows_in_chunk(row_bytes)):
            now = slice(block.start, block.stop)
            steps: dict[Key, Any] = {NEXT_TERMINATED: ends[now, None], NEXT_TRUNCATED: truncated[now]}
            states: dict[Key, Any] = {}
            for name in names:
                column = columns[_ARRAYS[name]]
                values: NDArray[Any] = block.columns[arrays[name].name]
                if name == "tty_colors" and values.dtype.kind == "i" and (values < 0).any():
                    row = block.start + int(np.flatnonzero((values < 0).reshape(len(values), -1).any(axis=1))[0])
                    raise ConversionError(self._dataset_id, [f"game {game}: tty_colors of row {row:,} is negative"])
                # Compressed columns hold bytes; colors are 0 to 15 in either dtype.
                values = values.astype(column.dtype, copy=False).reshape(-1, *column.shape)
                (states if column.shared else steps)[column.key] = values
            yield Episode(steps, states, block.stop < rows, metadata)

    def _read_ends(self, file: Hdf5File, game: str, rows: int) -> NDArray[np.bool_]:
        """Return `dones`, [T].

        Raises:
            ConversionError: If it has other values than 0 and 1, or is set before the last row.
        """
        dones = file.read(f"{game}/dones").reshape(-1)
        if problems := flag_problems(f"game {game}: dones", dones):
            raise ConversionError(self._dataset_id, problems)
        if len(early := np.flatnonzero(dones[:-1])):
            problem = f"game {game}: dones is set in row {early[0]:,}; expected it in the last row, {rows - 1:,}, alone"
            raise ConversionError(self._dataset_id, [problem])
        return np.asarray(dones == 1)

    def _read_metadata(self, file: Hdf5File, game: str) -> dict[str, int | float | bool]:
        """Return the number of a game and its numeric attributes.

        Raises:
            ConversionError: If it does not have those of the first game.
        """
        metadata: dict[str, int | float | bool] = {"game": int(game)} if game.isdecimal() else {}
        problems = []
        for name, kind in self._numbers.items():
            value = file.attribute(game, name)
            if isinstance(value, (bool, int, float)) and np.can_cast(type(value), kind):
                metadata[name] = kind(value)
            else:
                problems.append(
                    f"game {game}: its attribute {name} is {value!r:.40}; expected a number, as of the first game"
                )
        if problems:
            raise ConversionError(self._dataset_id, problems)
        return metadata


def _problems(game: str, arrays: Mapping[str, Hdf5Array]) -> Iterator[str]:
    """Yield what is wrong with the names, shapes and dtypes of the arrays of a game."""
    if missing := [name for name in _ARRAYS if name not in arrays]:
        yield f"game {game} has no array {', '.join(missing)}; it has {', '.join(arrays) or 'none'}"
        return
    rows = arrays["dones"].shape[:1]
    for name, kinds in _KIND.items():
        array = arrays[name]
        axes = _SCREEN_AXES if name in {"tty_chars", "tty_colors"} else 2
        if array.dtype.kind not in kinds or (axes == _SCREEN_AXES and array.dtype.itemsize != 1):
            yield f"game {game}: {_described(name, array)}; expected {'bytes' if axes == _SCREEN_AXES else 'numbers'}"
        elif array.shape[:1] != rows or not rows:
            yield f"game {game}: {_described(name, array)}; dones is {list(arrays['dones'].shape)}"
        elif name in _SINGLE and prod(array.shape[1:]) != 1:
            yield f"game {game}: {_described(name, array)}; expected one value for each row"
        elif name not in _SINGLE and len(array.shape) != axes:
            yield f"game {game}: {_described(name, array)}; expected {axes} axes"


def _described(name: str, array: Hdf5Array) -> str:
    return f"{name} is {array.dtype} {list(array.shape)}"
