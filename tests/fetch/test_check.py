"""The type of a file is detected from its first bytes, and digests are compared."""

from __future__ import annotations

from dataclasses import replace

import pytest

from datasets_rl.fetch import Asset
from datasets_rl.fetch.check import differences, expected_file, format_problem
from datasets_rl.fetch.partial_download import Digest
from datasets_rl.fetch.plan import ExpectedFile

HDF5 = Asset(("x",), "a.hdf5", magic=b"\x89HDF\r\n\x1a\n", kind="HDF5")
PLAIN = Asset(("x",), "a.json")


@pytest.mark.parametrize(
    ("head", "said"),
    [
        (b"<!DOCTYPE html><title>Sign\n in</title>", "a web page, not an HDF5 file: 'Sign in'"),
        (b"\n\n <HTML lang=en>", "a web page, not an HDF5 file"),
        (b"\xef\xbb\xbf<html>", "a web page"),
        (b"<?xml version='1.0'?><Error><Code>AccessDenied</Code>", "an XML document, not an HDF5 file: 'AccessDenied'"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00", "the content is a git-LFS pointer"),
        (b"PK\x03\x04 and so on", "the first bytes are 50 4b 03 04 20 61 6e 64, expected 89 48 44 46"),
        (b"", "the first bytes are nothing, expected 89 48"),
        (b"\x89HDF", "the first bytes are 89 48 44 46, expected"),
    ],
)
def test_content_of_another_type_is_named(head, said):
    assert said in format_problem(HDF5, head)


def test_the_right_first_bytes_are_sufficient():
    assert format_problem(HDF5, b"\x89HDF\r\n\x1a\n<html>") is None


@pytest.mark.parametrize("head", [b"<?xml version='1.0'?>", b"{}", b""])
def test_a_file_without_known_first_bytes_may_be_anything_but_a_web_page_or_a_pointer(head):
    assert format_problem(PLAIN, head) is None
    assert format_problem(PLAIN, b"<html>") == "the content is a web page, not a data file"
    assert "git-LFS" in format_problem(PLAIN, b"version https://git-lfs.github.com/spec/v1")


def test_all_differences_are_named_at_once():
    digest = Digest()
    digest.take(b"1234", 0)

    said = "the file has sha256 03ac674216f3e15c761ee1a5e255f067953623c8b388b4459e13f978d7c846f4, expected aa"
    assert differences(ExpectedFile(5, "aa"), digest) == ["the file has 4 bytes, expected 5", said]
    assert differences(ExpectedFile(), digest) == []


@pytest.mark.parametrize(
    ("known", "compared"),
    [
        (ExpectedFile(crc32c="0"), "crc32c"),
        (ExpectedFile(md5="0", crc32c="0"), "md5"),
        (ExpectedFile(sha256="0", md5="0", crc32c="0"), "sha256"),
    ],
    ids=["crc32c", "md5", "sha256"],
)
def test_the_strongest_known_checksum_is_compared(known, compared):
    """The expected values are published: the check value of CRC-32C, and test vectors of RFC 1321 and FIPS 180-4."""
    digest = Digest(md5=True)
    digest.take(b"123456789", 0)
    sums = {
        "crc32c": "e3069283",
        "md5": "25f9e794323b453885f5181f1b624d0b",
        "sha256": "15e2b0d3c33891ebb0f1ef609ec419420c20e320ce94c65fbc8c3312448eb225",
    }

    assert differences(known, digest) == [f"the file has {compared} {sums[compared]}, expected 0"]
    assert differences(replace(known, **{compared: sums[compared]}), digest) == []


def test_digests_are_compared_in_any_case_and_only_on_request():
    asset = Asset(("x",), "a", size=3, sha256="AB")

    assert expected_file(asset, hash_check=True) == ExpectedFile(3, "ab")
    assert expected_file(asset, hash_check=False) == ExpectedFile()
