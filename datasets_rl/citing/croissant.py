"""croissant.json: a dataset in Croissant 1.1 with the fields of Responsible AI, which registries of datasets read.

The record sets describe Parquet tables, because readers of Croissant have no reader of NumPy's files. Without such tables
the document describes the files of the stored version alone.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from datasets_rl.catalog.licenses import spdx_id
from datasets_rl.citing.answers import (
    content_line,
    decision_lines,
    finding_lines,
    issue_lines,
    missing_lines,
    raw_lines,
    recipe_lines,
)
from datasets_rl.citing.statement import Statement
from datasets_rl.format.manifest import Manifest
from datasets_rl.hub.attached import version_mark
from datasets_rl.progress import Report

if TYPE_CHECKING:
    import pyarrow as pa

_TERMS = (
    "arrayShape",
    "citeAs",
    "column",
    "containedIn",
    "equivalentProperty",
    "extract",
    "field",
    "fileObject",
    "fileProperty",
    "fileSet",
    "format",
    "includes",
    "isArray",
    "isLiveDataset",
    "jsonPath",
    "key",
    "md5",
    "parentField",
    "path",
    "recordSet",
    "references",
    "regex",
    "repeated",
    "replace",
    "samplingRate",
    "separator",
    "source",
    "subField",
    "transform",
)
_CONTEXT: Mapping[str, Any] = {
    "@language": "en",
    "@vocab": "https://schema.org/",
    "cr": "http://mlcommons.org/croissant/",
    "dct": "http://purl.org/dc/terms/",
    "rai": "http://mlcommons.org/croissant/RAI/",
    "sc": "https://schema.org/",
    "conformsTo": "dct:conformsTo",
    "data": {"@id": "cr:data", "@type": "@json"},
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
    "description": {"@container": "@language"},
    "examples": {"@id": "cr:examples", "@type": "@json"},
    "name": {"@container": "@language"},
    **{name: f"cr:{name}" for name in _TERMS},
}
"""The context of the specification. Readers warn of another context."""
_CONFORMS = ("http://mlcommons.org/croissant/1.1", "http://mlcommons.org/croissant/RAI/1.0")
_NPY = "https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html"
_ENCODINGS = {".npy": _NPY, ".json": "application/json", ".mp4": "video/mp4", ".parquet": "application/x-parquet"}
"""Formats of files by suffix. A format without a registered name has the address of its specification."""
_KINDS = {"float": "Float", "int": "Int", "uint": "UInt"}


def croissant(
    statement: Statement, version: Path, tables: Sequence[Path] = (), *, base: Path, progress: Report
) -> dict[str, Any]:
    """Return the content of croissant.json.

    Args:
        statement: The facts of the dataset.
        version: The folder of the stored version, whose files are hashed.
        tables: Parquet tables, each a record set with the name of the file.
        base: The folder of croissant.json, to which the paths of the tables are relative.
        progress: Counts the bytes that are hashed.
    """
    manifest = statement.manifest
    files = [_file(version / one.path, one.path, _OF_VERSION, progress) for one in manifest.content_files]
    files += [_file(table, table.relative_to(base).as_posix(), _TABLE, progress) for table in tables]
    return {
        "@context": dict(_CONTEXT),
        "@type": "sc:Dataset",
        "conformsTo": [*_CONFORMS],
        "name": statement.id,
        "description": " ".join(
            [
                *([statement.description] if statement.description else []),
                f"{content_line(manifest)}: transitions for offline reinforcement learning.",
            ]
        ),
        "license": _license(statement),
        **({"url": manifest.homepage} if manifest.homepage else {}),
        "citeAs": _citation(statement),
        "datePublished": statement.year or statement.stored,
        "version": f"{statement.upstream_version or 0}.0.0{version_mark(manifest)}",
        "keywords": ["offline reinforcement learning", *([manifest.environment] if manifest.environment else [])],
        **_responsible(statement),
        "distribution": files,
        **(
            {"recordSet": [_record_set(table, table.relative_to(base).as_posix(), manifest) for table in tables]}
            if tables
            else {}
        ),
    }


_OF_VERSION = (
    "File of the stored version. The path is relative to the folder of the version. In a repository on the hub, "
    "chunks.json names the chunks of a large file."
)
_TABLE = "Narrow fields of the dataset. The path is relative to croissant.json."


def _file(path: Path, name: str, description: str, progress: Report) -> dict[str, Any]:
    return {
        "@type": "cr:FileObject",
        "@id": name,
        "name": name,
        "description": description,
        "contentUrl": name,
        "contentSize": f"{path.stat().st_size} B",
        "encodingFormat": _ENCODINGS.get(path.suffix, "application/octet-stream"),
        "sha256": _sha256(path, progress),
    }


def _sha256(path: Path, progress: Report) -> str:
    """Return the SHA-256 of a file. The digest in the manifest is of the digests of ranges, which readers do not know."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while block := stream.read(4 << 20):
            digest.update(block)
            progress(len(block))
    return digest.hexdigest()


