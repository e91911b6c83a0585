"""``tar:///path/of/the.tar#START+SIZE``: a file in a local tar archive, which is copied when a caller needs the file."""

from __future__ import annotations

import posixpath
import re
from urllib.parse import urlsplit

from datasets_rl.fetch.asset import Asset, Folder
from datasets_rl.fetch.schemes.base import Ask, Get, NotServedError, Slice, path_of_url

IN_PLACE = True
_SPAN = re.compile(r"(\d{1,18})\+(\d{1,18})", re.ASCII)
_COMPRESSED = (".tar.gz", ".tgz", ".tar.xz", ".tar.zst", ".tar.bz2")


def resolve(url: str, ask: Ask) -> Slice:
    """Return the slice of the archive with the file, as `Scheme.resolve` documents."""
    del ask
    span, path = _SPAN.fullmatch(urlsplit(url).fragment), path_of_url(url)
    if span is None:
        raise NotServedError("the address does not name a file in the archive, expected #START+SIZE")
    if not path.is_file():
        raise NotServedError("there is no such archive")
    return Slice(path, int(span[1]), int(span[2]))


def folder(url: str, get: Get) -> Folder:
    """List the files in an archive, except hidden files, with paths relative to the deepest common folder.

    Raises:
        ConversionError: If the archive is truncated or damaged, or has links or paths that lead out of the archive.
    """
    del get
    from datasets_rl.errors import ConversionError
    from datasets_rl.read.archive import is_tar, members
    from datasets_rl.read.zarr_paths import MARKERS

    path = path_of_url(url)
    if not path.is_file():
        raise NotServedError("there is no such archive")
    if not is_tar(path):
        name = path.name.lower()
        unpack = "tar -xf" if name.endswith(_COMPRESSED) else "unzip" if name.endswith(".zip") else ""
        if unpack:
            raise NotServedError(
                f"the path is a compressed archive: run `{unpack} {path.name}`, and give the unpacked folder"
            )
        raise NotServedError("the path is a file, expected a folder")
    address = f"tar{path.as_uri().removeprefix('file')}"
    try:
        listed = [
            (member.name, f"{address}#{member.start}+{member.size}", member.size)
            for member in members(path)
            if not any(part.startswith(".") and part not in MARKERS for part in member.name.split("/"))
        ]
    except ConversionError as error:
        error.hint = f"copy the archive again, or run `tar -xf {path.name}` and give the unpacked folder"
        raise
    common = posixpath.commonpath([posixpath.dirname(name) for name, _, _ in listed]) if listed else ""
    return Folder(
        url, "", tuple(Asset((place,), posixpath.relpath(name, common or "."), size) for name, place, size in listed)
    )
