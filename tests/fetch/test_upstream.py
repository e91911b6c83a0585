"""Lists of files: on the hub, in a bucket and on disk; pinned to a version, cached, and validated."""

from __future__ import annotations

import hashlib
import json
from urllib.parse import urlsplit

import pytest
from servers import Html, Status, serve
from upstreams import COMMIT, bucket, hub

from datasets_rl.errors import FetchError, IntegrityError, OfflineError
from datasets_rl.fetch import fetch
from datasets_rl.fetch.upstream import Upstream
from datasets_rl.settings import Settings

URL = "hf://datasets/lab/data/set"


@pytest.fixture
def tree(tmp_path):
    """A folder of five small and large files, with names that must be escaped in URLs."""
    for number, name in enumerate(["a.txt", "b/c d.bin", "b/%24x.bin", "b/e/f.bin", "z.bin"]):
        path = tmp_path / "tree" / "set" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes([number + 65]) * (700 * number + 10))
    return tmp_path / "tree"


@pytest.fixture
def ask(tmp_path):
    def make(**options):
        settings = Settings(home=tmp_path, progress=False, retries=1, offline=options.pop("offline", False))
        return Upstream(tmp_path / "raw", tmp_path / "kept.json", settings=settings, **options)

    return make


@pytest.fixture
def on_hub(tree, monkeypatch):
    with hub({"lab/data": tree}, page=2) as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        yield server


@pytest.fixture
def in_bucket(tree, monkeypatch):
    with bucket({"lab": tree}, page=2) as server:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
        yield server


def paths(folder):
    return [asset.path for asset in folder.assets]


ALL = ["up/a.txt", "up/b/%24x.bin", "up/b/c d.bin", "up/b/e/f.bin", "up/z.bin"]


def test_the_hub_lists_all_pages_of_one_commit_with_digests(ask, on_hub, tree):
    folder = ask().folder("up", [URL])

    assert paths(folder) == ALL
    assert folder.revision == COMMIT
    assert folder.assets[-1].urls == (f"hf://datasets/lab/data@{COMMIT}/set/z.bin",)
    assert folder.assets[-1].sha256 == hashlib.sha256((tree / "set/z.bin").read_bytes()).hexdigest()
    assert (folder.assets[0].sha256, folder.assets[0].size) == (None, 10)
    assert sum("/tree/" in request.path for request in on_hub.requests) >= 3


@pytest.mark.usefixtures("in_bucket")
def test_a_bucket_lists_all_pages_with_generations_and_md5(ask, tree):
    folder = ask().folder("up", ["gs://lab/set"])

    assert paths(folder) == ALL
    assert folder.assets[-1].urls == ("gs://lab/set/z.bin#1700000000000001",)
    assert folder.assets[-1].md5 == hashlib.md5((tree / "set/z.bin").read_bytes()).hexdigest()


def test_a_file_that_the_hub_listed_costs_one_request(ask, on_hub, tmp_path):
    folder = ask().folder("up", [URL])
    on_hub.requests.clear()

    came = fetch(folder.assets, tmp_path / "raw", settings=Settings(home=tmp_path, progress=False, retries=0))

    assert [request.method for request in on_hub.requests] == ["GET"] * 5
    assert [one.checked for one in came] == ["recorded", "catalog", "catalog", "catalog", "catalog"]


@pytest.fixture
def composite(tree, monkeypatch):
    """A bucket of composite objects, which have no MD5."""
    with bucket({"lab": tree}, composite=True) as server:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
        yield server


@pytest.mark.usefixtures("composite")
def test_an_object_without_md5_is_compared_with_its_crc32c(ask, tree, tmp_path):
    settings = Settings(home=tmp_path, progress=False, retries=0)
    folder = ask().folder("up", ["gs://lab/set"])

    assert {asset.md5 for asset in folder.assets} == {None}
    assert {one.checked for one in fetch(folder.assets, tmp_path / "raw", settings=settings)} == {"catalog"}
    (tree / "set/z.bin").write_bytes(b"x" * (700 * 4 + 10))
    with pytest.raises(IntegrityError, match=r"the file has crc32c [0-9a-f]{8}, expected"):
        fetch(folder.assets[-1:], tmp_path / "other", settings=settings)


