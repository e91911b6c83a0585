"""Episodes -> folder, streaming: the only place where recordings become a stored dataset."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

import numpy as np

from datasets_rl import disk
from datasets_rl.errors import ConversionError, InvalidArgumentError
from datasets_rl.fetch.asset import Asset, Fetched
from datasets_rl.format.manifest import AppliedDecision, Manifest, RawFile, StoredFile, converter_version
from datasets_rl.format.npy import NpyStream
from datasets_rl.format.schema import NAME_BYTES, Column, Schema
from datasets_rl.format.writer import Commit, DatasetWriter, Written
from datasets_rl.pipeline.engines import Engine, WorkerDiedError
from datasets_rl.pipeline.journal import Journal
from datasets_rl.pipeline.partial import partials_folder
from datasets_rl.pipeline.shards import (
    FetchedShard,
    Get,
    LocalShard,
    ReaderSpec,
    WorkerShard,
    WorkerShards,
    in_order,
    write,
)
from datasets_rl.progress import Report
from datasets_rl.sources.base import Entry, EpisodeReader, Listing, Selection
from datasets_rl.sources.selection import Numbers
from datasets_rl.ted.episode import DeferredStates, Episode
from datasets_rl.ted.episode_batch import EpisodeBatch
from datasets_rl.ted.keys import Key

__all__ = ["ConversionJob", "convert", "converted_bytes", "merged", "stated_specs", "stated_value", "write_metadata"]

_METADATA_FOLDER = "metadata"
_UNSEEN = Report()


@dataclass(frozen=True, slots=True)
class ConversionJob:
    """A dataset that is to be made."""

    entry: Entry
    listing: Listing
    selection: Selection = field(default_factory=Selection)

    @property
    def opening(self) -> ReaderSpec:
        """How its files are opened."""
        return ReaderSpec(self.entry.source, self.entry.name, self.listing)

    @property
    def key(self) -> str:
        """Say what is made of what, so that only a conversion of the same is gone on with."""
        assets = [[one.path, one.size, one.sha256, one.md5, _changed(one)] for one in self.listing.assets]
        shards = [[shard.paths, shard.part] for shard in self.listing.shards]
        params = [self.entry.id, converter_version(), self.listing.revision, self.selection.to_json()]
        return hashlib.sha256(json.dumps([params, assets, shards, self.listing.params]).encode()).hexdigest()


def _changed(asset: Asset) -> int | None:
    """Return when a file of the user's was last changed: nobody says its digest beforehand."""
    paths = [Path(url2pathname(urlsplit(url).path)) for url in asset.urls if url.startswith("file:")]
    return next((path.stat().st_mtime_ns for path in paths if path.is_file()), None)


def convert(
    work: ConversionJob,
    groups: Sequence[Sequence[Asset]],
    get: Get,
    folder: Path,
    *,
    journal: Journal | None = None,
    engine: Engine | None = None,
    parts: Path | None = None,
    report: Report = _UNSEEN,
    committed: Callable[[FetchedShard], object] = bool,
) -> Manifest:
    """Write the shards of a dataset into a folder, one behind the other; the manifest comes last.

    Args:
        work: What is converted.
        groups: The files that come for each shard that the journal does not have.
        get: Fetches a group.
        folder: Where the dataset is made: empty, or as an earlier process with the same journal left it.
        journal: Has an entry for each shard that is on the disk already, and gets one for each further shard.
        engine: Makes a part of each shard; by default this process reads them. What is written does not depend on it.
        parts: A folder that the engine sees; there the parts lie until their turn comes. Episodes that are chosen by
            their numbers over all shards allow no parts.
        report: Called with each number of further steps.
        committed: Called for each shard whose rows are on the disk to stay.

    Returns:
        The manifest that was written.

    Raises:
        ConversionError: If the upstream files break their own format.
        FetchError, IntegrityError: If files cannot be had.
        DiskFullError: If the dataset does not fit.
    """
    entries = list(journal.entries) if journal is not None else []
    making = None
    if engine is not None and parts is not None:
        making = WorkerShards(engine, partials_folder(parts, work.key), work.selection, report)
    left = work.listing.shards[len(entries) :]
    if not left:
        raise ConversionError(work.entry.id, ["it has no shard"])
    with ExitStack() as stack:
        shards = stack.enter_context(closing(in_order(work.opening, left, groups, get, making)))
        first = stack.enter_context(next(shards))
        reader = first.open()
        chosen = _Chosen(work.listing.numbers, entries[-1]["seen"] if entries else 0)
        kept = work.selection.kept_keys([column.key for column in reader.columns])
        writer = _writer(work, reader, kept, folder, [entry["commit"] for entry in entries], report)
        stack.callback(writer.discard)
        for shard in chain([first], shards):
            with shard:
                decisions = _write(writer, shard, chosen, kept, report)
            raw = [asdict(_raw_file(file)) for file in shard.ready.fetched]
            entries.append({"raw": raw, "decisions": decisions, "seen": chosen.seen})
            if chosen.complete:
                break
            # The last one is not: what a kill then leaves has a shard whose columns and metadata can be read.
            if journal is not None and len(entries) < len(work.listing.shards):
                journal.add({**entries[-1], "commit": writer.commit()})
                committed(shard.ready)
            if isinstance(shard, WorkerShard):
                shard.remove()
        written = writer.finish()
    if (said := _steps(work, reader)) not in {None, written.steps}:
        problem = f"it has {written.steps:,} steps; the upstream says {said:,}"
        raise ConversionError(work.entry.id, [problem])
    manifest = _manifest(work, reader, written, folder, entries)
    manifest.write(folder)
    return manifest


