"""LeRobot datasets in tar archives, which are read where they are, as RoboCasa365 publishes them."""

from __future__ import annotations

import io
import os
import subprocess
import tarfile

import numpy as np
import pytest
from raw.lerobot import LENGTHS, draw, write_new, write_old

from datasets_rl import Selection, downloading, load, plan, verify
from datasets_rl.errors import ConversionError, FetchError, InvalidArgumentError
from datasets_rl.fetch import fetch
from datasets_rl.fetch.schemes import tar
from datasets_rl.format.reader import StoredDataset
from datasets_rl.settings import Settings
from datasets_rl.store import remove

pytest.importorskip("av", reason="pip install av")
ID = "lerobot/robocasa/PickPlaceCounterToCabinet"
DRAWN = [draw(length, seed) for seed, length in enumerate(LENGTHS)]


@pytest.fixture(scope="module", params=["2.1", "3.0"])
def written(request, tmp_path_factory):
    """The folder of a dataset with what RoboCasa adds: a file in meta, and a folder with the scenes."""
    folder = tmp_path_factory.mktemp(request.param) / "lerobot"
    (write_old if request.param == "2.1" else write_new)(folder, DRAWN)
    (folder / "meta/modality.json").write_text("{}")
    (folder / "extras/episode_000000").mkdir(parents=True)
    (folder / "extras/episode_000000/model.xml.gz").write_bytes(b"scene")
    return folder


@pytest.fixture
def home(tmp_path):
    return tmp_path / "home"


def pack(folder, path, name="lerobot", **options):
    with tarfile.open(path, "w", **options) as archive:
        archive.add(folder, name)
    return path


def download(name, home, from_local=None, **options):
    settings = Settings(home=home, progress=False)
    return StoredDataset(downloading.download(name, from_local=from_local, settings=settings, **options))


def files_below(home):
    return {path.name for path in home.rglob("*") if path.is_file()}


@pytest.mark.first(3)
@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_an_archive_has_the_dataset_of_the_folder_in_it(written, home, tmp_path, form):
    archive = pack(written, tmp_path / "lerobot.tar", format=form)

    packed = download(ID, home, archive)
    plain = download(ID, tmp_path / "plain", written)

    assert packed.manifest.files_digest == plain.manifest.files_digest
    raw = {file.path: (file.bytes, file.sha256) for file in plain.manifest.raw}
    assert {file.path: (file.bytes, file.sha256) for file in packed.manifest.raw} == raw
    assert {file.url.partition("#")[0] for file in packed.manifest.raw} == {f"tar://{archive}"}
    assert not [name for name in files_below(home) if name.endswith((".mp4", ".parquet", ".part"))]


def test_the_path_of_an_archive_names_its_dataset(written, home, tmp_path):
    archive = pack(written, tmp_path / "lerobot.tar")
    settings = Settings(home=home, progress=False)
    videos = Selection(options={"images": "video"})

    planned = plan(str(archive), settings=settings, selection=videos)
    assert not files_below(home)
    assert planned.layout.startswith("lerobot: meta/info.json has features")
    assert planned.wire_bytes == 0
    assert planned.peak_bytes > planned.stored_bytes  # the copies of the files that are read at the moment

    stored = download(str(archive), home, selection=videos)
    archive.unlink()  # the videos are in the dataset
    frames = load(stored.folder.parent)[:]["observation", "image", "top"]
    assert frames.shape[0] == sum(LENGTHS)


@pytest.mark.first(3)
@pytest.mark.parametrize("name", [".", "./lerobot", "a/b/lerobot"])
def test_a_dataset_is_found_below_any_folders_of_the_archive(written, home, tmp_path, name):
    archive = pack(written, tmp_path / "lerobot.tar", name)
    assert download(ID, home, archive).manifest.steps == sum(LENGTHS)


def test_only_the_files_of_the_selection_are_copied(written, home, tmp_path):
    archive = pack(written, tmp_path / "lerobot.tar")
    wanted = Selection(episodes="1:3", keys=("observation.state", "action"))

    folder = downloading.download(
        ID, from_local=archive, settings=Settings(home=home, progress=False), selection=wanted, raw_only=True
    )

    copied = {path.relative_to(folder / "robocasa/PickPlaceCounterToCabinet") for path in folder.rglob("*.*")}
    copied = {path for path in copied if not path.name.endswith(".fetched.json")}
    assert {path.parts[0] for path in copied} - {"README.md"} == {"data", "meta"}
    stored = download(ID, home, archive, selection=wanted, keep_raw=True)
    assert stored.episodes.lengths.tolist() == list(LENGTHS[1:3])
    assert np.array_equal(stored.column(("action",)), np.concatenate([DRAWN[1].action, DRAWN[2].action]))


def test_copies_out_of_an_archive_are_removed_as_downloaded_files_are(written, home, tmp_path):
    settings = Settings(home=home, progress=False)
    archive = pack(written, tmp_path / "lerobot.tar")
    downloading.download(ID, from_local=archive, settings=settings, raw_only=True)

    assert remove(ID, settings=settings) > 0
    assert files_below(home) == set()
    assert archive.exists()


