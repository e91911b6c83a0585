"""A comparison of the episode table and the manifest of a stored dataset with its raw files, which are read again.

`Source.compare` checks the values of the steps with separate code. This module checks everything else with the reader
that converted the dataset, one batch of episodes at a time, and writes nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, fields, replace
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

from datasets_rl import sources
from datasets_rl.build.conversion import catalog_specs, json_value, merge_decisions, specs_of_schema
from datasets_rl.errors import ConversionError, FetchError, InvalidArgumentError, UnknownKeyError
from datasets_rl.fetch.asset import Asset, Folder
from datasets_rl.fetch.upstream import Upstream
from datasets_rl.format.manifest import AppliedDecision, Manifest, converter_version
from datasets_rl.format.npy import map_npy
from datasets_rl.format.reader import StoredDataset
from datasets_rl.format.schema import Column, Field, short_text, stored_column
from datasets_rl.progress import Report
from datasets_rl.remedy import Argument, Remedy
from datasets_rl.settings import Settings
from datasets_rl.sources import Entry, EpisodeReader, Listing, Selection
from datasets_rl.ted.episode import DeferredStates, EncodedImages, Episode, TextStates, zero_unknown_states
from datasets_rl.ted.episode_batch import EpisodeBatch
from datasets_rl.ted.keys import EPISODE, NEXT_DONE, Key
from datasets_rl.ted.steps import split_states

ENTRY_FIELDS = ("license", "citation", "homepage", "known_issues", "score", "time_limit")
"""The fields of a manifest that are copied from the catalog entry of the dataset, `Entry`."""
_BATCH_EPISODES = 1024
_BATCH_BYTES = 8 << 20
_KEEP_RAW = Remedy("download it with {}, which keeps all raw files", Argument("keep_raw", True))
_TABLE_FIELDS = frozenset({"start", "length", "return", "source", "final_known"})


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


def reread_differences(stored: StoredDataset, files: Mapping[str, Path], report: Report) -> Iterator[str]:
    """Read all raw files again, and yield their differences from the episode table and the manifest.

    This compares the catalog entry, schema, specs, metadata and decisions; and for every episode its length, whether
    its final observation is known, its final states, and its metadata.

    Args:
        stored: The dataset, with all episodes of its raw files; fields may have been left out.
        files: The path of each of its raw files.
        report: Called with each number of further steps.

    Raises:
        FetchError, ConversionError: If the source needs a file that is not among the raw files.
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
            listing = origin.resolve(name, selection, _LocalUpstream(manifest, files, Path(aside))).narrow_to(selection)
    except (UnknownKeyError, InvalidArgumentError) as error:
        yield f"selection is {short_text(manifest.selection)}: {error.message}"
        return
    try:
        yield from entry_differences(manifest, listing.entry or origin.entry(name))
        yield from _contents_differences(stored, listing, selection, files, report)
    except (UnknownKeyError, InvalidArgumentError) as error:
        yield f"selection is {short_text(manifest.selection)}: {error.message}"
    except ConversionError as error:
        yield from error.problems


class _LocalUpstream(Upstream):
    """An upstream that consists of the available raw files. It never uses a network."""

    def __init__(self, manifest: Manifest, files: Mapping[str, Path], aside: Path) -> None:
        super().__init__(aside, aside / "upstream.json", settings=Settings(home=aside, offline=True, progress=False))
        self._revision = manifest.revision
        self._files = files

    def folder(self, path: str, urls: Sequence[str]) -> Folder:
        del urls
        names = sorted(name for name in self._files if not path or name.startswith(f"{path}/"))
        if not names:
            raise FetchError(path, [], hint=_KEEP_RAW)
        assets = (Asset((self._files[name].as_uri(),), name, self._files[name].stat().st_size) for name in names)
        return Folder("", self._revision, tuple(assets))

    def with_size(self, asset: Asset) -> Asset:
        return replace(asset, size=self._local_path(asset.path).stat().st_size)

    def text(self, asset: Asset) -> str:
        try:
            return self._local_path(asset.path).read_text("utf-8")
        except UnicodeDecodeError as error:
            raise ConversionError(asset.path, [f"it is not text: {error}"]) from error

    def _local_path(self, path: str) -> Path:
        if path not in self._files:
            raise FetchError(path, [], hint=_KEEP_RAW)
        return self._files[path]