@pytest.mark.parametrize("place", ["on_hub", "in_bucket"])
def test_what_is_listed_can_be_fetched(ask, place, request, tree, tmp_path):
    request.getfixturevalue(place)
    folder = ask().folder("up", [URL, "gs://lab/set"] if place == "on_hub" else ["gs://lab/set"])

    came = fetch(folder.assets, tmp_path / "raw", settings=Settings(home=tmp_path, progress=False, retries=0))

    assert [one.path.read_bytes() for one in came] == [(tree / "set" / path[3:]).read_bytes() for path in ALL]


@pytest.mark.usefixtures("in_bucket")
def test_an_object_with_another_md5_is_refused(ask, tree, tmp_path):
    folder = ask().folder("up", ["gs://lab/set"])
    (tree / "set/z.bin").write_bytes(b"x" * (700 * 4 + 10))

    with pytest.raises(Exception, match="the file has md5"):
        fetch(folder.assets[-1:], tmp_path / "raw", settings=Settings(home=tmp_path, progress=False, retries=0))


def test_a_list_is_requested_once_and_available_offline(ask, on_hub):
    first = ask().folder("up", [URL])
    on_hub.paths.clear()

    assert ask(offline=True).folder("up", [URL]) == first


def test_offline_without_a_cached_list_is_an_error_with_the_alternatives(ask, on_hub):
    with pytest.raises(OfflineError, match=r"from_local=\.\.\., or a copy of the upstream with mirrors=\.\.\."):
        ask(offline=True).folder("up", [URL])
    assert on_hub.requests == []


def test_a_mirror_that_can_be_listed_is_requested_first(ask, on_hub, tree):
    (tree / "set").rename(tree / "up")

    folder = ask(mirrors=[tree.as_uri()]).folder("up", [URL])

    assert paths(folder) == ALL
    assert on_hub.requests == []


@pytest.mark.parametrize("inner", [True, False], ids=["its root", "the folder itself"])
def test_a_user_folder_is_listed_without_hidden_files(ask, tree, inner):
    (tree / "set" / ".cache").mkdir()
    (tree / "set" / ".cache" / "x").write_text("")
    folder = ask(local=tree if inner else tree / "set").folder("set", [])

    assert paths(folder) == [path.replace("up/", "set/") for path in ALL]


@pytest.mark.parametrize(
    ("behaviour", "message"),
    [
        (Status(403), "status 403"),
        (Status(404), "status 404"),
        (Html(), "a web page"),
    ],
    ids=["refused", "absent", "a web page"],
)
def test_an_upstream_that_cannot_be_listed_is_reported_with_every_address(ask, on_hub, behaviour, message):
    for name in on_hub.paths:
        on_hub.paths[name] = behaviour
    with pytest.raises(FetchError, match=message) as caught:
        ask().folder("up", [URL, "https://example.org/x"])
    assert [url for url, _ in caught.value.failures] == [URL, "https://example.org/x"]


@pytest.mark.parametrize(
    "entry",
    [
        {"type": "file", "path": "set/../../x", "size": 1},
        {"type": "file", "path": "/etc/passwd", "size": 1},
        {"type": "file", "path": "set/\\x", "size": 1},
        {"type": "file", "size": 1},
        {"type": "file", "path": "set/x"},
        "text",
    ],
    ids=["upwards", "absolute", "a backslash", "no path", "no size", "no object"],
)
def test_an_invalid_list_is_refused(ask, on_hub, entry):
    (name,) = on_hub.paths
    repository = on_hub.paths[name]
    original = repository.answer

    def answer(call):
        if "/tree/" in call.path:
            body = json.dumps([entry]).encode()
            call.start(200, {"Content-Length": len(body)})
            call.wfile.write(body)
        else:
            original(call)

    repository.answer = answer
    with pytest.raises(FetchError):
        ask().folder("up", [URL])


