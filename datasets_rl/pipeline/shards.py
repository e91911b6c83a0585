"""The shards of a dataset in their order: read in this process, or made into parts by an engine.

files   0 1 2 3 4     fetched ahead
parts   0 1 2 3       of an engine, several at once
rows    0 1           shard 1 is read, or its part joined; behind it lie no more than there is room for
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from datasets_rl.errors import ConversionError, DatasetsRLError
from datasets_rl.fetch.asset import Asset, Fetched
from datasets_rl.fetch.parallel import CancelToken
from datasets_rl.fetch.prefetcher import Prefetcher
from datasets_rl.format.writer import DatasetWriter
from datasets_rl.pipeline.engines import Engine
from datasets_rl.pipeline.partial import make_partial, remove_partial
from datasets_rl.progress import Counted, Report
from datasets_rl.sources import EpisodeReader, Listing, Selection, Shard, source
from datasets_rl.ted.episode import DeferredStates, Episode
from datasets_rl.ted.episode_batch import EpisodeBatch
from datasets_rl.ted.keys import Key

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = [
    "FetchedShard",
    "Get",
    "LocalShard",
    "Piece",
    "ReaderSpec",
    "WorkerShard",
    "WorkerShards",
    "in_order",
    "make",
    "naming",
    "write",
]

Get = Callable[[Sequence[Asset], CancelToken], list[Fetched]]
"""Fetches files, until the flag goes up."""
Piece = Episode | DeferredStates | EpisodeBatch
_ROOM = 2
"""Shards whose files are there or on their way, where this process reads them."""


@dataclass(frozen=True, slots=True)
class ReaderSpec:
    """How to open the files of a shard, in this process or in another."""

    source: str
    name: str
    listing: Listing

    @property
    def id(self) -> str:
        """The id of the dataset."""
        return f"{self.source}/{self.name}"

    def open(self, files: Mapping[str, Path]) -> EpisodeReader:
        """Open the files of a shard."""
        return source(self.source).open(self.name, files, self.listing.params)


@dataclass(frozen=True, slots=True)
class FetchedShard:
    """A shard whose files are there."""

    shard: Shard
    files: Mapping[str, Path]
    """Those of the shard, and those that all shards need."""
    fetched: tuple[Fetched, ...]
    """Those that came for this shard."""


@dataclass(frozen=True, slots=True)
class WorkerShards:
    """How parts of shards are made."""

    engine: Engine
    folder: Path
    """Where they go; the engine's processes see it."""
    selection: Selection
    """Which fields are wanted."""
    report: Report
    """Hears of steps before they are joined."""


def in_order(
    opening: ReaderSpec,
    shards: Sequence[Shard],
    groups: Sequence[Sequence[Asset]],
    get: Get,
    parts: WorkerShards | None = None,
) -> Generator[LocalShard | WorkerShard, None, None]:
    """Yield each shard when its files are there. When the next one is asked for, the files of this one are used up.

    Args:
        opening: How to open files.
        shards: The shards.
        groups: The files of each that are not yet there, and before the first one those that all shards need.
        get: Fetches a group.
        parts: Let an engine make a `WorkerShard` of each; begun as soon as its files are there.

    Raises:
        FetchError, IntegrityError, DiskFullError: If files cannot be had.
    """
    known: dict[str, Path] = {}
    left = iter(shards)

    def submit(group: Sequence[Asset], cancel: CancelToken) -> LocalShard | WorkerShard:
        fetched = get(group, cancel)
        known.update({one.asset.path: one.path for one in fetched})
        shard = next(left)
        files = {path: known[path] for path in (*opening.listing.common, *shard.paths)}
        ready = FetchedShard(shard, files, tuple(fetched))
        return LocalShard(opening, ready) if parts is None else WorkerShard(opening, ready, parts)

    with Prefetcher(groups, submit, _ROOM if parts is None else parts.engine.max_in_flight) as ahead:
        for _ in shards:
            yield ahead.take()
            ahead.release()


