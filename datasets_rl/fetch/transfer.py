"""HTTP engine: fetches one remote file into its partial file, through any failure of the network.

Imported only before the first request, because httpx takes longer to import than the rest of the package.
"""

from __future__ import annotations

import base64
import binascii
import email.utils
import json
import random
import re
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import chain
from typing import Any

import httpx

from datasets_rl import disk
from datasets_rl.errors import DiskFullError
from datasets_rl.fetch import check, ends, plan
from datasets_rl.fetch.asset import Asset
from datasets_rl.fetch.check import CutShort, WrongBytes
from datasets_rl.fetch.pace import TooSlow, watch
from datasets_rl.fetch.parallel import CancelToken, Limiter, in_parallel
from datasets_rl.fetch.partial_download import PartialDownload, Record, Span
from datasets_rl.fetch.plan import Do
from datasets_rl.fetch.schemes import NotThere, Remote
from datasets_rl.progress import Report
from datasets_rl.settings import Settings

__all__ = ["SPLIT_FROM", "Network", "Transfer"]

SPLIT_FROM = 64 * 1024 * 1024
"""Minimum number of missing bytes for which several ranges of a file are fetched at once."""
_TRUNCATE_BYTES = 64 * 1024
_CONNECT_TIMEOUT_MAX = 10.0
_REDIRECTS_MAX = 10
_BODY_MAX_BYTES = 64 << 20
_RETRIES_UNREACHED = 1
_CONTENT_RANGE = re.compile(r"bytes\s+(?:(\d+)-\d+|\*)/(\d+|\*)")
_SHA256 = re.compile(r'(?:W/)?"?([0-9a-f]{64})"?')
_CRC32C = re.compile(r"\bcrc32c=([\w+/=]+)")


class _TransientError(Exception):
    """Transient failure, after which a retry may succeed.

    Args:
        reason: What went wrong.
        retry_after: Seconds that the server asks to wait.
        reached: Whether a server answered at all.
        slow: Whether the server was too slow, so that the received bytes do not count as progress.
    """

    def __init__(
        self, reason: str, retry_after: float | None = None, *, reached: bool = True, slow: bool = False
    ) -> None:
        super().__init__(reason)
        self.retry_after = retry_after
        self.reached = reached
        self.slow = slow


class _VersionChanged(Exception):
    """The bytes on disk and those of the server are of different versions."""


