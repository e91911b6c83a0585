"""A second conversion of the raw files of a stored dataset, compared with the dataset block by block.

raw files   shard 0          shard 1
reader      piece piece ...  piece ...      the reader that converted the files
build       rows ...    | rows ...          whole episodes in the files of a conversion, deleted once they are compared
dataset     rows ...      rows ...          the same rows, final states and records of episodes

Pixels that the dataset stores compressed are compared while they are read, and are not in the build.

A temporary build has some tens of megabytes, or a single larger episode, and the videos of these episodes.
"""

from __future__ import annotations

import json
import os
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, fields, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

from datasets_rl import disk, sources
from datasets_rl.build.conversion import ConversionJob, build_manifest, merge_decisions
from datasets_rl.build.image_forms import BAD_SHARDS, ChosenForm, ImageForms, with_pixels
from datasets_rl.build.shards import EpisodeFilter, append_piece, stored_part
from datasets_rl.errors import (
    Argument,
    ConversionError,
    FetchError,
    IntegrityError,
    InvalidArgumentError,
    Remedy,
    UnknownKeyError,
)
from datasets_rl.fetch.asset import Asset, Fetched, Folder
from datasets_rl.fetch.partial_download import ANSWERS_FILE
from datasets_rl.fetch.upstream import Upstream
from datasets_rl.format.current import VERSION_NAME
from datasets_rl.format.images.columns import ImageColumn
from datasets_rl.format.manifest import Manifest, array_file, converter_version
from datasets_rl.format.reader import StoredDataset
from datasets_rl.format.schema import Column, Field, Schema, short_text, stored_column
from datasets_rl.format.writer import DatasetSummary, DatasetWriter
from datasets_rl.progress import Report
from datasets_rl.settings import Settings
from datasets_rl.sources import Decision, Entry, EpisodeReader, Selection, Shard
from datasets_rl.store import DatasetPaths
from datasets_rl.store.publish import VERSION_FOLDER, build_folder, canonical
from datasets_rl.ted.episode import DeferredStates, Episode, zero_unknown_states
from datasets_rl.ted.episode_batch import EpisodeBatch
from datasets_rl.ted.keys import EPISODE, NEXT_DONE, Key, dotted_name
from datasets_rl.ted.table import COMPUTED, EpisodeTable

ENTRY_FIELDS = ("license", "citation", "homepage", "known_issues", "score", "time_limit")
"""The fields of a manifest that are copied from the catalog entry of the dataset, `Entry`."""
_KEEP_RAW = Remedy("download the dataset with {}, which keeps all raw files", Argument("keep_raw", True))
_BUILD_BYTES = 64 << 20
_BLOCK_BYTES = 4 << 20


def entry_differences(manifest: Manifest, entry: Entry, names: Sequence[str] = ENTRY_FIELDS) -> Iterator[str]:
    """Yield the differences between a manifest and the catalog entry of the dataset.

    Args:
        manifest: The manifest of the dataset.
        entry: The catalog entry.
        names: The fields of `ENTRY_FIELDS` to compare.
    """
    expected_values = {name: getattr(entry, name) for name in names}
    if "score" in expected_values:
        expected_values["score"] = {} if entry.score is None else asdict(entry.score)
    for name, expected in expected_values.items():
        stated = getattr(manifest, name)
        # Catalogs gain reference scores after datasets were stored.
        if stated != expected and not (name == "score" and not stated):
            yield f"{name} is {short_text(stated)}, but {entry.id} has {short_text(expected)}"


