"""``file:///absolute/path``: a file on this machine or on a shared disk, used where it lies."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

from datasets_rl.fetch.schemes._base import Ask, NotThere

IN_PLACE = True


def resolve(url: str, ask: Ask) -> Path:
    """Return the path that a file address names."""
    del ask
    pieces = urlsplit(url)
    if pieces.netloc not in ("", "localhost"):
        raise NotThere(f"it names the host {pieces.netloc!r}; write file:///path")
    path = Path(url2pathname(pieces.path))
    if not path.is_file():
        raise NotThere("it is a folder" if path.is_dir() else "there is no such file")
    return path
