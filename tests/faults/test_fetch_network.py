"""Faulty servers and networks: a download has the right bytes, or raises an error that names the fault."""

from __future__ import annotations

import email.utils
import hashlib
import io
import json
import random
import socket
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path

import h5py
import numpy as np
import pytest
from servers import (
    ChangesValidator,
    Cut,
    Drips,
    File,
    Gzipped,
    HidesLength,
    Html,
    IgnoresIfRange,
    IgnoresRange,
    InTurn,
    LiesAboutLength,
    NoRange,
    NoValidator,
    Redirect,
    Resets,
    Slow,
    Stall,
    Status,
    Truncates,
    WrongRange,
    serve,
)

from datasets_rl.errors import FetchError, IntegrityError
from datasets_rl.fetch import Asset, fetch, partial_download, plan, transfer
from datasets_rl.fetch.download import json_client
from datasets_rl.fetch.parallel import Limiter
from datasets_rl.fetch.schemes import NotServedError
from datasets_rl.settings import Settings

MAGIC = b"\x89HDF\r\n\x1a\n"
DATA = MAGIC + random.Random(7).randbytes(300_000)
OTHER = MAGIC + random.Random(8).randbytes(280_000)
SHA256 = hashlib.sha256(DATA).hexdigest()


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch):
    monkeypatch.setattr(plan, "_FIRST_PAUSE", 0.001)
    monkeypatch.setenv("NO_PROXY", "*")


@pytest.fixture
def settings(tmp_path):
    return Settings(home=tmp_path, timeout=0.5, retries=3, progress=False)


@pytest.fixture
def impatient(settings):
    """Settings for servers that are too slow on purpose."""
    return replace(settings, timeout=0.3)


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "files"


@pytest.fixture
def get(folder, settings):
    def get(urls, *, retries=settings.retries, timeout=settings.timeout, hash_check=True, **known):
        urls = (urls,) if isinstance(urls, str) else tuple(urls)
        asset = Asset(urls, **{"path": "a.hdf5", "magic": MAGIC, "kind": "HDF5", **known})
        chosen = replace(settings, retries=retries, timeout=timeout)
        return fetch([asset], folder, settings=chosen, hash_check=hash_check)[0]

    return get


@pytest.fixture(params=["one stream", "ranges"])
def _streams(request, monkeypatch):
    """Run the test with a single stream, and with several concurrent ranges."""
    if request.param == "ranges":
        monkeypatch.setattr(transfer, "SPLIT_FROM", 100_000)


def start(get, server, path="/a", after=100_000, body=DATA, **file):
    """Leave a partial file of `after` bytes, as a process that gave up does."""
    server.paths[path] = Cut(body, after=after, times=10**9, **file)
    with pytest.raises(FetchError):
        get(server.url + path, retries=0)
    server.requests.clear()


def sidecar(folder):
    return json.loads((folder / "a.hdf5.part.json").read_text())


@pytest.mark.usefixtures("_streams")
@pytest.mark.parametrize(
    "behaviour",
    [
        Cut(DATA, after=50_000, times=3),
        Cut(DATA, after=0, times=3),
        Cut(DATA, after=700, times=3),
        Resets(DATA, after=50_000, times=3),
        Stall(DATA, after=50_000),
        IgnoresRange(DATA),
        NoRange(DATA),
        NoValidator(DATA),
        Status(500, times=3, then=DATA),
        Status(503, {"Retry-After": "0"}, times=3, then=DATA),
        Status(429, {"Retry-After": "nonsense"}, times=3, then=DATA),
        Status(429, {"Retry-After": email.utils.formatdate(0)}, times=3, then=DATA),
        File(DATA, length=False),
    ],
    ids=lambda behaviour: f"{type(behaviour).__name__} {getattr(behaviour, 'code', getattr(behaviour, 'after', ''))}",
)
def test_the_right_bytes_are_received_in_spite_of(get, behaviour):
    # Use a copy, because behaviors count their calls.
    with serve({"/a": replace(behaviour)}) as server:
        came = get(server.url + "/a")

    assert came.path.read_bytes() == DATA
    assert came.sha256 == SHA256


def test_each_try_continues_after_the_bytes_of_the_last_one(get):
    with serve({"/a": Cut(DATA, after=100_000, times=2)}) as server:
        get(server.url + "/a")

    assert server.ranges == ["bytes=100000-", "bytes=200000-"]