def reconversion_differences(
    stored: StoredDataset, files: Mapping[str, Path], kept: Path | None, report: Report
) -> Iterator[str]:
    """Convert all raw files again, and yield the differences of the result from the dataset.

    This compares every value of every row, the record and the final states of every episode, the schema and the
    metadata. If this version converted the dataset, the catalog entry, the specs and the decisions are also compared.

    Args:
        stored: The dataset, of which fields may have been left out.
        files: The path of each raw file of the dataset.
        kept: The folder of the raw files if they were kept, or None if they were read in place.
        report: Called with each number of further steps.

    Raises:
        FetchError: If the source needs a file or a list of files that is not there.
        MissingDependencyError: If an optional library of the reader is not installed.
    """
    manifest = stored.manifest
    head, name = sources.split_id(manifest.id)
    origin = sources.get_source(head)
    try:
        selection = Selection.from_json(manifest.selection)
        origin.check(selection)
    except (InvalidArgumentError, TypeError, AttributeError) as error:
        yield f"selection is {short_text(manifest.selection)}: {error}"
        return
    try:
        with TemporaryDirectory(prefix="rlds-verify-") as aside:
            upstream = _RawFiles(manifest, files, kept, Path(aside))
            listing = origin.resolve(name, selection, upstream).narrow_to(selection)
        expected_files = {asset.path for asset in listing.assets}
        if files.keys() - expected_files or (not upstream.partial and files.keys() != expected_files):
            problem = (
                f"raw is {short_text(sorted(files))}, but the dataset consists of {short_text(sorted(expected_files))}"
            )
            if upstream.partial:
                raise FetchError("the files of the selection", [(str(kept or "the folder"), problem)], hint=_KEEP_RAW)
            yield problem
            return
        if manifest.converter == converter_version():
            yield from entry_differences(manifest, listing.entry or origin.entry(name))
        job = ConversionJob(listing.entry or origin.entry(name), listing, selection)
        with _build_folder(stored.folder) as folder, closing(_Reconversion(stored, job, files, folder)) as again:
            yield from again.differences(report)
    except (InvalidArgumentError, UnknownKeyError) as error:
        yield f"selection is {short_text(manifest.selection)}: {error.message}"
    except (ConversionError, IntegrityError) as error:
        yield from error.problems


@contextmanager
def _build_folder(version: Path) -> Iterator[Path]:
    """Give a folder for temporary builds: beside the version, as every unfinished build, or a temporary folder of the system.

    What a killed process leaves there is used by the next verification, and deleted by a prune.
    """
    if not VERSION_NAME.fullmatch(version.name) or not os.access(version.parent, os.W_OK):
        with disk.ScratchFolder() as folder:
            yield folder
        return
    paths = DatasetPaths(version.parent.parent, version.parent.name)
    with disk.claimed(build_folder(paths, canonical({"verify": {}}), None)) as folder:
        try:
            yield folder
        finally:
            for path in folder.iterdir():
                disk.remove_tree(path)


class _RawFiles(Upstream):
    """An upstream that has the raw files of a dataset, and never uses a network."""

    def __init__(self, manifest: Manifest, files: Mapping[str, Path], kept: Path | None, aside: Path) -> None:
        answers = (aside if kept is None else kept) / ANSWERS_FILE
        super().__init__(aside, answers, settings=Settings(home=aside, offline=True, progress=False))
        self._revision = manifest.revision
        self._files = files
        self._in_place = kept is None
        archives = (file.url.partition("#")[0] for file in manifest.raw if file.url.startswith("tar:"))
        self._archive = next((f"file:{url.removeprefix('tar:')}" for url in archives), "")
        self.partial = bool(manifest.selection)
        """Whether files may have been left out, so that the upstream lists more files."""

    def folder(self, path: str, urls: Sequence[str]) -> Folder:
        del urls
        names = sorted(name for name in self._files if not path or name.startswith(f"{path}/"))
        if self.partial:
            return self._whole_folder(path, names)
        if not names:
            raise self._not_listed(path)
        assets = (Asset((self._files[name].as_uri(),), name, self._files[name].stat().st_size) for name in names)
        return Folder("", self._revision, tuple(assets))

    def _whole_folder(self, path: str, names: Sequence[str]) -> Folder:
        """List a folder of which only a part was selected, as the download did: by the stored answer, or in place."""
        if (answer := self.answered_folder(path)) is not None:
            return answer
        if self._archive:  # of the user: no answer is stored for an archive
            return self._list_folder(path, [self._archive])
        if not self._in_place or not names:
            raise self._not_listed(path)
        inside = Path(names[0]).relative_to(path)
        return self._list_folder(path, [self._files[names[0]].parents[len(inside.parts) - 1].as_uri()])

    def _not_listed(self, path: str) -> FetchError:
        """Return the error of a folder that the download could not list either, as of a single file of the user.

        The failures are not empty: to a source, empty failures would mean that neither an address nor the user has such
        files.
        """
        first = next(iter(self._files.values()))
        failure = (
            first.parent.as_uri(),
            f"the folder has {first.name}, and no folder {path} with the files of the download",
        )
        return FetchError(f"the list of the files of {path}", [failure], hint=_KEEP_RAW)

    def with_size(self, asset: Asset) -> Asset:
        return replace(asset, size=self._local_path(asset.path).stat().st_size)

    def _fetch(self, asset: Asset) -> Fetched:
        path = self._local_path(asset.path)
        return Fetched(asset, path, path.stat().st_size, "", path.as_uri(), checked="skipped")

    def _local_path(self, path: str) -> Path:
        if path not in self._files:
            raise FetchError(path, [], hint=_KEEP_RAW)
        return self._files[path]