def _write(
    writer: DatasetWriter, shard: LocalShard | WorkerShard, chosen: _Chosen, kept: Collection[Key], report: Report
) -> list[dict[str, Any]]:
    """Write what is wanted of a shard, and return the decisions that were taken."""
    if isinstance(shard, WorkerShard):
        made = _made(shard, writer)
        report((0 if made is None else made["commit"]["steps"]) - shard.told.done)
        if made is not None:
            writer.append_partial(shard.folder, made["commit"])
            chosen.seen += len(made["commit"]["lengths"])
            return list(made["decisions"])
    for piece in shard.pieces():
        if isinstance(piece, DeferredStates):
            write(writer, piece, kept)
            continue
        wanted = chosen.pick(piece) if isinstance(piece, EpisodeBatch) else chosen.take(piece)
        report(0 if wanted is None else write(writer, wanted, kept))
    return [asdict(one) for one in shard.open().decisions]


def _made(part: WorkerShard, writer: DatasetWriter) -> Mapping[str, Any] | None:
    """Return what was said of a part; None if it cannot be used, which reading the shard tells as it is always told."""
    try:
        said = part.made()
    except WorkerDiedError as error:
        problem = f"the process that read its files {error.how}"
        raise ConversionError(part.opening.id, [problem], hint=error.hint) from error
    except ConversionError:
        return None
    return said if said["schema"] == writer.schema.to_json() else None


class _Chosen:
    """Takes trajectories by their numbers over all shards, where no shard knows how many come before it.

    Args:
        numbers: Those that are wanted; None for all, and all come as they are.
        seen: How many came from earlier shards.
    """

    def __init__(self, numbers: Numbers | None, seen: int) -> None:
        self._wanted = numbers
        self.seen = seen

    def take(self, piece: Episode) -> Episode | None:
        """Return a piece with the number of its trajectory, or None if that is not wanted."""
        number = self.seen
        self.seen += not piece.continues
        if self._wanted is None:
            return piece
        return replace(piece, metadata={**piece.metadata, "source": number}) if number in self._wanted else None

    def pick(self, block: EpisodeBatch) -> EpisodeBatch | None:
        """Return those that are wanted of several trajectories, with their numbers."""
        if self._wanted is None:
            self.seen += len(block)
            return block
        numbers = np.arange(self.seen, self.seen + len(block))
        self.seen += len(block)
        chosen = np.array([number in self._wanted for number in numbers.tolist()], np.bool_)
        return replace(block, metadata={**block.metadata, "source": numbers}).pick(chosen) if chosen.any() else None

    @property
    def complete(self) -> bool:
        """Whether all that are wanted have come."""
        return self._wanted is not None and self.seen > self._wanted.last


def _writer(
    work: ConversionJob,
    reader: EpisodeReader,
    kept: Collection[Key],
    folder: Path,
    commits: Sequence[Commit],
    report: Report,
) -> DatasetWriter:
    """Make the writer, or go on with what an earlier process wrote."""
    columns = [column for column in reader.columns if column.key in kept]
    try:
        Schema.layout(columns)
    except InvalidArgumentError as error:
        # The columns are those of the upstream's files, and no argument of the caller makes them right.
        raise ConversionError(work.entry.id, [error.message], hint="leave the field out with --keys") from error
    for name, value in reader.metadata.items():
        if isinstance(value, np.ndarray):
            _file_name(name)  # before hours of work, not after them
    steps = _steps(work, reader)
    if steps is not None:
        there = commits[-1]["steps"] if commits else 0
        disk.require_free(folder, converted_bytes(columns, steps - there), "the converted dataset")
        report.expect(steps)
        report(there)
    return DatasetWriter(folder, columns, what=work.entry.id, steps=steps, commits=commits)


