"""``file:///absolute/path``: a file on this machine or on a shared disk, used in place."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

from datasets_rl.fetch.asset import Asset, Folder
from datasets_rl.fetch.schemes.base import Ask, Get, NotServedError

IN_PLACE = True
_ARCHIVES = (".tar", ".tar.gz", ".tgz", ".tar.xz", ".zip")


def resolve(url: str, ask: Ask) -> Path:
    """Return the path of a file address; see `Scheme.resolve`."""
    del ask
    path = path_of_url(url)
    if not path.is_file():
        raise NotServedError("it is a folder" if path.is_dir() else "there is no such file")
    return path


def folder(url: str, get: Get) -> Folder:
    """List the files below a folder, except hidden files, which tools create and which are not the upstream's."""
    del get
    path = path_of_url(url)
    if not path.is_dir():
        is_archive = path.name.lower().endswith(_ARCHIVES)
        found = "an archive; unpack it and give the folder in it" if is_archive else "a file; expected a folder"
        raise NotServedError(f"it is {found}" if path.is_file() else "there is no such folder")
    visible = [file for file in path.rglob("*") if not any(part[0] == "." for part in file.relative_to(path).parts)]
    assets = (
        Asset((file.as_uri(),), file.relative_to(path).as_posix(), size=file.stat().st_size)
        for file in visible
        if file.is_file()
    )
    return Folder(url, "", tuple(assets))


def path_of_url(url: str) -> Path:
    """Return the path of a ``file:`` address.

    Raises:
        NotServedError: If the address names another host.
    """
    pieces = urlsplit(url)
    if pieces.netloc not in ("", "localhost"):
        raise NotServedError(f"it names the host {pieces.netloc!r}; write file:///path")
    return Path(url2pathname(pieces.path))
