"""Schemes of addresses. This folder is the registry: the module `gs` resolves addresses that start with ``gs:``."""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache
from pathlib import Path
from typing import cast
from urllib.parse import urlsplit, urlunsplit

from datasets_rl.errors import InvalidArgumentError
from datasets_rl.fetch.schemes.base import Ask, Get, NotServedError, Remote, Scheme, Slice

__all__ = [
    "Ask",
    "Get",
    "NotServedError",
    "Remote",
    "Scheme",
    "Slice",
    "local_file",
    "local_path",
    "scheme_names",
    "scheme_of",
    "without_credentials",
]

_SAME = {"https": "http"}


@cache  # each address asks
def scheme_names() -> tuple[str, ...]:
    """Return the name of every scheme, sorted."""
    names = {module.name for module in pkgutil.iter_modules(__path__)} - {"base"}
    return tuple(sorted(names | _SAME.keys()))


def scheme_of(url: str) -> Scheme:
    """Return the scheme of an address.

    Raises:
        InvalidArgumentError: If no scheme has that name.
    """
    name = url.partition(":")[0].lower()
    if ":" not in url or name not in scheme_names():
        listed = ", ".join(f"{each}:" for each in scheme_names())
        raise InvalidArgumentError(f"the address {without_credentials(url)!r} does not begin with any of {listed}")
    return cast("Scheme", importlib.import_module(f"{__name__}.{_SAME.get(name, name)}"))


def local_path(url: str) -> Path | None:
    """Return the path of a file that is used in place, or None for a file in an archive or on the network.

    Raises:
        NotServedError: If there is no such file.
        InvalidArgumentError: If no scheme has the name in the address.
    """
    file = local_file(url)
    return file if isinstance(file, Path) else None


def local_file(url: str) -> Path | Slice | None:
    """Return the path of a local file, or the slice of an archive with the file. Return None for a file on the network.

    Raises:
        NotServedError: If there is no such file.
        InvalidArgumentError: If no scheme has the name in the address.
    """
    scheme = scheme_of(url)
    return cast("Path | Slice", scheme.resolve(url, _refuse_request)) if scheme.IN_PLACE else None


def _refuse_request(url: str, headers: object) -> dict[str, str]:
    del headers
    raise NotServedError(f"no request is made for {url}")


def without_credentials(url: str) -> str:
    """Return an address without user name and password."""
    pieces = urlsplit(url)
    if "@" not in pieces.netloc:
        return url
    return urlunsplit(pieces._replace(netloc=pieces.netloc.rpartition("@")[2]))
