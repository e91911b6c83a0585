"""An HTTP server on the loopback device whose responses can be correct or faulty.

    with serve({"/a.hdf5": b"...", "/b.hdf5": Cut(b"...", after=1000, times=2)}) as server:
        fetch_from(server.url + "/a.hdf5")
    assert server.requests[0].headers["range"] == "bytes=1000-"

A path maps to bytes, to a `Path` (read at each request) or to a behavior. A behavior is a `File`, a subclass of `File`
with one fault, or one of `Status`, `Html`, `Redirect`, `InTurn`. The keys of `Request.headers` are lower-case.
"""

from __future__ import annotations

import gzip
import hashlib
import socket
import struct
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import NamedTuple, Protocol
from urllib.parse import urlsplit

PIECE = 16 * 1024


class Request(NamedTuple):
    """A request as the server received it."""

    method: str
    path: str
    """The request target, percent-encoded and with the query."""
    headers: dict[str, str]
    """Header values by lower-case name."""


class Behaviour(Protocol):
    """A response, or a sequence of responses, to the requests for one path."""

    def answer(self, call: Call) -> None:
        """Send the response to one request."""


Content = bytes | Path | Behaviour


class Call(BaseHTTPRequestHandler):
    """One connection of a client; `server` is the `Server`."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # a body would wait 40 ms for the acknowledgement of its headers
    server: Server

    def do_GET(self) -> None:
        """Record the request, and send the response of its path, or status 404."""
        request = Request(self.command, self.path, {name.lower(): value for name, value in self.headers.items()})
        with self.server.lock:
            self.server.requests.append(request)
        content = self.server.paths.get(urlsplit(self.path).path, None)
        if content is None:
            content = Status(404)
        elif isinstance(content, (bytes, Path)):
            content = File(content)
        content.answer(self)

    do_HEAD = do_POST = do_PUT = do_CONNECT = do_GET  # noqa: N815 - the names that http.server looks for

    def start(self, status: int, headers: Mapping[str, object]) -> None:
        """Send the status line and the headers."""
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, str(value))
        self.end_headers()

    def hang(self, seconds: float) -> None:
        """Send nothing for some seconds; closing the server ends the pause."""
        self.server.closing.wait(seconds)

    def hang_up(self, *, reset: bool = False) -> None:
        """Close the connection, with a TCP reset if `reset`."""
        self.close_connection = True
        if reset:
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.close()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name of the base class
        """Print nothing; `Server.requests` has the requests."""


class Server(ThreadingHTTPServer):
    """The running server; `serve` starts and stops it."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, paths: Mapping[str, Content]) -> None:
        super().__init__(("127.0.0.1", 0), Call)
        self.paths = dict(paths)
        self.requests: list[Request] = []
        self.lock = threading.Lock()
        self.closing = threading.Event()

    @property
    def url(self) -> str:
        """The address of the server, without a trailing slash."""
        return f"http://127.0.0.1:{self.server_address[1]}"

    @property
    def ranges(self) -> list[str]:
        """The Range headers of all requests, in order."""
        return [request.headers["range"] for request in self.requests if "range" in request.headers]

    def handle_error(self, request: object, client_address: object) -> None:
        """Print nothing where the client closed the connection, which the tests do on purpose."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]


@contextmanager
def serve(paths: Mapping[str, Content]) -> Iterator[Server]:
    """Run a server of these paths."""
    server = Server(paths)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.closing.set()
        server.shutdown()
        server.server_close()
        thread.join()


@dataclass
class File:
    """A file, served with ETag, Last-Modified, Accept-Ranges, Range, If-Range and status 416."""

    body: bytes | Path
    etag: str | None = "from the bytes"
    """The ETag with its quotes; None omits the header."""
    modified: str | None = None
    """The Last-Modified header, an HTTP date."""
    ranges: bool = True
    """Whether Range is honored."""
    advertises: bool | None = None
    """Whether Accept-Ranges is sent; by default the value of `ranges`."""
    length: bool = True
    """Whether Content-Length is sent; without it the body is chunked."""
    headers: Mapping[str, object] = field(default_factory=dict)
    """Additional headers."""

    def __post_init__(self) -> None:
        self.calls = 0
        """Number of GET requests so far."""
        self._lock = threading.Lock()

    def data(self) -> bytes:
        """Return the bytes of the file."""
        return self.body.read_bytes() if isinstance(self.body, Path) else self.body

    def mark(self, data: bytes) -> str | None:
        """Return the ETag of the file's bytes."""
        return f'"{hashlib.sha256(data).hexdigest()[:16]}"' if self.etag == "from the bytes" else self.etag

    def facts(self, data: bytes) -> dict[str, object]:
        """Return the headers that describe the whole file."""
        advertises = self.ranges if self.advertises is None else self.advertises
        facts = {
            "Content-Type": "application/octet-stream",
            "ETag": self.mark(data),
            "Last-Modified": self.modified,
            "Accept-Ranges": "bytes" if advertises else None,
            **self.headers,
        }
        return {name: value for name, value in facts.items() if value is not None}

    def asked(self, call: Call, data: bytes) -> tuple[int, int] | None:
        """Return the requested range [start, stop), or None where the whole file is sent."""
        wanted = call.headers.get("Range", "")
        if not self.ranges or not wanted.startswith("bytes="):
            return None
        condition = call.headers.get("If-Range")
        if condition is not None and condition not in (self.mark(data), self.modified):
            return None
        first, _, last = wanted.removeprefix("bytes=").partition("-")
        return int(first), min(int(last) + 1, len(data)) if last else len(data)

    def answer(self, call: Call) -> None:
        """Send the file, the requested range or status 416."""
        data = self.data()
        part = self.asked(call, data)
        with self._lock:
            turn = self.calls
            self.calls += call.command == "GET"
        if part is not None and part[0] >= len(data):
            call.start(416, {**self.facts(data), "Content-Range": f"bytes */{len(data)}", "Content-Length": 0})
        elif part is not None:
            start, stop = part
            span = {"Content-Range": f"bytes {start}-{stop - 1}/{len(data)}"}
            self.reply(call, 206, {**self.facts(data), **span}, data[start:stop], turn)
        else:
            self.reply(call, 200, self.facts(data), data, turn)

    def reply(self, call: Call, status: int, headers: dict[str, object], data: bytes, turn: int) -> None:
        """Send the headers and the body of a response; `turn` is the number of earlier GET requests."""
        if self.length:
            call.start(status, {**headers, "Content-Length": len(data)})
            if call.command == "GET":
                self.send(call, data, turn)
        else:
            call.start(status, {**headers, "Transfer-Encoding": "chunked"})
            if call.command == "GET":
                self.send_chunked(call, data)

    def send(self, call: Call, data: bytes, turn: int) -> None:
        """Send the body of a response."""
        del turn
        call.wfile.write(data)

    def send_chunked(self, call: Call, data: bytes) -> None:
        """Send the body in chunks."""
        for at in range(0, len(data), PIECE):
            piece = data[at : at + PIECE]
            call.wfile.write(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
        call.wfile.write(b"0\r\n\r\n")


@dataclass
class Cut(File):
    """Close the connection after `after` bytes of each of the first `times` responses, before the announced length."""

    after: int = 1000
    times: int = 1
    reset: bool = False

    def send(self, call: Call, data: bytes, turn: int) -> None:
        if turn >= self.times or self.after >= len(data):
            call.wfile.write(data)
            return
        call.wfile.write(data[: self.after])
        call.wfile.flush()
        if self.reset:
            # A reset discards the bytes that the client has not read yet.
            time.sleep(0.05)
        call.hang_up(reset=self.reset)


@dataclass
class Resets(Cut):
    """Like `Cut`, with a TCP reset."""

    reset: bool = True


@dataclass
class Stall(File):
    """Stop sending after `after` bytes of each of the first `times` responses, and keep the connection open."""

    after: int = 1000
    times: int = 1
    seconds: float = 60.0

    def send(self, call: Call, data: bytes, turn: int) -> None:
        if turn >= self.times:
            call.wfile.write(data)
            return
        call.wfile.write(data[: self.after])
        call.wfile.flush()
        call.hang(self.seconds)
        call.hang_up()


@dataclass
class Slow(File):
    """Send at a limited rate, in bytes per second."""

    rate: float = 1e6

    def send(self, call: Call, data: bytes, turn: int) -> None:
        del turn
        piece = max(1, min(PIECE, int(self.rate / 50)))
        for at in range(0, len(data), piece):
            call.wfile.write(data[at : at + piece])
            call.hang(piece / self.rate)
            if call.server.closing.is_set():
                call.hang_up()
                return


@dataclass
class Drips(File):
    """Send the beginning of a response at once and the rest byte by byte, like a Slowloris attack."""

    where: str = "body"
    """The slow part: 'body', 'headers', 'chunk' (a chunk extension) or 'interim' (1xx responses)."""
    pause: float = 0.5
    """Pause in seconds before each byte."""
    times: int = 10**9
    """Number of slow responses; later responses are sent at once."""

    def reply(self, call: Call, status: int, headers: dict[str, object], data: bytes, turn: int) -> None:
        if turn >= self.times:
            super().reply(call, status, headers, data, turn)
            return
        head = b"HTTP/1.1 200 OK\r\n" if status == 200 else b"HTTP/1.1 206 Partial Content\r\n"
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items()).encode()
        head += lines + (
            b"Transfer-Encoding: chunked\r\n" if self.where == "chunk" else f"Content-Length: {len(data)}\r\n".encode()
        )
        started, drops = {
            "body": (head + b"\r\n" + data[:5000], [data[at : at + 1] for at in range(5000, len(data))]),
            "headers": (head + b"X-Padding: ", [b"x"] * 50_000),
            "chunk": (head + b"\r\n400\r\n" + data[:1024] + b"\r\n400;", [b"x"] * 50_000),
            "interim": (b"", [b"HTTP/1.1 102 Processing\r\n\r\n"] * 50_000),
        }[self.where]
        call.wfile.write(started)
        for drop in drops:
            call.hang(self.pause)
            if call.server.closing.is_set():
                break
            call.wfile.write(drop)
        call.hang_up()


