"""Compressed frames: every one comes back bit for bit, and no damaged one gets through."""

import multiprocessing
import pickle
from contextlib import suppress
from itertools import pairwise

import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from datasets_rl.errors import ConversionError
from datasets_rl.read.compressed_frames import FrameDictionary, compress, decompress, padded, reserved


def game(count, side=84):
    """Return frames of a moving ball before a patterned background, uint8 [count, side, side]."""
    background = np.random.default_rng(0).integers(0, 256, (side, side), np.uint8)
    frames = np.repeat(background[None], count, 0)
    for number, frame in enumerate(frames):
        row, column = number * 3 % (side - 4), number * 5 % (side - 4)
        frame[row : row + 4, column : column + 4] = number % 256
    return frames


def restored(data, ends, dictionary, shape):
    out = np.full(shape, 7, np.uint8)
    decompress(data, np.concatenate([[0], ends])[:-1], ends, dictionary, out)
    return out


@settings(max_examples=50, deadline=None)
@given(
    frames=arrays.arrays(np.uint8, st.tuples(st.integers(0, 40), st.integers(1, 9), st.integers(1, 9))),
    trained=st.booleans(),
)
def test_frames_come_back_bit_for_bit_whatever_they_are(frames, trained):
    dictionary = FrameDictionary.train(game(100)) if trained else FrameDictionary()
    data, ends = compress(frames, dictionary)

    assert (restored(data, ends, dictionary, frames.shape) == frames).all()


def test_frames_of_a_game_take_a_thirtieth_and_many_are_compressed_in_several_threads():
    frames = game(3_000)
    dictionary = FrameDictionary.train(frames[:1_000])
    data, ends = compress(frames, dictionary)

    assert len(data) < frames.nbytes / 30
    assert (np.diff(ends) > 0).all()
    assert (restored(data, ends, dictionary, frames.shape) == frames).all()


def test_any_zstd_program_reads_a_zstd_frame_with_the_dictionary():
    frames = game(200)
    dictionary = FrameDictionary.train(frames).without_patches
    data, ends = compress(frames, dictionary)

    reader = zstandard.ZstdDecompressor(dict_data=zstandard.ZstdCompressionDict(dictionary.data[24:]))
    for frame, (start, stop) in zip(frames, pairwise([0, *ends.tolist()]), strict=True):
        assert reader.decompress(data[start:stop].tobytes()) == frame.tobytes()


def test_frames_go_to_their_positions_and_those_without_bytes_are_zeros():
    frames = game(20)
    dictionary = FrameDictionary.train(frames)
    data, ends = compress(frames, dictionary)
    starts = np.concatenate([[0], ends[:-1]])
    rows = np.array([3, 11, 3, 0])
    out = np.full((6, 84, 84), 9, np.uint8)
    decompress(data, starts[rows], np.where(rows > 0, ends[rows], 0), dictionary, out, np.array([5, 0, 2, 1]))

    assert (out[5] == frames[3]).all()
    assert (out[0] == frames[11]).all()
    assert (out[2] == frames[3]).all()
    assert not out[1].any()
    assert (out[3:5] == 9).all()


@pytest.mark.parametrize("claim", [84 * 84 - 1, 84 * 84 + 1, 1 << 32])
def test_a_frame_that_claims_another_size_is_refused_and_writes_nowhere_else(claim):
    dictionary = FrameDictionary.train(game(20))
    bomb = np.frombuffer(zstandard.compress(bytes(min(claim, 1 << 24))), np.uint8)
    if claim > 1 << 24:  # a header of 8 bytes for the size, and a block that repeats one byte
        header = bytes.fromhex("28b52ffde0") + claim.to_bytes(8, "little")
        bomb = np.frombuffer(header + (((1 << 17) << 3) | 3).to_bytes(3, "little") + b"x", np.uint8)
    out = np.full((3, 84, 84), 7, np.uint8)
    with pytest.raises(
        ConversionError,
        match="frame 40 is damaged: the result is not 7,056 bytes that were compressed with this dictionary",
    ):
        decompress(bomb, np.array([0]), np.array([len(bomb)]), dictionary, out, np.array([1]), numbers=np.array([40]))
    assert (out[[0, 2]] == 7).all()


