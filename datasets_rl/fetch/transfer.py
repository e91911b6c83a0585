"""HTTP engine: fetches a remote file into a partial file, through any failure of the network.

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
from datasets_rl.fetch.check import TruncatedFileError, WrongFileError
from datasets_rl.fetch.pace import MinRateTransport, TooSlowError
from datasets_rl.fetch.parallel import CancelToken, Limiter, run_in_parallel
from datasets_rl.fetch.partial_download import PartialDownload, Record, Span
from datasets_rl.fetch.plan import Action
from datasets_rl.fetch.schemes import NotServedError, Remote
from datasets_rl.fetch.schemes.base import header_bytes, stated_bytes
from datasets_rl.progress import Report
from datasets_rl.settings import Settings

SPLIT_FROM = 64 * 1024 * 1024
"""Minimum number of missing bytes for fetching several ranges of a file at once."""
_TRUNCATE_BYTES = 64 * 1024
_CONNECT_TIMEOUT_MAX = 10.0
_REDIRECTS_MAX = 10
_BODY_MAX_BYTES = 64 << 20
_RETRIES_UNREACHED = 1
_CONTENT_RANGE = re.compile(r"bytes\s+(?:([0-9]+)-[0-9]+|\*)/([0-9]+|\*)")
_SHA256 = re.compile(r'(?:W/)?"?([0-9a-f]{64})"?')
_CRC32C = re.compile(r"\bcrc32c=([\w+/=]+)")


class _TransientError(Exception):
    """Transient failure, after which a retry may succeed.

    Args:
        reason: The message for the user.
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
    """The bytes on disk and the bytes of the server are of different versions."""