class Network:
    """HTTP client and shared state of the threads of one `fetch`."""

    def __init__(
        self,
        settings: Settings,
        limiter: Limiter,
        advance: Report,
        expected: dict[str, int | None],
        cancel: CancelToken,
    ) -> None:
        self.settings = settings
        self.limiter = limiter
        self.advance = advance
        self.expected = expected
        self.cancel = cancel
        self.client = httpx.Client(
            follow_redirects=True,
            max_redirects=_REDIRECTS_MAX,
            timeout=httpx.Timeout(settings.timeout, connect=min(settings.timeout, _CONNECT_TIMEOUT_MAX), pool=None),
            limits=httpx.Limits(max_connections=None),
            # The bytes that are hashed and resumed must be those of the file, not of a compressed form.
            headers={"Accept-Encoding": "identity", "User-Agent": "datasets-rl"},
        )
        watch(self.client, settings.timeout, settings.min_rate)

    def persist(self, attempt: Callable[[], None], progress: Callable[[], int], cancel: CancelToken) -> None:
        """Call `attempt` until it returns; progress resets the count of transient failures.

        Args:
            attempt: Does the work, or a part of it.
            progress: Returns the number of bytes on disk.
            cancel: Ends the wait between two attempts.

        Raises:
            NotThere: If it failed too often, or permanently.
        """
        failures, best = 0, progress()
        while (failure := self._fails(attempt)) is not None:
            if (now := progress()) > best:
                failures, best = failures if failure.slow else 0, now
            failures += 1
            # A host that never answered is probably down, and the next address may answer at once.
            if failures > (
                self.settings.retries if failure.reached or now else min(self.settings.retries, _RETRIES_UNREACHED)
            ):
                raise NotThere(str(failure) + (f" ({failures} times)" if failures > 1 else ""), network=True)
            cancel.sleep(plan.pause(failures, failure.retry_after, random.random()))  # noqa: S311 - no secret

    def _fails(self, attempt: Callable[[], None]) -> _TransientError | None:
        try:
            attempt()
        except _TransientError as failure:
            return failure
        except TooSlow as error:
            return _TransientError(str(error), slow=True)
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            return _TransientError(str(error) or type(error).__name__, reached=False)
        except httpx.ReadTimeout:
            return _TransientError(f"no data was received for {self.settings.timeout:g} s")
        except httpx.TooManyRedirects as error:
            raise NotThere(f"more than {_REDIRECTS_MAX} redirects") from error
        except (httpx.UnsupportedProtocol, httpx.InvalidURL) as error:
            raise NotThere(f"it is not an HTTP address, or redirects to another scheme: {error}") from error
        except httpx.HTTPError as error:
            return _TransientError(str(error) or type(error).__name__)
        return None

    def learn(self, path: str, total: int) -> None:
        """Record the size of a file, which completes the progress total if the catalog does not state it."""
        if self.expected.get(path, 0) is None:
            self.expected[path] = total
            if None not in self.expected.values():
                self.advance.set_total(sum(size or 0 for size in self.expected.values()))

    def ask(self, url: str, headers: Mapping[str, str]) -> Mapping[str, str]:
        """Return the headers of the response to a HEAD request; see `schemes.Ask`."""
        answers: list[httpx.Response] = []
        self.persist(lambda: answers.append(self._head(url, headers)), lambda: 0, self.cancel)
        return answers[-1].headers

    def get_json(self, url: str, headers: Mapping[str, str]) -> tuple[Any, Mapping[str, str]]:
        """Return the JSON value and the headers of the response to a GET request; see `schemes.Get`."""
        answers: list[tuple[httpx.Response, bytes]] = []
        self.persist(lambda: answers.append(self._get(url, headers)), lambda: 0, self.cancel)
        response, body = answers[-1]
        try:
            return json.loads(body), response.headers
        except (ValueError, RecursionError) as error:
            problem = check.wrong_kind(Asset((), ""), body[: check.HEAD]) or f"it is not JSON: {error}"
            raise NotThere(problem + _host(response)) from error

    def _get(self, url: str, headers: Mapping[str, str]) -> tuple[httpx.Response, bytes]:
        body = bytearray()
        with self.client.stream("GET", url, headers=headers) as response:
            _check_no_errors(response)
            for chunk in response.iter_bytes():
                body += chunk
                if len(body) > _BODY_MAX_BYTES:
                    raise NotThere(f"its response has more than {_BODY_MAX_BYTES:,} bytes" + _host(response))
        return response, bytes(body)

    def _head(self, url: str, headers: Mapping[str, str]) -> httpx.Response:
        for _ in range(_REDIRECTS_MAX):
            response = self.client.head(url, headers=headers, follow_redirects=False)
            # The headers that describe the file are in the response that redirects to another host, not in that
            # host's own.
            following = response.next_request
            if following is None or _origin(following.url) != _origin(response.url):
                break
            url = str(following.url)
        _check_no_errors(response)
        return response


