"""``http://host/path`` and ``https://host/path``."""

from __future__ import annotations

from datasets_rl.fetch.asset import Folder
from datasets_rl.fetch.schemes.base import Ask, Get, NotThere, Remote

IN_PLACE = False


def resolve(url: str, ask: Ask) -> Remote:
    """Take the address as it is; what it holds is learned from the first answer."""
    from datasets_rl.fetch.schemes import shown

    del ask
    return Remote(url, shown(url))


def folder(url: str, get: Get) -> Folder:
    """Refuse: plain HTTP has no lists of files."""
    del get
    raise NotThere(f"a plain web address cannot be listed; {url} may still have the files")
