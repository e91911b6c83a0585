"""The server of the page: who may read it, and what it refuses."""

from __future__ import annotations

import logging
import re
import socket
import threading
import time
from contextlib import suppress
from urllib.parse import urlencode

import httpx
import pytest
import view_data
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from datasets_rl.differences import compare
from datasets_rl.errors import InvalidArgumentError
from datasets_rl.look.page import Pairs, Panel, ViewServer


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("served")
    first, second = view_data.state_dataset(folder / "a"), view_data.mixed_dataset(folder / "b")
    found = compare(first, second, names=("a", "b"))
    panels = [Panel(first, pairs=Pairs(found, first, second)), Panel(second)]
    made = ViewServer(panels, port=0)
    thread = threading.Thread(target=made.run)
    thread.start()
    yield made
    made.stop()
    thread.join()


@pytest.fixture(scope="module")
def client(server):
    with httpx.Client(base_url=server.url, trust_env=False) as made:
        yield made


def test_the_page_and_its_files_need_no_other_host(client):
    page, style, script = (client.get(name) for name in ("", "page.css", "page.js"))

    assert [answer.status_code for answer in (page, style, script)] == [200] * 3
    assert [answer.headers["content-type"].partition(";")[0] for answer in (page, style, script)] == [
        "text/html",
        "text/css",
        "text/javascript",
    ]
    assert "//" not in page.text.replace("http://www.w3.org/2000/svg", "")
    assert "@import" not in style.text
    assert "url(" not in style.text


@pytest.mark.parametrize("path", ["/", "/x/", "/x/data/overview", "//data/overview"])
def test_without_the_token_nothing_is_answered(server, path):
    answer = httpx.get(f"http://127.0.0.1:{server.port}{path}", trust_env=False)

    assert answer.status_code == 403
    assert "token" in answer.text
    assert "toy" not in answer.text


def test_a_token_that_is_cut_or_longer_is_refused(server):
    for url in (server.url[:-2] + "/", server.url[:-1] + "x/"):
        assert httpx.get(url, trust_env=False).status_code == 403


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8765", "127.0.0.1.evil.example", "localhost.evil.example", ""]
)
def test_other_names_of_this_machine_are_refused(client, host):
    """A site can make its own name resolve to loopback, and would then be of the same origin."""
    answer = client.get("data/overview", headers={"Host": host})

    assert answer.status_code == 400
    assert "toy" not in answer.text


def test_a_forwarded_port_of_localhost_is_accepted(client):
    assert client.get("data/overview", headers={"Host": "localhost:9000"}).status_code == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS"])
def test_only_reading_is_possible(client, method):
    for path in ("", "data/overview", "page.js"):
        assert client.request(method, path).status_code == 405


def test_every_response_has_the_policy_of_the_page(client, server):
    refused = httpx.get(f"http://127.0.0.1:{server.port}/", trust_env=False)
    for answer in (client.get(""), client.get("data/overview"), client.get("data/x"), refused):
        policy = answer.headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; script-src 'self';")
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert "access-control-allow-origin" not in answer.headers


def test_the_server_listens_on_loopback_only(server):
    assert server._socket.getsockname()[0] == "127.0.0.1"


def test_each_server_has_its_own_token(tmp_path):
    panels = [Panel(view_data.state_dataset(tmp_path / "a"))]
    first, second = (ViewServer(panels, port=0) for _ in range(2))
    for one in (first, second):
        one.stop()
        one.run()

    assert first.token != second.token
    assert len(first.token) == 32