@pytest.mark.parametrize(("start", "stop"), [(-1, 5), (5, 3), (0, 1 << 40), (1 << 40, (1 << 40) + 1)])
def test_bytes_outside_the_data_are_refused(start, stop):
    data, _ = compress(game(1), FrameDictionary())
    with pytest.raises(ConversionError, match="frame 0 is damaged"):
        decompress(data, np.array([start]), np.array([stop]), FrameDictionary(), np.empty((1, 84, 84), np.uint8))


@pytest.mark.parametrize("offset", [-(2**63), -(2**63) + 1, -1, 2**63 - 1])
@pytest.mark.parametrize("at", ["start", "stop"])
def test_offsets_of_any_size_are_refused_also_of_frames_that_are_loaded_ahead(offset, at):
    data, ends = compress(game(100), FrameDictionary())
    starts, stops = np.concatenate([[0], ends[:-1]]), ends.copy()
    (starts if at == "start" else stops)[50] = offset

    with pytest.raises(ConversionError, match="frame 50 is damaged"):
        decompress(data, starts, stops, FrameDictionary(), np.empty((100, 84, 84), np.uint8))


def test_every_flipped_byte_gives_an_error_or_another_frame_but_never_a_crash():
    frames = game(50)
    dictionary = FrameDictionary.train(frames).without_patches
    data, ends = compress(frames[:1], dictionary)
    refused = 0
    for at in range(len(data)):
        for bit in (1, 128):
            flipped = data.copy()
            flipped[at] ^= bit
            with suppress(ConversionError):
                refused -= restored(flipped, ends, dictionary, (1, 84, 84)).shape == (1, 84, 84)
            refused += 1
    assert refused > len(data)  # of two flips of each byte


def test_all_damaged_frames_are_named_at_once():
    frames = game(30)
    dictionary = FrameDictionary.train(frames)
    data, ends = compress(frames, dictionary)
    damaged = data.copy()
    damaged[ends[[3, 8]]] ^= 255  # the first byte of frames 4 and 9
    with pytest.raises(ConversionError, match=r"(?s)frame 4 is damaged.*frame 9 is damaged"):
        restored(damaged, ends, dictionary, frames.shape)


def test_a_damaged_frame_that_does_not_consist_of_whole_words_is_named():
    frames = game(30)[:, :5, :5].copy()
    dictionary = FrameDictionary.train(frames)
    data, ends = compress(frames, dictionary)
    assert (restored(data, ends, dictionary, frames.shape) == frames).all()
    damaged = data.copy()
    damaged[ends[3]] = 7  # the first byte of frame 4
    with pytest.raises(ConversionError, match="frame 4 is damaged"):
        restored(damaged, ends, dictionary, frames.shape)


def test_a_dictionary_of_frames_that_have_nothing_in_common_or_are_few_is_empty_or_harmless():
    noise = np.random.default_rng(1).integers(0, 256, (50, 24, 24), np.uint8)
    for frames in (noise, noise[:3], np.zeros((50, 2), np.uint8), noise[:0], np.zeros((100, 64, 64), np.uint8)):
        dictionary = FrameDictionary.train(frames)
        data, ends = compress(frames, dictionary)
        assert (restored(data, ends, dictionary, frames.shape) == frames).all()


def test_a_reserved_place_is_no_frame_until_one_is_put_there():
    frames = np.random.default_rng(2).integers(0, 256, (1, 84, 84), np.uint8)  # the largest that a frame can be
    place = reserved(frames[0].size)
    ends = np.array([len(place)])
    with pytest.raises(ConversionError, match="frame 0 is damaged"):
        restored(place, ends, FrameDictionary(), frames.shape)
    for content in (frames, np.zeros_like(frames)):
        data, _ = compress(content, FrameDictionary())
        assert (restored(padded(data, len(place)), ends, FrameDictionary(), frames.shape) == content).all()


def test_a_dictionary_is_pickled_and_works_in_a_forked_process():
    frames = game(40)
    dictionary = pickle.loads(pickle.dumps(FrameDictionary.train(frames)))
    data, ends = compress(frames, dictionary)  # the contexts exist before the fork
    with multiprocessing.get_context("fork").Pool(1) as pool:
        assert (pool.apply(restored, (data, ends, dictionary, frames.shape)) == frames).all()
