"""Chunks: large files of a stored dataset, cut into pieces for places where files are sent and resumed as a whole.

    manifest.json
    chunks.json              the chunks of every cut file, with their digests
    episodes.npy
    chunks/rows.npy/00000    the first `CHUNK_BYTES` bytes of rows.npy
    chunks/rows.npy/00001

The manifest is the manifest of the dataset, unchanged, with the size and digest of ``rows.npy``. The concatenated
chunks must agree with both. Files of at most the size of a chunk are not cut.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from datasets_rl.errors import ManifestError
from datasets_rl.format.manifest import Manifest, StoredFile
from datasets_rl.format.schema import short_text

CHUNKS_FILE = "chunks.json"
CHUNK_BYTES = 128 << 20
"""Size of a chunk: what a killed upload sends again at most, per connection. 1 TB has fewer than 10,000 chunks."""
_FORMAT = "datasets-rl/chunks"
_VERSION = 1
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Piece:
    """Part of a file of a stored dataset that is kept in a separate file."""

    path: str
    """Path of the piece, which is `file` if the file is not cut."""
    file: str
    """Path of the file of the dataset."""
    start: int
    """Offset of the piece in the file."""
    bytes: int
    sha256: str | None = None
    """SHA-256 of a chunk; None for a whole file, which has a digest of its ranges instead."""


@dataclass(frozen=True, slots=True)
class Chunks:
    """The cut files of a stored dataset."""

    bytes: int = CHUNK_BYTES
    """Size of every chunk but the last of each file."""
    files: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """SHA-256 digest of each chunk, by file."""

    def pieces(self, entry: StoredFile) -> Iterator[Piece]:
        """Yield the pieces of a file, in order."""
        if entry.path not in self.files:
            yield Piece(entry.path, entry.path, 0, entry.bytes)
            return
        for number, sha256 in enumerate(self.files[entry.path]):
            start = number * self.bytes
            size = min(self.bytes, entry.bytes - start)
            yield Piece(chunk_path(entry.path, number), entry.path, start, size, sha256)

    def to_json(self) -> dict[str, Any]:
        """Return the content of chunks.json."""
        files = {path: list(digests) for path, digests in self.files.items()}
        return {"format": _FORMAT, "format_version": _VERSION, "chunk_bytes": self.bytes, "files": files}

    @classmethod
    def from_json(cls, document: Any, manifest: Manifest, *, where: str = CHUNKS_FILE) -> Chunks:
        """Return the chunks in a document, which is not trusted.

        Raises:
            ManifestError: If the document does not describe chunks of files of the dataset. The error names all
                problems.
        """
        problems = list(_problems(document, manifest))
        if problems:
            raise ManifestError(where, problems)
        return cls(document["chunk_bytes"], {path: tuple(digests) for path, digests in document["files"].items()})


def chunk_path(path: str, number: int) -> str:
    """Return the path of a chunk of a file."""
    return f"chunks/{path}/{number:05}"


def _problems(document: Any, manifest: Manifest) -> Iterator[str]:
    if not isinstance(document, dict) or (document.get("format"), document.get("format_version")) != (
        _FORMAT,
        _VERSION,
    ):
        yield f"the document is not a list of chunks of the format {_FORMAT} {_VERSION}"
        return
    size, files = document.get("chunk_bytes"), document.get("files")
    if type(size) is not int or size < 1:
        yield f"chunk_bytes is {short_text(size)}, expected an integer >= 1"
    elif not isinstance(files, dict):
        yield f"files is {short_text(files)}, expected an object"
    else:
        for path, digests in files.items():
            yield from _file_problems(path, digests, manifest.file(path), size)


def _file_problems(path: str, digests: Any, entry: StoredFile | None, size: int) -> Iterator[str]:
    if entry is None:
        yield f"{short_text(path)} is not a file of the manifest"
        return
    count = -(-entry.bytes // size)
    if not isinstance(digests, list) or len(digests) != count:
        stated = f"{len(digests)} chunks" if isinstance(digests, list) else short_text(digests)
        yield f"{path} has {stated}, expected {count:,} chunks of {size:,} bytes for {entry.bytes:,} bytes"
    elif not all(isinstance(digest, str) and _SHA256.fullmatch(digest) for digest in digests):
        yield f"{path} has a chunk whose digest is not a SHA-256 in lower-case hexadecimal"
