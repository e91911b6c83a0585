"""A file to have, and a folder of them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

__all__ = ["Asset", "Fetched", "Folder"]


@dataclass(frozen=True, slots=True)
class Asset:
    """A file to have, and how to know that it is the right one."""

    urls: tuple[str, ...]
    """Addresses in the order in which they are tried."""
    path: str
    """Where the file lies among the files of its dataset: a relative POSIX path without '..'."""
    size: int | None = None
    """Bytes, where known."""
    sha256: str | None = None
    """Lower-case hexadecimal digest, where known."""
    magic: bytes = b""
    """The first bytes of every file of this kind."""
    kind: str = "file"
    """What the file is, for messages: 'HDF5', 'npz'."""
    md5: str | None = None
    """Lower-case hexadecimal digest of an upstream that knows no sha256."""
    crc32c: str | None = None
    """Eight lower-case hexadecimal digits of an upstream that may know no digest at all."""


@dataclass(frozen=True, slots=True)
class Folder:
    """The files below an address, at one moment of the upstream."""

    address: str
    """What was listed, its revision pinned where the upstream has revisions."""
    revision: str
    """The commit, or nothing where every file has its own version in its address."""
    assets: tuple[Asset, ...]


@dataclass(frozen=True, slots=True)
class Fetched:
    """A file that is there, whole and checked."""

    asset: Asset
    path: Path
    """The file; outside the download folder where the address named a local file, which is used in place."""
    size: int
    sha256: str
    url: str
    """The address that gave it."""
    etag: str | None = None
    """The upstream's own version mark, where it sent one."""
    checked: str = "recorded"
    """'catalog' if the digest was compared with a known one, 'recorded' if none was known, 'skipped' if the user said so."""
