"""``s3://bucket/key``: a public object of Amazon S3 or of a compatible service, over plain HTTPS.

No SDK and no account are needed. ``AWS_ENDPOINT_URL`` sets another endpoint, as in Amazon's tools.
"""

from __future__ import annotations

import os
from urllib.parse import quote

from datasets_rl.fetch.asset import Folder
from datasets_rl.fetch.schemes.base import Ask, Get, NotServedError, Remote

IN_PLACE = False


def resolve(url: str, ask: Ask) -> Remote:
    """Return the HTTPS address of an object. Amazon redirects to the region of the bucket."""
    del ask
    bucket, _, key = url.partition("://")[2].partition("/")
    if not bucket or not key:
        raise NotServedError("the address does not name an object: write s3://bucket/key")
    endpoint = os.environ.get("AWS_ENDPOINT_URL", "").rstrip("/")
    # Amazon's certificate does not cover BUCKET.s3.amazonaws.com if the name of the bucket has dots.
    base = f"{endpoint or 'https://s3.amazonaws.com'}/{quote(bucket)}"
    if not endpoint and "." not in bucket:
        base = f"https://{quote(bucket)}.s3.amazonaws.com"
    return Remote(f"{base}/{quote(key)}", url)


def folder(url: str, get: Get) -> Folder:
    """Raise `NotServedError`: the list of a bucket is XML, and no dataset needs the list."""
    del get
    raise NotServedError(f"the objects of a bucket are not listed, but {url} may still serve objects")