class Pages:
    """The list of a hub in which every page has two new files, unless `repeats`, and names the next page by `following`."""

    def __init__(self, following, *, repeats=False):
        self.following, self.repeats, self.calls = following, repeats, 0

    def answer(self, call):
        start = 0 if self.repeats else 2 * self.calls
        self.calls += 1
        path = urlsplit(call.path).path
        link = f'<{call.server.url}{path}?cursor={self.following(self.calls)}>; rel="next"'
        entries = [{"type": "file", "size": 1, "path": f"set/{number}.bin"} for number in (start, start + 1)]
        body = json.dumps(entries).encode()
        call.start(200, {"Content-Length": len(body), "Link": link})
        call.wfile.write(body)


@pytest.mark.parametrize(
    ("pages", "problem", "count"),
    [
        (Pages(lambda _: 0), "page 2 of the list continues with an earlier page", 2),
        (Pages(lambda page: page % 3), "page 4 of the list continues with an earlier page", 4),
        (Pages(lambda page: page, repeats=True), "page 2 of the list repeats the entries of earlier pages", 2),
        (Pages(lambda page: page), "page 50 of the list is not the last page", 50),
    ],
    ids=["itself", "a cycle", "the same files", "new files forever"],
)
def test_a_list_of_a_hub_without_an_end_is_refused_with_its_address(ask, monkeypatch, pages, problem, count):
    monkeypatch.setattr("datasets_rl.fetch.schemes.base._PAGES_MAX", 50)
    api = "/api/datasets/lab/data"
    revision = Status(200, {"Content-Type": "application/json"}, body=json.dumps({"sha": COMMIT}).encode())
    with serve({f"{api}/revision/main": revision, f"{api}/tree/{COMMIT}/set": pages}) as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        with pytest.raises(FetchError, match=rf"{problem}: {server.url}{api}/tree/{COMMIT}/set\?cursor="):
            ask().folder("up", [URL])

    assert pages.calls == count


def test_a_name_with_half_of_a_surrogate_pair_is_refused(ask, monkeypatch):
    """JSON can state such a name, which no file and no address can have."""
    api = "/api/datasets/lab/data"
    files = [{"type": "file", "path": "set/a\ud800.npz", "size": 1}]
    answers = {f"{api}/revision/main": {"sha": COMMIT}, f"{api}/tree/{COMMIT}/set": files}
    paths = {path: Status(200, body=json.dumps(answer).encode()) for path, answer in answers.items()}
    with serve(paths) as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        with pytest.raises(FetchError, match="is not a plain relative path") as caught:
            ask().folder("up", [URL])
    str(caught.value).encode()


class Objects:
    """The list of a bucket whose token never changes."""

    def answer(self, call):
        items = [{"name": "set/a", "size": "1", "generation": "1"}]
        body = json.dumps({"items": items, "nextPageToken": "again"}).encode()
        call.start(200, {"Content-Length": len(body)})
        call.wfile.write(body)


def test_a_list_of_a_bucket_without_an_end_is_refused_with_its_address(ask, monkeypatch):
    with serve({"/storage/v1/b/lab/o": Objects()}) as server:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
        with pytest.raises(
            FetchError, match=rf"page 2 of the list .*: {server.url}/storage/v1/b/lab/o.*pageToken=again"
        ):
            ask().folder("up", ["gs://lab/set"])
        assert len(server.requests) == 2


def test_the_list_of_the_repositories_of_an_owner_ends(ask, monkeypatch):
    class Repositories:
        def answer(self, call):
            body = b'[{"id": "lab/data"}]'
            call.start(200, {"Content-Length": len(body), "Link": f'<{call.server.url}{call.path}>; rel="next"'})
            call.wfile.write(body)

    with serve({"/api/datasets": Repositories()}) as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        with pytest.raises(FetchError, match=rf"page 1 of the list continues .*: {server.url}/api/datasets"):
            ask().repositories("lab")
