"""Episodes -> folder, streaming: the only place where a recording becomes a stored dataset."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

from datasets_rl import disk
from datasets_rl.errors import ConversionFailed
from datasets_rl.fetch.asset import Fetched
from datasets_rl.format.npy import NpyStream
from datasets_rl.format.writer import DatasetWriter
from datasets_rl.manifest import Applied, Manifest, RawFile, StoredFile
from datasets_rl.progress import Report
from datasets_rl.rows import Column, Schema
from datasets_rl.sources._base import Entry, Recording

__all__ = ["convert", "converted_bytes"]

_METADATA_FOLDER = "metadata"


def convert(recording: Recording, folder: Path, entry: Entry, raw: Sequence[Fetched], report: Report) -> Manifest:
    """Write a recording as a dataset into an empty folder; the manifest comes last.

    Args:
        recording: The opened upstream files.
        folder: Where the dataset is made, empty.
        entry: What the catalog knows of it.
        raw: The upstream files, for the provenance.
        report: Called with each number of further steps.

    Returns:
        The manifest that was written.

    Raises:
        ConversionFailed: If the upstream files break their own format.
        DiskFull: If the dataset does not fit.
    """
    if recording.steps is not None:
        disk.require_free(folder, converted_bytes(recording.columns, recording.steps), "the converted dataset")
    writer = DatasetWriter(folder, recording.columns, what=entry.id, steps=recording.steps)
    try:
        for piece in recording.episodes():
            writer.append(piece)
            report(len(piece))
        written = writer.finish()
    finally:
        writer.discard()
    metadata, metadata_files = _write_metadata(folder, recording.metadata)
    manifest = Manifest(
        id=entry.id,
        steps=written.steps,
        episodes=written.episodes,
        final_unknown=written.final_unknown,
        schema=written.schema,
        files=(*written.files, *metadata_files),
        raw=tuple(_raw_file(file) for file in raw),
        converter=_version(),
        decisions=tuple(Applied(one.rule, one.text, one.count) for one in recording.decisions),
        faults=entry.faults,
        statistics=written.statistics,
        specs=_specs(written.schema),
        metadata=metadata,
        licence=entry.licence,
        citation=entry.citation,
        homepage=entry.homepage,
        time_limit=entry.time_limit,
    )
    manifest.write(folder)
    return manifest


def converted_bytes(columns: Sequence[Column], steps: int) -> int:
    """Return about how many bytes a dataset of these columns takes: exact but for the records of its episodes."""
    schema = Schema.layout(columns)
    a_step = schema.record_bytes + 8 + sum(field.step_bytes for field in schema.wide)
    return steps * a_step


def _raw_file(file: Fetched) -> RawFile:
    return RawFile(file.asset.path, file.size, file.sha256, file.url, file.checked, file.etag)


def _version() -> str:
    try:
        return version("datasets-rl")
    except PackageNotFoundError:  # imported from a source tree that is not installed
        return "0"


def _specs(schema: Schema) -> dict[str, Any]:
    return {
        field.name: {
            "kind": "discrete" if field.dtype.kind == "b" else "unbounded",
            "dtype": (field.read_as or field.dtype).name,
            "shape": list(field.shape),
        }
        for field in schema
    }


def _write_metadata(folder: Path, metadata: Mapping[str, Any]) -> tuple[dict[str, Any], list[StoredFile]]:
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
                entries[name] = _scalar(value.item())
                continue
            stream.append(value)
            stored = stream.close()
            relative = path.relative_to(folder).as_posix()
            files.append(StoredFile(relative, stored.bytes, stored.sha256))
            entries[name] = {"file": relative}
        else:
            entries[name] = _scalar(value)
    return entries, files


def _scalar(value: Any) -> Any:
    # JSON has no NaN and no infinity; their names keep the manifest readable by everyone.
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _file_name(name: str) -> str:
    parts = [re.sub(r"[^A-Za-z0-9_.-]", "_", part) for part in name.split("/")]
    if any(part.strip(".") == "" for part in parts):
        raise ConversionFailed(name, [f"metadata name {name!r} is not a file name"])
    return "/".join(parts)