def _record_set(table: Path, file: str, manifest: Manifest) -> dict[str, Any]:
    from pyarrow import parquet

    columns = [*_columns(table.stem, file, parquet.read_schema(table), manifest)]
    return {"@type": "cr:RecordSet", "@id": table.stem, "name": table.stem, "field": columns}


def _columns(table: str, file: str, schema: pa.Schema, manifest: Manifest) -> Iterator[dict[str, Any]]:
    for column in schema:
        kind, shape = column.type, []
        while hasattr(kind, "list_size"):
            shape.append(kind.list_size)
            kind = kind.value_type
        if (name := _type_name(str(kind.to_pandas_dtype().__name__), text=str(kind) == "string")) is None:
            continue
        field = next((one for one in manifest.schema if one.name == column.name), None)
        elements = manifest.element_names(field) if field is not None else ()
        yield {
            "@type": "cr:Field",
            "@id": f"{table}/{column.name}",
            "name": column.name,
            **({"description": f"Elements: {', '.join(elements)}"} if elements else {}),
            "dataType": name,
            **({"isArray": True, "arrayShape": ",".join(map(str, shape))} if shape else {}),
            "source": {"fileObject": {"@id": file}, "extract": {"column": column.name}},
        }


def _type_name(dtype: str, *, text: bool) -> str | None:
    """Return the type in Croissant of a NumPy dtype, or None if Croissant has none."""
    if text or dtype in {"bool", "bool_"}:
        return "sc:Text" if text else "sc:Boolean"
    found = re.fullmatch(r"(float|int|uint)(\d+)", dtype)
    return f"cr:{_KINDS[found[1]]}{found[2]}" if found else None


def _license(statement: Statement) -> str:
    if not statement.is_license_stated:
        return "not stated"
    text = statement.manifest.license
    known = spdx_id(text)
    return f"https://spdx.org/licenses/{known}" if known else text


def _citation(statement: Statement) -> str:
    if statement.citations:
        return "\n\n".join(one.bibtex for one in statement.citations)
    return f"{statement.id}, digest of the files {statement.manifest.files_digest}"


def _responsible(statement: Statement) -> dict[str, Any]:
    """Return the fields of Responsible AI that are stated."""
    manifest = statement.manifest
    protocol = decision_lines(manifest) + recipe_lines(manifest)
    fields = {
        "rai:dataCollection": f"{content_line(manifest)}.",
        "rai:dataCollectionRawData": "; ".join(raw_lines(manifest)),
        "rai:dataCollectionMissingData": "; ".join(missing_lines(manifest)),
        "rai:dataPreprocessingProtocol": protocol,
        "rai:dataLimitations": issue_lines(manifest) + finding_lines(statement),
    }
    return {name: value for name, value in fields.items() if value}
