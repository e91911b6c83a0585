"""What ``local`` reads from files of the user, before anything is stored: the evidence, and the facts of a whole pass."""

from __future__ import annotations

import tempfile
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from datasets_rl.disk import expand_home, real_path
from datasets_rl.errors import ConversionError, InvalidArgumentError
from datasets_rl.fetch.asset import Asset, Folder
from datasets_rl.fetch.schemes import local_path
from datasets_rl.fetch.upstream import Upstream
from datasets_rl.format.schema import Column
from datasets_rl.settings import Settings
from datasets_rl.sources.base import Decision, Entry, Listing, Selection, Source
from datasets_rl.sources.flat.arrays import Array, ArrayFile
from datasets_rl.sources.flat.folders import data_folders, shown_path
from datasets_rl.sources.flat.measured import measure
from datasets_rl.sources.flat.plan import Plan, is_empty
from datasets_rl.sources.flat.reader import FlatReader
from datasets_rl.sources.local import SOURCE, data_assets
from datasets_rl.sources.local.description import FILE
from datasets_rl.sources.local.reader import LocalReader
from datasets_rl.sources.local.template import Draft, draft
from datasets_rl.ted.episode import Episode, StoredImages, TextStates
from datasets_rl.ted.episode_batch import EpisodeBatch
from datasets_rl.ted.keys import NEXT, dotted_name, is_observation

_SHOWN_ROWS = 2
"""Number of first rows and of last rows of an episode."""
_SHOWN_ELEMENTS = 64
"""Maximum number of elements of a value that is shown. Of larger values, dtype and shape are shown."""
_LARGEST = 3
_SAMPLE = 1 << 17
"""Maximum number of differences of which the median is taken."""


@dataclass(frozen=True, slots=True)
class ArrayUse:
    """Array of the first file, and the field that the array is read as."""

    key: str
    """Dotted key of the field; empty for an array that is left out."""
    array: str
    """Name of the array; empty for a constant."""
    dtype: str
    shape: tuple[int, ...]
    """Shape of the array, with the rows of all episodes of the first file."""


@dataclass(frozen=True, slots=True)
class FilesDescription:
    """How files are read: as their ``dataset.toml`` describes them, or as the evidence in the first file shows."""

    path: Path
    description: Path | None
    """The ``dataset.toml``, or None if there is none."""
    files: int
    first: str
    """Path of the first file with a row, below `path`."""
    fields: tuple[ArrayUse, ...]
    by: str
    """How episodes end, one of `layout.WAYS`."""
    arrays: tuple[str, ...]
    """The arrays that mark the ends of episodes; none where the structure of the file separates them."""
    episodes: int | None
    """Number of episodes of the first file; None if only a pass over the file shows the number."""
    left_out: tuple[ArrayUse, ...]
    measured: tuple[str, ...] = ()
    """Which rows of the observations the next observations and the states match, a sentence for each array."""


@dataclass(frozen=True, slots=True)
class ShownRow:
    """Row t of an episode: the state before action t, and the values of the step, by dotted key.

    Of images and other large values, dtype and shape are shown.
    """

    step: int
    values: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ShownEpisode:
    """First and last rows of an episode."""

    number: int
    steps: int
    rows: tuple[ShownRow, ...]
    final: Mapping[str, Any] | None
    """The state after the last action, or None if the state is unknown."""


@dataclass(frozen=True, slots=True)
class Jump:
    """Difference between the observations before and after a step."""

    difference: float
    """Euclidean distance."""
    episode: int
    step: int
    file: str = ""
    """Path of the file of the episode."""


@dataclass(frozen=True, slots=True)
class Jumps:
    """Differences of consecutive observations within episodes. At a wrong boundary, the difference is a large one."""

    key: str
    median: float | None
    """Median of a regular sample of the differences; None without a finite difference."""
    largest: tuple[Jump, ...]


