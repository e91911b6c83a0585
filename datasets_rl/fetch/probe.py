"""Probes of addresses: whether a server answers, with which status, how fast, and whether downloads can resume."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from datasets_rl.errors import InvalidArgumentError
from datasets_rl.fetch.schemes import NotServedError, Slice, scheme_of, without_credentials
from datasets_rl.fetch.schemes.base import header_bytes, stated_bytes
from datasets_rl.settings import Settings

_TIMEOUT_MAX = 10.0
_THREADS = 16


@dataclass(frozen=True, slots=True)
class Probe:
    """The answer of an address."""

    url: str
    """The address, without credentials."""
    seconds: float
    """Time until the answer."""
    status: int | None = None
    """The HTTP status, or None for a file on this machine and if no server answered."""
    size: int | None = None
    """Bytes of the file, if reported."""
    sha256: str | None = None
    """Lower-case hexadecimal digest of the file, if reported."""
    ranges: bool = False
    """Whether the address serves ranges, so that a download can resume."""
    problem: str = ""
    """Why the address does not serve the file, or empty if it does."""


def probe_all(urls: Sequence[str], settings: Settings) -> list[Probe]:
    """Probe addresses in parallel, with a single request per address for the first byte of the file."""
    if not urls:
        return []
    with ThreadPoolExecutor(min(_THREADS, len(urls))) as threads:
        return list(threads.map(lambda url: probe(url, settings), urls))


def probe(url: str, settings: Settings) -> Probe:
    """Request the first byte of the file at an address, once."""
    import httpx

    from datasets_rl.fetch.transfer import Network

    quick = replace(settings, retries=0, timeout=min(settings.timeout, _TIMEOUT_MAX))
    network = Network(quick)
    began = time.perf_counter()
    result = Probe(without_credentials(url), 0.0)
    try:
        file = scheme_of(url).resolve(url, network.ask)
        if isinstance(file, Path | Slice):
            size = file.stat().st_size if isinstance(file, Path) else file.size
            result = replace(result, size=size, ranges=True)
        else:
            result = replace(result, sha256=file.sha256)
            with network.client.stream("GET", file.url, headers={**file.headers, "Range": "bytes=0-0"}) as response:
                result = _with_response(result, response)
    except (NotServedError, InvalidArgumentError, OSError, httpx.HTTPError, httpx.InvalidURL) as error:
        result = replace(result, problem=str(error) or type(error).__name__)
    finally:
        network.client.close()
    return replace(result, seconds=time.perf_counter() - began)


def _with_response(result: Probe, response: httpx.Response) -> Probe:  # type: ignore[name-defined]  # noqa: F821 - imported where it is used
    status: int = response.status_code
    ranged = re.fullmatch(r"bytes 0-0/([0-9]+)", response.headers.get("content-range", ""))
    whole = header_bytes(response.headers, "content-length") if status == 200 else None
    size = stated_bytes(ranged[1], "content-range") if ranged else whole
    # An empty file has no first byte.
    is_empty = status == 416 and response.headers.get("content-range", "").endswith("*/0")
    size = 0 if is_empty else size
    problem = "" if status in {200, 206} or is_empty else f"status {status}"
    return replace(result, status=status, size=size, ranges=ranged is not None, problem=problem)
