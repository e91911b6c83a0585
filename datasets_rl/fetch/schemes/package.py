"""``package:import.name/path``: a file that an installed package brings, used where it lies."""

from __future__ import annotations

import importlib.resources
from pathlib import Path

from datasets_rl.fetch.asset import Folder
from datasets_rl.fetch.plan import safe_path
from datasets_rl.fetch.schemes.base import Ask, Get, NotThere

IN_PLACE = True


def resolve(url: str, ask: Ask) -> Path:
    """Return the path of a file inside an installed package."""
    del ask
    package, _, name = url.partition(":")[2].partition("/")
    try:
        found = importlib.resources.files(package).joinpath(*safe_path(name).parts)
    except (ImportError, TypeError, ValueError) as error:
        raise NotThere(f"no package {package!r} with a file {name!r}: {error}") from error
    if not (isinstance(found, Path) and found.is_file()):
        raise NotThere(f"the package {package!r} has no file {name!r} on disk")
    return found


def folder(url: str, get: Get) -> Folder:
    """Refuse: what a package brings is named by the catalogs."""
    del get
    raise NotThere(f"{url} cannot be listed")