@dataclass(frozen=True, slots=True)
class FilesCheck:
    """What a conversion of files would store."""

    description: FilesDescription
    steps: int
    episodes: int
    lengths: Mapping[str, float]
    """``min``, ``median`` and ``max`` of the number of steps of an episode."""
    columns: tuple[Column, ...]
    first: ShownEpisode
    last: ShownEpisode
    decisions: tuple[Decision, ...]
    jumps: tuple[Jumps, ...]


def draft_description(path: Path | str) -> Draft:
    """Return a draft of the ``dataset.toml`` of a file, or of a folder of files.

    Raises:
        InvalidArgumentError: If there is no such path.
        ConversionError: If there is no file of arrays.
    """
    path = _existing(path)
    folder = _folder_of(path)
    inside = {asset.path.removeprefix(f"{path.name}/"): asset for asset in folder.assets}
    name = path.parent.name if path.is_file() else path.name  # the description is one of the folder
    return draft(name or "mine", data_assets(str(path), inside), beside=inside, alone=path.is_file())


def described_path(path: Path | str) -> Path:
    """Return the folder of a file, if the ``dataset.toml`` of the folder selects the file, or else the path itself.

    Raises:
        InvalidArgumentError: If there is no such path.
        ConversionError: If the ``dataset.toml`` is not valid.
    """
    path = _existing(path)
    if not path.is_file() or not (path.parent / FILE).is_file():
        return path
    chosen = {asset.path for asset in _listing_of(path.parent).assets}
    return path.parent if f"{path.parent.name}/{path.name}" in chosen else path


def describe_files(path: Path | str) -> FilesDescription:
    """Return how a file, or the files of a folder, are read. Only the first file is opened.

        >>> from datasets_rl.sources.local.files import describe_files
        >>> describe_files("demos.npz").by  # doctest: +SKIP
        'flags'

    Raises:
        InvalidArgumentError: If there is no such path.
        ConversionError: If the files do not show with certainty how to read them, or contradict their description. The
            error names the question.
    """
    path = _existing(path)
    listing = _listing_of(path)
    return _described(path, listing, _reader_of(path, listing), _shown_files(path, listing))


def describe_folder(path: Path | str, source: Source) -> FilesDescription | None:
    """Return how a folder of another source of flat rows is read, or None if the source has a reader of its own.

    Args:
        path: The folder.
        source: The source whose layout the files have.

    Raises:
        InvalidArgumentError: If there is no such path.
        ConversionError: If the files are damaged, or do not show with certainty how to read them.
    """
    path = _existing(path)
    with tempfile.TemporaryDirectory(prefix="rlds-files-") as aside:
        entry = Entry(source.name, path.name)
        listing = source.resolve_files(entry, _folder_of(path), Selection(), _upstream(Path(aside)))
    with source.open(path.name, _local_files(listing), listing.params) as reader:
        numbered = {number: name for shard in listing.shards for name, number in shard.part}
        return _described(path, listing, reader, numbered) if isinstance(reader, FlatReader) else None


def check_files(path: Path | str) -> FilesCheck:
    """Read a file, or the files of a folder, as a download would, in blocks, and store nothing.

    Raises:
        InvalidArgumentError, ConversionError: As `describe_files`, and if any file is damaged or contradicts itself.
    """
    path = _existing(path)
    listing = _listing_of(path)
    reader = _reader_of(path, listing)
    seen = _Seen(reader.columns)
    files = [pair for shard in listing.shards for pair in shard.part]
    for piece in reader.episodes(files):
        seen.add(piece)
    seen.finish()
    if not seen.lengths or seen.first is None or seen.last is None:
        raise ConversionError(str(path), ["it has no step"], hint=f"correct the files, or {FILE}")
    lengths = np.concatenate(seen.lengths)
    return FilesCheck(
        _described(path, listing, reader, _shown_files(path, listing)),
        int(lengths.sum()),
        len(lengths),
        {"min": int(lengths.min()), "median": float(np.median(lengths)), "max": int(lengths.max())},
        tuple(reader.columns),
        seen.first,
        seen.last,
        tuple(reader.decisions),
        tuple(seen.jumps(_shown_files(path, listing))),
    )