class Network:
    """HTTP client and shared state of the threads of a `fetch`. Other requests need the settings only."""

    def __init__(
        self,
        settings: Settings,
        limiter: Limiter | None = None,
        advance: Report | None = None,
        expected: dict[str, int | None] | None = None,
        cancel: CancelToken | None = None,
    ) -> None:
        self.settings = settings
        self.limiter = limiter or Limiter()
        self.advance = advance or Report()
        self.expected = {} if expected is None else expected
        self.cancel = cancel or CancelToken()
        self._versions: dict[str, str] = {}
        self.client = httpx.Client(
            follow_redirects=True,
            max_redirects=_REDIRECTS_MAX,
            timeout=httpx.Timeout(settings.timeout, connect=min(settings.timeout, _CONNECT_TIMEOUT_MAX), pool=None),
            transport=MinRateTransport(settings.timeout, settings.min_rate),
            # The received bytes must be the bytes of the file, not of a compressed form.
            headers={"Accept-Encoding": "identity", "User-Agent": "datasets-rl"},
        )

    def persist(self, attempt: Callable[[], None], progress: Callable[[], int], cancel: CancelToken) -> None:
        """Call `attempt` until a call succeeds. Progress resets the count of transient failures.

        Args:
            attempt: Sends a request and handles the response.
            progress: Returns the number of bytes on disk.
            cancel: Ends the wait between two attempts.

        Raises:
            NotServedError: If `attempt` failed too often, or permanently.
        """
        failures, best = 0, progress()
        while (failure := self._attempt_error(attempt)) is not None:
            if (now := progress()) > best:
                failures, best = failures if failure.slow else 0, now
            failures += 1
            # A host that never answered is probably down, and the next address may answer at once.
            if failures > (
                self.settings.retries if failure.reached or now else min(self.settings.retries, _RETRIES_UNREACHED)
            ):
                raise NotServedError(str(failure) + (f" ({failures} times)" if failures > 1 else ""), network=True)
            cancel.sleep(plan.retry_delay(failures, failure.retry_after, random.random()))  # noqa: S311 - no secret

    def _attempt_error(self, attempt: Callable[[], None]) -> _TransientError | None:
        try:
            attempt()
        except _TransientError as failure:
            return failure
        except TooSlowError as error:
            return _TransientError(str(error), slow=True)
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            return _TransientError(str(error) or type(error).__name__, reached=False)
        except httpx.ReadTimeout:
            return _TransientError(f"no data was received for {self.settings.timeout:g} s")
        except httpx.TooManyRedirects as error:
            raise NotServedError(f"more than {_REDIRECTS_MAX} redirects") from error
        except (httpx.UnsupportedProtocol, httpx.InvalidURL) as error:
            raise NotServedError(f"the address is not HTTP, or redirects to another scheme: {error}") from error
        except httpx.HTTPError as error:
            return _TransientError(str(error) or type(error).__name__)
        return None

    def record_size(self, path: str, total: int) -> None:
        """Record the size of a file, to complete the progress total if the catalog does not state the size."""
        if self.expected.get(path, 0) is None:
            self.expected[path] = total
            if None not in self.expected.values():
                self.advance.set_total(sum(size or 0 for size in self.expected.values()))

    def ask(self, url: str, headers: Mapping[str, str]) -> Mapping[str, str]:
        """Return the headers of the response to a HEAD request, as `schemes.Ask` documents."""
        answers: list[httpx.Response] = []
        self.persist(lambda: answers.append(self._head(url, headers)), lambda: 0, self.cancel)
        return answers[-1].headers

    def get_json(self, url: str, headers: Mapping[str, str]) -> tuple[Any, Mapping[str, str]]:
        """Return the JSON value and the headers of the response to a GET request, as `schemes.Get` documents."""
        answers: list[tuple[httpx.Response, bytes]] = []
        self.persist(lambda: answers.append(self._get(url, headers)), lambda: 0, self.cancel)
        response, body = answers[-1]
        try:
            return json.loads(body), response.headers
        except (ValueError, RecursionError) as error:
            problem = check.format_problem(Asset((), ""), body[: check.HEAD]) or f"the response is not JSON: {error}"
            raise NotServedError(problem + _redirect_text(response)) from error

    def get_range(self, url: str, headers: Mapping[str, str], span: tuple[int, int], total: int | None) -> bytes:
        """Return the bytes [start, stop) of a file.

        Args:
            url: The address.
            headers: The request headers.
            span: The pair (start, stop).
            total: The expected size of the whole file, or None if the size is not known.

        Raises:
            NotServedError: If the address does not serve this range.
            WrongFileError: If the file has another size, or another validator than in the first response from this
                address.
        """
        answers: list[bytes] = []
        self.persist(lambda: answers.append(self._get_range(url, headers, span, total)), lambda: 0, self.cancel)
        return answers[-1]

    def _get_range(self, url: str, headers: Mapping[str, str], span: tuple[int, int], total: int | None) -> bytes:
        start, stop = span
        with self.client.stream("GET", url, headers={**headers, "Range": f"bytes={start}-{stop - 1}"}) as response:
            _check_no_errors(response)
            answer = _parse_response(response)
            if total is not None and answer.total not in {None, total}:
                raise WrongFileError(f"the served file has {answer.total:,} bytes, expected {total:,}")
            self._check_version(url, answer.validator)
            if response.status_code != httpx.codes.PARTIAL_CONTENT and span != (0, total):
                raise NotServedError("the server does not serve byte ranges" + _redirect_text(response))
            if response.status_code == httpx.codes.PARTIAL_CONTENT and answer.start != start:
                raise _TransientError(f"the response starts at byte {answer.start:,}, expected {start:,}")
            body = bytearray()
            for chunk in response.iter_raw():
                body += chunk
                if len(body) >= stop - start:
                    break
        if len(body) < stop - start:
            raise _TransientError(f"the response ended after {len(body):,} of {stop - start:,} bytes")
        return bytes(body[: stop - start])

    def _check_version(self, url: str, validator: str | None) -> None:
        """Compare the validator of a response with the first validator from the same address."""
        if validator is not None and (first := self._versions.setdefault(url, validator)) != validator:
            raise WrongFileError(f"the served file is version {validator} now and was {first}")

    def _get(self, url: str, headers: Mapping[str, str]) -> tuple[httpx.Response, bytes]:
        body = bytearray()
        with self.client.stream("GET", url, headers=headers) as response:
            _check_no_errors(response)
            for chunk in response.iter_bytes():
                body += chunk
                if len(body) > _BODY_MAX_BYTES:
                    raise NotServedError(
                        f"the response has more than {_BODY_MAX_BYTES:,} bytes" + _redirect_text(response)
                    )
        return response, bytes(body)

    def _head(self, url: str, headers: Mapping[str, str]) -> httpx.Response:
        for _ in range(_REDIRECTS_MAX):
            response = self.client.head(url, headers=headers, follow_redirects=False)
            # The response that redirects to another host describes the file. The response of the other host does not.
            following = response.next_request
            if following is None or _origin(following.url) != _origin(response.url):
                break
            url = str(following.url)
        _check_no_errors(response)
        return response


