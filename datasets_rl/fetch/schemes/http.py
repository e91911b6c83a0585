"""``http://host/path`` and ``https://host/path``."""

from __future__ import annotations

from datasets_rl.fetch.asset import Folder
from datasets_rl.fetch.schemes.base import Ask, Get, NotServedError, Remote

IN_PLACE = False


def resolve(url: str, ask: Ask) -> Remote:
    """Return the address unchanged. The first response reports the size and the validator."""
    from datasets_rl.fetch.schemes import without_credentials

    del ask
    return Remote(url, without_credentials(url))


def folder(url: str, get: Get) -> Folder:
    """Raise `NotServedError`: plain HTTP has no file lists."""
    del get
    raise NotServedError(f"plain HTTP cannot list files, but {url} may still serve files")
