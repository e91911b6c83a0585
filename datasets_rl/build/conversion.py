"""The conversion of raw files into a stored dataset: each shard is fetched, read, appended and committed in turn."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from datasets_rl import disk
from datasets_rl.build.build import build
from datasets_rl.build.engines import Engine, useful_job_count
from datasets_rl.build.engines.local import LocalEngine
from datasets_rl.build.image_forms import BAD_SHARDS, FormChoice, ImageForms
from datasets_rl.build.journal import Journal
from datasets_rl.build.partial import prepare_partials
from datasets_rl.build.shards import EpisodeFilter, ReaderSpec, ShardOptions, open_in_order
from datasets_rl.disk import MANIFEST_FILE
from datasets_rl.errors import Argument, Call, ConversionError, InvalidArgumentError, Remedy
from datasets_rl.fetch.asset import LOCAL, Asset
from datasets_rl.fetch.fetcher import Fetcher
from datasets_rl.fetch.schemes.base import path_of_url
from datasets_rl.format.digests import METADATA_FOLDER
from datasets_rl.format.manifest import (
    AppliedDecision,
    Manifest,
    RawFile,
    StoredFile,
    array_file,
    converter_version,
)
from datasets_rl.format.npy import NpyStream, map_npy
from datasets_rl.format.schema import NAME_BYTES, Column, Schema
from datasets_rl.format.space_summary import SpaceSummary
from datasets_rl.format.writer import Commit, DatasetSummary, DatasetWriter
from datasets_rl.progress import Report
from datasets_rl.read.streams import first_problems
from datasets_rl.settings import Settings
from datasets_rl.sources.base import Decision, Entry, EpisodeReader, Listing, Selection
from datasets_rl.sources.selection import IMAGES, MIN_RATIO
from datasets_rl.ted.keys import ACTION, NEXT_REWARD, dotted_name

_SILENT = Report()
_BAD_SHARDS_TEXT = "files with images that take more than a quarter of the bytes of their pixels, although the images of the first rows take less"
_LEAVE_OUT = Remedy("leave the field out with {}", Argument("selection", Call("Selection", keys=...)))


@dataclass(frozen=True, slots=True)
class ConversionJob:
    """A dataset to convert, with its upstream files and the selection of the user."""

    entry: Entry
    listing: Listing
    selection: Selection = field(default_factory=Selection)

    @property
    def spec(self) -> ReaderSpec:
        """The reader spec, which opens the files of the dataset."""
        return ReaderSpec(self.entry.source, self.entry.name, self.listing)

    @property
    def key(self) -> str:
        """A digest of the input and the code: only a conversion with the same key is resumed."""
        assets = [
            [asset.path, asset.size, asset.sha256, asset.md5, _modification_time(asset)]
            for asset in self.listing.assets
        ]
        shards = [[shard.paths, shard.part] for shard in self.listing.shards]
        identity = [self.entry.id, converter_version(), self.listing.revision, self.selection.to_json()]
        return hashlib.sha256(json.dumps([identity, assets, shards, self.listing.params]).encode()).hexdigest()


def _modification_time(asset: Asset) -> int | None:
    """Return the modification time of a local file in nanoseconds, which replaces the digest until the file is read."""
    paths = [path_of_url(url) for url in asset.urls if url.startswith(LOCAL)]
    return next((path.stat().st_mtime_ns for path in paths if path.is_file()), None)


def convert(
    job: ConversionJob,
    fetcher: Fetcher,
    folder: Path,
    *,
    work: Path | None = None,
    engine: Engine | None = None,
    settings: Settings | None = None,
    keep_raw: bool = True,
    report: Report = _SILENT,
) -> Manifest:
    """Convert a dataset into a folder, shard by shard. The manifest is written last.

    Args:
        job: The dataset.
        fetcher: The fetcher of the raw files.
        folder: The folder of the result. With `work`, it may contain the files of an interrupted call.
        work: The folder of the journal and of partial datasets, by which an interrupted conversion of several shards is
            resumed. By default the conversion starts over.
        engine: The engine that reads the shards in other processes. By default processes of this machine read them if
            `settings` allow several and the files are large. The result does not depend on the engine.
        settings: The settings, which have the number of processes.
        keep_raw: Whether fetched files are kept once the rows are on the disk.
        report: Called with the number of steps since its last call.

    Returns:
        The manifest.

    Raises:
        ConversionError: If the upstream files violate their format.
        FetchError, IntegrityError: If files cannot be fetched.
        DiskFullError: If the dataset does not fit on the disk.
    """
    journal = Journal(work / "journal.jsonl", job.key) if work is not None and len(job.listing.shards) > 1 else None
    if journal is None:
        disk.remove_tree(folder)
    else:
        journal.roll_back(folder)
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with ExitStack() as stack:
            engine = _choose_engine(job, journal, engine, settings)
            partials = None
            if engine is not None and work is not None:
                stack.enter_context(engine)
                partials = prepare_partials(work / "partials", job.key)
            choice = _open_choice(job, work if journal is not None else None)
            if journal is not None and journal.entries and not choice.is_made:
                # The rows of the journal were written by a choice that is lost.
                disk.remove_tree(folder)
                folder.mkdir()
                journal.restart()
            return _convert(job, fetcher, folder, journal, choice, engine, partials, keep_raw=keep_raw, report=report)
    finally:
        if (journal is None or not journal.entries) and not (folder / MANIFEST_FILE).is_file():
            # No shard was committed, so that a further call has nothing to resume.
            disk.remove_tree(folder)
            if journal is not None:
                journal.delete()


def _open_choice(job: ConversionJob, work: Path | None) -> FormChoice:
    """Return the choice of the forms of images, with what an interrupted call has chosen in the folder of its work."""
    path = None if work is None else work / "image-forms.json"
    return FormChoice(job.entry.id, job.selection.options.get(IMAGES.name, ""), path, job.key)


def _choose_engine(
    job: ConversionJob, journal: Journal | None, engine: Engine | None, settings: Settings | None
) -> Engine | None:
    """Return the engine that reads the remaining shards, or None if this process reads them."""
    remaining = len(job.listing.shards) - (0 if journal is None else len(journal.entries))
    # Selecting episodes by number over all shards requires that a single process counts the episodes.
    if journal is None or remaining < 2 or job.listing.numbers is not None:
        return None
    if engine is not None or settings is None:
        return engine
    jobs = useful_job_count([asset.size for asset in job.listing.assets], len(job.listing.shards), settings.jobs)
    return LocalEngine(jobs) if jobs > 1 else None


def _convert(
    job: ConversionJob,
    fetcher: Fetcher,
    folder: Path,
    journal: Journal | None,
    choice: FormChoice,
    engine: Engine | None,
    partials: Path | None,
    *,
    keep_raw: bool,
    report: Report,
) -> Manifest:
    entries = [] if journal is None else list(journal.entries)
    remaining = job.listing.shards[len(entries) :]
    if not remaining:
        raise ConversionError(job.entry.id, ["the dataset has no shard"])
    episode_filter = EpisodeFilter(job.spec, job.selection, entries[-1]["seen"] if entries else 0)
    options = ShardOptions(job.spec, job.selection, episode_filter, fetcher, report, choice, keep_raw, engine, partials)
    with ExitStack() as stack:
        shards = stack.enter_context(closing(open_in_order(options, remaining)))
        first = stack.enter_context(next(shards))
        reader = first.open()
        writer = _open_writer(job, reader, folder, choice.forms, [entry["commit"] for entry in entries], report)
        stack.callback(writer.discard)
        entries = build(
            chain([first], shards), writer, journal, len(job.listing.shards), lambda: episode_filter.complete
        )
        decisions = [Decision(**decision) for entry in entries for decision in entry["decisions"]]
        try:
            written = writer.finish()
        except ConversionError as error:
            reasons = first_problems([decision.text for decision in merge_decisions(decisions).values()], "decisions")
            raise ConversionError(error.name, [*error.problems, *reasons], hint=error.remedy) from error
    if (stated := _stated_steps(job, reader)) not in {None, written.steps}:
        problem = f"the files have {written.steps:,} steps, expected {stated:,} as the upstream states"
        raise ConversionError(job.entry.id, [problem])
    commits = [] if journal is None else [entry["commit"] for entry in journal.entries]
    if count := _badly_compressed_shards(choice.forms, written, commits):
        decisions.append(Decision(BAD_SHARDS, _BAD_SHARDS_TEXT, count))
    manifest = build_manifest(job, reader, written, folder, entries, decisions)
    manifest.write(folder)
    return manifest


def _open_writer(
    job: ConversionJob,
    reader: EpisodeReader,
    folder: Path,
    forms: ImageForms,
    commits: Sequence[Commit],
    report: Report,
) -> DatasetWriter:
    """Create the writer, which continues after the rows that an earlier process committed."""
    columns = forms.columns(column for column in reader.columns if column.key in reader.kept)
    try:
        Schema.layout(columns)
    except InvalidArgumentError as error:
        # The columns come from the upstream files, so that the arguments of the caller are not the cause.
        raise ConversionError(job.entry.id, [error.message], hint=_LEAVE_OUT) from error
    for name, value in reader.metadata.items():
        if isinstance(value, np.ndarray):
            _metadata_file_name(name)  # fails now instead of after hours of conversion
    steps = _stated_steps(job, reader)
    if steps is not None:
        committed = commits[-1]["steps"] if commits else 0
        size = converted_bytes(columns, steps - committed) + int(forms.compressed_bytes * (steps - committed))
        disk.require_free(folder, size, "the converted dataset")
        report.set_total(steps)
        report(committed)
    return DatasetWriter(
        folder, columns, name=job.entry.id, steps=steps, commits=commits, dictionaries=forms.dictionaries
    )


def _stated_steps(job: ConversionJob, reader: EpisodeReader) -> int | None:
    """Return the number of steps of the dataset, or None if the upstream does not state it."""
    single_shard = len(job.listing.shards) == 1
    return reader.steps if job.listing.steps is None and single_shard else job.listing.steps


def build_manifest(
    job: ConversionJob,
    reader: EpisodeReader,
    written: DatasetSummary,
    folder: Path,
    entries: Sequence[Mapping[str, Any]],
    decisions: Sequence[Decision],
) -> Manifest:
    """Return the manifest of a converted dataset, and write the arrays of its metadata into the folder.

    Args:
        job: The conversion.
        reader: The reader of the first shard.
        written: The rows.
        folder: The folder of the dataset.
        entries: The entries of the journal.
        decisions: The decisions of all shards.
    """
    entry = job.entry
    metadata, metadata_files = write_metadata(folder, reader.metadata)
    return Manifest(
        id=entry.id,
        steps=written.steps,
        episodes=written.episodes,
        final_unknown=written.final_unknown,
        schema=written.schema,
        files=(*written.files, *metadata_files),
        # Keyed by path: a shard that is fetched again after a kill lists files that an earlier shard has listed.
        raw=tuple({file["path"]: RawFile(**file) for shard in entries for file in shard["raw"]}.values()),
        converter=converter_version(),
        decisions=tuple(merge_decisions(decisions).values()),
        known_issues=entry.known_issues,
        statistics=written.statistics,
        spikes=written.spikes,
        specs=specs_of_schema(
            written.schema, {**catalog_specs(entry.action, written.schema, written.statistics), **reader.specs()}
        ),
        metadata=metadata,
        license=entry.license,
        citation=entry.citation,
        homepage=entry.homepage,
        time_limit=entry.time_limit,
        selection=job.selection.to_json(),
        revision=job.listing.revision,
        score={} if entry.score is None else asdict(entry.score),
    )


def _badly_compressed_shards(forms: ImageForms, written: DatasetSummary, commits: Sequence[Commit]) -> int:
    """Return the number of shards of which a field was compressed by measurement, but has far larger images.

    Args:
        forms: The forms of the images.
        written: The rows of all shards.
        commits: The state after each shard except the last.
    """
    sizes = {file.path: file.bytes for file in written.files}
    rows = np.diff([0, *(commit["steps"] for commit in commits), written.steps])
    bad = np.zeros(len(rows), np.bool_)
    for field_ in written.schema:
        if field_.image_form.has_dictionary and forms.fields[field_.key].image_bytes <= field_.step_bytes / MIN_RATIO:
            bytes_ = np.diff([0, *(commit["rows"][field_.file] for commit in commits), sizes[field_.file]])
            bad |= (rows > 0) & (bytes_ > rows * (field_.step_bytes / MIN_RATIO))
    return int(bad.sum())


def merge_decisions(decisions: Iterable[Decision]) -> dict[str, AppliedDecision]:
    """Return the decisions of all shards by rule, with summed counts. A decision on the whole dataset counts once."""
    by_rule: dict[str, AppliedDecision] = {}
    for decision in decisions:
        earlier = by_rule.get(decision.rule)
        if earlier is None:
            by_rule[decision.rule] = AppliedDecision(decision.rule, decision.text, decision.count)
        elif not decision.of_dataset:
            by_rule[decision.rule] = replace(earlier, count=earlier.count + decision.count)
    return by_rule


def converted_bytes(columns: Sequence[Column], steps: int) -> int:
    """Return the estimated size of a dataset with these columns in bytes, without the records of its episodes."""
    schema = Schema.layout(columns)
    step_bytes = schema.record_bytes + 8 + sum(field.min_step_bytes for field in schema.wide)
    return steps * step_bytes


def specs_of_schema(schema: Schema, upstream_specs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the specs for the manifest: those known from the upstream, else specs from dtype and shape."""
    specs = {field.name: upstream_specs.get(field.name) or spec_of_field(field) for field in schema}
    reward = schema[NEXT_REWARD]
    if specs[reward.name].get("dtype") != reward.dtype.name:
        specs[reward.name] = spec_of_field(reward)  # stored as floating point, unlike upstream
    return specs


