"""``gs://bucket/object``: a public Google Cloud Storage object over plain HTTPS.

``gs://bucket/object#generation`` names a version of the object. No SDK and no account are needed, but `folder` needs
the permission to list the bucket. ``STORAGE_EMULATOR_HOST`` sets another endpoint, as in Google's libraries.
"""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote, urlencode

from datasets_rl.fetch.asset import Asset, Folder
from datasets_rl.fetch.schemes.base import Ask, Get, NotServedError, Remote, listed_entries, stated_bytes

IN_PLACE = False
_ENDPOINT = "https://storage.googleapis.com"
_GENERATION = re.compile(r"(?P<name>.+)#(?P<generation>\d+)")
_FIELDS = "items(name,size,md5Hash,crc32c,generation),nextPageToken"


def resolve(url: str, ask: Ask) -> Remote:
    """Return the HTTPS address of an object. '$' and spaces in the object name are percent-encoded, slashes are not."""
    del ask
    bucket, name = _bucket_and_path(url)
    if not bucket or not name:
        raise NotServedError("the address does not name an object: write gs://bucket/object")
    pinned = _GENERATION.fullmatch(name)
    version = f"?generation={pinned['generation']}" if pinned else ""
    return Remote(f"{_endpoint()}/{quote(bucket)}/{quote(pinned['name'] if pinned else name)}{version}", url)


def folder(url: str, get: Get) -> Folder:
    """List all objects below a prefix, with generations, sizes and checksums.

    Composite objects have no MD5.
    """
    bucket, name = _bucket_and_path(url)
    prefix = f"{name.rstrip('/')}/" if name else ""
    assets = tuple(
        Asset(
            (f"gs://{bucket}/{item['name']}#{item['generation']}",),
            item["name"][len(prefix) :],
            size=stated_bytes(item["size"], f"the size of {item['name']}"),
            md5=_as_hex(item.get("md5Hash")),
            crc32c=_as_hex(item.get("crc32c")),
        )
        for item in _listed_objects(bucket, prefix, get)
        # Some tools create an empty object for a folder.
        if not item["name"].endswith("/")
    )
    return Folder(url, "", assets)


def _listed_objects(bucket: str, prefix: str, get: Get) -> Iterator[Mapping[str, Any]]:
    def address(page: str) -> str:
        query = {"prefix": prefix, "maxResults": 1000, "fields": _FIELDS} | ({"pageToken": page} if page else {})
        return f"{_endpoint()}/storage/v1/b/{quote(bucket)}/o?{urlencode(query)}"

    def read_page(url: str) -> tuple[Sequence[Mapping[str, Any]], str | None]:
        answer, _ = get(url, {})
        page = answer.get("nextPageToken", "")
        return answer.get("items", []), address(page) if page else None

    try:
        yield from listed_entries(address(""), read_page, key="name")
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise NotServedError(f"the list of the bucket cannot be parsed: {error!r}") from error


def _as_hex(checksum: str | None) -> str | None:
    return base64.b64decode(checksum).hex() if checksum else None


def _bucket_and_path(url: str) -> tuple[str, str]:
    bucket, _, name = url.partition("://")[2].partition("/")
    return bucket, name


def _endpoint() -> str:
    endpoint = os.environ.get("STORAGE_EMULATOR_HOST") or _ENDPOINT
    return (endpoint if "://" in endpoint else f"http://{endpoint}").rstrip("/")