@pytest.mark.slow
def test_progress_resets_the_number_of_tries(get):
    with serve({"/a": Cut(DATA, after=20_000, times=14)}) as server:
        assert get(server.url + "/a", retries=1).path.read_bytes() == DATA


def test_tries_without_progress_end(get, folder):
    with serve({"/a": Cut(DATA, after=0, times=10**9)}) as server:
        with pytest.raises(FetchError, match=r"received 0 bytes, expected 300008\) \(4 times\)"):
            get(server.url + "/a")

        assert len(server.requests) == 4
    assert not (folder / "a.hdf5").exists()


def test_a_server_that_always_disconnects_and_ignores_ranges_is_given_up(get):
    with serve({"/a": Cut(DATA, after=100_000, times=10**9, ranges=False, advertises=True)}) as server:
        with pytest.raises(FetchError, match="the download restarted too often"):
            get(server.url + "/a")

        assert len(server.requests) < 20


@pytest.mark.slow
def test_a_stall_is_reported_with_its_duration(get):
    with (
        serve({"/a": Stall(DATA, after=0, times=10**9)}) as server,
        pytest.raises(FetchError, match=r"no data was received for 0\.3 s"),
    ):
        get(server.url + "/a", retries=0, timeout=0.3)


DRIPS = pytest.mark.parametrize(
    ("where", "reason"),
    [
        ("body", r"the server sent \d+ bytes in \d\.\d s, expected at least 100 bytes per second"),
        ("chunk", r"the server sent \d+ bytes in \d\.\d s, expected at least 100 bytes per second"),
        ("headers", r"the headers of the response were not complete after 0\.6 s: \d+ bytes were received"),
        ("interim", r"the headers of the response were not complete after 0\.6 s: \d+ bytes were received"),
    ],
)


@pytest.mark.first(1)
@DRIPS
def test_a_server_that_sends_a_byte_from_time_to_time_is_given_up(get, where, reason):
    """Each try receives a few more bytes, which is too little to reset the number of tries."""
    began = time.monotonic()
    with serve({"/a": Drips(DATA, where=where, pause=0.03)}) as server:
        with pytest.raises(FetchError, match=reason + r".* \(2 times\)"):
            get(server.url + "/a", retries=1, timeout=0.6)

        assert len(server.requests) == 2
    assert time.monotonic() - began < 20


@pytest.mark.slow
@DRIPS
def test_a_retry_succeeds_where_the_server_becomes_faster(get, where, reason):
    del reason
    with serve({"/a": Drips(DATA, where=where, pause=0.03, times=2)}) as server:
        assert get(server.url + "/a", timeout=0.6).path.read_bytes() == DATA

    assert len(server.requests) == 3
    assert where in ("headers", "interim") or all(int(asked[6:-1]) >= 1024 for asked in server.ranges)


@pytest.mark.slow
def test_after_a_slow_address_the_next_is_tried(get):
    with serve({"/a": Drips(DATA, pause=0.03), "/b": DATA}) as server:
        assert get([server.url + "/a", server.url + "/b"], retries=0, timeout=0.3).url == server.url + "/b"


@pytest.mark.slow
def test_lists_of_files_from_a_slow_server_are_given_up(impatient):
    with (
        serve({"/a": Drips(b"[" + b" " * 10_000 + b"]", pause=0.03)}) as server,
        json_client(replace(impatient, retries=0)) as ask,
        pytest.raises(NotServedError, match="expected at least 100 bytes per second"),
    ):
        ask(server.url + "/a", {})


@pytest.mark.slow
def test_a_slow_and_steady_connection_is_not_given_up(get):
    """At 10 kB/s, the file takes three times the window over which the rate is measured."""
    with serve({"/a": Slow(DATA[:9_000], rate=10_000)}) as server:
        assert get(server.url + "/a", retries=0, timeout=0.3).size == 9_000

    assert len(server.requests) == 1


@pytest.mark.slow
def test_a_rate_limit_of_the_user_is_not_taken_for_a_slow_server(folder, impatient):
    """The limit of the user is below the minimum rate, but the client is what makes the transfer slow."""
    with serve({"/a": DATA}) as server:
        asset = Asset((server.url + "/a",), "a")
        strict = replace(impatient, retries=0, min_rate=1_200_000)
        (came,) = fetch([asset], folder, settings=strict, limiter=Limiter(600_000))

    assert came.size == len(DATA)


