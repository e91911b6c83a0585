"""The canonical form: which values are equal, and that the digests are those of a slow model."""

from __future__ import annotations

import numpy as np
import pytest

from datasets_rl.fingerprints.canonical import digest_numbers, digest_spans, digest_texts

M = 2**64 - 1
GOLDEN, FIRST, SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def mixed(word):
    word = (word ^ (word >> 30)) * FIRST & M
    word = (word ^ (word >> 27)) * SECOND & M
    return word ^ (word >> 31)


def spread(word, number):
    word = (word ^ (word >> 32)) + number * GOLDEN & M
    word = (word ^ (word >> 29)) * FIRST & M
    return word ^ (word >> 32)


def digest_of_words(words, first, second):
    """Return the digest of a row by integers of Python, which have no size."""
    for number, word in enumerate(words):
        each = spread(word, number + 1)
        first = first + each & M
        second = second + ((each * SECOND & M) ^ (each >> 23)) & M
    return [mixed(first), mixed(second)]


def digest(values):
    return digest_numbers(np.asarray(values))[0].tolist()


def test_the_digest_of_numbers_is_that_of_integers_of_python():
    values = np.array([[0.5, -3.25, 1e300], [0.0, 7.0, np.inf]])

    for row, found in zip(values, digest(values), strict=True):
        assert found == digest_of_words(row.view(np.uint64).tolist(), 3, 3)


def test_the_digest_of_bytes_is_that_of_integers_of_python():
    data = bytes(range(1, 20))
    words = [int.from_bytes(data[place : place + 8], "little") for place in (0, 8, 16)]

    found = digest_spans(np.frombuffer(data, np.uint8), np.array([19]))

    assert found.tolist() == [digest_of_words(words, 19 * GOLDEN & M, 19)]


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", ">f4", ">i4"])
def test_equal_numbers_of_any_dtype_have_equal_digests(dtype):
    numbers = np.array([[0, 1, 100], [3, 0, 2]])

    assert digest(numbers.astype(dtype)) == digest(numbers.astype(np.float64))
    assert digest(numbers.astype(bool)) == digest((numbers != 0).astype(np.float32))


def test_zeros_and_nans_have_one_form_and_other_values_have_others():
    nans = np.array([[0x7FF8000000000000], [0xFFF8000000000001], [0x7FF0000000000001]], np.uint64).view(np.float64)
    kinds = np.array([[0.0], [-0.0], [1.0], [np.inf], [-np.inf], [np.nextafter(1, 2)]])

    assert len({tuple(one) for one in digest(nans)}) == 1
    assert len({tuple(one) for one in [*digest(kinds), *digest(nans)]}) == 6


@pytest.mark.parametrize("number", [2**53 + 1, -(2**53) - 1, 2**63 - 1, -(2**63) + 1])
def test_an_integer_that_is_no_float_is_equal_to_itself_only(number):
    integers = np.array([[number, 5]], np.int64)

    assert digest(integers) == digest(integers.copy())
    assert digest(integers) != digest(integers.astype(np.float64))
    assert digest(integers) != digest(integers + 1)


def test_images_are_equal_in_any_dtype_and_shape():
    image = np.random.default_rng(0).integers(0, 256, (2, 8, 9, 3), np.uint8)

    assert digest(image) == digest(image.astype(np.float32)) == digest(image.reshape(2, -1).astype(np.int64))
    assert digest(image) != digest(image + 0.5)
    assert digest(image[:, :, :, :1]) != digest(image)


def test_texts_are_equal_by_their_letters_and_nothing_is_zeros():
    found = digest_texts(["", "pick", "pick ", "pick", "pické"]).tolist()

    assert found[0] == [0, 0]
    assert found[1] == found[3]
    assert len({tuple(one) for one in found}) == 4
