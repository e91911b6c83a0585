"""Videos of LeRobot that are not what their tables state: each costs its episodes, which the manifest names."""

from __future__ import annotations

import json

import numpy as np
import pytest
from pyarrow import parquet
from raw.lerobot import LENGTHS, LOSS, NEW, OLD, draw, write_new, write_old, write_video

from datasets_rl import LeRobotExperienceReplay, Selection, downloading, verify
from datasets_rl.errors import ConversionError, IntegrityError
from datasets_rl.format.reader import StoredDataset

av = pytest.importorskip("av", reason="pip install av")
TOP = ("observation", "image", "top")
CAMERA = "observation.images.top"
EPISODE = f"videos/chunk-001/{CAMERA}/episode_000003.mp4"
FILE = f"videos/{CAMERA}/chunk-000/file-000.mp4"
LONG_GOP = {"g": "12", "sc_threshold": "0"}


@pytest.fixture(scope="module")
def drawn():
    return [draw(length, seed) for seed, length in enumerate(LENGTHS)]


@pytest.fixture
def convert(folder, settings):
    """A function that converts the files in the folder; two conversions of them must agree."""

    def run(name, images="video"):
        wanted = Selection(options={"images": images})
        made = downloading.download(f"lerobot/{name}", from_local=folder, settings=settings, selection=wanted)
        assert verify(made, deep=True, settings=settings).problems == ()
        return StoredDataset(made)

    return run


def decisions(stored):
    return {decision.rule: decision.text for decision in stored.manifest.decisions}


def rewrite(frames, **options):
    """Return a change that replaces the frames of a video by others."""
    return lambda path: write_video(path, frames(_decoded(path)), **options)


def _decoded(path):
    with av.open(str(path)) as container:
        return np.stack([frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)])


def copy_packets(path, *, without=(), late=(), **options):
    """Write the packets of a video to a new file in its place, some of them late by a third of a frame."""
    copy = path.with_suffix(".copy.mp4")
    with av.open(str(path)) as source, av.open(str(copy), "w", options=options) as out:
        stream = out.add_stream_from_template(source.streams.video[0])
        for number, packet in enumerate(source.demux(video=0)):
            if packet.dts is not None and number not in without:
                packet.pts += packet.duration // 3 * (number in late)
                packet.stream = stream
                out.mux(packet)
    copy.replace(path)


def cut(path, share=0.6):
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * share)])


def cut_behind_the_index(path):
    copy_packets(path, movflags="faststart")
    cut(path)


def write_no_frames(path):
    with av.open(str(path), "w") as out:
        stream = out.add_stream("libx264", 10)
        stream.height, stream.width, stream.pix_fmt = 64, 96, "yuv420p"
        out.start_encoding()


def list_all_as_key_frames(path):
    """Write MPEG-4 with a single key frame, and rename the table of key frames, without which all frames are.

    Its decoder returns frames of gray and differences where it begins at another frame.
    """
    rewrite(lambda frames: frames, codec="mpeg4", g="99", sc_threshold="1000000000")(path)
    data = path.read_bytes()
    assert data.count(b"stss") == 1
    path.write_bytes(data.replace(b"stss", b"free"))


def flip_bytes(path):
    """Change some bytes in the middle of the packet of frame 3."""
    with av.open(str(path)) as container:
        packet = [one for one in container.demux(video=0) if one.size][3]
        place = packet.pos + packet.size // 2
    data = bytearray(path.read_bytes())
    data[place : place + 8] = bytes(value ^ 0x5A for value in data[place : place + 8])
    path.write_bytes(data)


def describe_the_codec_twice(path):
    """Add a second description of the codec, which all packets use from then on."""
    data = bytearray(path.read_bytes())
    assert data.index(b"mdat") < data.index(b"moov")  # the places of the packets stay
    start = data.index(b"stsd") - 4
    stop = start + int.from_bytes(data[start : start + 4], "big")
    data[start + 12 : start + 16] = (2).to_bytes(4, "big")
    description = data[start + 16 : stop]
    data[stop:stop] = description
    for box in (b"moov", b"trak", b"mdia", b"minf", b"stbl", b"stsd"):
        at = data.index(box) - 4
        size = int.from_bytes(data[at : at + 4], "big") + len(description)
        data[at : at + 4] = size.to_bytes(4, "big")
    chunks = data.index(b"stsc") + 12
    data[chunks + 8 : chunks + 12] = (2).to_bytes(4, "big")
    path.write_bytes(data)