def _contents_differences(
    stored: StoredDataset, listing: Listing, selection: Selection, files: Mapping[str, Path], report: Report
) -> Iterator[str]:
    manifest = stored.manifest
    expected_files = {asset.path for asset in listing.assets}
    if expected_files != files.keys():
        yield f"raw is {short_text(sorted(files))}; the dataset consists of {short_text(sorted(expected_files))}"
        return
    head, name = sources.split_id(manifest.id)
    origin = sources.get_source(head)
    decisions: list[AppliedDecision] = []
    episodes = _EpisodeComparison(stored)
    for number, shard in enumerate(listing.shards):
        own = {path: files[path] for path in (*listing.common, *shard.paths)}
        with origin.open(name, own, listing.params) as reader:
            if not number:
                problems = [*_schema_differences(manifest, reader, selection)]
                yield from problems
                if problems:
                    return
                yield from _metadata_differences(stored, reader)
            for piece in reader.episodes(shard.part):
                report(episodes.add(piece))
            if not number:
                yield from _spec_differences(manifest, reader, listing.entry or origin.entry(name))
            decisions += (AppliedDecision(**asdict(decision)) for decision in reader.decisions)
    yield from episodes.finish()
    expected = merge_decisions(decisions)
    stated = {decision.rule: decision for decision in manifest.decisions}
    # Another release of this package may word a decision differently.
    same_words = manifest.converter == converter_version()
    for rule in [*stated, *(rule for rule in expected if rule not in stated)]:
        found, wanted = stated.get(rule), expected.get(rule)
        if found is None or wanted is None or found.count != wanted.count or (same_words and found.text != wanted.text):
            yield f"decisions: {rule} is {_decision_text(found)}; the raw files lead to {_decision_text(wanted)}"


def _decision_text(applied: AppliedDecision | None) -> str:
    return "missing" if applied is None else f"{applied.count:,} times {short_text(applied.text)}"


def _schema_differences(manifest: Manifest, reader: EpisodeReader, selection: Selection) -> Iterator[str]:
    kept = selection.kept_keys([column.key for column in reader.columns])
    expected = {column.key: stored_column(column) for column in reader.columns if column.key in kept}
    stated = {field.key: _column_of(field) for field in manifest.schema if field.key not in {NEXT_DONE, EPISODE}}
    for key in [*stated, *(key for key in expected if key not in stated)]:
        if stated.get(key) != expected.get(key):
            yield f"schema: {'.'.join(key)} is {stated.get(key)}; the raw files have {expected.get(key)}"


def _column_of(field: Field) -> Column:
    return Column(**{attribute.name: getattr(field, attribute.name) for attribute in fields(Column)})


def _spec_differences(manifest: Manifest, reader: EpisodeReader, entry: Entry) -> Iterator[str]:
    expected = specs_of_schema(manifest.schema, reader.specs())
    # Datasets of earlier versions do not have the bounds of the catalog.
    bounded = expected | catalog_specs(entry.action, manifest.schema, manifest.statistics)
    for name, spec in expected.items():
        if manifest.specs.get(name) not in (_as_json(spec), _as_json(bounded[name])):
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
            same = is_file and _equal_values(map_npy(stored.folder / str(path)), value).all()
        else:
            same = entry == _as_json(json_value(value.item() if isinstance(value, np.ndarray) else value))
        if not same:
            yield f"metadata.{name} is {short_text(entry)}; the raw files have {short_text(value)}"


def _as_json(value: Any) -> Any:
    return json.loads(json.dumps(value))


def _equal_values(left: Any, right: Any) -> NDArray[np.bool_]:
    """Return elementwise equality, [...]: NaN equals NaN, and arrays of different shapes have no equal elements."""
    left, right = np.asarray(left), np.asarray(right)
    if left.shape != right.shape:
        return np.zeros(left.shape or (1,), np.bool_)
    same = np.asarray(left == right)
    if left.dtype.kind == "f" and right.dtype.kind == "f":
        same |= np.isnan(left) & np.isnan(right)
    return same


