"""Patches: frames as changes of typical ones."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from datasets_rl.errors import ConversionError, InvalidArgumentError
from datasets_rl.read.compressed_frames import FrameDictionary, compress, decompress

SIZE = 4096
BALL, PADDLE = np.uint64(0xABABABABABABABAB), np.uint64(0x0102030405060708)


def background(level=0):
    return (np.arange(SIZE) // 97 % 256 + 128 * level).astype(np.uint8)


def frames_of(*changes, level=0):
    """Return a background with some words replaced, for each frame by their positions."""
    frames = np.stack([background(level)] * len(changes)).view(np.uint64)
    for frame, words in zip(frames, changes, strict=True):
        for position, word in words.items():
            frame[position] = word
    return frames.view(np.uint8)


def bytes_of(typical, words):
    """Return a dictionary as FORMAT.md describes it, without one of zstd."""
    return struct.pack("<3q", len(typical), SIZE // 8, len(words)) + typical.tobytes() + np.array(words).tobytes()


@pytest.fixture
def dictionary():
    """A dictionary of frames in front of two backgrounds, in which a ball moves, and a paddle half as often."""
    return FrameDictionary(bytes_of(np.stack([background(0), background(1)]), [BALL, PADDLE]))


def restored(data, ends, dictionary, count, size=SIZE):
    out = np.full((count, size), 7, np.uint8)
    decompress(data, np.concatenate([[0], ends])[:-1], ends, dictionary, out)
    return out


def test_the_bytes_are_the_typical_frame_gaps_codes_and_words_without_a_code(dictionary):
    new = np.uint64(0x1112131415161718)
    frames = np.concatenate([frames_of({}, {3: BALL}), frames_of({200: PADDLE, 411: new, 412: BALL}, level=1)])
    data, ends = compress(frames, dictionary)

    third = struct.pack("<BH3B3HQ", 1, 3, 200, 211, 1, 1, 0xFFFF, 0, int(new))
    assert data.tobytes() == struct.pack("<BH", 0, 0) + struct.pack("<BHBH", 0, 1, 3, 0) + third
    assert (restored(data, ends, dictionary, 3) == frames).all()


def test_words_that_are_far_from_each_other_have_one_of_the_typical_frame_between_them(dictionary):
    frames = frames_of({0: BALL, 511: PADDLE}, {256: BALL})
    data, ends = compress(frames, dictionary)

    words = background(0).view(np.uint64)
    first = struct.pack("<BH4B4H2Q", 0, 4, 0, 255, 255, 1, 0, 0xFFFF, 0xFFFF, 1, int(words[255]), int(words[510]))
    second = struct.pack("<BH2B2HQ", 0, 2, 255, 1, 0xFFFF, 0, int(words[255]))
    assert data.tobytes() == first + second
    assert (restored(data, ends, dictionary, 2) == frames).all()


def test_frames_that_differ_in_many_words_are_zstd_frames_and_a_column_may_have_both(dictionary):
    busy = frames_of(dict.fromkeys(range(170), BALL))
    noise = np.random.default_rng(0).integers(0, 256, (1, SIZE), np.uint8)
    frames = np.concatenate([frames_of({9: BALL}), busy, noise, frames_of({250: PADDLE}, level=1)])
    data, ends = compress(frames, dictionary)

    starts = np.concatenate([[0], ends])[:-1]
    assert [data[start] for start in starts] == [0, 0x28, 0x28, 1]  # 0x28 begins every zstd frame
    assert (restored(data, ends, dictionary, 4) == frames).all()


@pytest.mark.parametrize(("options", "part", "first"), [({}, 16, 82), ({"patch_part": 8}, 8, 168)])
def test_a_patch_has_at_most_a_part_of_the_bytes(dictionary, options, part, first):
    first_zstd = None
    for count in range(first + 5):
        frames = frames_of(dict.fromkeys(range(count), BALL))
        data, ends = compress(frames, dictionary, **options)
        assert data[0] == 0x28 or ends[0] == 3 + 3 * count <= SIZE // part
        assert (restored(data, ends, dictionary, 1) == frames).all()
        if data[0] == 0x28:
            first_zstd = first_zstd or count
    assert first_zstd == first  # a patch of 3 bytes for each word must have room for another word


@pytest.mark.parametrize("level", [0, 1])
def test_training_finds_the_backgrounds_and_the_words_in_front_of_them(level):
    frames = np.concatenate(
        [
            frames_of(*({at: BALL, 400 + at: PADDLE} if at % 2 else {at: BALL} for at in range(100)), level=number)
            for number in range(2)
        ]
    )
    data, _ = compress(frames_of({7: BALL, 19: PADDLE}, level=level), FrameDictionary.train(frames))
    assert data[0] < 0x28
    assert len(data) <= 3 + 3 * 4  # the word in which a typical frame may have a ball, and again the background


@pytest.mark.parametrize("size", [4095, 7, 8 * 65537])
def test_frames_that_are_no_words_or_too_many_of_them_never_become_patches(size):
    frames = np.zeros((9, size), np.uint8)
    dictionary = FrameDictionary.train(frames)
    data, ends = compress(frames, dictionary)

    assert data[0] == 0x28
    assert (restored(data, ends, dictionary, 9, size) == frames).all()


def test_frames_of_another_size_than_the_typical_ones_never_become_patches(dictionary):
    frames = np.zeros((2, 64), np.uint8)
    data, ends = compress(frames, dictionary)
    assert data[0] == 0x28
    assert (restored(data, ends, dictionary, 2, 64) == frames).all()

    patch, ends = compress(frames_of({9: BALL}), dictionary)
    with pytest.raises(ConversionError, match="frame 0 is damaged: the result is not 64 bytes"):
        restored(patch, ends, dictionary, 1, 64)


@pytest.mark.parametrize(
    "patch",
    [
        struct.pack("<BH", 2, 0),  # no such typical frame
        struct.pack("<BHBH", 0, 1, 9, 2),  # a code without a word
        struct.pack("<BH3B3H", 0, 3, 255, 255, 2, 0, 0, 0),  # a position after the last word
        struct.pack("<BHBHB", 0, 1, 9, 0, 1),  # bytes after the end
        struct.pack("<BHBHI", 0, 1, 9, 0xFFFF, 5),  # cut in a word
        struct.pack("<BHBH", 0, 0xFFFF, 9, 0),  # more words than bytes
        struct.pack("<BHBH", 0, 0, 9, 0),  # fewer words than bytes
        struct.pack("<BB", 0, 0),  # cut in the number of words
    ],
)
def test_a_damaged_patch_is_refused(dictionary, patch):
    data, _ = compress(frames_of({9: BALL}), dictionary)
    both = np.concatenate([data, np.frombuffer(patch, np.uint8)])

    with pytest.raises(ConversionError, match="frame 1 is damaged"):
        restored(both, np.array([len(data), len(both)]), dictionary, 2)


def test_a_flipped_bit_changes_pixels_or_is_refused_and_nothing_outside_of_the_frame(dictionary):
    data, ends = compress(frames_of({9: BALL, 77: np.uint64(5)}), dictionary)
    refused = 0
    for bit in range(8 * len(data)):
        flipped = data.copy()
        flipped[bit // 8] ^= 1 << bit % 8
        out = np.full((3, SIZE), 7, np.uint8)
        try:
            decompress(flipped, np.array([0]), ends, dictionary, out, np.array([1]))
        except ConversionError:
            refused += 1
        assert (out[::2] == 7).all()
    assert refused > 8


def test_a_dictionary_is_restored_from_its_bytes():
    frames = frames_of(*({at % 500: BALL} for at in range(300)))
    trained = FrameDictionary.train(frames)
    data, ends = compress(frames, trained)

    assert (restored(data, ends, FrameDictionary(trained.data), 300) == frames).all()
    assert len(trained.data) <= FrameDictionary.max_bytes(SIZE)


@pytest.mark.parametrize(
    "counts",
    [
        (-1, 512, 0),
        (33, 1, 0),
        (3, 512, 0),
        (1, -512, 600),
        (1, 512, -512),
        (1, 0, 4097),
        (1, 1 << 62, 0),
        (0, 1 << 62, 0),
    ],
)
def test_bytes_that_are_no_dictionary_are_refused(counts):
    with pytest.raises(InvalidArgumentError, match="the dictionary of compressed frames has 8,024 bytes"):
        FrameDictionary(struct.pack("<3q", *counts) + bytes(8000))
    with pytest.raises(InvalidArgumentError, match="the dictionary of compressed frames has 4 bytes"):
        FrameDictionary(b"1234")
