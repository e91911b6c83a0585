"""A second conversion of the raw files of a stored dataset, compared with it one piece at a time.

raw files    shard 0          shard 1
reader       piece piece ...  piece ...      the reader that converted them; a piece has a few megabytes
dataset      rows  rows       rows           the same rows, and the records of the episodes that end in the piece

Nothing is written, and the memory in use is that of one piece.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, fields, replace
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from datasets_rl import sources
from datasets_rl.build.conversion import catalog_specs, json_value, merge_decisions, specs_of_schema
from datasets_rl.build.image_forms import BAD_SHARDS, decoded
from datasets_rl.build.shards import EpisodeFilter, ReaderSpec, stored_part
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
from datasets_rl.format.manifest import AppliedDecision, Manifest, converter_version
from datasets_rl.format.npy import map_npy
from datasets_rl.format.reader import StoredDataset
from datasets_rl.format.schema import Column, Field, short_text, stored_column
from datasets_rl.format.video_files import video_name
from datasets_rl.format.video_images import VideoColumn, VideoFrames
from datasets_rl.progress import Report
from datasets_rl.settings import Settings
from datasets_rl.sources import Decision, Entry, EpisodeReader, Listing, Selection, Shard
from datasets_rl.ted.episode import DeferredStates, EncodedImages, Episode, TextStates
from datasets_rl.ted.episode_batch import EpisodeBatch
from datasets_rl.ted.keys import EPISODE, NEXT_DONE, Key, dotted_name
from datasets_rl.ted.table import COMPUTED

ENTRY_FIELDS = ("license", "citation", "homepage", "known_issues", "score", "time_limit")
"""The fields of a manifest that are copied from the catalog entry of the dataset, `Entry`."""
_KEEP_RAW = Remedy("download it with {}, which keeps all raw files", Argument("keep_raw", True))
_NOT_COMPARED = COMPUTED | {"source"}


def entry_differences(manifest: Manifest, entry: Entry, names: Sequence[str] = ENTRY_FIELDS) -> Iterator[str]:
    """Yield the differences between a manifest and the catalog entry of its dataset.

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
            yield f"{name} is {short_text(stated)}; {entry.id} has {short_text(expected)}"


