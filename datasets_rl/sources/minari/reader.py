"""Minari's episodes as trajectories.

observations   o_0  o_1  o_2  ...  o_T-1  o_T        the state after the last step is always there
actions        a_0  a_1  a_2  ...  a_T-1
rewards        r_0  r_1  r_2  ...  r_T-1             what a_t led to
infos          i_0  i_1  i_2  ...  i_T-1  i_T        or T rows, i_1 ... i_T, where the reset gave none
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from datasets_rl.errors import ConversionError
from datasets_rl.format.schema import Column
from datasets_rl.sources.base import NO_TRANSITION, Decision, EpisodeReader, Selection
from datasets_rl.sources.minari.episodes import (
    Faults,
    Hdf5Episodes,
    Linked,
    RawEpisode,
    Stored,
    TableEpisodes,
    cleaned,
)
from datasets_rl.sources.minari.spaces import Leaf, document, leaves, read_space
from datasets_rl.sources.selection import read_numbers
from datasets_rl.ted.episode import Episode, TextStates
from datasets_rl.ted.keys import NEXT_REWARD, NEXT_TERMINATED, NEXT_TRUNCATED, Key, dotted

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["MinariReader"]

_BLOCK_BYTES = 8 << 20
_FLAGS = (NEXT_TERMINATED, NEXT_TRUNCATED)
_VERSIONS = frozenset({"0.4.0", "0.4.1", "0.4.2", "0.4.3", "0.5.0", "0.5.1", "0.5.2", "0.5.3", "0.5.4"})
_WIDER: Mapping[np.dtype[Any], np.dtype[Any]] = {
    np.dtype(np.uint16): np.dtype(np.int32),
    np.dtype(np.uint32): np.dtype(np.int64),
}
_METADATA = (
    "env_spec",
    "eval_env_spec",
    "observation_space",
    "action_space",
    "algorithm_name",
    "author",
    "author_email",
    "code_permalink",
    "description",
    "minari_version",
    "requirements",
    "ref_min_score",
    "ref_max_score",
    "num_episodes_average_score",
    "combined_datasets",
    "data_format",
    "jpeg_encoding",
)
_TEXTS = {
    "minari-n-plus-one": "an episode has one observation more than actions: that after the last step",
    **NO_TRANSITION,
    "info-without-reset": "episodes whose infos have no row for the reset: those of their first state are zeros",
    "end-without-flag": "episodes end without a flag: their last row was marked truncated",
    "flag-inside-episode": "rows inside an episode have an end flag: the trajectory ends there and goes on as another",
    "both-flags": "rows that are terminated and truncated keep both flags",
    "not-finite": "values that are NaN or infinite were kept",
    "jpeg": "values of images stored as JPEG, which is lossy, were decoded",
    "jpeg-of-symbols": "values stored as JPEG although their space is no image, as Minari 0.5.3 did: they are damaged",
    "widened": "unsigned integers of 16 and 32 bits became signed ones of 32 and 64 bits, which torch can gather",
    "flags-cast": "the files store flags as numbers, 0 or 1; they were turned into booleans",
    "unknown-minari-version": "the files are of a version of Minari that this reader does not know",
    "space-missing": "the metadata has no such space: what the values may be is not known",
}


class MinariReader(EpisodeReader):
    """Opened files of a shard.

    Args:
        what: The dataset, for messages.
        files: The files by path.
        metadata: The metadata, where it is in a file of its own, and what is wanted.

    Raises:
        ConversionError: If the files contradict the metadata or themselves; every fault that was found.
    """

    def __init__(self, what: str, files: Mapping[str, Path], metadata: Mapping[str, Any]) -> None:
        self._what = what
        self._selection = Selection(episodes=metadata.get("episodes", ""), keys=tuple(metadata.get("keys", ())))
        self._metadata = dict(metadata.get("metadata", {}))
        self._found: Counter[str] = Counter()
        self.decisions: list[Decision] = []
        self._episodes = self._open(files)
        try:
            self.steps = self._steps(metadata)
            self.metadata = {name: _plain(self._metadata[name]) for name in _METADATA if name in self._metadata}
            first = self._first()
            self._check_complete(first)
            steps = first.columns[NEXT_TERMINATED].length
            self.columns = [_column(key, stored, steps) for key, stored in first.columns.items()]
        except BaseException:
            self._episodes.close()
            raise
        self._wanted = self._selection.kept_keys([column.key for column in self.columns])
        self._by_key = {column.key: column for column in self.columns}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *details: object) -> None:
        self._episodes.close()

    def _open(self, files: Mapping[str, Path]) -> Hdf5Episodes | TableEpisodes:
        main = next((place for path, place in files.items() if path.endswith(".hdf5")), None)
        if main is None:
            return TableEpisodes(files, self._leaves_of(self._metadata), self._what)
        episodes = Hdf5Episodes(main, {})
        if not self._metadata:
            self._metadata = dict(episodes.attributes)
        try:
            episodes.leaves = self._leaves_of(self._metadata)
        except ConversionError:
            episodes.close()
            raise
        if not episodes.numbers:
            episodes.close()
            raise ConversionError(self._what, [f"{main.name} has no episode"])
        return episodes

    def _leaves_of(self, metadata: Mapping[str, Any]) -> dict[Key, Leaf]:
        faults: list[str] = []
        found: dict[Key, Leaf] = {}
        self._spaceless = [name for name in ("observation_space", "action_space") if name not in metadata]
        for name, root in (("observation_space", "observation"), ("action_space", "action")):
            space = read_space(metadata[name], name, faults) if name in metadata else None
            if space is not None:
                found.update({(root, *cleaned(leaf.names)): leaf for leaf in leaves(space)})
        if faults:
            raise ConversionError(self._what, faults)
        return found

    def _steps(self, metadata: Mapping[str, Any]) -> int | None:
        """Return how many steps the file says that it has, as files did before version 0.5."""
        if "metadata" in metadata:
            return None
        total, numbers = self._metadata.get("total_episodes"), self._episodes.numbers
        if isinstance(total, int) and total != len(numbers):
            raise ConversionError(self._what, [f"it has {len(numbers):,} episodes; its metadata says {total:,}"])
        said = self._metadata.get("total_steps")
        return int(said) if isinstance(said, int) and not self._selection.episodes else None

    def _check_complete(self, raw: RawEpisode) -> None:
        lacking = [dotted(key) for key in (NEXT_REWARD, *_FLAGS) if key not in raw.columns]
        if lacking:
            raise self._failed(raw.number, [f"it has no {name}" for name in lacking])

    def specs(self) -> Mapping[str, Any]:
        """Return what the spaces say of the fields that they speak of."""
        found = {}
        for column in self.columns:
            leaf = self._episodes.leaves.get(column.key)
            if leaf is not None and not column.text:
                spec = document(leaf)
                if (spec["dtype"], tuple(spec["shape"])) == (column.dtype.name, column.shape):
                    found[dotted(column.key)] = spec
        return found

    def episodes(self, part: Any = None) -> Iterator[Episode]:
        """Yield the episodes of these numbers; by default all that are wanted of the file."""
        self._found = Counter()
        numbers = self._episodes.numbers
        wanted = part if part is not None else [numbers[row] for row in self._rows(len(numbers))]
        for number in wanted:
            try:
                yield from self._pieces(self._read(number))
            except Faults as error:
                raise self._failed(number, error.args) from None
            except ConversionError as error:
                raise self._failed(number, error.problems) from None
        self._found["unknown-minari-version"] += int(self._metadata.get("minari_version") not in _VERSIONS)
        self._found["space-missing"] += len(self._spaceless)
        self.decisions = [Decision(rule, text, self._found[rule]) for rule, text in _TEXTS.items() if self._found[rule]]

    def _first(self) -> RawEpisode:
        """Return the first episode that has a step, and else the first one: one without a step may not tell its types."""
        numbers = self._episodes.numbers
        opened = (self._read(number) for number in numbers)
        return next((raw for raw in opened if not _is_empty(raw)), None) or self._read(numbers[0])

    def _rows(self, total: int) -> list[int]:
        return read_numbers(self._selection.episodes, total)

    def _read(self, number: int) -> RawEpisode:
        try:
            return self._episodes.read(number)
        except Faults as error:
            failed = self._failed(number, error.args)
            parts = self._metadata.get("combined_datasets", ())
            if isinstance(error, Linked) and len(parts):
                # Minari copies episodes when it combines datasets; its first versions made links.
                failed.hint = (
                    f"download what it was combined of: rlds download {' '.join(f'minari/{one}' for one in parts)}"
                )
            raise failed from None

    def _failed(self, number: int, problems: Any) -> ConversionError:
        start = f"episode {number}: "
        return ConversionError(self._what, [one if one.startswith(start) else start + one for one in problems])

    def _pieces(self, raw: RawEpisode) -> Iterator[Episode]:
        if _is_empty(raw):
            self._found["no-transition"] += 1
            return
        steps = self._checked(raw)
        columns = {key: stored for key, stored in raw.columns.items() if key in self._wanted}
        flags = [self._flag(columns[key], key) for key in _FLAGS]
        ends = flags[0] | flags[1]
        self._found["minari-n-plus-one"] += 1
        self._found["both-flags"] += int(np.count_nonzero(flags[0] & flags[1]))
        self._found["end-without-flag"] += int(not ends[-1])
        self._found["flag-inside-episode"] += int(np.count_nonzero(ends[:-1]))
        self._found["info-without-reset"] += any(self._lacks_reset(key, one, steps) for key, one in columns.items())
        if not ends[-1]:
            flags[1] = flags[1].copy()
            flags[1][-1] = ends[-1] = True
        row_bytes = sum(stored.row_bytes for stored in columns.values())
        block = max(1, _BLOCK_BYTES // max(row_bytes, 1))
        metadata = {
            "source": np.int64(raw.number),
            "seed": np.uint64(0 if raw.seed is None else raw.seed % (1 << 64)),
            "seeded": raw.seed is not None,
        }
        start = 0
        for stop in (np.flatnonzero(ends) + 1).tolist():
            for first in range(start, stop, block):
                last = min(first + block, stop)
                yield self._piece(columns, flags, first, last, steps, metadata, continues=last < stop)
            start = stop

    def _piece(
        self,
        columns: Mapping[Key, Stored],
        flags: list[NDArray[np.bool_]],
        first: int,
        last: int,
        steps: int,
        metadata: Mapping[str, Any],
        *,
        continues: bool,
    ) -> Episode:
        given: dict[Key, Any] = {}
        states: dict[Key, Any] = {}
        for key, stored in columns.items():
            column = self._by_key[key]
            if key in _FLAGS:
                given[key] = flags[_FLAGS.index(key)][first:last, None]
            elif column.shared:
                late = self._lacks_reset(key, stored, steps)
                states[key] = self._values(column, stored, first, last if continues else last + 1, late=late)
            else:
                values = self._values(column, stored, first, last)
                given[key] = values[:, None] if key == NEXT_REWARD else values
        return Episode(given, states, continues, metadata)

    def _values(self, column: Column, stored: Stored, first: int, last: int, *, late: bool = False) -> Any:
        """Read rows; where the row of the reset is `late`, which is missing, zeros stand for it."""
        if late:
            values = stored.read(max(first - 1, 0), last - 1)
            values = values if first else _after_zero(values)
        else:
            values = stored.read(first, last)
        if isinstance(values, TextStates):
            return values
        if stored.kind == "jpeg":
            leaf = self._episodes.leaves.get(column.key)
            self._found["jpeg" if leaf is None or leaf.image else "jpeg-of-symbols"] += last - first
        if values.dtype != column.dtype:
            self._found["widened"] += last - first
            values = values.astype(column.dtype)
        if values.dtype.kind == "f" and not np.isfinite(values).all():
            self._found["not-finite"] += int((~np.isfinite(values)).sum())
        return values

    def _flag(self, stored: Stored, key: Key) -> NDArray[np.bool_]:
        values = stored.read(0, stored.length)
        if isinstance(values, TextStates):
            raise Faults(f"{dotted(key)} holds texts; expected flags")
        values = values.reshape(-1)
        if values.dtype == np.bool_:
            return values
        if not np.isin(values, (0, 1)).all():
            raise Faults(f"{dotted(key)} holds other numbers than 0 and 1")
        self._found["flags-cast"] += len(values)
        return np.asarray(values == 1)

    @staticmethod
    def _lacks_reset(key: Key, stored: Stored, steps: int) -> bool:
        return key[0] == "info" and stored.length == steps

    def _checked(self, raw: RawEpisode) -> int:
        """Return how many steps an episode has, once its columns agree with each other and with the first episode's."""
        lacking = [dotted(key) for key in self._by_key if key not in raw.columns]
        more = [dotted(key) for key in raw.columns if key not in self._by_key]
        if lacking or more:
            faults = [f"it has no {name}, as the first episode has" for name in lacking]
            raise Faults(*faults, *(f"it has {name}, which the first episode has not" for name in more))
        steps = raw.columns[NEXT_TERMINATED].length
        faults = []
        if raw.steps is not None and raw.steps != steps:
            faults.append(f"it has {steps:,} steps; its metadata says {raw.steps:,}")
        for key, stored in raw.columns.items():
            wanted = self._by_key[key]
            lengths = {steps + 1} if wanted.shared else {steps}
            lengths |= {steps} if key[0] == "info" else set()
            if stored.length not in lengths:
                faults.append(f"{dotted(key)} has {stored.length:,} rows for {steps:,} steps")
            shape, dtype = (stored.shape, _WIDER.get(stored.dtype, stored.dtype))
            if not _fits(key, shape, dtype, wanted):
                faults.append(f"{dotted(key)} is {dtype.name} {list(shape)}; in the first episode {list(wanted.shape)}")
        if faults:
            raise Faults(*faults)
        return steps