@pytest.mark.slow
def test_the_minimum_rate_can_be_disabled(folder, impatient):
    with serve({"/a": Drips(DATA[:5_020], pause=0.03)}) as server:
        asset = Asset((server.url + "/a",), "a")
        (came,) = fetch([asset], folder, settings=replace(impatient, retries=0, min_rate=0))

    assert came.size == 5_020


@pytest.mark.slow
def test_a_byte_every_half_second_is_given_up_after_a_timeout_of_two_seconds(folder, settings):
    with serve({"/a": Drips(DATA)}) as server:
        asset = Asset((server.url + "/a",), "a")
        with pytest.raises(FetchError, match="expected at least 100 bytes"):
            fetch([asset], folder, settings=replace(settings, timeout=2, retries=1))


@pytest.mark.slow
@pytest.mark.parametrize("where", ["body", "headers"])
def test_the_minimum_rate_applies_to_a_proxy_of_the_environment(get, monkeypatch, where):
    with serve({"/a": Drips(DATA, where=where, pause=0.03)}) as proxy:
        monkeypatch.setenv("NO_PROXY", "")
        monkeypatch.setenv("HTTP_PROXY", proxy.url)
        with pytest.raises(FetchError, match=r"at least 100 bytes per second|not complete after"):
            get("http://data.invalid/a", retries=0, timeout=0.3)


def test_a_refused_connection_is_reported(get):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(FetchError, match="Connection refused"):
        get(f"http://127.0.0.1:{port}/a", retries=0)


def test_a_host_that_does_not_exist_is_reported(get):
    with pytest.raises(FetchError, match=r"http://no-such-host\.invalid/a: .+"):
        get("http://no-such-host.invalid/a", retries=0)


@pytest.mark.parametrize("url", ["http:", "http://", "http:///a", "https:a/b", "http://a:b/", "http://\x7f/a"])
def test_an_invalid_address_is_reported(get, url):
    with pytest.raises(FetchError, match=r"the address is not HTTP|No address associated|Name or service"):
        get(url)


def test_after_one_timeout_of_a_host_the_next_address_is_tried(get, monkeypatch):
    """Only a host that responds gets several tries with growing pauses."""
    waited = []
    monkeypatch.setattr(plan, "retry_delay", lambda failures, *_: waited.append(failures) or 0.0)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        dead = f"http://127.0.0.1:{taken.getsockname()[1]}/a"
    with serve({"/a": DATA}) as server:
        assert get([dead, server.url + "/a"], retries=5).path.read_bytes() == DATA

    assert waited == [1]


@pytest.mark.slow
@pytest.mark.parametrize("form", ["seconds", "date"])
def test_retry_after_is_respected(get, form):
    """An HTTP date has a resolution of a second, so that the wait may be up to a second shorter."""
    after = "1" if form == "seconds" else email.utils.formatdate(time.time() + 2, usegmt=True)
    with serve({"/a": Status(429, {"Retry-After": after}, times=1, then=DATA)}) as server:
        began = time.monotonic()
        get(server.url + "/a")

    assert 0.9 < time.monotonic() - began < 20


@pytest.mark.parametrize("after", ["86400", "Fri, 31 Dec 2999 00:00:00 GMT"])
def test_a_retry_after_of_a_day_is_shortened(get, monkeypatch, after):
    monkeypatch.setattr(plan, "LONGEST_PAUSE", 0.1)
    with serve({"/a": Status(503, {"Retry-After": after}, times=1, then=DATA)}) as server:
        began = time.monotonic()
        assert get(server.url + "/a").path.read_bytes() == DATA

    assert time.monotonic() - began >= 0.1


@pytest.mark.parametrize("code", [400, 401, 403, 404, 410, 451])
def test_after_a_refusal_the_next_mirror_is_tried_at_once(get, code):
    with serve({"/a": Status(code), "/b": DATA}) as server:
        came = get([server.url + "/a", server.url + "/b"])

    assert came.url == server.url + "/b"
    assert [request.path for request in server.requests] == ["/a", "/b"]