def reconversion_differences(
    stored: StoredDataset, files: Mapping[str, Path], kept: Path | None, report: Report
) -> Iterator[str]:
    """Convert all raw files again, and yield the differences of the result from the dataset.

    This compares every value of every row, the record and the final states of every episode, the schema and the metadata;
    and, if this version converted the dataset, also the catalog entry, the specs and the decisions.

    Args:
        stored: The dataset; fields may have been left out.
        files: The path of each of its raw files.
        kept: The folder of the raw files if they were kept; None if they were read in place.
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
                f"raw is {short_text(sorted(files))}; the dataset consists of {short_text(sorted(expected_files))}"
            )
            if upstream.partial:
                raise FetchError("the files of the selection", [(str(kept or "the folder"), problem)], hint=_KEEP_RAW)
            yield problem
            return
        if manifest.converter == converter_version():
            yield from entry_differences(manifest, listing.entry or origin.entry(name))
        yield from _Reconversion(stored, listing, selection, files).differences(report)
    except (InvalidArgumentError, UnknownKeyError) as error:
        yield f"selection is {short_text(manifest.selection)}: {error.message}"
    except (ConversionError, IntegrityError) as error:
        yield from error.problems


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
        """Whether files may have been left out, so that they are not all files that the upstream lists."""

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
        """List a folder of which only a part was selected, as the download did: by its answer, or in place."""
        if (answer := self.answered_folder(path)) is not None:
            return answer
        if self._archive:  # of the user: no answer is stored for it
            return self._list_folder(path, [self._archive])
        if not self._in_place or not names:
            raise self._not_listed(path)
        inside = Path(names[0]).relative_to(path)
        return self._list_folder(path, [self._files[names[0]].parents[len(inside.parts) - 1].as_uri()])

    def _not_listed(self, path: str) -> FetchError:
        """Return the error of a folder that the download could not list either, as of a single file of the user.

        Its failures are not empty: to a source, that would mean that neither an address nor the user has such files.
        """
        first = next(iter(self._files.values()))
        failure = (first.parent.as_uri(), f"it has {first.name}, and no folder {path} with the files of the download")
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
    """The second conversion of a dataset, and the first difference of each of its fields."""

    def __init__(
        self, stored: StoredDataset, listing: Listing, selection: Selection, files: Mapping[str, Path]
    ) -> None:
        self._stored = stored
        self._listing = listing
        self._selection = selection
        self._files = files
        spec = ReaderSpec(*sources.split_id(stored.manifest.id), listing)
        self._filter = EpisodeFilter(spec, selection, 0)
        self._texts = {
            field.key: np.array([*stored.texts(field.key), "(no text of the vocabulary)"], object)
            for field in stored.schema
            if field.text
        }
        self._kept: Collection[Key] = ()
        self._row = 0
        self._episode = 0
        self._open_steps = 0
        self._metadata_names: set[str] = set()
        self._video_names: dict[Path, str] = {}
        self._shard_files = ""
        self._deferred: set[tuple[Key, int]] = set()
        """Wide fields and rows that the reader left blank, until it yields their `DeferredStates`."""
        self._first: dict[str, tuple[str, int]] = {}
        """The first difference of each field, and their number."""

    def differences(self, report: Report) -> Iterator[str]:
        """Read all shards, calling `report` with each number of steps, and yield the differences."""
        manifest, listing = self._stored.manifest, self._listing
        source, name = sources.split_id(manifest.id)
        origin = sources.get_source(source)
        same_version = manifest.converter == converter_version()
        decisions: list[Decision] = []
        for number, shard in enumerate(listing.shards):
            needed = (*listing.common, *shard.paths)
            if missing := [path for path in needed if path not in self._files]:
                raise FetchError(missing[0], [], hint=_KEEP_RAW)
            files = {path: self._files[path] for path in needed}
            with origin.open(name, files, listing.params) as reader:
                reader.keep(self._selection)
                self._kept = reader.kept
                if not number:
                    problems = [*_schema_differences(manifest, reader)]
                    yield from problems
                    if problems:
                        return
                    yield from _metadata_differences(self._stored, reader)
                self._compare_shard(reader, shard, report)
                if not number and same_version:
                    yield from _spec_differences(manifest, reader, listing.entry or origin.entry(name))
                decisions += reader.decisions
            if self._filter.complete:
                break
        yield from self._count_differences()
        yield from (f"{text} ({count:,} such)" for text, count in self._first.values())
        if same_version:
            yield from _decision_differences(manifest, merge_decisions(decisions))

    def _compare_shard(self, reader: EpisodeReader, shard: Shard, report: Report) -> None:
        names = [Path(path).name for path in shard.paths]
        self._shard_files = f"{names[0]} and {len(names) - 1:,} more" if len(names) > 1 else names[0]
        for piece in reader.episodes(shard.part):
            if isinstance(piece, DeferredStates):
                self._compare_deferred(piece)
            elif (selected := self._filter.select(piece)) is not None:
                before, part = self._row, stored_part(selected, self._kept)
                if isinstance(part, EpisodeBatch):
                    self._compare_batch(part)
                else:
                    self._compare_episode(part)
                report(self._row - before)
        for key, row in sorted(self._deferred):
            stored = self._stored_values(key, row, row + 1)
            self._compare(dotted_name(key), "row", row, stored, np.zeros_like(stored))
        self._deferred.clear()

    def _compare_episode(self, episode: Episode) -> None:
        """Compare the rows of an episode, or of a piece of one, and its record if it ends."""
        steps = len(episode)
        rows = {key: self._as_stored(key, values) for key, values in {**episode.steps, **episode.states}.items()}
        self._compare_rows({key: values[:steps] for key, values in rows.items()}, steps)
        self._open_steps += steps
        if episode.continues:
            return
        blank = np.zeros(1, np.bool_)
        final_states = {}
        for key in episode.states:
            final_known = len(rows[key]) > steps
            last = rows[key][steps:] if final_known else rows[key][-1:]
            final_states[key] = last if final_known else self._blanked(key, last, blank)
        metadata = {name: np.asarray([value]) for name, value in episode.metadata.items()}
        lengths, known = np.array([self._open_steps]), np.array([episode.final_known])
        self._open_steps = 0
        self._compare_records(lengths, known, metadata, final_states)

    def _compare_batch(self, batch: EpisodeBatch) -> None:
        vocabulary = batch.vocabulary
        rows = {
            key: self._as_stored(key, values, vocabulary) for key, values in {**batch.steps, **batch.states}.items()
        }
        self._compare_rows(rows, batch.count)
        final_states = {
            key: self._blanked(key, self._as_stored(key, values, vocabulary), batch.final_known)
            for key, values in batch.final_states.items()
        }
        self._compare_records(batch.lengths, batch.final_known, batch.metadata, final_states)

    def _compare_deferred(self, deferred: DeferredStates) -> None:
        row = self._row - deferred.rows_ago
        for key, values in deferred.states.items():
            if key in self._kept:
                self._deferred.discard((key, row))
                self._compare(dotted_name(key), "row", row, self._stored_values(key, row, row + 1), values)

    def _compare_rows(self, columns: Mapping[Key, NDArray[Any]], steps: int) -> None:
        start, stop = self._row, min(self._row + steps, len(self._stored))
        self._row += steps
        for key, values in columns.items():
            stored, expected = self._stored_values(key, start, stop), values[: max(0, stop - start)]
            wrong = _different_rows(stored, expected)
            if wrong.any() and self._stored.schema[key].wide and expected.dtype != object:
                blank = wrong & ~expected.reshape(len(expected), -1).any(axis=1)
                self._deferred |= {(key, start + int(row)) for row in np.flatnonzero(blank)}
                wrong &= ~blank
            self._record(dotted_name(key), "row", start, wrong, stored, expected)

    def _compare_records(
        self,
        lengths: NDArray[Any],
        final_known: NDArray[np.bool_],
        metadata: Mapping[str, NDArray[Any]],
        final_states: Mapping[Key, NDArray[Any]],
    ) -> None:
        table = self._stored.episodes
        first, stop = self._episode, min(self._episode + len(lengths), len(table))
        count = max(0, stop - first)
        self._episode += len(lengths)
        self._metadata_names |= metadata.keys() - _NOT_COMPARED
        numbers = np.arange(self._episode - len(lengths), self._episode)
        records = {"source": numbers, **metadata, "length": lengths, "final_known": final_known}
        for name, values in records.items():
            if name in table.names:
                stored = table[name][first:stop]
                self._compare(name, "episode", first, stored, values[:count].astype(stored.dtype))
        for key, values in final_states.items():
            stored = self._stored_values(key, first, stop, final=True)
            self._compare(f"the final {dotted_name(key)}", "episode", first, stored, values[:count])

    def _count_differences(self) -> Iterator[str]:
        table = self._stored.episodes
        if (self._episode, self._row) != (len(table), table.steps) or self._open_steps:
            yield (
                f"there are {len(table):,} episodes with {table.steps:,} steps; the raw files have {self._episode:,} "
                f"with {self._row:,}"
            )
        for name in sorted(self._metadata_names ^ (set(table.names) - _NOT_COMPARED)):
            yield f"{name} of the episodes is {'missing' if name in self._metadata_names else 'not in the raw files'}"

    def _as_stored(
        self, key: Key, values: Any, vocabulary: Mapping[Key, Sequence[str]] = MappingProxyType({})
    ) -> NDArray[Any]:
        """Return values of a reader as an array, [n, ...]: images as bytes, and texts as strings."""
        if isinstance(values, EncodedImages):
            if not self._stored.schema[key].encoded:
                return decoded(values, self._stored.schema[key])
            return _object_array([bytes(image) for image in values.images])
        if isinstance(values, VideoFrames) and self._stored.schema[key].video:
            return self._frame_texts(values)
        if isinstance(values, TextStates):
            return np.asarray(_object_array(values.vocabulary)[values.codes])
        return np.asarray(_object_array(vocabulary[key])[values] if key in vocabulary else values)

    def _stored_values(self, key: Key, start: int, stop: int, *, final: bool = False) -> NDArray[Any]:
        """Return rows, or final states of episodes, like `_as_stored`."""
        field = self._stored.schema[key]
        if field.encoded:
            ends = self._stored.map(field.final_ends_file if final else field.ends_file)
            data = self._stored.map(field.final_file if final else field.file)
            bounds = [int(ends[start - 1]) if start else 0, *ends[start:stop].tolist()]
            return _object_array([data[first:last].tobytes() for first, last in pairwise(bounds)])
        items = self._stored.final_states(key) if final else self._stored.items(key)
        if isinstance(items, VideoColumn):
            return self._frame_texts(items.read_stored(start, stop))
        values = np.asarray(items[start:stop])
        if not field.text:
            return values
        texts = self._texts[key]
        return np.asarray(texts.take(np.where(values < 0, len(texts), values), mode="clip"))

    def _frame_texts(self, frames: VideoFrames) -> NDArray[Any]:
        """Return which packet of which file each frame is, as text, [n]; an unknown one is empty."""
        texts = []
        for number, packet in zip(frames.numbers.tolist(), frames.packets.tolist(), strict=True):
            video = frames.videos[number]
            if not video.name and video.path not in self._video_names:
                self._video_names[video.path] = video_name(video.path)
            name = video.name or self._video_names[video.path]
            texts.append("" if packet < 0 else f"packet {packet:,} of {name}, {video.packets[packet].item()}")
        return _object_array(texts)

    def _blanked(self, key: Key, values: NDArray[Any], known: NDArray[np.bool_]) -> NDArray[Any]:
        """Return final states with those that are unknown as the dataset stores them: empty, or zeros."""
        if known.all():
            return values
        field = self._stored.schema[key]
        values = values.copy()
        values[~known] = b"" if field.encoded else "" if field.text or field.video else 0
        return values

    def _compare(self, name: str, noun: str, first: int, stored: NDArray[Any], expected: NDArray[Any]) -> None:
        self._record(name, noun, first, _different_rows(stored, expected), stored, expected)

    def _record(
        self, name: str, noun: str, first: int, wrong: NDArray[np.bool_], stored: NDArray[Any], expected: NDArray[Any]
    ) -> None:
        """Record the wrong rows or episodes, counted from `first`."""
        rows = np.flatnonzero(wrong)
        if len(rows):
            row = int(rows[0])
            text = (
                f"{name} at {noun} {first + row:,} is {_value_text(stored[row])}; "
                f"{self._shard_files} has {_value_text(expected[row])}"
            )
            text, count = self._first.get(name, (text, 0))
            self._first[name] = (text, count + len(rows))


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
    return np.asarray((left != right).any(axis=1))


def _value_text(value: Any) -> str:
    if isinstance(value, bytes):
        return f"an image of {len(value):,} bytes"
    return short_text(value.tolist() if isinstance(value, (np.ndarray, np.generic)) else value)


def _schema_differences(manifest: Manifest, reader: EpisodeReader) -> Iterator[str]:
    stated = {field.key: _column_of(field) for field in manifest.schema if field.key not in {NEXT_DONE, EPISODE}}
    # Images can have another form than in the files: the conversion measures which one is smaller.
    expected = {
        column.key: replace(stored_column(column), form=getattr(stated.get(column.key), "form", column.form))
        for column in reader.columns
        if column.key in reader.kept
    }
    for key in [*stated, *(key for key in expected if key not in stated)]:
        if stated.get(key) != expected.get(key):
            yield f"schema: {dotted_name(key)} is {stated.get(key)}; the raw files have {expected.get(key)}"


def _column_of(field: Field) -> Column:
    return Column(**{attribute.name: getattr(field, attribute.name) for attribute in fields(Column)})


def _spec_differences(manifest: Manifest, reader: EpisodeReader, entry: Entry) -> Iterator[str]:
    stated = catalog_specs(entry.action, manifest.schema, manifest.statistics)
    expected = specs_of_schema(manifest.schema, {**stated, **reader.specs()})
    for name, spec in expected.items():
        if manifest.specs.get(name) != _as_json(spec):
            yield f"specs.{name} is {short_text(manifest.specs.get(name))}; the raw files state {short_text(spec)}"


def _metadata_differences(stored: StoredDataset, reader: EpisodeReader) -> Iterator[str]:
    stated, expected = stored.manifest.metadata, reader.metadata
    for name in sorted(stated.keys() | expected.keys()):
        if name not in stated or name not in expected:
            yield f"metadata.{name} is {'missing' if name not in stated else 'not in the raw files'}"
            continue
        value, entry = expected[name], stated[name]
        if isinstance(value, np.ndarray) and value.ndim:
            path = entry.get("file") if isinstance(entry, dict) else None
            is_file = isinstance(path, str) and stored.manifest.file(path)
            same = is_file and _equal_arrays(map_npy(stored.folder / str(path)), value)
        else:
            same = entry == _as_json(json_value(value.item() if isinstance(value, np.ndarray) else value))
        if not same:
            yield f"metadata.{name} is {short_text(entry)}; the raw files have {short_text(value)}"


def _equal_arrays(left: NDArray[Any], right: NDArray[Any]) -> bool:
    return left.shape == right.shape and not _different_rows(left, right).any()


def _decision_differences(manifest: Manifest, expected: Mapping[str, AppliedDecision]) -> Iterator[str]:
    stated = {decision.rule: decision for decision in manifest.decisions if decision.rule != BAD_SHARDS}
    for rule in {**stated, **expected}:
        if stated.get(rule) != expected.get(rule):
            yield f"decisions: {rule} is {_text_of(stated.get(rule))}; the raw files lead to {_text_of(expected.get(rule))}"


def _text_of(decision: AppliedDecision | None) -> str:
    return "missing" if decision is None else f"{decision.count:,} times {short_text(decision.text)}"


def _as_json(value: Any) -> Any:
    return json.loads(json.dumps(value))
