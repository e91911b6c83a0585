"""Decompress damaged frames in memory between pages that nothing may touch. The tests run this program.

argv[1]   JSON: what (a name of `BATCHES`, or of `TOUCHES`), seed (of the first batch), images (at least so many)
stdout    the seed of each batch before it begins; then a line of JSON: batches, images, refused

Each buffer ends where such a page begins, or begins where such a page ends: a read or a write outside of it ends the process by a
signal. The last seed is then that of the batch.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import sys
from collections import Counter
from functools import cache
from pathlib import Path

import numpy as np
import torch

from datasets_rl.errors import ConversionError, IntegrityError, InvalidArgumentError
from datasets_rl.format.images.compressed import CompressedImageColumn
from datasets_rl.read.compressed_frames import FrameDictionary, compress, decompress
from datasets_rl.read.patches import FramePatches
from datasets_rl.storages.frame_ring import FrameRing, SavedFrames

PAGE = mmap.PAGESIZE
SIZES = (1, 25, 64, 136, 2048, 7056)
"""Bytes of a frame: some are whole words, which alone have patches, and 7,056 are those of a game."""
FRAMES, BATCH = 120, 8
ZSTD = 0x28
REFUSED = (ConversionError, IntegrityError, InvalidArgumentError)
EXTREMES = (0, 1, 1 << 31, 1 << 32, 1 << 62, (1 << 63) - 1025, (1 << 63) - 1)

libc = ctypes.CDLL(None, use_errno=True)
libc.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


def memory(nbytes, *, at_end):
    """Return zeros, uint8 [nbytes], that end where a page begins that nothing may touch, or begin where such a page ends."""
    pages = -(-nbytes // PAGE)
    mapped = mmap.mmap(-1, (pages + 2) * PAGE)
    address = ctypes.addressof(ctypes.c_char.from_buffer(mapped))
    for page in (0, pages + 1):
        if libc.mprotect(address + page * PAGE, PAGE, 0):
            raise OSError(ctypes.get_errno(), "mprotect")
    start = PAGE + (pages * PAGE - nbytes if at_end else 0)
    return np.frombuffer(mapped, np.uint8, nbytes, start)


def guarded(draw, values):
    """Return a copy of an array in such memory."""
    out = memory(values.nbytes, at_end=bool(draw.integers(2))).view(values.dtype).reshape(values.shape)
    out[...] = values
    return out


@cache
def game(size):
    """Return frames of either of two backgrounds with some changes, and a frame of noise alone, uint8 [n, size]."""
    draw = np.random.default_rng(size)
    frames = draw.integers(0, 256, (2, size), np.uint8)[np.arange(FRAMES) % 2]
    for number, frame in enumerate(frames):
        for at in draw.integers(0, size, number % 4):
            frame[at : at + 8] = draw.integers(0, 4)
    frames[-1] = draw.integers(0, 256, size, np.uint8)
    return frames


@cache
def compressed(size, kind):
    """Return the dictionary of the game, without patches for `zstd`, and each frame compressed, as bytes."""
    dictionary = FrameDictionary.train(game(size))
    if kind == "zstd":
        dictionary = dictionary.without_patches
    elif kind == "none":
        dictionary = FrameDictionary()
    data, ends = compress(game(size), dictionary)
    return dictionary, [part.tobytes() for part in np.split(data, ends[:-1])]


def damaged(draw, data):
    """Return bytes with up to three changes."""
    data = bytearray(data)
    for _ in range(draw.integers(4)):
        at, change = int(draw.integers(len(data) + 1)), draw.integers(6)
        if change == 0 and at < len(data):
            data[at] ^= 1 << draw.integers(8)
        elif change == 1 and at < len(data):
            data[at] = draw.choice([0, 1, 2, 0x1F, ZSTD, 0x50, 0x7F, 0x80, 0xFE, 0xFF])
        elif change == 2:
            del data[at:]
        elif change == 3:
            del data[at : at + int(draw.integers(1, 9))]
        elif change == 4:
            data[at:at] = draw.bytes(int(draw.integers(1, 9)))
        else:
            data[:4] = draw.bytes(min(len(data), 4))
    return bytes(data)


def made_patch(draw, size):
    """Return the bytes of a patch with parts that are about right."""
    count = int(draw.choice([0, 1, 2, 3, size // 8, size // 8 + 1, 0xFFFF, draw.integers(1 << 16)]))
    written = min(count, 300)
    gaps = draw.integers(0, int(draw.choice([2, 256])), written)
    codes = np.where(draw.random(written) < 0.5, draw.integers(0, 4, written), draw.integers(0xFFF0, 1 << 16, written))
    words = draw.bytes(8 * int(np.count_nonzero(codes == 0xFFFF)))
    head = bytes([int(draw.integers(4))]) + count.to_bytes(2, "little")
    return head + gaps.astype("u1").tobytes() + codes.astype("<u2").tobytes() + words


def read_patch(data, patches):
    """Return the frame of a patch as FORMAT.md defines it; None for bytes that are not a patch."""
    if len(data) < 3 or data[0] >= len(patches.typical):
        return None
    count = int.from_bytes(data[1:3], "little")
    rest = data[3 + 3 * count :]
    if len(data) < 3 + 3 * count:
        return None
    frame = patches.typical[data[0]].copy()
    position = 0
    for number in range(count):
        position += data[3 + number]
        code = int.from_bytes(data[3 + count + 2 * number :][:2], "little")
        if position >= len(frame):
            return None
        if code < len(patches.words):
            frame[position] = patches.words[code]
        elif code == 0xFFFF and len(rest) >= 8:
            frame[position], rest = int.from_bytes(rest[:8], "little"), rest[8:]
        else:
            return None
    return None if rest else frame.view(np.uint8)


def expected(data, start, stop, dictionary, size):
    """Return what a frame must become: its bytes, "refused", or None where zstd decides."""
    if start == stop:
        return np.zeros(size, np.uint8)
    if not 0 <= start < stop <= len(data):
        return "refused"
    part = data[start:stop].tobytes()
    if part[0] == ZSTD:
        return None
    frame = read_patch(part, dictionary.patches_of(size))
    return "refused" if frame is None else frame


def check(draw, data, starts, stops, dictionary, size):
    """Decompress frames to some rows of guarded memory, and compare the rows; return 1 if the batch was refused."""
    held = FramePatches(guarded(draw, dictionary.patches.typical), guarded(draw, dictionary.patches.words))
    dictionary.patches = held
    data, starts, stops = (guarded(draw, part) for part in (data, starts, stops))
    rows = len(starts) + int(draw.integers(3))
    positions = guarded(draw, draw.permutation(rows)[: len(starts)])
    out = guarded(draw, np.full((rows, size), 7, np.uint8))
    models = [expected(data, start, stop, dictionary, size) for start, stop in zip(starts, stops, strict=True)]
    refused = 0
    try:
        decompress(data, starts, stops, dictionary, out, positions)
    except REFUSED:
        refused = 1
    wanted = [model is None or isinstance(model, np.ndarray) for model in models]
    assert refused or all(wanted), "damaged bytes were accepted"
    assert not refused or not all(isinstance(model, np.ndarray) for model in models), "good bytes were refused"
    for position, model in zip(positions, models, strict=True):
        if isinstance(model, np.ndarray):
            assert np.array_equal(out[position], model), "a frame has other bytes"
    others = np.setdiff1d(np.arange(rows), positions)
    assert (out[others] == 7).all(), "the row of no frame was written"
    return refused


def joined(parts):
    """Return parts in this order, uint8 [B], and where each begins and ends, [n]."""
    stops = np.cumsum([len(part) for part in parts])
    return np.frombuffer(b"".join(parts), np.uint8), np.concatenate([[0], stops])[:-1], stops


def chosen(draw, kind):
    """Return a size, a dictionary and some of its frames, mostly a single frame, so that the bytes are beside the page."""
    size = int(draw.choice(SIZES))
    dictionary, frames = compressed(size, kind)
    return size, FrameDictionary(dictionary.data), list(draw.choice(frames, int(draw.choice([1, 1, 1, BATCH]))))


def patches(draw):
    """Damaged patches, and bytes that are made like patches."""
    size, dictionary, frames = chosen(draw, "patches")
    parts = [made_patch(draw, size) if draw.random() < 0.5 else damaged(draw, frame) for frame in frames]
    return len(parts), check(draw, *joined(parts), dictionary, size)


def zstd(draw):
    """Damaged zstd frames, with and without a dictionary."""
    size, dictionary, frames = chosen(draw, draw.choice(["zstd", "none"]))
    parts = [damaged(draw, frame) for frame in frames]
    return len(parts), check(draw, *joined(parts), dictionary, size)


def dictionaries(draw):
    """A damaged dictionary: frames are read, and others compressed and read."""
    size, dictionary, frames = chosen(draw, "patches")
    data = bytearray(damaged(draw, dictionary.data))
    for _ in range(draw.integers(3)):  # the numbers at its beginning
        at = 8 * int(draw.integers(3))
        data[at : at + 8] = int(draw.choice([-1, 0, 1, 2, 8, 32, 33, size // 8, 4096, 1 << 61])).to_bytes(
            8, "little", signed=True
        )
    try:
        dictionary = FrameDictionary(bytes(data))
    except InvalidArgumentError:
        return len(frames), 1
    refused = check(draw, *joined(frames), dictionary, size)
    new = guarded(draw, game(size)[draw.integers(0, FRAMES, len(frames))])
    again, ends = compress(new, dictionary)
    out = guarded(draw, np.zeros_like(new))
    decompress(guarded(draw, again), np.concatenate([[0], ends])[:-1], ends, dictionary, out)
    assert np.array_equal(out, new), "a frame did not come back"
    return 2 * len(frames), refused


def offsets(draw):
    """Good frames, some of them at other places."""
    size, dictionary, _ = chosen(draw, "patches")
    _, frames = compressed(size, "patches")
    data, starts, stops = joined(list(draw.choice(frames, BATCH)))
    for places in (starts, stops):
        for at in draw.integers(0, BATCH, draw.integers(3)):
            extreme = int(draw.choice([*EXTREMES, len(data), int(draw.integers(len(data)))]))
            places[at] = (extreme, -extreme - 1, extreme + 1 if extreme < (1 << 62) else extreme)[draw.integers(3)]
    return BATCH, check(draw, data, starts, stops, dictionary, size)


def columns(draw):
    """The images of a stored field with damaged bytes and offsets."""
    size, dictionary, _ = chosen(draw, "patches")
    _, frames = compressed(size, "patches")
    parts, share = list(draw.choice(frames, BATCH)), draw.choice([0, 0.1])
    data, _, ends = joined([damaged(draw, part) if draw.random() < share else part for part in parts])
    for at in draw.integers(0, BATCH, draw.choice([0, 0, 1, 2])):
        ends[at] = draw.choice(
            [0, len(data), len(data) + 1, -1, (1 << 63) - 1, -(1 << 63), draw.integers(len(data) + 1)]
        )
    column = CompressedImageColumn(guarded(draw, data), guarded(draw, ends), (size,), Path("x"), dictionary)
    refused = 0
    for read in (lambda: column.take(draw.integers(0, BATCH, BATCH)), lambda: np.asarray(column.read_stored(0, BATCH))):
        try:
            read()
        except REFUSED:
            refused = 1
    return 2 * BATCH, refused


def rings(draw):
    """A ring of frames: its memory damaged, and its saved state with other references."""
    size = int(draw.choice(SIZES))
    ring = FrameRing(size, 2 * FRAMES, lambda nbytes: memory(nbytes, at_end=bool(draw.integers(2))), lambda _: None)
    plain = ring.append(game(size)[: FRAMES // 2])
    ring.use_dictionary(compressed(size, "patches")[0].data)
    references = np.concatenate([plain, ring.append(game(size)[FRAMES // 2 :])])
    out = guarded(draw, np.zeros((FRAMES, size), np.uint8))
    ring.read(guarded(draw, references), out)
    assert np.array_equal(out, game(size)), "a frame of the ring has other bytes"
    used = int(((references >> 24) + (references & 0xFFFFFF)).max())
    for at in draw.integers(0, used, draw.choice([0, 1, 20])):
        ring._data[at] ^= 1 << draw.integers(8)
    refused = 0
    try:
        ring.read(guarded(draw, references), out)
    except REFUSED:
        refused = 1

    state = ring.state_dict()
    stop = int(draw.choice([used, used, used - 1, int(draw.integers(used))]))
    pieces = np.split(state["pieces"][0].numpy()[:stop], np.sort(draw.integers(0, stop + 1, draw.integers(3))))
    state["pieces"] = [torch.from_numpy(guarded(draw, piece)) for piece in pieces]
    changed = references.copy()
    for at in draw.integers(0, FRAMES, draw.choice([0, 0, 1, 5])):
        extreme = int(draw.choice([*EXTREMES, used << 24, (stop << 24) | 1, int(references[at]) + 1]))
        changed[at] = (extreme, -extreme - 1, int(references[at]) ^ (1 << int(draw.integers(63))))[draw.integers(3)]
    try:
        saved = SavedFrames(state, size)
        if not saved.contains(guarded(draw, changed)):
            return 2 * FRAMES, 1
        saved.read(guarded(draw, changed))
    except REFUSED:
        refused = 1
    return 3 * FRAMES, refused


BATCHES = {one.__name__: one for one in (patches, zstd, dictionaries, offsets, columns, rings)}
TOUCHES = {
    "read after": (True, 5, False),
    "read before": (False, -1, False),
    "write after": (True, 5, True),
    "write before": (False, -1, True),
}


def touch(at_end, place, write):
    """Touch a byte outside of guarded memory of five bytes."""
    address = memory(5, at_end=at_end).ctypes.data + place
    byte = ctypes.c_char.from_address(address)
    if write:
        byte.value = b"x"
    else:
        print(byte.value)


def main(task):
    if task["what"] in TOUCHES:
        touch(*TOUCHES[task["what"]])
        return
    batch, seed, counts = BATCHES[task["what"]], task["seed"], Counter()
    while counts["images"] < task["images"]:
        print(seed, flush=True)
        images, refused = batch(np.random.default_rng([*task["what"].encode(), seed]))
        counts.update(batches=1, images=images, refused=refused)
        seed += 1
    print(json.dumps(counts), flush=True)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
