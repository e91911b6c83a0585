"""Checks of images find planted faults, and nothing in clean recordings, in every form in which images are stored."""

from __future__ import annotations

import functools
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest
from scipy import ndimage

sys.path.insert(0, str(Path(__file__).parent))

import clean
import faults_images
import lossy
import peers
from planting import STRENGTHS, audited, load_faults
from stored_data import FLAGS, Trajectory, write_dataset
from view_data import image_files

from datasets_rl import Selection, audit, load
from datasets_rl.auditing.block import Block
from datasets_rl.auditing.data import Data, channels_last
from datasets_rl.auditing.sight import cells_of, sight_measures
from datasets_rl.format.reader import StoredDataset
from datasets_rl.format.schema import Column
from datasets_rl.look.steps import StepReader
from datasets_rl.read.compressed_frames import FrameDictionary
from datasets_rl.ted.episode import EncodedImages

FAULTS = load_faults()
CHECKS = [
    "blurred_images",
    "cameras_swapped",
    "channels_swapped",
    "dark_or_bright_images",
    "dropped_frames",
    "frozen_frames",
    "images_flipped",
    "video_lag",
]
PLANTS = [name for name, fault in FAULTS.items() if fault.check in CHECKS]
FORMS = ("raw", "encoded", *(pytest.param(form, marks=pytest.mark.slow) for form in ("compressed", "video")))
CAMERA = ("observation", "camera")


@pytest.fixture(scope="module")
def arm():
    return clean.record("arm", 16)


def named(found):
    return {episode for finding in found.findings for episode in finding.episodes}


@pytest.mark.parametrize("name", PLANTS)
def test_a_planted_fault_of_images_is_found(name, arm):
    fault = FAULTS[name]
    planted = fault.plant(arm, "strong", np.random.default_rng(2))
    found = audited(planted.recording, [fault.check])
    assert found.findings
    assert all(finding.key and finding.message and finding.evidence for finding in found.findings)
    assert len(named(found) & planted.episodes) >= len(planted.episodes) - 1


def test_clean_images_have_no_finding(arm):
    found = audited(arm, CHECKS)
    assert set(found.checked) == set(CHECKS)
    assert not found.findings


def test_images_that_are_all_late_are_found_with_the_number_of_steps(arm):
    planted = FAULTS["all_images_late"].plant(arm, "medium", np.random.default_rng(0))
    lags = [dict(finding.evidence)["steps"] for finding in audited(planted.recording, ["video_lag"]).findings]
    assert lags == [-3, -3]


def test_a_late_episode_among_late_episodes_is_counted_from_the_states(arm):
    late = {number: faults_images._late(one, 6 if number == 5 else 3) for number, one in enumerate(arm.episodes)}
    findings = audited(arm.replaced(late), ["video_lag"]).findings
    lags = [dict(finding.evidence)["steps"] for finding in findings if finding.episodes == (5,)]
    assert lags
    assert all(abs(lag + 6) <= 1 for lag in lags)


# The forms of images.


def scene(joint, rng):
    """Return an image, uint8 [64, 64, 3], of a bar at the place of a joint."""
    image = np.full((64, 64, 3), (90, 110, 130), np.float32)
    columns = np.arange(64)
    image[20:44] += 110 * np.exp(-(((columns - 32 - 20 * joint) / 5) ** 2))[None, :, None]
    return np.clip(image + rng.normal(0, 2, image.shape), 0, 255).astype(np.uint8)


def videos(path, images):
    """Return images as frames of a video with the losses of everyday settings."""
    import av

    from datasets_rl.format.images.video import VideoFrames
    from datasets_rl.read.video import index_video

    path.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(path), "w") as out:
        stream = out.add_stream("libx264", 30, options={"crf": "23", "g": "30", "threads": "1"})
        stream.height, stream.width, stream.pix_fmt = *images.shape[1:3], "yuv420p"
        for image in images:
            out.mux(stream.encode(av.VideoFrame.from_ndarray(image, "rgb24")))
        out.mux(stream.encode(None))
    video = index_video(path)
    return VideoFrames((video,), np.zeros(len(images), np.int64), video.frames, images.shape[1:])