def test_every_mirror_that_failed_is_named_with_its_reason(get):
    paths = {"/gone": Status(404), "/busy": Status(503), "/page": Html(title="Log in"), "/gz": Gzipped(DATA)}
    with serve(paths) as server, pytest.raises(FetchError) as caught:
        get([server.url + path for path in paths] + ["file:///no/such"])

    reasons = dict(caught.value.failures)
    assert [url.removeprefix(server.url) for url in reasons] == [*paths, "file:///no/such"]
    for reason, said in zip(
        reasons.values(), ["404", "503 (4 times)", "'Log in'", "gzip", "no such file"], strict=True
    ):
        assert said in reason
        assert reason in str(caught.value)


def test_a_web_page_is_refused_after_its_first_bytes(get, folder):
    page = pytest.raises(FetchError, match="a web page, not an HDF5 file: 'Wi-Fi login'")
    with serve({"/a": Html(title="Wi-Fi login")}) as server, page:
        get(server.url + "/a", size=5)

    assert not folder.exists() or not list(folder.iterdir())


def test_a_git_lfs_pointer_is_refused(get):
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 123\n"
    with serve({"/a": pointer}) as server, pytest.raises(FetchError, match="the content is a git-LFS pointer"):
        get(server.url + "/a")


def test_the_target_host_of_a_redirect_is_named(get):
    with serve({"/b": Status(403)}) as there, serve({}) as here:
        here.paths["/a"] = Redirect(there.url.replace("127.0.0.1", "localhost") + "/b")
        with pytest.raises(FetchError, match=r"status 403 \(redirected to localhost\)"):
            get(here.url + "/a")


@pytest.mark.parametrize(
    ("to", "said"), [("/a", "more than 10 redirects"), ("ftp://x/a", "the address is not HTTP"), ("http://[x/a", ".")]
)
def test_invalid_redirects_are_errors(get, to, said):
    with serve({"/a": Redirect(to)}) as server, pytest.raises(FetchError, match=said):
        get(server.url + "/a")


def test_a_length_other_than_in_the_catalog_is_refused_before_any_write(get, folder):
    with serve({"/a": DATA}) as server, pytest.raises(IntegrityError, match="has 300,008 bytes, expected 12"):
        get(server.url + "/a", size=12)

    assert not folder.exists()


@pytest.mark.parametrize("length", [True, False])
@pytest.mark.parametrize("body", [DATA[:-1] + b"?", DATA[:-5], DATA + b"more"], ids=["edited", "shorter", "longer"])
def test_wrong_bytes_are_deleted_and_reported(get, folder, body, length):
    with serve({"/a": File(body, length=length)}) as server, pytest.raises(IntegrityError) as caught:
        get(server.url + "/a", sha256=SHA256)

    assert f"the file has sha256 {hashlib.sha256(body).hexdigest()}, expected {SHA256}" in str(caught.value)
    assert "hash_check=False" in caught.value.hint
    assert list(folder.iterdir()) == []


def test_after_wrong_bytes_the_next_mirror_is_tried(get):
    with serve({"/a": OTHER, "/b": DATA[:-1] + b"?", "/c": DATA}) as server:
        came = get([server.url + path for path in ("/a", "/b", "/c")], sha256=SHA256, size=len(DATA))

    assert (came.url, came.path.read_bytes()) == (server.url + "/c", DATA)


def test_where_every_mirror_has_other_bytes_all_are_named(get):
    with serve({"/a": OTHER, "/b": DATA[:-1] + b"?"}) as server, pytest.raises(IntegrityError) as caught:
        get([server.url + "/a", server.url + "/b"], sha256=SHA256, size=len(DATA))

    assert len(caught.value.problems) == 2


def test_a_wrong_content_length_is_detected(get):
    with (
        serve({"/a": LiesAboutLength(DATA)}) as server,
        pytest.raises(FetchError, match="300008 bytes, and 300,108 before"),
    ):
        get(server.url + "/a")


def test_a_wrong_content_length_does_no_harm_where_the_digest_is_known(get):
    with serve({"/a": LiesAboutLength(DATA)}) as server:
        assert get(server.url + "/a", sha256=SHA256).path.read_bytes() == DATA