def _existing(path: Path | str) -> Path:
    found = real_path(expand_home(path))
    if not found.exists():
        raise InvalidArgumentError(f"{path} does not exist, expected a file of arrays, or a folder of such files")
    return found


def _folder_of(path: Path) -> Folder:
    """Return the list of a file, or of the files of a folder, whose paths begin with the name."""
    if path.is_file():
        return Folder("", "", (Asset((path.as_uri(),), f"{path.name}/{path.name}", size=path.stat().st_size),))
    with tempfile.TemporaryDirectory(prefix="rlds-files-") as aside:
        return _upstream(Path(aside)).folder(path.name, (path.as_uri(),))


def _listing_of(path: Path) -> Listing:
    with tempfile.TemporaryDirectory(prefix="rlds-files-") as aside:
        entry = Entry(SOURCE.name, path.name)
        return SOURCE.resolve_files(entry, _folder_of(path), Selection(), _upstream(Path(aside)))


def _upstream(aside: Path) -> Upstream:
    return Upstream(aside, aside / "upstream.json", settings=Settings.from_env())


def _reader_of(path: Path, listing: Listing) -> LocalReader:
    return LocalReader(f"{SOURCE.name}/{path.name}", _local_files(listing), listing.params)


def _local_files(listing: Listing) -> dict[str, Path]:
    files = {asset.path: local_path(asset.urls[0]) for asset in listing.assets}
    return {name: file for name, file in files.items() if file is not None}


def _described(path: Path, listing: Listing, reader: FlatReader, shown: Mapping[int, str]) -> FilesDescription:
    """Return how the first file with a row is read.

    Args:
        path: The file or the folder.
        listing: The files.
        reader: The reader of the files.
        shown: The path of each file below `path`, by number.
    """
    layout = reader.layout
    numbers = {name: number for shard in listing.shards for name, number in shard.part}
    for name in dict.fromkeys([listing.params.get("first", next(iter(numbers))), *numbers]):
        with reader.open_file(name) as file:
            if is_empty(file, layout):
                continue
            plan = reader.plan(file)
            ends = reader.find_ends(file, plan)
            flags = tuple(plan.flags.values()) if plan.by == "flags" else ()
            return FilesDescription(
                path,
                path / FILE if f"{path.name}/{FILE}" in {asset.path for asset in listing.assets} else None,
                len(numbers),
                shown[numbers[name]],
                tuple(_uses(file, plan)),
                plan.by,
                (plan.marks,) if plan.marks in file.arrays else (*file.padding, *flags),
                None if plan.by == "seams" else int((ends.lengths > 0).sum()),
                (
                    *(_use("", array, file.arrays[array]) for array in plan.left_out),
                    *(ArrayUse("", name, "attribute", ()) for name in file.unused),
                ),
                tuple(map(str, measure(file, plan, ends))),
            )
    raise ConversionError(str(path), [f"none of {len(numbers):,} files has a step"])


def _shown_files(path: Path, listing: Listing) -> dict[int, str]:
    """Return the path of each file below `path` by number, or of the folder for which the file stands."""
    paths = (asset.path.removeprefix(f"{path.name}/") for asset in listing.assets)
    folders = data_folders(paths, listing.params["format"])
    return {number: shown_path(name, folders) or path.name for shard in listing.shards for name, number in shard.part}


