"""How slow a server may be: connections that end when too little arrives for too long.

A time limit for a single read does not stop a server that sends a byte from time to time, in the headers or in the
body. The streams of this module therefore limit the time until the headers of an answer are complete, and measure the
rate of its body. They lie below the HTTP protocol, so that bytes which never become part of a body count as well.

Only the time spent in waiting for the server counts. A client that takes its time, because of --limit-rate or a busy
disk, does not make a server slow.
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

__all__ = ["TooSlow", "watch"]


class TooSlow(Exception):
    """A server sends, but less than the least rate."""


def watch(client: httpx.Client, window: float, least: float) -> None:
    """Let the connections of a client raise `TooSlow`.

    Args:
        client: Has not made a request yet.
        window: Seconds in which headers must be complete, and over which the rate of a body is averaged.
        least: Bytes per second; 0 sets no limit for the body.
    """
    # httpx passes every option of httpcore on except the network backend, and takes no environment proxies for
    # transports that a caller brings.
    for transport in (client._transport, *client._mounts.values()):  # noqa: SLF001 - see above
        if isinstance(transport, httpx.HTTPTransport):
            pool = transport._pool  # noqa: SLF001 - see above
            pool._network_backend = _Backend(pool._network_backend, window, least)  # noqa: SLF001 - see above
    client.event_hooks = {**client.event_hooks, "response": [*client.event_hooks["response"], _headers_are_complete]}


def _headers_are_complete(response: httpx.Response) -> None:
    stream = response.extensions.get("network_stream")
    if isinstance(stream, _Stream):
        stream.begin_body()


class _Backend(httpcore.NetworkBackend):
    def __init__(self, backend: httpcore.NetworkBackend, window: float, least: float) -> None:
        self._backend = backend
        self._limits = window, least

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
    """A connection that knows whether it waits for headers or for a body."""

    def __init__(self, stream: httpcore.NetworkStream, window: float, least: float) -> None:
        self._stream = stream
        self._window = window
        self._least = least
        self._due: float | None = None
        self._waited = 0.0
        self._received = 0

    def begin_body(self) -> None:
        """Begin to measure the rate: the headers are complete."""
        self._due = None
        self._waited, self._received = 0.0, 0

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._stream.write(buffer, timeout)
        # A request was sent; its answer begins with headers.
        self._due = time.monotonic() + self._window
        self._waited, self._received = 0.0, 0

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        began = time.monotonic()
        try:
            data = self._stream.read(max_bytes, self._patience(began, timeout))
        except httpcore.ReadTimeout:
            # Where nothing at all was received, the server stalls, and that is what the error should report.
            if self._due is None or not self._received:
                raise
            raise self._late() from None
        self._received += len(data)
        self._waited += time.monotonic() - began
        if data and self._due is None and self._waited >= self._window:
            self._judge()
        return data

    def _patience(self, now: float, timeout: float | None) -> float | None:
        if self._due is None:
            return timeout
        left = self._due - now
        if left <= 0:
            raise self._late()
        return left if timeout is None else min(timeout, left)

    def _late(self) -> TooSlow:
        return TooSlow(
            f"the headers of its answer were not complete after {self._window:g} s; {self._received:,} bytes came"
        )

    def _judge(self) -> None:
        if self._received < self._least * self._waited:
            raise TooSlow(
                f"it sent {self._received:,} bytes in {self._waited:.1f} s, expected at least "
                f"{self._least:g} bytes per second (RLDS_MIN_RATE)"
            )
        self._waited, self._received = 0.0, 0

    def close(self) -> None:
        self._stream.close()

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.NetworkStream:
        return _Stream(self._stream.start_tls(ssl_context, server_hostname, timeout), self._window, self._least)

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)
