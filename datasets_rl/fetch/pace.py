"""Minimum transfer rate: connections that are closed when the server sends too little for too long.

A timeout on single reads does not stop a server that sends a byte from time to time, in the headers or in the body. The
streams of this module therefore limit the time until the headers of a response are complete, and measure the rate of
the body. The streams work below the HTTP protocol, so that bytes that never become part of a body count as well.

Only the time spent waiting for the server counts. A client that pauses, because of a rate limit or a busy disk, does
not make a server slow.
"""

from __future__ import annotations

import ssl
import time
import urllib.request
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeAlias

import httpcore
import httpx

if TYPE_CHECKING:
    from httpcore import SOCKET_OPTION

_KEEPALIVE_SECONDS = 5.0
_Pool: TypeAlias = "httpcore.ConnectionPool | httpcore.HTTPProxy | httpcore.SOCKSProxy"


class TooSlowError(Exception):
    """The server sends data below the minimum rate."""


class MinRateTransport(httpx.BaseTransport):
    """Transport of `httpx.Client` that raises `TooSlowError` for slow servers, and uses the proxies of the environment.

    The transport of httpx passes every option to httpcore except the network backend. This class passes the backend.

    Args:
        window: Seconds in which headers must be complete, and over which the rate of a body is averaged.
        min_rate: Minimum rate in bytes per second. 0 sets no limit for the body.
    """

    def __init__(self, window: float, min_rate: float) -> None:
        self._options: dict[str, Any] = {
            "network_backend": _Backend(window, min_rate),
            "keepalive_expiry": _KEEPALIVE_SECONDS,
        }
        self._proxies = urllib.request.getproxies()
        self._pools: dict[tuple[str, str], _Pool] = {}

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request, and return the response when the headers are complete."""
        url = request.url
        target = httpcore.URL(scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path)
        with _errors_of_httpx():
            response = self._pool(url).handle_request(
                httpcore.Request(
                    request.method,
                    target,
                    headers=request.headers.raw,
                    content=request.stream,
                    extensions=request.extensions,
                )
            )
        stream = response.extensions.get("network_stream")
        if isinstance(stream, _Stream):
            stream.begin_body()
        return httpx.Response(
            response.status, headers=response.headers, stream=_Body(response), extensions=response.extensions
        )

    def close(self) -> None:
        """Close all connections."""
        for pool in self._pools.values():
            pool.close()

    def _pool(self, url: httpx.URL) -> _Pool:
        """Return the connection pool for a host: a pool of direct connections, or the pool of the host's proxy."""
        direct = any(urllib.request.proxy_bypass(name) for name in (url.host, url.netloc.decode("ascii")))
        proxy = "" if direct else self._proxies.get(url.scheme, self._proxies.get("all", ""))
        # The assignment is atomic: two threads that open the same pool both use the first pool.
        key = url.scheme, proxy
        return self._pools.get(key) or self._pools.setdefault(key, self._open_pool(*key))

    def _open_pool(self, scheme: str, proxy: str) -> _Pool:
        options = {
            **self._options,
            # The certificates take 20 ms to read.
            "ssl_context": httpx.create_ssl_context() if scheme == "https" else None,
        }
        if not proxy:
            return httpcore.ConnectionPool(max_connections=None, **options)
        server = httpx.Proxy(proxy if "://" in proxy else f"http://{proxy}")
        url = httpcore.URL(
            scheme=server.url.raw_scheme, host=server.url.raw_host, port=server.url.port, target=server.url.raw_path
        )
        kind = httpcore.SOCKSProxy if server.url.scheme.startswith("socks") else httpcore.HTTPProxy
        return kind(url, proxy_auth=server.raw_auth, max_connections=None, **options)


class _Body(httpx.SyncByteStream):
    """Body of a response, in chunks as they arrive."""

    def __init__(self, response: httpcore.Response) -> None:
        self._response = response

    def __iter__(self) -> Iterator[bytes]:
        with _errors_of_httpx():
            yield from self._response.iter_stream()

    def close(self) -> None:
        self._response.close()


@contextmanager
def _errors_of_httpx() -> Iterator[None]:
    """Raise the exceptions of httpcore as the exceptions of httpx with the same names."""
    try:
        yield
    except (
        httpcore.TimeoutException,
        httpcore.NetworkError,
        httpcore.ProtocolError,
        httpcore.ProxyError,
        httpcore.UnsupportedProtocol,
    ) as error:
        raise getattr(httpx, type(error).__name__)(str(error)) from error


class _Backend(httpcore.SyncBackend):
    def __init__(self, window: float, min_rate: float) -> None:
        self._limits = window, min_rate

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[SOCKET_OPTION] | None = None,
    ) -> httpcore.NetworkStream:
        stream = super().connect_tcp(host, port, timeout, local_address, socket_options)
        return _Stream(stream, *self._limits)


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
        # A request was sent. The response begins with headers.
        self._due = time.monotonic() + self._window
        self._waited, self._received = 0.0, 0

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        started = time.monotonic()
        try:
            data = self._stream.read(max_bytes, self._read_timeout(started, timeout))
        except httpcore.ReadTimeout:
            # If no byte was received, the server stalls, and the error should report the stall.
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
            f"the headers of the response were not complete after {self._window:g} s: "
            f"{self._received:,} bytes were received"
        )

    def _check_rate(self) -> None:
        if self._received < self._min_rate * self._waited:
            raise TooSlowError(
                f"the server sent {self._received:,} bytes in {self._waited:.1f} s, expected at least "
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
