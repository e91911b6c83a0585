"""Patches: frames as changes of a typical one."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from datasets_rl.errors import ConversionError, InvalidArgumentError
from datasets_rl.read.patches import FramePatches
from datasets_rl.read.zstd import ZstdDictionary, compress, decompress
from datasets_rl.storages.frame_dictionary import FrameDictionary

SIZE = 4096
BALL, PADDLE = np.uint64(0x2A2A2A2A2A2A2A2A), np.uint64(0x0102030405060708)


def background():
    return (np.arange(SIZE) // 97 % 256).astype(np.uint8)


def frames_of(*changes):
    """Return the background with some words replaced, for each frame by their positions."""
    frames = np.stack([background()] * len(changes)).view(np.uint64)
    for frame, words in zip(frames, changes, strict=True):
        for position, word in words.items():
            frame[position] = word
    return frames.view(np.uint8)


@pytest.fixture
def patches():
    """Patches of frames in which a ball moves, and a paddle half as often."""
    return FramePatches.train(frames_of(*({at: BALL, 400 + at: PADDLE} if at % 2 else {at: BALL} for at in range(51))))


def restored(data, ends, patches, count, size=SIZE):
    out = np.full((count, size), 7, np.uint8)
    decompress(data, np.concatenate([[0], ends])[:-1], ends, ZstdDictionary(), out, patches=patches)
    return out


def test_the_bytes_are_positions_and_codes_and_words_without_a_code(patches):
    new = np.uint64(0x1112131415161718)
    frames = frames_of({}, {3: BALL}, {300: PADDLE, 511: new})
    data, ends = compress(frames, ZstdDictionary(), patches)

    expected = b"\0", b"\0" + struct.pack("<HH", 3, 0), b"\0" + struct.pack("<HHHHQ", 300, 1, 511, 0xFFFF, int(new))
    assert data.tobytes() == b"".join(expected)
    assert (restored(data, ends, patches, 3) == frames).all()


def test_frames_that_differ_in_many_words_are_zstd_frames_and_a_memory_may_have_both(patches):
    rng = np.random.default_rng(0)
    busy = frames_of(dict.fromkeys(range(60), BALL))
    noise = rng.integers(0, 256, (1, SIZE), np.uint8)
    frames = np.concatenate([frames_of({9: BALL}), busy, noise, frames_of({500: PADDLE})])
    data, ends = compress(frames, ZstdDictionary(), patches)

    starts = np.concatenate([[0], ends])[:-1]
    assert [data[start] for start in starts] == [0, 0x28, 0x28, 0]  # 0x28 begins every zstd frame
    assert (restored(data, ends, patches, 4) == frames).all()


def test_a_patch_has_at_most_a_20th_of_the_bytes(patches):
    for count in range(70):
        data, ends = compress(frames_of(dict.fromkeys(range(count), BALL)), ZstdDictionary(), patches)
        assert data[0] == 0x28 or ends[0] <= SIZE // 20


@pytest.mark.parametrize("size", [4095, 7, 8 * 65537])
def test_frames_that_are_no_words_or_too_many_of_them_never_become_patches(size):
    frames = np.zeros((3, size), np.uint8)
    patches = FramePatches.train(frames)
    data, ends = compress(frames, ZstdDictionary(), patches)

    assert data[0] == 0x28
    assert (restored(data, ends, patches, 3, size) == frames).all()


@pytest.mark.parametrize(
    "patch",
    [
        struct.pack("<BHH", 0, 512, 0),  # a position after the last word
        struct.pack("<BHH", 0, 1, 2),  # a code without a word
        struct.pack("<BHH", 0, 1, 0) + b"\1",  # cut
        struct.pack("<BHHI", 0, 1, 0xFFFF, 5),  # cut in a word
    ],
)
def test_a_damaged_patch_is_refused(patches, patch):
    data, _ = compress(frames_of({9: BALL}), ZstdDictionary(), patches)
    both = np.concatenate([data, np.frombuffer(patch, np.uint8)])

    with pytest.raises(ConversionError, match="frame 1 is damaged"):
        restored(both, np.array([len(data), len(both)]), patches, 2)


def test_a_flipped_bit_changes_pixels_or_is_refused_and_nothing_outside_of_the_frame(patches):
    data, ends = compress(frames_of({9: BALL, 77: np.uint64(5)}), ZstdDictionary(), patches)
    refused = 0
    for bit in range(8 * len(data)):
        flipped = data.copy()
        flipped[bit // 8] ^= 1 << bit % 8
        out = np.full((3, SIZE), 7, np.uint8)
        try:
            decompress(flipped, np.array([0]), ends, ZstdDictionary(), out, np.array([1]), patches)
        except ConversionError:
            refused += 1
        assert (out[::2] == 7).all()
    assert refused > 8


def test_a_dictionary_is_restored_from_its_bytes():
    frames = frames_of(*({at % 500: BALL} for at in range(300)))
    trained = FrameDictionary.train(frames)
    again = FrameDictionary.from_bytes(trained.to_bytes(), SIZE)

    data, ends = trained.compress(frames)
    out = np.empty_like(frames)
    again.decompress(data, np.concatenate([[0], ends])[:-1], ends, out, np.arange(300))
    assert (out == frames).all()
    assert again.zstd.data == trained.zstd.data


@pytest.mark.parametrize("size", [-8, 4, 4088, 4097, 1 << 40])
def test_bytes_that_are_no_dictionary_are_refused(size):
    data = np.array(size, np.int64).tobytes() + bytes(8192)
    with pytest.raises(InvalidArgumentError, match="dictionary of the compressed frames"):
        FrameDictionary.from_bytes(data, SIZE)
    with pytest.raises(InvalidArgumentError, match="dictionary of the compressed frames"):
        FrameDictionary.from_bytes(b"1234", SIZE)
