"""PNG and JPEG images are decoded to the pixels of pillow, and damaged or oversized images are refused."""

from __future__ import annotations

import io
import struct
import tracemalloc
import zlib
from contextlib import suppress

import numpy as np
import pytest
from PIL import Image
from raw.images import decoded, encoded, scene

from datasets_rl.errors import ConversionError
from datasets_rl.read import images


def one(data, shape, dtype=np.uint8):
    out = np.empty((1, *shape), dtype)
    images.decode([data], out, "x")
    return out[0]


def faults(data, shape=(16, 24, 3), dtype=np.uint8):
    with pytest.raises(ConversionError) as caught:
        images.decode(
            data if isinstance(data, list) else [data],
            np.empty((len(data) if isinstance(data, list) else 1, *shape), dtype),
            "x",
        )
    return caught.value.problems


@pytest.mark.parametrize("channels", [1, 2, 3, 4])
def test_png_is_decoded_exactly(channels):
    pixels = scene(33, 47, channels)
    data = encoded(pixels)

    assert images.read_header(data).shape == pixels.shape
    np.testing.assert_array_equal(one(data, pixels.shape), pixels)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("options", [{}, {"quality": 40, "progressive": True}, {"subsampling": 0}], ids=str)
def test_jpeg_decodes_as_pillow_decodes_it(channels, options):
    data = encoded(scene(40, 56, channels), "JPEG", **options)
    wanted = decoded(data).reshape(40, 56, channels)

    assert images.read_header(data).shape == wanted.shape
    np.testing.assert_array_equal(one(data, wanted.shape), wanted)


@pytest.mark.parametrize("channels", [1, 3, 4])
@pytest.mark.parametrize("kind", range(5))
def test_every_png_filter_is_decoded_like_by_pillow(kind, channels):
    """Any bytes are valid filtered rows; pillow gives the expected pixels."""
    raw = np.random.default_rng(kind).integers(0, 256, (9, 11 * channels + 1), np.uint8)
    raw[:, 0] = kind
    data = png(11, 9, {1: 0, 3: 2, 4: 6}[channels], body=zlib.compress(raw.tobytes()))

    np.testing.assert_array_equal(one(data, (9, 11, channels)), decoded(data).reshape(9, 11, channels))


def test_an_unknown_filter_is_refused():
    assert "filter 5" in faults(png(2, 1, body=zlib.compress(b"\5ab")), (1, 2, 1))[0]


def test_an_interlaced_png_is_read():
    pixels = np.arange(64, dtype=np.uint8).reshape(8, 8, 1)
    passes = [(0, 0, 8, 8), (0, 4, 8, 8), (4, 0, 8, 4), (0, 2, 4, 4), (2, 0, 4, 2), (0, 1, 2, 2), (1, 0, 2, 1)]
    rows = b"".join(b"\0" + row.tobytes() for y, x, dy, dx in passes for row in pixels[y::dy, x::dx])

    np.testing.assert_array_equal(one(png(8, 8, body=zlib.compress(rows), interlaced=1), (8, 8, 1)), pixels)


def test_16_bit_depth_is_kept():
    depth = np.arange(12 * 20, dtype=np.uint16).reshape(12, 20, 1) * 250
    data = encoded(depth)

    assert images.read_header(data).dtype == np.uint16
    np.testing.assert_array_equal(one(data, depth.shape, np.uint16), depth)


@pytest.mark.parametrize("kind", ["P", "1"])
def test_palettes_and_bits_become_colors_and_grays(kind):
    image = Image.fromarray(scene(16, 24)).convert(kind)
    out = io.BytesIO()
    image.save(out, "PNG")
    wanted = np.asarray(image.convert("RGB" if kind == "P" else "L")).reshape(16, 24, -1)

    np.testing.assert_array_equal(one(out.getvalue(), wanted.shape), wanted)


@pytest.mark.parametrize("kind", ["PNG", "JPEG"])
@pytest.mark.parametrize("wrap", [bytes, bytearray, memoryview])
def test_many_images_are_decoded_in_order_from_any_buffer(kind, wrap):
    files = [encoded(scene(16, 24, seed=seed), kind) for seed in range(70)]
    out = np.empty((70, 16, 24, 3), np.uint8)
    images.decode([wrap(file) for file in files], out)

    np.testing.assert_array_equal(out, [decoded(file) for file in files])


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "is empty"),
        (b"GIF89a........", "is not a PNG or JPEG image"),
        (b"<html>", "web page"),
        (b"\x89PNG\r\n\x1a\n\0\0", "is a truncated PNG"),
        (b"\xff\xd8\xff\xe0", "a damaged header"),
    ],
)
def test_data_that_is_not_an_image_is_reported(data, says):
    assert says in faults(data)[0]
    with pytest.raises(ConversionError, match=says):
        images.read_header(data)


def test_a_damaged_jpeg_is_refused_or_has_the_right_shape():
    """The format has no checksums, so only damage that the decoder detects is refused."""
    data = encoded(scene(16, 24), "JPEG")
    refused = 0
    for place in range(2, len(data)):
        damaged = bytearray(data)
        damaged[place] ^= 0x04
        try:
            one(bytes(damaged), (16, 24, 3))
        except ConversionError:
            refused += 1

    assert refused > 50


def test_all_invalid_images_are_reported_at_once():
    good = encoded(scene(16, 24))
    small, grey = encoded(scene(8, 24)), encoded(scene(16, 24, 1))
    problems = faults([good] * 20 + [small, b"?", grey] + [good] * 20)

    assert [problem.split(" is ")[0] for problem in problems] == ["image 20", "image 21", "image 22"]
    assert "[8, 24, 3] of uint8, expected [16, 24, 3] of uint8" in problems[0]
    assert "[16, 24, 1]" in problems[2]


def png(columns, rows, kind=0, bits=8, body=b"", interlaced=0):
    def chunk(name, data):
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    header = struct.pack(">IIBBBBB", columns, rows, bits, kind, 0, 0, interlaced)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", body) + chunk(b"IEND", b"")


def test_a_decompression_bomb_is_refused_by_its_declared_size():
    data = png(100_000, 100_000, body=zlib.compress(bytes(10_000_000)))
    tracemalloc.start()
    with pytest.raises(ConversionError, match="declares 100,000 by 100,000 pixels"):
        images.read_header(data)
    assert "declares 100,000" in faults(data)[0]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert peak < 1_000_000


def test_pixels_beyond_the_declared_size_are_not_decompressed():
    data = png(24, 16, body=zlib.compress(bytes(50_000_000)))
    tracemalloc.start()
    with suppress(ConversionError):
        one(data, (16, 24, 1))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert peak < 2_000_000


def test_16_bit_colors_are_refused_instead_of_converted():
    assert "16 bits per channel" in faults(png(24, 16, kind=2, bits=16))[0]


def test_cmyk_jpeg_is_refused():
    out = io.BytesIO()
    Image.new("CMYK", (24, 16)).save(out, "JPEG")

    assert "expected RGB or gray" in faults(out.getvalue())[0]


def test_a_wrong_buffer_is_a_value_error():
    with pytest.raises(ValueError, match=r"out is \[2, 16, 24, 3\]"):
        images.decode([b""], np.empty((2, 16, 24, 3), np.uint8))