def filmed(folder, form, change=lambda _, images: images, episodes=16, steps=60):
    """Write a dataset of a camera that watches a joint, and return its folder."""
    trajectories, pixels = [], []
    for number in range(episodes):
        rng = np.random.default_rng([11, number])
        knots = np.interp(np.arange(steps + 1), np.linspace(0, steps, 7), rng.uniform(-1, 1, 7))
        joint = np.convolve(np.pad(knots, 3, mode="edge"), np.ones(7) / 7, "valid")
        images = change(number, np.stack([scene(one, rng) for one in joint]))
        pixels.append(images)
        last = (np.arange(steps) == steps - 1)[:, None]
        stored = {
            "encoded": lambda images, _: EncodedImages(image_files(images)),
            "video": lambda images, number: videos(folder / "upstream" / f"{number}.mp4", images),
        }.get(form, lambda images, _: images)(images, number)
        trajectories.append(
            Trajectory(
                {
                    ("action",): np.diff(joint)[:, None].astype(np.float32),
                    ("next", "reward"): np.zeros((steps, 1), np.float32),
                    ("next", "terminated"): np.zeros_like(last),
                    ("next", "truncated"): last,
                },
                {
                    CAMERA: stored,
                    ("observation", "state"): (joint[:, None] + rng.normal(0, 0.002, (steps + 1, 1))).astype(
                        np.float32
                    ),
                },
            )
        )
    columns = [
        Column(CAMERA, np.dtype(np.uint8), (64, 64, 3), shared=True, form=form),
        Column(("observation", "state"), np.dtype(np.float32), (1,), shared=True),
        Column(("action",), np.dtype(np.float32), (1,)),
        Column(("next", "reward"), np.dtype(np.float32), (1,)),
        *FLAGS,
    ]
    dictionaries = {CAMERA: FrameDictionary.train(np.concatenate(pixels), 1 << 14)} if form == "compressed" else {}
    return write_dataset(folder / "stored", trajectories, columns, dictionaries)


def faulty(number, images):
    """Freeze the camera in episode 3, delay it in 6, lose frames in 9, exchange channels in 12, and lose the focus in 14."""
    images, rows = images.copy(), np.arange(len(images))
    if number == 3:
        images[20:32] = images[20]
    if number == 6:
        images = images[np.maximum(rows - 5, 0)]
    if number == 9:
        images[15:45:5] = images[14:44:5]
    if number == 12:
        images = images[..., ::-1]
    if number == 14:
        images = ndimage.gaussian_filter(images, (0, 1.2, 1.2, 0))
    return np.ascontiguousarray(images)


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """Write the dataset of a form of images and a change of the images once, and return its folder."""

    @functools.cache
    def write(*form_and_change):
        folder = tmp_path_factory.mktemp("filmed")
        filmed(folder, *form_and_change)
        return folder / "stored"

    return write


@pytest.fixture(params=FORMS)
def form(request):
    if request.param == "video":
        pytest.importorskip("av", reason="pip install av")
    return request.param


def findings_are_right(found, *, lossy=False):
    pairs = {(finding.check, *finding.episodes) for finding in found.findings}
    assert pairs >= {("frozen_frames", 3), ("video_lag", 6), ("channels_swapped", 12), ("blurred_images", 14)}
    # A codec changes a repeated frame as much as a slow scene changes.
    assert lossy or ("dropped_frames", 9) in pairs
    assert {episode for _, *episodes in pairs for episode in episodes} <= {3, 6, 9, 12, 14}


def test_faults_are_found_in_every_form_of_images(stored, form):
    findings_are_right(audit(stored(form, faulty), checks=CHECKS), lossy=form == "video")


def test_clean_images_of_every_form_have_no_finding(stored, form):
    assert not audit(stored(form), checks=CHECKS).findings


# Edges.


def test_an_episode_in_several_blocks_has_the_findings_of_one_block(stored, monkeypatch):
    monkeypatch.setattr("datasets_rl.auditing.run._WIDE_BYTES", 64 * 64 * 3 * 25)
    findings_are_right(audit(stored("raw", faulty), checks=CHECKS))


@pytest.mark.parametrize(("episodes", "steps"), [(1, 60), (9, 1), (9, 3), (1, 1)])
def test_few_and_short_episodes_are_audited(tmp_path, episodes, steps):
    filmed(tmp_path, "raw", episodes=episodes, steps=steps)
    assert not audit(tmp_path / "stored", checks=CHECKS).findings


def test_states_that_are_never_numbers_show_no_lag(tmp_path, arm):
    state = ("observation", "state")
    lost = {n: one.with_arrays({state: np.full_like(one.states[state], np.nan)}) for n, one in enumerate(arm.episodes)}
    assert not audited(arm.replaced(lost), ["video_lag", "dropped_frames"]).findings


def test_images_without_states_skip_the_checks_of_lags():
    found = audited(clean.record("grid", 4), ["video_lag", "dropped_frames", "frozen_frames"])
    assert set(found.skipped) == {"video_lag", "dropped_frames"}
    assert not found.findings