def catalog_specs(
    action: SpaceSummary | None, schema: Schema, statistics: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    """Return the spec of the action with the bounds of the catalog, empty without bounds, or if a value is outside."""
    if action is None or action.low is None or action.high is None or ACTION not in schema:
        return {}
    field, found = schema[ACTION], statistics.get(dotted_name(ACTION), {})
    extremes = np.array([found.get("min", math.nan), found.get("max", math.nan)], np.float64)
    if field.shape != action.shape or not ((action.low <= extremes) & (extremes <= action.high)).all():
        return {}
    return {dotted_name(ACTION): {**spec_of_field(field), "kind": "bounded", "low": action.low, "high": action.high}}


def spec_of_field(field: Column) -> dict[str, Any]:
    """Return the spec that follows from the dtype and shape of a field alone."""
    return {
        "kind": "discrete" if field.dtype.kind == "b" else "unbounded",
        "dtype": field.read_dtype.name,
        "shape": list(field.shape),
    }


def write_metadata(folder: Path, metadata: Mapping[str, Any]) -> tuple[dict[str, Any], list[StoredFile]]:
    """Write the metadata of a dataset, arrays as files. Return the metadata entries of the manifest, and the files."""
    entries: dict[str, Any] = {}
    files: list[StoredFile] = []
    for name, value in metadata.items():
        if isinstance(value, np.ndarray):
            path = folder / METADATA_FOLDER / f"{_metadata_file_name(name)}.npy"
            while path.exists():  # two names may differ only in characters that are replaced in file names
                path = path.with_name(f"_{path.name}")
            path.parent.mkdir(parents=True, exist_ok=True)
            stream = NpyStream(path, value.dtype, value.shape[1:], len(value)) if value.ndim else None
            if stream is None:
                entries[name] = json_value(value.item())
                continue
            stream.append(value)
            stored = stream.close()
            relative = path.relative_to(folder).as_posix()
            files.append(replace(stored, path=relative))
            entries[name] = {"file": relative}
        else:
            entries[name] = json_value(value)
    return entries, files


def read_metadata(folder: Path, metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metadata of a manifest with the arrays in memory, as for `write_metadata`."""
    return {
        name: np.array(map_npy(folder / file)) if (file := array_file(value)) else value
        for name, value in metadata.items()
    }


def json_value(value: Any) -> Any:
    """Return the JSON value by which the manifest states metadata other than arrays."""
    # JSON has no NaN and no infinity. As strings, they keep the manifest readable by every JSON parser.
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _metadata_file_name(name: str) -> str:
    parts = [re.sub(r"[^A-Za-z0-9_.-]", "_", part) for part in name.split("/")]
    if any(part.strip(".") == "" for part in parts):
        raise ConversionError(name, [f"metadata name {name!r} is not a file name"])
    if (size := len("/".join(parts))) > NAME_BYTES:
        problem = f"a metadata name of {size:,} characters is too long for a file name, expected {NAME_BYTES} at most"
        raise ConversionError(f"{name[:40]}...", [problem])
    return "/".join(parts)
