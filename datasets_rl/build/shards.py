"""The shards of a dataset, in order: fetched ahead, and read in this process or by the processes of an engine.

fetched   0 1 2 3 4     in a thread, at most `max_in_flight` shards ahead
read      0 1 2 3       by an engine several at once, each into a partial dataset
appended  0 1           by `build`, in order
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from datasets_rl.build.build import Chunk, WorkerResult
from datasets_rl.build.engines import Engine, WorkerDiedError
from datasets_rl.build.engines.local import LocalEngine
from datasets_rl.build.image_forms import FormChoice, ImageForms, read_forms, with_pixels
from datasets_rl.build.partial import make_partial
from datasets_rl.errors import Argument, Call, ConversionError, DatasetsRLError, Remedy
from datasets_rl.fetch.asset import Asset, Fetched
from datasets_rl.fetch.fetcher import Fetcher
from datasets_rl.fetch.parallel import CancelToken
from datasets_rl.fetch.prefetcher import Prefetcher
from datasets_rl.format.manifest import RawFile
from datasets_rl.format.writer import DatasetWriter
from datasets_rl.libraries import library_of, raise_fault_of_code
from datasets_rl.progress import Report
from datasets_rl.read.threads import core_count
from datasets_rl.sources import EpisodeReader, Listing, Selection, Shard, get_source
from datasets_rl.ted.episode import DeferredStates, Episode
from datasets_rl.ted.episode_batch import EpisodeBatch
from datasets_rl.ted.keys import Key

_COMPRESSING_CORES = 2
"""The number of cores that a process keeps busy while it inflates files and compresses images in threads."""
_LOCAL_IN_FLIGHT = 2
"""The number of shards with files that are fetched or being fetched, if this process reads the shards."""
_REPORT_SOURCE = Remedy(
    "report this to the authors of the source. Without {}, all episodes are converted",
    Argument("selection", Call("Selection", episodes=...)),
)


@dataclass(frozen=True, slots=True)
class ReaderSpec:
    """A description of how to open the files of a dataset, in this process or in another process."""

    source: str
    name: str
    listing: Listing

    @property
    def id(self) -> str:
        """The id of the dataset."""
        return f"{self.source}/{self.name}"

    def open(self, files: Mapping[str, Path]) -> EpisodeReader:
        """Open the files of a shard."""
        return get_source(self.source).open(self.name, files, self.listing.params)


class EpisodeFilter:
    """A filter that keeps episodes by number over all shards, for upstreams that do not state counts per shard.

    Args:
        spec: The reader spec. Its `Listing.numbers` are the numbers of the episodes to keep. None keeps all, with the
            numbers from the reader.
        selection: The selection of the user. `Listing.numbers`, or else `Source.resolve`, has applied its episodes.
        seen: The number of episodes in the previous shards.
    """

    def __init__(self, spec: ReaderSpec, selection: Selection, seen: int) -> None:
        self._spec = spec
        self._selected = selection.episodes
        self._numbers = spec.listing.numbers
        self.seen = seen

    def check_numbered(self, metadata: Collection[str]) -> None:
        """Check that the reader of selected episodes gives the numbers, given the names of the metadata.

        Raises:
            ConversionError: If the reader does not: episodes would be numbered from 0, and be found under wrong
                numbers.
        """
        if self._selected and "source" not in metadata:
            problem = (
                f"the episodes {self._selected} are selected, and the reader of the source {self._spec.source} yields an"
                " episode without its number, expected the number of the episode upstream in metadata['source']"
            )
            raise ConversionError(self._spec.id, [problem], hint=_REPORT_SOURCE)

    def select(self, piece: Episode | EpisodeBatch) -> Episode | EpisodeBatch | None:
        """Return the selected episodes with their numbers, or None without such episodes."""
        first = self.seen
        if isinstance(piece, Episode):
            self.seen += not piece.continues
            if self._numbers is None:
                if not piece.continues:
                    self.check_numbered(piece.metadata)
                return piece
            return replace(piece, metadata={**piece.metadata, "source": first}) if first in self._numbers else None
        self.seen += len(piece)
        if self._numbers is None:
            self.check_numbered(piece.metadata)
            return piece
        numbers = np.arange(first, self.seen)
        mask = np.array([number in self._numbers for number in numbers.tolist()], np.bool_)
        if not mask.any():
            return None
        return replace(piece, metadata={**piece.metadata, "source": numbers}).select_episodes(mask)

    @property
    def complete(self) -> bool:
        """Whether the following shards have no selected episode."""
        return self._numbers is not None and self.seen > self._numbers.last


@dataclass(frozen=True)
class ShardOptions:
    """The options that all shards of a conversion share."""

    spec: ReaderSpec
    selection: Selection
    filter: EpisodeFilter
    fetcher: Fetcher
    report: Report
    """Called with each number of further steps."""
    choice: FormChoice
    """How images are stored, chosen when the files of the first shard are there."""
    keep_raw: bool = True
    """Whether fetched files are kept once the rows are on the disk."""
    engine: Engine | None = None
    """The engine that writes a partial dataset for each shard. None reads the shards in this process."""
    partials: Path | None = None
    """The folder of the partial datasets, which the processes of the engine can access too."""


def open_in_order(options: ShardOptions, shards: Sequence[Shard]) -> Generator[LocalShard, None, None]:
    """Yield each shard once its files are fetched.

    A request for the next shard means that the previous shard has been read.

    Raises:
        FetchError, IntegrityError, DiskFullError: If files cannot be fetched.
        ConversionError: If the files of the first shard violate the format.
    """
    files: dict[str, Path] = {}
    remaining = iter(shards)
    engine = options.engine
    groups = options.spec.listing.assets_by_shard(shards)
    with options.fetcher.for_groups(groups) as fetcher:

        def fetch_shard(group: Sequence[Asset], cancel: CancelToken) -> LocalShard:
            fetched = fetcher.fetch(group, cancel)
            files.update({file.asset.path: file.path for file in fetched})
            shard = next(remaining)
            shard_files = {path: files[path] for path in (*options.spec.listing.common, *shard.paths)}
            local = LocalShard(options, shard, shard_files, fetched)
            with ExitStack() as closing:
                closing.push(local)  # its reader holds files open
                if not options.choice.is_made:
                    local.choose_forms()
                if engine is None or _is_faster_alone(engine, options.choice.forms):
                    closing.pop_all()
                    return local
            return WorkerShard(options, shard, shard_files, fetched, engine)

        in_flight = _LOCAL_IN_FLIGHT if engine is None else engine.max_in_flight
        with Prefetcher(groups, fetch_shard, in_flight) as prefetcher:
            for _ in shards:
                yield prefetcher.take()
                prefetcher.release()


def _is_faster_alone(engine: Engine, forms: ImageForms) -> bool:
    """Return whether this process uses all cores that the processes of an engine would use."""
    return isinstance(engine, LocalEngine) and bool(forms.dictionaries) and core_count() <= _COMPRESSING_CORES


class LocalShard(Chunk):
    """A shard that this process reads. A context manager, because files are held open.

    Args:
        options: The options of the conversion.
        shard: The shard.
        files: The paths of its files, and of the files that all shards need.
        fetched: The files that were fetched for this shard.
    """

    def __init__(
        self, options: ShardOptions, shard: Shard, files: Mapping[str, Path], fetched: Sequence[Fetched]
    ) -> None:
        self.options = options
        self.shard = shard
        self.files = files
        self.fetched = tuple(fetched)
        self._reader: EpisodeReader | None = None

    def open(self) -> EpisodeReader:
        """Return the reader of the files, which is opened at the first call."""
        with _conversion_errors(self.options.spec.id, self.files.values()):
            if self._reader is None:
                self._reader = self.options.spec.open(self.files)
                self._reader.keep(self.options.selection)
        return self._reader

    def choose_forms(self) -> None:
        """Choose how images are stored, by the episodes of this shard.

        Raises:
            ConversionError: If the files violate their format, or do not have images in the requested form.
        """
        reader = self.open()

        def read() -> Generator[Episode | DeferredStates | EpisodeBatch, None, None]:
            # By another reader, because the counts of this reader end up in the manifest.
            with (
                _conversion_errors(self.options.spec.id, self.files.values()),
                self.options.spec.open(self.files) as again,
            ):
                again.keep(self.options.selection)
                yield from again.episodes(self.shard.part)

        self.options.choice.make(reader.columns, reader.kept, read)

    def append_to(self, writer: DatasetWriter) -> Mapping[str, Any]:
        """Append the selected episodes, and return the files, the decisions and the number of episodes so far.

        Raises:
            ConversionError: If a file violates its own format.
        """
        reader = self.open()
        with _conversion_errors(self.options.spec.id, self.files.values()):
            for piece in reader.episodes(self.shard.part):
                part = piece if isinstance(piece, DeferredStates) else self.options.filter.select(piece)
                if part is not None:
                    self.options.report(append_piece(writer, part, reader, self.options.choice.forms))
        return self._journal_entry([asdict(decision) for decision in reader.decisions])

    def _journal_entry(self, decisions: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
        raw = [
            asdict(RawFile(file.asset.path, file.size, file.sha256, file.url, file.checked, file.etag))
            for file in self.fetched
        ]
        return {"raw": raw, "decisions": decisions, "seen": self.options.filter.seen}

    def release(self) -> None:
        """Delete the fetched files that no later shard needs, unless `keep_raw` is set."""
        if self.options.keep_raw:
            return
        listing = self.options.spec.listing
        later = listing.shards[listing.shards.index(self.shard) + 1 :]
        needed = {path for shard in later for path in shard.paths} | set(listing.common)
        self.options.fetcher.drop([path for name, path in self.files.items() if name not in needed])

    def __exit__(self, *details: object) -> None:
        if self._reader is not None:
            self._reader.__exit__(*details)
            self._reader = None


class WorkerShard(LocalShard):
    """A shard that a process of an engine writes into a partial dataset.

    If that fails because of the files, this process reads the shard again, so that the error has the row and episode
    numbers of the whole dataset.
    """

    def __init__(
        self, options: ShardOptions, shard: Shard, files: Mapping[str, Path], fetched: Sequence[Fetched], engine: Engine
    ) -> None:
        super().__init__(options, shard, files, fetched)
        spec = options.spec
        task = {
            "source": spec.source,
            "name": spec.name,
            "params": spec.listing.params,
            "files": {name: str(path) for name, path in files.items()},
            "part": shard.part,
            "selection": options.selection.to_json(),
            "folder": str((options.partials or Path()) / f"{spec.listing.shards.index(shard):06}"),
            "forms": str(options.choice.path),
        }
        self._result = WorkerResult(engine, read_shard, task, options.report)

    def append_to(self, writer: DatasetWriter) -> Mapping[str, Any]:
        """Append the partial dataset. Without a partial dataset, read the shard in this process.

        Raises:
            ConversionError: If a file violates its own format, or the process died.
        """
        try:
            result = self._result.get()
        except WorkerDiedError as error:
            problem = f"the process that read its files {error.how}"
            raise ConversionError(self.options.spec.id, [problem], hint=error.remedy) from error
        except ConversionError:
            result = {}
        # An earlier process may have left rows of other dictionaries, if its choice of forms was lost.
        expected = (writer.schema.to_json(), self.options.choice.forms.digest)
        if (result.get("schema"), result.get("forms")) != expected:
            self._result.correct_report(0)
            return super().append_to(writer)
        commit = result["commit"]
        self.options.filter.check_numbered(commit["facts"])
        self._result.correct_report(commit["steps"])
        writer.append_partial(self._result.folder, commit)
        self.options.filter.seen += len(commit["lengths"])
        return self._journal_entry(result["decisions"])

    def release(self) -> None:
        """Delete the partial dataset, and the fetched files that no later shard needs."""
        super().release()
        self._result.remove()


@contextmanager
def _conversion_errors(dataset_id: str, files: Iterable[Path]) -> Iterator[None]:
    """Convert unexpected errors, as from libraries that read damaged files, to errors that name the files."""
    try:
        yield
    except (DatasetsRLError, MemoryError, OSError):
        raise
    except Exception as error:
        if isinstance(error, RuntimeError) and "can't start new thread" in str(error):
            raise  # the system is out of memory
        names = ", ".join(path.name for path in files)
        raise_fault_of_code(error, f"{dataset_id}: {names}")
        raised_by = f" (raised by {library})" if (library := library_of(error)) else ""
        raise ConversionError(
            dataset_id,
            [f"{names}: {type(error).__name__}: {error}{raised_by}"],
            hint="compare the file with its source, or give another file. The traceback shows where reading failed",
        ) from error


def read_shard(task: Mapping[str, Any], report: Report) -> dict[str, Any]:
    """Write a partial dataset of a shard, unless present already.

    Args:
        task: The reader spec and the files of the shard, the selection of fields, the file of the forms of images, and
            the folder of the partial dataset.
        report: Called with each number of further steps.

    Returns:
        The schema, the digest of the forms, the decisions and the commit of the writer.
    """
    dataset_id = f"{task['source']}/{task['name']}"
    forms = read_forms(Path(task["forms"]))
    files = {name: Path(path) for name, path in task["files"].items()}
    with (
        _conversion_errors(dataset_id, files.values()),
        get_source(task["source"]).open(task["name"], files, task["params"]) as reader,
    ):
        reader.keep(Selection.from_json(task["selection"]))

        def fill(writer: DatasetWriter) -> Mapping[str, Any]:
            for piece in reader.episodes(task["part"]):
                report(append_piece(writer, piece, reader, forms))
            decisions = [asdict(decision) for decision in reader.decisions]
            return {"schema": writer.schema.to_json(), "forms": forms.digest, "decisions": decisions}

        columns = forms.columns(column for column in reader.columns if column.key in reader.kept)
        return make_partial(Path(task["folder"]), columns, dataset_id, fill, forms.dictionaries)


def append_piece(
    writer: DatasetWriter,
    piece: Episode | DeferredStates | EpisodeBatch,
    reader: EpisodeReader,
    forms: ImageForms,
) -> int:
    """Append the stored fields of a piece, and return the number of steps."""
    if isinstance(piece, DeferredStates):
        writer.patch(piece)
        return 0
    columns = {column.key: column for column in reader.columns}
    steps = 0
    for part in with_pixels(stored_part(piece, reader.kept), columns, forms):
        if isinstance(part, EpisodeBatch):
            writer.extend(part)
            steps += part.count
        else:
            writer.append(part)
            steps += len(part)
    return steps


def stored_part(piece: Episode | EpisodeBatch, kept: Collection[Key]) -> Episode | EpisodeBatch:
    """Return a piece with only the fields that are stored."""
    if isinstance(piece, EpisodeBatch):
        selected = piece.select_fields(kept)
        if not selected.states:
            # No stored state is unknown, as in `Episode.final_known`.
            selected = replace(selected, final_known=np.ones(len(piece), np.bool_))
        return selected
    steps, states = (
        {key: values for key, values in columns.items() if key in kept} for columns in (piece.steps, piece.states)
    )
    return replace(piece, steps=steps, states=states)
