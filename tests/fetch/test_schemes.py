"""Each type of address, and the contract of the folder of schemes."""

from __future__ import annotations

import base64
import hashlib
import io
import tarfile
from pathlib import Path

import pytest
from crc32c import crc32c
from servers import File, Redirect, Status, serve

from datasets_rl.errors import FetchError, IntegrityError, InvalidArgumentError
from datasets_rl.fetch import download, schemes
from datasets_rl.fetch.partial_download import PartialDownload
from datasets_rl.fetch.plan import ExpectedFile
from datasets_rl.fetch.schemes import NotServedError, scheme_of
from datasets_rl.fetch.schemes.base import stated_bytes

COMMIT = "c0ffee" * 6 + "c0ff"


def never(url, headers):
    del headers
    pytest.fail(f"{url} was requested")


def test_every_module_of_the_folder_is_a_scheme():
    assert schemes.scheme_names() == ("file", "gs", "hf", "http", "https", "package", "s3", "tar")


@pytest.mark.parametrize("name", schemes.scheme_names())
def test_every_scheme_keeps_the_contract(name):
    scheme = scheme_of(f"{name}:x")

    assert isinstance(scheme.IN_PLACE, bool)
    assert scheme.__doc__.startswith(f"``{scheme.__name__.rpartition('.')[2]}:")
    if name in ("file", "package", "hf", "gs", "tar"):
        with pytest.raises(NotServedError):
            scheme.resolve(f"{name}:", never)


@pytest.mark.parametrize("url", ["ftp://x/a", "/mnt/a", "", "base:x", "C:\\a"])
def test_an_unknown_scheme_is_refused_with_the_known_ones(get, url):
    with pytest.raises(
        InvalidArgumentError, match="does not begin with any of file:, gs:, hf:, http:, https:, package:"
    ):
        get(url)


def test_a_file_address_may_have_spaces_and_the_name_of_this_host(tmp_path):
    path = tmp_path / "a b$%.hdf5"
    path.write_bytes(b"")

    assert scheme_of("file:").resolve(path.as_uri(), never) == path
    assert scheme_of("file:").resolve(path.as_uri().replace("file://", "file://localhost"), never) == path


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("file:///no/such", "there is no such file"),
        ("file:///", "the path is a folder"),
        ("file://host/a", "the address names the host 'host'"),
    ],
)
def test_an_invalid_file_address_is_reported_with_the_reason(get, url, reason):
    with pytest.raises(FetchError, match=reason):
        get(url)


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("tar:///no/such.tar#512+10", "there is no such archive"),
        ("tar:///no/such.tar", r"does not name a file in the archive, expected #START\+SIZE"),
        ("tar:///no/such.tar#-1+10", "does not name a file in the archive"),
    ],
)
def test_an_invalid_address_in_an_archive_is_reported_with_the_reason(get, url, reason):
    with pytest.raises(FetchError, match=reason):
        get(url)
    with pytest.raises(NotServedError, match="there is no such archive"):
        scheme_of(url).folder(url, never)


def test_a_file_in_an_archive_is_copied_and_its_bytes_are_compared(get, tmp_path, data):
    archive = tmp_path / "a b#.tar"
    with tarfile.open(archive, "w") as packed:
        for name, content in (("d/first", b"x"), ("d/mine", data), ("d/.hidden", b"")):
            member = tarfile.TarInfo(name)
            member.size = len(content)
            packed.addfile(member, io.BytesIO(content))

    listed = scheme_of("file:").folder(archive.as_uri(), never).assets

    assert [(asset.path, asset.size) for asset in listed] == [("first", 1), ("mine", len(data))]
    (url,) = listed[1].urls
    assert get(url).path.read_bytes() == data
    assert download.digest_local(url) == hashlib.sha256(data).hexdigest()
    with pytest.raises(IntegrityError, match="has sha256"):
        get(url, sha256="0" * 64)


def test_a_wrong_file_that_is_used_in_place_is_reported_and_not_changed(get, tmp_path, data):
    path = tmp_path / "mine"
    path.write_bytes(data)
    with pytest.raises(IntegrityError, match="300,008 bytes, expected 5"):
        get(path.as_uri(), size=5)
    with pytest.raises(IntegrityError, match="has sha256"):
        get(path.as_uri(), sha256="0" * 64)

    assert path.read_bytes() == data


def test_a_file_of_a_package_is_used_in_place(get):
    came = get("package:datasets_rl.fetch/asset.py", magic=b'"""', path="a")

    assert came.path == Path(schemes.__file__).parents[1] / "asset.py"
    assert came.url == "package:datasets_rl.fetch/asset.py"