class Transfer:
    """Download of one file from one address.

    Args:
        network: The shared client.
        asset: The file to fetch.
        want: The expected size and checksums; empty if the user disabled the check.
        part: The partial download to continue.
        remote: The address.
        connections: Maximum number of ranges fetched at once.
    """

    def __init__(
        self, network: Network, asset: Asset, want: plan.Wanted, part: PartialDownload, remote: Remote, connections: int
    ) -> None:
        self._network = network
        self._asset = asset
        self._want = want
        self._part = part
        self._remote = remote
        self._connections = connections
        self._cancel = network.cancel

    def run(self, *, hash_check: bool) -> Record:
        """Fetch, check and publish the file.

        Args:
            hash_check: Whether to compare the checksums that the responses report as well.

        Raises:
            NotThere: If the address does not serve the file; `WrongBytes` if it serves another one.
        """
        problem = self._fetch_and_check(hash_check=hash_check)
        if problem is not None and (self._part.inherited or isinstance(problem, CutShort)):
            # The cause may be an earlier process or a broken connection rather than the file at this address.
            self._drop()
            problem = self._fetch_and_check(hash_check=hash_check)
        if problem is not None:
            self._drop()
            raise problem
        checked = check.checked_against(self._expected(hash_check=hash_check), hash_check=hash_check)
        return self._part.publish(self._part.digest.hexdigest(), checked)

    def _expected(self, *, hash_check: bool) -> plan.Wanted:
        return self._want.completed(self._part.said) if hash_check else self._want

    def _fetch_and_check(self, *, hash_check: bool) -> WrongBytes | None:
        try:
            with disk.disk_errors(self._part.path):
                self._fill_with_restarts()
                self._part.digest.hash_file(self._part.path, self._part.done)
        finally:
            if self._part.done:
                self._save_even_on_a_full_disk()
        if wrong_kind := check.wrong_kind_of_file(self._asset, self._part.path):
            return WrongBytes(wrong_kind)
        expected = self._expected(hash_check=hash_check)
        if problems := check.compare(expected, self._part.digest):
            return WrongBytes("; ".join(problems))
        # A user who disables the check accepts another file than the expected one, but not a truncated one.
        if (
            expected.size is None
            and not expected.checksum
            and (truncated := ends.truncation(self._part.path, self._asset.path))
        ):
            return CutShort(truncated)
        return None

    def _save_even_on_a_full_disk(self) -> None:
        try:
            with disk.disk_errors(self._part.path):
                self._part.save()
        except DiskFullError:
            # The sidecar needs a free block on the disk. Without the sidecar, all fetched bytes would be ignored.
            self._part.give_back(_TRUNCATE_BYTES)
            self._part.save()

    def _fill_with_restarts(self) -> None:
        # A server whose file keeps changing, or that breaks off and ignores ranges, must not cause an endless loop.
        for _ in range(self._network.settings.retries + 1):
            changed = self._fill()
            if changed is None:
                return
            self._drop()
            # The server may advertise ranges without supporting them.
            self._connections = 1
        raise NotThere(f"the download restarted too often, most recently because {changed}")

    def _fill(self) -> _VersionChanged | None:
        part, self._cancel = self._part, CancelToken(self._network.cancel)
        try:
            if len(part.spans) == 1 and not part.complete:
                self._persist(part.spans[0])
            connections = [partial(self._persist, span) for span in part.spans if not span.complete]
            in_parallel(connections, self._connections, self._cancel)
        except _VersionChanged as changed:
            return changed
        return None

    def _persist(self, span: Span) -> None:
        self._network.persist(lambda: self._stream(span), lambda: self._part.done, self._cancel)

    def _drop(self) -> None:
        self._network.advance(-self._part.discard())

    def _stream(self, span: Span) -> None:
        start, part = span.at, self._part
        resume = plan.part(self._want, part.left, part.address)
        obey(resume)
        headers = {**self._remote.headers, **self._range(span, resume.if_range)}
        with self._network.client.stream("GET", self._remote.url, headers=headers) as response:
            answer = _read(response)
            step = plan.answer(self._want, part.left, start, answer)
            if step.do is Do.WHOLE:
                part.end()
                return
            if step.wrong_bytes and start == 0 and (problem := self._look(_read_head(response.iter_raw())[0])):
                # For a web page, the message should name the web page rather than its size.
                raise NotThere(problem + _host(response))
            obey(step, response)
            self._receive(response, span, answer)

    def _range(self, span: Span, if_range: str | None) -> dict[str, str]:
        if span.at == 0 and len(self._part.spans) == 1:
            return {}
        stop = span.stop - 1 if len(self._part.spans) > 1 and span.stop is not None else ""
        condition = {"If-Range": if_range} if if_range else {}
        return {"Range": f"bytes={span.at}-{stop}", **condition}

    def _look(self, head: bytes) -> str | None:
        return check.wrong_kind(self._asset, head)

    def _receive(self, response: httpx.Response, span: Span, answer: plan.Answer) -> None:
        part, chunks = self._part, response.iter_raw()
        if part.done == 0:
            head, chunks = _read_head(chunks)
            if problem := self._look(head):
                raise NotThere(problem + _host(response))
            self._network.advance(-part.begin())
        part.learn(answer.total, response.headers.get("etag"), answer.validator, _reported_checksums(response))
        if part.total is not None:
            self._network.learn(self._asset.path, part.total)
            disk.require_free(part.path, part.total - part.done, f"the rest of {self._asset.path}")
        split = self._may_split(span, response)
        with part.path.open("r+b") as stream:
            stream.seek(span.at)
            for chunk in chunks:
                self._cancel.sleep(self._network.limiter.delay(len(chunk)))
                kept = chunk if span.stop is None else chunk[: span.stop - span.at]
                stream.write(kept)
                stream.flush()
                part.advance(span, kept)
                self._network.advance(len(kept))
                if split:
                    part.split(self._connections)
                    return
                if span.complete:
                    return
        self._at_end(span)

    def _at_end(self, span: Span) -> None:
        """Complete or retry a span whose response ended properly, although its range may be incomplete."""
        if span.complete:
            return
        expected = self._want.size if span.stop is None else span.stop
        if expected is not None and span.at < expected:
            raise _TransientError(f"the response ended at byte {span.at:,} of {expected:,}")
        self._part.end()

    def _may_split(self, span: Span, response: httpx.Response) -> bool:
        part = self._part
        ranges = response.status_code == httpx.codes.PARTIAL_CONTENT or "bytes" in response.headers.get(
            "accept-ranges", ""
        )
        strong = part.validator is not None and part.validator.startswith('"')
        long = part.total is not None and part.total - span.at >= SPLIT_FROM
        return self._connections > 1 and len(part.spans) == 1 and ranges and strong and long