class _Reconversion:
    """The second conversion of a dataset, and the first difference of each field.

    Args:
        stored: The dataset.
        job: The conversion that made the dataset.
        files: The path of each raw file of the dataset.
        folder: The folder of the temporary builds.
    """

    def __init__(self, stored: StoredDataset, job: ConversionJob, files: Mapping[str, Path], folder: Path) -> None:
        self._stored = stored
        self._job = job
        self._files = files
        self._folder = folder / VERSION_FOLDER
        self._writer: DatasetWriter | None = None
        self._filter = EpisodeFilter(job.spec, job.selection, 0)
        self._forms = _forms(stored.schema)
        self._pixels = tuple(
            field.key for field in stored.schema if field.image_form.takes_pixels and not field.image_form.is_array
        )
        """The fields that are compared while they are read."""
        self._known: list[bool] = []
        """Whether the final state of each episode in the temporary build is known, which pixels may decide."""
        self._row = 0
        self._episode = 0
        self._built = 0
        """The number of steps in the temporary build."""
        self._shards: dict[str, list[tuple[int, str]]] = {"row": [], "episode": []}
        """The first row and the first episode that are read from each shard, with the names of the files of the shard."""
        self._numbered = False
        """Whether the reader gives the number of each episode."""
        self._metadata_names: set[str] = set()
        self._deferred: list[int] = []
        """The rows of which wide states are blank in a temporary build: `DeferredStates` has these states."""
        self._first: dict[str, tuple[str, int]] = {}
        """The first difference of each field, and the number of differences."""

    def differences(self, report: Report) -> Iterator[str]:
        """Read all shards, calling `report` with each number of steps, and yield the differences."""
        job, manifest = self._job, self._stored.manifest
        expected: Manifest | None = None
        decisions: list[Decision] = []
        for shard in job.listing.shards:
            needed = (*job.listing.common, *shard.paths)
            if missing := [path for path in needed if path not in self._files]:
                raise FetchError(missing[0], [], hint=_KEEP_RAW)
            with job.spec.open({path: self._files[path] for path in needed}) as reader:
                reader.keep(job.selection)
                if expected is None:
                    problems = [*_schema_differences(manifest, reader)]
                    yield from problems
                    if problems:
                        return
                self._convert(reader, shard, report)
                if any(field.image_form.in_shared_files for field in self._stored.schema):
                    self._compare_build()  # the bytes of shared files do not count as written, so a shard bounds them
                expected = expected or self._expected_manifest(reader)
                decisions += reader.decisions
            if self._filter.complete:
                break
        self._compare_build()
        yield from self._count_differences()
        yield from (f"{text} ({count:,} such)" for text, count in self._first.values())
        if expected is not None:
            merged = tuple(merge_decisions(decisions).values())
            yield from _statement_differences(manifest, replace(expected, decisions=merged))

    def close(self) -> None:
        """Close the files of an incomplete build."""
        if self._writer is not None:
            self._writer.discard()

    def _expected_manifest(self, reader: EpisodeReader) -> Manifest:
        """Return the manifest that the conversion writes beside the rows and the statistics of the dataset."""
        manifest = self._stored.manifest
        summary = DatasetSummary(
            manifest.schema,
            (),
            manifest.steps,
            manifest.episodes,
            manifest.final_unknown,
            manifest.statistics,
            manifest.spikes,
        )
        return build_manifest(self._job, reader, summary, self._folder.with_name("metadata"), [], [])

    def _convert(self, reader: EpisodeReader, shard: Shard, report: Report) -> None:
        """Append the episodes of a shard to the temporary build, which is compared once the build is large enough."""
        names = [Path(path).name for path in shard.paths]
        text = f"{names[0]} and {len(names) - 1:,} more" if len(names) > 1 else names[0]
        writer = self._writer or self._open_build(reader)
        self._shards["row"].append((self._row + self._built, text))
        self._shards["episode"].append((self._episode + writer.episodes, text))
        unanswered = None
        for piece in reader.episodes(shard.part):
            if isinstance(piece, DeferredStates):
                unanswered = None
                states = {key: values for key, values in piece.states.items() if key in reader.kept}
                self._compare_states(self._row + self._built - piece.rows_ago, states)
            elif (part := self._filter.select(piece)) is not None:
                if isinstance(part, Episode) and part.deferred:
                    unanswered = self._row + self._built
                    self._deferred.append(unanswered)
                writer = self._writer or self._open_build(reader)
                steps = self._append(writer, part, reader)
                self._numbered = self._numbered or "source" in part.metadata
                report(steps)
                if writer.bytes > _BUILD_BYTES and not (isinstance(part, Episode) and part.continues):
                    self._compare_build()
        if unanswered is not None:
            wide = [field for field in self._stored.schema.wide if field.shared]
            self._compare_states(unanswered, {field.key: np.zeros((1, *field.shape), field.dtype) for field in wide})

    def _append(self, writer: DatasetWriter, piece: Episode | EpisodeBatch, reader: EpisodeReader) -> int:
        """Compare the pixels of a piece, append the other fields to the temporary build, and return the number of steps."""
        columns = {column.key: column for column in reader.columns}
        first = self._built
        for part in with_pixels(stored_part(piece, reader.kept), columns, self._forms):
            self._compare_pixels(part, self._row + self._built, self._episode + writer.episodes)
            if isinstance(part, EpisodeBatch):
                self._known += part.final_known.tolist()
            elif not part.continues:
                self._known.append(part.final_known)
            others = {*columns} - {*self._pixels}
            self._built += append_piece(writer, stored_part(part, others), reader, self._forms)
        return self._built - first

    def _compare_pixels(self, part: Episode | EpisodeBatch, row: int, episode: int) -> None:
        """Compare the pixels of a piece that begins at a row, with the first final state at an episode."""
        count = part.count if isinstance(part, EpisodeBatch) else len(part)
        for key in self._pixels:
            values: Any = part.states[key] if key in part.states else part.steps[key]
            self._compare_items(key, "row", row, count, values.__getitem__)
            if key not in part.states:
                continue
            if isinstance(part, EpisodeBatch):
                finals: Any = zero_unknown_states(part.final_states[key], part.final_known)
                self._compare_items(key, "episode", episode, len(finals), finals.__getitem__)
            elif not part.continues:
                finals = values[count:] if len(values) > count else np.zeros((1, *values.shape[1:]), values.dtype)
                self._compare_items(key, "episode", episode, 1, finals.__getitem__)

    def _open_build(self, reader: EpisodeReader) -> DatasetWriter:
        kept = {*reader.kept} - {*self._pixels}
        columns = self._forms.columns(column for column in reader.columns if column.key in kept)
        disk.remove_tree(self._folder)
        self._folder.mkdir()
        self._writer = DatasetWriter(self._folder, columns, name=self._job.entry.id, summarized=False)
        return self._writer

    def _compare_build(self) -> None:
        """Complete the temporary build, compare every value of the build with the dataset, and delete the build."""
        if self._writer is None or not self._built:
            return
        summary = self._writer.finish()
        self._writer = None
        manifest = Manifest(
            self._job.entry.id, summary.steps, summary.episodes, summary.final_unknown, summary.schema, summary.files
        )
        manifest.write(self._folder)
        build = StoredDataset(self._folder)
        same_rows = self._has_same_rows(build)
        for field in build.schema:
            if field.key not in {NEXT_DONE, EPISODE}:
                read = partial(_read_slice, build, field.key)
                if field.wide or not same_rows:
                    self._compare_items(field.key, "row", self._row, len(build), partial(read, "row"))
                if field.shared:
                    count = len(build.episodes)
                    self._compare_items(field.key, "episode", self._episode, count, partial(read, "episode"))
        self._compare_records(build.episodes)
        self._known.clear()
        self._row += len(build)
        self._episode += len(build.episodes)
        self._built = 0
        del build
        disk.remove_tree(self._folder)

    def _has_same_rows(self, build: StoredDataset) -> bool:
        """Return whether all narrow fields are equal, which is fast to see in the bytes of whole rows."""
        expected, stored = build.rows, self._stored.rows[self._row : self._row + len(build)]
        if expected.dtype != stored.dtype or len(expected) != len(stored):
            return False
        count = max(1, _BLOCK_BYTES // expected.itemsize)
        for start in range(0, len(expected), count):
            block = expected[start : start + count].view(np.uint8).copy()  # numpy copies no bytes between fields
            block.view(expected.dtype)[dotted_name(EPISODE)] += self._episode
            if not np.array_equal(block, stored[start : start + count].view(np.uint8)):
                return False
        return True

    def _compare_items(
        self, key: Key, noun: str, first: int, count: int, read: Callable[[slice], NDArray[Any]]
    ) -> None:
        """Compare values of a field in consecutive rows, or final states of consecutive episodes, block by block."""
        table, field = self._stored.episodes, self._stored.schema[key]
        total = len(table) if noun == "episode" else table.steps
        rows = max(1, _BLOCK_BYTES // max(field.step_bytes, 1))
        for start in range(0, min(count, max(0, total - first)), rows):
            stop = min(start + rows, count, total - first)
            stored = _values(self._stored, key, noun, first + start, first + stop)
            expected = np.asarray(read(slice(start, stop)))
            wrong = _different_rows(stored, expected)
            if noun == "row" and field.wide:
                wrong[[row - first - start for row in self._deferred if 0 <= row - first - start < len(wrong)]] = False
            name = dotted_name(key) if noun == "row" else f"the final {dotted_name(key)}"
            self._record(name, noun, first + start, wrong, stored, expected)

    def _compare_states(self, row: int, states: Mapping[Key, NDArray[Any]]) -> None:
        """Compare the states of a row."""
        for key, expected in states.items():
            stored = _values(self._stored, key, "row", row, row + 1)
            self._record(dotted_name(key), "row", row, _different_rows(stored, expected), stored, expected)

    def _compare_records(self, built: EpisodeTable) -> None:
        """Compare the lengths and the metadata of episodes."""
        table = self._stored.episodes
        self._metadata_names |= set(built.metadata_names)
        for name in {*built.names} & {*table.names, "length", "final_known"} - (COMPUTED - {"length", "final_known"}):
            stored = table[name][self._episode : self._episode + len(built)]
            values = np.array(self._known) if name == "final_known" else built[name]
            expected = values[: len(stored)].astype(stored.dtype)
            if name == "source" and not self._numbered:
                expected += self._episode
            self._record(name, "episode", self._episode, _different_rows(stored, expected), stored, expected)

    def _count_differences(self) -> Iterator[str]:
        table = self._stored.episodes
        if (self._episode, self._row) != (len(table), table.steps):
            yield (
                f"there are {len(table):,} episodes with {table.steps:,} steps, but the raw files have {self._episode:,} "
                f"with {self._row:,}"
            )
        for name in sorted(self._metadata_names ^ set(table.metadata_names)):
            yield f"{name} of the episodes is {'missing' if name in self._metadata_names else 'not in the raw files'}"

    def _record(
        self, name: str, noun: str, first: int, wrong: NDArray[np.bool_], stored: NDArray[Any], expected: NDArray[Any]
    ) -> None:
        """Record the wrong rows or episodes, counted from `first`."""
        rows = np.flatnonzero(wrong)
        if len(rows):
            row = int(rows[0])
            starts, texts = zip(*self._shards[noun], strict=True)
            text = (
                f"{name} at {noun} {first + row:,} is {_value_text(stored[row])}, but "
                f"{texts[bisect_right(starts, first + row) - 1]} has {_value_text(expected[row])}"
            )
            text, count = self._first.get(name, (text, 0))
            self._first[name] = (text, count + len(rows))


def _forms(schema: Schema) -> ImageForms:
    """Return the forms of images in a temporary build: as in the dataset, with pixels in place of compressed images."""
    return ImageForms(
        {field.key: ChosenForm("raw" if field.image_form.takes_pixels else field.form) for field in schema}
    )


def _values(dataset: StoredDataset, key: Key, noun: str, start: int, stop: int) -> NDArray[Any]:
    """Return the values of a field in rows, or the final states of episodes: images unchanged, and texts as strings."""
    field, final = dataset.schema[key], noun == "episode"
    items = dataset.final_states(key) if final else dataset.items(key)
    if isinstance(items, ImageColumn):
        return items.read_comparable(start, stop)
    values = np.asarray(items[start:stop])
    if not field.text:
        return values
    texts = _object_array([*dataset.texts(key), "(no text of the vocabulary)"])
    return np.asarray(texts.take(np.where(values < 0, len(texts), values), mode="clip"))


def _read_slice(dataset: StoredDataset, key: Key, noun: str, items: slice) -> NDArray[Any]:
    return _values(dataset, key, noun, items.start, items.stop)


def _object_array(items: Sequence[Any]) -> NDArray[Any]:
    array = np.empty(len(items), object)
    array[:] = items
    return array


def _different_rows(stored: NDArray[Any], expected: NDArray[Any]) -> NDArray[np.bool_]:
    """Return the mask of rows, [n], that differ in any byte."""
    if stored.shape != expected.shape or stored.dtype != expected.dtype:
        return np.ones(len(stored), np.bool_)
    if stored.dtype == object:
        return np.asarray(stored != expected)
    if not stored.size:
        return np.zeros(len(stored), np.bool_)
    left, right = (
        np.ascontiguousarray(values).view(np.uint8).reshape(len(values), -1) for values in (stored, expected)
    )
    if left.shape[1] % 8 == 0:  # an eighth of the comparisons
        left, right = left.view(np.uint64), right.view(np.uint64)
    return np.asarray((left != right).any(axis=1))


def _value_text(value: Any) -> str:
    if isinstance(value, bytes):
        return f"an image of {len(value):,} bytes"
    return short_text(value.tolist() if isinstance(value, (np.ndarray, np.generic)) else value)


def _schema_differences(manifest: Manifest, reader: EpisodeReader) -> Iterator[str]:
    stated = {field.key: _column_of(field) for field in manifest.schema if field.key not in {NEXT_DONE, EPISODE}}
    # Images can have another form than in the files: the conversion measures which form is smaller.
    expected = {
        column.key: replace(stored_column(column), form=getattr(stated.get(column.key), "form", column.form))
        for column in reader.columns
        if column.key in reader.kept
    }
    for key in [*stated, *(key for key in expected if key not in stated)]:
        if stated.get(key) != expected.get(key):
            yield f"schema: {dotted_name(key)} is {stated.get(key)}, but the raw files have {expected.get(key)}"


def _column_of(field: Field) -> Column:
    return Column(**{attribute.name: getattr(field, attribute.name) for attribute in fields(Column)})


def _statement_differences(stated: Manifest, expected: Manifest) -> Iterator[str]:
    """Yield the differences of metadata and, if this version converted the dataset, of specs and decisions."""
    names = ("metadata", "specs", "decisions") if stated.converter == expected.converter else ("metadata",)
    for name in names:
        left, right = _statements(stated, name), _statements(expected, name)
        for key in [*left, *(key for key in right if key not in left)]:
            if left.get(key) != right.get(key):
                found, wanted = (short_text(one[key]) if key in one else "missing" for one in (left, right))
                yield f"{name}.{key} is {found}, but the raw files lead to {wanted}"


def _statements(manifest: Manifest, name: str) -> dict[str, Any]:
    """Return a mapping of a manifest as JSON, with the digests of arrays."""
    if name == "decisions":
        return {one.rule: [one.count, one.text] for one in manifest.decisions if one.rule != BAD_SHARDS}
    content: dict[str, Any] = json.loads(json.dumps(getattr(manifest, name)))
    files = {key: manifest.file(path) for key, value in content.items() if (path := array_file(value))}
    return content | {key: file and [file.path, file.digest] for key, file in files.items()}
