"""Contract of a scheme: a module of the scheme's name that resolves addresses.

A module declares whether its files are used in place, and has these functions:

    IN_PLACE: bool
    def resolve(url: str, ask: Ask) -> Path | Slice | Remote
    def folder(url: str, get: Get) -> Folder            raises NotServedError if folders cannot be listed

`resolve` raises `NotServedError` if the address cannot lead to a file. A scheme with IN_PLACE True returns a path, or a
slice of a file that is copied out of it, and never uses the network, so that it does not call `ask`. Other schemes return a `Remote` and send every request through `ask`,
which applies the timeouts and retries after transient failures. `folder` lists all files below a folder, and sends its
requests through `get` in the same way.
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
"""Pages of a list, of up to 1,000 entries each: more than any dataset has."""
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


def stated_bytes(value: object, where: str) -> int:
    """Return a number of bytes that a server states, as digits or as a JSON number.

    Args:
        value: What it states.
        where: The header or the JSON key, for the message.

    Raises:
        NotServedError: If it is not an integer from 0 to 2**63 - 1; Python itself would refuse thousands of digits.
    """
    text = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
    if isinstance(text, str) and _DIGITS.fullmatch(text) and int(text) < 1 << 63:
        return int(text)
    shown = f"{text[:20]}... with {len(text):,} characters" if isinstance(text, str) and len(text) > 40 else repr(value)
    raise NotServedError(f"the server states {shown} as {where}; expected an integer from 0 to 2**63 - 1")


def header_bytes(headers: Mapping[str, str], name: str) -> int | None:
    """Return the number of bytes in a header of a response; None if it has no such header, or not digits alone.

    Raises:
        NotServedError: If it is 2**63 or more.
    """
    text = headers.get(name, "")
    return stated_bytes(text, name) if text.isascii() and text.isdigit() else None


_DIGITS = re.compile("0*[0-9]{1,19}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Slice:
    """Bytes of a file on this machine that are a file of their own, such as a member of an archive."""

    path: Path
    start: int
    size: int


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


def listed_entries(
    first: str, read_page: Callable[[str], tuple[Sequence[Mapping[str, Any]], str | None]], *, key: str
) -> Iterator[Mapping[str, Any]]:
    """Yield the entries of a list that comes in pages: every listing of a server goes through here, and ends.

    Args:
        first: The address of the first page.
        read_page: Returns the entries of the page at an address, and the address of the next page, None for the last one.
        key: The field that tells entries apart.

    Raises:
        NotServedError: If a page comes twice, has entries but no new one, or follows too many others.
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
            "continues with a page that came before"
            if following in pages
            else "repeats the entries of earlier ones"
            if entries and not new
            else "is not the last one"
            if len(pages) >= _PAGES_MAX
            else ""
        )
        if problem and following is not None:
            raise NotServedError(f"page {len(pages):,} of the list {problem}: {following}")
        address = following


class Scheme(Protocol):
    """Interface of a module of this folder, which resolves the addresses of one URL scheme."""

    IN_PLACE: bool

    def resolve(self, url: str, ask: Ask) -> Path | Slice | Remote:
        """Resolve an address to a path or a slice of this machine, or to a remote file for the HTTP engine.

        Raises:
            NotServedError: If the address cannot lead to a file.
        """

    def folder(self, url: str, get: Get) -> Folder:
        """List all files below a folder, with paths relative to it.

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
        raise NotServedError(f"it names the host {pieces.netloc!r}; write file:///path")
    return Path(url2pathname(pieces.path))