@pytest.mark.parametrize(
    "url", ["package:datasets_rl.fetch/no.py", "package:no_such_package/a", "package:datasets_rl", "package:/a"]
)
def test_a_file_missing_from_a_package_is_reported(get, url):
    with pytest.raises(FetchError, match="package"):
        get(url)


def test_a_package_address_cannot_leave_its_package(get):
    with pytest.raises(FetchError, match="not a plain relative path"):
        get("package:datasets_rl.fetch/../errors.py")


def test_a_bucket_is_read_over_plain_https():
    remote = scheme_of("gs:").resolve("gs://atari-replay/Pong/1/$store$_action_ckpt.0.gz", never)

    assert remote.url == "https://storage.googleapis.com/atari-replay/Pong/1/%24store%24_action_ckpt.0.gz"


def test_a_bucket_needs_an_object(get):
    with pytest.raises(FetchError, match="the address does not name an object"):
        get("gs://bucket")


def test_an_object_of_a_bucket_is_fetched(get, data, monkeypatch):
    with serve({"/bucket/a/%24b%20c": data}) as server:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url.removeprefix("http://"))
        came = get("gs://bucket/a/$b c")

    assert came.path.read_bytes() == data
    assert came.url == "gs://bucket/a/$b c"


def test_an_object_without_a_listing_is_compared_with_the_checksums_of_its_headers(get, data, monkeypatch):
    """The CRC32C of an empty object is 0, "AAAAAA==" in the header of Google Cloud Storage."""
    told = base64.b64encode(crc32c(data).to_bytes(4, "big")).decode()
    behaviour = {"right": {"x-goog-hash": f"crc32c={told}"}, "wrong": {"x-goog-hash": "crc32c=AAAAAA==,md5=x"}}
    behaviour["zipped"] = {**behaviour["wrong"], "x-goog-stored-content-encoding": "gzip"}
    with serve({f"/bucket/{name}": File(data, headers=headers) for name, headers in behaviour.items()}) as server:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
        checked = {name: get(f"gs://bucket/{name}", path=name).checked for name in ("right", "zipped")}
        with pytest.raises(IntegrityError, match=r"the file has crc32c [0-9a-f]{8}, expected 00000000"):
            get("gs://bucket/wrong", path="wrong")
        skipped = get("gs://bucket/wrong", path="wrong", hash_check=False)

    assert checked == {"right": "catalog", "zipped": "recorded"}
    assert skipped.checked == "skipped"


def test_checksums_of_the_headers_are_kept_when_a_download_is_resumed(folder):
    part = PartialDownload(folder / "a")
    part.begin()
    part.record_response(300, '"e"', '"e"', ExpectedFile(crc32c="00000000"))
    part.path.write_bytes(b"x" * 10)
    part.advance(part.spans[0], b"x" * 10)
    part.save()

    assert PartialDownload.load(folder / "a").reported == ExpectedFile(crc32c="00000000")


@pytest.fixture
def hub(monkeypatch, tmp_path, data, sha256):
    """A hub that redirects large files to another host, and the server of that host."""
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    with serve({"/blob": data}) as store, serve({}) as hub:
        facts = {"X-Repo-Commit": COMMIT, "X-Linked-Etag": f'"{sha256}"', "X-Linked-Size": len(data)}
        large = Redirect(store.url + "/blob", headers=facts)
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        for revision in ("main", "v2", COMMIT):
            hub.paths[f"/datasets/o/r/resolve/{revision}/data/a.hdf5"] = large
        yield hub, store


def test_a_file_on_the_hub_is_pinned_to_its_commit_and_compared_with_the_hubs_digest(get, hub, data, sha256):
    came = get("hf://datasets/o/r/data/a.hdf5")

    assert came.path.read_bytes() == data
    assert (came.sha256, came.checked) == (sha256, "catalog")
    assert came.url == f"hf://datasets/o/r@{COMMIT}/data/a.hdf5"
    asked = [(request.method, request.path.split("/")[5]) for request in hub[0].requests]
    assert asked == [("HEAD", "main"), ("GET", COMMIT)]


def test_an_address_that_names_a_commit_costs_one_request(get, hub, sha256):
    """The response has the digest."""
    came = get(f"hf://datasets/o/r@{COMMIT}/data/a.hdf5")

    assert [request.method for request in hub[0].requests] == ["GET"]
    assert (came.sha256, came.checked) == (sha256, "catalog")


def test_wrong_bytes_under_a_named_commit_are_reported(get, hub, data):
    hub[1].paths["/blob"] = data[:-1] + b"?"
    with pytest.raises(IntegrityError, match="the file has sha256"):
        get(f"hf://datasets/o/r@{COMMIT}/data/a.hdf5")


def test_a_revision_on_the_hub_can_be_named(get, hub):
    get("hf://datasets/o/r@v2/data/a.hdf5")

    assert hub[0].requests[0].path == "/datasets/o/r/resolve/v2/data/a.hdf5"


