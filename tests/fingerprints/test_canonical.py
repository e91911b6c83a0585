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


def digest_of_words(words, kind):
    """Return the digest of a row by integers of Python, which have no size."""
    keys = [mixed((number + 1) * GOLDEN & M) | 1 for number in range(len(words))]
    words = [word ^ (word >> 35) for word in words]
    return sum(word * key for word, key in zip(words, keys, strict=True)) + kind * FIRST & M


def digest(values):
    return digest_numbers(np.asarray(values)).tolist()


def test_the_digest_of_numbers_is_that_of_integers_of_python():
    singles, doubles = np.array([0.5, -3.25, 7.0, 0.0], np.float32), np.array([0.5, -3.25, 1e300])

    pairs, words = singles.view(np.uint64).tolist(), doubles.view(np.uint64).tolist()

    assert digest([singles[:3], singles[:3] + 1])[0] == digest_of_words(pairs, 3 + (1 << 32))
    assert digest([singles[:3].tolist(), doubles])[0] == digest_of_words(pairs, 3 + (1 << 32))
    assert digest([singles[:3].tolist(), doubles])[1] == digest_of_words(words, 3 + (2 << 32))
    assert digest([[7.0]]) == [digest_of_words([int(np.float32(7).view(np.uint32))], 1 + (1 << 32))]


def test_the_digest_of_bytes_is_that_of_integers_of_python():
    data = bytes(range(1, 20))
    words = [int.from_bytes(data[place : place + 8], "little") for place in (0, 8, 16)]

    found = digest_spans(np.frombuffer(data, np.uint8), np.array([19, 19]))

    assert found.tolist() == [digest_of_words(words, 19), 0]


def test_changes_of_the_highest_bits_of_several_numbers_change_the_digest():
    """A sum of products forgets these bits, so that one of 256 such pairs would be equal."""
    rows = np.zeros((4096, 64), np.uint8)
    rows[:, 7], rows[:, 15] = np.repeat(np.arange(64), 64), np.tile(np.arange(64), 64)
    numbers = rows[:, [7, 15]].astype(np.float32)
    both = np.stack([numbers[:, 0] * 0, numbers[:, 0], numbers[:, 1] * 0, numbers[:, 1]], axis=1)

    assert len(set(digest(rows))) == len(set(digest(both))) == 4096


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", ">f4", ">i4"])
def test_equal_numbers_of_any_dtype_have_equal_digests(dtype):
    numbers = np.array([[0, 1, 100], [3, 0, 2]])

    assert digest(numbers.astype(dtype)) == digest(numbers.astype(np.float64))
    assert digest(numbers.astype(bool)) == digest((numbers != 0).astype(np.float32))


def test_zeros_and_nans_have_one_form_and_other_values_have_others():
    nans = np.array([[0x7FF8000000000000], [0xFFF8000000000001], [0x7FF0000000000001]], np.uint64).view(np.float64)
    kinds = np.array([[0.0], [-0.0], [1.0], [np.inf], [-np.inf], [np.nextafter(1, 2)]])

    assert len({*digest(nans)}) == 1
    assert len({*digest(kinds), *digest(nans)}) == 6


@pytest.mark.parametrize("rows", [[[1e300, 0.0]], [[0.1, 2.0]], [[2.0, 0.1]], [[2.0**53, np.nan]]])
def test_numbers_of_every_size_are_equal_to_themselves_only(rows):
    """Rows with one number that float32 does not have beside rows without."""
    several = np.array([*rows, [2.0, 3.0], *rows])

    found = digest(several)

    assert found[0] == found[2] == digest(rows)[0]
    assert found[1] == digest([[2, 3]])[0]
    assert found[0] != digest(np.nextafter(np.array(rows), 0))[0]


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

    assert found[0] == 0
    assert found[1] == found[3]
    assert len({*found}) == 4
