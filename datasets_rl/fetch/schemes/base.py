"""Contract of a scheme: a module of the scheme's name that resolves addresses.

A module declares whether its files are used in place, and has these functions:

    IN_PLACE: bool
    def resolve(url: str, ask: Ask) -> Path | Remote
    def folder(url: str, get: Get) -> Folder            raises NotServedError if folders cannot be listed

`resolve` raises `NotServedError` if the address cannot lead to a file. A scheme with IN_PLACE True returns a path and never
uses the network, so that it does not call `ask`. Other schemes return a `Remote` and send every request through `ask`,
which applies the timeouts and retries after transient failures. `folder` lists all files below a folder, and sends its
requests through `get` in the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from datasets_rl.fetch.asset import Folder

Ask = Callable[[str, Mapping[str, str]], Mapping[str, str]]
"""Function that sends a HEAD request with the given headers, follows redirects on the same host only, and returns the
headers of the response (names in lower case)."""
Get = Callable[[str, Mapping[str, str]], tuple[Any, Mapping[str, str]]]
"""Function that sends a GET request with the given headers, and returns the JSON value and the response's headers."""


class NotServedError(Exception):
    """Raised if an address does not lead to a file; `FetchError` shows the message as the reason.

    Args:
        message: The reason.
        network: Whether the address may serve the file later, because the server gave no answer or an invalid one.
    """

    def __init__(self, message: str, *, network: bool = False) -> None:
        super().__init__(message)
        self.network = network


@dataclass(frozen=True, slots=True)
class Remote:
    """File at one HTTP address."""

    url: str
    """HTTP address to request."""
    address: str
    """Address to record, with a pinned version if the scheme supports that; never contains a secret."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Request headers; `Authorization` is not sent to another host after a redirect."""
    size: int | None = None
    sha256: str | None = None
    etag: str | None = None


class Scheme(Protocol):
    """Interface of a module of this folder, which resolves the addresses of one URL scheme."""

    IN_PLACE: bool

    def resolve(self, url: str, ask: Ask) -> Path | Remote:
        """Resolve an address to a path that is used in place, or to a remote file for the HTTP engine.

        Raises:
            NotServedError: If the address cannot lead to a file.
        """

    def folder(self, url: str, get: Get) -> Folder:
        """List all files below a folder, with paths relative to it.

        Raises:
            NotServedError: If the folder does not exist, or the scheme cannot list folders.
        """
