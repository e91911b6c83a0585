"""Whether bytes are the file that is wanted, and what they are if they are not."""

from __future__ import annotations

import re
from pathlib import Path

from datasets_rl.fetch.asset import Asset
from datasets_rl.fetch.partial_download import Digest
from datasets_rl.fetch.plan import Wanted
from datasets_rl.fetch.schemes import NotThere

__all__ = ["HEAD", "CutShort", "WrongBytes", "compare", "known", "look", "look_at_file", "wanted"]

HEAD = 1024
"""Bytes that are enough to tell what a file is."""
_LFS = b"version https://git-lfs.github.com/spec/"
_PAGE = re.compile(rb"\s*(?:\xef\xbb\xbf)?\s*<(?:!doctype html|html|head|body)\b", re.IGNORECASE)
_XML = re.compile(rb"\s*(?:\xef\xbb\xbf)?\s*<(?:\?xml|error)\b", re.IGNORECASE)
_TITLE = re.compile(rb"<(title|code|message)>(.*?)</\1>", re.IGNORECASE | re.DOTALL)

# Letters whose names begin with a vowel: an HDF5 file, an npz file, a parquet file.
_AN = "aefhilmnorsx"


class WrongBytes(NotThere):
    """The address has a file, and it is another one than that wanted."""


class CutShort(WrongBytes):
    """The address gave the beginning of a file, and called it the whole."""


def wanted(asset: Asset, *, hash_check: bool) -> Wanted:
    """Return what is known about a file, or nothing if the user does not want it compared."""
    sha256 = asset.sha256 and asset.sha256.lower()
    return Wanted(asset.size, sha256, asset.md5, asset.crc32c) if hash_check else Wanted()


def known(want: Wanted, *, hash_check: bool) -> str:
    """Return how much a file that met `want` was compared with: see `Fetched.checked`."""
    if not hash_check:
        return "skipped"
    return "catalog" if want.checksum else "recorded"


def look(asset: Asset, head: bytes) -> str | None:
    """Return why a file that begins like this cannot be the one wanted; None if it can.

    Args:
        asset: The file wanted.
        head: The first `HEAD` bytes, or all of them if there are fewer.
    """
    # HDF5 allows a user block before its signature; MATLAB writes one of 512 bytes.
    if asset.magic and any(head.startswith(asset.magic, at) for at in ((0, 512) if asset.kind == "HDF5" else (0,))):
        return None
    kind = _kind(asset)
    if head.startswith(_LFS):
        return f"a git-LFS pointer came, not {kind}: the address does not serve large files"
    if _PAGE.match(head):
        return f"the server answered with a web page, not {kind}{_title(head)}"
    if not asset.magic:
        return None
    if _XML.match(head):
        return f"the server answered with an XML document, not {kind}{_title(head)}"
    shown = head[: len(asset.magic)].hex(" ") or "nothing"
    return f"it begins with {shown}, expected {asset.magic.hex(' ')}: it is not {kind}"


def look_at_file(asset: Asset, path: Path) -> str | None:
    """Do what `look` does for a file on the disk."""
    with path.open("rb") as stream:
        return look(asset, stream.read(HEAD))


def compare(want: Wanted, digest: Digest) -> list[str]:
    """Return how a whole file differs from the one wanted: in its length, and in the strongest checksum known."""
    problems = []
    if want.size is not None and digest.upto != want.size:
        problems.append(f"it has {digest.upto:,} bytes, expected {want.size:,}")
    name = want.checksum
    if name and (got := digest.hexdigest(name)) != (expected := getattr(want, name)):
        problems.append(f"it has {name} {got}, expected {expected}")
    return problems


def _kind(asset: Asset) -> str:
    if asset.kind == "file":
        return "a data file"
    return f"{'an' if asset.kind[:1].lower() in _AN else 'a'} {asset.kind} file"


def _title(head: bytes) -> str:
    found = _TITLE.search(head)
    text = " ".join(found[2].decode("utf-8", "replace").split()) if found else ""
    return f": {text[:80]!r}" if text else ""
