"""Reader of Katakomba's files: a group for each game, with the attributes of the game.

key press     0     1     2    ...   T-1
tty_*        o_0   o_1   o_2   ...  o_T-1      the screen at which the key was pressed. o_T is unknown
actions      a_0   a_1   a_2   ...  a_T-1
rewards      r_0   r_1   r_2   ...  r_T-2      the change of the score by a_t. The last reward repeats r_T-2
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
from datasets_rl.read.hdf5 import Hdf5File
from datasets_rl.read.streams import refuse
from datasets_rl.sources.base import NO_TRANSITION
from datasets_rl.sources.flat.arrays import ArrayFile, Hdf5Group
from datasets_rl.sources.flat.ends import Ends
from datasets_rl.sources.flat.layout import Field, Layout
from datasets_rl.sources.flat.plan import Plan
from datasets_rl.sources.flat.reader import Block, FlatReader
from datasets_rl.ted.episode import Episode
from datasets_rl.ted.episode_batch import EpisodeBatch
from datasets_rl.ted.keys import ACTION, NEXT_REWARD, NEXT_TERMINATED, OBSERVATION

_CHARS, _COLORS, _CURSOR = ((*OBSERVATION, f"tty_{part}") for part in ("chars", "colors", "cursor"))
_LAYOUT = Layout(
    (
        # A screen is a small image: most of it is empty, and the next screen looks nearly the same.
        Field(_CHARS, "tty_chars", form="compressed"),
        Field(_COLORS, "tty_colors", form="compressed"),
        Field(_CURSOR, "tty_cursor"),
        Field(ACTION, "actions"),
        Field(NEXT_REWARD, "rewards"),
        Field(NEXT_TERMINATED, "dones"),
    ),
    alignment="same-row",
    by="file",
    vectors=True,
    unit="game",
)
_KINDS = {"tty_chars": "u", "tty_colors": "iu", "tty_cursor": "iu", "actions": "iu"}
_AXES = {"tty_chars": 2, "tty_colors": 2, "tty_cursor": 1}
"""Number of axes of a row."""


class KatakombaReader(FlatReader):
    """Reader of a file. A part is the number of a piece of its games, and the number of pieces.

    Args:
        dataset_id: Id of the dataset, for messages.
        files: The file, by path.
        facts: Nothing that is needed.

    Raises:
        ConversionError: If the file is damaged or has no game, or the first game lacks an array. The error names every
            problem.
    """

    rules: Mapping[str, str] = {
        "same-row": "row i of a game is transition i: the screen at which a key was pressed, the key, and the change of the "
        "score by the key",
        "last-reward-repeated": "the reward of the last step of a game is not known: the file repeats the reward before it, "
        "which was kept",
        "final-observation-unknown": "the file does not have the screen after the last key press of a game",
        "end-without-flag": "games end without done: the last step of such a game was marked truncated",
        "flags-cast": "dones are numbers, 0 or 1, which were converted to booleans",
        "unwritten-chunks": "chunks that were never written to the file have the fill value of the array",
        **NO_TRANSITION,
    }

    def __init__(self, dataset_id: str, files: Mapping[str, Path], facts: Mapping[str, Any]) -> None:
        (path,) = map(Path, files.values())
        self._file = Hdf5File(path, group=None)
        try:
            self._games = _games_of(self._file, dataset_id)
            stated = self._file.attributes(self._games[0])
            self._numbers = {
                name: type(value) for name, value in stated.items() if isinstance(value, (bool, int, float))
            }
            texts = [name for name, value in stated.items() if isinstance(value, str)]
            self.metadata = {
                f"games/{name.replace('.', '_').replace('/', '_')}": np.array(
                    [str(self._file.attribute(game, name) or "") for game in self._games]
                )
                for name in texts
            }
            super().__init__(dataset_id, _LAYOUT, "hdf5", dict.fromkeys(self._games, path), facts)
        except BaseException:
            self._file.close()
            raise

    def __exit__(self, *details: object) -> None:
        self._file.close()

    @override
    def episodes(self, part: Any = None) -> Iterator[Episode | EpisodeBatch]:
        piece, pieces = part or (0, 1)
        # Rounded up, so that the first piece has a game. The screens of this game decide the form of all screens.
        first, last = (-(-len(self._games) * number // pieces) for number in (piece, piece + 1))
        self.counts.clear()
        if games := [(self._games[number], number) for number in range(first, last)]:
            yield from super().episodes(games)

    @override
    def open_file(self, name: str) -> ArrayFile:
        return Hdf5Group(self._file, name, f"game {name}")

    @override
    def plan(self, file: ArrayFile) -> Plan:
        refuse(file.name, _problems(file))
        return super().plan(file)

    @override
    def count_file(self, file: ArrayFile, plan: Plan, ends: Ends) -> None:
        self.counts.update(ends.found)
        self.counts["unwritten-chunks"] += file.unwritten
        self.counts["last-reward-repeated"] += 1
        self.counts["flags-cast"] += file.arrays["dones"].dtype.kind != "b"
        self._are_colors_signed = file.arrays["tty_colors"].dtype.kind == "i"

    @override
    def before(self, block: Block, ends: Ends, number: int) -> Mapping[str, NDArray[Any]]:
        colors = block.states.get(_COLORS, np.empty((0, 1, 1), np.uint8))
        # Compressed columns hold bytes: a negative color is a large one.
        if self._are_colors_signed and (colors > np.iinfo(np.int8).max).any():
            row = block.start + int(np.flatnonzero((colors > np.iinfo(np.int8).max).any(axis=(1, 2)))[0])
            raise ConversionError(block.name, [f"tty_colors of row {row:,} is negative"])
        if not len(block.episodes):
            return {}
        return {name: np.array([value]) for name, value in self._read_metadata(block.name, self._games[number]).items()}

    def _read_metadata(self, name: str, game: str) -> dict[str, int | float | bool]:
        """Return the number of a game and the numeric attributes of the game.

        Raises:
            ConversionError: If the game lacks a numeric attribute of the first game.
        """
        metadata: dict[str, int | float | bool] = {"game": int(game)} if game.isdecimal() else {}
        problems = []
        for field, kind in self._numbers.items():
            value = self._file.attribute(game, field)
            if isinstance(value, (bool, int, float)) and np.can_cast(type(value), kind):
                metadata[field] = kind(value)
            else:
                problems.append(f"the attribute {field} is {value!r:.40}, expected a number, as in the first game")
        refuse(name, problems)
        return metadata


def _games_of(file: Hdf5File, dataset_id: str) -> list[str]:
    """Return the names of the games of a file."""
    members = file.members("")
    if others := [name for name, is_group in members.items() if not is_group]:
        raise ConversionError(dataset_id, [f"{others[0]} is an array, expected a group for each game"])
    if not members:
        raise ConversionError(dataset_id, ["it has no game, expected a group for each game"])
    return [*members]


def _problems(file: ArrayFile) -> Iterator[str]:
    """Yield what is wrong with the arrays of a game."""
    for name, kinds in _KINDS.items():
        if (array := file.arrays.get(name)) is None:
            continue
        axes = _AXES.get(name, 0)
        if array.dtype.kind not in kinds or (axes > 1 and array.dtype.itemsize != 1):
            yield f"{name} is {array}, expected {'bytes' if axes > 1 else 'integers'}"
        elif axes and len(array.shape) != axes:
            yield f"{name} is {array}, expected {axes + 1} axes"
        elif not axes and prod(array.shape) != 1:
            yield f"{name} is {array}, expected one value for each row"