def _check_no_errors(response: httpx.Response) -> None:
    if response.status_code >= httpx.codes.BAD_REQUEST:
        obey(plan.answer(plan.Wanted(), plan.Left("", 0), 0, plan.Answer(response.status_code)), response)


def obey(step: plan.Step, response: httpx.Response | None = None) -> None:
    """Raise the exception that a step calls for; return if it allows the request or accepts the response."""
    headers = {} if response is None else response.headers
    reason = step.reason + ("" if response is None else _host(response))
    if message := headers.get("x-error-message"):
        reason += f": {message}"
    if step.do is Do.RETRY:
        raise _TransientError(reason, _retry_after(headers.get("retry-after", "")))
    if step.do is Do.RESTART:
        raise _VersionChanged(reason)
    if step.do is Do.REFUSE:
        raise (WrongBytes if step.wrong_bytes else NotThere)(reason)


def _read(response: httpx.Response) -> plan.Answer:
    headers, status = response.headers, response.status_code
    start, total = 0, headers.get("content-length", "") if status == httpx.codes.OK else ""
    if status in (httpx.codes.PARTIAL_CONTENT, httpx.codes.REQUESTED_RANGE_NOT_SATISFIABLE):
        match = _CONTENT_RANGE.fullmatch(headers.get("content-range", "").strip())
        # The start of a 206 without a valid Content-Range matches no request.
        start = int(match[1]) if match and match[1] else -1
        total = match[2] if match else ""
    return plan.Answer(
        status,
        int(total) if total.isdecimal() else None,
        start,
        validator=_strong_validator(headers),
        encoding=headers.get("content-encoding", ""),
    )


def _strong_validator(headers: httpx.Headers) -> str | None:
    """Return the strong validator of a response in the sense of RFC 9110, section 8.8; None if it has none."""
    etag: str = headers.get("etag", "")
    modified: str = headers.get("last-modified", "")
    # Only a strong ETag guarantees that every byte is the same, and only ASCII characters can be sent back.
    if etag.startswith('"') and etag.isascii():
        return etag
    # A file may change twice within the second of its date; after that second the date is a strong validator.
    dated, now = _timestamp(modified), _timestamp(headers.get("date", "")) or time.time()
    return modified if dated is not None and dated + 1 <= now else None


def _timestamp(date: str) -> float | None:
    """Return an HTTP date as seconds since 1970; None if it is not a date."""
    try:
        return email.utils.parsedate_to_datetime(date).timestamp()
    except (ValueError, OverflowError):
        return None


def _reported_checksums(response: httpx.Response) -> plan.Wanted:
    """Return the checksums of the complete file in a response: sha256 of the Hugging Face hub, CRC-32C of Google."""
    # The hub sends its digest in the response that redirects to another host.
    linked = _SHA256.fullmatch((response.history or [response])[0].headers.get("x-linked-etag", ""))
    crc32c = _CRC32C.search(response.headers.get("x-goog-hash", ""))
    # For an object that is stored compressed and sent plain, this is the checksum of the compressed bytes.
    plain = response.headers.get("x-goog-stored-content-encoding", "identity") == "identity"
    return plan.Wanted(sha256=linked[1] if linked else None, crc32c=_as_hex(crc32c[1]) if crc32c and plain else None)


def _as_hex(encoded: str) -> str | None:
    try:
        return base64.b64decode(encoded, validate=True).hex()
    except binascii.Error:
        return None


def _read_head(chunks: Iterator[bytes]) -> tuple[bytes, Iterator[bytes]]:
    """Return the first `check.HEAD` bytes, or all if there are fewer, and an iterator over all chunks."""
    head: list[bytes] = []
    while sum(map(len, head)) < check.HEAD and (chunk := next(chunks, b"")):
        head.append(chunk)
    return b"".join(head)[: check.HEAD], chain(head, chunks)


def _host(response: httpx.Response) -> str:
    requested = response.history[0].url.host if response.history else response.url.host
    return f" (redirected to {response.url.host})" if requested != response.url.host else ""


def _origin(url: httpx.URL) -> tuple[str, bytes]:
    return url.scheme, url.netloc


def _retry_after(value: str) -> float | None:
    if value.strip().isdecimal():
        return float(value)
    date = _timestamp(value)
    return None if date is None else max(0.0, date - time.time())
