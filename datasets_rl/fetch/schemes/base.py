"""What a scheme is: a module named like it, which turns an address into something that can be had.

A module says whether its files are used where they lie, and has one function:

    IN_PLACE: bool
    def resolve(url: str, ask: Ask) -> Path | Remote
    def folder(url: str, get: Get) -> Folder            where folders can be listed

`resolve` raises `NotThere` where the address cannot lead to a file. A scheme whose IN_PLACE is True gives a path and
never uses the network; it does not call `ask`. Others give a `Remote`, and whatever they request goes through `ask`,
which keeps the time limits and tries again after failures that may pass. `folder` lists all files below a folder, and
asks through `get` in the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from datasets_rl.fetch.asset import Folder

__all__ = ["Ask", "Get", "NotThere", "Remote", "Scheme"]

Ask = Callable[[str, Mapping[str, str]], Mapping[str, str]]
"""Sends a HEAD request with these headers, follows redirects on the same host only, and returns the headers that came
(names in lower case)."""
Get = Callable[[str, Mapping[str, str]], tuple[Any, Mapping[str, str]]]
"""Sends a GET request with these headers, and returns the JSON value and the headers that came."""


class NotThere(Exception):
    """This address does not lead to a file; the message says why, and `FetchError` shows it.

    Args:
        network: Whether it may lead to one later: it did not answer, or not properly.
    """

    def __init__(self, message: str, *, network: bool = False) -> None:
        super().__init__(message)
        self.network = network


@dataclass(frozen=True, slots=True)
class Remote:
    """A file behind one HTTP address."""

    url: str
    """What to request."""
    address: str
    """The address as it is recorded, its version pinned where the scheme can do that; never holds a secret."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """To send along; `Authorization` stays on the first host when a redirect leads elsewhere."""
    size: int | None = None
    sha256: str | None = None
    etag: str | None = None


class Scheme(Protocol):
    """A module of this folder."""

    IN_PLACE: bool

    def resolve(self, url: str, ask: Ask) -> Path | Remote:
        """Turn an address into a path that is used in place, or into what the HTTP engine fetches.

        Raises:
            NotThere: If the address cannot lead to a file.
        """

    def folder(self, url: str, get: Get) -> Folder:
        """List all files below a folder, their paths relative to it; not every scheme can.

        Raises:
            NotThere: If there is no such folder, or no list of it.
        """
