"""Publishing on a loopback hub, downloading and streaming what was published, and citations."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.metadata import distribution
from pathlib import Path

import datasets
import numpy as np
import pytest
import torch
import view_data
import yaml
from servers import File, Status, serve
from stored_data import store_dataset, trajectory
from upstreams import PublicHub, publishing

from datasets_rl import Manifest, Selection, cite, download, load, push, verify
from datasets_rl.citing import write_statement
from datasets_rl.datasets import remote
from datasets_rl.errors import (
    ConversionError,
    FetchError,
    IntegrityError,
    InvalidArgumentError,
    ManifestError,
    PushError,
)
from datasets_rl.format import chunks
from datasets_rl.format.reader import StoredDataset
from datasets_rl.store import version_folder

CHUNK = 100_000
"""Chunks of this size cut the rows of the demo dataset, 600,128 bytes, into seven."""


@pytest.fixture(scope="module")
def pendulum(tmp_path_factory) -> Path:
    return version_folder(download("demo/pendulum", root=tmp_path_factory.mktemp("home") / "demo"))


@pytest.fixture
def hub(tmp_path, monkeypatch) -> Iterator[PublicHub]:
    with publishing(tmp_path / "hub") as (server, there):
        for name, value in {
            "HF_ENDPOINT": server.url,
            "HF_TOKEN": there.token,
            "RLDS_HOME": str(tmp_path / "home"),
            "RLDS_NO_PROGRESS": "1",
            "RLDS_MAX_RETRIES": "1",
        }.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr("huggingface_hub._commit_api.is_xet_available", lambda: False, raising=False)
        monkeypatch.setattr("datasets_rl.hub.push.retry_delay", lambda *_: 0.0)
        monkeypatch.setattr(chunks, "CHUNK_BYTES", CHUNK)
        yield there


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def published(hub: PublicHub, repo: str = "me/pendulum") -> dict[str, bytes]:
    return files_of(hub.commits[hub.branches[repo, "main"]])


def publish(hub: PublicHub, folder: Path, repo: str = "me/pendulum", **changed: bytes) -> None:
    """Put files on the hub without this package, as anyone may."""
    hub._add_commit(repo, "main", {**files_of(folder), **changed})


def steps_of(data) -> list[bytes]:
    """Return the steps of a batch as bytes, sorted, to compare batches in any order."""
    keys = ["observation", "action", ("next", "reward"), ("next", "observation"), ("next", "done")]
    table = torch.cat([data[key].reshape(len(data), -1).double() for key in keys], 1).numpy()
    return sorted(row.tobytes() for row in table)


def test_a_pushed_dataset_is_downloaded_with_equal_bits(hub, pendulum, tmp_path):
    pushed = push(pendulum, "hf://me/pendulum")
    folder = download("hf://me/pendulum")

    assert pushed.address == f"hf://me/pendulum@{hub.branches['me/pendulum', 'main']}"
    assert folder == tmp_path / "home/hf/me/pendulum"
    arrays = {path for path in files_of(pendulum) if path != "manifest.json"}
    assert arrays
    assert all(files_of(version_folder(folder))[path] == files_of(pendulum)[path] for path in arrays)
    assert not verify("hf/me/pendulum", deep=True).problems
    copied, original = Manifest.read(folder), Manifest.read(pendulum)
    assert (copied.id, copied.copied_from["id"]) == ("hf/me/pendulum", "demo/pendulum")
    assert copied.copied_from["digest"] == original.digest
    assert copied.copied_from["address"] == f"hf://datasets/me/pendulum@{pushed.commit}"


def test_large_files_are_cut_into_chunks_with_digests(hub, pendulum):
    push(pendulum, "hf://me/pendulum")

    document = json.loads(published(hub)["chunks.json"])
    assert document["chunk_bytes"] == CHUNK
    parts = [data for path, data in sorted(published(hub).items()) if path.startswith("chunks/rows.npy/")]
    assert [len(part) for part in parts] == [CHUNK] * 6 + [len((pendulum / "rows.npy").read_bytes()) - 6 * CHUNK]
    assert b"".join(parts) == (pendulum / "rows.npy").read_bytes()
    assert "rows.npy" not in published(hub)


def test_the_card_has_valid_front_matter_counts_and_the_citation(hub, pendulum):
    push(pendulum, "hf://me/pendulum")

    card = published(hub)["README.md"].decode()
    matter = yaml.safe_load(card.split("---")[1])
    assert (matter["license"], matter["size_categories"]) == ("mit", ["10K<n<100K"])
    assert "15,000 steps of 75 episodes" in card
    assert "| `observation` | float32 | [3] |" in card
    assert 'load("hf://me/pendulum"' in card
    assert "- the file does not store the info after the last step of a trajectory (75 times)\n" in card
    assert "SHA-256 of every file" not in card  # the digests of the manifest are those of ranges of 256 KiB
    assert "@article{towers2024gymnasium," in card


def test_a_statement_is_published_beside_the_dataset_and_the_hub_shows_its_tables(hub, pendulum, tmp_path):
    (written,) = write_statement(pendulum, out=tmp_path / "out", tables=True, audited=False)
    (written.folder / "datasheet.md").write_text("All questions are answered.")
    push(pendulum, "hf://me/pendulum", statement=written.folder)

    files = published(hub)
    names = ("croissant.json", "datasheet.md", "parquet/steps.parquet", "parquet/episodes.parquet")
    assert {name: files[name] for name in names} == {name: (written.folder / name).read_bytes() for name in names}
    matter = yaml.safe_load(files["README.md"].decode().split("---")[1])
    assert "viewer" not in matter
    repository = hub.commits[hub.branches["me/pendulum", "main"]]
    shown = datasets.load_dataset(str(repository), cache_dir=str(tmp_path / "cache"))
    assert {name: len(split) for name, split in shown.items()} == {"train": 15_000}
    stored = StoredDataset(pendulum)
    rows = shown["train"].with_format("numpy")[:]
    assert np.array_equal(rows["observation"], stored.column(("observation",)))
    assert np.array_equal(rows["next.reward"], stored.column(("next", "reward"))[:, 0])
    ends = datasets.load_dataset(str(repository), "episodes", cache_dir=str(tmp_path / "cache"))
    assert ends["train"]["length"][:] == [200] * 75
    copy = download("hf://me/pendulum")
    assert not verify(copy, deep=True).problems
    (of_copy,) = write_statement(copy, out=tmp_path / "of_copy", audited=False)
    stated = json.loads((of_copy.folder / "croissant.json").read_text())["rai:dataCollectionRawData"]
    assert f"a copy of hf://datasets/me/pendulum@{hub.branches['me/pendulum', 'main']}" in stated
    # A statement of an earlier dataset would be wrong.
    push(pendulum, "hf://me/pendulum")
    assert not {*names} & published(hub).keys()
    assert "viewer: false" in published(hub)["README.md"].decode()


def test_a_table_of_all_splits_is_not_called_a_training_split(hub, tmp_path):
    parts = [trajectory(5, seed=seed, split=np.array(part)) for seed, part in enumerate(["train", "val"])]
    folder = store_dataset(tmp_path / "data", parts).folder.parent
    (written,) = write_statement(folder, out=tmp_path / "out", tables=True, audited=False)
    push(folder, "hf://me/parts", statement=written.folder)
    repository = hub.commits[hub.branches["me/parts", "main"]]

    shown = datasets.load_dataset(str(repository), "episodes", cache_dir=str(tmp_path / "cache"))
    assert {name: split["split"][:] for name, split in shown.items()} == {"complete": ["train", "val"]}


def test_a_statement_of_other_files_is_not_published(hub, pendulum, tmp_path):
    (written,) = write_statement(pendulum, out=tmp_path / "out", audited=False)
    file = written.folder / "croissant.json"
    file.write_text(file.read_text().replace(f"+{written.statement.manifest.files_digest[:12]}", "+000000000000"))

    for folder, problem in ((written.folder, "has the version 0.0.0.000000000000"), (tmp_path, "is not the statement")):
        with pytest.raises(InvalidArgumentError, match=problem):
            push(pendulum, "hf://me/pendulum", statement=folder)
    with pytest.raises(InvalidArgumentError, match="there is no croissant") as caught:
        push(pendulum, "hf://me/pendulum", statement=written.folder.parent)
    assert str(written.folder) in str(caught.value)
    assert not hub.branches


def test_pushing_again_sends_nothing_and_makes_no_commit(hub, pendulum):
    first = push(pendulum, "hf://me/pendulum")
    sent, commits = len(hub.sent), len(hub.commits)

    assert push(pendulum, "hf://me/pendulum") == first
    assert (len(hub.sent), len(hub.commits)) == (sent, commits)


def test_a_card_of_the_user_is_kept_and_outdated_chunks_are_deleted(hub, pendulum, monkeypatch):
    push(pendulum, "hf://me/pendulum")
    publish(hub, hub.commits[hub.branches["me/pendulum", "main"]], **{"README.md": b"mine", "notes.txt": b"mine"})
    monkeypatch.setattr(chunks, "CHUNK_BYTES", 300_000)
    push(pendulum, "hf://me/pendulum")

    assert published(hub)["README.md"] == published(hub)["notes.txt"] == b"mine"
    assert sum(path.startswith("chunks/") for path in published(hub)) == 3
    assert download("hf://me/pendulum").is_dir()


@pytest.mark.first(1)
@pytest.mark.parametrize(("request_", "status"), [("POST /api/repos/create", 429), ("/commit/", 500)])
def test_transient_failures_of_the_hub_are_retried(hub, pendulum, request_, status):
    hub.faults[request_] = [Status(status)]

    assert push(pendulum, "hf://me/pendulum").commit == hub.branches["me/pendulum", "main"]
    assert not hub.faults[request_]


class Cut:
    """A connection that is cut without a response."""

    def answer(self, call):
        call.hang_up(reset=True)


def test_a_cut_connection_is_retried(hub, pendulum):
    hub.faults["/commit/"] = [Cut()]

    assert push(pendulum, "hf://me/pendulum").commit == hub.branches["me/pendulum", "main"]


@pytest.mark.parametrize("status", [401, 403])
def test_a_refused_push_names_the_token_and_publishes_nothing(hub, pendulum, status):
    hub.faults["POST /api/repos/create"] = [Status(status, {"X-Error-Message": "no write access"})]

    with pytest.raises(PushError, match=f"status {status}: no write access\n.*HF_TOKEN"):
        push(pendulum, "hf://me/pendulum")
    assert not hub.commits


@pytest.mark.slow
def test_an_interrupted_push_resumes_without_sending_files_twice(hub, pendulum):
    hub.faults["/commit/"] = [Status(403)]
    with pytest.raises(PushError, match="403"):
        push(pendulum, "hf://me/pendulum")
    assert hub.sent
    assert len(hub.commits) == 1  # the commit that creates the repository
    push(pendulum, "hf://me/pendulum")

    assert len(hub.sent) == len(set(hub.sent))
    assert "manifest.json" in published(hub)


def test_a_damaged_dataset_is_not_published(hub, pendulum, tmp_path):
    damaged = tmp_path / "damaged"
    shutil.copytree(pendulum, damaged)
    with (damaged / "rows.npy").open("r+b") as stream:
        stream.seek(5000)
        stream.write(b"\xff")

    with pytest.raises(IntegrityError, match=r"rows\.npy has the digest"):
        push(damaged, "hf://me/pendulum")
    assert not hub.commits


@pytest.mark.usefixtures("hub")
def test_without_a_token_a_push_says_how_to_give_one(pendulum, monkeypatch, tmp_path):
    monkeypatch.delenv("HF_TOKEN")
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(tmp_path / "none"))

    with pytest.raises(PushError, match=r"no token.*\n.*hf auth login"):
        push(pendulum, "hf://me/pendulum")
    assert "hf" in distribution("huggingface_hub").entry_points.select(group="console_scripts").names


@pytest.mark.parametrize(
    "address", ["me/pendulum", "hf://pendulum", "hf://me/pendulum@", "hf://me/x@a/b", "s3://me/pendulum"]
)
def test_an_address_that_is_no_repository_is_refused(pendulum, address):
    with pytest.raises(InvalidArgumentError, match="hf://USER/NAME"):
        push(pendulum, address)


def test_a_private_dataset_needs_the_token(hub, pendulum, monkeypatch, tmp_path):
    push(pendulum, "hf://me/pendulum", private=True)
    monkeypatch.delenv("HF_TOKEN")
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(tmp_path / "none"))
    with pytest.raises(FetchError, match="HF_TOKEN"):
        download("hf://me/pendulum")
    monkeypatch.setenv("HF_TOKEN", hub.token)

    assert download("hf://me/pendulum").is_dir()


def test_a_revision_is_pinned(hub, pendulum):
    first = push(pendulum, "hf://me/pendulum").commit
    publish(hub, pendulum, **{"manifest.json": b'{"format": "datasets-rl/ted"}'})

    with pytest.raises(IntegrityError):
        download("hf://me/pendulum")
    folder = download(f"hf://me/pendulum@{first}")
    assert Manifest.read(folder).selection == {"options": {"revision": first}}
    assert load(f"hf://me/pendulum@{first}").manifest.copied_from["address"].endswith(first)
    with pytest.raises(InvalidArgumentError, match="revision="):
        load("hf://me/pendulum@other")


@pytest.mark.slow
def test_a_killed_download_resumes_without_fetching_chunks_again(hub, pendulum, monkeypatch):
    push(pendulum, "hf://me/pendulum")
    monkeypatch.setattr("datasets_rl.sources.hf._SHARD_BYTES", CHUNK)
    hub.faults[
        "GET /datasets/me/pendulum/resolve/" + hub.branches["me/pendulum", "main"] + "/chunks/rows.npy/00004"
    ] = [Status(404)]
    with pytest.raises(FetchError):
        download("hf://me/pendulum")
    hub.requests.clear()
    folder = download("hf://me/pendulum")

    fetched = [path.rpartition("/")[2] for command, path in hub.requests if command == "GET" and "/chunks/" in path]
    assert (version_folder(folder) / "rows.npy").read_bytes() == (pendulum / "rows.npy").read_bytes()
    assert fetched == ["00004", "00005", "00006"]


@pytest.mark.slow
def test_a_push_and_a_download_that_are_killed_at_any_time_complete(hub, pendulum):
    code = (
        "import sys; from datasets_rl import push, download; from datasets_rl.format import chunks\n"
        "import huggingface_hub._commit_api as api; api.is_xet_available = lambda: False\n"
        f"chunks.CHUNK_BYTES = {CHUNK}\n"
        f"push({str(pendulum)!r}, 'hf://me/pendulum') if sys.argv[1] == 'push' else download('hf://me/pendulum')"
    )
    for action in ("push", "download"):
        for delay in np.linspace(0.6, 3.0, 8):
            child = subprocess.Popen([sys.executable, "-c", code, action])
            time.sleep(delay)
            child.send_signal(signal.SIGKILL)
            child.wait()
        subprocess.run([sys.executable, "-c", code, action], check=True)
    assert len(hub.sent) == len(set(hub.sent))
    assert not verify("hf/me/pendulum", deep=True).problems


def rewritten(pendulum: Path, **changes) -> bytes:
    """Return a manifest with changed values and a digest that fits."""
    from datasets_rl.format.manifest import digest_of

    document = json.loads((pendulum / "manifest.json").read_text()) | changes
    return json.dumps({**document, "digest": digest_of(document)}).encode()


def test_published_files_that_lie_are_refused(hub, pendulum, tmp_path):
    files = json.loads((pendulum / "manifest.json").read_text())["files"]
    lies = {
        "a digest that does not fit": (pendulum / "manifest.json").read_bytes().replace(b'"MIT"', b'"GPL"'),
        "a path that leaves the folder": rewritten(pendulum, files=[{**files[0], "path": "../rows.npy"}, *files[1:]]),
        "a file that hides": rewritten(pendulum, files=[*files, {**files[0], "path": ".work/rows.npy"}]),
        "a file that is no array": rewritten(pendulum, files=[*files, {**files[0], "path": "setup.py"}]),
        "a file that is listed twice": rewritten(pendulum, files=[*files, files[0]]),
        "a file that is too small": rewritten(pendulum, files=[{**one, "bytes": 10} for one in files]),
        "no manifest at all": b"[]",
    }
    for lie, manifest in lies.items():
        publish(hub, pendulum, **{"manifest.json": manifest})
        with pytest.raises((IntegrityError, ConversionError)):
            download("hf://me/pendulum")
        assert not (tmp_path / "home/hf/me/pendulum/CURRENT").exists(), lie
    assert not (tmp_path / "home/hf/me/rows.npy").exists()


def test_chunks_that_lie_are_refused(hub, pendulum):
    push(pendulum, "hf://me/pendulum")
    good = hub.commits[hub.branches["me/pendulum", "main"]]
    listed = json.loads((good / "chunks.json").read_text())
    swapped = {**listed, "files": {"rows.npy": listed["files"]["rows.npy"][::-1]}}
    outside = {**listed, "files": {"../rows.npy": ["0" * 64]}}
    for document in (swapped, outside, {**listed, "chunk_bytes": 0}, {**listed, "chunk_bytes": 1}):
        publish(hub, good, **{"chunks.json": json.dumps(document).encode()})
        with pytest.raises(IntegrityError):
            download("hf://me/pendulum")


def test_a_repository_without_a_dataset_is_explained(hub, tmp_path):
    (tmp_path / "other").mkdir()
    (tmp_path / "other/data.parquet").write_bytes(b"PAR1")
    publish(hub, tmp_path / "other")

    with pytest.raises(ConversionError, match=r"no source knows the layout of its 1 file.*data\.parquet"):
        download("hf://me/pendulum")


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(remote, "_BLOCK_BYTES", 40_000)


@pytest.mark.usefixtures("hub")
def test_an_epoch_of_a_stream_has_each_step_once(pendulum, tmp_path):
    push(pendulum, "hf://me/pendulum")
    stream = load("hf://me/pendulum", batch_size=1000, streaming=True)
    epoch = torch.cat(list(stream))

    assert steps_of(epoch) == steps_of(load(pendulum)[:])
    assert not (tmp_path / "home/hf/me/pendulum").exists()
    first = torch.cat(list(load("hf://me/pendulum", batch_size=1000, streaming=True, shuffle=False)))
    assert torch.equal(first["observation"], load(pendulum)[:]["observation"])


@pytest.mark.slow
@pytest.mark.usefixtures("hub")
@pytest.mark.parametrize(("slices", "prefetch"), [({}, 2), ({"slice_len": 200}, None)])
def test_iterating_a_stream_starts_an_epoch_after_any_sample(pendulum, slices, prefetch):
    push(pendulum, "hf://me/pendulum")
    stream = load("hf://me/pendulum", batch_size=1000, streaming=True, prefetch=prefetch, **slices)
    stream.sample()
    left = iter(stream)
    next(left)

    assert steps_of(torch.cat(list(stream))) == steps_of(load(pendulum)[:])
    assert len(torch.cat(list(stream))) == 15_000


def test_a_stream_reads_only_the_ranges_of_the_episodes_it_needs(hub, tmp_path, monkeypatch):
    monkeypatch.setattr("datasets_rl.format.digests.RANGE_BYTES", 1 << 16)  # the dataset has more than two of these
    pendulum = download("demo/pendulum", root=tmp_path / "demo")
    push(pendulum, "hf://me/pendulum")
    stream = load("hf://me/pendulum", batch_size=64, streaming=True, slice_len=32, selection=Selection(episodes="3:5"))
    slices = torch.cat(list(stream))

    wanted = load(pendulum, selection=Selection(episodes="3:5"))[:]
    assert slices.batch_size == (64,)
    assert set(steps_of(slices.exclude(("next", "done")).set(("next", "done"), torch.zeros(64, 1)))) <= set(
        steps_of(wanted.clone().set(("next", "done"), torch.zeros(len(wanted), 1)))
    )
    chunks_read = {path for _, path in hub.requests if "/chunks/rows.npy/" in path and "resolve" in path}
    assert len(chunks_read) == 1  # rows 600 to 1,000 of 40 bytes, and the header


@pytest.mark.slow
@pytest.mark.usefixtures("hub")
def test_the_disk_space_of_a_stream_is_bounded(pendulum, tmp_path):
    push(pendulum, "hf://me/pendulum")
    for _ in load("hf://me/pendulum", batch_size=1000, streaming=True, cache_size=100_000):
        pass

    stored = sum(path.stat().st_size for path in (tmp_path / "home/hf/.stream").rglob("*.npy"))
    assert 0 < stored < 100_000 + 3 * 60_000


@pytest.mark.slow
def test_a_stream_survives_failures_and_detects_replaced_files(hub, pendulum):
    push(pendulum, "hf://me/pendulum")
    commit = hub.branches["me/pendulum", "main"]
    hub.faults = {"/chunks/rows.npy/00001": [Status(500)], "/chunks/rows.npy/00002": [Cut()]}
    stream = load("hf://me/pendulum", batch_size=500, streaming=True, shuffle=False)
    assert stream.sample().batch_size == (500,)
    place = hub.commits[commit] / "chunks/rows.npy/00005"
    place.write_bytes(place.read_bytes()[::-1])

    with pytest.raises(IntegrityError, match=r"rows\.npy: the bytes .* differ from their digest"):
        list(load("hf://me/pendulum", batch_size=500, streaming=True, shuffle=False, root=place.parent))


@pytest.fixture
def web(pendulum, tmp_path, monkeypatch):
    """A web server with the files of the dataset, at paths that can be replaced."""
    monkeypatch.setenv("RLDS_HOME", str(tmp_path / "web"))
    monkeypatch.setenv("RLDS_NO_PROGRESS", "1")
    with serve({f"/lab/{path}": data for path, data in files_of(pendulum).items()}) as server:
        yield server


def test_a_stream_refuses_rewards_that_contradict_the_manifest(web, pendulum, tmp_path):
    """The manifest is that of the dataset; the rows are of the same size, and every reward is doubled."""
    rows = np.load(pendulum / "rows.npy")
    rows["next.reward"] *= 2
    np.save(tmp_path / "rows.npy", rows)
    size = (pendulum / "rows.npy").stat().st_size
    web.paths["/lab/rows.npy"] = (tmp_path / "rows.npy").read_bytes().ljust(size, b"\0")
    seen = []

    with pytest.raises(IntegrityError, match=r"rows\.npy: the bytes 0 to 262,144 differ from their digest"):
        seen.extend(load(f"{web.url}/lab", batch_size=500, streaming=True))
    assert not seen


@pytest.mark.first(2)
@pytest.mark.parametrize("name", ["rows.npy", "final.npy", "episodes.npy", "digests.npy"])
@pytest.mark.parametrize("place", [200, -1])
def test_one_flipped_bit_of_any_file_ends_a_stream(web, pendulum, name, place):
    data = bytearray((pendulum / name).read_bytes())
    data[place] ^= 4
    web.paths[f"/lab/{name}"] = bytes(data)

    with pytest.raises(IntegrityError, match=name):
        list(load(f"{web.url}/lab", batch_size=500, streaming=True))


@pytest.mark.parametrize("mark", ["etag", "modified"])
def test_a_file_that_is_replaced_during_a_stream_ends_it_by_name(web, pendulum, mark):
    """The bytes are equal, so that only the validator shows that the file is another version."""
    dates = ("Mon, 02 Mar 2020 10:00:00 GMT", "Tue, 03 Mar 2020 10:00:00 GMT")
    first, second = (
        File(
            (pendulum / "rows.npy").read_bytes(),
            **({"etag": tag} if mark == "etag" else {"etag": None, "modified": date}),
        )
        for tag, date in zip(('"1"', '"2"'), dates, strict=True)
    )
    web.paths["/lab/rows.npy"] = first
    stream = load(f"{web.url}/lab", batch_size=100, streaming=True, shuffle=False, buffer_steps=200)
    stream.sample()
    web.paths["/lab/rows.npy"] = second

    with pytest.raises(IntegrityError, match=rf"{web.url}/lab/rows.npy: the served file is version .* now and was"):
        list(stream)


def test_a_published_dataset_without_digests_of_ranges_is_not_streamed(web, pendulum):
    files = json.loads((pendulum / "manifest.json").read_text())["files"]
    web.paths["/lab/manifest.json"] = rewritten(pendulum, files=[one for one in files if one["path"] != "digests.npy"])

    with pytest.raises(ManifestError, match=r"the manifest does not list digests\.npy"):
        load(f"{web.url}/lab", batch_size=500, streaming=True)


@pytest.mark.slow
def test_a_folder_on_a_web_server_or_in_a_bucket_is_streamed(pendulum, monkeypatch, tmp_path):
    from upstreams import bucket

    monkeypatch.setenv("RLDS_HOME", str(tmp_path))
    wanted = steps_of(load(pendulum)[:])
    with serve({f"/lab/pendulum/{path}": data for path, data in files_of(pendulum).items()}) as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
        for address in (f"{server.url}/lab/pendulum", "s3://lab/pendulum/"):
            assert steps_of(torch.cat(list(load(address, batch_size=5000, streaming=True)))) == wanted
    shutil.copytree(pendulum, tmp_path / "lab" / "pendulum")
    with bucket({"lab": tmp_path / "lab"}) as server:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
        stream = load("gs://lab/pendulum", batch_size=5000, streaming=True)
        assert steps_of(torch.cat(list(stream))) == wanted
        assert steps_of(load("gs://lab/pendulum")[:]) == wanted


def test_images_texts_and_final_states_are_streamed(monkeypatch, tmp_path):
    from raw.openx import CASES

    case = next(case for case in CASES if case.options.get("images") == "encoded")
    monkeypatch.setattr(remote, "_BLOCK_BYTES", 3000)
    monkeypatch.setenv("RLDS_HOME", str(tmp_path / "home"))
    (tmp_path / "raw").mkdir()
    case.write(tmp_path / "raw")
    with case.served(tmp_path / "raw") as environment:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        folder = download(case.id, selection=Selection(options=case.options))
    with serve({f"/x/{path}": data for path, data in files_of(version_folder(folder)).items()}) as server:
        stream = load(f"{server.url}/x", batch_size=7, streaming=True, shuffle=False)
        streamed = torch.cat(list(stream))
    stored = load(folder)
    texts = {field.key for field in stored.manifest.schema if field.text}
    assert texts
    assert any(field.encoded for field in stored.manifest.schema)
    for key, wanted in stored[:].exclude("index").items(include_nested=True, leaves_only=True):
        path = (key,) if isinstance(key, str) else key
        if path in texts or path[1:] in texts:
            words, own = stream.texts(path), stored.texts(path)
            assert [words[code] for code in streamed[key].flatten()] == [own[code] for code in wanted.flatten()]
        else:
            assert torch.equal(streamed[key], wanted), key


@pytest.fixture
def frames(tmp_path):
    """A dataset of compressed images in several blocks, and the folder of its version."""
    return view_data.image_dataset(tmp_path / "frames", (8, 20, 15, 30), form="compressed")


@pytest.mark.usefixtures("hub")
def test_compressed_images_are_pushed_downloaded_and_streamed_with_equal_bits(frames, monkeypatch):
    monkeypatch.setattr(remote, "_BLOCK_BYTES", 4000)
    push(frames.folder, "hf://me/frames")
    folder = download("hf://me/frames")
    stream = load("hf://me/frames", batch_size=10, streaming=True, shuffle=False)
    streamed = torch.cat(list(stream))

    copied = files_of(version_folder(folder))
    assert all(copied[path] == data for path, data in files_of(frames.folder).items() if path != "manifest.json")
    assert not verify("hf/me/frames").problems
    stored = load(frames.folder)[:]
    for key in ("observation", "action", ("next", "observation")):
        assert torch.equal(streamed[key], stored[key]), key


def test_the_card_says_how_images_are_stored(hub, frames):
    push(frames.folder, "hf://me/frames")

    card = published(hub, "me/frames")["README.md"].decode()
    assert "| `observation` | uint8 | [64, 64, 3] |" in card
    assert re.search(r"- `observation` on disk: compressed without loss, [\d.]+ times smaller than the pixels", card)


@pytest.mark.parametrize("name", ["observation.npy", "observation.ends.npy", "observation.dictionary"])
def test_a_stream_ends_at_a_flipped_bit_of_compressed_images(frames, name, monkeypatch, tmp_path):
    monkeypatch.setenv("RLDS_HOME", str(tmp_path / "web"))
    files = {f"/x/{path}": data for path, data in files_of(frames.folder).items()}
    content = bytearray(files[f"/x/{name}"])
    content[-50] ^= 4
    with serve(files | {f"/x/{name}": bytes(content)}) as server, pytest.raises(IntegrityError, match=name):
        list(load(f"{server.url}/x", batch_size=10, streaming=True))


def test_a_source_of_single_files_is_not_streamed(monkeypatch, tmp_path):
    monkeypatch.setenv("RLDS_HOME", str(tmp_path))
    with pytest.raises(InvalidArgumentError, match="share a file"):
        load("demo/pendulum", streaming=True)


def test_a_folder_is_not_streamed(pendulum):
    with pytest.raises(InvalidArgumentError, match="opened in place"):
        load(pendulum, streaming=True)


@pytest.mark.parametrize(
    ("dataset", "keys"),
    [
        ("d4rl/hopper-medium-v2", ["fu2020d4rl"]),
        ("d4rl/kitchen-mixed-v0", ["fu2020d4rl", "gupta2019relay"]),
        ("minari/D4RL/door/human-v2", ["fu2020d4rl", "rajeswaran2018learning", "minari"]),
        ("openx/bridge", ["walke2023bridgedata", "openx2023"]),
        ("atari_dqn/Pong/1", ["agarwal2020optimistic"]),
        ("demo/pendulum@td3_bc", ["towers2024gymnasium"]),
    ],
)
def test_a_dataset_cites_its_papers_and_its_source(dataset, keys, monkeypatch, tmp_path):
    monkeypatch.setenv("RLDS_HOME", str(tmp_path))
    assert [one.key for one in cite(dataset)] == keys


@pytest.mark.parametrize(
    ("citation", "printed"),
    [("Doe, The Rig, 2025", "note = {Doe, The Rig, 2025}"), ("@misc{rig, title = {R}}", "@misc{rig, title = {R}}")],
)
def test_a_catalog_without_a_bibliography_is_cited_by_its_text(citation, printed, monkeypatch, tmp_path):
    from datasets_rl import sources
    from datasets_rl.sources.base import Entry

    monkeypatch.setenv("RLDS_HOME", str(tmp_path))
    demo = sources.get_source("demo")
    monkeypatch.setitem(vars(demo), "bibliography", {})
    monkeypatch.setattr(type(demo), "entry", lambda *_: Entry("demo", "pendulum", citation=citation))

    (one,) = cite("demo/pendulum")

    assert printed in str(one)
    assert one.of == ("demo/pendulum",)


def test_every_dataset_of_the_catalogs_can_be_cited():
    from datasets_rl import list_datasets, sources

    for source in {one.partition("/")[0] for one in list_datasets()}:
        origin = sources.get_source(source)
        for name in origin.ids():
            cited = [origin.bibliography[key] for key in origin.citations(name)]
            assert cited
            assert all(entry.count("{") == entry.count("}") for entry in cited), f"{source}/{name}"


@pytest.mark.usefixtures("hub")
def test_a_mixture_cites_its_members_and_a_copy_the_original(pendulum, tmp_path):
    push(pendulum, "hf://me/pendulum")
    download("hf://me/pendulum")
    file = tmp_path / "mix.toml"
    file.write_text('[[member]]\ndataset = "d4rl/hopper-medium-v2"\n[[member]]\ndataset = "hf/me/pendulum"\n')

    assert [one.key for one in cite(file)] == ["fu2020d4rl", "towers2024gymnasium", "hf_me_pendulum"]
    assert "https://huggingface.co/datasets/me/pendulum" in str(cite("hf/me/pendulum")[-1])