def test_the_token_is_sent_to_the_hub_only(get, hub):
    get("hf://datasets/o/r/data/a.hdf5")

    assert all(request.headers["authorization"] == "Bearer hf_secret" for request in hub[0].requests)
    assert [request.method for request in hub[1].requests] == ["GET"]
    assert all("authorization" not in request.headers for request in hub[1].requests)


def test_a_small_file_on_the_hub_has_no_digest_and_is_recorded(get, hub, data):
    hub[0].paths["/datasets/o/r/resolve/main/b"] = Redirect(f"/datasets/o/r/resolve/{COMMIT}/b", code=307)
    hub[0].paths[f"/datasets/o/r/resolve/{COMMIT}/b"] = File(data, headers={"X-Repo-Commit": COMMIT})

    came = get("hf://datasets/o/r/b")

    assert (came.checked, came.url) == ("recorded", f"hf://datasets/o/r@{COMMIT}/b")


def test_a_file_on_the_hub_other_than_in_the_catalog_is_refused_before_its_download(get, hub):
    with pytest.raises(IntegrityError, match="the served file has sha256"):
        get("hf://datasets/o/r/data/a.hdf5", sha256="0" * 64)
    with pytest.raises(IntegrityError, match="the served file has 300,008 bytes, expected 7"):
        get("hf://datasets/o/r/data/a.hdf5", size=7)

    assert hub[1].requests == []


def test_wrong_bytes_of_the_redirect_target_are_reported(get, hub, data):
    hub[1].paths["/blob"] = data[:-1] + b"?"
    with pytest.raises(IntegrityError, match="the file has sha256"):
        get("hf://datasets/o/r/data/a.hdf5")


def test_a_gated_repository_is_reported_with_the_message_of_the_hub(get, hub):
    hub[0].paths["/datasets/o/r/resolve/main/c"] = Status(403, {"X-Error-Message": "Access to r is restricted"})
    with pytest.raises(FetchError, match="status 403: Access to r is restricted"):
        get("hf://datasets/o/r/c")


def test_a_busy_hub_is_retried(get, hub, data):
    path = "/datasets/o/r/resolve/main/data/a.hdf5"
    hub[0].paths[path] = Status(429, times=2, then=hub[0].paths[path])

    assert get("hf://datasets/o/r/data/a.hdf5").path.read_bytes() == data


@pytest.mark.parametrize("url", ["hf://o/r/a", "hf://datasets/o/r", "hf://models/o/r/a", "hf://datasets/o"])
def test_a_malformed_hub_address_is_reported(get, url):
    with pytest.raises(FetchError, match="not of the form"):
        get(url)


DIGITS = "9" * 5000
"""More digits than Python converts to an integer."""


@pytest.mark.parametrize(
    "lie",
    [
        Status(206, {"Content-Range": f"bytes 0-9/{DIGITS}"}),
        Status(206, {"Content-Range": f"bytes {DIGITS}-{DIGITS}/{DIGITS}"}),
        Status(416, {"Content-Range": f"bytes */{DIGITS}"}),
        Status(200, {"Content-Range": f"bytes */{DIGITS}", "Retry-After": DIGITS}),
        Status(206, {"Content-Range": f"bytes 0-9/{2**63}"}),
    ],
    ids=["the total", "the start", "of status 416", "of status 200", "of 64 bits"],
)
def test_numbers_of_a_server_that_are_too_large_are_an_error_that_names_them(get, lie):
    with serve({"/a": lie}) as server, pytest.raises((FetchError, IntegrityError)) as caught:
        get(f"{server.url}/a")
    stated = lie.code == 200 or "expected an integer from 0 to 2**63 - 1" in str(caught.value.failures)
    assert stated
    assert len(str(caught.value)) < 1000


def test_a_size_of_the_hub_that_is_too_large_is_an_error_that_names_it(get, hub):
    for path in hub[0].paths:
        hub[0].paths[path] = Redirect(hub[1].url + "/blob", headers={"X-Repo-Commit": COMMIT, "X-Linked-Size": DIGITS})

    with pytest.raises(FetchError, match="x-linked-size, expected an integer from 0 to"):
        get("hf://datasets/o/r/data/a.hdf5")


@pytest.mark.parametrize("size", [-1, 1.5, "12x", True, None, 2**63])
def test_sizes_in_a_list_that_are_none_are_refused(size):
    with pytest.raises(NotServedError, match=r"expected an integer from 0 to 2\*\*63 - 1"):
        stated_bytes(size, "the size of a.npz")
    assert [stated_bytes(one, "a size") for one in (0, "0", "0012", 2**63 - 1)] == [0, 0, 12, 2**63 - 1]