def test_a_server_that_ends_closes_the_connections_of_clients_that_do_not_read(tmp_path, monkeypatch):
    """An open connection of a server that has ended lets a browser wait without end."""
    monkeypatch.setattr("datasets_rl.look.page.server.answer", lambda *_: {"text": "x" * 50_000_000})
    made = ViewServer([Panel(view_data.state_dataset(tmp_path / "a"))], port=0)
    thread = threading.Thread(target=made.run)
    thread.start()

    with socket.create_connection(("127.0.0.1", made.port), timeout=20) as client:
        client.sendall(f"GET /{made.token}/data/overview HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        client.recv(1)
        open_connections = made._server.server_state.connections.copy()
        made.stop()
        thread.join()
        with suppress(ConnectionResetError):
            while client.recv(1 << 20):
                pass
    assert open_connections
    assert all(connection.transport.is_closing() for connection in open_connections)


@pytest.mark.parametrize(
    ("path", "status", "message"),
    [
        ("data/nothing", 404, "this address does not exist"),
        ("data/0/episodes?where=bad", 400, "is not a condition, such as return > 100"),
        ("data/0/episodes?sort=age", 400, "age"),
        ("data/0/episodes?offset=-1", 400, "offset is '-1'"),
        ("data/0/episodes/99", 400, "has no episode 99"),
        ("data/7/ends", 400, "dataset 7 does not exist"),
        ("data/pairs/0", 400, "the datasets have no episode in common"),
        ("data/pairs?offset=x", 400, "offset is 'x'"),
        ("frames/7/0/0/observation", 400, "dataset 7 does not exist"),
        ("frames/0/0/0/observation", 400, "expected an image field"),
        ("frames/1/1/15/observation.camera", 400, "is unknown"),
    ],
)
def test_what_does_not_exist_is_explained(client, path, status, message):
    answer = client.get(path)

    assert answer.status_code == status
    assert message in answer.json()["error"]


@pytest.mark.parametrize("path", ["../../../../etc/passwd", "%2e%2e/%2e%2e/etc/passwd", "server.py", "page.html%00"])
def test_no_other_file_is_served(client, path):
    assert client.get(path).status_code in {403, 404}


def test_images_are_cached_and_data_are_not(client):
    image = client.get("frames/1/0/3/observation.camera")

    assert (image.status_code, image.headers["content-type"]) == (200, "image/png")
    assert "immutable" in image.headers["cache-control"]
    assert client.get("data/overview").headers["cache-control"] == "no-store"


def test_a_port_in_use_is_named_and_the_next_one_is_taken_if_none_was_given(server, tmp_path):
    panels = [Panel(view_data.state_dataset(tmp_path / "a"))]

    with pytest.raises(InvalidArgumentError, match=rf"the port {server.port} cannot be used: address already in use"):
        ViewServer(panels, port=server.port)
    made = [ViewServer(panels) for _ in range(2)]
    for one in made:
        one.stop()
        one.run()
    assert made[0].port < made[1].port


def test_a_number_that_is_no_port_is_refused(tmp_path):
    with pytest.raises(InvalidArgumentError, match="the port is 65536, expected 0 to 65535"):
        ViewServer([Panel(view_data.state_dataset(tmp_path / "a"))], port=65536)


def exchange(server, data):
    """Send bytes to the server over a socket of its own and return the status of each response."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as connection:
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        received = b"".join(iter(lambda: connection.recv(1 << 16), b""))
    return [int(status) for status in re.findall(rb"HTTP/1.1 (\d+) ", received)]


@pytest.mark.parametrize("line", ["OPTIONS *", "GET x", "GET http://127.0.0.1/", "GET ?", "CONNECT 127.0.0.1:80"])
def test_a_request_without_a_path_is_a_bad_request(server, reported, line):
    assert exchange(server, f"{line} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode()) == [400]
    assert reported == []


@pytest.mark.parametrize("path", ["data/0/episodes/{}", "data/{}/ends", "frames/{}/0/0/x", "frames/1/{}/0/x"])
def test_a_number_of_five_thousand_digits_is_a_bad_request(client, reported, path):
    answer = client.get(path.format("9" * 5_000))

    assert answer.status_code == 400
    assert "expected an integer >= 0 of at most 15 digits" in answer.json()["error"]
    assert len(answer.text) < 200
    assert reported == []


@pytest.fixture
def reported():
    """What the server has reported: tracebacks, and requests that it could not answer."""
    records = []
    handler = logging.Handler(logging.ERROR)
    handler.emit = records.append
    logging.getLogger().addHandler(handler)
    yield records
    logging.getLogger().removeHandler(handler)


WORDS = st.sampled_from(
    [
        "data",
        "frames",
        "overview",
        "histogram",
        "ends",
        "episodes",
        "curves",
        "rows",
        "pairs",
        "page.js",
        "0",
        "1",
        "7",
        "-1",
        "1e3",
        "observation",
        "observation.camera",
        "action",
        "next.reward",
        "return",
        "..",
        ".",
        "%2e%2e",
        "%00",
        "%ff",
        "%C3%A9",
        "a..b",
    ]
)
QUERIES = st.dictionaries(
    st.sampled_from(["field", "start", "sort", "descending", "where", "offset", "whole", "x"]),
    WORDS
    | st.sampled_from(["return > 1", "length<5,,return=nan", "final_known = no", ">", "9" * 400])
    | st.text(max_size=8),
    max_size=3,
)
REQUESTS = st.builds(
    lambda words, query: f"GET /{{token}}/{'/'.join(words)}?{urlencode(query)} HTTP/1.1".encode(),
    st.lists(WORDS | st.text("0123456789", min_size=1, max_size=30), max_size=6),
    QUERIES,
)
LINES = st.binary(max_size=60).map(lambda data: data.replace(b"\n", b"")) | st.builds(
    "{} {} HTTP/1.{}".format,
    st.sampled_from(["GET", "HEAD", "OPTIONS", "POST", "get", ""]),
    st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=40),
    st.integers(0, 2),
).map(str.encode)


def check_requests(server, reported, count):
    @settings(max_examples=count, deadline=None, suppress_health_check=list(HealthCheck))
    @given(REQUESTS | LINES)
    def check(line):
        head = line.replace(b"{token}", server.token.encode()) + b"\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        assert set(exchange(server, head)) <= {200, 307, 400, 403, 404, 405}, line
        assert [record.getMessage() for record in reported] == [], line

    check()


def test_no_request_makes_the_server_fail(server, reported):
    check_requests(server, reported, 60)


@pytest.mark.slow
def test_no_request_of_many_makes_the_server_fail(server, reported):
    check_requests(server, reported, 5_000)


def _round_trip(connection, request: bytes) -> bytes:
    """Send a request on a connection that stays open, and return the response."""
    connection.sendall(request)
    data = b""
    while b"\r\n\r\n" not in data:
        data += connection.recv(1 << 16)
    head, _, body = data.partition(b"\r\n\r\n")
    length = int(re.search(rb"(?i)content-length: (\d+)", head)[1])
    while len(body) < length:
        body += connection.recv(1 << 16)
    return head


def test_a_request_on_an_open_connection_waits_for_no_acknowledgment(server):
    """Nagle's algorithm and a delayed acknowledgment cost 40 ms, of which a new connection is free."""
    path = server.url.split(str(server.port))[1]
    request = f"GET {path}page.css HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode()

    def seconds(count: int) -> float:
        with socket.create_connection(("127.0.0.1", server.port)) as connection:
            start = time.perf_counter()
            for _ in range(count):
                assert b" 200 " in _round_trip(connection, request)
            return (time.perf_counter() - start) / count

    new, kept = (min(seconds(count) for _ in range(5)) for count in (1, 20))
    assert kept < 5 * new


def test_requests_without_the_token_leave_the_terminal_empty(server, capfd):
    upgrade = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAA\r\n"
    for text in (f"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n{upgrade}\r\n", "GET / HTTP/1.1\r\n\r\n", "\x00\x01 x\r\n\r\n"):
        with socket.create_connection(("127.0.0.1", server.port)) as connection:
            connection.sendall(text.encode())
            status = connection.recv(100)
            assert b" 403 " in status or b" 400 " in status

    assert capfd.readouterr().err == ""
