"""Streams of the folder of a stored dataset, as it lies on the disk: with CURRENT and folders of versions."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from servers import Stall, Status, serve
from stored_data import trajectory, write_dataset
from upstreams import bucket, hub

from datasets_rl import SampledBatches, load
from datasets_rl.datasets import remote
from datasets_rl.errors import FetchError, InvalidArgumentError, ManifestError

FIRST, SECOND = "0001-0000000a", "0002-0000000b"
LENGTHS = [7, 3, 12, 9]


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """A dataset with two versions of equal shapes and other values, of which the first one is current."""
    made = tmp_path / "lab" / "some"
    for version, seed in ((FIRST, 0), (SECOND, 100)):
        write_dataset(made / version, [trajectory(length, seed=seed + number) for number, length in enumerate(LENGTHS)])
    (made / "CURRENT").write_text(f"{FIRST}\n")
    monkeypatch.setattr(remote, "_BLOCK_BYTES", 1)
    monkeypatch.setenv("RLDS_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("RLDS_NO_PROGRESS", "1")
    return made


def files_of(folder: Path) -> dict[str, Path]:
    return {f"/lab/some/{path.relative_to(folder).as_posix()}": path for path in folder.rglob("*") if path.is_file()}


def _same(batch):
    return batch


def observations(batches) -> torch.Tensor:
    return torch.cat([batch["observation"] for batch in batches])


def streamed(address: str, **options) -> torch.Tensor:
    stream = load(address, batch_size=5, streaming=True, shuffle=False, **options)
    try:
        return observations(stream)
    finally:
        stream.close()


def test_the_folder_that_rlds_path_prints_is_streamed_from_a_web_server(folder):
    with serve(files_of(folder)) as server:
        for address in (f"{server.url}/lab/some", f"{server.url}/lab/some/", f"{server.url}/lab/some/{FIRST}"):
            assert torch.equal(streamed(address), load(folder / FIRST)[:]["observation"])
        (folder / "CURRENT").write_text(f"{SECOND}\n")
        assert torch.equal(streamed(f"{server.url}/lab/some"), load(folder / SECOND)[:]["observation"])


def test_it_is_streamed_from_buckets_and_from_a_repository_of_the_hub(folder, monkeypatch, tmp_path):
    wanted = load(folder)[:]["observation"]
    with bucket({"lab": tmp_path / "lab"}) as server:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
        assert torch.equal(streamed("gs://lab/some"), wanted)
    with serve(files_of(folder)) as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
        assert torch.equal(streamed("s3://lab/some"), wanted)
    with hub({"me/some": folder}) as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        assert torch.equal(streamed("hf://me/some"), wanted)


def test_a_stream_stays_with_its_version_while_another_one_is_published(folder):
    with serve(files_of(folder)) as server:
        stream = load(f"{server.url}/lab/some", batch_size=5, streaming=True, shuffle=False)
        batches = iter(stream)
        first = next(batches)
        (folder / "CURRENT").write_text(f"{SECOND}\n")
        epoch = observations([first, *batches])
        later = observations(stream)
        workers = torch.utils.data.DataLoader(SampledBatches(stream), batch_size=None, num_workers=2, collate_fn=_same)
        loaded = observations(workers)
        stream.close()

    wanted = load(folder / FIRST)[:]["observation"]
    assert torch.equal(epoch, wanted)
    assert torch.equal(later, wanted)
    assert sorted(map(tuple, loaded.tolist())) == sorted(map(tuple, wanted.tolist()))


def test_without_a_version_and_a_manifest_the_error_names_both():
    with serve({"/lab/other": b""}) as server, pytest.raises(FetchError, match=r"manifest\.json, or the file CURRENT"):
        load(f"{server.url}/lab/some", streaming=True)


@pytest.mark.parametrize("name", ["CURRENT", "chunks.json"])
@pytest.mark.parametrize(
    ("failure", "reason"), [(Status(500), "status 500"), (Stall(b"00", after=0, times=9), "no data")]
)
def test_a_server_that_fails_is_not_taken_for_one_without_the_file(folder, monkeypatch, name, failure, reason):
    """The folder has a manifest, too, so that it would be streamed as a version."""
    monkeypatch.setenv("RLDS_MAX_RETRIES", "0")
    monkeypatch.setenv("RLDS_TIMEOUT", "0.5")
    files = {f"/lab/some/{path.name}": path for path in (folder / FIRST).iterdir()}
    with (
        serve({**files, f"/lab/some/{name}": failure}) as server,
        pytest.raises(FetchError, match=rf"{name}.*{reason}"),
    ):
        load(f"{server.url}/lab/some", streaming=True)


@pytest.mark.parametrize("status", [403, 404])
def test_a_version_without_current_is_streamed_however_its_server_says_so(folder, status):
    files = {f"/lab/some/{path.name}": path for path in (folder / FIRST).iterdir()}
    with serve({**files, "/lab/some/CURRENT": Status(status)}) as server:
        assert torch.equal(streamed(f"{server.url}/lab/some"), load(folder / FIRST)[:]["observation"])


def test_a_damaged_name_of_a_version_is_refused(folder):
    (folder / "CURRENT").write_text("../../other\n")
    with serve(files_of(folder)) as server, pytest.raises(ManifestError, match=r"the name is '\.\./\.\./other'"):
        load(f"{server.url}/lab/some", streaming=True)


@pytest.mark.parametrize("options", [{"slice_len": 8}, {"num_slices": 2}], ids=str)
def test_slices_longer_than_an_episode_are_refused_when_the_stream_is_opened(folder, options):
    with serve(files_of(folder)) as server:
        with pytest.raises(InvalidArgumentError, match="a trajectory has 3 steps, expected 8 for a slice"):
            load(f"{server.url}/lab/some", batch_size=16, streaming=True, **options)
        assert len(observations(load(f"{server.url}/lab/some", 16, streaming=True, pad=0, **options))) == 32
        shorter = load(f"{server.url}/lab/some", 16, streaming=True, strict_length=False, **options)
        assert len(observations(shorter)) == 8 + 8 + 7 + 3


def test_the_procedure_of_the_page_on_sharing_works_as_written(folder, tmp_path):
    """The folder of a stored dataset is copied, with everything in it, and the copy is served."""
    copied = shutil.copytree(folder, tmp_path / "copy")
    with serve(files_of(copied)) as server:
        assert torch.equal(streamed(f"{server.url}/lab/some"), load(folder)[:]["observation"])