class Transfer:
    """Download of a file from a single address.

    Args:
        network: The shared client.
        asset: The file to fetch.
        expected: The expected size and checksums, all None if the user disabled the check.
        partial_download: The partial download to continue.
        remote: The address.
        connections: Maximum number of ranges fetched at once.
    """

    def __init__(
        self,
        network: Network,
        asset: Asset,
        expected: plan.ExpectedFile,
        partial_download: PartialDownload,
        remote: Remote,
        connections: int,
    ) -> None:
        self._network = network
        self._asset = asset
        self._want = expected
        self._partial = partial_download
        self._remote = remote
        self._connections = connections
        self._cancel = network.cancel

    def run(self, *, hash_check: bool) -> Record:
        """Fetch, check and publish the file.

        Args:
            hash_check: Whether to compare the checksums that the responses report as well.

        Raises:
            NotServedError: If the address does not serve the file, or as `WrongFileError` if it serves another file.
        """
        problem = self._fetch_and_check(hash_check=hash_check)
        if problem is not None and (self._partial.inherited or isinstance(problem, TruncatedFileError)):
            # The cause may be an earlier process or a broken connection rather than the file at this address.
            self._discard_partial()
            problem = self._fetch_and_check(hash_check=hash_check)
        if problem is not None:
            self._discard_partial()
            raise problem
        checked = check.check_kind(self._expected(hash_check=hash_check), hash_check=hash_check)
        return self._partial.publish(self._partial.digest.hexdigest(), checked)

    def _expected(self, *, hash_check: bool) -> plan.ExpectedFile:
        return self._want.completed(self._partial.reported) if hash_check else self._want

    def _fetch_and_check(self, *, hash_check: bool) -> WrongFileError | None:
        try:
            with disk.disk_errors(self._partial.path):
                self._fill_with_restarts()
                self._partial.digest.hash_file(self._partial.path, self._partial.done)
        finally:
            if self._partial.done:
                self._save_even_on_a_full_disk()
        if wrong_kind := check.file_format_problem(self._asset, self._partial.path):
            return WrongFileError(wrong_kind)
        expected = self._expected(hash_check=hash_check)
        if problems := check.differences(expected, self._partial.digest):
            return WrongFileError("; ".join(problems))
        # A user who disables the check accepts another file than expected, but not a truncated file.
        if (
            expected.size is None
            and not expected.checksum
            and (truncated := ends.truncation_problem(self._partial.path, self._asset.path))
        ):
            return TruncatedFileError(truncated)
        return None

    def _save_even_on_a_full_disk(self) -> None:
        try:
            with disk.disk_errors(self._partial.path):
                self._partial.save()
        except DiskFullError:
            # The sidecar needs a free block on the disk. Without the sidecar, all fetched bytes would be ignored.
            self._partial.give_back(_TRUNCATE_BYTES)
            self._partial.save()

    def _fill_with_restarts(self) -> None:
        # A file that keeps changing, or a server that breaks off and ignores ranges, must not cause an endless loop.
        for _ in range(self._network.settings.retries + 1):
            changed = self._fill()
            if changed is None:
                return
            self._discard_partial()
            # The server may advertise ranges without supporting them.
            self._connections = 1
        raise NotServedError(f"the download restarted too often, most recently because {changed}")

    def _fill(self) -> _VersionChanged | None:
        part, self._cancel = self._partial, CancelToken(self._network.cancel)
        try:
            if len(part.spans) == 1 and not part.complete:
                self._persist(part.spans[0])
            connections = [partial(self._persist, span) for span in part.spans if not span.complete]
            run_in_parallel(connections, self._connections, self._cancel)
        except _VersionChanged as changed:
            return changed
        return None

    def _persist(self, span: Span) -> None:
        self._network.persist(lambda: self._stream(span), lambda: self._partial.done, self._cancel)

    def _discard_partial(self) -> None:
        self._network.advance(-self._partial.discard())

    def _stream(self, span: Span) -> None:
        start, part = span.at, self._partial
        resume = plan.decide_resume(self._want, part.state, part.address)
        raise_for_decision(resume)
        headers = {**self._remote.headers, **self._range_headers(span, resume.if_range)}
        with self._network.client.stream("GET", self._remote.url, headers=headers) as response:
            answer = _parse_response(response)
            step = plan.decide_response(self._want, part.state, start, answer)
            if step.action is Action.WHOLE:
                part.end()
                return
            if step.wrong_bytes and start == 0 and (problem := self._head_problem(_read_head(response.iter_raw())[0])):
                # For a web page, the message should name the web page rather than the size.
                raise NotServedError(problem + _redirect_text(response))
            raise_for_decision(step, response)
            self._receive(response, span, answer)

    def _range_headers(self, span: Span, if_range: str | None) -> dict[str, str]:
        if span.at == 0 and len(self._partial.spans) == 1:
            return {}
        stop = span.stop - 1 if len(self._partial.spans) > 1 and span.stop is not None else ""
        condition = {"If-Range": if_range} if if_range else {}
        return {"Range": f"bytes={span.at}-{stop}", **condition}

    def _head_problem(self, head: bytes) -> str | None:
        return check.format_problem(self._asset, head)

    def _receive(self, response: httpx.Response, span: Span, server_response: plan.ServerResponse) -> None:
        part, chunks = self._partial, response.iter_raw()
        if part.done == 0:
            head, chunks = _read_head(chunks)
            if problem := self._head_problem(head):
                raise NotServedError(problem + _redirect_text(response))
            self._network.advance(-part.begin())
        part.record_response(
            server_response.total,
            response.headers.get("etag"),
            server_response.validator,
            _reported_checksums(response),
        )
        if part.total is not None:
            self._network.record_size(self._asset.path, part.total)
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
        self._end_span(span)

    def _end_span(self, span: Span) -> None:
        """Complete or retry a span after a response that ended without an error, but possibly too early."""
        if span.complete:
            return
        expected = self._want.size if span.stop is None else span.stop
        if expected is not None and span.at < expected:
            raise _TransientError(f"the response ended at byte {span.at:,} of {expected:,}")
        self._partial.end()

    def _may_split(self, span: Span, response: httpx.Response) -> bool:
        """Return whether the missing bytes may be fetched over several connections.

        The server must serve ranges. Only a strong ETag ensures that all connections receive the same version. A short
        rest of a file is not worth more connections.
        """
        part = self._partial
        serves_ranges = response.status_code == httpx.codes.PARTIAL_CONTENT or "bytes" in response.headers.get(
            "accept-ranges", ""
        )
        has_strong_etag = part.validator is not None and part.validator.startswith('"')
        is_long = part.total is not None and part.total - span.at >= SPLIT_FROM
        return self._connections > 1 and len(part.spans) == 1 and serves_ranges and has_strong_etag and is_long


