"""Server of the page: on loopback, read-only, at an address with a secret token.

    http://127.0.0.1:8765/TOKEN/                             the page
    http://127.0.0.1:8765/TOKEN/data/...                     the documents of the page, as JSON
    http://127.0.0.1:8765/TOKEN/frames/0/7/12/observation    the image of dataset 0, episode 7, step 12

Other users of the machine can reach loopback, but do not know the token. A page of another site can send requests to
loopback, too. If the name of the site resolves to loopback, the browser even treats the server as the same site: hence
the check of the header Host. No request changes any data, and the policy of the page allows no other origin.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from datasets_rl.errors import DatasetsRLError, InvalidArgumentError
from datasets_rl.libraries import importing
from datasets_rl.look.page.documents import answer, frame_bytes
from datasets_rl.look.page.images import media_type
from datasets_rl.look.page.panel import Panel

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

HOST = "127.0.0.1"
PORT = 8765
_TRIES = 20
"""Number of ports that are tried by default."""
ASSETS = {"page.css": "text/css", "page.js": "text/javascript"}
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}
_UNCHANGING = "private, max-age=86400, immutable"


def asset(name: str) -> str:
    """Return the text of a file of the page."""
    return files("datasets_rl.look.page").joinpath("assets", name).read_text("utf-8")


class ViewServer:
    """Server of the page of some datasets. The constructor opens the socket.

    Args:
        panels: The datasets, not empty.
        port: The port, by default the first free port from 8765 to 8784.

    Raises:
        InvalidArgumentError: If the port is in use, or no port is free.
        MissingDependencyError: If starlette or uvicorn is not installed.
    """

    def __init__(self, panels: Sequence[Panel], *, port: int | None = None) -> None:
        with importing("uvicorn", "view", "the page"):
            import uvicorn
        self.panels = tuple(panels)
        self.token = secrets.token_urlsafe(24)
        application = make_application(self.panels, self.token)
        self._socket = _listen(port)
        self.port: int = self._socket.getsockname()[1]
        self.url = f"http://{HOST}:{self.port}/{self.token}/"
        self._server = uvicorn.Server(
            uvicorn.Config(
                application,
                log_config=None,
                log_level="error",  # uvicorn warns about malformed requests, which any user of the machine can send
                access_log=False,
                server_header=False,
                lifespan="off",
                loop="asyncio",
                http="h11",
                ws="none",
                timeout_graceful_shutdown=1,
            )
        )

    def run(self) -> None:
        """Serve until Ctrl-C, SIGTERM or `stop`."""
        try:
            asyncio.run(self._serve())
        except KeyboardInterrupt:
            pass  # the usual end: uvicorn raises the signal again after the server stopped
        finally:
            self._socket.close()

    async def _serve(self) -> None:
        try:
            await self._server.serve(sockets=[self._socket])
        finally:
            # uvicorn leaves some connections open: connections accepted while the server stops, and connections to
            # clients that do not read. A browser would wait endlessly for an answer on such a connection.
            for connection in self._server.server_state.connections:
                connection.transport.abort()

    def stop(self) -> None:
        """End `run`, which another thread called."""
        self._server.should_exit = True


def _listen(port: int | None) -> socket.socket:
    if port is not None and not 0 <= port < 1 << 16:
        raise InvalidArgumentError(f"the port is {port}, expected 0 to 65535", hint="0 takes any free port")
    for candidate in range(PORT, PORT + _TRIES) if port is None else [port]:
        try:
            listening = socket.create_server((HOST, candidate))
        except OSError as error:
            reason = error.strerror or str(error)
        else:
            # A response is two writes, headers and body. With Nagle's algorithm the body waits 40 ms for the client's
            # acknowledgment of the headers. asyncio does not set the option, and connections inherit the option.
            listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return listening
    named = f"the ports {PORT} to {PORT + _TRIES - 1}" if port is None else f"the port {port}"
    raise InvalidArgumentError(
        f"{named} cannot be used: {reason.lower()}",
        hint="end the program that uses the port, or choose another port: 0 takes any free port",
    )


def make_application(panels: Sequence[Panel], token: str) -> Starlette:
    """Return the page as an application of Starlette.

    Args:
        panels: The datasets.
        token: The first part of every path.

    Raises:
        MissingDependencyError: If starlette is not installed.
    """
    with importing("starlette", "view", "the page"):
        from starlette.applications import Starlette
        from starlette.middleware import Middleware
        from starlette.middleware.trustedhost import TrustedHostMiddleware
        from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
        from starlette.routing import Route

    def page(_: Request) -> Response:
        return HTMLResponse(asset("page.html"))

    def stylesheet_or_script(request: Request) -> Response:
        name = request.path_params["name"]
        if name not in ASSETS:
            return PlainTextResponse("this file does not exist", 404)
        return Response(asset(name), media_type=ASSETS[name])

    def data(request: Request) -> Response:
        document = answer(panels, request.path_params["path"], request.query_params)
        return _missing() if document is None else _json_response(document)

    def frame(request: Request) -> Response:
        image = frame_bytes(panels, request.path_params["path"])
        if image is None:
            return _missing()
        return Response(image, media_type=media_type(image), headers={"Cache-Control": _UNCHANGING})

    def failed(_: Request, error: Exception) -> Response:
        status = 400 if isinstance(error, InvalidArgumentError) else 500
        return _json_response({"error": error.message if isinstance(error, DatasetsRLError) else str(error)}, status)

    def completed(request: Request) -> Response:
        return RedirectResponse(f"{request.url.path}/")

    routes = [
        Route("/{token}", completed, methods=["GET"]),
        Route("/{token}/", page, methods=["GET"]),
        Route("/{token}/data/{path:path}", data, methods=["GET"]),
        Route("/{token}/frames/{path:path}", frame, methods=["GET"]),
        Route("/{token}/{name}", stylesheet_or_script, methods=["GET"]),
    ]
    return Starlette(
        routes=routes,
        middleware=[
            Middleware(_Headers),
            Middleware(TrustedHostMiddleware, allowed_hosts=[HOST, "localhost"]),
            Middleware(_TokenCheck, token=token),
        ],
        exception_handlers={DatasetsRLError: failed, OSError: failed},
    )


def _missing() -> Response:
    return _json_response({"error": "this address does not exist"}, 404)


def _json_response(document: Mapping[str, Any], status: int = 200) -> Response:
    from starlette.responses import Response

    text = json.dumps(document, allow_nan=False, separators=(",", ":"))
    return Response(text, status, media_type="application/json")


Message = dict[str, Any]
App = Callable[[Any, Callable[[], Awaitable[Any]], Callable[[Any], Awaitable[None]]], Awaitable[None]]


class _Headers:
    """Middleware that adds the security headers to every response, also to refusals."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        from starlette.datastructures import MutableHeaders

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        await self._app(scope, receive, send_with_headers)


class _TokenCheck:
    """Middleware that refuses every path that does not begin with the token."""

    def __init__(self, app: App, token: str) -> None:
        self._app = app
        self._token = token

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        from starlette.responses import PlainTextResponse

        # Some requests have no path: "OPTIONS *" in HTTP, and "GET x" from clients that violate HTTP.
        before, slash, path = scope["path"].partition("/")
        if before or not slash:
            refused = PlainTextResponse("The path of the request has to begin with a slash.\n", 400)
        elif not secrets.compare_digest(path.partition("/")[0].encode(), self._token.encode()):
            refused = PlainTextResponse("Open the whole printed address, which has a token.\n", 403)
        else:
            await self._app(scope, receive, send)
            return
        await refused(scope, receive, send)