FAULTS = {
    "shorter": (rewrite(lambda frames: frames[:-1]), {}, "the video is shorter than the table: 11 frames for 12 rows"),
    "longer": (
        rewrite(lambda frames: np.concatenate([frames, frames[-1:]])),
        {},
        "the video is longer than the table: 13 frames for 12 rows",
    ),
    "other times": (
        lambda path: copy_packets(path, late={5}),
        {"bf": "0"},
        "the frame of row 5 is at 0.5333 s, but the table has 0.5000 s",
    ),
    "another frame rate": (
        rewrite(lambda frames: frames, fps=20),
        {},
        "the frame of row 1 is at 0.0500 s, but the table has 0.1000 s",
    ),
    "no first key frame": (lambda path: copy_packets(path, without={0}), {**LONG_GOP, "bf": "0"}, "11 frames for 12"),
    "frames that are no key frames": (list_all_as_key_frames, {}, "the file lists it as a key frame, which it is not"),
    "cut": (cut, {}, "it is damaged or truncated. FFmpeg reports: Invalid data"),
    "cut behind its index": (cut_behind_the_index, {"bf": "0"}, "frames for 12 rows"),
    "empty": (lambda path: path.write_bytes(b""), {}, "it is empty, expected a video"),
    "text": (lambda path: path.write_text("AVI?"), {}, "it is not a video"),
    "no frames": (write_no_frames, {}, "it has no video stream"),
    "another size": (
        rewrite(lambda frames: frames[:, :48]),
        {},
        "the frames are [48, 96], but meta/info.json states [64, 96]",
    ),
    "two descriptions": (describe_the_codec_twice, {}, "a track of it has 2 descriptions of codecs, expected 1"),
    "damaged": (flip_bytes, {**LONG_GOP, "bf": "0"}, "s cannot be decoded: Invalid data"),
}


@pytest.mark.first(3, of="images")
@pytest.mark.parametrize(
    ("fault", "images"),
    [*((fault, "video") for fault in FAULTS), *((fault, "encoded") for fault in ("cut", "damaged", "shorter"))],
)
def test_a_faulty_video_costs_its_episode(convert, folder, settings, drawn, fault, images):
    change, options, expected = FAULTS[fault]
    write_old(folder, drawn, **options)
    change(folder / EPISODE)

    stored = convert(OLD, images)

    assert stored.episodes["source"].tolist() == [0, 1, 2, 4]
    text = decisions(stored)["video-of-episode-3"]
    assert text.startswith(f"episode 3 was left out: episode_000003.mp4 of {CAMERA}: ")
    assert expected in text
    kept = np.concatenate([drawn[number].top for number in (0, 1, 2, 4)]).astype(int)
    batch = LeRobotExperienceReplay(OLD, root=settings.home / "lerobot", batch_size=32).sample()
    assert np.abs(batch[TOP].numpy() - kept[batch["index"].numpy()]).max() <= LOSS


def edit_episodes(folder, name, values):
    """Replace a column of meta/episodes."""
    (path,) = (folder / "meta/episodes").rglob("*.parquet")
    table = parquet.read_table(path)
    parquet.write_table(table.set_column(table.column_names.index(name), name, [values]), path)


@pytest.mark.first(1)
@pytest.mark.parametrize(
    ("starts", "left_out"),
    [
        ([0.0, 0.5, 1.1, 0.0, 1.2], {0: 1, 1: 0}),
        ([0.0, 0.1, 0.6, 0.0, 1.2], {0: 1, 1: 0, 2: 0}),
        ([0.0, 0.7, 1.1, 0.0, 0.0], {3: 4, 4: 3}),
    ],
)
def test_episodes_that_have_the_same_frames_are_left_out(convert, folder, drawn, monkeypatch, starts, left_out):
    """The lengths are 7, 4, 1, 12 and 5 frames, the first three of which share a file. Each is in another shard."""
    monkeypatch.setattr("datasets_rl.sources.lerobot._SHARD_BYTES", 1)
    write_new(folder, drawn)
    edit_episodes(folder, f"videos/{CAMERA}/from_timestamp", starts)
    stops = [start + length / 10 for start, length in zip(starts, LENGTHS, strict=True)]
    edit_episodes(folder, f"videos/{CAMERA}/to_timestamp", stops)

    stored = convert(NEW)

    assert stored.episodes["source"].tolist() == [number for number in range(5) if number not in left_out]
    for number, other in left_out.items():
        text = f"meta/episodes states that episode {other} has the same frames"
        assert decisions(stored)[f"video-of-episode-{number}"].endswith(text)


def test_times_that_are_rounded_are_no_overlap(convert, folder, drawn):
    write_new(folder, drawn)
    edit_episodes(folder, f"videos/{CAMERA}/to_timestamp", [0.7004, 1.1004, 1.2, 1.2004, 1.7])

    assert convert(NEW).episodes["source"].tolist() == [0, 1, 2, 3, 4]