def _check_no_errors(response: httpx.Response) -> None:
    if response.status_code >= httpx.codes.BAD_REQUEST:
        raise_for_decision(
            plan.decide_response(
                plan.ExpectedFile(), plan.PartialState("", 0), 0, plan.ServerResponse(response.status_code)
            ),
            response,
        )


def raise_for_decision(step: plan.DownloadDecision, response: httpx.Response | None = None) -> None:
    """Raise the exception of a RETRY, RESTART or REFUSE decision."""
    headers = {} if response is None else response.headers
    reason = step.reason + ("" if response is None else _redirect_text(response))
    if message := headers.get("x-error-message"):
        reason += f": {message}"
    if step.action is Action.RETRY:
        raise _TransientError(reason, _parse_retry_after(headers.get("retry-after", "")))
    if step.action is Action.RESTART:
        raise _VersionChanged(reason)
    if step.action is Action.REFUSE:
        raise (WrongFileError if step.wrong_bytes else NotServedError)(reason)


def _parse_response(response: httpx.Response) -> plan.ServerResponse:
    headers, status = response.headers, response.status_code
    start, total = 0, header_bytes(headers, "content-length") if status == httpx.codes.OK else None
    if status in (httpx.codes.PARTIAL_CONTENT, httpx.codes.REQUESTED_RANGE_NOT_SATISFIABLE):
        match = _CONTENT_RANGE.fullmatch(headers.get("content-range", "").strip())
        # The start of a 206 without a valid Content-Range matches no request.
        start = stated_bytes(match[1], "content-range") if match and match[1] else -1
        total = stated_bytes(match[2], "content-range") if match and match[2] != "*" else None
    return plan.ServerResponse(
        status,
        total,
        start,
        validator=_strong_validator(headers),
        encoding=headers.get("content-encoding", ""),
    )