@pytest.fixture(scope="module")
def real():
    """An HDF5 file with its length in the superblock."""
    stream = io.BytesIO()
    with h5py.File(stream, "w") as file:
        file["a"] = np.random.default_rng(0).normal(size=30_000)
    return stream.getvalue()


CUT = pytest.mark.parametrize("kind", [HidesLength, Truncates])


@CUT
def test_a_truncated_file_of_unknown_length_is_fetched_again(get, real, kind):
    with serve({"/a": kind(real, after=100_000)}) as server:
        assert get(server.url + "/a").path.read_bytes() == real

    assert len(server.requests) == 2


@CUT
@pytest.mark.parametrize("hash_check", [True, False])
def test_a_file_that_is_always_truncated_is_refused_and_fetched_again_by_the_next_run(
    get, folder, real, kind, hash_check
):
    with serve({"/a": kind(real, after=100_000, times=10**9)}) as server:
        with pytest.raises(IntegrityError) as caught:
            get(server.url + "/a", hash_check=hash_check)
        assert f"the file is truncated: the superblock states {len(real):,} bytes, and the file has 100,000" in str(
            caught.value
        )
        assert "repeat the same call" in caught.value.hint
        assert "hash_check=False" not in caught.value.hint
        assert list(folder.iterdir()) == []
        server.paths["/a"] = real

        assert get(server.url + "/a", hash_check=hash_check).path.read_bytes() == real


@CUT
def test_after_a_truncated_file_the_next_address_is_tried(get, real, kind):
    with serve({"/a": kind(real, after=100_000, times=10**9), "/b": real}) as server:
        assert get([server.url + "/a", server.url + "/b"]).url == server.url + "/b"


@CUT
def test_a_truncated_file_is_detected_after_a_kill(get, folder, real, kind):
    """The server hides the length, so the bytes of the killed process could be a complete file."""
    with serve({}) as server:
        start(get, server, body=real, after=100_000)
        facts = {**sidecar(folder), "total": None, "spans": [[0, None, 100_000]]}
        (folder / "a.hdf5.part.json").write_text(json.dumps(facts))
        server.paths["/a"] = kind(real[:100_000], times=0, etag=sidecar(folder)["etag"])
        with pytest.raises(IntegrityError, match="the file is truncated"):
            get(server.url + "/a")
        server.paths["/a"] = real

        assert get(server.url + "/a").path.read_bytes() == real


def test_a_file_of_known_size_is_not_checked_by_its_format(get, real):
    """The size in the catalog is sufficient, and the catalog may list a file that cannot be parsed."""
    with serve({"/a": real[:100_000]}) as server:
        assert get(server.url + "/a", size=100_000).size == 100_000


def test_a_mirror_with_a_file_of_another_size_is_not_a_network_error(get):
    """A retry would not help, although the upstream was unreachable, too."""
    with serve({"/a": OTHER}) as server, pytest.raises(IntegrityError) as caught:
        get([server.url + "/a", "http://no-such-host.invalid/a"], retries=0, size=len(DATA))

    assert "the served file has 280,008 bytes, expected 300,008" in str(caught.value)
    assert "no-such-host.invalid" in str(caught.value)
    assert "hash_check=False" in caught.value.hint
    assert "may serve the right file later" in caught.value.hint


def test_another_process_continues_after_the_bytes_of_the_first_one(get, folder):
    with serve({}) as server:
        start(get, server)
        assert sidecar(folder)["spans"] == [[0, 300_008, 100_000]]
        server.paths["/a"] = DATA
        came = get(server.url + "/a")

    assert came.path.read_bytes() == DATA
    assert server.ranges == ["bytes=100000-"]
    assert server.requests[0].headers["if-range"] == came.etag


def test_a_file_that_changes_during_the_download_is_fetched_again(get):
    with serve({"/a": ChangesValidator(OTHER, after=100_000, times=2, then=DATA)}) as server:
        assert get(server.url + "/a").path.read_bytes() == DATA


