"""Read damaged videos, and report what became of them. The tests run this program.

argv[1]   JSON: codec, seed (of the first video), videos (how many), folder (for the file)
stdout    the seed of each video before it is read; then a line of JSON: read, refused
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path

import numpy as np
from raw.lerobot import write_video

from datasets_rl.errors import ConversionError
from datasets_rl.read.video import decode_pixels, index_video

SHAPE = (16, 24, 3)
CODES = (
    b"moov",
    b"mdat",
    b"stsz",
    b"stco",
    b"stsc",
    b"stts",
    b"ctts",
    b"stss",
    b"avcC",
    b"tkhd",
    b"mdhd",
    b"elst",
    b"free",
)
"""Names of the parts of an MP4 file; before each is its size, and after it are its numbers."""


def damaged(draw, data):
    """Return a video with some changes: anywhere, in the numbers of its index, or of its length."""
    data = bytearray(data)
    for _ in range(draw.integers(1, 5)):
        change, at = draw.integers(5), int(draw.integers(len(data)))
        places = [place for code in CODES if (place := data.find(code)) > 4]
        place = int(draw.choice(places)) if places else at
        if change == 0:
            data[at] ^= 1 << draw.integers(8)
        elif change == 1:
            near = place + int(draw.integers(-4, 40))
            data[near : near + 4] = int(draw.choice([0, 1, 255, 1 << 16, (1 << 31) - 1, (1 << 32) - 1])).to_bytes(
                4, "big"
            )
        elif change == 2:
            data[place : place + 4] = draw.choice(CODES)
        elif change == 3:
            data[at : at + 8] = draw.bytes(8)
        else:
            del data[max(at, 8) :]
        data = data or bytearray(b"x")
    return bytes(data)


def read(path):
    """Read a video as a conversion does: its index, and then all of its frames, or some of them."""
    video = index_video(path)
    frames = video.frames[:64]
    out = np.empty((len(frames), *SHAPE), np.uint8)
    decode_pixels([video], np.zeros(len(frames), np.int64), frames, out)


def main(task):
    path, counts = Path(task["folder"], "video.mp4"), Counter()
    frames = np.random.default_rng(0).integers(0, 256, (6, 4, 6, 3), np.uint8).repeat(16, 1).repeat(16, 2)
    write_video(path, frames, codec=task["codec"])
    whole = path.read_bytes()
    read(path)
    for seed in range(task["seed"], task["seed"] + task["videos"]):
        print(seed, flush=True)
        path.write_bytes(damaged(np.random.default_rng(seed), whole))
        try:
            read(path)
            counts["read"] += 1
        except ConversionError:
            counts["refused"] += 1
    print(json.dumps(counts), flush=True)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
