"""What a file is, told from its first bytes."""

from __future__ import annotations

import pytest

from datasets_rl.fetch import Asset
from datasets_rl.fetch.check import compare, look, wanted
from datasets_rl.fetch.plan import Wanted

HDF5 = Asset(("x",), "a.hdf5", magic=b"\x89HDF\r\n\x1a\n", kind="HDF5")
PLAIN = Asset(("x",), "a.json")


@pytest.mark.parametrize(
    ("head", "said"),
    [
        (b"<!DOCTYPE html><title>Sign\n in</title>", "a web page, not an HDF5 file: 'Sign in'"),
        (b"\n\n <HTML lang=en>", "a web page, not an HDF5 file"),
        (b"\xef\xbb\xbf<html>", "a web page"),
        (b"<?xml version='1.0'?><Error><Code>AccessDenied</Code>", "an XML document, not an HDF5 file: 'AccessDenied'"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00", "a git-LFS pointer came"),
        (b"PK\x03\x04 and so on", "it begins with 50 4b 03 04 20 61 6e 64, expected 89 48 44 46"),
        (b"", "it begins with nothing, expected 89 48"),
        (b"\x89HDF", "it begins with 89 48 44 46, expected"),
    ],
)
def test_what_came_instead_of_the_file_is_named(head, said):
    assert said in look(HDF5, head)


def test_the_right_first_bytes_are_enough():
    assert look(HDF5, b"\x89HDF\r\n\x1a\n<html>") is None


@pytest.mark.parametrize("head", [b"<?xml version='1.0'?>", b"{}", b""])
def test_a_file_without_known_first_bytes_may_be_anything_but_a_web_page_or_a_pointer(head):
    assert look(PLAIN, head) is None
    assert look(PLAIN, b"<html>") == "the server answered with a web page, not a data file"
    assert "git-LFS" in look(PLAIN, b"version https://git-lfs.github.com/spec/v1")


def test_all_differences_are_named_at_once():
    assert compare(Wanted(5, "aa"), 4, "bb") == ["it has 4 bytes, expected 5", "it has sha256 bb, expected aa"]
    assert compare(Wanted(), 4, "bb") == []


def test_digests_are_compared_whatever_their_case_and_only_if_wanted():
    asset = Asset(("x",), "a", size=3, sha256="AB")

    assert wanted(asset, hash_check=True) == Wanted(3, "ab")
    assert wanted(asset, hash_check=False) == Wanted()