def _uses(file: ArrayFile, plan: Plan) -> Iterator[ArrayUse]:
    for part in plan.parts:
        name = dotted_name(part.column.key)
        if part.array:
            yield _use(name, part.array, file.arrays[part.array])
        else:
            yield ArrayUse(name, "", part.column.dtype.name, ())
    if plan.success in file.arrays:
        yield _use("success of episodes", plan.success, file.arrays[plan.success])
    for name, dtype in plan.of_episodes.items():
        yield ArrayUse(f"{name} of episodes", name, dtype.name, file.of_episodes[name].shape)
    after = {(NEXT, *key): array for arrays in (plan.following, plan.finals) for key, array in arrays.items()}
    for key, array in {**after, **plan.flags, **plan.episode_flags}.items():
        yield _use(dotted_name(key), array, file.arrays[array])


def _use(key: str, name: str, array: Array) -> ArrayUse:
    return ArrayUse(key, name, array.kind, (array.rows, *array.shape))


@dataclass
class _Differences:
    """Collector of the differences of consecutive observations: the largest, and a regular sample."""

    key: str
    kept: list[NDArray[np.float64]] = field(default_factory=list)
    seen: int = 0
    stride: int = 1
    largest: list[Jump] = field(default_factory=list)

    def add(self, before: NDArray[Any], after: NDArray[Any], episodes: NDArray[Any], steps: NDArray[Any]) -> None:
        """Add the differences of states, [n, ...] each, with the numbers of episode and step, [n]."""
        if not len(before):
            return
        with np.errstate(all="ignore"):
            apart = np.subtract(after, before, dtype=np.result_type(before.dtype, np.float32)).reshape(len(before), -1)
            distances = np.sqrt(np.einsum("ni,ni->n", apart, apart)).astype(np.float64)
        is_finite = np.isfinite(distances)
        distances, episodes, steps = distances[is_finite], episodes[is_finite], steps[is_finite]
        top = np.argsort(-distances, kind="stable")[:_LARGEST]
        found = zip(distances[top].tolist(), episodes[top].tolist(), steps[top].tolist(), strict=True)
        jumps = [*self.largest, *(Jump(*one) for one in found)]
        self.largest = sorted(jumps, key=lambda jump: -jump.difference)[:_LARGEST]
        self.kept.append(distances[-self.seen % self.stride :: self.stride])
        self.seen += len(distances)
        while -(-self.seen // self.stride) > _SAMPLE:
            self.kept = [np.concatenate(self.kept)[::2]]
            self.stride *= 2

    def result(self) -> Jumps:
        """Return the differences of all rows."""
        values = np.concatenate([np.empty(0), *self.kept])
        return Jumps(self.key, float(np.median(values)) if len(values) else None, tuple(self.largest))


class _Seen:
    """Collector of what a pass over the episodes shows."""

    def __init__(self, columns: Sequence[Column]) -> None:
        numeric = [column for column in columns if is_observation(column.key) and column.shared and not column.text]
        self.differences = {
            column.key: _Differences(dotted_name(column.key)) for column in numeric if column.form == "raw"
        }
        self.lengths: list[NDArray[np.int64]] = []
        self._files: list[NDArray[np.int64]] = []
        """Number of the file of each episode."""
        self.first: ShownEpisode | None = None
        self.last: ShownEpisode | None = None
        self._episodes = 0
        self._steps = 0
        """Number of steps of the pieces of the present episode."""
        self._before: Mapping[Any, NDArray[Any]] = {}
        """Last states of the preceding piece of the present episode, [1, ...]."""
        self._head: list[ShownRow] = []
        self._tail: deque[ShownRow] = deque(maxlen=_SHOWN_ROWS)
        self._whole: tuple[Episode, int] | None = None
        """The last episode and its number, if the episode is one piece, whose rows are not taken yet."""

    def add(self, piece: Any) -> None:
        """Add a piece of an episode, or a batch of episodes."""
        if isinstance(piece, EpisodeBatch):
            self._add_batch(piece)
        else:
            self._add_piece(piece)

    def _add_batch(self, batch: EpisodeBatch) -> None:
        starts = np.repeat(batch.table.starts, batch.lengths)
        steps = np.arange(batch.count) - starts
        numbers = self._episodes + np.repeat(np.arange(len(batch)), batch.lengths)
        is_known = np.ones(batch.count, np.bool_)
        is_known[batch.table.stops[~batch.final_known] - 1] = False
        for key, differences in self.differences.items():
            before, after = np.asarray(batch.states[key]), batch.next_states(key)
            differences.add(before[is_known], after[is_known], numbers[is_known], steps[is_known])
        chosen = np.unique([0, len(batch) - 1]) if self.first is None else np.array([len(batch) - 1])
        for number, episode in zip(chosen.tolist(), batch.select_episodes(chosen), strict=True):
            self._show(episode, self._episodes + number)
        self._episodes += len(batch)
        self.lengths.append(batch.lengths)
        self._files.append(batch.metadata["file"])

    def _add_piece(self, piece: Episode) -> None:
        for key, differences in self.differences.items():
            values = np.asarray(piece.states[key])
            lead = self._before.get(key)
            states = values if lead is None else np.concatenate([lead, values])
            steps = np.arange(len(states) - 1) + self._steps - (lead is not None)
            differences.add(states[:-1], states[1:], np.full(len(steps), self._episodes), steps)
        last = {key: np.asarray(piece.states[key])[-1:] for key in self.differences}
        self._before = last if piece.continues else {}
        length = self._steps + len(piece)
        self._show(piece, self._episodes)
        if not piece.continues:
            self.lengths.append(np.array([length], np.int64))
            self._files.append(np.array([piece.metadata["file"]], np.int64))
            self._episodes += 1

    def jumps(self, names: Mapping[int, str]) -> Iterator[Jumps]:
        """Yield the jumps of each observation, with the names of the files.

        Args:
            names: The paths of the files by number.
        """
        files = np.concatenate([np.empty(0, np.int64), *self._files])
        for differences in self.differences.values():
            found = differences.result()
            largest = (replace(jump, file=names[int(files[jump.episode])]) for jump in found.largest)
            yield replace(found, largest=tuple(largest))

    def _show(self, piece: Episode, number: int) -> None:
        """Keep the first and the last rows of an episode, of which this piece is a part or the whole."""
        if self.first is not None and not self._steps and not piece.continues:
            self._whole = piece, number
            return
        self._whole = None
        self._take(piece, number)

    def finish(self) -> None:
        """Take the rows of the last episode."""
        if self._whole is not None:
            self._take(*self._whole)

    def _take(self, piece: Episode, number: int) -> None:
        count = len(piece)
        begin = max(0, count - _SHOWN_ROWS)
        for row in range(min(count, _SHOWN_ROWS)):
            if len(self._head) < _SHOWN_ROWS:
                self._head.append(_shown_row(piece, row, self._steps + row))
        self._tail.extend(_shown_row(piece, row, self._steps + row) for row in range(begin, count))
        self._steps += count
        if piece.continues:
            return
        rows = {row.step: row for row in (*self._head, *self._tail)}
        final = {dotted_name(key): _shown_value(values, -1) for key, values in piece.states.items()}
        shown = ShownEpisode(number, self._steps, tuple(rows.values()), final if piece.final_known else None)
        self.first, self.last, self._steps = self.first or shown, shown, 0
        self._head.clear()
        self._tail.clear()


def _shown_row(piece: Episode, row: int, step: int) -> ShownRow:
    values = {**piece.states, **piece.steps}
    return ShownRow(step, {dotted_name(key): _shown_value(column, row) for key, column in values.items()})


def _shown_value(values: Any, row: int) -> Any:
    if isinstance(values, TextStates):
        return values.vocabulary[int(values.codes[row])]
    if isinstance(values, StoredImages):
        return values.noun
    value = np.asarray(values[row])
    return value.tolist() if value.size <= _SHOWN_ELEMENTS else f"{value.dtype.name} {list(value.shape)}"