@dataclass
class IgnoresRange(File):
    """Announce ranges, and send the whole file for every request."""

    ranges: bool = False
    advertises: bool | None = True


@dataclass
class NoRange(File):
    """Neither announce nor honor ranges."""

    ranges: bool = False


@dataclass
class NoValidator(File):
    """Honor ranges, and send neither ETag nor Last-Modified."""

    etag: str | None = None


@dataclass
class WrongRange(File):
    """Send a range that starts `shift` bytes after the requested start."""

    shift: int = -1

    def asked(self, call: Call, data: bytes) -> tuple[int, int] | None:
        part = super().asked(call, data)
        return part if part is None else (max(0, part[0] + self.shift), part[1])


@dataclass
class IgnoresIfRange(File):
    """Honor Range although If-Range names another version."""

    def asked(self, call: Call, data: bytes) -> tuple[int, int] | None:
        del call.headers["If-Range"]
        return super().asked(call, data)


@dataclass
class ChangesValidator(Cut):
    """Cut the first `times` responses, and then serve another file."""

    then: bytes = b""

    def data(self) -> bytes:
        return super().data() if self.calls < self.times else self.then


@dataclass
class LiesAboutLength(File):
    """Announce `extra` bytes more than the file has, and close the connection after the last byte."""

    extra: int = 100

    def reply(self, call: Call, status: int, headers: dict[str, object], data: bytes, turn: int) -> None:
        del turn
        call.start(status, {**headers, "Content-Length": len(data) + self.extra})
        if call.command == "GET":
            call.wfile.write(data)
        call.hang_up()


