"""Minimum transfer rate: connections that are closed when the server sends too little for too long.

A timeout on single reads does not stop a server that sends a byte from time to time, in the headers or in the body. The
streams of this module therefore limit the time until the headers of a response are complete, and measure the rate of
the body. They work below the HTTP protocol, so that bytes that never become part of a body count as well.

Only the time spent waiting for the server counts. A client that pauses, because of a rate limit or a busy disk, does
not make a server slow.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import httpcore
import httpx

if TYPE_CHECKING:
    from httpcore import SOCKET_OPTION


class TooSlowError(Exception):
    """The server sends data below the minimum rate."""


def enforce_min_rate(client: httpx.Client, window: float, min_rate: float) -> None:
    """Make the connections of a client raise `TooSlowError`.

    Args:
        client: The client, before its first request.
        window: Seconds in which headers must be complete, and over which the rate of a body is averaged.
        min_rate: Minimum rate in bytes per second; 0 sets no limit for the body.
    """
    # httpx passes every option to httpcore except the network backend, and ignores environment proxies for transports
    # that the caller supplies.
    for transport in (client._transport, *client._mounts.values()):  # noqa: SLF001 - see above
        if isinstance(transport, httpx.HTTPTransport):
            pool = transport._pool  # noqa: SLF001 - see above
            pool._network_backend = _Backend(pool._network_backend, window, min_rate)  # noqa: SLF001 - see above
    client.event_hooks = {**client.event_hooks, "response": [*client.event_hooks["response"], _headers_are_complete]}


def _headers_are_complete(response: httpx.Response) -> None:
    stream = response.extensions.get("network_stream")
    if isinstance(stream, _Stream):
        stream.begin_body()


class _Backend(httpcore.NetworkBackend):
    def __init__(self, backend: httpcore.NetworkBackend, window: float, min_rate: float) -> None:
        self._backend = backend
        self._limits = window, min_rate

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[SOCKET_OPTION] | None = None,
    ) -> httpcore.NetworkStream:
        return _Stream(
            self._backend.connect_tcp(host, port, timeout, local_address, socket_options),
            *self._limits,
        )

    def connect_unix_socket(
        self, path: str, timeout: float | None = None, socket_options: Iterable[SOCKET_OPTION] | None = None
    ) -> httpcore.NetworkStream:
        return _Stream(self._backend.connect_unix_socket(path, timeout, socket_options), *self._limits)

    def sleep(self, seconds: float) -> None:
        self._backend.sleep(seconds)


class _Stream(httpcore.NetworkStream):
    """Network stream that limits the time for headers and the rate of a body."""

    def __init__(self, stream: httpcore.NetworkStream, window: float, min_rate: float) -> None:
        self._stream = stream
        self._window = window
        self._min_rate = min_rate
        self._due: float | None = None
        self._waited = 0.0
        self._received = 0

    def begin_body(self) -> None:
        """Start to measure the rate, after the headers are complete."""
        self._due = None
        self._waited, self._received = 0.0, 0

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._stream.write(buffer, timeout)
        # A request was sent; the response begins with headers.
        self._due = time.monotonic() + self._window
        self._waited, self._received = 0.0, 0

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        started = time.monotonic()
        try:
            data = self._stream.read(max_bytes, self._read_timeout(started, timeout))
        except httpcore.ReadTimeout:
            # If nothing at all was received, the server stalls, and the error should report that.
            if self._due is None or not self._received:
                raise
            raise self._headers_error() from None
        self._received += len(data)
        self._waited += time.monotonic() - started
        if data and self._due is None and self._waited >= self._window:
            self._check_rate()
        return data

    def _read_timeout(self, now: float, timeout: float | None) -> float | None:
        if self._due is None:
            return timeout
        remaining = self._due - now
        if remaining <= 0:
            raise self._headers_error()
        return remaining if timeout is None else min(timeout, remaining)

    def _headers_error(self) -> TooSlowError:
        return TooSlowError(
            f"the headers of its response were not complete after {self._window:g} s; "
            f"{self._received:,} bytes were received"
        )

    def _check_rate(self) -> None:
        if self._received < self._min_rate * self._waited:
            raise TooSlowError(
                f"it sent {self._received:,} bytes in {self._waited:.1f} s, expected at least "
                f"{self._min_rate:g} bytes per second (RLDS_MIN_RATE)"
            )
        self._waited, self._received = 0.0, 0

    def close(self) -> None:
        self._stream.close()

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.NetworkStream:
        return _Stream(self._stream.start_tls(ssl_context, server_hostname, timeout), self._window, self._min_rate)

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)