def _steps(work: ConversionJob, reader: EpisodeReader) -> int | None:
    """Return how many steps will come, where it is known."""
    alone = len(work.listing.shards) == 1
    return reader.steps if work.listing.steps is None and alone else work.listing.steps


def _manifest(
    work: ConversionJob, reader: EpisodeReader, written: Written, folder: Path, entries: Sequence[Mapping[str, Any]]
) -> Manifest:
    entry = work.entry
    metadata, metadata_files = write_metadata(folder, reader.metadata)
    decisions = merged(AppliedDecision(**decision) for made in entries for decision in made["decisions"])
    return Manifest(
        id=entry.id,
        steps=written.steps,
        episodes=written.episodes,
        final_unknown=written.final_unknown,
        schema=written.schema,
        files=(*written.files, *metadata_files),
        # A shard that was fetched again after a kill names a file that an earlier one named already.
        raw=tuple({file["path"]: RawFile(**file) for made in entries for file in made["raw"]}.values()),
        converter=converter_version(),
        decisions=tuple(decisions.values()),
        known_issues=entry.known_issues,
        statistics=written.statistics,
        specs=stated_specs(written.schema, reader.specs()),
        metadata=metadata,
        license=entry.license,
        citation=entry.citation,
        homepage=entry.homepage,
        time_limit=entry.time_limit,
        selection=work.selection.to_json(),
        revision=work.listing.revision,
        score={} if entry.score is None else asdict(entry.score),
    )


def merged(decisions: Iterable[AppliedDecision]) -> dict[str, AppliedDecision]:
    """Return the decisions of all shards by their rules, with the counts added up."""
    found: dict[str, AppliedDecision] = {}
    for one in decisions:
        before = found.get(one.rule)
        found[one.rule] = one if before is None else replace(before, count=before.count + one.count)
    return found


def converted_bytes(columns: Sequence[Column], steps: int) -> int:
    """Return about how many bytes a dataset of these columns takes: exact but for the records of its episodes."""
    schema = Schema.layout(columns)
    a_step = schema.record_bytes + 8 + sum(field.least_bytes for field in schema.wide)
    return steps * a_step


def _raw_file(file: Fetched) -> RawFile:
    return RawFile(file.asset.path, file.size, file.sha256, file.url, file.checked, file.etag)


def stated_specs(schema: Schema, known: Mapping[str, Any]) -> dict[str, Any]:
    """Return the specs that a manifest states: those that the upstream knows, and what the dtypes allow."""
    return {
        field.name: known.get(field.name)
        or {
            "kind": "discrete" if field.dtype.kind == "b" else "unbounded",
            "dtype": (field.memory_dtype or field.dtype).name,
            "shape": list(field.shape),
        }
        for field in schema
    }


def write_metadata(folder: Path, metadata: Mapping[str, Any]) -> tuple[dict[str, Any], list[StoredFile]]:
    """Write what belongs to no step: arrays into files, and return the entries of the manifest and the files."""
    entries: dict[str, Any] = {}
    files: list[StoredFile] = []
    for name, value in metadata.items():
        if isinstance(value, np.ndarray):
            path = folder / _METADATA_FOLDER / f"{_file_name(name)}.npy"
            while path.exists():  # two names that differ only in characters that file names cannot have
                path = path.with_name(f"_{path.name}")
            path.parent.mkdir(parents=True, exist_ok=True)
            stream = NpyStream(path, value.dtype, value.shape[1:], len(value)) if value.ndim else None
            if stream is None:
                entries[name] = stated_value(value.item())
                continue
            stream.append(value)
            stored = stream.close()
            relative = path.relative_to(folder).as_posix()
            files.append(StoredFile(relative, stored.bytes, stored.sha256))
            entries[name] = {"file": relative}
        else:
            entries[name] = stated_value(value)
    return entries, files


def stated_value(value: Any) -> Any:
    """Return metadata that is no array as a manifest states it."""
    # JSON has no NaN and no infinity; their names keep the manifest readable by everyone.
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _file_name(name: str) -> str:
    parts = [re.sub(r"[^A-Za-z0-9_.-]", "_", part) for part in name.split("/")]
    if any(part.strip(".") == "" for part in parts):
        raise ConversionError(name, [f"metadata name {name!r} is not a file name"])
    if (size := len("/".join(parts))) > NAME_BYTES:
        problem = f"a name of {size:,} characters cannot be that of a file; expected {NAME_BYTES} at most"
        raise ConversionError(f"{name[:40]}...", [problem])
    return "/".join(parts)
