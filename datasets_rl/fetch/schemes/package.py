"""``package:import.name/path``: a file of an installed package, used in place."""

from __future__ import annotations

import importlib.resources
from pathlib import Path

from datasets_rl.fetch.asset import Folder
from datasets_rl.fetch.plan import safe_path
from datasets_rl.fetch.schemes.base import Ask, Get, NotServedError

IN_PLACE = True


def resolve(url: str, ask: Ask) -> Path:
    """Return the path of a file inside an installed package."""
    del ask
    package, _, name = url.partition(":")[2].partition("/")
    try:
        path = importlib.resources.files(package).joinpath(*safe_path(name).parts)
    except (ImportError, TypeError, ValueError) as error:
        raise NotServedError(f"no package {package!r} with a file {name!r}: {error}") from error
    if not (isinstance(path, Path) and path.is_file()):
        raise NotServedError(f"the package {package!r} has no file {name!r} on disk")
    return path


def folder(url: str, get: Get) -> Folder:
    """Raise `NotServedError`: the catalogs list the files of packages."""
    del get
    raise NotServedError(f"{url} cannot be listed: addresses that start with 'package:' are of single files")