def _is_empty(raw: RawEpisode) -> bool:
    """Say whether an episode has no step, by its flags and by what its metadata says, if they do."""
    flags = raw.columns.get(NEXT_TERMINATED)
    return flags is not None and not flags.length and not raw.steps


def _fits(key: Key, shape: tuple[int, ...], dtype: np.dtype[Any], wanted: Column) -> bool:
    if key in _FLAGS:
        return True
    return dtype == wanted.dtype and (shape == wanted.shape or (key == NEXT_REWARD and shape in {(), (1,)}))


def _column(key: Key, stored: Stored, steps: int) -> Column:
    if key in _FLAGS:
        return Column(key, np.dtype(np.bool_), (1,))
    dtype = _WIDER.get(stored.dtype, stored.dtype)
    if key == NEXT_REWARD:
        return Column(key, dtype, (1,))
    # Old files have further groups, as `state`: states, if they have a row more than there are actions.
    shared = key[0] in {"observation", "info"} or stored.length == steps + 1
    return Column(key, dtype, stored.shape, shared=shared, text=stored.kind == "text")


def _after_zero(values: NDArray[Any] | TextStates) -> NDArray[Any] | TextStates:
    if isinstance(values, TextStates):
        return TextStates(np.concatenate([[0], values.codes + 1]).astype(np.int32), ("", *values.vocabulary))
    return np.concatenate([np.zeros((1, *values.shape[1:]), values.dtype), values])


def _plain(value: Any) -> str | float | bool:
    """Write a value of the metadata as the manifest can hold it."""
    if isinstance(value, list):
        return "; ".join(str(one) for one in value)
    return value if isinstance(value, (str, int, float, bool)) else str(value)
