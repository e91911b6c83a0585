"""Contract of a scheme: a module with the name of the scheme, which resolves addresses.

A module has this flag and these functions:

    IN_PLACE: bool
    def resolve(url: str, ask: Ask) -> Path | Slice | Remote
    def folder(url: str, get: Get) -> Folder            raises NotServedError if folders cannot be listed

`resolve` raises `NotServedError` if the address cannot lead to a file. A scheme with IN_PLACE True never uses the
network and never calls `ask`: `resolve` returns the path of a local file, which is used in place, or a slice of an
archive, which is copied out of the archive. Other schemes return a `Remote` and send every request through `ask`, which
applies the timeouts and retries after transient failures. `folder` lists all files below a folder, and sends requests
through `get` in the same way.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit
from urllib.request import url2pathname

from datasets_rl.fetch.asset import Folder

_PAGES_MAX = 10_000
"""Maximum number of pages of a list, with up to 1,000 entries each: more than any dataset has."""
Ask = Callable[[str, Mapping[str, str]], Mapping[str, str]]
"""Function that sends a HEAD request with the given headers, follows redirects on the same host only, and returns the
headers of the response (names in lower case)."""
Get = Callable[[str, Mapping[str, str]], tuple[Any, Mapping[str, str]]]
"""Function that sends a GET request with the given headers, and returns the JSON value and the response's headers."""


class NotServedError(Exception):
    """Raised if an address does not lead to a file. `FetchError` shows the message as the reason.

    Args:
        message: The reason.
        network: Whether the address may serve the file later, because the server gave no answer or an invalid one.
    """

    def __init__(self, message: str, *, network: bool = False) -> None:
        super().__init__(message)
        self.network = network


def stated_bytes(value: object, where: str) -> int:
    """Return a number of bytes that a server states, as digits or as a JSON number.

    Args:
        value: The value in a header or in JSON.
        where: The header or the JSON key, for the message.

    Raises:
        NotServedError: If the value is not an integer from 0 to 2**63 - 1. Python itself would refuse thousands of
            digits.
    """
    text = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
    if isinstance(text, str) and _DIGITS.fullmatch(text) and int(text) < 1 << 63:
        return int(text)
    shown = f"{text[:20]}... with {len(text):,} characters" if isinstance(text, str) and len(text) > 40 else repr(value)
    raise NotServedError(f"the server states {shown} as {where}, expected an integer from 0 to 2**63 - 1")


def header_bytes(headers: Mapping[str, str], name: str) -> int | None:
    """Return the number of bytes in a response header, or None if the header is missing or has other than digits.

    Raises:
        NotServedError: If the number is 2**63 or more.
    """
    text = headers.get(name, "")
    return stated_bytes(text, name) if text.isascii() and text.isdigit() else None


_DIGITS = re.compile("0*[0-9]{1,19}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Slice:
    """Byte range of a local file that is a file, such as a member of an archive."""

    path: Path
    start: int
    size: int


@dataclass(frozen=True, slots=True)
class Remote:
    """File at one HTTP address."""

    url: str
    """HTTP address to request."""
    address: str
    """Address to record, with a pinned version if the scheme supports versions. Never contains a secret."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Request headers. `Authorization` is not sent to another host after a redirect."""
    size: int | None = None
    sha256: str | None = None
    etag: str | None = None


def listed_entries(
    first: str, read_page: Callable[[str], tuple[Sequence[Mapping[str, Any]], str | None]], *, key: str
) -> Iterator[Mapping[str, Any]]:
    """Yield the entries of a list in pages. Every server listing uses this function, which never loops endlessly.

    Args:
        first: The address of the first page.
        read_page: Returns the entries of the page at an address, and the address of the next page, or None after the
            last page.
        key: The field that identifies an entry.

    Raises:
        NotServedError: If a page is repeated, has entries but no new entry, or follows `_PAGES_MAX` pages.
    """
    pages: set[str] = set()
    known: set[Any] = set()
    address: str | None = first
    while address is not None:
        entries, following = read_page(address)
        pages.add(address)
        new = {entry[key] for entry in entries} - known
        known |= new
        yield from entries
        problem = (
            "continues with an earlier page"
            if following in pages
            else "repeats the entries of earlier pages"
            if entries and not new
            else "is not the last page"
            if len(pages) >= _PAGES_MAX
            else ""
        )
        if problem and following is not None:
            raise NotServedError(f"page {len(pages):,} of the list {problem}: {following}")
        address = following


class Scheme(Protocol):
    """Interface of a module of this folder, which resolves the addresses of a URL scheme."""

    IN_PLACE: bool

    def resolve(self, url: str, ask: Ask) -> Path | Slice | Remote:
        """Resolve an address to a local path or slice, or to a remote file for the HTTP engine.

        Raises:
            NotServedError: If the address cannot lead to a file.
        """

    def folder(self, url: str, get: Get) -> Folder:
        """List all files below a folder, with paths relative to the folder.

        Raises:
            NotServedError: If the folder does not exist, or the scheme cannot list folders.
        """


def path_of_url(url: str) -> Path:
    """Return the path of a ``file:`` address, or of the archive of a ``tar:`` address.

    Raises:
        NotServedError: If the address names another host.
    """
    pieces = urlsplit(url)
    if pieces.netloc not in ("", "localhost"):
        raise NotServedError(f"the address names the host {pieces.netloc!r}: write file:///path")
    return Path(url2pathname(pieces.path))