@pytest.mark.first(4, of="marks")
@pytest.mark.usefixtures("_streams")
@pytest.mark.parametrize("marks", ["always", "sometimes", "never"])
@pytest.mark.parametrize("seed", range(5))
def test_bytes_of_two_versions_are_never_mixed(get, seed, marks):
    """The file alternates between two versions of equal length while connections break at random."""
    two = MAGIC + random.Random(9).randbytes(300_000)

    @dataclass
    class Flips(File):
        dice = random.Random(seed)

        def data(self):
            return DATA if self.dice.random() < 0.6 else two

        def mark(self, data):
            shown = {"always": 1.0, "sometimes": 0.5, "never": 0.0}[marks]
            return super().mark(data) if self.dice.random() < shown else None

        def send(self, call, data, turn):
            del turn
            call.wfile.write(data[: self.dice.randrange(200_000)] if self.dice.random() < 0.5 else data)
            call.hang_up()

    with serve({"/a": Flips(b"")}) as server:
        for _ in range(30):
            try:
                came = get(server.url + "/a", retries=1)
            except FetchError:
                continue
            break

    assert came.path.read_bytes() in (DATA, two)
    assert came.sha256 == hashlib.sha256(came.path.read_bytes()).hexdigest()


EDITED = DATA[:200_000] + b"edited" + DATA[200_006:]
"""Like a corrected upload: of the same length, with nearly all bytes equal."""

UNCONFIRMED = [(None, None), ('W/"1"', 'W/"1"'), ('"strong"', None), (None, '"strong"'), ('"strong"', 'W/"1"')]
"""The ETags of the first response and of the next response."""
ODD_ETAGS = ['"caf\xe9"', '"a b"', '""', "unquoted", '"' + "x" * 5000 + '"']
CONTINUED = ["bytes=100000-"]
DATE = "Mon, 01 Jan 2024 00:00:00 GMT"
TOMORROW = email.utils.formatdate(time.time() + 86_400)
"""A date of the current second or later is a weak validator in RFC 9110: the file may change again within the second."""


@pytest.mark.parametrize(
    ("left", "now", "known", "ranges"),
    [
        *(({"etag": etag}, File(DATA, etag=etag), {}, None) for etag in ODD_ETAGS),
        ({"etag": None, "modified": DATE}, File(DATA, etag=None, modified=DATE), {}, CONTINUED),
        ({"etag": None, "modified": None}, File(DATA, etag=None, modified=None), {}, []),
        ({"etag": None, "modified": TOMORROW}, File(DATA), {}, []),
        ({"etag": None}, NoValidator(DATA), {"sha256": SHA256}, CONTINUED),
        ({"etag": 'W/"1"'}, File(DATA, etag='W/"1"'), {}, []),
        # Without an ETag in the response only the length differs: 280,008 bytes before, 300,008 now.
        *(
            ({"body": OTHER}, kind(DATA), {}, None)
            for kind in (File, IgnoresIfRange, IgnoresRange, NoRange, NoValidator)
        ),
        *(
            ({"body": EDITED, "after": 250_000, "etag": first}, IgnoresIfRange(DATA, etag=then), {}, None)
            for first, then in UNCONFIRMED
        ),
        *(({}, WrongRange(DATA, shift=shift), {}, None) for shift in (-1, 1, -100)),
    ],
)
def test_a_partial_download_is_continued_only_where_its_version_is_confirmed(get, left, now, known, ranges):
    with serve({}) as server:
        start(get, server, **left)
        server.paths["/a"] = replace(now)

        assert get(server.url + "/a", **known).path.read_bytes() == DATA
        assert ranges is None or server.ranges == ranges


@pytest.mark.first(2)
@pytest.mark.parametrize(("first", "then"), UNCONFIRMED)
def test_a_retry_does_not_append_bytes_whose_version_is_not_confirmed(get, first, then):
    versions = InTurn(Cut(EDITED, after=250_000, etag=first), IgnoresIfRange(DATA, etag=then))
    with serve({"/a": versions}) as server:
        assert get(server.url + "/a").path.read_bytes() == DATA


def test_bytes_that_only_a_digest_can_confirm_are_discarded_where_it_is_not_compared(get, folder):
    """The bytes are from two addresses, and the version of the second address does not apply to the first."""
    with serve({}) as server:
        start(get, server, body=EDITED, after=250_000)
        server.paths.update({"/a": Status(404), "/b": Cut(DATA, after=10_000, times=10**9)})
        urls = [server.url + "/a", server.url + "/b"]
        with pytest.raises(FetchError):
            get(urls, retries=0, sha256=SHA256)
        assert sidecar(folder)["spans"] == [[0, 300_008, 260_000]]
        server.paths["/b"] = DATA

        assert get(urls[1], sha256=SHA256, hash_check=False).path.read_bytes() == DATA