def test_a_selection_of_episodes_is_audited(stored):
    dataset = load(stored("encoded", faulty), selection=Selection(episodes="4:16"))
    assert {finding.episodes for finding in audit(dataset, checks=["video_lag"]).findings} == {(2,)}


def test_the_costs_of_lags_do_not_depend_on_the_tint_of_an_episode(tmp_path, stored):
    tinted = filmed(tmp_path, "raw", lambda number, images: images + np.uint8(number == 2) * np.uint8(8))
    costs = []
    for one in (StoredDataset(stored("raw")), tinted):
        data = Data(StepReader(one))
        costs.append(sight_measures(Block(data, 0, len(data)), CAMERA)["changes"][2])
    np.testing.assert_allclose(costs[0], costs[1], rtol=0.05)


def test_cells_are_means_of_pixels():
    grids = np.arange(2 * 24 * 24 * 3, dtype=np.float32).reshape(2, 24, 24, 3)
    cells = cells_of(grids).reshape(2, 12, 12, 3)
    np.testing.assert_allclose(cells[1, 3, 5], grids[1, 6:8, 10:12].mean(axis=(0, 1)))
    assert cells_of(np.zeros((1, 84, 84, 4))).shape == (1, 12 * 12 * 4)


@pytest.mark.parametrize("shape", [(5, 7, 3), (3, 5, 7), (5, 7), (6, 1, 3)])
def test_the_neighbors_of_a_value_are_those_of_its_channel(tmp_path, shape):
    images = np.random.default_rng(0).integers(0, 256, (10, *shape), dtype=np.uint8)
    edges = block_of(tmp_path, images).edges(CAMERA)
    last = channels_last(images).astype(np.float64)
    changes = [np.diff(last, axis=axis) for axis in (-3, -2)]
    for row in (0, 8):
        powers = [sum((one[row] ** power).sum() for one in changes) / images[0].size for power in (2, 4)]
        np.testing.assert_allclose(edges[row], powers, rtol=1e-5)
    assert not edges[1:8].any()


@pytest.mark.parametrize("side", [12, 96])
def test_a_change_of_an_image_is_that_to_the_next_image(tmp_path, side):
    images = np.random.default_rng(0).integers(0, 256, (4, side, side, 3), dtype=np.uint8)
    changes = block_of(tmp_path, images).image_changes(CAMERA)
    expected = (np.diff(images.astype(np.float64), axis=0) ** 2).mean(axis=(1, 2, 3))
    np.testing.assert_allclose(changes[:-1], expected[:2], rtol=0 if side == 12 else 0.05, atol=1e-3)
    assert np.isnan(changes[-1])


def block_of(folder, images):
    """Return the block of an episode of some images, the last of which is that after the last action."""
    steps = len(images) - 1
    last = (np.arange(steps) == steps - 1)[:, None]
    arrays = {
        ("action",): np.zeros((steps, 1), np.float32),
        ("next", "reward"): np.zeros((steps, 1), np.float32),
        ("next", "terminated"): last,
        ("next", "truncated"): ~last & last,
    }
    columns = [Column(CAMERA, np.dtype(np.uint8), images.shape[1:], shared=True)]
    columns += [Column(key, np.dtype(np.float32), (1,)) for key in (("action",), ("next", "reward"))]
    data = Data(
        StepReader(write_dataset(folder / "stored", [Trajectory(arrays, {CAMERA: images})], [*columns, *FLAGS]))
    )
    return Block(data, 0, len(data))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "strength", "fewest"),
    [("lens_out_of_focus", "weak", 3), ("camera_freezes", "weak", 2), ("frames_repeated", "strong", 2)],
)
def test_a_fault_is_found_in_lossy_video(name, strength, fewest):
    pytest.importorskip("av", reason="pip install av")
    rng = np.random.default_rng([zlib.crc32(name.encode()), STRENGTHS.index(strength), 1])
    planted = FAULTS[name].plant(clean.record("teleop", 20, 1), strength, rng)
    found = audited(lossy.filmed(planted.recording), [FAULTS[name].check])
    assert named(found) <= planted.episodes
    assert len(named(found)) >= fewest


@pytest.mark.slow
def test_red_is_told_from_blue_where_other_episodes_are_flipped_or_of_another_camera() -> None:
    faults = ("red_is_blue", "upside_down", "cameras_exchanged")
    recording, episodes = peers.planted("arm", faults)
    named = {
        check: sorted(finding.episodes[0] for finding in audited(recording, [check]).findings)
        for check in ("channels_swapped", "images_flipped", "cameras_swapped")
    }

    assert list(named.values()) == [episodes[fault] for fault in faults]