class LocalShard:
    """A shard that this process reads. A context manager, because it holds files open."""

    def __init__(self, opening: ReaderSpec, ready: FetchedShard) -> None:
        self.opening = opening
        self.ready = ready
        self._opened: EpisodeReader | None = None

    def open(self) -> EpisodeReader:
        """Return its recording, opened when it is asked for first."""
        with naming(self.opening.id, self.ready.files.values()):
            self._opened = self._opened or self.opening.open(self.ready.files)
        return self._opened

    def pieces(self) -> Iterator[Piece]:
        """Yield what it consists of.

        Raises:
            ConversionError: If files break their own format.
        """
        reader = self.open()
        with naming(self.opening.id, self.ready.files.values()):
            yield from reader.episodes(self.ready.shard.part)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *details: object) -> None:
        if self._opened is not None:
            self._opened.__exit__(*details)
            self._opened = None


class WorkerShard(LocalShard):
    """A shard of which an engine makes a part. It can be read here as well."""

    def __init__(self, opening: ReaderSpec, ready: FetchedShard, parts: WorkerShards) -> None:
        super().__init__(opening, ready)
        self.folder = parts.folder / f"{opening.listing.shards.index(ready.shard):06}"
        self.told = Counted(parts.report)
        """Counts the steps that are reported before it is whole."""
        task = {
            "source": opening.source,
            "name": opening.name,
            "facts": opening.listing.params,
            "files": {path: str(place) for path, place in ready.files.items()},
            "part": ready.shard.part,
            "selection": parts.selection.to_json(),
            "folder": str(self.folder),
        }
        self._wait = parts.engine.submit(make, task, self.told)

    def made(self) -> Mapping[str, Any]:
        """Wait until it is whole, and return what `make` says of it.

        Raises:
            ConversionError: If files break their own format; rows and episodes are counted from this shard on.
            PartLost: If the process that made it died.
        """
        return self._wait()

    def remove(self) -> None:
        """Delete it, when its rows are elsewhere."""
        remove_partial(self.folder)


@contextmanager
def naming(what: str, files: Iterable[Path]) -> Iterator[None]:
    """Name the files in errors that their reader did not foresee, as libraries raise them for damaged files.

    Args:
        what: The dataset.
        files: Those that the block reads.

    Raises:
        ConversionError: If the block fails with any error that is neither ours nor one of the system or of memory.
    """
    try:
        yield
    except (DatasetsRLError, MemoryError, OSError):
        raise
    except Exception as error:
        if isinstance(error, RuntimeError) and "can't start new thread" in str(error):
            raise  # the system has no memory for it
        names = ", ".join(path.name for path in files)
        raise ConversionError(
            what,
            [f"{names}: {type(error).__name__}: {error}"],
            hint="compare the file with its source, or give another one; -vv shows where reading it failed",
        ) from error


def make(task: Mapping[str, Any], report: Report) -> dict[str, Any]:
    """Make a part of a shard, unless it is there already.

    Args:
        task: How the shard is opened, where its files are, which fields are wanted, and where the part goes.
        report: Called with each number of further steps.

    Returns:
        The schema of what was written, the decisions, and what the writer said.
    """
    what = f"{task['source']}/{task['name']}"
    files = {path: Path(place) for path, place in task["files"].items()}
    with naming(what, files.values()):
        opened = source(task["source"]).open(task["name"], files, task["facts"])
    with opened as reader, naming(what, files.values()):
        kept = Selection.from_json(task["selection"]).kept_keys([column.key for column in reader.columns])

        def fill(writer: DatasetWriter) -> Mapping[str, Any]:
            for piece in reader.episodes(task["part"]):
                report(write(writer, piece, kept))
            decisions = [asdict(one) for one in reader.decisions]
            return {"schema": writer.schema.to_json(), "decisions": decisions}

        columns = [column for column in reader.columns if column.key in kept]
        return make_partial(Path(task["folder"]), columns, what, fill)


def write(writer: DatasetWriter, piece: Piece, kept: Collection[Key]) -> int:
    """Write the fields that are wanted of what was read, and return how many steps that was."""
    if isinstance(piece, DeferredStates):
        writer.amend(piece)
        return 0
    if isinstance(piece, EpisodeBatch):
        writer.extend(piece.only(kept))
        return piece.count
    steps, states = ({key: one for key, one in part.items() if key in kept} for part in (piece.steps, piece.states))
    writer.append(replace(piece, steps=steps, states=states))
    return len(piece)