def test_an_address_that_disconnects_and_has_no_version_is_reported(get):
    unnamed = Cut(DATA, after=100_000, times=10**9, etag=None)
    with serve({"/a": unnamed}) as server, pytest.raises(FetchError, match="no strong ETag and no Last-Modified"):
        get(server.url + "/a")

    assert len(server.requests) == 4


def test_a_partial_file_that_has_all_bytes_is_complete(get, folder):
    """Where the length is unknown, only status 416 shows that no bytes remain."""
    with serve({}) as server:
        start(get, server)
        (folder / "a.hdf5.part").write_bytes(DATA)
        facts = {**sidecar(folder), "total": None, "spans": [[0, None, len(DATA)]]}
        (folder / "a.hdf5.part.json").write_text(json.dumps(facts))
        server.paths["/a"] = DATA
        came = get(server.url + "/a")

    assert (came.path.read_bytes(), len(server.requests)) == (DATA, 1)


def test_a_partial_file_longer_than_the_file_is_discarded_after_status_416(get, folder):
    with serve({}) as server:
        start(get, server)
        (folder / "a.hdf5.part").write_bytes(DATA + b"?" * 50)
        facts = {**sidecar(folder), "total": None, "spans": [[0, None, len(DATA) + 50]]}
        (folder / "a.hdf5.part.json").write_text(json.dumps(facts))
        server.paths["/a"] = DATA

        assert get(server.url + "/a").path.read_bytes() == DATA


@pytest.mark.first(2)
@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "{}",
        '{"spans": 3}',
        '{"url": "x", "address": "x", "etag": null, "validator": null, "total": null, "spans": []}',
    ],
)
def test_with_a_damaged_sidecar_only_the_partial_file_is_lost(get, folder, text):
    with serve({}) as server:
        start(get, server)
        (folder / "a.hdf5.part.json").write_text(text)
        server.paths["/a"] = DATA

        assert get(server.url + "/a").path.read_bytes() == DATA
        assert server.ranges == []


@pytest.mark.parametrize("damage", ["shorter", "gone"])
def test_a_partial_file_that_lost_bytes_is_discarded(get, folder, damage):
    with serve({}) as server:
        start(get, server)
        (folder / "a.hdf5.part").write_bytes(DATA[:99_999])
        if damage == "gone":
            (folder / "a.hdf5.part").unlink()
        server.paths["/a"] = DATA

        assert get(server.url + "/a").path.read_bytes() == DATA
        assert server.ranges == []


def test_a_flipped_bit_in_a_partial_file_is_found_by_the_digest_and_the_file_is_fetched_again(get, folder):
    with serve({}) as server:
        start(get, server)
        with (folder / "a.hdf5.part").open("r+b") as stream:
            stream.seek(5000)
            stream.write(b"????")
        server.paths["/a"] = DATA

        assert get(server.url + "/a", sha256=SHA256).path.read_bytes() == DATA


def test_bytes_after_the_saved_count_are_not_trusted(get, folder):
    """A killed process leaves them, and they may not all have reached the disk."""
    with serve({}) as server:
        start(get, server)
        with (folder / "a.hdf5.part").open("ab") as stream:
            stream.write(b"?" * 20_000)
        server.paths["/a"] = DATA

        assert get(server.url + "/a").path.read_bytes() == DATA
        assert server.ranges == ["bytes=100000-"]


def test_a_mirror_continues_the_bytes_of_another_one_only_where_the_digest_is_known(get):
    with serve({}) as server:
        start(get, server)
        server.paths.update({"/a": Status(404), "/b": DATA})
        urls = [server.url + "/a", server.url + "/b"]

        assert get(urls, sha256=SHA256).path.read_bytes() == DATA
        assert server.ranges[-1] == "bytes=100000-"
        assert "if-range" not in server.requests[-1].headers


def test_wrong_bytes_of_one_mirror_do_not_affect_the_next_one(get):
    with serve({}) as server:
        start(get, server, body=MAGIC + b"?" * 300_000)
        server.paths.update({"/a": Status(404), "/b": DATA})

        assert get([server.url + "/a", server.url + "/b"], sha256=SHA256).path.read_bytes() == DATA