def _strong_validator(headers: httpx.Headers) -> str | None:
    """Return the strong validator of a response as in RFC 9110, section 8.8, or None without a strong validator."""
    etag: str = headers.get("etag", "")
    modified: str = headers.get("last-modified", "")
    # Only a strong ETag guarantees that every byte is the same, and only ASCII characters can be sent back.
    if etag.startswith('"') and etag.isascii():
        return etag
    # A file may change twice within the second of the date. After this second the date is a strong validator.
    dated, now = _parse_date(modified), _parse_date(headers.get("date", "")) or time.time()
    return modified if dated is not None and dated + 1 <= now else None


def _parse_date(date: str) -> float | None:
    """Return an HTTP date as seconds since 1970, or None if the text is not a date."""
    try:
        return email.utils.parsedate_to_datetime(date).timestamp()
    except (ValueError, OverflowError):
        return None


def _reported_checksums(response: httpx.Response) -> plan.ExpectedFile:
    """Return the checksums of the complete file in a response: sha256 of the Hugging Face hub, CRC-32C of Google."""
    # The hub sends the digest in the response that redirects to another host.
    linked = _SHA256.fullmatch((response.history or [response])[0].headers.get("x-linked-etag", ""))
    crc32c = _CRC32C.search(response.headers.get("x-goog-hash", ""))
    # For an object that is stored compressed and sent plain, this is the checksum of the compressed bytes.
    plain = response.headers.get("x-goog-stored-content-encoding", "identity") == "identity"
    return plan.ExpectedFile(
        sha256=linked[1] if linked else None, crc32c=_as_hex(crc32c[1]) if crc32c and plain else None
    )


def _as_hex(encoded: str) -> str | None:
    try:
        return base64.b64decode(encoded, validate=True).hex()
    except binascii.Error:
        return None


def _read_head(chunks: Iterator[bytes]) -> tuple[bytes, Iterator[bytes]]:
    """Return the first `check.HEAD` bytes, or all bytes of a shorter body, and an iterator over all chunks."""
    head: list[bytes] = []
    while sum(map(len, head)) < check.HEAD and (chunk := next(chunks, b"")):
        head.append(chunk)
    return b"".join(head)[: check.HEAD], chain(head, chunks)


def _redirect_text(response: httpx.Response) -> str:
    requested = response.history[0].url.host if response.history else response.url.host
    return f" (redirected to {response.url.host})" if requested != response.url.host else ""


def _origin(url: httpx.URL) -> tuple[str, bytes]:
    return url.scheme, url.netloc


def _parse_retry_after(value: str) -> float | None:
    if value.isascii() and value.strip().isdigit():
        return float(value)
    date = _parse_date(value)
    return None if date is None else max(0.0, date - time.time())