def test_a_kept_file_of_an_archive_is_compared_by_a_deep_verification(written, home, tmp_path):
    archive = pack(written, tmp_path / "lerobot.tar")
    download(ID, home, archive, keep_raw=True)

    report = verify(ID, root=home / "lerobot", deep=True)

    assert not report.problems
    assert any(line.startswith("every converted value against") for line in report.checked)


def test_a_stored_dataset_is_compared_with_a_changed_archive(written, home, tmp_path):
    archive = pack(written, tmp_path / "lerobot.tar")
    stored = download(ID, home, archive)
    version = stored.folder.name

    os.utime(archive, (4e9, 4e9))
    assert download(ID, home, archive).folder.name == version

    with tarfile.open(archive) as packed:
        member = next(one for one in packed if one.name.endswith(".parquet") and "/data/" in one.name)
        start = member.offset_data + member.size // 2
    with archive.open("r+b") as file:
        file.seek(start)
        byte = file.read(1)[0]
        file.seek(start)
        file.write(bytes([byte ^ 1]))
    os.utime(archive, (4e9, 4e9))
    with pytest.raises(InvalidArgumentError, match=r"converted from other files: .*\.parquet has other bytes"):
        download(ID, home, archive)


def test_an_archive_that_is_cut_is_refused_and_nothing_is_stored(written, home, tmp_path):
    whole = pack(written, tmp_path / "whole.tar").read_bytes()
    last = whole.rstrip(b"\0")
    archive = tmp_path / "lerobot.tar"
    for size in (512, 700, len(whole) // 2, len(last) - 1):
        archive.write_bytes(whole[:size])
        with pytest.raises(ConversionError, match="truncated at byte") as cut:
            download(ID, home, archive)
        assert "tar -xf lerobot.tar" in str(cut.value.hint)
    assert not [name for name in files_below(home) if name != "upstream.json"]


def test_an_archive_that_shrinks_after_it_was_listed_is_refused(written, home, tmp_path):
    archive = pack(written, tmp_path / "lerobot.tar")
    listed = tar.folder(archive.as_uri().replace("file", "tar"), None)
    last = max(listed.assets, key=lambda asset: int(asset.urls[0].rpartition("#")[2].partition("+")[0]))
    os.truncate(archive, archive.stat().st_size // 2)

    with pytest.raises(FetchError, match="bytes before the end of the file in the archive"):
        fetch([last], home, settings=Settings(home=home, progress=False))
    assert not (home / last.path).exists()


def _link(name, kind):
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, "/etc/passwd"
    return member


@pytest.mark.parametrize(
    ("member", "problem"),
    [
        (_link("lerobot/data/link.parquet", tarfile.SYMTYPE), "is a symbolic link, expected a plain file"),
        (_link("lerobot/data/hard.parquet", tarfile.LNKTYPE), "is a hard link, expected a plain file"),
        (_link("lerobot/data/pipe", tarfile.FIFOTYPE), "is a pipe, expected a plain file"),
        (tarfile.TarInfo("../outside.parquet"), "leads out of the archive"),
        (tarfile.TarInfo("/etc/outside.parquet"), "leads out of the archive"),
        (tarfile.TarInfo("lerobot/meta/info.json"), "is duplicated"),
    ],
)
def test_members_that_no_packer_of_datasets_writes_are_refused(written, home, tmp_path, member, problem):
    archive = pack(written, tmp_path / "lerobot.tar")
    with tarfile.open(archive, "a") as packed:
        packed.addfile(member, io.BytesIO())

    with pytest.raises(ConversionError, match=problem):
        download(ID, home, archive)


def test_a_member_that_states_more_bytes_than_the_archive_has_is_refused(written, home, tmp_path):
    archive = pack(written, tmp_path / "lerobot.tar")
    data = bytearray(archive.read_bytes())
    with tarfile.open(archive) as packed:
        member = next(one for one in packed if one.isfile())
    forged = tarfile.TarInfo(member.name)
    forged.size = 7 << 30
    data[member.offset_data - 512 : member.offset_data] = forged.tobuf(tarfile.USTAR_FORMAT)
    archive.write_bytes(data)

    with pytest.raises(ConversionError, match="truncated at byte"):
        download(ID, home, archive)


def test_a_compressed_archive_is_refused_with_the_command_that_unpacks_it(written, home, tmp_path):
    archive = tmp_path / "lerobot.tar.gz"
    with tarfile.open(archive, "w:gz") as packed:
        packed.add(written, "lerobot")

    with pytest.raises(FetchError, match=r"run `tar -xf lerobot\.tar\.gz`, and give the unpacked folder"):
        download(ID, home, archive)
    with pytest.raises(InvalidArgumentError, match="expected a folder, or a file") as refused:
        download(str(archive), home)
    assert "tar -xf lerobot.tar.gz" in str(refused.value.hint)


def test_the_tar_of_the_system_writes_archives_that_are_read(written, home, tmp_path):
    archive = tmp_path / "lerobot.tar"
    subprocess.run(["tar", "-cf", archive, "-C", written.parent, "lerobot"], check=True)
    assert download(ID, home, archive).manifest.steps == sum(LENGTHS)