def test_without_a_digest_the_address_of_the_received_bytes_is_tried_first(get):
    """The first address is available again, but only the second address can continue the received bytes."""
    with serve({}) as server:
        start(get, server, path="/b")
        server.paths.update({"/a": DATA, "/b": DATA})
        came = get([server.url + "/a", server.url + "/b"])

    assert came.path.read_bytes() == DATA
    assert [(request.path, request.headers.get("range")) for request in server.requests] == [("/b", "bytes=100000-")]


def test_a_mirror_without_the_file_does_not_discard_the_received_bytes(get, folder):
    with serve({}) as server:
        start(get, server)
        with pytest.raises(FetchError):
            get(server.url + "/nothing", retries=0)

    assert sidecar(folder)["spans"] == [[0, 300_008, 100_000]]


def test_every_range_is_resumed_by_another_process(get, folder, monkeypatch):
    monkeypatch.setattr(transfer, "SPLIT_FROM", 100_000)
    with serve({"/a": InTurn(DATA, Cut(DATA, after=30_000, times=10**9))}) as server:
        with pytest.raises(FetchError):
            get(server.url + "/a", retries=0)
        spans = sidecar(folder)["spans"]
        assert len(spans) == 4
        server.requests.clear()
        server.paths["/a"] = DATA

        assert get(server.url + "/a").path.read_bytes() == DATA
    left = {f"bytes={start + done}-{stop - 1}" for start, stop, done in spans if start + done < stop}
    assert set(server.ranges) == left


def test_ranges_of_a_file_that_changed_are_discarded(get, folder, monkeypatch):
    monkeypatch.setattr(transfer, "SPLIT_FROM", 100_000)
    with serve({"/a": InTurn(OTHER, Cut(OTHER, after=30_000, times=10**9))}) as server:
        with pytest.raises(FetchError):
            get(server.url + "/a", retries=0)
        assert len(sidecar(folder)["spans"]) == 4
        server.paths["/a"] = DATA

        assert get(server.url + "/a").path.read_bytes() == DATA


def test_files_are_kept_when_another_one_fails(folder, settings):
    with serve({"/a": Status(404), "/b": Stall(DATA, after=100_000)}) as server:
        wanted = [Asset((f"{server.url}/{name}",), name) for name in "ba"]
        with pytest.raises(FetchError, match="could not fetch a"):
            fetch(wanted, folder, settings=settings)
        server.paths["/a"] = DATA

        assert [each.path.read_bytes() for each in fetch(wanted, folder, settings=settings)] == [DATA, DATA]


def test_no_thread_and_no_connection_outlives_the_call(get, monkeypatch):
    monkeypatch.setattr(transfer, "SPLIT_FROM", 100_000)
    before = threading.active_count()
    with serve({"/a": InTurn(DATA, Status(403))}) as server:
        with pytest.raises(FetchError):
            get(server.url + "/a")

        # The threads of the server end with the connections.
        for _ in range(100):
            if threading.active_count() <= before + 1:
                break
            time.sleep(0.01)
        assert threading.active_count() <= before + 1


@pytest.mark.slow
def test_the_partial_file_is_saved_during_the_download(get, folder, monkeypatch):
    monkeypatch.setattr(partial_download, "SAVE_EVERY", 0.0)
    seen = []

    @dataclass
    class Watched(File):
        def send(self, call, data, turn):
            del turn
            for at in range(0, len(data), 100_000):
                call.wfile.write(data[at : at + 100_000])
                time.sleep(0.1)
                seen.append(sidecar(folder)["spans"][0][2])

    with serve({"/a": Watched(DATA)}) as server:
        get(server.url + "/a")

    assert seen[:3] == [100_000, 200_000, 300_000]


def test_a_file_under_its_final_name_is_always_complete(get, folder):
    """A reader of the final name finds no file or the complete file."""
    seen = set()
    done = threading.Event()

    def look():
        path = Path(folder / "a.hdf5")
        while not done.is_set():
            if path.exists():
                seen.add(path.stat().st_size)

    watcher = threading.Thread(target=look)
    watcher.start()
    try:
        with serve({"/a": Cut(DATA, after=50_000, times=3)}) as server:
            get(server.url + "/a")
        time.sleep(0.02)
    finally:
        done.set()
        watcher.join()

    assert seen == {len(DATA)}