def test_an_episode_whose_times_are_not_those_of_its_rows_is_left_out_alone(convert, folder, drawn):
    write_new(folder, drawn)
    edit_episodes(folder, f"videos/{CAMERA}/to_timestamp", [0.9, 1.1, 1.2, 1.2, 1.7])

    stored = convert(NEW)

    assert stored.episodes["source"].tolist() == [1, 2, 3, 4]
    assert decisions(stored)["video-of-episode-0"].endswith("the video is longer than the table: 9 frames for 7 rows")


def test_a_video_of_many_episodes_that_ends_early_costs_its_last_ones(convert, folder, drawn):
    write_new(folder, drawn)
    rewrite(lambda frames: frames[:-2])(folder / FILE)

    stored = convert(NEW)

    assert stored.episodes["source"].tolist() == [0, 3, 4]
    assert decisions(stored)["video-of-episode-1"].endswith("the video is shorter than the table: 3 frames for 4 rows")
    assert decisions(stored)["video-of-episode-2"].endswith("the video is shorter than the table: 0 frames for 1 rows")


def test_frames_at_the_end_that_no_episode_has_are_named(convert, folder, drawn):
    write_new(folder, drawn)
    rewrite(lambda frames: np.concatenate([frames, frames[-2:]]))(folder / FILE)

    stored = convert(NEW)

    assert stored.episodes["source"].tolist() == [0, 1, 2, 3, 4]
    (text,) = (text for rule, text in decisions(stored).items() if rule.startswith("unused-frames"))
    assert text.startswith(f"file-000.mp4 of {CAMERA} ends with 2 frames that no episode has")


def test_a_file_that_is_cut_costs_all_of_its_episodes(convert, folder, drawn):
    write_new(folder, drawn)
    cut(folder / FILE)

    stored = convert(NEW)

    assert stored.episodes["source"].tolist() == [3, 4]
    assert {f"video-of-episode-{number}" for number in range(3)} <= decisions(stored).keys()


def test_another_codec_than_the_stated_one_is_named_and_read(convert, folder, drawn):
    write_old(folder, drawn)
    info = json.loads((folder / "meta/info.json").read_text())
    info["features"][CAMERA]["info"]["video.codec"] = "av1"
    (folder / "meta/info.json").write_text(json.dumps(info))

    stored = convert(OLD)

    assert len(stored.episodes) == len(LENGTHS)
    assert decisions(stored)[f"codec of {CAMERA}"].startswith(
        f"frames of {CAMERA} are h264, and meta/info.json states av1"
    )


@pytest.mark.parametrize("shard_bytes", [1, 1 << 30])
def test_a_dataset_all_of_whose_videos_are_faulty_is_an_error(convert, folder, drawn, shard_bytes, monkeypatch):
    monkeypatch.setattr("datasets_rl.sources.lerobot._SHARD_BYTES", shard_bytes)
    write_old(folder, drawn)
    for path in (folder / "videos").rglob("*.mp4"):
        cut(path)

    with pytest.raises(ConversionError, match="the dataset has no step") as raised:
        convert(OLD)
    left_out = [f"episode {number} was left out" for number in range(len(LENGTHS))]
    assert all(text in str(raised.value) for text in left_out)


@pytest.mark.parametrize("about", [3, ["h264"], "h264"])
def test_a_description_of_videos_that_is_no_object_is_named(convert, folder, drawn, about):
    write_old(folder, drawn)
    info = json.loads((folder / "meta/info.json").read_text())
    info["features"][CAMERA]["info"] = about
    (folder / "meta/info.json").write_text(json.dumps(info))

    with pytest.raises(ConversionError, match=f"{CAMERA}: the info is .*, expected an object"):
        convert(OLD)


@pytest.mark.first(2)
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (flip_bytes, "the frame at 0.[0-9]+ s cannot be decoded"),
        (cut, "it ends before the frame at"),
        (lambda path: path.unlink(), "it is missing"),
    ],
)
def test_damage_of_a_stored_video_is_an_error_of_the_batch_and_of_a_verification(
    convert, folder, settings, drawn, change, message
):
    write_old(folder, drawn, **LONG_GOP, bf="0")
    stored = convert(OLD)
    dataset = LeRobotExperienceReplay(OLD, root=settings.home / "lerobot", batch_size=256)
    path = max((stored.folder / "videos").iterdir(), key=lambda path: path.stat().st_size)

    change(path)

    with pytest.raises(IntegrityError, match=message):
        dataset.sample()
    assert any(f"videos/{path.name}" in problem for problem in verify(stored.folder, settings=settings).problems)