class _EpisodeComparison:
    """A comparison of the episodes of a dataset with those that a reader yields, in order, one batch at a time."""

    def __init__(self, stored: StoredDataset) -> None:
        self._stored = stored
        self._shared_fields = [field for field in stored.schema if field.shared]
        self._vocabulary = {
            field.key: np.array(stored.texts(field.key), object) for field in self._shared_fields if field.text
        }
        self._seen = 0
        self._open = 0
        self._bytes = 0
        self._lengths: list[int] = []
        self._known: list[bool] = []
        self._metadata: list[Mapping[str, Any]] = []
        self._finals: dict[Key, list[Any]] = {field.key: [] for field in self._shared_fields}
        self._names: set[str] = set()
        self._first: dict[str, tuple[str, int]] = {}

    def add(self, piece: Episode | DeferredStates | EpisodeBatch) -> int:
        """Add the next piece that the reader yields, and return its number of steps."""
        if isinstance(piece, DeferredStates):
            return 0
        if isinstance(piece, EpisodeBatch):
            self._compare_pending()
            final_states = {key: self._final_values(piece, key) for key in self._finals}
            self._compare_with_stored(piece.lengths, piece.final_known, piece.metadata, final_states)
            return piece.count
        steps = len(piece)
        self._open += steps
        if not piece.continues:
            self._lengths.append(self._open)
            self._known.append(piece.final_known)
            self._metadata.append(piece.metadata)
            for field in self._shared_fields:
                self._finals[field.key].append(_final_states_of(piece.states[field.key], steps, field))
                self._bytes += 0 if field.encoded else field.step_bytes
            self._open = 0
        if len(self._lengths) == _BATCH_EPISODES or self._bytes > _BATCH_BYTES:
            self._compare_pending()
        return steps

    def finish(self) -> Iterator[str]:
        """Yield the differences: each type once, with its first episode and the number of episodes."""
        self._compare_pending()
        table = self._stored.episodes
        if self._seen != len(table) or self._open:
            yield f"there are {len(table):,} episodes; the raw files have {self._seen:,}"
        for name in sorted(self._names ^ (set(table.names) - _TABLE_FIELDS)):
            yield f"{name} of the episodes is {'missing' if name in self._names else 'not in the raw files'}"
        yield from (f"{text} ({count:,} such episodes)" for text, count in self._first.values())

    def _final_values(self, batch: EpisodeBatch, key: Key) -> Any:
        """Return the final states of a batch: encoded images as bytes, and texts as strings."""
        final_states = zero_unknown_states(batch.final_states[key], batch.final_known)
        if isinstance(final_states, EncodedImages):
            return list(final_states.images)
        return np.array(batch.vocabulary[key], object)[final_states] if key in batch.vocabulary else final_states

    def _compare_pending(self) -> None:
        if not self._lengths:
            return
        names = dict.fromkeys(name for values in self._metadata for name in values)
        metadata = {name: np.array([values.get(name, 0) for values in self._metadata]) for name in names}
        final_states: dict[Key, Any] = dict(self._finals)
        for field in self._shared_fields:
            if field.text:
                final_states[field.key] = np.array(self._finals[field.key], object)
            elif not field.encoded:
                final_states[field.key] = np.stack(self._finals[field.key])
        self._compare_with_stored(np.array(self._lengths), np.array(self._known), metadata, final_states)
        self._bytes = 0
        self._lengths, self._known, self._metadata = [], [], []
        self._finals = {field.key: [] for field in self._shared_fields}

    def _compare_with_stored(
        self,
        lengths: NDArray[Any],
        final_known: NDArray[Any],
        metadata: Mapping[str, NDArray[Any]],
        final_states: Mapping[Key, Any],
    ) -> None:
        table = self._stored.episodes
        first, stop = self._seen, min(self._seen + len(lengths), len(table))
        self._seen += len(lengths)
        count = stop - first
        self._names |= metadata.keys() - _TABLE_FIELDS
        expected = {"source": np.arange(self._seen - len(lengths), self._seen), **metadata}
        expected |= {"length": lengths, "final_known": final_known}
        for name, values in expected.items():
            if name in table.names and count > 0:
                actual, correct = table[name][first:stop], values[:count].astype(table[name].dtype)
                self._record_difference(
                    f"{name} of the episodes", ~_equal_values(actual, correct), actual, correct, first
                )
        for field in self._shared_fields:
            if count > 0:
                actual, correct = self._stored_finals(field, first, stop), final_states[field.key][:count]
                wrong = _unequal_rows(actual, correct)
                self._record_difference(f"the final {field.name}", wrong, actual, correct, first)

    def _stored_finals(self, field: Field, first: int, stop: int) -> Any:
        if field.encoded:
            ends = self._stored.map(field.final_ends_file)
            data = self._stored.map(field.final_file)
            bounds = [int(ends[first - 1]) if first else 0, *(int(end) for end in ends[first:stop])]
            return [data[start:end].tobytes() for start, end in pairwise(bounds)]
        values = np.asarray(self._stored.final_states(field.key)[first:stop])
        return self._vocabulary[field.key][values] if field.text else values

    def _record_difference(self, part: str, wrong: NDArray[np.bool_], stored: Any, expected: Any, first: int) -> None:
        rows = np.flatnonzero(wrong)
        if len(rows):
            row = int(rows[0])
            values = f"{short_text(_as_plain_value(stored[row]))}; by the raw files {short_text(_as_plain_value(expected[row]))}"
            text, count = self._first.get(part, (f"{part}: episode {first + row:,} has {values}", 0))
            self._first[part] = (text, count + len(rows))


def _as_plain_value(value: Any) -> Any:
    return value.tolist() if isinstance(value, (np.ndarray, np.generic)) else value


def _unequal_rows(stored: Any, expected: Any) -> NDArray[np.bool_]:
    if isinstance(stored, list):
        return np.array([left != bytes(right) for left, right in zip(stored, expected, strict=True)], np.bool_)
    same = _equal_values(stored, expected)
    return np.asarray(~same.reshape(len(same), -1).all(axis=1))


def _final_states_of(states: Any, steps: int, field: Field) -> Any:
    """Return a final state as stored in the dataset; an unknown one is empty or consists of zeros."""
    if isinstance(states, EncodedImages):
        return states.images[steps] if len(states) > steps else b""
    if isinstance(states, TextStates):
        return states.vocabulary[int(states.codes[steps])] if len(states) > steps else ""
    _, final = split_states(states, steps)
    return np.zeros(field.shape, field.dtype) if final is None else final
