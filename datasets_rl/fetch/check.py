"""Checks that fetched bytes are the expected file, and descriptions of unexpected bytes, such as a web page."""

from __future__ import annotations

import re
from pathlib import Path

from datasets_rl.fetch.asset import Asset
from datasets_rl.fetch.partial_download import Digest
from datasets_rl.fetch.plan import ExpectedFile
from datasets_rl.fetch.schemes import NotServedError

HEAD = 1024
"""Number of bytes at the start of a file that suffice to identify its format."""
_LFS = b"version https://git-lfs.github.com/spec/"
POINTER = "the content is a git-LFS pointer"
"""The beginning of the problem of a file that was committed by git-LFS and not fetched."""
_PAGE = re.compile(rb"\s*(?:\xef\xbb\xbf)?\s*<(?:!doctype html|html|head|body)\b", re.IGNORECASE)
_XML = re.compile(rb"\s*(?:\xef\xbb\xbf)?\s*<(?:\?xml|error)\b", re.IGNORECASE)
_TITLE = re.compile(rb"<(title|code|message)>(.*?)</\1>", re.IGNORECASE | re.DOTALL)

# Letters with spoken names that begin with a vowel: an HDF5 file, an npz file, but a parquet file.
_AN = "aefhilmnorsx"


class WrongFileError(NotServedError):
    """The address serves another file than expected."""


class TruncatedFileError(WrongFileError):
    """The address served a truncated file as a complete file."""


def expected_file(asset: Asset, *, hash_check: bool) -> ExpectedFile:
    """Return the size and checksums that a file must have. All are None if the user disabled the check."""
    sha256 = asset.sha256 and asset.sha256.lower()
    return ExpectedFile(asset.size, sha256, asset.md5, asset.crc32c) if hash_check else ExpectedFile()


def check_kind(expected: ExpectedFile, *, hash_check: bool) -> str:
    """Return `Fetched.checked` for a file that matches `expected`."""
    if not hash_check:
        return "skipped"
    return "catalog" if expected.checksum else "recorded"


def format_problem(asset: Asset, head: bytes) -> str | None:
    """Return why a file with these first bytes cannot be the expected file, or None if the file may be correct.

    Args:
        asset: The expected file.
        head: The first `HEAD` bytes, or all bytes of a shorter file.
    """
    # HDF5 allows a user block before the signature. MATLAB writes a user block of 512 bytes.
    offsets = (0, 512) if asset.kind == "HDF5" else (0,)
    if asset.magic and any(head.startswith(asset.magic, offset) for offset in offsets):
        return None
    kind = _kind_text(asset)
    if head.startswith(_LFS):
        return f"{POINTER}, not {kind}: the file itself is elsewhere"
    if _PAGE.match(head):
        return f"the content is a web page, not {kind}{_title_text(head)}"
    if not asset.magic:
        return None
    if _XML.match(head):
        return f"the content is an XML document, not {kind}{_title_text(head)}"
    start = head[: len(asset.magic)].hex(" ") or "nothing"
    return f"the content is not {kind}: the first bytes are {start}, expected {asset.magic.hex(' ')}"


def file_format_problem(asset: Asset, path: Path) -> str | None:
    """Apply `format_problem` to a file on disk."""
    with path.open("rb") as stream:
        return format_problem(asset, stream.read(HEAD))


def differences(expected: ExpectedFile, digest: Digest) -> list[str]:
    """Return how a complete file differs from the expected file, in size and in the strongest known checksum."""
    problems = []
    if expected.size is not None and digest.upto != expected.size:
        problems.append(f"the file has {digest.upto:,} bytes, expected {expected.size:,}")
    name = expected.checksum
    if name and (checksum := digest.hexdigest(name)) != (stated := getattr(expected, name)):
        problems.append(f"the file has {name} {checksum}, expected {stated}")
    return problems


def _kind_text(asset: Asset) -> str:
    if asset.kind == "file":
        return "a data file"
    return f"{'an' if asset.kind[:1].lower() in _AN else 'a'} {asset.kind} file"


def _title_text(head: bytes) -> str:
    match = _TITLE.search(head)
    text = " ".join(match[2].decode("utf-8", "replace").split()) if match else ""
    return f": {text[:80]!r}" if text else ""