@dataclass
class HidesLength(File):
    """Send no length, and end the first `times` responses early, like a server that was stopped."""

    after: int = 1000
    times: int = 1

    def reply(self, call: Call, status: int, headers: dict[str, object], data: bytes, turn: int) -> None:
        call.start(status, {**headers, "Connection": "close"})
        if call.command == "GET":
            call.wfile.write(data if turn >= self.times else data[: self.after])
        call.hang_up()


@dataclass
class Truncates(File):
    """Serve the first bytes of a file as a complete response, like a proxy that cached an incomplete one."""

    after: int = 1000
    times: int = 1

    def data(self) -> bytes:
        data = super().data()
        return data if self.calls >= self.times else data[: self.after]


@dataclass
class Gzipped(File):
    """Send the bytes gzip-encoded although the request does not accept it."""

    ranges: bool = False

    def reply(self, call: Call, status: int, headers: dict[str, object], data: bytes, turn: int) -> None:
        super().reply(call, status, {**headers, "Content-Encoding": "gzip"}, gzip.compress(data), turn)


@dataclass
class Status:
    """Respond with a status code `times` times (by default always), and then as `then` does."""

    code: int
    headers: Mapping[str, object] = field(default_factory=dict)
    body: bytes = b"no"
    times: int | None = None
    then: Content = b""

    def __post_init__(self) -> None:
        self.calls = 0

    def answer(self, call: Call) -> None:
        self.calls += 1
        if self.times is not None and self.calls > self.times:
            _behaviour(self, "then").answer(call)
            return
        call.start(self.code, {"Content-Length": len(self.body), **self.headers})
        if call.command != "HEAD":
            call.wfile.write(self.body)


@dataclass
class Html(File):
    """A web page with status 200, as captive portals, login pages and parked domains send it."""

    body: bytes | Path = b""
    title: str = "Sign in"
    headers: Mapping[str, object] = field(default_factory=lambda: {"Content-Type": "text/html"})

    def data(self) -> bytes:
        page = f"<!DOCTYPE html>\n<html><head><title>{self.title}</title></head><body>{'x' * 5000}</body></html>"
        return page.encode()


@dataclass
class Redirect:
    """Redirect the client to another address."""

    to: str
    code: int = 302
    headers: Mapping[str, object] = field(default_factory=dict)

    def answer(self, call: Call) -> None:
        call.start(self.code, {"Location": self.to, "Content-Length": 0, **self.headers})


class InTurn:
    """Respond to each request with the next behavior of a list; the last one is repeated."""

    def __init__(self, *behaviours: Content) -> None:
        self.behaviours = list(behaviours)

    def answer(self, call: Call) -> None:
        now = self.behaviours.pop(0) if len(self.behaviours) > 1 else self.behaviours[0]
        (File(now) if isinstance(now, (bytes, Path)) else now).answer(call)


def _behaviour(owner: Status, name: str) -> Behaviour:
    """Wrap the content of an attribute in a `File` once, so that the `File` can count its calls."""
    content = getattr(owner, name)
    if isinstance(content, (bytes, Path)):
        content = File(content)
        setattr(owner, name, content)
    return content
