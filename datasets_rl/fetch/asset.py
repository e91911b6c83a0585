"""Descriptions of upstream files: a file to fetch, a folder listing, and a fetched file."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

LOCAL = ("file:", "tar:")
"""How addresses of files of this machine begin."""
_MAGIC = {"HDF5": b"\x89HDF\r\n\x1a\n", "npz": b"PK", "zip": b"PK", "Parquet": b"PAR1"}
"""First bytes of the files of a format. Empty zip files and zip files with members share only the first two bytes."""


@dataclass(frozen=True, slots=True)
class Asset:
    """File to fetch, with the size and checksums that identify it."""

    urls: tuple[str, ...]
    """Addresses, in the order in which they are tried."""
    path: str
    """Path among the files of the dataset: a relative POSIX path without '..'."""
    size: int | None = None
    """Size in bytes, if known."""
    sha256: str | None = None
    """Lower-case hexadecimal digest, if known."""
    magic: bytes = b""
    """First bytes of every file of this format."""
    kind: str = "file"
    """Name of the format for messages: 'HDF5', 'npz'."""
    md5: str | None = None
    """Lower-case hexadecimal digest, for an upstream that publishes no sha256."""
    crc32c: str | None = None
    """Checksum as eight lower-case hexadecimal digits, for an upstream that may publish no digest."""

    @property
    def is_local(self) -> bool:
        """Whether the file is on this machine, possibly in an archive."""
        return bool(self.urls) and all(url.startswith(LOCAL) for url in self.urls)

    @property
    def is_packed(self) -> bool:
        """Whether the file is in a tar archive on this machine. Such files are copied out of the archive."""
        return bool(self.urls) and all(url.startswith("tar:") for url in self.urls)

    def of_kind(self, kind: str) -> Asset:
        """Return the asset with a format, ``HDF5``, ``npz``, ``zip`` or ``Parquet``. Its first bytes are checked later."""
        return replace(self, kind=kind, magic=_MAGIC[kind])


@dataclass(frozen=True, slots=True)
class Folder:
    """Listing of the files below an address, at one version of the upstream."""

    address: str
    """The listed address, with a pinned revision if the upstream has revisions."""
    revision: str
    """The commit, or empty if the address of each file includes the file's own version."""
    assets: tuple[Asset, ...]


@dataclass(frozen=True, slots=True)
class Fetched:
    """Complete, checked file on disk."""

    asset: Asset
    path: Path
    """The file. A local file is used in place, outside the download folder."""
    size: int
    sha256: str
    url: str
    """Address that the file was fetched from."""
    etag: str | None = None
    """ETag of the upstream, if it sent one."""
    checked: str = "recorded"
    """'catalog' if the digest was compared with a known digest, 'recorded' if no digest was known, 'skipped' if the
    user disabled the check."""
