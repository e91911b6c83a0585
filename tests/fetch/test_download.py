"""Downloads without faults: order, concurrency, records, mirrors, user files."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import time
from dataclasses import replace

import pytest
from servers import Cut, File, NoRange, Redirect, Slow, Status, serve

from datasets_rl.errors import FetchError, IntegrityError, InvalidArgumentError, OfflineError
from datasets_rl.fetch import Asset, fetch, fetch_local, remaining_bytes, transfer, with_mirrors
from datasets_rl.fetch.parallel import Limiter

MAGIC = b"\x89HDF\r\n\x1a\n"


def test_a_file_is_stored_with_its_record(get, data, sha256, folder, names):
    with serve({"/a": data}) as server:
        came = get(server.url + "/a")

    assert came.path.read_bytes() == data
    assert (came.path, came.size, came.sha256, came.checked) == (folder / "a.hdf5", len(data), sha256, "recorded")
    assert came.url == server.url + "/a"
    assert came.etag == f'"{sha256[:16]}"'
    assert names() == ["a.hdf5", "a.hdf5.fetched.json"]


def test_a_known_digest_is_compared(get, data, sha256):
    with serve({"/a": data}) as server:
        assert get(server.url + "/a", sha256=sha256.upper(), size=len(data)).checked == "catalog"


def test_no_content_encoding_is_requested(get, data):
    with serve({"/a": data}) as server:
        get(server.url + "/a")

    assert server.requests[0].headers["accept-encoding"] == "identity"


@pytest.mark.parametrize("name", ["http_proxy", "ALL_PROXY"])
def test_the_proxy_of_the_environment_is_used_except_for_the_hosts_it_excludes(get, data, monkeypatch, name):
    for other in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY", "no_proxy", "NO_PROXY"):
        monkeypatch.delenv(other, raising=False)
    with serve({"http://data.example/a": data, "/a": data}) as server:
        monkeypatch.setenv(name, server.url.replace("://", "://me:secret@"))
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")

        assert get("http://data.example/a", path="proxied").path.read_bytes() == data
        assert get(server.url + "/a", path="direct").path.read_bytes() == data

    through = [request.headers.get("proxy-authorization") for request in server.requests]
    assert through == ["Basic bWU6c2VjcmV0", None]


def test_a_body_without_a_length_is_read_to_its_end(get, data):
    with serve({"/a": File(data, length=False)}) as server:
        assert get(server.url + "/a").path.read_bytes() == data


def test_an_empty_file_is_a_file(get):
    with serve({"/a": b""}) as server:
        assert get(server.url + "/a", magic=b"", path="empty").size == 0


def test_a_file_shorter_than_its_signature_is_reported(get):
    with serve({"/a": MAGIC[:4]}) as server, pytest.raises(FetchError, match="first bytes are 89 48 44 46, expected"):
        get(server.url + "/a")


def test_the_second_call_makes_no_request(get, data):
    with serve({"/a": data}) as server:
        first = get(server.url + "/a")
        second = get(server.url + "/a")

    assert first == second
    assert len(server.requests) == 1


def test_a_file_that_was_changed_after_its_download_is_fetched_again(get, data, folder):
    with serve({"/a": data}) as server:
        get(server.url + "/a")
        with (folder / "a.hdf5").open("r+b") as stream:
            stream.seek(1000)
            stream.write(b"?")

        assert get(server.url + "/a").path.read_bytes() == data
    assert len(server.requests) == 2


def test_a_file_with_another_modification_time_is_verified_and_kept(get, data, folder):
    with serve({"/a": data}) as server:
        first = get(server.url + "/a")
        os.utime(folder / "a.hdf5", (0, 0))

        assert get(server.url + "/a") == first
    assert len(server.requests) == 1


def test_a_file_that_the_user_placed_is_used_if_its_digest_matches(get, data, sha256, folder):
    folder.mkdir()
    (folder / "a.hdf5").write_bytes(data)

    came = get("http://127.0.0.1:9/a", sha256=sha256)

    assert (came.checked, came.sha256, came.url) == ("catalog", sha256, (folder / "a.hdf5").as_uri())


def test_a_truncated_file_under_the_right_name_is_replaced(get, data, sha256, folder):
    folder.mkdir()
    (folder / "a.hdf5").write_bytes(data[:5000])
    with serve({"/a": data}) as server:
        assert get(server.url + "/a", sha256=sha256).path.read_bytes() == data


def test_a_file_without_a_record_or_a_digest_is_fetched_again(get, data, folder):
    folder.mkdir()
    (folder / "a.hdf5").write_bytes(MAGIC + b"something else")
    with serve({"/a": data}) as server:
        assert get(server.url + "/a").path.read_bytes() == data


def test_a_new_digest_in_the_catalog_fetches_the_file_again(get, data):
    newer = data + b"more"
    with serve({"/a": data, "/b": newer}) as server:
        get(server.url + "/a")
        came = get(server.url + "/b", sha256=hashlib.sha256(newer).hexdigest())

    assert came.path.read_bytes() == newer


def test_an_edited_file_is_accepted_on_request_and_marked(get, data):
    with serve({"/a": data}) as server:
        assert get(server.url + "/a", sha256="0" * 64, size=1, hash_check=False).checked == "skipped"
        with pytest.raises(IntegrityError):
            get(server.url + "/a", sha256="0" * 64, size=len(data))


def test_the_folders_of_a_path_are_created(get, data, names):
    with serve({"/a": data}) as server:
        get(server.url + "/a", path="train/$store$/a b.hdf5")

    assert names() == ["train/$store$/a b.hdf5", "train/$store$/a b.hdf5.fetched.json"]


@pytest.mark.parametrize("path", ["../a", "/a", "C:a", "a\\..\\b"])
def test_a_path_out_of_the_folder_is_refused_before_any_request(get, data, path):
    with serve({"/a": data}) as server, pytest.raises(InvalidArgumentError):
        get(server.url + "/a", path=path)

    assert server.requests == []


def test_two_files_of_the_same_path_are_refused(folder, settings):
    with pytest.raises(InvalidArgumentError, match="several files have the same path: a"):
        fetch([Asset(("http://x/1",), "a"), Asset(("http://x/2",), "a")], folder, settings=settings)


def test_a_rate_limit_of_zero_is_refused(get):
    with pytest.raises(InvalidArgumentError, match="rate limit is 0"):
        get("http://127.0.0.1:9/a", limit_rate=0)


def test_redirects_are_followed(get, data):
    with serve({"/a": Redirect("/b"), "/b": Redirect("/c", code=307), "/c": data}) as server:
        assert get(server.url + "/a").path.read_bytes() == data


@pytest.mark.slow
def test_many_files_are_fetched_concurrently_and_returned_in_order(folder, settings):
    contents = {f"/{n}": Slow(bytes([n]) * 10_000, rate=20_000) for n in range(8)}
    with serve(contents) as server:
        assets = [Asset((f"{server.url}{path}",), f"files{path}") for path in contents]
        began = time.monotonic()
        came = fetch(assets, folder, settings=settings)

    assert [each.path.read_bytes()[0] for each in came] == list(range(8))
    assert time.monotonic() - began < 8 * 0.5 * 0.75


def test_a_large_file_is_fetched_in_concurrent_ranges(get, data, sha256, monkeypatch):
    monkeypatch.setattr(transfer, "SPLIT_FROM", 100_000)
    with serve({"/a": data}) as server:
        came = get(server.url + "/a")

    assert came.sha256 == sha256 == hashlib.sha256(came.path.read_bytes()).hexdigest()
    assert len(server.ranges) == 4
    assert all(request.headers["if-range"] == came.etag for request in server.requests[1:])


@pytest.mark.parametrize(
    "behaviour",
    [
        NoRange,
        lambda data: File(data, etag=None, modified="Mon, 01 Jan 2024 00:00:00 GMT"),
        lambda data: File(data, etag='W/"weak"'),
        lambda data: File(data, length=False),
    ],
    ids=["no ranges", "no etag", "weak etag", "no length"],
)
def test_a_large_file_is_fetched_in_one_request_where_ranges_are_not_safe(get, data, monkeypatch, behaviour):
    monkeypatch.setattr(transfer, "SPLIT_FROM", 100_000)
    with serve({"/a": behaviour(data)}) as server:
        assert get(server.url + "/a").path.read_bytes() == data

    assert server.ranges == []


def test_many_files_do_not_multiply_their_connections(folder, settings, data, monkeypatch):
    monkeypatch.setattr(transfer, "SPLIT_FROM", 100_000)
    with serve({f"/{n}": data for n in range(4)}) as server:
        fetch([Asset((f"{server.url}/{n}",), f"{n}") for n in range(4)], folder, settings=settings)

    assert server.ranges == []


@pytest.mark.slow
def test_the_rate_limit_applies_to_the_sum_of_all_threads(folder, settings):
    with serve({f"/{n}": b"x" * 20_000 for n in range(4)}) as server:
        began = time.monotonic()
        assets = [Asset((f"{server.url}/{n}",), f"{n}") for n in range(4)]
        fetch(assets, folder, settings=settings, limiter=Limiter(160_000))

    assert 0.45 < time.monotonic() - began < 15


def test_mirrors_are_tried_before_the_addresses_of_the_catalog():
    asset = Asset(("https://up/a",), "door/a b$.hdf5")
    bases = ["https://lab/d4rl/", "file:///mnt/d4rl", "hf://datasets/o/r", "gs://bucket/x"]

    assert with_mirrors(asset, bases).urls == (
        "https://lab/d4rl/door/a%20b%24.hdf5",
        "file:///mnt/d4rl/door/a%20b%24.hdf5",
        "hf://datasets/o/r/door/a b$.hdf5",
        "gs://bucket/x/door/a b$.hdf5",
        "https://up/a",
    )
    assert with_mirrors(asset, []) == asset
    assert with_mirrors(with_mirrors(asset, bases), bases) == with_mirrors(asset, bases)


def test_a_file_mirror_is_used_in_place(get, data, tmp_path, names):
    (tmp_path / "lab disk").mkdir()
    (tmp_path / "lab disk" / "a.hdf5").write_bytes(data)
    asset = with_mirrors(Asset((), "a.hdf5"), [(tmp_path / "lab disk").as_uri()])

    came = get(asset.urls)

    assert came.path == tmp_path / "lab disk" / "a.hdf5"
    assert names() == []


def test_the_remaining_bytes_are_known_without_a_request(data, folder, tmp_path, settings):
    (tmp_path / "b").write_bytes(b"12345")
    with serve({"/a": Cut(data, after=100_000, times=1000)}) as server:
        half = Asset((server.url + "/a",), "a.hdf5", size=len(data), magic=MAGIC)
        others = [
            Asset(((tmp_path / "b").as_uri(), "https://up/b"), "b", size=5),
            Asset(((tmp_path / "nothing").as_uri(), "https://up/c"), "c", size=70),
        ]
        assert remaining_bytes([half, *others], folder) == len(data) + 70
        with pytest.raises(FetchError):
            fetch(
                [replace(half, urls=(server.url + "/a", server.url + "/gone"))],
                folder,
                settings=replace(settings, retries=0),
            )
        requests = len(server.requests)

        assert remaining_bytes([half, *others], folder) == len(data) - 100_000 + 70
        assert len(server.requests) == requests
    assert remaining_bytes([replace(half, size=None, path="new")], folder) is None
    assert remaining_bytes([], folder) == 0


def test_a_finished_file_has_no_remaining_bytes(get, data, folder):
    with serve({"/a": data}) as server:
        came = get(server.url + "/a")

    assert remaining_bytes([came.asset], folder) == 0


def test_offline_makes_no_request(folder, settings, data):
    with serve({"/a": data}) as server, pytest.raises(OfflineError, match="switched off"):
        fetch(
            [Asset((server.url + "/a", "gs://b/a", "hf://datasets/o/r/a"), "a")],
            folder,
            settings=replace(settings, offline=True),
        )

    assert server.requests == []


def test_offline_uses_stored_files(folder, settings, data, tmp_path):
    offline = replace(settings, offline=True)
    (tmp_path / "b").write_bytes(data)
    with serve({"/a": data}) as server:
        here = Asset((server.url + "/a",), "a")
        fetch([here], folder, settings=settings)
    near = Asset(("https://up/b", (tmp_path / "b").as_uri()), "b")

    assert [each.path for each in fetch([here, near], folder, settings=offline)] == [folder / "a", tmp_path / "b"]


def test_a_user_file_is_used_in_place(tmp_path, data, sha256):
    path = tmp_path / "mine.bin"
    path.write_bytes(data)

    (came,) = fetch_local([Asset(("https://up",), "door/a.hdf5", len(data), sha256, MAGIC, "HDF5")], path)

    assert (came.path, came.sha256, came.checked, came.url) == (path, sha256, "catalog", path.as_uri())
    assert list(tmp_path.iterdir()) == [path]


def test_a_user_folder_may_have_files_by_path_or_by_name(tmp_path, data):
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "a").write_bytes(data)
    (tmp_path / "b").write_bytes(data)

    came = fetch_local([Asset((), "x/a"), Asset((), "x/b")], tmp_path)

    assert [each.path for each in came] == [tmp_path / "x" / "a", tmp_path / "b"]


def test_all_files_missing_from_the_user_folder_are_named(tmp_path):
    with pytest.raises(FetchError, match="2 of 2 files") as caught:
        fetch_local([Asset((), "x/a"), Asset((), "b")], tmp_path)

    assert [place for place, _ in caught.value.failures] == [str(tmp_path / "x" / "a"), str(tmp_path / "b")]


def test_both_expected_names_are_reported(tmp_path):
    with pytest.raises(FetchError) as caught:
        fetch_local([Asset((), "x/a.hdf5")], tmp_path)

    assert str(tmp_path / "x" / "a.hdf5") in caught.value.message
    assert "no a.hdf5 in the folder itself" in caught.value.message


def test_a_user_folder_that_does_not_exist_is_an_invalid_argument(tmp_path):
    with pytest.raises(InvalidArgumentError, match="nowhere does not exist"):
        fetch_local([Asset((), "a")], tmp_path / "nowhere")


def test_a_user_file_with_the_right_digest_may_have_any_name(tmp_path, data, sha256):
    (tmp_path / "mine.hdf5").write_bytes(data)
    (tmp_path / "other.hdf5").write_bytes(data[::-1])

    (came,) = fetch_local([Asset((), "x/a.hdf5", len(data), sha256)], tmp_path)
    assert came.path == tmp_path / "mine.hdf5"
    assert came.checked == "catalog"

    with pytest.raises(FetchError):
        fetch_local([Asset((), "x/a.hdf5", len(data))], tmp_path)


def test_wrong_bytes_at_one_address_and_no_response_of_the_others_is_an_integrity_error(get, data, tmp_path):
    (tmp_path / "b.hdf5").write_bytes(data)
    wrong = (tmp_path / "b.hdf5").as_uri()
    with serve({}) as server, pytest.raises(IntegrityError) as caught:
        get([wrong, server.url + "/gone"], size=5)
    assert "hash_check=False" in caught.value.hint
    assert "status 404" in caught.value.message

    with pytest.raises(IntegrityError, match="may serve the right file later"):
        get([wrong, "http://127.0.0.1:9/a"], size=5)


def test_all_user_files_with_wrong_digests_are_named(tmp_path, data):
    (tmp_path / "a").write_bytes(b"<html>")
    (tmp_path / "b").write_bytes(data)
    wanted = [Asset((), "a", magic=MAGIC, kind="HDF5"), Asset((), "b", len(data), "0" * 64, MAGIC)]

    with pytest.raises(IntegrityError) as caught:
        fetch_local(wanted, tmp_path)

    assert len(caught.value.problems) == 2
    assert "web page" in caught.value.problems[0]
    assert "expected " + "0" * 64 in caught.value.problems[1]


def test_without_the_hash_check_only_the_first_bytes_of_a_user_file_are_checked(tmp_path, data, sha256):
    path = tmp_path / "a"
    path.write_bytes(data)

    (came,) = fetch_local([Asset((), "a", 1, "0" * 64, MAGIC)], path, hash_check=False)

    assert (came.checked, came.sha256) == ("skipped", sha256)
    path.write_bytes(b"PK")
    with pytest.raises(IntegrityError, match="first bytes are 50 4b"):
        fetch_local([Asset((), "a", magic=MAGIC)], path, hash_check=False)


def test_one_user_file_cannot_replace_two_files(tmp_path):
    (tmp_path / "a").write_bytes(b"")
    with pytest.raises(InvalidArgumentError, match="is a single file, but the dataset has 2 files"):
        fetch_local([Asset((), "a"), Asset((), "b")], tmp_path / "a")


def test_a_password_in_an_address_stays_out_of_records_and_messages(get, data, folder):
    with serve({"/a": data}) as server:
        url = server.url.replace("//", "//me:secret@")
        get(url + "/a")
        with pytest.raises(FetchError) as caught:
            get(url + "/gone", path="other")

    assert server.requests[0].headers["authorization"].startswith("Basic ")
    assert "secret" not in (folder / "a.hdf5.fetched.json").read_text()
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "record", ["", "[]", "{}", '{"url": 1}', "{", json.dumps({"size": "x", "url": "", "sha256": ""})]
)
def test_a_damaged_record_is_ignored(get, data, folder, record):
    with serve({"/a": data}) as server:
        get(server.url + "/a")
        (folder / "a.hdf5.fetched.json").write_text(record)

        assert get(server.url + "/a").path.read_bytes() == data
    assert len(server.requests) == 2


def test_importing_the_package_imports_no_http_client():
    code = "import sys, datasets_rl.fetch; print([m for m in ('httpx', 'huggingface_hub', 'torch', 'requests') if m in sys.modules])"

    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_progress_counts_received_and_existing_bytes(get, data, monkeypatch):
    from contextlib import contextmanager

    from datasets_rl.fetch import download

    seen = []

    @contextmanager
    def report(label, total, *, done=0, show=True):
        seen.append([label, total, done, show])
        yield lambda units: seen[-1].__setitem__(2, seen[-1][2] + units)

    monkeypatch.setattr(download, "report", report)
    with serve({"/a": Status(404, times=1, then=Cut(data, after=100_000, times=2))}) as server:
        with pytest.raises(FetchError):
            get(server.url + "/a", size=len(data))
        get(server.url + "/a", size=len(data))

    assert seen == [["a.hdf5", len(data), 0, False], ["a.hdf5", len(data), len(data), False]]
